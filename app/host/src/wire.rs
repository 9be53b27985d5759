//! The cause of a failed call on the wire: one `EscrowError` in the details of `google.rpc.Status` (escrow-details 8).

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
use holdfast_proto::{Any, Message, google::rpc};
use tonic::{Code, Status};

/// Type of the detail.
const TYPE_URL: &str = "type.googleapis.com/holdfast.host.v1.EscrowError";
/// Metadata that says when to try again, milliseconds.
pub const RETRY_AFTER: &str = "retry-after-ms";
/// Longest details that are looked at, bytes: the largest holds a signed diff.
const DETAILS_MAX: usize = 512 << 10;
/// Longest text for people, bytes: the status travels in a header.
const TEXT_MAX: usize = 1 << 10;
/// Largest diff that is sent as evidence, bytes: a header list holds no more. `GetDiffs` has any of them.
const EVIDENCE_MAX: usize = 4 << 10;

/// The gRPC code of a cause.
#[must_use]
pub const fn code(cause: Cause) -> Code {
    match cause {
        Cause::Behind | Cause::ConfigMismatch | Cause::SessionClosed => Code::FailedPrecondition,
        Cause::RootMismatch | Cause::DiffFork => Code::Aborted,
        Cause::SessionNotFound => Code::NotFound,
        Cause::TooLarge => Code::ResourceExhausted,
        Cause::Policy => Code::PermissionDenied,
        Cause::BadTx => Code::InvalidArgument,
        Cause::Unspecified | Cause::Unavailable | Cause::Busy => Code::Unavailable,
    }
}

/// A status with `error` as its detail. A text that is too long is cut, a diff that is too long left out.
#[must_use]
pub fn status(mut error: pb::EscrowError) -> Status {
    let mut end = error.message.len().min(TEXT_MAX);
    while !error.message.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    error.message.truncate(end);
    if error.diff.len() > EVIDENCE_MAX {
        error.diff.clear();
    }
    let code = code(error.code());
    let detail = Any { type_url: TYPE_URL.into(), value: error.encode_to_vec() };
    let rpc = rpc::Status { code: code as i32, message: error.message.clone(), details: vec![detail] };
    let mut status = Status::with_details(code, error.message.clone(), rpc.encode_to_vec().into());
    if error.retry_after_ms > 0 {
        status.metadata_mut().insert(RETRY_AFTER, error.retry_after_ms.into());
    }
    status
}

/// The cause of a failed call: its detail, and unavailable when there is none that can be read or its gRPC code is another
/// one. Texts are never looked at.
#[must_use]
pub fn escrow_error(status: &Status) -> pb::EscrowError {
    typed(status).unwrap_or_else(|| pb::EscrowError {
        code: Cause::Unavailable.into(),
        retry_after_ms: retry_after(status),
        message: status.message().to_owned(),
        ..pb::EscrowError::default()
    })
}

fn typed(status: &Status) -> Option<pb::EscrowError> {
    let details = status.details();
    if details.is_empty() || details.len() > DETAILS_MAX {
        return None;
    }
    let rpc = rpc::Status::decode(details).ok()?;
    let [detail] = rpc.details.as_slice() else { return None };
    if detail.type_url != TYPE_URL {
        return None;
    }
    let error = pb::EscrowError::decode(detail.value.as_slice()).ok()?;
    let cause = Cause::try_from(error.code).ok()?;
    (cause != Cause::Unspecified && code(cause) == status.code()).then_some(error)
}

