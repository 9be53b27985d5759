//! What computes behind a shard: the one place that knows the backends by name.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use holdfast_runner::backends::openai_http::{OpenAiHttpAdapter, OpenAiHttpConfig, PieceTable};
use holdfast_runner::backends::reference::{DEFAULT_SEED, LAYERS, POSITIONS, ReferenceModel};
use holdfast_runner::clock::Clock;
use holdfast_runner::shard::{Compute, LocalShard, ShardHost, ShardSettings};
use holdfast_runner::{ByteCodec, TextCodec};

use super::error::{fail, io_failure};
use super::values;
use crate::stage::cuts;
use crate::workers::WorkerCommand;

/// Backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Backend {
    /// The small deterministic model with seeded weights; nothing to download
    Reference,
    /// A GGUF model of the Llama family, given by --model; needs a holdfastd built with `--features candle`
    Candle,
    /// An upstream server that speaks the OpenAI API, given by --upstream
    OpenaiHttp,
}

impl Backend {
    /// As the flag has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Candle => "candle",
            Self::OpenaiHttp => "openai-http",
        }
    }
}

/// Which model, and how.
#[derive(Debug, Clone, clap::Args)]
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
    /// GGUF file of --backend candle; `cargo xtask model` fetches one
    #[arg(long, env = "HOLDFASTD_MODEL", value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Base URL of --backend openai-http, such as http://127.0.0.1:8000
    #[arg(long, env = "HOLDFASTD_UPSTREAM", value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Name of the model at the upstream
    #[arg(long, env = "HOLDFASTD_UPSTREAM_MODEL", value_name = "NAME", default_value = "default")]
    pub(crate) upstream_model: String,
    /// Key that the upstream wants
    #[arg(long, env = "HOLDFASTD_UPSTREAM_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) upstream_key: Option<String>,
    /// Requests the upstream may have at a time, 1 to 4096
    #[arg(long, value_name = "N", default_value = "8", value_parser = slots)]
    pub(crate) upstream_slots: u32,
    /// Context length of the upstream's model, tokens
    #[arg(long, value_name = "N", default_value = "4096", value_parser = context)]
    pub(crate) upstream_context: u32,
}

/// Most worker processes.
const WORKERS_MAX: u32 = 16;

/// A number of worker processes.
pub(crate) fn workers(text: &str) -> Result<u32, String> {
    values::within_u32(text, 1, WORKERS_MAX)
}

fn capacity(text: &str) -> Result<u32, String> {
    values::within_u32(text, 1, 1 << 24)
}

fn slots(text: &str) -> Result<u32, String> {
    values::within_u32(text, 1, 4096)
}

fn context(text: &str) -> Result<u32, String> {
    values::within_u32(text, 2, 1 << 20)
}

/// What computes, opened: its shards and its text.
pub(crate) struct Opened {
    args: BackendArgs,
    layers: u32,
    codec: Arc<dyn TextCodec>,
    /// Shared by all shards of an upstream, so that attempts compare.
    pieces: Arc<PieceTable>,
}

impl BackendArgs {
    /// A model of this program's own, with everything else as it is by default.
    pub(crate) fn of(backend: Backend, model: Option<PathBuf>) -> Self {
        Self {
            backend,
            seed: DEFAULT_SEED,
            capacity: 16_384,
            model,
            upstream: None,
            upstream_model: "default".into(),
            upstream_key: None,
            upstream_slots: 8,
            upstream_context: 4096,
        }
    }

    /// Checks the flags and opens the model's text; shards load its weights.
    pub(crate) fn open(&self) -> Result<Opened> {
        let pieces = Arc::new(PieceTable::new());
        let (layers, codec): (u32, Arc<dyn TextCodec>) = match self.backend {
            Backend::Reference => (u32::try_from(LAYERS).unwrap_or(u32::MAX), Arc::new(ByteCodec)),
            Backend::Candle => self.candle_text()?,
            Backend::OpenaiHttp => {
                if self.upstream.is_none() {
                    return Err(fail(14, "--upstream", "give the base URL, such as http://127.0.0.1:8000"));
                }
                (1, pieces.clone())
            }
        };
        Ok(Opened { args: self.clone(), layers, codec, pieces })
    }

    /// Tokens that the model takes, prompt and answer together, and the most bytes of text that one of them stands for; 0: not
    /// known.
    pub(crate) fn limits(&self) -> Result<(u32, u32)> {
        match self.backend {
            Backend::Reference => Ok((u32::try_from(POSITIONS).unwrap_or(u32::MAX), 1)),
            Backend::Candle => self.candle_context().map(|context| (context, 0)),
            Backend::OpenaiHttp => Ok((self.upstream_context, 0)),
        }
    }

    /// How workers of this program are started.
    pub(crate) fn worker_command(&self) -> Result<WorkerCommand> {
        let program = std::env::current_exe().map_err(|e| io_failure("holdfastd".as_ref(), &e))?;
        Ok(WorkerCommand { program, backend: self.words() })
    }

