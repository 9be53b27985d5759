//! Whole runs under a load, by what they report.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::all;
use crate::process::{Ran, command, run};

/// Longest run: the load, and then what the run itself waits for at most (open timeouts 240 s, repairs 120 s, the settlement
/// 120 s) before it says what is wrong.
const LIMIT: Duration = Duration::from_secs(600);

struct Report {
    value: Value,
    ran: Ran,
    dir: tempfile::TempDir,
}

fn localnet(args: &[&str]) -> Report {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (json, report, home) = (at("out.json"), at("report"), at("net"));
    let fixed =
        ["localnet", "--gateway", "--headless", "--json", &json, "--report", &report, "--home", &home];
    let ran = run(&mut command(&[&fixed[..], args].concat()), LIMIT);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|e| panic!("{e}: {}\n{}", ran.out, ran.err));
    Report { value: serde_json::from_str(&text).expect("JSON"), ran, dir }
}

impl Report {
    #[track_caller]
    fn number(&self, path: &str) -> u64 {
        let number = self.value.pointer(path).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("{path} is no number in {}", self.value))
    }

    fn host(&self, index: usize, name: &str) -> u64 {
        self.number(&format!("/hosts/{index}/{name}"))
    }

    fn flagged(&self, index: usize) -> bool {
        self.value["hosts"][index]["flagged"].as_bool().expect("a bool")
    }

    /// What holds whatever goes wrong.
    #[track_caller]
    fn check(&self, hosts: usize, requests: u64) {
        assert!(self.ran.status.success(), "{}\n{}", self.ran.out, self.ran.err);
        let listed = self.value["hosts"].as_array().expect("a list");
        assert_eq!(listed.len(), hosts);
        for (index, host) in listed.iter().enumerate() {
            assert_eq!(host["name"], format!("host{index}"));
            // Withheld means withheld, and nobody pays for that.
            assert_eq!(
                (
                    self.host(index, "starts_while_flagged"),
                    self.host(index, "accountable_ghosts_during_repair")
                ),
                (0, 0)
            );
        }
        let [offered, completed, failed, cancelled] = ["offered", "completed", "failed", "cancelled"]
            .map(|name| self.number(&format!("/requests/{name}")));
        assert_eq!((offered, completed + failed + cancelled), (requests, requests), "{}", self.value);
        assert_eq!(failed, 0, "{}\n{}", self.value, self.ran.out);
        assert_eq!(self.value["coins"]["conserved"], true, "{}", self.value);
        assert_eq!(self.value["coins"]["settled"], true, "{}", self.value);
        let coins = |name: &str| -> u128 {
            self.value["coins"][name].as_str().and_then(|text| text.parse().ok()).expect("an amount")
        };
        assert_eq!(coins("paid") + coins("fees") + coins("refunded"), coins("amount"));
        assert!(coins("paid") > 0 && coins("fees") > 0);
        for name in ["report.json", "report.html", "timeline.svg"] {
            assert!(self.dir.path().join("report").join(name).is_file(), "{name} is missing");
        }
        self.nothing_runs();
    }

    /// No process of the run is left.
    fn nothing_runs(&self) {
        let text = std::fs::read_to_string(self.dir.path().join("net/localnet.json")).expect("a manifest");
        let manifest: Value = serde_json::from_str(&text).expect("JSON");
        let hosts = manifest["hosts"].as_array().expect("hosts").iter();
        for process in hosts.chain([&manifest["chain"], &manifest["gateway"]]) {
            if let Some(pid) = process["pid"].as_u64() {
                assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{process} is left");
            }
        }
    }
}

#[test]
fn a_forked_host_stays_withheld_and_one_that_starts_empty_is_taught_back() {
    let requests = if all() { 2_000 } else { 160 };
    let text = requests.to_string();
    let report = localnet(&[
        "--hosts",
        "4",
        "--requests",
        &text,
        "--fault",
        "fork:host2@nonce40,restart-empty:host3@nonce60",
    ]);
    report.check(4, requests);
    let flagged: Vec<bool> = (0..4).map(|index| report.flagged(index)).collect();
    assert_eq!(flagged, [false, false, true, false], "{}", report.value);
    assert_eq!((report.host(2, "restored"), report.host(3, "restored")), (0, 1));
    assert_eq!((report.host(0, "repair_attempts"), report.host(1, "repair_attempts")), (0, 0));
    assert!(report.host(2, "repair_attempts") >= 1 && report.host(3, "repair_attempts") >= 1);
    assert!(report.host(2, "blocked_ms") > report.host(3, "blocked_ms") && report.host(3, "blocked_ms") > 0);
    // What each completed before it parted, and what the others did.
    assert!((0..4).all(|index| report.host(index, "completed") > 0), "{}", report.value);
    let page = std::fs::read_to_string(report.dir.path().join("report/report.html")).expect("a page");
    for part in ["host3", "started with an empty store", "escrow_participant_state_unblocked"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_forked_replica_is_dropped_and_taught_anew_when_both_sides_agree() {
    let report = localnet(&[
        "--hosts",
        "3",
        "--requests",
        "60",
        "--cancel-every",
        "6",
        "--allow-reset",
        "--workers",
        "0",
        "--fault",
        "fork:host1@nonce12",
    ]);
    report.check(3, 60);
    assert_eq!((report.flagged(1), report.host(1, "restored")), (false, 1), "{}", report.value);
    assert!(
        report.host(1, "repair_attempts") >= 2,
        "one that finds the fork, one that resets: {}",
        report.value
    );
    // Every sixth client left after its first token.
    assert_eq!(report.number("/requests/cancelled"), 10);
}
