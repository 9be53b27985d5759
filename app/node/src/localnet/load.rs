//! A few transactions on each block: coins sent between the gateways, inferences asked for and answered.
//!
//! What is sent is a function of the seed and the number of the block seen; which block takes it, and who is drawn, is the
//! network's matter. A node that is down costs its accounts' transactions, nothing else.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use holdfast_app::grpc::client::GrpcChannel;
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::{TxBuilder, pack};
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::tx::v1beta1::{BroadcastMode, BroadcastTxRequest, BroadcastTxResponse};
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_proto::{Any, Message};
use holdfast_types::Coin;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::genesis::MODELS;
use super::{LocalnetConfig, Sender};
use crate::devnet::clients::draw;
use crate::devnet::genesis::DENOM;
use crate::devnet::workload::SplitMix64;

const GAS_LIMIT: u64 = 1_000_000;
const FEE: u128 = 1_000;
/// Stream of the seed; others belong to the devnet.
const STREAM: u64 = 31;
/// Inferences that wait for an answer at most; older ones are left to expire.
const OPEN_MAX: usize = 64;
/// Blocks an answer takes.
const ANSWER_BLOCKS: i64 = 2;
/// Longest wait for one call.
const CALL: Duration = Duration::from_secs(5);
const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";

/// An account with the node it speaks to.
struct Account {
    key: SecretKey,
    address: String,
    node: usize,
    /// Account number and next sequence, as far as known.
    next: Option<(u64, u64)>,
}

struct Open {
    id: String,
    executor: usize,
    since: i64,
}

struct Load {
    chain_id: String,
    addrs: Vec<String>,
    channels: Vec<Option<GrpcChannel>>,
    gateways: Vec<Account>,
    participants: Vec<Account>,
    open: VecDeque<Open>,
    seed: u64,
    began: i64,
}

/// Sends load on each block until aborted.
pub(super) fn spawn(config: &LocalnetConfig, seed: u64, heights: watch::Receiver<i64>) -> JoinHandle<()> {
    let nodes = config.nodes.len().max(1);
    let account = |(at, sender): (usize, &Sender)| Account {
        address: sender.key.address().to_bech32(&config.hrp),
        key: sender.key.clone(),
        node: at % nodes,
        next: None,
    };
    let load = Load {
        chain_id: config.chain_id.clone(),
        addrs: config.nodes.iter().map(|node| format!("127.0.0.1:{}", node.ports.grpc)).collect(),
        channels: config.nodes.iter().map(|_| None).collect(),
        gateways: config.gateways.iter().enumerate().map(account).collect(),
        participants: config.participants.iter().enumerate().map(account).collect(),
        open: VecDeque::new(),
        seed,
        began: 0,
    };
    tokio::spawn(load.run(heights))
}

impl Load {
    async fn run(mut self, mut heights: watch::Receiver<i64>) {
        while heights.changed().await.is_ok() {
            let height = *heights.borrow_and_update();
            if self.began == 0 {
                self.began = height;
            }
            self.block(height).await;
        }
    }

    async fn block(&mut self, height: i64) {
        let mut rng = SplitMix64::keyed(&[self.seed, STREAM, height.unsigned_abs()]);
        let count = self.gateways.len() as u64;
        for from in 0..self.gateways.len() {
            let (step, amount) = (1 + rng.below(count.saturating_sub(1).max(1)), 1 + rng.below(1_000));
            let to = (from as u64 + step) % count;
            let Some(to) = usize::try_from(to).ok().and_then(|to| self.gateways.get(to)) else { continue };
            let send = MsgSend {
                from_address: self.gateways[from].address.clone(),
                to_address: to.address.clone(),
                amount: vec![PbCoin { denom: DENOM.into(), amount: amount.to_string() }],
            };
            self.send_as(Role::Gateway(from), pack(&send)).await;
        }
        for number in 0..1 + rng.below(2) {
            let gateway = usize::try_from(rng.below(count)).unwrap_or(0);
            let model = MODELS[usize::try_from(rng.below(MODELS.len() as u64)).unwrap_or(0)];
            let (seed, prompt) = (rng.next_bytes32(), rng.next_bytes32());
            let tokens = (1 + rng.below(500), 1 + rng.below(200));
            let id = format!("l{}-{height}-{number}", self.began);
            if let Err(error) = self.start(gateway, model, id, height, seed, prompt, tokens).await {
                tracing::debug!(%error, "load: no inference started");
            }
        }
        while let Some(open) = self.open.front() {
            if open.since.saturating_add(ANSWER_BLOCKS) > height {
                break;
            }
            let Some(open) = self.open.pop_front() else { break };
            let Some(executor) = self.participants.get(open.executor) else { continue };
            let finish = pb::MsgFinishInference {
                executed_by: executor.address.clone(),
                inference_id: open.id,
                response_hash: rng.next_bytes32().to_vec(),
                prompt_tokens: 1,
                completion_tokens: 1,
            };
            self.send_as(Role::Participant(open.executor), pack(&finish)).await;
        }
    }

