//! Vectors: the BIP39 reference list, the address every Cosmos wallet shows for its first phrase, and a published
//! RFC 6979 signature.

use holdfast_types::{Address, Hrp};

use sha2::{Digest, Sha256};

use super::{KeyError, PublicKey, SecretKey, mnemonic_from_entropy, recover};

const ABANDON_12: &str =
    "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";

fn order() -> Vec<u8> {
    hex::decode("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141").unwrap()
}

#[test]
fn a_mnemonic_gives_the_address_that_cosmos_wallets_show() {
    let key = SecretKey::from_mnemonic(ABANDON_12, 0).unwrap();
    let cosmos = Hrp::new("cosmos").unwrap();
    assert_eq!(key.address().to_bech32(&cosmos), "cosmos19rl4cm2hmr8afy4kldpxz3fka4jguq0auqdal4");
    let spread = format!("  {}\n", ABANDON_12.replace(' ', " \n "));
    assert_eq!(SecretKey::from_mnemonic(&spread, 0).unwrap().to_bytes(), key.to_bytes());
    assert_ne!(SecretKey::from_mnemonic(ABANDON_12, 1).unwrap().to_bytes(), key.to_bytes());
}

#[test]
fn entropy_gives_the_phrases_of_the_bip39_list() {
    assert_eq!(mnemonic_from_entropy(&[0; 16]).unwrap(), ABANDON_12);
    let words = mnemonic_from_entropy(&[0xff; 32]).unwrap();
    assert_eq!(words, ["zoo"; 23].join(" ") + " vote");
    assert!(SecretKey::from_mnemonic(&words, 0).is_ok());
    for length in [0, 15, 17, 31, 33] {
        assert!(
            matches!(mnemonic_from_entropy(&vec![1; length]), Err(KeyError::Mnemonic(_))),
            "{length} bytes"
        );
    }
}

#[test]
fn bad_phrases_and_indices_are_refused() {
    let wrong_checksum = ABANDON_12.replace("about", "abandon");
    let unknown_word = ABANDON_12.replace("about", "holdfast");
    let too_short = "abandon abandon abandon about";
    for phrase in [wrong_checksum.as_str(), unknown_word.as_str(), too_short, ""] {
        let error = SecretKey::from_mnemonic(phrase, 0).unwrap_err();
        assert!(matches!(error, KeyError::Mnemonic(_)), "{phrase:?}: {error}");
    }
    assert!(SecretKey::from_mnemonic(ABANDON_12, (1 << 31) - 1).is_ok());
    assert_eq!(SecretKey::from_mnemonic(ABANDON_12, 1 << 31).unwrap_err(), KeyError::Index(1 << 31));
}

#[test]
fn a_signature_is_the_one_rfc_6979_asks_for() {
    let mut one = [0; 32];
    one[31] = 1;
    let key = SecretKey::from_bytes(&one).unwrap();
    let expected = "934b1ea10a4b3c1757e2b0c017d0b6143ce3c9a7e6a4a49860d7a6ab210ee3d8\
                    2442ce9d2b916064108014783e923ec36b49743e2ffa1c4496f01a512aafd9e5";
    assert_eq!(hex::encode(key.sign(b"Satoshi Nakamoto")), expected);
    assert_eq!(key.sign(b"Satoshi Nakamoto"), key.sign(b"Satoshi Nakamoto"));
    // The generator point, and its well-known hash.
    let generator = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
    assert_eq!(hex::encode(key.public_key().to_bytes()), generator);
    assert_eq!(key.address().to_hex(), "751e76e8199196d454941c45d1b3a323f1433bd6");
}

#[test]
fn bytes_outside_the_group_are_no_secret_key() {
    let mut largest = order();
    largest[31] -= 1;
    assert!(SecretKey::from_bytes(&largest).is_ok());
    for bad in [order(), vec![0; 32], vec![0xff; 32], vec![1; 31], vec![1; 33], vec![]] {
        assert_eq!(SecretKey::from_bytes(&bad).unwrap_err(), KeyError::Secret, "{}", hex::encode(bad));
    }
}

#[test]
fn only_compressed_points_of_the_curve_are_public_keys() {
    let key = SecretKey::from_seed_label(b"seed", "a").public_key();
    assert_eq!(PublicKey::from_bytes(&key.to_bytes()), Ok(key));
    let mut off_curve = [0; 33];
    off_curve[0] = 2;
    // x = 5 has no y: 5^3 + 7 = 132 is no square modulo the field prime.
    off_curve[32] = 5;
    let mut uncompressed_tag = key.to_bytes();
    uncompressed_tag[0] = 4;
    for bad in [&off_curve[..], &uncompressed_tag[..], &key.to_bytes()[..32], &[2; 65][..], &[]] {
        assert_eq!(PublicKey::from_bytes(bad).unwrap_err(), KeyError::Public { length: bad.len() });
    }
}

#[test]
fn a_seed_and_a_label_give_one_key_for_ever() {
    let key = SecretKey::from_seed_label(b"seed", "gateway-0");
    assert_eq!(key.to_bytes(), SecretKey::from_seed_label(b"seed", "gateway-0").to_bytes());
    let by_hand = {
        use sha2::{Digest, Sha256};
        let mut input = b"holdfast/key/v1".to_vec();
        input.extend(Sha256::digest(b"seed"));
        input.extend([0; 8]);
        input.extend(b"gateway-0");
        <[u8; 32]>::from(Sha256::digest(input))
    };
    assert_eq!(key.to_bytes(), by_hand);
    for (seed, label) in [("seed", "gateway-1"), ("seedg", "ateway-0"), ("", "gateway-0"), ("seed", "")] {
        assert_ne!(key.to_bytes(), SecretKey::from_seed_label(seed.as_bytes(), label).to_bytes());
    }
}

#[test]
fn debug_text_of_a_secret_key_names_its_address_only() {
    let key = SecretKey::from_seed_label(b"seed", "a");
    let text = format!("{key:?}");
    assert!(text.contains(&key.address().to_hex()));
    assert!(!text.contains(&hex::encode(key.to_bytes())));
    assert_ne!(key.address(), Address([0; 20]));
}

#[test]
fn the_key_is_read_off_a_recoverable_signature_in_its_one_form_only() {
    // Key and address of the specification's test vectors.
    let key = SecretKey::from_bytes(&Sha256::digest("holdfast-test-key:gateway")).unwrap();
    let address = hex::encode(key.address().0);
    assert_eq!(address, "a319cfc77fccb790bee3a2f9153dcb60ffb6b8fc");
    for message in ["", "a", "b", "c", "d"] {
        let digest = Sha256::digest(message).into();
        let signature = key.sign_recoverable(digest);
        assert_eq!(signature[..64], key.sign(message.as_bytes()));
        assert_eq!(recover(digest, &signature), Ok(key.address()));

        let mut other = signature;
        other[64] ^= 1;
        assert_ne!(recover(digest, &other), Ok(key.address()));
        other[64] = 2;
        assert_eq!(recover(digest, &other), Err(KeyError::Signature));
        // n − s with the other v names the same key, and is refused.
        let mut high = signature;
        let mut borrow = 0_i16;
        for (i, n) in order().into_iter().enumerate().rev() {
            let difference = i16::from(n) - i16::from(signature[32 + i]) - borrow;
            borrow = i16::from(difference < 0);
            high[32 + i] = difference.rem_euclid(256) as u8;
        }
        high[64] ^= 1;
        assert_eq!(recover(digest, &high), Err(KeyError::Signature));
        assert_eq!(recover(digest, &[0; 65]), Err(KeyError::Signature));
    }
}
