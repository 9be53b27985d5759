//! The repair of one flagged participant as a pure state machine.
