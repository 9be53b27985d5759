//! Events: those of the Cosmos SDK's gov by its names, and the module's own typed ones.

use holdfast_proto::Any;
use holdfast_types::{Address, Coin, Context, Event, ModuleError};

use crate::types::{Plan, ProposalId, Vote};

/// Coins as the SDK writes them: `5uabc,10uhold`.
pub(crate) fn amount(coins: &[Coin]) -> String {
    let coins: Vec<_> = coins.iter().map(|c| format!("{}{}", c.amount, c.denom)).collect();
    coins.join(",")
}

pub(crate) fn submitted(ctx: &mut Context<'_>, id: ProposalId, proposer: &Address, messages: &[Any]) {
    // Each type after a comma, the first one too, as the SDK does.
    let types: String = messages.iter().map(|m| format!(",{}", m.type_url)).collect();
    let proposer = ctx.bech32(proposer);
    let event = Event::new("submit_proposal").with("proposal_id", id);
    ctx.emit(event.with("proposal_proposer", proposer).with("proposal_messages", types));
}

/// `kind` is the event of the message that began the voting period.
pub(crate) fn voting_begun(ctx: &mut Context<'_>, kind: &str, id: ProposalId) {
    ctx.emit(Event::new(kind).with("voting_period_start", id));
}

pub(crate) fn deposited(ctx: &mut Context<'_>, id: ProposalId, depositor: &Address, coins: &[Coin]) {
    let event = Event::new("proposal_deposit").with("depositor", ctx.bech32(depositor));
    ctx.emit(event.with("amount", amount(coins)).with("proposal_id", id));
}

pub(crate) fn voted(ctx: &mut Context<'_>, id: ProposalId, voter: &Address, vote: &Vote) {
    let part = |o: &crate::types::WeightedOption| {
        format!("{{\"option\":{},\"weight\":\"{}\"}}", o.option.number(), o.weight)
    };
    let options: Vec<_> = vote.options.iter().map(part).collect();
    let event = Event::new("proposal_vote").with("voter", ctx.bech32(voter));
    ctx.emit(event.with("option", format!("[{}]", options.join(","))).with("proposal_id", id));
}

pub(crate) fn cancelled(ctx: &mut Context<'_>, id: ProposalId, proposer: &Address) {
    let event = Event::new("cancel_proposal").with("sender", ctx.bech32(proposer));
    ctx.emit(event.with("proposal_id", id));
}

/// The deposit period ended without enough.
pub(crate) fn dropped(ctx: &mut Context<'_>, id: ProposalId) {
    let event = Event::new("inactive_proposal").with("proposal_id", id);
    ctx.emit(event.with("proposal_result", "proposal_dropped"));
}

/// The voting period ended with `result`.
pub(crate) fn decided(ctx: &mut Context<'_>, id: ProposalId, result: &str, log: impl ToString) {
    let event = Event::new("active_proposal").with("proposal_id", id).with("proposal_result", result);
    ctx.emit(event.with("proposal_log", log));
}

/// A row of a block step that failed and was left out; `key` says which.
pub(crate) fn step_discarded(ctx: &mut Context<'_>, step: &str, key: impl ToString, reason: &ModuleError) {
    let event = Event::new("holdfast.gov.v1.EventStepDiscarded");
    ctx.emit(event.with("step", step).with("key", key).with("reason", reason));
}

pub(crate) fn upgrade(ctx: &mut Context<'_>, name: &str, plan: &Plan) {
    let event = Event::new(format!("holdfast.gov.v1.{name}")).with("name", &plan.name);
    ctx.emit(event.with("height", plan.height));
}
