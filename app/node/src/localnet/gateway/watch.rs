//! The gateway as an operator sees it: sessions, flags, changes of flags; and its verbs.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_proto::holdfast::gateway::v1::gateway_client::GatewayClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for one call.
const CALL: Duration = Duration::from_secs(3);
/// Pause before the stream of changes is asked for again.
const AGAIN: Duration = Duration::from_millis(200);
/// Who the audit log says it was.
const OPERATOR: &str = "localnet";

/// The gateway's service.
#[derive(Clone)]
pub(super) struct Operator {
    client: GatewayClient<Channel>,
    token: String,
}

impl Operator {
    pub(super) fn new(addr: SocketAddr, token: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))?.connect_timeout(CALL);
        Ok(Self { client: GatewayClient::new(endpoint.connect_lazy()), token: token.into() })
    }

    /// All sessions and all flags.
    pub(super) async fn look(&self) -> Result<(Vec<pb::EscrowSession>, Vec<pb::DivergenceFlag>)> {
        let mut client = self.client.clone();
        let asked = async {
            let sessions = client.escrows(pb::EscrowsRequest {}).await?.into_inner().escrows;
            let (mut flags, mut page_key) = (Vec::new(), Vec::new());
            loop {
                let request = pb::DivergencesRequest { page_key, ..Default::default() };
                let page = client.divergences(request).await?.into_inner();
                flags.extend(page.flags);
                page_key = page.next_key;
                if page_key.is_empty() {
                    return Ok::<_, tonic::Status>((sessions, flags));
                }
            }
        };
        Ok(tokio::time::timeout(CALL, asked).await.context("the gateway does not answer")??)
    }

    /// Follows the changes of flags from `from_seq` on, over restarts of the gateway.
    pub(super) fn follow(&self, changes: mpsc::Sender<pb::WatchDivergenceResponse>) -> JoinHandle<()> {
        let mut client = self.client.clone();
        tokio::spawn(async move {
            let mut from_seq = 0;
            loop {
                let asked = client.watch_divergence(pb::WatchDivergenceRequest { from_seq }).await;
                if let Ok(answer) = asked {
                    let mut stream = answer.into_inner();
                    while let Ok(Some(change)) = stream.message().await {
                        from_seq = change.seq.saturating_add(1);
                        if changes.send(change).await.is_err() {
                            return;
                        }
                    }
                }
                if changes.is_closed() {
                    return;
                }
                tokio::time::sleep(AGAIN).await;
            }
        })
    }

    fn signed<T>(&self, message: T) -> Result<Request<T>> {
        let mut request = Request::new(message);
        let value = format!("Bearer {}", self.token).parse().context("the operator's token")?;
        request.metadata_mut().insert("authorization", value);
        request.set_timeout(CALL);
        Ok(request)
    }

    /// Teach now.
    pub(super) async fn force_teach(&self, escrow_id: u64, participant: &str, reason: &str) -> Result<()> {
        let request = pb::ForceTeachRequest {
            escrow_id,
            participant: participant.into(),
            operator: OPERATOR.into(),
            reason: reason.into(),
        };
        self.client.clone().force_teach(self.signed(request)?).await?;
        Ok(())
    }

    /// No more requests; settle.
    pub(super) async fn finalize(&self, escrow_id: u64) -> Result<()> {
        let reason = "the load is over".into();
        let request = pb::FinalizeRequest { escrow_id, operator: OPERATOR.into(), reason };
        self.client.clone().finalize(self.signed(request)?).await?;
        Ok(())
    }
}
