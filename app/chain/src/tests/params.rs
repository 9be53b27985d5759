//! A change of any parameter acts from the next block on, and not in its own. Each run is compared with its twin, which
//! differs in that change only.

use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1::MsgUpdateParams;
use holdfast_types::{Decimal12, Event, ModuleError, ONE, ValidationParams, ValidatorUpdate};

use super::net::*;
use crate::app::{Moment, TxResult};
use crate::tx::pack;

/// The block with the change.
const CHANGED: i64 = 3;
/// Past the first block of the second epoch.
const LAST: i64 = 24;

fn base() -> ValidationParams {
    ValidationParams {
        expiration_blocks: 4,
        health_cb_min_samples: 2,
        health_cb_initial_cooldown_blocks: 3,
        health_cb_max_cooldown_blocks: 20,
        health_cb_window_blocks: 20,
        ..ValidationParams::default()
    }
}

fn spec() -> Spec {
    let executors = [40, 30, 20, 15, 10].map(Executor::new).to_vec();
    Spec { executors, validation: base(), epoch_length: 20, ..Spec::default() }
}

/// What a block shows.
#[derive(Debug, Clone, PartialEq)]
struct Trace {
    results: Vec<TxResult>,
    events: Vec<Event>,
    authority: Vec<Result<Any, ModuleError>>,
    validators: Vec<ValidatorUpdate>,
    digest: [u8; 32],
}

/// Every executor gets an inference in every block. 0 answers in the next block; 1 never; 2 answers its probes and reports
/// the rest failed; 3 reports everything failed; 4 answers after three blocks and goes into maintenance now and then.
struct Script {
    net: Net,
    open: Vec<(String, usize, i64)>,
}

impl Script {
    fn new() -> Self {
        Self { net: Net::new(&spec()), open: Vec::new() }
    }

    fn step(&mut self, change: Option<(Moment, Any)>) -> Trace {
        let net = &mut self.net;
        let height = net.height() + 1;
        let gateway = usize::from(height % 2 == 0);
        let mut started = Vec::new();
        for executor in 0..5 {
            let id = format!("s{height}-{executor}");
            let msg = net.start_msg(gateway, &id, MODEL, executor);
            net.push(&net.gateway(gateway), vec![msg]);
            started.push((id, executor, height));
        }
        self.open.retain(|(id, executor, start)| {
            let claims = || net.entry(*executor).probe.is_some_and(|claim| claim.inference_id == *id);
            match (executor, height - start) {
                (0, 1) | (4, 3) => net.finish(id, *executor),
                (2, 1) if claims() => net.finish(id, *executor),
                (2 | 3, 1) => net.report(id, *executor),
                (_, age) => return age < 4,
            }
            false
        });
        if height % 6 == 2 {
            let who = net.executor(4);
            for (from, to) in [(3, 5), (6, 7)] {
                net.push(&who, vec![announce_msg(&who, height + from, height + to)]);
            }
        }
        if height == 5 {
            net.govern(Moment::BeforeTransactions, model_msg("m3"));
        }
        let changed = change.is_some();
        if let Some((moment, message)) = change {
            net.govern(moment, message);
        }
        let done = net.block();
        if changed {
            net.authority_results.remove(0).unwrap();
        }
        let accepted = started.into_iter().zip(&done.tx_results).filter(|(_, result)| result.code == 0);
        self.open.extend(accepted.map(|(start, _)| start));
        Trace {
            results: done.tx_results,
            events: done.events,
            authority: net.authority_results.clone(),
            validators: done.validator_updates,
            digest: net.table().digest(),
        }
    }

    fn run(moment: Moment, change: Option<Any>) -> Vec<Trace> {
        let mut script = Self::new();
        (1..=LAST)
            .map(|height| script.step(change.clone().filter(|_| height == CHANGED).map(|m| (moment, m))))
            .collect()
    }
}

/// First block that shows the change. The block of the change itself must not.
#[track_caller]
fn first_effect(twin: &[Trace], moment: Moment, change: Any, what: &str) -> i64 {
    let changed = Script::run(moment, Some(change));
    for (height, (a, b)) in (1..=CHANGED).zip(twin.iter().zip(&changed)) {
        assert_eq!(a.results, b.results, "{what}: block {height}");
        assert_eq!(a.events, b.events, "{what}: block {height}");
    }
    let later = (1..).zip(twin.iter().zip(&changed)).skip(usize::try_from(CHANGED).unwrap());
    let first = later.into_iter().find(|(_, (a, b))| a != b).map(|(height, _)| height);
    first.unwrap_or_else(|| panic!("{what} changes nothing"))
}

