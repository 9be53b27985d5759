//! Answers while they are made and after: pieces of text and an end, played to each client from its beginning.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_runner::Cause;
use holdfast_runner::runner::{Generation, GenerationEvent, Outcome};
use holdfast_runner::text::{TextCodec, TextStream};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::Status;

/// Answers kept for those who ask again: the newest.
const KEPT: usize = 1_024;
/// Pieces of all these together, each some 150 bytes. Who asks for one that went gets it from the ledger.
const PIECES_KEPT: usize = 1 << 19;

/// Longest a client may take for the whole answer, beyond the runner's own limit.
pub(crate) const READER_GRACE: Duration = Duration::from_secs(360);

/// How long a client is read to that set a deadline; 0 is none.
pub(crate) fn reader_limit(deadline_ms: u64) -> Duration {
    match deadline_ms {
        0 => READER_GRACE,
        limit => Duration::from_millis(limit).min(READER_GRACE),
    }
}

/// One answer as its clients see it. `E` is its end.
pub(crate) struct Tape<E> {
    state: Mutex<State<E>>,
    changed: watch::Sender<()>,
    /// Tokens handed to the socket of the client that is furthest on.
    delivered: AtomicU32,
}

struct State<E> {
    deltas: Vec<pb::Delta>,
    end: Option<E>,
}

impl<E: Clone> Tape<E> {
    pub(crate) fn new(end: Option<E>) -> Self {
        Self {
            state: Mutex::new(State { deltas: Vec::new(), end }),
            changed: watch::Sender::new(()),
            delivered: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece; none follows an end.
    pub(crate) fn push(&self, delta: pb::Delta) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.deltas.push(delta);
            drop(state);
            self.changed.send_replace(());
        }
    }

    /// The end; the first one stays.
    pub(crate) fn end(&self, event: E) {
        self.lock().end.get_or_insert(event);
        self.changed.send_replace(());
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(crate) fn delivered(&self) -> u32 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// What follows the first `from` pieces.
    fn after(&self, from: usize) -> (Vec<pb::Delta>, Option<E>) {
        let state = self.lock();
        (state.deltas.get(from..).unwrap_or_default().to_vec(), state.end.clone())
    }

    /// Sends all of it, with a beat when nothing came for `beat`. `None` when the client is gone.
    pub(crate) async fn play<M>(
        &self,
        sender: &mpsc::Sender<Result<M, Status>>,
        beat: Duration,
        message: impl Fn(Piece<E>) -> M,
    ) -> Option<()> {
        let mut changed = self.changed.subscribe();
        let mut sent = 0;
        loop {
            let (deltas, end) = self.after(sent);
            sent += deltas.len();
            for delta in deltas {
                let count = u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX);
                let upto = delta.index.saturating_add(count);
                sender.send(Ok(message(Piece::Delta(delta)))).await.ok()?;
                self.delivered.fetch_max(upto, Ordering::Relaxed);
            }
            if let Some(end) = end {
                return sender.send(Ok(message(Piece::End(end)))).await.ok();
            }
            if timeout(beat, changed.changed()).await.is_err() {
                sender.send(Ok(message(Piece::Beat))).await.ok()?;
            }
        }
    }
}

/// What a client is sent.
pub(crate) enum Piece<E> {
    Delta(pb::Delta),
    Beat,
    End(E),
}

/// What a run gave.
pub(crate) struct Pumped {
    /// As the runner says; `None` when it stopped.
    pub(crate) outcome: Option<Outcome>,
    /// SHA-256 of the text.
    pub(crate) hash: [u8; 32],
    /// Tokens of the text.
    pub(crate) tokens: u32,
    /// It ended at a stop text.
    pub(crate) stopped: bool,
}

/// Moves tokens from the runner to a tape, as text, up to the first of the `stop` texts, and waits for the runner's end.
pub(crate) async fn pump<E: Clone>(
    mut generation: Generation,
    tape: &Tape<E>,
    codec: &dyn TextCodec,
    stop: &[String],
) -> Pumped {
    let mut text = TextStream::default();
    let mut scan = StopScan::new(stop);
    let mut hash = Sha256::new();
    let mut waiting = pb::Delta::default();
    let (mut tokens, mut stopped) = (0u32, false);
    let outcome = loop {
        match generation.next().await {
            Some(GenerationEvent::Token { .. }) if stopped => {}
            Some(GenerationEvent::Token { index, token }) => {
                if waiting.token_ids.is_empty() {
                    waiting.index = index;
                }
                waiting.token_ids.push(token);
                tokens = index.saturating_add(1);
                match text.push(codec, token) {
                    Ok(piece) => (waiting.text, stopped) = scan.push(&piece),
                    Err(error) => tracing::error!(%error, token, "a token has no text"),
                }
                // Half a character waits for its other half, and what may become a stop text for what follows.
                if !waiting.text.is_empty() || stopped {
                    hash.update(&waiting.text);
                    tape.push(std::mem::take(&mut waiting));
                }
                if stopped {
                    generation.cancel(Cause::Client);
                }
                generation.delivered(tape.delivered());
            }
            Some(GenerationEvent::Wait) => {}
            Some(GenerationEvent::Done(outcome)) => break Some(*outcome),
            None => break None,
        }
    };
    if !stopped {
        let (mut rest, found) = scan.push(&text.finish());
        stopped = found;
        if !stopped {
            rest.push_str(&scan.held);
        }
        if !rest.is_empty() || !waiting.token_ids.is_empty() {
            hash.update(&rest);
            waiting.text = rest;
            tape.push(waiting);
        }
    }
    Pumped { outcome, hash: hash.finalize().into(), tokens, stopped }
}

