//! The session of the golden vectors: keys by name, four hosts, one slot each.

use std::sync::Arc;

use holdfast_types::{Address, Signature, address_of};
use secp256k1::{Message, SECP256K1, SecretKey};
use sha2::{Digest, Sha256};

use crate::session::{Diff, FrozenConfig, Hash, State, Tx, Vote, apply, compose, digest};

pub(super) const CHAIN: &str = "holdfast-test-1";

pub(super) fn sha(text: &str) -> Hash {
    Sha256::digest(text).into()
}

pub(super) fn hash(hex: &str) -> Hash {
    hex::decode(hex).unwrap().try_into().unwrap()
}

pub(super) fn key(name: &str) -> SecretKey {
    SecretKey::from_byte_array(sha(&format!("holdfast-test-key:{name}"))).unwrap()
}

pub(super) fn addr(name: &str) -> Address {
    address_of(&key(name).public_key(SECP256K1).serialize())
}

pub(super) fn sign(name: &str, digest: &Hash) -> Signature {
    let (id, compact) =
        SECP256K1.sign_ecdsa_recoverable(Message::from_digest(*digest), &key(name)).serialize_compact();
    let mut out = [0; 65];
    out[..64].copy_from_slice(&compact);
    out[64] = u8::try_from(i32::from(id)).unwrap();
    out
}

pub(super) fn config() -> FrozenConfig {
    FrozenConfig {
        chain_id: CHAIN.into(),
        escrow_id: 7,
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

pub(super) fn genesis() -> State {
    State::genesis(Arc::new(config()))
}

pub(super) fn start(text: &str) -> Tx {
    Tx::StartInference { prompt_hash: sha(text), input_limit: 16, output_limit: 8, started_at: 1_700_000_000 }
}

pub(super) fn confirm(state: &State, id: u64, by: &str) -> Tx {
    let record = state.record(id).unwrap();
    let digest = digest::receipt(CHAIN, 7, record, 1_700_000_001);
    Tx::ConfirmStart { id, confirmed_at: 1_700_000_001, sig: sign(by, &digest) }
}

pub(super) fn finish(state: &State, id: u64, tokens: (u32, u32), text: &str, by: &str) -> Tx {
    let slot = state.config().executor_slot(id);
    let response_hash = sha(text);
    let digest = digest::finish(CHAIN, 7, id, slot, tokens.0, tokens.1, &response_hash);
    let sig = sign(by, &digest);
    Tx::FinishInference { id, input_tokens: tokens.0, output_tokens: tokens.1, response_hash, sig }
}

pub(super) fn error(state: &State, id: u64, kind: u8, tokens: (u32, u32), by: &str) -> Tx {
    let slot = state.config().executor_slot(id);
    let sig = sign(by, &digest::error(CHAIN, 7, id, slot, kind, tokens.0, tokens.1));
    Tx::ReportError { id, kind, input_tokens: tokens.0, output_tokens: tokens.1, sig }
}

pub(super) fn vote(id: u64, reason: u8, slot: u8, accept: bool, by: &str) -> Vote {
    let sig = sign(by, &digest::vote(CHAIN, 7, id, reason, slot, accept));
    Vote { voter_slot: slot, accept, sig }
}

pub(super) fn bind(owner: &str, warm: &str, seq: u32, by: &str) -> Tx {
    let (owner, warm) = (addr(owner), addr(warm));
    let sig = sign(by, &digest::bind(CHAIN, 7, &owner, &warm, seq));
    Tx::BindWarmKey { owner, warm, seq, sig }
}

/// The signed diff with exactly `txs`, whatever they are, over the root that `compose` gives or zeros.
pub(super) fn diff(state: &State, txs: Vec<Tx>) -> Diff {
    let nonce = state.nonce() + 1;
    let root = compose(state, Vec::new(), txs.clone()).map_or([0; 32], |composed| composed.root);
    signed(nonce, txs, root)
}

pub(super) fn signed(nonce: u64, txs: Vec<Tx>, root: Hash) -> Diff {
    let signature = sign("gateway", &digest::diff(CHAIN, 7, nonce, &txs, &root));
    Diff { escrow_id: 7, nonce, txs, post_state_root: root, signature }
}

/// Composes, signs and applies; checks that both ways lead to the same state and that no coin is lost.
pub(super) fn step(state: &State, txs: Vec<Tx>) -> State {
    let diff = diff(state, txs.clone());
    let (next, root) = apply(state, &diff).unwrap();
    let composed = compose(state, Vec::new(), txs).unwrap();
    assert_eq!((composed.root, &composed.state), (root, &next));
    next.check_conservation().unwrap();
    assert_eq!(State::from_bytes(next.config().clone(), &next.to_bytes()).as_ref(), Ok(&next));
    next
}
