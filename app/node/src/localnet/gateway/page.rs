//! The report for a person: a picture of each host's time, and the figures with what they mean.

use std::fmt::Write as _;

use super::board::{Board, HostState, Stretch};
use super::faults::FaultKind;
use super::report::Report;
use crate::devnet::html::STYLE as PAGE_STYLE;
use crate::devnet::report::thousands;
use crate::devnet::svg::escape;

/// Width of the plot in pixels of the drawing.
const COLUMNS: u64 = 960;
const LEFT: u64 = 150;
const TOP: u64 = 92;
const LANE: u64 = 30;
const BAND: u64 = 16;
/// Changes listed; `report.json` holds more.
const LISTED: usize = 400;

const STYLE: &str = "\
.hf-bg{fill:#fff}.hf-t{fill:#1c2733;font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
.hf-h{font-size:18px;font-weight:600}.hf-m{fill:#5c6876}.hf-e{text-anchor:end}.hf-g{stroke:#e3e7ec;stroke-width:1}\
.s-serving{fill:#b5dccf}.s-waiting{fill:#eeb422}.s-teaching{fill:#8fb4d6}.s-verifying{fill:#5a48b0}\
.s-gave_up{fill:#c4452d}.s-stopped{fill:#b9c2cb}.s-down{fill:#16202b}\
@media(prefers-color-scheme:dark){.hf-bg{fill:#12181f}.hf-t{fill:#e6ebf0}.hf-m{fill:#9aa7b4}.hf-g{stroke:#2a3440}\
.s-serving{fill:#2c6a5b}.s-down{fill:#f2f5f8}}";

/// Writing into a `String` cannot fail.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}

const fn class(state: HostState) -> &'static str {
    match state {
        HostState::Serving => "s-serving",
        HostState::Waiting => "s-waiting",
        HostState::Teaching => "s-teaching",
        HostState::Verifying => "s-verifying",
        HostState::GaveUp => "s-gave_up",
        HostState::Stopped => "s-stopped",
        HostState::Down => "s-down",
    }
}

fn meaning(state: HostState) -> &'static str {
    match state {
        HostState::Serving => "gets requests",
        HostState::Waiting => "withheld, waits",
        HostState::Teaching => "is taught",
        HostState::Verifying => "is asked for proof",
        HostState::GaveUp => "given up",
        HostState::Stopped => "withheld, session over",
        HostState::Down => "process down",
    }
}

/// Milliseconds as seconds with one digit.
fn seconds(ms: u64) -> String {
    format!("{}.{}", ms / 1000, ms / 100 % 10)
}

fn column(at_ms: u64, whole_ms: u64) -> u64 {
    let at = u128::from(at_ms.min(whole_ms)) * u128::from(COLUMNS) / u128::from(whole_ms.max(1));
    LEFT + u64::try_from(at).unwrap_or(COLUMNS)
}

fn text(out: &mut String, class: &str, x: u64, y: u64, content: &str) {
    push(out, format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", escape(content)));
}

fn lane(out: &mut String, line: &[Stretch], top: u64, whole_ms: u64) {
    for (index, stretch) in line.iter().enumerate() {
        let to_ms = line.get(index + 1).map_or(whole_ms, |next| next.from_ms);
        let (from, to) = (column(stretch.from_ms, whole_ms), column(to_ms, whole_ms));
        // An attempt may take no pixel at all; it is what one wants to see.
        let width = to.saturating_sub(from).max(2).min(LEFT + COLUMNS - from.min(LEFT + COLUMNS - 2));
        push(
            out,
            format_args!(
                "<rect class=\"{}\" x=\"{from}\" y=\"{top}\" width=\"{width}\" height=\"{BAND}\"><title>{} from {} s</title>\
                 </rect>\n",
                class(stretch.state),
                meaning(stretch.state),
                seconds(stretch.from_ms),
            ),
        );
    }
}

/// One lane for each host, from the first request to the settlement.
#[must_use]
pub(super) fn timeline(report: &Report<'_>, board: &Board) -> String {
    let whole_ms = report.elapsed_ms.max(1);
    let bottom = TOP + board.hosts.len() as u64 * LANE;
    let (width, height) = (LEFT + COLUMNS + 44, bottom + 40);
    let mut out = String::new();
    push(
        &mut out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\">\n<title>Time line of each host</title>\n<desc>One lane for each host over {} seconds: when it got \
             requests, when it was withheld, taught, verified, given up, or down.</desc>\n<style>{STYLE}</style>\n\
             <rect class=\"hf-bg\" width=\"{width}\" height=\"{height}\"/>\n",
            seconds(whole_ms),
        ),
    );
    text(&mut out, "hf-t hf-h", 20, 32, "Hosts over the run");
    let mut x = 20;
    for state in HostState::ALL {
        let class = class(state);
        push(
            &mut out,
            format_args!("<rect class=\"{class}\" x=\"{x}\" y=\"52\" width=\"20\" height=\"12\"/>\n"),
        );
        text(&mut out, "hf-t", x + 26, 63, meaning(state));
        x += 44 + meaning(state).len() as u64 * 7;
    }
    for tick in 0..=8_u64 {
        let at_ms = whole_ms * tick / 8;
        let x = column(at_ms, whole_ms);
        push(
            &mut out,
            format_args!("<line class=\"hf-g\" x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n"),
        );
        text(&mut out, "hf-t hf-m", x.saturating_sub(10), bottom + 20, &format!("{} s", seconds(at_ms)));
    }
    for (row, host) in board.hosts.iter().enumerate() {
        let top = TOP + row as u64 * LANE + (LANE - BAND) / 2;
        text(&mut out, "hf-t hf-e", LEFT - 12, top + 13, &host.name);
        lane(&mut out, &host.stretches, top, whole_ms);
    }
    out.push_str("</svg>\n");
    out
}

fn fault_text(board: &Board) -> Vec<String> {
    let faults = board.hosts.iter().filter_map(|host| Some((host, host.fault?)));
    let told = |(host, fault): (&super::board::HostRow, super::faults::Fault)| {
        let (name, number) = (escape(&host.name), thousands(fault.number));
        match fault.kind {
            FaultKind::Fork => {
                format!("<li>{name} computes another state from nonce {number} on, and keeps it</li>\n")
            }
            FaultKind::RestartEmpty => format!(
                "<li>{name} computes another state from nonce {number} on; once it has signed that, it is killed and starts \
                 with an empty store</li>\n"
            ),
            FaultKind::Mute => format!(
                "<li>{name} computes another state from nonce {number} on; once it has signed that, it is killed, starts with \
                 an empty store and signs no proof until it is killed again</li>\n"
            ),
            FaultKind::Slow => format!("<li>{name} takes {number} ms longer for each call</li>\n"),
            FaultKind::Lie => format!(
                "<li>{name} refuses requests from nonce {number} on as if its state were another, and signs ours when it is \
                 asked for a proof</li>\n"
            ),
        }
    };
    faults.map(told).collect()
}

fn cards(out: &mut String, report: &Report<'_>) {
    let outcome = report.outcome;
    let sum = |part: fn(&super::report::HostOutcome) -> u64| outcome.hosts.iter().map(part).sum::<u64>();
    let (conserved, class) = match (outcome.coins.conserved, outcome.coins.settled) {
        (true, true) => ("yes", "good"),
        (true, false) => ("yes, not settled", "bad"),
        (false, _) => ("NO", "bad"),
    };
    let while_flagged = sum(|host| host.starts_while_flagged);
    let safe = if while_flagged == 0 { "good" } else { "bad" };
    let cards = [
        (
            "",
            thousands(outcome.requests.completed),
            format!("of {} requests answered", thousands(outcome.requests.offered)),
        ),
        ("", thousands(outcome.requests.failed), "requests failed".into()),
        ("", thousands(sum(|host| host.restored)), "repairs brought a host back".into()),
        (safe, thousands(while_flagged), "starts sent to a host that was withheld".into()),
        (class, conserved.to_owned(), "coins conserved to the unit".into()),
    ];
    out.push_str("<div class=\"cards\">\n");
    for (class, figure, label) in cards {
        let label = escape(&label);
        push(out, format_args!("<div class=\"card {class}\"><b>{figure}</b><span>{label}</span></div>\n"));
    }
    out.push_str("</div>\n");
}

fn table(out: &mut String, report: &Report<'_>, board: &Board) {
    out.push_str(
        "<section>\n<h2>Hosts</h2>\n<div class=\"wide\"><table class=\"dense\">\n<tr><th class=\"l\">host</th>\
         <th class=\"l\">at the end</th><th>completed</th><th>missed</th><th>attempts</th><th>restored</th><th>given up</th>\
         <th>withheld, s</th><th>passes</th><th>ghosts</th><th>earned</th></tr>\n",
    );
    for (host, row) in report.outcome.hosts.iter().zip(&board.hosts) {
        let counters = &row.counters;
        push(
            out,
            format_args!(
                "<tr><td class=\"l\">{}</td><td class=\"l\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                escape(&host.name),
                if host.flagged { "withheld" } else { "serving" },
                thousands(host.completed),
                thousands(host.missed),
                thousands(host.repair_attempts),
                thousands(host.restored),
                thousands(host.gave_up),
                seconds(host.blocked_ms),
                thousands(counters.passes),
                thousands(counters.ghosts),
                escape(if counters.cost.is_empty() { "0" } else { &counters.cost }),
            ),
        );
    }
    out.push_str("</table></div>\n</section>\n");
}

/// A change in plain words; what has none stands as it is.
fn gloss(what: &str) -> &str {
    match what {
        "escrow_participant_state_blocked" => {
            "its state is another: it gets no more requests (escrow_participant_state_blocked)"
        }
        "escrow_participant_state_repair_started" => {
            "its repair begins (escrow_participant_state_repair_started)"
        }
        "escrow_participant_state_repair_attempt" => {
            "it is taught and asked for proof (escrow_participant_state_repair_attempt)"
        }
        "escrow_participant_state_unblocked" => {
            "it proved that it holds our state: it gets requests again (escrow_participant_state_unblocked)"
        }
        "escrow_participant_state_repair_gave_up" => {
            "its repair is given up: it is charged (escrow_participant_state_repair_gave_up)"
        }
        other => other,
    }
}

fn events(out: &mut String, report: &Report<'_>, board: &Board) {
    out.push_str("<section>\n<h2>What happened</h2>\n<div class=\"wide\"><table class=\"dense\">\n");
    for change in report.changes.iter().take(LISTED) {
        let host = change.host.and_then(|at| board.hosts.get(at)).map_or("", |host| host.name.as_str());
        push(
            out,
            format_args!(
                "<tr><td>{} s</td><td class=\"l\">{}</td><td class=\"l w\">{}</td></tr>\n",
                seconds(change.at_ms),
                escape(host),
                escape(gloss(&change.what)),
            ),
        );
    }
    out.push_str("</table></div>\n");
    if report.changes.len() > LISTED {
        let more = thousands((report.changes.len() - LISTED) as u64);
        push(out, format_args!("<p>{more} more are in <code>report.json</code>.</p>\n"));
    }
    out.push_str("</section>\n");
}

/// The whole page, with nothing fetched and no script.
#[must_use]
pub(super) fn page(report: &Report<'_>, board: &Board, picture: &str) -> String {
    let mut out = String::new();
    push(
        &mut out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>Holdfast localnet report</title>\n\
             <style>{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>Holdfast localnet report</h1>\n\
             <p class=\"lead\">How a gateway and its hosts answered requests out of one escrow, and what became of hosts whose \
             state was another.</p>\n</header>\n",
        ),
    );
    cards(&mut out, report);
    let requests = &report.outcome.requests;
    push(
        &mut out,
        format_args!(
            "<section>\n<h2>In plain words</h2>\n<p>{} requests went to the gateway's HTTP API in {} s; {} were answered, {} \
             failed, {} were given up by their clients. Clients sent {} a second time, as the official ones do. {} hosts, \
             each a process of its own, held the session's state beside the gateway.</p>\n",
            thousands(requests.offered),
            seconds(report.load_ms),
            thousands(requests.completed),
            thousands(requests.failed),
            thousands(requests.cancelled),
            thousands(report.sent_again),
            board.hosts.len(),
        ),
    );
    let faults = fault_text(board);
    if faults.is_empty() {
        out.push_str("<p>Nothing went wrong on purpose.</p>\n");
    } else {
        push(&mut out, format_args!("<p>What went wrong on purpose:</p>\n<ul>\n{}</ul>\n", faults.concat()));
    }
    let coins = &report.outcome.coins;
    push(
        &mut out,
        format_args!(
            "<p>The escrow held {} base units: {} went to hosts, {} are fees, {} went back. Balances of the chain say \
             the same: <b>{}</b>.</p>\n</section>\n<section>\n<h2>Time line</h2>\n<p>An attempt to teach a host and to \
             ask it for proof takes milliseconds: a thin line.</p>\n<figure class=\"wide\">{picture}</figure>\n\
             </section>\n",
            escape(&coins.amount),
            escape(&coins.paid),
            escape(&coins.fees),
            escape(&coins.refunded),
            if coins.conserved { "yes" } else { "no" },
        ),
    );
    table(&mut out, report, board);
    events(&mut out, report, board);
    if !report.failures.is_empty() {
        out.push_str("<section>\n<h2>Last failures</h2>\n<ul>\n");
        for reason in &report.failures {
            push(&mut out, format_args!("<li>{}</li>\n", escape(reason)));
        }
        out.push_str("</ul>\n</section>\n");
    }
    push(
        &mut out,
        format_args!(
            "<section>\n<h2>Run it again</h2>\n<pre>{}</pre>\n</section>\n<footer>Made by holdfastd {}. All figures are in \
             <code>report.json</code> beside this page.</footer>\n</main>\n</body>\n</html>\n",
            escape(report.command),
            escape(report.version),
        ),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::super::board::HostRow;
    use super::super::load::Requests;
    use super::super::report::{Coins, Outcome, hosts};
    use super::*;

    #[test]
    fn the_page_and_the_picture_show_every_host_and_escape_what_comes_from_outside() {
        let mut row = HostRow::new("host0".into(), "hold1a".into(), None);
        row.stretches.push(Stretch { from_ms: 500, state: HostState::Teaching });
        row.stretches.push(Stretch { from_ms: 500, state: HostState::Serving });
        let evil = HostRow::new(
            "<b>".into(),
            "hold1b".into(),
            super::super::faults::parse("fork:host1@nonce4").ok().map(|f| f[0]),
        );
        let mut board = Board { hosts: vec![row, evil], ..Board::default() };
        board.change(12, Some(1), "<script>");
        board.change(13, Some(1), "escrow_participant_state_unblocked");
        let coins = Coins {
            conserved: true,
            settled: true,
            amount: "1".into(),
            paid: "1".into(),
            fees: "0".into(),
            refunded: "0".into(),
        };
        let outcome = Outcome { requests: Requests::default(), coins, hosts: hosts(&board) };
        let report = Report {
            outcome: &outcome,
            command: "holdfastd localnet --gateway",
            version: "0",
            elapsed_ms: 1_000,
            load_ms: 900,
            sent_again: 0,
            failures: vec!["503 no_available_host".into()],
            nonces: vec![(1, 9)],
            faults: vec![None, Some("fork:host1@nonce4".into())],
            lines: board.hosts.iter().map(|host| host.stretches.as_slice()).collect(),
            changes: &board.changes,
        };
        let picture = timeline(&report, &board);
        // Half of the run lies in the middle of the plot; a stretch without length is still seen.
        assert!(picture.contains("class=\"s-teaching\" x=\"630\" y=\"99\" width=\"2\""), "{picture}");
        let page = page(&report, &board, &picture);
        for part in [
            "host0",
            "&lt;b&gt;",
            "&lt;script&gt;",
            "503 no_available_host",
            "computes another state",
            "it gets requests again (escrow_participant_state_unblocked)",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<script"));
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["lines"][0][1]["state"], "teaching");
        assert_eq!(json["hosts"][1]["starts_while_flagged"], 0);
    }
}
