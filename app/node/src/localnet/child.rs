//! A process that ends with its parent: this program starts itself, asks the system for a signal when the parent is gone,
//! and becomes the program wanted.

use std::ffi::OsString;
use std::process::Command;

/// Becomes `program`, bound to the life of the process `parent`, which must be the one that started this.
///
/// # Errors
/// The parent has gone already, or the program cannot be run. On success this does not return.
#[cfg(unix)]
pub fn become_child(parent: u32, program: &OsString, args: &[OsString]) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
    {
        return error.into();
    }
    // It may have gone before the line above.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if now.and_then(|pid| u32::try_from(pid).ok()) != Some(parent) {
        return std::io::Error::other("the process that started this one has ended");
    }
    Command::new(program).args(args).exec()
}
