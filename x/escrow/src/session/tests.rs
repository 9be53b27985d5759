//! Tests of the session; values from escrow-details 2 or worked by hand.

mod golden;
mod model;
mod rules;
mod scene;
mod settlement;
mod signers;
