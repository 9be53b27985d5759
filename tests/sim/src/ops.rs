//! Operations: for every message the chain routes, how a user comes to send one. Most are such that the chain takes them;
//! some are wrong in a field, in their signer, or in their bytes.

mod authority;
mod bank;
mod escrow;
mod gov;
mod inference;
mod participants;
mod scene;

use std::sync::OnceLock;

use holdfast_app::router;
use holdfast_app::tx::pack;
use holdfast_proto::cosmos as sdk;
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_proto::holdfast as pb;
use holdfast_proto::{Any, Name, type_url};

use self::authority::{cancel_upgrade, software_upgrade};
use self::bank::send;
use self::gov::vote_of;
pub(crate) use self::gov::votes;
pub(crate) use self::inference::answers;
pub(crate) use self::scene::{Draft, Scene};
use crate::cast::DENOM;
use crate::rng::Rng;

/// Who can have a message carried out.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    /// Whoever signs it.
    Signed(fn(&mut Scene<'_>) -> Draft),
    /// Only a proposal that passes.
    Governed(fn(&mut Scene<'_>) -> Any),
}

/// How messages of a type come about.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) url: String,
    pub(crate) weight: u32,
    pub(crate) make: Make,
}

fn signed<M: Name>(weight: u32, make: fn(&mut Scene<'_>) -> Draft) -> Operation {
    Operation { url: type_url::<M>(), weight, make: Make::Signed(make) }
}

fn governed<M: Name>(weight: u32, make: fn(&mut Scene<'_>) -> Any) -> Operation {
    Operation { url: type_url::<M>(), weight, make: Make::Governed(make) }
}

/// One row for each type of message. A test compares it with what the app routes.
pub(crate) fn operations() -> &'static [Operation] {
    static TABLE: OnceLock<Vec<Operation>> = OnceLock::new();
    TABLE.get_or_init(|| {
        vec![
            signed::<MsgSend>(8, send),
            signed::<pb::participants::v1::MsgRegisterParticipant>(5, participants::register),
            signed::<pb::participants::v1::MsgUpdateParticipant>(5, participants::update),
            signed::<pb::participants::v1::MsgLeaveNetwork>(1, participants::leave),
            signed::<pb::participants::v1::MsgDepositCollateral>(4, participants::deposit_collateral),
            signed::<pb::participants::v1::MsgWithdrawCollateral>(4, participants::withdraw_collateral),
            signed::<pb::participants::v1::MsgClaimCollateral>(4, participants::claim_collateral),
            signed::<pb::participants::v1::MsgAnnounceMaintenance>(6, participants::announce),
            signed::<pb::participants::v1::MsgCancelMaintenance>(3, participants::cancel_maintenance),
            signed::<pb::inference::v1::MsgStartInference>(60, inference::start),
            signed::<pb::inference::v1::MsgFinishInference>(6, inference::finish),
            signed::<pb::inference::v1::MsgReportFailure>(3, inference::report),
            signed::<pb::inference::v1::MsgCancelInference>(4, inference::cancel_inference),
            signed::<pb::escrow::v1::MsgCreateEscrow>(10, escrow::create),
            signed::<pb::escrow::v1::MsgSettleEscrow>(5, escrow::settle),
            signed::<pb::escrow::v1::MsgDisputeEscrow>(6, escrow::dispute),
            signed::<sdk::gov::v1::MsgSubmitProposal>(16, submit),
            signed::<sdk::gov::v1::MsgDeposit>(4, gov::deposit),
            signed::<sdk::gov::v1::MsgVote>(2, gov::vote),
            signed::<sdk::gov::v1::MsgVoteWeighted>(2, gov::vote_weighted),
            signed::<sdk::gov::v1::MsgCancelProposal>(1, gov::cancel_proposal),
            governed::<pb::epochs::v1::MsgUpdateParams>(4, authority::epochs_params),
            governed::<pb::participants::v1::MsgRegisterModel>(4, authority::register_model),
            governed::<pb::participants::v1::MsgUpdateParams>(4, authority::participants_params),
            governed::<pb::inference::v1::MsgUpdateParams>(10, authority::inference_params),
            governed::<pb::breaker::v1::MsgSetBreakerOverride>(8, authority::breaker_override),
            governed::<pb::escrow::v1::MsgUpdateParams>(4, escrow::escrow_params),
            governed::<sdk::auth::v1beta1::MsgUpdateParams>(2, authority::auth_params),
            governed::<sdk::gov::v1::MsgUpdateParams>(3, authority::gov_params),
            governed::<upgrade::MsgSoftwareUpgrade>(5, authority::software_upgrade),
            governed::<upgrade::MsgCancelUpgrade>(2, authority::cancel_upgrade),
        ]
    })
}

/// Those that the app of this build routes.
fn routed() -> &'static [Operation] {
    static TABLE: OnceLock<Vec<Operation>> = OnceLock::new();
    TABLE.get_or_init(|| operations().iter().filter(|op| router::is_routed(&op.url)).cloned().collect())
}

/// What happens besides proposals and votes, and governed messages that somebody sends by themselves.
pub(crate) fn draw(scene: &mut Scene<'_>) -> Draft {
    let weight = |op: &Operation| match op.make {
        Make::Signed(_) => op.weight,
        Make::Governed(_) => 0,
    };
    let table = routed();
    if scene.rng.percent(2)
        && let Some(message) = governed_message(scene)
    {
        // Nobody has the authority's key.
        return Draft { signer: scene.anybody(), message };
    }
    let op = &table[scene.rng.weighted(table.iter().map(weight))];
    match op.make {
        Make::Signed(make) => make(scene),
        Make::Governed(_) => send(scene),
    }
}

/// A message for a proposal.
fn governed_message(scene: &mut Scene<'_>) -> Option<Any> {
    let request = upgrade::QueryCurrentPlanRequest {};
    let plan: Option<upgrade::QueryCurrentPlanResponse> =
        scene.query("/cosmos.upgrade.v1beta1.Query/CurrentPlan", &request);
    if plan.is_some_and(|reply| reply.plan.is_some()) && scene.rng.percent(15) {
        return Some(cancel_upgrade(scene));
    }
    let table: Vec<&Operation> = routed().iter().filter(|op| matches!(op.make, Make::Governed(_))).collect();
    let op = *table.get(scene.rng.weighted(table.iter().map(|op| op.weight)))?;
    match op.make {
        Make::Governed(make) => Some(make(scene)),
        Make::Signed(_) => None,
    }
}

/// A proposal: mostly of one or two messages that its authority may send.
fn submit(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let mut messages = Vec::new();
    for _ in 0..*scene.rng.pick(&[1, 1, 1, 1, 2, 3, 0]) {
        messages.extend(governed_message(scene));
    }
    if scene.rng.percent(8) {
        // A plan that is taken back in the same breath.
        messages = vec![software_upgrade(scene), cancel_upgrade(scene)];
    }
    if scene.rng.percent(10) {
        match scene.rng.below(6) {
            // Its signer is a user.
            0 => messages.push(send(scene).message),
            1 => messages.push(Any { type_url: "/holdfast.none.v1.MsgNone".into(), value: Vec::new() }),
            2 => {
                let nested = sdk::gov::v1::MsgSubmitProposal {
                    messages: std::mem::take(&mut messages),
                    proposer: scene.cast.gov(),
                    title: "nested".into(),
                    summary: "a proposal in a proposal".into(),
                    ..sdk::gov::v1::MsgSubmitProposal::default()
                };
                messages.push(pack(&nested));
            }
            3 => {
                let amount = vec![scene.coin(DENOM, 1)];
                let to_address = scene.name(signer);
                messages.push(pack(&MsgSend { from_address: scene.cast.gov(), to_address, amount }));
            }
            4 => {
                let voter = scene.cast.gov();
                messages = vec![pack(&vote_of(scene, voter, 1)); 40];
            }
            _ => {
                if let Some(message) = messages.first_mut() {
                    message.value = scene.rng.bytes(20);
                }
            }
        }
    }
    let params = scene.gov_params();
    let expedited = scene.rng.percent(15);
    let needed = if expedited { &params.expedited_min_deposit } else { &params.min_deposit };
    let needed = needed.first().and_then(|coin| coin.amount.parse::<u128>().ok()).unwrap_or(1);
    let amount = match scene.rng.below(10) {
        0 => 0,
        1 => 1,
        2 | 3 => needed / 2,
        _ => needed,
    };
    let mut initial_deposit = Vec::new();
    if amount > 0 {
        initial_deposit.push(scene.coin(DENOM, amount));
    }
    let message = sdk::gov::v1::MsgSubmitProposal {
        messages,
        initial_deposit,
        proposer: scene.name(signer),
        metadata: String::new(),
        title: if scene.wrong() { String::new() } else { "A change".into() },
        summary: "What and why".into(),
        expedited,
    };
    Draft { signer, message: pack(&message) }
}

/// Changes a message's bytes: mostly into something that is no message.
pub(crate) fn spoil(rng: &mut Rng, message: &mut Any) {
    match rng.below(5) {
        0 => {
            let half = message.value.len() / 2;
            message.value.truncate(half);
        }
        1 if !message.value.is_empty() => {
            let at = rng.below(message.value.len());
            message.value[at] ^= 1 << rng.below(8);
        }
        // Field 60000, a varint: unknown to every message.
        2 => message.value.extend([0x80, 0xa6, 0x1d, 0x01]),
        3 => message.type_url.push('x'),
        _ => message.value.clear(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_routed_message_has_one_operation() {
        let routed: BTreeSet<String> = router::message_types().into_iter().collect();
        let known: Vec<String> = operations().iter().map(|op| op.url.clone()).collect();
        let distinct: BTreeSet<String> = known.iter().cloned().collect();
        assert_eq!(distinct.len(), known.len());
        assert_eq!(distinct, routed, "give each new message a row in operations()");
    }
}
