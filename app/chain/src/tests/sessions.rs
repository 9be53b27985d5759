//! Sessions of escrows, played by the keys of a [`Net`], and the messages that bring their states to the chain.

use std::sync::Arc;

use holdfast_escrow::session::settle::{Settlement, SlotSignature};
use holdfast_escrow::session::{FrozenConfig, KIND_CANCELLED, State, Tx, compose, digest};
use holdfast_escrow::{Escrow, Status, settlement_to_pb};
use holdfast_proto::Any;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Hrp};

use super::net::*;
use crate::state::CommitStore;
use crate::tx::pack;

/// How one inference of a session ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Answered: 4 tokens in, 8 out.
    Finished,
    /// The executor reports a failure.
    Errored,
    /// The gateway cancelled it.
    Cancelled,
    /// Not at all.
    Open,
}

fn next(state: &State, txs: Vec<Tx>) -> State {
    let state = compose(state, Vec::new(), txs).unwrap().state;
    state.check_conservation().unwrap();
    state
}

impl<S: CommitStore> Net<S> {
    /// Escrows in a status.
    pub(super) fn escrows(&self, status: Status) -> Vec<Escrow> {
        let request = pb::QueryEscrowsRequest { status: Some(status.to_pb().into()), ..Default::default() };
        let reply: pb::QueryEscrowsResponse =
            self.query("/holdfast.escrow.v1.Query/Escrows", &request).unwrap();
        reply.escrows.iter().map(|row| Escrow::from_pb(row, &Hrp::default()).unwrap()).collect()
    }

    pub(super) fn escrow(&self, id: u64) -> Escrow {
        let view = self.shared.view(0).unwrap();
        holdfast_escrow::Keeper.escrow(view.query().store, id).unwrap().unwrap()
    }

    /// Whoever of this net has the address.
    pub(super) fn who(&self, address: &Address) -> Who {
        self.everybody().into_iter().find(|who| who.address == *address).unwrap()
    }

    /// A session in which the n-th diff starts an inference, and the diff after it ends it as told.
    pub(super) fn session(&self, config: &FrozenConfig, ends: &[End]) -> State {
        let mut state = State::genesis(Arc::new(config.clone()));
        for end in ends {
            let start = Tx::StartInference {
                prompt_hash: [1; 32],
                input_limit: 16,
                output_limit: 8,
                started_at: 1_700_000_000,
            };
            state = next(&state, vec![start]);
            state = next(&state, self.end(&state, *end));
        }
        state
    }

    fn end(&self, state: &State, end: End) -> Vec<Tx> {
        let (config, id) = (state.config(), state.nonce());
        let (chain, escrow, slot) = (config.chain_id.as_str(), config.escrow_id, config.executor_slot(id));
        let key = self.who(&config.executor_of(id).unwrap()).key;
        let error = |kind| {
            let sig = key.sign_recoverable(digest::error(chain, escrow, id, slot, kind, 0, 0));
            vec![Tx::ReportError { id, kind, input_tokens: 0, output_tokens: 0, sig }]
        };
        match end {
            End::Open => Vec::new(),
            End::Errored => error(1),
            End::Cancelled => error(KIND_CANCELLED),
            End::Finished => {
                let (confirmed_at, response_hash) = (1_700_000_001, [2; 32]);
                let receipt = digest::receipt(chain, escrow, state.record(id).unwrap(), confirmed_at);
                let finish = digest::finish(chain, escrow, id, slot, 4, 8, &response_hash);
                let (receipt, finish) = (key.sign_recoverable(receipt), key.sign_recoverable(finish));
                vec![
                    Tx::ConfirmStart { id, confirmed_at, sig: receipt },
                    Tx::FinishInference { id, input_tokens: 4, output_tokens: 8, response_hash, sig: finish },
                ]
            }
        }
    }

    /// The state signed by the first `slots` slots.
    pub(super) fn signed(&self, state: &State, slots: usize) -> Settlement {
        let config = state.config();
        let digest = digest::state(&config.chain_id, config.escrow_id, state.nonce(), &state.root());
        let sign = |(slot, owner): (u8, &Address)| SlotSignature {
            slot,
            sig: self.who(owner).key.sign_recoverable(digest),
        };
        Settlement::of(state, (0..).zip(config.slots.iter().take(slots)).map(sign).collect())
    }
}

/// Finalizes and drains.
pub(super) fn finalized(state: &State) -> State {
    let slots = state.config().slots.len();
    (0..slots).fold(next(state, vec![Tx::FinalizeRound]), |state, _| next(&state, Vec::new()))
}

pub(super) fn settle_msg(by: &Who, settlement: &Settlement) -> Any {
    pack(&pb::MsgSettleEscrow {
        sender: by.bech32(),
        escrow_id: settlement.escrow_id,
        settlement: Some(settlement_to_pb(settlement, &Hrp::default())),
    })
}

pub(super) fn dispute_msg(by: &Who, settlement: &Settlement) -> Any {
    pack(&pb::MsgDisputeEscrow {
        sender: by.bech32(),
        escrow_id: settlement.escrow_id,
        settlement: Some(settlement_to_pb(settlement, &Hrp::default())),
    })
}
