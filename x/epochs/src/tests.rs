use holdfast_proto::holdfast::epochs::v1 as pb;
use holdfast_proto::{FieldMask, Message};
use holdfast_store::{KvRead, Order, StoreError};
use holdfast_testkit::{NoHooks, Recorder, Rng, Seen, TestChain, addr};
use holdfast_types::traits::{EpochHooks, EpochInfo, EpochsRead, ScheduleLimits};
use holdfast_types::{Address, Context, Hrp, Module, ModuleError, QueryKind, check_prefix_table};

use crate::*;

const K: Keeper = Keeper;

/// A chain that begins at height 5.
fn chain(epoch_length: i64, poc_length: i64) -> TestChain {
    let mut chain = TestChain::new(5);
    let params = Some(pb::Params { epoch_length, poc_length });
    let genesis = pb::GenesisState { params, ..Default::default() }.encode_to_vec();
    chain.ctx(|ctx| {
        EpochsModule.init_genesis(ctx, &genesis).unwrap();
        K.start(ctx, 5).unwrap();
    });
    chain
}

/// Runs the begin block of `height` and keeps the position as the app does.
fn block(chain: &mut TestChain, height: i64, hooks: &dyn EpochHooks) -> Position {
    chain.block.height = height;
    let position = chain.ctx(|ctx| K.begin_block(ctx, hooks)).unwrap();
    (chain.block.epoch, chain.block.poc) = (position.epoch, position.poc);
    position
}

fn info(epoch: u64, start_height: i64, length: i64, poc_length: i64) -> EpochInfo {
    EpochInfo { epoch, start_height, length, poc_length }
}

#[test]
fn epoch_zero_begins_at_the_initial_height_and_fires_only_its_start() {
    let mut chain = chain(10, 3);
    let seen = Recorder::default();
    assert_eq!(block(&mut chain, 5, &seen), Position { epoch: 0, poc: false });
    assert_eq!(seen.take(), [Seen::EpochStarted(info(0, 5, 10, 3), 0, false)]);
    let told = chain.take_events();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].kind, "holdfast.epochs.v1.EventEpochStarted");
    let told: Vec<_> = told[0].attributes.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(told, ["epoch=0", "start_height=5", "length=10", "poc_length=3"]);
    block(&mut chain, 6, &seen);
    assert_eq!(seen.take(), []);
}

#[test]
fn the_boundary_fires_ended_in_the_old_epoch_and_started_in_the_new_one() {
    let mut chain = chain(10, 3);
    let seen = Recorder::default();
    for height in 5..15 {
        let position = block(&mut chain, height, &seen);
        // Blocks 12, 13, 14 are the last three of 5..=14.
        assert_eq!(position, Position { epoch: 0, poc: height >= 12 }, "height {height}");
    }
    seen.take();
    chain.take_events();
    assert_eq!(block(&mut chain, 15, &seen), Position { epoch: 1, poc: false });
    let (old, new) = (info(0, 5, 10, 3), info(1, 15, 10, 3));
    assert_eq!(seen.take(), [Seen::EpochEnded(old, 0, false), Seen::EpochStarted(new, 1, false)]);
    let told = chain.take_events();
    assert_eq!(told[0].kind, "holdfast.epochs.v1.EventEpochEnded");
    assert_eq!((told[0].get("epoch"), told[0].get("end_height")), (Some("0"), Some("14")));
    assert_eq!((told[1].get("epoch"), told[1].get("start_height")), (Some("1"), Some("15")));
}

#[test]
fn each_boundary_fires_once_and_no_other_block_fires() {
    let mut chain = chain(4, 1);
    let seen = Recorder::default();
    let mut fired = Vec::new();
    for height in 5..=21 {
        block(&mut chain, height, &seen);
        for hook in seen.take() {
            fired.push(match hook {
                Seen::EpochEnded(of, ..) => (height, "ended", of.epoch),
                Seen::EpochStarted(of, ..) => (height, "started", of.epoch),
                other => panic!("{other:?}"),
            });
        }
    }
    let boundary = |height, old| [(height, "ended", old), (height, "started", old + 1)];
    let expected =
        [&[(5, "started", 0)][..], &boundary(9, 0), &boundary(13, 1), &boundary(17, 2), &boundary(21, 3)];
    assert_eq!(fired, expected.concat());
}

