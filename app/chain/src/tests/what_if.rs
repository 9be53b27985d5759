//! What-if queries: the replay against what happened, against chains that really had the parameters tried, and by hand.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use holdfast_proto::FieldMask;
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_types::{Decimal12, Event, ONE, QueryError, QueryKind, ValidationParams};

use super::load::{self, Load};
use super::net::*;
use crate::app::{App, AppOptions, FinalizedBlock, Moment};
use crate::what_if::{self, Input, Item, Log, PATH, Verdict};

const INFERENCE_PARAMS: &str = "/holdfast.inference.v1.MsgUpdateParams";

fn ask(net: &Net, request: &pb::QueryWhatIfRequest) -> Result<pb::QueryWhatIfResponse, QueryError> {
    net.query(PATH, request)
}

fn in_epoch(epoch: u64) -> pb::QueryWhatIfRequest {
    let pagination = Some(PageRequest { limit: 1_000, ..PageRequest::default() });
    pb::QueryWhatIfRequest { epoch: Some(epoch), pagination, ..pb::QueryWhatIfRequest::default() }
}

fn trying(params: &ValidationParams, epoch: u64) -> pb::QueryWhatIfRequest {
    let token_price = holdfast_types::Coin { denom: DENOM.into(), amount: 1 };
    let params = holdfast_inference::Params { validation: params.clone(), token_price }.to_pb().validation;
    pb::QueryWhatIfRequest { params, ..in_epoch(epoch) }
}

fn with_log(log: Log) -> AppOptions {
    AppOptions { what_if: Some(Arc::new(log)), ..options() }
}

/// Epoch of the last block.
fn epoch(net: &Net) -> u64 {
    net.shared.view(0).unwrap().block.epoch
}

fn restart(net: &mut Net, log: Log) {
    net.app = App::open(net.shared.store().clone(), with_log(log)).unwrap();
    net.shared = net.app.shared();
}

#[track_caller]
fn agrees(answer: &pb::QueryWhatIfResponse) {
    assert!(answer.agrees, "{:?}", answer.lacks);
    assert!(answer.in_force && answer.changed.is_empty(), "{:?}", answer.changed);
    assert_eq!(answer.happened, answer.would_be);
    for row in &answer.rows {
        assert_eq!(row.happened, row.would_be);
    }
}

#[test]
fn under_the_parameters_in_force_the_replay_makes_every_transition_that_happened() {
    let (mut exclusions, mut restorations, mut overrides) = (0, 0, 0);
    for seed in [11, 12, 13, 14] {
        println!("seed {seed}");
        let mut load = Load::new(seed);
        for block in 1..=120 {
            load.step();
            if block % 5 != 0 {
                continue;
            }
            let now = epoch(&load.net);
            for epoch in now.saturating_sub(1)..=now {
                let answer = ask(&load.net, &in_epoch(epoch)).unwrap();
                agrees(&answer);
                assert!(answer.lacks.is_empty(), "{:?}", answer.lacks);
                exclusions += answer.happened.as_ref().unwrap().exclusions;
                for exclusion in answer.rows.iter().flat_map(|row| &row.happened) {
                    restorations += u32::from(exclusion.ended_by == "probe");
                    overrides += u32::from(exclusion.rule == "override");
                }
            }
            // One model alone is what it is among all.
            let one = pb::QueryWhatIfRequest { model: OTHER.into(), ..in_epoch(now) };
            let all: Vec<_> = ask(&load.net, &in_epoch(now)).unwrap().rows;
            let of_model: Vec<_> = all.into_iter().filter(|row| row.model == OTHER).collect();
            let answer = ask(&load.net, &one).unwrap();
            agrees(&answer);
            assert_eq!(answer.rows, of_model);
        }
    }
    assert!(
        exclusions > 400 && restorations > 40 && overrides > 10,
        "{exclusions} {restorations} {overrides}"
    );
}

