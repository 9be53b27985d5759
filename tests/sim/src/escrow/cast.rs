//! Who plays: the group, the terms, the settings, drawn from the seed.

use std::fmt;
use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{FrozenConfig, max_slots_per_owner};
use holdfast_gateway::core::GatewayConfig;
use holdfast_types::Address;

use crate::Rng;

/// Chain of every simulated escrow.
const CHAIN: &str = "holdfast-sim-1";

/// One participant.
#[derive(Clone)]
pub(super) struct Member {
    /// Its key.
    pub(super) key: SecretKey,
    /// Its address.
    pub(super) address: Address,
    /// Played by the simulator's own host instead of the program's.
    pub(super) model: bool,
    /// Its operator allows ResetSession.
    pub(super) consent: bool,
    /// It has other terms than the gateway, from its first day.
    pub(super) wrong_terms: bool,
    /// How far its wall clock is off, milliseconds.
    pub(super) skew_ms: i64,
    /// One way, milliseconds.
    pub(super) latency_ms: u64,
}

/// Everybody, and what is agreed on.
pub(super) struct Cast {
    /// Where all of it comes from.
    pub(super) seed: u64,
    /// Signs the diffs.
    pub(super) gateway_key: SecretKey,
    /// By index: `host0`, `host1`, …
    pub(super) members: Vec<Member>,
    /// The terms.
    pub(super) terms: Arc<FrozenConfig>,
    /// The gateway's limits.
    pub(super) gateway: GatewayConfig,
}

/// Which host program plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// Drawn for each host.
    Mixed,
    /// The simulator's own everywhere.
    Model,
    /// The real one everywhere.
    Real,
}

impl Cast {
    pub(super) fn draw(seed: u64, programs: Programs) -> Self {
        let mut rng = Rng::new(seed, "escrow cast");
        let owners = *rng.pick(&[1, 2, 3, 3, 4, 4, 5, 6, 7, 8]);
        let spare = if owners < 4 {
            rng.below(4 - owners)
        } else if owners >= 6 {
            rng.below(3)
        } else {
            0
        };
        let mut slots: Vec<usize> = (0..owners).collect();
        let size = owners + spare;
        for _ in 0..spare {
            let limit = usize::try_from(max_slots_per_owner(size as u64)).unwrap_or(1);
            let held = |owner: usize| slots.iter().filter(|slot| **slot == owner).count();
            if let Some(owner) = (0..owners).find(|owner| held(*owner) < limit && rng.percent(60)) {
                slots.push(owner);
            }
        }
        rng.shuffle(&mut slots);
        Self::with(seed, owners, &slots, programs, &mut rng)
    }

    /// A plain group of `owners` with one slot each, for a scenario: no skew, generous limits.
    #[cfg(test)]
    pub(super) fn plain(seed: u64, owners: usize, programs: Programs) -> Self {
        let slots: Vec<usize> = (0..owners).collect();
        let mut cast = Self::with(seed, owners, &slots, programs, &mut Rng::new(seed, "escrow cast"));
        let terms = Arc::make_mut(&mut cast.terms);
        (terms.refusal_timeout_s, terms.execution_timeout_s) = (10, 60);
        (terms.vote_threshold_bp, terms.cancel_charge_bp) = (5_000, 0);
        (terms.max_nonce, terms.max_live) = (20_000, 1024);
        (terms.amount, terms.fee_per_nonce) = (100_000_000, 100);
        terms.seal_grace_nonces = 3 * u32::try_from(owners).unwrap_or(1);
        cast.gateway = GatewayConfig { snapshot_every: 20, ..GatewayConfig::default() };
        for member in &mut cast.members {
            member.consent = false;
            member.wrong_terms = false;
            member.skew_ms = 0;
            member.latency_ms = 5;
        }
        cast
    }

