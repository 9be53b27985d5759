//! A registry between a schedule, a bank and a listener that keeps the breaker's sums.

mod excuse;
mod genesis;
mod groups;
mod history;
mod maintenance;
mod messages;
mod params;
mod queries;
mod records;
mod validators;
mod weights;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_proto::{FieldMask, Message};
use holdfast_store::{KvRead, Order, StoreError};
use holdfast_testkit::{MemBank, Recorder, Rng, Seen, StaticEpochs, TestChain, addr, addr_n};
use holdfast_types::traits::{
    BankKeeper, Eligibility, EligibilityHooks, Excuse, ParticipantsRead, Standing, VotingPower, WeightSource,
};
use holdfast_types::{
    Address, Context, Event, Height, Module, ModuleError, QueryKind, ValidatorUpdate, check_prefix_table, sdk,
};

use crate::types::*;
use crate::*;

pub(crate) const BANK: MemBank = MemBank;
pub(crate) const DENOM: &str = "uhold";
/// What everybody has at first.
pub(crate) const RICH: u128 = 1_000_000;

/// Weight, members and preserved ones of a model: what a listener like the breaker keeps.
pub(crate) type Sums = BTreeMap<String, (u128, u32, u32)>;

/// Keeps sums from totals and deltas, and writes every hook down. Can be told to fail for one participant.
#[derive(Default)]
pub(crate) struct Ears {
    pub(crate) seen: Recorder,
    pub(crate) sums: RefCell<Sums>,
    pub(crate) fail_for: Cell<Option<Address>>,
}

impl EligibilityHooks for Ears {
    fn after_member_eligibility_changed(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        participant: &Address,
        old: Eligibility,
        new: Eligibility,
    ) -> Result<(), ModuleError> {
        if self.fail_for.get() == Some(*participant) {
            return Err(ModuleError::sdk(sdk::LOGIC, "the listener fails"));
        }
        assert_ne!(old.weight, new.weight, "a change that is none");
        assert_eq!(old.preserved, new.preserved, "the flag never changes inside an epoch");
        assert!(old.weight == 0 || new.weight == 0, "weights only go to 0 and back");
        let mut sums = self.sums.borrow_mut();
        let sum = sums.entry(model.to_owned()).or_default();
        let preserved = u32::from(old.preserved);
        if new.weight > 0 {
            *sum = (sum.0 + u128::from(new.weight), sum.1 + 1, sum.2 + preserved);
        } else {
            *sum = (sum.0 - u128::from(old.weight), sum.1 - 1, sum.2 - preserved);
        }
        drop(sums);
        self.seen.after_member_eligibility_changed(ctx, model, participant, old, new)
    }
}

/// Weights from outside, or collateral divided as by default.
#[derive(Default)]
pub(crate) struct Source {
    pub(crate) given: RefCell<BTreeMap<Address, u64>>,
    pub(crate) polled: Cell<bool>,
    pub(crate) fail_for: Cell<Option<Address>>,
}

impl WeightSource for Source {
    fn weight(&self, store: &dyn KvRead, participant: &Address, bonded: u128) -> Result<u64, StoreError> {
        if self.fail_for.get() == Some(*participant) {
            return Err(StoreError::Backend("no weight today".into()));
        }
        match self.given.borrow().get(participant) {
            Some(weight) => Ok(*weight),
            None => CollateralWeight.weight(store, participant, bonded),
        }
    }

    fn polled(&self) -> bool {
        self.polled.get()
    }
}

pub(crate) struct World {
    pub(crate) chain: TestChain,
    pub(crate) epochs: StaticEpochs,
    pub(crate) source: Source,
    pub(crate) ears: Ears,
    pub(crate) comet: Comet,
}

/// CometBFT's side: a set of validators and what it refuses (validator_set.go, `updateWithChangeSet`, and
/// execution.go, `validateValidatorUpdates`, of v0.38, under consensus parameters that allow ed25519 only).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Comet {
    pub(crate) set: BTreeMap<Vec<u8>, i64>,
}

