//! Genesis: what is refused, and that a state comes back byte by byte.

use super::*;
use holdfast_proto::holdfast::gov::v1::{self as own, GenesisState, SettlementKind as Kind};
use holdfast_store::MemKv;

const MODULE: GovModule<'static> = GovModule { bank: &BANK };

/// A proposal in each state, a count and a settlement in the middle, a plan, a history and versions.
fn rich_state() -> World {
    let mut w = World::new();
    w.set_params(|p| {
        p.proposal_cancel_dest = Some(addr(15));
        p.min_deposit_ratio = crate::calc::Share::ZERO;
    });
    w.send(|ctx, _| {
        Keeper.set_module_versions(ctx, &[("gov".into(), 1), ("bank".into(), 2)])?;
        let plan = |name: &str, height| Plan { name: name.into(), height, info: String::new() };
        Keeper.apply_upgrade(ctx, &plan("zebra", 100))?;
        Ok(Keeper.plan_upgrade(ctx, &plan("next", 1_000))?)
    })
    .unwrap();
    w.chain.block.height += 1;
    let applied = Plan { name: "apple".into(), height: 101, info: String::new() };
    let planned = Keeper.upgrade_plan(&w.chain.store).unwrap().unwrap();
    w.send(|ctx, _| Keeper.apply_upgrade(ctx, &applied)).unwrap();
    w.send(|ctx, _| Ok(Keeper.plan_upgrade(ctx, &planned)?)).unwrap();
    let passed = w.voting(vec![test_msg("put:a")]);
    w.votes(passed, &[1, 1, 1, 1]);
    let failed = w.voting(vec![test_msg(&format!("before:{}", START + DAY))]);
    w.votes(failed, &[1, 1, 1, 1]);
    w.voting(vec![]);
    w.block(2 * DAY);
    // Settled partly: 1,200 deposits, cancelled.
    let id = w.voting(vec![]);
    for n in 0..1_200 {
        let who = addr_n(1_000 + n);
        w.chain.ctx(|ctx| BANK.set(ctx, &who, DENOM, 5));
        let coin = holdfast_types::Coin { denom: DENOM.into(), amount: 5 };
        w.send(|ctx, deps| Ok(Keeper.deposit(ctx, deps, id, &who, &[coin])?)).unwrap();
    }
    w.votes(id, &[1, 2]);
    w.cancel(id, 11).unwrap();
    // Counted partly: 1,100 votes.
    let id = w.voting(vec![test_msg("put:late")]);
    for n in 0..1_100 {
        let voter = addr_n(1_000 + n);
        w.power.of.borrow_mut().insert(voter, 3);
        let third = "0.333333333333333333";
        let part = |option, weight: &str| pb::WeightedVoteOption { option, weight: weight.into() };
        let parts = [part(1, third), part(2, third), part(3, "0.333333333333333334")];
        let vote = Vote::weighted(&parts, "why".into()).unwrap();
        w.send(|ctx, deps| Ok(Keeper.vote(ctx, deps, id, &voter, &vote)?)).unwrap();
    }
    w.block(2 * DAY);
    let msg = w.submission(12, MIN / 2, vec![test_msg("put:b"), test_msg("put:c")]);
    w.submit(msg);
    let id = w.expedited(vec![]);
    w.votes(id, &[4, 1]);
    w
}

fn export(w: &World) -> Vec<u8> {
    MODULE.export_genesis(&w.chain.store, &w.chain.block.hrp).unwrap()
}

/// A chain with the bank of `w` and `genesis`.
fn import(w: &World, genesis: &[u8]) -> Result<World, ModuleError> {
    let mut chain = TestChain { store: MemKv::default(), ..w.chain.clone() };
    for (key, value) in w.chain.store.pairs().filter(|(key, _)| !key.starts_with(b"gov/")) {
        holdfast_store::KvWrite::set(&mut chain.store, key, value).unwrap();
    }
    let power = Powers::default();
    power.of.borrow_mut().clone_from(&w.power.of.borrow());
    MODULE.validate_genesis(genesis, &chain.block.hrp)?;
    chain.message(|ctx| MODULE.init_genesis(ctx, genesis))?;
    Ok(World { chain, power })
}

#[test]
fn every_kind_of_row_comes_back_byte_by_byte_and_goes_on_as_it_would_have() {
    let mut w = rich_state();
    let bytes = export(&w);
    let state = GenesisState::decode(bytes.as_slice()).unwrap();
    let statuses: Vec<i32> = state.proposals.iter().map(|p| p.status).collect();
    assert_eq!(statuses, [3, 5, 4, 2, 1, 2]);
    assert_eq!((state.tallies.len(), state.settlements.len(), state.applied_upgrades.len()), (1, 1, 2));
    assert_eq!(state.tallies[0].yes, "999.999999999999999000");
    assert_eq!(state.settlements[0].kind, i32::from(Kind::Charge));
    assert!(!state.settlements[0].last_depositor.is_empty());
    let mut copy = import(&w, &bytes).unwrap();
    assert!(copy.chain.store == w.chain.store, "queues and sums follow from the rows");
    assert_eq!(export(&copy), bytes);
    for _ in 0..6 {
        assert_eq!(copy.block(DAY / 2), w.block(DAY / 2));
        assert!(copy.chain.store == w.chain.store);
    }
    assert_eq!(Keeper.last_applied(&copy.chain.store).unwrap(), Some(("apple".into(), 101)));
}

