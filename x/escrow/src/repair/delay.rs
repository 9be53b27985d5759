//! Jitter without a random number: from a hash, so that a repair can be replayed.

use holdfast_types::Address;

use crate::session::digest;

/// Sixteen bits that differ from attempt to attempt.
fn spread(escrow_id: u64, participant: Address, generation: u64, attempt: u32) -> u64 {
    let [high, low, ..] = digest::tagged("jitter", &(escrow_id, participant, generation, attempt));
    u64::from(u16::from_be_bytes([high, low]))
}

/// The wait in ms after attempt `attempt` (from 1) failed: three quarters of `base_ms` and up to a half of it more
/// (escrow-details 6).
pub fn backoff_ms(base_ms: u64, escrow_id: u64, participant: Address, generation: u64, attempt: u32) -> u64 {
    let r = spread(escrow_id, participant, generation, attempt);
    let fixed = base_ms.saturating_mul(3) / 4;
    fixed.saturating_add((base_ms / 2).saturating_mul(r) / 65_536)
}

/// The wait in ms after a restart of the gateway: below `spread_ms`.
pub(super) fn restart_ms(
    spread_ms: u64,
    escrow_id: u64,
    participant: Address,
    generation: u64,
    attempt: u32,
) -> u64 {
    spread_ms.saturating_mul(spread(escrow_id, participant, generation, attempt)) / 65_536
}
