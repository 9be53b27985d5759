//! A host in the simulated network: its process, its disk, its faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_escrow::session::FrozenConfig;
use holdfast_gateway::core::CallId;
use holdfast_host::store::MemDb;

use super::cast::{Cast, Member};
use super::mask::Mask;
use super::model::ModelHost;
use super::real::RealHost;
use super::replica::{Image, Replica};

/// How the line between the gateway and a host is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Line {
    pub(super) until_ms: u64,
    pub(super) lost_pct: usize,
    pub(super) twice_pct: usize,
    pub(super) delay_ms: u64,
    pub(super) cut_until_ms: u64,
}

/// A stream that a computation writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    pub(super) gateway_boot: u64,
    pub(super) call_id: CallId,
}

/// A computation.
#[derive(Debug, Clone)]
pub(super) struct Computation {
    pub(super) tokens: u32,
    pub(super) limit: u32,
    pub(super) pace_ms: u64,
    pub(super) fate: super::schedule::Fate,
    pub(super) began_ms: u64,
    pub(super) done: u32,
    pub(super) text: String,
}

/// See the module.
pub(super) struct Node {
    pub(super) member: Member,
    /// None while the process is down.
    pub(super) replica: Option<Box<dyn Replica>>,
    image: Image,
    backup: Option<Image>,
    /// Counts processes.
    pub(super) boot: u64,
    /// Counts lost memories.
    pub(super) memory: u64,
    pub(super) mask: Mask,
    pub(super) line: Line,
    pub(super) clock_ms: i64,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) jobs: BTreeMap<u64, Computation>,
    /// No fault ever touched it.
    pub(super) blameless: bool,
    closed: bool,
}

impl Node {
    pub(super) fn new(member: &Member, cast: &Cast) -> Self {
        let image = empty(member);
        let mut node = Self {
            member: member.clone(),
            replica: None,
            image,
            backup: None,
            boot: 0,
            memory: 0,
            mask: Mask::default(),
            line: Line::default(),
            clock_ms: member.skew_ms,
            streams: BTreeMap::new(),
            jobs: BTreeMap::new(),
            blameless: !member.wrong_terms,
            closed: false,
        };
        node.start(cast);
        node
    }

    /// Terms as this host has them.
    fn terms(&self, cast: &Cast) -> Arc<FrozenConfig> {
        let mut terms = cast.terms.clone();
        if self.member.wrong_terms {
            // A real cause of divergence: a bridge that lost a timeout.
            Arc::make_mut(&mut terms).execution_timeout_s += 60;
        }
        terms
    }

    /// The process begins.
    pub(super) fn start(&mut self, cast: &Cast) {
        self.boot += 1;
        let (terms, boot_id) = (self.terms(cast), format!("boot-{}", self.boot));
        let mut replica: Box<dyn Replica> = match &self.image {
            Image::Model(disk) => {
                Box::new(ModelHost::open(&self.member, cast, terms, boot_id, (**disk).clone()))
            }
            Image::Real(db) => Box::new(RealHost::open(&self.member, cast, terms, boot_id, db.clone())),
        };
        if self.closed {
            replica.close();
        }
        self.replica = Some(replica);
    }

    /// The process dies. What it leaves is what the next one finds.
    pub(super) fn stop(&mut self, power_cut: bool) {
        if let Some(replica) = self.replica.take() {
            self.image = replica.image(power_cut);
        }
        self.streams.clear();
        self.jobs.clear();
    }

    /// Takes the disk away.
    pub(super) fn wipe(&mut self) {
        self.image = empty(&self.member);
        self.memory += 1;
    }

    /// Puts a copy in its place; an empty disk when there is none.
    pub(super) fn restore(&mut self) {
        self.memory += 1;
        self.image = match &self.backup {
            Some(Image::Real(db)) => Image::Real(db.copy()),
            Some(image) => image.clone(),
            None => empty(&self.member),
        };
    }

    /// Copies the disk.
    pub(super) fn back_up(&mut self) {
        if let Some(replica) = &self.replica {
            self.backup = Some(replica.backup());
        }
    }

    /// The chain closed the escrow.
    pub(super) fn close(&mut self) {
        self.closed = true;
        if let Some(replica) = &mut self.replica {
            replica.close();
        }
    }
}

fn empty(member: &Member) -> Image {
    if member.model { Image::Model(Box::default()) } else { Image::Real(MemDb::new()) }
}
