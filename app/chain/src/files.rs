//! Files and folders that are there whole or not at all, whenever the process ends.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What is behind the name of a file that is being written.
const FILE: &str = ".part";
/// The same of a folder.
const FOLDER: &str = ".new";

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().map(OsStr::to_owned).unwrap_or_default();
    name.push(end);
    path.with_file_name(name)
}

/// The folder that holds `path`.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Waits until the names in a folder are on disk.
///
/// # Errors
/// File system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // Only Unix can open a folder for that; elsewhere a rename is as durable as the system makes it.
    if cfg!(unix) { fs::File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Writes a file under another name in the same folder, then renames it: a reader sees the old one or the whole new one,
/// also after a crash. What a kill leaves of the other name, the next write takes. `secret` files can be read by their
/// owner only.
///
/// # Errors
/// File system.
pub fn write_whole(path: &Path, bytes: &[u8], secret: bool) -> io::Result<()> {
    // What a link means is its target, which keeps its name; a device or a pipe takes bytes and is not replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = target.as_path();
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let unfinished = beside(path, FILE);
    let write = || {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, if secret { 0o600 } else { 0o644 });
        let mut file = options.open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    let _ = secret;
    write().inspect_err(|_| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&unfinished);
    })?;
    sync_folder(parent(path))
}

/// Where [`create_whole`] makes the folder `path`.
pub fn unfinished(path: &Path) -> PathBuf {
    beside(path, FOLDER)
}

/// Creates a folder: `make` fills one beside `path`, which then takes its place. A database engine cannot open what a kill
/// left of a folder that it was just creating. Nothing, or an empty folder, may be at `path`.
///
/// # Errors
/// What `make` fails with; the file system, by `failed`.
pub fn create_whole<E>(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let (unfinished, parent) = (unfinished(path), parent(path));
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(&failed)?;
    }
    fs::create_dir_all(parent).map_err(&failed)?;
    make(&unfinished)?;
    fs::rename(&unfinished, path).map_err(&failed)?;
    sync_folder(parent).map_err(&failed)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_its_name_and_a_device_stays_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_whole(&link, b"after", false).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"after");

        // A link to the device, so that a fault here would hit the link only.
        let null = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        write_whole(&null, b"gone", false).unwrap();
        assert_eq!(fs::read_link(&null).unwrap(), Path::new("/dev/null"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
