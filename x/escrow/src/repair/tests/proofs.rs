//! Proofs with real keys, over the golden session (escrow-details 2): escrow 7, root 4, host-1.

use holdfast_types::address_of;
use secp256k1::{Message, SECP256K1, SecretKey};
use sha2::{Digest, Sha256};

use super::*;
use crate::session::{Hash, Signature, digest};

const CHAIN: &str = "holdfast-test-1";

fn sha(text: &str) -> Hash {
    Sha256::digest(text).into()
}

fn root_4() -> Hash {
    hash("ad4d2577954bfc9317d1ad9adfdf23e6edd0e2fda8b8deead840c2f857277969")
}

fn hash(text: &str) -> Hash {
    hex::decode(text).unwrap().try_into().unwrap()
}

fn key(name: &str) -> SecretKey {
    SecretKey::from_byte_array(sha(&format!("holdfast-test-key:{name}"))).unwrap()
}

fn addr(name: &str) -> Address {
    address_of(&key(name).public_key(SECP256K1).serialize())
}

fn sign(name: &str, digest: &Hash) -> Signature {
    let (id, compact) =
        SECP256K1.sign_ecdsa_recoverable(Message::from_digest(*digest), &key(name)).serialize_compact();
    let mut out = [0; 65];
    out[..64].copy_from_slice(&compact);
    out[64] = u8::try_from(i32::from(id)).unwrap();
    out
}

fn attempt() -> Attempt<'static> {
    Attempt {
        chain_id: CHAIN,
        escrow_id: 7,
        generation: 1,
        attempt: 2,
        target: 4,
        tip: 6,
        challenge: sha("challenge-1"),
    }
}

/// A reply that owns its bytes.
struct Reply {
    nonce: u64,
    root: Vec<u8>,
    state: Vec<u8>,
    withheld: bool,
    fresh: Option<(u64, Vec<u8>, Vec<u8>)>,
}

impl Reply {
    /// What an honest host answers at `nonce`, signed by `name`.
    fn honest(name: &str, nonce: u64, root: Hash) -> Self {
        let a = attempt();
        let fresh = sign(name, &digest::verify(CHAIN, 7, nonce, &root, a.generation, &a.challenge));
        Self {
            nonce,
            root: root.to_vec(),
            state: sign(name, &digest::state(CHAIN, 7, nonce, &root)).to_vec(),
            withheld: false,
            fresh: Some((a.generation, a.challenge.to_vec(), fresh.to_vec())),
        }
    }

    fn judge_as(&self, attempt: &Attempt<'_>, keys: &[&str]) -> ProofVerdict {
        let keys: Vec<Address> = keys.iter().map(|name| addr(name)).collect();
        let authorised = |address: &Address| keys.contains(address);
        let reply = ProofReply {
            nonce: self.nonce,
            root: &self.root,
            state_signature: &self.state,
            withheld: self.withheld,
            verification: self.fresh.as_ref().map(|(generation, challenge, signature)| Verification {
                generation: *generation,
                challenge,
                signature,
            }),
        };
        verify_proof(attempt, &reply, |nonce| {
            (nonce <= attempt.tip).then_some(OurPoint { root: root_4(), authorised: &authorised })
        })
    }

    fn judge(&self) -> ProofVerdict {
        self.judge_as(&attempt(), &["host-1", "warm-1"])
    }
}

#[test]
fn both_signatures_over_our_root_between_target_and_tip_clear() {
    for nonce in [4, 5, 6] {
        let verdict = Reply::honest("host-1", nonce, root_4()).judge();
        assert_eq!(verdict, ProofVerdict::Verified(ClearProof::for_test(1, 2, nonce)));
        assert_eq!(verdict.event(nonce), RepairEvent::Proof(ClearProof::for_test(1, 2, nonce)));
    }
    // The bound warm key speaks for its owner, in either place.
    let warm = Reply::honest("warm-1", 4, root_4());
    assert!(matches!(warm.judge(), ProofVerdict::Verified(_)));
    let mixed = Reply { fresh: warm.fresh, ..Reply::honest("host-1", 4, root_4()) };
    assert!(matches!(mixed.judge(), ProofVerdict::Verified(_)));
}

