//! One model, some members, a block at a time.

use super::{M, addr};
use crate::Pair;
use crate::entry::Entry;
use crate::params::Params;
use crate::world::*;

pub(super) struct Scene {
    pub(super) world: World,
    pub(super) next: u64,
}

impl Scene {
    /// Members 1.. with these weights, all preserved unless `unpreserved`.
    pub(super) fn new(params: Params, weights: &[u64]) -> Scene {
        let pairs: Vec<Pair> = (1..=weights.len() as u8).map(|k| (M.to_string(), addr(k))).collect();
        let mut scene = Scene { world: World::new(params, "gov", pairs.into_iter().collect()), next: 0 };
        scene.begin_epoch(0, weights);
        scene
    }

    pub(super) fn begin_epoch(&mut self, index: u64, weights: &[u64]) {
        let group = (1u8..)
            .zip(weights)
            .map(|(k, weight)| ((M.to_string(), addr(k)), Member { weight: *weight, preserved: k != 1 }));
        let epoch = Some(EpochInput { index, group: group.collect() });
        let height = self.world.height + 1;
        self.world.begin_block(&BeginBlock { height, epoch, ..BeginBlock::default() });
    }

    fn begin(&mut self) {
        let (height, poc) = (self.world.height + 1, self.world.poc);
        self.world.begin_block(&BeginBlock { height, poc, ..BeginBlock::default() });
    }

    /// Ends this block and begins the next.
    pub(super) fn step(&mut self) -> Vec<Event> {
        self.world.end_block();
        let events = self.world.take_events();
        self.begin();
        events
    }

    pub(super) fn step_to(&mut self, height: i64) -> Vec<Event> {
        let mut last = Vec::new();
        while self.world.height < height {
            last = self.step();
        }
        last
    }

    pub(super) fn call(&mut self, k: u8) -> StartCall {
        self.next += 1;
        StartCall {
            inference_id: format!("i{}", self.next),
            model: M.into(),
            requester: addr(200),
            signer: addr(200),
            executor: addr(k),
            expires_at: self.world.height + self.world.params.expiration_blocks,
            finished_at: None,
        }
    }

    pub(super) fn start(&mut self, k: u8) -> Result<String, u32> {
        let call = self.call(k);
        self.world.start(&call).map(|_| call.inference_id)
    }

    pub(super) fn miss(&mut self, k: u8, times: u64) {
        for _ in 0..times {
            let id = self.start(k).unwrap();
            self.world.miss(&id);
        }
    }

    pub(super) fn entry(&self, k: u8) -> Entry {
        self.world.entry(M, &addr(k))
    }

    pub(super) fn column(&self, k: u8) -> char {
        self.entry(k).column()
    }
}

pub(super) fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.name).collect()
}
