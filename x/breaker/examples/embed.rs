//! The breaker inside another program, with that program's own store and own membership.

use std::collections::BTreeMap;

use holdfast_breaker::Keeper;
use holdfast_store::{KvIter, KvRead, KvWrite, Order, StoreError};
use holdfast_types::traits::*;
use holdfast_types::{Address, BlockContext, Context, Height, ValidationParams};

type Answer<T> = Result<T, StoreError>;

#[derive(Default)]
struct Store(BTreeMap<Vec<u8>, Vec<u8>>);

impl KvRead for Store {
    fn get(&self, key: &[u8]) -> Answer<Option<Vec<u8>>> {
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
    fn set(&mut self, key: &[u8], value: &[u8]) -> Answer<()> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }
    fn remove(&mut self, key: &[u8]) -> Answer<()> {
        self.0.remove(key);
        Ok(())
    }
}

/// Workers of equal weight that all serve the model `chat`.
struct Crew([Address; 3]);

#[rustfmt::skip]
impl ParticipantsRead for Crew {
    fn has_model(&self, _: &dyn KvRead, model: &str) -> Answer<bool> { Ok(model == "chat") }
    fn has_participant(&self, _: &dyn KvRead, who: &Address) -> Answer<bool> { Ok(self.0.contains(who)) }
    fn standing(&self, _: &dyn KvRead, _: &BlockContext, _: &str, who: &Address) -> Answer<Standing> {
        let member = self.0.contains(who);
        Ok(Standing { member, active: member, weight: 10 * u64::from(member), ..Standing::default() })
    }
    fn members(&self, s: &dyn KvRead, b: &BlockContext, m: &str) -> Answer<Vec<(Address, Standing)>> {
        self.0.iter().map(|who| Ok((*who, self.standing(s, b, m, who)?))).collect()
    }
    fn models(&self, _: &dyn KvRead) -> Answer<Vec<String>> { Ok(vec!["chat".into()]) }
    fn excuse(&self, _: &dyn KvRead, _: &BlockContext, _: &str, _: &Address, _: Height, _: Height) -> Answer<Option<Excuse>> { Ok(None) }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let crew = Crew([1, 2, 3].map(|n| Address([n; 20])));
    let (keeper, executor, requester) = (Keeper::new(&crew), crew.0[0], Address([9; 20]));
    let (mut store, mut seen, mut misses) = (Store::default(), Vec::new(), 0);
    for height in 1..=90 {
        let block = BlockContext::new(height, ValidationParams::recommended());
        let mut events = Vec::new();
        let mut ctx = Context::new(&block, &mut store, &mut events);
        if height == 1 {
            keeper.start_epoch(&mut ctx, &keeper.scan_totals(&Store::default(), &block)?)?;
        }
        keeper.begin_block(&mut ctx)?;
        if keeper.health(ctx.store, &block, "chat", &executor)? != HealthClass::Out {
            let (inference_id, model) = (format!("job-{height}"), "chat".to_owned());
            let attempt =
                StartAttempt { model: &model, requester, signer: requester, executor, finished_at: None };
            let Admission { stamp, claim } = keeper.admit(&ctx, &attempt)?;
            let job = InferenceOutcome { inference_id, model, executor, stamp };
            let (inference_id, model, expires_at) =
                (job.inference_id.clone(), job.model.clone(), height + 20);
            let started = InferenceStarted { inference_id, model, executor, stamp, claim, expires_at };
            keeper.after_inference_started(&mut ctx, &started)?;
            if (21..=40).contains(&height) {
                misses += 1; // the executor is down
                keeper.after_inference_missed(&mut ctx, &job)?;
            } else {
                keeper.after_inference_finished(&mut ctx, &job)?;
            }
        }
        keeper.end_block(&mut ctx)?;
        for event in events {
            println!("block {height}: {}, generation {}", event.kind, event.get("generation").unwrap_or("?"));
            seen.push((height, event.kind));
        }
    }
    let names: Vec<_> = seen.iter().filter_map(|(_, kind)| kind.rsplit('.').next()).collect();
    let expected =
        ["EventExecutorExcluded", "EventProbeOpened", "EventProbeClaimed", "EventExecutorRestored"];
    assert_eq!(names, expected);
    assert_eq!((misses, seen[0].0), (5, 25), "out after five misses in a row");
    assert!((25 + 45..=25 + 50).contains(&seen[1].0), "fifty blocks, less up to a tenth");
    Ok(())
}
