//! Protobuf forms of what crosses the border of the chain.

use std::collections::BTreeMap;

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::traits::Stamp;
use holdfast_types::{Address, Coin, Hrp, Signature};

use crate::errors::EscrowError;
use crate::msgs::{address, check_url};
use crate::session::settle::{Settlement, SlotSignature};
use crate::session::{BoundKey, FrozenConfig, Hash, HostStats, MAX_SLOTS, PROTOCOL, Phase};
use crate::types::{Dispute, Escrow, HostTally, Outcome, Status};

/// Address of a revoked binding.
const NOBODY: Address = Address([0; 20]);

fn amount(field: &str, text: &str) -> Result<u128, EscrowError> {
    Coin::parse_amount(text).map_err(|e| EscrowError::invalid(field, e.to_string()))
}

fn hash(field: &str, bytes: &[u8]) -> Result<Hash, EscrowError> {
    let bad = |_| EscrowError::invalid(field, format!("must be 32 bytes, has {}", bytes.len()));
    bytes.try_into().map_err(bad)
}

fn signature(field: &str, bytes: &[u8]) -> Result<Signature, EscrowError> {
    let bad = |_| EscrowError::invalid(field, format!("must be 65 bytes, has {}", bytes.len()));
    bytes.try_into().map_err(bad)
}

fn slot(field: &str, number: u32) -> Result<u8, EscrowError> {
    let known = u8::try_from(number).ok().filter(|n| usize::from(*n) < MAX_SLOTS);
    known.ok_or_else(|| EscrowError::invalid(field, format!("{number} is no slot; they are 0 to 127")))
}

fn at_most(field: &str, rows: usize) -> Result<(), EscrowError> {
    if rows <= MAX_SLOTS {
        return Ok(());
    }
    Err(EscrowError::invalid(field, format!("has {rows} rows, at most {MAX_SLOTS}")))
}

/// Reads a state that is brought to the chain. The result may still fail
/// [`verify`](crate::session::settle::verify).
pub fn settlement_from_pb(
    escrow_id: u64,
    given: &pb::Settlement,
    hrp: &Hrp,
) -> Result<Settlement, EscrowError> {
    at_most("settlement.stats", given.stats.len())?;
    at_most("settlement.keys", given.keys.len())?;
    at_most("settlement.signatures", given.signatures.len())?;
    let phase = match pb::SessionPhase::try_from(given.phase) {
        Ok(pb::SessionPhase::Active) => Phase::Active,
        Ok(pb::SessionPhase::Finalizing) => Phase::Finalizing,
        Ok(pb::SessionPhase::Frozen) => Phase::Frozen,
        Err(_) => return Err(EscrowError::invalid("settlement.phase", "must be 0, 1 or 2")),
    };
    let row = |row: &pb::SlotStats| {
        Ok(HostStats {
            slot: slot("settlement.stats.slot", row.slot)?,
            started: row.started,
            completed: row.completed,
            missed: row.missed,
            errored: row.errored,
            released: row.released,
            drained: row.drained,
            cost: amount("settlement.stats.cost", &row.cost)?,
        })
    };
    let mut keys: BTreeMap<Address, BoundKey> = BTreeMap::new();
    for key in &given.keys {
        let owner = address("settlement.keys.owner", &key.owner, hrp)?;
        let warm = match key.warm.as_str() {
            "" => NOBODY,
            text => address("settlement.keys.warm", text, hrp)?,
        };
        if keys.last_key_value().is_some_and(|(last, _)| *last >= owner) {
            return Err(EscrowError::invalid("settlement.keys", "must ascend by raw owner address"));
        }
        let sig = signature("settlement.keys.signature", &key.signature)?;
        keys.insert(owner, BoundKey { warm, seq: key.seq, sig });
    }
    let slot_signature = |row: &pb::SlotSignature| {
        let slot = slot("settlement.signatures.slot", row.slot)?;
        Ok(SlotSignature { slot, sig: signature("settlement.signatures.signature", &row.signature)? })
    };
    Ok(Settlement {
        escrow_id,
        nonce: given.nonce,
        phase,
        finalize_nonce: given.finalize_nonce,
        balance: amount("settlement.balance", &given.balance)?,
        fees: amount("settlement.fees", &given.fees)?,
        stats: given.stats.iter().map(row).collect::<Result<_, EscrowError>>()?,
        sealed_acc: hash("settlement.sealed_acc", &given.sealed_acc)?,
        live_hash: hash("settlement.live_hash", &given.live_hash)?,
        keys,
        signatures: given.signatures.iter().map(slot_signature).collect::<Result<_, EscrowError>>()?,
    })
}