impl Comet {
    /// Applies a list; returns how much power moved. A refusal stops a real engine for good.
    pub(crate) fn apply(&mut self, updates: &[ValidatorUpdate]) -> Result<i128, String> {
        const MOST: i128 = (i64::MAX / 8) as i128;
        let mut seen = std::collections::BTreeSet::new();
        let (mut deltas, mut next) = (Vec::new(), self.set.clone());
        for ValidatorUpdate { public_key, power } in updates {
            if !seen.insert(public_key) {
                return Err(format!("duplicate entry {public_key:?}"));
            }
            if *power < 0 || i128::from(*power) > MOST {
                return Err(format!("power {power}"));
            }
            let old = self.set.get(public_key).copied();
            if *power == 0 {
                if next.remove(public_key).is_none() {
                    return Err(format!("failed to find validator {public_key:?} to remove"));
                }
            } else if public_key.len() == 32 || old.is_some() {
                next.insert(public_key.clone(), *power);
            } else {
                return Err("key type is unsupported for consensus".into());
            }
            deltas.push(i128::from(*power) - i128::from(old.unwrap_or(0)));
        }
        if next.is_empty() && !updates.is_empty() {
            return Err("would result in empty set".into());
        }
        deltas.sort();
        let mut total: i128 = self.set.values().map(|p| i128::from(*p)).sum();
        for delta in &deltas {
            total += delta;
            if total > MOST {
                return Err(format!("total voting power {total}"));
            }
        }
        self.set = next;
        Ok(deltas.iter().map(|d| d.abs()).sum())
    }
}

/// Parameters of these tests: ten base units for one unit of weight.
pub(crate) fn small_params() -> Params {
    Params {
        collateral_per_weight: 10,
        min_announce_blocks: 2,
        max_maintenance_blocks: 50,
        ..Params::default()
    }
}

impl World {
    /// Epochs of `length` blocks from height 1, models `a`, `b`, `c`, height 1.
    pub(crate) fn new(length: i64, poc_length: i64) -> Self {
        let models = ["a", "b", "c"].map(|id| pb::Model { id: id.into() }).to_vec();
        let genesis = pb::GenesisState { params: Some(small_params().to_pb()), models, ..Default::default() };
        Self::from_genesis(length, poc_length, 1, &genesis)
    }

    /// A chain whose first block is `height`; the state stands in the epoch of the block before.
    pub(crate) fn from_genesis(
        length: i64,
        poc_length: i64,
        height: Height,
        genesis: &pb::GenesisState,
    ) -> Self {
        let epochs = StaticEpochs { start_height: 1, length, poc_length };
        let mut chain = TestChain::new(height);
        chain.block.epoch = epochs.at((height - 1).max(1)).epoch;
        let (source, ears, comet) = Default::default();
        let mut world = Self { chain, epochs, source, ears, comet };
        world.init(genesis).unwrap();
        world.begin(height);
        world
    }

    pub(crate) fn init(&mut self, genesis: &pb::GenesisState) -> Result<(), ModuleError> {
        let keeper = Keeper { epochs: &self.epochs, weights: &self.source };
        let bytes = genesis.encode_to_vec();
        let hrp = self.chain.block.hrp.clone();
        ParticipantsModule { keeper }.validate_genesis(&bytes, &hrp)?;
        self.chain.message(|ctx| ParticipantsModule { keeper }.init_genesis(ctx, &bytes))?;
        let first = keeper.genesis_validators(&self.chain.store)?;
        self.comet.set = first.into_iter().map(|v| (v.public_key, v.power)).collect();
        Ok(())
    }

    pub(crate) fn export(&self) -> Vec<u8> {
        let module = ParticipantsModule { keeper: self.keeper() };
        module.export_genesis(&self.chain.store, &self.chain.block.hrp).unwrap()
    }

