//! The forward of a dense Llama over the layers `from..to`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module as _, Result as Candle, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::rope_i;

use super::CandleError;
use super::gguf::{EMBED, Gguf, LlamaShape, OUTPUT, OUTPUT_NORM, contain, layer_tensors};
use crate::adapter::{Digest, Sampling};
use crate::shard::{Input, ModelError, ModelFacts, Output, ShardModel, pick};

/// Rows that a matrix takes at once, where that changes no bit. Exactly this many, since that is what was checked.
const GROUP: usize = 8;

/// The layers of a shard. It holds no KV and may be used by many keys.
#[derive(Debug)]
pub struct CandleModel {
    shape: LlamaShape,
    layers: Range<usize>,
    digest: Digest,
    embed: Option<Arc<QTensor>>,
    blocks: Vec<Block>,
    head: Option<Head>,
    /// Angle from one position to the next of each pair, `[1, head_dim / 2]`.
    angles: Tensor,
}

/// What one key remembers: keys and values of its positions, for each layer of the shard.
#[derive(Debug)]
pub struct CandleKv {
    /// `[kv_heads, capacity, head_dim]` each, made with the first row; rows from `len` on mean nothing. The system gives
    /// the memory when a row is first written.
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
    capacity: usize,
}

impl CandleKv {
    /// Positions it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions it can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// What it holds: layer by layer, position by position, key then value.
    ///
    /// # Errors
    /// [`CandleError::Backend`].
    pub fn values(&self) -> Result<Vec<f32>, CandleError> {
        let mut out = Vec::new();
        for (keys, values) in &self.layers {
            for position in 0..self.len {
                for side in [keys, values] {
                    out.extend(side.narrow(1, position, 1)?.flatten_all()?.to_vec1::<f32>()?);
                }
            }
        }
        Ok(out)
    }
}

impl CandleModel {
    /// Reads the tensors of layers `layers` of a file: with the first one the embedding, with the last one the output
    /// matrix.
    ///
    /// # Errors
    /// [`CandleError`].
    pub fn load(path: &Path, layers: Range<usize>) -> Result<Self, CandleError> {
        Self::read(&mut Gguf::open(path)?, layers)
    }

    /// The same from a file that is open already.
    ///
    /// # Errors
    /// [`CandleError`].
    pub fn read(file: &mut Gguf, layers: Range<usize>) -> Result<Self, CandleError> {
        let shape = file.shape().clone();
        if layers.is_empty() || layers.end > shape.layers {
            let Range { start: from, end: to } = layers;
            return Err(CandleError::Layers { from, to, layers: shape.layers });
        }
        let (first, last) = (layers.start == 0, layers.end == shape.layers);
        let mut agreed = Agreed::default();
        let mut blocks = Vec::with_capacity(layers.len());
        for layer in layers.clone() {
            let names = layer_tensors(layer, &shape).map(|(name, _)| name);
            let [attn_norm, wq, wk, wv, wo, ffn_norm, w_gate, w_up, w_down] = names;
            blocks.push(Block {
                attn_norm: norm(file, &attn_norm)?,
                wq: matrix(file, &wq, &mut agreed)?,
                wk: matrix(file, &wk, &mut agreed)?,
                wv: matrix(file, &wv, &mut agreed)?,
                wo: matrix(file, &wo, &mut agreed)?,
                ffn_norm: norm(file, &ffn_norm)?,
                w_gate: matrix(file, &w_gate, &mut agreed)?,
                w_up: matrix(file, &w_up, &mut agreed)?,
                w_down: matrix(file, &w_down, &mut agreed)?,
            });
        }
        let embed = if first || (last && shape.tied) { Some(file.tensor(EMBED)?) } else { None };
        let head = if last {
            let output = match &embed {
                Some(embed) if shape.tied => embed.clone(),
                _ => file.tensor(OUTPUT)?,
            };
            Some(Head { norm: norm(file, OUTPUT_NORM)?, output: contain(|| QMatMul::from_arc(output))? })
        } else {
            None
        };
        let angles = contain(|| angles(&shape))?;
        let embed = if first { embed } else { None };
        Ok(Self { shape, layers, digest: file.digest(), embed, blocks, head, angles })
    }

    /// SHA-256 of the whole file, the same at every shard of the model.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Shape of the whole model.
    #[must_use]
    pub const fn shape(&self) -> &LlamaShape {
        &self.shape
    }