#[test]
fn the_poc_phase_is_the_last_blocks_to_the_very_block() {
    // Length, PoC length, and the phase of each block of one epoch: start, start + 1, .., end.
    for (length, poc, phases) in
        [(5, 0, "....."), (5, 1, "....P"), (5, 2, "...PP"), (5, 4, ".PPPP"), (2, 1, ".P"), (1, 0, ".")]
    {
        let mut chain = chain(length, poc);
        let seen: String =
            (0..2 * length).map(|n| if block(&mut chain, 5 + n, &NoHooks).poc { 'P' } else { '.' }).collect();
        assert_eq!(seen, phases.repeat(2), "length {length}, PoC {poc}: the block after the end begins anew");
    }
    let one = info(0, 5, 5, 2);
    let at = |height| Position::of(&one, height).poc;
    assert_eq!(
        [at(4), at(5), at(6), at(7), at(8), at(9), at(10)],
        [false, false, false, false, true, true, false]
    );
}

#[test]
fn a_hook_that_reads_the_schedule_meets_the_epoch_of_its_context() {
    struct Reads;
    impl EpochHooks for Reads {
        fn after_epoch_ended(&self, ctx: &mut Context<'_>, ended: &EpochInfo) -> Result<(), ModuleError> {
            assert_eq!(K.current(ctx.store)?, *ended);
            assert_eq!((ctx.block.epoch, ctx.block.height), (ended.epoch, ended.end()));
            assert_eq!(
                K.params(ctx.store)?.epoch_length,
                ended.length,
                "staged lengths are not in force yet"
            );
            Ok(())
        }
        fn after_epoch_started(&self, ctx: &mut Context<'_>, started: &EpochInfo) -> Result<(), ModuleError> {
            assert_eq!(K.current(ctx.store)?, *started);
            assert_eq!((ctx.block.epoch, ctx.block.height), (started.epoch, started.start_height));
            assert_eq!(K.params(ctx.store)?.epoch_length, started.length);
            Ok(())
        }
    }
    let mut chain = chain(3, 1);
    block(&mut chain, 5, &Reads);
    update(&mut chain, 7, 2, &["*"]).unwrap();
    for height in 6..30 {
        block(&mut chain, height, &Reads);
    }
    // 5..=7, then 8..=14, 15..=21, 22..=28, 29.
    assert_eq!(K.current(&chain.store).unwrap(), info(4, 29, 7, 2));
}

#[test]
fn lengths_changed_within_the_poc_phase_leave_the_running_phase_alone() {
    let mut chain = chain(10, 3);
    for height in 5..=12 {
        block(&mut chain, height, &NoHooks);
    }
    assert!(chain.block.poc);
    // Shorter than the blocks already past, and without a PoC phase.
    update(&mut chain, 2, 0, &["*"]).unwrap();
    assert_eq!(block(&mut chain, 13, &NoHooks), Position { epoch: 0, poc: true });
    assert_eq!(block(&mut chain, 14, &NoHooks), Position { epoch: 0, poc: true });
    assert_eq!(block(&mut chain, 15, &NoHooks), Position { epoch: 1, poc: false });
    assert_eq!(block(&mut chain, 16, &NoHooks), Position { epoch: 1, poc: false });
    assert_eq!(block(&mut chain, 17, &NoHooks), Position { epoch: 2, poc: false });
}

#[test]
fn a_chain_that_skips_heights_still_has_each_block_in_one_epoch() {
    let mut chain = chain(10, 3);
    block(&mut chain, 5, &NoHooks);
    assert_eq!(block(&mut chain, 48, &NoHooks), Position { epoch: 1, poc: false });
    assert_eq!(K.current(&chain.store).unwrap(), info(1, 48, 10, 3));
    let last = i64::MAX;
    assert_eq!(block(&mut chain, last, &NoHooks).epoch, 2);
}

