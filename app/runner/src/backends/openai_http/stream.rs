//! The pieces of an answer, on their way from the connection to the steps.

use std::sync::atomic::Ordering;

use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::line::Line;
use super::sse::Event;
use super::text::{END_TOKEN, PieceTable};
use crate::adapter::{AdapterError, Digest};

pub(super) struct Stream {
    pub(super) prompt: Digest,
    pub(super) pieces: mpsc::Receiver<Result<Event, AdapterError>>,
    pub(super) reader: Option<JoinHandle<()>>,
    /// The token that the next step is to feed back.
    pub(super) last: Option<u32>,
    pub(super) failed: Option<AdapterError>,
}

impl Stream {
    /// The next token. Dropping the future loses none.
    pub(super) async fn next(
        &mut self,
        pieces: &PieceTable,
        line: &Line,
    ) -> Result<(u32, Digest), AdapterError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.last == Some(END_TOKEN) {
            return Err(AdapterError::Internal("the answer has ended".into()));
        }
        let event = self.pieces.recv().await;
        let event =
            event.unwrap_or_else(|| Err(AdapterError::StreamReset("the connection was closed here".into())));
        line.queued.fetch_sub(u32::from(event.is_ok()), Ordering::AcqRel);
        let result = match event {
            Ok(Event::Piece(text)) => match pieces.intern(&text) {
                Some(id) => Ok((id, Sha256::digest(text.as_bytes()).into())),
                None => Err(AdapterError::Internal("no ids are left for pieces of text".into())),
            },
            Ok(Event::End(_)) => Ok((END_TOKEN, Sha256::digest(b"").into())),
            Err(error) => Err(error),
        };
        self.failed = result.as_ref().err().cloned();
        result
    }
}
