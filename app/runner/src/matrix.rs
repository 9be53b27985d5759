//! The failure matrix (runner-details 10).
