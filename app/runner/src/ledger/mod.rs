//! The durable work ledger (runner-details 5).
