//! The driver over hosts behind real sockets and a chain in memory.

pub(crate) mod chain;
pub(crate) mod host;
mod life;
mod losses;
mod requests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::FrozenConfig;
use holdfast_host::store::MemDb;
use holdfast_types::{Address, Hrp};

use super::{Clock, Counts, Gateway, Glance, Journal, Machine, Opener, Parts, View};
use crate::core::{Effect, GatewayCore, Now, OpenError, PermitPool};
use crate::openai::{Answer, Event, Sessions, Submission};
use crate::settings::Settings;
use chain::FakeChain;
use host::FakeHost;

const MODEL: &str = "m1";
const CHAIN_ID: &str = "driver-1";

/// Opens real cores over disks in memory that outlive a gateway.
#[derive(Clone, Default)]
pub(crate) struct Disks {
    sessions: Arc<Mutex<BTreeMap<u64, MemDb>>>,
    journal: MemDb,
    /// The next event makes a session panic.
    panics: Arc<AtomicBool>,
    /// Stores of sessions do not open.
    refuses: Arc<AtomicBool>,
}

impl Disks {
    /// The next process on the same disks.
    fn restart(&self) -> Self {
        let sessions = self.sessions.lock().unwrap().iter().map(|(id, db)| (*id, db.reopen(true))).collect();
        Self {
            sessions: Arc::new(Mutex::new(sessions)),
            journal: self.journal.reopen(true),
            panics: Arc::default(),
            refuses: Arc::default(),
        }
    }
}

struct MemOpener {
    disks: Disks,
    settings: Settings,
    key: Arc<SecretKey>,
}

impl Opener for MemOpener {
    fn open(&self, frozen: FrozenConfig, now: Now) -> Result<(Box<dyn Machine>, Vec<Effect>), OpenError> {
        if self.disks.refuses.load(Ordering::Relaxed) {
            return Err(OpenError::Storage("damaged".into()));
        }
        let db = self.disks.sessions.lock().unwrap().entry(frozen.escrow_id).or_default().clone();
        let mut drawn = 0u8;
        let entropy = move || {
            drawn = drawn.wrapping_add(1);
            [drawn; 32]
        };
        let (core, effects) = GatewayCore::open(
            Box::new(db),
            self.settings.core.clone(),
            frozen,
            Box::new(self.key.as_ref().clone()),
            Box::new(entropy),
            PermitPool::new(8),
            now,
        )?;
        Ok((Box::new(Fragile { core, panics: Arc::clone(&self.disks.panics) }), effects))
    }
}

/// A core that panics on request.
struct Fragile {
    core: GatewayCore,
    panics: Arc<AtomicBool>,
}

impl Machine for Fragile {
    fn handle(&mut self, now: Now, event: crate::core::Event) -> Vec<Effect> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "asked to");
        self.core.handle(now, event)
    }

    fn glance(&self, now: Now) -> Glance {
        Machine::glance(&self.core, now)
    }

    fn view(&self, hrp: &Hrp) -> View {
        Machine::view(&self.core, hrp)
    }

    fn speaks_for(&self, signer: &Address, participant: &Address) -> bool {
        Machine::speaks_for(&self.core, signer, participant)
    }
}

/// Hosts, a chain, disks; gateways come and go.
pub(crate) struct Scene {
    pub(crate) hosts: Vec<FakeHost>,
    pub(crate) chain: FakeChain,
    pub(crate) disks: Disks,
    pub(crate) key: Arc<SecretKey>,
    pub(crate) settings: Settings,
    _stops: Vec<tokio::sync::oneshot::Sender<()>>,
}

pub(crate) fn settings() -> Settings {
    let mut settings = Settings { poll_ms: 20, stop_ms: 5_000, ..Settings::default() };
    settings.settle.first_ms = 20;
    settings.core.flush_ms = 50;
    settings.core.drain_ms = 3_000;
    settings.core.collect_ms = 100;
    settings.prober.budget = 0;
    settings
}

