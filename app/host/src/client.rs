//! A call of a host, signed.

use std::time::Duration;

use holdfast_app::keys::SecretKey;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_client::HostClient;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};

use crate::auth;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

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
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))
        .map_err(|e| Status::invalid_argument(format!("{addr}: {e}")))?
        .connect_timeout(CONNECT);
    let channel = endpoint.connect().await.map_err(|e| {
        let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        Status::unavailable(format!("{addr}: {cause}"))
    })?;
    let credential = auth::sign(key, chain_id, 0, "Serve", &request, now_ms);
    let mut call = Request::new(request);
    call.metadata_mut().insert_bin(auth::METADATA, MetadataValue::from_bytes(&credential));
    Ok(HostClient::new(channel).serve(call).await?.into_inner())
}
