//! Two states key by key, and where an imported chain may differ from the one it was exported from.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use holdfast_app::composition::{APP_SPACE, Composition};
use holdfast_app::settings::SETTINGS;
use holdfast_app::views::QueryView;
use holdfast_store::Order;

/// Collections that an import does not restore bit by bit, each with the reason. Everything else must be equal.
pub const NOT_EQUAL: &[(&str, &str, &str)] = &[
    (APP_SPACE, "settings", "an imported chain begins at the height after the export"),
    (
        "inference",
        "sprt_increments",
        "a cache: the import computes it for the parameters of the next block at once",
    ),
    (
        "participants",
        "refresh_cursor",
        "a sweep under way goes on from the first participant whose weight is stale",
    ),
    (
        "breaker",
        "model_tallies",
        "sums of past epochs wait for pruning; the import makes those of the present one",
    ),
];

type Dump = BTreeMap<Vec<u8>, Vec<u8>>;

fn dump(view: &QueryView) -> Result<Dump> {
    let rows: Result<Dump, _> = view.query().store.scan(&[], None, Order::Ascending).collect();
    Ok(rows?)
}

/// Module and collection of a key.
fn place(composition: &Composition, key: &[u8]) -> (String, String) {
    if key.starts_with(&SETTINGS.key()) {
        return (APP_SPACE.into(), "settings".into());
    }
    for module in composition.modules() {
        for prefix in module.collections() {
            if key.starts_with(&prefix.bytes()) {
                return (prefix.space.to_owned(), prefix.name.to_owned());
            }
        }
    }
    (String::new(), hex::encode(key))
}

/// Compares all modules' stores; returns the collections of [`NOT_EQUAL`] that do differ.
///
/// # Errors
/// The keys that only one state has or that differ, outside [`NOT_EQUAL`].
pub(crate) fn compare(a: &QueryView, b: &QueryView) -> Result<BTreeSet<String>> {
    let now = a.block.epoch;
    let (a, b) = (dump(a)?, dump(b)?);
    let mut excused = BTreeSet::new();
    if a == b {
        return Ok(excused);
    }
    let composition = Composition::default();
    let mut found = Vec::new();
    for (key, ours, theirs) in differences(&a, &b) {
        let (module, collection) = place(&composition, key);
        // Sums of the present epoch are made anew by the import, and must come out the same.
        let present = (&*module, &*collection) == ("breaker", "model_tallies") && epoch_of(key) == Some(now);
        if !present && NOT_EQUAL.iter().any(|(m, c, _)| (*m, *c) == (&module, &collection)) {
            excused.insert(format!("{module}/{collection}"));
            continue;
        }
        let show = |value: Option<&Vec<u8>>| value.map_or("-".to_owned(), hex::encode);
        found.push(format!(
            "{module}/{collection} {}: {} against {}",
            hex::encode(key),
            show(ours),
            show(theirs)
        ));
    }
    if found.is_empty() {
        return Ok(excused);
    }
    let count = found.len();
    found.truncate(12);
    bail!("{count} keys differ:\n  {}", found.join("\n  "))
}

/// The epoch that a key begins with, behind module and collection.
fn epoch_of(key: &[u8]) -> Option<u64> {
    let at = key.iter().position(|b| *b == b'/')?.checked_add(2)?;
    let bytes = key.get(at..at.checked_add(8)?)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn differences<'d>(
    a: &'d Dump,
    b: &'d Dump,
) -> impl Iterator<Item = (&'d Vec<u8>, Option<&'d Vec<u8>>, Option<&'d Vec<u8>>)> {
    let ours = a
        .iter()
        .filter(|(key, value)| b.get(*key) != Some(value))
        .map(|(key, value)| (key, Some(value), b.get(key)));
    let theirs =
        b.iter().filter(|(key, _)| !a.contains_key(*key)).map(|(key, value)| (key, None, Some(value)));
    ours.chain(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::node::Habits;

    #[test]
    fn states_that_differ_are_told_apart_by_collection() {
        let chain = |seed| Chain::new(seed, Habits::default()).unwrap();
        let (mut one, other) = (chain(1), chain(2));
        let view = one.primary.view().unwrap();
        assert!(compare(&view, &view).unwrap().is_empty());
        let text = compare(&view, &other.primary.view().unwrap()).unwrap_err().to_string();
        assert!(text.contains("keys differ") && text.contains("auth/accounts"), "{text}");
        // A block changes the sequences of those who sent something, or at least the balance of fees.
        for _ in 0..3 {
            one.step().unwrap();
        }
        let text = compare(&view, &one.primary.view().unwrap()).unwrap_err().to_string();
        assert!(text.contains("auth/accounts"), "{text}");
    }
}
