//! `holdfastd generate`: one prompt through a route of shards.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use holdfast_runner::ledger::{FileStore, IdempotencyLedger, LedgerConfig};
use holdfast_runner::matrix::{self, BoxFuture, LocalStage, MatrixError, Run, Scenario, Scene, Stage, Wish};
use holdfast_runner::worker::{PoolMember, RemoteLimits, RemotePool, from_urls};
use holdfast_runner::{BoundaryAdapter, ChatMessage, Clock, SystemClock, TextCodec, TextStream, WorkStatus};
use serde_json::json;

use super::backend::{self, BackendArgs, Opened};
use super::error::fail;
use super::matrix::pace;
use super::output::{Format, Io, text};
use super::{values, wiring};
use crate::stage::ProcessStage;

/// Longest prompt, bytes.
const PROMPT_MAX: u64 = 1 << 20;
/// Longest wait until given workers are connected.
const CONNECT: Duration = Duration::from_secs(10);

/// Generates text from one prompt and prints it as it comes, then the record of each attempt
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The prompt; - for standard input
    #[arg(value_name = "PROMPT")]
    prompt: String,
    #[command(flatten)]
    backend: BackendArgs,
    /// Start N worker processes and cut the model into as many ranges of layers [default: in this process]
    #[arg(long, value_name = "N", value_parser = backend::workers, conflicts_with = "worker_url")]
    workers: Option<u32>,
    /// A running worker, such as http://127.0.0.1:9100; once for each
    #[arg(long, value_name = "URL", conflicts_with = "fault")]
    worker_url: Vec<String>,
    /// Most tokens
    #[arg(long, value_name = "N", default_value = "32", value_parser = values::max_tokens)]
    max_tokens: u32,
    /// Longest time for all of it, milliseconds, up to 300000 [default: what the node allows]
    #[arg(long, value_name = "MS", value_parser = total_ms)]
    total_ms: Option<u64>,
    /// The prompt is the user's part of a conversation, in the form that the model knows
    #[arg(long)]
    chat: bool,
    /// A mishap of the failure matrix that befalls the run
    #[arg(long, value_name = "ROW", value_parser = scenario)]
    fault: Option<Scenario>,
    /// Which shard it befalls
    #[arg(long, value_name = "N", default_value_t = 0, requires = "fault")]
    faulty_shard: usize,
    /// Folder of the work ledger, which is kept [default: in memory]
    #[arg(long, value_name = "DIR")]
    ledger: Option<PathBuf>,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "text")]
    output: Format,
}

fn total_ms(text: &str) -> Result<u64, String> {
    values::within(text, 1, holdfast_runner::Deadlines::default().total_ms)
}

fn scenario(text: &str) -> Result<Scenario, String> {
    let known = || Scenario::ALL.map(Scenario::as_str).join(", ");
    let found = Scenario::ALL.into_iter().find(|row| row.as_str() == text);
    found.ok_or_else(|| format!("give one of {}", known()))
}

/// Workers that run already: nothing is done to them.
struct Given {
    pool: Arc<RemotePool>,
    prompt: Vec<u32>,
    clock: Arc<dyn Clock>,
}

impl Stage for Given {
    fn shards(&self) -> usize {
        1
    }

    fn prompt(&self) -> Vec<u32> {
        self.prompt.clone()
    }

    fn set(&mut self, _: Scenario, _: usize) -> BoxFuture<'_, Result<Scene, MatrixError>> {
        let held = Box::new(|| Box::pin(std::future::ready(0_u64)) as BoxFuture<'static, u64>);
        let (pool, clock) = (self.pool.clone(), self.clock.clone());
        let deadlines = holdfast_runner::deadline::DeadlineOverrides::default();
        Box::pin(std::future::ready(Ok(Scene { pool, clock, deadlines, hold_ms: 0, act: None, held })))
    }
}

