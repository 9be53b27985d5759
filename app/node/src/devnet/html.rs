//! `report.html`: the report for a person who has read nothing else.
//!
//! One file without scripts and without anything fetched: style and pictures are inside. It follows the reader's
//! light or dark setting, and every word from outside is escaped.

use std::fmt::Write;

use super::report::{ExecutorReport, Report, State, per_cent, thousands};
use super::svg::{escape, timeline};

/// Changes of state listed; `report.json` holds more.
const MAX_LISTED_TRANSITIONS: usize = 400;

/// Rows of the table of executors.
const MAX_LISTED_EXECUTORS: usize = 500;

/// Style of a page, inside it.
pub(crate) const STYLE: &str = "\
:root{--bg:#f6f8fa;--card:#fff;--text:#1c2733;--muted:#5c6876;--line:#dde3e9;--accent:#1f6f5c;--bad:#b23c26;\
--soft:#eef2f5;--ok:#b5dccf;--probe:#eeb422;--ex:#c4452d}\
@media(prefers-color-scheme:dark){:root{--bg:#0d1217;--card:#12181f;--text:#e6ebf0;--muted:#9aa7b4;--line:#2a3440;\
--accent:#6fc7ae;--bad:#f08a73;--soft:#182029;--ok:#2c6a5b;--probe:#f0c04a;--ex:#e8684d}}\
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}\
body{margin:0;background:var(--bg);color:var(--text);\
font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
main{max-width:1240px;margin:0 auto;padding:32px 20px 64px}\
h1{font-size:30px;line-height:1.2;margin:0 0 6px}h2{font-size:21px;margin:0 0 12px}h3{font-size:16px;margin:18px 0 4px}\
p{margin:0 0 12px;max-width:80ch}.lead{color:var(--muted);font-size:17px;margin-bottom:24px}\
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:22px 24px;margin:18px 0}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(168px,1fr));gap:14px;margin:18px 0}\
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px}\
.card b{display:block;font-size:27px;line-height:1.2;font-variant-numeric:tabular-nums}\
.card span{color:var(--muted);font-size:14px}.good b{color:var(--accent)}.bad b{color:var(--bad)}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\
th,td{text-align:right;padding:7px 10px;border-bottom:1px solid var(--line);white-space:nowrap}\
th{color:var(--muted);font-weight:600;vertical-align:bottom;white-space:normal}\
th.l,td.l{text-align:left}td.w{white-space:normal;min-width:220px}tr:last-child td{border-bottom:0}\
.dense{font-size:13.5px}.dense th,.dense td{padding:6px 8px}\
.bar{display:inline-block;height:12px;border-radius:3px;background:var(--bad);vertical-align:-1px;min-width:2px}\
.bars td.b{width:46%;text-align:left;min-width:200px}\
.dot{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}\
.healthy{background:var(--ok)}.probe,.probe_claimed{background:var(--probe)}.excluded{background:var(--ex)}\
figure{margin:0}svg{width:100%;min-width:760px;height:auto;display:block;border-radius:8px}\
dl{margin:0;display:grid;grid-template-columns:minmax(130px,190px) 1fr;gap:8px 20px}dt{font-weight:600}\
dd{margin:0;max-width:80ch}ul{margin:0 0 12px;padding-left:22px;max-width:80ch}\
pre{background:var(--soft);border-radius:8px;padding:14px 16px;overflow-x:auto;font-size:13.5px;margin:0 0 12px}\
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.93em;overflow-wrap:anywhere}\
summary{cursor:pointer;font-weight:600;padding:4px 0}footer{color:var(--muted);font-size:14px;margin-top:24px}\
@media(max-width:640px){dl{grid-template-columns:1fr}dd{margin-bottom:8px}}\
@media print{section,.card{break-inside:avoid}body{background:#fff}}";

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut out = String::new();
    push(
        &mut out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Holdfast devnet report: {}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>Holdfast devnet report</h1>\n\
         <p class=\"lead\">How a small network that answers requests to language models kept working while some of \
         its machines failed.</p>\n</header>\n",
            escape(&report.preset),
        ),
    );
    cards(&mut out, report);
    summary(&mut out, report);
    comparison(&mut out, report);
    picture(&mut out, report);
    detection(&mut out, report);
    executors(&mut out, report);
    transitions(&mut out, report);
    glossary(&mut out);
    reproduce(&mut out, report);
    push(
        &mut out,
        format_args!(
            "<footer>Made by holdfastd {}. All figures are in <code>report.json</code> beside this page.</footer>\n\
         </main>\n</body>\n</html>\n",
            escape(&report.version),
        ),
    );
    out
}

