//! A small dense Llama with seeded weights and KV, the same bits on every machine (runner-details 3).
//!
//! Every operation is one rounding in 32-bit floats, no multiply-add is fused, and each sum runs in ascending order.
//! Matrices are kept input by input in blocks of 32 outputs, and keys dimension by dimension, so that the compiler works
//! on several outputs at a time without touching the order inside any sum. A prompt runs row by row through the code
//! of a single token; hence cached = stateless = any chunks = any cut into shards, byte for byte.
//!
//! Text goes in as its UTF-8 bytes and comes out as character 0x20 + id mod 95.

pub mod oracle;
pub mod weights;

#[cfg(test)]
mod tests;

use sha2::{Digest as _, Sha256};

use self::weights::{LayerWeights, Weights, rope_table};
use crate::adapter::{Digest, Sampling};
use crate::shard::{Input, ModelError, ModelFacts, Output, ShardModel, exp_lanes, pick};

/// Seed of the model unless another is asked for.
pub const DEFAULT_SEED: u64 = 13;
/// Layers of the whole model.
pub const LAYERS: usize = 4;
/// Tokens: the bytes.
pub const VOCAB: usize = 256;
/// Most positions of a session.
pub const POSITIONS: usize = 512;
/// Width of a row of activations.
pub const D: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 8;
/// Width of a row of keys, and of values.
const KV: usize = KV_HEADS * HEAD;
const FF: usize = 64;
/// Outputs or positions that are worked on together.
const BLOCK: usize = 32;
/// Exponentials that are worked on together.
const LANES: usize = 8;
/// 1/√8.
const SCALE: f32 = 0.353_553_38;

/// Token ids of a text.
#[must_use]
pub fn encode(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Text of token ids, one printable character for each.
#[must_use]
pub fn decode(ids: &[u32]) -> String {
    ids.iter().filter_map(|id| char::from_u32(0x20 + id % 95)).collect()
}

/// `[out, in]` as blocks of 32 outputs, in each block input by input.
#[derive(Debug, Clone)]
struct Matrix<const IN: usize, const OUT: usize>(Vec<[[f32; BLOCK]; IN]>);

impl<const IN: usize, const OUT: usize> Matrix<IN, OUT> {
    /// From rows `[out, in]`, stacked in the order given.
    fn new(parts: &[&[f32]]) -> Self {
        let rows: Vec<&[f32]> = parts.iter().flat_map(|part| part.chunks_exact(IN)).collect();
        debug_assert!(rows.len() == OUT && OUT.is_multiple_of(BLOCK));
        Self(
            rows.chunks_exact(BLOCK)
                .map(|block| std::array::from_fn(|i| std::array::from_fn(|o| block[o][i])))
                .collect(),
        )
    }

    #[inline]
    fn mul(&self, x: &[f32; IN]) -> [f32; OUT] {
        let mut out = [0.0; OUT];
        for (block, out) in self.0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let mut sum = [0.0_f32; BLOCK];
            for (weights, x) in block.iter().zip(x) {
                for (sum, weight) in sum.iter_mut().zip(weights) {
                    *sum += weight * x;
                }
            }
            *out = sum;
        }
        out
    }
}

#[derive(Debug, Clone)]
struct Layer {
    attn_norm: [f32; D],
    /// Queries, keys, values.
    wqkv: Matrix<D, { D + 2 * KV }>,
    wo: Matrix<D, D>,
    ffn_norm: [f32; D],
    /// Gate, up.
    w_in: Matrix<D, { 2 * FF }>,
    w_down: Matrix<FF, D>,
}

fn vector(values: &[f32]) -> [f32; D] {
    std::array::from_fn(|i| values[i])
}

impl From<&LayerWeights> for Layer {
    fn from(w: &LayerWeights) -> Self {
        Self {
            attn_norm: vector(&w.attn_norm),
            wqkv: Matrix::new(&[&w.wq, &w.wk, &w.wv]),
            wo: Matrix::new(&[&w.wo]),
            ffn_norm: vector(&w.ffn_norm),
            w_in: Matrix::new(&[&w.w_gate, &w.w_up]),
            w_down: Matrix::new(&[&w.w_down]),
        }
    }
}

#[inline]
fn rms_norm(x: &[f32; D], weights: &[f32; D]) -> [f32; D] {
    let mut sum = 0.0_f32;
    for x in x {
        sum += x * x;
    }
    let r = 1.0 / (sum / D as f32 + 1e-5).sqrt();
    std::array::from_fn(|i| (x[i] * r) * weights[i])
}