    #[allow(clippy::too_many_arguments)]
    async fn start(
        &mut self,
        gateway: usize,
        model: &str,
        id: String,
        height: i64,
        seed: [u8; 32],
        prompt: [u8; 32],
        (prompt_tokens, max_tokens): (u64, u64),
    ) -> Result<()> {
        let from = self.gateways.get(gateway).context("no such gateway")?;
        let (address, node) = (from.address.clone(), from.node);
        let channel = self.channel(node).await?;
        let drawn = draw(&channel, model, seed, 0).await?.context("nobody is eligible")?;
        let executor = self.participants.iter().position(|account| account.address == drawn.executor);
        let executor = executor.context("an executor that is no validator")?;
        let start = pb::MsgStartInference {
            signer: address.clone(),
            requested_by: address,
            inference_id: id.clone(),
            model: model.to_owned(),
            assigned_to: drawn.executor,
            prompt_hash: prompt.to_vec(),
            prompt_tokens,
            max_tokens,
        };
        if self.send_as(Role::Gateway(gateway), pack(&start)).await {
            self.open.push_back(Open { id, executor, since: height });
            if self.open.len() > OPEN_MAX {
                self.open.pop_front();
            }
        }
        Ok(())
    }

    async fn channel(&mut self, node: usize) -> Result<GrpcChannel> {
        let (slot, addr) = (self.channels.get_mut(node), self.addrs.get(node));
        let (slot, addr) = slot.zip(addr).context("no such node")?;
        if let Some(channel) = slot {
            return Ok(channel.clone());
        }
        let channel = GrpcChannel::connect(addr).await?.with_timeout(CALL);
        Ok(slot.insert(channel).clone())
    }

    /// Signs and sends; whether the node took it.
    async fn send_as(&mut self, role: Role, message: Any) -> bool {
        match self.try_send(role, message).await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "load: not sent");
                if let Some(account) = self.account(role) {
                    // Asked anew before the next one.
                    account.next = None;
                }
                false
            }
        }
    }

    fn account(&mut self, role: Role) -> Option<&mut Account> {
        match role {
            Role::Gateway(at) => self.gateways.get_mut(at),
            Role::Participant(at) => self.participants.get_mut(at),
        }
    }

    async fn try_send(&mut self, role: Role, message: Any) -> Result<()> {
        let account = self.account(role).context("no such account")?;
        let (node, address, key, known) =
            (account.node, account.address.clone(), account.key.clone(), account.next);
        let channel = self.channel(node).await?;
        let (account_number, sequence) = match known {
            Some(next) => next,
            None => {
                let (reply, _) = channel
                    .unary::<_, QueryAccountResponse>(ACCOUNT, &QueryAccountRequest { address }, None)
                    .await?;
                let account = BaseAccount::decode(reply.account.unwrap_or_default().value.as_slice())?;
                (account.account_number, account.sequence)
            }
        };
        let builder = TxBuilder {
            chain_id: self.chain_id.clone(),
            account_number,
            sequence,
            fee: Coin { denom: DENOM.into(), amount: FEE },
            gas_limit: GAS_LIMIT,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![message],
        };
        let request = BroadcastTxRequest { tx_bytes: builder.sign(&key), mode: BroadcastMode::Sync.into() };
        let (reply, _) = channel.unary::<_, BroadcastTxResponse>(BROADCAST, &request, None).await?;
        let response = reply.tx_response.context("BroadcastTx: empty reply")?;
        if response.code != 0 {
            bail!("BroadcastTx: {} ({} {})", response.raw_log, response.codespace, response.code);
        }
        if let Some(account) = self.account(role) {
            account.next = Some((account_number, sequence.saturating_add(1)));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Role {
    Gateway(usize),
    Participant(usize),
}
