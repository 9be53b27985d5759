//! The simulator's own tests, scenarios, and a few hundred seeds.

mod ends;
mod kills;
mod laws;
mod older;
mod scenarios;
mod seeds;
mod turns;
