//! Governance through the whole application: what a vote decides acts from the next block on, and a bad proposal never
//! gets as far as a vote.

use holdfast_proto::Any;
use holdfast_proto::cosmos::gov::v1 as gov_pb;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade_pb;
use holdfast_types::ValidationParams;
use holdfast_types::traits::BankKeeper;

use super::net::*;
use crate::app::{App, AppError, Block, Moment};
use crate::tx::pack;
use crate::upgrades::{Upgrade, UpgradeError, Upgrades};

const DEPOSIT: u128 = 10_000_000;
/// Blocks a vote lasts: 20 seconds of blocks of 5.
const VOTING: i64 = 4;

fn seconds(n: i64) -> Option<holdfast_proto::Duration> {
    Some(holdfast_proto::Duration { seconds: n, nanos: 0 })
}

/// Votes of four blocks; executors 0 to 4 with weights 10 to 50.
fn net() -> Net {
    let executors = [10, 20, 30, 40, 50].map(Executor::new).to_vec();
    let mut net = Net::new(&Spec { executors, ..Spec::default() });
    let params = gov_pb::Params {
        voting_period: seconds(5 * VOTING),
        expedited_voting_period: seconds(5 * VOTING - 5),
        ..gov_pb::Params::default()
    };
    let paths = ["voting_period", "expedited_voting_period"].map(str::to_owned).to_vec();
    let msg = gov_pb::MsgUpdateParams {
        authority: gov(),
        params: Some(params),
        update_mask: Some(holdfast_proto::FieldMask { paths }),
    };
    net.govern(Moment::BeforeTransactions, pack(&msg));
    net.good();
    net
}

fn proposal(net: &Net, id: u64) -> gov_pb::Proposal {
    let request = gov_pb::QueryProposalRequest { proposal_id: id };
    let request = holdfast_proto::Message::encode_to_vec(&request);
    let (reply, _) = net.shared.query("/cosmos.gov.v1.Query/Proposal", &request, 0).unwrap();
    let reply: gov_pb::QueryProposalResponse = holdfast_proto::decode_strict(&reply).unwrap();
    reply.proposal.unwrap()
}

fn balance(net: &Net, who: &Who) -> u128 {
    let view = net.shared.view(0).unwrap();
    holdfast_bank::Keeper.balance(view.query().store, &who.address, DENOM).unwrap()
}

fn status(net: &Net, id: u64) -> gov_pb::ProposalStatus {
    proposal(net, id).status()
}

/// Proposes and votes yes with all weight, in one block. Returns the height whose block decides.
fn decide(net: &mut Net, id: u64, messages: Vec<Any>) -> i64 {
    let proposer = net.executor(0);
    net.push(&proposer, vec![submit_msg(&proposer, messages, DEPOSIT)]);
    for n in 0..5 {
        let voter = net.executor(n);
        net.push(&voter, vec![vote_msg(&voter, id, gov_pb::VoteOption::Yes)]);
    }
    net.good();
    net.height() + VOTING
}

fn stricter() -> Any {
    let params = ValidationParams { health_cb_miss_threshold_pct: 0, health_cb_min_samples: 1, ..quick() };
    validation_msg(
        params,
        1,
        &["validation.health_cb_miss_threshold_pct", "validation.health_cb_min_samples"],
    )
}

#[test]
fn what_a_vote_decides_acts_from_the_block_after_the_one_that_decides() {
    for late in [0, 1] {
        let mut net = net();
        let decided = decide(&mut net, 1, vec![stricter()]);
        assert_eq!(status(&net, 1), gov_pb::ProposalStatus::VotingPeriod);
        // One miss of one piece of work: under the new rule an exclusion, under the old one nothing. It is judged in the
        // block of the report.
        net.until(decided - 1 + late);
        net.start("work", 1);
        net.good();
        net.report("work", 1);
        let done = net.good();
        assert_eq!(net.height(), decided + late);
        let excluded = names(&done.events).contains(&"EventExecutorExcluded");
        assert_eq!(excluded, late == 1, "reported at {}, decided at {decided}", net.height());
        net.good();
        assert_eq!(status(&net, 1), gov_pb::ProposalStatus::Passed);
    }
}

