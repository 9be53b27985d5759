//! The cores of gateway and hosts without sockets: diffs of a gateway on disk, and a host on disk that is taught them.
//!
//! A diff here is that of steady traffic, as in [`super::session`]: a receipt and a finish of the hosts, and a start.
//! The gateway checks what hosts send, composes, signs, makes the diff durable and sends it. Only its time counts.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{Diff, FrozenConfig, State, apply};
use holdfast_gateway::core::{
    CallError, ChainNews, ClientEvent, Effect, Event, GatewayConfig, GatewayCore, HostCall, HostReply, Now,
    PermitPool, UserRequest,
};
use holdfast_host::session::rules::Honest;
use holdfast_host::session::{CoreConfig, EscrowStatus, HostCore, JobEnd, TakeAll, Terms};
use holdfast_host::store::{FjallDb, LocalDb, MemDb};
use holdfast_proto::Message;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::infer_response::Event as Item;
use holdfast_types::Address;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::net::{CHAIN, HOSTS, key, terms};
use crate::measure::{Took, timed};
use crate::{Better, Row, median};

const ESCROW: u64 = 1;
const TEXT: &str = "hello";
/// Wall clock of the first event, Unix milliseconds.
const UNIX_MS: u64 = 1_700_000_000_000;
/// Events in a row without which something hangs.
const PATIENCE: usize = 1_000_000;

/// A gateway and its hosts; a call takes no time.
struct Session {
    terms: FrozenConfig,
    core: GatewayCore,
    hosts: BTreeMap<Address, HostCore>,
    events: VecDeque<Event>,
    wake: Option<u64>,
    now_ms: u64,
    requests: u64,
    finished: u64,
    /// What the gateway took.
    took: Took,
    /// Bytes of Teach, as they go over the wire, and how many.
    taught: (usize, usize),
}

fn open_host(address: Address, name: &str, boot: &str, db: Box<dyn LocalDb>) -> Result<HostCore> {
    let config = CoreConfig::new(CHAIN, address, boot);
    HostCore::open(db, key(name), config, Box::new(Honest), Box::new(TakeAll))
        .map_err(|error| anyhow!("{name}: {}", error.message))
}

impl Session {
    fn open(folder: &Path, chunk: usize) -> Result<Self> {
        let terms = terms(ESCROW, "bench", HOSTS);
        let db = FjallDb::open(&folder.join("gateway"), "gateway session")?;
        let config = GatewayConfig { chunk_diffs: chunk, ..GatewayConfig::default() };
        let mut drawn = 0u64;
        let entropy = move || {
            drawn += 1;
            Sha256::digest(drawn.to_le_bytes()).into()
        };
        let (signer, now) = (Box::new(key("gateway")), Now { mono_ms: 1_000, unix_ms: UNIX_MS });
        let pool = PermitPool::new(8);
        let (core, effects) =
            GatewayCore::open(Box::new(db), config, terms.clone(), signer, Box::new(entropy), pool, now)?;
        let hosts = terms.slots.iter().enumerate().map(|(index, address)| {
            let host = open_host(*address, &format!("host-{index}"), "boot-1", Box::new(MemDb::new()))?;
            Ok((*address, host))
        });
        let hosts = hosts.collect::<Result<_>>()?;
        let mut session = Self {
            terms,
            core,
            hosts,
            events: VecDeque::new(),
            wake: None,
            now_ms: 1_000,
            requests: 0,
            finished: 0,
            took: Took::default(),
            taught: (0, 0),
        };
        session.carry_out(effects)?;
        session.drain()?;
        Ok(session)
    }

    fn now(&self) -> Now {
        Now { mono_ms: self.now_ms, unix_ms: UNIX_MS + self.now_ms }
    }

    fn send(&mut self, event: Event) -> Result<()> {
        let now = self.now();
        let core = &mut self.core;
        let (effects, took) = timed(|| core.handle(now, event));
        self.took = self.took + took;
        self.carry_out(effects)
    }

    /// Everything that follows without a wait.
    fn drain(&mut self) -> Result<()> {
        for _ in 0..PATIENCE {
            let Some(event) = self.events.pop_front() else { return Ok(()) };
            self.send(event)?;
        }
        bail!("the session has no end")
    }

