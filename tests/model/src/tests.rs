//! The documents' own numbers, small scenarios, and proof that the histories reach every rule.

use crate::calc::*;
use crate::draw::{Lane, Row, Stream, Table};
use crate::entry::{Claim, Entry, Forced, ForcedTo, State, Trip, Window, effective_state};
use crate::history::{self, Op, SplitMix64};
use crate::params::Params;
use crate::sprt::{self, ONE, Sprt, Verdict};
use crate::world::*;
use crate::{Address, BlockReport, Driver, Pair, Refusal, hex};
use std::collections::{BTreeMap, BTreeSet};

fn addr(k: u8) -> Address {
    [k; 20]
}

fn window(width: u32, touched_at: i64, buckets: &[(u64, u64, u64)]) -> Window {
    let buckets = buckets.iter().map(|(i, ok, missed)| (*i, (*ok, *missed))).collect();
    Window { width, touched_at, buckets }
}

// ---- section 1: bytes ----

#[test]
fn the_golden_entry_has_its_hundred_bytes() {
    let entry = Entry {
        generation: 2,
        excluded_at: 100,
        cooldown_blocks: 50,
        ready_since: 150,
        restored_at: 160,
        consecutive_misses: 1,
        window: window(20, 165, &[(8, 3, 1)]),
        ..Entry::default()
    };
    let golden = "00 02000000 6400000000000000 3200000000000000 9600000000000000 a000000000000000 \
                  0000000000000000 00000000 00000000 01000000 00 14000000 a500000000000000 01000000 \
                  0800000000000000 0300000000000000 0100000000000000 00 00";
    assert_eq!(entry.encode().len(), 100);
    assert_eq!(hex(&entry.encode()), golden.replace([' ', '\n'], ""));
}

#[test]
fn every_option_of_an_entry_is_written_in_place() {
    let mut entry = Entry { state: State::Probe, ..Entry::default() };
    let plain = entry.encode();
    assert_eq!(plain[0], 2);
    entry.probe = Some(Claim { inference_id: "ab".into(), deadline_block: 7 });
    entry.trip = Some(Trip { block: 3, weight: 9 });
    entry.forced = Some(Forced { to: ForcedTo::Excluded, until_block: 11 });
    let full = entry.encode();
    assert_eq!(full.len(), plain.len() + (4 + 2 + 8) + 16 + 9);
    assert_eq!(hex(&full[57..72]), "0102000000616207000000000000".to_string() + "00");
    assert_eq!(hex(&full[full.len() - 10..]), "01010b00000000000000");
}

#[test]
fn an_exclusion_is_effectively_a_probe_when_its_cooldown_has_passed() {
    let entry = Entry { state: State::Excluded, excluded_at: 100, cooldown_blocks: 50, ..Entry::default() };
    assert_eq!(effective_state(&entry, 149), State::Excluded);
    assert_eq!(effective_state(&entry, 150), State::Probe);
}

// ---- section 2.1: windows and rules ----

#[test]
fn outcomes_fall_into_absolute_buckets_and_die_by_whole_buckets() {
    assert_eq!([100, 119, 120].map(|h| bucket_of(h, 20)), [5, 5, 6]);
    let alive = |h| (0..30).filter(|i| *i <= bucket_of(h, 20) && live(*i, h, 20)).collect::<Vec<_>>();
    assert_eq!(alive(299), (5..=14).collect::<Vec<_>>());
    assert_eq!(alive(300), (6..=15).collect::<Vec<_>>());
    assert!(live(0, i64::MAX, 0));
}

#[test]
fn a_window_is_rebuilt_from_its_buckets_when_the_width_changes() {
    let stored = window(20, 125, &[(5, 4, 1), (6, 1, 0)]);
    assert_eq!(remap(&stored, 40), window(40, 125, &[(2, 4, 1), (3, 1, 0)]));
    assert_eq!(remap(&stored, 5), window(5, 125, &[(23, 4, 1), (25, 1, 0)]));
    assert_eq!(remap(&stored, 0), window(0, 125, &[(0, 5, 1)]));
    assert_eq!(remap(&window(0, 1000, &[(0, 5, 1)]), 20), window(20, 1000, &[(50, 5, 1)]));
}

#[test]
fn a_success_in_the_block_resets_the_streak_whatever_else_was_in_it() {
    let mut entry = Entry::default();
    touch(&mut entry, 0, 10, 0, 3);
    assert_eq!(entry.consecutive_misses, 3);
    touch(&mut entry, 0, 11, 0, 2);
    assert_eq!(entry.consecutive_misses, 5);
    touch(&mut entry, 0, 12, 1, 4);
    assert_eq!(entry.consecutive_misses, 0);
    assert_eq!(entry.window, window(0, 12, &[(0, 1, 9)]));
}

#[test]
fn dead_buckets_are_dropped_when_an_entry_is_written() {
    let mut entry = Entry { window: window(20, 125, &[(5, 4, 1), (6, 1, 0)]), ..Entry::default() };
    touch(&mut entry, 200, 300, 0, 1);
    assert_eq!(entry.window, window(20, 300, &[(6, 1, 0), (15, 0, 1)]));
}

#[test]
fn the_rate_is_strict_and_needs_its_samples() {
    let params = Params::defaults();
    let met = |missed: u64, total: u64| rate_met(total - missed, missed, &params);
    assert_eq!([met(1, 3), met(1, 4), met(2, 4), met(2, 7), met(2, 8)], [false, false, true, true, false]);
    let never = Params { health_cb_miss_threshold_pct: 100, ..Params::defaults() };
    assert!(!rate_met(0, u64::MAX, &never));
}

