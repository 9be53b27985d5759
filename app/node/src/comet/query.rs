//! `abci_query`: gRPC paths, the app's own paths, and proofs (cosmos-conventions 1.6).
//!
//! | path | answer |
//! |---|---|
//! | `/package.Service/Method` | a module query, request and response as protobuf |
//! | `/cosmos.tx.v1beta1.Service/Simulate` | simulation as protobuf |
//! | `/app/simulate` | simulation of the raw transaction in `data`, as JSON |
//! | `/app/version` | version of this program |
//! | `/store/MODULE/key` | value of the key in `data`, with `prove` also its proof |
//! | `/p2p/filter/addr/…`, `/p2p/filter/id/…` | accepted |
//!
//! Failures of `/store` are those of [`holdfast_app::proofs`]; of the others:
//!
//! | failure | code in `sdk` |
//! |---|---|
//! | no such path | 6 |
//! | malformed, negative or pruned height, broadcast through a query | 18 |
//! | height not reached yet | 26 |
//! | nothing there (gRPC NotFound) | 22 |
//! | any other gRPC code | 6 |

use bytes::Bytes;
use holdfast_app::app::Shared;
use holdfast_app::echo::{MESSAGE_CHARS, cut, shown};
use holdfast_app::proofs::{self, KeyRequest};
use holdfast_app::state::{CommitStore, ProofOp};
use holdfast_proto::Message;
use holdfast_proto::cosmos::tx::v1beta1::{SimulateRequest, SimulateResponse};
use holdfast_types::{QueryError, QueryKind, sdk};
use tendermint_proto::v0_38::{abci as pb, crypto};

use super::adapter::NOT_STARTED;
use crate::node_api::{SIMULATE, simulate};

/// The SDK's code for an absent key.
const KEY_NOT_FOUND: u32 = 22;
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";

/// A refusal.
struct Refused {
    codespace: &'static str,
    code: u32,
    text: String,
}

fn refused(code: u32, text: impl Into<String>) -> Refused {
    Refused { codespace: sdk::CODESPACE, code, text: text.into() }
}

/// The name of a gRPC code as Go's client prints it.
fn grpc_name(kind: QueryKind) -> &'static str {
    match kind {
        QueryKind::InvalidArgument => "InvalidArgument",
        QueryKind::NotFound => "NotFound",
        QueryKind::FailedPrecondition => "FailedPrecondition",
        QueryKind::OutOfRange => "OutOfRange",
        QueryKind::Unimplemented => "Unimplemented",
        QueryKind::Unavailable => "Unavailable",
        QueryKind::Internal => "Internal",
    }
}

/// A failed gRPC call in the form the SDK gives it; clients look for the text.
fn grpc_failure(error: &QueryError) -> Refused {
    let (code, kind) = match error.kind {
        QueryKind::NotFound => (KEY_NOT_FOUND, "key not found"),
        QueryKind::InvalidArgument | QueryKind::FailedPrecondition => {
            (sdk::INVALID_REQUEST, "invalid request")
        }
        _ => (sdk::UNKNOWN_REQUEST, "unknown request"),
    };
    let QueryError { message, .. } = error;
    refused(code, format!("rpc error: code = {} desc = {message}: {kind}", grpc_name(error.kind)))
}

/// Checks the height before the query, so that its own refusals keep their codes.
fn check_height<S: CommitStore>(shared: &Shared<S>, height: i64) -> Result<(), Refused> {
    if height < 0 {
        return Err(refused(
            sdk::INVALID_REQUEST,
            format!("height {height}: give 0 for the latest, or a height from 1 up"),
        ));
    }
    match shared.view(height) {
        Ok(_) => Ok(()),
        Err(e) if e.kind == QueryKind::OutOfRange => Err(refused(sdk::INVALID_HEIGHT, e.message)),
        Err(e) => Err(refused(sdk::INVALID_REQUEST, e.message)),
    }
}

fn found(value: impl Into<Bytes>, height: i64) -> pb::ResponseQuery {
    pb::ResponseQuery { value: value.into(), height, codespace: sdk::CODESPACE.into(), ..Default::default() }
}

