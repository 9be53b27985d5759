//! The binary after `holdfastd` in the rehearsal of an upgrade: the same node, with one upgrade more, as an embedder writes it.

use holdfast_app::upgrades::{Upgrade, Upgrades};
use holdfast_node::Program;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::{Any, FieldMask, Message, type_url};
use holdfast_types::Address;

fn main() -> std::process::ExitCode {
    let v3 = Upgrade::new("v3").then(|composition, ctx| {
        let validation = inference::ValidationParams { health_cb_min_samples: 7, ..Default::default() };
        let message = inference::MsgUpdateParams {
            authority: ctx.bech32(&Address::module("gov")),
            params: Some(inference::Params { validation: Some(validation), ..Default::default() }),
            update_mask: Some(FieldMask { paths: vec!["validation.health_cb_min_samples".into()] }),
        };
        let type_url = type_url::<inference::MsgUpdateParams>();
        composition.deliver(ctx, &Any { type_url, value: message.encode_to_vec() }).map(|_| ())
    });
    let upgrades = Upgrades::new(vec![Upgrade::new("v2").adding(&["gov", "escrow"]), v3]);
    holdfast_node::cli::run_program(Program { upgrades, ..Program::default() })
}
