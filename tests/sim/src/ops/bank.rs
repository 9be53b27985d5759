//! Coins sent.

use holdfast_app::tx::pack;
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_types::Address;

use super::scene::{Draft, Scene};
use crate::cast::DENOM;

pub(crate) fn send(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let to_address = match scene.rng.below(12) {
        0 => scene.cast.gov(),
        1 => Address::module("inference").to_bech32(&scene.cast.hrp),
        2 => "cosmos1nobody".into(),
        3 => {
            // An account that does not exist yet.
            let bytes = scene.rng.bytes(20).try_into().unwrap_or([0; 20]);
            Address(bytes).to_bech32(&scene.cast.hrp)
        }
        _ => {
            let to = scene.anybody();
            scene.name(to)
        }
    };
    let amount = scene.rng.unsigned(1, 5_000).into();
    let mut coins = vec![scene.coin(DENOM, amount)];
    if scene.cast.collateral_denom != DENOM && scene.rng.percent(50) {
        let denom = scene.cast.collateral_denom.clone();
        coins.insert(0, scene.coin(&denom, amount));
    }
    if scene.rng.percent(3) {
        coins.extend(coins.clone());
    }
    let message = pack(&MsgSend { from_address: scene.name(signer), to_address, amount: coins });
    Draft { signer, message }
}
