//! One cancel for every shard, in three phases (runner-details 7).