    /// The layers it computes.
    #[must_use]
    pub const fn layers(&self) -> &Range<usize> {
        &self.layers
    }

    /// How many matrices take rows in groups on this machine, and how many there are.
    #[must_use]
    pub fn matrices_in_groups(&self) -> (usize, usize) {
        let all: Vec<&Matrix> = self.blocks.iter().flat_map(Block::matrices).collect();
        (all.iter().filter(|matrix| matrix.in_groups).count(), all.len())
    }

    /// KV for at most `capacity` positions, or as many as the model has.
    #[must_use]
    pub fn kv(&self, capacity: usize) -> CandleKv {
        CandleKv { layers: Vec::new(), len: 0, capacity: capacity.min(self.shape.max_positions) }
    }

    /// Runs the layers over rows that follow those of `kv`. Gives the activations after the last layer of the shard,
    /// row after row, or from the last layer of the model the logits after the last row. On an error `kv` holds what
    /// it held.
    ///
    /// # Errors
    /// [`CandleError::Input`], [`CandleError::Backend`].
    pub fn compute(&self, kv: &mut CandleKv, rows: Input<'_>) -> Result<Vec<f32>, CandleError> {
        let (d_model, vocab) = (self.shape.d_model, self.shape.vocab);
        let refuse = |text: String| Err(CandleError::Input(text));
        let count = match (rows, &self.embed) {
            (Input::Tokens(tokens), Some(_)) => {
                if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
                    return refuse(format!("token {token} is not in the vocabulary of {vocab}"));
                }
                tokens.len()
            }
            (Input::Hidden(values), None) => {
                if !values.len().is_multiple_of(d_model) {
                    return refuse(format!("{} values are no rows of {d_model}", values.len()));
                }
                values.len() / d_model
            }
            (Input::Tokens(_), None) => return refuse("tokens, but the first layer is elsewhere".into()),
            (Input::Hidden(_), Some(_)) => return refuse("activations, but the first layer is here".into()),
        };
        if count == 0 {
            return refuse("no rows".into());
        }
        if ![0, self.blocks.len()].contains(&kv.layers.len()) {
            return refuse("KV of other layers".into());
        }
        if count > kv.capacity.saturating_sub(kv.len) {
            return refuse(format!("{count} rows after {}: there is room for {}", kv.len, kv.capacity));
        }
        let out = contain(|| {
            if kv.layers.is_empty() {
                let LlamaShape { kv_heads, head_dim, .. } = self.shape;
                let side = || Tensor::zeros((kv_heads, kv.capacity, head_dim), DType::F32, &Device::Cpu);
                kv.layers = self.blocks.iter().map(|_| Ok((side()?, side()?))).collect::<Candle<Vec<_>>>()?;
            }
            let mut x = match (rows, &self.embed) {
                (Input::Tokens(tokens), Some(embed)) => {
                    embed.embedding(&Tensor::new(tokens, &Device::Cpu)?)?
                }
                (Input::Hidden(values), _) => Tensor::from_slice(values, (count, d_model), &Device::Cpu)?,
                (Input::Tokens(_), None) => candle_core::bail!("no embedding here"),
            };
            let places = (kv.len..kv.len + count).map(|position| self.place(position));
            let places = places.collect::<Candle<Vec<_>>>()?;
            for (block, (keys, values)) in self.blocks.iter().zip(&kv.layers) {
                x = self.block(block, keys, values, &places, &x)?;
            }
            if let Some(head) = &self.head {
                let last = x.narrow(0, count - 1, 1)?;
                x = head.output.forward(&rms_norm(&last, &head.norm, self.shape.norm_eps)?)?;
            }
            x.flatten_all()?.to_vec1::<f32>()
        })?;
        if !out.iter().all(|value| value.is_finite()) {
            return Err(CandleError::Backend("a result is not finite".into()));
        }
        kv.len += count;
        Ok(out)
    }

    fn place(&self, position: usize) -> Candle<Place> {
        let angles = self.angles.broadcast_mul(&Tensor::new(&[[position as f32]], &Device::Cpu)?)?;
        Ok(Place { position, cos: angles.cos()?, sin: angles.sin()? })
    }

    fn block(
        &self,
        block: &Block,
        keys: &Tensor,
        values: &Tensor,
        places: &[Place],
        x: &Tensor,
    ) -> Candle<Tensor> {
        let normed = rms_norm(x, &block.attn_norm, self.shape.norm_eps)?;
        let (q, k, v) = (block.wq.apply(&normed)?, block.wk.apply(&normed)?, block.wv.apply(&normed)?);
        // A row sees the rows before it and itself; row by row, so that the sums have the same terms in any chunk.
        let mut attended = Vec::with_capacity(places.len());
        for (row, place) in places.iter().enumerate() {
            let (q, k, v) = (q.narrow(0, row, 1)?, k.narrow(0, row, 1)?, v.narrow(0, row, 1)?);
            attended.push(self.attend(keys, values, place, &q, &k, &v)?);
        }
        let attended = stack(attended)?;
        let x = (block.wo.apply(&attended)? + x)?;
        let normed = rms_norm(&x, &block.ffn_norm, self.shape.norm_eps)?;
        let (gate, up) = (block.w_gate.apply(&normed)?, block.w_up.apply(&normed)?);
        block.w_down.apply(&(silu(&gate)? * up)?)? + x
    }

    /// Attention of the row at `place`, whose key and value are added to KV: `[1, heads · head_dim]`.
    fn attend(
        &self,
        keys: &Tensor,
        values: &Tensor,
        place: &Place,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> Candle<Tensor> {
        let LlamaShape { heads, kv_heads, head_dim, .. } = self.shape;
        let Place { position, cos, sin } = place;
        let position = *position;
        let q = rope_i(&q.reshape((1, heads, 1, head_dim))?, cos, sin)?;
        let k = rope_i(&k.reshape((1, kv_heads, 1, head_dim))?, cos, sin)?;
        keys.slice_set(&k.reshape((kv_heads, 1, head_dim))?, 1, position)?;
        values.slice_set(&v.reshape((kv_heads, 1, head_dim))?, 1, position)?;
        let keys = keys.narrow(1, 0, position + 1)?.transpose(1, 2)?;
        let values = values.narrow(1, 0, position + 1)?;
        // Query heads that share a key head take turns: all key heads in one product, and no copy of KV.
        let share = heads / kv_heads;
        let q = q.reshape((kv_heads, share, head_dim))?;
        let turns = |left: &Tensor, right: &Tensor| -> Candle<Tensor> {
            let parts = (0..share).map(|turn| left.narrow(1, turn, 1)?.matmul(right));
            let parts = parts.collect::<Candle<Vec<_>>>()?;
            if share == 1 { Ok(parts[0].clone()) } else { Tensor::cat(&parts, 1) }
        };
        let scores = (turns(&q, &keys)? / (head_dim as f64).sqrt())?;
        turns(&softmax_last_dim(&scores)?, &values)?.reshape((1, heads * head_dim))
    }
}

