//! Governance between a bank, a table of powers, and a router that carries its own messages back to it.

mod blocks;
mod calc;
mod genesis;
mod golden;
mod history;
mod messages;
mod params;
mod proposals;
mod queries;
mod tally;
mod upgrades;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as pb;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_proto::{Any, FieldMask, Message, Name};
use holdfast_store::{KvRead, StoreError};
use holdfast_testkit::{MemAccounts, MemBank, Rng, TestChain, addr, addr_n};
use holdfast_types::traits::{BankKeeper, MessageRouter, VotingPower};
use holdfast_types::{
    Address, BlockContext, Context, Event, Hrp, Module, ModuleError, QueryKind, check_prefix_table,
    decode_msg, sdk,
};

use crate::state::*;
use crate::types::*;
use crate::*;

pub(crate) const BANK: MemBank = MemBank;
pub(crate) const DENOM: &str = "uhold";
/// What everybody has at first: five hundred minimum deposits.
pub(crate) const RICH: u128 = 5_000_000_000;
/// The minimum deposit, and that of an expedited proposal.
pub(crate) const MIN: u128 = 10_000_000;
pub(crate) const MIN_EXPEDITED: u128 = 50_000_000;
/// Default periods in seconds.
pub(crate) const DAY: u64 = 86_400;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Second at which the chain of these tests begins.
pub(crate) const START: u64 = 1_700_000_000;

/// Powers by voter; a total that need not be their sum. Can be told to fail.
#[derive(Default)]
pub(crate) struct Powers {
    pub(crate) of: RefCell<BTreeMap<Address, u128>>,
    pub(crate) total: Cell<Option<u128>>,
    pub(crate) fail_for: Cell<Option<Address>>,
}

impl VotingPower for Powers {
    fn power(&self, _: &dyn KvRead, _: &BlockContext, voter: &Address) -> Result<u128, StoreError> {
        if self.fail_for.get() == Some(*voter) {
            return Err(StoreError::Backend("no power today".into()));
        }
        Ok(self.of.borrow().get(voter).copied().unwrap_or(0))
    }

    fn total_power(&self, _: &dyn KvRead, _: &BlockContext) -> Result<u128, StoreError> {
        Ok(self.total.get().unwrap_or_else(|| self.of.borrow().values().sum()))
    }
}

/// Type of the test's own message. Its value is `verb` or `verb:argument`.
pub(crate) const TEST: &str = "/test.Msg";

pub(crate) fn test_msg(text: &str) -> Any {
    Any { type_url: TEST.into(), value: text.as_bytes().to_vec() }
}

pub(crate) fn pack<M: Message + Name>(msg: &M) -> Any {
    Any { type_url: M::type_url(), value: msg.encode_to_vec() }
}

/// Carries messages of gov, upgrade and bank, and [`TEST`] messages:
/// `put:X` writes row `X`, `fail` fails, `hungry` reads for ever, `before:T` fails from second `T` on, `alien` is signed by
/// somebody else, `both` by two, `panic` dies the way a router reports it, `bad` does not decode.
pub(crate) struct Router<'a>(pub(crate) &'a Powers);

impl Router<'_> {
    fn deps(&self) -> Deps<'_> {
        Deps { bank: &BANK, accounts: &MemAccounts, power: self.0, router: self }
    }
}

fn no<T>(code: u32, text: &str) -> Result<T, ModuleError> {
    Err(ModuleError::new("test", code, text))
}

macro_rules! routes {
    ($message:ident, $($msg:ty => $use_it:expr;)*) => {
        $(if $message.type_url == <$msg>::type_url() {
            let decoded = decode_msg::<$msg>(&$message.value)?;
            return $use_it(decoded);
        })*
    };
}

