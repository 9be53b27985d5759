//! Queries read: called any number of times they leave the state alone, and anyone can repeat the draw.

use std::collections::BTreeMap;

use holdfast_proto::Message;
use holdfast_proto::cosmos::{
    auth::v1beta1 as auth, bank::v1beta1 as bank, gov::v1 as gov, upgrade::v1beta1 as upgrade,
};
use holdfast_proto::holdfast::{
    breaker::v1 as breaker, epochs::v1 as epochs, escrow::v1 as escrow, inference::v1 as inference,
    participants::v1 as participants,
};
use holdfast_types::{Address, Hrp, QueryKind, ValidationParams};
use sha2::{Digest, Sha256};

use super::net::*;
use crate::query::QUERY_PATHS;

/// A request that each path answers. A path without one fails the test below.
fn requests(net: &Net) -> BTreeMap<&'static str, Vec<u8>> {
    let who = net.executor(0).bech32();
    let mut out: BTreeMap<&'static str, Vec<u8>> = BTreeMap::new();
    let mut add = |path: &'static str, request: Vec<u8>| assert!(out.insert(path, request).is_none());
    let model = || MODEL.to_owned();
    add(
        "/cosmos.auth.v1beta1.Query/Account",
        auth::QueryAccountRequest { address: who.clone() }.encode_to_vec(),
    );
    add("/cosmos.auth.v1beta1.Query/Accounts", auth::QueryAccountsRequest::default().encode_to_vec());
    add(
        "/cosmos.auth.v1beta1.Query/ModuleAccountByName",
        auth::QueryModuleAccountByNameRequest { name: "inference".into() }.encode_to_vec(),
    );
    add(
        "/cosmos.bank.v1beta1.Query/Balance",
        bank::QueryBalanceRequest { address: who.clone(), denom: DENOM.into() }.encode_to_vec(),
    );
    add(
        "/cosmos.bank.v1beta1.Query/AllBalances",
        bank::QueryAllBalancesRequest { address: who.clone(), ..Default::default() }.encode_to_vec(),
    );
    add(
        "/cosmos.bank.v1beta1.Query/SupplyOf",
        bank::QuerySupplyOfRequest { denom: DENOM.into() }.encode_to_vec(),
    );
    add("/cosmos.bank.v1beta1.Query/TotalSupply", bank::QueryTotalSupplyRequest::default().encode_to_vec());
    add("/holdfast.epochs.v1.Query/Params", Vec::new());
    add("/holdfast.epochs.v1.Query/CurrentEpoch", Vec::new());
    add("/holdfast.epochs.v1.Query/Epoch", epochs::QueryEpochRequest { index: 0 }.encode_to_vec());
    add("/holdfast.participants.v1.Query/Params", Vec::new());
    add(
        "/holdfast.participants.v1.Query/Participant",
        participants::QueryParticipantRequest { participant: who.clone() }.encode_to_vec(),
    );
    add("/holdfast.participants.v1.Query/Participants", Vec::new());
    add("/holdfast.participants.v1.Query/Models", Vec::new());
    add(
        "/holdfast.participants.v1.Query/EpochGroup",
        participants::QueryEpochGroupRequest { model: model(), ..Default::default() }.encode_to_vec(),
    );
    add(
        "/holdfast.participants.v1.Query/Maintenance",
        participants::QueryMaintenanceRequest { participant: who.clone() }.encode_to_vec(),
    );
    add("/holdfast.inference.v1.Query/Params", Vec::new());
    add(
        "/holdfast.inference.v1.Query/Inference",
        inference::QueryInferenceRequest { inference_id: "open".into() }.encode_to_vec(),
    );
    add("/holdfast.inference.v1.Query/Inferences", Vec::new());
    add(
        "/holdfast.inference.v1.Query/ParticipantStats",
        inference::QueryParticipantStatsRequest { participant: who.clone(), epoch: None }.encode_to_vec(),
    );
    add(
        "/holdfast.inference.v1.Query/Sprt",
        inference::QuerySprtRequest { participant: who.clone() }.encode_to_vec(),
    );
    add(
        "/holdfast.inference.v1.Query/GetRandomExecutor",
        inference::QueryGetRandomExecutorRequest { model: model(), seed: Vec::new() }.encode_to_vec(),
    );
    add(
        "/holdfast.inference.v1.Query/CandidateTable",
        inference::QueryCandidateTableRequest { model: model(), pagination: None }.encode_to_vec(),
    );
    add(
        "/holdfast.breaker.v1.Query/CircuitBreaker",
        breaker::QueryCircuitBreakerRequest { participant: who, model: model() }.encode_to_vec(),
    );
    add("/holdfast.breaker.v1.Query/CircuitBreakers", Vec::new());
    add(
        "/holdfast.breaker.v1.Query/BreakerSummary",
        breaker::QueryBreakerSummaryRequest { model: model() }.encode_to_vec(),
    );
    add("/holdfast.breaker.v1.Query/Overrides", Vec::new());
    add("/holdfast.escrow.v1.Query/Params", Vec::new());
    add("/holdfast.escrow.v1.Query/Escrow", escrow::QueryEscrowRequest { escrow_id: 1 }.encode_to_vec());
    add("/holdfast.escrow.v1.Query/Escrows", Vec::new());
    let participant = net.executor(3).bech32();
    add(
        "/holdfast.escrow.v1.Query/EscrowsByParticipant",
        escrow::QueryEscrowsByParticipantRequest { participant, ..Default::default() }.encode_to_vec(),
    );
    add("/holdfast.participants.v1.Query/Validators", Vec::new());
    add("/cosmos.auth.v1beta1.Query/Params", Vec::new());
    let (proposal_id, proposer) = (1, net.executor(3).bech32());
    add("/cosmos.gov.v1.Query/Proposal", gov::QueryProposalRequest { proposal_id }.encode_to_vec());
    add("/cosmos.gov.v1.Query/Proposals", Vec::new());
    let voter = proposer.clone();
    add("/cosmos.gov.v1.Query/Vote", gov::QueryVoteRequest { proposal_id, voter }.encode_to_vec());
    let (all, votes) = (None, "/cosmos.gov.v1.Query/Votes");
    add(votes, gov::QueryVotesRequest { proposal_id, pagination: all.clone() }.encode_to_vec());
    add("/cosmos.gov.v1.Query/Params", Vec::new());
    let depositor = proposer;
    add("/cosmos.gov.v1.Query/Deposit", gov::QueryDepositRequest { proposal_id, depositor }.encode_to_vec());
    let deposits = gov::QueryDepositsRequest { proposal_id, pagination: all };
    add("/cosmos.gov.v1.Query/Deposits", deposits.encode_to_vec());
    add("/cosmos.gov.v1.Query/TallyResult", gov::QueryTallyResultRequest { proposal_id }.encode_to_vec());
    add("/cosmos.upgrade.v1beta1.Query/CurrentPlan", Vec::new());
    let name = "v2".to_owned();
    add(
        "/cosmos.upgrade.v1beta1.Query/AppliedPlan",
        upgrade::QueryAppliedPlanRequest { name }.encode_to_vec(),
    );
    add("/cosmos.upgrade.v1beta1.Query/ModuleVersions", Vec::new());
    add("/cosmos.upgrade.v1beta1.Query/Authority", Vec::new());
    add(crate::what_if::PATH, Vec::new());
    out
}