#[test]
fn a_bad_proposal_is_refused_at_its_submission_and_changes_nothing() {
    let mut net = net();
    let who = net.executor(0);
    let bad_params = ValidationParams { health_cb_jitter_pct: 51, ..quick() };
    let outside = send_msg(&who, &net.executor(1).address, 1);
    let mut nested = stricter();
    for _ in 0..4 {
        nested = pack(&gov_pb::MsgSubmitProposal {
            messages: vec![nested],
            proposer: gov(),
            title: "t".into(),
            summary: "s".into(),
            metadata: "m".into(),
            ..gov_pb::MsgSubmitProposal::default()
        });
    }
    let unknown = Any { type_url: "/cosmos.group.v1.MsgVote".into(), value: Vec::new() };
    let cases = [
        (validation_msg(bad_params, 1, &["validation.health_cb_jitter_pct"]), ("gov", 12)),
        (epochs_msg(0, 0, &["epoch_length"]), ("gov", 12)),
        // Shorter than the longest cooldown, which is another module's parameter.
        (epochs_msg(3, 0, &["epoch_length"]), ("gov", 12)),
        (outside, ("gov", 13)),
        (nested, ("gov", 24)),
        (unknown, ("gov", 10)),
    ];
    for (message, expected) in cases {
        let before = balance(&net, &who);
        net.push(&who, vec![submit_msg(&who, vec![stricter(), message], DEPOSIT)]);
        let done = net.block();
        codes(&done, &[expected]);
        assert_eq!(before, balance(&net, &who), "{}", done.tx_results[0].log);
    }
    assert!(net.shared.query("/cosmos.gov.v1.Query/Proposal", &[8, 1], 0).is_err());
}

#[test]
fn a_proposal_that_fails_takes_nothing_with_it() {
    let mut net = net();
    let model = |id: &str| model_msg(id);
    decide(&mut net, 1, vec![model("m8")]);
    // Passes its rehearsal now; when its turn comes the model is there already, and the first message is undone too.
    let decided = decide(&mut net, 2, vec![model("m9"), model("m8")]);
    let last = decide(&mut net, 3, vec![stricter()]);
    net.until(last + 2);
    assert!(decided < last);
    assert_eq!(status(&net, 1), gov_pb::ProposalStatus::Passed);
    assert_eq!(status(&net, 2), gov_pb::ProposalStatus::Failed);
    assert!(
        proposal(&net, 2).failed_reason.contains("participants, code 13"),
        "{}",
        proposal(&net, 2).failed_reason
    );
    assert_eq!(status(&net, 3), gov_pb::ProposalStatus::Passed);
    let view = net.shared.view(0).unwrap();
    let models = net.shared.composition().participants();
    let models = holdfast_types::traits::ParticipantsRead::models(&models, view.query().store).unwrap();
    assert!(models.contains(&"m8".to_owned()) && !models.contains(&"m9".to_owned()), "{models:?}");
}

fn plan(height: i64) -> Any {
    let plan = upgrade_pb::Plan { name: "v2".into(), height, info: "see v2".into(), ..Default::default() };
    pack(&upgrade_pb::MsgSoftwareUpgrade { authority: gov(), plan: Some(plan) })
}

fn with_upgrades(known: &[&str]) -> crate::app::AppOptions {
    let upgrades = Upgrades::new(known.iter().map(|name| Upgrade::new(*name)).collect());
    crate::app::AppOptions { upgrades, ..options() }
}

/// A chain on disk that a vote has brought to the block before its upgrade.
fn before_upgrade(dir: &std::path::Path) -> i64 {
    let open = || {
        crate::state::DiskStore::open(dir, &crate::app::state_spaces(), crate::state::StateOptions::default())
            .unwrap()
    };
    let mut net = Net::with(&Spec::default(), open(), options());
    let at = 6;
    net.govern(Moment::AfterEndBlock, plan(at));
    net.until(at);
    assert_eq!(net.height(), at - 1);
    at
}

