//! KV by session and epoch: fences, leases, capacity (runner-details 2 and 4).