/// Healthy, excluded, ready and claimed members, open work, a window, an override.
fn busy() -> Net {
    let executors = [10, 20, 30, 40, 50].map(Executor::new).to_vec();
    let mut net = Net::new(&Spec { executors, ..Spec::default() });
    net.make_ready(0);
    net.make_ready(1);
    let who = net.executor(4);
    net.push(&who, vec![announce_msg(&who, 60, 65)]);
    let forced = override_msg(MODEL, &who, breaker::OverrideTo::Healthy, 90);
    net.govern(crate::app::Moment::AfterEndBlock, forced);
    net.exclude(2);
    let proposer = net.executor(3);
    net.push(
        &proposer,
        vec![submit_msg(&proposer, Vec::new(), 10_000_000), vote_msg(&proposer, 1, gov::VoteOption::Yes)],
    );
    net.start("probe", 1);
    net.start("open", 3);
    let creator = net.gateway(1);
    net.push(&creator, vec![create_escrow_msg(&creator, 1, 50_000)]);
    net.good();
    assert_eq!([0, 1, 2, 3].map(|n| net.state(n)), ["R", "C", "X", "H"]);
    net
}

#[test]
fn a_thousand_calls_of_every_query_change_nothing() {
    let mut net = busy();
    let requests = requests(&net);
    let listed = QUERY_PATHS.to_vec();
    assert_eq!(requests.len(), listed.len());
    let (hash, state) = (net.app.app_hash(), net.dump());
    for path in listed {
        let request = requests.get(path).unwrap_or_else(|| panic!("no request for {path}"));
        let first = net.shared.query(path, request, 0).unwrap();
        assert_eq!(first.1, net.height());
        for _ in 1..1_000 {
            let reply = net.shared.query(path, request, 0).unwrap();
            if !path.ends_with("GetRandomExecutor") {
                assert!(reply == first, "{path} answers differently");
            }
        }
        assert!(net.app.app_hash() == hash, "{path} changed the app hash");
    }
    assert!(net.dump() == state, "a query wrote");
    // The next block is the one of a chain that was never asked.
    let mut silent = busy();
    assert_eq!(net.good().app_hash, silent.good().app_hash);
}

