//! What nodes must agree on, block by block, short enough for a line.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use holdfast_app::app::{FinalizedBlock, TxResult};
use holdfast_types::{Event, ValidatorUpdate};
use sha2::{Digest, Sha256};

/// Digests of a block's outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) height: i64,
    app_hash: [u8; 32],
    /// Code, data, gas wanted and gas used of every transaction: what `LastResultsHash` covers.
    results: [u8; 32],
    /// Events of the block and of its transactions, and codespaces.
    events: [u8; 32],
    validators: [u8; 32],
}

/// A hash of parts that cannot run into each other.
struct Parts(Sha256);

impl Parts {
    fn new() -> Self {
        Self(Sha256::new())
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn events(&mut self, events: &[Event]) {
        self.add(&(events.len() as u64).to_be_bytes());
        for event in events {
            self.add(event.kind.as_bytes());
            self.add(&(event.attributes.len() as u64).to_be_bytes());
            for (name, value) in &event.attributes {
                self.add(name.as_bytes());
                self.add(value.as_bytes());
            }
        }
    }

    fn end(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

impl Trace {
    pub(crate) fn new(height: i64, done: &FinalizedBlock) -> Self {
        let (mut results, mut events, mut validators) = (Parts::new(), Parts::new(), Parts::new());
        for TxResult { code, codespace, data, log: _, gas_wanted, gas_used, events: own } in &done.tx_results
        {
            results.add(&code.to_be_bytes());
            results.add(data);
            results.add(&gas_wanted.to_be_bytes());
            results.add(&gas_used.to_be_bytes());
            events.add(codespace.as_bytes());
            events.events(own);
        }
        events.events(&done.events);
        for ValidatorUpdate { public_key, power } in &done.validator_updates {
            validators.add(public_key);
            validators.add(&power.to_be_bytes());
        }
        Self {
            height,
            app_hash: done.app_hash,
            results: results.end(),
            events: events.end(),
            validators: validators.end(),
        }
    }

    pub(crate) fn compare(&self, other: &Self, who: &str) -> Result<()> {
        let mut differ = Vec::new();
        for (what, same) in [
            ("height", self.height == other.height),
            ("app hash", self.app_hash == other.app_hash),
            ("results (code, data, gas)", self.results == other.results),
            ("events", self.events == other.events),
            ("validator updates", self.validators == other.validators),
        ] {
            if !same {
                differ.push(what);
            }
        }
        ensure!(differ.is_empty(), "block {}: {who} has other {}", self.height, differ.join(", "));
        Ok(())
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&self.app_hash, &self.results, &self.events, &self.validators].map(hex::encode);
        write!(f, "{} {}", self.height, parts.join(" "))
    }
}

impl std::str::FromStr for Trace {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut parts = line.split(' ');
        let mut next = || parts.next().context("a line of a trace has five parts");
        let height = next()?.parse()?;
        let mut hash =
            || -> Result<[u8; 32]> { hex::decode(next()?)?.try_into().ok().context("a hash of 32 bytes") };
        Ok(Self { height, app_hash: hash()?, results: hash()?, events: hash()?, validators: hash()? })
    }
}

/// The validator set as the consensus engine keeps it. It stops on what these rules refuse (cosmos-conventions 1.2).
#[derive(Debug, Default)]
pub(crate) struct ValidatorSet(BTreeMap<Vec<u8>, i64>);

impl ValidatorSet {
    pub(crate) fn new(genesis: &[ValidatorUpdate]) -> Result<Self> {
        let mut set = Self::default();
        for validator in genesis {
            ensure!(validator.power > 0, "a validator of genesis without power");
            let before = set.0.insert(validator.public_key.clone(), validator.power);
            ensure!(before.is_none(), "a validator comes twice in genesis");
        }
        Ok(set)
    }

    fn total(&self) -> i128 {
        self.0.values().map(|power| i128::from(*power)).sum()
    }

