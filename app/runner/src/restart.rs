//! Failover: the next epoch, from token zero (runner-details 4 and 11).
