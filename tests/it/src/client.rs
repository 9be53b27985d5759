//! A Cosmos client: keys, transactions and gRPC clients of cosmrs, unmodified; a plain tonic channel for the rest.

use std::time::Duration;

use bytes::{Buf, BufMut};
use cosmrs::auth::BaseAccount;
use cosmrs::crypto::secp256k1::SigningKey;
use cosmrs::proto::cosmos::auth::v1beta1::QueryAccountRequest;
use cosmrs::proto::cosmos::auth::v1beta1::query_client::QueryClient as AuthClient;
use cosmrs::proto::cosmos::bank::v1beta1::QueryBalanceRequest;
use cosmrs::proto::cosmos::bank::v1beta1::query_client::QueryClient as BankClient;
use cosmrs::proto::cosmos::base::abci::v1beta1::TxResponse;
use cosmrs::proto::cosmos::gov::v1 as gov;
use cosmrs::proto::cosmos::gov::v1::query_client::QueryClient as GovClient;
use cosmrs::proto::cosmos::tx::v1beta1::service_client::ServiceClient;
use cosmrs::proto::cosmos::tx::v1beta1::{BroadcastMode, BroadcastTxRequest, GetTxRequest, TxRaw};
use cosmrs::proto::cosmos::upgrade::v1beta1::Plan;
use cosmrs::proto::cosmos::upgrade::v1beta1::QueryCurrentPlanRequest;
use cosmrs::proto::cosmos::upgrade::v1beta1::query_client::QueryClient as UpgradeClient;
use cosmrs::tx::{Body, Fee, SignDoc, SignerInfo};
use cosmrs::{AccountId, Any, Coin};
use holdfast_proto::{Message, Name};
use sha2::{Digest, Sha256};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::chain::{DENOM, PREFIX, key};

/// Fee of a transaction, unless said otherwise.
pub(crate) const FEE: u128 = 5_000;
/// Gas limit of a transaction, unless said otherwise.
pub(crate) const GAS: u64 = 500_000;
/// The header that pins a query to a height.
pub(crate) const HEIGHT_HEADER: &str = "x-cosmos-block-height";

const CALL: Duration = Duration::from_secs(30);

/// Messages as bytes.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; from.remaining()];
        from.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

/// A connection to a node.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
}

impl Client {
    pub(crate) async fn connect(addr: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("an address").timeout(CALL);
        Self { channel: endpoint.connect().await.expect("the node listens") }
    }

