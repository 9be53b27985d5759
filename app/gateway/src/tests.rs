//! The operators' page is kept in step with the source.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = include_str!("../../../docs/gateway.md");

/// Text of the files of a session's machine, without their tests.
fn sources() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut text = std::fs::read_to_string(root.join("core.rs")).unwrap();
    for entry in std::fs::read_dir(root.join("core")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text
}

/// Literals of the form `prefix_word`.
fn literals(text: &str, prefix: &str) -> BTreeSet<String> {
    let name = |literal: &&str| {
        literal.starts_with(prefix) && literal.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    text.split('"').filter(name).map(str::to_owned).collect()
}

#[test]
fn every_log_line_of_a_session_stands_on_the_page() {
    let lines = literals(&sources(), "escrow_");
    assert!(lines.len() > 30 && lines.contains("escrow_finish_doubtful"), "{lines:?}");
    // The code of a refusal, not a line.
    let missing: Vec<_> = lines
        .iter()
        .filter(|name| *name != "escrow_exhausted" && !PAGE.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_metric_of_a_session_stands_on_the_page() {
    let names = literals(&sources(), "gateway_");
    assert!(names.len() > 8 && names.contains("gateway_ghosts_total"), "{names:?}");
    let missing: Vec<_> = names
        .iter()
        // A log line and codes of refusals.
        .filter(|name| !matches!(name.as_str(), "gateway_storage_failed"))
        .map(|name| match name.strip_suffix("_ms") {
            // Exported in the base unit.
            Some(name) => format!("`holdfast_{name}_seconds`"),
            None => format!("`holdfast_{name}`"),
        })
        .filter(|name| !PAGE.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(PAGE.contains("`gateway_storage_failed`"));
}
