//! A chain with one module and neighbours that do as told.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_proto::Message as _;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_store::{KvRead, StoreError};
use holdfast_testkit::{MemAccounts, MemBank, StaticEpochs, TestChain};
use holdfast_types::traits::*;
use holdfast_types::*;
use secp256k1::{Message, SECP256K1, SecretKey};
use sha2::{Digest, Sha256};

use crate::session::settle::{Settlement, SlotSignature};
use crate::session::{State, Tx, compose, digest};
use crate::{Deps, Escrow, EscrowModule, Keeper, Params, Status, forms, invariants, msg_server};

pub(super) const DENOM: &str = "uhold";
pub(super) const MODEL: &str = "ref-llama";
pub(super) const RICH: u128 = 10_000_000;
pub(super) const AMOUNT: u128 = 1_000_000;
pub(super) const HOSTS: [&str; 4] = ["host-0", "host-1", "host-2", "host-3"];
/// Three of four slots: exactly the quorum.
pub(super) const THREE: [(u8, &str); 3] = [(0, "host-0"), (1, "host-1"), (3, "host-3")];
/// Blocks of an epoch; epoch 0 begins at 1.
pub(super) const EPOCHS: StaticEpochs = StaticEpochs { start_height: 1, length: 100, poc_length: 0 };

pub(super) fn key(name: &str) -> SecretKey {
    SecretKey::from_byte_array(Sha256::digest(format!("holdfast-test-key:{name}")).into()).unwrap()
}

pub(super) fn addr(name: &str) -> Address {
    address_of(&key(name).public_key(SECP256K1).serialize())
}

pub(super) fn text(name: &str) -> String {
    addr(name).to_bech32(&Hrp::default())
}

pub(super) fn sign(name: &str, digest: &[u8; 32]) -> Signature {
    let signed = SECP256K1.sign_ecdsa_recoverable(Message::from_digest(*digest), &key(name));
    let (id, compact) = signed.serialize_compact();
    let mut out = [0; 65];
    out[..64].copy_from_slice(&compact);
    out[64] = u8::try_from(i32::from(id)).unwrap();
    out
}

/// What the neighbours are asked and answer.
#[derive(Default)]
pub(super) struct Near {
    /// Slots of the next group; none: too few.
    pub(super) slots: Vec<&'static str>,
    pub(super) no_model: bool,
    pub(super) asked: RefCell<Vec<([u8; 32], u8, u8)>>,
    pub(super) generation: u32,
    pub(super) heard: RefCell<Vec<EscrowCounts>>,
    pub(super) deaf_to: RefCell<BTreeSet<Address>>,
}

impl GroupDraw for Near {
    fn draw_group(
        &self,
        _: &dyn KvRead,
        _: &BlockContext,
        request: &GroupRequest<'_>,
    ) -> Result<DrawnGroup, ModuleError> {
        assert_eq!(request.model, MODEL);
        self.asked.borrow_mut().push((request.seed, request.slots, request.cap));
        Ok(match (self.no_model, self.slots.is_empty()) {
            (true, _) => DrawnGroup::ModelUnknown,
            (false, true) => DrawnGroup::TooFew { owners: 2 },
            (false, false) => DrawnGroup::Slots(self.slots.iter().map(|name| addr(name)).collect()),
        })
    }
}

impl EscrowStamps for Near {
    fn stamp(&self, _: &dyn KvRead, block: &BlockContext, _: &str, _: &Address) -> Result<Stamp, StoreError> {
        Ok(Stamp { epoch: block.epoch, generation: self.generation, evidence: true })
    }
}

impl EscrowHooks for Near {
    fn after_escrow_settled(&self, _: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError> {
        if self.deaf_to.borrow().contains(&counts.participant) {
            return Err(ModuleError::new("breaker", 99, "corrupt entry"));
        }
        self.heard.borrow_mut().push(counts.clone());
        Ok(())
    }
}

pub(super) struct World {
    pub(super) chain: TestChain,
    pub(super) near: Near,
}

/// Prices of escrow-details 2's vectors, a window of 20 blocks.
pub(super) fn prices() -> Params {
    Params {
        create_fee: 10_000,
        fee_per_nonce: 100,
        token_price: 10,
        dispute_window_blocks: 20,
        ..Params::default()
    }
}

impl World {
    /// At height 10 of epoch 0; `creator` is rich; groups are four hosts, a slot each.
    pub(super) fn new() -> Self {
        let mut world =
            Self { chain: TestChain::new(10), near: Near { slots: HOSTS.to_vec(), ..Near::default() } };
        world.chain.block.previous_app_hash = [0xab; 32];
        let genesis = pb::GenesisState { params: Some(prices().to_pb()), next_escrow_id: 1, escrows: vec![] };
        world.chain.ctx(|ctx| MODULE.init_genesis(ctx, &genesis.encode_to_vec())).unwrap();
        world.give("creator", RICH);
        world
    }

