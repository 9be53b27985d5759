//! Calls of hosts: signed where no diff speaks for us, bounded in time and size, their errors told apart.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use holdfast_app::keys::SecretKey;
use holdfast_host::{TraceContext, client, wire};
use holdfast_proto::Message;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_client::HostClient;
use holdfast_types::{Address, Hrp};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::actor::Input;
use super::clock::Clock;
use super::hosts::{Hosts, News, Queue, Seat};
use crate::core::{CallError, CallId, Event, HostCall, HostReply, Lane};

/// Metadata of the W3C trace context.
const TRACEPARENT: &str = "traceparent";

/// Where the pieces of a stream go.
pub(super) struct Sink<'a> {
    pub(super) inbox: &'a mpsc::Sender<Input>,
    pub(super) call_id: CallId,
}

/// Calls hosts in the name of one gateway.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) hosts: Hosts,
    pub(super) key: Arc<SecretKey>,
    pub(super) chain_id: String,
    pub(super) clock: Clock,
    pub(super) hrp: Hrp,
}

impl Caller {
    /// A request; one without diffs, which would speak for us, is signed.
    fn request<T: Message>(&self, escrow_id: u64, method: &str, sign: bool, body: T) -> Request<T> {
        if !sign {
            return Request::new(body);
        }
        let now_ms = self.clock.now().unix_ms;
        client::signed(&self.key, &self.chain_id, escrow_id, method, body, now_ms)
    }

    fn client(&self, channel: Channel) -> HostClient<Channel> {
        let bytes = self.hosts.limits().message_bytes;
        HostClient::new(channel).max_decoding_message_size(bytes).max_encoding_message_size(bytes)
    }

    /// A connection to `member`; without a way to it that is said.
    async fn seat(&self, member: &Address, queue: Queue) -> Result<Seat, CallError> {
        let seat = self.hosts.seat(member, queue).await;
        if matches!(seat, Err(CallError::Transport)) {
            let cause = match self.hosts.url(member) {
                Some(_) => "its URL is no plain http URL",
                None => "the chain has no URL of it",
            };
            self.heard(member, Some(cause.to_owned()));
        }
        seat
    }

    /// Says that a host is not reached, or is again.
    fn heard(&self, member: &Address, failed: Option<String>) {
        let cause = failed.clone().unwrap_or_default();
        let Some(news) = self.hosts.heard(member, failed) else { return };
        let (participant, url) = (member.to_bech32(&self.hrp), self.hosts.url(member).unwrap_or_default());
        match news {
            News::Lost => tracing::warn!(participant, url, cause, "gateway_host_unreachable"),
            News::Back => tracing::info!(participant, url, "gateway_host_reached"),
        }
    }

    /// The error of a call; whether the host was reached is kept.
    fn failed(&self, member: &Address, status: &Status) -> CallError {
        let error = call_error(status);
        self.heard(member, matches!(error, CallError::Transport).then(|| cause(status)));
        error
    }

    /// Any call but Infer.
    pub(super) async fn unary(
        &self,
        member: Address,
        call: HostCall,
        timeout_ms: u64,
        lane: Lane,
    ) -> Result<HostReply, CallError> {
        let queue = match call {
            HostCall::VoteTimeout(_) => Queue::Vote,
            _ => lane.into(),
        };
        // Others may take as long as they are given.
        let quick = !matches!(call, HostCall::VoteTimeout(_) | HostCall::Teach(_));
        let seat = self.seat(&member, queue).await?;
        let mut client = self.client(seat.channel.clone());
        let answer = async {
            Ok(match call {
                HostCall::Bind(body) => {
                    let request = self.request(body.escrow_id, "Bind", true, body);
                    HostReply::Bind(client.bind(request).await?.into_inner())
                }
                HostCall::Teach(body) => {
                    let request = self.request(body.escrow_id, "Teach", body.diffs.is_empty(), body);
                    HostReply::Teach(client.teach(request).await?.into_inner())
                }
                HostCall::Cancel(body) => {
                    let request = self.request(body.escrow_id, "CancelInference", true, body);
                    HostReply::Cancel(client.cancel_inference(request).await?.into_inner())
                }
                HostCall::GetSignatures(body) => {
                    let request = self.request(body.escrow_id, "GetSignatures", true, body);
                    HostReply::GetSignatures(client.get_signatures(request).await?.into_inner())
                }
                HostCall::GetPending(body) => {
                    let request = self.request(body.escrow_id, "GetPending", true, body);
                    HostReply::GetPending(client.get_pending(request).await?.into_inner())
                }
                HostCall::GetDiffs(body) => {
                    let request = self.request(body.escrow_id, "GetDiffs", true, body);
                    HostReply::GetDiffs(client.get_diffs(request).await?.into_inner())
                }
                HostCall::VoteTimeout(body) => {
                    let request = self.request(body.escrow_id, "VoteTimeout", body.diffs.is_empty(), body);
                    HostReply::VoteTimeout(client.vote_timeout(request).await?.into_inner())
                }
                HostCall::ResetSession(body) => {
                    let request = self.request(body.escrow_id, "ResetSession", true, body);
                    HostReply::ResetSession(client.reset_session(request).await?.into_inner())
                }
                HostCall::Infer(_) => return Err(Status::internal("a stream is no unary call")),
            })
        };
        match timeout(Duration::from_millis(timeout_ms), answer).await {
            Ok(Ok(reply)) => {
                self.heard(&member, None);
                Ok(reply)
            }
            Ok(Err(status)) => Err(self.failed(&member, &status)),
            Err(_) => {
                if quick {
                    self.heard(&member, Some(format!("no answer in {timeout_ms} ms")));
                }
                Err(CallError::Timeout)
            }
        }
    }