pub(crate) fn run(args: &GenerateArgs, io: &mut Io<'_>) -> Result<()> {
    let opened = args.backend.open()?;
    let codec = opened.codec();
    let prompt = prompt(args, codec.as_ref(), io)?;
    let id = format!("generate-{}", hex::encode(wiring::randomness()?));
    let scenario = args.fault.unwrap_or(Scenario::Clean);

    let mut stream = TextStream::default();
    let mut failed = None;
    let stdout = &mut *io.out;
    let mut on_token = |_: u32, token: u32| {
        if args.output == Format::Text {
            let piece = stream.push(codec.as_ref(), token).unwrap_or_default();
            if let Err(error) = write!(stdout, "{piece}").and_then(|()| stdout.flush()) {
                failed.get_or_insert(error);
            }
        }
    };
    let mut interrupted = false;
    let ran = wiring::on_this_thread(async {
        let mut signals = crate::solo::Signals::new()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ledger = args.ledger.as_deref().map(|folder| ledger(folder, clock.as_ref())).transpose()?;
        let wish = Wish {
            on_token: Some(&mut on_token),
            stop_tokens: codec.stop_tokens().to_vec(),
            max_new: Some(args.max_tokens),
            total_ms: args.total_ms,
            release_at_once: args.fault.is_none(),
            failover: args.fault.is_none(),
            // A signal withdraws; the record says so, and every shard gives its KV back.
            withdrawn: Some(Box::pin(async {
                signals.next().await;
                interrupted = true;
            })),
            inference_id: Some(id),
            ledger,
        };
        let generation = wish.ledger.as_ref().map(IdempotencyLedger::generation);
        let mut stage = stage(args, &opened, prompt, clock, generation).await?;
        matrix::run_scenario(stage.as_mut(), scenario, args.faulty_shard, wish)
            .await
            .map_err(|e| fail(93, "generate", e.to_string()))
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    let Run { outcome, work, .. } = ran;
    let records: Vec<_> = outcome.records.iter().map(holdfast_runner::WorkRecord::to_json).collect();
    match args.output {
        Format::Text => {
            writeln!(io.out, "{}", stream.finish())?;
            write!(io.err, "{}", text(&json!({ "records": records })))?;
        }
        Format::Json => {
            let value = json!({
                "text": codec.decode(&outcome.tokens).unwrap_or_default(),
                "token_ids": outcome.tokens,
                "finish_reason": outcome.finish_reason.map(|reason| reason.as_str()),
                "status": outcome.status,
                "failure_kind": outcome.kind,
                "records": records,
                "ledger": work.to_json(),
            });
            io.print(&value, Format::Json)?;
        }
    }
    match (outcome.status, outcome.kind) {
        (WorkStatus::Completed, _) => Ok(()),
        (WorkStatus::Cancelled, _) if interrupted => {
            Err(fail(51, "generate", "interrupted; the generation was withdrawn"))
        }
        (status, kind) => {
            let kind = kind.map_or("", |kind| kind.as_str());
            Err(fail(94, "generate", format!("the generation ended as {} ({kind})", status.as_str())))
        }
    }
}

fn prompt(args: &GenerateArgs, codec: &dyn TextCodec, io: &mut Io<'_>) -> Result<Vec<u32>> {
    let mut prompt = args.prompt.clone();
    if prompt == "-" {
        let mut bytes = Vec::new();
        io.input.take(PROMPT_MAX + 1).read_to_end(&mut bytes)?;
        prompt = String::from_utf8(bytes).map_err(|_| fail(12, "PROMPT", "is no UTF-8; give a text"))?;
    }
    if prompt.is_empty() {
        return Err(fail(12, "PROMPT", "is empty; give a text"));
    }
    if args.chat {
        prompt =
            codec.chat(&[ChatMessage::new("user", prompt)]).map_err(|e| fail(12, "--chat", e.to_string()))?;
    }
    codec.encode(&prompt).map_err(|e| fail(12, "PROMPT", e.to_string()))
}

fn ledger(folder: &std::path::Path, clock: &dyn Clock) -> Result<IdempotencyLedger> {
    let refused = |e: holdfast_runner::ledger::LedgerError| fail(95, "--ledger", e.to_string());
    let store = FileStore::open(folder).map_err(refused)?;
    Ok(IdempotencyLedger::open(store, LedgerConfig::default(), clock).map_err(refused)?.0)
}

async fn stage(
    args: &GenerateArgs,
    opened: &Opened,
    prompt: Vec<u32>,
    clock: Arc<dyn Clock>,
    generation: Option<u64>,
) -> Result<Box<dyn Stage + Send>> {
    let pace = pace(args.backend.backend);
    if !args.worker_url.is_empty() {
        let addresses = from_urls(&args.worker_url).map_err(|e| fail(12, "--worker-url", e.to_string()))?;
        // Workers obey the highest generation. Without a ledger that counts them, the time is the best that is known.
        let generation = generation.unwrap_or_else(|| clock.unix_ms());
        let pool = RemotePool::start(addresses, generation, None, RemoteLimits::default(), clock.clone());
        // A spare that does not answer is no reason not to begin.
        if !pool.ready(CONNECT).await && pool.shards().is_empty() {
            let problem = |member: PoolMember| {
                format!(
                    "{}: {}",
                    member.address.authority(),
                    member.problem.unwrap_or_else(|| "silent".into())
                )
            };
            let problems: Vec<String> = pool.members().into_iter().map(problem).collect();
            return Err(fail(41, "--worker-url", problems.join("; ")));
        }
        return Ok(Box::new(Given { pool: Arc::new(pool), prompt, clock }));
    }
    if let Some(workers) = args.workers {
        if args.faulty_shard >= workers as usize {
            return Err(fail(12, "--faulty-shard", format!("must be below {workers}")));
        }
        let layers = opened.ranges(workers)?;
        return Ok(Box::new(ProcessStage::new(args.backend.worker_command()?, layers, prompt, pace)));
    }
    let shard = opened.shard("shard", None, clock.clone()).await? as Arc<dyn BoundaryAdapter>;
    let shards = move |_: Arc<dyn Clock>| Ok(vec![shard.clone()]);
    Ok(Box::new(LocalStage { clock, prompt, shards, count: 1, pace }))
}