/// What happened in the blocks from `first` on, told from the blocks' events alone; shares no code with the log.
fn from_events(done: &[FinalizedBlock], first: i64) -> BTreeMap<(String, String), Vec<[u64; 4]>> {
    let mut out: BTreeMap<(String, String), Vec<[u64; 4]>> = BTreeMap::new();
    let mut lasting: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
    for (height, done) in (1_i64..).zip(done).filter(|(height, _)| *height >= first) {
        // Begin-block events stand before those of transactions in time, and the rest behind them.
        let mode = |event: &&Event, mode: &str| event.get("mode") == Some(mode);
        let begin = done.events.iter().filter(|event| mode(event, "BeginBlock"));
        let txs = done.tx_results.iter().flat_map(|result| &result.events);
        let end = done.events.iter().filter(|event| mode(event, "EndBlock"));
        for event in begin.chain(txs).chain(end) {
            let get = |name| event.get(name).unwrap_or_default().to_owned();
            let who = if event.kind.contains(".inference.") { "assigned_to" } else { "participant" };
            let pair = (get("model"), get(who));
            match event.kind.rsplit('.').next().unwrap() {
                "EventExecutorExcluded" => {
                    out.entry(pair.clone()).or_default().push([height as u64, 0, 0, 0]);
                    lasting.insert(pair, None);
                }
                "EventProbeClaimed" => *lasting.get_mut(&pair).unwrap() = Some(get("inference_id")),
                "EventProbeOpened" => *lasting.get_mut(&pair).unwrap() = None,
                "EventExecutorRestored" => drop(lasting.remove(&pair)),
                "EventInferenceMissed" => {
                    if let Some(claim) = lasting.get(&pair) {
                        let of_probe = claim.as_ref() == Some(&get("inference_id"));
                        let last = out.get_mut(&pair).unwrap().last_mut().unwrap();
                        last[if of_probe { 2 } else { 1 }] += 1;
                    }
                }
                "EventInferenceFinished" => {
                    if let Some(claim) = lasting.get(&pair)
                        && claim.as_ref() != Some(&get("inference_id"))
                    {
                        out.get_mut(&pair).unwrap().last_mut().unwrap()[3] += 1;
                    }
                }
                _ => {}
            }
        }
    }
    out
}

#[test]
fn what_happened_is_what_the_events_of_the_blocks_tell() {
    let mut compared = 0;
    for seed in [21, 22, 23] {
        println!("seed {seed}");
        let mut load = Load::new(seed);
        for _ in 0..110 {
            load.step();
            let now = epoch(&load.net);
            let answer = ask(&load.net, &in_epoch(now)).unwrap();
            // A block in which the test's authority spoke first has its events in another order.
            let muddled = load.net.history.iter().skip(usize::try_from(answer.from_height).unwrap() - 1);
            if muddled.flat_map(|p| &p.authority).any(|(at, _)| *at == Moment::BeforeTransactions) {
                continue;
            }
            let told = |e: &pb::WhatIfExclusion| {
                [u64::try_from(e.from).unwrap(), e.missed, u64::from(e.probe_missed), e.finished]
            };
            let rows = answer.rows.iter().map(|row| {
                let key = (row.model.clone(), row.participant.clone());
                (key, row.happened.iter().map(told).collect::<Vec<_>>())
            });
            assert_eq!(rows.collect::<BTreeMap<_, _>>(), from_events(&load.net.done, answer.from_height));
            compared += answer.rows.len();
        }
    }
    assert!(compared > 60, "{compared}");
}

