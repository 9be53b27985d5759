//! Tests of the replicas; values from escrow-details or worked by hand.

mod calls;
mod drills;
mod recovery;
mod refusals;
pub(crate) mod scene;
mod votes;
mod work;