/// Writing into a `String` cannot fail.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}

/// "1 request", "2 requests".
fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", thousands(number)) }
}

fn is_faulty(executor: &ExecutorReport) -> bool {
    executor.profile != "healthy"
}

fn arm<'a>(report: &'a Report, preset: &str) -> Option<&'a Report> {
    report.arms.iter().find(|arm| arm.preset == preset)
}

/// Healthy executors that were excluded at least once.
fn wrongly_excluded(report: &Report) -> u64 {
    report.executors.iter().filter(|e| !is_faulty(e) && e.exclusions > 0).count() as u64
}

/// Executors whose fault began during the run.
fn failing(report: &Report) -> impl Iterator<Item = (usize, &ExecutorReport)> {
    report.executors.iter().enumerate().filter(|(_, executor)| executor.first_fault_height.is_some())
}

/// What a preset means, in a phrase.
fn preset_meaning(preset: &str) -> &'static str {
    match preset {
        "off" => "no circuit breaker: every executor keeps receiving work whatever it does",
        "seed" => "the rules as first proposed: a share of missed requests takes an executor out",
        "recommended" => "the rules Holdfast recommends: five misses in a row also take an executor out",
        _ => "rules set by hand",
    }
}

/// What an executor's profile makes it do, in a sentence without its subject.
fn behaviour_text(executor: &ExecutorReport) -> String {
    let (name, rest) = executor.profile.split_once('(').unwrap_or((executor.profile.as_str(), ""));
    let argument = escape(rest.trim_end_matches(')'));
    let begin = match executor.first_fault_height {
        Some(height) => format!("block {}", thousands(height.unsigned_abs())),
        None => "a block this run did not reach".to_owned(),
    };
    match name {
        "degraded" => format!("leaves {argument} % of its requests unanswered, all the time"),
        "dying" => format!("stops answering for good in {begin}"),
        "flapping" => format!("goes down and comes back again and again, first in {begin}"),
        "recovering" => match executor.fault_spans.first() {
            Some((from, to)) => format!(
                "is down from block {} to block {}, then works again",
                thousands(from.unsigned_abs()),
                thousands(to.unsigned_abs())
            ),
            None => format!("would go down in {begin}"),
        },
        "late" => format!("answers late, not before {argument} blocks have passed"),
        "refusing" => "reports a failure for each request instead of answering".to_owned(),
        "liar" => "signs answers to other executors' requests and never answers its own".to_owned(),
        _ => "answers, apart from the half per cent that anyone misses".to_owned(),
    }
}

fn cards(out: &mut String, report: &Report) {
    let wrong = wrongly_excluded(report);
    let taken_out = report.executors.iter().filter(|e| is_faulty(e) && e.exclusions > 0).count();
    let mut cards = vec![
        ("", thousands(report.requests.offered), "requests offered to the network".to_owned()),
        (
            "",
            per_cent(report.miss_rate_bp),
            format!("of the requests missed, {} in number", thousands(report.requests.missed)),
        ),
    ];
    if let Some(off) = arm(report, "off").filter(|_| report.preset != "off") {
        let saved = off.requests.missed.saturating_sub(report.requests.missed);
        cards.push(("good", thousands(saved), "misses avoided, compared with no breaker".to_owned()));
    }
    if report.preset != "off" {
        let failing = failing(report).count();
        cards.push((
            "",
            format!("{taken_out} of {failing}"),
            "failing executors taken out of work".to_owned(),
        ));
        let class = if wrong == 0 { "good" } else { "bad" };
        cards.push((class, thousands(wrong), "healthy executors taken out by mistake".to_owned()));
    }
    cards.push((
        "",
        thousands(report.tx.delivered + report.tx.failed),
        format!("signed transactions, {} a second on this machine", thousands(report.tx.per_second)),
    ));
    out.push_str("<div class=\"cards\">\n");
    for (class, figure, label) in cards {
        push(
            out,
            format_args!(
                "<div class=\"card {class}\"><b>{figure}</b><span>{}</span></div>\n",
                escape(&label)
            ),
        );
    }
    out.push_str("</div>\n");
}