/// Parameters that differ from those of the load in everything a replay can show.
fn other_params(rng: &mut Rng) -> ValidationParams {
    let window = 10 * rng.below(5) as i64;
    ValidationParams {
        health_cb_shadow: true,
        health_cb_miss_threshold_pct: [10, 30, 60, 100][rng.below(4)],
        health_cb_min_samples: 1 + rng.below(5) as u64,
        health_cb_initial_cooldown_blocks: 1 + rng.below(6) as i64,
        health_cb_max_cooldown_blocks: 6 + rng.below(12) as i64,
        health_cb_window_blocks: window,
        health_cb_consecutive_misses: rng.below(4) as u32,
        health_cb_probation_blocks: 15 * rng.below(3) as i64,
        health_cb_max_excluded_weight_pct: [40, 70, 100][rng.below(3)],
        health_cb_freeze_pct: if window > 0 { [0, 50][rng.below(2)] } else { 0 },
        health_cb_jitter_pct: [0, 30][rng.below(2)],
        ..load::spec().validation
    }
}

/// In shadow mode the breaker keeps no work away, so that a chain's work does not depend on its parameters: a chain that
/// really had the other ones tells what would have been.
#[test]
fn what_would_have_been_is_what_happens_on_a_chain_with_those_parameters() {
    let mut moved = 0;
    for seed in 31..=36 {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        // Groups of escrows are drawn by the app hash, which is another one on a chain with other parameters.
        let mut load = Load::without_escrows(seed);
        for _ in 0..75 {
            load.step();
        }
        let shadow = |validation: ValidationParams| {
            let validation = ValidationParams { health_cb_shadow: true, ..validation };
            Net::new(&Spec { validation, ..load::spec() })
        };
        let other = other_params(&mut rng);
        println!("{other:?}");
        let (mut here, mut there) = (shadow(load::spec().validation), shadow(other.clone()));
        for played in &load.net.history {
            let mut played = played.clone();
            played.authority.retain(|(_, message)| message.type_url != INFERENCE_PARAMS);
            here.play(played.clone());
            there.play(played);
            let now = epoch(&here);
            if here.height() % 6 != 0 {
                continue;
            }
            for epoch in now.saturating_sub(1)..=now {
                let tried = ask(&here, &trying(&other, epoch)).unwrap();
                let real = ask(&there, &in_epoch(epoch)).unwrap();
                assert!(tried.agrees && real.agrees);
                assert!(tried.not_replayed.is_empty());
                assert_eq!(tried.would_be, real.happened);
                let rows: Vec<_> = tried.rows.iter().filter(|row| !row.would_be.is_empty()).collect();
                let real_rows: Vec<_> = real.rows.iter().filter(|row| !row.happened.is_empty()).collect();
                assert_eq!(rows.len(), real_rows.len());
                for (tried, real) in rows.iter().zip(real_rows) {
                    assert_eq!((&tried.model, &tried.participant), (&real.model, &real.participant));
                    assert_eq!(tried.would_be, real.happened);
                    let sums = |row: &pb::WhatIfRow| (row.given, row.finished, row.missed, row.released);
                    assert_eq!(sums(tried), sums(real));
                }
                moved += u32::from(tried.would_be != tried.happened);
            }
        }
    }
    assert!(moved > 50, "{moved}");
}

/// Executor 0 misses at 3 and 4, 6 and 8, answers at 11; executor 1 misses once at 3 and answers at 5, 7 and 12. Nobody is
/// excluded: the rules want five misses in a row.
fn hand_worked(log: Log) -> Net {
    let validation = ValidationParams { expiration_blocks: 30, health_cb_consecutive_misses: 5, ..quick() };
    let mut net = Net::with(&Spec { validation, ..Spec::default() }, mem(), with_log(log));
    let plan: [(i64, usize, &str); 20] = [
        (1, 0, "a"),
        (1, 0, "b"),
        (1, 0, "c"),
        (1, 1, "k"),
        (1, 1, "l"),
        (3, 0, "-a"),
        (3, 1, "-k"),
        (4, 0, "-b"),
        (5, 0, "d"),
        (5, 1, "+l"),
        (5, 1, "m"),
        (6, 0, "-c"),
        (7, 1, "+m"),
        (8, 0, "-d"),
        (9, 0, "e"),
        (9, 1, "n"),
        (10, 0, "f"),
        (11, 0, "+e"),
        (12, 1, "+n"),
        (13, 0, "+f"),
    ];
    for height in 1..=14 {
        for (_, executor, what) in plan.iter().filter(|(at, ..)| *at == height) {
            match what.split_at(1) {
                ("-", id) => net.report(id, *executor),
                ("+", id) => net.finish(id, *executor),
                _ => net.start(what, *executor),
            }
        }
        net.good();
    }
    net
}