#[test]
fn the_golden_signature_is_the_one_we_check() {
    let golden = "2110ded1ce7863f6748c7681e1f88d288ff8e06217c8d3be60f56d5bdfbe21090d4d25b7b19691c0bc11ed535f242d60\
                  b6f2ccf73214b5f3b575b1c8f0efe9b700";
    let reply = Reply { state: hex::decode(golden).unwrap(), ..Reply::honest("host-1", 4, root_4()) };
    assert!(matches!(reply.judge(), ProofVerdict::Verified(_)));
    let verify = hash("76c3dd8bb371b3eb344872909ae76aea5c8cd6bb068fe73e9a4562f00c1ca88a");
    let fresh = Some((1, sha("challenge-1").to_vec(), sign("host-1", &verify).to_vec()));
    assert!(matches!(Reply { fresh, ..reply }.judge(), ProofVerdict::Verified(_)));
}

#[test]
fn a_state_signature_alone_or_an_old_answer_is_not_fresh() {
    let stale = ProofVerdict::CannotTell(Doubt::NotFresh);
    assert_eq!(Reply { fresh: None, ..Reply::honest("host-1", 4, root_4()) }.judge(), stale);
    let honest = Reply::honest("host-1", 4, root_4());
    assert_eq!(honest.judge_as(&Attempt { generation: 2, ..attempt() }, &["host-1"]), stale);
    assert_eq!(honest.judge_as(&Attempt { challenge: sha("challenge-2"), ..attempt() }, &["host-1"]), stale);
    // It says that it is for this attempt, but what is signed is not.
    let old = sign("host-1", &digest::verify(CHAIN, 7, 4, &root_4(), 0, &sha("challenge-0")));
    let claimed = Some((1, sha("challenge-1").to_vec(), old.to_vec()));
    assert_eq!(Reply { fresh: claimed, ..Reply::honest("host-1", 4, root_4()) }.judge(), stale);
    // Another host's answer, one at another nonce, garbage.
    for wrong in [
        sign("host-2", &digest::verify(CHAIN, 7, 4, &root_4(), 1, &sha("challenge-1"))).to_vec(),
        sign("host-1", &digest::verify(CHAIN, 7, 3, &root_4(), 1, &sha("challenge-1"))).to_vec(),
        sign("host-1", &digest::verify(CHAIN, 8, 4, &root_4(), 1, &sha("challenge-1"))).to_vec(),
        vec![7; 65],
        vec![],
    ] {
        let fresh = Some((1, sha("challenge-1").to_vec(), wrong));
        assert_eq!(Reply { fresh, ..Reply::honest("host-1", 4, root_4()) }.judge(), stale);
    }
    assert_eq!(stale.event(4), RepairEvent::Failed(Failure::Malformed));
}

#[test]
fn below_the_target_the_host_is_behind() {
    let verdict = Reply::honest("host-1", 3, root_4()).judge();
    assert_eq!(verdict, ProofVerdict::Behind { nonce: 3 });
    assert_eq!(verdict.event(3), RepairEvent::SignedBehind { nonce: 3 });
}

#[test]
fn a_signature_over_another_root_is_evidence_at_any_nonce_of_ours() {
    for nonce in [2, 4, 6] {
        let reply = Reply::honest("host-1", nonce, sha("other-root"));
        let signed = digest::state(CHAIN, 7, nonce, &sha("other-root"));
        let verdict = reply.judge();
        let expected = ProofVerdict::Diverged {
            nonce,
            root: sha("other-root"),
            digest: signed,
            signature: sign("host-1", &signed),
        };
        assert_eq!(verdict, expected);
        assert_eq!(verdict.event(nonce), RepairEvent::Forked { nonce });
    }
}

#[test]
fn a_nonce_above_our_tip_is_never_a_proof() {
    let verdict = Reply::honest("host-1", 7, root_4()).judge();
    assert!(matches!(verdict, ProofVerdict::AboveTip { nonce: 7, .. }), "{verdict:?}");
    assert_eq!(verdict.event(7), RepairEvent::SignedAboveTip { nonce: 7 });
    // Unsigned, it is nothing at all.
    let unsigned = Reply { state: vec![], ..Reply::honest("host-1", 7, root_4()) };
    assert_eq!(unsigned.judge(), ProofVerdict::CannotTell(Doubt::Unsigned));
}

