//! The network from its first process to its last.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_types::{Address, Hrp};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::board::{Board, HostRow};
use super::chain::Payer;
use super::faults::{Fault, FaultKind};
use super::load::{self, Counts, Load, Requests};
use super::process::{Again, Process};
use super::report::{self, Balances, Outcome, Report};
use super::show::Show;
use super::view::View;
use super::watch::Operator;
use super::{GatewayNet, HostPlan, MANIFEST};
use crate::say;

/// Time between two looks at the network.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for the first block, and for the session.
const BEGIN: Duration = Duration::from_secs(60);
/// Longest wait for what is open after the last request: a receipt, an execution, two rounds of votes.
const OPEN: Duration = Duration::from_secs(240);
/// Longest wait for hosts that can be taught.
const REPAIRS: Duration = Duration::from_secs(120);
/// Longest wait for the settlement: what is in flight is drained first.
const SETTLE: Duration = Duration::from_secs(120);
/// Stages that wait for something by name.
const WAITS_OPEN: &str = "waits for what is open";
const WAITS_REPAIRS: &str = "waits for repairs";
/// Changes of flags that wait to be looked at.
const CHANGES: usize = 1024;

/// A host with its process.
struct HostProcess {
    process: Process,
    /// It is to be killed and emptied once it is flagged.
    restart_empty: bool,
}

/// What a run has once it is up.
struct Up {
    chain: Payer,
    operator: Operator,
    changes: mpsc::Receiver<pb::WatchDivergenceResponse>,
    follower: JoinHandle<()>,
    escrow_id: u64,
    before: Balances,
    http: String,
    chain_grpc: String,
}

