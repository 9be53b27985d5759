//! The pages of cases name tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of the functions in the Rust files below a folder.
fn functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path()) {
        if entry.is_dir() {
            functions(&entry, into);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&entry).expect("readable");
            let names =
                text.lines().filter_map(|line| line.trim_start().split_once("fn ")).map(|(_, rest)| rest);
            let name =
                |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            into.extend(names.map(name));
        }
    }
}

/// Whether every row of a page names tests in `folders` or a reason. `lists`: the letter of each list and its length.
fn check(page: &str, folders: &[&str], lists: &[(char, usize)]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let mut known = BTreeSet::new();
    for folder in folders {
        functions(&root.join(folder), &mut known);
    }
    let text = fs::read_to_string(root.join("docs").join(page)).expect("the page");
    let starts = |line: &str| lists.iter().any(|(letter, _)| line.starts_with(&format!("| {letter}-")));
    let rows: Vec<&str> = text.lines().filter(|line| starts(line)).collect();
    for (letter, count) in lists {
        for number in 1..=*count {
            let start = format!("| {letter}-{number:02} |");
            assert_eq!(rows.iter().filter(|row| row.starts_with(&start)).count(), 1, "{start}");
        }
    }
    assert_eq!(rows.len(), lists.iter().map(|(_, count)| count).sum::<usize>());
    let mut missing = Vec::new();
    for row in rows {
        let covered = row.rsplit('|').nth(1).unwrap_or_default().trim();
        let names: Vec<&str> = covered.split('`').skip(1).step_by(2).collect();
        assert!(
            !names.is_empty() || covered.starts_with("cannot arise: "),
            "neither a test nor a reason: {row}"
        );
        missing.extend(names.into_iter().filter(|name| !known.contains(*name)));
    }
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn every_case_has_a_test_that_exists_or_a_reason() {
    check("runner-cases.md", &["app/runner/src", "tests/it/src"], &[('C', 28), ('F', 22)]);
}

#[test]
fn every_case_of_escrow_sessions_has_a_test_that_exists_or_a_reason() {
    let folders =
        ["x/escrow/src", "app/chain/src", "app/gateway/src", "app/host/src", "tests/sim/src", "tests/it/src"];
    check("escrow-cases.md", &folders, &[('A', 10), ('R', 12), ('D', 37), ('B', 26)]);
}
