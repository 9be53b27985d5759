//! Heights and app hashes of the nodes, from CometBFT's RPC.
//!
//! The app hash after height `h` is what the application answered to `FinalizeBlock` of `h`, from CometBFT's record of that
//! answer (`/block_results`). It stands in the header of height `h + 1`; asked this way the last height has one too, and
//! each node speaks for its own application.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{LocalnetConfig, Node};
use crate::cli::CliError;
use crate::comet::Rpc;

/// Time between two looks at the nodes.
const POLL: Duration = Duration::from_millis(200);
/// Longest wait for a node's answer: it may be dead.
const ANSWER: Duration = Duration::from_secs(2);
/// Most heights read from a node at one look.
const AT_A_LOOK: i64 = 200;

/// A node at the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct NodeReport {
    /// `node0` and so on.
    pub name: String,
    /// Last height of `app_hashes`; without them the last one seen.
    pub height: i64,
    /// First height of `app_hashes`: 1 or the chain's initial height, later on a node that joined by a snapshot.
    pub first_height: i64,
    /// App hashes after each height from `first_height`, lower-case hex.
    pub app_hashes: Vec<String>,
}

struct Watched {
    node: Node,
    rpc: Rpc,
    /// Height of the application's last commit; `None` while the node does not answer.
    height: Option<i64>,
    last_hash: String,
    first: i64,
    hashes: Vec<String>,
}

/// What is known of the nodes.
pub(super) struct Watcher {
    nodes: Vec<Watched>,
    until: Option<i64>,
    collect: bool,
}

fn integer(value: &Value) -> Option<i64> {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_i64())
}

/// A binary field as lower-case hex.
fn hash(value: &Value) -> String {
    STANDARD.decode(value.as_str().unwrap_or_default()).map(hex::encode).unwrap_or_default()
}

impl Watched {
    async fn call(&self, method: &str, params: Value) -> Option<Value> {
        tokio::time::timeout(ANSWER, self.rpc.call(method, params)).await.ok()?.ok()
    }

    /// Asks for the application's last commit; gives the number of transactions of that block when it is new.
    async fn look(&mut self) {
        let Some(answer) = self.call("abci_info", json!({})).await else {
            self.height = None;
            return;
        };
        let info = &answer["response"];
        self.height = Some(integer(&info["last_block_height"]).unwrap_or(0));
        self.last_hash = hash(&info["last_block_app_hash"]);
    }

    /// Reads app hashes up to `until`.
    async fn collect(&mut self, until: i64) {
        if self.first == 0 {
            let Some(status) = self.call("status", json!({})).await else { return };
            let earliest = integer(&status["sync_info"]["earliest_block_height"]).unwrap_or(0);
            if earliest == 0 {
                return;
            }
            self.first = earliest;
        }
        for _ in 0..AT_A_LOOK {
            let read = i64::try_from(self.hashes.len()).unwrap_or(i64::MAX);
            let next = self.first.saturating_add(read);
            if next > until {
                return;
            }
            let Some(results) = self.call("block_results", json!({ "height": next.to_string() })).await
            else {
                return;
            };
            let hash = hash(&results["app_hash"]);
            if hash.is_empty() {
                return;
            }
            self.hashes.push(hash);
        }
    }

    fn done(&self, until: i64, collect: bool) -> bool {
        if !collect {
            return self.height.is_some_and(|height| height >= until);
        }
        let read = i64::try_from(self.hashes.len()).unwrap_or(i64::MAX);
        self.first > 0 && self.first.saturating_add(read) > until
    }
}

impl Watcher {
    pub(super) fn new(config: &LocalnetConfig) -> Self {
        let watched = |node: &Node| Watched {
            node: node.clone(),
            rpc: Rpc::new(format!("127.0.0.1:{}", node.ports.rpc)),
            height: None,
            last_hash: String::new(),
            first: 0,
            hashes: Vec::new(),
        };
        Self {
            nodes: config.nodes.iter().map(watched).collect(),
            until: config.until,
            collect: config.collect,
        }
    }