#[test]
fn the_rate_goes_before_the_streak_and_a_streak_of_zero_is_off() {
    let params = Params { health_cb_consecutive_misses: 3, ..Params::defaults() };
    assert_eq!(rule_met(0, 4, 4, &params), Some("rate"));
    assert_eq!(rule_met(100, 3, 3, &params), Some("streak"));
    assert_eq!(rule_met(100, 2, 2, &params), None);
    assert_eq!(rule_met(100, 3, 3, &Params::defaults()), None);
}

// ---- section 2.2: cooldown ----

#[test]
fn cooldowns_double_up_to_the_maximum() {
    let params = Params::defaults();
    let length = |level| cooldown(&params, level, "m1", &addr(1), 100);
    assert_eq!([0, 1, 2, 3, 4].map(length), [50, 100, 200, 400, 500]);
    assert_eq!(length(63), 500);
}

#[test]
fn jitter_shortens_by_the_documents_numbers() {
    let params = Params { health_cb_jitter_pct: 10, ..Params::defaults() };
    assert_eq!(jitter_draw("m1", &addr(1), 100), 13456062741906458932);
    assert_eq!(jitter_draw("m1", &addr(1), 1000), 5723459846470602710);
    let length = |at, level, k| cooldown(&params, level, "m1", &addr(k), at);
    assert_eq!(length(100, 0, 1), 46);
    assert_eq!(length(100, 1, 1), 95);
    assert_eq!(length(1000, 3, 1), 382);
    assert_eq!(length(1000, 4, 1), 492);
    assert_eq!(length(100, 0, 2), 49);
}

#[test]
fn the_level_rises_only_inside_the_probation() {
    let params = Params { health_cb_probation_blocks: 10, ..Params::defaults() };
    let entry = Entry { backoff_level: 2, restored_at: 100, ..Entry::default() };
    assert_eq!(level_at_trip(&entry, 109, &params), 3);
    assert_eq!(level_at_trip(&entry, 110, &params), 0);
    assert_eq!(level_at_trip(&entry, 101, &Params::defaults()), 0);
    let never = Entry { backoff_level: 2, ..Entry::default() };
    assert_eq!(level_at_trip(&never, 5, &params), 0);
    let top = Entry { backoff_level: 63, restored_at: 1, ..Entry::default() };
    assert_eq!(level_at_trip(&top, 2, &params), 63);
    assert_eq!(level_at_failed_probe(&top), 63);
}

// ---- section 2.4: the draw ----

fn table(share_bp: u16, rows: &[(u8, u64, char, u64)]) -> Table {
    let rows = rows.iter().map(|(k, weight, column, since)| Row {
        address: addr(*k),
        weight: *weight,
        class: match column {
            'H' => 0,
            'R' => 1,
            _ => 2,
        },
        since: *since,
    });
    Table { epoch: 7, model: "m1".into(), share_bp, poc: false, rows: rows.collect() }
}

const T: [(u8, u64, char, u64); 5] = [
    (1, 1_000_000, 'H', 0),
    (2, 2_500_000, 'H', 0),
    (3, 400, 'R', 150),
    (4, 3_000_000, 'X', 0),
    (5, 7, 'R', 120),
];

fn drawn(table: &Table, seed: u8) -> (Lane, u8) {
    let (lane, index) = table.draw([seed; 32]).unwrap();
    (lane, table.rows[index].address[0])
}

#[test]
fn table_t_has_its_size_and_digest_and_draws() {
    let t = table(500, &T);
    assert_eq!(t.bytes().len(), 231);
    assert_eq!(hex(&t.digest()), "ae5784a2dc16a2e2b0ed6b91328a4a35a9f704a73c2335fb843ea633906fa2df");
    let mut stream = Stream::new([0; 32], t.digest());
    assert_eq!(stream.below(10_000), 2437);
    assert_eq!(stream.below(3_500_000), 1_502_900);
    assert_eq!(drawn(&t, 0), (Lane::Healthy, 2));
    let mut stream = Stream::new([0x35; 32], t.digest());
    assert_eq!(stream.below(10_000), 27);
    assert_eq!(stream.below(2), 1);
    assert_eq!(drawn(&t, 0x35), (Lane::Probe, 3));
}

#[test]
fn a_share_of_zero_gives_each_probe_the_weight_of_one() {
    let t = table(0, &T);
    assert_eq!(hex(&t.digest()), "f2f8466e7616b94eac721404ca24fe51e95206c6821a7ce7674208a4c8bda927");
    assert_eq!(Stream::new([0; 32], t.digest()).below(3_500_002), 2_791_598);
    assert_eq!(drawn(&t, 0), (Lane::Healthy, 2));
    let small = table(0, &[(1, 1, 'H', 0), (2, 2, 'H', 0), (3, 9, 'R', 10)]);
    assert_eq!(hex(&small.digest()), "adcc7867589932ae515806ed59433cc7680857389ab6b223ba703f8584055ee3");
    assert_eq!(Stream::new([2; 32], small.digest()).below(4), 3);
    assert_eq!(drawn(&small, 2), (Lane::Probe, 3));
}

#[test]
fn with_nobody_healthy_or_ready_all_are_drawn_by_weight() {
    let rows = T.map(|(k, weight, _, _)| (k, weight, 'X', 0));
    let t = table(500, &rows);
    assert_eq!(hex(&t.digest()), "ece24c9470dc9ef365de6519fb34da5676dad98f37bfa2f8ab09d6b8fb826787");
    assert_eq!(Stream::new([0; 32], t.digest()).below(6_500_407), 501_990);
    assert_eq!(drawn(&t, 0), (Lane::Fallback, 1));
    assert_eq!(table(500, &[]).draw([0; 32]), None);
}