/// Looks for stop texts in what comes piece by piece, and holds back what may be the beginning of one.
struct StopScan<'a> {
    stops: &'a [String],
    held: String,
}

impl<'a> StopScan<'a> {
    fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new() }
    }

    /// The text that is certain now, and whether a stop text follows it.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begun = |stop: &String| {
            let mut ends = stop.char_indices().map(|(at, _)| at).rev();
            ends.find(|end| stop.get(..*end).is_some_and(|begin| self.held.ends_with(begin))).unwrap_or(0)
        };
        let keep = self.stops.iter().map(begun).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, held), false)
    }
}

/// An answer that is kept.
pub(crate) trait Kept {
    /// Its tape's end.
    type End: Clone;
    /// Its tape.
    fn tape(&self) -> &Tape<Self::End>;
}

/// Answers by key: those being made, and the newest of those that ended.
pub(crate) struct Shelf<K, A> {
    answers: Mutex<BTreeMap<K, (u64, Arc<A>)>>,
}

impl<K, A> Default for Shelf<K, A> {
    fn default() -> Self {
        Self { answers: Mutex::default() }
    }
}

impl<K: Ord + Clone, A: Kept> Shelf<K, A> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, (u64, Arc<A>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<Arc<A>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.lock().get(key).map(|(_, answer)| answer.clone())
    }

    pub(crate) fn insert(&self, key: K, answer: Arc<A>) {
        let mut answers = self.lock();
        let number = answers.values().map(|(number, _)| *number).max().map_or(0, |last| last + 1);
        answers.insert(key, (number, answer));
        let pieces = |answer: &A| answer.tape().lock().deltas.len();
        let mut all: usize = answers.values().map(|(_, answer)| pieces(answer)).sum();
        while answers.len() > KEPT || all > PIECES_KEPT {
            let ended = answers.iter().filter(|(_, (_, answer))| answer.tape().has_ended());
            let Some(oldest) = ended.min_by_key(|(_, (number, _))| *number).map(|(key, _)| key.clone())
            else {
                break;
            };
            let removed = answers.remove(&oldest);
            all = all.saturating_sub(removed.map_or(0, |(_, answer)| pieces(&answer)));
        }
    }

    /// The key of the answer that `which` accepts.
    pub(crate) fn find(&self, which: impl Fn(&A) -> bool) -> Option<K> {
        let answers = self.lock();
        answers.iter().find(|(_, (_, answer))| which(answer)).map(|(key, _)| key.clone())
    }

    pub(crate) fn running(&self) -> Vec<(K, Arc<A>)> {
        let answers = self.lock();
        let running = answers.iter().filter(|(_, (_, answer))| !answer.tape().has_ended());
        running.map(|(key, (_, answer))| (key.clone(), answer.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool, String) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut scan = StopScan::new(&stops);
        let mut out = Vec::new();
        for piece in pieces {
            let (text, found) = scan.push(piece);
            out.push(text);
            if found {
                return (out, true, String::new());
            }
        }
        let held = scan.held.clone();
        (out, false, held)
    }

    #[test]
    fn a_stop_text_ends_the_answer_wherever_its_pieces_are_cut_and_is_not_sent() {
        let joined = |found: (Vec<String>, bool, String)| (found.0.concat(), found.1, found.2);
        assert_eq!(joined(scan(&["END"], &["ab E", "ND cd"])), ("ab ".into(), true, String::new()));
        assert_eq!(joined(scan(&["END"], &["E", "N", "D"])), (String::new(), true, String::new()));
        assert_eq!(joined(scan(&["END"], &["EN", "EN", "x"])), ("ENENx".into(), false, String::new()));
        assert_eq!(joined(scan(&["END"], &["EEEN"])), ("EE".into(), false, "EN".into()));
        assert_eq!(
            joined(scan(&["b", "ab"], &["x", "ab"])),
            ("x".into(), true, String::new()),
            "the first of them"
        );
        assert_eq!(joined(scan(&["äö"], &["zä", "öx"])), ("z".into(), true, String::new()));
        assert_eq!(joined(scan(&["äö"], &["zä", "x"])), ("zäx".into(), false, String::new()));
        assert_eq!(joined(scan(&[], &["a", "b"])), ("ab".into(), false, String::new()));
        // Against searching the whole text, for every cut of it.
        let text = "aabaabaaabab";
        for stop in ["aab", "aaab", "abab", "bb"] {
            for cut in 0..text.len() {
                for second in cut..text.len() {
                    let found = scan(&[stop], &[&text[..cut], &text[cut..second], &text[second..]]);
                    match text.find(stop) {
                        Some(at) => assert_eq!(joined(found), (text[..at].into(), true, String::new())),
                        None => assert_eq!(found.0.concat() + &found.2, text),
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_follows_the_first_end() {
        let tape = Tape::new(None);
        tape.push(pb::Delta { index: 0, text: "a".into(), token_ids: vec![1] });
        tape.end("first");
        tape.end("second");
        tape.push(pb::Delta::default());
        let (deltas, end) = tape.after(0);
        assert_eq!((deltas.len(), end), (1, Some("first")));
    }
}