    /// Follows the network until every node has reached the height asked for. Tells the highest height to `heights`.
    ///
    /// # Errors
    /// No block for `stall`, in a run that is to end at a height; nobody reads standard output any more.
    pub(super) async fn follow(&mut self, heights: &watch::Sender<i64>, stall: Duration) -> Result<()> {
        let mut top = 0;
        let mut shown = BTreeMap::new();
        let mut moved = Instant::now();
        loop {
            for node in &mut self.nodes {
                node.look().await;
                let (until, height) = (self.until.unwrap_or(i64::MAX), node.height.unwrap_or(0));
                if self.collect {
                    node.collect(height.min(until)).await;
                }
            }
            let now: BTreeMap<usize, Option<i64>> =
                self.nodes.iter().map(|node| node.height).enumerate().collect();
            if now != shown {
                let highest = now.values().flatten().copied().max().unwrap_or(0);
                crate::say::line(self.line(highest, moved.elapsed(), highest > top))?;
                if highest > top {
                    top = highest;
                    heights.send_replace(top);
                }
                moved = Instant::now();
                shown = now;
            }
            if let Some(until) = self.until {
                if self.nodes.iter().all(|node| node.done(until, self.collect)) {
                    return Ok(());
                }
                if moved.elapsed() > stall {
                    let text = format!(
                        "no block for {} seconds; see app.log and cometbft.log of the nodes",
                        stall.as_secs()
                    );
                    return Err(CliError { code: 83, field: "localnet".into(), text }.into());
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn line(&self, highest: i64, since: Duration, new: bool) -> String {
        let mut line = format!("height {highest:>6}");
        if new {
            line.push_str(&format!("  {:>5.2} s", since.as_secs_f64()));
        } else {
            line.push_str("         ");
        }
        for node in &self.nodes {
            let hash = node.last_hash.get(..8).unwrap_or("-");
            line.push_str(&match node.height {
                Some(height) => format!("  {} {height} {hash}", node.node.name),
                None => format!("  {} down", node.node.name),
            });
        }
        line
    }

    /// What was seen. A run to a height ends with exactly that height on each node.
    pub(super) fn reports(&self) -> Vec<NodeReport> {
        let report = |node: &Watched| {
            let read = i64::try_from(node.hashes.len()).unwrap_or(i64::MAX);
            let seen = node.height.unwrap_or(0);
            NodeReport {
                name: node.node.name.clone(),
                height: match (self.collect, self.until) {
                    (true, _) => node.first.saturating_add(read).saturating_sub(1).max(0),
                    (false, Some(until)) => seen.min(until),
                    (false, None) => seen,
                },
                first_height: node.first,
                app_hashes: node.hashes.clone(),
            }
        };
        self.nodes.iter().map(report).collect()
    }
}

/// Checks that no two nodes differ at a height.
///
/// # Errors
/// Names nodes and height.
pub(super) fn compare(reports: &[NodeReport]) -> Result<()> {
    let mut known: BTreeMap<i64, (&str, &str)> = BTreeMap::new();
    for report in reports {
        for (height, hash) in (report.first_height..).zip(&report.app_hashes) {
            let (name, first) = known.entry(height).or_insert((&report.name, hash));
            if first != hash {
                bail!(
                    "localnet: {} has app hash {hash} after height {height}, {name} has {first}: the chain has forked",
                    report.name
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_that_differ_at_a_height_are_named() {
        let report = |name: &str, first_height, hashes: &[&str]| NodeReport {
            name: name.into(),
            height: 0,
            first_height,
            app_hashes: hashes.iter().map(|hash| (*hash).into()).collect(),
        };
        // One joined at height 3.
        let same = [report("node0", 1, &["a", "b", "c", "d"]), report("node1", 3, &["c", "d", "e"])];
        compare(&same).unwrap();
        let text = compare(&[report("node0", 1, &["a", "b"]), report("node1", 2, &["x"])]);
        let text = text.unwrap_err().to_string();
        assert!(text.contains("node1 has app hash x after height 2, node0 has b"), "{text}");
    }
}
