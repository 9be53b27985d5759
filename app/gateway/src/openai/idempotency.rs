//! Idempotency keys: one request, one answer (escrow-details 9).
//!
//! | known of the key | same request | another request |
//! |---|---|---|
//! | nothing, or older than 24 h | runs | runs |
//! | runs | 409 `idempotency_in_progress` | 409 `idempotency_conflict` |
//! | answered | the stored bytes again | 409 `idempotency_conflict` |
//!
//! Only whole answers are kept: a request that failed, or whose client left, runs again. An answer is stored before its
//! last bytes are sent. At most [`REPLIES_MAX`] replies and [`BYTES_MAX`] bytes are kept; the oldest make room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use borsh::{BorshDeserialize, BorshSerialize};
use sha2::{Digest, Sha256};

use super::errors::ApiError;
use super::keys::StoreError;

/// How long an answer is kept, ms.
const KEEP_MS: u64 = 24 * 3600 * 1000;
/// Most answers kept.
const REPLIES_MAX: usize = 10_000;
/// Most bytes of answers kept.
const BYTES_MAX: usize = 64 << 20;
/// Longest answer kept, bytes.
pub(crate) const REPLY_BYTES_MAX: usize = 4 << 20;
/// Longest key, bytes.
const KEY_BYTES_MAX: usize = 255;

/// Hash of an idempotency key and of who sent it.
pub type ReplyId = [u8; 32];

/// Answers that outlive the process. Called on a worker of the runtime, see
/// [`KeyBudgets`](super::KeyBudgets).
pub trait ReplyStore: Send + Sync + 'static {
    /// Every reply that is kept, in any order; called once, at the start.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read; the API does not start.
    fn marks(&self) -> Result<Vec<(ReplyId, ReplyMark)>, StoreError>;

    /// One reply.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read; the request fails.
    fn get(&self, id: &ReplyId) -> Result<Option<StoredReply>, StoreError>;

    /// Whether replies can be kept, found out by a small write. Asked before a request runs under a key.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot; the request is refused.
    fn ready(&self) -> Result<(), StoreError>;

    /// Keeps a reply.
    ///
    /// # Errors
    /// [`StoreError`] when it was not kept; the client gets its answer all the same.
    fn put(&self, id: &ReplyId, reply: &StoredReply) -> Result<(), StoreError>;

    /// Forgets a reply, if there is one.
    ///
    /// # Errors
    /// [`StoreError`]; it is then forgotten after the next start.
    fn remove(&self, id: &ReplyId) -> Result<(), StoreError>;
}

/// What is known of a reply without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ReplyMark {
    /// SHA-256 over the request's path and body.
    pub request: [u8; 32],
    /// Unix milliseconds.
    pub stored_at_ms: u64,
    /// Length of the body.
    pub bytes: u64,
}

/// A reply as it was sent.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StoredReply {
    /// What it answered, and when.
    pub mark: ReplyMark,
    /// Headers beside those that every reply has.
    pub headers: Vec<(String, String)>,
    /// JSON, or the frames of a stream without its comments.
    pub body: Vec<u8>,
}

/// Replies in memory: a restart forgets them.
#[derive(Debug, Default)]
pub struct MemReplies(Mutex<BTreeMap<ReplyId, StoredReply>>);

impl ReplyStore for MemReplies {
    fn marks(&self) -> Result<Vec<(ReplyId, ReplyMark)>, StoreError> {
        Ok(lock(&self.0).iter().map(|(id, reply)| (*id, reply.mark)).collect())
    }

    fn get(&self, id: &ReplyId) -> Result<Option<StoredReply>, StoreError> {
        Ok(lock(&self.0).get(id).cloned())
    }

    fn ready(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn put(&self, id: &ReplyId, reply: &StoredReply) -> Result<(), StoreError> {
        lock(&self.0).insert(*id, reply.clone());
        Ok(())
    }

    fn remove(&self, id: &ReplyId) -> Result<(), StoreError> {
        lock(&self.0).remove(id);
        Ok(())
    }
}

/// All that is known of idempotency keys.
pub(crate) struct Replies {
    store: Arc<dyn ReplyStore>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    running: BTreeMap<ReplyId, [u8; 32]>,
    marks: BTreeMap<ReplyId, ReplyMark>,
    /// By age.
    order: BTreeMap<(u64, ReplyId), ()>,
    bytes: u64,
}

/// What to do with a request.
pub(crate) enum Begun {
    /// Run it, and [`Running::finish`].
    Fresh(Running),
    /// Send this again.
    Replay(StoredReply),
}

impl Replies {
    pub(crate) fn open(store: Arc<dyn ReplyStore>) -> Result<Self, StoreError> {
        let mut known = Known::default();
        for (id, mark) in store.marks()? {
            known.insert(id, mark);
        }
        Ok(Self { store, known: Mutex::new(known) })
    }

