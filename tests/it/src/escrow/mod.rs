//! Escrow sessions on real processes: a chain, a gateway and hosts as `holdfastd localnet --gateway` starts them, while hosts
//! fork, lie, start empty and are killed in the middle of their repair.
//!
//! Every network has a chain of its own. What a test needs of it stands in `localnet.json` in its home. `HOLDFAST_ALL=1` runs
//! longer loads.

mod clients;
mod repair;
mod rig;
mod runs;
mod settle;

fn all() -> bool {
    std::env::var_os("HOLDFAST_ALL").is_some_and(|value| value != "0")
}