fn retry_after(status: &Status) -> u64 {
    let value = status.metadata().get(RETRY_AFTER);
    value.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataMap;

    use super::*;

    fn mismatch() -> pb::EscrowError {
        pb::EscrowError {
            code: Cause::RootMismatch.into(),
            have_nonce: 2,
            nonce: 3,
            root: vec![1; 32],
            diff_digest: vec![2; 32],
            signature: vec![3; 65],
            message: "another root".into(),
            ..pb::EscrowError::default()
        }
    }

    #[test]
    fn a_cause_comes_back_from_its_status_field_by_field() {
        let status = status(mismatch());
        assert_eq!(status.code(), Code::Aborted);
        assert_eq!(escrow_error(&status), mismatch());
        // The bytes as protobuf's own text of google.rpc.Status gives them: code 10, message, one Any.
        assert_eq!(status.details()[..2], [0x08, 10]);
        assert_eq!(&status.details()[2..16], b"\x12\x0canother root");
        let busy =
            pb::EscrowError { code: Cause::Busy.into(), retry_after_ms: 250, ..pb::EscrowError::default() };
        let busy = super::status(busy);
        assert_eq!(busy.metadata().get(RETRY_AFTER).unwrap(), "250");
        assert_eq!(escrow_error(&busy).retry_after_ms, 250);
    }

    #[test]
    fn each_cause_has_its_grpc_code() {
        let table = [
            (Cause::Behind, Code::FailedPrecondition),
            (Cause::RootMismatch, Code::Aborted),
            (Cause::SessionNotFound, Code::NotFound),
            (Cause::TooLarge, Code::ResourceExhausted),
            (Cause::DiffFork, Code::Aborted),
            (Cause::Policy, Code::PermissionDenied),
            (Cause::Unavailable, Code::Unavailable),
            (Cause::Busy, Code::Unavailable),
            (Cause::ConfigMismatch, Code::FailedPrecondition),
            (Cause::SessionClosed, Code::FailedPrecondition),
            (Cause::BadTx, Code::InvalidArgument),
        ];
        for (cause, wanted) in table {
            assert_eq!(code(cause), wanted, "{cause:?}");
        }
    }

    #[test]
    fn words_and_crafted_details_are_no_divergence() {
        let words = "apply diff nonce 3: post_state_root does not match computed state root, ROOT_MISMATCH";
        let good = status(mismatch());
        let other_type = rpc::Status {
            code: 10,
            message: String::new(),
            details: vec![Any {
                type_url: "type.googleapis.com/x.Y".into(),
                value: mismatch().encode_to_vec(),
            }],
        };
        let twice = rpc::Status {
            code: 10,
            message: String::new(),
            details: vec![Any { type_url: TYPE_URL.into(), value: mismatch().encode_to_vec() }; 2],
        };
        for crafted in [
            Status::aborted(words),
            Status::internal(words),
            Status::with_details(Code::Internal, words, good.details().to_vec().into()),
            Status::with_details(Code::Aborted, words, good.details()[..40].to_vec().into()),
            Status::with_details(Code::Aborted, words, vec![0xff; 64].into()),
            Status::with_details(Code::Aborted, words, other_type.encode_to_vec().into()),
            Status::with_details(Code::Aborted, words, twice.encode_to_vec().into()),
            Status::with_details_and_metadata(
                Code::Aborted,
                words,
                vec![0; DETAILS_MAX + 1].into(),
                MetadataMap::new(),
            ),
        ] {
            assert_eq!(escrow_error(&crafted).code(), Cause::Unavailable, "{crafted:?}");
        }
    }

    #[test]
    fn what_does_not_fit_a_header_is_cut() {
        let long = pb::EscrowError {
            code: Cause::DiffFork.into(),
            message: "ä".repeat(TEXT_MAX),
            diff: vec![7; EVIDENCE_MAX + 1],
            diff_digest: vec![9; 32],
            ..pb::EscrowError::default()
        };
        let found = escrow_error(&status(long));
        assert_eq!((found.message.len(), found.diff.len(), found.diff_digest.len()), (TEXT_MAX, 0, 32));
        let short =
            pb::EscrowError { code: Cause::DiffFork.into(), diff: vec![7; 300], ..Default::default() };
        assert_eq!(escrow_error(&status(short.clone())), short);
    }
}
