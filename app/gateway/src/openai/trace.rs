//! What names a request: its id and its W3C trace context.

use holdfast_host::TraceContext;
use http::HeaderMap;

/// Name of the header, both ways.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// Longest id taken from a client.
const ID_BYTES_MAX: usize = 128;

/// The names of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) request_id: String,
    pub(crate) traceparent: String,
}

/// Those that the client gave, where they are well-formed; else new ones.
pub(crate) fn names(headers: &HeaderMap) -> Names {
    let one = |name: &str| {
        let mut all = headers.get_all(name).iter();
        // Given twice, neither is better.
        all.next().filter(|_| all.next().is_none()).and_then(|value| value.to_str().ok())
    };
    let request_id = one(REQUEST_ID)
        .filter(|id| {
            (1..=ID_BYTES_MAX).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        })
        .map_or_else(|| format!("req-{}", random_hex::<12>()), str::to_owned);
    let traceparent = one("traceparent")
        .filter(|text| TraceContext::parse(text).is_some())
        .map_or_else(|| format!("00-{}-{}-00", random_hex::<16>(), random_hex::<8>()), str::to_owned);
    Names { request_id, traceparent }
}

/// Random bytes as hex. Without a source of them, a name that is not unique but well-formed.
fn random_hex<const N: usize>() -> String {
    let mut bytes = [1; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        tracing::warn!(%error, "no random bytes for the name of a request");
    }
    hex::encode(bytes)
}

/// A seed for a request that samples without one.
pub(crate) fn random_seed() -> u64 {
    getrandom::u64().unwrap_or_else(|error| {
        tracing::warn!(%error, "no random seed; 1 is taken");
        1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(name: &'static str, value: &str) -> Names {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        names(&headers)
    }

    #[test]
    fn well_formed_names_of_the_client_are_kept_and_others_replaced() {
        assert_eq!(given(REQUEST_ID, "Job_7.a-b").request_id, "Job_7.a-b");
        for bad in ["", "a b", "a\"b", "é", &"a".repeat(129)] {
            let id = given(REQUEST_ID, bad).request_id;
            assert!(id.len() == 28 && id.starts_with("req-"), "{bad:?} became {id}");
        }
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(given("traceparent", trace).traceparent, trace);
        for bad in [
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            let made = given("traceparent", bad).traceparent;
            assert!(TraceContext::parse(&made).is_some() && made != bad, "{bad} became {made}");
        }
    }

    #[test]
    fn a_name_that_is_given_twice_is_replaced() {
        let mut headers = HeaderMap::new();
        headers.append(REQUEST_ID, "a".parse().unwrap());
        headers.append(REQUEST_ID, "b".parse().unwrap());
        assert!(names(&headers).request_id.starts_with("req-"));
    }
}
