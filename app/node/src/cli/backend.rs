//! What computes behind a shard: the one place that knows the backends by name.

use std::sync::Arc;

use anyhow::Result;
use holdfast_runner::backends::reference::{DEFAULT_SEED, LAYERS, ReferenceModel};
use holdfast_runner::clock::Clock;
use holdfast_runner::shard::{LocalShard, ShardHost, ShardSettings};

use super::error::fail;
use super::values;

/// Backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Backend {
    /// The small deterministic model with seeded weights; nothing to download
    Reference,
}

impl Backend {
    /// As the flag has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
        }
    }
}

/// Which model, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct BackendArgs {
    /// What computes
    #[arg(long, env = "HOLDFASTD_BACKEND", value_name = "NAME", default_value = "reference")]
    pub(crate) backend: Backend,
    /// Seed of the reference model's weights; part of the model's digest
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// KV rows of all sessions together, 1 to 16777216
    #[arg(long, value_name = "ROWS", default_value = "16384", value_parser = capacity)]
    pub(crate) capacity: u32,
}

fn capacity(text: &str) -> Result<u32, String> {
    values::within(text, 1, 1 << 24).map(|rows| u32::try_from(rows).unwrap_or(u32::MAX))
}

impl BackendArgs {
    /// A shard of the model in this process; `None` is all layers.
    pub(crate) fn shard(
        &self,
        name: &str,
        layers: Option<(u32, u32)>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn ShardHost>> {
        let settings = ShardSettings { capacity: self.capacity, ..ShardSettings::new(name) };
        match self.backend {
            Backend::Reference => {
                let all = u32::try_from(LAYERS).unwrap_or(u32::MAX);
                let (from, to) = layers.unwrap_or((0, all));
                if to > all {
                    let text = format!("{from}..{to}: the reference model has the layers 0..{all}");
                    return Err(fail(12, "--layers", text));
                }
                let model = ReferenceModel::new(self.seed, (from, to));
                let model = model.map_err(|e| fail(91, "--backend reference", e.to_string()))?;
                Ok(Arc::new(LocalShard::new(model, settings, clock)))
            }
        }
    }
}
