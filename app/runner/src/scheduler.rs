//! Continuous batching over a bounded queue (runner-details 12).