    /// Begins a request under an idempotency key. `who` is the API key's name, empty in open mode.
    ///
    /// # Errors
    /// 400 for a key that is none, 409 as in the table, 503 when the store fails.
    pub(crate) fn begin(
        self: &Arc<Self>,
        who: &str,
        key: &[u8],
        path: &str,
        body: &[u8],
        now_ms: u64,
    ) -> Result<Begun, ApiError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !key.iter().all(u8::is_ascii_graphic) {
            let rule = format!("give 1 to {KEY_BYTES_MAX} visible ASCII characters");
            return Err(ApiError::bad_field("Idempotency-Key", rule));
        }
        let (id, request) = (hash(who.as_bytes(), key), hash(path.as_bytes(), body));
        let mut known = lock(&self.known);
        self.make_room(&mut known, now_ms);
        let conflict = |known: &[u8; 32]| {
            if *known == request { Ok(()) } else { Err(ApiError::idempotency_conflict()) }
        };
        if let Some(running) = known.running.get(&id) {
            conflict(running)?;
            return Err(ApiError::idempotency_in_progress());
        }
        if let Some(mark) = known.marks.get(&id) {
            conflict(&mark.request)?;
            match self.store.get(&id) {
                Ok(Some(reply)) => return Ok(Begun::Replay(reply)),
                // Another process removed it.
                Ok(None) => known.remove(&id),
                Err(error) => {
                    tracing::error!(%error, "a stored reply is not readable");
                    return Err(ApiError::storage());
                }
            }
        }
        // One that cannot be kept would run, and be paid, again.
        if let Err(error) = self.store.ready() {
            tracing::error!(%error, "replies cannot be kept for idempotency keys");
            return Err(ApiError::storage());
        }
        known.running.insert(id, request);
        Ok(Begun::Fresh(Running { replies: Arc::clone(self), id, request }))
    }

    /// Forgets what is too old, and the oldest while there are too many.
    fn make_room(&self, known: &mut Known, now_ms: u64) {
        while let Some(((stored_at_ms, id), ())) = known.order.first_key_value() {
            let old = now_ms.saturating_sub(*stored_at_ms) >= KEEP_MS;
            let many = known.marks.len() > REPLIES_MAX || known.bytes > BYTES_MAX as u64;
            if !old && !many {
                return;
            }
            let id = *id;
            known.remove(&id);
            if let Err(error) = self.store.remove(&id) {
                tracing::warn!(%error, "a reply was not removed from the store");
            }
        }
    }
}

impl Known {
    fn insert(&mut self, id: ReplyId, mark: ReplyMark) {
        self.remove(&id);
        self.bytes = self.bytes.saturating_add(mark.bytes);
        self.order.insert((mark.stored_at_ms, id), ());
        self.marks.insert(id, mark);
    }

    fn remove(&mut self, id: &ReplyId) {
        if let Some(mark) = self.marks.remove(id) {
            self.order.remove(&(mark.stored_at_ms, *id));
            self.bytes = self.bytes.saturating_sub(mark.bytes);
        }
    }
}

/// A request that runs under its key; when dropped, the key is free again.
pub(crate) struct Running {
    replies: Arc<Replies>,
    id: ReplyId,
    request: [u8; 32],
}

