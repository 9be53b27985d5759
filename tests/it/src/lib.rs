//! holdfast-it.
