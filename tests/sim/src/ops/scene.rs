//! Where an operation is drawn, and the fields that several kinds of message have in common.

use holdfast_app::composition::Composition;
use holdfast_app::views::QueryView;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::participants;
use holdfast_proto::{Any, FieldMask, Message, Name};
use holdfast_types::traits::ParticipantsRead;

use crate::cast::Cast;
use crate::memory::Memory;
use crate::rng::Rng;

/// Where an operation is drawn: who acts, what they know, and the last committed state.
pub(crate) struct Scene<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) cast: &'a Cast,
    pub(crate) memory: &'a mut Memory,
    pub(crate) view: &'a QueryView,
    pub(crate) composition: &'a Composition,
    /// Height of the block to come.
    pub(crate) height: i64,
}

/// A message and the account that signs it.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) signer: usize,
    pub(crate) message: Any,
}

impl Scene<'_> {
    /// True for the part of operations that shall be wrong in some way.
    pub(crate) fn wrong(&mut self) -> bool {
        self.rng.percent(6)
    }

    pub(crate) fn anybody(&mut self) -> usize {
        self.rng.below(self.cast.accounts.len())
    }

    pub(crate) fn gateway(&mut self) -> usize {
        *self.rng.pick(&self.cast.gateways)
    }

    /// Mostly an executor of genesis, else one of those who may have become one.
    pub(super) fn executor(&mut self) -> usize {
        let list = if self.rng.percent(85) { &self.cast.executors } else { &self.cast.outsiders };
        *self.rng.pick(list)
    }

    pub(crate) fn name(&self, account: usize) -> String {
        self.cast.accounts[account].bech32.clone()
    }

    pub(super) fn registered_models(&self) -> Vec<String> {
        self.composition.participants().models(self.view.query().store).unwrap_or_default()
    }

    /// Mostly a registered one.
    pub(crate) fn model(&mut self) -> String {
        let registered = self.registered_models();
        if !registered.is_empty() && !self.wrong() {
            return self.rng.pick(&registered).clone();
        }
        self.rng.pick(&self.cast.models).clone()
    }

    pub(crate) fn coin(&mut self, denom: &str, amount: u128) -> PbCoin {
        let wrong = self.wrong();
        match self.rng.below(5) {
            0 if wrong => PbCoin { denom: denom.into(), amount: "0".into() },
            1 if wrong => PbCoin { denom: denom.into(), amount: u128::MAX.to_string() },
            2 if wrong => PbCoin { denom: "unone".into(), amount: "1".into() },
            3 if wrong => PbCoin { denom: String::new(), amount: "-1".into() },
            4 if wrong => PbCoin { denom: denom.into(), amount: "01".into() },
            _ => PbCoin { denom: denom.into(), amount: amount.to_string() },
        }
    }

    pub(crate) fn query<M: Message + Default>(&self, path: &str, request: &impl Message) -> Option<M> {
        let seed = || Ok([7; 32]);
        let reply = self.composition.query(self.view, path, &request.encode_to_vec(), &seed).ok()?;
        M::decode(reply.as_slice()).ok()
    }

    /// Some fields of `all`, or everything.
    pub(crate) fn mask<S: AsRef<str> + Clone>(&mut self, all: &[S]) -> Option<FieldMask> {
        let mut paths: Vec<String> = match self.rng.below(4) {
            0 => vec!["*".into()],
            1 => vec![self.rng.pick(all).as_ref().to_owned()],
            _ => self.rng.part(all).iter().map(|path| path.as_ref().to_owned()).collect(),
        };
        if paths.is_empty() {
            paths.push(self.rng.pick(all).as_ref().to_owned());
        }
        if self.wrong() {
            match self.rng.below(3) {
                0 => paths.clear(),
                1 => paths.push("no_such_field".into()),
                _ => paths.extend(paths.clone()),
            }
        }
        Some(FieldMask { paths })
    }

    pub(crate) fn authority(&mut self) -> String {
        if self.rng.percent(2) {
            let account = self.anybody();
            return self.name(account);
        }
        self.cast.gov()
    }

    pub(super) fn workers(&mut self) -> Vec<participants::v1::WorkerEndpoint> {
        let wrong = self.wrong();
        let mut layer = 0;
        let mut worker = |rng: &mut Rng| {
            let first_layer = layer;
            layer += rng.range(1, 20) as u32;
            let url = if wrong { "ftp://layers".into() } else { format!("grpc://layers-{first_layer}:9000") };
            participants::v1::WorkerEndpoint { url, first_layer, last_layer: layer - 1 }
        };
        (0..self.rng.below(3)).map(|_| worker(self.rng)).collect()
    }

    pub(super) fn served(&mut self) -> Vec<String> {
        let registered = self.registered_models();
        let mut models = self.rng.part(&registered);
        if self.wrong() {
            models.push(self.rng.pick(&self.cast.models).clone());
        }
        self.rng.shuffle(&mut models);
        models
    }
}

/// Fields of a message by ascending number, each behind `prefix`.
pub(crate) fn field_names<M: Name>(prefix: &str) -> Vec<String> {
    let message = holdfast_proto::pool().ok().and_then(|pool| pool.get_message_by_name(&M::full_name()));
    let mut fields: Vec<_> =
        message.iter().flat_map(|m| m.fields()).map(|f| (f.number(), f.name().to_owned())).collect();
    fields.sort();
    fields.into_iter().map(|(_, name)| format!("{prefix}{name}")).collect()
}
