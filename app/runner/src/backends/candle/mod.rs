//! GGUF models of the Llama family on the CPU, through candle (feature `candle`).
//!
//! The forward is our own, so that a shard holds the tensors of its layers only and KV belongs to the caller: a
//! [`CandleModel`] is what the layers `from..to` of a file compute, a [`CandleKv`] what one key remembers. The
//! operations are those of candle's `quantized_llama`, in its order: the bits of the logits are the same.
//!
//! Any chunking, sharding or batch gives the same bytes on one machine: attention runs row by row, and a matrix takes
//! several rows at once only if that gave the bits of row by row on this machine when the model was loaded. Machines
//! that differ in their instruction set may differ in the last bit of a logit.
//!
//! `RAYON_NUM_THREADS` bounds candle's threads; 1 is best where several workers share a machine.

mod gguf;
mod model;
mod synthetic;
mod tokenizer;

use std::path::PathBuf;

pub use gguf::{Gguf, LlamaShape};
pub use model::{CandleKv, CandleModel};
pub use synthetic::{Synthetic, Weights, make_model};
pub use tokenizer::GgufCodec;

/// Why a model file or an input was refused. Codes are stable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CandleError {
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: String,
    },
    /// It does not begin as a GGUF file does.
    #[error("{}: not a GGUF file", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
    },
    /// It ends too early, or contradicts itself.
    #[error("GGUF file damaged: {0}")]
    Corrupt(String),
    /// It is of another family of models.
    #[error("architecture `{found}`: only llama is supported")]
    Architecture {
        /// What it says it is.
        found: String,
    },
    /// Its description lacks a value.
    #[error("the file does not say {key}")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// Its description has a value that cannot be.
    #[error("{key}: {text}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with its value.
        text: String,
    },
    /// A tensor of the model is not there.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor has not the shape that the description implies.
    #[error("tensor {name} has the shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its shape, rows first.
        found: Vec<usize>,
        /// The shape it must have.
        expected: Vec<usize>,
    },
    /// Something that this forward does not compute; leaving it out would give wrong answers.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Layers that the model does not have.
    #[error("layers {from}..{to}: the model has 0..{layers}")]
    Layers {
        /// First layer asked for.
        from: usize,
        /// The layer after the last one asked for.
        to: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// An input that does not fit: kind, length, token, position.
    #[error("input refused: {0}")]
    Input(String),
    /// candle failed.
    #[error("candle: {0}")]
    Backend(String),
}

impl CandleError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::File { .. } => 1,
            Self::NotGguf { .. } => 2,
            Self::Corrupt(_) => 3,
            Self::Architecture { .. } => 4,
            Self::MissingKey { .. } => 5,
            Self::Key { .. } => 6,
            Self::MissingTensor { .. } => 7,
            Self::TensorShape { .. } => 8,
            Self::Unsupported(_) => 9,
            Self::Layers { .. } => 10,
            Self::Input(_) => 11,
            Self::Backend(_) => 12,
        }
    }
}

impl From<candle_core::Error> for CandleError {
    fn from(error: candle_core::Error) -> Self {
        // The first line: the rest is a backtrace with paths of the machine that built it.
        let text = error.to_string();
        Self::Backend(text.lines().next().unwrap_or("no reason given").into())
    }
}