#[test]
fn with_nobody_healthy_the_ready_probes_are_always_drawn() {
    let rows =
        T.map(|(k, weight, column, since)| (k, weight, if column == 'H' { 'X' } else { column }, since));
    let t = table(500, &rows);
    assert_eq!(hex(&t.digest()), "2d17438bfa68e532633cf98bc2e8a4ff8afa20417e43df790dd032467250d651");
    assert_eq!(Stream::new([0; 32], t.digest()).below(2), 1);
    assert_eq!(drawn(&t, 0), (Lane::Probe, 3));
}

#[test]
fn below_rejects_what_would_bias_it() {
    let mut stream = Stream::new([0; 32], [0; 32]);
    assert_eq!(stream.take(), 0xef9459c921f6f4aa61fcad981455297c);
    assert_eq!(stream.take(), 0xcc757567013a1734d35543aeaeceb4fd);
    let mut stream = Stream::new([0; 32], [0; 32]);
    assert_eq!(stream.below((1 << 127) + 1), 122994560744996099555529362910083202123);
    let mut stream = Stream::new([0; 32], [0; 32]);
    assert_eq!([0; 5].map(|_| stream.below(10_000)), [6364, 4605, 2123, 5255, 5764]);
}

#[test]
fn only_the_sixteen_longest_waiting_probes_are_in_the_lane() {
    let rows: Vec<(u8, u64, char, u64)> = (1..=20).map(|k| (k, 5, 'R', 100 - u64::from(k))).collect();
    let t = table(500, &rows);
    let seen: BTreeSet<u8> = (0..=255).map(|seed| drawn(&t, seed).1).collect();
    assert_eq!(seen, (5..=20).collect());
}

// ---- section 2.5: SPRT ----

#[test]
fn logarithms_are_the_documents() {
    assert_eq!(sprt::ln(2, 1), 693147180560);
    assert_eq!(sprt::ln(3, 2), 405465108108);
    assert_eq!(sprt::ln(1, ONE - 1), -27631021115928);
    assert_eq!(sprt::ln(ONE - 1, ONE - 2), 1);
    assert_eq!(sprt::ln(ONE, ONE), 0);
    assert_eq!(sprt::steps(ONE / 10, ONE / 5), (693147180560, -117783035656));
    assert_eq!(sprt::steps(ONE / 100 * 98, ONE / 100 * 99), (10152371464, -693147180560));
}

fn judged(ok: u64, missed: u64) -> (i128, Verdict) {
    let mut sprt = Sprt::default();
    sprt.absorb(ok, missed, ONE / 10, ONE / 5, true);
    (sprt.llr, sprt.verdict(4 * i128::from(ONE)))
}

#[test]
fn the_slow_breaker_fails_and_passes_at_the_documents_counts() {
    assert_eq!(judged(0, 5), (3465735902800, Verdict::Undecided));
    assert_eq!(judged(0, 6), (4158883083360, Verdict::Fail));
    assert_eq!(judged(33, 0), (-3886840176648, Verdict::Undecided));
    assert_eq!(judged(34, 0), (-4004623212304, Verdict::Pass));
    assert_eq!(judged(50, 14), (3814908745040, Verdict::Undecided));
    assert_eq!(judged(50, 15), (4508055925600, Verdict::Fail));
    assert_eq!(judged(50, 6), (-1730268699440, Verdict::Undecided));
    let h = 100 * i128::from(ONE);
    let wide = |missed| {
        let mut sprt = Sprt::default();
        sprt.absorb(0, missed, ONE / 100 * 98, ONE / 100 * 99, true);
        sprt.verdict(h)
    };
    assert_eq!((wide(9849), wide(9850)), (Verdict::Undecided, Verdict::Fail));
}

#[test]
fn counts_seen_while_the_slow_breaker_is_off_never_count() {
    let mut sprt = Sprt::default();
    sprt.absorb(0, 6, ONE / 10, ONE / 5, false);
    assert_eq!(sprt, Sprt { llr: 0, absorbed_ok: 0, absorbed_missed: 6 });
    sprt.absorb(0, 7, ONE / 10, ONE / 5, true);
    assert_eq!(sprt.llr, 693147180560);
}

// ---- parameters ----

#[test]
fn both_presets_are_valid_and_differ_as_documented() {
    assert_eq!(Params::defaults().check(), Ok(()));
    let recommended = Params::recommended();
    assert_eq!(recommended.check(), Ok(()));
    assert_eq!((recommended.health_cb_window_blocks, recommended.health_cb_consecutive_misses), (200, 5));
    assert!(!recommended.downtime_sprt_enabled);
    let bad = Params { health_cb_freeze_pct: 30, ..Params::defaults() };
    assert_eq!(bad.check(), Err("health_cb_freeze_pct"));
}

// ---- small scenarios ----

const M: &str = "m1";

struct Scene {
    world: World,
    next: u64,
}

impl Scene {
    /// Members 1.. with these weights, all preserved unless `unpreserved`.
    fn new(params: Params, weights: &[u64]) -> Scene {
        let pairs: Vec<Pair> = (1..=weights.len() as u8).map(|k| (M.to_string(), addr(k))).collect();
        let mut scene = Scene { world: World::new(params, "gov", pairs.into_iter().collect()), next: 0 };
        scene.begin_epoch(0, weights);
        scene
    }

    fn begin_epoch(&mut self, index: u64, weights: &[u64]) {
        let group = (1u8..)
            .zip(weights)
            .map(|(k, weight)| ((M.to_string(), addr(k)), Member { weight: *weight, preserved: k != 1 }));
        let epoch = Some(EpochInput { index, group: group.collect() });
        let height = self.world.height + 1;
        self.world.begin_block(&BeginBlock { height, epoch, ..BeginBlock::default() });
    }

    fn begin(&mut self) {
        let (height, poc) = (self.world.height + 1, self.world.poc);
        self.world.begin_block(&BeginBlock { height, poc, ..BeginBlock::default() });
    }

