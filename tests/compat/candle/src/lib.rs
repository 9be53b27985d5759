//! The candle backend beside candle's own Llama, `quantized_llama`, on the same file.
//!
//! The crate is a member of the workspace but not a default one, since it compiles candle: `cargo xtask test --candle`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::Result;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

#[cfg(test)]
mod tests;

/// candle's Llama.
pub struct Foreign {
    weights: ModelWeights,
    len: usize,
}

impl Foreign {
    /// Reads a file.
    ///
    /// # Errors
    /// What candle says.
    pub fn load(path: &Path) -> Result<Self> {
        let mut reader = BufReader::new(File::open(path)?);
        let content = Content::read(&mut reader)?;
        let weights = ModelWeights::from_gguf(content, &mut reader, &Device::Cpu)?;
        Ok(Self { weights, len: 0 })
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.weights.clear_kv_cache();
        self.len = 0;
    }

    /// Logits after `tokens`, which follow those of earlier calls.
    ///
    /// # Errors
    /// What candle says.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let rows = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let logits = self.weights.forward(&rows, self.len)?.flatten_all()?.to_vec1::<f32>()?;
        self.len += tokens.len();
        Ok(logits)
    }
}