    /// One call as bytes, with the text of the height header if any; the answer and its headers.
    pub(crate) async fn raw(
        &self,
        path: &str,
        request: Vec<u8>,
        height: Option<&str>,
    ) -> Result<(Vec<u8>, MetadataMap), Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let mut request = Request::new(request);
        if let Some(height) = height {
            request.metadata_mut().insert(HEIGHT_HEADER, height.parse().expect("ASCII"));
        }
        let path = path.parse().expect("a path");
        let (headers, answer, _) = grpc.unary(request, path, Raw).await?.into_parts();
        Ok((answer, headers))
    }

    /// One call at the last height.
    pub(crate) async fn call<A: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Status> {
        let (answer, _) = self.raw(path, request.encode_to_vec(), None).await?;
        Ok(A::decode(answer.as_slice()).expect("the answer decodes"))
    }

    pub(crate) fn tx(&self) -> ServiceClient<Channel> {
        ServiceClient::new(self.channel.clone())
    }

    pub(crate) fn gov(&self) -> GovClient<Channel> {
        GovClient::new(self.channel.clone())
    }

    /// A proposal as cosmrs reads it.
    pub(crate) async fn proposal(&self, id: u64) -> Result<gov::Proposal, Status> {
        let request = gov::QueryProposalRequest { proposal_id: id };
        let answer = self.gov().proposal(request).await?.into_inner();
        Ok(answer.proposal.expect("a proposal"))
    }

    /// The proposal once it is decided.
    pub(crate) async fn decided(&self, id: u64) -> gov::Proposal {
        for _ in 0..3_000 {
            let proposal = self.proposal(id).await.expect("known");
            if !matches!(
                proposal.status(),
                gov::ProposalStatus::DepositPeriod | gov::ProposalStatus::VotingPeriod
            ) {
                return proposal;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("proposal {id} is not decided");
    }

    /// The planned upgrade.
    pub(crate) async fn plan(&self) -> Option<Plan> {
        let mut client = UpgradeClient::new(self.channel.clone());
        let answer = client.current_plan(QueryCurrentPlanRequest {}).await.expect("an answer");
        answer.into_inner().plan
    }

    /// The account as the chain has it now.
    pub(crate) async fn account(&self, address: &AccountId) -> Result<BaseAccount, Status> {
        let request = QueryAccountRequest { address: address.to_string() };
        let answer = AuthClient::new(self.channel.clone()).account(request).await?.into_inner();
        let any = answer.account.expect("an account");
        assert_eq!(any.type_url, "/cosmos.auth.v1beta1.BaseAccount");
        let account: cosmrs::proto::cosmos::auth::v1beta1::BaseAccount =
            any.to_msg().expect("cosmrs unpacks it");
        Ok(account.try_into().expect("cosmrs reads it"))
    }

    /// Base units of [`DENOM`] an address has.
    pub(crate) async fn balance(&self, address: &AccountId) -> u128 {
        let request = QueryBalanceRequest { address: address.to_string(), denom: DENOM.into() };
        let answer = BankClient::new(self.channel.clone()).balance(request).await.expect("a balance");
        let coin: Coin = answer.into_inner().balance.expect("a coin").try_into().expect("cosmrs reads it");
        assert_eq!(coin.denom.as_ref(), DENOM);
        coin.amount
    }

    /// BroadcastTx SYNC: what the node's check said.
    pub(crate) async fn broadcast(&self, raw: Vec<u8>) -> TxResponse {
        let hash = hex::encode_upper(Sha256::digest(&raw));
        let request = BroadcastTxRequest { tx_bytes: raw, mode: BroadcastMode::Sync.into() };
        let answer = self.tx().broadcast_tx(request).await.expect("an answer").into_inner();
        let response = answer.tx_response.expect("a response");
        assert_eq!(response.txhash, hash, "the hash is SHA-256 of the bytes, upper-case hex");
        response
    }

    /// The transaction's result once a block holds it.
    pub(crate) async fn executed(&self, hash: &str) -> TxResponse {
        for _ in 0..3_000 {
            match self.tx().get_tx(GetTxRequest { hash: hash.to_owned() }).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    let response = answer.tx_response.expect("a response");
                    assert!(answer.tx.is_some() && response.height > 0 && response.txhash == hash);
                    return response;
                }
                Err(status) => assert_eq!(status.code(), Code::NotFound, "{status}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{hash} is in no block");
    }
}

/// A transaction before it is signed. Every field can be set wrong.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) chain_id: String,
    pub(crate) msgs: Vec<Any>,
    pub(crate) memo: String,
    pub(crate) timeout: u32,
    pub(crate) fee: Vec<Coin>,
    pub(crate) gas: u64,
    pub(crate) number: u64,
    pub(crate) sequence: u64,
}

pub(crate) fn coin(amount: u128, denom: &str) -> Coin {
    Coin::new(amount, denom).expect("a denomination")
}

impl Draft {
    /// The bytes, signed by cosmrs.
    pub(crate) fn sign(&self, key: &SigningKey) -> Vec<u8> {
        self.sign_as(key, key)
    }

    /// The same with the public key of another.
    pub(crate) fn sign_as(&self, key: &SigningKey, shown: &SigningKey) -> Vec<u8> {
        let body = Body::new(self.msgs.clone(), self.memo.clone(), self.timeout);
        let fee = Fee { amount: self.fee.clone(), gas_limit: self.gas, payer: None, granter: None };
        let auth = SignerInfo::single_direct(Some(shown.public_key()), self.sequence).auth_info(fee);
        let id = self.chain_id.parse().expect("a chain id");
        let doc = SignDoc::new(&body, &auth, &id, self.number).expect("a sign doc");
        doc.sign(key).and_then(|raw| raw.to_bytes()).expect("cosmrs signs")
    }
}

