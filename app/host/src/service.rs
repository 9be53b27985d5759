//! The gRPC service `holdfast.host.v1.Host`: Serve for the chain's inferences, everything else for escrow sessions.

// A status is what tonic's services return, however large it is.
#![allow(clippy::result_large_err)]

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_server::Host as HostService;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::driver::Sessions;
use crate::host::{Host, ServeStream};

impl Host {
    fn sessions(&self) -> Result<&Sessions, Status> {
        self.sessions.as_ref().ok_or_else(|| Status::unimplemented("this host serves no escrow sessions"))
    }
}

#[tonic::async_trait]
impl HostService for Host {
    type ServeStream = ServeStream;
    type InferStream = ReceiverStream<Result<pb::InferResponse, Status>>;

    async fn serve(&self, call: Request<pb::ServeRequest>) -> Result<Response<Self::ServeStream>, Status> {
        self.serve_chain(call).await.map(Response::new)
    }

    async fn infer(&self, call: Request<pb::InferRequest>) -> Result<Response<Self::InferStream>, Status> {
        self.sessions()?.infer(call).await.map(Response::new)
    }

    async fn bind(&self, call: Request<pb::BindRequest>) -> Result<Response<pb::BindResponse>, Status> {
        self.sessions()?.bind(call).await.map(Response::new)
    }

    async fn teach(&self, call: Request<pb::TeachRequest>) -> Result<Response<pb::TeachResponse>, Status> {
        self.sessions()?.teach(call).await.map(Response::new)
    }

    async fn cancel_inference(
        &self,
        call: Request<pb::CancelInferenceRequest>,
    ) -> Result<Response<pb::CancelInferenceResponse>, Status> {
        self.sessions()?.cancel_inference(call).await.map(Response::new)
    }

    async fn get_signatures(
        &self,
        call: Request<pb::GetSignaturesRequest>,
    ) -> Result<Response<pb::GetSignaturesResponse>, Status> {
        self.sessions()?.get_signatures(call).await.map(Response::new)
    }

    async fn get_pending(
        &self,
        call: Request<pb::GetPendingRequest>,
    ) -> Result<Response<pb::GetPendingResponse>, Status> {
        self.sessions()?.get_pending(call).await.map(Response::new)
    }

    async fn get_diffs(
        &self,
        call: Request<pb::GetDiffsRequest>,
    ) -> Result<Response<pb::GetDiffsResponse>, Status> {
        self.sessions()?.get_diffs(call).await.map(Response::new)
    }

    async fn vote_timeout(
        &self,
        call: Request<pb::VoteTimeoutRequest>,
    ) -> Result<Response<pb::VoteTimeoutResponse>, Status> {
        self.sessions()?.vote_timeout(call).await.map(Response::new)
    }

    async fn challenge_start(
        &self,
        call: Request<pb::ChallengeStartRequest>,
    ) -> Result<Response<pb::ChallengeStartResponse>, Status> {
        self.sessions()?.challenge_start(call).await.map(Response::new)
    }

    async fn reset_session(
        &self,
        call: Request<pb::ResetSessionRequest>,
    ) -> Result<Response<pb::ResetSessionResponse>, Status> {
        self.sessions()?.reset_session(call).await.map(Response::new)
    }
}