fn summary(out: &mut String, report: &Report) {
    let r = &report.requests;
    let total = report.executors.len() as u64;
    let faulty: Vec<&ExecutorReport> = report.executors.iter().filter(|e| is_faulty(e)).collect();
    let weight: u64 = report.executors.iter().map(|e| e.weight).sum();
    let faulty_weight: u64 = faulty.iter().map(|e| e.weight).sum();
    out.push_str("<section>\n<h2>In plain words</h2>\n<h3>What was run</h3>\n");
    push(
        out,
        format_args!(
            "<p>A complete chain ran on one machine. {} came in over {} of {} s each, taken from <code>{}</code>. \
         For each one the chain drew an executor by lot, by weight, among {}; the executor had to sign its answer \
         before the request expired. An answer that does not come in time is a <em>miss</em>, and the person who asked \
         waited for nothing.</p>\n",
            count(r.offered, "request"),
            count(report.blocks, "block"),
            report.block_seconds,
            escape(&report.trace.source),
            count(total, "executor"),
        ),
    );
    if report.trace.bad_rows > 0 {
        push(
            out,
            format_args!(
                "<p>{} of the input could not be read and {} left out, for example:</p>\n<ul>\n",
                count(report.trace.bad_rows, "row"),
                if report.trace.bad_rows == 1 { "was" } else { "were" },
            ),
        );
        for sample in &report.trace.bad_row_samples {
            push(out, format_args!("<li><code>{}</code></li>\n", escape(sample)));
        }
        out.push_str("</ul>\n");
    }

    out.push_str("<h3>What went wrong</h3>\n");
    if faulty.is_empty() {
        out.push_str("<p>Nothing on purpose: every executor was healthy.</p>\n");
    } else {
        push(
            out,
            format_args!(
                "<p>{} of the {} executors, holding {} of the weight, were made to fail, each in its own way:</p>\n<ul>\n",
                faulty.len(),
                total,
                per_cent(share_bp(faulty_weight, weight)),
            ),
        );
        for (index, executor) in report.executors.iter().enumerate().filter(|(_, e)| is_faulty(e)).take(40) {
            push(
                out,
                format_args!(
                    "<li>executor {index}, <code>{}</code>: {}</li>\n",
                    escape(&executor.profile),
                    behaviour_text(executor)
                ),
            );
        }
        if faulty.len() > 40 {
            push(out, format_args!("<li>and {} more</li>\n", faulty.len() - 40));
        }
        out.push_str("</ul>\n");
    }

    out.push_str("<h3>What the circuit breaker did</h3>\n");
    if report.preset == "off" {
        out.push_str(
            "<p>Nothing: it was switched off. Every executor kept receiving its share of the work to the end, \
             answered or not.</p>\n",
        );
    } else {
        did(out, report);
    }

    out.push_str("<h3>What that saved</h3>\n");
    push(
        out,
        format_args!(
            "<p>{} of {} that ended were missed: {}.",
            thousands(r.missed),
            count(r.finished + r.missed, "request"),
            per_cent(report.miss_rate_bp),
        ),
    );
    match arm(report, "off") {
        Some(off) if report.preset != "off" => {
            let saved = off.requests.missed.saturating_sub(r.missed);
            push(
                out,
                format_args!(
                    " On the same input without the breaker {} were missed ({}). The breaker kept {} from being \
                     missed, {} of what would have been lost.",
                    thousands(off.requests.missed),
                    per_cent(off.miss_rate_bp),
                    count(saved, "request"),
                    per_cent(share_bp(saved, off.requests.missed)),
                ),
            );
        }
        Some(_) => out.push_str(" The table below shows the same input with the breaker on."),
        None => {
            out.push_str(" Run the same command with <code>--compare</code> to see it beside a run without.")
        }
    }
    if r.refused > 0 {
        push(
            out,
            format_args!(
                " {} never admitted, because none of its tries drew an executor that the chain accepted.",
                if r.refused == 1 {
                    "1 request was".to_owned()
                } else {
                    format!("{} were", count(r.refused, "request"))
                }
            ),
        );
    }
    if r.pending > 0 {
        push(out, format_args!(" {} still open when the run ended.", count(r.pending, "request")));
    }
    out.push_str("</p>\n</section>\n");
}

