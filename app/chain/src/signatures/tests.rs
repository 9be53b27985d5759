use std::num::NonZero;

use k256::ecdsa::signature::hazmat::PrehashVerifier;

use super::{HALF_ORDER, SignatureCache, SignatureCheck, SignatureError, cores, verify_batch};
use crate::keys::SecretKey;

const ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xba,
    0xae, 0xdc, 0xe6, 0xaf, 0x48, 0xa0, 0x3b, 0xbf, 0xd2, 0x5e, 0x8c, 0xd0, 0x36, 0x41, 0x41,
];

fn threads(n: usize) -> NonZero<usize> {
    NonZero::new(n).unwrap()
}

fn key() -> SecretKey {
    SecretKey::from_seed_label(b"signatures", "a")
}

fn minus(a: &[u8; 32], b: &[u8]) -> [u8; 32] {
    let (mut out, mut borrow) = ([0; 32], 0);
    for i in (0..32).rev() {
        let d = i16::from(a[i]) - i16::from(b[i]) - borrow;
        borrow = i16::from(d < 0);
        out[i] = u8::try_from(d.rem_euclid(256)).unwrap();
    }
    out
}

/// The other signature that the curve's equation accepts: (r, order - s).
pub(crate) fn high_s_twin(signature: &[u8; 64]) -> [u8; 64] {
    let mut twin = *signature;
    twin[32..].copy_from_slice(&minus(&ORDER, &signature[32..]));
    twin
}

fn check(signature: &[u8]) -> SignatureCheck {
    SignatureCheck::new(b"message", key().public_key(), signature)
}

#[test]
fn a_good_signature_passes_and_its_high_s_twin_does_not() {
    let good = key().sign(b"message");
    assert_eq!(check(&good).verify(), Ok(()));
    let twin = high_s_twin(&good);
    assert_eq!(check(&twin).verify(), Err(SignatureError::HighS));
    // It is a twin indeed: normalised, it is the good one.
    let mut normalised = secp256k1::ecdsa::Signature::from_compact(&twin).unwrap();
    normalised.normalize_s();
    assert_eq!(normalised.serialize_compact(), good);
}

#[test]
fn the_largest_s_taken_is_half_the_order() {
    assert_eq!(minus(&minus(&ORDER, &HALF_ORDER), &HALF_ORDER), {
        let mut one = [0; 32];
        one[31] = 1;
        one
    });
    let mut signature = key().sign(b"message");
    signature[32..].copy_from_slice(&HALF_ORDER);
    assert_eq!(check(&signature).verify(), Err(SignatureError::Mismatch));
    signature[63] += 1;
    assert_eq!(check(&signature).verify(), Err(SignatureError::HighS));
}

#[test]
fn malformed_signatures_are_refused_by_kind() {
    let good = key().sign(b"message");
    for length in [0, 1, 63, 65, 72, 128] {
        let bytes: Vec<u8> = good.iter().copied().cycle().take(length).collect();
        assert_eq!(check(&bytes).verify(), Err(SignatureError::Length(length)));
    }
    let mut r_too_large = good;
    r_too_large[..32].copy_from_slice(&ORDER);
    assert_eq!(check(&r_too_large).verify(), Err(SignatureError::Range));
    let mut r_zero = good;
    r_zero[..32].fill(0);
    let mut s_zero = good;
    s_zero[32..].fill(0);
    for bad in [r_zero, s_zero, [0; 64]] {
        assert!(check(&bad).verify().is_err());
    }
    let other_key = SecretKey::from_seed_label(b"signatures", "b").public_key();
    assert_eq!(SignatureCheck::new(b"message", other_key, &good).verify(), Err(SignatureError::Mismatch));
    assert_eq!(
        SignatureCheck::new(b"messagE", key().public_key(), &good).verify(),
        Err(SignatureError::Mismatch)
    );
}

