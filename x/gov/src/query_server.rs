//! `cosmos.gov.v1.Query` and `cosmos.upgrade.v1beta1.Query`: reads only.

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as pb;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_store::{Order, StoreError};
use holdfast_types::traits::VotingPower;
use holdfast_types::{Address, Coin, Hrp, PAGE_SCAN_MAX, QueryContext, QueryError, QueryKind, paginate};

use crate::calc::{Sums, timestamp};
use crate::keeper::Keeper;
use crate::keys::MODULE_NAME;
use crate::state::{APPLIED_UPGRADES, CONTENTS, DEPOSITS, MODULE_VERSIONS, PROPOSALS, UPGRADE_PLAN, VOTES};
use crate::types::{Content, Proposal, ProposalId, ProposalStatus, Tally, Vote};

pub(crate) fn status_to_pb(status: ProposalStatus) -> pb::ProposalStatus {
    match status {
        ProposalStatus::DepositPeriod => pb::ProposalStatus::DepositPeriod,
        ProposalStatus::VotingPeriod => pb::ProposalStatus::VotingPeriod,
        ProposalStatus::Passed => pb::ProposalStatus::Passed,
        ProposalStatus::Rejected => pb::ProposalStatus::Rejected,
        ProposalStatus::Failed => pb::ProposalStatus::Failed,
    }
}

fn tally_to_pb(tally: Tally) -> pb::TallyResult {
    pb::TallyResult {
        yes_count: tally.yes.to_string(),
        abstain_count: tally.abstain.to_string(),
        no_count: tally.no.to_string(),
        no_with_veto_count: tally.no_with_veto.to_string(),
    }
}

/// A proposal in wire form.
pub(crate) fn proposal_to_pb(id: ProposalId, p: Proposal, content: Content, hrp: &Hrp) -> pb::Proposal {
    pb::Proposal {
        id,
        messages: content.messages.into_iter().map(Into::into).collect(),
        status: status_to_pb(p.status).into(),
        final_tally_result: Some(tally_to_pb(p.tally)),
        submit_time: Some(timestamp(p.submit_ns)),
        deposit_end_time: Some(timestamp(p.deposit_end_ns)),
        total_deposit: p.total_deposit.iter().map(PbCoin::from).collect(),
        voting_start_time: p.voting.map(|v| timestamp(v.start_ns)),
        voting_end_time: p.voting.map(|v| timestamp(v.end_ns)),
        metadata: content.metadata,
        title: content.title,
        summary: content.summary,
        proposer: p.proposer.to_bech32(hrp),
        expedited: p.expedited,
        failed_reason: p.failed_reason,
    }
}

pub(crate) fn vote_to_pb(id: ProposalId, voter: &Address, vote: &Vote, hrp: &Hrp) -> pb::Vote {
    pb::Vote {
        proposal_id: id,
        voter: voter.to_bech32(hrp),
        options: vote.options_to_pb(),
        metadata: vote.metadata.clone(),
    }
}

pub(crate) fn deposit_to_pb(id: ProposalId, depositor: &Address, coins: &[Coin], hrp: &Hrp) -> pb::Deposit {
    pb::Deposit {
        proposal_id: id,
        depositor: depositor.to_bech32(hrp),
        amount: coins.iter().map(PbCoin::from).collect(),
    }
}

fn known(q: QueryContext<'_>, id: ProposalId) -> Result<Proposal, QueryError> {
    if id == 0 {
        return Err(QueryError::invalid("proposal_id: must be at least 1"));
    }
    let unknown = || QueryError::not_found(format!("proposal_id: proposal {id} doesn't exist"));
    PROPOSALS.get(q.store, &id)?.ok_or_else(unknown)
}

/// One proposal.
pub fn proposal(
    q: QueryContext<'_>,
    req: pb::QueryProposalRequest,
) -> Result<pb::QueryProposalResponse, QueryError> {
    let id = req.proposal_id;
    let proposal = known(q, id)?;
    let content = CONTENTS.load(q.store, &id)?;
    Ok(pb::QueryProposalResponse { proposal: Some(proposal_to_pb(id, proposal, content, &q.block.hrp)) })
}

fn proposal_id(tail: &[u8]) -> Result<ProposalId, StoreError> {
    let bytes = tail.try_into().map_err(|_| StoreError::Backend("proposal key".into()))?;
    Ok(ProposalId::from_be_bytes(bytes))
}

