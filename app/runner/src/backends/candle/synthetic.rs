//! Small models from a seed, for tests that need no download.

use std::io::Cursor;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use sha2::{Digest as _, Sha256};

use super::CandleError;
use super::gguf::{EMBED, LlamaShape, OUTPUT, OUTPUT_NORM, contain, layer_tensors};
use super::tokenizer::{BYTE_CHARS, IM_END, IM_START};

/// Most layers of a synthetic model.
const LAYERS_MAX: usize = 64;

/// How a synthetic model keeps its matrices; norms are always plain floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// 32-bit floats.
    #[default]
    F32,
    /// Blocks of 32 with 8 bits a value.
    Q8_0,
    /// Blocks of 32 with 4 bits a value.
    Q4_0,
}

/// What makes a synthetic model. Equal values give equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synthetic {
    /// Seed of the weights.
    pub seed: u64,
    /// Layers, 1 to 64.
    pub layers: usize,
    /// How the matrices are kept.
    pub weights: Weights,
}

impl Default for Synthetic {
    /// Seed 13, 2 layers, plain floats.
    fn default() -> Self {
        Self { seed: 13, layers: 2, weights: Weights::F32 }
    }
}

impl Synthetic {
    /// 64 wide, 4 heads over 2 of keys and values, 512 positions, a vocabulary of the 256 bytes and 3 tokens for
    /// conversations.
    const fn shape(&self) -> LlamaShape {
        LlamaShape {
            layers: self.layers,
            d_model: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            d_ff: 128,
            vocab: 259,
            max_positions: 512,
            norm_eps: 1e-5,
            rope_base: 10_000.0,
            tied: false,
        }
    }

    /// The model as the bytes of a GGUF file.
    ///
    /// # Errors
    /// [`CandleError::Layers`], [`CandleError::Backend`].
    pub fn bytes(&self) -> Result<Vec<u8>, CandleError> {
        if !(1..=LAYERS_MAX).contains(&self.layers) {
            return Err(CandleError::Layers { from: 0, to: self.layers, layers: LAYERS_MAX });
        }
        let shape = self.shape();
        let mut tensors = vec![self.tensor(EMBED, &[shape.vocab, shape.d_model])?];
        for layer in 0..shape.layers {
            for (name, dims) in layer_tensors(layer, &shape) {
                tensors.push(self.tensor(&name, &dims)?);
            }
        }
        tensors.push(self.tensor(OUTPUT_NORM, &[shape.d_model])?);
        tensors.push(self.tensor(OUTPUT, &[shape.vocab, shape.d_model])?);
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let described = describe(&shape);
        let described: Vec<(&str, &Value)> = described.iter().map(|(key, value)| (*key, value)).collect();
        let mut out = Cursor::new(Vec::new());
        contain(|| gguf_file::write(&mut out, &described, &tensors))?;
        Ok(out.into_inner())
    }

    fn tensor(&self, name: &str, dims: &[usize]) -> Result<(String, QTensor), CandleError> {
        // Rows of any width keep their length; norms stay near 1.
        let (offset, scale, dtype) = match dims {
            [_] => (1.0, 0.125, GgmlDType::F32),
            _ if name == EMBED => (0.0, 1.0, self.dtype()),
            [.., width] => (0.0, 1.7 / (*width as f32).sqrt(), self.dtype()),
            [] => (0.0, 0.0, GgmlDType::F32),
        };
        let values: Vec<f32> =
            stream(self.seed, name).take(dims.iter().product()).map(|unit| offset + scale * unit).collect();
        let tensor = contain(|| QTensor::quantize(&Tensor::from_vec(values, dims, &Device::Cpu)?, dtype))?;
        Ok((name.to_owned(), tensor))
    }

    const fn dtype(&self) -> GgmlDType {
        match self.weights {
            Weights::F32 => GgmlDType::F32,
            Weights::Q8_0 => GgmlDType::Q8_0,
            Weights::Q4_0 => GgmlDType::Q4_0,
        }
    }
}

/// Writes a synthetic model to a file.
///
/// # Errors
/// [`CandleError::File`] and those of [`Synthetic::bytes`].
pub fn make_model(path: &Path, model: &Synthetic) -> Result<(), CandleError> {
    let bytes = model.bytes()?;
    std::fs::write(path, bytes)
        .map_err(|error| CandleError::File { path: path.to_path_buf(), error: error.to_string() })
}

/// Values from -1 to 1 for a tensor: splitmix64 from a hash of seed and name, its 24 highest bits.
fn stream(seed: u64, name: &str) -> impl Iterator<Item = f32> {
    let mut hash = Sha256::new();
    hash.update(b"holdfast.synthetic-llama.v1\0");
    hash.update(seed.to_be_bytes());
    hash.update(name.as_bytes());
    let hash = hash.finalize();
    let mut state = hash.iter().take(8).fold(0_u64, |state, byte| state << 8 | u64::from(*byte));
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f32 / 8_388_608.0 - 1.0
    })
}

fn describe(shape: &LlamaShape) -> Vec<(&'static str, Value)> {
    let number = |value: usize| Value::U32(u32::try_from(value).unwrap_or(u32::MAX));
    let text = |value: &str| Value::String(value.into());
    let mut tokens: Vec<Value> = BYTE_CHARS.iter().map(|c| text(&c.to_string())).collect();
    tokens.extend(["<|endoftext|>", IM_START, IM_END].map(text));
    let kinds = (0..shape.vocab).map(|token| Value::I32(if token < BYTE_CHARS.len() { 1 } else { 3 }));
    vec![
        ("general.architecture", text("llama")),
        ("general.name", text("Holdfast synthetic")),
        ("llama.block_count", number(shape.layers)),
        ("llama.context_length", number(shape.max_positions)),
        ("llama.embedding_length", number(shape.d_model)),
        ("llama.feed_forward_length", number(shape.d_ff)),
        ("llama.attention.head_count", number(shape.heads)),
        ("llama.attention.head_count_kv", number(shape.kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(shape.norm_eps)),
        ("llama.rope.dimension_count", number(shape.head_dim)),
        ("llama.rope.freq_base", Value::F32(shape.rope_base)),
        ("llama.vocab_size", number(shape.vocab)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", Value::Array(tokens)),
        ("tokenizer.ggml.token_type", Value::Array(kinds.collect())),
        ("tokenizer.ggml.merges", Value::Array(Vec::new())),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.ggml.bos_token_id", number(shape.vocab - 2)),
        ("tokenizer.ggml.eos_token_id", number(shape.vocab - 1)),
        (
            "tokenizer.chat_template",
            text(concat!(
                "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + ",
                "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}",
                "{% endif %}"
            )),
        ),
    ]
}