/// The protobuf form of a state, for `MsgSettleEscrow` and `MsgDisputeEscrow`.
pub fn settlement_to_pb(settlement: &Settlement, hrp: &Hrp) -> pb::Settlement {
    let phase = match settlement.phase {
        Phase::Active => pb::SessionPhase::Active,
        Phase::Finalizing => pb::SessionPhase::Finalizing,
        Phase::Frozen => pb::SessionPhase::Frozen,
    };
    let row = |row: &HostStats| pb::SlotStats {
        slot: row.slot.into(),
        started: row.started,
        completed: row.completed,
        missed: row.missed,
        errored: row.errored,
        released: row.released,
        drained: row.drained,
        cost: row.cost.to_string(),
    };
    let key = |(owner, key): (&Address, &BoundKey)| pb::BoundKey {
        owner: owner.to_bech32(hrp),
        warm: if key.warm == NOBODY { String::new() } else { key.warm.to_bech32(hrp) },
        seq: key.seq,
        signature: key.sig.to_vec(),
    };
    let signature =
        |row: &SlotSignature| pb::SlotSignature { slot: row.slot.into(), signature: row.sig.to_vec() };
    pb::Settlement {
        nonce: settlement.nonce,
        phase: phase.into(),
        finalize_nonce: settlement.finalize_nonce,
        balance: settlement.balance.to_string(),
        fees: settlement.fees.to_string(),
        stats: settlement.stats.iter().map(row).collect(),
        sealed_acc: settlement.sealed_acc.to_vec(),
        live_hash: settlement.live_hash.to_vec(),
        keys: settlement.keys.iter().map(key).collect(),
        signatures: settlement.signatures.iter().map(signature).collect(),
    }
}

/// The protobuf form of frozen terms.
pub fn config_to_pb(config: &FrozenConfig, hrp: &Hrp) -> pb::FrozenConfig {
    // Destructured so that a new field forces a decision here.
    let FrozenConfig {
        chain_id,
        escrow_id,
        creator,
        gateway,
        model,
        slots,
        amount,
        create_fee,
        fee_per_nonce,
        token_price,
        refusal_timeout_s,
        execution_timeout_s,
        vote_threshold_bp,
        cancel_charge_bp,
        seal_grace_nonces,
        max_nonce,
        max_live,
    } = config;
    pb::FrozenConfig {
        protocol: PROTOCOL.to_owned(),
        chain_id: chain_id.clone(),
        escrow_id: *escrow_id,
        creator: creator.to_bech32(hrp),
        gateway: gateway.to_bech32(hrp),
        model: model.clone(),
        slots: slots.iter().map(|owner| owner.to_bech32(hrp)).collect(),
        amount: amount.to_string(),
        create_fee: create_fee.to_string(),
        fee_per_nonce: fee_per_nonce.to_string(),
        token_price: token_price.to_string(),
        refusal_timeout_s: *refusal_timeout_s,
        execution_timeout_s: *execution_timeout_s,
        vote_threshold_bp: (*vote_threshold_bp).into(),
        cancel_charge_bp: (*cancel_charge_bp).into(),
        seal_grace_nonces: *seal_grace_nonces,
        max_nonce: *max_nonce,
        max_live: *max_live,
    }
}

/// Reads frozen terms, of this protocol only, and checks what a session relies on. Errors are code 3.
pub fn config_from_pb(given: &pb::FrozenConfig, hrp: &Hrp) -> Result<FrozenConfig, EscrowError> {
    if given.protocol != PROTOCOL {
        return Err(EscrowError::invalid("config.protocol", format!("must be {PROTOCOL}")));
    }
    let basis_points = |field: &str, value: u32| {
        u16::try_from(value).map_err(|_| EscrowError::invalid(field, "must be at most 10000 basis points"))
    };
    at_most("config.slots", given.slots.len())?;
    let owner = |text: &String| address("config.slots", text, hrp);
    let config = FrozenConfig {
        chain_id: given.chain_id.clone(),
        escrow_id: given.escrow_id,
        creator: address("config.creator", &given.creator, hrp)?,
        gateway: address("config.gateway", &given.gateway, hrp)?,
        model: given.model.clone(),
        slots: given.slots.iter().map(owner).collect::<Result<_, _>>()?,
        amount: amount("config.amount", &given.amount)?,
        create_fee: amount("config.create_fee", &given.create_fee)?,
        fee_per_nonce: amount("config.fee_per_nonce", &given.fee_per_nonce)?,
        token_price: amount("config.token_price", &given.token_price)?,
        refusal_timeout_s: given.refusal_timeout_s,
        execution_timeout_s: given.execution_timeout_s,
        vote_threshold_bp: basis_points("config.vote_threshold_bp", given.vote_threshold_bp)?,
        cancel_charge_bp: basis_points("config.cancel_charge_bp", given.cancel_charge_bp)?,
        seal_grace_nonces: given.seal_grace_nonces,
        max_nonce: given.max_nonce,
        max_live: given.max_live,
    };
    config.validate()?;
    Ok(config)
}

impl HostTally {
    fn to_pb(self, config: &FrozenConfig, hrp: &Hrp) -> pb::HostTally {
        pb::HostTally {
            owner: self.owner.to_bech32(hrp),
            // At most 128.
            slots: u32::try_from(config.weight(&self.owner)).unwrap_or(u32::MAX),
            started: self.started,
            completed: self.completed,
            missed: self.missed,
            errored: self.errored,
            released: self.released,
            drained: self.drained,
            cost: self.cost.to_string(),
        }
    }

