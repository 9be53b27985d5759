//! Queries to their modules, by gRPC method path.

use holdfast_proto::cosmos::{
    auth::v1beta1 as auth, bank::v1beta1 as bank, gov::v1 as gov, upgrade::v1beta1 as upgrade,
};
use holdfast_proto::holdfast::{
    breaker::v1 as breaker, epochs::v1 as epochs, escrow::v1 as escrow, inference::v1 as inference,
    participants::v1 as participants,
};
use holdfast_proto::{Message, Name, decode_strict};
use holdfast_types::{Address, QueryError, QueryKind};

use crate::composition::{Composition, Hooks};
use crate::echo::shown;
use crate::views::QueryView;

/// Seed of a draw whose caller gave none.
pub type SeedSource = dyn Fn() -> Result<[u8; 32], QueryError> + Send + Sync;

fn decode<M: Message + Name + Default>(request: &[u8]) -> Result<M, QueryError> {
    decode_strict(request).map_err(|e| QueryError::invalid(e.to_string()))
}

macro_rules! table {
    ($($path:literal => |$view:ident, $hooks:ident, $req:ident: $type:ty| $call:expr;)*) => {
        /// Paths of every module query.
        pub const QUERY_PATHS: &[&str] = &[$($path,)* DRAW, TABLE, crate::what_if::PATH];

        fn dispatch(view: &QueryView, hooks: &Hooks<'_>, path: &str, request: &[u8]) -> Result<Vec<u8>, QueryError> {
            match path {
                $($path => {
                    let ($view, $hooks, $req) = (view.query(), hooks, decode::<$type>(request)?);
                    let _ = $hooks;
                    Ok($call?.encode_to_vec())
                })*
                _ => Err(QueryError::new(QueryKind::Unimplemented, format!("no query {:?}", shown(path)))),
            }
        }
    };
}

const DRAW: &str = "/holdfast.inference.v1.Query/GetRandomExecutor";
const TABLE: &str = "/holdfast.inference.v1.Query/CandidateTable";