#[test]
fn the_default_genesis_is_valid_and_comes_back() {
    let bytes = MODULE.default_genesis();
    MODULE.validate_genesis(&bytes, &Hrp::default()).unwrap();
    let mut chain = TestChain::new(1);
    chain.message(|ctx| MODULE.init_genesis(ctx, &bytes)).unwrap();
    assert_eq!(MODULE.export_genesis(&chain.store, &Hrp::default()).unwrap(), bytes);
    invariants::check(&chain.store, &BANK).unwrap();
    assert!(check_prefix_table(&MODULE));
    assert_eq!((MODULE.name(), MODULE.consensus_version(), COLLECTIONS.len()), ("gov", 1, 15));
    assert_eq!(MODULE.error_codes().len(), CODES.len());
}

type Spoil = fn(&mut GenesisState);

#[test]
fn a_bad_genesis_is_refused_by_field() {
    let w = rich_state();
    let good = GenesisState::decode(export(&w).as_slice()).unwrap();
    let cases: &[(&str, Spoil)] = &[
        ("params", |g| g.params = None),
        ("params: quorum", |g| g.params.as_mut().unwrap().quorum = "2".into()),
        ("next_proposal_id", |g| g.next_proposal_id = 0),
        ("proposals.id", |g| g.next_proposal_id = 3),
        ("proposals:", |g| g.proposals.swap(0, 1)),
        ("proposals:", |g| g.proposals.push(g.proposals[5].clone())),
        ("proposals[id 1].status", |g| g.proposals[0].status = 0),
        ("proposals[id 1].proposer", |g| g.proposals[0].proposer.clear()),
        ("proposals[id 1].title", |g| g.proposals[0].title.clear()),
        ("proposals[id 1].submit_time", |g| g.proposals[0].submit_time = None),
        ("proposals[id 1].submit_time", |g| g.proposals[0].deposit_end_time = seconds(5)),
        ("proposals[id 1].voting_end_time", |g| g.proposals[0].voting_end_time = None),
        ("proposals[id 6].voting_start_time", |g| {
            (g.proposals[4].voting_start_time, g.proposals[4].voting_end_time) =
                (g.proposals[5].voting_start_time, g.proposals[5].voting_end_time);
        }),
        ("proposals[id 1].failed_reason", |g| g.proposals[0].failed_reason = "x".into()),
        ("proposals[id 7].final_tally_result", |g| {
            g.proposals[5].final_tally_result.as_mut().unwrap().yes_count = "1".into();
        }),
        ("proposals[id 1].yes_count", |g| {
            g.proposals[0].final_tally_result.as_mut().unwrap().yes_count = "x".into();
        }),
        ("proposals.total_deposit", |g| g.proposals[4].total_deposit = uhold(1)),
        ("deposits.depositor", |g| g.deposits[0].depositor = "x".into()),
        ("deposits.amount", |g| g.deposits[0].amount.clear()),
        ("deposits.proposal_id", |g| g.deposits[0].proposal_id = 1),
        ("deposits:", |g| g.deposits.swap(0, 1)),
        ("votes.proposal_id", |g| g.votes[0].proposal_id = 1),
        ("votes:", |g| g.votes[0].options[0].weight = "0.1".into()),
        ("votes.voter", |g| g.votes[0].voter.clear()),
        ("votes:", |g| g.votes.swap(0, 1)),
        ("tallies.proposal_id", |g| g.tallies[0].proposal_id = 1),
        ("tallies.yes", |g| g.tallies[0].yes = "-1".into()),
        ("tallies.total_power", |g| g.tallies[0].total_power.clear()),
        ("tallies.last_voter", |g| g.tallies[0].last_voter = "x".into()),
        ("settlements.kind", |g| g.settlements[0].kind = 0),
        ("settlements.ratio", |g| g.settlements[0].kind = Kind::Burn.into()),
        ("settlements.ratio", |g| g.settlements[0].ratio = "1.1".into()),
        ("settlements.destination", |g| g.settlements[0].destination = "x".into()),
        ("settlements.last_depositor", |g| g.settlements[0].last_depositor = "x".into()),
        ("settlements.proposal_id", |g| g.settlements[0].proposal_id = 7),
        ("settlements.proposal_id", |g| {
            let again = own::Settlement { attempt: 1, ..g.settlements[0].clone() };
            g.settlements.push(again);
        }),
        ("plan: plan.name", |g| g.plan.as_mut().unwrap().name.clear()),
        ("plan.name", |g| g.plan.as_mut().unwrap().name = "apple".into()),
        ("applied_upgrades.name", |g| g.applied_upgrades[0].name.clear()),
        ("applied_upgrades.height", |g| g.applied_upgrades[0].height = g.applied_upgrades[1].height),
        ("applied_upgrades:", |g| g.applied_upgrades.swap(0, 1)),
        ("module_versions", |g| g.module_versions[0].version = 0),
        ("module_versions:", |g| g.module_versions.swap(0, 1)),
    ];
    for (field, spoil) in cases {
        let mut genesis = good.clone();
        spoil(&mut genesis);
        let error = MODULE.validate_genesis(&genesis.encode_to_vec(), &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("gov", 8), "{field}");
        assert!(error.message.starts_with(&format!("gov genesis: {field}")), "{field}: {error}");
    }
    assert_eq!(MODULE.validate_genesis(&[0xff], &Hrp::default()).unwrap_err().code, 8);
}

fn seconds(seconds: i64) -> Option<holdfast_proto::Timestamp> {
    Some(holdfast_proto::Timestamp { seconds, nanos: 0 })
}

#[test]
fn a_bank_that_does_not_hold_the_deposits_is_refused() {
    let mut w = rich_state();
    let bytes = export(&w);
    let held = w.held();
    for wrong in [held - 1, held + 1, 0] {
        w.chain.ctx(|ctx| BANK.set(ctx, &Address::module("gov"), DENOM, wrong));
        let Err(error) = import(&w, &bytes) else { panic!("accepted with {wrong}") };
        assert_eq!(error.code, 8);
        assert!(error.message.contains("deposits: add up to"), "{error}");
    }
}
