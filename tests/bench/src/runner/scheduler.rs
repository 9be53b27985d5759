//! Many sessions at a time.

use super::*;

/// The bare batched loop; tokens in a second, by elapsed and by processor time.
pub(super) fn batched(model: &Repeated, sessions: usize, tokens: u32) -> Result<(f64, f64)> {
    let (begun, cpu) = (Instant::now(), cpu_so_far());
    let mut left = sessions;
    while left > 0 {
        let now = left.min(AT_ONCE);
        let mut all = Vec::with_capacity(now);
        for _ in 0..now {
            let mut kv = model.new_kv(PROMPT + tokens);
            let token = forward(model, &mut kv, 0, &prompt())?;
            all.push((kv, token));
        }
        for position in PROMPT..PROMPT + tokens - 1 {
            for (kv, token) in &mut all {
                *token = forward(model, kv, position, &[*token])?;
            }
        }
        left -= now;
    }
    let made = sessions as f64 * f64::from(tokens);
    let cpu = cpu_so_far().saturating_sub(cpu);
    Ok((made / begun.elapsed().as_secs_f64(), made / cpu.as_secs_f64()))
}

pub(super) struct Scheduled {
    pub(super) rate: f64,
    pub(super) cpu_rate: f64,
    pub(super) wait_ms: [f64; 2],
}

/// The same by the runner, everything submitted at once.
pub(super) fn scheduled(
    model: Repeated,
    sessions: usize,
    tokens: u32,
    durability: Durability,
    dir: &Path,
) -> Result<Scheduled> {
    let folder = tempfile::tempdir_in(dir)?;
    one_thread()?.block_on(async {
        let running = start(Some(folder.path()), durability, vec![local(model, Compute::Inline)])?;
        let (begun, cpu) = (Instant::now(), cpu_so_far());
        let clients: Vec<_> = (0..sessions)
            .map(|number| {
                let handle = running.handle.clone();
                tokio::spawn(async move { handle.run(request(&number.to_string(), tokens)).await })
            })
            .collect();
        for client in clients {
            let outcome = timeout(4 * PATIENCE, client).await.context("a session does not end")???;
            ensure!(outcome.status == WorkStatus::Completed, "{outcome:?}");
        }
        let (elapsed, cpu) = (begun.elapsed(), cpu_so_far().saturating_sub(cpu));
        let telemetry = running.handle.telemetry().await?;
        let wait_ms = [50, 99].map(|q| telemetry.queue_wait.percentile_ms(q) as f64);
        running.stop().await?;
        let made = sessions as f64 * f64::from(tokens);
        let (rate, cpu_rate) = (made / elapsed.as_secs_f64(), made / cpu.as_secs_f64());
        Ok(Scheduled { rate, cpu_rate, wait_ms })
    })
}

pub(super) fn scheduler(size: Size, slow: u32, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let mut details = serde_json::Map::new();
    let kinds = [
        ("reference", 1, size.sessions, 64_u32.min(8 * size.tokens), size.scheduler_rounds),
        // Fewer, so that it takes no minute.
        ("1ms", slow, (size.sessions / 2).max(AT_ONCE + 1), 16, size.scheduler_rounds.div_ceil(4)),
    ];
    for (name, times, sessions, tokens, rounds) in kinds {
        let model = Repeated::whole(times)?;
        let [mut alone, mut alone_cpu, mut rate, mut cpu_rate, mut p50, mut p99]: [Vec<f64>; 6] =
            Default::default();
        for _ in 0..rounds {
            let (bare, bare_cpu) = batched(&model, sessions, tokens)?;
            alone.push(bare);
            alone_cpu.push(bare_cpu);
            let ours = scheduled(Repeated::whole(times)?, sessions, tokens, Durability::Process, dir)?;
            rate.push(ours.rate);
            cpu_rate.push(ours.cpu_rate);
            p50.push(ours.wait_ms[0]);
            p99.push(ours.wait_ms[1]);
        }
        let row =
            |what: &str, unit: &str, value: f64| Row::new(&format!("scheduler.{name}.{what}"), unit, value);
        let (ours, bare) = (median(&rate), median(&alone));
        rows.push(row("tokens", "1/s", ours).against("bare batched loop", bare, Better::Higher));
        rows.push(row("of_bare", "times", ours / bare).at_least(THROUGHPUT));
        rows.push(row("of_bare_cpu", "times", median(&cpu_rate) / median(&alone_cpu)).at_least(THROUGHPUT));
        rows.push(row("queue_wait_p50", "ms", median(&p50)));
        rows.push(row("queue_wait_p99", "ms", median(&p99)));
        let all = json!({ "rate": rate, "bare": alone, "cpu_rate": cpu_rate, "bare_cpu": alone_cpu,
            "sessions": sessions, "tokens": tokens, "wait_p99_ms": p99 });
        details.insert(name.into(), all);
    }
    Ok(details.into())
}
