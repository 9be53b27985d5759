//! HTTP to the upstream: one connection per request, closed to end the request.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::sse::excerpt;
use crate::adapter::AdapterError;

/// Most bytes of an answer's head.
const HEAD_MAX: usize = 64 << 10;
/// Most headers of an answer.
const HEADERS_MAX: usize = 64;
/// Most bytes of the answer to a load query.
const LOAD_MAX: usize = 4 << 20;
/// Most bytes of a refusal that are read.
const REFUSAL_MAX: usize = 4 << 10;
/// Longest wait for the answer to a load query.
const LOAD_WAIT: Duration = Duration::from_secs(2);

/// An upstream server and how long to wait for it.
#[derive(Debug)]
pub(super) struct Client {
    host: String,
    port: u16,
    authority: HeaderValue,
    prefix: String,
    bearer: Option<HeaderValue>,
    connect_wait: Duration,
    silence: Duration,
    source: OnceLock<LoadSource>,
}

/// Where the upstream shows its running requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadSource {
    /// `GET /metrics`.
    Metrics {
        /// vLLM's gauges, which may stand still when nothing runs.
        vllm: bool,
    },
    /// `GET /slots` of the llama.cpp server.
    Slots,
}

/// Gauges whose sum is the number of requests that run or wait.
const GAUGES: [&str; 6] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
];

/// Answer to a completions request.
pub(super) enum Posted {
    /// The event stream.
    Stream(Incoming),
    /// No room just now; the upstream names a wait, perhaps.
    Busy(Option<Duration>, String),
}

impl Client {
    /// For `http://host[:port][/prefix]`.
    pub(super) fn new(
        base_url: &str,
        api_key: Option<&str>,
        connect_wait: Duration,
        silence: Duration,
    ) -> Result<Self, AdapterError> {
        let bad = |what: &str| AdapterError::Internal(format!("upstream {base_url}: {what}"));
        let uri: Uri = base_url.parse().map_err(|_| bad("no URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(bad("only http is spoken; put a TLS proxy before an upstream on another machine"));
        }
        if uri.query().is_some() {
            return Err(bad("a query has no place in it"));
        }
        let authority = uri.authority().ok_or_else(|| bad("no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("credentials do not belong into it"));
        }
        let bearer = match api_key {
            None => None,
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                    .map_err(|_| bad("the key cannot be a header"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| bad("no host"))?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            bearer,
            connect_wait,
            silence,
            source: OnceLock::new(),
        })
    }

    /// `host:port/prefix`.
    pub(super) fn name(&self) -> String {
        format!("{}:{}{}", self.host, self.port, self.prefix)
    }

    /// Longest wait for the next byte.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    async fn connect(&self) -> Result<TcpStream, AdapterError> {
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let stream = match timeout(self.connect_wait, connecting).await {
            Err(_) => Err(AdapterError::StreamReset("no connection within the time for it".into())),
            // Nobody listens: the process is gone (runner-details 6).
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Err(AdapterError::WorkerDeath("connection refused".into()))
            }
            Ok(Err(error)) => Err(AdapterError::StreamReset(format!("no connection: {error}"))),
            Ok(Ok(stream)) => Ok(stream),
        }?;
        // A request goes out in one piece; this only saves a wait.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    /// Sends one request on a connection of its own and hands the answer to `work`. Dropping the future closes the
    /// connection. `sent` is called when the request is about to leave.
    async fn exchange<T, F: Future<Output = Result<T, AdapterError>>>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        sent: impl FnOnce(),
        work: impl FnOnce(Response<Incoming>) -> F,
    ) -> Result<T, AdapterError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, self.authority.clone())
            .header(ACCEPT, "*/*")
            .header(CONNECTION, "close")
            .header(CONTENT_TYPE, "application/json");
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer.clone());
        }
        let request =
            request.body(Full::new(body)).map_err(|error| AdapterError::Internal(error.to_string()))?;
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        sent();
        let work = async move {
            let response = sender.send_request(request);
            let response = timeout(self.silence, response).await.map_err(|_| silent())?.map_err(broken)?;
            work(response).await
        };
        // The connection ends before the work does when the answer's last bytes wait to be read.
        let (mut work, mut connection) = (pin!(work), pin!(connection));
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = &mut connection, if open => open = false,
            }
        }
    }

    /// Posts a completions request; `work` reads the stream.
    pub(super) async fn complete<T, F: Future<Output = Result<T, AdapterError>>>(
        &self,
        body: Bytes,
        sent: impl FnOnce(),
        work: impl FnOnce(Posted) -> F,
    ) -> Result<T, AdapterError> {
        self.exchange(Method::POST, "/v1/completions", body, sent, |response| async move {
            work(self.posted(response).await?).await
        })
        .await
    }

    /// What an answer's status and headers mean (runner-details 14).
    async fn posted(&self, response: Response<Incoming>) -> Result<Posted, AdapterError> {
        let status = response.status();
        if status == StatusCode::OK {
            let kind = response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
            return if kind.to_ascii_lowercase().starts_with(b"text/event-stream") {
                Ok(Posted::Stream(response.into_body()))
            } else {
                Err(AdapterError::StreamReset(format!("the answer is no event stream: {}", excerpt(kind))))
            };
        }
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        // The text of a refusal is for people; an unreadable one changes nothing.
        let body = read(response.into_body(), REFUSAL_MAX, self.silence).await.unwrap_or_default();
        let detail = format!("{}: {}", status.as_u16(), excerpt(&body));
        match status.as_u16() {
            429 | 503 => Ok(Posted::Busy(after, detail)),
            400 | 413 | 422 => Err(AdapterError::request_refused(&detail)),
            500.. => Err(AdapterError::StreamReset(detail)),
            // A key, a model or a path that the node has wrong, or a redirect, which nobody follows.
            _ => Err(AdapterError::Internal(format!("the upstream refused: {detail}"))),
        }
    }

    async fn get(&self, path: &str) -> Result<(StatusCode, Vec<u8>), AdapterError> {
        let answer = self.exchange(
            Method::GET,
            path,
            Bytes::new(),
            || (),
            |response| async {
                let status = response.status();
                Ok((status, read(response.into_body(), LOAD_MAX, LOAD_WAIT).await?))
            },
        );
        timeout(LOAD_WAIT, answer).await.map_err(|_| silent())?
    }

    /// Requests that run or wait at the upstream.
    pub(super) async fn load(&self) -> Result<u64, AdapterError> {
        let known = self.source.get().copied();
        if known != Some(LoadSource::Slots) {
            let (status, body) = self.get("/metrics").await?;
            if status == StatusCode::OK
                && let Some((load, vllm)) = gauges(&body)
            {
                let _ = self.source.set(LoadSource::Metrics { vllm });
                return Ok(load);
            }
        }
        if !matches!(known, Some(LoadSource::Metrics { .. })) {
            let (status, body) = self.get("/slots").await?;
            if status == StatusCode::OK
                && let Some(load) = slots(&body)
            {
                let _ = self.source.set(LoadSource::Slots);
                return Ok(load);
            }
        }
        Err(AdapterError::Internal(
            "the upstream shows its running requests neither at /metrics nor at /slots".into(),
        ))
    }

    /// vLLM's gauges keep their last values when all requests were aborted, until the engine steps again.
    pub(super) fn load_may_be_stale(&self) -> bool {
        self.source.get() == Some(&LoadSource::Metrics { vllm: true })
    }

    /// Posts a request of one token so that the engine steps and shows its load anew.
    pub(super) async fn nudge(&self, model: &str) {
        let body = serde_json::json!({"model": model, "prompt": " ", "max_tokens": 1, "stream": false});
        let answer = self.exchange(
            Method::POST,
            "/v1/completions",
            Bytes::from(body.to_string()),
            || (),
            |response| async { read(response.into_body(), LOAD_MAX, LOAD_WAIT).await },
        );
        // What comes of it shows in the load.
        let _ = timeout(LOAD_WAIT, answer).await;
    }
}

