//! `timeline.svg`: the state of each executor over the blocks of a run.
//!
//! ```text
//!  title, legend
//!  requests per block: started upwards, missed downwards
//!  #12 dying(40%)   ==fault=========      what the profile does
//!                   [healthy][excluded]   one band for each model (one band for all above three models)
//!                   |  | ||               misses
//!  block axis
//! ```
//!
//! The size is bounded whatever the run: a lane has at most one mark for each of [`COLUMNS`] columns, and at most
//! [`MAX_LANES`] lanes are drawn.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::report::{ExecutorReport, Report, State, Transition, per_cent, thousands};

/// Columns of the plot, one pixel of the drawing each.
pub const COLUMNS: u64 = 880;

/// Most executors drawn; those with a fault and those with most misses come first.
pub const MAX_LANES: usize = 40;

/// Models drawn as bands of their own; above this an executor has one band with the worst state.
const MAX_BANDS: usize = 3;

const WIDTH: u64 = 1224;
const LEFT: u64 = 200;
const RIGHT: u64 = LEFT + COLUMNS;
const LOAD_TOP: u64 = 104;
const STARTED_HEIGHT: u64 = 66;
const MISSED_HEIGHT: u64 = 26;
const LANES_TOP: u64 = 222;
const FAULT_HEIGHT: u64 = 3;
const BANDS_HEIGHT: u64 = 15;
const MISS_HEIGHT: u64 = 6;
const LANE_HEIGHT: u64 = 34;

/// Longest profile written beside a lane, in characters; the tooltip has it whole.
const LABEL_CHARS: usize = 20;

