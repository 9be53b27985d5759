//! A client of CometBFT's JSON-RPC: plain HTTP, one connection a call.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpStream;

/// Longest wait for an answer. `broadcast_tx_commit`, which waits itself, is not used.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer: results of a full block, in base64 and with their events.
const MAX_BYTES: usize = 256 << 20;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RpcError {
    /// No connection, or none that lasts to an answer.
    #[error("CometBFT at {addr} cannot be reached: {reason}; is it running, and is this its rpc.laddr?")]
    Unreachable {
        /// HOST:PORT.
        addr: String,
        /// What happened.
        reason: String,
    },
    /// The node refused.
    #[error("CometBFT refused {method}: {message}{}{data}", if .data.is_empty() { "" } else { ": " })]
    Refused {
        /// Method called.
        method: String,
        /// Code of JSON-RPC.
        code: i64,
        /// Its message.
        message: String,
        /// Its details.
        data: String,
    },
    /// An answer that is none.
    #[error("CometBFT's answer to {method}: {reason}")]
    Malformed {
        /// Method called.
        method: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where CometBFT's RPC listens. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rpc {
    addr: String,
}

impl Rpc {
    /// The node at HOST:PORT.
    pub fn new(addr: impl Into<String>) -> Self {
        Self { addr: addr.into() }
    }

    /// HOST:PORT.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Calls a method; gives its `result`.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let answer = tokio::time::timeout(TIMEOUT, self.post(body)).await;
        let bytes = answer
            .unwrap_or_else(|_| Err(format!("no answer in {TIMEOUT:?}").into()))
            .map_err(|e| RpcError::Unreachable { addr: self.addr.clone(), reason: e.to_string() })?;
        let malformed = |reason: String| RpcError::Malformed { method: method.into(), reason };
        let mut answer: Value = serde_json::from_slice(&bytes).map_err(|e| malformed(e.to_string()))?;
        if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
            let text = |key: &str| match &error[key] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            let code = error["code"].as_i64().unwrap_or(0);
            let (message, data) = (text("message"), text("data"));
            return Err(RpcError::Refused { method: method.into(), code, message, data });
        }
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(malformed("there is neither result nor error".into())),
        }
    }

    async fn post(&self, body: String) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(&self.addr).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection);
        let request = http::Request::post("/")
            .header(http::header::HOST, &self.addr)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answered = async {
            let response = sender.send_request(request).await?;
            // Errors of JSON-RPC come with HTTP's 500 and a body like any other.
            Limited::new(response.into_body(), MAX_BYTES).collect().await
        };
        let collected = answered.await;
        driver.abort();
        Ok(collected?.to_bytes())
    }
}