/// Answers a query. A failure is an answer too.
pub(crate) fn answer<S: CommitStore>(
    shared: Option<&Shared<S>>,
    request: &pb::RequestQuery,
) -> pb::ResponseQuery {
    route(shared, request).unwrap_or_else(|Refused { codespace, code, text }| pb::ResponseQuery {
        code,
        log: cut(&text, MESSAGE_CHARS),
        height: request.height.max(0),
        codespace: codespace.into(),
        ..Default::default()
    })
}

fn route<S: CommitStore>(
    shared: Option<&Shared<S>>,
    request: &pb::RequestQuery,
) -> Result<pb::ResponseQuery, Refused> {
    let path = request.path.as_str();
    let unknown = || refused(sdk::UNKNOWN_REQUEST, format!("path {:?}: no such query", shown(path)));
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    match parts.as_slice() {
        [""] => return Err(refused(sdk::UNKNOWN_REQUEST, "path: no query path provided")),
        ["app", "version"] => return Ok(found(env!("CARGO_PKG_VERSION"), request.height.max(0))),
        ["p2p", "filter", "addr" | "id", _] => return Ok(pb::ResponseQuery::default()),
        _ => {}
    }
    let shared = shared.ok_or_else(|| refused(sdk::INVALID_REQUEST, NOT_STARTED))?;
    if path == BROADCAST {
        let text = "BroadcastTx: cannot be called by a query; use broadcast_tx_sync or the gRPC server";
        return Err(refused(sdk::INVALID_REQUEST, text));
    }
    if proofs::is_store_path(path) {
        return store_key(shared, request);
    }
    check_height(shared, request.height)?;
    match parts.as_slice() {
        ["app", "simulate"] => {
            let call = SimulateRequest { tx_bytes: request.data.to_vec(), ..Default::default() };
            let done: SimulateResponse = simulate(shared, call).map_err(|e| grpc_failure(&e))?;
            let json = holdfast_proto::to_json("cosmos.tx.v1beta1.SimulateResponse", &done.encode_to_vec());
            let json = json.map_err(|e| refused(sdk::INTERNAL, e.to_string()))?;
            Ok(found(json.to_string(), request.height))
        }
        [service, _] if service.contains('.') => {
            let path = format!("/{}", path.trim_start_matches('/'));
            if path == SIMULATE {
                let call = SimulateRequest::decode(request.data.clone());
                let call = call.map_err(|e| {
                    let text = format!(
                        "data: is no cosmos.tx.v1beta1.SimulateRequest: {e}; encode one with tx_bytes"
                    );
                    refused(sdk::INVALID_REQUEST, text)
                })?;
                let done = simulate(shared, call).map_err(|e| grpc_failure(&e))?;
                return Ok(found(done.encode_to_vec(), shared.store().latest_height()));
            }
            let (value, height) =
                shared.query(&path, &request.data, request.height).map_err(|e| grpc_failure(&e))?;
            Ok(found(value, height))
        }
        _ => Err(unknown()),
    }
}

fn store_key<S: CommitStore>(
    shared: &Shared<S>,
    request: &pb::RequestQuery,
) -> Result<pb::ResponseQuery, Refused> {
    let pb::RequestQuery { data, path, height, prove } = request;
    let asked = KeyRequest { path, key: data, height: *height, prove: *prove };
    let found = proofs::query(shared.store(), &asked).map_err(|e| {
        let (codespace, code) = e.code();
        Refused { codespace, code, text: e.to_string() }
    })?;
    // What a verifier compares; the same as what is stored but for an empty value.
    let value = if *prove { found.proven_value().map(|v| v.into_owned()) } else { found.value.clone() };
    let op = |op: &ProofOp| crypto::ProofOp {
        r#type: op.op_type.to_owned(),
        key: op.key.clone(),
        data: op.data.clone(),
    };
    let proof_ops = prove.then(|| crypto::ProofOps { ops: found.ops.iter().map(op).collect() });
    Ok(pb::ResponseQuery {
        key: found.key.into(),
        value: value.unwrap_or_default().into(),
        height: found.height,
        proof_ops,
        ..Default::default()
    })
}
