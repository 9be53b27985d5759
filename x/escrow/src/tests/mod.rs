//! Tests of the module on the chain. Values are worked by hand; session states come from [`crate::session`].

mod create;
mod dispute;
mod forms;
mod genesis;
mod golden;
mod params;
mod queries;
mod settle;
mod steps;
mod world;
