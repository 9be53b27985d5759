//! The draw of an executor: by itself, and as `GetRandomExecutor` over loopback gRPC beside a handler that does nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use holdfast_app::grpc::{EchoBackend, GrpcBackend, GrpcChannel, repeat_call, serve};
use holdfast_app::mempool::MempoolConfig;
use holdfast_inference::{Candidate, CandidateTable, TableHeader};
use holdfast_node::solo::{BlockStore, Engine, NodeBackend};
use holdfast_proto::Message;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_testkit::addr_n;

use crate::measure::{cpu_so_far, timed};
use crate::scene::{MODEL, Scene};
use crate::{Better, Outcome, Row, median};

const PATH: &str = "/holdfast.inference.v1.Query/GetRandomExecutor";
/// Microseconds a draw may take.
const DRAW_US: f64 = 5.0;
/// Least share of the no-op handler's rate.
const NO_OP_SHARE: f64 = 0.8;
/// Calls under way at a time.
const STREAMS: usize = 64;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Members.
    pub members: usize,
    /// Draws from a table.
    pub draws: usize,
    /// Calls in a round.
    pub calls: u64,
    /// Rounds, of which the median counts.
    pub rounds: usize,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self { members: 10_000, draws: 200_000, calls: 4_000, rounds: 31 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { members: 50, draws: 500, calls: 200, rounds: 2 };
}

/// Runs both.
pub fn run(size: Size) -> Result<Outcome> {
    let mut rows = Vec::new();
    for members in [100, size.members] {
        let took = draws(members, size.draws)?;
        let row = Row::new(&format!("draw.table.{members}"), "us", took);
        rows.push(if members == size.members { row.below(DRAW_US) } else { row });
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let grpc = runtime.block_on(over_grpc(size))?;
    rows.extend(grpc.rows);
    Ok(Outcome { rows, details: grpc.details })
}

/// Mean microseconds of a draw, each with a seed of its own.
fn draws(members: usize, count: usize) -> Result<f64> {
    let row = |i: usize| Candidate {
        address: addr_n(i as u64 + 1),
        weight: 80 + 10 * (i as u64 % 5),
        // Some wait for their probe, some are out.
        class: u8::from(i % 50 == 1) + 2 * u8::from(i % 50 == 2),
        since: u64::from(i % 50 == 1),
    };
    let header = TableHeader { epoch: 0, model: MODEL.into(), share_bp: 500, poc: false };
    let table = CandidateTable::new(header, (0..members).map(row).collect(), Vec::new())?;
    table.digest();
    let mut seed = [0; 32];
    let (found, took) = timed(|| {
        (0..count as u64)
            .filter(|n| {
                seed[..8].copy_from_slice(&n.to_be_bytes());
                std::hint::black_box(table.draw(seed)).is_some()
            })
            .count()
    });
    anyhow::ensure!(found == count, "a draw found nobody");
    Ok(took.wall_us(count))
}

/// A server for `backend` on a free port, and a channel to it.
async fn server(backend: Arc<dyn GrpcBackend>) -> Result<(GrpcChannel, tokio::sync::oneshot::Sender<()>)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    tokio::spawn(serve(listener, backend, async {
        let _ = stopped.await;
    }));
    Ok((GrpcChannel::connect(&address).await?, stop))
}

async fn over_grpc(size: Size) -> Result<Outcome> {
    let scene = Scene::new(1, size.members, None)?;
    let first = scene.block(Vec::new());
    let blocks = BlockStore::open(&scene.dir.path().join("blocks"))?;
    let engine = Arc::new(Engine::new(scene.app, blocks, MempoolConfig::default())?);
    engine.produce(first.time_ns)?;
    let (ours, _stop_ours) = server(Arc::new(NodeBackend::new(engine, "bench", &[7; 20]))).await?;
    let (echo, _stop_echo) = server(EchoBackend::shared()).await?;

    // No seed: the node draws its own, as for most callers.
    let request = pb::QueryGetRandomExecutorRequest { model: MODEL.into(), seed: Vec::new() };
    let (reply, _) = ours.unary::<_, pb::QueryGetRandomExecutorResponse>(PATH, &request, None).await?;
    reply.executor.context("the reply names no executor")?;
    let request = Bytes::from(request.encode_to_vec());

    let (mut our_us, mut echo_us, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let (mut our_cpu, mut echo_cpu) = (Vec::new(), Vec::new());
    for round in 0..=size.rounds {
        let call = async |channel: &GrpcChannel| -> Result<(f64, f64)> {
            let cpu = cpu_so_far();
            let took = repeat_call(channel, PATH, request.clone(), STREAMS, size.calls).await?;
            let each = |time: Duration| time.as_secs_f64() * 1e6 / size.calls as f64;
            Ok((each(took), each(cpu_so_far().saturating_sub(cpu))))
        };
        // The no-op handler before and after ours: what the machine does otherwise changes from round to round.
        let (before, cpu_before) = call(&echo).await?;
        let (ours, cpu) = call(&ours).await?;
        let (after, cpu_after) = call(&echo).await?;
        let no_op = (before + after) / 2.0;
        // The first round warms both up.
        if round > 0 {
            our_us.push(ours);
            echo_us.push(no_op);
            shares.push(no_op / ours);
            our_cpu.push(cpu);
            echo_cpu.push((cpu_before + cpu_after) / 2.0);
        }
    }
    let rate = |us: &[f64]| 1e6 / median(us);
    let name = format!("draw.grpc.{}", size.members);
    let rows = vec![
        Row::new(&name, "1/s", rate(&our_us)).against("no-op handler", rate(&echo_us), Better::Higher),
        // Client and server together.
        Row::new(&format!("{name}.cpu"), "us", median(&our_cpu)).against(
            "no-op handler",
            median(&echo_cpu),
            Better::Lower,
        ),
        Row::new(&format!("{name}.share_of_no_op"), "share", median(&shares)).at_least(NO_OP_SHARE),
    ];
    let details = serde_json::json!({ "ours_us": our_us, "no_op_us": echo_us, "share": shares });
    Ok(Outcome { rows, details })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_and_calls_all_find_an_executor() {
        let outcome = run(Size { members: 5, draws: 20, calls: 20, rounds: 1 }).unwrap();
        assert!(outcome.rows.iter().all(|row| row.value > 0.0), "{:?}", outcome.rows);
        assert!(outcome.rows.iter().any(|row| row.name == "draw.grpc.5.share_of_no_op"));
    }
}
