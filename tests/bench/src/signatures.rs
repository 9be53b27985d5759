//! Signature verification by itself: the library in use beside the one not chosen, and a batch on all cores.

use anyhow::{Context, Result, ensure};
use holdfast_app::keys::SecretKey;
use holdfast_app::signatures::{SignatureCheck, cores, verify_batch};
use k256::ecdsa::signature::hazmat::PrehashVerifier;
use k256::ecdsa::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};

use crate::measure::timed;
use crate::{Better, Outcome, Row, median};

/// Bytes of a signed document, about those of a transaction.
const DOCUMENT_BYTES: usize = 400;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Signatures, each of a key of its own.
    pub signatures: usize,
    /// Rounds, of which the median counts.
    pub rounds: usize,
}

impl Size {
    /// The measurement.
    pub const FULL: Self = Self { signatures: 2_000, rounds: 9 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { signatures: 50, rounds: 2 };
}

/// Signatures ready to be verified.
pub fn checks(count: usize) -> Vec<SignatureCheck> {
    (0..count).map(|index| sample(index).1).collect()
}

fn sample(index: usize) -> (SecretKey, SignatureCheck, Vec<u8>, [u8; 64]) {
    let key = SecretKey::from_seed_label(b"bench", &index.to_string());
    let mut document = vec![0x5a; DOCUMENT_BYTES];
    for (byte, n) in document.iter_mut().zip((index as u64).to_be_bytes()) {
        *byte = n;
    }
    let signature = key.sign(&document);
    let check = SignatureCheck::new(&document, key.public_key(), &signature);
    (key, check, document, signature)
}

/// Verifies all, one after the other.
pub fn verify_all(checks: &[SignatureCheck]) -> Result<()> {
    for check in checks {
        std::hint::black_box(check).verify()?;
    }
    Ok(())
}

/// One k256 check: key parsed beforehand, as ours has its point; signature parsed within, as ours.
struct Other {
    key: VerifyingKey,
    digest: [u8; 32],
    signature: [u8; 64],
}

impl Other {
    fn verify(&self) -> Result<()> {
        let signature = Signature::from_slice(&self.signature).context("k256 refuses a signature")?;
        ensure!(signature.normalize_s().is_none(), "a high s");
        self.key.verify_prehash(&self.digest, &signature).context("k256 refuses a signature")
    }
}

/// Runs all three, in turn in each round.
pub fn run(size: Size) -> Result<Outcome> {
    let mut ours = Vec::new();
    let mut others = Vec::new();
    for index in 0..size.signatures {
        let (key, check, document, signature) = sample(index);
        let key =
            VerifyingKey::from_sec1_bytes(&key.public_key().to_bytes()).context("k256 refuses a key")?;
        others.push(Other { key, digest: Sha256::digest(&document).into(), signature });
        ours.push(check);
    }
    let (mut one, mut one_cpu, mut k256, mut k256_cpu, mut batch) = (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..size.rounds {
        let (done, took) = timed(|| verify_all(&ours));
        done?;
        one.push(took.wall_us(ours.len()));
        one_cpu.push(took.cpu_us(ours.len()));
        let (done, took) = timed(|| others.iter().try_for_each(|other| std::hint::black_box(other).verify()));
        done?;
        k256.push(took.wall_us(others.len()));
        k256_cpu.push(took.cpu_us(others.len()));
        let (results, took) = timed(|| verify_batch(&ours, cores()));
        ensure!(results.iter().all(Result::is_ok), "the batch refuses a signature");
        batch.push(took.wall_us(ours.len()));
    }
    let rate = |us: &[f64]| 1e6 / median(us);
    let rows = vec![
        Row::new("signatures.one_thread", "1/s", rate(&one)).against(
            "k256, one thread",
            rate(&k256),
            Better::Higher,
        ),
        Row::new("signatures.one_thread_cpu", "us", median(&one_cpu)).against(
            "k256, one thread",
            median(&k256_cpu),
            Better::Lower,
        ),
        Row::new("signatures.all_cores", "1/s", rate(&batch)).against(
            "one thread",
            rate(&one),
            Better::Higher,
        ),
    ];
    let details =
        serde_json::json!({ "one_us": one, "k256_us": k256, "batch_us": batch, "cores": cores().get() });
    Ok(Outcome { rows, details })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_take_the_signatures_and_refuse_a_changed_one() {
        let outcome = run(Size { signatures: 10, rounds: 1 }).unwrap();
        assert!(outcome.rows.iter().all(|row| row.value > 0.0 && row.ratio.is_some()));
        let (key, _, document, mut signature) = sample(3);
        signature[5] ^= 1;
        assert!(verify_all(&[SignatureCheck::new(&document, key.public_key(), &signature)]).is_err());
        let key = VerifyingKey::from_sec1_bytes(&key.public_key().to_bytes()).unwrap();
        assert!(Other { key, digest: Sha256::digest(&document).into(), signature }.verify().is_err());
    }
}
