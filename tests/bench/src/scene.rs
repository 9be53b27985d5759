//! A chain on disk with as many gateways and executors as a benchmark asks for, and the transactions they sign.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use holdfast_app::app::{App, AppOptions, Block, FinalizedBlock, state_spaces};
use holdfast_app::state::{DiskStore, StateOptions};
use holdfast_app::tx::{TxBuilder, pack};
use holdfast_node::devnet::config::Preset;
use holdfast_node::devnet::executors::{ExecutorSpec, Profile};
use holdfast_node::devnet::genesis::{Account, Accounts, CHAIN_ID, DENOM, document};
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as gov_pb;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_proto::{Any, Message};
use holdfast_types::{Coin, Hrp, ValidationParams};
use tempfile::TempDir;

/// The one model.
pub const MODEL: &str = "model-a";
const FEE: u128 = 1_000;
const GAS_LIMIT: u64 = 1_000_000;
const PROMPT_TOKENS: u64 = 2_000;
const MAX_TOKENS: u64 = 500;
/// A tenth of what opens a vote.
const DEPOSIT: u128 = 1_000_000;
/// Seconds since 1970 of height 0; five seconds a block.
const GENESIS_SECONDS: u64 = 1_704_067_200;

/// An account that signs.
#[derive(Clone)]
pub struct Party {
    account: Account,
    name: String,
    sequence: u64,
}

impl Party {
    fn new(account: Account) -> Self {
        let name = account.address.to_bech32(&Hrp::default());
        Self { account, name, sequence: 0 }
    }

    /// Signs `message` with the next sequence.
    fn sign(&mut self, message: Any) -> Vec<u8> {
        let builder = TxBuilder {
            chain_id: CHAIN_ID.into(),
            account_number: self.account.number,
            sequence: self.sequence,
            fee: Coin { denom: DENOM.into(), amount: FEE },
            gas_limit: GAS_LIMIT,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![message],
        };
        self.sequence += 1;
        builder.sign(&self.account.key)
    }
}

/// The chain and its accounts.
pub struct Scene {
    /// The application, over a database in a temporary folder.
    pub app: App<DiskStore>,
    /// Who starts inferences.
    pub gateways: Vec<Party>,
    /// Who answers.
    pub executors: Vec<Party>,
    /// Goes with the scene.
    pub dir: TempDir,
}

fn accounts(label: u64, count: usize, first_number: usize) -> Vec<Account> {
    let mut accounts = Accounts::derive(label, count).executors;
    for (index, account) in accounts.iter_mut().enumerate() {
        account.number = (first_number + index) as u64;
    }
    accounts
}

impl Scene {
    /// A chain before its first block, under the recommended parameters or others.
    pub fn new(gateways: usize, executors: usize, params: Option<ValidationParams>) -> Result<Self> {
        Self::with_options(gateways, executors, params, |_| AppOptions::default())
    }

    /// The same with node-local choices, which may keep files in the scene's folder.
    pub fn with_options(
        gateways: usize,
        executors: usize,
        params: Option<ValidationParams>,
        options: impl FnOnce(&Path) -> AppOptions,
    ) -> Result<Self> {
        let all =
            Accounts { gateways: accounts(1, gateways, 0), executors: accounts(2, executors, gateways) };
        let spec = |index: usize| ExecutorSpec {
            profile: Profile::Healthy,
            weight: 80 + 10 * (index as u64 % 5),
            models: vec![MODEL.into()],
        };
        let specs: Vec<ExecutorSpec> = (0..executors).map(spec).collect();
        let mut doc = document(&all, &specs, Preset::Recommended)?;
        if let Some(validation) = params {
            let mut state = pb::GenesisState::decode(doc.module("inference")?.as_slice())?;
            let token_price = Coin { denom: DENOM.into(), amount: 1 };
            state.params = Some(holdfast_inference::Params { validation, token_price }.to_pb());
            doc.set_module("inference", &state.encode_to_vec())?;
        }
        let dir = tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?;
        let store = DiskStore::open(dir.path().join("state"), &state_spaces(), StateOptions::default())?;
        let app = App::from_genesis(store, options(dir.path()), &doc)?;
        let party = |accounts: Vec<Account>| accounts.into_iter().map(Party::new).collect();
        Ok(Self { app, gateways: party(all.gateways), executors: party(all.executors), dir })
    }

    /// A signed start of `id` on `executor`, paid by `gateway`.
    pub fn start(&mut self, gateway: usize, executor: usize, id: &str) -> Result<Vec<u8>> {
        let assigned_to = self.executors.get(executor).context("no such executor")?.name.clone();
        let gateway = self.gateways.get_mut(gateway).context("no such gateway")?;
        let message = pb::MsgStartInference {
            signer: gateway.name.clone(),
            requested_by: gateway.name.clone(),
            inference_id: id.into(),
            model: MODEL.into(),
            assigned_to,
            prompt_hash: vec![7; 32],
            prompt_tokens: PROMPT_TOKENS,
            max_tokens: MAX_TOKENS,
        };
        Ok(gateway.sign(pack(&message)))
    }

    /// The answer of `executor` to `id`, to be signed or delivered as it is.
    pub fn finish_message(&self, executor: usize, id: &str) -> Result<Any> {
        let executor = self.executors.get(executor).context("no such executor")?;
        Ok(pack(&pb::MsgFinishInference {
            executed_by: executor.name.clone(),
            inference_id: id.into(),
            response_hash: vec![9; 32],
            prompt_tokens: PROMPT_TOKENS,
            completion_tokens: MAX_TOKENS / 2,
        }))
    }

    /// A signed answer of `executor` to `id`.
    pub fn finish(&mut self, executor: usize, id: &str) -> Result<Vec<u8>> {
        let message = self.finish_message(executor, id)?;
        Ok(self.executors.get_mut(executor).context("no such executor")?.sign(message))
    }

    /// A signed proposal without messages, with a deposit that does not open the vote.
    pub fn propose(&mut self, gateway: usize, title: &str) -> Result<Vec<u8>> {
        let gateway = self.gateways.get_mut(gateway).context("no such gateway")?;
        let message = gov_pb::MsgSubmitProposal {
            initial_deposit: vec![PbCoin { denom: DENOM.into(), amount: DEPOSIT.to_string() }],
            proposer: gateway.name.clone(),
            metadata: "text only".into(),
            title: title.into(),
            summary: "What it is about".into(),
            ..gov_pb::MsgSubmitProposal::default()
        };
        Ok(gateway.sign(pack(&message)))
    }

    /// The next block with these transactions.
    pub fn block(&self, txs: Vec<Vec<u8>>) -> Block {
        let height = self.app.shared().next_height();
        let time_ns = (GENESIS_SECONDS + 5 * height.unsigned_abs()) * 1_000_000_000;
        Block { height, time_ns, txs }
    }
}

/// Fails when a transaction of the block failed: the times would be of other work.
pub fn all_succeeded(finalized: &FinalizedBlock) -> Result<()> {
    for result in &finalized.tx_results {
        ensure!(
            result.code == 0,
            "a transaction failed: {} {}: {}",
            result.codespace,
            result.code,
            result.log
        );
    }
    Ok(())
}
