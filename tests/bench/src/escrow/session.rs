//! One diff through the state machine at a thousand open inferences, and a replica that catches up.
//!
//! A diff here is that of steady traffic: a receipt, a finish and a start, so three signatures are checked in it, which
//! alone take most of the time. They are timed by themselves on the same digests.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{
    Diff, FrozenConfig, Hash, Signature, State, Tx, apply, compose, digest, recover,
};
use sha2::{Digest, Sha256};

use crate::measure::timed;
use crate::{Better, Outcome, Row, median};

const CHAIN: &str = "bench-1";
const SLOTS: usize = 16;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Inferences that are open all the time.
    pub open: u64,
    /// Diffs that are timed.
    pub diffs: u64,
    /// Rounds, of which the median counts.
    pub rounds: usize,
}

impl Size {
    /// The measurement.
    pub const FULL: Self = Self { open: 1_000, diffs: 10_000, rounds: 5 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { open: 40, diffs: 80, rounds: 1 };
}

struct Session {
    state: State,
    gateway: SecretKey,
    hosts: Vec<SecretKey>,
    /// Started and not confirmed, oldest first; then confirmed and not finished.
    pending: VecDeque<u64>,
    started: VecDeque<u64>,
}

impl Session {
    fn new(size: Size) -> Self {
        let gateway = SecretKey::from_seed_label(b"bench", "gateway");
        let hosts: Vec<SecretKey> =
            (0..SLOTS).map(|index| SecretKey::from_seed_label(b"bench", &format!("host-{index}"))).collect();
        let config = FrozenConfig {
            chain_id: CHAIN.into(),
            escrow_id: 1,
            creator: gateway.address(),
            gateway: gateway.address(),
            model: "ref-llama".into(),
            slots: hosts.iter().map(SecretKey::address).collect(),
            amount: u128::from(u64::MAX),
            create_fee: 1,
            fee_per_nonce: 1,
            token_price: 1,
            refusal_timeout_s: 60,
            execution_timeout_s: 1200,
            vote_threshold_bp: 5000,
            cancel_charge_bp: 0,
            seal_grace_nonces: 48,
            max_nonce: 1_000_000,
            max_live: 4096,
        };
        let state = State::genesis(Arc::new(config));
        let mut session = Self { state, gateway, hosts, pending: VecDeque::new(), started: VecDeque::new() };
        while session.state.nonce() < size.open {
            session.step(Vec::new());
        }
        for id in session.pending.drain(..size.open as usize / 2).collect::<Vec<_>>() {
            session.started.push_back(id);
        }
        // Those were confirmed nowhere yet; one diff a hundred receipts.
        for ids in session.started.clone().make_contiguous().chunks(100) {
            let txs = ids.iter().map(|id| session.receipt(*id)).collect();
            session.step(txs);
        }
        session
    }

    fn host(&self, id: u64) -> &SecretKey {
        &self.hosts[id as usize % SLOTS]
    }

    fn receipt(&self, id: u64) -> Tx {
        let record = self.state.record(id).expect("it was started");
        let sig = self.host(id).sign_recoverable(digest::receipt(CHAIN, 1, record, 7));
        Tx::ConfirmStart { id, confirmed_at: 7, sig }
    }

    fn finish(&self, id: u64) -> Tx {
        let (slot, response_hash) = (self.state.config().executor_slot(id), [5; 32]);
        let digest = digest::finish(CHAIN, 1, id, slot, 10, 20, &response_hash);
        let sig = self.host(id).sign_recoverable(digest);
        Tx::FinishInference { id, input_tokens: 10, output_tokens: 20, response_hash, sig }
    }

    /// The next diff with `txs` and a start.
    fn step(&mut self, txs: Vec<Tx>) -> Diff {
        let prompt_hash: Hash = Sha256::digest(self.state.nonce().to_le_bytes()).into();
        let start = Tx::StartInference { prompt_hash, input_limit: 10, output_limit: 20, started_at: 3 };
        let composed = compose(&self.state, txs, vec![start]).expect("it applies");
        let signature = self.gateway.sign_recoverable(composed.digest());
        self.pending.push_back(composed.nonce);
        let (diff, state) = composed.into_diff(signature);
        self.state = state;
        diff
    }