    /// A request, answered whole.
    fn ask(&mut self) -> Result<()> {
        self.requests += 1;
        self.now_ms += 1;
        let request = UserRequest {
            request_id: self.requests,
            label: format!("request-{}", self.requests),
            body: format!("{{\"prompt\":\"Hold fast\",\"n\":{}}}", self.requests).into_bytes(),
            input_limit: 16,
            output_limit: 8,
            deadline_ms: self.now_ms + 600_000,
        };
        self.send(Event::Request(request))?;
        self.drain()?;
        for _ in 0..100 {
            if self.finished == self.requests {
                return Ok(());
            }
            // Held for another slot.
            self.now_ms = self.wake.take().context("nothing is to come")?.max(self.now_ms);
            self.send(Event::Tick)?;
            self.drain()?;
        }
        bail!("request {} has no answer", self.requests)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<()> {
        for effect in effects {
            match effect {
                Effect::Call { call_id, participant, call: HostCall::Infer(request), .. } => {
                    let unix_s = self.now().unix_s();
                    let host = self.hosts.get_mut(&participant).context("no such host")?;
                    let (items, result) = match infer(host, unix_s, &request) {
                        Ok(items) => (items, Ok(())),
                        Err(error) => (Vec::new(), Err(CallError::Host(error))),
                    };
                    let items = items.into_iter().map(|event| Event::StreamItem { call_id, event });
                    self.events.extend(items);
                    self.events.push_back(Event::StreamEnded { call_id, result });
                }
                Effect::Call { call_id, participant, call, .. } => {
                    let result = self.answer(participant, call)?;
                    self.events.push_back(Event::CallDone { call_id, result });
                }
                Effect::WakeAt { mono_ms } => self.wake = Some(mono_ms),
                Effect::ToClient { event: ClientEvent::Finished { .. }, .. } => self.finished += 1,
                Effect::ToClient { event: ClientEvent::Failed(error), .. } => {
                    bail!("a request failed: {error}")
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn answer(&mut self, participant: Address, call: HostCall) -> Result<Result<HostReply, CallError>> {
        let host = self.hosts.get_mut(&participant).context("no such host")?;
        let gateway = self.terms.gateway;
        let reply = match call {
            HostCall::Bind(request) => {
                let terms = Terms { config: self.terms.clone(), status: EscrowStatus::Open };
                host.bind(&request, gateway, Some(&terms)).map(HostReply::Bind)
            }
            HostCall::Teach(request) => {
                // Over the wire and back.
                let bytes = request.encode_to_vec();
                self.taught.0 += bytes.len();
                self.taught.1 += 1;
                let request = pb::TeachRequest::decode(bytes.as_slice())?;
                host.teach(&request).map(HostReply::Teach)
            }
            HostCall::GetPending(request) => host.get_pending(&request, gateway).map(HostReply::GetPending),
            HostCall::GetSignatures(request) => {
                host.get_signatures(&request, gateway).map(HostReply::GetSignatures)
            }
            HostCall::GetDiffs(request) => host.get_diffs(&request, gateway).map(HostReply::GetDiffs),
            other => bail!("not expected: {other:?}"),
        };
        Ok(reply.map_err(|error| CallError::Host(Box::new(error))))
    }

    fn nonce(&self) -> u64 {
        self.core.state().nonce()
    }
}

/// What a host sends for an inference that ends at once.
fn infer(
    host: &mut HostCore,
    unix_s: u64,
    request: &pb::InferRequest,
) -> Result<Vec<Item>, Box<pb::EscrowError>> {
    let step = host.infer(unix_s, request)?;
    let end = JobEnd::Finished {
        input_tokens: 3,
        output_tokens: 1,
        response_hash: Sha256::digest(TEXT).into(),
        finish_reason: "length".into(),
    };
    let tx = host.outcome(request.escrow_id, request.target_nonce, &end)?;
    let usage = Some(pb::Usage { prompt_tokens: 3, completion_tokens: 1 });
    Ok(vec![
        Item::Applied(step.applied),
        Item::Receipt(pb::Receipt { tx: step.receipt }),
        Item::Delta(pb::Delta { index: 0, text: TEXT.into(), token_ids: vec![1] }),
        Item::Finished(pb::InferFinished { tx, finish_reason: "length".into(), usage }),
    ])
}

/// Raw primitives: signatures and synced appends of `bytes` bytes, microseconds each.
fn raw(folder: &Path, count: usize, bytes: usize) -> Result<(f64, f64)> {
    let key = SecretKey::from_seed_label(b"bench", "gateway");
    let ((), signing) = timed(|| {
        for number in 0..count as u64 {
            std::hint::black_box(key.sign_recoverable(Sha256::digest(number.to_le_bytes()).into()));
        }
    });
    let mut file = File::create(folder.join("raw"))?;
    let block = vec![7u8; bytes];
    let begun = Instant::now();
    for _ in 0..count {
        file.write_all(&block)?;
        file.sync_all()?;
    }
    Ok((signing.own_us(count), begun.elapsed().as_secs_f64() * 1e6 / count as f64))
}

pub(super) fn run(diffs: u64, rounds: usize, rows: &mut Vec<Row>) -> Result<Value> {
    let dir = tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?;
    let last = *terms(ESCROW, "bench", HOSTS).slots.last().context("no host")?;
    let chunk = usize::try_from(diffs / 4)?.clamp(1, 200);
    let mut session = Session::open(dir.path(), chunk)?;
    // The last host is excused and hears nothing: its nonces are passed.
    session.send(Event::Chain(ChainNews::Absent(vec![last])))?;
    let each = diffs / rounds as u64;
    let (mut wall, mut own, mut signing, mut syncing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut from = session.nonce();
    for _ in 0..rounds {
        session.took = Took::default();
        let target = from + each;
        while session.nonce() < target {
            session.ask()?;
        }
        let made = usize::try_from(session.nonce() - from)?;
        wall.push(session.took.wall_us(made));
        own.push(session.took.own_us(made));
        let log = session.core.diffs(from + 1, made);
        let bytes = log.iter().map(Vec::len).sum::<usize>() / log.len().max(1);
        let (sign, sync) = raw(dir.path(), made.min(500), bytes)?;
        signing.push(sign);
        syncing.push(sync);
        from = session.nonce();
    }
    let per_second = 1e6 / median(&wall);
    rows.extend([
        Row::new("escrow.gateway_diffs", "1/s", per_second).against(
            "raw signature",
            1e6 / median(&signing),
            Better::Higher,
        ),
        Row::new("escrow.gateway_diffs_on_disk", "1/s", per_second).against(
            "raw fsync",
            1e6 / median(&syncing),
            Better::Higher,
        ),
        Row::new("escrow.gateway_diff_cpu", "us", median(&own)).against(
            "a signature",
            median(&signing),
            Better::Lower,
        ),
    ]);
    let caught = catch_up(&mut session, dir.path(), last, rounds, rows)?;
    Ok(json!({
        "diff_us": wall, "diff_cpu_us": own, "sign_us": signing, "fsync_us": syncing, "catch_up": caught,
    }))
}

/// The last host is there again, with an empty store each round, and is taught everything.
fn catch_up(
    session: &mut Session,
    folder: &Path,
    last: Address,
    rounds: usize,
    rows: &mut Vec<Row>,
) -> Result<Value> {
    session.send(Event::Chain(ChainNews::Absent(Vec::new())))?;
    let (mut taught, mut applied, mut bytes, mut calls) = (Vec::new(), Vec::new(), 0.0, 0);
    for round in 0..rounds {
        let boot = format!("boot-empty-{round}");
        let db = FjallDb::open(&folder.join(&boot), "host")?;
        let name = format!("host-{}", HOSTS - 1);
        session.hosts.insert(last, open_host(last, &name, &boot, Box::new(db))?);
        session.send(Event::Announce { participant: last, boot_id: boot })?;
        session.drain()?;
        session.taught = (0, 0);
        // Its next turn is what brings it up.
        let mut took = Duration::ZERO;
        let mut asked = 0;
        while session.taught.1 == 0 {
            let begun = Instant::now();
            session.ask()?;
            took = begun.elapsed();
            asked += 1;
            ensure!(asked <= 2 * HOSTS, "the host is not taught");
        }
        let tip = session.nonce();
        let have = session.hosts.get_mut(&last).context("no such host")?.state(ESCROW);
        let have = have.map_err(|error| anyhow!(error.message))?.nonce();
        ensure!(have + HOSTS as u64 >= tip, "it has {have} of {tip}");
        let count = usize::try_from(have)?;
        taught.push(took.as_secs_f64() * 1e6 / count as f64);
        bytes = session.taught.0 as f64 / count as f64;
        calls = session.taught.1;
        let log = session.core.diffs(1, count);
        ensure!(log.len() == count, "the log has {} of {count}", log.len());
        let (state, pure) = timed(|| {
            let genesis = State::genesis(std::sync::Arc::new(session.terms.clone()));
            log.iter().try_fold(genesis, |state, bytes| -> Result<State> {
                Ok(apply(&state, &Diff::from_bytes(bytes)?)?.0)
            })
        });
        ensure!(state?.nonce() == have, "another nonce");
        applied.push(pure.wall_us(count));
    }
    rows.extend([
        Row::new("escrow.taught", "1/s", 1e6 / median(&taught)).against(
            "pure apply",
            1e6 / median(&applied),
            Better::Higher,
        ),
        Row::new("escrow.taught_bytes", "B", bytes),
    ]);
    Ok(
        json!({ "us": taught, "apply_us": applied, "bytes_per_nonce": bytes, "teach_calls": calls, "nonces": session.nonce() }),
    )
}
