//! Faults on purpose: a shard that dies, stalls, resets or lies at a given step.
