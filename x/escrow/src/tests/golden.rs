//! Stored bytes. A change here is a change of consensus: it needs a new consensus version and a migration.

use holdfast_types::Address;
use holdfast_types::traits::Stamp;

use crate::session::FrozenConfig;
use crate::{Dispute, Escrow, HostTally, Outcome, Params, Status};

fn hex(value: &impl borsh::BorshSerialize) -> String {
    hex::encode(borsh::to_vec(value).unwrap())
}

/// Little-endian numbers of a width, in bytes.
fn le(width: usize, numbers: &[u8]) -> String {
    numbers.iter().map(|n| format!("{n:02x}{}", "00".repeat(width - 1))).collect()
}

fn tally(owner: u8) -> HostTally {
    HostTally {
        owner: Address([owner; 20]),
        started: 1,
        completed: 2,
        missed: 3,
        errored: 4,
        released: 5,
        drained: 6,
        cost: 7,
    }
}

#[test]
fn an_escrow_keeps_its_bytes() {
    let mut escrow = Escrow {
        status: Status::Disputed,
        config: FrozenConfig {
            chain_id: "c".into(),
            escrow_id: 1,
            creator: Address([1; 20]),
            gateway: Address([2; 20]),
            model: "m".into(),
            slots: vec![Address([3; 20])],
            amount: 4,
            create_fee: 5,
            fee_per_nonce: 6,
            token_price: 7,
            refusal_timeout_s: 8,
            execution_timeout_s: 9,
            vote_threshold_bp: 10,
            cancel_charge_bp: 11,
            seal_grace_nonces: 12,
            max_nonce: 13,
            max_live: 14,
        },
        denom: "ab1".into(),
        gateway_url: "u".into(),
        epoch: 15,
        created_at: 16,
        expires_at: 17,
        dispute_window: 18,
        stamps: vec![(Address([3; 20]), Stamp { epoch: 19, generation: 20, evidence: true })],
        dispute: Some(Dispute {
            nonce: 21,
            sender: Address([1; 20]),
            fees: 22,
            hosts: vec![tally(3)],
            opened_at: 23,
            closes_at: 24,
        }),
        outcome: None,
    };
    let address = |n: u8| format!("{n:02x}").repeat(20);
    let string = |text: &str| format!("{}{}", le(4, &[text.len() as u8]), hex::encode(text));
    let tally_hex = [address(3), le(8, &[1, 2, 3, 4, 5, 6]), le(16, &[7])].concat();
    let config = [
        string("c"),
        le(8, &[1]),
        address(1),
        address(2),
        string("m"),
        le(4, &[1]),
        address(3),
        le(16, &[4, 5, 6, 7]),
        le(4, &[8, 9]),
        le(2, &[10, 11]),
        le(4, &[12]),
        le(8, &[13]),
        le(4, &[14]),
    ]
    .concat();
    let rest = [
        string("ab1"),
        string("u"),
        le(8, &[15, 16, 17, 18]),
        le(4, &[1]),
        address(3),
        le(8, &[19]),
        le(4, &[20]),
        "01".into(),
    ]
    .concat();
    let dispute =
        [le(8, &[21]), address(1), le(16, &[22]), le(4, &[1]), tally_hex.clone(), le(8, &[23, 24])].concat();
    assert_eq!(hex(&escrow), ["02", &config, &rest, "01", &dispute, "00"].concat());

    escrow.status = Status::Settled;
    escrow.dispute = None;
    escrow.outcome =
        Some(Outcome { nonce: 21, paid: 22, fees: 23, refunded: 24, hosts: vec![tally(3)], end_height: 25 });
    let outcome = [le(8, &[21]), le(16, &[22, 23, 24]), le(4, &[1]), tally_hex, le(8, &[25])].concat();
    assert_eq!(hex(&escrow), ["03", &config, &rest, "00", "01", &outcome].concat());
    assert_eq!([Status::Open, Status::Expired].map(|s| hex(&s)), ["01", "04"]);
}

#[test]
fn parameters_keep_their_bytes() {
    let params = Params {
        denom: "ab1".into(),
        create_fee: 1,
        fee_per_nonce: 2,
        token_price: 3,
        refusal_timeout_s: 4,
        execution_timeout_s: 5,
        vote_threshold_bp: 6,
        cancel_charge_bp: 7,
        seal_grace_rounds: 8,
        max_nonce: 9,
        max_live: 10,
        max_slots_per_owner: 11,
        max_slots: 12,
        max_lifetime_blocks: 13,
        dispute_window_blocks: 14,
    };
    let expected = [
        "03000000616231".to_owned(),
        le(16, &[1, 2, 3]),
        le(4, &[4, 5]),
        le(2, &[6, 7]),
        le(4, &[8]),
        le(8, &[9]),
        le(4, &[10, 11, 12]),
        le(8, &[13, 14]),
    ]
    .concat();
    assert_eq!(hex(&params), expected);
}
