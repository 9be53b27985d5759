//! Where progress goes: the live view of a terminal, or plain lines.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::view::{View, change_line, frame, log_line};
use crate::devnet::terminal::screen;
use crate::devnet::view::{ENTER, LEAVE};
use crate::say::line;

/// Time between two plain lines.
const LOG: Duration = Duration::from_secs(5);

pub(super) struct Show {
    live: bool,
    entered: bool,
    last: Option<Instant>,
    changes_seen: usize,
}

impl Show {
    /// Live when standard output is a terminal and `headless` is off.
    pub(super) fn new(headless: bool) -> Self {
        let live = !headless && io::stdout().is_terminal();
        Self { live, entered: false, last: None, changes_seen: 0 }
    }

    /// Shows what goes on now. A plain line comes every few seconds, and whenever the stage changes (`force`).
    ///
    /// # Errors
    /// Nobody reads the lines any more.
    pub(super) fn draw(&mut self, view: &View<'_>, force: bool) -> io::Result<()> {
        if self.live {
            let mut out = io::stdout().lock();
            if !std::mem::replace(&mut self.entered, true) {
                let _ = write!(out, "{ENTER}");
            }
            let _ = write!(out, "{}", frame(view, screen()));
            let _ = out.flush();
            return Ok(());
        }
        for change in view.board.changes.iter().skip(self.changes_seen) {
            line(change_line(change, view.board))?;
        }
        self.changes_seen = view.board.changes.len();
        if force || self.last.is_none_or(|last| last.elapsed() >= LOG) {
            self.last = Some(Instant::now());
            line(log_line(view))?;
        }
        Ok(())
    }

    /// Gives the screen back.
    pub(super) fn leave(&mut self) {
        if std::mem::take(&mut self.entered) {
            let mut out = io::stdout().lock();
            let _ = write!(out, "{LEAVE}");
            let _ = out.flush();
        }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        self.leave();
    }
}