impl ShardModel for CandleModel {
    type Kv = CandleKv;

    fn facts(&self) -> ModelFacts {
        // The sizes of a shape are checked when the file is opened, and far below.
        let u32_of = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        ModelFacts {
            layers: (u32_of(self.layers.start), u32_of(self.layers.end)),
            model_layers: u32_of(self.shape.layers),
            model_digest: self.digest,
            d_model: u32_of(self.shape.d_model),
            vocab: u32_of(self.shape.vocab),
            max_positions: u32_of(self.shape.max_positions),
        }
    }

    fn new_kv(&self, max_positions: u32) -> CandleKv {
        self.kv(max_positions as usize)
    }

    fn rows(&self, kv: &CandleKv) -> u32 {
        u32::try_from(kv.len).unwrap_or(u32::MAX)
    }

    fn truncate(&self, kv: &mut CandleKv, rows: u32) {
        kv.len = kv.len.min(rows as usize);
    }

    fn forward(
        &self,
        kv: &mut CandleKv,
        position: u32,
        input: Input<'_>,
        sampling: Sampling,
    ) -> Result<Output, ModelError> {
        let before = self.rows(kv);
        if position != before {
            return Err(ModelError::Input(format!("position {position}, but {before} rows are held")));
        }
        let out = self.compute(kv, input).map_err(|error| match error {
            CandleError::Input(text) => ModelError::Input(text),
            other => ModelError::Compute(other.to_string()),
        })?;
        if self.head.is_none() {
            return Ok(Output::Hidden(out));
        }
        match pick(&out, sampling, self.rows(kv)) {
            Ok(token) => Ok(Output::Token { token, logits: out }),
            Err(error) => {
                self.truncate(kv, before);
                Err(error)
            }
        }
    }
}