    /// A diff of steady traffic.
    fn traffic(&mut self) -> Diff {
        let confirmed = self.pending.pop_front().expect("half of them wait");
        let finished = self.started.pop_front().expect("half of them run");
        let txs = vec![self.receipt(confirmed), self.finish(finished)];
        self.started.push_back(confirmed);
        self.step(txs)
    }
}

/// Runs them.
pub fn run(size: Size) -> Result<Outcome> {
    let mut session = Session::new(size);
    let before = session.state.clone();
    let diffs: Vec<Diff> = (0..size.diffs).map(|_| session.traffic()).collect();
    let open = session.state.live().filter(|record| record.status.is_open()).count();
    let encoded: Vec<Vec<u8>> = diffs.iter().map(Diff::to_bytes).collect();
    let bytes: usize = encoded.iter().map(Vec::len).sum();
    let checks = signatures(&before, &diffs)?;

    let (mut whole, mut alone, mut caught) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (state, took) = timed(|| {
            diffs.iter().try_fold(before.clone(), |state, diff| apply(&state, diff).map(|(next, _)| next))
        });
        ensure!(state.map_err(|e| anyhow!(e))?.root() == session.state.root(), "another root");
        whole.push(took.cpu_us(diffs.len()));
        let (recovered, took) =
            timed(|| checks.iter().all(|(digest, sig)| std::hint::black_box(recover(digest, sig)).is_ok()));
        ensure!(recovered, "a signature is refused");
        alone.push(took.cpu_us(diffs.len()));
        let (state, took) = timed(|| {
            encoded.iter().try_fold(before.clone(), |state, bytes| -> Result<State> {
                let (next, root) = apply(&state, &Diff::from_bytes(bytes)?)?;
                // What a host does with each nonce: it signs the root that it reached.
                let config = next.config();
                let digest = digest::state(&config.chain_id, config.escrow_id, next.nonce(), &root);
                std::hint::black_box(session.hosts[0].sign_recoverable(digest));
                Ok(next)
            })
        });
        state?;
        caught.push(took.wall_us(diffs.len()));
    }
    let (total, checked) = (median(&whole), median(&alone));
    let per_check = checked * diffs.len() as f64 / checks.len() as f64;
    let rows = vec![
        Row::new("escrow.diff", "us", total).against("its 3 checks alone", checked, Better::Lower),
        Row::new("escrow.diff_beside_checks", "us", total - checked).below(50.0),
        Row::new("escrow.diffs_per_second", "1/s", 1e6 / total).against(
            "one signature check",
            1e6 / per_check,
            Better::Higher,
        ),
        Row::new("escrow.catch_up", "1/s", 1e6 / median(&caught)).against(
            "one signature check",
            1e6 / per_check,
            Better::Higher,
        ),
        Row::new("escrow.catch_up_bytes", "B", bytes as f64 / diffs.len() as f64),
    ];
    let details = serde_json::json!({
        "diff_us": whole, "checks_us": alone, "catch_up_us": caught, "open": open, "live": session.state.live_len(),
        "bytes": bytes, "diffs": diffs.len(),
    });
    Ok(Outcome { rows, details })
}

/// Digest and signature of everything that the diffs have checked.
fn signatures(before: &State, diffs: &[Diff]) -> Result<Vec<(Hash, Signature)>> {
    let mut checks = Vec::new();
    let mut state = before.clone();
    for diff in diffs {
        checks.push((diff.digest(CHAIN), diff.signature));
        for tx in &diff.txs {
            match tx {
                Tx::ConfirmStart { id, confirmed_at, sig } => {
                    let record = state.record(*id).ok_or_else(|| anyhow!("{id} is not live"))?;
                    checks.push((digest::receipt(CHAIN, 1, record, *confirmed_at), *sig));
                }
                Tx::FinishInference { id, input_tokens, output_tokens, response_hash, sig } => {
                    let slot = state.config().executor_slot(*id);
                    let digest =
                        digest::finish(CHAIN, 1, *id, slot, *input_tokens, *output_tokens, response_hash);
                    checks.push((digest, *sig));
                }
                _ => {}
            }
        }
        state = apply(&state, diff).map_err(|e| anyhow!(e))?.0;
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_keeps_as_many_inferences_open_as_were_asked_for() {
        let outcome = run(Size::QUICK).unwrap();
        assert_eq!(outcome.details["open"], 41);
        // What is beside the checks is a difference of two times: in few rounds noise may make it anything.
        let times = outcome.rows.iter().filter(|row| row.name != "escrow.diff_beside_checks");
        assert_eq!(times.filter(|row| row.value > 0.0).count(), 4);
        assert!(outcome.rows.iter().all(|row| row.value.is_finite()));
    }
}