impl MessageRouter for Router<'_> {
    fn check(&self, message: &Any) -> Result<(), ModuleError> {
        if message.type_url == TEST {
            if message.value == b"bad" {
                return Err(ModuleError::sdk(sdk::UNPACK_ANY, "bad"));
            }
            return Ok(());
        }
        routes! { message,
            pb::MsgSubmitProposal => |_| Ok(());
            pb::MsgVote => |_| Ok(());
            pb::MsgDeposit => |_| Ok(());
            pb::MsgCancelProposal => |_| Ok(());
            pb::MsgUpdateParams => |_| Ok(());
            upgrade::MsgSoftwareUpgrade => |_| Ok(());
            upgrade::MsgCancelUpgrade => |_| Ok(());
            MsgSend => |_| Ok(());
        }
        Err(ModuleError::sdk(sdk::UNKNOWN_REQUEST, format!("no module takes {}", message.type_url)))
    }

    fn signers(&self, message: &Any, hrp: &Hrp) -> Result<Vec<Address>, ModuleError> {
        let gov = Address::module("gov");
        let one = |text: &str| {
            Address::parse(text, hrp)
                .map(|a| vec![a])
                .map_err(|e| ModuleError::sdk(sdk::INVALID_ADDRESS, e.to_string()))
        };
        routes! { message,
            pb::MsgSubmitProposal => |m: pb::MsgSubmitProposal| one(&m.proposer);
            pb::MsgVote => |m: pb::MsgVote| one(&m.voter);
            pb::MsgDeposit => |m: pb::MsgDeposit| one(&m.depositor);
            pb::MsgCancelProposal => |m: pb::MsgCancelProposal| one(&m.proposer);
            pb::MsgUpdateParams => |m: pb::MsgUpdateParams| one(&m.authority);
            upgrade::MsgSoftwareUpgrade => |m: upgrade::MsgSoftwareUpgrade| one(&m.authority);
            upgrade::MsgCancelUpgrade => |m: upgrade::MsgCancelUpgrade| one(&m.authority);
            MsgSend => |m: MsgSend| one(&m.from_address);
        }
        Ok(match message.value.as_slice() {
            b"alien" => vec![addr(9)],
            b"both" => vec![gov, addr(9)],
            b"nobody" => vec![],
            _ => vec![gov],
        })
    }

    fn deliver(&self, ctx: &mut Context<'_>, message: &Any) -> Result<Any, ModuleError> {
        let deps = self.deps();
        routes! { message,
            pb::MsgSubmitProposal => |m| Ok(pack(&msg_server::submit_proposal(ctx, &deps, m)?));
            pb::MsgVote => |m| Ok(pack(&msg_server::vote(ctx, &deps, m)?));
            pb::MsgDeposit => |m| Ok(pack(&msg_server::deposit(ctx, &deps, m)?));
            pb::MsgCancelProposal => |m| Ok(pack(&msg_server::cancel_proposal(ctx, m)?));
            pb::MsgUpdateParams => |m| Ok(pack(&msg_server::update_params(ctx, m)?));
            upgrade::MsgSoftwareUpgrade => |m| Ok(pack(&msg_server::software_upgrade(ctx, m)?));
            upgrade::MsgCancelUpgrade => |m| Ok(pack(&msg_server::cancel_upgrade(ctx, m)?));
            MsgSend => |m: MsgSend| {
                let hrp = ctx.block.hrp.clone();
                let [from, to] = [m.from_address, m.to_address].map(|a| Address::parse(&a, &hrp).unwrap());
                for coin in &m.amount {
                    BANK.send(ctx, &from, &to, &coin.try_into().unwrap())?;
                }
                Ok(Any::default())
            };
        }
        let text = String::from_utf8(message.value.clone()).unwrap();
        let (verb, argument) = text.split_once(':').unwrap_or((&text, ""));
        match verb {
            "put" => {
                ctx.store.set(format!("test/{argument}").as_bytes(), b"1")?;
                ctx.emit(Event::new("test_put").with("row", argument));
            }
            "fail" => return no(7, "told to fail"),
            "panic" => return Err(ModuleError::new("undefined", 111_222, "a panic")),
            "hungry" => loop {
                ctx.store.get(b"test/food")?;
            },
            "before" if ctx.block.time_ns >= argument.parse::<u64>().unwrap() * SECOND => {
                return no(8, "too late");
            }
            _ => {}
        }
        Ok(Any::default())
    }
}