#[test]
fn the_script_exercises_what_the_parameters_rule() {
    let twin = Script::run(Moment::AfterEndBlock, None);
    let events: Vec<Event> = twin
        .iter()
        .flat_map(|t| t.results.iter().flat_map(|r| r.events.clone()).chain(t.events.clone()))
        .collect();
    for name in [
        "EventInferenceFinished",
        "EventInferenceMissed",
        "EventInferenceReleased",
        "EventParticipantDeactivated",
        "EventExecutorExcluded",
        "EventProbeOpened",
        "EventProbeClaimed",
        "EventExecutorRestored",
        "EventMaintenanceStarted",
        "EventMaintenanceEnded",
        "EventModelRegistered",
        "EventEpochStarted",
    ] {
        assert!(!find(&events, name).is_empty(), "{name} never happens");
    }
}

#[test]
fn every_validation_parameter_acts_from_the_next_block_on() {
    let twin = Script::run(Moment::AfterEndBlock, None);
    let b = base;
    let with = |paths: &[&'static str], new: ValidationParams| {
        let paths: Vec<_> = paths.iter().map(|p| format!("validation.{p}")).collect();
        let paths: Vec<_> = paths.iter().map(String::as_str).collect();
        validation_msg(new, 1, &paths)
    };
    let percent = |n: i128| Decimal12(n * ONE / 100);
    let changes = [
        ("expiration_blocks", ValidationParams { expiration_blocks: 2, ..b() }),
        ("health_cb_enabled", ValidationParams { health_cb_enabled: false, ..b() }),
        ("health_cb_shadow", ValidationParams { health_cb_shadow: true, ..b() }),
        ("health_cb_miss_threshold_pct", ValidationParams { health_cb_miss_threshold_pct: 100, ..b() }),
        ("health_cb_min_samples", ValidationParams { health_cb_min_samples: 5, ..b() }),
        (
            "health_cb_initial_cooldown_blocks",
            ValidationParams { health_cb_initial_cooldown_blocks: 5, ..b() },
        ),
        ("health_cb_max_cooldown_blocks", ValidationParams { health_cb_max_cooldown_blocks: 4, ..b() }),
        ("health_cb_probe_share_bp", ValidationParams { health_cb_probe_share_bp: 0, ..b() }),
        ("health_cb_window_blocks", ValidationParams { health_cb_window_blocks: 10, ..b() }),
        ("health_cb_consecutive_misses", ValidationParams { health_cb_consecutive_misses: 1, ..b() }),
        ("health_cb_probation_blocks", ValidationParams { health_cb_probation_blocks: 100, ..b() }),
        (
            "health_cb_max_excluded_weight_pct",
            ValidationParams { health_cb_max_excluded_weight_pct: 1, ..b() },
        ),
        ("health_cb_freeze_pct", ValidationParams { health_cb_freeze_pct: 1, ..b() }),
        ("health_cb_jitter_pct", ValidationParams { health_cb_jitter_pct: 50, ..b() }),
        ("downtime_sprt_enabled", ValidationParams { downtime_sprt_enabled: false, ..b() }),
        ("downtime_good_percentage", ValidationParams { downtime_good_percentage: percent(5), ..b() }),
        ("downtime_bad_percentage", ValidationParams { downtime_bad_percentage: percent(40), ..b() }),
        ("downtime_h_threshold", ValidationParams { downtime_h_threshold: Decimal12(2 * ONE), ..b() }),
    ];
    // A field of the message without a row here would be a parameter nobody has tried.
    let fields = holdfast_proto::pool().unwrap();
    let fields = fields.get_message_by_name("holdfast.inference.v1.ValidationParams").unwrap();
    let mut listed: Vec<_> = changes.iter().map(|(field, _)| (*field).to_owned()).collect();
    let mut known: Vec<_> = fields.fields().map(|f| f.name().to_owned()).collect();
    listed.sort();
    known.sort();
    assert_eq!(listed, known);
    for (field, new) in changes {
        let first = first_effect(&twin, Moment::BeforeTransactions, with(&[field], new), field);
        assert!(first > CHANGED, "{field}");
        if field == "expiration_blocks" {
            // Work given in block 4 is due in block 6 instead of 8.
            assert_eq!(first, 6);
        }
    }
}