    /// Ends this block and begins the next.
    fn step(&mut self) -> Vec<Event> {
        self.world.end_block();
        let events = self.world.take_events();
        self.begin();
        events
    }

    fn step_to(&mut self, height: i64) -> Vec<Event> {
        let mut last = Vec::new();
        while self.world.height < height {
            last = self.step();
        }
        last
    }

    fn call(&mut self, k: u8) -> StartCall {
        self.next += 1;
        StartCall {
            inference_id: format!("i{}", self.next),
            model: M.into(),
            requester: addr(200),
            signer: addr(200),
            executor: addr(k),
            expires_at: self.world.height + self.world.params.expiration_blocks,
            finished_at: None,
        }
    }

    fn start(&mut self, k: u8) -> Result<String, u32> {
        let call = self.call(k);
        self.world.start(&call).map(|_| call.inference_id)
    }

    fn miss(&mut self, k: u8, times: u64) {
        for _ in 0..times {
            let id = self.start(k).unwrap();
            self.world.miss(&id);
        }
    }

    fn entry(&self, k: u8) -> Entry {
        self.world.entry(M, &addr(k))
    }

    fn column(&self, k: u8) -> char {
        self.entry(k).column()
    }
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.name).collect()
}

#[test]
fn a_node_goes_around_the_whole_cycle() {
    let mut s = Scene::new(Params::defaults(), &[10, 10, 10]);
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventExecutorExcluded"]);
    let expected = [
        ("epoch", "0"),
        ("model", "m1"),
        ("participant", "0101010101010101010101010101010101010101"),
        ("generation", "1"),
        ("rule", "rate"),
        ("ok", "0"),
        ("missed", "4"),
        ("window_blocks", "0"),
        ("consecutive_misses", "4"),
        ("level", "0"),
        ("cooldown_blocks", "50"),
        ("due_block", "51"),
        ("shadow", "false"),
    ];
    assert_eq!(events[0].attributes, expected.map(|(k, v)| (k, v.to_string())));
    assert_eq!(s.column(1), 'X');
    assert_eq!(s.start(1), Err(10));
    s.step_to(50);
    assert_eq!(s.column(1), 'X');
    s.step();
    assert_eq!((s.column(1), s.entry(1).ready_since, s.entry(1).generation), ('R', 51, 1));
    let id = s.start(1).unwrap();
    assert_eq!(s.entry(1).probe, Some(Claim { inference_id: id.clone(), deadline_block: 91 }));
    assert_eq!(s.start(1), Err(11));
    s.world.miss(&id);
    let events = s.step();
    assert_eq!(names(&events), ["EventProbeOpened", "EventProbeClaimed", "EventExecutorExcluded"]);
    assert_eq!(events[2].get("rule"), Some("probe"));
    assert_eq!((s.entry(1).backoff_level, s.entry(1).cooldown_blocks, s.entry(1).generation), (1, 100, 2));
    s.step_to(151);
    let id = s.start(1).unwrap();
    s.world.finish(&id);
    let e = s.entry(1);
    assert_eq!((e.column(), e.generation, e.restored_at, e.probe_attempts), ('H', 3, 151, 0));
    assert_eq!(e.window, Window::default());
    let events = s.step();
    assert_eq!(events.last().unwrap().get("attempts"), Some("2"));
}

#[test]
fn misses_given_before_an_exclusion_neither_fail_a_probe_nor_a_recovered_node() {
    let mut s = Scene::new(Params { health_cb_initial_cooldown_blocks: 1, ..Params::defaults() }, &[10, 10]);
    let old: Vec<String> = (0..8).map(|_| s.start(1).unwrap()).collect();
    s.miss(1, 4);
    s.step();
    assert_eq!(s.column(1), 'R');
    let probe = s.start(1).unwrap();
    s.world.miss(&old[0]);
    s.world.finish(&old[1]);
    assert_eq!(s.column(1), 'C');
    s.world.finish(&probe);
    for id in &old[2..] {
        s.world.miss(id);
    }
    s.step();
    assert_eq!((s.column(1), s.entry(1).generation), ('H', 2));
    assert_eq!(s.entry(1).window, Window::default());
}

#[test]
fn a_released_probe_goes_to_the_back_of_the_lane_and_a_forgotten_one_is_freed_at_its_deadline() {
    let params = Params { health_cb_initial_cooldown_blocks: 1, expiration_blocks: 3, ..Params::defaults() };
    let mut s = Scene::new(params, &[10, 10]);
    s.miss(1, 4);
    s.step();
    let id = s.start(1).unwrap();
    s.step();
    s.world.release(&id);
    assert_eq!((s.column(1), s.entry(1).ready_since, s.entry(1).backoff_level), ('R', 3, 0));
    let id = s.start(1).unwrap();
    let events = s.step_to(9);
    assert_eq!((s.column(1), s.entry(1).ready_since), ('R', 9));
    assert!(events.is_empty());
    s.world.miss(&id);
    let events = s.step();
    assert_eq!((events[0].get("cause"), events.len()), (Some("deadline"), 1));
    assert_eq!((s.column(1), s.entry(1).probe_attempts), ('R', 2));
}