    pub(crate) fn apply(&mut self, updates: &[ValidatorUpdate]) -> Result<()> {
        if updates.is_empty() {
            return Ok(());
        }
        let before = self.total();
        // An engine's own genesis, which the app was not told of.
        let unknown = self.0.is_empty();
        let mut seen = std::collections::BTreeSet::new();
        let mut kept: i128 = before;
        for ValidatorUpdate { public_key, power } in updates {
            ensure!(seen.insert(public_key), "validator updates name {} twice", hex::encode(public_key));
            ensure!(matches!(public_key.len(), 32 | 33), "a validator key of {} bytes", public_key.len());
            ensure!(*power >= 0, "a validator's power is {power}");
            let old = self.0.get(public_key).copied().unwrap_or_default();
            kept -= i128::from((old - power).max(0));
            if *power == 0 {
                let known = self.0.remove(public_key).is_some();
                ensure!(known || unknown, "{} is removed and was never there", hex::encode(public_key));
            } else {
                self.0.insert(public_key.clone(), *power);
            }
        }
        let after = self.total();
        ensure!(after <= i128::from(i64::MAX / 8), "total power {after} is beyond the engine's limit");
        ensure!(!self.0.is_empty(), "the last validator is removed");
        // Those who validated before must still have more than two thirds of the new set, and the set that a light
        // client trusts more than a third of it.
        let alone = seen.len() == 2 && before == 0;
        if before > 0 && !alone && self.0.len() > 2 {
            ensure!(
                3 * kept > 2 * after || 3 * kept > 2 * before,
                "the set jumps: {kept} of {before} stay, {after} after"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> FinalizedBlock {
        let event = Event::new("a").with("b", "c");
        let result = TxResult { code: 5, codespace: "sdk".into(), gas_used: 7, ..TxResult::default() };
        FinalizedBlock {
            tx_results: vec![TxResult { events: vec![event.clone()], ..result }],
            events: vec![event],
            validator_updates: vec![ValidatorUpdate { public_key: vec![1; 32], power: 3 }],
            app_hash: [4; 32],
        }
    }

    #[test]
    fn a_trace_survives_its_own_text_and_tells_what_differs() {
        let base = Trace::new(9, &block());
        assert_eq!(base.to_string().parse::<Trace>().unwrap(), base);
        assert!("9 00 00".parse::<Trace>().is_err());
        type Change = fn(&mut FinalizedBlock);
        let changes: [(&str, Change); 6] = [
            ("app hash", |b| b.app_hash[31] = 0),
            ("results", |b| b.tx_results[0].gas_used = 8),
            ("results", |b| b.tx_results[0].data = vec![0]),
            ("events", |b| b.events[0].attributes[0].1 = "d".into()),
            ("events", |b| b.tx_results[0].events.clear()),
            ("validator updates", |b| b.validator_updates[0].power = 4),
        ];
        for (what, change) in changes {
            let mut other = block();
            change(&mut other);
            let text = base.compare(&Trace::new(9, &other), "it").unwrap_err().to_string();
            assert!(text.contains(what), "{what}: {text}");
        }
        let mut other = block();
        other.tx_results[0].log = "words are not consensus".into();
        base.compare(&Trace::new(9, &other), "it").unwrap();
    }

    #[test]
    fn a_set_refuses_what_would_stop_the_engine() {
        let update = |key: u8, power: i64| ValidatorUpdate { public_key: vec![key; 32], power };
        let genesis: Vec<_> = (1..=10).map(|key| update(key, 10)).collect();
        let apply = |updates: &[ValidatorUpdate]| ValidatorSet::new(&genesis).unwrap().apply(updates);
        apply(&[update(1, 0), update(2, 11), update(11, 5)]).unwrap();
        for (updates, text) in [
            (vec![update(1, 5), update(1, 6)], "twice"),
            (vec![update(1, -1)], "power is -1"),
            (vec![update(12, 0)], "never there"),
            (vec![update(1, i64::MAX)], "limit"),
            ((1..=10).map(|key| update(key, 0)).collect(), "last validator"),
            ((1..=8).map(|key| update(key, 0)).chain([update(20, 90)]).collect(), "jumps"),
        ] {
            let error = apply(&updates).unwrap_err().to_string();
            assert!(error.contains(text), "{text}: {error}");
        }
        assert!(ValidatorSet::new(&[update(1, 0)]).is_err());
        assert!(ValidatorSet::new(&[update(1, 1), update(1, 1)]).is_err());
    }
}
