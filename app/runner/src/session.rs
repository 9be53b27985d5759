//! One attempt as a state machine: events in, effects out.
