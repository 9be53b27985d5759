//! Answers of inferences on the chain, kept for those who ask again and for the report.

use std::sync::Arc;

use holdfast_proto::holdfast::host::v1::serve_response::Event;
use holdfast_runner::adapter::SessionId;
use holdfast_types::Address;

use crate::tape::{Kept, Shelf, Tape};

/// One answer as its clients see it.
pub(crate) struct Answer {
    pub(crate) session: SessionId,
    pub(crate) requester: Address,
    pub(crate) prompt_hash: [u8; 32],
    pub(crate) tape: Tape<Event>,
}

impl Answer {
    pub(crate) fn new(
        session: SessionId,
        requester: Address,
        prompt_hash: [u8; 32],
        end: Option<Event>,
    ) -> Arc<Self> {
        Arc::new(Self { session, requester, prompt_hash, tape: Tape::new(end) })
    }
}

impl Kept for Answer {
    type End = Event;

    fn tape(&self) -> &Tape<Event> {
        &self.tape
    }
}

/// Answers by inference id.
pub(crate) type Answers = Shelf<String, Answer>;