/// A whole body of at most `max` bytes; what is longer is cut there.
async fn read(mut body: Incoming, max: usize, wait: Duration) -> Result<Vec<u8>, AdapterError> {
    let mut bytes = Vec::new();
    let all = async {
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                bytes.extend_from_slice(&data[..data.len().min(max - bytes.len())]);
            }
            if bytes.len() == max {
                break;
            }
        }
        Ok(())
    };
    timeout(wait, all).await.map_err(|_| silent())??;
    Ok(bytes)
}

pub(super) fn broken(error: hyper::Error) -> AdapterError {
    use std::error::Error as _;
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    AdapterError::StreamReset(format!("{error}{source}"))
}

pub(super) fn silent() -> AdapterError {
    AdapterError::StreamReset("the upstream is silent".into())
}

/// Sum of the known gauges of a Prometheus text, and whether they are vLLM's; `None` without any.
fn gauges(text: &[u8]) -> Option<(u64, bool)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut sum = None;
    let mut vllm = false;
    for line in text.lines() {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        if !GAUGES.contains(&name) {
            continue;
        }
        let rest = line.rsplit_once('}').map_or(&line[name.len()..], |(_, rest)| rest);
        let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
        if !(0.0..=1e9).contains(&value) {
            return None;
        }
        vllm |= name.starts_with("vllm:");
        sum = Some(sum.unwrap_or(0) + value as u64);
    }
    sum.map(|sum| (sum, vllm))
}

/// Busy slots of the llama.cpp server's list.
fn slots(text: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Slot {
        is_processing: bool,
    }
    let slots: Vec<Slot> = serde_json::from_slice(text).ok()?;
    Some(slots.iter().filter(|slot| slot.is_processing).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_what_runs_and_what_waits() {
        let vllm = b"# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine=\"0\",model_name=\"a} b\"} 2.0\n\
            vllm:num_requests_running{engine=\"1\"} 1.0 1700000000\nvllm:num_requests_waiting{engine=\"0\"} 4.0\n\
            vllm:num_requests_running_total 9\n";
        assert_eq!(gauges(vllm), Some((7, true)));
        assert_eq!(
            gauges(b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"),
            Some((3, false))
        );
        assert_eq!(gauges(b"sglang:num_running_reqs{tp_rank=\"0\"} 5.0\n"), Some((5, false)));
        for bad in ["", "other 1\n", "llamacpp:requests_processing\n", "llamacpp:requests_processing NaN\n"] {
            assert_eq!(gauges(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(slots(br#"[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]"#), Some(1));
        assert_eq!(slots(br#"{"error":"disabled"}"#), None);
    }

    #[test]
    fn only_plain_http_without_credentials_is_an_upstream() {
        let new = |url: &str| Client::new(url, None, Duration::ZERO, Duration::ZERO);
        assert_eq!(new("http://[::1]:8000/a/").unwrap().name(), "::1:8000/a");
        assert_eq!(new("http://host").unwrap().name(), "host:80");
        for bad in ["https://host", "host", "http://u:p@host", "http://host/?a=b", ""] {
            assert!(matches!(new(bad), Err(AdapterError::Internal(_))), "{bad}");
        }
        assert!(Client::new("http://host", Some("a\nb"), Duration::ZERO, Duration::ZERO).is_err());
    }
}
