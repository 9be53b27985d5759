//! What a devnet run shows while it goes on: a live frame for a terminal, plain lines otherwise.
//!
//! Pure: a [`ViewState`] in, text out. The caller owns the terminal, asks for its size and decides how often to
//! draw. A frame moves the cursor home and clears what it does not write, so that frames can follow one another
//! without flicker; it never writes more lines or columns than it was given.

use super::report::{State, Transition, miss_rate_bp, per_cent, thousands};

/// Enters the alternate screen and hides the cursor; print once before the first frame.
pub const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";

/// Leaves the alternate screen and shows the cursor; print once after the last frame, also after an error.
pub const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What is going on now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ViewState {
    /// Preset of the arm.
    pub preset: String,
    /// Number of the arm, from 1, and how many there are.
    pub arm: (u64, u64),
    /// Input, as the report names it.
    pub source: String,
    /// Last committed block.
    pub block: u64,
    /// Blocks of the run.
    pub blocks: u64,
    /// Requests offered so far.
    pub offered: u64,
    /// Requests of the input.
    pub rows: u64,
    /// Answered so far.
    pub finished: u64,
    /// Missed so far.
    pub missed: u64,
    /// Refused so far.
    pub refused: u64,
    /// Admitted and not ended.
    pub open: u64,
    /// Transactions so far.
    pub transactions: u64,
    /// Whether an earlier process made the block: this is where the run goes on.
    pub resumed: bool,
    /// The machine's time at work on the run, in milliseconds.
    pub elapsed_ms: u64,
    /// The executors, in the order of `--executors`.
    pub executors: Vec<ExecutorView>,
    /// The last changes of state, oldest first.
    pub transitions: Vec<Transition>,
}

/// One executor now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorView {
    /// Profile in the short form.
    pub profile: String,
    /// Worst state over its models.
    pub state: State,
    /// Answered so far.
    pub finished: u64,
    /// Missed so far.
    pub missed: u64,
}

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
    /// Whether it takes colours (no `NO_COLOR`, `TERM` not `dumb`).
    pub colour: bool,
    /// Whether it shows characters beyond ASCII.
    pub unicode: bool,
}

/// How a piece of a line is painted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Paint {
    Plain,
    Dim,
    Bold,
    Green,
    Yellow,
    Red,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Plain => "",
            Paint::Dim => "2",
            Paint::Bold => "1",
            Paint::Green => "32",
            Paint::Yellow => "33",
            Paint::Red => "1;31",
        }
    }
}

/// A line that counts its columns while it grows, so that colour codes take none.
pub(crate) struct Line {
    text: String,
    room: usize,
    colour: bool,
}

impl Line {
    pub(crate) fn new(screen: Screen) -> Self {
        Line { text: String::new(), room: screen.width, colour: screen.colour }
    }

    pub(crate) fn add(mut self, paint: Paint, text: &str) -> Self {
        let shown: String = text.chars().filter(|symbol| !symbol.is_control()).take(self.room).collect();
        self.room -= shown.chars().count();
        if self.colour && !shown.is_empty() && !paint.code().is_empty() {
            self.text.push_str(&format!("\x1b[{}m{shown}\x1b[0m", paint.code()));
        } else {
            self.text.push_str(&shown);
        }
        self
    }
}

fn state_paint(state: State) -> Paint {
    match state {
        State::Healthy => Paint::Green,
        State::Probe | State::ProbeClaimed => Paint::Yellow,
        State::Excluded => Paint::Red,
    }
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Healthy => "healthy",
        State::Probe => "probe",
        State::ProbeClaimed => "on trial",
        State::Excluded => "EXCLUDED",
    }
}

/// Milliseconds as "7.3 s", "2:05 min" or "1:02:03 h".
fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}.{} s", ms / 100 % 10),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02} h", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

fn per_second(count: u64, elapsed_ms: u64) -> u64 {
    u64::try_from(u128::from(count) * 1000 / u128::from(elapsed_ms.max(1))).unwrap_or(u64::MAX)
}

/// Time left at the pace so far; `None` before there is a pace.
fn left_ms(view: &ViewState) -> Option<u64> {
    let left = u128::from(view.blocks.saturating_sub(view.block));
    let ms = (u128::from(view.elapsed_ms) * left).checked_div(u128::from(view.block))?;
    u64::try_from(ms).ok()
}