table! {
    "/cosmos.auth.v1beta1.Query/Account" => |q, _h, req: auth::QueryAccountRequest|
        holdfast_auth::query_server::account(q, req);
    "/cosmos.auth.v1beta1.Query/Accounts" => |q, _h, req: auth::QueryAccountsRequest|
        holdfast_auth::query_server::accounts(q, req);
    "/cosmos.auth.v1beta1.Query/Params" => |q, _h, req: auth::QueryParamsRequest|
        holdfast_auth::query_server::params(q, req);
    "/cosmos.auth.v1beta1.Query/ModuleAccountByName" => |q, _h, req: auth::QueryModuleAccountByNameRequest|
        holdfast_auth::query_server::module_account_by_name(q, req);
    "/cosmos.bank.v1beta1.Query/Balance" => |q, _h, req: bank::QueryBalanceRequest|
        holdfast_bank::query_server::balance(q, req);
    "/cosmos.bank.v1beta1.Query/AllBalances" => |q, _h, req: bank::QueryAllBalancesRequest|
        holdfast_bank::query_server::all_balances(q, req);
    "/cosmos.bank.v1beta1.Query/SupplyOf" => |q, _h, req: bank::QuerySupplyOfRequest|
        holdfast_bank::query_server::supply_of(q, req);
    "/cosmos.bank.v1beta1.Query/TotalSupply" => |q, _h, req: bank::QueryTotalSupplyRequest|
        holdfast_bank::query_server::total_supply(q, req);
    "/cosmos.gov.v1.Query/Proposal" => |q, _h, req: gov::QueryProposalRequest|
        holdfast_gov::query_server::proposal(q, req);
    "/cosmos.gov.v1.Query/Proposals" => |q, _h, req: gov::QueryProposalsRequest|
        holdfast_gov::query_server::proposals(q, req);
    "/cosmos.gov.v1.Query/Vote" => |q, _h, req: gov::QueryVoteRequest|
        holdfast_gov::query_server::vote(q, req);
    "/cosmos.gov.v1.Query/Votes" => |q, _h, req: gov::QueryVotesRequest|
        holdfast_gov::query_server::votes(q, req);
    "/cosmos.gov.v1.Query/Params" => |q, _h, req: gov::QueryParamsRequest|
        holdfast_gov::query_server::params(q, req);
    "/cosmos.gov.v1.Query/Deposit" => |q, _h, req: gov::QueryDepositRequest|
        holdfast_gov::query_server::deposit(q, req);
    "/cosmos.gov.v1.Query/Deposits" => |q, _h, req: gov::QueryDepositsRequest|
        holdfast_gov::query_server::deposits(q, req);
    "/cosmos.gov.v1.Query/TallyResult" => |q, h, req: gov::QueryTallyResultRequest|
        holdfast_gov::query_server::tally_result(q, &h.participants, req);
    "/cosmos.upgrade.v1beta1.Query/CurrentPlan" => |q, _h, req: upgrade::QueryCurrentPlanRequest|
        holdfast_gov::query_server::current_plan(q, req);
    "/cosmos.upgrade.v1beta1.Query/AppliedPlan" => |q, _h, req: upgrade::QueryAppliedPlanRequest|
        holdfast_gov::query_server::applied_plan(q, req);
    "/cosmos.upgrade.v1beta1.Query/ModuleVersions" => |q, _h, req: upgrade::QueryModuleVersionsRequest|
        holdfast_gov::query_server::module_versions(q, req);
    "/cosmos.upgrade.v1beta1.Query/Authority" => |q, _h, req: upgrade::QueryAuthorityRequest|
        holdfast_gov::query_server::authority(q, req);
    "/holdfast.epochs.v1.Query/Params" => |q, _h, req: epochs::QueryParamsRequest|
        holdfast_epochs::query_server::params(q, req);
    "/holdfast.epochs.v1.Query/CurrentEpoch" => |q, _h, req: epochs::QueryCurrentEpochRequest|
        holdfast_epochs::query_server::current_epoch(q, req);
    "/holdfast.epochs.v1.Query/Epoch" => |q, _h, req: epochs::QueryEpochRequest|
        holdfast_epochs::query_server::epoch(q, req);
    "/holdfast.participants.v1.Query/Params" => |q, _h, req: participants::QueryParamsRequest|
        holdfast_participants::query_server::params(q, req);
    "/holdfast.participants.v1.Query/Participant" => |q, _h, req: participants::QueryParticipantRequest|
        holdfast_participants::query_server::participant(q, req);
    "/holdfast.participants.v1.Query/Participants" => |q, _h, req: participants::QueryParticipantsRequest|
        holdfast_participants::query_server::participants(q, req);
    "/holdfast.participants.v1.Query/Models" => |q, _h, req: participants::QueryModelsRequest|
        holdfast_participants::query_server::models(q, req);
    "/holdfast.participants.v1.Query/EpochGroup" => |q, h, req: participants::QueryEpochGroupRequest|
        holdfast_participants::query_server::epoch_group(&h.participants, q, req);
    "/holdfast.participants.v1.Query/Validators" => |q, _h, req: participants::QueryValidatorsRequest|
        holdfast_participants::query_server::validators(q, req);
    "/holdfast.participants.v1.Query/Maintenance" => |q, _h, req: participants::QueryMaintenanceRequest|
        holdfast_participants::query_server::maintenance(q, req);
    "/holdfast.inference.v1.Query/Params" => |q, _h, req: inference::QueryParamsRequest|
        holdfast_inference::query_server::params(q, req);
    "/holdfast.inference.v1.Query/Inference" => |q, _h, req: inference::QueryInferenceRequest|
        holdfast_inference::query_server::inference(q, req);
    "/holdfast.inference.v1.Query/Inferences" => |q, _h, req: inference::QueryInferencesRequest|
        holdfast_inference::query_server::inferences(q, req);
    "/holdfast.inference.v1.Query/ParticipantStats" => |q, _h, req: inference::QueryParticipantStatsRequest|
        holdfast_inference::query_server::participant_stats(q, req);
    "/holdfast.inference.v1.Query/Sprt" => |q, _h, req: inference::QuerySprtRequest|
        holdfast_inference::query_server::sprt(q, req);
    "/holdfast.escrow.v1.Query/Params" => |q, _h, req: escrow::QueryParamsRequest|
        holdfast_escrow::query_server::params(q, req);
    "/holdfast.escrow.v1.Query/Escrow" => |q, _h, req: escrow::QueryEscrowRequest|
        holdfast_escrow::query_server::escrow(q, req);
    "/holdfast.escrow.v1.Query/Escrows" => |q, _h, req: escrow::QueryEscrowsRequest|
        holdfast_escrow::query_server::escrows(q, req);
    "/holdfast.escrow.v1.Query/EscrowsByParticipant" => |q, _h, req: escrow::QueryEscrowsByParticipantRequest|
        holdfast_escrow::query_server::escrows_by_participant(q, req);
    "/holdfast.breaker.v1.Query/CircuitBreaker" => |q, h, req: breaker::QueryCircuitBreakerRequest|
        holdfast_breaker::query_server::circuit_breaker(&h.breaker(), q, req);
    "/holdfast.breaker.v1.Query/CircuitBreakers" => |q, h, req: breaker::QueryCircuitBreakersRequest|
        holdfast_breaker::query_server::circuit_breakers(&h.breaker(), q, req);
    "/holdfast.breaker.v1.Query/BreakerSummary" => |q, h, req: breaker::QueryBreakerSummaryRequest|
        holdfast_breaker::query_server::breaker_summary(&h.breaker(), q, req);
    "/holdfast.breaker.v1.Query/Overrides" => |q, _h, req: breaker::QueryOverridesRequest|
        holdfast_breaker::query_server::overrides(q, req);
}