#[test]
fn the_numbers_of_a_small_epoch_are_those_worked_out_by_hand() {
    let net = hand_worked(Log::in_memory());
    let as_it_was = ask(&net, &in_epoch(0)).unwrap();
    agrees(&as_it_was);
    assert!(as_it_was.rows.is_empty() && as_it_was.lacks.is_empty());
    assert_eq!((as_it_was.from_height, as_it_was.to_height), (1, 14));
    assert_eq!(as_it_was.happened, Some(pb::WhatIfTotals::default()));

    // Two misses in a row: executor 0 is out at the end of 4 for five blocks, until 9. The misses of 6 and 8 lie inside; the
    // one of 8 is of work given inside. `e` of 9 is its probe and passes at 11; `f` of 10 is given inside and answered after
    // the end. Executor 1 answers in between.
    let two = pb::QueryWhatIfRequest {
        params: trying(&quick(), 0).params,
        update_mask: Some(FieldMask { paths: vec!["health_cb_consecutive_misses".into()] }),
        epoch: None,
        ..in_epoch(0)
    };
    let answer = ask(&net, &two).unwrap();
    assert!(answer.agrees && !answer.in_force && answer.lacks.is_empty() && answer.not_replayed.is_empty());
    assert_eq!(answer.changed, ["health_cb_consecutive_misses"]);
    let exclusion = pb::WhatIfExclusion {
        from: 4,
        probe_from: 9,
        until: 11,
        rule: "streak".into(),
        ended_by: "probe".into(),
        cooldown_blocks: 5,
        missed: 2,
        given: 2,
        given_missed: 1,
        ..pb::WhatIfExclusion::default()
    };
    let row = pb::WhatIfRow {
        model: MODEL.into(),
        participant: net.executor(0).bech32(),
        given: 6,
        finished: 2,
        missed: 4,
        would_be: vec![exclusion],
        ..pb::WhatIfRow::default()
    };
    assert_eq!(answer.rows, [row]);
    let totals = pb::WhatIfTotals {
        pairs: 1,
        exclusions: 1,
        work_saved: 2,
        given_missed: 1,
        blocks: 7,
        ..pb::WhatIfTotals::default()
    };
    assert_eq!((answer.happened, answer.would_be), (as_it_was.happened, Some(totals)));

    // One miss is enough: executor 1 is out from 3 to 8 as well, in which it misses nothing and answers twice: a false
    // exclusion. Its probe `n` passes at 12. Executor 0 is out at 3; the misses of 4, 6 lie inside; it is ready at 8. The
    // miss of 8 is of work given before: `e` is the probe.
    let one = ValidationParams { health_cb_consecutive_misses: 1, expiration_blocks: 30, ..quick() };
    let answer = ask(&net, &trying(&one, 0)).unwrap();
    let of = |answer: &pb::QueryWhatIfResponse, executor: usize| {
        let who = net.executor(executor).bech32();
        let row = answer.rows.iter().find(|row| row.participant == who).unwrap();
        assert_eq!((row.would_be.len(), row.happened.len()), (1, 0));
        let e = row.would_be[0].clone();
        assert_eq!((e.rule.as_str(), e.ended_by.as_str()), ("streak", "probe"));
        (e.from, e.probe_from, e.until, e.missed, e.finished, e.given, e.given_missed, e.false_exclusion)
    };
    assert_eq!(of(&answer, 0), (3, 8, 11, 3, 0, 2, 1, false));
    assert_eq!(of(&answer, 1), (3, 8, 12, 0, 2, 1, 0, true));
    let totals = answer.would_be.unwrap();
    assert_eq!((totals.work_saved, totals.false_exclusions, totals.without_work), (3, 1, 0));
    assert_eq!((totals.exclusions, totals.pairs, totals.finished, totals.blocks), (2, 2, 2, 8 + 9));

    // A filter by participant, and pages of one row.
    let only = pb::QueryWhatIfRequest { participant: net.executor(1).bech32(), ..trying(&one, 0) };
    let filtered = ask(&net, &only).unwrap();
    assert_eq!((filtered.rows.len(), filtered.would_be.unwrap().work_saved), (1, 0));
    let mut paged = Vec::new();
    let mut key = Vec::new();
    loop {
        let page = PageRequest { limit: 1, key, ..PageRequest::default() };
        let answer =
            ask(&net, &pb::QueryWhatIfRequest { pagination: Some(page), ..trying(&one, 0) }).unwrap();
        paged.extend(answer.rows);
        key = answer.pagination.unwrap().next_key;
        if key.is_empty() {
            break;
        }
    }
    assert_eq!(paged, answer.rows);
}