/// Where a row stands, and how far its pairs are rotated there: `[1, head_dim / 2]`.
struct Place {
    position: usize,
    cos: Tensor,
    sin: Tensor,
}

#[derive(Debug)]
struct Block {
    attn_norm: Tensor,
    wq: Matrix,
    wk: Matrix,
    wv: Matrix,
    wo: Matrix,
    ffn_norm: Tensor,
    w_gate: Matrix,
    w_up: Matrix,
    w_down: Matrix,
}

impl Block {
    fn matrices(&self) -> [&Matrix; 7] {
        let Self { attn_norm: _, wq, wk, wv, wo, ffn_norm: _, w_gate, w_up, w_down } = self;
        [wq, wk, wv, wo, w_gate, w_up, w_down]
    }
}

#[derive(Debug)]
struct Head {
    norm: Tensor,
    output: QMatMul,
}

#[derive(Debug)]
struct Matrix {
    weights: QMatMul,
    /// [`GROUP`] rows at once give the bits of row by row.
    in_groups: bool,
}

impl Matrix {
    /// `[rows, in]` to `[rows, out]`.
    fn apply(&self, x: &Tensor) -> Candle<Tensor> {
        let rows = x.dim(0)?;
        if rows == 1 {
            return self.weights.forward(x);
        }
        let mut parts = Vec::new();
        let mut row = 0;
        while row < rows {
            let count = if self.in_groups && rows - row >= GROUP { GROUP } else { 1 };
            parts.push(self.weights.forward(&x.narrow(0, row, count)?)?);
            row += count;
        }
        stack(parts)
    }
}

/// One below the other.
fn stack(mut parts: Vec<Tensor>) -> Candle<Tensor> {
    if parts.len() == 1 { Ok(parts.remove(0)) } else { Tensor::cat(&parts, 0) }
}

/// Kinds of matrices that were checked: type, rows and columns.
#[derive(Default)]
struct Agreed(BTreeMap<(u32, usize, usize), bool>);

impl Agreed {
    /// Whether [`GROUP`] rows at once give the bits of row by row, for a matrix of this kind on this machine. Sums in
    /// another order differ in some bit of some of the thousands of results.
    fn in_groups(&mut self, tensor: &QTensor, weights: &QMatMul) -> Candle<bool> {
        // Plain floats: candle picks the order of the sum by the number of rows.
        if matches!(tensor.dtype(), GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16) {
            return Ok(false);
        }
        let (out, width) = tensor.shape().dims2()?;
        let kind = (tensor.dtype() as u32, out, width);
        if let Some(known) = self.0.get(&kind) {
            return Ok(*known);
        }
        // Any values will do that are not alike: a Weyl sequence over -1..1.
        let values: Vec<f32> = (0..GROUP * width)
            .map(|i| (i as f64 * 0.618_033_988_749_894_8).fract().mul_add(2.0, -1.0) as f32)
            .collect();
        let rows = Tensor::from_vec(values, (GROUP, width), &Device::Cpu)?;
        let together = weights.forward(&rows)?;
        let mut agreed = true;
        for row in 0..GROUP {
            let alone = weights.forward(&rows.narrow(0, row, 1)?)?.flatten_all()?.to_vec1::<f32>()?;
            let here = together.narrow(0, row, 1)?.flatten_all()?.to_vec1::<f32>()?;
            agreed &= alone.iter().map(|v| v.to_bits()).eq(here.iter().map(|v| v.to_bits()));
        }
        self.0.insert(kind, agreed);
        Ok(agreed)
    }
}

fn matrix(file: &mut Gguf, name: &str, agreed: &mut Agreed) -> Result<Matrix, CandleError> {
    let tensor = file.tensor(name)?;
    contain(|| {
        let weights = QMatMul::from_arc(tensor.clone())?;
        let in_groups = agreed.in_groups(&tensor, &weights)?;
        Ok(Matrix { weights, in_groups })
    })
}

fn norm(file: &mut Gguf, name: &str) -> Result<Tensor, CandleError> {
    let tensor = file.tensor(name)?;
    contain(|| tensor.dequantize(&Device::Cpu))
}

fn angles(shape: &LlamaShape) -> Candle<Tensor> {
    let width = shape.head_dim;
    let angle = |i: usize| 1.0 / shape.rope_base.powf(i as f32 / width as f32);
    Tensor::from_vec((0..width).step_by(2).map(angle).collect::<Vec<f32>>(), (1, width / 2), &Device::Cpu)
}
