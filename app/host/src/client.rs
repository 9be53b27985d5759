//! Signed calls of hosts and gateways.

use std::time::Duration;

use holdfast_app::keys::SecretKey;
use holdfast_proto::Message;
use holdfast_proto::holdfast::gateway::v1 as gateway;
use holdfast_proto::holdfast::gateway::v1::gateway_client::GatewayClient;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_client::HostClient;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::auth;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Time between two questions whether the other side is still there, and the longest wait for the answer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A connection to `addr`, `HOST:PORT` or `http://HOST:PORT`.
async fn connect(addr: &str) -> Result<Channel, Status> {
    let url = if addr.contains("://") { addr.to_owned() } else { format!("http://{addr}") };
    let endpoint = Endpoint::from_shared(url)
        .map_err(|e| Status::invalid_argument(format!("{addr}: {e}")))?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    endpoint.connect().await.map_err(|e| {
        let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        Status::unavailable(format!("{addr}: {cause}"))
    })
}

/// A call of `method` with the credential of `key` at `now_ms`, Unix milliseconds.
pub fn signed<T: Message>(
    key: &SecretKey,
    chain_id: &str,
    escrow_id: u64,
    method: &str,
    request: T,
    now_ms: u64,
) -> Request<T> {
    let credential = auth::sign(key, chain_id, escrow_id, method, &request, now_ms);
    let mut call = Request::new(request);
    call.metadata_mut().insert_bin(auth::METADATA, MetadataValue::from_bytes(&credential));
    call
}

/// Brings the body of a started inference to the executor at `addr`, `HOST:PORT`, signed by its requester's `key` at
/// `now_ms`, Unix milliseconds; gives the answer.
///
/// # Errors
/// The host's refusal; `UNAVAILABLE` if it cannot be reached; `INVALID_ARGUMENT` for an address that is none.
pub async fn serve(
    addr: &str,
    key: &SecretKey,
    chain_id: &str,
    request: pb::ServeRequest,
    now_ms: u64,
) -> Result<Streaming<pb::ServeResponse>, Status> {
    let channel = connect(addr).await?;
    let call = signed(key, chain_id, 0, "Serve", request, now_ms);
    Ok(HostClient::new(channel).serve(call).await?.into_inner())
}

/// Asks the executor at `addr` to take work up now, signed by a host of the group.
///
/// # Errors
/// As [`serve`].
pub async fn challenge_start(
    addr: &str,
    key: &SecretKey,
    chain_id: &str,
    request: pb::ChallengeStartRequest,
    now_ms: u64,
) -> Result<pb::ChallengeStartResponse, Status> {
    let channel = connect(addr).await?;
    let call = signed(key, chain_id, request.escrow_id, "ChallengeStart", request, now_ms);
    Ok(HostClient::new(channel).challenge_start(call).await?.into_inner())
}

/// Asks the host at `addr` for its signature at a nonce, signed by a host of the group.
///
/// # Errors
/// As [`serve`].
pub async fn get_signatures(
    addr: &str,
    key: &SecretKey,
    chain_id: &str,
    request: pb::GetSignaturesRequest,
    now_ms: u64,
) -> Result<pb::GetSignaturesResponse, Status> {
    let channel = connect(addr).await?;
    let call = signed(key, chain_id, request.escrow_id, "GetSignatures", request, now_ms);
    Ok(HostClient::new(channel).get_signatures(call).await?.into_inner())
}

/// Asks the host at `addr` for diffs of its log, signed by a host of the group.
///
/// # Errors
/// As [`serve`].
pub async fn get_diffs(
    addr: &str,
    key: &SecretKey,
    chain_id: &str,
    request: pb::GetDiffsRequest,
    now_ms: u64,
) -> Result<pb::GetDiffsResponse, Status> {
    let channel = connect(addr).await?;
    let call = signed(key, chain_id, request.escrow_id, "GetDiffs", request, now_ms);
    Ok(HostClient::new(channel).get_diffs(call).await?.into_inner())
}

/// Brings diffs to the host at `addr`. The gateway's signatures on them are all that it asks for.
///
/// # Errors
/// As [`serve`].
pub async fn teach(addr: &str, request: pb::TeachRequest) -> Result<pb::TeachResponse, Status> {
    Ok(HostClient::new(connect(addr).await?).teach(request).await?.into_inner())
}

/// Tells the gateway at `addr` that a host has started.
///
/// # Errors
/// As [`serve`].
pub async fn announce(
    addr: &str,
    key: &SecretKey,
    chain_id: &str,
    request: gateway::AnnounceRequest,
    now_ms: u64,
) -> Result<(), Status> {
    let channel = connect(addr).await?;
    let call = signed(key, chain_id, request.escrow_id, "Announce", request, now_ms);
    GatewayClient::new(channel).announce(call).await.map(drop)
}
