//! The tables of the documentation are those of the code.

use std::collections::{BTreeMap, BTreeSet};

use super::load::played;
use super::net::all_events;
use crate::app::{PANIC, TxResult, state_spaces};
use crate::composition::{APP_SPACE, Composition};
use crate::proofs::STATE_CODESPACE;
use crate::state::StateError;

const CODES: &str = include_str!("../../../../docs/codes.md");
const EVENTS: &str = include_str!("../../../../docs/events.md");
const STORE_KEYS: &str = include_str!("../../../../docs/store-keys.md");
const STATE: &str = include_str!("../state/errors.rs");
const SDK: &str = include_str!("../../../../x/types/src/errors.rs");

/// Cells of the rows below heading `## title`, without the table's head.
fn rows<'d>(doc: &'d str, title: &str) -> Vec<Vec<&'d str>> {
    let heading = format!("\n## {title}\n");
    let section = doc.split_once(&heading).unwrap_or_else(|| panic!("no section {title}")).1;
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let cells = |line: &'d str| line.trim_matches('|').split('|').map(str::trim).collect();
    lines.skip(1).map(cells).collect()
}

fn headings(doc: &str) -> Vec<&str> {
    doc.lines().filter_map(|line| line.strip_prefix("## ")).collect()
}

fn code_rows(title: &str) -> Vec<(u32, String)> {
    let rows = rows(CODES, title);
    rows.iter().map(|row| (row[0].parse().unwrap(), row[1].to_owned())).collect()
}

#[test]
fn the_code_table_has_every_code_of_every_module_and_no_other() {
    let composition = Composition::default();
    let mut titles = BTreeSet::from(["Codespace `undefined`".to_owned(), "Codespace `sdk`".to_owned()]);
    for module in composition.modules() {
        let title = format!("Codespace `{}`", module.name());
        assert_eq!(code_rows(&title), module.error_codes(), "{title}");
        titles.insert(title);
    }
    let state = format!("Codespace `{STATE_CODESPACE}`");
    let owned: Vec<(u32, String)> =
        StateError::CODES.iter().map(|(code, text)| (*code, (*text).to_owned())).collect();
    assert_eq!(code_rows(&state), owned);
    titles.insert(state);
    let found: BTreeSet<String> =
        headings(CODES).iter().filter(|h| h.starts_with("Codespace")).map(|h| (*h).to_owned()).collect();
    assert_eq!(found, titles);
    let panics = code_rows(&format!("Codespace `{}`", PANIC.0));
    assert_eq!(panics.iter().map(|row| row.0).collect::<Vec<_>>(), [PANIC.1]);
}

#[test]
fn the_code_table_has_every_code_of_the_sdk_in_use_and_no_other() {
    let declared = SDK.lines().filter_map(|line| line.trim().strip_prefix("pub const "));
    let numbers: BTreeSet<u32> = declared
        .filter_map(|line| line.split_once(": u32 = ")?.1.trim_end_matches(';').parse().ok())
        .collect();
    assert!(numbers.len() > 20);
    let listed: Vec<u32> = code_rows("Codespace `sdk`").iter().map(|row| row.0).collect();
    assert!(listed.is_sorted_by(|a, b| a < b));
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), numbers);
}

#[test]
fn the_codes_of_the_state_database_are_those_that_its_errors_give() {
    let given = STATE.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once("=> "));
    let given: BTreeSet<u32> =
        given.filter_map(|(_, code)| code.trim_end_matches(',').parse().ok()).collect();
    let listed: Vec<u32> = StateError::CODES.iter().map(|(code, _)| *code).collect();
    assert!(listed.is_sorted_by(|a, b| a < b));
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), given);
    assert_eq!(StateError::Pruned { height: 1, earliest: 2 }.code(), 7);
}

#[test]
fn every_code_that_a_random_load_meets_is_in_the_table() {
    let load = played();
    let mut met = BTreeSet::new();
    for TxResult { codespace, code, .. } in load.net.done.iter().flat_map(|done| &done.tx_results) {
        if *code != 0 {
            met.insert((codespace.as_str(), *code));
        }
    }
    assert!(met.len() > 8, "{met:?}");
    for (codespace, code) in met {
        let listed = code_rows(&format!("Codespace `{codespace}`"));
        assert!(listed.iter().any(|row| row.0 == code), "{codespace} {code}");
    }
}