    /// Infer: every piece goes to `sink` in order; while that is full the host waits.
    pub(super) async fn infer(
        &self,
        member: Address,
        body: pb::InferRequest,
        timeout_ms: u64,
        lane: Lane,
        traceparent: Option<String>,
        sink: Sink<'_>,
    ) -> Result<(), CallError> {
        let seat = self.seat(&member, lane.into()).await?;
        let mut client = self.client(seat.channel.clone());
        let mut request = self.request(body.escrow_id, "Infer", body.diffs.is_empty(), body);
        if let Some(value) = traceparent.and_then(|text| AsciiMetadataValue::try_from(text).ok()) {
            request.metadata_mut().insert(TRACEPARENT, value);
        }
        let whole = self.pieces(&member, &mut client, request, sink);
        timeout(Duration::from_millis(timeout_ms), whole).await.unwrap_or(Err(CallError::Timeout))
    }

    async fn pieces(
        &self,
        member: &Address,
        client: &mut HostClient<Channel>,
        request: Request<pb::InferRequest>,
        Sink { inbox, call_id }: Sink<'_>,
    ) -> Result<(), CallError> {
        let limits = self.hosts.limits();
        let error = |status: Status| self.failed(member, &status);
        let mut stream = client.infer(request).await.map_err(error)?.into_inner();
        self.heard(member, None);
        let mut text = 0usize;
        while let Some(response) = stream.message().await.map_err(error)? {
            let Some(event) = response.event else { continue };
            if let pb::infer_response::Event::Delta(delta) = &event {
                text = text.saturating_add(delta.text.len()).saturating_add(delta.token_ids.len());
                // No answer of tokens that were paid for is that long.
                if delta.text.len() > limits.delta_bytes || text > limits.answer_bytes {
                    return Err(CallError::Transport);
                }
            }
            // Fails only when the session is over.
            let _ = inbox.send(Input::Event(Event::StreamItem { call_id, event })).await;
        }
        Ok(())
    }
}

/// Why a call failed. Only a detail of the status is a host's word; texts are never looked at.
pub(super) fn call_error(status: &Status) -> CallError {
    if !status.details().is_empty() {
        return CallError::Host(Box::new(wire::escrow_error(status)));
    }
    // A status that was made on this side has a cause.
    if status.source().is_some() {
        return CallError::Transport;
    }
    CallError::Status {
        code: status.code() as i32,
        retry_after_ms: wire::escrow_error(status).retry_after_ms,
    }
}

/// What the system said at the bottom of an error of the connection.
fn cause(status: &Status) -> String {
    let mut at: &dyn std::error::Error = status;
    while let Some(below) = at.source() {
        at = below;
    }
    at.to_string()
}

/// The context of a call within the same trace: the same trace id and flags, a new span.
pub(super) fn child(traceparent: &str, span: [u8; 8]) -> Option<String> {
    TraceContext::parse(traceparent).map(|context| context.child(span).to_string())
}

#[cfg(test)]
mod tests {
    use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
    use tonic::Code;

    use super::*;

    #[test]
    fn only_the_typed_detail_of_a_status_is_a_hosts_word() {
        let words = "post_state_root does not match computed state root ROOT_MISMATCH";
        assert_eq!(
            call_error(&Status::aborted(words)),
            CallError::Status { code: Code::Aborted as i32, retry_after_ms: 0 }
        );
        let typed =
            pb::EscrowError { code: Cause::Behind.into(), have_nonce: 3, ..pb::EscrowError::default() };
        assert_eq!(call_error(&wire::status(typed.clone())), CallError::Host(Box::new(typed)));
        let garbled = Status::with_details(Code::Aborted, words, vec![0xff; 8].into());
        let CallError::Host(error) = call_error(&garbled) else { panic!("{garbled:?}") };
        assert_eq!(error.code(), Cause::Unavailable);
    }

    #[tokio::test]
    async fn a_host_that_is_not_there_is_a_transport_error() {
        let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:9").connect_lazy();
        let status =
            HostClient::new(channel).get_pending(pb::GetPendingRequest { escrow_id: 1 }).await.unwrap_err();
        assert_eq!(call_error(&status), CallError::Transport);
        assert!(cause(&status).contains("refused"), "{}", cause(&status));
    }

    #[test]
    fn a_call_gets_a_span_of_its_own_within_the_same_trace() {
        // The example of W3C Trace Context, 3.2.3.
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(
            child(parent, [0, 1, 2, 3, 4, 5, 6, 0xff]).as_deref(),
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00010203040506ff-01")
        );
        for bad in ["", "00-zz", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"] {
            assert_eq!(child(bad, [1; 8]), None, "{bad}");
        }
    }
}
