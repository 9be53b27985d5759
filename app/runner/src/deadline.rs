//! The five deadlines and the heartbeat of a session (runner-details 8).