fn counts(view: &ViewState) -> (u64, u64, u64) {
    let count = |wanted: fn(State) -> bool| view.executors.iter().filter(|e| wanted(e.state)).count() as u64;
    (
        count(|state| state == State::Healthy),
        count(|state| matches!(state, State::Probe | State::ProbeClaimed)),
        count(|state| state == State::Excluded),
    )
}

/// One frame for a terminal, at most `screen.height` lines of at most `screen.width` columns.
///
/// Executors that are not healthy come first when there is no room for all.
pub fn frame(view: &ViewState, screen: Screen) -> String {
    let mut lines: Vec<Line> = Vec::new();
    let line = || Line::new(screen);
    let dash = if screen.unicode { " \u{2014} " } else { " - " };
    let mut title =
        line().add(Paint::Bold, "Holdfast devnet").add(Paint::Plain, dash).add(Paint::Plain, "preset ");
    title = title.add(Paint::Bold, &view.preset);
    if view.arm.1 > 1 {
        title = title.add(Paint::Dim, &format!(" (run {} of {})", view.arm.0, view.arm.1));
    }
    lines.push(title.add(Paint::Dim, &format!("  {}", view.source)));

    let tail = format!(" {} / {} blocks", thousands(view.block), thousands(view.blocks));
    let (full, empty) = if screen.unicode { ("\u{2588}", "\u{2591}") } else { ("#", ".") };
    let width = screen.width.saturating_sub(tail.len()).min(60);
    let done = usize::try_from(
        (u128::from(view.block.min(view.blocks)) * width as u128)
            .checked_div(u128::from(view.blocks))
            .unwrap_or(0),
    )
    .unwrap_or(0);
    lines.push(
        line()
            .add(Paint::Green, &full.repeat(done))
            .add(Paint::Dim, &empty.repeat(width - done))
            .add(Paint::Plain, &tail),
    );

    let rate = miss_rate_bp(view.finished, view.missed);
    let paint = if rate < 1_000 { Paint::Green } else { Paint::Red };
    lines.push(
        line()
            .add(Paint::Plain, "miss rate ")
            .add(if view.finished + view.missed == 0 { Paint::Dim } else { paint }, &per_cent(rate))
            .add(
                Paint::Plain,
                &format!(
                    "   answered {}   missed {}   refused {}   open {}",
                    thousands(view.finished),
                    thousands(view.missed),
                    thousands(view.refused),
                    thousands(view.open),
                ),
            ),
    );
    let left = left_ms(view).map_or(String::new(), |ms| format!(", about {} left", clock(ms)));
    lines.push(line().add(
        Paint::Dim,
        &format!(
            "{} of {} requests   {} tx/s   {}{left}",
            thousands(view.offered),
            thousands(view.rows),
            thousands(per_second(view.transactions, view.elapsed_ms)),
            clock(view.elapsed_ms),
        ),
    ));
    let (healthy, probe, excluded) = counts(view);
    lines.push(line());
    lines.push(
        line()
            .add(Paint::Bold, "executors")
            .add(Paint::Plain, "  ")
            .add(Paint::Green, &format!("{healthy} healthy"))
            .add(Paint::Plain, "  ")
            .add(Paint::Yellow, &format!("{probe} in probe"))
            .add(Paint::Plain, "  ")
            .add(Paint::Red, &format!("{excluded} excluded")),
    );

    let room = screen.height.saturating_sub(lines.len());
    let news = view.transitions.len().min(6).min(room / 3);
    let news_lines = if news > 0 { news + 2 } else { 0 };
    executor_lines(&mut lines, view, screen, room.saturating_sub(news_lines));
    if news > 0 {
        lines.push(line());
        lines.push(line().add(Paint::Bold, "last changes"));
        for change in view.transitions.iter().rev().take(news) {
            let profile = view.executors.get(change.executor).map_or("", |e| e.profile.as_str());
            lines.push(
                line()
                    .add(Paint::Dim, &format!("  block {:>6}  ", thousands(change.height.unsigned_abs())))
                    .add(Paint::Plain, &format!("#{:<4}{profile:<22} {:<10} ", change.executor, change.model))
                    .add(state_paint(change.to), &format!("{:<9}", state_word(change.to)))
                    .add(Paint::Dim, &format!(" {}", change.rule)),
            );
        }
    }
    lines.truncate(screen.height);
    whole(&lines)
}

/// Lines as one frame: from the top left corner, over what stood there.
pub(crate) fn whole(lines: &[Line]) -> String {
    let mut out = String::from("\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push_str("\r\n");
        }
        out.push_str(&line.text);
        out.push_str("\x1b[K");
    }
    out.push_str("\x1b[J");
    out
}

