//! Flags of participants whose state differs from ours, over a typed store.