/// 50 checks; every seventh is spoilt.
fn mixed() -> Vec<SignatureCheck> {
    (0..50_u8)
        .map(|i| {
            let key = SecretKey::from_seed_label(b"mixed", &i.to_string());
            let mut signature = key.sign(&[i]);
            signature[5] ^= u8::from(i % 7 == 0);
            SignatureCheck::new(&[i], key.public_key(), &signature)
        })
        .collect()
}

#[test]
fn a_batch_answers_by_index_whatever_the_number_of_threads() {
    let checks = mixed();
    let one_by_one: Vec<_> = checks.iter().map(SignatureCheck::verify).collect();
    assert_eq!(one_by_one.iter().filter(|r| r.is_err()).count(), 8);
    for n in [1, 2, 3, 7, 64] {
        assert_eq!(verify_batch(&checks, threads(n)), one_by_one, "{n} threads");
    }
    assert_eq!(verify_batch(&checks, cores()), one_by_one);
    assert!(verify_batch(&[], threads(4)).is_empty());
}

#[test]
fn another_library_agrees_on_every_check() {
    for check in mixed() {
        let key = k256::ecdsa::VerifyingKey::from_sec1_bytes(&check.public_key.to_bytes()).unwrap();
        let theirs = k256::ecdsa::Signature::from_slice(&check.signature)
            .is_ok_and(|signature| key.verify_prehash(&check.digest, &signature).is_ok());
        assert_eq!(check.verify().is_ok(), theirs);
    }
}

#[test]
fn a_good_signature_is_computed_once_and_a_bad_one_each_time() {
    let cache = SignatureCache::new(threads(10));
    let (good, bad) = (check(&key().sign(b"message")), check(&[1; 64]));
    assert_eq!((cache.verify(&good), cache.verify(&good), cache.verify(&good)), (Ok(()), Ok(()), Ok(())));
    assert_eq!((cache.verified(), cache.hits(), cache.len()), (1, 2, 1));
    assert_eq!(cache.verify(&bad), Err(SignatureError::Mismatch));
    assert_eq!(cache.verify(&bad), Err(SignatureError::Mismatch));
    assert_eq!((cache.verified(), cache.hits(), cache.len()), (3, 2, 1));
}

#[test]
fn warming_the_cache_leaves_only_bad_signatures_to_compute() {
    let cache = SignatureCache::new(threads(1000));
    cache.warm(mixed(), threads(3));
    assert_eq!((cache.verified(), cache.len()), (50, 42));
    cache.warm(mixed(), threads(3));
    assert_eq!((cache.verified(), cache.len()), (58, 42));
    for check in mixed() {
        assert_eq!(cache.verify(&check), check.verify());
    }
    assert_eq!((cache.verified(), cache.hits()), (66, 42));
}

#[test]
fn a_cached_signature_vouches_for_nothing_but_itself() {
    let cache = SignatureCache::new(threads(10));
    let good = key().sign(b"message");
    cache.verify(&check(&good)).unwrap();
    let other_key = SecretKey::from_seed_label(b"signatures", "b").public_key();
    for other in [
        check(&high_s_twin(&good)),
        SignatureCheck::new(b"other", key().public_key(), &good),
        SignatureCheck::new(b"message", other_key, &good),
    ] {
        assert!(cache.verify(&other).is_err());
    }
    assert_eq!(cache.hits(), 0);
}

#[test]
fn the_cache_keeps_the_last_entries_and_stays_bounded() {
    let cache = SignatureCache::new(threads(5));
    let good: Vec<_> = mixed().into_iter().filter(|check| check.verify().is_ok()).collect();
    for (i, check) in good.iter().enumerate() {
        cache.verify(check).unwrap();
        assert!(cache.len() <= 10);
        // The last five are always there.
        let before = cache.verified();
        for recent in &good[i.saturating_sub(4)..=i] {
            cache.verify(recent).unwrap();
        }
        assert_eq!(cache.verified(), before);
    }
    let before = cache.verified();
    cache.verify(&good[0]).unwrap();
    assert_eq!(cache.verified(), before + 1, "the first entry was forgotten");
}
