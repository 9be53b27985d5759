//! Sessions against scripted hosts that hold real replicas and keys, over virtual time.

mod host;
mod ownfork;
mod withdrawn;
mod world;

mod ends;
mod faults;
mod repairs;
mod serving;
mod soak;