#[test]
fn a_path_or_request_that_is_none_is_refused_by_kind() {
    let net = Net::standard();
    let kind = |path: &str, request: &[u8]| net.shared.query(path, request, 0).unwrap_err().kind;
    assert_eq!(kind("/holdfast.breaker.v1.Query/Nothing", &[]), QueryKind::Unimplemented);
    assert_eq!(kind("", &[]), QueryKind::Unimplemented);
    for path in QUERY_PATHS {
        // Field 31, which no request has; a cut-off field; a field number of 0.
        for request in [&[0xf8, 0x01, 0x01][..], &[0x0a, 0x05, b'a'], &[0x00, 0x00]] {
            assert_eq!(kind(path, request), QueryKind::InvalidArgument, "{path} {request:?}");
        }
    }
    let table = inference::QueryCandidateTableRequest { model: "m9".into(), pagination: None };
    assert_eq!(
        kind("/holdfast.inference.v1.Query/CandidateTable", &table.encode_to_vec()),
        QueryKind::NotFound
    );
    assert_eq!(kind("/holdfast.inference.v1.Query/CandidateTable", &[]), QueryKind::InvalidArgument);
    assert_eq!(net.draw("", [0; 32]).unwrap_err().kind, QueryKind::InvalidArgument);
    assert_eq!(net.draw("m9", [0; 32]).unwrap_err().kind, QueryKind::NotFound);
    let short = inference::QueryGetRandomExecutorRequest { model: MODEL.into(), seed: vec![1; 31] };
    assert_eq!(
        kind("/holdfast.inference.v1.Query/GetRandomExecutor", &short.encode_to_vec()),
        QueryKind::InvalidArgument
    );
    let error = net.draw(OTHER, [0; 32]).unwrap_err();
    assert_eq!(error.kind, QueryKind::FailedPrecondition);
    assert!(error.message.ends_with(": no_members"), "{error}");
}

/// A client's own draw, written from breaker-details 2.4 over the rows of `CandidateTable`; shares no code with the
/// chain. Gives the drawn row's address and lane.
struct Client {
    digest: [u8; 32],
    share: u128,
    rows: Vec<(Address, u128, i32, i64)>,
}

