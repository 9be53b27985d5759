//! Events against their declarations: indexers read attributes by the names and order of the `.proto` file.

use std::collections::BTreeMap;

use holdfast_model::driver::Driver;
use holdfast_model::history::{genesis, random_history};
use holdfast_proto::{FILE_DESCRIPTOR_SET, Message};
use holdfast_testkit::addr;

use super::model::Real;
use super::scene::{M, Scene};
use crate::state::DUE;

#[test]
fn every_event_has_the_fields_of_its_declaration_in_their_order() {
    let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let file = set.file.iter().find(|f| f.name() == "holdfast/breaker/v1/events.proto").unwrap();
    let mut declared = BTreeMap::new();
    for message in &file.message_type {
        let mut fields: Vec<_> = message.field.iter().map(|f| (f.number(), f.name().to_owned())).collect();
        fields.sort();
        let names: Vec<String> = fields.into_iter().map(|(_, name)| name).collect();
        declared.insert(format!("{}.{}", file.package(), message.name()), names);
    }
    let mut events = Vec::new();
    for seed in 1..=100 {
        let mut real = Driver::new(Real::new(seed), &genesis(seed));
        for ops in random_history(seed, 60) {
            real.run_block(&ops);
        }
        events.append(&mut real.circuit.events);
    }
    let mut s = Scene::three();
    DUE.insert(&mut s.chain.store, &(2, 0, M.into(), addr(1))).unwrap();
    s.chain.block.height = 2;
    s.run(|k, ctx| k.begin_block(ctx)).unwrap();
    events.append(&mut s.chain.events);
    let mut seen = BTreeMap::new();
    for event in events {
        let names: Vec<String> = event.attributes.into_iter().map(|(name, _)| name).collect();
        assert_eq!(Some(&names), declared.get(&event.kind), "{}", event.kind);
        seen.insert(event.kind, names);
    }
    assert_eq!(seen, declared, "and each declared event is emitted");
}
