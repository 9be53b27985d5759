//! What computes.

pub mod reference;
