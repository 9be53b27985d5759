//! `holdfastd generate` over an upstream that fails in every phase: two processes, and a time limit.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Ran, Running, SHORT, command, run, until};

/// The total deadline of what hangs, milliseconds.
const TOTAL_MS: u64 = 1_500;
/// On top of it: two processes start, a step is waited for, the upstream is asked whether it stopped.
const SLACK: Duration = Duration::from_secs(25);
/// Cases at a time.
const THREADS: usize = 3;

struct Upstream {
    process: Running,
    address: String,
}

impl Upstream {
    fn start(words: &[&str]) -> Self {
        let process =
            Running::start(&mut command(&[&["upstream", "--listen", "127.0.0.1:0"], words].concat()));
        let line = until(SHORT, "the upstream's address", || {
            process.out().split_once('\n').map(|(line, _)| line.to_owned())
        });
        let said: Value = serde_json::from_str(&line).expect("JSON");
        let address = said["address"].as_str().expect("an address").to_owned();
        Self { process, address }
    }

    /// Requests that it works on, by its own gauge.
    fn running(&self) -> Option<u64> {
        let mut socket = TcpStream::connect(&self.address).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: it\r\n\r\n").ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        let line = text.lines().find(|line| line.starts_with("vllm:num_requests_running{"))?;
        line.rsplit(' ').next()?.split('.').next()?.parse().ok()
    }

    fn words(&self) -> [String; 7] {
        let url = format!("http://{}", self.address);
        ["generate", "say it", "--backend", "openai-http", "--upstream", &url, "--max-tokens=8"]
            .map(str::to_owned)
    }

    fn generate(&self) -> Ran {
        let words = self.words();
        let total = TOTAL_MS.to_string();
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.extend(["--output", "json", "--total-ms", &total]);
        run(&mut command(&words), Duration::from_millis(TOTAL_MS) + SLACK)
    }

    #[track_caller]
    fn becomes_idle(&self, what: &str) {
        until(Duration::from_secs(5), &format!("{what}: the upstream stops"), || {
            (self.running() == Some(0)).then_some(())
        });
    }
}

/// What a generation ended as: status, kind, tokens, text.
fn result(ran: &Ran, what: &str) -> (String, Option<String>, u64, String) {
    let value: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{what}: {e}: {ran:?}"));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let record = &value["records"][0];
    assert_eq!(value["records"].as_array().map(Vec::len), Some(1), "{what}: {value}");
    assert_eq!(record["status"], value["status"], "{what}: {value}");
    let completed = value["status"] == "completed";
    assert_eq!(
        (ran.status.code(), &record["billable"]),
        (Some(i32::from(!completed)), &completed.into()),
        "{what}"
    );
    let billed = if completed { record["tokens"].as_u64().expect("tokens") } else { 0 };
    assert_eq!(value["ledger"]["billable_tokens"], billed, "{what}: {value}");
    let status = text(&value["status"]).expect("a status");
    (
        status,
        text(&value["failure_kind"]),
        record["tokens"].as_u64().unwrap_or(0),
        text(&value["text"]).expect("a text"),
    )
}

/// A plan for the upstream, the kind that follows, and the most tokens before it.
type Case = (String, &'static str, u64);

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let places =
        [("accept", 0), ("request", 0), ("head", 0), ("tokens:0", 0), ("tokens:3", 3), ("tokens:8", 7)];
    for (place, most) in places {
        cases.push((format!("silence@{place}"), "deadline-exceeded", most));
        for fault in ["reset", "early-end", "garbage-bytes"] {
            cases.push((format!("{fault}@{place}"), "stream-reset", most));
        }
        if !matches!(place, "accept" | "request") {
            for fault in ["garbage-json", "error-chunk", "oversize-line", "endless-comments"] {
                cases.push((format!("{fault}@{place}"), "stream-reset", most));
            }
        }
    }
    for (fault, kind, most) in [
        ("oversize-head", "stream-reset", 0),
        ("endless-tokens", "stream-reset", 7),
        ("duplicates", "stream-reset", 7),
        ("no-done", "stream-reset", 7),
        ("no-finish-reason", "stream-reset", 7),
        ("no-usage", "stream-reset", 7),
        ("usage-times:0", "stream-reset", 7),
        ("content-type", "stream-reset", 0),
        ("status:400", "internal", 0),
        ("status:401", "internal", 0),
        ("status:404", "internal", 0),
        ("status:500", "stream-reset", 0),
        ("status:502", "stream-reset", 0),
        // Asked twice.
        ("status:429:0", "internal", 0),
        ("status:503:0", "internal", 0),
    ] {
        cases.push((fault.to_owned(), kind, most));
    }
    cases
}

fn one((plan, kind, most): &Case) {
    let upstream = Upstream::start(&["--fault", plan]);
    let begin = Instant::now();
    let (status, found, tokens, text) = result(&upstream.generate(), plan);
    assert_eq!((status.as_str(), found.as_deref()), ("failed", Some(*kind)), "{plan}");
    assert!(tokens <= *most, "{plan}: {tokens} tokens");
    assert_eq!(text.is_empty(), tokens == 0, "{plan}: {text:?}");
    println!("{plan}: {kind} after {tokens} tokens, {} ms", begin.elapsed().as_millis());
    upstream.becomes_idle(plan);
}

#[test]
fn an_upstream_that_fails_in_any_phase_ends_the_generation_in_time_and_is_left_idle() {
    let cases = cases();
    std::thread::scope(|scope| {
        for lane in 0..THREADS {
            let cases = &cases;
            scope.spawn(move || cases.iter().skip(lane).step_by(THREADS).for_each(one));
        }
    });
}

#[test]
fn an_upstream_whose_faults_can_be_borne_completes_the_generation() {
    let clean = Upstream::start(&[]);
    let (status, kind, tokens, text) = result(&clean.generate(), "no fault");
    assert_eq!((status.as_str(), kind, tokens), ("completed", None, 8));
    clean.becomes_idle("no fault");
    for plan in ["usage-times:1000000", "stale-gauges", "status:429:0@request x1", "status:503:0@request x1"]
    {
        let upstream = Upstream::start(&["--fault", plan]);
        let again = result(&upstream.generate(), plan);
        assert_eq!(again, ("completed".to_owned(), None, 8, text.clone()), "{plan}");
        upstream.becomes_idle(plan);
    }
}

#[test]
fn an_upstream_that_is_killed_or_a_client_that_leaves_ends_the_generation() {
    let upstream = Upstream::start(&["--fault", "silence@tokens:3"]);
    let words = upstream.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let client = Running::start(&mut command(&words));
    until(SHORT, "text", || (!client.out().is_empty()).then_some(()));
    assert_eq!(upstream.running(), Some(1));
    client.signal("INT");
    let ended = client.wait(SHORT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    for part in ["interrupted", "(cli error 51)", "status: cancelled"] {
        assert!(ended.err.contains(part), "{part:?} is not in: {}", ended.err);
    }
    upstream.becomes_idle("a client that leaves");

    let client = Running::start(&mut command(&[&words[..], &["--output", "json"]].concat()));
    until(SHORT, "a request", || (upstream.running() == Some(1)).then_some(()));
    upstream.process.signal("KILL");
    let (status, kind, tokens, _) = result(&client.wait(SHORT), "killed");
    assert!(matches!(kind.as_deref(), Some("stream-reset" | "worker-death")), "{status} {kind:?}");
    assert!(tokens <= 3);
}