/// Proposals by id, those for which every filter given holds.
pub fn proposals(
    q: QueryContext<'_>,
    req: pb::QueryProposalsRequest,
) -> Result<pb::QueryProposalsResponse, QueryError> {
    let status = pb::ProposalStatus::try_from(req.proposal_status)
        .map_err(|_| QueryError::invalid("proposal_status: must be 0 to 5"))?;
    let address = |field: &str, text: &str| (!text.is_empty()).then(|| q.address(field, text)).transpose();
    let (voter, depositor) = (address("voter", &req.voter)?, address("depositor", &req.depositor)?);
    let prefix = PROPOSALS.prefix_key(&());
    let (proposals, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        let id = proposal_id(tail)?;
        let proposal = PROPOSALS.decode_value(value)?;
        let found = status_to_pb(proposal.status);
        if status != pb::ProposalStatus::Unspecified && status != found {
            return Ok(None);
        }
        if let Some(voter) = voter
            && !VOTES.has(q.store, &(id, voter))?
        {
            return Ok(None);
        }
        if let Some(depositor) = depositor
            && !DEPOSITS.has(q.store, &(id, depositor))?
        {
            return Ok(None);
        }
        let content = CONTENTS.load(q.store, &id)?;
        Ok(Some(proposal_to_pb(id, proposal, content, &q.block.hrp)))
    })?;
    Ok(pb::QueryProposalsResponse { proposals, pagination: Some(pagination) })
}

/// One vote; kept until the proposal is decided.
pub fn vote(q: QueryContext<'_>, req: pb::QueryVoteRequest) -> Result<pb::QueryVoteResponse, QueryError> {
    let (id, voter) = (req.proposal_id, q.address("voter", &req.voter)?);
    let unknown = || QueryError::not_found(format!("voter: {} not found for proposal: {id}", req.voter));
    let vote = VOTES.get(q.store, &(id, voter))?.ok_or_else(unknown)?;
    Ok(pb::QueryVoteResponse { vote: Some(vote_to_pb(id, &voter, &vote, &q.block.hrp)) })
}

fn tail_address(tail: &[u8]) -> Result<Address, StoreError> {
    Address::from_slice(tail).map_err(|e| StoreError::Backend(e.to_string()))
}

/// Votes of a proposal by voter; kept until it is decided.
pub fn votes(q: QueryContext<'_>, req: pb::QueryVotesRequest) -> Result<pb::QueryVotesResponse, QueryError> {
    let id = req.proposal_id;
    let prefix = VOTES.prefix_key(&id);
    let (votes, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        Ok(Some(vote_to_pb(id, &tail_address(tail)?, &VOTES.decode_value(value)?, &q.block.hrp)))
    })?;
    Ok(pb::QueryVotesResponse { votes, pagination: Some(pagination) })
}

/// Parameters, and one of the older groups when asked for.
pub fn params(
    q: QueryContext<'_>,
    req: pb::QueryParamsRequest,
) -> Result<pb::QueryParamsResponse, QueryError> {
    let all = Keeper.params(q.store)?.to_pb(&q.block.hrp);
    let mut response = pb::QueryParamsResponse::default();
    match req.params_type.as_str() {
        "" => {}
        "deposit" => {
            response.deposit_params = Some(pb::DepositParams {
                min_deposit: all.min_deposit.clone(),
                max_deposit_period: all.max_deposit_period,
            });
        }
        "voting" => {
            response.voting_params = Some(pb::VotingParams { voting_period: all.voting_period });
        }
        "tallying" => {
            response.tally_params = Some(pb::TallyParams {
                quorum: all.quorum.clone(),
                threshold: all.threshold.clone(),
                veto_threshold: all.veto_threshold.clone(),
            });
        }
        _ => return Err(QueryError::invalid("params_type: must be empty, deposit, voting or tallying")),
    }
    response.params = Some(all);
    Ok(response)
}

/// One deposit; held until the proposal is settled.
pub fn deposit(
    q: QueryContext<'_>,
    req: pb::QueryDepositRequest,
) -> Result<pb::QueryDepositResponse, QueryError> {
    let (id, depositor) = (req.proposal_id, q.address("depositor", &req.depositor)?);
    let unknown =
        || QueryError::not_found(format!("depositor: {} not found for proposal: {id}", req.depositor));
    let coins = DEPOSITS.get(q.store, &(id, depositor))?.ok_or_else(unknown)?;
    Ok(pb::QueryDepositResponse { deposit: Some(deposit_to_pb(id, &depositor, &coins, &q.block.hrp)) })
}

