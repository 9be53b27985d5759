//! Lines on standard output. `println!` panics when nobody reads them any more; here that is an error as any other, which the
//! command line takes for an end without failure.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes a line.
///
/// # Errors
/// `BrokenPipe` when nobody reads any more; what the system says.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Writes a line about a process that runs on whether anybody reads it or not.
pub(crate) fn notice(text: impl Display) {
    let _ = line(text);
}