pub(crate) struct World {
    pub(crate) chain: TestChain,
    pub(crate) power: Powers,
}

pub(crate) fn uhold(amount: u128) -> Vec<PbCoin> {
    if amount == 0 {
        return Vec::new();
    }
    vec![PbCoin { denom: DENOM.into(), amount: amount.to_string() }]
}

impl World {
    /// Default parameters; addresses 1 to 20 are rich; voters 1 to 10 have power 10 each.
    pub(crate) fn new() -> Self {
        Self::with(Params::default())
    }

    pub(crate) fn with(params: Params) -> Self {
        let mut chain = TestChain::new(100);
        chain.block.time_ns = START * SECOND;
        let power = Powers::default();
        for n in 1..=20 {
            chain.ctx(|ctx| BANK.set(ctx, &addr(n), DENOM, RICH));
        }
        for n in 1..=10 {
            power.of.borrow_mut().insert(addr(n), 10);
        }
        let genesis = holdfast_proto::holdfast::gov::v1::GenesisState {
            params: Some(params.to_pb(&Hrp::default())),
            next_proposal_id: 1,
            ..Default::default()
        };
        let genesis = genesis.encode_to_vec();
        chain.message(|ctx| GovModule { bank: &BANK }.init_genesis(ctx, &genesis)).unwrap();
        Self { chain, power }
    }

    pub(crate) fn gov(&self) -> String {
        self.chain.bech32(&Address::module("gov"))
    }

    pub(crate) fn text(&self, n: u8) -> String {
        self.chain.bech32(&addr(n))
    }

    /// Runs `f` as a message.
    pub(crate) fn send<T>(
        &mut self,
        f: impl FnOnce(&mut Context<'_>, &Deps<'_>) -> Result<T, ModuleError>,
    ) -> Result<T, ModuleError> {
        let router = Router(&self.power);
        let deps = router.deps();
        self.chain.message(|ctx| f(ctx, &deps))
    }

    /// Runs `f` as a message that must be refused and leave no trace: codespace, code and text.
    pub(crate) fn refused<T: std::fmt::Debug>(
        &mut self,
        f: impl FnOnce(&mut Context<'_>, &Deps<'_>) -> Result<T, ModuleError>,
    ) -> (&'static str, u32, String) {
        let router = Router(&self.power);
        let deps = router.deps();
        let mut text = String::new();
        let (space, code) =
            self.chain.refused(|ctx| f(ctx, &deps).inspect_err(|e| text.clone_from(&e.message)));
        (space, code, text)
    }

    /// The end of a block, `seconds` after the one before. Checks the invariants; returns the block's events.
    pub(crate) fn block(&mut self, seconds: u64) -> Vec<Event> {
        self.chain.block.height += 1;
        self.chain.block.time_ns += seconds * SECOND;
        self.chain.take_events();
        let router = Router(&self.power);
        let deps = router.deps();
        self.chain.ctx(|ctx| abci::end_block(ctx, &deps)).unwrap();
        invariants::check(&self.chain.store, &BANK).unwrap();
        self.chain.take_events()
    }

    pub(crate) fn submission(
        &self,
        proposer: u8,
        deposit: u128,
        messages: Vec<Any>,
    ) -> pb::MsgSubmitProposal {
        pb::MsgSubmitProposal {
            messages,
            initial_deposit: uhold(deposit),
            proposer: self.text(proposer),
            metadata: "ipfs://x".into(),
            title: "A title".into(),
            summary: "What it is about".into(),
            expedited: false,
        }
    }

