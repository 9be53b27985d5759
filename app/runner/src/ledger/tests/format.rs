//! The bytes were worked out from `docs/ledger.md` by a program of its own in another language.

use super::*;

fn golden_session() -> SessionId {
    SessionId(std::array::from_fn(|i| u8::try_from(i).unwrap()))
}

#[test]
fn a_header_is_these_32_bytes() {
    let header = Header { segment: 0x0102_0304_0506_0708, generation: 9 };
    let golden = "48464c45444745520100000008070605040302010900000000000000d1f0e59a";
    assert_eq!(hex::encode(header.encode()), golden);
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    assert_eq!(segment_name(header.segment), "ledger-0102030405060708.log");
}

#[test]
fn each_kind_of_record_is_these_bytes() {
    let key = KvKey::new(golden_session(), 2);
    let step = StepKey::new(key, 7);
    let session = key.session;
    let opened = EpochOpened {
        key,
        generation: 9,
        inference_id: "inf-1".to_owned(),
        model_digest: [0xaa; 32],
        prompt_digest: [0xbb; 32],
        prompt_tokens: 4,
        sampling: Sampling { greedy: true, seed: 13 },
        shards: vec!["a".to_owned(), "b2".to_owned()],
    };
    let terminal = WorkRecord {
        key,
        status: WorkStatus::Unverified,
        failure_kind: Some(FailureKind::WorkerDeath),
        cause: Some(Cause::Peer),
        tokens: Some(3),
        delivered_tokens: 2,
        prompt_tokens: 4,
        restartable: Some(true),
        kv: KvOutcome::Released,
        uncertain_step: Some(3),
        excluded_node: Some("w1".to_owned()),
        shards: vec!["a".to_owned()],
        output_digest: [0xee; 32],
        started_ms: 1000,
        ended_ms: 2000,
    };
    let golden = [
        (
            Record::EpochOpened(Box::new(opened)),
            "82000000772366f501000102030405060708090a0b0c0d0e0f02000000090000000000000005000000696e662d31\
             aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
             bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\
             04000000010d00000000000000020000000100000061020000006232",
        ),
        (
            Record::StepIntent { key: step, fingerprint: [0xcc; 32] },
            "3900000069a717b802000102030405060708090a0b0c0d0e0f0200000007000000\
             cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
        ),
        (
            Record::StepCommitted { key: step, token: Some(185), logits_digest: [0xdd; 32] },
            "3e0000000f2cda1d03000102030405060708090a0b0c0d0e0f020000000700000001b9000000\
             dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
        ),
        (
            Record::StepCommitted { key: step, token: None, logits_digest: [0; 32] },
            "3a000000f0da194803000102030405060708090a0b0c0d0e0f020000000700000000\
             0000000000000000000000000000000000000000000000000000000000000000",
        ),
        (
            Record::StepUncertain { key: step },
            "190000001cee076404000102030405060708090a0b0c0d0e0f0200000007000000",
        ),
        (
            Record::StepResolved { key: step, committed: true },
            "1a0000000c5bc1d005000102030405060708090a0b0c0d0e0f020000000700000001",
        ),
        (
            Record::Delivered { session, count: 3 },
            "1500000023f3f0d506000102030405060708090a0b0c0d0e0f03000000",
        ),
        (
            Record::Terminal(Box::new(terminal)),
            "6f000000ac1382f407000102030405060708090a0b0c0d0e0f020000000401010104010300000002000000040000000101\
             0201030000000102000000773101000000010000006\
             1eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee803000000000000d007000000000000",
        ),
        (
            Record::Submitted { key, reference: "tx:1".to_owned() },
            "1d000000dd5076a108000102030405060708090a0b0c0d0e0f020000000400000074783a31",
        ),
        (Record::Closed { session }, "11000000ade24eea09000102030405060708090a0b0c0d0e0f"),
    ];
    for (record, golden) in golden {
        let mut bytes = Vec::new();
        assert!(record.encode(&mut bytes));
        assert_eq!(hex::encode(&bytes), golden, "{record:?}");
        assert_eq!(read_record(&bytes, 0), Read::Record(record, bytes.len()));
        for cut in 1..bytes.len() {
            assert!(matches!(read_record(&bytes[..cut], 0), Read::Bad(_)));
        }
    }
}

#[test]
fn a_record_that_is_too_long_leaves_the_buffer_as_it_was() {
    let mut bytes = vec![1, 2];
    let record = Record::Submitted { key: key(1, 0), reference: "x".repeat(BODY_MAX) };
    assert!(!record.encode(&mut bytes));
    assert_eq!(bytes, [1, 2]);
}

#[test]
fn the_generation_file_is_these_bytes_and_a_broken_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = FileStore::open(folder.path()).unwrap();
    assert_eq!(store.generation().unwrap(), 0);
    store.raise_generation(5).unwrap();
    let path = folder.path().join("generation");
    assert_eq!(hex::encode(std::fs::read(&path).unwrap()), "0500000000000000c04d09e4");
    assert_eq!(store.generation().unwrap(), 5);
    std::fs::write(&path, [5, 0, 0, 0, 0, 0, 0, 1, 0xc0, 0x4d, 9, 0xe4]).unwrap();
    assert_eq!(store.generation().unwrap_err().kind(), io::ErrorKind::InvalidData);
}
