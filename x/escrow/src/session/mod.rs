//! The state machine of one session.
