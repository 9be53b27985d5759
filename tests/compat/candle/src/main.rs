//! Time per token of the candle backend beside a bare loop over `quantized_llama`, on one file, turn by turn.
//!
//! `candle-bench MODEL.gguf [TOKENS [ROUNDS]]`; set `RAYON_NUM_THREADS=1`. Times are those of the processor, which a
//! busy machine disturbs least.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_compat_candle::Foreign;
use holdfast_runner::adapter::Sampling;
use holdfast_runner::backends::candle::{CandleModel, Gguf};
use holdfast_runner::shard::{Input, pick};
use rustix::time::{ClockId, clock_gettime};

const PROMPT_TOKENS: usize = 64;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().context("usage: candle-bench MODEL.gguf [TOKENS [ROUNDS]]")?);
    let tokens: usize = args.next().map_or(Ok(64), |text| text.parse())?;
    let rounds: usize = args.next().map_or(Ok(5), |text| text.parse())?;

    let start = spent()?;
    let mut file = Gguf::open(&path)?;
    let layers = 0..file.shape().layers;
    let ours = CandleModel::read(&mut file, layers)?;
    let (grouped, matrices) = ours.matrices_in_groups();
    let took = spent()? - start;
    println!("load: ours {took:?}; {grouped} of {matrices} matrices take rows in groups");
    let start = spent()?;
    let mut theirs = Foreign::load(&path)?;
    println!("load: quantized_llama {:?}", spent()? - start);

    let vocab = u32::try_from(ours.shape().vocab)?;
    let prompt: Vec<u32> = (0..PROMPT_TOKENS as u32).map(|i| (i * 7919 + 17) % vocab).collect();
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // Each begins every other round: what warms up or throttles hits both.
        let mut mine = None;
        let mut foreign = None;
        for turn in 0..2 {
            if (turn + round) % 2 == 0 {
                let mut kv = ours.kv(PROMPT_TOKENS + tokens);
                mine =
                    Some(measured(&prompt, tokens, |rows| Ok(ours.compute(&mut kv, Input::Tokens(rows))?))?);
            } else {
                theirs.clear();
                foreign = Some(measured(&prompt, tokens, |rows| theirs.forward(rows))?);
            }
        }
        let (mine, foreign) = (mine.context("a turn")?, foreign.context("a turn")?);
        ensure!(tokens > 0 && mine.2.len() == foreign.2.len(), "the runs differ in length");
        println!(
            "round {round}: prefill {:?} / {:?}, decode {:?} / {:?} per token, same tokens: {}",
            mine.0,
            foreign.0,
            mine.1,
            foreign.1,
            mine.2 == foreign.2
        );
        prefill.push((mine.0, foreign.0));
        decode.push((mine.1, foreign.1));
    }
    for (what, pairs) in [("prefill of 64", prefill), ("decode", decode)] {
        let mine = median(pairs.iter().map(|pair| pair.0).collect());
        let foreign = median(pairs.iter().map(|pair| pair.1).collect());
        let ratio = foreign.as_secs_f64() / mine.as_secs_f64();
        println!("{what}: ours {mine:?}, quantized_llama {foreign:?}, ratio of speeds {ratio:.3}");
    }
    Ok(())
}

/// Time of the prompt, time of a later token, and the tokens.
fn measured(
    prompt: &[u32],
    tokens: usize,
    mut forward: impl FnMut(&[u32]) -> Result<Vec<f32>>,
) -> Result<(Duration, Duration, Vec<u32>)> {
    let start = spent()?;
    let mut next = pick(&forward(prompt)?, Sampling::GREEDY, 0)?;
    let prefill = spent()? - start;
    let mut out = vec![next];
    let start = spent()?;
    for _ in 0..tokens {
        next = pick(&forward(&[next])?, Sampling::GREEDY, 0)?;
        out.push(next);
    }
    Ok((prefill, (spent()? - start) / u32::try_from(tokens.max(1))?, out))
}

/// Time of the processor that this process has used.
fn spent() -> Result<Duration> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}
