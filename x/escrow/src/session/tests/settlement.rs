//! What the chain pays, and what it refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::scene::*;
use crate::session::settle::{Mode, SettleError, Settlement, SlotSignature, verify};
use crate::session::{BoundKey, FrozenConfig, Phase, State, Tx, digest};

fn sign_all(state: &State, names: &[(u8, &str)]) -> Vec<SlotSignature> {
    let digest = digest::state(CHAIN, 7, state.nonce(), &state.root());
    names.iter().map(|(slot, name)| SlotSignature { slot: *slot, sig: sign(name, &digest) }).collect()
}

fn bound(owner: &str, warm: &str, seq: u32, by: &str) -> BoundKey {
    let (owner, warm) = (addr(owner), addr(warm));
    BoundKey { warm, seq, sig: sign(by, &digest::bind(CHAIN, 7, &owner, &warm, seq)) }
}

const THREE: [(u8, &str); 3] = [(0, "host-0"), (1, "host-1"), (3, "host-3")];

/// Nonce 9 of the golden vectors.
fn frozen() -> State {
    let mut state = step(&genesis(), vec![start("prompt-1")]);
    state = step(&state, vec![confirm(&state, 1, "host-1")]);
    state = step(&state, vec![finish(&state, 1, (4, 8), "response-1", "host-1")]);
    state = step(&state, vec![]);
    state = step(&state, vec![Tx::FinalizeRound]);
    for _ in 0..4 {
        state = step(&state, vec![]);
    }
    state
}

#[test]
fn a_settlement_pays_costs_fees_and_the_rest_to_the_last_coin() {
    let state = frozen();
    let settlement = Settlement::of(&state, sign_all(&state, &THREE));
    assert_eq!(settlement.root(state.config_digest()), state.root());
    let payout = verify(&config(), &settlement, Mode::Settle).unwrap();
    assert_eq!(payout.earned[&addr("host-1")], 120);
    assert_eq!(payout.earned.values().sum::<u128>(), 120);
    assert_eq!((payout.fees, payout.refund), (10_400, 989_480));
    let outcomes = payout.outcomes[&addr("host-1")];
    assert_eq!((outcomes.started, outcomes.completed, outcomes.missed), (1, 1, 0));
    // A dispute may bring the end as well.
    assert_eq!(verify(&config(), &settlement, Mode::Dispute).unwrap(), payout);
}

#[test]
fn a_settlement_that_is_altered_in_any_field_is_refused() {
    let state = frozen();
    let good = Settlement::of(&state, sign_all(&state, &THREE));
    let with = |change: &dyn Fn(&mut Settlement)| {
        let mut settlement = good.clone();
        change(&mut settlement);
        assert_ne!(settlement, good);
        verify(&config(), &settlement, Mode::Settle).unwrap_err()
    };
    let unsigned = SettleError::BadSignature(0);
    assert_eq!(with(&|s| s.escrow_id = 8), SettleError::WrongEscrow { expected: 7, got: 8 });
    assert_eq!(with(&|s| s.nonce = 8), SettleError::NotFrozen { slots: 4 });
    assert_eq!(with(&|s| (s.nonce, s.finalize_nonce) = (8, 4)), unsigned);
    assert_eq!(with(&|s| s.nonce = 20_001), SettleError::NonceLimit { nonce: 20_001, max: 20_000 });
    assert_eq!(with(&|s| s.phase = Phase::Finalizing), SettleError::NotFrozen { slots: 4 });
    assert_eq!(with(&|s| s.finalize_nonce = 0), SettleError::NotFrozen { slots: 4 });
    let coins = |sum| SettleError::Coins { sum, amount: 1_000_000 };
    assert_eq!(with(&|s| s.balance += 1), coins(1_000_001));
    assert_eq!(with(&|s| s.balance -= 1), coins(999_999));
    assert_eq!(with(&|s| s.fees += 1), coins(1_000_001));
    assert_eq!(with(&|s| (s.balance, s.fees) = (s.balance - 5, s.fees + 5)), unsigned);
    assert_eq!(with(&|s| s.balance = u128::MAX), SettleError::Overflow);
    assert_eq!(with(&|s| s.stats[2].cost = 10), coins(1_000_010));
    assert_eq!(with(&|s| (s.stats[1].cost, s.stats[2].cost) = (0, 120)), unsigned);
    assert_eq!(with(&|s| s.stats[1].missed = 1), SettleError::StatsSum { slot: 1, started: 1, ended: 2 });
    assert_eq!(with(&|s| s.stats[1].completed = 0), SettleError::StatsSum { slot: 1, started: 1, ended: 0 });
    assert_eq!(with(&|s| (s.stats[1].completed, s.stats[1].missed) = (0, 1)), unsigned);
    // Nine nonces: slot 0 executes 4 and 8, slot 1 executes 1, 5 and 9.
    let starts =
        |s: &mut Settlement, slot: usize, n| (s.stats[slot].started, s.stats[slot].released) = (n, n);
    assert_eq!(with(&|s| starts(s, 0, 2)), unsigned);
    assert_eq!(with(&|s| starts(s, 0, 3)), SettleError::StatsAssigned { slot: 0, started: 3, assigned: 2 });
    assert_eq!(
        with(&|s| (s.stats[1].started, s.stats[1].released) = (4, 3)),
        SettleError::StatsAssigned { slot: 1, started: 4, assigned: 3 }
    );
    assert_eq!(with(&|s| s.stats.swap(0, 1)), SettleError::StatsRows(4));
    assert_eq!(with(&|s| s.stats.truncate(3)), SettleError::StatsRows(4));
    assert_eq!(with(&|s| s.sealed_acc[0] ^= 1), unsigned);
    assert_eq!(with(&|s| s.live_hash[0] ^= 1), SettleError::LiveLeft);
    let key = |name: &str| (addr(name), bound(name, "warm-1", 1, name));
    assert_eq!(with(&|s| s.keys = BTreeMap::from([key("host-1")])), unsigned);
    assert_eq!(
        with(&|s| s.keys = BTreeMap::from([key("gateway")])),
        SettleError::ForeignKey(addr("gateway"))
    );
}

