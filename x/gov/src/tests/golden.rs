//! Stored bytes. A change here is a change of consensus: it needs a new consensus version and a migration.

use super::*;
use crate::calc::{Power, Share, Sums};
use holdfast_types::Coin;

fn hex(value: &impl borsh::BorshSerialize) -> String {
    hex::encode(borsh::to_vec(value).unwrap())
}

const A1: &str = "0101010101010101010101010101010101010101";

#[test]
fn stored_types_keep_their_bytes() {
    let coin = Coin { denom: "ab1".into(), amount: 258 };
    let coin_hex = format!("0300000061623102010000{}", "0".repeat(24));
    assert_eq!(hex(&coin), coin_hex);
    let proposal = Proposal {
        status: ProposalStatus::Failed,
        proposer: addr(1),
        expedited: true,
        submit_ns: 1,
        deposit_end_ns: 2,
        voting: Some(Voting { start_ns: 3, end_ns: 4 }),
        total_deposit: vec![coin.clone()],
        tally: Tally { yes: 5, abstain: 6, no: 7, no_with_veto: 8 },
        failed_reason: "x".into(),
    };
    let u64s = |ns: &[u8]| ns.iter().map(|n| format!("{n:02x}{}", "0".repeat(14))).collect::<String>();
    let u128s = |ns: &[u8]| ns.iter().map(|n| format!("{n:02x}{}", "0".repeat(30))).collect::<String>();
    let expected = format!(
        "04{A1}01{}01{}01000000{coin_hex}{}0100000078",
        u64s(&[1, 2]),
        u64s(&[3, 4]),
        u128s(&[5, 6, 7, 8])
    );
    assert_eq!(hex(&proposal), expected);
    let content = Content {
        messages: vec![StoredMessage { type_url: "/a".into(), value: vec![9] }],
        title: "t".into(),
        summary: "s".into(),
        metadata: "".into(),
    };
    let expected = "01000000020000002f610100000009010000007401000000730000 0000".replace(' ', "");
    assert_eq!(hex(&content), expected);
    let option = |option, weight| WeightedOption { option, weight };
    let vote = Vote {
        options: vec![
            option(VoteOption::Yes, Share::per_mille(500)),
            option(VoteOption::NoWithVeto, Share::ONE),
        ],
        metadata: "m".into(),
    };
    // 0.5 and 1 in units of 10^-18, little-endian.
    assert_eq!(hex(&vote), "0200000000 0000b2d3595bf006 03 000064a7b3b6e00d 010000006d".replace(' ', ""));
    let sums = Sums { yes: Power { whole: 1, fraction: 2 }, ..Sums::default() };
    let progress = TallyProgress { last_voter: Some(addr(1)), total_power: 3, sums };
    let expected = format!("01{A1}{}{}{}{}", u128s(&[3]), u128s(&[1]), u64s(&[2]), "0".repeat(2 * 3 * 24));
    assert_eq!(hex(&progress), expected);
    let settlement = |kind| Settlement { kind, last_depositor: None, left_over: true };
    assert_eq!(hex(&settlement(SettlementKind::Refund)), "000001");
    assert_eq!(hex(&settlement(SettlementKind::Burn)), "010001");
    let charge = SettlementKind::Charge { ratio: Share::ONE, destination: Some(addr(1)) };
    assert_eq!(hex(&settlement(charge)), format!("02000064a7b3b6e00d01{A1}0001"));
    let plan = Plan { name: "v2".into(), height: 7, info: "i".into() };
    assert_eq!(hex(&plan), format!("020000007632{}0100000069", u64s(&[7])));
    assert_eq!(hex(&Params::default()), PARAMS_HEX.replace(' ', ""),);
}

/// 10,000,000 uhold; two periods of 172,800 s; seven shares around an absent address and 86,400 s; 50,000,000 uhold; flags.
const PARAMS_HEX: &str = "\
    010000000500000075686f6c6480969800000000000000000000000000 \
    00009e22299d000000009e22299d0000 \
    0000fbfa3a9ba2040000b2d3595bf0060000fbfa3a9ba20400000000000000000000b2d3595bf006 \
    00 \
    00004f91944e000000802f51f7a84109 \
    010000000500000075686f6c6480f0fa02000000000000000000000000 \
    0000010000c16ff2862300";
