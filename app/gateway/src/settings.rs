//! Limits and waits of the process around the sessions. Those of a session are in [`GatewayConfig`].

use crate::core::GatewayConfig;

/// What an operator sets, and what stays as it is. Times in milliseconds, sizes in bytes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of each session.
    pub core: GatewayConfig,
    /// Repairs at a time, over all sessions.
    pub repairs: usize,
    /// Events that may wait for one session.
    pub inbox: usize,
    /// Events that may wait for one client; one that falls further behind counts as gone.
    pub client_events: usize,
    /// Calls of hosts.
    pub hosts: HostLimits,
    /// Between two looks at the chain.
    pub poll_ms: u64,
    /// How settlements and disputes are sent again.
    pub settle: Retry,
    /// How models are offered.
    pub offer: Offer,
    /// When an escrow is replaced.
    pub rotation: Rotation,
    /// Inferences that close a breaker's cooldown.
    pub prober: Prober,
    /// How long sessions may take to stop.
    pub stop_ms: u64,
}

/// Limits of calls of one host.
#[derive(Debug, Clone)]
pub struct HostLimits {
    /// Connections for clients.
    pub connections: usize,
    /// Calls at a time on each: below what a host takes.
    pub streams: usize,
    /// How long a call for a client waits for a place.
    pub admission_ms: u64,
    /// Votes at a time, over all sessions.
    pub votes: usize,
    /// How long a vote waits for a place.
    pub vote_wait_ms: u64,
    /// Longest wait for a connection.
    pub connect_ms: u64,
    /// Between two questions whether the host is still there, and the wait for the answer.
    pub keep_alive_ms: u64,
    /// Longest message.
    pub message_bytes: usize,
    /// Longest text of one piece of an answer.
    pub delta_bytes: usize,
    /// Longest text of an answer.
    pub answer_bytes: usize,
}

/// Repetition with a growing pause.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// First pause.
    pub first_ms: u64,
    /// Longest pause.
    pub max_ms: u64,
    /// How often, until an operator or the next start of the process begins anew.
    pub attempts: u32,
}

impl Retry {
    /// The pause after the `failed`th failure, from 1; it doubles.
    #[must_use]
    pub fn pause_ms(&self, failed: u32) -> u64 {
        let shift = failed.saturating_sub(1).min(32);
        self.first_ms.saturating_mul(1 << shift).min(self.max_ms)
    }
}

/// How models are offered.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Prompt and answer together, tokens.
    pub context_length: u32,
    /// Most bytes of text that one token stands for; 0 = unknown.
    pub token_bytes_max: u32,
}

/// When an escrow is replaced by the next one.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// Coins that new escrows may cost in all, over the life of the data; 0 = none is opened.
    pub budget: u128,
    /// Coins of a new escrow.
    pub amount: u128,
    /// Slots of a new escrow.
    pub slots: u32,
    /// Where hosts reach this gateway; may be empty.
    pub gateway_url: String,
    /// Share of the nonces or coins, basis points, at which an escrow is replaced.
    pub left_bp: u16,
    /// Blocks before its expiry at which an escrow is replaced, and finalized in any case.
    pub blocks: u64,
}

/// Inferences that close a breaker's cooldown.
#[derive(Debug, Clone)]
pub struct Prober {
    /// Coins for them in all, over the life of the data; 0 = none is sent.
    pub budget: u128,
    /// How long an answer may take.
    pub deadline_ms: u64,
}

/// Connections that the process takes, so that hosts, chain and stores always have file descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Of applications.
    pub http: usize,
    /// Of hosts and operators.
    pub grpc: usize,
}

impl Connections {
    /// Shares of `descriptors` that the process may have open: at most half for applications and an eighth for operators.
    #[must_use]
    pub fn within(descriptors: u64) -> Self {
        let share = |part: u64, most: usize| {
            let share = descriptors.checked_div(part).unwrap_or(0);
            usize::try_from(share).unwrap_or(usize::MAX).clamp(1, most)
        };
        Self { http: share(2, 1024), grpc: share(8, 256) }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            core: GatewayConfig::default(),
            repairs: 8,
            inbox: 4096,
            client_events: 1024,
            hosts: HostLimits::default(),
            poll_ms: 2_000,
            settle: Retry { first_ms: 1_000, max_ms: 60_000, attempts: 30 },
            offer: Offer { context_length: 4096, token_bytes_max: 0 },
            rotation: Rotation::default(),
            prober: Prober { budget: 1_000_000, deadline_ms: 60_000 },
            stop_ms: 20_000,
        }
    }
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            connections: 16,
            streams: 100,
            admission_ms: 2_000,
            votes: 8,
            vote_wait_ms: 120_000,
            connect_ms: 5_000,
            keep_alive_ms: 15_000,
            message_bytes: 8 << 20,
            delta_bytes: 64 << 10,
            answer_bytes: 16 << 20,
        }
    }
}

impl Default for Rotation {
    fn default() -> Self {
        Self { budget: 0, amount: 0, slots: 0, gateway_url: String::new(), left_bp: 1_000, blocks: 50 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry { first_ms: 1_000, max_ms: 60_000, attempts: 30 };
        let pauses: Vec<u64> = (1..=8).map(|failed| retry.pause_ms(failed)).collect();
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(retry.pause_ms(u32::MAX), 60_000);
    }

    #[test]
    fn few_descriptors_leave_some_for_hosts_and_stores() {
        for (descriptors, http, grpc) in [
            (u64::MAX, 1024, 256),
            (4096, 1024, 256),
            (2048, 1024, 256),
            (1024, 512, 128),
            (130, 65, 16),
            (0, 1, 1),
        ] {
            assert_eq!(Connections::within(descriptors), Connections { http, grpc }, "{descriptors}");
        }
    }
}