#[test]
fn signatures_are_counted_by_the_slots_of_their_owners_once() {
    let state = frozen();
    let with = |names: &[(u8, &str)]| {
        verify(&config(), &Settlement::of(&state, sign_all(&state, names)), Mode::Settle)
    };
    assert_eq!(with(&[(0, "host-0"), (1, "host-1")]), Err(SettleError::ShortSigned { signed: 2, quorum: 3 }));
    assert_eq!(with(&[]), Err(SettleError::ShortSigned { signed: 0, quorum: 3 }));
    let twice = [(0, "host-0"), (0, "host-0"), (1, "host-1"), (2, "host-2")];
    assert_eq!(with(&twice), Err(SettleError::DuplicateSlot(0)));
    assert_eq!(with(&[(0, "host-0"), (1, "host-2"), (2, "host-2")]), Err(SettleError::BadSignature(1)));
    assert_eq!(with(&[(0, "host-0"), (1, "host-1"), (4, "host-2")]), Err(SettleError::BadSignature(4)));
    let mut old = Settlement::of(&state, sign_all(&genesis(), &THREE));
    assert_eq!(verify(&config(), &old, Mode::Settle), Err(SettleError::BadSignature(0)));
    old.signatures = sign_all(&state, &THREE);
    assert!(verify(&config(), &old, Mode::Settle).is_ok());

    // Slots 0, 1, 2 of one owner would be a quorum of five by themselves: such a group is never made, but counting is
    // by owner all the same.
    let config = FrozenConfig {
        slots: ["host-0", "host-0", "host-1", "host-2", "host-3", "host-1"].map(addr).into(),
        ..config()
    };
    assert_eq!((config.quorum(), config.max_slots_per_owner()), (5, 1));
    let mut state = State::genesis(Arc::new(config.clone()));
    state = step(&state, vec![Tx::FinalizeRound]);
    for _ in 0..6 {
        state = step(&state, vec![]);
    }
    let signed = |names: &[(u8, &str)]| {
        verify(&config, &Settlement::of(&state, sign_all(&state, names)), Mode::Settle)
    };
    let two = [(0, "host-0"), (1, "host-0"), (5, "host-1")];
    assert_eq!(signed(&two), Err(SettleError::ShortSigned { signed: 4, quorum: 5 }));
    assert!(signed(&[(0, "host-0"), (5, "host-1"), (4, "host-3")]).is_ok());
}

#[test]
fn a_bound_warm_key_signs_for_the_slots_of_its_owner() {
    let mut state = step(&genesis(), vec![bind("host-3", "warm-1", 1, "host-3")]);
    state = step(&state, vec![Tx::FinalizeRound]);
    for _ in 0..4 {
        state = step(&state, vec![]);
    }
    let with = |names: &[(u8, &str)]| {
        verify(&config(), &Settlement::of(&state, sign_all(&state, names)), Mode::Settle)
    };
    assert!(with(&[(0, "host-0"), (1, "host-1"), (3, "warm-1")]).is_ok());
    assert_eq!(with(&[(0, "host-0"), (1, "warm-1"), (3, "host-3")]), Err(SettleError::BadSignature(1)));
}

