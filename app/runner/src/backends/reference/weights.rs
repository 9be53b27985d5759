//! Seeded weights of the reference model and the tables of its rotary embedding (runner-details 3).

use sha2::{Digest as _, Sha256};

use super::{D, FF, HEAD, KV, LAYERS, POSITIONS, VOCAB};
use crate::adapter::Digest;
use crate::shard::splitmix64;

/// How a tensor is drawn: its name, outputs × inputs (1 input for a vector), offset and scale.
struct Spec {
    name: String,
    len: usize,
    offset: f32,
    scale: f32,
}

/// Weights of one layer, each matrix row-major `[out, in]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    /// Norm before attention, `[32]`.
    pub attn_norm: Vec<f32>,
    /// Queries, `[32, 32]`.
    pub wq: Vec<f32>,
    /// Keys, `[16, 32]`.
    pub wk: Vec<f32>,
    /// Values, `[16, 32]`.
    pub wv: Vec<f32>,
    /// Output of attention, `[32, 32]`.
    pub wo: Vec<f32>,
    /// Norm before the feed-forward part, `[32]`.
    pub ffn_norm: Vec<f32>,
    /// Gate, `[64, 32]`.
    pub w_gate: Vec<f32>,
    /// Up, `[64, 32]`.
    pub w_up: Vec<f32>,
    /// Down, `[32, 64]`.
    pub w_down: Vec<f32>,
}

/// All weights, row-major `[out, in]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Embedding, `[256, 32]`.
    pub embed: Vec<f32>,
    /// Layers, in order.
    pub layers: Vec<LayerWeights>,
    /// Norm before the head, `[32]`.
    pub final_norm: Vec<f32>,
    /// Head, `[256, 32]`.
    pub lm_head: Vec<f32>,
    /// SHA-256 over all values in the order above, 32-bit floats in little-endian bytes: the model's digest.
    pub digest: Digest,
}

impl Weights {
    /// Draws them.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut hash = Sha256::new();
        let mut draw = |name: &str, len: usize, offset: f32, scale: f32| {
            let values = tensor(seed, &Spec { name: name.to_owned(), len, offset, scale });
            for value in &values {
                hash.update(value.to_le_bytes());
            }
            values
        };
        let embed = draw("embed", VOCAB * D, 0.0, 1.0);
        let mut layers = Vec::with_capacity(LAYERS);
        for l in 0..LAYERS {
            let mut draw = |name: &str, len, offset, scale| draw(&format!("l{l}.{name}"), len, offset, scale);
            layers.push(LayerWeights {
                attn_norm: draw("attn_norm", D, 1.0, 0.125),
                wq: draw("wq", D * D, 0.0, 0.25),
                wk: draw("wk", KV * D, 0.0, 0.25),
                wv: draw("wv", KV * D, 0.0, 0.25),
                wo: draw("wo", D * D, 0.0, 0.25),
                ffn_norm: draw("ffn_norm", D, 1.0, 0.125),
                w_gate: draw("w_gate", FF * D, 0.0, 0.25),
                w_up: draw("w_up", FF * D, 0.0, 0.25),
                w_down: draw("w_down", D * FF, 0.0, 0.25),
            });
        }
        let final_norm = draw("final_norm", D, 1.0, 0.125);
        let lm_head = draw("lm_head", VOCAB * D, 0.0, 0.5);
        Self { embed, layers, final_norm, lm_head, digest: hash.finalize().into() }
    }
}

fn tensor(seed: u64, spec: &Spec) -> Vec<f32> {
    let mut hash = Sha256::new();
    hash.update(b"holdfast.ref-llama.v1\0");
    hash.update(seed.to_be_bytes());
    hash.update(spec.name.as_bytes());
    let digest: Digest = hash.finalize().into();
    let mut state = [0; 8];
    state.copy_from_slice(&digest[..8]);
    let state = u64::from_be_bytes(state);
    (0..spec.len as u64)
        .map(|i| {
            // 24 bits fit a 32-bit float exactly.
            let bits = (splitmix64(state, i) >> 40) as f32;
            let unit = bits * (1.0 / 8_388_608.0) - 1.0;
            spec.offset + spec.scale * unit
        })
        .collect()
}

/// Cosine and sine of every pair of a head, by position.
#[must_use]
pub fn rope_table() -> Vec<[[f32; 2]; HEAD / 2]> {
    const COS: [f64; 4] = [0.5403023058681398, 0.9950041652780258, 0.9999500004166653, 0.9999995000000417];
    const SIN: [f64; 4] =
        [0.8414709848078965, 0.09983341664682815, 0.009999833334166664, 0.0009999998333333417];
    let mut at = [(1.0_f64, 0.0_f64); HEAD / 2];
    let mut table = Vec::with_capacity(POSITIONS);
    for _ in 0..POSITIONS {
        table.push(at.map(|(c, s)| [c as f32, s as f32]));
        for (i, (c, s)) in at.iter_mut().enumerate() {
            (*c, *s) = (*c * COS[i] - *s * SIN[i], *s * COS[i] + *c * SIN[i]);
        }
    }
    table
}