/// The executors in as many columns as fit, the troubled ones first if not all do.
fn executor_lines(lines: &mut Vec<Line>, view: &ViewState, screen: Screen, room: usize) {
    const CELL: usize = 52;
    if room == 0 || view.executors.is_empty() {
        return;
    }
    let columns = (screen.width / CELL).max(1);
    let mut order: Vec<usize> = (0..view.executors.len()).collect();
    if order.len() > room * columns {
        order.sort_by_key(|index| {
            let executor = &view.executors[*index];
            (std::cmp::Reverse(executor.state), std::cmp::Reverse(executor.missed), *index)
        });
        order.truncate(room * columns);
        order.sort_unstable();
    }
    let rows = order.len().div_ceil(columns);
    for row in 0..rows {
        let mut line = Line::new(screen);
        for index in order.iter().skip(row).step_by(rows) {
            let executor = &view.executors[*index];
            let ended = executor.finished + executor.missed;
            line = line
                .add(Paint::Plain, &format!("  #{index:<4}{:<20.20} ", executor.profile))
                .add(state_paint(executor.state), &format!("{:<9}", state_word(executor.state)))
                .add(Paint::Plain, &format!("{:<15} ", format!("{}/{ended} missed", executor.missed)));
        }
        lines.push(line);
    }
}

/// Whether a plain line is due after `block`: every `every` blocks, and after the last.
pub fn is_due(block: u64, blocks: u64, every: u64) -> bool {
    block == blocks || block.is_multiple_of(every.max(1))
}

/// One line for a log, without colour and without a line end.
pub fn log_line(view: &ViewState) -> String {
    let (healthy, probe, excluded) = counts(view);
    let run = if view.arm.1 > 1 { format!("{} ", view.preset) } else { String::new() };
    format!(
        "{run}block {}/{} ({} %): {} offered, {} answered, {} missed ({}), {} refused; \
         executors: {healthy} healthy, {probe} probe, {excluded} excluded; {} tx/s",
        view.block,
        view.blocks,
        (u128::from(view.block) * 100).checked_div(u128::from(view.blocks)).unwrap_or(0),
        view.offered,
        view.finished,
        view.missed,
        per_cent(miss_rate_bp(view.finished, view.missed)),
        view.refused,
        per_second(view.transactions, view.elapsed_ms),
    )
}

