//! Events and calls in a few words.

use super::*;

pub(super) fn brief(event: &Event) -> String {
    match event {
        Event::CallDone { call_id, result } => match result {
            Ok(HostReply::Teach(reply)) => {
                let at = reply.applied.as_ref().map(|applied| (applied.nonce, applied.withheld));
                format!("#{call_id} Teach at {at:?}")
            }
            Ok(HostReply::GetSignatures(reply)) => format!(
                "#{call_id} GetSignatures {} of {}, fresh {}",
                reply.nonce,
                reply.have_nonce,
                reply.verification.is_some()
            ),
            Ok(HostReply::VoteTimeout(reply)) => format!("#{call_id} vote {}", reply.accept),
            Ok(HostReply::Bind(reply)) => format!("#{call_id} Bind at {}", reply.nonce),
            Ok(_) => format!("#{call_id} ok"),
            Err(CallError::Host(error)) => {
                format!("#{call_id} error {:?} nonce {} have {}", error.code(), error.nonce, error.have_nonce)
            }
            Err(error) => format!("#{call_id} {error:?}"),
        },
        Event::StreamItem { call_id, event } => {
            let text = format!("{event:?}");
            format!("#{call_id} {}", text.chars().take(60).collect::<String>())
        }
        Event::Request(request) => format!("request {}", request.request_id),
        other => format!("{other:?}").chars().take(160).collect(),
    }
}

pub(super) fn brief_call(call: &HostCall) -> String {
    match call {
        HostCall::Teach(request) => {
            format!("Teach {} diffs, challenge {}", request.diffs.len(), request.challenge.is_some())
        }
        HostCall::Infer(request) => {
            format!("Infer {} with {} diffs", request.target_nonce, request.diffs.len())
        }
        HostCall::GetSignatures(request) => format!("GetSignatures {}", request.nonce),
        HostCall::VoteTimeout(request) => {
            format!("VoteTimeout {} reason {}", request.inference_id, request.reason)
        }
        HostCall::Cancel(request) => format!("Cancel {} {}", request.inference_id, request.cause),
        HostCall::Bind(_) => "Bind".into(),
        HostCall::GetPending(_) => "GetPending".into(),
        HostCall::GetDiffs(request) => format!("GetDiffs {}", request.from),
        HostCall::ResetSession(_) => "ResetSession".into(),
    }
}