#[test]
fn a_change_of_parameters_inside_the_epoch_is_kept_where_the_proposal_says_nothing() {
    let mut net = hand_worked(Log::in_memory());
    let two = ValidationParams { health_cb_consecutive_misses: 2, expiration_blocks: 30, ..quick() };
    let change = validation_msg(two, 1, &["validation.health_cb_consecutive_misses"]);
    net.govern(Moment::AfterEndBlock, change);
    net.good();
    net.exclude(2);
    let answer = ask(&net, &in_epoch(0)).unwrap();
    agrees(&answer);
    assert_eq!(answer.happened.unwrap().exclusions, 1);
    // Five in a row from the beginning: executor 2 stays. All else as it was.
    let five = ValidationParams { health_cb_consecutive_misses: 5, expiration_blocks: 30, ..quick() };
    let answer = ask(&net, &trying(&five, 0)).unwrap();
    assert!(answer.agrees && !answer.in_force);
    assert_eq!(answer.would_be.unwrap().exclusions, 0);
    // The cooldown alone: excluded as it was, for longer.
    let mut longer = trying(&ValidationParams { health_cb_initial_cooldown_blocks: 9, ..quick() }, 0);
    longer.update_mask = Some(FieldMask { paths: vec!["health_cb_initial_cooldown_blocks".into()] });
    let answer = ask(&net, &longer).unwrap();
    assert_eq!(answer.rows[0].happened[0].cooldown_blocks, 5);
    assert_eq!(answer.rows[0].would_be[0].cooldown_blocks, 9);
}

#[test]
fn what_a_record_cannot_show_is_named() {
    let net = hand_worked(Log::in_memory());
    let new = ValidationParams {
        expiration_blocks: 2,
        health_cb_consecutive_misses: 5,
        downtime_h_threshold: Decimal12(ONE),
        health_cb_shadow: true,
        ..quick()
    };
    let answer = ask(&net, &trying(&new, 0)).unwrap();
    assert_eq!(answer.not_replayed, ["downtime_h_threshold", "expiration_blocks"]);
    assert_eq!(answer.changed, ["downtime_h_threshold", "expiration_blocks", "health_cb_shadow"]);
    assert_eq!(answer.notes.len(), 2, "{:?}", answer.notes);
    assert!(answer.rows.is_empty());
}