/// The bytes with the decoded parts changed, not signed again.
pub(crate) fn altered(raw: &[u8], alter: impl FnOnce(&mut TxRaw)) -> Vec<u8> {
    let mut tx = TxRaw::decode(raw).expect("a transaction");
    alter(&mut tx);
    tx.encode_to_vec()
}

/// A key with its account, sending one transaction after the other.
pub(crate) struct Wallet {
    pub(crate) client: Client,
    pub(crate) key: SigningKey,
    pub(crate) id: AccountId,
    pub(crate) account: BaseAccount,
    chain_id: String,
}

impl Wallet {
    /// The wallet of key `number`, whose account the chain knows.
    pub(crate) async fn open(client: &Client, chain_id: &str, number: u8) -> Self {
        let key = key(number);
        let id = key.public_key().account_id(PREFIX).expect("an address");
        let account = client.account(&id).await.expect("the chain knows the account");
        assert_eq!(account.address, id);
        Self { client: client.clone(), key, id, account, chain_id: chain_id.to_owned() }
    }

    /// Base units the account has.
    pub(crate) async fn balance(&self) -> u128 {
        self.client.balance(&self.id).await
    }

    /// A transaction that would be good.
    pub(crate) fn draft(&self, msgs: Vec<Any>) -> Draft {
        Draft {
            chain_id: self.chain_id.clone(),
            msgs,
            memo: String::new(),
            timeout: 0,
            fee: vec![coin(FEE, DENOM)],
            gas: GAS,
            number: self.account.account_number,
            sequence: self.account.sequence,
        }
    }

    /// Signs a message, broadcasts it and waits for its block. The check must let it pass.
    pub(crate) async fn send(&mut self, message: Any) -> TxResponse {
        let draft = self.draft(vec![message]);
        self.send_draft(&draft).await
    }

    pub(crate) async fn send_draft(&mut self, draft: &Draft) -> TxResponse {
        let response = self.client.broadcast(draft.sign(&self.key)).await;
        assert_eq!((response.code, response.raw_log.as_str()), (0, ""));
        self.account.sequence += 1;
        self.client.executed(&response.txhash).await
    }
}

/// A proposal as cosmrs knows it, with nothing of what this chain adds.
pub(crate) fn submit(by: &Wallet, title: &str, messages: Vec<Any>, deposit: u128) -> gov::MsgSubmitProposal {
    gov::MsgSubmitProposal {
        messages,
        initial_deposit: vec![coin(deposit, DENOM).into()],
        proposer: by.id.to_string(),
        metadata: String::new(),
        title: title.into(),
        summary: format!("{title}: see the messages."),
        expedited: false,
    }
}

/// A vote as cosmrs knows it.
pub(crate) fn vote(by: &Wallet, proposal_id: u64, option: gov::VoteOption) -> gov::MsgVote {
    gov::MsgVote { proposal_id, voter: by.id.to_string(), option: option.into(), metadata: String::new() }
}

/// A message of this chain as cosmrs carries it.
pub(crate) fn any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: holdfast_proto::type_url::<M>(), value: message.encode_to_vec() }
}

/// The values of an attribute in all events of a kind, in order.
pub(crate) fn attributes(response: &TxResponse, kind: &str, name: &str) -> Vec<String> {
    let events = response.events.iter().filter(|event| event.r#type == kind);
    let attributes = events.flat_map(|event| &event.attributes);
    attributes.filter(|a| a.key == name).map(|a| a.value.clone()).collect()
}

/// A runtime for a test.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limited = async { tokio::time::timeout(Duration::from_secs(240), future).await };
    runtime.block_on(limited).expect("done in time")
}
