//! The session of the golden vectors: keys by name, escrow 7, four hosts with one slot each; and a gateway that composes and
//! signs.

use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{Diff, FrozenConfig, Hash, State, Tx, compose};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use crate::auth;
use crate::session::rules::{Honest, Rules};
use crate::session::{Admission, CoreConfig, EscrowStatus, HostCore, TakeAll, Terms};
use crate::store::MemDb;

pub(crate) const CHAIN: &str = "holdfast-test-1";
pub(crate) const ESCROW: u64 = 7;
/// Unix seconds of a Start.
pub(crate) const START: u64 = 1_700_000_000;

pub(crate) fn sha(text: &str) -> Hash {
    Sha256::digest(text).into()
}

pub(crate) fn hash(text: &str) -> Hash {
    unhex(text).try_into().unwrap()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub(crate) fn key(name: &str) -> SecretKey {
    SecretKey::from_bytes(&sha(&format!("holdfast-test-key:{name}"))).unwrap()
}

pub(crate) fn addr(name: &str) -> Address {
    key(name).address()
}

pub(crate) fn terms() -> FrozenConfig {
    FrozenConfig {
        chain_id: CHAIN.into(),
        escrow_id: ESCROW,
        creator: addr("gateway"),
        gateway: addr("gateway"),
        model: "ref-llama".into(),
        slots: (0..4).map(|i| addr(&format!("host-{i}"))).collect(),
        amount: 1_000_000,
        create_fee: 10_000,
        fee_per_nonce: 100,
        token_price: 10,
        refusal_timeout_s: 60,
        execution_timeout_s: 1200,
        vote_threshold_bp: 5000,
        cancel_charge_bp: 0,
        seal_grace_nonces: 64,
        max_nonce: 20_000,
        max_live: 1024,
    }
}

pub(crate) fn start(body: &str) -> Tx {
    Tx::StartInference { prompt_hash: sha(body), input_limit: 16, output_limit: 8, started_at: START }
}

/// A gateway: its state and its log.
pub(crate) struct Gateway {
    pub(crate) state: State,
    pub(crate) diffs: Vec<Vec<u8>>,
}

impl Gateway {
    pub(crate) fn new(config: FrozenConfig) -> Self {
        Self { state: State::genesis(Arc::new(config)), diffs: Vec::new() }
    }

    /// Composes, signs and keeps the next diff.
    pub(crate) fn step(&mut self, host_txs: Vec<Tx>, own: Vec<Tx>) -> Vec<u8> {
        let composed = compose(&self.state, host_txs, own).unwrap();
        assert_eq!(composed.dropped, []);
        let signature = key("gateway").sign_recoverable(composed.digest());
        let (diff, state) = composed.into_diff(signature);
        self.state = state;
        self.diffs.push(diff.to_bytes());
        diff.to_bytes()
    }

    /// `count` diffs without transactions.
    pub(crate) fn pass(&mut self, count: u64) {
        for _ in 0..count {
            self.step(Vec::new(), Vec::new());
        }
    }

    /// Passes until the next nonce is the slot's.
    pub(crate) fn pass_to(&mut self, slot: u64) {
        while (self.state.nonce() + 1) % 4 != slot {
            self.pass(1);
        }
    }

    /// A Start for `slot`; its id.
    pub(crate) fn start(&mut self, slot: u64, body: &str) -> u64 {
        self.pass_to(slot);
        self.step(Vec::new(), vec![start(body)]);
        self.state.nonce()
    }

    /// Diffs above `nonce`.
    pub(crate) fn after(&self, nonce: u64) -> Vec<Vec<u8>> {
        self.diffs[usize::try_from(nonce).unwrap()..].to_vec()
    }

    pub(crate) fn teach(&self, nonce: u64) -> pb::TeachRequest {
        pb::TeachRequest { escrow_id: ESCROW, diffs: self.after(nonce), challenge: None }
    }
}

/// The gateway's signature on a diff with these fields, whatever they are.
pub(crate) fn signed(escrow_id: u64, nonce: u64, txs: Vec<Tx>, root: Hash) -> Diff {
    let digest = holdfast_escrow::session::digest::diff(CHAIN, escrow_id, nonce, &txs, &root);
    let signature = key("gateway").sign_recoverable(digest);
    Diff { escrow_id, nonce, txs, post_state_root: root, signature }
}

/// A host of the scene.
pub(crate) struct HostAt {
    pub(crate) core: HostCore,
    pub(crate) db: MemDb,
    pub(crate) config: CoreConfig,
}

pub(crate) fn core_config(name: &str) -> CoreConfig {
    CoreConfig::new(CHAIN, addr(name), format!("boot of {name}"))
}

impl HostAt {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, core_config(name), Box::new(Honest), Box::new(TakeAll))
    }

    pub(crate) fn with(
        name: &str,
        config: CoreConfig,
        rules: Box<dyn Rules>,
        admission: Box<dyn Admission>,
    ) -> Self {
        let db = MemDb::new();
        let core = HostCore::open(Box::new(db.clone()), key(name), config.clone(), rules, admission).unwrap();
        let mut host = Self { core, db, config };
        host.bind().unwrap();
        host
    }

    pub(crate) fn bind(&mut self) -> Result<pb::BindResponse, pb::EscrowError> {
        let terms = Terms { config: terms(), status: EscrowStatus::Open };
        self.core.bind(&bind(), addr("gateway"), Some(&terms))
    }

    /// The next process on the same disk.
    pub(crate) fn restart(&mut self, name: &str, power_cut: bool, rules: Box<dyn Rules>) {
        self.db = self.db.reopen(power_cut);
        let db = Box::new(self.db.clone());
        self.core = HostCore::open(db, key(name), self.config.clone(), rules, Box::new(TakeAll)).unwrap();
    }

    /// Takes everything the gateway has.
    pub(crate) fn catch_up(&mut self, gateway: &Gateway) -> pb::Applied {
        let have = self.core.state(ESCROW).unwrap().nonce();
        self.core.teach(&gateway.teach(have)).unwrap().applied.unwrap()
    }

    pub(crate) fn nonce(&mut self) -> u64 {
        self.core.state(ESCROW).unwrap().nonce()
    }

    /// What may not change when something is refused: state and every row.
    pub(crate) fn everything(&mut self) -> (Vec<u8>, std::collections::BTreeMap<Vec<u8>, Vec<u8>>) {
        (self.core.state(ESCROW).unwrap().to_bytes(), self.db.rows())
    }
}

pub(crate) fn bind() -> pb::BindRequest {
    pb::BindRequest { escrow_id: ESCROW, config_digest: terms().digest().to_vec() }
}

pub(crate) fn infer(gateway: &Gateway, have: u64, id: u64, body: &str) -> pb::InferRequest {
    pb::InferRequest {
        escrow_id: ESCROW,
        target_nonce: id,
        diffs: gateway.after(have),
        body: body.into(),
        deadline_ms: 0,
        request_id: "r-1".into(),
    }
}

pub(crate) fn cancel(id: u64) -> (pb::CancelInferenceRequest, Vec<u8>) {
    let request =
        pb::CancelInferenceRequest { escrow_id: ESCROW, inference_id: id, cause: "client_left".into() };
    let auth = auth::sign(&key("gateway"), CHAIN, ESCROW, "CancelInference", &request, START * 1_000);
    (request, auth)
}

pub(crate) fn tx(bytes: &[u8]) -> Tx {
    Tx::from_bytes(bytes).unwrap()
}