#[test]
fn an_epoch_of_one_block_ends_with_each_block() {
    let mut chain = chain(1, 0);
    for height in 5..12 {
        let position = block(&mut chain, height, &NoHooks);
        assert_eq!(position, Position { epoch: (height - 5) as u64, poc: false });
    }
}

#[test]
fn new_lengths_wait_for_the_next_epoch() {
    let mut chain = chain(10, 3);
    block(&mut chain, 5, &NoHooks);
    update(&mut chain, 4, 0, &["epoch_length", "poc_length"]).unwrap();
    for height in 6..15 {
        assert_eq!(block(&mut chain, height, &NoHooks).epoch, 0, "the running epoch keeps its length");
    }
    assert_eq!(K.params(&chain.store).unwrap().epoch_length, 10);
    block(&mut chain, 15, &NoHooks);
    assert_eq!(K.params(&chain.store).unwrap(), Params { epoch_length: 4, poc_length: 0 });
    assert_eq!(STAGED_PARAMS.get(&chain.store).unwrap(), None);
    assert_eq!(block(&mut chain, 18, &NoHooks).epoch, 1);
    assert_eq!(block(&mut chain, 19, &NoHooks).epoch, 2);
}

#[test]
fn two_updates_within_one_epoch_add_up() {
    let mut chain = chain(10, 3);
    update(&mut chain, 20, 0, &["epoch_length"]).unwrap();
    update(&mut chain, 0, 15, &["poc_length"]).unwrap();
    assert_eq!(STAGED_PARAMS.get(&chain.store).unwrap(), Some(Params { epoch_length: 20, poc_length: 15 }));
    // 15 PoC blocks do not fit the 10 that this update asks for.
    assert_eq!(update(&mut chain, 10, 0, &["epoch_length"]).unwrap_err().code, 3);
}

fn update_msg(chain: &TestChain, epoch_length: i64, poc_length: i64, mask: &[&str]) -> pb::MsgUpdateParams {
    pb::MsgUpdateParams {
        authority: chain.bech32(&Address::module("gov")),
        params: Some(pb::Params { epoch_length, poc_length }),
        update_mask: Some(FieldMask { paths: mask.iter().map(|p| p.to_string()).collect() }),
    }
}

fn update(
    chain: &mut TestChain,
    epoch_length: i64,
    poc_length: i64,
    mask: &[&str],
) -> Result<(), ModuleError> {
    let msg = update_msg(chain, epoch_length, poc_length, mask);
    chain.message(|ctx| msg_server::update_params(ctx, &Spans(0), msg)).map(|_| ())
}

#[test]
fn each_bad_update_is_refused_by_its_code_and_changes_nothing() {
    let mut chain = chain(10, 3);
    let good = update_msg(&chain, 20, 4, &["*"]);
    let with = |l, p, mask: &[&str]| update_msg(&chain, l, p, mask);
    let cases = [
        ("sdk", 7, "authority", pb::MsgUpdateParams { authority: "gov".into(), ..good.clone() }),
        ("epochs", 2, "authority", pb::MsgUpdateParams { authority: chain.bech32(&addr(1)), ..good.clone() }),
        ("epochs", 3, "params.update_mask", pb::MsgUpdateParams { update_mask: None, ..good.clone() }),
        ("epochs", 3, "params.update_mask", with(20, 4, &[])),
        ("epochs", 3, "params.update_mask", with(20, 4, &["length"])),
        ("epochs", 3, "params.update_mask", with(20, 4, &["poc_length", "poc_length"])),
        ("epochs", 3, "params.params", pb::MsgUpdateParams { params: None, ..good.clone() }),
        ("epochs", 3, "params.epoch_length", with(0, 0, &["*"])),
        ("epochs", 3, "params.epoch_length", with(-1, 0, &["epoch_length"])),
        ("epochs", 3, "params.epoch_length", with((1 << 40) + 1, 0, &["epoch_length"])),
        ("epochs", 3, "params.poc_length", with(20, 20, &["*"])),
        ("epochs", 3, "params.poc_length", with(20, -1, &["*"])),
        ("epochs", 3, "params.poc_length", with(3, 0, &["epoch_length"])),
    ];
    for (space, code, text, msg) in cases {
        let error = msg_server::update_params(
            &mut Context::new(&chain.block, &mut chain.store.clone(), &mut vec![]),
            &Spans(0),
            msg.clone(),
        )
        .unwrap_err();
        assert!(error.message.starts_with(text), "{text}: {error}");
        assert_eq!(
            chain.refused(|ctx| msg_server::update_params(ctx, &Spans(0), msg)),
            (space, code),
            "{text}"
        );
    }
    chain.message(|ctx| msg_server::update_params(ctx, &Spans(0), good)).unwrap();
}