    pub(crate) fn keeper(&self) -> Keeper<'_> {
        Keeper { epochs: &self.epochs, weights: &self.source }
    }

    /// A message of any kind.
    pub(crate) fn send<T>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>, &Keeper<'_>, &dyn EligibilityHooks) -> Result<T, ModuleError>,
    ) -> Result<T, ModuleError> {
        let keeper = Keeper { epochs: &self.epochs, weights: &self.source };
        let ears = &self.ears;
        let sums = ears.sums.borrow().clone();
        let sent = self.chain.message(|ctx| step(ctx, &keeper, ears));
        if sent.is_err() {
            *ears.sums.borrow_mut() = sums;
        }
        sent
    }

    /// A message that must fail and change nothing: codespace, code and text.
    pub(crate) fn refused<T>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>, &Keeper<'_>, &dyn EligibilityHooks) -> Result<T, ModuleError>,
    ) -> (&'static str, u32, String) {
        let keeper = Keeper { epochs: &self.epochs, weights: &self.source };
        let ears = &self.ears;
        let mut text = String::new();
        let (space, code) = self
            .chain
            .refused(|ctx| step(ctx, &keeper, ears).inspect_err(|error| text.clone_from(&error.message)));
        (space, code, text)
    }

    /// Steps B2 and B3 at `height`.
    pub(crate) fn begin(&mut self, height: Height) {
        self.epochs.move_to(&mut self.chain.block, height);
        let keeper = Keeper { epochs: &self.epochs, weights: &self.source };
        let ears = &self.ears;
        if self.epochs.at(height).start_height == height {
            let totals = self.chain.ctx(|ctx| keeper.start_epoch(ctx)).unwrap();
            let totals: Sums =
                totals.into_iter().map(|t| (t.model, (t.eligible_weight, t.members, t.preserved))).collect();
            assert_eq!(totals, self.scan(), "totals of the epoch that begins at {height}");
            *self.ears.sums.borrow_mut() = totals;
        }
        self.chain.ctx(|ctx| keeper.begin_block(ctx, ears)).unwrap();
    }

    /// Step E4. Whatever the chain tells the engine must be legal and within the bound.
    pub(crate) fn end(&mut self) -> Vec<ValidatorUpdate> {
        let keeper = Keeper { epochs: &self.epochs, weights: &self.source };
        let updates = self.chain.ctx(|ctx| keeper.validator_updates(ctx)).unwrap();
        self.chain.ctx(|ctx| keeper.end_block(ctx)).unwrap();
        let params = keeper.params(&self.chain.store).unwrap();
        let height = self.chain.block.height;
        let first = self.epochs.at(height).start_height == height;
        assert!(first || updates.is_empty(), "{height} begins no epoch");
        assert!(updates.is_sorted_by(|a, b| a.public_key < b.public_key), "height {height}: {updates:?}");
        let old: i128 = self.comet.set.values().map(|p| i128::from(*p)).sum();
        let moved = self.comet.apply(&updates).unwrap_or_else(|e| panic!("height {height}: {e}"));
        if old > 0 {
            let share = i128::from(params.max_validator_change_permille);
            assert!(moved * 1_000 <= old * share && moved * 3 < old + 1, "height {height}: {moved} of {old}");
        }
        let stored: BTreeMap<_, _> = crate::validators::stored(&self.chain.store).unwrap();
        let stored: BTreeMap<_, _> =
            stored.into_iter().map(|(key, v)| (key, i64::try_from(v.power).unwrap())).collect();
        assert_eq!(stored, self.comet.set, "height {height}: what is stored is what was told");
        updates
    }

    /// Runs blocks until `height` has begun.
    pub(crate) fn go(&mut self, height: Height) {
        while self.chain.block.height < height {
            self.end();
            self.begin(self.chain.block.height + 1);
        }
    }

    /// Sums over every model by reading every member.
    pub(crate) fn scan(&self) -> Sums {
        let (keeper, store, block) = (self.keeper(), &self.chain.store, &self.chain.block);
        let mut out = Sums::new();
        for model in keeper.models(store).unwrap() {
            let sum = out.entry(model.clone()).or_default();
            for (_, standing) in keeper.members(store, block, &model).unwrap() {
                if standing.eligible() {
                    let preserved = u32::from(standing.preserved);
                    *sum = (sum.0 + u128::from(standing.weight), sum.1 + 1, sum.2 + preserved);
                }
            }
        }
        out
    }

    /// Everything that must hold between any two steps.
    pub(crate) fn check(&self, about: &str) {
        let store = &self.chain.store;
        invariants::check(&self.keeper(), store, &self.chain.block)
            .unwrap_or_else(|e| panic!("{about}: {e}"));
        invariants::collateral_is_backed(store, &BANK).unwrap_or_else(|e| panic!("{about}: {e}"));
        let (keeper, block) = (self.keeper(), &self.chain.block);
        let mut votes = 0;
        for row in crate::state::PARTICIPANTS.entries().iter(store, Order::Ascending) {
            votes += keeper.power(store, block, &row.unwrap().0).unwrap();
        }
        assert_eq!(keeper.total_power(store, block).unwrap(), votes, "{about}: sum of votes");
        let mut sums = self.ears.sums.borrow().clone();
        for model in self.keeper().models(store).unwrap() {
            sums.entry(model).or_default();
        }
        assert_eq!(sums, self.scan(), "{about}: hooks and scan disagree");
    }

    pub(crate) fn rich(&mut self, address: Address) {
        self.chain.ctx(|ctx| BANK.set(ctx, &address, DENOM, RICH));
    }

    pub(crate) fn held(&self, address: &Address) -> u128 {
        BANK.balance(&self.chain.store, address, DENOM).unwrap()
    }

    pub(crate) fn standing(&self, model: &str, address: Address) -> Standing {
        self.keeper().standing(&self.chain.store, &self.chain.block, model, &address).unwrap()
    }

    pub(crate) fn weight(&self, model: &str, address: Address) -> u64 {
        let standing = self.standing(model, address);
        assert_eq!(standing.member, standing.weight > 0);
        standing.weight
    }

    pub(crate) fn stored(&self, address: Address) -> Participant {
        crate::state::PARTICIPANTS.get(&self.chain.store, &address).unwrap().unwrap()
    }

    pub(crate) fn row(&self, model: &str, address: Address) -> MemberRecord {
        crate::state::MEMBERS.get(&self.chain.store, &(model.to_owned(), address)).unwrap().unwrap()
    }

    pub(crate) fn excuse(&self, address: Address, from: Height, to: Height) -> Option<Excuse> {
        self.keeper().excuse(&self.chain.store, &self.chain.block, "a", &address, from, to).unwrap()
    }

    /// Events since the last call, as `Name field=value ...`.
    pub(crate) fn told(&mut self) -> Vec<String> {
        self.chain.take_events().iter().map(line).collect()
    }

    /// Registers `address` with a key of its own, given money first.
    pub(crate) fn join(&mut self, address: Address, models: &[&str], collateral: u128) {
        self.join_as(address, models, collateral, false);
    }

    pub(crate) fn join_as(&mut self, address: Address, models: &[&str], collateral: u128, preserved: bool) {
        self.rich(address);
        let msg = pb::MsgRegisterParticipant {
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            collateral: Some(coin(collateral)),
            poc_preserved: preserved,
            ..register_msg(&self.chain, address)
        };
        self.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).unwrap();
    }

    pub(crate) fn update(
        &mut self,
        address: Address,
        models: &[&str],
        poc_preserved: bool,
    ) -> Result<(), ModuleError> {
        let msg = pb::MsgUpdateParticipant {
            participant: self.chain.bech32(&address),
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            poc_preserved,
            ..Default::default()
        };
        self.send(|ctx, k, hooks| msg_server::update_participant(ctx, k, hooks, msg)).map(|_| ())
    }

    pub(crate) fn leave(&mut self, address: Address) -> Result<(), ModuleError> {
        let msg = pb::MsgLeaveNetwork { participant: self.chain.bech32(&address) };
        self.send(|ctx, k, hooks| msg_server::leave_network(ctx, k, hooks, msg)).map(|_| ())
    }

    pub(crate) fn deposit(&mut self, address: Address, amount: u128) -> Result<(), ModuleError> {
        let participant = self.chain.bech32(&address);
        let msg = pb::MsgDepositCollateral { participant, amount: Some(coin(amount)) };
        self.send(|ctx, k, _| msg_server::deposit_collateral(ctx, k, &BANK, msg)).map(|_| ())
    }

    pub(crate) fn withdraw(&mut self, address: Address, amount: u128) -> Result<u64, ModuleError> {
        let participant = self.chain.bech32(&address);
        let msg = pb::MsgWithdrawCollateral { participant, amount: Some(coin(amount)) };
        self.send(|ctx, k, _| msg_server::withdraw_collateral(ctx, k, msg)).map(|r| r.unbonding_epoch)
    }

    pub(crate) fn claim(&mut self, address: Address) -> Result<PbCoin, ModuleError> {
        let msg = pb::MsgClaimCollateral { participant: self.chain.bech32(&address) };
        self.send(|ctx, k, _| msg_server::claim_collateral(ctx, k, &BANK, msg)).map(|r| r.amount.unwrap())
    }

    pub(crate) fn announce(
        &mut self,
        address: Address,
        start_height: Height,
        end_height: Height,
    ) -> Result<(), ModuleError> {
        let participant = self.chain.bech32(&address);
        let msg = pb::MsgAnnounceMaintenance { participant, start_height, end_height };
        self.send(|ctx, k, _| msg_server::announce_maintenance(ctx, k, msg)).map(|_| ())
    }

    pub(crate) fn cancel(&mut self, address: Address, start_height: Height) -> Result<(), ModuleError> {
        let msg = pb::MsgCancelMaintenance { participant: self.chain.bech32(&address), start_height };
        self.send(|ctx, k, hooks| msg_server::cancel_maintenance(ctx, k, hooks, msg)).map(|_| ())
    }

    pub(crate) fn deactivate(&mut self, address: Address) -> Result<(), ModuleError> {
        self.send(|ctx, k, hooks| k.deactivate(ctx, &address, hooks))
    }

    /// A change by governance of the fields in `mask`.
    pub(crate) fn set_params(&mut self, params: &Params, mask: &[&str]) -> Result<(), ModuleError> {
        let msg = pb::MsgUpdateParams {
            authority: self.chain.bech32(&Address::module("gov")),
            params: Some(params.to_pb()),
            update_mask: Some(FieldMask { paths: mask.iter().map(|f| (*f).to_owned()).collect() }),
        };
        self.send(|ctx, k, _| msg_server::update_params(ctx, k, msg)).map(|_| ())
    }
}

pub(crate) fn coin(amount: u128) -> PbCoin {
    PbCoin { denom: DENOM.into(), amount: amount.to_string() }
}

/// A registration with a key that is the address's alone.
pub(crate) fn register_msg(chain: &TestChain, address: Address) -> pb::MsgRegisterParticipant {
    let mut validator_key = vec![7; 12];
    validator_key.extend_from_slice(&address.0);
    pb::MsgRegisterParticipant {
        participant: chain.bech32(&address),
        validator_key,
        models: vec!["a".into()],
        collateral: Some(coin(100)),
        ..Default::default()
    }
}

/// `Name field=value ...`, without the package.
pub(crate) fn line(event: &Event) -> String {
    let name = event.kind.strip_prefix("holdfast.participants.v1.").expect("a name of this package");
    let fields: Vec<String> = event.attributes.iter().map(|(k, v)| format!(" {k}={v}")).collect();
    format!("{name}{}", fields.concat())
}

/// What the eligibility hook is told of a member that goes out or comes back.
pub(crate) fn hook(model: &str, address: Address, old: u64, new: u64) -> Seen {
    let of = |weight| Eligibility { weight, preserved: false };
    Seen::Eligibility(model.into(), address, of(old), of(new))
}
