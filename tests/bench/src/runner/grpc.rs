//! A step across loopback gRPC.

use super::hardening::Arm;
use super::*;

/// A TCP connection whose other end sends back what comes, by frames of [`FRAME`] bytes.
pub(super) fn echo() -> Result<TcpStream> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nodelay(true)?;
    let (mut other, _) = listener.accept()?;
    other.set_nodelay(true)?;
    std::thread::spawn(move || {
        let mut frame = [0; FRAME];
        while other.read_exact(&mut frame).and_then(|()| other.write_all(&frame)).is_ok() {}
    });
    Ok(stream)
}

pub(super) fn echoes(stream: &mut TcpStream, count: u32, times: &mut Vec<f64>) -> Result<()> {
    let mut frame = [7; FRAME];
    for _ in 0..count {
        let begun = Instant::now();
        stream.write_all(&frame)?;
        stream.read_exact(&mut frame)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(())
}

pub(super) fn grpc(size: Size, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let worker = Worker::start(local(Repeated::whole(1)?, Compute::Inline))?;
    let bare_model = Repeated::whole(1)?;
    let mut stream = echo()?;
    let [mut alone, mut near, mut far, mut whole]: [Arm; 4] = Default::default();
    let mut raw = Vec::new();
    let (runs, tokens) = (size.rounds, size.tokens);
    threads()?.block_on(async {
        let folder = tempfile::tempdir_in(dir)?;
        let here = local(Repeated::whole(1)?, Compute::Inline);
        let remote = worker.connect(1).await?;
        let running = start(Some(folder.path()), Durability::Process, vec![remote.clone()])?;
        ensure!(running.generation == 1, "the folder is not fresh");
        let mut expected = None;
        for round in 0..runs {
            tokio::task::block_in_place(|| {
                alone.add(bare(&bare_model, tokens)?, &mut expected)?;
                echoes(&mut stream, tokens, &mut raw)
            })?;
            near.add(by_shard(here.as_ref(), round, tokens).await?, &mut expected)?;
            // In a task, as the driver of a node is.
            let shard = remote.clone();
            let run = tokio::spawn(async move { by_shard(shard.as_ref(), round, tokens).await });
            far.add(run.await??, &mut expected)?;
            whole.add(by_runner(&running.handle, &round.to_string(), tokens).await?, &mut expected)?;
        }
        running.stop().await
    })?;
    let raw_p = |q| percentile(&raw, q);
    for (what, arm, base) in [("step", &far, &near), ("runner_step", &whole, &alone)] {
        for q in [50, 99] {
            let added = percentile(&arm.gaps, q) - base.gap();
            rows.push(
                Row::new(&format!("grpc.{what}_adds_p{q}"), "us", added)
                    .against("TCP echo", raw_p(q), Better::Lower)
                    .below(GRPC_US),
            );
        }
    }
    Ok(json!({
        "bare": alone.details(), "local": near.details(), "remote": far.details(), "runner": whole.details(),
        "echo_us": { "p50": raw_p(50), "p99": raw_p(99) },
    }))
}
