//! Worker processes: the gRPC server and the shard at its other end (runner-details 6).