#[test]
fn a_new_token_price_is_paid_by_the_starts_of_the_next_block() {
    let twin = Script::run(Moment::AfterEndBlock, None);
    let change = validation_msg(base(), 2, &["token_price"]);
    assert_eq!(first_effect(&twin, Moment::BeforeTransactions, change, "token_price"), CHANGED + 1);
}

#[test]
fn new_epoch_lengths_wait_for_the_next_epoch() {
    let twin = Script::run(Moment::AfterEndBlock, None);
    let change = epochs_msg(25, 0, &["epoch_length"]);
    assert_eq!(first_effect(&twin, Moment::BeforeTransactions, change, "epoch_length"), 21);
    let change = epochs_msg(0, 5, &["poc_length"]);
    assert_eq!(first_effect(&twin, Moment::BeforeTransactions, change, "poc_length"), 21);
}

#[test]
fn every_parameter_of_participants_acts_from_the_next_block_on() {
    let twin = Script::run(Moment::AfterEndBlock, None);
    let old = spec().participants;
    let b = || old.clone();
    type Params = holdfast_participants::Params;
    // With the first block that can show it: the model is registered at 5, windows are announced at 8, the new weight
    // is that of the second epoch.
    let changes = [
        ("collateral_per_weight", Params { collateral_per_weight: 2, ..b() }, 21),
        ("max_models", Params { max_models: 2, ..b() }, 5),
        ("min_announce_blocks", Params { min_announce_blocks: 5, ..b() }, 8),
        ("max_maintenance_blocks", Params { max_maintenance_blocks: 1, ..b() }, 8),
        ("max_maintenance_windows", Params { max_maintenance_windows: 1, ..b() }, 8),
        ("max_validators", Params { max_validators: 1, ..b() }, 21),
    ];
    let fields = holdfast_proto::pool().unwrap();
    let fields = fields.get_message_by_name("holdfast.participants.v1.Params").unwrap();
    assert_eq!(fields.fields().len(), changes.len() + 2);
    for (field, new, expected) in changes {
        let change = participants_msg(&new, &[field]);
        assert_eq!(first_effect(&twin, Moment::AfterEndBlock, change, field), expected, "{field}");
    }
    // How much power may move shows only where power moves: here when there is room for one validator.
    let run = |permille| {
        let new = Params { max_validators: 1, max_validator_change_permille: permille, ..b() };
        let change = participants_msg(&new, &["max_validators", "max_validator_change_permille"]);
        Script::run(Moment::AfterEndBlock, Some(change))
    };
    let (slow, fast) = (run(100), run(333));
    let differs = (1_i64..).zip(slow.iter().zip(&fast)).find(|(_, (a, b))| a != b).map(|(height, _)| height);
    assert_eq!(differs, Some(21), "max_validator_change_permille");
    // The remaining one is fixed.
    let mut net = Net::new(&spec());
    let new = Params { collateral_denom: "other".into(), ..b() };
    net.govern(Moment::AfterEndBlock, participants_msg(&new, &["collateral_denom"]));
    net.block();
    let error = net.authority_results[0].clone().unwrap_err();
    assert!(error.message.contains("collateral_denom"), "{error}");
}

#[test]
fn a_refused_change_of_parameters_changes_nothing() {
    let mut net = Net::new(&spec());
    let before = net.dump();
    let bad = ValidationParams { health_cb_window_blocks: 15, ..base() };
    net.govern(Moment::AfterEndBlock, validation_msg(bad, 1, &["validation.health_cb_window_blocks"]));
    net.govern(Moment::AfterEndBlock, validation_msg(base(), 1, &[]));
    net.govern(Moment::AfterEndBlock, epochs_msg(0, 0, &["epoch_length"]));
    net.govern(Moment::AfterEndBlock, epochs_msg(5, 0, &["length"]));
    net.block();
    let errors = net.authority_results.iter().map(|r| r.clone().unwrap_err());
    let found: Vec<_> = errors.map(|e| (e.codespace, e.code)).collect();
    assert_eq!(found, [("inference", 3), ("inference", 3), ("epochs", 3), ("epochs", 3)]);
    let params = |dump: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>, space: &str| {
        dump.get([space.as_bytes(), b"/\x01"].concat().as_slice()).cloned().unwrap()
    };
    let after = net.dump();
    for space in ["inference", "epochs"] {
        assert_eq!(params(&before, space), params(&after, space), "{space}");
    }
    // Nobody but the authority may.
    let who = net.gateway(0);
    let forged = MsgUpdateParams { authority: who.bech32(), ..MsgUpdateParams::default() };
    net.push(&who, vec![pack(&forged)]);
    codes(&net.block(), &[("inference", 2)]);
}