    pub(super) fn give(&mut self, name: &str, amount: u128) {
        self.chain.ctx(|ctx| MemBank.set(ctx, &addr(name), DENOM, amount));
    }

    pub(super) fn set_params(&mut self, change: impl FnOnce(&mut Params)) {
        let mut params = Keeper.params(&self.chain.store).unwrap();
        change(&mut params);
        crate::state::PARAMS.set(&mut self.chain.store, &params).unwrap();
    }

    pub(super) fn at(&mut self, height: Height) {
        EPOCHS.move_to(&mut self.chain.block, height);
    }

    /// A message that is taken, checked by the invariants.
    pub(super) fn ok<T>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>, &Deps<'_>) -> Result<T, ModuleError>,
    ) -> T {
        let Self { chain, near } = self;
        let value = chain.message(|ctx| step(ctx, &deps(near))).unwrap_or_else(|e| panic!("{e}"));
        self.check();
        value
    }

    /// A message that is refused and leaves nothing behind; its code within `escrow`.
    pub(super) fn refused<T>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>, &Deps<'_>) -> Result<T, ModuleError>,
    ) -> u32 {
        let Self { chain, near } = self;
        let (codespace, code) = chain.refused(|ctx| step(ctx, &deps(near)));
        assert_eq!(codespace, "escrow");
        code
    }

    /// The end of the block at `height`.
    pub(super) fn end(&mut self, height: Height) {
        self.at(height);
        self.ok(|ctx, deps| {
            crate::close(ctx, deps)?;
            crate::prune(ctx, deps.epochs)
        });
    }

    pub(super) fn check(&self) {
        invariants::check(&self.chain.store, &MemBank).unwrap();
    }

    /// `creator` pays in for a group of four.
    pub(super) fn create(&mut self) -> u64 {
        self.ok(|ctx, deps| msg_server::create_escrow(ctx, deps, create_msg())).escrow_id
    }

    pub(super) fn row(&self, id: u64) -> Escrow {
        Keeper.escrow(&self.chain.store, id).unwrap().unwrap()
    }

    pub(super) fn status(&self, id: u64) -> Status {
        self.row(id).status
    }

    pub(super) fn settle(&mut self, by: &str, settlement: &Settlement) {
        let msg = settle_msg(by, settlement);
        self.ok(|ctx, deps| msg_server::settle_escrow(ctx, deps, msg));
    }

    pub(super) fn settle_refused(&mut self, by: &str, settlement: &Settlement) -> u32 {
        let msg = settle_msg(by, settlement);
        self.refused(|ctx, deps| msg_server::settle_escrow(ctx, deps, msg))
    }

    pub(super) fn dispute(&mut self, by: &str, settlement: &Settlement) {
        let msg = dispute_msg(by, settlement);
        self.ok(|ctx, _| msg_server::dispute_escrow(ctx, msg));
    }

    pub(super) fn dispute_refused(&mut self, by: &str, settlement: &Settlement) -> u32 {
        let msg = dispute_msg(by, settlement);
        self.refused(|ctx, _| msg_server::dispute_escrow(ctx, msg))
    }

    pub(super) fn held(&self, name: &str) -> u128 {
        self.held_at(&addr(name))
    }

    pub(super) fn held_at(&self, address: &Address) -> u128 {
        MemBank.balance(&self.chain.store, address, DENOM).unwrap()
    }

    pub(super) fn collected(&self) -> u128 {
        self.held_at(&Address::module("fee_collector"))
    }

    /// Coins of everybody; never changes.
    pub(super) fn all_coins(&self) -> u128 {
        let people = HOSTS.iter().chain(&["creator"]).map(|name| self.held(name));
        people.sum::<u128>() + self.collected() + self.held_at(&crate::module_account())
    }

    /// Kinds of the events since the last call, without the package.
    pub(super) fn kinds(&mut self) -> Vec<String> {
        let events = self.chain.take_events();
        events.iter().map(|e| e.kind.strip_prefix("holdfast.escrow.v1.").unwrap().to_owned()).collect()
    }
}

