//! In-place migrations, a file for each step. The types a step reads are frozen in it.

pub(crate) mod v1;