    fn from_pb(given: &pb::HostTally, hrp: &Hrp) -> Result<Self, EscrowError> {
        Ok(Self {
            owner: address("hosts.owner", &given.owner, hrp)?,
            started: given.started,
            completed: given.completed,
            missed: given.missed,
            errored: given.errored,
            released: given.released,
            drained: given.drained,
            cost: amount("hosts.cost", &given.cost)?,
        })
    }
}

fn hosts_from_pb(rows: &[pb::HostTally], hrp: &Hrp) -> Result<Vec<HostTally>, EscrowError> {
    rows.iter().map(|row| HostTally::from_pb(row, hrp)).collect()
}

impl Escrow {
    /// The protobuf form.
    pub fn to_pb(&self, hrp: &Hrp) -> pb::Escrow {
        let hosts = |rows: &[HostTally]| rows.iter().map(|row| row.to_pb(&self.config, hrp)).collect();
        let stamp = |(owner, stamp): &(Address, Stamp)| pb::OwnerStamp {
            owner: owner.to_bech32(hrp),
            epoch: stamp.epoch,
            generation: stamp.generation,
            evidence: stamp.evidence,
        };
        let dispute = |dispute: &Dispute| pb::Dispute {
            nonce: dispute.nonce,
            sender: dispute.sender.to_bech32(hrp),
            fees: dispute.fees.to_string(),
            hosts: hosts(&dispute.hosts),
            opened_at_height: dispute.opened_at,
            closes_at_height: dispute.closes_at,
        };
        let outcome = |outcome: &Outcome| pb::Outcome {
            nonce: outcome.nonce,
            paid: outcome.paid.to_string(),
            fees: outcome.fees.to_string(),
            refunded: outcome.refunded.to_string(),
            hosts: hosts(&outcome.hosts),
            end_height: outcome.end_height,
        };
        pb::Escrow {
            config: Some(config_to_pb(&self.config, hrp)),
            status: self.status.to_pb().into(),
            denom: self.denom.clone(),
            gateway_url: self.gateway_url.clone(),
            epoch: self.epoch,
            created_at_height: self.created_at,
            expires_at_height: self.expires_at,
            dispute_window_blocks: self.dispute_window,
            stamps: self.stamps.iter().map(stamp).collect(),
            dispute: self.dispute.as_ref().map(dispute),
            outcome: self.outcome.as_ref().map(outcome),
        }
    }

    /// Reads the protobuf form: what a query answers, or genesis. A form that [`Self::to_pb`] would not write is refused,
    /// so that an import loses nothing.
    pub fn from_pb(given: &pb::Escrow, hrp: &Hrp) -> Result<Self, EscrowError> {
        let status = Status::from_pb(given.status)
            .ok_or_else(|| EscrowError::invalid("status", "must be a known status"))?;
        let config = given.config.as_ref().ok_or_else(|| EscrowError::invalid("config", "must be given"))?;
        let config = config_from_pb(config, hrp)?;
        Coin::new(&given.denom, 0).map_err(|e| EscrowError::invalid("denom", e.to_string()))?;
        check_url("gateway_url", &given.gateway_url)?;
        let stamp = |row: &pb::OwnerStamp| {
            let stamp = Stamp { epoch: row.epoch, generation: row.generation, evidence: row.evidence };
            Ok((address("stamps.owner", &row.owner, hrp)?, stamp))
        };
        let dispute = |row: &pb::Dispute| {
            Ok::<_, EscrowError>(Dispute {
                nonce: row.nonce,
                sender: address("dispute.sender", &row.sender, hrp)?,
                fees: amount("dispute.fees", &row.fees)?,
                hosts: hosts_from_pb(&row.hosts, hrp)?,
                opened_at: row.opened_at_height,
                closes_at: row.closes_at_height,
            })
        };
        let outcome = |row: &pb::Outcome| {
            Ok::<_, EscrowError>(Outcome {
                nonce: row.nonce,
                paid: amount("outcome.paid", &row.paid)?,
                fees: amount("outcome.fees", &row.fees)?,
                refunded: amount("outcome.refunded", &row.refunded)?,
                hosts: hosts_from_pb(&row.hosts, hrp)?,
                end_height: row.end_height,
            })
        };
        let escrow = Self {
            status,
            config,
            denom: given.denom.clone(),
            gateway_url: given.gateway_url.clone(),
            epoch: given.epoch,
            created_at: given.created_at_height,
            expires_at: given.expires_at_height,
            dispute_window: given.dispute_window_blocks,
            stamps: given.stamps.iter().map(stamp).collect::<Result<_, EscrowError>>()?,
            dispute: given.dispute.as_ref().map(dispute).transpose()?,
            outcome: given.outcome.as_ref().map(outcome).transpose()?,
        };
        if escrow.to_pb(hrp) != *given {
            return Err(EscrowError::invalid("hosts.slots", "must be those of the owner in the group"));
        }
        Ok(escrow)
    }
}
