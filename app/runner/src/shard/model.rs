//! The compute side of a shard: what a model is to [`super::LocalShard`], and how a token is picked.

use crate::adapter::{Digest, Sampling};

/// What a model, or its part at one shard, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Layers `from..to` held here.
    pub layers: (u32, u32),
    /// Layers of the whole model.
    pub model_layers: u32,
    /// Identifies the whole model, the same at each of its shards.
    pub model_digest: Digest,
    /// Width of a row of activations.
    pub d_model: u32,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Most positions of a session.
    pub max_positions: u32,
}

/// What goes into a forward pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Input<'a> {
    /// Token ids, for a model part from layer 0.
    Tokens(&'a [u32]),
    /// Rows of `d_model` activations, one after the other, for every later part.
    Hidden(&'a [f32]),
}

/// What comes out.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Rows of `d_model` activations, as many as went in.
    Hidden(Vec<f32>),
    /// From the part with the last layer, for the last row only.
    Token {
        /// What [`pick`] gave.
        token: u32,
        /// The logits it was picked from, `vocab` values.
        logits: Vec<f32>,
    },
}

/// Why a forward pass gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The order does not fit the model or the KV.
    #[error("input: {0}")]
    Input(String),
    /// The computation went wrong.
    #[error("compute: {0}")]
    Compute(String),
}

/// Layers of a model with KV. The same input after the same history gives the same bits, whatever the chunks.
pub trait ShardModel: Send + Sync + 'static {
    /// Keys and values of one session.
    type Kv: Send + 'static;

    /// What it is; never changes.
    fn facts(&self) -> ModelFacts;

    /// Empty KV for up to `max_positions` rows.
    fn new_kv(&self, max_positions: u32) -> Self::Kv;

    /// Rows held.
    fn rows(&self, kv: &Self::Kv) -> u32;

    /// Forgets every row from `rows` on.
    fn truncate(&self, kv: &mut Self::Kv, rows: u32);

    /// Runs the rows of `input` in order, the first at `position`, which is the number of rows held. A prompt runs row
    /// by row through the code of a single token, or bit-equal to it. Tokens are picked with [`pick`], which is given
    /// the position of the token to come. Never panics.
    ///
    /// # Errors
    /// Any [`ModelError`]; the KV then holds what it held before, if need be by [`ShardModel::truncate`].
    fn forward(
        &self,
        kv: &mut Self::Kv,
        position: u32,
        input: Input<'_>,
        sampling: Sampling,
    ) -> Result<Output, ModelError>;
}

/// Number `index` of the splitmix64 sequence that starts at `state`; a counter, so no draw depends on another.
#[must_use]
pub fn splitmix64(state: u64, index: u64) -> u64 {
    let mut z = state.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// e^x with the same bits everywhere: no libm, 64-bit floats inside (runner-details 3). 0 below −87, and above 88 as
/// at 88.
#[inline]
#[must_use]
pub fn exp_f32(x: f32) -> f32 {
    exp_lanes([x])[0]
}

/// [`exp_f32`] of each lane. Every stage is a loop without branches over all lanes, which the compiler vectorises.
#[inline]
#[must_use]
pub fn exp_lanes<const N: usize>(x: [f32; N]) -> [f32; N] {
    /// 1/n! for n = 13..0.
    const TERMS: [f64; 14] = {
        let mut terms = [1.0; 14];
        let mut n = 0;
        while n <= 13 {
            let mut factorial: u64 = 1;
            let mut i = 2;
            while i <= n {
                factorial *= i;
                i += 1;
            }
            terms[13 - n as usize] = 1.0 / factorial as f64;
            n += 1;
        }
        terms
    };
    /// 1.5·2^52: adding it rounds to an integer, which then stands in the low bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let within = x.map(|x| {
        let x = f64::from(x);
        let x = if x > 88.0 { 88.0 } else { x };
        if x < -87.0 { -87.0 } else { x }
    });
    let k = within.map(|x| {
        let y = x * std::f64::consts::LOG2_E + 0.5;
        let near = (y + MAGIC) - MAGIC;
        near - if near > y { 1.0 } else { 0.0 }
    });
    let mut r = [0.0; N];
    for i in 0..N {
        r[i] = within[i] - k[i] * std::f64::consts::LN_2;
    }
    let mut sum = [0.0; N];
    for term in &TERMS {
        for i in 0..N {
            sum[i] = sum[i] * r[i] + term;
        }
    }
    let mut out = [0.0; N];
    for i in 0..N {
        let power = f64::from_bits((k[i] + MAGIC).to_bits().wrapping_add(1023) << 52);
        let e = (sum[i] * power) as f32;
        out[i] = if x[i] < -87.0 { 0.0 } else { e };
    }
    out
}

/// The token after the logits. Greedy: the first of the greatest. Otherwise a draw from their softmax that depends on
/// the seed and on `position`, that of the token to come, and on nothing else: a second run draws the same.
///
/// # Errors
/// [`ModelError::Compute`] for no logits or one that is not finite.
pub fn pick(logits: &[f32], sampling: Sampling, position: u32) -> Result<u32, ModelError> {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if !logit.is_finite() {
            return Err(ModelError::Compute(format!("logit {id} is {logit}")));
        }
        if *logit > logits[best] {
            best = id;
        }
    }
    let Some(max) = logits.get(best) else {
        return Err(ModelError::Compute("no logits".to_owned()));
    };
    if !sampling.greedy {
        let weights = || logits.iter().map(|logit| f64::from(exp_f32(logit - max)));
        let total: f64 = weights().fold(0.0, |sum, weight| sum + weight);
        // 53 bits: every value is exact, and the draw is below 1.
        let unit = (splitmix64(sampling.seed, u64::from(position)) >> 11) as f64 / 9_007_199_254_740_992.0;
        let mut sum = 0.0;
        for (id, weight) in weights().enumerate() {
            sum += weight;
            if sum > unit * total {
                best = id;
                break;
            }
        }
    }
    u32::try_from(best).map_err(|_| ModelError::Compute("too many logits".to_owned()))
}
