//! A GGUF file: what it says of its model, and its tensors one by one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
use sha2::{Digest as _, Sha256};

use super::CandleError;
use crate::adapter::Digest;

/// Most layers, heads and positions that are believed, and the widest row.
const LAYERS_MAX: usize = 1024;
const HEADS_MAX: usize = 1024;
const POSITIONS_MAX: usize = 1 << 20;
const WIDTH_MAX: usize = 1 << 18;
const VOCAB_MAX: usize = 1 << 22;

/// Shape of a Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaShape {
    /// Layers.
    pub layers: usize,
    /// Width of a row of activations.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the feed-forward block.
    pub d_ff: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Most positions.
    pub max_positions: usize,
    /// Added to the mean square before the root.
    pub norm_eps: f32,
    /// Base of the rotation's angles.
    pub rope_base: f32,
    /// The output matrix is the embedding.
    pub tied: bool,
}

/// An opened file. Its tensors are read when they are asked for.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    reader: BufReader<File>,
    content: Content,
    digest: Digest,
    shape: LlamaShape,
}

impl Gguf {
    /// Reads the file once for its SHA-256, then what it says of its model, and checks names and shapes of all tensors.
    ///
    /// # Errors
    /// [`CandleError`]: nothing of a file that is not wholly understood is used.
    pub fn open(path: &Path) -> Result<Self, CandleError> {
        let failed =
            |error: io::Error| CandleError::File { path: path.to_path_buf(), error: error.to_string() };
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = [0; 4];
        let read = file.read_exact(&mut magic);
        if read.is_err() || &magic != b"GGUF" {
            return Err(CandleError::NotGguf { path: path.to_path_buf() });
        }
        file.rewind().map_err(failed)?;
        let mut hash = Sha256::new();
        io::copy(&mut file, &mut hash).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let content = contain(|| Content::read(&mut reader)).map_err(|error| match error {
            CandleError::Backend(text) => CandleError::Corrupt(text),
            other => other,
        })?;
        let shape = shape(&content)?;
        check_tensors(&content, &shape)?;
        Ok(Self { path: path.to_path_buf(), reader, content, digest: hash.finalize().into(), shape })
    }

    /// SHA-256 of the file.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Shape of its model.
    #[must_use]
    pub const fn shape(&self) -> &LlamaShape {
        &self.shape
    }

    /// What the file says beside its tensors.
    pub(super) const fn content(&self) -> &Content {
        &self.content
    }

    /// Reads a tensor of the model.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Arc<QTensor>, CandleError> {
        let Self { reader, content, path, .. } = self;
        if !content.tensor_infos.contains_key(name) {
            return Err(CandleError::MissingTensor { name: name.into() });
        }
        let tensor = contain(|| content.tensor(reader, name, &Device::Cpu))
            .map_err(|error| CandleError::Corrupt(format!("{}: tensor {name}: {error}", path.display())))?;
        Ok(Arc::new(tensor))
    }
}

/// Runs the backend. It is written for files that are what they say, and may panic on others.
pub(super) fn contain<T>(run: impl FnOnce() -> candle_core::Result<T>) -> Result<T, CandleError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => Ok(result?),
        Err(_) => Err(CandleError::Backend("the backend gave up on this input".into())),
    }
}

/// Tensors of one layer, with their shape, rows first.
pub(super) fn layer_tensors(layer: usize, shape: &LlamaShape) -> [(String, Vec<usize>); 9] {
    let (d, ff) = (shape.d_model, shape.d_ff);
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    [
        ("attn_norm", vec![d]),
        ("attn_q", vec![q, d]),
        ("attn_k", vec![kv, d]),
        ("attn_v", vec![kv, d]),
        ("attn_output", vec![d, q]),
        ("ffn_norm", vec![d]),
        ("ffn_gate", vec![ff, d]),
        ("ffn_up", vec![ff, d]),
        ("ffn_down", vec![d, ff]),
    ]
    .map(|(name, dims)| (format!("blk.{layer}.{name}.weight"), dims))
}

/// The matrix from tokens to rows.
pub(super) const EMBED: &str = "token_embd.weight";
/// The norm before the output matrix.
pub(super) const OUTPUT_NORM: &str = "output_norm.weight";
/// The matrix from a row to logits; the embedding when there is none.
pub(super) const OUTPUT: &str = "output.weight";

/// Every tensor that the model has must be there with its shape, and no other may be: one that is not understood, a bias
/// or a table of scaled angles, would be left out of the result without a sign.
fn check_tensors(content: &Content, shape: &LlamaShape) -> Result<(), CandleError> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut expect = |name: String, dims: Vec<usize>| -> Result<(), CandleError> {
        let Some(info) = content.tensor_infos.get(&name) else {
            return Err(CandleError::MissingTensor { name });
        };
        if info.shape.dims() != dims {
            let found = info.shape.dims().to_vec();
            return Err(CandleError::TensorShape { name, found, expected: dims });
        }
        let block = info.ggml_dtype.block_size();
        if dims.last().is_some_and(|row| !row.is_multiple_of(block)) {
            return Err(CandleError::Corrupt(format!(
                "{name}: rows are no multiple of the block of {block}"
            )));
        }
        known.insert(name);
        Ok(())
    };
    expect(EMBED.into(), vec![shape.vocab, shape.d_model])?;
    expect(OUTPUT_NORM.into(), vec![shape.d_model])?;
    if !shape.tied {
        expect(OUTPUT.into(), vec![shape.vocab, shape.d_model])?;
    }
    for layer in 0..shape.layers {
        for (name, dims) in layer_tensors(layer, shape) {
            expect(name, dims)?;
        }
    }
    let mut others: Vec<&String> = content.tensor_infos.keys().collect();
    others.retain(|name| !known.contains(*name));
    others.sort();
    match others.first() {
        Some(name) => Err(CandleError::Unsupported(format!("tensor {name} is no part of a dense Llama"))),
        None => Ok(()),
    }
}