#[inline]
fn rotate(row: &mut [f32], table: &[[f32; 2]; HEAD / 2]) {
    for head in row.as_chunks_mut::<HEAD>().0 {
        for (pair, [c, s]) in head.as_chunks_mut::<2>().0.iter_mut().zip(table) {
            let [a, b] = *pair;
            *pair = [a * c - b * s, a * s + b * c];
        }
    }
}

/// Keys and values of one session at one shard.
#[derive(Debug, Clone)]
pub struct ReferenceKv {
    rows: usize,
    max_rows: usize,
    layers: Vec<LayerKv>,
}

/// Positions in blocks of 32: keys of a head dimension by dimension, values position by position.
#[derive(Debug, Clone)]
struct LayerKv {
    k: [Vec<[[f32; BLOCK]; HEAD]>; KV_HEADS],
    v: [Vec<[f32; HEAD]>; KV_HEADS],
}

impl ReferenceKv {
    /// SHA-256 over layers, in each over positions, of keys then values, 32-bit floats in little-endian bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        for layer in &self.layers {
            for row in 0..self.rows {
                for k in &layer.k {
                    for dim in &k[row / BLOCK] {
                        hash.update(dim[row % BLOCK].to_le_bytes());
                    }
                }
                for value in layer.v.iter().flat_map(|v| &v[row]) {
                    hash.update(value.to_le_bytes());
                }
            }
        }
        hash.finalize().into()
    }
}

/// Layers `from..to` of the model.
#[derive(Debug, Clone)]
pub struct ReferenceModel {
    facts: ModelFacts,
    embed: Vec<[f32; D]>,
    layers: Vec<Layer>,
    final_norm: [f32; D],
    lm_head: Matrix<D, VOCAB>,
    rope: Vec<[[f32; 2]; HEAD / 2]>,
}

impl ReferenceModel {
    /// Layers `from..to` of the model of this seed; the whole model is `(0, 4)`.
    ///
    /// # Errors
    /// [`ModelError::Input`] unless `from < to ≤ 4`.
    pub fn new(seed: u64, layers: (u32, u32)) -> Result<Self, ModelError> {
        let (from, to) = (layers.0 as usize, layers.1 as usize);
        if from >= to || to > LAYERS {
            return Err(ModelError::Input(format!("layers {from}..{to} of {LAYERS}")));
        }
        let weights = Weights::new(seed);
        Ok(Self {
            facts: ModelFacts {
                layers,
                model_layers: LAYERS as u32,
                model_digest: weights.digest,
                d_model: D as u32,
                vocab: VOCAB as u32,
                max_positions: POSITIONS as u32,
            },
            embed: weights.embed.as_chunks().0.to_vec(),
            layers: weights.layers[from..to].iter().map(Layer::from).collect(),
            final_norm: vector(&weights.final_norm),
            lm_head: Matrix::new(&[&weights.lm_head]),
            rope: rope_table(),
        })
    }

    fn row(&self, kv: &mut ReferenceKv, position: usize, x: &mut [f32; D]) {
        for (layer, kv) in self.layers.iter().zip(&mut kv.layers) {
            let normed = rms_norm(x, &layer.attn_norm);
            let mut qkv = layer.wqkv.mul(&normed);
            rotate(&mut qkv[..D + KV], &self.rope[position]);
            let (q, kv_row) = qkv.split_at(D);
            let (k_row, v_row) = kv_row.split_at(KV);
            for (head, (k, v)) in kv.k.iter_mut().zip(&mut kv.v).enumerate() {
                for (dim, value) in k[position / BLOCK].iter_mut().zip(&k_row[head * HEAD..]) {
                    dim[position % BLOCK] = *value;
                }
                v[position].copy_from_slice(&v_row[head * HEAD..][..HEAD]);
            }
            let mut mixed = [0.0; D];
            for (head, (q, out)) in q.as_chunks().0.iter().zip(mixed.as_chunks_mut().0).enumerate() {
                let shared = head / (HEADS / KV_HEADS);
                *out = attend(q, &kv.k[shared], &kv.v[shared], position + 1);
            }
            for (x, y) in x.iter_mut().zip(layer.wo.mul(&mixed)) {
                *x += y;
            }
            let normed = rms_norm(x, &layer.ffn_norm);
            let inner = layer.w_in.mul(&normed);
            let (gate, up) = inner.split_at(FF);
            let mut active = [0.0; FF];
            for (active, gate) in active.as_chunks_mut::<LANES>().0.iter_mut().zip(gate.as_chunks().0) {
                *active = exp_lanes(gate.map(|g| -g));
            }
            for (active, (gate, up)) in active.iter_mut().zip(gate.iter().zip(up)) {
                *active = (gate / (1.0 + *active)) * up;
            }
            for (x, y) in x.iter_mut().zip(layer.w_down.mul(&active)) {
                *x += y;
            }
        }
    }
}

