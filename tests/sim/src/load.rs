//! The transactions of a block: drafts signed one by one, some together, some spoiled.

use std::collections::BTreeMap;

use holdfast_app::tx::{Signer, TxBuilder};
use holdfast_proto::Any;
use holdfast_types::Coin;

use crate::cast::{CHAIN_ID, DENOM};
use crate::ops::{self, Draft, Scene};

/// Transactions with the messages in them; none for bytes that are no transaction.
pub(crate) type Load = Vec<(Vec<u8>, Vec<Any>)>;

/// All that users send for the block to come.
pub(crate) fn load(scene: &mut Scene<'_>) -> Load {
    let mut drafts = ops::answers(scene);
    drafts.extend(ops::votes(scene));
    let more = match scene.rng.below(20) {
        0 => 0,
        1 => scene.rng.below(40),
        _ => 3 + scene.rng.below(11),
    };
    for _ in 0..more {
        drafts.push(ops::draw(scene));
    }
    scene.rng.shuffle(&mut drafts);
    for draft in &mut drafts {
        if scene.rng.percent(2) {
            ops::spoil(scene.rng, &mut draft.message);
        }
    }
    let mut signed = Signed::default();
    let mut out = Load::new();
    let mut drafts = drafts.into_iter().peekable();
    while let Some(draft) = drafts.next() {
        let mut group = vec![draft];
        if scene.rng.percent(15) {
            // Several messages, of one signer or of several.
            let size = *scene.rng.pick(&[1, 2, 5]);
            while group.len() <= size
                && let Some(next) = drafts.next()
            {
                group.push(next);
            }
        }
        signed.push(scene, &group, &mut out);
    }
    out
}

/// Sequences used since the last commit, by account.
#[derive(Default)]
struct Signed(BTreeMap<usize, u64>);

impl Signed {
    fn push(&mut self, scene: &mut Scene<'_>, group: &[Draft], out: &mut Load) {
        let mut signers: Vec<usize> = Vec::new();
        for draft in group {
            if !signers.contains(&draft.signer) {
                signers.push(draft.signer);
            }
        }
        let messages: Vec<Any> = group.iter().map(|draft| draft.message.clone()).collect();
        let (gas_limit, fee) = (scene.rng.unsigned(400_000, 3_000_000), scene.rng.unsigned(0, 3_000));
        let mut builder = TxBuilder {
            chain_id: CHAIN_ID.into(),
            account_number: 0,
            sequence: 0,
            fee: Coin { denom: DENOM.into(), amount: fee.into() },
            gas_limit,
            memo: String::new(),
            timeout_height: 0,
            msgs: messages.clone(),
        };
        let accounts: Vec<(u64, u64)> = signers.iter().map(|signer| self.next(scene, *signer)).collect();
        let mut counts = true;
        let mut sequence_off = 0;
        if scene.rng.percent(10) {
            // Wrong in what surrounds the messages.
            match scene.rng.below(9) {
                0 => builder.gas_limit = scene.rng.unsigned(1, 90_000),
                1 => (sequence_off, counts) = (3, false),
                2 => (builder.chain_id, counts) = ("holdfast-sim-2".into(), false),
                3 => builder.memo = "m".repeat(scene.rng.below(400)),
                4 => (builder.timeout_height, counts) = (1, scene.height == 1),
                5 => builder.timeout_height = scene.height.unsigned_abs() + scene.rng.unsigned(0, 3),
                6 => (builder.fee.amount, counts) = (u128::MAX, false),
                7 => (builder.gas_limit, counts) = (scene.rng.unsigned(1 << 40, i64::MAX as u64), false),
                _ => (builder.msgs, counts) = (Vec::new(), false),
            }
        }
        let signed: Vec<Signer<'_>> = signers
            .iter()
            .zip(&accounts)
            .map(|(signer, (account_number, sequence))| Signer {
                key: &scene.cast.accounts[*signer].key,
                account_number: *account_number,
                sequence: sequence + sequence_off,
            })
            .collect();
        let mut raw = builder.sign_all(&signed);
        if scene.rng.percent(2) {
            let at = scene.rng.below(raw.len());
            match scene.rng.below(4) {
                0 => raw[at] ^= 1,
                1 => raw.truncate(at),
                2 => raw.push(0),
                _ => raw = scene.rng.bytes(at),
            }
            counts = false;
        }
        let messages = if builder.msgs.is_empty() { Vec::new() } else { messages };
        if scene.rng.percent(1) {
            out.push((raw.clone(), messages.clone()));
        }
        out.push((raw, messages));
        if counts {
            for signer in signers {
                *self.0.entry(signer).or_default() += 1;
            }
        }
    }

    /// Account number and next sequence.
    fn next(&self, scene: &Scene<'_>, signer: usize) -> (u64, u64) {
        let address = &scene.cast.accounts[signer].address;
        let account = holdfast_auth::Keeper.account(scene.view.query().store, address).ok().flatten();
        let (number, sequence) = account.map_or((0, 0), |account| (account.number, account.sequence));
        (number, sequence + self.0.get(&signer).copied().unwrap_or_default())
    }
}
