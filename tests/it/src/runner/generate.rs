//! `holdfastd generate` over workers that run already.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Running, SHORT, command, run};

/// A worker and its URL.
fn worker(more: &[&str]) -> (Running, String) {
    let words = ["worker", "--listen", "127.0.0.1:0", "--output", "json", "--log-level", "error"];
    let worker = Running::start(&mut command(&[&words[..], more].concat()));
    let until = Instant::now() + SHORT;
    while !worker.out().contains('\n') {
        assert!(Instant::now() < until, "{}{}", worker.out(), worker.err());
        std::thread::sleep(Duration::from_millis(20));
    }
    let said: Value = serde_json::from_str(worker.out().lines().next().expect("a line")).expect("JSON");
    let url = format!("http://{}", said["address"].as_str().expect("an address"));
    (worker, url)
}

#[test]
fn a_generation_goes_on_with_another_worker_when_one_dies() {
    let (_spare, spare) = worker(&["--name", "b"]);
    let clean = ["generate", "hello", "--max-tokens", "8", "--output", "json", "--worker-url"];
    let wanted = run(&mut command(&[&clean[..], &[spare.as_str()]].concat()), SHORT).json()["text"].clone();

    // Names decide between equal routes: the one that will die comes first.
    let (mut first, url) = worker(&["--name", "a", "--fault", "stall-after@3"]);
    let both = [&clean[..], &[url.as_str(), "--worker-url", spare.as_str()]].concat();
    let running = Running::start(&mut command(&both));
    let until = Instant::now() + SHORT;
    while !first.out().contains("stalled") {
        assert!(Instant::now() < until, "{}{}", running.out(), running.err());
        std::thread::sleep(Duration::from_millis(20));
    }
    first.signal("KILL");
    let answer = running.wait(SHORT).json();
    assert!(!first.runs());
    assert_eq!(answer["text"], wanted);
    let ended = |n: usize| (answer["records"][n]["status"].clone(), answer["records"][n]["epoch"].clone());
    assert_eq!(ended(0), ("unverified".into(), 0.into()), "{answer}");
    assert_eq!(ended(1), ("completed".into(), 1.into()), "{answer}");
    assert_eq!(answer["ledger"]["billable_tokens"], 8);
}

#[test]
fn an_interrupted_generation_gives_its_rows_back_at_once_and_says_how_it_ended() {
    // Room for one session at a time: 5 tokens of prompt and 8 more.
    let (held, url) = worker(&["--capacity", "16", "--fault", "stall@3"]);
    let words = ["generate", "hello", "--max-tokens", "8", "--output", "json", "--worker-url", url.as_str()];
    let running = Running::start(&mut command(&words));
    let until = Instant::now() + SHORT;
    while !held.out().contains("stalled") {
        assert!(Instant::now() < until, "{}{}", running.out(), running.err());
        std::thread::sleep(Duration::from_millis(20));
    }
    running.signal("INT");
    let ended = running.wait(SHORT);
    assert_eq!(ended.status.code(), Some(1), "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("(cli error 51)"), "{}", ended.err);
    let answer: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(answer["records"][0]["status"], "cancelled", "{answer}");
    assert_eq!(answer["records"][0]["kv"], "released", "{answer}");

    // The fault is spent: this one completes, in the room that the other gave back. Left to its lease, it would not have
    // been free for ten seconds.
    let started = Instant::now();
    let answer = run(&mut command(&words), SHORT).json();
    assert_eq!(answer["status"], "completed", "{answer}");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