#[test]
fn the_cap_lets_forty_out_and_refuses_the_next_thirty() {
    let params = Params { health_cb_max_excluded_weight_pct: 50, ..Params::defaults() };
    let mut s = Scene::new(params, &[40, 30, 30]);
    s.miss(1, 5);
    s.miss(2, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventExecutorExcluded", "EventExclusionRefused"]);
    let refused = &events[1];
    assert_eq!(
        ["reason", "rule", "weight", "out_weight", "eligible_weight", "limit_pct"]
            .map(|k| refused.get(k).unwrap()),
        ["cap", "rate", "30", "40", "100", "50"]
    );
    assert_eq!(
        (s.column(2), s.entry(2).refused_at, s.entry(2).trip.clone()),
        ('H', 1, Some(Trip { block: 1, weight: 30 }))
    );
    s.miss(2, 1);
    assert!(s.step().is_empty());
    s.step_to(51);
    s.miss(2, 1);
    assert!(names(&s.step()).contains(&"EventExclusionRefused"));
}

#[test]
fn one_member_is_refused_and_of_two_equal_ones_one_goes() {
    let params = Params { health_cb_max_excluded_weight_pct: 50, ..Params::defaults() };
    let mut s = Scene::new(params.clone(), &[7]);
    s.miss(1, 4);
    assert_eq!(names(&s.step()), ["EventExclusionRefused"]);
    let mut s = Scene::new(params, &[7, 7]);
    s.miss(2, 4);
    s.miss(1, 4);
    assert_eq!(names(&s.step()), ["EventExecutorExcluded", "EventExclusionRefused"]);
    assert_eq!((s.column(1), s.column(2)), ('X', 'H'));
}

#[test]
fn a_mass_failure_freezes_the_first_too_and_thaws_with_age() {
    let params = Params { health_cb_freeze_pct: 30, health_cb_window_blocks: 10, ..Params::defaults() };
    let mut s = Scene::new(params, &[40, 30, 30]);
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventBreakerFrozen", "EventExclusionRefused"]);
    let expected = [
        ("epoch", "0"),
        ("model", "m1"),
        ("frozen", "true"),
        ("tripped_weight", "40"),
        ("eligible_weight", "100"),
        ("freeze_pct", "30"),
    ];
    assert_eq!(events[0].attributes, expected.map(|(k, v)| (k, v.to_string())));
    s.miss(1, 1);
    assert!(s.step().is_empty(), "the same participant counts once");
    assert_eq!(s.world.current_ring(M).unwrap().buckets, BTreeMap::from([(2, 40)]));
    s.step_to(30);
    s.miss(2, 1);
    assert_eq!(names(&s.step()), ["EventBreakerFrozen"]);
}

#[test]
fn a_degraded_model_is_served_without_evidence() {
    let mut s = Scene::new(Params::defaults(), &[10]);
    s.miss(1, 4);
    s.step();
    let call = s.call(1);
    assert!(!s.world.start(&call).unwrap().evidence);
    assert_eq!(s.world.candidates(M).draw([0; 32]), Some((Lane::Fallback, 0)));
}

#[test]
fn a_node_cannot_probe_itself_and_its_own_requests_are_no_evidence() {
    let params = Params { health_cb_initial_cooldown_blocks: 1, ..Params::defaults() };
    let mut s = Scene::new(params, &[10, 10]);
    let mut own = s.call(1);
    own.signer = addr(1);
    assert_eq!(s.world.start(&own), Ok(Stamp { epoch: 0, generation: 0, evidence: false }));
    s.miss(1, 4);
    s.step();
    let mut own = s.call(1);
    own.requester = addr(1);
    assert_eq!(s.world.start(&own), Err(12));
}

#[test]
fn forced_out_holds_in_shadow_disabled_and_without_a_healthy_member() {
    for params in [
        Params { health_cb_shadow: true, ..Params::defaults() },
        Params { health_cb_enabled: false, ..Params::defaults() },
        Params::defaults(),
    ] {
        let mut s = Scene::new(params, &[10]);
        s.world.set_override(M, &addr(1), OverrideTo::Excluded, 5).unwrap();
        assert_eq!(s.start(1), Err(13));
        assert!(s.world.candidates(M).rows.is_empty());
        assert_eq!(s.world.tallies(M), Tallies::default());
        let events = s.step();
        assert_eq!(names(&events), ["EventOverrideSet", "EventExecutorExcluded"]);
        s.step_to(5);
        assert_eq!((s.column(1), s.entry(1).ready_since, s.entry(1).generation), ('R', 5, 1));
        let events = s.step();
        assert_eq!(names(&events), ["EventOverrideEnded", "EventProbeOpened"]);
    }
}

#[test]
fn a_forced_healthy_node_is_judged_but_stays() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.miss(1, 4);
    s.step();
    s.world.set_override(M, &addr(1), OverrideTo::Healthy, 10).unwrap();
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventOverrideSet", "EventExecutorRestored", "EventExclusionRefused"]);
    assert_eq!(events[2].get("reason"), Some("forced"));
    s.step_to(10);
    assert_eq!((s.column(1), s.entry(1).generation, s.entry(1).forced.clone()), ('H', 3, None));
}

#[test]
fn an_override_by_message_drops_the_blocks_tally_and_one_by_governance_replaces_the_exclusion() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.miss(1, 4);
    s.world.set_override(M, &addr(1), OverrideTo::Healthy, 3).unwrap();
    s.world.judge();
    assert_eq!((s.column(1), s.entry(1).window.clone()), ('H', Window::default()));
    s.step();
    s.miss(2, 4);
    s.world.judge();
    assert_eq!(s.column(2), 'X');
    s.world.set_override(M, &addr(2), OverrideTo::Healthy, 9).unwrap();
    assert_eq!((s.column(2), s.entry(2).generation), ('H', 2));
}

