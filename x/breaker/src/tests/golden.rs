//! Stored bytes. A change here is a change of consensus: it needs a new consensus version and a migration.

use holdfast_store::MemKv;

use crate::state::{MODEL_TALLIES, set_model_tally};
use crate::types::*;

fn hex(value: &impl borsh::BorshSerialize) -> String {
    hex::encode(borsh::to_vec(value).unwrap())
}

#[test]
fn the_entry_of_breaker_details_has_its_hundred_bytes() {
    let entry = Entry {
        generation: 2,
        excluded_at: 100,
        cooldown_blocks: 50,
        ready_since: 150,
        restored_at: 160,
        consecutive_misses: 1,
        window: Window { width: 20, touched_at: 165, buckets: vec![Bucket { index: 8, ok: 3, missed: 1 }] },
        ..Entry::default()
    };
    let expected = "00020000006400000000000000320000000000000096000000000000\
        00a0000000000000000000000000000000000000000000000001000000001400\
        0000a500000000000000010000000800000000000000030000000000000001000000000000000000";
    assert_eq!(hex(&entry), expected);
    assert_eq!(expected.len(), 200);
    assert_eq!(borsh::from_slice::<Entry>(&hex::decode(expected).unwrap()).unwrap(), entry);
}

#[test]
fn the_other_stored_types_keep_their_bytes() {
    let tally = ModelTally { eligible_weight: 1, out_weight: 2, healthy_all: 3, healthy_poc: 4 };
    assert_eq!(
        hex(&tally),
        "01000000000000000000000000000000020000000000000000000000000000000300000004000000"
    );
    let ring = TripRing {
        since_block: 9,
        width: 20,
        frozen: true,
        buckets: vec![RingBucket { index: 5, weight: 40 }],
    };
    assert_eq!(
        hex(&ring),
        "0900000000000000140000000101000000050000000000000028000000000000000000000000000000"
    );
    let forced = Forced { to: ForcedTo::Excluded, until_block: 258 };
    assert_eq!(hex(&forced), "010201000000000000");
    let claim = ProbeClaim { inference_id: "ab".into(), deadline_block: 1 };
    assert_eq!(hex(&claim), "0200000061620100000000000000");
    assert_eq!(hex(&Trip { block: 1, weight: 2 }), "01000000000000000200000000000000");
    assert_eq!(hex(&Tally { generation: 1, ok: 2, missed: 3 }), "0100000002000000000000000300000000000000");
    assert_eq!(hex(&State::Probe), "02");
}

#[test]
fn a_model_without_anybody_keeps_no_row_of_sums() {
    let mut store = MemKv::default();
    let tally = ModelTally { eligible_weight: 5, healthy_all: 1, ..ModelTally::default() };
    set_model_tally(&mut store, 3, "m", &tally).unwrap();
    assert_eq!(MODEL_TALLIES.get(&store, &(3, "m".to_owned())).unwrap(), Some(tally));
    set_model_tally(&mut store, 3, "m", &ModelTally::default()).unwrap();
    assert_eq!(store, MemKv::default());
}