fn did(out: &mut String, report: &Report) {
    let wrong = wrongly_excluded(report);
    let failing: Vec<&ExecutorReport> = failing(report).map(|(_, executor)| executor).collect();
    let taken: Vec<&&ExecutorReport> = failing.iter().filter(|e| e.exclusions > 0).collect();
    let sum = |part: fn(&ExecutorReport) -> u64| report.executors.iter().map(part).sum::<u64>();
    let (exclusions, passed, failed) =
        (sum(|e| e.exclusions), sum(|e| e.probes_passed), sum(|e| e.probes_failed));
    let mut misses: Vec<u64> = taken.iter().filter_map(|e| e.misses_before_first_exclusion).collect();
    misses.sort_unstable();
    push(
        out,
        format_args!(
            "<p>It took {} of the {} executors whose fault began during the run out of the draw",
            taken.len(),
            failing.len(),
        ),
    );
    if let Some(median) = misses.get(misses.len() / 2) {
        push(
            out,
            format_args!(
                "; half of those had at most {} in a row behind them in the block before",
                count_of(*median, "miss", "misses")
            ),
        );
    }
    push(
        out,
        format_args!(
            ". An excluded executor waits for a cooldown and then gets one trial request. A good answer brings it back; \
         another miss keeps it out for longer. There were {} ({} for failed trials), and {} \
         brought an executor back. ",
            count(exclusions, "exclusion"),
            thousands(failed),
            count_of(passed, "trial", "trials"),
        ),
    );
    match wrong {
        0 => out.push_str("No healthy executor was ever taken out.</p>\n"),
        1 => out.push_str("<strong>One healthy executor was taken out by mistake.</strong></p>\n"),
        _ => push(
            out,
            format_args!(
                "<strong>{} healthy executors were taken out by mistake.</strong></p>\n",
                thousands(wrong)
            ),
        ),
    }
}

fn count_of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", thousands(number), if number == 1 { one } else { many })
}

fn share_bp(part: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(part) * 10_000).checked_div(u128::from(whole)).unwrap_or(0)).unwrap_or(0)
}

