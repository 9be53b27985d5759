//! Genesis: refusals by name, and that an exported chain goes on as if nothing had happened.

use holdfast_types::ValidationParams;
use serde_json::{Value, json};

use super::load::played;
use super::net::*;
use crate::app::{App, FinalizedBlock, Moment};
use crate::composition::{Composition, MODULE_NAMES};
use crate::genesis::GenesisDoc;

/// Parses and validates a document as a node does.
fn refusal(doc: &Value) -> String {
    let text = doc.to_string();
    let parsed = match GenesisDoc::parse(text.as_bytes()) {
        Ok(doc) => doc,
        Err(e) => return e.to_string(),
    };
    match parsed.validate(&Composition::default()) {
        Ok(()) => panic!("accepted: {text}"),
        Err(e) => {
            // A document that does not validate starts no chain either.
            assert!(App::from_genesis(mem(), options(), &parsed).is_err());
            e.to_string()
        }
    }
}

fn document() -> Value {
    serde_json::from_str(&Spec::default().document().to_json().unwrap()).unwrap()
}

#[test]
fn every_bad_field_at_the_top_is_refused_by_name() {
    let good = document();
    assert!(GenesisDoc::parse(good.to_string().as_bytes()).is_ok());
    let block = "consensus.params.block";
    let cases: Vec<(&str, Vec<Value>)> = vec![
        ("app_name", vec![json!(""), json!("two words"), json!("x".repeat(65)), json!(7), json!(null)]),
        ("app_version", vec![json!(""), json!("\n"), json!(1.0)]),
        (
            "genesis_time",
            [
                "",
                "yesterday",
                "2026-01-31",
                "2026-01-31 12:00:00Z",
                "2026-13-01T00:00:00Z",
                "2026-01-31T12:00:00+01:00",
            ]
            .map(|text| json!(text))
            .to_vec(),
        ),
        ("chain_id", vec![json!(""), json!("ab"), json!("a b c"), json!("x".repeat(51)), json!([])]),
        ("initial_height", ["0", "-1", "9223372036854775807", "1.5", ""].map(|text| json!(text)).to_vec()),
        ("initial_height", vec![json!(1)]),
        ("bech32_prefix", vec![json!(""), json!("UPPER"), json!("with-dash"), json!("x".repeat(21))]),
        ("fee_denom", vec![json!(""), json!("1x"), json!("a b")]),
        ("app_state", vec![json!([]), json!("x")]),
        ("consensus", vec![json!({}), json!(null)]),
    ];
    for (field, values) in cases {
        for value in values {
            let mut doc = good.clone();
            doc[field] = value.clone();
            let text = refusal(&doc);
            // serde names a field of the wrong type by its place in the text.
            let placed = text.contains(" at line 1 column ");
            assert!(text.contains(field) || placed, "{field} = {value}: {text}");
        }
        let mut doc = good.clone();
        doc.as_object_mut().unwrap().remove(field);
        assert!(refusal(&doc).contains(field), "{field} missing");
    }
    for (field, values) in
        [("max_bytes", ["0", "1023", "104857601", "-1"]), ("max_gas", ["-2", "x", "", "1e3"])]
    {
        for value in values {
            let mut doc = good.clone();
            doc["consensus"]["params"]["block"][field] = json!(value);
            let text = refusal(&doc);
            let placed = text.contains(" at line 1 column ");
            assert!(text.contains(&format!("{block}.{field}")) || placed, "{field} = {value}: {text}");
        }
    }
    let mut doc = good.clone();
    doc["validators"] = json!([]);
    assert!(refusal(&doc).contains("validators"));
    let mut doc = good;
    doc["consensus"]["params"]["evidence"] = json!({});
    assert!(refusal(&doc).contains("evidence"));
    for text in ["", "{", "[]", "null", "{\"app_name\":\"a\""] {
        assert!(GenesisDoc::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_missing_or_unknown_module_and_a_bad_field_inside_one_are_refused_by_path() {
    let good = document();
    for name in MODULE_NAMES {
        let mut doc = good.clone();
        doc["app_state"].as_object_mut().unwrap().remove(*name);
        assert_eq!(refusal(&doc), format!("genesis: app_state.{name}: is missing"));
        let mut doc = good.clone();
        doc["app_state"][name]["no_such_field"] = json!(1);
        let text = refusal(&doc);
        assert!(text.contains(&format!("app_state.{name}")) && text.contains("no_such_field"), "{text}");
    }
    let mut doc = good.clone();
    doc["app_state"]["staking"] = json!({});
    assert_eq!(refusal(&doc), "genesis: app_state.staking: no such module");
    let mut doc = good.clone();
    doc["app_state"]["inference"]["params"]["validation"]["health_cb_jitter_pct"] = json!(51);
    let text = refusal(&doc);
    assert!(text.contains("app_state.inference") && text.contains("health_cb_jitter_pct"), "{text}");
    let mut doc = good;
    doc["app_state"]["participants"]["participants"][0]["collateral"] = json!("-5");
    let text = refusal(&doc);
    assert!(text.contains("app_state.participants") && text.contains("collateral"), "{text}");
}

#[test]
fn no_cooldown_is_longer_than_an_epoch_in_genesis_or_after_a_change_of_either() {
    let short = Spec { epoch_length: 9, ..Spec::default() };
    let doc = serde_json::from_str(&short.document().to_json().unwrap()).unwrap();
    let text = refusal(&doc);
    assert!(text.contains("validation.health_cb_max_cooldown_blocks"), "{text}");
    let mut net = Net::new(&Spec { epoch_length: 10, ..Spec::default() });
    net.govern(Moment::AfterEndBlock, epochs_msg(5, 0, &["epoch_length"]));
    net.block();
    let error = net.authority_results.remove(0).unwrap_err();
    assert_eq!((error.codespace, error.code), ("epochs", 3), "{error}");
    let lower = ValidationParams {
        health_cb_initial_cooldown_blocks: 2,
        health_cb_max_cooldown_blocks: 5,
        ..quick()
    };
    let fields = ["validation.health_cb_initial_cooldown_blocks", "validation.health_cb_max_cooldown_blocks"];
    net.govern(Moment::AfterEndBlock, validation_msg(lower.clone(), 1, &fields));
    net.govern(Moment::AfterEndBlock, epochs_msg(5, 0, &["epoch_length"]));
    net.govern(
        Moment::AfterEndBlock,
        validation_msg(ValidationParams { health_cb_max_cooldown_blocks: 6, ..lower }, 1, &fields),
    );
    net.block();
    let codes: Vec<_> = net.authority_results.iter().map(|r| r.as_ref().err().map(|e| e.code)).collect();
    assert_eq!(codes, [None, None, Some(3)], "the epoch that is decided counts, not only the running one");
    net.blocks(14);
    let exported = net.app.export(0).unwrap();
    let app = App::from_genesis(mem(), options(), &exported).unwrap();
    assert_eq!(app.export(0).unwrap(), exported);
}

#[test]
fn a_document_survives_its_own_text() {
    let doc = Spec::default().document();
    let text = doc.to_json().unwrap();
    let back = GenesisDoc::parse(text.as_bytes()).unwrap();
    assert_eq!(back, doc);
    assert_eq!(back.to_json().unwrap(), text);
}

#[test]
fn genesis_is_exported_as_it_was_imported() {
    let app = App::from_genesis(mem(), options(), &Spec::default().document()).unwrap();
    let first = app.export(0).unwrap();
    let again = App::from_genesis(mem(), options(), &first).unwrap();
    assert_eq!(again.export(0).unwrap().to_json().unwrap(), first.to_json().unwrap());
}

#[test]
fn an_exported_chain_imports_to_the_same_bytes_and_goes_on_in_the_same_way() {
    let load = played();
    let net = &load.net;
    let mut rng = Rng(5);
    let mut heights: Vec<i64> = (0..4).map(|_| 1 + rng.below(68) as i64).collect();
    // The last block of an epoch, the first of the next, and one inside the PoC phase.
    heights.extend([30, 31, 27]);
    let mut compared = 0;
    for height in heights {
        println!("height {height}");
        let first = net.app.export(height).unwrap();
        first.validate(net.shared.composition()).unwrap();
        let text = first.to_json().unwrap();
        let parsed = GenesisDoc::parse(text.as_bytes()).unwrap();
        let mut app = App::from_genesis(mem(), options(), &parsed).unwrap();
        assert_eq!(app.shared().view(0).unwrap().block.height, height);
        assert_eq!(app.export(0).unwrap().to_json().unwrap(), text);

        let start = usize::try_from(height).unwrap();
        // A group is drawn by the app hash, and that knows where the chain began.
        let draws = |done: &FinalizedBlock| !find(&all_events(done), "EventEscrowCreated").is_empty();
        let blocks = net.history.iter().zip(&net.done).skip(start).take(30);
        let blocks: Vec<_> = blocks.take_while(|(_, done)| !draws(done)).collect();
        let last = height + i64::try_from(blocks.len()).unwrap();
        compared += blocks.len();
        for (played, expected) in blocks {
            let (done, _) = finalize(&mut app, played);
            let at = played.block.height;
            assert_eq!(done.tx_results, expected.tx_results, "results of block {at} after {height}");
            assert_eq!(done.events, expected.events, "events of block {at} after {height}");
            app.commit().unwrap();
            app.shared().check_invariants().unwrap();
            let (ours, theirs) = (app.shared().view(0).unwrap(), net.shared.view(at).unwrap());
            for model in [MODEL, OTHER] {
                let digest = |view: &crate::views::QueryView| {
                    view.table(net.shared.composition(), model).unwrap().digest()
                };
                assert_eq!(digest(&ours), digest(&theirs), "table of {model} at {at} after {height}");
            }
        }
        // All that differs is where the chain says it began.
        let mut ours = dump(app.shared().view(0).unwrap().query().store);
        let mut theirs = dump(net.shared.view(last).unwrap().query().store);
        for state in [&mut ours, &mut theirs] {
            state.remove(&crate::settings::SETTINGS.key()).unwrap();
        }
        assert!(ours == theirs, "state after {height}: {:?}", difference(&ours, &theirs));
    }
    assert!(compared > 60, "{compared}");
}

type Dump = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys that only one of two states has, or that differ.
fn difference(a: &Dump, b: &Dump) -> Vec<String> {
    let differs = |(key, value): &(&Vec<u8>, &Vec<u8>), other: &Dump| other.get(*key) != Some(*value);
    let mut keys: Vec<&Vec<u8>> = a.iter().filter(|row| differs(row, b)).map(|row| row.0).collect();
    keys.extend(b.iter().filter(|row| differs(row, a)).map(|row| row.0));
    keys.into_iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}
