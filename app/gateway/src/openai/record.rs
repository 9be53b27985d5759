//! What is told of a request: one line in the log, and the metrics.

use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};

use super::backend::Dispatch;
use super::trace::Names;

/// The status of a request whose client left; nobody receives it (escrow-details 9).
const CLIENT_LEFT: u16 = 499;

/// One request, from its headers to its last byte. Dropped before its end, the client left.
pub(crate) struct Record {
    route: &'static str,
    names: Names,
    began: Instant,
    pub(crate) key: Option<String>,
    pub(crate) model: String,
    pub(crate) dispatch: Option<Dispatch>,
    /// Status, and the code of the error or how it ended.
    end: Option<(u16, &'static str)>,
    first_text: Option<Duration>,
}

impl Record {
    pub(crate) fn begin(route: &'static str, names: &Names) -> Self {
        gauge!("holdfast_gateway_http_running").increment(1);
        Self {
            route,
            names: names.clone(),
            began: Instant::now(),
            key: None,
            model: String::new(),
            dispatch: None,
            end: None,
            first_text: None,
        }
    }

    /// The first text is about to be sent.
    pub(crate) fn first_text(&mut self) {
        if self.first_text.is_none() {
            let time = self.began.elapsed();
            histogram!("holdfast_gateway_first_token_seconds").record(time);
            self.first_text = Some(time);
        }
    }

    /// How it ended; the first word stands.
    pub(crate) fn end(&mut self, status: u16, code: &'static str) {
        self.end.get_or_insert((status, code));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (status, code) = self.end.unwrap_or((CLIENT_LEFT, "client_left"));
        gauge!("holdfast_gateway_http_running").decrement(1);
        counter!("holdfast_gateway_http_requests_total", "route" => self.route, "status" => status.to_string(), "code" => code)
            .increment(1);
        tracing::info!(
            request_id = self.names.request_id,
            traceparent = self.names.traceparent,
            route = self.route,
            key = self.key.as_deref(),
            model = self.model,
            escrow = self.dispatch.map(|d| d.escrow),
            nonce = self.dispatch.map(|d| d.nonce),
            status,
            code,
            first_text_ms = self.first_text.map(|t| t.as_millis()),
            ms = self.began.elapsed().as_millis(),
            "request"
        );
    }
}