fn open(dir: &std::path::Path, known: &[&str]) -> Result<App<crate::state::DiskStore>, AppError> {
    let spaces = crate::app::state_spaces();
    let state = crate::state::DiskStore::open(dir, &spaces, crate::state::StateOptions::default()).unwrap();
    App::open(state, with_upgrades(known))
}

fn block(height: i64) -> Block {
    Block { height, time_ns: u64::try_from(height).unwrap() * 5_000_000_000, txs: Vec::new() }
}

#[test]
fn the_old_binary_stops_at_the_height_and_the_new_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let at = before_upgrade(dir.path());
    // The old one: late.
    let Err(AppError::Upgrade(late)) = open(dir.path(), &[]) else { panic!("must not start") };
    assert_eq!(late.to_string(), format!("UPGRADE \"v2\" NEEDED at height: {at}: see v2"));
    let UpgradeError::Needed(plan) = &late else { panic!("{late}") };
    crate::upgrades::write_upgrade_info(dir.path(), plan).unwrap();
    let text = std::fs::read_to_string(dir.path().join("upgrade-info.json")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info, serde_json::json!({ "name": "v2", "height": at, "info": "see v2" }));

    let mut app = open(dir.path(), &["v2"]).unwrap();
    let done = app.finalize_block(&block(at)).unwrap();
    assert!(names(&done.events).contains(&"EventUpgradeApplied"), "{:?}", names(&done.events));
    // A crash before the commit: the same again.
    drop(app);
    let mut app = open(dir.path(), &["v2"]).unwrap();
    assert_eq!(app.finalize_block(&block(at)).unwrap(), done);
    app.commit().unwrap();
    app.finalize_block(&block(at + 1)).unwrap();
    app.commit().unwrap();
    drop(app);
    // The old one again: too old, and it says for what.
    let Err(AppError::Upgrade(old)) = open(dir.path(), &[]) else { panic!("must not start") };
    assert!(matches!(old, UpgradeError::TooOld(_)) && old.to_string().contains("\"v2\""), "{old}");
}

#[test]
fn a_running_node_without_the_upgrade_stops_at_its_height_and_one_with_it_before() {
    let mut net = Net::standard();
    net.govern(Moment::AfterEndBlock, plan(4));
    net.until(4);
    let error = net.app.finalize_block(&block(4)).unwrap_err();
    assert!(crate::upgrades::needed(&error).is_some(), "{error}");
    assert_eq!(net.height(), 3, "nothing of the block stays");

    let mut early = Net::with(&Spec::default(), mem(), with_upgrades(&["v2"]));
    early.govern(Moment::AfterEndBlock, plan(4));
    early.good();
    let error = early.app.finalize_block(&block(2)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("BINARY UPDATED BEFORE TRIGGER! UPGRADE \"v2\"") && text.contains("height 4"),
        "{text}"
    );
}

#[test]
fn a_binary_that_comes_early_or_with_other_formats_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    {
        let spaces = crate::app::state_spaces();
        let state = crate::state::DiskStore::open(dir.path(), &spaces, crate::state::StateOptions::default())
            .unwrap();
        let mut net = Net::with(&Spec::default(), state, options());
        net.govern(Moment::AfterEndBlock, plan(9));
        net.good();
        net.app.finalize_block(&block(2)).unwrap();
        net.app.commit().unwrap();
    }
    let Err(AppError::Upgrade(early)) = open(dir.path(), &["v2"]) else { panic!("must not start") };
    assert!(matches!(early, UpgradeError::Early(_)), "{early}");
    let mut app = open(dir.path(), &[]).unwrap();
    // State of a later binary.
    app.authority = Some(Box::new(|moment, _, ctx| {
        if moment == Moment::AfterEndBlock {
            let mut versions = holdfast_gov::Keeper.module_versions(ctx.store).unwrap();
            versions.iter_mut().find(|row| row.0 == "breaker").unwrap().1 = 9;
            holdfast_gov::Keeper.set_module_versions(ctx, &versions).unwrap();
        }
    }));
    app.finalize_block(&block(3)).unwrap();
    app.commit().unwrap();
    drop(app);
    let Err(AppError::Upgrade(old)) = open(dir.path(), &[]) else { panic!("must not start") };
    assert!(matches!(old, UpgradeError::TooOld(_)) && old.to_string().contains("breaker"), "{old}");
}

