//! The simulator's own tests, scenarios, and a few hundred seeds.

mod ends;
mod laws;
mod scenarios;
mod seeds;
mod turns;
