//! What a run shows while it goes on: a frame for a terminal, plain lines otherwise. Pure: the caller owns the terminal.

use super::board::{Board, Change, HostState};
use super::load::Requests;
use crate::devnet::report::thousands;
use crate::devnet::view::{Line, Paint, Screen};

/// What goes on now.
pub(super) struct View<'a> {
    /// What is known.
    pub(super) board: &'a Board,
    /// What became of the requests.
    pub(super) requests: Requests,
    /// Requests of the run; 0: no load.
    pub(super) wanted: u64,
    /// What the run is at: `load`, `waits for repairs`, `settles`.
    pub(super) stage: &'a str,
    /// What the stage waits for and how long at most; empty: for nothing.
    pub(super) waits: &'a str,
    /// Milliseconds since the load began.
    pub(super) elapsed_ms: u64,
}

fn paint(state: HostState) -> Paint {
    match state {
        HostState::Serving => Paint::Green,
        HostState::Waiting | HostState::Teaching | HostState::Verifying => Paint::Yellow,
        HostState::GaveUp | HostState::Down => Paint::Red,
        HostState::Stopped => Paint::Dim,
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms / 100 % 10)
}

/// The stage with what it waits for.
fn stage(view: &View<'_>) -> String {
    if view.waits.is_empty() { view.stage.to_owned() } else { format!("{}: {}", view.stage, view.waits) }
}

/// What a flagged host is at.
fn repair(board: &Board, host: usize) -> String {
    let Some(flag) = board.hosts.get(host).and_then(|host| host.flag.as_ref()) else { return String::new() };
    let forked = if flag.forked { ", forked" } else { "" };
    let verdict = if flag.last_verdict.is_empty() { "none yet" } else { flag.last_verdict.as_str() };
    format!(
        "nonce {}, generation {}, attempt {}, level {}{forked}, last: {verdict}",
        flag.diverged_nonce, flag.generation, flag.attempt, flag.level
    )
}

/// One frame, at most `screen.height` lines of at most `screen.width` columns.
#[must_use]
pub(super) fn frame(view: &View<'_>, screen: Screen) -> String {
    let line = || Line::new(screen);
    let board = view.board;
    let mut lines = vec![
        line()
            .add(Paint::Bold, "Holdfast localnet")
            .add(Paint::Plain, if screen.unicode { " \u{2014} " } else { " - " })
            .add(Paint::Plain, &stage(view))
            .add(Paint::Dim, &format!("  {}", seconds(view.elapsed_ms))),
        requests(line(), view),
        line(),
    ];
    for session in &board.sessions {
        let mut row = line()
            .add(Paint::Bold, &format!("escrow {}", session.escrow_id))
            .add(Paint::Plain, &format!("  {}  nonce {}", session.phase, thousands(session.nonce)))
            .add(Paint::Plain, &format!("  live {}  queued {}", session.live, session.queued))
            .add(
                Paint::Dim,
                &format!("  balance {}  cost {}  fees {}", session.balance, session.cost, session.fees),
            );
        if session.self_suspect {
            row = row.add(Paint::Red, "  SELF SUSPECT");
        }
        if session.quorum_at_risk {
            row = row.add(Paint::Red, "  quorum at risk");
        }
        lines.push(row);
    }
    if !board.gateway_up {
        lines.push(line().add(Paint::Red, "the gateway does not answer"));
    }
    lines.push(line());
    for (index, host) in board.hosts.iter().enumerate() {
        let (state, counters) = (host.state(), &host.counters);
        lines.push(
            line()
                .add(Paint::Plain, &format!("  {:<8}", host.name))
                .add(paint(state), &format!("{:<10}", state.word()))
                .add(Paint::Plain, &format!("cursor {:<8}", counters.cursor))
                .add(Paint::Plain, &format!("done {:<6}missed {:<5}", counters.completed, counters.missed))
                .add(Paint::Dim, &format!("passes {:<6}restored {:<4}", counters.passes, counters.restored))
                .add(Paint::Yellow, &repair(board, index)),
        );
    }
    let room = screen.height.saturating_sub(lines.len());
    let news = board.changes.len().min(8).min(room.saturating_sub(2));
    if news > 0 {
        lines.push(line());
        lines.push(line().add(Paint::Bold, "last changes"));
        for change in board.changes.iter().rev().take(news) {
            lines.push(line().add(Paint::Dim, &format!("  {}", change_line(change, board))));
        }
    }
    lines.truncate(screen.height);
    crate::devnet::view::whole(&lines)
}