fn comparison(out: &mut String, report: &Report) {
    if report.arms.is_empty() {
        return;
    }
    let worst = report.arms.iter().map(|arm| arm.miss_rate_bp).max().unwrap_or(0).max(1);
    out.push_str(
        "<section>\n<h2>Side by side</h2>\n<p>The same requests, the same faults and the same seed, under each set of \
         rules.</p>\n<div class=\"wide\">\n<table class=\"bars\">\n<tr><th class=\"l\">preset</th>\
         <th class=\"l\">requests missed</th><th class=\"l\">what it means</th></tr>\n",
    );
    for arm in &report.arms {
        push(
            out,
            format_args!(
                "<tr><td class=\"l\"><code>{}</code></td><td class=\"b\"><span class=\"bar\" style=\"width:{}%\"></span> \
             {}</td><td class=\"l w\">{}</td></tr>\n",
                escape(&arm.preset),
                arm.miss_rate_bp * 70 / worst,
                per_cent(arm.miss_rate_bp),
                preset_meaning(&arm.preset),
            ),
        );
    }
    out.push_str("</table>\n</div>\n<div class=\"wide\" style=\"margin-top:16px\">\n<table>\n<tr><th class=\"l\">figure</th>");
    for arm in &report.arms {
        push(out, format_args!("<th>{}</th>", escape(&arm.preset)));
    }
    out.push_str("</tr>\n");
    let total = |part: fn(&ExecutorReport) -> u64| {
        move |arm: &Report| thousands(arm.executors.iter().map(part).sum::<u64>())
    };
    type Cell = Box<dyn Fn(&Report) -> String>;
    let rows: Vec<(&str, Cell)> = vec![
        ("requests offered", Box::new(|arm| thousands(arm.requests.offered))),
        ("answered in time", Box::new(|arm| thousands(arm.requests.finished))),
        ("missed", Box::new(|arm| thousands(arm.requests.missed))),
        ("ended without fault", Box::new(|arm| thousands(arm.requests.released))),
        ("refused", Box::new(|arm| thousands(arm.requests.refused))),
        ("open at the end", Box::new(|arm| thousands(arm.requests.pending))),
        ("exclusions", Box::new(total(|e| e.exclusions))),
        ("trials passed", Box::new(total(|e| e.probes_passed))),
        ("trials failed", Box::new(total(|e| e.probes_failed))),
        ("healthy executors taken out", Box::new(|arm| thousands(wrongly_excluded(arm)))),
        ("draws", Box::new(|arm| thousands(arm.draws.total))),
        ("draws for a trial", Box::new(|arm| thousands(arm.draws.probe))),
        ("draws with nobody healthy", Box::new(|arm| thousands(arm.draws.fallback))),
        ("transactions a second", Box::new(|arm| thousands(arm.tx.per_second))),
        (
            "app hash",
            Box::new(|arm| format!("<code>{}</code>", escape(arm.app_hash.get(..12).unwrap_or("")))),
        ),
    ];
    for (label, cell) in rows {
        push(out, format_args!("<tr><td class=\"l\">{label}</td>"));
        for arm in &report.arms {
            push(out, format_args!("<td>{}</td>", cell(arm)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n</div>\n</section>\n");
}

fn picture(out: &mut String, report: &Report) {
    push(
        out,
        format_args!(
            "<section>\n<h2>The run as a picture</h2>\n<p>Each lane is one executor, from the first block on the left to the \
         last on the right. Look for a purple bar, where a simulated fault is present: misses (ticks under the lane) \
         follow at once, and the sooner the lane turns red, the fewer there are. Yellow marks a trial; where a lane is \
         split, each half is one model.</p>\n<figure class=\"wide\">{}</figure>\n",
            timeline(report),
        ),
    );
    for arm in report.arms.iter().filter(|arm| arm.preset != report.preset) {
        push(
            out,
            format_args!(
                "<details>\n<summary>The same with preset {}</summary>\n<figure class=\"wide\">{}</figure>\n</details>\n",
                escape(&arm.preset),
                timeline(arm),
            ),
        );
    }
    out.push_str("</section>\n");
}

fn height_cell(height: Option<i64>) -> String {
    height.map_or("\u{2013}".to_owned(), |height| thousands(height.unsigned_abs()))
}

fn detection(out: &mut String, report: &Report) {
    if report.preset == "off" || failing(report).next().is_none() {
        return;
    }
    out.push_str(
        "<section>\n<h2>How fast each failure was noticed</h2>\n<p>The fifth miss in a row is counted here from the \
         outcomes, independently of the breaker.</p>\n<div class=\"wide\">\n<table>\n<tr><th>#</th>\
         <th class=\"l\">profile</th><th class=\"l\">what it does</th><th>fault begins</th><th>fifth miss in a row</th>\
         <th>first excluded</th><th>misses in a row before</th></tr>\n",
    );
    for (index, executor) in failing(report).take(MAX_LISTED_EXECUTORS) {
        push(
            out,
            format_args!(
                "<tr><td>{index}</td><td class=\"l\"><code>{}</code></td><td class=\"l w\">{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td></tr>\n",
                escape(&executor.profile),
                behaviour_text(executor),
                height_cell(executor.first_fault_height),
                height_cell(executor.fifth_consecutive_miss_height),
                height_cell(executor.first_exclusion_height),
                executor.misses_before_first_exclusion.map_or("\u{2013}".to_owned(), thousands),
            ),
        );
    }
    out.push_str("</table>\n</div>\n</section>\n");
}

fn executors(out: &mut String, report: &Report) {
    let same_models = report.executors.windows(2).all(|pair| pair[0].models == pair[1].models);
    out.push_str("<section>\n<h2>Every executor</h2>\n");
    if let Some(first) = report.executors.first().filter(|_| same_models) {
        push(out, format_args!("<p>Each one serves {}.</p>\n", escape(&first.models.join(" and "))));
    }
    let models_head = if same_models { "" } else { "<th class=\"l\">models</th>" };
    push(
        out,
        format_args!(
            "<div class=\"wide\">\n<table class=\"dense\">\n<tr><th>#</th><th class=\"l\">profile</th>\
             <th class=\"l\">address</th>{models_head}<th>weight</th><th>assigned</th>\
             <th>answered</th><th>missed</th><th>miss rate</th><th>times excluded</th><th>trials passed</th>\
             <th>trials failed</th><th>blocks excluded</th><th class=\"l\">state at the end</th></tr>\n"
        ),
    );
    let listed = report.executors.iter().enumerate();
    for (index, e) in listed.take(MAX_LISTED_EXECUTORS) {
        let models = if same_models {
            String::new()
        } else {
            format!("<td class=\"l\">{}</td>", escape(&e.models.join(", ")))
        };
        push(
            out,
            format_args!(
                "<tr><td>{index}</td><td class=\"l\"><code>{}</code></td>\
                 <td class=\"l\" title=\"{}\"><code>{}</code></td>{models}",
                escape(&e.profile),
                escape(&e.address),
                escape(&short(&e.address)),
            ),
        );
        let figures = [
            thousands(e.weight),
            thousands(e.assigned),
            thousands(e.finished),
            thousands(e.missed),
            per_cent(share_bp(e.missed, e.finished + e.missed)),
            thousands(e.exclusions),
            thousands(e.probes_passed),
            thousands(e.probes_failed),
            thousands(e.blocks_excluded),
        ];
        for figure in figures {
            push(out, format_args!("<td>{figure}</td>"));
        }
        push(
            out,
            format_args!(
                "<td class=\"l\"><span class=\"dot {}\"></span>{}</td></tr>\n",
                e.state.name(),
                state_words(e.state),
            ),
        );
    }
    out.push_str("</table>\n</div>\n");
    let more = report.executors.len().saturating_sub(MAX_LISTED_EXECUTORS);
    if more > 0 {
        let more = thousands(more as u64);
        push(out, format_args!("<p>{more} more are in <code>report.json</code>.</p>\n"));
    }
    out.push_str("</section>\n");
}

fn state_words(state: State) -> &'static str {
    match state {
        State::Healthy => "healthy",
        State::Probe => "awaits trial",
        State::ProbeClaimed => "on trial",
        State::Excluded => "excluded",
    }
}

/// First and last characters of an address.
fn short(address: &str) -> String {
    let symbols: Vec<char> = address.chars().collect();
    if symbols.len() <= 16 {
        return address.to_owned();
    }
    let part = |symbols: &[char]| symbols.iter().collect::<String>();
    format!("{}\u{2026}{}", part(&symbols[..9]), part(&symbols[symbols.len() - 5..]))
}

fn rule_words(rule: &str) -> &str {
    match rule {
        "rate" => "share of misses too high",
        "streak" => "too many misses in a row",
        "probe" => "verdict of the trial",
        "cooldown" => "cooldown ended",
        "start" => "trial request started",
        "released" => "trial ended without a verdict",
        "deadline" => "trial got no verdict in time",
        "override" => "set by governance",
        "override_ended" => "governance override ended",
        "epoch" => "new epoch",
        other => other,
    }
}

fn transitions(out: &mut String, report: &Report) {
    if report.transitions.is_empty() {
        return;
    }
    let all = report.transitions.len() as u64 + report.transitions_omitted;
    push(
        out,
        format_args!(
            "<section>\n<details>\n<summary>All {}, in order</summary>\n<div class=\"wide\">\n<table>\n<tr><th>block</th>\
         <th>#</th><th class=\"l\">profile</th><th class=\"l\">model</th><th class=\"l\">from</th><th class=\"l\">to</th>\
         <th class=\"l\">why</th></tr>\n",
            count_of(all, "change of state", "changes of state"),
        ),
    );
    for t in report.transitions.iter().take(MAX_LISTED_TRANSITIONS) {
        let profile = report.executors.get(t.executor).map_or("", |e| e.profile.as_str());
        push(
            out,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td class=\"l\"><code>{}</code></td><td class=\"l\">{}</td>\
             <td class=\"l\">{}</td><td class=\"l\"><span class=\"dot {}\"></span>{}</td><td class=\"l\">{}</td></tr>\n",
                thousands(t.height.unsigned_abs()),
                t.executor,
                escape(profile),
                escape(&t.model),
                state_words(t.from),
                t.to.name(),
                state_words(t.to),
                escape(rule_words(&t.rule)),
            ),
        );
    }
    out.push_str("</table>\n</div>\n");
    if all > MAX_LISTED_TRANSITIONS as u64 {
        push(
            out,
            format_args!(
                "<p>The first {MAX_LISTED_TRANSITIONS} of {}; <code>report.json</code> lists more.</p>\n",
                thousands(all)
            ),
        );
    }
    out.push_str("</details>\n</section>\n");
}

fn glossary(out: &mut String) {
    let terms = [
        ("executor", "A machine that answers requests. It holds a weight, and is drawn in proportion to it."),
        ("block", "One step of the chain. Everything that happens in the same block happens at once."),
        (
            "miss",
            "A request whose executor did not answer before it expired (20 blocks at these settings), or \
                  reported that it failed. Who asked gets the money back, but no answer.",
        ),
        ("miss rate", "Missed requests, divided by those answered and those missed."),
        (
            "circuit breaker",
            "The part of the chain that stops giving work to an executor that misses too much. It \
                             punishes nobody: an executor that works again gets its share back.",
        ),
        (
            "excluded",
            "Receives no work for a model until a cooldown ends. Cooldowns double with each failed trial.",
        ),
        (
            "trial (probe)",
            "The one request that an executor gets after its cooldown. It decides whether the executor \
                           is healthy again.",
        ),
        (
            "draw",
            "The choice of the executor for a request: random, by weight, and checkable by anyone afterwards.",
        ),
        (
            "refused",
            "A request the chain did not admit in any of its tries, for example because the executor drawn was \
                     excluded one block earlier.",
        ),
        (
            "ended without fault",
            "A request that was cancelled, or fell into announced maintenance. It counts for \
                                 nobody.",
        ),
        ("epoch", "A stretch of 1,000 blocks at whose end all executors begin afresh."),
        ("preset", "A named set of breaker rules: off, seed or recommended."),
        (
            "app hash",
            "A fingerprint of the chain's whole state. Two runs that agree in it agree in every \
                      balance and every state.",
        ),
    ];
    out.push_str("<section>\n<h2>Words used here</h2>\n<dl>\n");
    for (term, meaning) in terms {
        push(out, format_args!("<dt>{term}</dt><dd>{meaning}</dd>\n"));
    }
    out.push_str("</dl>\n</section>\n");
}

fn reproduce(out: &mut String, report: &Report) {
    push(
        out,
        format_args!(
            "<section>\n<h2>Run it again</h2>\n<pre><code>{}</code></pre>\n<p>The same input and seed give the same app hash on \
         any machine. Only times and rates a second depend on the machine.</p>\n<dl>\n",
            escape(&report.command),
        ),
    );
    let facts = [
        ("version", format!("holdfastd {}", report.version)),
        ("preset", report.preset.clone()),
        ("seed", report.seed.to_string()),
        ("input", format!("{}, {} rows", report.trace.source, thousands(report.trace.rows))),
        ("input sha256", report.trace.sha256.clone()),
        ("blocks", thousands(report.blocks)),
        ("app hash", report.app_hash.clone()),
        ("invariant checks", format!("{}, all held", thousands(report.invariant_checks))),
        (
            "block times",
            format!(
                "execution {:.2} ms (99 %: {:.2} ms), commit {:.2} ms (99 %: {:.2} ms)",
                report.block_ms.finalize_p50,
                report.block_ms.finalize_p99,
                report.block_ms.commit_p50,
                report.block_ms.commit_p99
            ),
        ),
    ];
    for (term, value) in facts {
        push(out, format_args!("<dt>{term}</dt><dd><code>{}</code></dd>\n", escape(&value)));
    }
    out.push_str("</dl>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::super::report::sample;
    use super::*;

    fn balanced(html: &str) {
        let mut open: Vec<&str> = Vec::new();
        for tag in html.split('<').skip(1) {
            let head = tag.split('>').next().unwrap_or("");
            let name = head.split([' ', '/']).find(|part| !part.is_empty()).unwrap_or("");
            if head.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !head.ends_with('/') && !["!doctype", "meta"].contains(&name) {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_page_is_one_self_contained_file() {
        let html = page(&sample::compared());
        balanced(&html);
        assert!(!html.contains("<script") && !html.contains("<link") && !html.contains("<img"));
        assert!(!html.contains("src=") && !html.contains("href=") && !html.contains("url("));
        // The only address is the name of the SVG language.
        assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
        assert_eq!(html.matches("<svg").count(), 3);
    }

    #[test]
    fn the_page_says_what_was_run_what_failed_and_what_was_saved() {
        let report = sample::compared();
        let html = page(&report);
        let off = arm(&report, "off").expect("off");
        let saved = off.requests.missed - report.requests.missed;
        for text in [
            "8,819 requests came in over 709 blocks of 5 s each",
            "9 of the 20 executors, holding 46.00 % of the weight",
            "stops answering for good in block 283",
            "leaves 20 % of its requests unanswered",
            "answers late, not before 25 blocks have passed",
            "is down from block 212 to block 318, then works again",
            &format!("The breaker kept {} requests from being missed", thousands(saved)),
            "<h2>Side by side</h2>",
            "How fast each failure was noticed",
            "Words used here",
            &report.app_hash,
            &report.trace.sha256,
            &escape(&report.command),
        ] {
            assert!(html.contains(text), "{text}");
        }
        for executor in &report.executors {
            assert!(html.contains(&format!("title=\"{}\"", executor.address)));
        }
    }

    #[test]
    fn a_run_without_breaker_or_comparison_reads_as_one() {
        let html = page(&sample::report("off"));
        balanced(&html);
        assert!(html.contains("Nothing: it was switched off."));
        assert!(html.contains("<code>--compare</code>"));
        assert!(!html.contains("Side by side") && !html.contains("How fast each failure"));
    }

    #[test]
    fn mistakes_bad_rows_and_open_requests_are_told() {
        let mut report = sample::report("recommended");
        report.executors[0].exclusions = 1;
        report.requests.pending = 1;
        report.requests.refused = 2;
        report.trace.bad_rows = 2;
        report.trace.bad_row_samples = vec!["t.csv:3:1: <b>".to_owned()];
        let html = page(&report);
        balanced(&html);
        assert!(html.contains("One healthy executor was taken out by mistake."));
        assert!(html.contains("2 rows of the input could not be read and were left out"));
        assert!(html.contains("t.csv:3:1: &lt;b&gt;"));
        assert!(html.contains("2 requests were never admitted"));
        assert!(html.contains("1 request still open"));
        report.executors[1].exclusions = 1;
        assert!(page(&report).contains("2 healthy executors were taken out by mistake."));
    }

    #[test]
    fn text_from_outside_is_escaped_everywhere() {
        let mut report = sample::compared();
        let evil = "<script>alert(\"x\")</script>";
        report.command = evil.to_owned();
        report.trace.source = evil.to_owned();
        report.version = evil.to_owned();
        report.preset = evil.to_owned();
        report.app_hash = evil.to_owned();
        report.executors[0].profile = evil.to_owned();
        report.executors[0].address = evil.to_owned();
        report.executors[0].models = vec![evil.to_owned()];
        report.transitions[0].model = evil.to_owned();
        report.transitions[0].rule = evil.to_owned();
        report.arms[0].preset = evil.to_owned();
        report.arms[0].app_hash = evil.to_owned();
        assert!(!page(&report).contains("<script"));
    }

    #[test]
    fn a_huge_run_gives_a_page_of_bounded_size() {
        let mut report = sample::report("recommended");
        report.executors = report.executors.iter().cycle().take(5_000).cloned().collect();
        report.transitions = report.transitions.iter().cycle().take(20_000).cloned().collect();
        let html = page(&report);
        balanced(&html);
        assert!(html.len() < 3_000_000, "{}", html.len());
        assert!(html.contains("4,500 more are in"));
        assert!(html.contains("The first 400 of 20,000"));
    }
}
