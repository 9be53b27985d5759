//! Operations of x/gov on proposals that exist, and how those ended.

use holdfast_app::tx::pack;
use holdfast_proto::Any;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as gov;

use super::scene::{Draft, Scene};
use crate::cast::DENOM;
use crate::memory::Memory;
use crate::rng::Rng;

/// Votes on what can be voted on.
pub(crate) fn votes(scene: &mut Scene<'_>) -> Vec<Draft> {
    let mut out = Vec::new();
    let mut followed = Vec::new();
    for proposal in std::mem::take(&mut scene.memory.proposals) {
        let request = gov::QueryProposalRequest { proposal_id: proposal.id };
        let reply: Option<gov::QueryProposalResponse> =
            scene.query("/cosmos.gov.v1.Query/Proposal", &request);
        let status = reply.and_then(|reply| reply.proposal).map(|proposal| proposal.status());
        let Some(status) = status else {
            scene.memory.ended("removed", &proposal.messages, false);
            continue;
        };
        match status {
            gov::ProposalStatus::Passed => scene.memory.ended("passed", &proposal.messages, true),
            gov::ProposalStatus::Rejected => scene.memory.ended("rejected", &proposal.messages, false),
            gov::ProposalStatus::Failed => scene.memory.ended("failed", &proposal.messages, false),
            gov::ProposalStatus::VotingPeriod => {
                // The mood about a proposal is the same for all.
                let mut mood = Rng::new(proposal.id ^ scene.cast.moods, "proposal");
                let (liked, turnout) =
                    (*mood.pick(&[100, 100, 97, 90, 60, 20]), *mood.pick(&[80, 60, 40, 3]));
                for executor in scene.cast.executors.clone() {
                    if scene.rng.percent(turnout) {
                        let yes = scene.rng.percent(liked);
                        out.push(ballot(scene, executor, proposal.id, yes));
                    }
                }
                followed.push(proposal);
            }
            _ => {
                if scene.rng.percent(25) {
                    let needed = scene.gov_params().min_deposit;
                    out.push(top_up(scene, proposal.id, needed));
                }
                followed.push(proposal);
            }
        }
    }
    scene.memory.proposals = followed;
    out
}

impl Memory {
    /// Counts how a proposal ended.
    fn ended(&mut self, how: &str, messages: &[Any], done: bool) {
        *self.counts.proposals.entry(how.to_owned()).or_default() += 1;
        for message in messages {
            let tally = self.counts.messages.entry(message.type_url.clone()).or_default();
            if done {
                tally.done += 1;
            } else {
                tally.refused += 1;
            }
        }
    }
}

impl Scene<'_> {
    pub(super) fn gov_params(&self) -> gov::Params {
        let request = gov::QueryParamsRequest { params_type: "voting".into() };
        let reply: Option<gov::QueryParamsResponse> = self.query("/cosmos.gov.v1.Query/Params", &request);
        reply.and_then(|reply| reply.params).unwrap_or_default()
    }

    fn proposal(&mut self) -> u64 {
        let known = self.rng.maybe(&self.memory.proposals).map(|proposal| proposal.id);
        known.unwrap_or_else(|| self.rng.unsigned(0, 30))
    }
}

pub(super) fn deposit(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let amount = scene.rng.unsigned(1, 800).into();
    let message = gov::MsgDeposit {
        proposal_id: scene.proposal(),
        depositor: scene.name(signer),
        amount: vec![scene.coin(DENOM, amount)],
    };
    Draft { signer, message: pack(&message) }
}

/// What a proposal lacks before it is voted on, or more.
fn top_up(scene: &mut Scene<'_>, proposal_id: u64, amount: Vec<PbCoin>) -> Draft {
    let signer = scene.anybody();
    let depositor = scene.name(signer);
    Draft { signer, message: pack(&gov::MsgDeposit { proposal_id, depositor, amount }) }
}

pub(super) fn vote_of(scene: &mut Scene<'_>, voter: String, proposal_id: u64) -> gov::MsgVote {
    let first = i64::from(!scene.wrong());
    let option = scene.rng.range(first, 4) as i32;
    gov::MsgVote { proposal_id, voter, option, metadata: String::new() }
}

pub(super) fn vote(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let (voter, id) = (scene.name(signer), scene.proposal());
    let message = vote_of(scene, voter, id);
    Draft { signer, message: pack(&message) }
}

pub(super) fn vote_weighted(scene: &mut Scene<'_>) -> Draft {
    let signer = if scene.rng.percent(80) { scene.executor() } else { scene.anybody() };
    let share = |option: gov::VoteOption, weight: &str| gov::WeightedVoteOption {
        option: option.into(),
        weight: weight.to_owned(),
    };
    use gov::VoteOption::{Abstain, No, NoWithVeto, Yes};
    let options = match scene.rng.below(6) {
        0 => vec![share(Yes, "1")],
        1 => vec![share(Yes, "0.700000000000000000"), share(No, "0.3")],
        2 => vec![share(Yes, "0.25"), share(Abstain, "0.25"), share(No, "0.25"), share(NoWithVeto, "0.25")],
        3 => vec![share(Abstain, "1.0")],
        4 => vec![share(Yes, "0.5"), share(Yes, "0.5")],
        _ => vec![share(Yes, "0.5"), share(No, "0.4")],
    };
    let message = gov::MsgVoteWeighted {
        proposal_id: scene.proposal(),
        voter: scene.name(signer),
        options,
        metadata: String::new(),
    };
    Draft { signer, message: pack(&message) }
}

fn ballot(scene: &mut Scene<'_>, voter: usize, proposal_id: u64, yes: bool) -> Draft {
    let option = if yes {
        gov::VoteOption::Yes
    } else {
        *scene.rng.pick(&[gov::VoteOption::No, gov::VoteOption::NoWithVeto, gov::VoteOption::Abstain])
    };
    let message = gov::MsgVote {
        proposal_id,
        voter: scene.name(voter),
        option: option.into(),
        metadata: String::new(),
    };
    Draft { signer: voter, message: pack(&message) }
}

pub(super) fn cancel_proposal(scene: &mut Scene<'_>) -> Draft {
    let anybody = scene.anybody();
    let known = scene.rng.maybe(&scene.memory.proposals).map(|proposal| (proposal.proposer, proposal.id));
    let (signer, proposal_id) = known.unwrap_or((anybody, 1));
    let signer = if scene.wrong() { anybody } else { signer };
    let proposer = scene.name(signer);
    Draft { signer, message: pack(&gov::MsgCancelProposal { proposal_id, proposer }) }
}