fn requests(line: Line, view: &View<'_>) -> Line {
    let Requests { offered, completed, failed, cancelled } = view.requests;
    if view.wanted == 0 {
        return line.add(Paint::Dim, "no load; send requests to the gateway, stop with ^C");
    }
    line.add(Paint::Plain, &format!("{} of {} requests   ", thousands(offered), thousands(view.wanted)))
        .add(Paint::Green, &format!("answered {}   ", thousands(completed)))
        .add(if failed == 0 { Paint::Plain } else { Paint::Red }, &format!("failed {}   ", thousands(failed)))
        .add(
            Paint::Plain,
            &format!("cancelled {}   under way {}", thousands(cancelled), thousands(view.requests.open())),
        )
}

/// One line for a log, without colour and without a line end.
#[must_use]
pub(super) fn log_line(view: &View<'_>) -> String {
    let Requests { offered, completed, failed, cancelled } = view.requests;
    let count = |state| view.board.hosts.iter().filter(|host| host.state() == state).count();
    let flagged = view.board.hosts.iter().filter(|host| host.flag.is_some()).count();
    let nonces: Vec<String> = view
        .board
        .sessions
        .iter()
        .map(|session| format!("{} at {}", session.escrow_id, session.nonce))
        .collect();
    format!(
        "{} {}: {offered}/{} offered, {completed} answered, {failed} failed, {cancelled} cancelled; hosts: {} serving, \
         {flagged} flagged, {} down; escrow {}",
        seconds(view.elapsed_ms),
        stage(view),
        view.wanted,
        count(HostState::Serving),
        count(HostState::Down),
        if nonces.is_empty() { "-".to_owned() } else { nonces.join(", ") },
    )
}

/// One line about something that happened.
#[must_use]
pub(super) fn change_line(change: &Change, board: &Board) -> String {
    let host = change.host.and_then(|at| board.hosts.get(at)).map_or("network", |host| host.name.as_str());
    format!("{} {host}: {}", seconds(change.at_ms), change.what)
}

#[cfg(test)]
mod tests {
    use holdfast_proto::holdfast::gateway::v1 as pb;

    use super::super::board::HostRow;
    use super::*;

    #[test]
    fn a_frame_fits_any_screen_and_names_every_host() {
        let mut board = Board::default();
        for n in 0..9 {
            board.hosts.push(HostRow::new(format!("host{n}"), format!("hold1{n}"), None));
        }
        board.hosts[4].flag = Some(pb::DivergenceFlag {
            diverged_nonce: 41,
            generation: 2,
            phase: pb::RepairPhase::Waiting.into(),
            last_verdict: "refused\u{1b}[2J".into(),
            ..Default::default()
        });
        board.sessions.push(pb::EscrowSession { escrow_id: 1, nonce: 77, ..Default::default() });
        board.change(1_250, Some(4), "escrow_participant_state_blocked");
        let requests = Requests { offered: 9, completed: 5, failed: 1, cancelled: 1 };
        let view = View { board: &board, requests, wanted: 10, stage: "load", waits: "", elapsed_ms: 2_340 };
        for (width, height) in [(0, 0), (1, 1), (20, 5), (200, 60)] {
            let screen = Screen { width, height, colour: false, unicode: false };
            let text = frame(&view, screen);
            let lines: Vec<&str> = text.split("\r\n").collect();
            assert!(lines.len() <= height.max(1), "{width}x{height}");
            let plain =
                |line: &str| line.replace("\u{1b}[H", "").replace("\u{1b}[K", "").replace("\u{1b}[J", "");
            assert!(lines.iter().all(|line| plain(line).chars().count() <= width), "{width}x{height}");
        }
        let screen = Screen { width: 200, height: 60, colour: false, unicode: false };
        let text = frame(&view, screen);
        assert!(
            text.contains("host8") && text.contains("generation 2") && !text.contains("\u{1b}[2J"),
            "{text}"
        );
        assert!(text.contains("1.2 s host4: escrow_participant_state_blocked"), "{text}");
        assert_eq!(
            log_line(&view),
            "2.3 s load: 9/10 offered, 5 answered, 1 failed, 1 cancelled; hosts: 8 serving, 1 flagged, 0 down; escrow 1 at 77"
        );
        let waits = "1 inference of host2 not decided, at most 57 s more";
        let view = View { stage: "waits for what is open", waits, ..view };
        let wanted = format!("2.3 s waits for what is open: {waits}: 9/10 offered");
        assert!(log_line(&view).starts_with(&wanted), "{}", log_line(&view));
        assert!(frame(&view, screen).contains(waits));
    }
}