#[test]
fn a_record_on_disk_outlives_restarts_and_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let log = || Log::on_disk(dir.path().join("what-if"));
    let mut load = Load::new(41);
    load.net = Net::with(&load::spec(), mem(), with_log(log()));
    let mut twin = Load::new(41);
    for block in 1..=95 {
        load.step();
        twin.step();
        if block % 7 == 0 {
            restart(&mut load.net, log());
        }
        if block % 10 == 0 {
            let now = epoch(&load.net);
            for epoch in now.saturating_sub(1)..=now {
                assert_eq!(ask(&load.net, &in_epoch(epoch)), ask(&twin.net, &in_epoch(epoch)));
            }
        }
    }
    let now = epoch(&load.net);
    assert!(now >= 3);
    let error = ask(&load.net, &in_epoch(now - 2)).unwrap_err();
    assert_eq!(error.kind, QueryKind::NotFound);
    assert!(error.message.contains(&format!(
        "no record of epoch {}; kept are: {} (blocks",
        now - 2,
        now - 1
    )));
    assert_eq!(std::fs::read_dir(dir.path().join("what-if")).unwrap().count(), 2);
    assert_eq!(ask(&load.net, &in_epoch(now + 1)).unwrap_err().kind, QueryKind::NotFound);
}

/// The one file below `dir`.
fn only_file(dir: &Path) -> std::path::PathBuf {
    let mut files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let file = files.next().unwrap();
    assert!(files.next().is_none());
    file
}

#[test]
fn a_torn_or_damaged_tail_is_cut_and_the_blocks_it_held_are_named_as_lacking() {
    let dir = tempfile::tempdir().unwrap();
    let mut net = hand_worked(Log::on_disk(dir.path()));
    let file = only_file(dir.path());
    let whole = std::fs::read(&file).unwrap();
    let torn = [whole[..whole.len() - 3].to_vec(), {
        let mut damaged = whole.clone();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        damaged
    }];
    for bytes in torn {
        std::fs::write(&file, &bytes).unwrap();
        // Block 14 is gone: a new record begins behind it.
        restart(&mut net, Log::on_disk(dir.path()));
        let answer = ask(&net, &in_epoch(0)).unwrap();
        assert_eq!((answer.from_height, answer.to_height, answer.agrees), (0, 0, true));
        assert_eq!(answer.lacks.len(), 1);
        assert!(
            answer.lacks[0].starts_with("blocks 1 to 14: the record begins with block 15"),
            "{:?}",
            answer.lacks
        );
        std::fs::remove_file(only_file(dir.path())).unwrap();
        std::fs::write(&file, &whole).unwrap();
        restart(&mut net, Log::on_disk(dir.path()));
        assert_eq!(ask(&net, &in_epoch(0)).unwrap().to_height, 14);
        // Junk behind the last block costs nothing.
        std::fs::write(&file, [whole.as_slice(), &[0, 0, 0, 9, 1]].concat()).unwrap();
        restart(&mut net, Log::on_disk(dir.path()));
        assert_eq!(std::fs::read(&file).unwrap(), whole);
    }
    // Files of another chain, or of none, are no record.
    std::fs::write(&file, b"hfwi0001 but nothing else").unwrap();
    restart(&mut net, Log::on_disk(dir.path()));
    assert_eq!(ask(&net, &in_epoch(0)).unwrap().from_height, 0);
    net.good();
    assert_eq!(ask(&net, &in_epoch(0)).unwrap().from_height, 15);
}

#[test]
fn a_node_that_joins_inside_an_epoch_replays_from_the_state_it_found() {
    let mut load = Load::new(51);
    for block in 1..=90 {
        load.step();
        if block == 45 {
            restart(&mut load.net, Log::in_memory());
        }
        if block > 45 {
            let now = epoch(&load.net);
            for epoch in now.saturating_sub(1)..=now {
                let Ok(answer) = ask(&load.net, &in_epoch(epoch)) else { continue };
                agrees(&answer);
                let joined_in = answer.from_height == 46;
                assert_eq!(answer.lacks.len(), usize::from(joined_in), "{:?}", answer.lacks);
                if joined_in {
                    let before =
                        answer.rows.iter().flat_map(|row| &row.happened).filter(|e| e.rule == "before");
                    assert!(before.count() > 0, "nobody was excluded when the node joined");
                }
            }
        }
    }
}