#[test]
fn overrides_are_refused_with_their_codes() {
    let pairs: BTreeSet<Pair> = (0..300u16)
        .map(|k| {
            let mut address = addr(9);
            address[..2].copy_from_slice(&k.to_be_bytes());
            (M.to_string(), address)
        })
        .collect();
    let mut world = World::new(Params::defaults(), "gov", pairs.clone());
    world.begin_block(&BeginBlock { height: 1, epoch: Some(EpochInput::default()), ..BeginBlock::default() });
    let pairs: Vec<Pair> = pairs.into_iter().collect();
    assert_eq!(world.set_override("m9", &pairs[0].1, OverrideTo::Healthy, 5), Err(3));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::Healthy, 1), Err(3));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::Healthy, 1_000_002), Err(3));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::None, 5), Err(5));
    for pair in &pairs[..256] {
        assert_eq!(world.set_override(M, &pair.1, OverrideTo::Excluded, 1_000_001), Ok(()));
    }
    assert_eq!(world.set_override(M, &pairs[256].1, OverrideTo::Excluded, 5), Err(4));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::Healthy, 5), Ok(()));
    assert_eq!(world.set_override(M, &pairs[1].1, OverrideTo::None, 0), Ok(()));
    assert_eq!(world.set_override(M, &pairs[256].1, OverrideTo::Excluded, 5), Ok(()));
}

#[test]
fn an_epoch_begins_clean_but_with_its_live_overrides() {
    let mut s = Scene::new(Params::defaults(), &[10, 10, 10]);
    let late = s.start(3).unwrap();
    s.miss(1, 4);
    s.world.set_override(M, &addr(2), OverrideTo::Excluded, 4).unwrap();
    s.world.set_override(M, &addr(3), OverrideTo::Healthy, 2).unwrap();
    s.world.end_block();
    s.world.take_events();
    s.begin_epoch(1, &[10, 10, 10]);
    assert_eq!(s.entry(1), Entry::default());
    assert_eq!((s.column(2), s.entry(2).cooldown_blocks, s.entry(2).excluded_at), ('X', 2, 2));
    assert_eq!(s.entry(3), Entry::default());
    assert_eq!(s.world.overrides.len(), 1);
    s.world.miss(&late);
    let events = s.step();
    assert_eq!(names(&events), ["EventBreakerReset", "EventOverrideSet", "EventExecutorExcluded"]);
    assert_eq!(events[0].attributes, [("epoch", "1".to_string()), ("from_epoch", "0".to_string())]);
    assert_eq!(s.entry(3), Entry::default(), "an outcome of the old epoch says nothing");
    assert!(s.world.entries.keys().all(|key| key.0 == 1), "old rows are pruned");
}

#[test]
fn a_finish_before_its_start_counts_or_restores_only_if_it_is_recent() {
    let params = Params { health_cb_initial_cooldown_blocks: 1, ..Params::defaults() };
    let mut s = Scene::new(params, &[10, 10]);
    let mut call = s.call(1);
    call.finished_at = Some(1);
    assert!(s.world.start(&call).unwrap().evidence);
    s.miss(1, 4);
    s.step();
    assert_eq!(s.column(1), 'R');
    let mut stale = s.call(1);
    stale.finished_at = Some(1);
    assert!(!s.world.start(&stale).unwrap().evidence);
    assert_eq!(s.column(1), 'R');
    let mut fresh = s.call(1);
    fresh.finished_at = Some(2);
    assert_eq!(s.world.start(&fresh), Ok(Stamp { epoch: 0, generation: 1, evidence: true }));
    assert_eq!((s.column(1), s.entry(1).generation, s.entry(1).restored_at), ('H', 2, 2));
    assert_eq!(names(&s.step()), ["EventProbeOpened", "EventProbeClaimed", "EventExecutorRestored"]);
}

#[test]
fn escrow_counts_speak_only_for_the_pair_they_were_opened_with() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    let stamp = s.world.stamp(M, &addr(1));
    s.world.escrow_counts(M, &addr(1), stamp, 0, 4);
    s.step();
    assert_eq!(s.column(1), 'X');
    s.world.set_override(M, &addr(1), OverrideTo::Healthy, 3).unwrap();
    s.world.escrow_counts(M, &addr(1), stamp, 0, 4);
    assert!(s.world.tally.is_empty());
}

#[test]
fn shadow_filters_nothing_and_disabled_judges_nothing() {
    let shadow = Params { health_cb_shadow: true, ..Params::defaults() };
    let mut s = Scene::new(shadow, &[10, 10]);
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(events[0].get("shadow"), Some("true"));
    assert_eq!(s.column(1), 'X');
    assert!(s.start(1).is_ok());
    assert!(s.world.candidates(M).rows.iter().all(|row| row.class == 0));
    let off = Params { health_cb_enabled: false, ..Params::defaults() };
    let mut s = Scene::new(off, &[10, 10]);
    s.miss(1, 9);
    assert!(s.step().is_empty());
    assert_eq!(s.entry(1), Entry::default());
}

#[test]
fn in_poc_only_preserved_members_are_candidates_and_count_as_healthy() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.miss(2, 4);
    s.world.end_block();
    s.world.take_events();
    assert_eq!(s.world.healthy(M), 1);
    s.world.begin_block(&BeginBlock { height: 2, poc: true, ..BeginBlock::default() });
    assert_eq!(s.world.healthy(M), 0, "the only healthy member does not serve in PoC");
    assert_eq!(s.world.candidates(M).rows.len(), 1);
    assert!(s.start(2).is_ok(), "so the excluded one is admitted");
    assert_eq!(s.world.tallies(M).healthy_all, 1);
}

#[test]
fn a_cumulative_rate_forgives_a_thousand_good_ones_and_a_streak_does_not() {
    let mut s = Scene::new(Params::recommended(), &[10, 10, 10]);
    for _ in 0..1000 {
        let id = s.start(1).unwrap();
        s.world.finish(&id);
    }
    s.step();
    for _ in 0..4 {
        s.miss(1, 1);
        s.step();
    }
    assert_eq!(s.column(1), 'H');
    s.miss(1, 1);
    let events = s.step();
    assert_eq!(events[0].get("rule"), Some("streak"));
}