    pub(crate) fn submit(&mut self, msg: pb::MsgSubmitProposal) -> u64 {
        self.send(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg)).unwrap().proposal_id
    }

    /// A proposal in its voting period.
    pub(crate) fn voting(&mut self, messages: Vec<Any>) -> u64 {
        let msg = self.submission(11, MIN, messages);
        self.submit(msg)
    }

    /// An expedited proposal in its voting period.
    pub(crate) fn expedited(&mut self, messages: Vec<Any>) -> u64 {
        let msg = self.submission(11, MIN_EXPEDITED, messages);
        self.submit(pb::MsgSubmitProposal { expedited: true, ..msg })
    }

    pub(crate) fn try_vote(&mut self, id: u64, voter: u8, option: i32) -> Result<(), ModuleError> {
        let msg = pb::MsgVote { proposal_id: id, voter: self.text(voter), option, metadata: String::new() };
        self.send(|ctx, deps| msg_server::vote(ctx, deps, msg)).map(|_| ())
    }

    /// Votes 1 yes, 2 abstain, 3 no, 4 veto of voters 1, 2, 3, …
    pub(crate) fn votes(&mut self, id: u64, options: &[i32]) {
        for (n, option) in options.iter().enumerate() {
            self.try_vote(id, n as u8 + 1, *option).unwrap();
        }
    }

    pub(crate) fn weighted(&mut self, id: u64, voter: u8, parts: &[(i32, &str)]) -> Result<(), ModuleError> {
        let part = |(option, weight): &(i32, &str)| pb::WeightedVoteOption {
            option: *option,
            weight: (*weight).to_owned(),
        };
        let options = parts.iter().map(part).collect();
        let msg = pb::MsgVoteWeighted {
            proposal_id: id,
            voter: self.text(voter),
            options,
            metadata: String::new(),
        };
        self.send(|ctx, deps| msg_server::vote_weighted(ctx, deps, msg)).map(|_| ())
    }

    pub(crate) fn deposit(&mut self, id: u64, depositor: u8, amount: u128) -> Result<(), ModuleError> {
        let msg = pb::MsgDeposit { proposal_id: id, depositor: self.text(depositor), amount: uhold(amount) };
        self.send(|ctx, deps| msg_server::deposit(ctx, deps, msg)).map(|_| ())
    }

    pub(crate) fn cancel(&mut self, id: u64, proposer: u8) -> Result<(), ModuleError> {
        let msg = pb::MsgCancelProposal { proposal_id: id, proposer: self.text(proposer) };
        self.send(|ctx, _| msg_server::cancel_proposal(ctx, msg)).map(|_| ())
    }

    pub(crate) fn proposal(&self, id: u64) -> Proposal {
        PROPOSALS.load(&self.chain.store, &id).unwrap()
    }

    pub(crate) fn status(&self, id: u64) -> ProposalStatus {
        self.proposal(id).status
    }

    pub(crate) fn balance(&self, account: &Address) -> u128 {
        BANK.balance(&self.chain.store, account, DENOM).unwrap()
    }

    /// What the gov account holds.
    pub(crate) fn held(&self) -> u128 {
        self.balance(&Address::module("gov"))
    }

    /// Whether the row of a `put` message is there.
    pub(crate) fn has_row(&self, row: &str) -> bool {
        self.chain.store.get(format!("test/{row}").as_bytes()).unwrap().is_some()
    }

    /// Sets parameters past every check of a message.
    pub(crate) fn set_params(&mut self, change: impl FnOnce(&mut Params)) {
        let mut params = Keeper.params(&self.chain.store).unwrap();
        change(&mut params);
        params.validate().unwrap();
        self.chain.ctx(|ctx| PARAMS.set(ctx.store, &params)).unwrap();
    }

    pub(crate) fn update_params(&self, params: pb::Params, paths: &[&str]) -> pb::MsgUpdateParams {
        pb::MsgUpdateParams {
            authority: self.gov(),
            params: Some(params),
            update_mask: Some(FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() }),
        }
    }
}

/// Results of the `active_proposal` events, as `id:result`.
pub(crate) fn results(events: &[Event]) -> Vec<String> {
    let decided = events.iter().filter(|e| e.kind == "active_proposal");
    decided
        .map(|e| format!("{}:{}", e.get("proposal_id").unwrap(), e.get("proposal_result").unwrap()))
        .collect()
}

pub(crate) fn line(event: &Event) -> String {
    let attributes: Vec<_> = event.attributes.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{} {}", event.kind, attributes.join(" "))
}
