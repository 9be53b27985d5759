//! What a key holds while it is open.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, watch};

use super::line::{Line, lock};
use super::site::Site;
use super::stream::Stream;
use crate::adapter::KvKey;

/// What a key holds. Dropping it closes the connection and gives the slot back when the request is seen to end.
pub(super) struct Kv {
    pub(super) site: Arc<Site>,
    pub(super) line: Arc<Line>,
    pub(super) slot: Option<OwnedSemaphorePermit>,
    /// What came of the prompt before its last chunk.
    pub(super) prompt: Vec<u8>,
    pub(super) stream: Option<Stream>,
}

impl Kv {
    pub(super) fn new(site: &Arc<Site>, key: KvKey, slot: Option<OwnedSemaphorePermit>) -> Self {
        let line = Arc::new(Line {
            key,
            reader: Mutex::default(),
            cut: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            counts: OnceLock::new(),
            closed: watch::Sender::new(None),
        });
        lock(&site.lines).insert(key, line.clone());
        Self { site: site.clone(), line, slot, prompt: Vec::new(), stream: None }
    }
}

impl Drop for Kv {
    fn drop(&mut self) {
        self.line.cut();
        let (site, line, slot) = (self.site.clone(), self.line.clone(), self.slot.take());
        match self.stream.as_mut().and_then(|stream| stream.reader.take()) {
            None => {
                drop(slot);
                site.close(&line, true);
            }
            Some(reader) => {
                let runtime = site.runtime.clone();
                runtime.spawn(async move {
                    // However it ends, its connection is closed afterwards.
                    let _ = reader.await;
                    line.hung_up();
                    let ended = !line.runs.load(Ordering::Acquire) || site.wait_for_end().await;
                    match slot {
                        Some(slot) if !ended => {
                            slot.forget();
                            site.leaked.fetch_add(1, Ordering::AcqRel);
                            tracing::warn!(session = %line.key.session, epoch = line.key.epoch,
                                "a closed request still runs at the upstream: no new ones until it ends");
                        }
                        slot => drop(slot),
                    }
                    site.close(&line, ended);
                });
            }
        }
    }
}