/// One head over the first `rows` positions.
#[inline]
fn attend(q: &[f32; HEAD], k: &[[[f32; BLOCK]; HEAD]], v: &[[f32; HEAD]], rows: usize) -> [f32; HEAD] {
    let mut weights = [[0.0_f32; BLOCK]; POSITIONS / BLOCK];
    // Positions past `rows` in the last block are computed and not used.
    for (weights, k) in weights.iter_mut().zip(&k[..rows.div_ceil(BLOCK)]) {
        for (q, k) in q.iter().zip(k) {
            for (sum, k) in weights.iter_mut().zip(k) {
                *sum += q * k;
            }
        }
        for score in weights {
            *score *= SCALE;
        }
    }
    let weights = weights.as_flattened_mut();
    let mut max = f32::NEG_INFINITY;
    for score in &weights[..rows] {
        max = if *score > max { *score } else { max };
    }
    for scores in weights[..rows.next_multiple_of(LANES)].as_chunks_mut::<LANES>().0 {
        *scores = exp_lanes(scores.map(|score| score - max));
    }
    let weights = &mut weights[..rows];
    let mut total = 0.0_f32;
    for weight in &*weights {
        total += weight;
    }
    for weight in &mut *weights {
        *weight /= total;
    }
    let mut out = [0.0_f32; HEAD];
    for (weight, v) in weights.iter().zip(v) {
        for (sum, v) in out.iter_mut().zip(v) {
            *sum += weight * v;
        }
    }
    out
}

impl ShardModel for ReferenceModel {
    type Kv = ReferenceKv;

    fn facts(&self) -> ModelFacts {
        self.facts
    }

    fn new_kv(&self, max_positions: u32) -> ReferenceKv {
        let max_rows = (max_positions as usize).min(POSITIONS);
        let blocks = max_rows.div_ceil(BLOCK);
        let layer = LayerKv {
            k: std::array::from_fn(|_| vec![[[0.0; BLOCK]; HEAD]; blocks]),
            v: std::array::from_fn(|_| vec![[0.0; HEAD]; max_rows]),
        };
        ReferenceKv { rows: 0, max_rows, layers: vec![layer; self.layers.len()] }
    }

    fn rows(&self, kv: &ReferenceKv) -> u32 {
        kv.rows as u32
    }

    fn truncate(&self, kv: &mut ReferenceKv, rows: u32) {
        kv.rows = kv.rows.min(rows as usize);
    }

    fn forward(
        &self,
        kv: &mut ReferenceKv,
        position: u32,
        input: Input<'_>,
        sampling: Sampling,
    ) -> Result<Output, ModelError> {
        let refuse = |what: String| Err(ModelError::Input(what));
        let start = position as usize;
        let mut rows: Vec<[f32; D]> = match input {
            Input::Tokens(ids) if self.facts.layers.0 == 0 => {
                let mut rows = Vec::with_capacity(ids.len());
                for id in ids {
                    match self.embed.get(*id as usize) {
                        Some(row) => rows.push(*row),
                        None => return refuse(format!("token {id} of {VOCAB}")),
                    }
                }
                rows
            }
            Input::Hidden(values) if self.facts.layers.0 > 0 => match values.as_chunks() {
                (rows, []) => rows.to_vec(),
                _ => return refuse(format!("{} values in rows of {D}", values.len())),
            },
            _ => return refuse("tokens go to the first shard, activations to the others".to_owned()),
        };
        let Some(mut last) = rows.last().copied() else {
            return refuse("no rows".to_owned());
        };
        if start != kv.rows || rows.len() > kv.max_rows - start || kv.layers.len() != self.layers.len() {
            return refuse(format!(
                "{} rows at position {start}, where {} of {} are in use",
                rows.len(),
                kv.rows,
                kv.max_rows
            ));
        }
        for (i, row) in rows.iter_mut().enumerate() {
            self.row(kv, start + i, row);
            last = *row;
        }
        let end = start + rows.len();
        let out = if self.facts.layers.1 == self.facts.model_layers {
            let logits = self.lm_head.mul(&rms_norm(&last, &self.final_norm)).to_vec();
            Output::Token { token: pick(&logits, sampling, end as u32)?, logits }
        } else {
            Output::Hidden(rows.into_flattened())
        };
        kv.rows = end;
        Ok(out)
    }
}
