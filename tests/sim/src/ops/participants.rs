//! Operations of x/participants.

use holdfast_app::tx::pack;
use holdfast_proto::holdfast::participants;

use super::scene::{Draft, Scene};
use crate::cast::validator_key;

pub(super) fn register(scene: &mut Scene<'_>) -> Draft {
    let signer =
        if scene.rng.percent(50) { *scene.rng.pick(&scene.cast.outsiders) } else { scene.executor() };
    let account = &scene.cast.accounts[signer];
    let mut validator_key = validator_key(scene.rng, account);
    if scene.wrong() {
        validator_key = match scene.rng.below(2) {
            0 => scene.cast.accounts[*scene.rng.pick(&scene.cast.executors)]
                .key
                .public_key()
                .to_bytes()
                .to_vec(),
            _ => scene.rng.bytes(31),
        };
    }
    let denom = scene.cast.collateral_denom.clone();
    let amount = scene.rng.unsigned(1, 90).into();
    let message = participants::v1::MsgRegisterParticipant {
        participant: scene.name(signer),
        validator_key,
        host_url: if scene.rng.percent(50) { "https://new.example".into() } else { String::new() },
        workers: scene.workers(),
        models: scene.served(),
        poc_preserved: scene.rng.percent(50),
        collateral: Some(scene.coin(&denom, amount)),
    };
    Draft { signer, message: pack(&message) }
}

pub(super) fn update(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let message = participants::v1::MsgUpdateParticipant {
        participant: scene.name(signer),
        host_url: String::new(),
        workers: scene.workers(),
        models: scene.served(),
        poc_preserved: scene.rng.percent(50),
    };
    Draft { signer, message: pack(&message) }
}

pub(super) fn leave(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgLeaveNetwork { participant }) }
}

pub(super) fn deposit_collateral(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let denom = scene.cast.collateral_denom.clone();
    let amount = if scene.rng.percent(3) { u128::from(u64::MAX) } else { scene.rng.unsigned(1, 40).into() };
    let amount = Some(scene.coin(&denom, amount));
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgDepositCollateral { participant, amount }) }
}

pub(super) fn withdraw_collateral(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let denom = scene.cast.collateral_denom.clone();
    let amount = scene.rng.unsigned(1, 30).into();
    let amount = Some(scene.coin(&denom, amount));
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgWithdrawCollateral { participant, amount }) }
}

pub(super) fn claim_collateral(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgClaimCollateral { participant }) }
}

pub(super) fn announce(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let start_height = scene.height + scene.rng.range(1, 8);
    let shortest = i64::from(!scene.wrong());
    let message = participants::v1::MsgAnnounceMaintenance {
        participant: scene.name(signer),
        start_height,
        end_height: start_height + scene.rng.range(shortest, 8),
    };
    Draft { signer, message: pack(&message) }
}

pub(super) fn cancel_maintenance(scene: &mut Scene<'_>) -> Draft {
    let known = scene.rng.maybe(&scene.memory.windows).copied();
    let (signer, start_height) = match known {
        Some(window) if !scene.wrong() => window,
        _ => (scene.executor(), scene.height),
    };
    scene.memory.windows.retain(|window| *window != (signer, start_height));
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgCancelMaintenance { participant, start_height }) }
}
