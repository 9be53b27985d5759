//! Operations of x/escrow: coins paid in, and states brought that the keys of the cast signed.

use std::sync::Arc;

use holdfast_app::tx::pack;
use holdfast_escrow::session::settle::{Settlement, SlotSignature};
use holdfast_escrow::session::{FrozenConfig, KIND_CANCELLED, State, Tx, compose, digest};
use holdfast_escrow::{Escrow, settlement_to_pb};
use holdfast_proto::Any;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::Address;

use super::bank::send;
use super::scene::{Draft, Scene, field_names};
use crate::cast::{Account, DENOM};
use crate::{Rng, params};

/// Pays in for a small group, in one of three spells of sixteen blocks: a chain and its import go on alike only until a
/// group is drawn.
pub(crate) fn create(scene: &mut Scene<'_>) -> Draft {
    if scene.height / 16 % 3 != 0 {
        return send(scene);
    }
    let signer = scene.gateway();
    let gateway = scene.gateway();
    let amount = scene.rng.unsigned(1, 8_000).into();
    let message = pb::MsgCreateEscrow {
        creator: scene.name(signer),
        gateway: scene.name(gateway),
        gateway_url: if scene.wrong() { "gateway".into() } else { "http://gateway.example:8090".into() },
        model: scene.model(),
        amount: Some(scene.coin(DENOM, amount)),
        slots: if scene.wrong() { *scene.rng.pick(&[0, 129]) } else { scene.rng.range(1, 5) as u32 },
    };
    Draft { signer, message: pack(&message) }
}

/// Ends a session, or says so of one that has not ended.
pub(crate) fn settle(scene: &mut Scene<'_>) -> Draft {
    let Some((signer, settlement)) = brought(scene, true) else { return create(scene) };
    let message = pb::MsgSettleEscrow {
        sender: scene.name(signer),
        escrow_id: settlement.escrow_id,
        settlement: Some(settlement_to_pb(&settlement, &scene.cast.hrp)),
    };
    Draft { signer, message: pack(&message) }
}

/// Brings what hosts signed of a session that was left, or of one that runs.
pub(crate) fn dispute(scene: &mut Scene<'_>) -> Draft {
    let Some((signer, settlement)) = brought(scene, false) else { return create(scene) };
    let message = pb::MsgDisputeEscrow {
        sender: scene.name(signer),
        escrow_id: settlement.escrow_id,
        settlement: Some(settlement_to_pb(&settlement, &scene.cast.hrp)),
    };
    Draft { signer, message: pack(&message) }
}

/// Parameters for escrows to come.
pub(crate) fn escrow_params(scene: &mut Scene<'_>) -> Any {
    let denom = if scene.rng.percent(5) { scene.cast.collateral_denom.clone() } else { DENOM.to_owned() };
    let mut new = params::escrow(scene.rng, &denom);
    if scene.wrong() {
        match scene.rng.below(3) {
            0 => new.vote_threshold_bp = 10_000,
            1 => new.max_slots = 0,
            _ => new.dispute_window_blocks = 0,
        }
    }
    pack(&pb::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(new.to_pb()),
        update_mask: scene.mask(&field_names::<pb::Params>("")),
    })
}

/// A state of some escrow, and who brings it.
fn brought(scene: &mut Scene<'_>, settle: bool) -> Option<(usize, Settlement)> {
    let reply: pb::QueryEscrowsResponse =
        scene.query("/holdfast.escrow.v1.Query/Escrows", &pb::QueryEscrowsRequest::default())?;
    let known = reply.escrows.iter().filter_map(|row| Escrow::from_pb(row, &scene.cast.hrp).ok());
    let (held, ended): (Vec<Escrow>, Vec<Escrow>) = known.partition(|escrow| escrow.due_at().is_some());
    let (left, running): (Vec<Escrow>, Vec<Escrow>) =
        held.into_iter().partition(|escrow| escrow.expires_at <= scene.height);
    // Mostly one for which the message is meant.
    let lists = if settle { [running, left, ended] } else { [left, running, ended] };
    let list =
        if scene.wrong() { scene.rng.pick(&lists) } else { lists.iter().find(|list| !list.is_empty())? };
    let escrow = scene.rng.maybe(list)?.clone();
    let accounts = &scene.cast.accounts;
    let index = |address: &Address| accounts.iter().position(|account| account.address == *address);
    let mut state = session(scene.rng, accounts, &escrow.config)?;
    if settle {
        state = next(&state, vec![Tx::FinalizeRound])?;
        for _ in &escrow.config.slots {
            state = next(&state, Vec::new())?;
        }
    }
    let by = if scene.rng.percent(50) { escrow.config.creator } else { *escrow.config.slots.first()? };
    let (mut signer, slots) = (index(&by)?, escrow.config.slots.len());
    let signed = if scene.wrong() { scene.rng.below(slots) } else { slots };
    let digest =
        digest::state(&escrow.config.chain_id, escrow.config.escrow_id, state.nonce(), &state.root());
    let mut signatures = Vec::new();
    for (slot, owner) in (0_u8..).zip(escrow.config.slots.iter().take(signed)) {
        signatures
            .push(SlotSignature { slot, sig: accounts.get(index(owner)?)?.key.sign_recoverable(digest) });
    }
    let mut settlement = Settlement::of(&state, signatures);
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => settlement.balance += 1,
            1 => settlement.sealed_acc[0] ^= 1,
            2 => settlement.escrow_id += 1,
            _ => signer = scene.anybody(),
        }
    }
    Some((signer, settlement))
}

fn next(state: &State, txs: Vec<Tx>) -> Option<State> {
    compose(state, Vec::new(), txs).ok().map(|composed| composed.state)
}

/// A session with some inferences, as long as its coins last.
fn session(rng: &mut Rng, accounts: &[Account], config: &FrozenConfig) -> Option<State> {
    let mut state = State::genesis(Arc::new(config.clone()));
    for _ in 0..rng.below(6) {
        let start = Tx::StartInference {
            prompt_hash: [1; 32],
            input_limit: 16,
            output_limit: 8,
            started_at: 1_700_000_000,
        };
        let Some(started) = next(&state, vec![start]) else { break };
        let (id, slot) = (started.nonce(), config.executor_slot(started.nonce()));
        let executor = config.owner_of(slot)?;
        let key = &accounts.iter().find(|account| account.address == executor)?.key;
        let (chain, escrow) = (config.chain_id.as_str(), config.escrow_id);
        let error = |kind| {
            let sig = key.sign_recoverable(digest::error(chain, escrow, id, slot, kind, 0, 0));
            vec![Tx::ReportError { id, kind, input_tokens: 0, output_tokens: 0, sig }]
        };
        let txs = match rng.below(5) {
            0 => Vec::new(),
            1 => error(1),
            2 => error(KIND_CANCELLED),
            _ => {
                let (confirmed_at, response_hash) = (1_700_000_001, [2; 32]);
                let receipt = digest::receipt(chain, escrow, started.record(id)?, confirmed_at);
                let finish = digest::finish(chain, escrow, id, slot, 4, 8, &response_hash);
                let (input_tokens, output_tokens) = (4, 8);
                let sig = key.sign_recoverable(finish);
                vec![
                    Tx::ConfirmStart { id, confirmed_at, sig: key.sign_recoverable(receipt) },
                    Tx::FinishInference { id, input_tokens, output_tokens, response_hash, sig },
                ]
            }
        };
        state = next(&started, txs).unwrap_or(started);
    }
    Some(state)
}
