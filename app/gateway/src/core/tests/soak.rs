//! Random histories: hosts that fail, fork, restart and heal, gateways that restart, under load. Whatever happens, the
//! invariants hold at each step, and at the end everything heals and is paid.

use holdfast_escrow::session::Phase;
use holdfast_escrow::session::settle::Mode;

use super::host::Serves;
use super::world::{World, terms};
use crate::core::{Event, GatewayConfig, RequestId};

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let hosts = 3 + random.next(5) as usize;
    let cfg = GatewayConfig {
        allow_reset: random.next(2) == 0,
        snapshot_every: 1 + random.next(40),
        chunk_diffs: 1 + random.next(60) as usize,
        drain_ms: 90_000,
        ..GatewayConfig::default()
    };
    let mut world = World::with(terms(hosts), cfg);
    world.run(50);
    let mut asked: Vec<RequestId> = Vec::new();
    for _ in 0..80 {
        let index = random.next(hosts as u64) as usize;
        match random.next(24) {
            0 => world.host(index).serves = Serves::Down,
            1 => world.host(index).serves = Serves::Silent,
            2 => world.host(index).serves = Serves::OnlyReceipt,
            3 => world.host(index).serves = Serves::Slow,
            4 => world.host(index).serves = Serves::Throttled,
            5 => world.host(index).serves = Serves::Fails,
            6 => world.host(index).serves = Serves::Crafted,
            7 => {
                let at = world.core.status().nonce + 1;
                world.host(index).fork_at.get_or_insert(at);
            }
            8 => world.host(index).wipe(),
            9 => {
                let host = world.host(index);
                host.wipe();
                host.fork_at = None;
            }
            10 => world.host(index).withholds = true,
            11 => world.restart(random.next(2) == 0),
            12 => {
                if let Some(id) = asked.pop() {
                    world.send(Event::ClientLeft { request_id: id });
                }
            }
            13 => world.run(20_000),
            14 | 15 => {
                let host = world.host(index);
                (host.serves, host.withholds) = (Serves::Well, false);
            }
            _ => {
                for _ in 0..1 + random.next(6) {
                    let wait = 500 + random.next(20_000);
                    asked.push(world.ask_with(wait));
                }
            }
        }
        world.run(random.next(700));
        world.check();
    }
    // Every host becomes honest, with an empty store where it had forked.
    for index in 0..hosts {
        let host = world.host(index);
        (host.serves, host.withholds, host.allows_reset) = (Serves::Well, false, true);
        if host.fork_at.take().is_some() {
            host.wipe();
        }
    }
    world.run(3_000_000);
    world.check();
    for flag in world.core.flags() {
        assert_eq!(flag.phase, crate::core::RepairView::GaveUp, "{flag:?}");
    }
    assert!(!world.core.status().self_suspect);
    assert_eq!(world.core.status().in_flight, 0);
    assert_eq!(world.core.status().queued, 0);
    world.send(Event::Finalize);
    world.run(400_000);
    assert_eq!(world.core.state().phase(), Phase::Frozen);
    let settlement = world.settlements.last().cloned().expect("a settlement");
    world.pays(&settlement, Mode::Settle);
    if std::env::var("HOLDFAST_SOAK").is_ok() {
        let count = |stage| world.stage_count(stage);
        eprintln!(
            "{seed}: nonce {} blocked {} unblocked {} gave up {} attempts {} suspect {} cleared {} tail {} ghosts {} timeouts {:?}",
            world.core.status().nonce,
            count("escrow_participant_state_blocked"),
            count("escrow_participant_state_unblocked"),
            count("escrow_participant_state_repair_gave_up"),
            count("escrow_participant_state_repair_attempt"),
            count("escrow_self_suspect"),
            count("escrow_self_suspect_cleared"),
            count("escrow_tail_recovered"),
            count("escrow_ghost"),
            world.field("escrow_timeout", "status").len(),
        );
    }
    for (id, events) in &world.clients {
        use crate::core::ClientEvent::{Failed, Finished};
        let ends = events.iter().filter(|e| matches!(e, Finished { .. } | Failed(_))).count();
        assert!(ends <= 1, "request {id} ends {ends} times: {events:?}");
    }
}

#[test]
fn random_histories_keep_the_invariants_and_end_paid() {
    let (start, count) = match std::env::var("HOLDFAST_SOAK") {
        Ok(range) => {
            let (start, count) = range.split_once('+').unwrap();
            (start.parse().unwrap(), count.parse().unwrap())
        }
        Err(_) => (1, 6),
    };
    for seed in start..start + count {
        let done = std::panic::catch_unwind(|| run(seed));
        assert!(done.is_ok(), "seed {seed}");
    }
}