#[test]
fn a_binary_of_later_formats_needs_a_plan() {
    let dir = tempfile::tempdir().unwrap();
    {
        let spaces = crate::app::state_spaces();
        let state = crate::state::DiskStore::open(dir.path(), &spaces, crate::state::StateOptions::default())
            .unwrap();
        let mut net = Net::with(&Spec::default(), state, options());
        net.app.authority = Some(Box::new(|moment, composition, ctx| {
            if moment == Moment::AfterEndBlock {
                let versions: Vec<_> = composition
                    .modules()
                    .iter()
                    .map(|m| {
                        (m.name().to_owned(), if m.name() == "breaker" { 0 } else { m.consensus_version() })
                    })
                    .collect();
                holdfast_gov::Keeper.set_module_versions(ctx, &versions).unwrap();
            }
        }));
        net.app.finalize_block(&block(1)).unwrap();
        net.app.commit().unwrap();
    }
    let Err(AppError::Upgrade(new)) = open(dir.path(), &["v2"]) else { panic!("must not start") };
    let text = new.to_string();
    assert!(
        matches!(new, UpgradeError::TooNew(_)) && text.contains("module breaker is at version 0"),
        "{text}"
    );
}

#[test]
fn a_skipped_plan_is_dropped_at_its_height() {
    let upgrades = Upgrades::default().skipping(&[4]);
    let mut net = Net::with(&Spec::default(), mem(), crate::app::AppOptions { upgrades, ..options() });
    net.govern(Moment::AfterEndBlock, plan(4));
    net.until(6);
    let view = net.shared.view(0).unwrap();
    assert_eq!(holdfast_gov::Keeper.upgrade_plan(view.query().store).unwrap(), None);
    assert_eq!(holdfast_gov::Keeper.last_applied(view.query().store).unwrap(), None);
}

#[test]
fn a_skipped_plan_does_not_stop_the_binary_that_knows_it_before_its_height() {
    let upgrades = Upgrades::new(vec![Upgrade::new("v2")]).skipping(&[4]);
    let mut net = Net::with(&Spec::default(), mem(), crate::app::AppOptions { upgrades, ..options() });
    net.govern(Moment::AfterEndBlock, plan(4));
    net.until(6);
    let view = net.shared.view(0).unwrap();
    assert_eq!(holdfast_gov::Keeper.last_applied(view.query().store).unwrap(), None);
}

/// The state of a chain of an earlier version at height 100, written down by that version: a key and its value a line.
const V1: &str = include_str!("fixtures/state-v1.txt");
/// Its app hash there.
const V1_HASH: &str = "9f7af4725fe2697bbc28469916a8220c5e5fffee8987348bffb20d1a1d180625";