#[test]
fn parameters_act_from_the_next_block() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.world.set_params(Params { health_cb_consecutive_misses: 1, ..Params::defaults() });
    s.miss(1, 1);
    s.step();
    assert_eq!(s.column(1), 'H');
    s.miss(1, 1);
    s.step();
    assert_eq!(s.column(1), 'X');
}

// ---- the driver ----

fn one_model(blocks: i64, ops: &[(i64, Op)]) -> Vec<BlockReport> {
    let genesis = history::Genesis {
        params: Params { expiration_blocks: 3, health_cb_min_samples: 1, ..Params::defaults() },
        models: vec![M.into()],
        participants: vec![addr(1), addr(2)],
        epoch_length: 1_000,
        poc_length: 0,
    };
    let world = World::new(genesis.params.clone(), "gov", genesis.pairs());
    let mut driver = Driver::new(world, &genesis);
    let group: BTreeMap<Pair, Member> =
        genesis.pairs().into_iter().map(|pair| (pair, Member { weight: 5, preserved: true })).collect();
    (1..=blocks)
        .map(|height| {
            let block = crate::BlockOps {
                height,
                epoch: (height == 1).then(|| EpochInput { index: 0, group: group.clone() }),
                messages: ops.iter().filter(|(h, _)| *h == height).map(|(_, op)| op.clone()).collect(),
                ..crate::BlockOps::default()
            };
            driver.run_block(&block)
        })
        .collect()
}

fn start_op(id: &str) -> Op {
    Op::Start { id: id.into(), model: M.into(), requester: addr(200), signer: addr(200), executor: addr(1) }
}

#[test]
fn an_unanswered_start_is_missed_at_its_expiry_and_not_before() {
    let blocks = one_model(6, &[(2, start_op("a"))]);
    let counts: Vec<usize> = blocks.iter().map(|b| b.events.len()).collect();
    assert_eq!(counts, [0, 0, 0, 0, 1, 0]);
}

#[test]
fn a_finish_at_the_expiry_height_wins_and_one_block_later_is_refused() {
    let finish = || Op::Finish { id: "a".into(), executed_by: addr(1) };
    let blocks = one_model(6, &[(2, start_op("a")), (5, finish())]);
    assert!(blocks.iter().all(|b| b.events.is_empty()));
    let blocks = one_model(6, &[(2, start_op("a")), (6, finish())]);
    assert_eq!(blocks[5].messages, [Err(Refusal::Inference(13))]);
    let forged = Op::Finish { id: "a".into(), executed_by: addr(2) };
    let blocks = one_model(6, &[(2, start_op("a")), (3, forged)]);
    assert_eq!(blocks[2].messages, [Err(Refusal::Inference(14))]);
    assert_eq!(blocks[4].events.len(), 1);
}

#[test]
fn maintenance_excuses_an_expiry_only_if_announced_before_the_start() {
    let announce = || Op::AnnounceMaintenance { participant: addr(1), from: 4, until: 5 };
    let blocks = one_model(8, &[(1, announce()), (2, start_op("a"))]);
    assert!(blocks.iter().all(|b| b.events.is_empty()));
    let blocks = one_model(8, &[(3, announce()), (2, start_op("a"))]);
    assert_eq!(blocks[4].events.len(), 1);
    let leave = Op::Leave { participant: addr(1) };
    let blocks = one_model(8, &[(2, start_op("a")), (3, leave)]);
    assert!(blocks.iter().all(|b| b.events.is_empty()));
}

#[test]
fn a_delayed_expiry_speaks_after_its_claim_was_freed() {
    let ops = [
        (1, start_op("a")),
        (1, Op::ReportFailure { id: "a".into(), executor: addr(1) }),
        (51, start_op("b")),
        (51, Op::DelayExpiry { id: "b".into(), blocks: 10 }),
    ];
    let blocks = one_model(66, &ops);
    let opened: Vec<(i64, &str)> = (1..)
        .zip(&blocks)
        .flat_map(|(h, b)| b.events.iter().map(move |e| (h, e)))
        .filter_map(|(h, e)| Some((h, e.get("cause")?)))
        .collect();
    assert_eq!(opened, [(51, "cooldown"), (57, "deadline")]);
    assert!(blocks[63].events.is_empty(), "the late miss changes nothing");
}

// ---- histories ----

#[test]
fn the_random_stream_is_splitmix64() {
    let mut rng = SplitMix64(1234567);
    assert_eq!(
        [rng.next_u64(), rng.next_u64(), rng.next_u64()],
        [6457827717110365317, 3203168211198807973, 9817491932198370423]
    );
}

#[test]
fn a_history_follows_from_its_seed_and_grows_at_its_end() {
    assert_eq!(history::random_history(7, 60), history::random_history(7, 60));
    assert_eq!(history::random_history(7, 60)[..40], history::random_history(7, 40)[..]);
    assert_ne!(history::random_history(7, 60), history::random_history(8, 60));
}