#[test]
fn unsigned_words_show_nothing() {
    let unsigned = ProofVerdict::CannotTell(Doubt::Unsigned);
    for root in [root_4(), sha("other-root")] {
        assert_eq!(Reply { state: vec![], ..Reply::honest("host-1", 4, root) }.judge(), unsigned);
        assert_eq!(Reply { state: vec![0; 65], ..Reply::honest("host-1", 4, root) }.judge(), unsigned);
        assert_eq!(Reply { state: vec![0; 64], ..Reply::honest("host-1", 4, root) }.judge(), unsigned);
    }
    assert_eq!(Reply { root: vec![1; 31], ..Reply::honest("host-1", 4, root_4()) }.judge(), unsigned);
    // Another host's signature over another root blames nobody.
    assert_eq!(Reply::honest("host-2", 4, sha("other-root")).judge(), unsigned);
    // The signature belongs to another root than the one that stands beside it.
    let mixed = Reply { root: sha("other-root").to_vec(), ..Reply::honest("host-1", 4, root_4()) };
    assert_eq!(mixed.judge(), unsigned);
}

#[test]
fn withheld_and_unbound_keys_are_told_apart() {
    let withheld =
        Reply { state: vec![], withheld: true, fresh: None, ..Reply::honest("host-1", 4, root_4()) };
    assert_eq!(withheld.judge(), ProofVerdict::CannotTell(Doubt::Withheld));
    assert_eq!(withheld.judge().event(4), RepairEvent::Withheld { nonce: 4 });
    let beyond = Reply { nonce: 7, root: withheld.root.clone(), state: vec![], withheld: true, fresh: None };
    assert_eq!(beyond.judge(), ProofVerdict::CannotTell(Doubt::Unsigned), "withheld above our tip");
    let elsewhere = Reply { root: sha("other-root").to_vec(), ..withheld };
    assert_eq!(elsewhere.judge(), ProofVerdict::CannotTell(Doubt::WithheldElsewhere));
    assert_eq!(elsewhere.judge().event(4), RepairEvent::Forked { nonce: 4 });

    let unbound = Reply::honest("warm-2", 4, root_4()).judge();
    assert_eq!(unbound, ProofVerdict::CannotTell(Doubt::KeyNotBound(addr("warm-2"))));
    assert_eq!(unbound.event(4), RepairEvent::KeyNotBound);
}

#[test]
fn without_our_own_root_nobody_is_blamed() {
    let reply = Reply::honest("host-1", 4, sha("other-root"));
    let asked = ProofReply {
        nonce: 4,
        root: &reply.root,
        state_signature: &reply.state,
        withheld: false,
        verification: None,
    };
    let verdict = verify_proof(&attempt(), &asked, |_| None);
    assert_eq!(verdict, ProofVerdict::CannotTell(Doubt::OurRootUnknown));
    assert_eq!(verdict.event(4), RepairEvent::StoreUnreadable);
}

#[test]
fn both_replies_of_the_wire_are_read() {
    use holdfast_proto::holdfast::host::v1 as pb;
    let honest = Reply::honest("host-1", 4, root_4());
    let (generation, challenge, signature) = honest.fresh.clone().unwrap();
    let verification = Some(pb::Verification { generation, challenge, signature });
    let applied = pb::Applied {
        nonce: 4,
        root: honest.root.clone(),
        state_signature: honest.state.clone(),
        verification: verification.clone(),
        ..Default::default()
    };
    let signatures = pb::GetSignaturesResponse {
        have_nonce: 6,
        nonce: 4,
        root: honest.root,
        state_signature: honest.state,
        verification,
        ..Default::default()
    };
    let authorised = |address: &Address| *address == addr("host-1");
    let ours = |_| Some(OurPoint { root: root_4(), authorised: &authorised });
    let proof = ProofVerdict::Verified(ClearProof::for_test(1, 2, 4));
    assert_eq!(verify_proof(&attempt(), &ProofReply::from(&applied), ours), proof);
    assert_eq!(verify_proof(&attempt(), &ProofReply::from(&signatures), ours), proof);
}