/// One line about a change of state, without colour and without a line end.
pub fn transition_line(change: &Transition, profile: &str) -> String {
    format!(
        "block {}: executor {} {profile} on {}: {} -> {} ({})",
        change.height,
        change.executor,
        change.model,
        change.from.name(),
        change.to.name(),
        change.rule,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { width: 110, height: 40, colour: true, unicode: true };

    fn view() -> ViewState {
        let executor = |profile: &str, state: State, finished: u64, missed: u64| ExecutorView {
            profile: profile.to_owned(),
            state,
            finished,
            missed,
        };
        ViewState {
            preset: "recommended".to_owned(),
            arm: (3, 3),
            source: "trace.csv".to_owned(),
            block: 300,
            blocks: 709,
            offered: 4_000,
            rows: 8_819,
            finished: 3_700,
            missed: 200,
            refused: 3,
            open: 97,
            transactions: 8_000,
            resumed: false,
            elapsed_ms: 10_000,
            executors: vec![
                executor("healthy", State::Healthy, 400, 2),
                executor("dying(40%)", State::Excluded, 100, 5),
                executor("recovering(30%..45%)", State::Probe, 90, 12),
                executor("liar", State::ProbeClaimed, 0, 9),
            ],
            transitions: vec![
                Transition {
                    height: 287,
                    executor: 1,
                    model: "model-a".to_owned(),
                    from: State::Healthy,
                    to: State::Excluded,
                    rule: "streak".to_owned(),
                },
                Transition {
                    height: 299,
                    executor: 3,
                    model: "model-b".to_owned(),
                    from: State::Probe,
                    to: State::ProbeClaimed,
                    rule: "start".to_owned(),
                },
            ],
        }
    }

    /// The frame without its control sequences, as lines.
    fn plain(frame: &str) -> Vec<String> {
        let mut text = String::new();
        let mut symbols = frame.chars();
        while let Some(symbol) = symbols.next() {
            if symbol == '\u{1b}' {
                symbols.by_ref().find(|symbol| symbol.is_ascii_alphabetic());
            } else {
                text.push(symbol);
            }
        }
        text.split("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn the_frame_shows_progress_rate_states_and_the_last_changes() {
        let lines = plain(&frame(&view(), SCREEN));
        assert_eq!(lines[0], "Holdfast devnet \u{2014} preset recommended (run 3 of 3)  trace.csv");
        // 300 of 709 blocks fill 25 of 60 cells.
        assert_eq!(lines[1], format!("{}{} 300 / 709 blocks", "\u{2588}".repeat(25), "\u{2591}".repeat(35)));
        assert_eq!(lines[2], "miss rate 5.12 %   answered 3,700   missed 200   refused 3   open 97");
        assert_eq!(lines[3], "4,000 of 8,819 requests   800 tx/s   10.0 s, about 13.6 s left");
        assert_eq!(lines[5], "executors  1 healthy  2 in probe  1 excluded");
        let all = lines.join("\n");
        assert!(all.contains("#1   dying(40%)           EXCLUDED 5/105 missed"), "{all}");
        assert!(all.contains("block    299  #3   liar"), "{all}");
        assert!(all.find("block    299") < all.find("block    287"), "newest first");
    }

    #[test]
    fn a_frame_fits_any_screen() {
        let mut big = view();
        big.executors = big.executors.iter().cycle().take(500).cloned().collect();
        big.source = "very/long/".repeat(40);
        for (width, height) in [(0, 0), (1, 1), (20, 5), (80, 24), (200, 60), (80, 2_000)] {
            let screen = Screen { width, height, ..SCREEN };
            let lines = plain(&frame(&big, screen));
            assert!(lines.len() <= height.max(1), "{width}x{height}: {}", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}x{height}");
        }
    }

    #[test]
    fn troubled_executors_are_shown_when_there_is_no_room_for_all() {
        let mut big = view();
        let trouble = big.executors[1].clone();
        big.executors = vec![big.executors[0].clone(); 300];
        big.executors[277] = trouble;
        let all = plain(&frame(&big, Screen { height: 24, ..SCREEN })).join("\n");
        assert!(all.contains("#277 dying(40%)"), "{all}");
    }

    #[test]
    fn colour_and_unicode_can_be_switched_off() {
        let text = frame(&view(), Screen { colour: false, unicode: false, ..SCREEN });
        assert!(text.is_ascii());
        assert!(!text.contains("\u{1b}[3"));
        assert!(frame(&view(), SCREEN).contains("\u{1b}[1;31mEXCLUDED "));
    }

    #[test]
    fn control_characters_from_outside_do_not_reach_the_terminal() {
        let mut evil = view();
        evil.source = "a\u{1b}[2Jb\r\nc".to_owned();
        evil.executors[0].profile = "\u{7}x".to_owned();
        let text = frame(&evil, Screen { colour: false, ..SCREEN });
        assert!(!text.contains("\u{1b}[2J") && !text.contains('\u{7}'));
        assert!(plain(&text)[0].ends_with("a[2Jbc"));
    }

    #[test]
    fn an_empty_view_is_drawn() {
        let lines = plain(&frame(&ViewState::default(), SCREEN));
        assert!(lines[1].ends_with(" 0 / 0 blocks"));
        assert_eq!(lines[2], "miss rate 0.00 %   answered 0   missed 0   refused 0   open 0");
        assert!(!lines[3].contains("left"));
        assert!(log_line(&ViewState::default()).contains("block 0/0 (0 %)"));
    }

    #[test]
    fn log_lines_are_plain_and_whole() {
        assert_eq!(
            log_line(&view()),
            "recommended block 300/709 (42 %): 4000 offered, 3700 answered, 200 missed (5.12 %), 3 refused; \
             executors: 1 healthy, 2 probe, 1 excluded; 800 tx/s"
        );
        assert_eq!(
            transition_line(&view().transitions[0], "dying(40%)"),
            "block 287: executor 1 dying(40%) on model-a: healthy -> excluded (streak)"
        );
        assert!(is_due(709, 709, 50) && is_due(50, 709, 50) && is_due(7, 709, 0));
        assert!(!is_due(51, 709, 50));
    }

    #[test]
    fn times_are_written_in_the_unit_that_fits() {
        assert_eq!(clock(0), "0.0 s");
        assert_eq!(clock(7_390), "7.3 s");
        assert_eq!(clock(125_000), "2:05 min");
        assert_eq!(clock(3_723_000), "1:02:03 h");
    }
}