impl Running {
    /// Keeps the answer. Called before its last bytes are sent.
    pub(crate) fn finish(self, headers: Vec<(String, String)>, body: Vec<u8>, now_ms: u64) {
        if body.len() > REPLY_BYTES_MAX {
            tracing::warn!(bytes = body.len(), "a reply is too long to be kept for its idempotency key");
            return;
        }
        let mark = ReplyMark { request: self.request, stored_at_ms: now_ms, bytes: body.len() as u64 };
        let stored = self.replies.store.put(&self.id, &StoredReply { mark, headers, body });
        let mut known = lock(&self.replies.known);
        match stored {
            Ok(()) => {
                known.insert(self.id, mark);
                self.replies.make_room(&mut known, now_ms);
            }
            Err(error) => tracing::error!(%error, "a reply was not kept for its idempotency key"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.replies.known).running.remove(&self.id);
    }
}

/// Of two parts that cannot be mistaken for two others.
fn hash(first: &[u8], second: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((first.len() as u64).to_le_bytes());
    hash.update(first);
    hash.update(second);
    hash.finalize().into()
}

/// Nothing panics while it holds one of these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(store: &Arc<MemReplies>) -> Arc<Replies> {
        Arc::new(Replies::open(store.clone()).unwrap())
    }

    fn fresh(replies: &Arc<Replies>, key: &str, body: &[u8], now_ms: u64) -> Option<Running> {
        match replies.begin("k", key.as_bytes(), "/p", body, now_ms) {
            Ok(Begun::Fresh(running)) => Some(running),
            _ => None,
        }
    }

    fn code(replies: &Arc<Replies>, who: &str, path: &str, body: &[u8], now_ms: u64) -> &'static str {
        match replies.begin(who, b"i", path, body, now_ms) {
            Ok(Begun::Fresh(_)) => "fresh",
            Ok(Begun::Replay(_)) => "replay",
            Err(error) => error.code,
        }
    }

    #[test]
    fn each_row_of_the_table() {
        let replies = open(&Arc::default());
        let running = fresh(&replies, "i", b"a", 0).unwrap();
        assert_eq!(code(&replies, "k", "/p", b"a", 1), "idempotency_in_progress");
        assert_eq!(code(&replies, "k", "/p", b"b", 1), "idempotency_conflict");
        assert_eq!(code(&replies, "other", "/p", b"b", 1), "fresh", "each API key has its own");
        drop(running);
        assert_eq!(code(&replies, "k", "/p", b"b", 1), "fresh", "what failed runs again");
        fresh(&replies, "i", b"a", 1).unwrap().finish(vec![("h".into(), "v".into())], b"body".to_vec(), 2);
        assert_eq!(code(&replies, "k", "/p", b"a", 3), "replay");
        assert_eq!(code(&replies, "k", "/p", b"b", 3), "idempotency_conflict");
        assert_eq!(code(&replies, "k", "/q", b"a", 3), "idempotency_conflict");
        assert_eq!(code(&replies, "k", "/p", b"a", KEEP_MS + 1), "replay");
        assert_eq!(code(&replies, "k", "/p", b"b", KEEP_MS + 2), "fresh");
    }

    #[test]
    fn a_reply_outlives_the_process_and_a_run_does_not() {
        let store = Arc::default();
        let replies = open(&store);
        fresh(&replies, "i", b"a", 5).unwrap().finish(Vec::new(), b"body".to_vec(), 6);
        let lost = fresh(&replies, "j", b"a", 7).unwrap();
        let again = open(&store);
        let Ok(Begun::Replay(reply)) = again.begin("k", b"i", "/p", b"a", 8) else { panic!("no replay") };
        assert_eq!((reply.body.as_slice(), reply.mark.stored_at_ms), (&b"body"[..], 6));
        assert!(fresh(&again, "j", b"a", 8).is_some());
        drop(lost);
    }

    #[test]
    fn the_oldest_make_room() {
        let store: Arc<MemReplies> = Arc::default();
        let replies = open(&store);
        let body = vec![0; REPLY_BYTES_MAX];
        for i in 0..17u64 {
            fresh(&replies, &format!("i{i}"), b"a", i).unwrap().finish(Vec::new(), body.clone(), i);
        }
        assert_eq!(store.marks().unwrap().len(), 16, "64 MiB of 4 MiB");
        assert!(fresh(&replies, "i0", b"a", 20).is_some());
        assert!(fresh(&replies, "i1", b"a", 20).is_none());
    }

    #[test]
    fn a_reply_that_is_too_long_is_not_kept() {
        let replies = open(&Arc::default());
        fresh(&replies, "i", b"a", 0).unwrap().finish(Vec::new(), vec![0; REPLY_BYTES_MAX + 1], 0);
        assert!(fresh(&replies, "i", b"a", 0).is_some());
    }

    /// A disk that is full.
    struct Full;

    impl ReplyStore for Full {
        fn marks(&self) -> Result<Vec<(ReplyId, ReplyMark)>, StoreError> {
            Ok(Vec::new())
        }

        fn get(&self, _: &ReplyId) -> Result<Option<StoredReply>, StoreError> {
            Ok(None)
        }

        fn ready(&self) -> Result<(), StoreError> {
            Err(StoreError("disk full".into()))
        }

        fn put(&self, _: &ReplyId, _: &StoredReply) -> Result<(), StoreError> {
            self.ready()
        }

        fn remove(&self, _: &ReplyId) -> Result<(), StoreError> {
            self.ready()
        }
    }

    #[test]
    fn a_request_whose_answer_could_not_be_kept_for_its_key_is_not_run() {
        let replies = Arc::new(Replies::open(Arc::new(Full)).unwrap());
        for _ in 0..2 {
            let error = replies.begin("k", b"i", "/p", b"a", 0).err().unwrap();
            let told = (error.status.as_u16(), error.code, error.retry_after_s);
            assert_eq!(told, (503, "storage_unavailable", Some(5)), "and the key is free again");
        }
    }

    #[test]
    fn keys_that_are_none_are_refused() {
        let replies = open(&Arc::default());
        for key in [&b""[..], b"a b", b"\xff", &[b'a'; 256]] {
            let error = replies.begin("k", key, "/p", b"a", 0).err().unwrap();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("Idempotency-Key")));
        }
    }
}
