//! What an operator may choose.

/// Limits and waits of a gateway. Times in milliseconds, sizes in bytes.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Whether a forked host may be asked to drop its replica (phase 2).
    pub allow_reset: bool,
    /// Time of attempts and backoff after which a repair is given up.
    pub give_up_ms: u64,
    /// Lowest give-up deadline after halving.
    pub give_up_floor_ms: u64,
    /// Diffs per Teach or tail.
    pub chunk_diffs: usize,
    /// Bytes of diffs per Teach or tail.
    pub chunk_bytes: usize,
    /// Bytes of diffs per repair attempt.
    pub attempt_bytes: u64,
    /// Time per repair attempt.
    pub attempt_ms: u64,
    /// Time per Teach.
    pub teach_ms: u64,
    /// Time per GetSignatures, GetDiffs, Bind, GetPending.
    pub ask_ms: u64,
    /// Time per vote, with its challenge.
    pub vote_ms: u64,
    /// Wait between two rounds of votes.
    pub vote_round_ms: u64,
    /// Added to a timeout before it is claimed.
    pub timeout_slack_ms: u64,
    /// Longest body of a request.
    pub body_bytes: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Age of a pending transaction at which it is published without traffic.
    pub flush_ms: u64,
    /// How long the oldest request is held for another slot.
    pub hold_ms: u64,
    /// Between two pings of a throttled participant.
    pub ping_ms: u64,
    /// Dispatches per request before the first token.
    pub dispatches: u32,
    /// How long finalization waits for requests in flight.
    pub drain_ms: u64,
    /// Between two rounds of signatures at the final nonce.
    pub collect_ms: u64,
    /// Nonces between two snapshots.
    pub snapshot_every: u64,
    /// Silence of an Infer stream (beats come every 2 s) after which it is lost.
    pub beat_ms: u64,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            allow_reset: false,
            give_up_ms: 30 * 60_000,
            give_up_floor_ms: 5 * 60_000,
            chunk_diffs: 200,
            chunk_bytes: 3 << 20,
            attempt_bytes: 64 << 20,
            attempt_ms: 120_000,
            teach_ms: 60_000,
            ask_ms: 10_000,
            vote_ms: 25_000,
            vote_round_ms: 60_000,
            timeout_slack_ms: 5_000,
            body_bytes: 3 << 20,
            queue: 1024,
            flush_ms: 1_000,
            hold_ms: 200,
            ping_ms: 5_000,
            dispatches: 3,
            drain_ms: 60_000,
            collect_ms: 2_000,
            snapshot_every: 500,
            beat_ms: 30_000,
        }
    }
}