impl Client {
    fn of(net: &Net, model: &str) -> Self {
        let mut pagination = None;
        let (mut rows, mut bytes, mut header) = (Vec::new(), Vec::new(), None);
        loop {
            let request = inference::QueryCandidateTableRequest { model: model.into(), pagination };
            let page: inference::QueryCandidateTableResponse =
                net.query("/holdfast.inference.v1.Query/CandidateTable", &request).unwrap();
            for row in &page.rows {
                let address = Address::parse(&row.participant, &Hrp::default()).unwrap();
                rows.push((address, u128::from(row.weight), row.class, row.since));
                bytes.push(20);
                bytes.extend(address.0);
                bytes.extend(row.weight.to_be_bytes());
                bytes.push(u8::try_from(row.class).unwrap());
                bytes.extend(row.since.to_be_bytes());
            }
            let key = page.pagination.clone().unwrap().next_key;
            pagination = Some(holdfast_proto::cosmos::base::query::v1beta1::PageRequest {
                key: key.clone(),
                ..Default::default()
            });
            header = header.or(Some(page));
            if key.is_empty() {
                break;
            }
        }
        let header = header.unwrap();
        let mut table = b"holdfast/candidates/v1".to_vec();
        table.extend(header.epoch.to_be_bytes());
        table.extend(u16::try_from(model.len()).unwrap().to_be_bytes());
        table.extend(model.as_bytes());
        table.extend(u16::try_from(header.share_bp).unwrap().to_be_bytes());
        table.push(u8::from(header.poc));
        table.extend(header.eligible_count.to_be_bytes());
        table.extend(bytes);
        let digest: [u8; 32] = Sha256::digest(&table).into();
        assert_eq!(header.digest, digest, "the rows do not give the digest");
        Self { digest, share: header.share_bp.into(), rows }
    }

    fn draw(&self, seed: [u8; 32]) -> (Address, inference::Lane) {
        let mut counter = 0_u64;
        let mut below = |bound: u128| loop {
            let mut block = b"holdfast/draw/v1".to_vec();
            block.extend(seed);
            block.extend(self.digest);
            block.extend(counter.to_be_bytes());
            counter += 1;
            let hash = Sha256::digest(&block);
            let x = u128::from_be_bytes(hash[..16].try_into().unwrap());
            let rest = (u128::MAX % bound + 1) % bound;
            if x <= u128::MAX - rest {
                return x % bound;
            }
        };
        let walk = |rows: Vec<&(Address, u128, i32, i64)>, mut r: u128| {
            for row in rows {
                if r < row.1 {
                    return row.0;
                }
                r -= row.1;
            }
            panic!("past the last row");
        };
        let class = |n: i32| self.rows.iter().filter(|row| row.2 == n).collect::<Vec<_>>();
        let (healthy, ready) = (class(0), class(1));
        let weight: u128 = healthy.iter().map(|row| row.1).sum();
        if healthy.is_empty() && ready.is_empty() {
            let all: u128 = self.rows.iter().map(|row| row.1).sum();
            return (walk(self.rows.iter().collect(), below(all)), inference::Lane::Fallback);
        }
        if self.share == 0 {
            let r = below(weight + ready.len() as u128);
            return match usize::try_from(r.wrapping_sub(weight)) {
                Ok(n) if r >= weight => (ready[n].0, inference::Lane::Probe),
                _ => (walk(healthy, r), inference::Lane::Healthy),
            };
        }
        let probe = match (ready.is_empty(), healthy.is_empty()) {
            (true, _) => false,
            (_, true) => true,
            _ => below(10_000) < self.share,
        };
        if probe {
            let mut lane = ready;
            lane.sort_by_key(|row| (row.3, row.0));
            lane.truncate(16);
            let n = below(lane.len() as u128);
            return (lane[usize::try_from(n).unwrap()].0, inference::Lane::Probe);
        }
        (walk(healthy, below(weight)), inference::Lane::Healthy)
    }
}

#[track_caller]
fn agrees(net: &Net, seeds: u64) -> BTreeMap<i32, u32> {
    let client = Client::of(net, MODEL);
    let mut rng = Rng(seeds);
    let mut lanes = BTreeMap::new();
    for _ in 0..300 {
        let seed = rng.seed();
        let reply = net.draw(MODEL, seed).unwrap();
        let (address, lane) = client.draw(seed);
        assert_eq!(reply.executor.unwrap().address, address.to_bech32(&Hrp::default()));
        assert_eq!((reply.lane, reply.seed.as_slice()), (lane.into(), &seed[..]));
        assert_eq!((reply.table_digest, reply.height), (client.digest.to_vec(), net.height()));
        *lanes.entry(reply.lane).or_default() += 1;
    }
    lanes
}