/// The summary names the keys, and the root that they sign is that of the summary: without the owners' own signatures
/// one host would be a quorum.
#[test]
fn keys_that_their_owners_did_not_bind_settle_nothing() {
    let (config, owners) = (config(), ["host-0", "host-1", "host-2", "host-3"]);
    let mut forged = Settlement::of(&frozen(), Vec::new());
    forged.stats[1].cost = forged.balance + 120;
    forged.balance = 0;
    let signed = |by: &dyn Fn(&str) -> BoundKey, mode| {
        let mut forged = forged.clone();
        forged.keys = owners.iter().map(|owner| (addr(owner), by(owner))).collect();
        let digest = digest::state(CHAIN, 7, forged.nonce, &forged.root(config.digest()));
        forged.signatures = (0..4).map(|slot| SlotSignature { slot, sig: sign("thief", &digest) }).collect();
        verify(&config, &forged, mode)
    };
    let first = SettleError::UnboundKey(owners.map(addr).into_iter().min().unwrap());
    for mode in [Mode::Settle, Mode::Dispute] {
        assert_eq!(signed(&|owner| bound(owner, "thief", 1, "thief"), mode), Err(first.clone()));
        // The owner bound another key, or this one under another number.
        let other = |owner: &str| BoundKey { warm: addr("thief"), ..bound(owner, "warm-1", 1, owner) };
        assert_eq!(signed(&other, mode), Err(first.clone()));
        let later = |owner: &str| BoundKey { seq: 2, ..bound(owner, "thief", 1, owner) };
        assert_eq!(signed(&later, mode), Err(first.clone()));
    }
}

#[test]
fn a_dispute_pays_the_last_signed_nonce_and_returns_what_was_open() {
    let mut state = step(&genesis(), vec![start("prompt-1")]);
    state = step(&state, vec![confirm(&state, 1, "host-1"), start("prompt-2")]);
    let settlement = Settlement::of(&state, sign_all(&state, &THREE));
    assert_eq!(verify(&config(), &settlement, Mode::Settle), Err(SettleError::NotFrozen { slots: 4 }));
    let payout = verify(&config(), &settlement, Mode::Dispute).unwrap();
    // 10 000 + 2 · 100 of fees; 2 · 240 were open and go back.
    assert_eq!((payout.fees, payout.refund, payout.earned.values().sum::<u128>()), (10_200, 989_800, 0));
    let mut more = settlement;
    more.balance += 481;
    assert_eq!(
        verify(&config(), &more, Mode::Dispute),
        Err(SettleError::Coins { sum: 1_000_001, amount: 1_000_000 })
    );
}

#[test]
fn terms_that_cannot_carry_a_session_are_refused() {
    use crate::session::ConfigError;
    let with = |change: &dyn Fn(&mut FrozenConfig)| {
        let mut config = config();
        change(&mut config);
        config.validate()
    };
    assert_eq!(with(&|_| ()), Ok(()));
    assert_eq!(with(&|c| c.slots.clear()), Err(ConfigError::Slots(0)));
    assert_eq!(with(&|c| c.slots = vec![addr("host-0"); 129]), Err(ConfigError::Slots(129)));
    assert_eq!(with(&|c| c.amount = 9_999), Err(ConfigError::Amount { amount: 9_999, create_fee: 10_000 }));
    assert_eq!(with(&|c| c.max_nonce = 5), Err(ConfigError::MaxNonce { max_nonce: 5, slots: 4 }));
    assert_eq!(with(&|c| c.max_nonce = 6), Ok(()));
    // N = 4: quorum 3, so one slot each at most. N = 3: no cap.
    assert_eq!(with(&|c| c.slots[0] = c.slots[1]), Err(ConfigError::Concentrated { held: 2, limit: 1 }));
    assert_eq!(with(&|c| c.slots = vec![addr("host-0"); 3]), Ok(()));
    assert_eq!(with(&|c| c.max_live = 0), Err(ConfigError::Zero { field: "max_live" }));
    assert_eq!(
        with(&|c| c.vote_threshold_bp = 10_001),
        Err(ConfigError::BasisPoints { field: "vote_threshold_bp" })
    );
}
