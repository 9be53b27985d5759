//! Terminal input and output of the devnet: the live view, or plain lines.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::report::{Recorder, Report, per_cent, thousands};
use super::view::{ENTER, LEAVE, Screen, ViewState, frame, is_due, log_line, transition_line};
use crate::say::line;

/// Least time between two frames.
const FRAME: Duration = Duration::from_millis(100);
/// Lines of a headless run.
const LOG_LINES: u64 = 20;

/// Where progress goes.
pub(crate) struct Terminal {
    live: bool,
    entered: bool,
    last: Option<Instant>,
    transitions_seen: usize,
}

impl Terminal {
    /// Live when standard output is a terminal and `headless` is off.
    pub(crate) fn new(headless: bool) -> Self {
        let live = !headless && std::io::stdout().is_terminal();
        Self { live, entered: false, last: None, transitions_seen: 0 }
    }

    /// Shows progress after a block.
    ///
    /// # Errors
    /// Nobody reads the lines any more.
    pub(crate) fn show(&mut self, view: &ViewState, recorder: &Recorder) -> io::Result<()> {
        if view.resumed {
            // What happened before was shown by the process that made it happen.
            self.transitions_seen = recorder.transitions_since(0).len();
            if !self.live {
                let ViewState { preset, block, blocks, .. } = view;
                let what = if block == blocks { "was complete" } else { "goes on" };
                line(format_args!("preset {preset}: the run {what} after block {block} of {blocks}"))?;
            }
            return Ok(());
        }
        if view.block == 1 {
            self.transitions_seen = 0;
        }
        if self.live {
            self.draw(view);
            return Ok(());
        }
        let fresh = recorder.transitions_since(self.transitions_seen);
        self.transitions_seen += fresh.len();
        for change in fresh {
            let profile = view.executors.get(change.executor).map_or("", |e| e.profile.as_str());
            line(transition_line(change, profile))?;
        }
        if is_due(view.block, view.blocks, view.blocks.div_ceil(LOG_LINES)) {
            line(log_line(view))?;
        }
        Ok(())
    }

    fn draw(&mut self, view: &ViewState) {
        let done = view.block == view.blocks;
        if !done && self.last.is_some_and(|last| last.elapsed() < FRAME) {
            return;
        }
        self.last = Some(Instant::now());
        let mut out = std::io::stdout().lock();
        if !self.entered {
            self.entered = true;
            let _ = write!(out, "{ENTER}");
        }
        let _ = write!(out, "{}", frame(view, screen()));
        let _ = out.flush();
    }

    /// Gives the screen back.
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.entered) {
            let mut out = std::io::stdout().lock();
            let _ = write!(out, "{LEAVE}");
            let _ = out.flush();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What the terminal of standard output can show.
pub(crate) fn screen() -> Screen {
    let (width, height) = terminal_size::terminal_size().map_or((100, 40), |(w, h)| (w.0.into(), h.0.into()));
    let set = |name: &str| std::env::var_os(name).is_some();
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let unicode = locale.to_ascii_uppercase().contains("UTF");
    Screen { width, height, colour: !set("NO_COLOR") && !dumb, unicode }
}

/// The closing lines: what happened, and what the breaker saved.
///
/// # Errors
/// Nobody reads them any more.
pub(crate) fn summary(report: &Report) -> io::Result<()> {
    let arms = if report.arms.is_empty() { std::slice::from_ref(report) } else { &report.arms };
    line("")?;
    line(format_args!(
        "{:<12} {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>10}",
        "preset", "offered", "answered", "missed", "refused", "miss rate", "exclusions", "restored"
    ))?;
    for arm in arms {
        let exclusions: u64 = arm.executors.iter().map(|e| e.exclusions).sum();
        let restored: u64 = arm.executors.iter().map(|e| e.probes_passed).sum();
        line(format_args!(
            "{:<12} {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>10}",
            arm.preset,
            thousands(arm.requests.offered),
            thousands(arm.requests.finished),
            thousands(arm.requests.missed),
            thousands(arm.requests.refused),
            per_cent(arm.miss_rate_bp),
            exclusions,
            restored
        ))?;
    }
    for arm in arms {
        line(format_args!("app hash after block {} ({}): {}", arm.blocks, arm.preset, arm.app_hash))?;
    }
    Ok(())
}
