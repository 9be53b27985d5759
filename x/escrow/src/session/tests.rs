//! Tests of the session; values from escrow-details 2 or worked by hand.

mod golden;

mod scene;