#[test]
fn every_params_field_can_be_named_and_each_is_merged_alone() {
    let old = Params { epoch_length: 10, poc_length: 3 };
    let new = Params { epoch_length: 20, poc_length: 4 };
    let merged = |fields: &[&str]| old.clone().merged(&new, fields);
    assert_eq!(merged(&["epoch_length"]), Params { epoch_length: 20, poc_length: 3 });
    assert_eq!(merged(&["poc_length"]), Params { epoch_length: 10, poc_length: 4 });
    assert_eq!(merged(PARAMS_FIELDS), new);
}

#[test]
fn accepted_params_never_make_the_block_step_fail() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut chain = chain(1 + rng.below(6) as i64, 0);
        let mut expected_start = 5;
        for height in 5..150 {
            let before = K.current(&chain.store).unwrap();
            let position = block(&mut chain, height, &NoHooks);
            let now = K.current(&chain.store).unwrap();
            if height == before.end() {
                expected_start = height;
                assert_eq!(now.epoch, before.epoch + 1);
            } else {
                assert_eq!(now, before, "an epoch never changes");
            }
            assert_eq!(now.start_height, expected_start);
            assert!((now.start_height..now.end()).contains(&height));
            assert_eq!(position.poc, height >= now.end() - now.poc_length);
            for back in 0..=3 {
                let kept = now.epoch.checked_sub(back).map(|e| K.epoch(&chain.store, e).unwrap());
                assert!(kept != Some(None), "seed {seed}: epoch {} - {back} is gone", now.epoch);
            }
            if now.epoch >= 4 {
                assert_eq!(K.epoch(&chain.store, now.epoch - 4).unwrap(), None, "old epochs are removed");
            }
            let (l, p) = (rng.below(8) as i64, rng.below(5) as i64);
            let mask = *rng.pick(&[&["*"][..], &["epoch_length"], &["poc_length"]]);
            // Extreme but accepted lengths once in a while.
            let l = if rng.chance(2) { EPOCH_LENGTH_MAX } else { l };
            let _ = update(&mut chain, if height < 140 { l.min(9) } else { l }, p, mask);
        }
    }
}

/// Refuses the end of an epoch (`true`), or its start.
struct Failing(bool);
impl EpochHooks for Failing {
    fn after_epoch_ended(&self, _: &mut Context<'_>, _: &EpochInfo) -> Result<(), ModuleError> {
        if self.0 { Err(ModuleError::sdk(35, "no end")) } else { Ok(()) }
    }
    fn after_epoch_started(&self, _: &mut Context<'_>, _: &EpochInfo) -> Result<(), ModuleError> {
        if self.0 { Ok(()) } else { Err(ModuleError::sdk(38, "no start")) }
    }
}

#[test]
fn a_failing_hook_and_a_missing_start_are_reported() {
    let mut c = chain(10, 3);
    block(&mut c, 5, &NoHooks);
    c.block.height = 15;
    assert_eq!(c.refused(|ctx| K.begin_block(ctx, &Failing(true))), ("sdk", 35));
    assert_eq!(c.refused(|ctx| K.begin_block(ctx, &Failing(false))), ("sdk", 38));
    let mut first = chain(10, 3);
    assert_eq!(first.refused(|ctx| K.begin_block(ctx, &Failing(false))), ("sdk", 38));
    let mut fresh = TestChain::new(1);
    assert_eq!(fresh.refused(|ctx| K.begin_block(ctx, &NoHooks)), ("epochs", 5));
    assert_eq!(K.current(&fresh.store).map_err(|e| e.code), Err(5));
    assert_eq!(K.position(&fresh.store, 1).map_err(|e| e.code), Err(5));
    CURRENT.set(&mut c.store, &0).unwrap();
    EPOCHS.remove(&mut c.store, &0).unwrap();
    assert_eq!(c.refused(|ctx| K.begin_block(ctx, &NoHooks)), ("sdk", 1), "a lost schedule is no new one");
}

