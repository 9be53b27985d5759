//! A small deterministic Llama: the same bytes on every machine (runner-details 3).