    fn with(seed: u64, owners: usize, slots: &[usize], programs: Programs, rng: &mut Rng) -> Self {
        let key = |label: &str| SecretKey::from_seed_label(b"holdfast-sim-escrow", label);
        let gateway_key = key("gateway");
        let members: Vec<Member> = (0..owners)
            .map(|index| {
                let key = key(&format!("host{index}"));
                let drawn = rng.percent(50);
                Member {
                    address: key.address(),
                    key,
                    model: match programs {
                        Programs::Mixed => drawn,
                        Programs::Model => true,
                        Programs::Real => false,
                    },
                    consent: rng.percent(40),
                    wrong_terms: rng.percent(3),
                    skew_ms: rng.range(-900, 900),
                    latency_ms: rng.unsigned(1, 80),
                }
            })
            .collect();
        let n = slots.len() as u64;
        let terms = FrozenConfig {
            chain_id: CHAIN.into(),
            escrow_id: 1 + seed % 1000,
            creator: key("creator").address(),
            gateway: gateway_key.address(),
            model: "ref-llama".into(),
            slots: slots.iter().map(|owner| members[*owner].address).collect(),
            amount: if rng.percent(90) { 10_000_000 } else { 60_000 },
            create_fee: 10_000,
            fee_per_nonce: *rng.pick(&[0, 100, 100]),
            token_price: 10,
            refusal_timeout_s: *rng.pick(&[10, 10, 30, 60]),
            execution_timeout_s: *rng.pick(&[60, 60, 120, 300]),
            vote_threshold_bp: *rng.pick(&[5000, 5000, 5000, 3333, 6000]),
            cancel_charge_bp: *rng.pick(&[0, 0, 5000, 10_000]),
            seal_grace_nonces: u32::try_from(*rng.pick(&[0, n, 3 * n])).unwrap_or(0),
            max_nonce: if rng.percent(93) { 20_000 } else { n + 2 + rng.unsigned(10, 60) },
            max_live: if rng.percent(90) { 1024 } else { 12 },
        };
        let gateway = GatewayConfig {
            allow_reset: rng.percent(60),
            give_up_ms: rng.unsigned(6, 25) * 60_000,
            chunk_diffs: *rng.pick(&[2, 5, 20, 200]),
            snapshot_every: *rng.pick(&[3, 10, 50]),
            ..GatewayConfig::default()
        };
        Self { seed, gateway_key, members, terms: Arc::new(terms), gateway }
    }

    /// Index of an owner.
    pub(super) fn index(&self, address: &Address) -> Option<usize> {
        self.members.iter().position(|member| member.address == *address)
    }

    /// Name of an owner.
    pub(super) fn name(&self, address: &Address) -> String {
        self.index(address).map_or_else(|| format!("{address:?}"), |index| format!("host{index}"))
    }
}

impl fmt::Display for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = &self.terms;
        let slots: Vec<String> = terms.slots.iter().map(|owner| self.name(owner)).collect();
        writeln!(f, "slots [{}]", slots.join(" "))?;
        writeln!(
            f,
            "amount {} fee {} timeouts {}/{} s threshold {} cancel {} grace {} max_nonce {} max_live {}",
            terms.amount,
            terms.fee_per_nonce,
            terms.refusal_timeout_s,
            terms.execution_timeout_s,
            terms.vote_threshold_bp,
            terms.cancel_charge_bp,
            terms.seal_grace_nonces,
            terms.max_nonce,
            terms.max_live
        )?;
        let g = &self.gateway;
        writeln!(
            f,
            "reset {} give-up {} min, chunks of {}, snapshot every {}",
            g.allow_reset,
            g.give_up_ms / 60_000,
            g.chunk_diffs,
            g.snapshot_every
        )?;
        for (index, member) in self.members.iter().enumerate() {
            write!(
                f,
                "host{index}: {}, consent {}, clock {:+} ms, {} ms away{}",
                if member.model { "model" } else { "real" },
                member.consent,
                member.skew_ms,
                member.latency_ms,
                if member.wrong_terms { ", wrong terms" } else { "" }
            )?;
            if index + 1 < self.members.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
