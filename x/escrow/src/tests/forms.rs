//! Protobuf forms: what goes out comes back, and nothing else comes in.

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Hrp};

use super::world::*;
use crate::session::BoundKey;
use crate::{Escrow, config_from_pb, config_to_pb, settlement_from_pb, settlement_to_pb};

fn hrp() -> Hrp {
    Hrp::default()
}

#[test]
fn frozen_terms_come_back_as_they_went() {
    let mut w = World::new();
    let id = w.create();
    let config = w.row(id).config;
    let form = config_to_pb(&config, &hrp());
    assert_eq!(config_from_pb(&form, &hrp()), Ok(config.clone()));
    let bad = |change: &dyn Fn(&mut pb::FrozenConfig)| {
        let mut form = form.clone();
        change(&mut form);
        config_from_pb(&form, &hrp()).unwrap_err().code()
    };
    assert_eq!(bad(&|c| c.protocol = "holdfast-escrow/2".into()), Some(3));
    assert_eq!(bad(&|c| c.slots.clear()), Some(3));
    assert_eq!(bad(&|c| c.slots = vec![text("host-0"); 129]), Some(3));
    assert_eq!(bad(&|c| c.slots[0] = text("host-1")), Some(3));
    assert_eq!(bad(&|c| c.vote_threshold_bp = 70_000), Some(3));
    assert_eq!(bad(&|c| c.cancel_charge_bp = 10_001), Some(3));
    assert_eq!(bad(&|c| c.amount = "01".into()), Some(3));
    assert_eq!(bad(&|c| c.gateway = "cosmos1".into()), Some(3));
    assert_eq!(bad(&|c| c.max_nonce = 5), Some(3));
}

#[test]
fn a_summary_comes_back_as_it_went() {
    let mut w = World::new();
    let id = w.create();
    let mut summary = signed(&vectors(&w, id), &THREE);
    summary.keys.insert(addr("host-2"), BoundKey { warm: addr("warm-1"), seq: 1, sig: [3; 65] });
    summary.keys.insert(addr("host-1"), BoundKey { warm: Address([0; 20]), seq: 2, sig: [4; 65] });
    let form = settlement_to_pb(&summary, &hrp());
    assert_eq!(form.keys.iter().filter(|key| key.warm.is_empty()).count(), 1);
    assert_eq!(settlement_from_pb(id, &form, &hrp()), Ok(summary));
    let bad = |change: &dyn Fn(&mut pb::Settlement)| {
        let mut form = form.clone();
        change(&mut form);
        settlement_from_pb(id, &form, &hrp()).unwrap_err().code()
    };
    assert_eq!(bad(&|s| s.phase = 3), Some(3));
    assert_eq!(bad(&|s| s.balance = "+1".into()), Some(3));
    assert_eq!(bad(&|s| s.stats[0].cost.clear()), Some(3));
    assert_eq!(bad(&|s| s.stats[0].slot = 256), Some(3));
    assert_eq!(bad(&|s| s.stats = vec![pb::SlotStats::default(); 129]), Some(3));
    assert_eq!(bad(&|s| s.sealed_acc.truncate(31)), Some(3));
    assert_eq!(bad(&|s| s.live_hash.push(0)), Some(3));
    assert_eq!(bad(&|s| s.keys[0].signature.truncate(64)), Some(3));
    assert_eq!(bad(&|s| s.keys.reverse()), Some(3));
    assert_eq!(bad(&|s| s.keys.push(s.keys[1].clone())), Some(3));
    assert_eq!(bad(&|s| s.keys = vec![s.keys[0].clone(); 129]), Some(3));
    assert_eq!(bad(&|s| s.signatures[0].signature.truncate(64)), Some(3));
    assert_eq!(bad(&|s| s.signatures[0].slot = 128), Some(3));
    assert_eq!(bad(&|s| s.signatures = vec![s.signatures[0].clone(); 129]), Some(3));
}

#[test]
fn an_escrow_in_each_status_comes_back_as_it_went() {
    let mut w = World::new();
    let (open, disputed, settled) = (w.create(), w.create(), w.create());
    w.at(205);
    w.settle("creator", &signed(&vectors(&w, settled), &THREE));
    w.dispute("host-1", &signed(&vectors(&w, disputed), &THREE));
    for id in [open, disputed, settled] {
        let row = w.row(id);
        let form = row.to_pb(&hrp());
        assert_eq!(Escrow::from_pb(&form, &hrp()), Ok(row));
        let mut bad = form.clone();
        bad.status = 0;
        assert_eq!(Escrow::from_pb(&bad, &hrp()).unwrap_err().code(), Some(3));
        let mut bad = form;
        bad.config = None;
        assert_eq!(Escrow::from_pb(&bad, &hrp()).unwrap_err().code(), Some(3));
    }
    let mut form = w.row(settled).to_pb(&hrp());
    form.outcome.as_mut().unwrap().hosts[0].slots = 2;
    assert_eq!(Escrow::from_pb(&form, &hrp()).unwrap_err().code(), Some(3));
}