#[test]
fn queries_place_the_queried_height() {
    let mut c = chain(10, 3);
    for height in 5..=12 {
        block(&mut c, height, &NoHooks);
    }
    let answer = query_server::current_epoch(c.query(), pb::QueryCurrentEpochRequest {}).unwrap();
    assert_eq!(answer.epoch, Some(pb::EpochInfo { index: 0, start_height: 5, length: 10, poc_length: 3 }));
    assert_eq!((answer.phase(), answer.height, answer.blocks_left), (pb::Phase::Poc, 12, 2));
    assert_eq!(K.position(&c.store, 11).unwrap(), Position { epoch: 0, poc: false });
    let params = query_server::params(c.query(), pb::QueryParamsRequest {}).unwrap().params;
    assert_eq!(params, Some(pb::Params { epoch_length: 10, poc_length: 3 }));
    let one = |index| query_server::epoch(c.query(), pb::QueryEpochRequest { index });
    assert_eq!(one(0).unwrap().epoch.unwrap().start_height, 5);
    assert_eq!(one(1).unwrap_err().kind, QueryKind::NotFound);
    let fresh = TestChain::new(1);
    let error = query_server::current_epoch(fresh.query(), pb::QueryCurrentEpochRequest {}).unwrap_err();
    assert_eq!(error.kind, QueryKind::Unavailable);
}