const STYLE: &str = "\
.hf-bg{fill:#fff}.hf-t{fill:#1c2733;font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
.hf-h{font-size:19px;font-weight:600}.hf-m{fill:#5c6876}.hf-s{font-size:11.5px}.hf-e{text-anchor:end}\
.hf-c{text-anchor:middle}.hf-g{stroke:#e3e7ec;stroke-width:1;fill:none}.hf-z{fill:#f5f7f9}\
.hf-ok{fill:#b5dccf}.hf-pr{fill:#eeb422}.hf-ex{fill:#c4452d}.hf-fa{fill:#5a48b0}.hf-st{fill:#8fb4d6}\
.hf-o{stroke:#fff;stroke-width:1}\
.hf-mi{stroke:#16202b;stroke-width:1;fill:none}\
@media(prefers-color-scheme:dark){.hf-bg{fill:#12181f}.hf-t{fill:#e6ebf0}.hf-m{fill:#9aa7b4}\
.hf-g{stroke:#2a3440}.hf-z{fill:#182029}.hf-ok{fill:#2c6a5b}.hf-pr{fill:#f0c04a}.hf-ex{fill:#e8684d}\
.hf-o{stroke:#12181f}.hf-fa{fill:#a99bf2}.hf-st{fill:#4f7fa8}.hf-mi{stroke:#f2f5f8}}";

/// Draws the run (the leading one of a comparison) as a self-contained SVG document.
pub fn timeline(report: &Report) -> String {
    let lanes = chosen(report);
    let models = models_of(report);
    let changes = changes_of(report);
    let axis_top = LANES_TOP + lanes.len() as u64 * LANE_HEIGHT;
    let notes = notes(report, lanes.len());
    let height = axis_top + 50 + 18 * notes.len() as u64;
    let mut out = String::new();
    push(
        &mut out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"hf-bg\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
            escape(&headline(report)),
            escape(
                "One lane for each executor, from the first block to the last. Colours show whether it was healthy, \
                on trial or excluded; ticks below a lane are requests it missed; a bar above a lane shows when its \
                simulated fault was present."
            ),
        ),
    );
    header(&mut out, report);
    grid(&mut out, report.blocks, axis_top, report.block_seconds);
    load(&mut out, report);
    for (row, index) in lanes.iter().enumerate() {
        let top = LANES_TOP + row as u64 * LANE_HEIGHT;
        lane(&mut out, report, *index, &models, &changes, top);
    }
    for (line, note) in notes.iter().enumerate() {
        let y = axis_top + 50 + 18 * line as u64;
        text(&mut out, "hf-t hf-m hf-s", LEFT, y, note);
    }
    out.push_str("</svg>\n");
    out
}

/// Replaces what XML and HTML give a meaning to, and drops control characters, which XML forbids.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for symbol in text.chars() {
        match symbol {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            symbol if symbol.is_control() => {}
            symbol => out.push(symbol),
        }
    }
    out
}

fn headline(report: &Report) -> String {
    format!(
        "Breaker preset \"{}\": {} of {} requests missed ({})",
        report.preset,
        thousands(report.requests.missed),
        thousands(report.requests.finished + report.requests.missed),
        per_cent(report.miss_rate_bp),
    )
}

fn notes(report: &Report, drawn: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let all = report.executors.len();
    if drawn < all {
        notes.push(format!(
            "{drawn} of {all} executors are drawn: those with a fault and those with most misses."
        ));
    }
    if report.transitions_omitted > 0 {
        notes.push(format!(
            "The {} last changes of state are not drawn.",
            thousands(report.transitions_omitted)
        ));
    }
    notes
}

/// Writing into a `String` cannot fail.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}

fn text(out: &mut String, class: &str, x: u64, y: u64, content: &str) {
    push(out, format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", escape(content)));
}

fn rect(out: &mut String, class: &str, x: u64, y: u64, width: u64, height: u64) {
    push(
        out,
        format_args!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>\n"),
    );
}

/// Positions of the executors to draw, in their own order.
fn chosen(report: &Report) -> Vec<usize> {
    let mut lanes: Vec<usize> = (0..report.executors.len()).collect();
    if lanes.len() > MAX_LANES {
        lanes.sort_by_key(|index| {
            let executor = &report.executors[*index];
            (executor.first_fault_height.is_none(), u64::MAX - executor.missed, *index)
        });
        lanes.truncate(MAX_LANES);
        lanes.sort_unstable();
    }
    lanes
}

/// All models, in order of first appearance.
fn models_of(report: &Report) -> Vec<&str> {
    let mut models: Vec<&str> = Vec::new();
    for model in report.executors.iter().flat_map(|executor| &executor.models) {
        if !models.contains(&model.as_str()) {
            models.push(model);
        }
    }
    models
}

type Changes<'a> = BTreeMap<(usize, &'a str), Vec<&'a Transition>>;

fn changes_of(report: &Report) -> Changes<'_> {
    let mut changes: Changes<'_> = BTreeMap::new();
    for transition in &report.transitions {
        changes.entry((transition.executor, transition.model.as_str())).or_default().push(transition);
    }
    changes
}

/// Column of a block; the last block of a run lies in the last column at the latest.
fn column(height: i64, blocks: u64) -> u64 {
    let before = u128::from(u64::try_from(height.max(1) - 1).unwrap_or(0).min(blocks.max(1) - 1));
    u64::try_from(before * u128::from(COLUMNS) / u128::from(blocks.max(1))).unwrap_or(0)
}

/// Columns that the first `done` blocks take.
fn end_of(done: u64, blocks: u64) -> u64 {
    let columns = u128::from(done) * u128::from(COLUMNS) / u128::from(blocks.max(1));
    u64::try_from(columns).unwrap_or(COLUMNS).min(COLUMNS)
}

/// First column past a block, at least one past its first.
fn column_after(height: i64, blocks: u64) -> u64 {
    let after = u128::from(u64::try_from(height.max(1)).unwrap_or(0).min(blocks.max(1)));
    let column_after =
        u64::try_from(after * u128::from(COLUMNS) / u128::from(blocks.max(1))).unwrap_or(COLUMNS);
    column_after.clamp(column(height, blocks) + 1, COLUMNS)
}

fn header(out: &mut String, report: &Report) {
    text(out, "hf-t hf-h", 20, 32, &headline(report));
    let executors = report.executors.len();
    text(
        out,
        "hf-t hf-m",
        20,
        53,
        &format!(
            "{executors} executors, {} blocks of {} s, {}",
            thousands(report.blocks),
            report.block_seconds,
            report.trace.source,
        ),
    );
    let entries = [
        ("hf-ok", "healthy: receives work"),
        ("hf-ex", "excluded: receives none"),
        ("hf-pr", "on trial: one request decides"),
        ("hf-fa", "its simulated fault begins, lasts"),
    ];
    let mut x = 20;
    for (class, label) in entries {
        let height = if class == "hf-fa" { FAULT_HEIGHT + 1 } else { 12 };
        rect(out, class, x, 80 - height / 2 - 4, 22, height);
        if class == "hf-fa" {
            fault_mark(out, x, 75);
        }
        text(out, "hf-t", x + 30, 80, label);
        x += 60 + label.len() as u64 * 7;
    }
    push(
        out,
        format_args!(
            "<path class=\"hf-mi\" d=\"M{}.5 71v{MISS_HEIGHT}m4 -{MISS_HEIGHT}v{MISS_HEIGHT}\"/>\n",
            x + 4
        ),
    );
    text(out, "hf-t", x + 18, 80, "missed request");
}

/// The step of an axis with at most `most` marks up to `top`: 1, 2 or 5 times a power of ten.
fn nice_step(top: u64, most: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if top / step <= most || step == u64::MAX {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

fn grid(out: &mut String, blocks: u64, axis_top: u64, block_seconds: u64) {
    let step = nice_step(blocks, 10);
    let mut path = String::new();
    let mut labels = String::new();
    for block in (0..=blocks).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        // A mark stands at the end of its block, where the time is a round one.
        let x = LEFT + end_of(block, blocks);
        push(&mut path, format_args!("M{x}.5 {LOAD_TOP}V{axis_top}"));
        text(&mut labels, "hf-t hf-s hf-c", x, axis_top + 18, &thousands(block));
        let seconds = block.saturating_mul(block_seconds);
        let clock = if seconds >= 3600 {
            format!("{}:{:02} h", seconds / 3600, seconds / 60 % 60)
        } else {
            format!("{}:{:02} min", seconds / 60, seconds % 60)
        };
        text(&mut labels, "hf-t hf-m hf-s hf-c", x, axis_top + 33, &clock);
    }
    push(out, format_args!("<path class=\"hf-g\" d=\"{path}\"/>\n{labels}"));
    text(out, "hf-t hf-s", 20, axis_top + 18, "block");
    text(out, "hf-t hf-m hf-s", 20, axis_top + 33, "time in the input");
}

/// Requests started (up) and missed (down), each on its own scale. A column shows the busiest step inside it.
fn load(out: &mut String, report: &Report) {
    let mut columns: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for point in &report.series.points {
        let sums = columns.entry(column(point.height, report.blocks)).or_default();
        *sums = (sums.0.max(point.started), sums.1.max(point.missed));
    }
    let most_started = columns.values().map(|(started, _)| *started).max().unwrap_or(0).max(1);
    let most_missed = columns.values().map(|(_, missed)| *missed).max().unwrap_or(0);
    let scaled = |count: u64, most: u64, height: u64| {
        let pixels = u128::from(count) * u128::from(height) / u128::from(most.max(1));
        u64::try_from(pixels).unwrap_or(height).max(1)
    };
    let base = LOAD_TOP + STARTED_HEIGHT;
    let width = (COLUMNS / report.blocks.max(1)).max(1);
    let (mut up, mut down) = (String::new(), String::new());
    for (column, (started, missed)) in &columns {
        let x = LEFT + column;
        if *started > 0 {
            let height = scaled(*started, most_started, STARTED_HEIGHT);
            push(&mut up, format_args!("M{x} {base}v-{height}h{width}V{base}z"));
        }
        if *missed > 0 {
            let height = scaled(*missed, most_missed, MISSED_HEIGHT);
            push(&mut down, format_args!("M{x} {base}v{height}h{width}V{base}z"));
        }
    }
    let unit =
        if report.series.step == 1 { "block".to_owned() } else { format!("{} blocks", report.series.step) };
    push(
        out,
        format_args!(
            "<g><title>requests started and missed per {unit}</title><path class=\"hf-st\" d=\"{up}\"/>\
         <path class=\"hf-ex\" d=\"{down}\"/><path class=\"hf-g\" d=\"M{LEFT} {base}.5H{RIGHT}\"/></g>\n"
        ),
    );
    text(out, "hf-t", 20, LOAD_TOP + 22, &format!("requests per {unit}"));
    text(out, "hf-t hf-m hf-s", 20, LOAD_TOP + 40, "up: started");
    text(out, "hf-t hf-m hf-s", 20, base + 16, "down: missed, enlarged");
    text(
        out,
        "hf-t hf-m hf-s",
        RIGHT + 12,
        LOAD_TOP + 40,
        &format!("most started {}", thousands(most_started)),
    );
    text(out, "hf-t hf-m hf-s", RIGHT + 12, base + 16, &format!("most missed {}", thousands(most_missed)));
}

fn lane(out: &mut String, report: &Report, index: usize, models: &[&str], changes: &Changes<'_>, top: u64) {
    let Some(executor) = report.executors.get(index) else {
        return;
    };
    push(out, format_args!("<g><title>{}</title>\n", escape(&lane_title(index, executor))));
    if index % 2 == 1 {
        rect(out, "hf-z", 0, top, LEFT, LANE_HEIGHT);
        rect(out, "hf-z", RIGHT, top, WIDTH - RIGHT, LANE_HEIGHT);
    }
    let mut label: String = executor.profile.chars().take(LABEL_CHARS).collect();
    if label.len() < executor.profile.len() {
        label.push('\u{2026}');
    }
    text(out, "hf-t", 20, top + 20, &format!("#{index} {label}"));
    text(
        out,
        "hf-t hf-s hf-m",
        RIGHT + 12,
        top + 15,
        &format!(
            "{} of {} missed",
            thousands(executor.missed),
            thousands(executor.finished + executor.missed)
        ),
    );
    if executor.exclusions > 0 {
        text(out, "hf-t hf-s hf-m", RIGHT + 12, top + 28, &format!("{}\u{d7} excluded", executor.exclusions));
    }

    let mut faults = vec![State::Healthy; usize::try_from(COLUMNS).unwrap_or(0)];
    for (from, to) in &executor.fault_spans {
        mark(&mut faults, column(*from, report.blocks), column_after(*to, report.blocks), State::Excluded);
    }
    let fault_top = top + 3;
    runs(out, &faults, fault_top, FAULT_HEIGHT, |state| (state != State::Healthy).then_some("hf-fa"));
    let served: Vec<&str> =
        models.iter().copied().filter(|m| executor.models.iter().any(|s| s == m)).collect();
    let bands = if served.len() > MAX_BANDS { 1 } else { served.len().max(1) } as u64;
    let band_height = (BANDS_HEIGHT + 1) / bands - 1;
    let bands_top = fault_top + FAULT_HEIGHT + 1;
    for band in 0..bands {
        let mut states = vec![State::Healthy; usize::try_from(COLUMNS).unwrap_or(0)];
        for (position, model) in served.iter().enumerate() {
            if bands == 1 || position as u64 == band {
                fill(&mut states, changes.get(&(index, *model)), report.blocks);
            }
        }
        let y = bands_top + band * (band_height + 1);
        runs(out, &states, y, band_height, |state| {
            Some(match state {
                State::Healthy => "hf-ok",
                State::Probe | State::ProbeClaimed => "hf-pr",
                State::Excluded => "hf-ex",
            })
        });
    }

    let y = bands_top + BANDS_HEIGHT + 2;
    let mut columns: Vec<u64> = executor.misses_at.iter().map(|(h, _)| column(*h, report.blocks)).collect();
    columns.dedup();
    let mut path = String::new();
    for column in columns {
        push(&mut path, format_args!("M{}.5 {y}v{MISS_HEIGHT}", LEFT + column));
    }
    push(out, format_args!("<path class=\"hf-mi\" d=\"{path}\"/>\n"));
    if let Some(height) = executor.first_fault_height {
        fault_mark(out, LEFT + column(height, report.blocks), fault_top);
    }
    out.push_str("</g>\n");
}

/// A triangle that points at the column in which a fault begins.
fn fault_mark(out: &mut String, x: u64, top: u64) {
    push(out, format_args!("<path class=\"hf-fa hf-o\" d=\"M{} {}h12l-6 11z\"/>\n", x - 6, top - 1));
}

fn lane_title(index: usize, executor: &ExecutorReport) -> String {
    let mut title = format!(
        "executor {index}, {}, weight {}: {} assigned, {} answered, {} missed",
        executor.profile, executor.weight, executor.assigned, executor.finished, executor.missed
    );
    if let Some(height) = executor.first_fault_height {
        title.push_str(&format!("; fault begins in block {height}"));
    }
    if let Some(height) = executor.first_exclusion_height {
        title.push_str(&format!("; first excluded in block {height}"));
    }
    title
}

/// Raises the columns `from..to` to `state` where they are lower.
fn mark(columns: &mut [State], from: u64, to: u64, state: State) {
    let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
    for column in columns.iter_mut().take(to).skip(from) {
        *column = (*column).max(state);
    }
}

/// Marks the states of one entry. A change shows from its block on; of several in one block the last.
fn fill(columns: &mut [State], changes: Option<&Vec<&Transition>>, blocks: u64) {
    let Some(changes) = changes else {
        return;
    };
    for (position, change) in changes.iter().enumerate() {
        let next = changes.get(position + 1).map_or(i64::MAX, |next| next.height);
        if change.to != State::Healthy && next > change.height {
            let (from, to) = (column(change.height, blocks), column_after(next.saturating_sub(1), blocks));
            mark(columns, from, to, change.to);
        }
    }
}

/// Draws equal neighbours as one rectangle.
fn runs(
    out: &mut String,
    columns: &[State],
    y: u64,
    height: u64,
    class_of: impl Fn(State) -> Option<&'static str>,
) {
    let mut x = LEFT;
    for run in columns.chunk_by(|left, right| class_of(*left) == class_of(*right)) {
        let width = run.len() as u64;
        if let Some(class) = run.first().and_then(|state| class_of(*state)) {
            rect(out, class, x, y, width, height);
        }
        x += width;
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::sample;
    use super::*;

    fn balanced(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for tag in svg.split('<').skip(1) {
            let name = tag.split([' ', '>', '/']).find(|part| !part.is_empty()).unwrap_or("");
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.split('>').next().unwrap_or("").ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_picture_names_every_executor_its_fault_and_the_axis() {
        let report = sample::report("recommended");
        let svg = timeline(&report);
        balanced(&svg);
        for (index, executor) in report.executors.iter().enumerate() {
            assert!(svg.contains(&format!(">#{index} {}</text>", executor.profile)), "{index}");
        }
        assert!(svg.contains("fault begins in block 283"));
        for block in ["0", "100", "700"] {
            assert!(svg.contains(&format!(">{block}</text>")), "{block}");
        }
        assert!(svg.contains("prefers-color-scheme:dark"));
        assert!(!svg.contains("<script") && !svg.contains("href"));
        assert_eq!(svg, timeline(&report));
    }

    #[test]
    fn the_size_is_bounded_for_many_executors_blocks_and_changes() {
        let mut report = sample::report("recommended");
        report.blocks = 2_000_000;
        report.executors = report.executors.iter().cycle().take(3_000).cloned().collect();
        for (index, executor) in report.executors.iter_mut().enumerate() {
            executor.misses_at = (0..2_000).map(|n| (n * 1_000 + 1, 1)).collect();
            executor.fault_spans = (0..200).map(|n| (n * 10_000 + 1, n * 10_000 + 5_000)).collect();
            executor.missed = index as u64;
        }
        report.transitions = (0..20_000)
            .map(|n| Transition {
                height: n * 100 + 1,
                executor: usize::try_from(n % 40).expect("small"),
                model: "model-a".to_owned(),
                from: State::Healthy,
                to: [State::Excluded, State::Probe, State::Healthy][usize::try_from(n % 3).expect("small")],
                rule: "rate".to_owned(),
            })
            .collect();
        report.transitions_omitted = 5;
        let svg = timeline(&report);
        balanced(&svg);
        assert!(svg.len() < 4_000_000, "{}", svg.len());
        assert_eq!(svg.matches("<g><title>executor").count(), MAX_LANES);
        assert!(svg.contains("40 of 3000 executors are drawn"));
        assert!(svg.contains("The 5 last changes of state are not drawn."));
    }

    #[test]
    fn a_run_of_one_block_and_no_executor_is_drawn() {
        let mut report = sample::report("off");
        report.blocks = 1;
        report.executors.clear();
        report.transitions.clear();
        balanced(&timeline(&report));
        report.blocks = 0;
        report.series.points.clear();
        balanced(&timeline(&report));
    }

    #[test]
    fn more_than_three_models_share_one_band_with_the_worst_state() {
        let mut report = sample::report("recommended");
        report.executors.truncate(1);
        report.executors[0].models = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let change = |model: &str, height: i64, to: State| Transition {
            height,
            executor: 0,
            model: model.to_owned(),
            from: State::Healthy,
            to,
            rule: "rate".to_owned(),
        };
        report.transitions = vec![change("a", 1, State::Probe), change("d", 1, State::Excluded)];
        let svg = timeline(&report);
        // Once in the legend, once in the lane, which is excluded from end to end.
        assert_eq!(svg.matches("<rect class=\"hf-ex\"").count(), 2);
        assert_eq!(svg.matches("<rect class=\"hf-pr\"").count(), 1);
    }

    #[test]
    fn blocks_fall_into_columns_in_order_and_each_has_one() {
        assert_eq!((column(1, 880), column_after(1, 880)), (0, 1));
        assert_eq!((column(880, 880), column_after(880, 880)), (879, 880));
        assert_eq!((column(1, 2), column_after(1, 2)), (0, 440));
        assert_eq!((column(2, 2), column_after(2, 2)), (440, 880));
        assert_eq!((column(1_000_000, 1_000_000), column_after(1_000_000, 1_000_000)), (879, 880));
        assert_eq!((column(5, 1_000_000), column_after(5, 1_000_000)), (0, 1));
        assert_eq!(column(i64::MAX, 10), 792);
        assert_eq!(column(-5, 10), 0);
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let mut report = sample::report("off");
        report.trace.source = "<script>\"&'\u{1b}[0m".to_owned();
        let svg = timeline(&report);
        assert!(svg.contains("&lt;script&gt;&quot;&amp;&#39;[0m"));
        assert!(!svg.contains("<script"));
    }

    #[test]
    fn axis_steps_are_round_numbers() {
        assert_eq!(nice_step(709, 10), 100);
        assert_eq!(nice_step(1, 10), 1);
        assert_eq!(nice_step(11, 10), 2);
        assert_eq!(nice_step(2_000_000, 10), 200_000);
        assert!(u64::MAX / nice_step(u64::MAX, 10) <= 10);
    }
}