    /// The flags again, for another process.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec!["--backend".into(), self.backend.name().into()];
        words.extend([
            "--seed".into(),
            self.seed.to_string(),
            "--capacity".into(),
            self.capacity.to_string(),
        ]);
        if let Some(model) = &self.model {
            words.extend(["--model".into(), model.display().to_string()]);
        }
        if let Some(upstream) = &self.upstream {
            words.extend(["--upstream".into(), upstream.clone()]);
            words.extend(["--upstream-model".into(), self.upstream_model.clone()]);
            words.extend(["--upstream-slots".into(), self.upstream_slots.to_string()]);
            words.extend(["--upstream-context".into(), self.upstream_context.to_string()]);
        }
        words
    }

    #[cfg(feature = "candle")]
    fn model_file(&self) -> Result<&std::path::Path> {
        self.model.as_deref().ok_or_else(|| {
            fail(
                14,
                "--model",
                "give a GGUF file; `cargo xtask model` fetches one, `worker make-model` makes one",
            )
        })
    }

    #[cfg(feature = "candle")]
    fn candle_text(&self) -> Result<(u32, Arc<dyn TextCodec>)> {
        use holdfast_runner::backends::candle::{Gguf, GgufCodec};
        let path = self.model_file()?;
        let file = Gguf::open(path).map_err(|e| fail(91, "--model", e.to_string()))?;
        let layers = u32::try_from(file.shape().layers).unwrap_or(u32::MAX);
        let codec = GgufCodec::read(&file).map_err(|e| fail(91, "--model", e.to_string()))?;
        Ok((layers, Arc::new(codec)))
    }

    #[cfg(feature = "candle")]
    fn candle_context(&self) -> Result<u32> {
        use holdfast_runner::backends::candle::Gguf;
        let file = Gguf::open(self.model_file()?).map_err(|e| fail(91, "--model", e.to_string()))?;
        Ok(u32::try_from(file.shape().max_positions).unwrap_or(u32::MAX))
    }

    #[cfg(feature = "candle")]
    fn candle(
        &self,
        settings: ShardSettings,
        layers: (u32, u32),
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn ShardHost>> {
        use holdfast_runner::backends::candle::CandleModel;
        let model = CandleModel::load(self.model_file()?, layers.0 as usize..layers.1 as usize)
            .map_err(|e| fail(91, "--model", e.to_string()))?;
        Ok(Arc::new(LocalShard::new(model, settings, clock)))
    }

    #[cfg(not(feature = "candle"))]
    fn candle_text(&self) -> Result<(u32, Arc<dyn TextCodec>)> {
        Err(not_built())
    }

    #[cfg(not(feature = "candle"))]
    fn candle_context(&self) -> Result<u32> {
        Err(not_built())
    }

    #[cfg(not(feature = "candle"))]
    fn candle(&self, _: ShardSettings, _: (u32, u32), _: Arc<dyn Clock>) -> Result<Arc<dyn ShardHost>> {
        Err(not_built())
    }
}

#[cfg(not(feature = "candle"))]
fn not_built() -> anyhow::Error {
    fail(91, "--backend candle", "this holdfastd was built without it; build with `--features candle`")
}

impl Opened {
    /// Ranges of layers for so many workers.
    pub(crate) fn ranges(&self, workers: u32) -> Result<Vec<(u32, u32)>> {
        if workers > self.layers {
            return Err(fail(12, "--workers", format!("{workers}: the model has {} layers", self.layers)));
        }
        Ok(cuts(self.layers, workers))
    }

    /// Text to tokens and back.
    pub(crate) fn codec(&self) -> Arc<dyn TextCodec> {
        self.codec.clone()
    }

    /// A shard of `layers`, `None` is all of them. Slow models compute on threads. Needs a tokio runtime.
    pub(crate) async fn shard(
        &self,
        name: &str,
        layers: Option<(u32, u32)>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn ShardHost>> {
        if self.args.backend != Backend::OpenaiHttp {
            return self.model(name, layers, clock, Compute::Threaded);
        }
        let args = &self.args;
        let upstream = args.upstream.clone().unwrap_or_default();
        let mut config =
            OpenAiHttpConfig::new(upstream, &args.upstream_model, args.upstream_slots, args.upstream_context);
        config.api_key.clone_from(&args.upstream_key);
        let shard = OpenAiHttpAdapter::connect(config, self.pieces.clone(), clock).await;
        Ok(Arc::new(shard.map_err(|e| fail(91, "--upstream", e.to_string()))?))
    }

    /// A shard whose model is in this process. The reference model computes inline at any rate: its steps are shorter
    /// than a change of threads.
    pub(crate) fn model(
        &self,
        name: &str,
        layers: Option<(u32, u32)>,
        clock: Arc<dyn Clock>,
        compute: Compute,
    ) -> Result<Arc<dyn ShardHost>> {
        let args = &self.args;
        let settings = ShardSettings { capacity: args.capacity, ..ShardSettings::new(name) };
        let (from, to) = layers.unwrap_or((0, self.layers));
        if to > self.layers {
            let text = format!("{from}..{to}: the model has the layers 0..{}", self.layers);
            return Err(fail(12, "--layers", text));
        }
        match args.backend {
            Backend::Reference => {
                let model = ReferenceModel::new(args.seed, (from, to));
                let model = model.map_err(|e| fail(91, "--backend reference", e.to_string()))?;
                Ok(Arc::new(LocalShard::new(model, settings, clock)))
            }
            Backend::Candle => args.candle(ShardSettings { compute, ..settings }, (from, to), clock),
            Backend::OpenaiHttp => Err(fail(12, "--backend openai-http", "has no model in this process")),
        }
    }
}