/// The neighbours of a call.
pub(super) fn deps(near: &Near) -> Deps<'_> {
    Deps {
        bank: &MemBank,
        accounts: &MemAccounts,
        epochs: &EPOCHS,
        groups: near,
        stamps: near,
        hooks: near,
        fee_collector: Address::module("fee_collector"),
    }
}

pub(super) const MODULE: EscrowModule<'static> = EscrowModule { bank: &MemBank };

pub(super) fn create_msg() -> pb::MsgCreateEscrow {
    pb::MsgCreateEscrow {
        creator: text("creator"),
        gateway: text("gateway"),
        gateway_url: "https://gw.example:8443".into(),
        model: MODEL.into(),
        amount: Some(PbCoin { denom: DENOM.into(), amount: AMOUNT.to_string() }),
        slots: 4,
    }
}

pub(super) fn settle_msg(by: &str, settlement: &Settlement) -> pb::MsgSettleEscrow {
    let escrow_id = settlement.escrow_id;
    let settlement = Some(forms::settlement_to_pb(settlement, &Hrp::default()));
    pb::MsgSettleEscrow { sender: text(by), escrow_id, settlement }
}

pub(super) fn dispute_msg(by: &str, settlement: &Settlement) -> pb::MsgDisputeEscrow {
    let pb::MsgSettleEscrow { sender, escrow_id, settlement } = settle_msg(by, settlement);
    pb::MsgDisputeEscrow { sender, escrow_id, settlement }
}

/// The state before the first diff of a session of this escrow.
pub(super) fn session(world: &World, id: u64) -> State {
    State::genesis(Arc::new(world.row(id).config))
}

pub(super) fn step(state: &State, txs: Vec<Tx>) -> State {
    let next = compose(state, Vec::new(), txs).unwrap().state;
    next.check_conservation().unwrap();
    next
}

/// 16 tokens in, 8 out: 240 coins.
pub(super) fn start() -> Tx {
    Tx::StartInference { prompt_hash: [1; 32], input_limit: 16, output_limit: 8, started_at: 1_700_000_000 }
}

pub(super) fn confirm(state: &State, id: u64, by: &str) -> Tx {
    let config = state.config();
    let record = state.record(id).unwrap();
    let digest = digest::receipt(&config.chain_id, config.escrow_id, record, 1_700_000_001);
    Tx::ConfirmStart { id, confirmed_at: 1_700_000_001, sig: sign(by, &digest) }
}

pub(super) fn finish(state: &State, id: u64, tokens: (u32, u32), by: &str) -> Tx {
    let (config, hash) = (state.config(), [2; 32]);
    let slot = config.executor_slot(id);
    let digest = digest::finish(&config.chain_id, config.escrow_id, id, slot, tokens.0, tokens.1, &hash);
    let (input_tokens, output_tokens) = tokens;
    Tx::FinishInference { id, input_tokens, output_tokens, response_hash: hash, sig: sign(by, &digest) }
}

/// The summary of `state`, signed by these slots.
pub(super) fn signed(state: &State, by: &[(u8, &str)]) -> Settlement {
    let config = state.config();
    let digest = digest::state(&config.chain_id, config.escrow_id, state.nonce(), &state.root());
    let sign_as = |(slot, name): &(u8, &str)| SlotSignature { slot: *slot, sig: sign(name, &digest) };
    Settlement::of(state, by.iter().map(sign_as).collect())
}

/// Finalizes and drains: N + 1 diffs.
pub(super) fn finalized(state: &State) -> State {
    let mut state = step(state, vec![Tx::FinalizeRound]);
    for _ in 0..state.config().slots.len() {
        state = step(&state, vec![]);
    }
    state
}

/// Nonce 9 of escrow-details 2's vectors: 120 earned by host-1, 10 400 of fees, 989 480 left.
pub(super) fn vectors(world: &World, id: u64) -> State {
    let mut state = step(&session(world, id), vec![start()]);
    state = step(&state, vec![confirm(&state, 1, "host-1")]);
    state = step(&state, vec![finish(&state, 1, (4, 8), "host-1")]);
    state = step(&state, vec![]);
    finalized(&state)
}
