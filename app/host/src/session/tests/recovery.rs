//! A replica from the store is the replica that was there, at every nonce.

use holdfast_escrow::session::{KIND_CANCELLED, State, Tx};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;

use super::scene::*;
use crate::session::rows::{LOG, LogRow, PENDING, SNAPSHOTS};
use crate::session::rules::Honest;
use crate::session::{CoreConfig, JobEnd, SNAPSHOT_EVERY, TakeAll};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

#[derive(Debug, PartialEq)]
struct Seen {
    state: State,
    applied: pb::Applied,
    unfinished: Vec<(u64, u64)>,
    rows: usize,
}

fn look(host: &mut HostAt) -> Seen {
    let challenge = pb::Challenge { generation: 3, challenge: vec![5; 32] };
    let request = pb::TeachRequest { escrow_id: ESCROW, diffs: Vec::new(), challenge: Some(challenge) };
    Seen {
        applied: host.core.teach(&request).unwrap().applied.unwrap(),
        state: host.core.state(ESCROW).unwrap().clone(),
        unfinished: host.core.unfinished().unwrap(),
        rows: host.db.rows().len(),
    }
}

/// One random thing; what host-1 has ready goes into diffs sooner or later.
fn act(random: &mut Random, host: &mut HostAt, gateway: &mut Gateway, open: &mut Vec<u64>) {
    match random.below(7) {
        0 | 1 => {
            let id = gateway.start(1, "prompt");
            let have = host.nonce();
            host.core.infer(START + 1, &infer(gateway, have, id, "prompt")).unwrap();
            open.push(id);
        }
        2 if !open.is_empty() => {
            let at = usize::try_from(random.below(open.len() as u64)).unwrap();
            let id = open.swap_remove(at);
            let end = match random.below(2) {
                0 => JobEnd::Failed { kind: 2, input_tokens: 1, output_tokens: 1 },
                _ => JobEnd::Finished {
                    input_tokens: 3,
                    output_tokens: 4,
                    response_hash: sha("r"),
                    finish_reason: "stop".into(),
                },
            };
            host.core.outcome(ESCROW, id, &end).unwrap();
        }
        3 if !open.is_empty() => {
            let (request, auth) = cancel(open.pop().unwrap());
            host.core.cancel(&request, &auth, addr("gateway"), (1, 1)).unwrap();
        }
        4 => {
            // What stands in a diff already waits no more.
            host.catch_up(gateway);
            let pending =
                host.core.get_pending(&pb::GetPendingRequest { escrow_id: ESCROW }, addr("gateway"));
            let pending = pending.unwrap().txs.iter().map(|bytes| tx(bytes)).collect();
            gateway.step(pending, Vec::new());
        }
        _ => {
            let other = !gateway.state.nonce().is_multiple_of(4);
            let own = if other && random.below(2) == 0 { vec![start("theirs")] } else { Vec::new() };
            gateway.step(Vec::new(), own);
        }
    }
    if random.below(3) > 0 {
        host.catch_up(gateway);
    }
}

#[test]
fn a_recovered_replica_equals_the_live_one_at_every_nonce_of_random_sessions() {
    for seed in 1..=6u64 {
        let mut random = Random(seed);
        let mut host = HostAt::new("host-1");
        let mut gateway = Gateway::new(terms());
        let mut open = Vec::new();
        for step in 0..60 {
            act(&mut random, &mut host, &mut gateway, &mut open);
            let live = look(&mut host);
            assert_eq!(live.state.nonce(), live.applied.nonce);
            host.restart("host-1", true, Box::new(Honest));
            assert_eq!(look(&mut host), live, "seed {seed}, step {step}");
        }
    }
}

/// A host with a log beyond two snapshots, and the gateway.
fn long() -> (HostAt, Gateway) {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    let nonces = 2 * SNAPSHOT_EVERY + 20;
    while gateway.state.nonce() < nonces {
        gateway.start(2, "p");
        gateway.pass(90);
        host.catch_up(&gateway);
    }
    (host, gateway)
}

fn snapshots(host: &HostAt) -> Vec<u64> {
    let rows = SNAPSHOTS.prefix(&host.db, &ESCROW, holdfast_store::Order::Ascending);
    rows.map(|row| row.unwrap().0.1).collect()
}

#[test]
fn a_damaged_snapshot_is_passed_over_and_the_log_replayed() {
    let (mut host, gateway) = long();
    assert_eq!(snapshots(&host), [SNAPSHOT_EVERY, 2 * SNAPSHOT_EVERY]);
    let live = host.core.state(ESCROW).unwrap().clone();
    for (nonce, damage) in [(2 * SNAPSHOT_EVERY, 40), (SNAPSHOT_EVERY, 2)] {
        let key = SNAPSHOTS.key(&(ESCROW, nonce));
        let mut bytes = host.db.rows()[&key].clone();
        bytes[damage] ^= 1;
        host.db.damage(&key, Some(&bytes));
        host.restart("host-1", true, Box::new(Honest));
        assert_eq!(*host.core.state(ESCROW).unwrap(), live);
    }
    // One that is whole and of another state is no better.
    let forged = crate::session::rows::SnapshotRow::new(gateway.state.to_bytes());
    host.db.damage(&SNAPSHOTS.key(&(ESCROW, SNAPSHOT_EVERY)), Some(&borsh::to_vec(&forged).unwrap()));
    host.restart("host-1", true, Box::new(Honest));
    assert_eq!(*host.core.state(ESCROW).unwrap(), live);
}

