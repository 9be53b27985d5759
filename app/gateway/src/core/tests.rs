//! Scripted hosts over virtual time.
