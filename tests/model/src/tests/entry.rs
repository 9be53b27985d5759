//! The bytes of an entry (breaker-details 1).

use crate::entry::{Claim, Entry, Forced, ForcedTo, State, Trip, effective_state};
use crate::hex;

use super::window;

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