#[test]
fn a_gap_in_the_log_is_said_and_cannot_be_recovered_until_it_is_dropped() {
    type Damage = fn(&HostAt);
    let damages: [(&str, Damage); 4] = [
        ("no diff at nonce 7", |host| host.db.damage(&LOG.key(&(ESCROW, 7)), None)),
        ("nonce 1010: the diff", |host| {
            let key = (ESCROW, 1010);
            let row = LOG.load(&host.db, &key).unwrap();
            let other = LogRow { digest: [0; 32], ..row };
            host.db.damage(&LOG.key(&key), Some(&borsh::to_vec(&other).unwrap()));
        }),
        ("nonce 1010: the root", |host| {
            let key = (ESCROW, 1010);
            let row = LOG.load(&host.db, &key).unwrap();
            let other = LogRow { root: [0; 32], ..row };
            host.db.damage(&LOG.key(&key), Some(&borsh::to_vec(&other).unwrap()));
        }),
        ("pending", |host| host.db.damage(&PENDING.key(&(ESCROW, 0)), Some(&[1]))),
    ];
    for (words, damage) in damages {
        let (mut host, gateway) = long();
        damage(&host);
        host.config = CoreConfig { allow_reset: true, ..host.config.clone() };
        host.restart("host-1", true, Box::new(Honest));
        for _ in 0..2 {
            let error = host.core.state(ESCROW).unwrap_err();
            assert_eq!(error.code(), Code::Unavailable);
            assert!(
                error.message.contains("cannot be recovered") && error.message.contains(words),
                "{}",
                error.message
            );
        }
        if words == "pending" {
            continue;
        }
        let reset = pb::ResetSessionRequest { escrow_id: ESCROW, generation: 1 };
        assert_eq!(host.core.reset_session(&reset, addr("gateway")).unwrap().dropped_nonce, 0);
        host.bind().unwrap();
        for chunk in gateway.diffs.chunks(200) {
            let taught = pb::TeachRequest { escrow_id: ESCROW, diffs: chunk.to_vec(), challenge: None };
            host.core.teach(&taught).unwrap();
        }
        assert_eq!(*host.core.state(ESCROW).unwrap(), gateway.state);
    }
}

#[test]
fn a_frozen_session_is_there_after_a_restart_and_signs() {
    let mut host = HostAt::with("host-1", core_config("host-1"), Box::new(Honest), Box::new(TakeAll));
    let mut gateway = Gateway::new(terms());
    let id = gateway.start(1, "prompt");
    let step = host.core.infer(START, &infer(&gateway, 0, id, "prompt")).unwrap();
    gateway.step(vec![tx(&step.receipt)], vec![Tx::FinalizeRound]);
    gateway.pass(4);
    let applied = host.catch_up(&gateway);
    assert_eq!(snapshots(&host).len(), 1, "the end is kept as a snapshot");
    host.restart("host-1", true, Box::new(Honest));
    assert_eq!(host.catch_up(&gateway), applied);
    let end = JobEnd::Failed { kind: KIND_CANCELLED, input_tokens: 0, output_tokens: 0 };
    host.core.outcome(ESCROW, id, &end).unwrap();
    assert!(host.catch_up(&gateway).pending.is_empty());
}

/// A gateway whose store was an older one signs its nonces anew; after a reset the host is taught the log that goes on.
#[test]
fn work_of_a_log_that_was_dropped_is_no_word_about_the_one_that_goes_on() {
    // Nothing, another Start, or the same one at the number of the work.
    for other in [None, Some("other prompt"), Some("prompt")] {
        let config = CoreConfig { allow_reset: true, ..core_config("host-1") };
        let mut host = HostAt::with("host-1", config, Box::new(Honest), Box::new(TakeAll));
        let mut lost = Gateway::new(terms());
        let id = lost.start(1, "prompt");
        let taken = host.core.infer(START, &infer(&lost, 0, id, "prompt")).unwrap();
        assert!(taken.start.is_some());
        let end = JobEnd::Failed { kind: 1, input_tokens: 0, output_tokens: 0 };
        host.core.outcome(ESCROW, id, &end).unwrap();
        let reset = pb::ResetSessionRequest { escrow_id: ESCROW, generation: 1 };
        host.core.reset_session(&reset, addr("gateway")).unwrap();
        host.bind().unwrap();

        let mut gateway = Gateway::new(terms());
        match other {
            Some(body) => assert_eq!(gateway.start(1, body), id),
            None => gateway.pass(1),
        }
        let applied = host.catch_up(&gateway);
        let kept = if other == Some("prompt") { 2 } else { 0 };
        assert_eq!(applied.pending.len(), kept, "{other:?}");
        if let Some(body) = other {
            let again = host.core.infer(START, &infer(&gateway, 1, id, body)).unwrap();
            assert_eq!(again.start.is_some(), body != "prompt", "{other:?}: it does not run twice");
        } else {
            gateway.pass(12);
            let applied = host.catch_up(&gateway);
            assert!(!applied.withheld && applied.stale.is_empty());
        }
        host.restart("host-1", true, Box::new(Honest));
        assert_eq!(*host.core.state(ESCROW).unwrap(), gateway.state);
    }
}