/// A database as that version left it; x/gov, which it did not have, with a plan for height 102. x/escrow, which it did
/// not have either, comes with the upgrade.
fn v1_database(dir: &std::path::Path) {
    use crate::composition::Composition;
    use crate::state::{CommitStore, DiskStore, StateOptions};
    use holdfast_store::{BranchKv, WriteSet};
    let rows: WriteSet = V1
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(key, value)| (hex::decode(key).unwrap(), Some(hex::decode(value).unwrap())))
        .collect();
    let new = ["gov", "escrow"];
    let old_spaces: Vec<_> =
        crate::app::state_spaces().into_iter().filter(|space| !new.contains(space)).collect();
    let as_it_was = crate::state::MemCommitStore::new(&old_spaces).unwrap();
    let prepared = as_it_was.prepare(100, &rows).unwrap();
    assert_eq!(hex::encode(prepared.app_hash()), V1_HASH, "the rows are those of the old chain");

    let store = DiskStore::open(dir, &crate::app::state_spaces(), StateOptions::default()).unwrap();
    store.commit(store.prepare(100, &rows).unwrap()).unwrap();
    let snapshot = store.snapshot();
    let mut branch = BranchKv::new(&snapshot);
    let block = holdfast_types::BlockContext::new(101, ValidationParams::default());
    let mut events = Vec::new();
    let mut ctx = holdfast_types::Context::new(&block, &mut branch, &mut events);
    let composition = Composition::default();
    let gov = composition.modules().pop().unwrap();
    assert_eq!(gov.name(), "gov");
    gov.init_genesis(&mut ctx, &gov.default_genesis()).unwrap();
    let stored = composition.modules();
    let stored = stored.iter().filter(|m| m.name() != "escrow");
    let versions: Vec<_> = stored.map(|m| (m.name().to_owned(), 1)).collect();
    holdfast_gov::Keeper.set_module_versions(&mut ctx, &versions).unwrap();
    let plan = holdfast_gov::Plan { name: "v2".into(), height: 102, info: String::new() };
    holdfast_gov::Keeper.plan_upgrade(&mut ctx, &plan).unwrap();
    let writes = branch.into_writes();
    drop(snapshot);
    store.commit(store.prepare(101, &writes).unwrap()).unwrap();
}

#[test]
fn a_database_of_version_1_is_migrated_in_the_block_of_its_upgrade_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    v1_database(dir.path());
    // x/participants is at 2 in this binary: without the upgrade it is late.
    let Err(AppError::Upgrade(late)) = open(dir.path(), &[]) else { panic!("must not start") };
    assert!(matches!(late, UpgradeError::Needed(_)), "{late}");
    let mut app = open(dir.path(), &["v2"]).unwrap();
    // A crash between execution and commit changes nothing.
    let first = app.finalize_block(&block(102)).unwrap();
    drop(app);
    let mut app = open(dir.path(), &["v2"]).unwrap();
    assert_eq!(app.finalize_block(&block(102)).unwrap(), first);
    app.commit().unwrap();
    app.shared().check_invariants().unwrap();
    let view = app.shared().view(0).unwrap();
    let store = view.query().store;
    let shared = app.shared();
    let participants = shared.composition().participants();
    let params = participants.params(store).unwrap();
    // What the old row says (05 "uhold", then 2 in 16 bytes, …) stays; the new ones have their defaults.
    assert_eq!((params.collateral_per_weight, params.min_announce_blocks), (2, 2));
    assert_eq!((params.max_validators, params.max_validator_change_permille), (100, 200));
    let versions = holdfast_gov::Keeper.module_versions(store).unwrap();
    for row in [("participants", 2), ("escrow", 1)] {
        assert!(versions.contains(&(row.0.to_owned(), row.1)), "{versions:?}");
    }
    assert_eq!(holdfast_escrow::Keeper.params(store).unwrap(), holdfast_escrow::Params::default());
    // Votes weigh what the members of epoch 3 weigh, one number each.
    use holdfast_types::traits::VotingPower;
    let total = participants.total_power(store, &view.block).unwrap();
    let request = Vec::new();
    let (reply, _) = app.shared().query("/holdfast.participants.v1.Query/Participants", &request, 0).unwrap();
    let reply: holdfast_proto::holdfast::participants::v1::QueryParticipantsResponse =
        holdfast_proto::decode_strict(&reply).unwrap();
    let powers: Vec<u128> = reply
        .participants
        .iter()
        .map(|p| {
            let address = holdfast_types::Address::parse(&p.address, &view.block.hrp).unwrap();
            participants.power(store, &view.block, &address).unwrap()
        })
        .collect();
    assert!(total > 0 && powers.iter().sum::<u128>() == total, "{powers:?} {total}");
    drop(view);
    // Over the next boundary, with every invariant after each block, and out and in through genesis.
    for height in 103..=125 {
        app.finalize_block(&block(height)).unwrap();
        app.commit().unwrap();
        app.shared().check_invariants().unwrap();
    }
    let exported = app.export(0).unwrap();
    let copy = App::from_genesis(mem(), options(), &exported).unwrap();
    assert_eq!(copy.export(0).unwrap(), exported);
}
