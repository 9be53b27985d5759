//! The breaker inside another program: that program's own store, its own membership, its own blocks.
use std::collections::BTreeMap;

use holdfast_breaker::Keeper;
use holdfast_store::{KvIter, KvRead, KvWrite, Order, StoreError};
use holdfast_types::traits::*;
use holdfast_types::{Address, BlockContext, Context, ModuleError, ValidationParams};

#[derive(Default)]
struct Store(BTreeMap<Vec<u8>, Vec<u8>>);
impl KvRead for Store {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.get(key).cloned())
    }
    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let (start, end) = (start.to_vec(), end.map(<[u8]>::to_vec));
        let inside = move |key: &Vec<u8>| *key >= start && end.as_ref().is_none_or(|end| key < end);
        let rows = self.0.iter().filter(move |row| inside(row.0)).map(|(k, v)| Ok((k.clone(), v.clone())));
        if order == Order::Ascending { Box::new(rows) } else { Box::new(rows.rev()) }
    }
}
impl KvWrite for Store {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }
    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.0.remove(key);
        Ok(())
    }
}

/// Three workers of equal weight; all serve the model `chat`.
struct Crew([Address; 3]);
impl ParticipantsRead for Crew {
    fn models(&self, _: &dyn KvRead) -> Result<Vec<String>, StoreError> {
        Ok(vec!["chat".into()])
    }
    fn members(
        &self,
        _: &dyn KvRead,
        _: &BlockContext,
        _: &str,
    ) -> Result<Vec<(Address, Standing)>, StoreError> {
        let standing = Standing { member: true, active: true, weight: 10, ..Standing::default() };
        Ok(self.0.map(|worker| (worker, standing)).to_vec())
    }
}

fn main() -> Result<(), ModuleError> {
    let crew = Crew([1, 2, 3].map(|n| Address([n; 20])));
    let (keeper, executor, requester) = (Keeper::new(&crew), crew.0[0], Address([9; 20]));
    let (mut store, mut seen) = (Store::default(), Vec::new());
    for height in 1..=90 {
        let (block, mut events) = (BlockContext::new(height, ValidationParams::recommended()), Vec::new());
        let mut ctx = Context::new(&block, &mut store, &mut events);
        if height == 1 {
            let first = EpochInfo { epoch: 0, start_height: 1, length: 1_000, poc_length: 0 };
            keeper.after_epoch_started(&mut ctx, &first)?;
        }
        keeper.begin_block(&mut ctx)?;
        if keeper.health(ctx.store, &block, "chat", &executor)? != HealthClass::Out {
            // One job a block; the executor is down from block 21 to 40.
            let job =
                StartAttempt { model: "chat", requester, signer: requester, executor, finished_at: None };
            let Admission { stamp, claim } = keeper.admit(&ctx, &job)?;
            let (id, model, expires_at) = (format!("job-{height}"), "chat".to_owned(), height + 20);
            let outcome =
                InferenceOutcome { inference_id: id.clone(), model: model.clone(), executor, stamp };
            let started = InferenceStarted { inference_id: id, model, executor, stamp, claim, expires_at };
            keeper.after_inference_started(&mut ctx, &started)?;
            match height {
                21..=40 => keeper.after_inference_missed(&mut ctx, &outcome)?,
                _ => keeper.after_inference_finished(&mut ctx, &outcome)?,
            }
        }
        keeper.end_block(&mut ctx)?;
        seen.extend(events.into_iter().map(|event| (height, event.kind)));
    }
    seen.iter().for_each(|(height, kind)| println!("block {height}: {kind}"));
    let name = |kind: &String| kind.rsplit('.').next().unwrap_or_default().to_owned();
    let names: Vec<_> = seen.iter().map(|(_, kind)| name(kind)).collect();
    assert_eq!(
        names,
        ["EventExecutorExcluded", "EventProbeOpened", "EventProbeClaimed", "EventExecutorRestored"]
    );
    assert_eq!(seen[0].0, 25, "out after five misses in a row");
    Ok(())
}