impl Drop for Up {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

pub(super) struct Net<'a> {
    plan: &'a GatewayNet,
    chain: Process,
    gateway: Process,
    hosts: Vec<HostProcess>,
    board: Board,
    show: Show,
    began: Instant,
    stage: &'static str,
    /// Until when the stage lasts at most.
    until: Option<Instant>,
    counts: Arc<Counts>,
    /// Attempt for which an operator's verb was sent, by host.
    forced: Vec<(u64, u32)>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl<'a> Net<'a> {
    pub(super) fn new(plan: &'a GatewayNet) -> Self {
        let process = |name: &str, args| {
            Process::new(name, &plan.holdfastd, args, plan.home.join(format!("{name}.log")))
        };
        let home = plan.home.join("chain").display().to_string();
        let mut args = words(&["start", "--home", &home, "--grpc-listen", "127.0.0.1:0"]);
        args.extend(words(&["--block-seconds", &plan.block_seconds, "--log-level", "warn"]));
        let chain = process("chain", args);
        let fault_of = |index| plan.faults.iter().find(|fault| fault.host == index).copied();
        let host = |(index, host): (usize, &HostPlan)| HostProcess {
            process: process(&host.name, Vec::new()),
            restart_empty: fault_of(index).is_some_and(|fault| fault.kind.is_emptied()),
        };
        let row = |(index, host): (usize, &HostPlan)| {
            HostRow::new(host.name.clone(), host.address.to_bech32(&Hrp::default()), fault_of(index))
        };
        Self {
            plan,
            chain,
            gateway: process("gateway", Vec::new()),
            hosts: plan.hosts.iter().enumerate().map(host).collect(),
            board: Board { hosts: plan.hosts.iter().enumerate().map(row).collect(), ..Board::default() },
            show: Show::new(plan.headless),
            began: Instant::now(),
            stage: "starts",
            until: None,
            counts: Arc::default(),
            forced: vec![(0, 0); plan.hosts.len()],
        }
    }

    fn fault(&self, index: usize) -> Option<&Fault> {
        self.plan.faults.iter().find(|fault| fault.host == index)
    }

    /// Arguments of a host, with a drill or without.
    fn host_args(&self, index: usize, chain_grpc: &str, drill: Option<String>) -> Vec<String> {
        let Some(host) = self.plan.hosts.get(index) else { return Vec::new() };
        let (home, listen) = (host.home.display().to_string(), host.listen.to_string());
        let mut args = words(&["host", "--home", &home, "--from", &host.name, "--grpc-addr", chain_grpc]);
        args.extend(words(&["--listen", &listen, "--models", &self.plan.model, "--output", "json"]));
        args.extend(self.plan.backend.iter().cloned());
        if self.plan.workers > 0 {
            args.extend(words(&["--workers", &self.plan.workers.to_string()]));
        }
        if self.plan.allow_reset {
            args.push("--allow-reset".into());
        }
        if let Some(drill) = drill {
            args.extend(["--drill".into(), drill]);
        }
        args.extend(self.plan.host_args.iter().cloned());
        args
    }

    fn gateway_args(&self, chain_grpc: &str, http: &str, escrow_id: u64) -> Vec<String> {
        let home = self.plan.home.join("gateway");
        let token = home.join("operator-token").display().to_string();
        let (home, grpc) = (home.display().to_string(), self.plan.gateway_grpc.to_string());
        let mut args = words(&["gateway", "--home", &home, "--from", "gateway", "--grpc-addr", chain_grpc]);
        args.extend(words(&[
            "--http",
            http,
            "--grpc",
            &grpc,
            "--models",
            &self.plan.model,
            "--escrow",
            &escrow_id.to_string(),
        ]));
        args.extend(words(&["--operator-token-file", &token, "--deadline", "120", "--output", "json"]));
        let (context, bytes) = (self.plan.context.to_string(), self.plan.token_bytes.to_string());
        args.extend(words(&["--context-length", &context, "--token-bytes-max", &bytes]));
        if self.plan.allow_reset {
            args.push("--allow-reset".into());
        }
        args.extend(self.plan.gateway_args.iter().cloned());
        args
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn requests(&self) -> Requests {
        self.counts.now()
    }

    fn enter(&mut self, stage: &'static str, most: Option<Duration>) -> Result<()> {
        (self.stage, self.until) = (stage, most.map(|most| Instant::now() + most));
        self.draw(true)
    }

    /// What the stage waits for, and how long at most.
    fn waits(&self) -> String {
        let Some(until) = self.until else { return String::new() };
        let what = match self.stage {
            WAITS_OPEN => self.board.undecided(),
            WAITS_REPAIRS => self.board.withheld(),
            _ => self.board.ends(),
        };
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        if what.is_empty() { String::new() } else { format!("{what}, at most {left} s more") }
    }

    fn draw(&mut self, force: bool) -> Result<()> {
        let waits = self.waits();
        let view = View {
            waits: &waits,
            requests: self.requests(),
            wanted: self.plan.requests,
            stage: self.stage,
            elapsed_ms: self.elapsed_ms(),
            board: &self.board,
        };
        Ok(self.show.draw(&view, force)?)
    }

    pub(super) fn leave_screen(&mut self) {
        self.show.leave();
    }

    /// Starts everything, runs the load, waits, settles.
    pub(super) async fn whole_run(&mut self) -> Result<Outcome> {
        let mut up = self.start().await?;
        self.began = Instant::now();
        let wanted = self.plan.requests;
        let load = Load {
            addr: up.http.clone(),
            model: self.plan.model.clone(),
            requests: wanted,
            clients: self.plan.clients,
            rate: self.plan.rate,
            cancel_every: self.plan.cancel_every,
            seed: self.plan.seed,
        };
        self.enter("load", None)?;
        if wanted == 0 {
            loop {
                self.look(&mut up).await?;
                tokio::time::sleep(LOOK).await;
            }
        }
        let mut clients = load::spawn(&load, &self.counts);
        self.until_idle(&mut up, &mut clients).await?;
        let load_ms = self.elapsed_ms();
        self.enter(WAITS_OPEN, Some(OPEN))?;
        self.wait(&mut up, OPEN, |net| net.board.gateway_up && net.board.open() == 0).await?;
        self.enter(WAITS_REPAIRS, Some(REPAIRS))?;
        self.wait(&mut up, REPAIRS, Self::only_lasting).await?;
        let flagged: Vec<bool> = self.board.hosts.iter().map(|host| host.flag.is_some()).collect();
        self.enter("settles", Some(SETTLE))?;
        self.settle(&mut up).await?;
        let mut outcome = self.outcome(&up).await?;
        for (host, flagged) in outcome.hosts.iter_mut().zip(flagged) {
            host.flagged = flagged;
        }
        self.show.leave();
        self.tell(&outcome, load_ms)?;
        Ok(outcome)
    }

    async fn start(&mut self) -> Result<Up> {
        let plan = self.plan;
        let first = self.chain.start().await?;
        let chain_grpc = first.strip_prefix("gRPC listens on ").context("the chain's first line")?.to_owned();
        // Started again it shall be where hosts and gateway look for it.
        if let Some(listen) = self.chain.args.iter_mut().skip_while(|word| *word != "--grpc-listen").nth(1) {
            listen.clone_from(&chain_grpc);
        }
        let chain = Payer::connect(&chain_grpc, plan.key.clone()).await?;
        let until = Instant::now() + BEGIN;
        let before = loop {
            // Before its first block the chain has no state to ask, or only that of its genesis and no height.
            let looked = async {
                chain.height().await?;
                self.balances(&chain).await
            };
            match looked.await {
                Ok(before) => break before,
                Err(error) if Instant::now() > until => return Err(error.context("the chain does not begin")),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        };
        let slots = u32::try_from(plan.hosts.len()).unwrap_or(u32::MAX);
        let escrow_id =
            chain.create_escrow(&plan.model, &format!("http://{}", plan.gateway_grpc), slots).await?;
        for index in 0..self.hosts.len() {
            let args = self.host_args(index, &chain_grpc, self.fault(index).map(Fault::of_host));
            if let Some(host) = self.hosts.get_mut(index) {
                host.process.args = args;
                host.process.start().await?;
            }
        }
        self.gateway.args = self.gateway_args(&chain_grpc, &plan.gateway_http.to_string(), escrow_id);
        let first: Value =
            serde_json::from_str(&self.gateway.start().await?).context("the gateway's first line")?;
        let http = first["http"].as_str().context("the gateway does not say where it listens")?.to_owned();
        // Started again it shall be where its clients look for it.
        self.gateway.args = self.gateway_args(&chain_grpc, &http, escrow_id);
        let operator = Operator::new(plan.gateway_grpc, &plan.operator_token)?;
        let (sender, changes) = mpsc::channel(CHANGES);
        let follower = operator.follow(sender);
        let up = Up { chain, operator, changes, follower, escrow_id, before, http, chain_grpc };
        self.write_manifest(&up)?;
        let until = Instant::now() + BEGIN;
        while !self.poll(&up).await || !self.board.sessions.iter().any(|session| session.phase == "active") {
            if Instant::now() > until {
                bail!("the gateway has no active session after {} seconds; see gateway.log", BEGIN.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        say::line(format_args!("chain {} at {}, escrow {escrow_id}", plan.chain_id, up.chain_grpc))?;
        say::line(format_args!(
            "gateway at http://{}/v1, model {}; logs in {}{}",
            up.http,
            plan.model,
            plan.home.display(),
            if plan.temporary { ", removed at a good end; --home keeps them" } else { "" }
        ))?;
        Ok(up)
    }

    async fn balances(&self, chain: &Payer) -> Result<Balances> {
        let mut hosts = Vec::with_capacity(self.plan.hosts.len());
        for host in &self.plan.hosts {
            hosts.push(chain.balance(&host.address).await?);
        }
        Ok(Balances {
            creator: chain.balance(&self.plan.key.address()).await?,
            hosts,
            module: chain.balance(&Address::module("escrow")).await?,
            collector: chain.balance(&Address::module("fee_collector")).await?,
            supply: chain.supply().await?,
        })
    }

    /// What a tool needs to find everything: rewritten when a process is started.
    fn write_manifest(&self, up: &Up) -> Result<()> {
        let hosts: Vec<Value> = self
            .plan
            .hosts
            .iter()
            .zip(&self.hosts)
            .map(|(host, running)| {
                json!({
                    "name": host.name,
                    "address": host.address.to_bech32(&Hrp::default()),
                    "listen": host.listen.to_string(),
                    "pid": running.process.pid(),
                })
            })
            .collect();
        let manifest = json!({
            "chain_id": self.plan.chain_id,
            "model": self.plan.model,
            "escrow_id": up.escrow_id,
            "chain": { "grpc": up.chain_grpc, "pid": self.chain.pid() },
            "gateway": {
                "http": up.http,
                "grpc": self.plan.gateway_grpc.to_string(),
                "operator_token": self.plan.operator_token,
                "pid": self.gateway.pid(),
            },
            "hosts": hosts,
        });
        let path: PathBuf = self.plan.home.join(MANIFEST);
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        holdfast_app::files::write_whole(&path, text.as_bytes(), true)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Asks the gateway; whether it answered.
    async fn poll(&mut self, up: &Up) -> bool {
        let at_ms = self.elapsed_ms();
        match up.operator.look().await {
            Ok((sessions, flags)) => {
                self.board.sessions(sessions);
                self.board.flags(at_ms, flags);
                self.board.gateway_up = true;
            }
            Err(_) => self.board.gateway_up = false,
        }
        self.board.gateway_up
    }

    /// One look: processes, changes of flags, sessions, what is to be done about them.
    async fn look(&mut self, up: &mut Up) -> Result<()> {
        self.keep(up).await?;
        while let Ok(change) = up.changes.try_recv() {
            let at_ms = self.elapsed_ms();
            self.board.flag_changed(at_ms, change);
        }
        self.poll(up).await;
        for index in 0..self.hosts.len() {
            self.empty(index, up).await?;
            self.force(index, up).await;
        }
        self.draw(false)
    }

    /// Starts again what has ended.
    async fn keep(&mut self, up: &Up) -> Result<()> {
        let at_ms = self.elapsed_ms();
        let mut started = false;
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if let Some(status) = host.process.look()? {
                self.board.process(at_ms, index, false);
                self.board.change(at_ms, Some(index), format!("its process ended ({status})"));
            }
            if host.process.is_due() {
                match host.process.start_again().await {
                    Ok(Again::Up) => {
                        self.board.process(at_ms, index, true);
                        self.board.change(at_ms, Some(index), "its process was started again");
                        started = true;
                    }
                    Ok(Again::Later) => {}
                    // The others go on without it.
                    Err(error) => self.board.change(at_ms, Some(index), format!("stays down: {error:#}")),
                }
            }
        }
        for process in [&mut self.chain, &mut self.gateway] {
            if let Some(status) = process.look()? {
                self.board.change(at_ms, None, format!("{} ended ({status})", process.name));
            }
            if process.is_due() && process.start_again().await? == Again::Up {
                self.board.change(at_ms, None, format!("{} was started again", process.name));
                started = true;
            }
        }
        if started { self.write_manifest(up) } else { Ok(()) }
    }

    /// Kills a host that is to start with an empty store, once the gateway has its signed refusal.
    async fn empty(&mut self, index: usize, up: &Up) -> Result<()> {
        let flagged = self.board.hosts.get(index).is_some_and(|host| host.flag.is_some());
        let drill = self.fault(index).and_then(Fault::of_emptied_host);
        let args = self.host_args(index, &up.chain_grpc, drill);
        let later = self.host_args(index, &up.chain_grpc, None);
        let (Some(host), Some(plan)) = (self.hosts.get_mut(index), self.plan.hosts.get(index)) else {
            return Ok(());
        };
        if !flagged || !host.restart_empty {
            return Ok(());
        }
        host.restart_empty = false;
        host.process.kill().await;
        let data = plan.home.join("data");
        match std::fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot empty {}", data.display()));
            }
            _ => {}
        }
        host.process.args = args;
        let at_ms = self.elapsed_ms();
        self.board.process(at_ms, index, false);
        self.board.change(at_ms, Some(index), "killed; its store was emptied");
        // Long enough for the gateway to see that nobody is there.
        tokio::time::sleep(LOOK).await;
        if let Some(host) = self.hosts.get_mut(index) {
            host.process.start().await?;
            host.process.args = later;
        }
        let at_ms = self.elapsed_ms();
        self.board.process(at_ms, index, true);
        self.board.change(at_ms, Some(index), "started with an empty store");
        self.write_manifest(up)
    }

    /// With consent on both sides a replica with another state is dropped at the next attempt: no need to wait for that. Nor
    /// is there with a store that was emptied only after an attempt had found the other state in it.
    async fn force(&mut self, index: usize, up: &Up) {
        let emptied = self.fault(index).is_some_and(|fault| fault.kind.is_emptied())
            && self.hosts.get(index).is_some_and(|host| !host.restart_empty);
        let reason = if emptied { "its store was emptied" } else { "it may be reset" };
        let flag = self.board.hosts.get(index).and_then(|host| host.flag.clone());
        let (Some(flag), Some(forced)) = (flag, self.forced.get_mut(index)) else { return };
        let now = (flag.generation, flag.attempt);
        let waits = flag.phase() == pb::RepairPhase::Waiting;
        if !(self.plan.allow_reset || emptied) || !flag.forked || !waits || *forced == now {
            return;
        }
        *forced = now;
        let sent = up.operator.force_teach(flag.escrow_id, &flag.participant, reason).await;
        let at_ms = self.elapsed_ms();
        match sent {
            Ok(()) => self.board.change(at_ms, Some(index), "ForceTeach"),
            Err(error) => self.board.change(at_ms, Some(index), format!("ForceTeach: {error:#}")),
        }
    }

    /// Whether no host is flagged but those whom nothing can teach.
    fn only_lasting(&self) -> bool {
        self.board.gateway_up
            && self.board.hosts.iter().all(|host| {
                let fault = host.fault.map(|fault| fault.kind);
                let lasting = match fault {
                    Some(FaultKind::Fork) => !self.plan.allow_reset,
                    Some(kind) => kind.is_lasting(),
                    None => false,
                };
                host.up && (host.flag.is_none() || lasting)
            })
    }

    async fn until_idle(&mut self, up: &mut Up, clients: &mut JoinSet<()>) -> Result<()> {
        while !load::finished(clients, LOOK).await {
            self.look(up).await?;
        }
        Ok(())
    }

    async fn wait(&mut self, up: &mut Up, most: Duration, done: impl Fn(&Self) -> bool) -> Result<()> {
        let until = Instant::now() + most;
        loop {
            self.look(up).await?;
            if done(self) || Instant::now() >= until {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn settle(&mut self, up: &mut Up) -> Result<()> {
        let until = Instant::now() + SETTLE;
        let mut asked = false;
        loop {
            self.look(up).await?;
            if !asked {
                asked = match up.operator.finalize(up.escrow_id).await {
                    Ok(()) => true,
                    // It may be on its way up.
                    Err(error) if Instant::now() > until => return Err(error.context("Finalize")),
                    Err(_) => false,
                };
            }
            let row = up.chain.escrow(up.escrow_id).await?;
            if row.outcome.is_some() {
                // The end as the gateway has it.
                self.look(up).await?;
                return Ok(());
            }
            if Instant::now() >= until {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn outcome(&self, up: &Up) -> Result<Outcome> {
        let after = self.balances(&up.chain).await?;
        let rows = [up.chain.escrow(up.escrow_id).await?];
        let hosts: Vec<String> = self.board.hosts.iter().map(|host| host.address.clone()).collect();
        Ok(Outcome {
            requests: self.requests(),
            coins: report::coins(&up.before, &after, &rows, &hosts),
            hosts: report::hosts(&self.board),
        })
    }

    /// The closing lines, and the report.
    fn tell(&mut self, outcome: &Outcome, load_ms: u64) -> Result<()> {
        for change in self.counts.reasons() {
            say::line(format_args!("failed: {change}"))?;
        }
        say::line("")?;
        say::line(format_args!(
            "{:<8} {:>9} {:>7} {:>9} {:>8} {:>8} {:>11} {:>8}",
            "host", "completed", "missed", "attempts", "restored", "gave up", "withheld s", "flagged"
        ))?;
        for host in &outcome.hosts {
            say::line(format_args!(
                "{:<8} {:>9} {:>7} {:>9} {:>8} {:>8} {:>11} {:>8}",
                host.name,
                host.completed,
                host.missed,
                host.repair_attempts,
                host.restored,
                host.gave_up,
                format!("{}.{}", host.blocked_ms / 1000, host.blocked_ms / 100 % 10),
                if host.flagged { "yes" } else { "no" },
            ))?;
        }
        let (requests, coins) = (&outcome.requests, &outcome.coins);
        say::line(format_args!(
            "requests: {} offered, {} completed, {} failed, {} cancelled",
            requests.offered, requests.completed, requests.failed, requests.cancelled
        ))?;
        say::line(format_args!(
            "coins: {} in, {} to hosts, {} fees, {} back; {}, {}",
            coins.amount,
            coins.paid,
            coins.fees,
            coins.refunded,
            if coins.settled { "settled" } else { "NOT settled" },
            if coins.conserved { "conserved" } else { "NOT conserved" },
        ))?;
        let Some(folder) = &self.plan.report else { return Ok(()) };
        let report = Report {
            outcome,
            command: &self.plan.command,
            version: env!("CARGO_PKG_VERSION"),
            elapsed_ms: self.elapsed_ms(),
            load_ms,
            sent_again: self.counts.again(),
            failures: self.counts.reasons(),
            nonces: self.board.sessions.iter().map(|session| (session.escrow_id, session.nonce)).collect(),
            faults: self.board.hosts.iter().map(|host| host.fault.map(|fault| fault.to_string())).collect(),
            lines: self.board.hosts.iter().map(|host| host.stretches.as_slice()).collect(),
            changes: &self.board.changes,
        };
        for path in report::write(&report, &self.board, folder)? {
            say::line(format_args!("wrote {}", path.display()))?;
        }
        Ok(())
    }

    /// Ends every process, the gateway before its hosts and the chain last.
    pub(super) async fn stop(&mut self) {
        self.gateway.stop().await;
        for host in &mut self.hosts {
            host.process.terminate();
        }
        for host in &mut self.hosts {
            host.process.stop().await;
        }
        self.chain.stop().await;
    }
}
