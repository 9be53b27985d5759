//! `HardenedSessionRunner`, which drives sessions through a route of shards.