#[test]
fn blocks_that_the_state_does_not_have_are_cut_and_executed_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = mem();
    let mut net = Net::with(&Spec::default(), store.clone(), with_log(Log::on_disk(dir.path())));
    net.exclude(0);
    let bytes = std::fs::read(only_file(dir.path())).unwrap();
    net.exclude(1);
    assert_eq!(net.height(), 4);
    let ahead = std::fs::read(only_file(dir.path())).unwrap();
    assert!(ahead.len() > bytes.len());
    // The record of a node that died between writing blocks 3 and 4 down and committing them.
    let mut behind = Net::standard();
    for played in &net.history[..2] {
        behind.play(played.clone());
    }
    restart(&mut behind, Log::on_disk(dir.path()));
    assert_eq!(std::fs::read(only_file(dir.path())).unwrap(), bytes);
    for played in &net.history[2..] {
        // Executed twice, committed once.
        finalize(&mut behind.app, played);
        behind.play(played.clone());
    }
    assert_eq!(std::fs::read(only_file(dir.path())).unwrap(), ahead);
    let answer = ask(&behind, &in_epoch(0)).unwrap();
    agrees(&answer);
    assert_eq!((answer.happened.unwrap().exclusions, answer.lacks.len()), (2, 0));
}

#[test]
fn a_record_that_cannot_be_written_stops_and_says_why_while_the_chain_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    std::fs::write(&blocked, b"").unwrap();
    let spec = Spec { epoch_length: 10, ..Spec::default() };
    let mut net = Net::with(&spec, mem(), with_log(Log::on_disk(&blocked)));
    net.blocks(3);
    let error = ask(&net, &in_epoch(0)).unwrap_err();
    assert_eq!(error.kind, QueryKind::NotFound);
    assert!(error.message.contains("kept are: none; recording has stopped: "), "{error}");
    // A folder that goes away under the log: the next epoch's file cannot be made.
    let gone = dir.path().join("gone");
    let mut net = Net::with(&spec, mem(), with_log(Log::on_disk(&gone)));
    net.blocks(10);
    std::fs::remove_dir_all(&gone).unwrap();
    std::fs::write(&gone, b"").unwrap();
    net.blocks(15);
    let error = ask(&net, &in_epoch(2)).unwrap_err();
    assert!(error.message.contains("recording has stopped: block 11: "), "{error}");
    let mut silent = Net::with(&spec, mem(), AppOptions::default());
    silent.blocks(25);
    assert_eq!(silent.app.app_hash(), net.app.app_hash());
    let error = ask(&silent, &in_epoch(2)).unwrap_err();
    assert_eq!(
        (error.kind, error.message.contains("keeps no what-if record")),
        (QueryKind::Unavailable, true)
    );
}

#[test]
fn a_full_record_ends_and_the_next_epoch_has_its_own() {
    let spec = Spec { epoch_length: 10, ..Spec::default() };
    let mut net = Net::with(&spec, mem(), with_log(Log::new(None, 2_000)));
    for block in 0..10 {
        for n in 0..3 {
            net.start(&format!("work-{block}-{n}"), n);
        }
        net.good();
    }
    let answer = ask(&net, &in_epoch(0)).unwrap();
    assert!(answer.agrees && answer.to_height < 10 && answer.to_height > 2, "{}", answer.to_height);
    let text = format!("blocks {} to 10: the record has reached its largest size", answer.to_height + 1);
    assert_eq!(answer.lacks, [text]);
    net.blocks(3);
    let answer = ask(&net, &in_epoch(1)).unwrap();
    assert_eq!((answer.from_height, answer.to_height, answer.lacks.len()), (11, 13, 0));
}