fn code_names(cell: &str) -> Vec<String> {
    cell.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
}

/// Event name to attributes, from the document.
fn documented_events() -> BTreeMap<String, Vec<Vec<String>>> {
    let mut out: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for title in headings(EVENTS) {
        let package = title.trim_matches('`');
        let package = if package.starts_with("holdfast.") { format!("{package}.") } else { String::new() };
        for row in rows(EVENTS, title) {
            assert!(!row[1].is_empty(), "{row:?}");
            let name = format!("{package}{}", row[0].trim_matches('`'));
            out.entry(name).or_default().push(code_names(row[2]));
        }
    }
    out
}

#[test]
fn the_event_tables_are_the_descriptors() {
    let mut expected = BTreeMap::new();
    for message in holdfast_proto::pool().unwrap().all_messages() {
        if message.full_name().starts_with("holdfast.") && message.name().starts_with("Event") {
            // In their order in the file, which is that of their numbers.
            let mut fields: Vec<_> = message.fields().map(|f| (f.number(), f.name().to_owned())).collect();
            fields.sort();
            let fields: Vec<String> = fields.into_iter().map(|f| f.1).collect();
            expected.insert(message.full_name().to_owned(), vec![fields]);
        }
    }
    assert!(expected.len() > 25);
    let documented = documented_events();
    let typed: BTreeMap<_, _> =
        documented.into_iter().filter(|(name, _)| name.starts_with("holdfast.")).collect();
    assert_eq!(typed, expected);
}

#[test]
fn every_event_of_a_random_load_is_documented_with_its_attributes() {
    let load = played();
    let documented = documented_events();
    let mut kinds = BTreeSet::new();
    for event in load.net.done.iter().flat_map(all_events) {
        let mut names: Vec<String> = event.attributes.iter().map(|(name, _)| name.clone()).collect();
        while names.last().is_some_and(|name| name == "mode" || name == "msg_index") {
            names.pop();
        }
        let forms = documented.get(&event.kind).unwrap_or_else(|| panic!("{} is not documented", event.kind));
        assert!(forms.contains(&names), "{}: {names:?}, documented {forms:?}", event.kind);
        kinds.insert(event.kind);
    }
    assert!(kinds.len() > 25, "{kinds:?}");
}

#[test]
fn the_key_tables_have_every_collection_and_no_other() {
    let composition = Composition::default();
    for module in composition.modules() {
        assert!(holdfast_types::check_prefix_table(&*module), "{}", module.name());
        let listed: Vec<(u8, String)> = rows(STORE_KEYS, &format!("`{}`", module.name()))
            .iter()
            .map(|row| (u8::from_str_radix(row[0], 16).unwrap(), row[1].trim_matches('`').to_owned()))
            .collect();
        let expected: Vec<(u8, String)> =
            module.collections().iter().map(|p| (p.id, p.name.to_owned())).collect();
        assert_eq!(listed, expected, "{}", module.name());
    }
    let mut spaces: Vec<String> = state_spaces().iter().map(|space| format!("`{space}`")).collect();
    spaces.sort();
    let mut titles = headings(STORE_KEYS);
    titles.sort_unstable();
    assert_eq!(titles, spaces);
    let app = rows(STORE_KEYS, &format!("`{APP_SPACE}`"));
    let key = crate::settings::SETTINGS.key();
    assert_eq!(key, [APP_SPACE.as_bytes(), b"/", &[u8::from_str_radix(app[0][0], 16).unwrap()]].concat());
    assert_eq!(app.len(), 1);
}

#[test]
fn every_key_of_a_random_load_lies_in_a_documented_collection() {
    let load = played();
    for key in load.net.dump().keys() {
        let slash = key.iter().position(|b| *b == b'/').unwrap();
        let space = std::str::from_utf8(&key[..slash]).unwrap();
        let rows = rows(STORE_KEYS, &format!("`{space}`"));
        let byte = format!("{:02x}", key[slash + 1]);
        let row = rows.iter().find(|row| row[0] == byte);
        let row = row.unwrap_or_else(|| panic!("{space} {byte} is not documented"));
        assert!(!row[3].contains("transient"), "{space} {byte} is committed");
    }
}