#[test]
fn a_client_recomputes_the_draw_from_the_candidate_table_and_the_seed() {
    let mut net = busy();
    let (healthy, probe, fallback) =
        (inference::Lane::Healthy as i32, inference::Lane::Probe as i32, inference::Lane::Fallback as i32);
    let lanes = agrees(&net, 1);
    assert!(lanes[&healthy] > 250 && lanes[&probe] > 3, "{lanes:?}");
    let params = ValidationParams { health_cb_probe_share_bp: 0, ..quick() };
    let msg = validation_msg(params, 1, &["validation.health_cb_probe_share_bp"]);
    net.govern(crate::app::Moment::AfterEndBlock, msg);
    net.good();
    let lanes = agrees(&net, 2);
    assert!(lanes[&healthy] > 280, "{lanes:?}");
    // Only excluded and claimed members are left: the fallback.
    let mut net = Net::new(&Spec { executors: vec![Executor::new(7), Executor::new(9)], ..Spec::default() });
    for executor in [0, 1] {
        net.start(&format!("{executor}a"), executor);
        net.start(&format!("{executor}b"), executor);
    }
    net.good();
    for executor in [0, 1] {
        net.report(&format!("{executor}a"), executor);
        net.report(&format!("{executor}b"), executor);
    }
    net.good();
    assert_eq!(agrees(&net, 3), BTreeMap::from([(fallback, 300)]));
    // Only ready ones: the lane.
    net.blocks(5);
    assert_eq!(agrees(&net, 4), BTreeMap::from([(probe, 300)]));
}

#[test]
fn draws_follow_the_weights_and_reach_every_member_of_a_large_group() {
    const MEMBERS: usize = 200;
    const DRAWS: u32 = 20_000;
    let weight = |i: usize| 50 + (7 * i as u64) % 101;
    let executors = (0..MEMBERS).map(|i| Executor::new(weight(i))).collect();
    let net = Net::new(&Spec { executors, ..Spec::default() });
    let index: BTreeMap<String, usize> = (0..MEMBERS).map(|i| (net.executor(i).bech32(), i)).collect();
    let mut counts = vec![0_u32; MEMBERS];
    for n in 0..DRAWS {
        let seed: [u8; 32] = Sha256::digest(n.to_be_bytes()).into();
        let reply = net.draw(MODEL, seed).unwrap();
        counts[index[&reply.executor.unwrap().address]] += 1;
    }
    assert!(counts.iter().all(|n| *n > 0), "someone is never drawn: {counts:?}");
    let total: u64 = (0..MEMBERS).map(weight).sum();
    let chi_square: f64 = counts
        .iter()
        .enumerate()
        .map(|(i, n)| {
            let expected = f64::from(DRAWS) * weight(i) as f64 / total as f64;
            (f64::from(*n) - expected).powi(2) / expected
        })
        .sum();
    // 199 degrees of freedom: mean 199, deviation 20; five deviations either way.
    assert!((99.0..299.0).contains(&chi_square), "{chi_square}");
    // The table comes in two pages here.
    agrees(&net, 5);
}

#[test]
fn without_a_seed_the_server_draws_one_that_repeats_the_answer() {
    let net = busy();
    let request = inference::QueryGetRandomExecutorRequest { model: MODEL.into(), seed: Vec::new() };
    let path = "/holdfast.inference.v1.Query/GetRandomExecutor";
    let replies: Vec<inference::QueryGetRandomExecutorResponse> =
        (0..2).map(|_| net.query(path, &request).unwrap()).collect();
    assert_ne!(replies[0].seed, replies[1].seed);
    for reply in replies {
        let seed = reply.seed.as_slice().try_into().unwrap();
        assert_eq!(net.draw(MODEL, seed).unwrap(), reply);
    }
}