impl Scene {
    /// Three hosts with a slot each, and escrow 1.
    pub(crate) async fn new() -> Self {
        let hosts: Vec<FakeHost> = (0..3).map(|n| FakeHost::new(&format!("host-{n}"))).collect();
        let key = Arc::new(SecretKey::from_seed_label(b"driver", "gateway"));
        let (chain, mut stops) = (FakeChain::default(), Vec::new());
        for host in &hosts {
            let (address, stop) = host.listen().await;
            chain.world().urls.insert(host.key.address(), format!("http://{address}"));
            stops.push(stop);
        }
        let terms = FrozenConfig {
            chain_id: CHAIN_ID.into(),
            escrow_id: 1,
            creator: key.address(),
            gateway: key.address(),
            model: MODEL.into(),
            slots: hosts.iter().map(|host| host.key.address()).collect(),
            amount: 1_000_000,
            create_fee: 10,
            fee_per_nonce: 1,
            token_price: 1,
            refusal_timeout_s: 60,
            execution_timeout_s: 600,
            vote_threshold_bp: 5_000,
            cancel_charge_bp: 0,
            seal_grace_nonces: 9,
            max_nonce: 20_000,
            max_live: 1_024,
        };
        chain.world().template = Some(terms.clone());
        let scene = Self { hosts, chain, disks: Disks::default(), key, settings: settings(), _stops: stops };
        scene.add(terms);
        scene
    }

    /// An escrow on the chain.
    pub(crate) fn add(&self, terms: FrozenConfig) {
        self.chain.world().rows.insert(terms.escrow_id, chain::row(terms, 1));
        self.meet();
    }

    /// Hosts learn all escrows of the chain, as a host does by asking it.
    pub(crate) fn meet(&self) {
        let rows: Vec<_> = self.chain.world().rows.values().map(|row| row.config.clone()).collect();
        self.hosts.iter().for_each(|host| rows.iter().for_each(|terms| host.learn(terms)));
    }

    pub(crate) fn gateway(&self) -> Gateway {
        let opener = MemOpener {
            disks: self.disks.clone(),
            settings: self.settings.clone(),
            key: Arc::clone(&self.key),
        };
        Gateway::new(Parts {
            settings: self.settings.clone(),
            chain: Arc::new(self.chain.clone()),
            chain_id: CHAIN_ID.into(),
            hrp: Hrp::default(),
            key: Arc::clone(&self.key),
            opener: Arc::new(opener),
            journal: Arc::new(Journal::open(Box::new(self.disks.journal.clone())).unwrap()),
            models: vec![MODEL.into()],
            clock: Clock::start(),
        })
    }

    /// A gateway with escrow 1 open.
    pub(crate) async fn open(&self) -> Gateway {
        let gateway = self.gateway();
        gateway.resume().await.unwrap();
        gateway.open(1).await.unwrap();
        gateway.begin();
        gateway
    }
}

fn submission() -> Submission {
    Submission {
        model: MODEL.into(),
        body: Bytes::from_static(br#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":16}"#),
        input_limit: 130,
        output_limit: 16,
        deadline_ms: 20_000,
        request_id: "req-1".into(),
        traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
    }
}

/// Everything of an answer.
async fn whole(mut answer: Answer) -> (String, Option<Event>) {
    let (mut text, mut last) = (String::new(), None);
    while let Some(event) = within(answer.events.recv()).await {
        match &event {
            Event::Delta { text: piece, .. } => text.push_str(piece),
            _ => last = Some(event),
        }
    }
    (text, last)
}

pub(crate) async fn ask(gateway: &Gateway) -> (String, Option<Event>) {
    whole(gateway.submit(submission())).await
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
}

/// Waits until it is so.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// Nothing of a session.
fn nothing() -> Counts {
    Counts::default()
}