/// Deposits of a proposal by depositor; held until it is settled.
pub fn deposits(
    q: QueryContext<'_>,
    req: pb::QueryDepositsRequest,
) -> Result<pb::QueryDepositsResponse, QueryError> {
    let id = req.proposal_id;
    let prefix = DEPOSITS.prefix_key(&id);
    let (deposits, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        let coins = DEPOSITS.decode_value(value)?;
        Ok(Some(deposit_to_pb(id, &tail_address(tail)?, &coins, &q.block.hrp)))
    })?;
    Ok(pb::QueryDepositsResponse { deposits, pagination: Some(pagination) })
}

/// The final count, or while voting is open what a count now would give. Counts at most [`PAGE_SCAN_MAX`] votes;
/// beyond, `FailedPrecondition` until the period ends.
pub fn tally_result(
    q: QueryContext<'_>,
    power: &dyn VotingPower,
    req: pb::QueryTallyResultRequest,
) -> Result<pb::QueryTallyResultResponse, QueryError> {
    let id = req.proposal_id;
    let proposal = known(q, id)?;
    if proposal.status != ProposalStatus::VotingPeriod {
        return Ok(pb::QueryTallyResultResponse { tally: Some(tally_to_pb(proposal.tally)) });
    }
    let (mut sums, mut counted) = (Sums::default(), 0_u64);
    for row in VOTES.prefix(q.store, &id, Order::Ascending) {
        let ((_, voter), vote) = row?;
        counted = counted.saturating_add(1);
        if counted > PAGE_SCAN_MAX {
            let text = format!("proposal_id: more than {PAGE_SCAN_MAX} votes; wait for the end of voting");
            return Err(QueryError::new(QueryKind::FailedPrecondition, text));
        }
        let power = power.power(q.store, q.block, &voter)?;
        sums.add_vote(power, &vote)
            .ok_or_else(|| QueryError::new(QueryKind::Internal, "voting power passes 2^128"))?;
    }
    Ok(pb::QueryTallyResultResponse { tally: Some(tally_to_pb(sums.to_tally())) })
}

/// The planned upgrade, if there is one.
pub fn current_plan(
    q: QueryContext<'_>,
    _req: upgrade::QueryCurrentPlanRequest,
) -> Result<upgrade::QueryCurrentPlanResponse, QueryError> {
    Ok(upgrade::QueryCurrentPlanResponse { plan: UPGRADE_PLAN.get(q.store)?.map(|plan| plan.to_pb()) })
}

/// Where an upgrade was done; 0 when it was not.
pub fn applied_plan(
    q: QueryContext<'_>,
    req: upgrade::QueryAppliedPlanRequest,
) -> Result<upgrade::QueryAppliedPlanResponse, QueryError> {
    let height = APPLIED_UPGRADES.get(q.store, &req.name)?.unwrap_or(0);
    Ok(upgrade::QueryAppliedPlanResponse { height })
}

/// Consensus versions: of one module, or of all.
pub fn module_versions(
    q: QueryContext<'_>,
    req: upgrade::QueryModuleVersionsRequest,
) -> Result<upgrade::QueryModuleVersionsResponse, QueryError> {
    let row = |(name, version): (String, u64)| upgrade::ModuleVersion { name, version };
    let name = req.module_name;
    let rows = if name.is_empty() {
        Keeper.module_versions(q.store)?
    } else {
        let version = MODULE_VERSIONS.get(q.store, &name)?;
        let unknown = || QueryError::not_found(format!("module_name: no module {name:?}"));
        vec![(name.clone(), version.ok_or_else(unknown)?)]
    };
    Ok(upgrade::QueryModuleVersionsResponse { module_versions: rows.into_iter().map(row).collect() })
}

/// Who may plan upgrades: the gov account.
pub fn authority(
    q: QueryContext<'_>,
    _req: upgrade::QueryAuthorityRequest,
) -> Result<upgrade::QueryAuthorityResponse, QueryError> {
    Ok(upgrade::QueryAuthorityResponse { address: Address::module(MODULE_NAME).to_bech32(&q.block.hrp) })
}
