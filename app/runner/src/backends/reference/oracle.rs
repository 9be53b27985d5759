//! The reference model a second time, written as plainly as its definition reads: no KV, no layout, every token from
//! the whole history. What the fast path is held against.

use super::weights::{LayerWeights, Weights};

/// The stateless model.
#[derive(Debug, Clone)]
pub struct Oracle {
    weights: Weights,
}

impl Oracle {
    /// The whole model of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { weights: Weights::new(seed) }
    }

    /// Rows of activations after the first `layers` layers, one for each token. Ids are taken modulo 256.
    #[must_use]
    pub fn hidden(&self, tokens: &[u32], layers: usize) -> Vec<[f32; 32]> {
        let mut rows: Vec<[f32; 32]> = tokens
            .iter()
            .map(|token| {
                let start = (*token as usize % 256) * 32;
                std::array::from_fn(|i| self.weights.embed[start + i])
            })
            .collect();
        for weights in self.weights.layers.iter().take(layers) {
            layer(weights, &mut rows);
        }
        rows
    }

    /// Logits after the last token; empty for no tokens.
    #[must_use]
    pub fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let rows = self.hidden(tokens, self.weights.layers.len());
        rows.last().map_or_else(Vec::new, |row| {
            matrix(&self.weights.lm_head, &rms_norm(row, &self.weights.final_norm))
        })
    }

    /// The next `count` tokens, greedily.
    #[must_use]
    pub fn generate(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut history = prompt.to_vec();
        for _ in 0..count {
            let logits = self.logits(&history);
            let mut best = 0;
            for id in 1..logits.len() {
                if logits[id] > logits[best] {
                    best = id;
                }
            }
            history.push(best as u32);
        }
        history.split_off(prompt.len())
    }
}

fn layer(weights: &LayerWeights, rows: &mut [[f32; 32]]) {
    let mut queries = Vec::new();
    let mut keys = Vec::new();
    let mut values = Vec::new();
    for (position, row) in rows.iter().enumerate() {
        let x = rms_norm(row, &weights.attn_norm);
        let mut q = matrix(&weights.wq, &x);
        let mut k = matrix(&weights.wk, &x);
        rotate(&mut q, position);
        rotate(&mut k, position);
        queries.push(q);
        keys.push(k);
        values.push(matrix(&weights.wv, &x));
    }
    for (position, row) in rows.iter_mut().enumerate() {
        let mut mixed = Vec::new();
        for head in 0..4 {
            let q = &queries[position][head * 8..][..8];
            let shared = head / 2 * 8;
            let scores: Vec<f32> =
                (0..=position).map(|j| dot(q, &keys[j][shared..shared + 8]) * 0.353_553_38).collect();
            let mut max = scores[0];
            for score in &scores {
                if *score > max {
                    max = *score;
                }
            }
            let mut total = 0.0_f32;
            let mut weights = Vec::new();
            for score in &scores {
                let e = exp(score - max);
                total += e;
                weights.push(e);
            }
            for i in 0..8 {
                let mut sum = 0.0_f32;
                for j in 0..=position {
                    sum += weights[j] / total * values[j][shared + i];
                }
                mixed.push(sum);
            }
        }
        for (x, y) in row.iter_mut().zip(matrix(&weights.wo, &mixed)) {
            *x += y;
        }
        let x = rms_norm(row, &weights.ffn_norm);
        let gate = matrix(&weights.w_gate, &x);
        let up = matrix(&weights.w_up, &x);
        let a: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + exp(-g)) * u).collect();
        for (x, y) in row.iter_mut().zip(matrix(&weights.w_down, &a)) {
            *x += y;
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = 0.0;
    for i in 0..a.len() {
        sum += a[i] * b[i];
    }
    sum
}

fn matrix(weights: &[f32], x: &[f32]) -> Vec<f32> {
    weights.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

fn rms_norm(x: &[f32], weights: &[f32]) -> Vec<f32> {
    let mean = dot(x, x) / 32.0;
    let r = 1.0 / (mean + 1e-5).sqrt();
    x.iter().zip(weights).map(|(x, w)| x * r * w).collect()
}

/// Turns each pair of each head of 8 by its angle at `position`.
fn rotate(row: &mut [f32], position: usize) {
    const COS: [f64; 4] = [0.5403023058681398, 0.9950041652780258, 0.9999500004166653, 0.9999995000000417];
    const SIN: [f64; 4] =
        [0.8414709848078965, 0.09983341664682815, 0.009999833334166664, 0.0009999998333333417];
    for head in row.chunks_exact_mut(8) {
        for i in 0..4 {
            let (mut c, mut s) = (1.0_f64, 0.0_f64);
            for _ in 0..position {
                let next = c * COS[i] - s * SIN[i];
                s = s * COS[i] + c * SIN[i];
                c = next;
            }
            let (c, s) = (c as f32, s as f32);
            let (a, b) = (head[2 * i], head[2 * i + 1]);
            head[2 * i] = a * c - b * s;
            head[2 * i + 1] = a * s + b * c;
        }
    }
}

#[expect(clippy::approx_constant, reason = "written as the definition has them")]
pub(super) fn exp(x: f32) -> f32 {
    let mut x = f64::from(x);
    if x < -87.0 {
        return 0.0;
    }
    if x > 88.0 {
        x = 88.0;
    }
    let k = (x * 1.4426950408889634 + 0.5).floor();
    let r = x - k * 0.6931471805599453;
    let mut sum = 0.0;
    for n in (0..=13_u64).rev() {
        let factorial: u64 = (1..=n).product();
        sum = sum * r + 1.0 / factorial as f64;
    }
    let mut power = 1.0;
    for _ in 0..k.abs() as u32 {
        power *= if k < 0.0 { 0.5 } else { 2.0 };
    }
    (sum * power) as f32
}
