//! Numbers of the process for Prometheus. Those of a session come from its core; labels are escrow and participant only.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `holdfast_gateway_sessions`, `_requests`, `_calls`, `_tasks` | gauge: what is alive in the driver | |
//! | `holdfast_gateway_hosts`, `_host_connections` | gauge | |
//! | `holdfast_gateway_call_seconds` | histogram | `call`, `result`: ok, host, status, transport, timeout, aborted |
//! | `holdfast_gateway_panics_total` | counter: tasks that ended by a panic | `task` |
//! | `holdfast_gateway_slow_clients_total` | counter: clients given up because they took nothing | |
//! | `holdfast_gateway_chain_errors_total` | counter | `call` |
//! | `holdfast_gateway_settlements_total` | counter | `result`: settled, already, refused, failed |
//! | `holdfast_gateway_key_spent_tokens` | gauge: what an API key with a budget has spent | `key` |
//! | `holdfast_gateway_rotations_total`, `_probes_total` | counter | `model`, `result` |

use std::time::Duration;

use holdfast_types::{Address, Hrp};
use metrics::{counter, gauge, histogram};

use crate::core::Metric;
use crate::driver::Counts;

/// A number of a session.
pub(crate) fn session(escrow_id: u64, hrp: &Hrp, metric: &Metric) {
    let labels = |participant: &Option<Address>| {
        let mut labels = vec![("escrow", escrow_id.to_string())];
        labels.extend(participant.map(|address| ("participant", address.to_bech32(hrp))));
        labels
    };
    match metric {
        Metric::Count { name, participant, add } => {
            counter!(format!("holdfast_{name}"), &labels(participant)).increment(*add);
        }
        Metric::Gauge { name, participant, value } => {
            gauge!(format!("holdfast_{name}"), &labels(participant)).set(*value as f64);
        }
        Metric::Time { name, participant, ms } => {
            // Prometheus counts in seconds.
            let name = name.strip_suffix("_ms").unwrap_or(name);
            let seconds = Duration::from_millis(*ms).as_secs_f64();
            histogram!(format!("holdfast_{name}_seconds"), &labels(participant)).record(seconds);
        }
    }
}

/// What is alive.
pub(crate) fn counts(counts: &Counts) {
    let Counts { sessions, requests, calls, tasks, hosts, connections } = *counts;
    for (name, value) in [
        ("holdfast_gateway_sessions", sessions),
        ("holdfast_gateway_requests", requests),
        ("holdfast_gateway_calls", calls),
        ("holdfast_gateway_tasks", tasks),
        ("holdfast_gateway_hosts", hosts),
        ("holdfast_gateway_host_connections", connections),
    ] {
        gauge!(name).set(value as f64);
    }
}

/// A call of a host ended.
pub(crate) fn call(call: &'static str, result: &'static str, took: Duration) {
    histogram!("holdfast_gateway_call_seconds", "call" => call, "result" => result).record(took);
}

/// A task panicked.
pub(crate) fn panicked(task: &'static str) {
    counter!("holdfast_gateway_panics_total", "task" => task).increment(1);
}

/// A client took nothing for too long.
pub(crate) fn slow_client() {
    counter!("holdfast_gateway_slow_clients_total").increment(1);
}

/// What an API key has spent, by its name in the file of keys.
pub(crate) fn key_spent(key: &str, tokens: u64) {
    gauge!("holdfast_gateway_key_spent_tokens", "key" => key.to_owned()).set(tokens as f64);
}

/// The chain did not answer, or refused.
pub(crate) fn chain_error(call: &'static str) {
    counter!("holdfast_gateway_chain_errors_total", "call" => call).increment(1);
}

/// A settlement went out, or not.
pub(crate) fn settlement(result: &'static str) {
    counter!("holdfast_gateway_settlements_total", "result" => result).increment(1);
}

/// An escrow was to be replaced.
pub(crate) fn rotation(model: &str, result: &'static str) {
    counter!("holdfast_gateway_rotations_total", "model" => model.to_owned(), "result" => result)
        .increment(1);
}

/// A probe was sent, or not.
pub(crate) fn probe(model: &str, result: &'static str) {
    counter!("holdfast_gateway_probes_total", "model" => model.to_owned(), "result" => result).increment(1);
}