#[test]
fn stored_rows_have_these_bytes() {
    let params = Params { epoch_length: 1000, poc_length: 258 };
    assert_eq!(borsh::to_vec(&params).unwrap(), [0xE8, 3, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    let golden =
        [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(borsh::to_vec(&info(7, 5, 10, 3)).unwrap(), golden);
    assert_eq!(EPOCHS.key(&7), b"epochs/\x04\x00\x00\x00\x00\x00\x00\x00\x07");
    assert_eq!(CURRENT.key(), b"epochs/\x03");
    let mut chain = chain(258, 3);
    block(&mut chain, 5, &NoHooks);
    block(&mut chain, 263, &NoHooks);
    update(&mut chain, 20, 4, &["*"]).unwrap();
    let row = |key: &[u8]| chain.store.get(key).unwrap().unwrap();
    assert_eq!(row(b"epochs/\x01"), [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(row(b"epochs/\x02"), [20, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(row(b"epochs/\x03"), [1, 0, 0, 0, 0, 0, 0, 0]);
    let stored =
        [1, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(row(b"epochs/\x04\x00\x00\x00\x00\x00\x00\x00\x01"), stored);
}

#[test]
fn export_validate_init_export_is_the_same_bytes_and_the_chain_goes_on() {
    let hrp = Hrp::default();
    let mut source = chain(10, 3);
    for height in 5..68 {
        block(&mut source, height, &NoHooks);
    }
    update(&mut source, 4, 1, &["*"]).unwrap();
    let bytes = EpochsModule.export_genesis(&source.store, &hrp).unwrap();
    EpochsModule.validate_genesis(&bytes, &hrp).unwrap();
    let mut copy = TestChain::new(68);
    copy.ctx(|ctx| {
        EpochsModule.init_genesis(ctx, &bytes).unwrap();
        K.start(ctx, 68).unwrap();
    });
    assert!(copy.store == source.store);
    assert_eq!(EpochsModule.export_genesis(&copy.store, &hrp).unwrap(), bytes);
    let seen = Recorder::default();
    block(&mut copy, 75, &seen);
    assert_eq!(seen.take()[1], Seen::EpochStarted(info(7, 75, 4, 1), 7, false));
    let default = EpochsModule.default_genesis();
    EpochsModule.validate_genesis(&default, &hrp).unwrap();
    let mut fresh = TestChain::new(1);
    fresh.ctx(|ctx| EpochsModule.init_genesis(ctx, &default)).unwrap();
    assert_eq!(EpochsModule.export_genesis(&fresh.store, &hrp).unwrap(), default);
}

#[test]
fn after_random_histories_genesis_brings_back_the_state_and_both_chains_go_on_alike() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut source = chain(1 + rng.below(6) as i64, 0);
        let last = 5 + rng.below(60) as i64;
        for height in 5..=last {
            block(&mut source, height, &NoHooks);
            let _ = update(&mut source, 1 + rng.below(8) as i64, rng.below(4) as i64, &["*"]);
        }
        let bytes = EpochsModule.export_genesis(&source.store, &Hrp::default()).unwrap();
        EpochsModule.validate_genesis(&bytes, &Hrp::default()).unwrap();
        let mut copy = TestChain::new(last + 1);
        copy.ctx(|ctx| {
            EpochsModule.init_genesis(ctx, &bytes).unwrap();
            K.start(ctx, last + 1).unwrap();
        });
        assert!(copy.store == source.store, "seed {seed}");
        assert_eq!(EpochsModule.export_genesis(&copy.store, &Hrp::default()).unwrap(), bytes, "seed {seed}");
        let (one, other) = (Recorder::default(), Recorder::default());
        for height in last + 1..last + 30 {
            assert_eq!(block(&mut source, height, &one), block(&mut copy, height, &other), "seed {seed}");
            assert_eq!(one.take(), other.take(), "seed {seed}");
            assert!(copy.store == source.store, "seed {seed}");
        }
    }
}

#[test]
fn an_import_with_many_old_epochs_is_pruned_in_bounded_steps() {
    let epochs =
        (0..20).map(|n| pb::EpochInfo { index: n, start_height: 1 + n as i64, length: 1, poc_length: 0 });
    let params = Some(pb::Params { epoch_length: 1, poc_length: 0 });
    let genesis = pb::GenesisState { params, staged_params: None, epochs: epochs.collect() }.encode_to_vec();
    let mut chain = TestChain::new(21);
    chain.ctx(|ctx| {
        EpochsModule.init_genesis(ctx, &genesis).unwrap();
        K.start(ctx, 21).unwrap();
    });
    let mut kept = Vec::new();
    for height in 21..=25 {
        block(&mut chain, height, &NoHooks);
        kept.push(EPOCHS.iter(&chain.store, Order::Ascending).count());
    }
    // 20 and one more, less 8; once more; then only the current one and three before.
    assert_eq!(kept, [13, 6, 4, 4, 4]);
    assert_eq!(K.epoch(&chain.store, 21).unwrap(), Some(info(21, 22, 1, 0)), "three before 24");
    assert_eq!(K.epoch(&chain.store, 20).unwrap(), None);
}

#[test]
fn an_imported_epoch_must_have_begun_by_the_initial_height() {
    let params = Some(pb::Params { epoch_length: 10, poc_length: 3 });
    let epochs = vec![pb::EpochInfo { index: 2, start_height: 25, length: 10, poc_length: 3 }];
    let genesis = pb::GenesisState { params, staged_params: None, epochs }.encode_to_vec();
    let start = |height| {
        let mut chain = TestChain::new(height);
        chain.ctx(|ctx| {
            EpochsModule.init_genesis(ctx, &genesis).unwrap();
            K.start(ctx, height)
        })
    };
    assert_eq!(start(25), Ok(()));
    assert_eq!(start(34), Ok(()));
    let error = start(24).unwrap_err();
    assert_eq!((error.codespace, error.code), ("epochs", 4));
    assert!(error.message.starts_with("genesis epochs: "), "{error}");
}

#[test]
fn each_bad_genesis_field_is_refused_by_its_name() {
    let row = |index, start_height, length| pb::EpochInfo { index, start_height, length, poc_length: 1 };
    let good = pb::GenesisState {
        params: Some(pb::Params { epoch_length: 10, poc_length: 3 }),
        staged_params: Some(pb::Params { epoch_length: 4, poc_length: 0 }),
        epochs: vec![row(3, 5, 10), row(4, 15, 10)],
    };
    EpochsModule.validate_genesis(&good.encode_to_vec(), &Hrp::default()).unwrap();
    type Change = fn(&mut pb::GenesisState);
    let cases: &[(&str, Change)] = &[
        ("params", |g| g.params = None),
        ("params.epoch_length", |g| g.params.as_mut().unwrap().epoch_length = 0),
        ("params.poc_length", |g| g.params.as_mut().unwrap().poc_length = 10),
        ("staged_params.epoch_length", |g| g.staged_params.as_mut().unwrap().epoch_length = -4),
        ("params.epoch_length", |g| g.params.as_mut().unwrap().epoch_length = EPOCH_LENGTH_MAX + 1),
        ("params.poc_length", |g| g.params.as_mut().unwrap().poc_length = -1),
        ("staged_params.poc_length", |g| g.staged_params.as_mut().unwrap().poc_length = 4),
        ("epochs[0].index", |g| g.epochs[0].index = 1 << 63),
        ("epochs[0].poc_length", |g| g.epochs[0].poc_length = -1),
        ("epochs[0].length", |g| g.epochs[0].length = EPOCH_LENGTH_MAX + 1),
        ("epochs[0].start_height", |g| g.epochs[0].start_height = 0),
        ("epochs[0].length", |g| g.epochs[0].length = 0),
        ("epochs[1].poc_length", |g| g.epochs[1].poc_length = 10),
        ("epochs[1].index", |g| g.epochs[1].index = 5),
        ("epochs[1].start_height", |g| g.epochs[1].start_height = 14),
    ];
    for (field, change) in cases {
        let mut bad = good.clone();
        change(&mut bad);
        let error = EpochsModule.validate_genesis(&bad.encode_to_vec(), &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("epochs", 4), "{field}");
        assert!(error.message.starts_with(&format!("genesis {field}: ")), "{field}: {error}");
        let init = TestChain::new(1).refused(|ctx| EpochsModule.init_genesis(ctx, &bad.encode_to_vec()));
        assert_eq!(init, ("epochs", 4), "{field}: the state is built only of what was checked");
    }
    let good = good.encode_to_vec();
    for bytes in [[&good[..], &[0x78, 1]].concat(), good[..good.len() - 1].to_vec()] {
        let error = EpochsModule.validate_genesis(&bytes, &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("sdk", 34));
    }
}

#[test]
fn collections_and_codes_are_where_the_tables_say() {
    assert!(check_prefix_table(&EpochsModule));
    let field = holdfast_types::FieldError::new("f", "r");
    let samples = [
        EpochsError::InvalidSigner { expected: "a".into() },
        EpochsError::InvalidParams(field),
        EpochsError::genesis("f", "r"),
        EpochsError::NoEpoch("x"),
    ];
    assert_eq!(samples.map(|e| e.code()).to_vec(), CODES.iter().map(|(code, _)| *code).collect::<Vec<_>>());
}

/// Blocks that another module needs in one epoch.
struct Spans(i64);

impl ScheduleLimits for Spans {
    fn longest_span(&self, _store: &dyn KvRead) -> Result<(i64, &'static str), StoreError> {
        Ok((self.0, "longest nap"))
    }
}

#[test]
fn an_epoch_is_not_made_shorter_than_what_must_fit_into_it() {
    let mut chain = chain(10, 3);
    let mut stage = |span: i64, length: i64| {
        let msg = update_msg(&chain, length, 0, &["epoch_length"]);
        chain.message(|ctx| msg_server::update_params(ctx, &Spans(span), msg)).map(|_| ())
    };
    let error = stage(9, 8).unwrap_err();
    assert_eq!((error.codespace, error.code), ("epochs", 3));
    assert!(error.message.contains("epoch_length") && error.message.contains("longest nap"), "{error}");
    stage(8, 8).unwrap();
    // The length stays as staged: not a change, so not asked again.
    stage(9, 8).unwrap();
    assert_eq!(K.next_length(&chain.store, 0).unwrap(), Some(8));
}