impl Composition {
    /// Answers the module query at `path` from one view.
    ///
    /// # Errors
    /// `Unimplemented` for an unknown path, else by kind.
    pub fn query(
        &self,
        view: &QueryView,
        path: &str,
        request: &[u8],
        seeds: &SeedSource,
    ) -> Result<Vec<u8>, QueryError> {
        match path {
            DRAW => self.draw(view, &decode(request)?, seeds),
            TABLE => {
                let request: inference::QueryCandidateTableRequest = decode(request)?;
                if request.model.is_empty() {
                    return Err(QueryError::invalid("model: must not be empty"));
                }
                let (table, block) = (self.table(view, &request.model)?, &view.block);
                let reply = holdfast_inference::query_server::candidate_table(
                    &table,
                    block.height,
                    &block.hrp,
                    &request,
                )?;
                Ok(reply.encode_to_vec())
            }
            _ => self.with(|hooks| dispatch(view, hooks, path, request)),
        }
    }

    fn table(
        &self,
        view: &QueryView,
        model: &str,
    ) -> Result<std::sync::Arc<holdfast_inference::CandidateTable>, QueryError> {
        view.table(self, model)
    }

    /// `GetRandomExecutor`: one binary search over the view's table, one point read for the reply.
    fn draw(
        &self,
        view: &QueryView,
        request: &inference::QueryGetRandomExecutorRequest,
        seeds: &SeedSource,
    ) -> Result<Vec<u8>, QueryError> {
        use holdfast_inference::query_server as server;
        let seed = match server::requested_seed(request)? {
            Some(seed) => seed,
            None => seeds()?,
        };
        let table = self.table(view, &request.model)?;
        let draw = server::draw(&table, seed)?;
        let row =
            table.rows().get(draw.row).ok_or_else(|| QueryError::new(QueryKind::Internal, "draw row"))?;
        let address: Address = row.address;
        self.with(|hooks| {
            let q = view.query();
            let executor = holdfast_participants::query_server::participant_by_address(q, &address)?;
            let entry = hooks.breaker().entry(q.store, q.block, &request.model, &address)?;
            let reply =
                server::executor_response(&table, q.block.height, seed, draw, executor, entry.generation);
            Ok(reply.encode_to_vec())
        })
    }
}
