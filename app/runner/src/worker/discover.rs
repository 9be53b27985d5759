//! Where workers are: from configuration, or from what a participant says on the chain.

use std::fmt;

/// Most workers of a coordinator.
pub const WORKERS_MAX: usize = 64;
/// Longest address, in bytes.
const URL_BYTES_MAX: usize = 256;

/// Host and port of a worker, and the layers it is expected to hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerAddress {
    authority: String,
    layers: Option<(u32, u32)>,
}

/// Why an address is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not of the form.
    #[error("{0:?}: give http://HOST:PORT of a worker")]
    Malformed(String),
    /// The stream protocol is spoken without TLS.
    #[error("{0:?}: workers are reached over http; put TLS in front of both ends")]
    Scheme(String),
    /// A first layer above the last.
    #[error("{url:?}: layers {first} to {last}: the first must not be above the last")]
    Layers {
        /// The worker.
        url: String,
        /// First layer.
        first: u32,
        /// Last layer.
        last: u32,
    },
    /// Too many.
    #[error("{0} workers: at most {WORKERS_MAX}")]
    TooMany(usize),
    /// The same one more than once.
    #[error("{0}: named twice")]
    Twice(String),
}

impl WorkerAddress {
    /// `http://HOST:PORT`, or `HOST:PORT` alone; a `/` may follow.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let malformed = || AddressError::Malformed(super::convert::cut(url, URL_BYTES_MAX).to_owned());
        if url.len() > URL_BYTES_MAX {
            return Err(malformed());
        }
        let bare = match url.split_once("://") {
            Some(("http", bare)) => bare,
            Some(("https", _)) => return Err(AddressError::Scheme(url.to_owned())),
            Some(_) => return Err(malformed()),
            None => url,
        };
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        let (host, port) = bare.rsplit_once(':').ok_or_else(malformed)?;
        let name = |host: &str| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        let numeric = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host_ok = numeric.map_or_else(|| name(host), |ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        if !host_ok || !digits || !port.parse::<u16>().is_ok_and(|port| port != 0) {
            return Err(malformed());
        }
        Ok(Self { authority: bare.to_owned(), layers: None })
    }

    /// The same worker, of which layers `from..to` are expected.
    #[must_use]
    pub fn with_layers(self, from: u32, to: u32) -> Self {
        Self { layers: Some((from, to)), ..self }
    }

    /// `HOST:PORT`.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The layers it is expected to hold, half-open.
    #[must_use]
    pub fn layers(&self) -> Option<(u32, u32)> {
        self.layers
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// A worker as a participant lists it on the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParticipantWorker {
    /// URL of the machine.
    pub url: String,
    /// First layer it holds.
    pub first_layer: u32,
    /// Last layer it holds.
    pub last_layer: u32,
}

/// Workers from a list of URLs.
///
/// # Errors
/// A malformed one, one named twice, too many.
pub fn from_urls<S: AsRef<str>>(urls: &[S]) -> Result<Vec<WorkerAddress>, AddressError> {
    checked(urls.len(), urls.iter().map(|url| WorkerAddress::parse(url.as_ref())))
}

/// Workers from a participant's list, whose layers include the last one.
///
/// # Errors
/// As [`from_urls`]; layers out of order.
pub fn from_participant(workers: &[ParticipantWorker]) -> Result<Vec<WorkerAddress>, AddressError> {
    let each = workers.iter().map(|worker| {
        let ParticipantWorker { url, first_layer, last_layer } = worker;
        let layers = || AddressError::Layers { url: url.clone(), first: *first_layer, last: *last_layer };
        let end = last_layer.checked_add(1).filter(|end| first_layer < end).ok_or_else(layers)?;
        Ok(WorkerAddress::parse(url)?.with_layers(*first_layer, end))
    });
    checked(workers.len(), each)
}

fn checked(
    count: usize,
    each: impl Iterator<Item = Result<WorkerAddress, AddressError>>,
) -> Result<Vec<WorkerAddress>, AddressError> {
    if count > WORKERS_MAX {
        return Err(AddressError::TooMany(count));
    }
    let mut all: Vec<WorkerAddress> = Vec::with_capacity(count);
    for address in each {
        let address = address?;
        if all.iter().any(|known| known.authority == address.authority) {
            return Err(AddressError::Twice(address.authority));
        }
        all.push(address);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_url_is_http_host_and_port() {
        for (url, authority) in [
            ("http://10.0.0.7:9100", "10.0.0.7:9100"),
            ("http://worker-1.example.org:80/", "worker-1.example.org:80"),
            ("localhost:1", "localhost:1"),
            ("http://[::1]:65535", "[::1]:65535"),
        ] {
            let address = WorkerAddress::parse(url).unwrap();
            assert_eq!((address.authority(), address.layers()), (authority, None));
        }
        for url in [
            "",
            "http://",
            "http://h",
            "http://h:0",
            "http://h:65536",
            "http://h:+1",
            "http://:1",
            "ftp://h:1",
            "http://h:1/path",
            "http://u@h:1",
            "http://[::g]:1",
            "http://h h:1",
            "http://h:",
        ] {
            assert_eq!(WorkerAddress::parse(url), Err(AddressError::Malformed(url.to_owned())), "{url}");
        }
        assert!(matches!(WorkerAddress::parse("https://h:1"), Err(AddressError::Scheme(_))));
        assert!(WorkerAddress::parse(&format!("http://{}:1", "h".repeat(300))).is_err());
    }

    #[test]
    fn a_participants_last_layer_is_part_of_its_shard() {
        let worker = |url: &str, first_layer, last_layer| ParticipantWorker {
            url: url.into(),
            first_layer,
            last_layer,
        };
        let all = from_participant(&[worker("http://a:1", 0, 1), worker("http://b:1", 2, 2)]).unwrap();
        assert_eq!(all.iter().map(WorkerAddress::layers).collect::<Vec<_>>(), [Some((0, 2)), Some((2, 3))]);
        assert!(matches!(from_participant(&[worker("a:1", 2, 1)]), Err(AddressError::Layers { .. })));
        assert!(matches!(
            from_participant(&[worker("a:1", u32::MAX, u32::MAX)]),
            Err(AddressError::Layers { .. })
        ));
        assert_eq!(from_urls(&["a:1", "http://a:1"]), Err(AddressError::Twice("a:1".into())));
        let many: Vec<String> = (0..65).map(|i| format!("h{i}:1")).collect();
        assert_eq!(from_urls(&many), Err(AddressError::TooMany(65)));
    }
}