fn shape(content: &Content) -> Result<LlamaShape, CandleError> {
    let architecture = string(content, "general.architecture")?;
    if architecture != "llama" {
        return Err(CandleError::Architecture { found: architecture.chars().take(40).collect() });
    }
    for key in ["llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        if content.metadata.contains_key(key) {
            return Err(CandleError::Unsupported(format!("{key}: scaled rotation")));
        }
    }
    let size = |key: &'static str, max: usize| -> Result<usize, CandleError> {
        let value = number(content, key)?.ok_or_else(|| CandleError::MissingKey { key: key.into() })?;
        if (1..=max).contains(&value) {
            Ok(value)
        } else {
            Err(CandleError::Key { key: key.into(), text: format!("{value} is not from 1 to {max}") })
        }
    };
    let layers = size("llama.block_count", LAYERS_MAX)?;
    let d_model = size("llama.embedding_length", WIDTH_MAX)?;
    let heads = size("llama.attention.head_count", HEADS_MAX)?;
    let kv_heads = size("llama.attention.head_count_kv", HEADS_MAX)?;
    let rotated = size("llama.rope.dimension_count", WIDTH_MAX)?;
    let d_ff = size("llama.feed_forward_length", WIDTH_MAX)?;
    let max_positions = size("llama.context_length", POSITIONS_MAX)?;
    let wrong = |key: &str, text: String| CandleError::Key { key: key.into(), text };
    if !heads.is_multiple_of(kv_heads) {
        return Err(wrong(
            "llama.attention.head_count_kv",
            format!("{kv_heads} does not divide {heads} heads"),
        ));
    }
    if !d_model.is_multiple_of(heads) {
        return Err(wrong(
            "llama.attention.head_count",
            format!("{heads} does not divide a row of {d_model}"),
        ));
    }
    let head_dim = d_model / heads;
    if rotated != head_dim || !head_dim.is_multiple_of(2) {
        let text = format!("{rotated} of {head_dim}: only whole heads of even width are rotated");
        return Err(wrong("llama.rope.dimension_count", text));
    }
    for key in ["llama.attention.key_length", "llama.attention.value_length"] {
        if number(content, key)?.is_some_and(|width| width != head_dim) {
            return Err(CandleError::Unsupported(format!("{key} other than {head_dim}")));
        }
    }
    let real = |key: &str| -> Result<Option<f32>, CandleError> {
        match content.metadata.get(key) {
            None => Ok(None),
            Some(Value::F32(value)) if value.is_finite() && *value > 0.0 => Ok(Some(*value)),
            Some(_) => Err(wrong(key, "not a positive 32-bit float".into())),
        }
    };
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    let norm_eps = real(epsilon)?.ok_or_else(|| CandleError::MissingKey { key: epsilon.into() })?;
    let rope_base = real("llama.rope.freq_base")?.unwrap_or(10_000.0);
    let embed = content.tensor_infos.get(EMBED);
    let embed = embed.ok_or_else(|| CandleError::MissingTensor { name: EMBED.into() })?;
    let vocab = match embed.shape.dims() {
        &[vocab, _] if (1..=VOCAB_MAX).contains(&vocab) => vocab,
        dims => {
            let (name, found) = (EMBED.into(), dims.to_vec());
            return Err(CandleError::TensorShape { name, found, expected: vec![VOCAB_MAX, d_model] });
        }
    };
    if let Some(said) = number(content, "llama.vocab_size")?
        && said != vocab
    {
        return Err(wrong("llama.vocab_size", format!("{said}, but the embedding has {vocab} rows")));
    }
    let tied = !content.tensor_infos.contains_key(OUTPUT);
    Ok(LlamaShape {
        layers,
        d_model,
        heads,
        kv_heads,
        head_dim,
        d_ff,
        vocab,
        max_positions,
        norm_eps,
        rope_base,
        tied,
    })
}

/// A text of the file's own description.
pub(super) fn string<'c>(content: &'c Content, key: &str) -> Result<&'c str, CandleError> {
    match content.metadata.get(key) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(CandleError::Key { key: key.into(), text: "not a string".into() }),
        None => Err(CandleError::MissingKey { key: key.into() }),
    }
}

/// A size or a token of the file's own description.
pub(super) fn number(content: &Content, key: &str) -> Result<Option<usize>, CandleError> {
    let wrong = || CandleError::Key { key: key.into(), text: "not a whole number".into() };
    let value = match content.metadata.get(key) {
        None => return Ok(None),
        Some(Value::U8(value)) => u64::from(*value),
        Some(Value::U16(value)) => u64::from(*value),
        Some(Value::U32(value)) => u64::from(*value),
        Some(Value::U64(value)) => *value,
        Some(Value::I32(value)) => u64::try_from(*value).map_err(|_| wrong())?,
        Some(Value::I64(value)) => u64::try_from(*value).map_err(|_| wrong())?,
        Some(_) => return Err(wrong()),
    };
    usize::try_from(value).map(Some).map_err(|_| wrong())
}