#[test]
fn a_replay_that_differs_from_what_was_recorded_says_where() {
    let spec =
        || Spec { validation: ValidationParams { health_cb_shadow: true, ..quick() }, ..Spec::default() };
    let log = Arc::new(Log::in_memory());
    let options = AppOptions { what_if: Some(log.clone()), ..options() };
    let mut net = Net::with(&spec(), mem(), options);
    net.exclude(1);
    let forged = Log::in_memory();
    let genesis = Net::new(&spec()).shared.view(0).unwrap();
    forged.attach(genesis.query().store, &genesis.block, net.shared.composition());
    let (_, _, blocks) = log.read(0, i64::MAX).unwrap().unwrap();
    for block in blocks {
        let mut block = block.unwrap();
        let is_miss =
            |item: &Item| matches!(item, Item::Heard(Input::Outcome { verdict: Verdict::Missed, .. }));
        if let Some(at) = block.items.iter().position(is_miss) {
            block.items.remove(at);
        }
        forged.append(block);
    }
    let view = net.shared.view(0).unwrap();
    let answer = what_if::answer(Some(&forged), &view, net.shared.composition(), &in_epoch(0)).unwrap();
    assert!(!answer.agrees);
    let lacking = &answer.lacks[0];
    let start =
        "something that the breaker heard: block 2: recorded EventExecutorExcluded (epoch 0, model m1, ";
    assert!(lacking.starts_with(start) && lacking.ends_with("), replayed nothing"), "{lacking}");
}

#[test]
fn a_pinned_height_sees_the_record_as_far_as_it() {
    let net = hand_worked(Log::in_memory());
    let request = holdfast_proto::Message::encode_to_vec(&in_epoch(0));
    for height in [7, 10, 14] {
        let (reply, at) = net.shared.query(PATH, &request, height).unwrap();
        let reply: pb::QueryWhatIfResponse = holdfast_proto::decode_strict(&reply).unwrap();
        assert_eq!((at, reply.from_height, reply.to_height, reply.lacks.len()), (height, 1, height, 0));
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let net = hand_worked(Log::in_memory());
    let base = || trying(&quick(), 0);
    let kind = |request: pb::QueryWhatIfRequest| {
        let error = ask(&net, &request).unwrap_err();
        (error.kind, error.message)
    };
    let refused = |request, with: &str, text: &str| {
        let (found, message) = kind(request);
        assert_eq!(found, QueryKind::InvalidArgument, "{message}");
        assert!(message.contains(with) && message.contains(text), "{message}");
    };
    let with = |change: fn(&mut ValidationParams)| {
        let mut params = quick();
        change(&mut params);
        trying(&params, 0)
    };
    refused(
        with(|p| p.health_cb_miss_threshold_pct = 101),
        "health_cb_miss_threshold_pct",
        "must be 0 to 100",
    );
    refused(with(|p| p.health_cb_initial_cooldown_blocks = 11), "health_cb_max_cooldown_blocks", "at least");
    refused(
        with(|p| p.health_cb_max_cooldown_blocks = 101),
        "health_cb_max_cooldown_blocks",
        "epoch's length of 100",
    );
    refused(with(|p| p.health_cb_freeze_pct = 10), "health_cb_freeze_pct", "needs health_cb_window_blocks");
    let mask = |paths: &[&str]| Some(FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() });
    refused(pb::QueryWhatIfRequest { update_mask: mask(&["nonsense"]), ..base() }, "update_mask", "nonsense");
    refused(
        pb::QueryWhatIfRequest { params: None, update_mask: mask(&["*"]), ..base() },
        "update_mask",
        "params",
    );
    refused(pb::QueryWhatIfRequest { participant: "nobody".into(), ..base() }, "participant", "");
    let page = |page: PageRequest| pb::QueryWhatIfRequest { pagination: Some(page), ..base() };
    refused(page(PageRequest { limit: 1_001, ..PageRequest::default() }), "pagination.limit", "1000");
    refused(page(PageRequest { key: vec![1], ..PageRequest::default() }), "pagination.key", "next_key");
    let both = PageRequest { key: vec![1], offset: 1, ..PageRequest::default() };
    refused(page(both), "pagination", "not both");
    let unknown = pb::QueryWhatIfRequest { model: "m9".into(), ..base() };
    assert_eq!(kind(unknown).0, QueryKind::NotFound);
    assert_eq!(kind(in_epoch(7)).0, QueryKind::NotFound);
}