/// Cells of the transition table (row, column, outcome) and events with their variants; each must occur.
/// PoC ends with its epoch, so what it ends on are the fresh entries and the reapplied overrides: no R, no C.
const CELLS: &str = "
1H 1X-refused 1X-bypass 1R 1C-refused 1C-bypass
2H 2X-refused 2X-bypass 2R-refused 2R-bypass 2C-refused 2C-bypass
3C 4C 5C 6H-ok 6H-missed 6R 6C
7H 7X 7R 7C 7-release-H 7-release-X 7-release-R 7-release-C
8H-rate 8H-streak 8H-weightless 8-dropped-H 8-dropped-X
9H-cap 9H-freeze 9H-forced 9H-silent 10H 11X 12C
13H 13X 13R 13C
14H 14X 14R 14C 15H 15X 15R 15C
16-height-H 16-height-X 16-cleared-H 16-cleared-X
17H 17X 17R 17C
18-maintenance-H 18-maintenance-X 18-maintenance-R 18-maintenance-C 18-out-H 18-out-X 18-out-R 18-out-C
19H 19X 19R 19C
20-starts-H 20-starts-X 20-starts-R 20-starts-C 20-ends-H 20-ends-X
21H 21X 21R 21C 21X-due 21C-verdict
22X 22R 22R-claim 22C
23H 23X 23R 23C 23-disabled 23-stale-H 23-stale-X 23-stale-R 23-stale-C
first-H first-R first-bypass-X first-bypass-R first-bypass-C first-bypass-self first-bypass-stale
again-healthy again-excluded again-dead start-forced-out
override-unknown override-nothing override-until override-replaced
EventExecutorExcluded EventExclusionRefused EventProbeOpened EventProbeClaimed EventExecutorRestored
EventOverrideSet EventOverrideEnded EventBreakerFrozen EventBreakerReset
";

const VARIANTS: [&str; 18] = [
    "EventExecutorExcluded rule=rate",
    "EventExecutorExcluded rule=streak",
    "EventExecutorExcluded rule=probe",
    "EventExecutorExcluded rule=override",
    "EventExclusionRefused reason=cap",
    "EventExclusionRefused reason=freeze",
    "EventExclusionRefused reason=forced",
    "EventExclusionRefused rule=rate",
    "EventExclusionRefused rule=streak",
    "EventProbeOpened cause=cooldown",
    "EventProbeOpened cause=released",
    "EventProbeOpened cause=deadline",
    "EventProbeOpened cause=override_ended",
    "EventExecutorRestored cause=probe",
    "EventExecutorRestored cause=override",
    "EventOverrideEnded cause=height",
    "EventOverrideEnded cause=cleared",
    "EventBreakerFrozen frozen=true",
];

/// What must hold after every block, whatever happened.
fn check_invariants(world: &World) {
    for ((model, participant), entry) in world.current_entries() {
        let column = entry.column();
        let due = entry.due().is_some();
        assert_eq!(due, column == 'X' || column == 'C' || entry.forced.is_some());
        assert!(entry.due().is_none_or(|height| height > world.height), "nothing is overdue");
        assert_eq!(entry.forced.is_some(), world.overrides.contains_key(&(model.clone(), participant)));
        assert!(entry.window.buckets.len() <= 10);
        assert!(column == 'H' || entry.window == Window::default(), "only the healthy keep evidence");
    }
    for model in world.models() {
        let eligible = world.members(&model).iter().filter(|(a, _)| world.eligible(&model, a)).count();
        let table = world.candidates(&model);
        assert_eq!(table.draw([world.height as u8; 32]).is_none(), table.rows.is_empty());
        assert!(table.rows.len() <= eligible && (world.poc || table.rows.len() == eligible));
        if let Some(ring) = world.current_ring(&model) {
            let marked: u128 = world
                .members(&model)
                .iter()
                .filter_map(|(a, _)| world.entry(&model, a).trip)
                .filter(|t| {
                    t.block >= ring.since_block
                        && live(bucket_of(t.block, ring.width), world.height, ring.width)
                })
                .map(|t| u128::from(t.weight))
                .sum();
            assert_eq!(marked, ring.buckets.values().sum::<u128>(), "the ring is the sum of the marks");
        }
    }
}

#[test]
fn five_hundred_histories_reach_every_cell_of_the_table_and_every_event() {
    let mut coverage: BTreeMap<String, u64> = BTreeMap::new();
    let mut refusals: BTreeMap<String, u64> = BTreeMap::new();
    let mut lanes: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..500 {
        let genesis = history::genesis(seed);
        let world = World::new(genesis.params.clone(), "gov", genesis.pairs());
        let mut driver = Driver::new(world, &genesis);
        for block in history::random_history(seed, 120) {
            let report = driver.run_block(&block);
            for refusal in report.messages.iter().chain(&report.gov).filter_map(|r| r.err()) {
                *refusals.entry(format!("{refusal:?}")).or_insert(0) += 1;
            }
            if block.height % 4 == 0 || block.epoch.is_some() {
                check_invariants(&driver.circuit);
                for model in driver.circuit.models() {
                    if let Some((lane, _)) = driver.circuit.candidates(&model).draw([seed as u8; 32]) {
                        *lanes.entry(format!("{lane:?}")).or_insert(0) += 1;
                    }
                }
            }
        }
        for (cell, count) in driver.circuit.coverage {
            *coverage.entry(cell).or_insert(0) += count;
        }
    }
    println!("{coverage:#?}\n{refusals:#?}\n{lanes:#?}");
    let cells = CELLS.split_whitespace().chain(VARIANTS).chain(["EventBreakerFrozen frozen=false"]);
    let missing: Vec<&str> = cells.filter(|cell| coverage.get(*cell).copied().unwrap_or(0) < 5).collect();
    assert!(missing.is_empty(), "reached less than five times: {missing:?}");
    for refusal in [
        "Inference(2)",
        "Inference(7)",
        "Inference(8)",
        "Inference(9)",
        "Inference(11)",
        "Inference(12)",
        "Inference(13)",
        "Inference(14)",
        "Breaker(3)",
        "Breaker(5)",
        "Breaker(10)",
        "Breaker(11)",
        "Breaker(12)",
        "Breaker(13)",
    ] {
        assert!(refusals.contains_key(refusal), "{refusal} never came");
    }
    assert_eq!(lanes.keys().collect::<Vec<_>>(), ["Fallback", "Healthy", "Probe"]);
}
