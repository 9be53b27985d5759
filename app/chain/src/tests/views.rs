//! Views: which heights can be read, and that each shows its own.

use holdfast_types::QueryKind;

use super::load::played;
use super::net::*;
use crate::app::{App, state_spaces};
use crate::state::{CommitStore, MemCommitStore, StateOptions};
use crate::views::{OLD_VIEWS, RECENT_VIEWS};

#[test]
fn genesis_is_readable_before_the_first_block() {
    for initial_height in [1, 500] {
        let mut net = Net::new(&Spec { initial_height, ..Spec::default() });
        let view = net.shared.view(0).unwrap();
        assert_eq!((view.block.height, view.block.epoch), (initial_height - 1, 0));
        assert_eq!(net.shared.view(initial_height - 1).unwrap().block.height, initial_height - 1);
        assert_eq!(net.table().rows().len(), 3);
        assert_eq!(net.balance(&net.gateway(0).address), BALANCE);
        let drawn = net.draw(MODEL, [3; 32]).unwrap();
        assert_eq!(drawn.height, initial_height - 1);
        assert_eq!(net.shared.view(initial_height).err().unwrap().kind, QueryKind::OutOfRange);
        // The first block changes nothing that a draw depends on.
        net.good();
        let after = net.draw(MODEL, [3; 32]).unwrap();
        assert_eq!((after.height, after.table_digest), (initial_height, drawn.table_digest));
        assert_eq!(after.executor, drawn.executor);
    }
}

#[test]
fn every_retained_height_shows_its_own_state_and_table() {
    let mut net = Net::standard();
    let mut seen = Vec::new();
    for _ in 0..5 {
        net.exclude(0);
        for _ in 0..8 {
            if net.state(0) == "R" {
                let id = format!("probe-{}", net.height());
                net.start(&id, 0);
                net.good();
                net.finish(&id, 0);
            }
            net.good();
            seen.push((net.height(), net.state(0), net.table().digest()));
        }
    }
    let states: std::collections::BTreeSet<_> = seen.iter().map(|row| row.1).collect();
    assert_eq!(states, std::collections::BTreeSet::from(["H", "R", "X"]));
    let latest = net.height();
    assert!(latest > i64::try_from(RECENT_VIEWS + OLD_VIEWS).unwrap() + 10);
    // Twice: the second time some come from the cache of old views, the others are rebuilt again.
    for _ in 0..2 {
        for (height, _, digest) in &seen {
            let view = net.shared.view(*height).unwrap();
            assert_eq!(view.block.height, *height);
            assert_eq!(view.table(net.shared.composition(), MODEL).unwrap().digest(), *digest, "{height}");
        }
    }
    let request = holdfast_proto::Message::encode_to_vec(
        &holdfast_proto::holdfast::breaker::v1::QueryBreakerSummaryRequest { model: MODEL.into() },
    );
    for (height, ..) in &seen {
        let path = "/holdfast.breaker.v1.Query/BreakerSummary";
        assert_eq!(net.shared.query(path, &request, *height).unwrap().1, *height);
    }
    let kind = |height| net.shared.view(height).err().unwrap().kind;
    assert_eq!(kind(latest + 1), QueryKind::OutOfRange);
    assert_eq!(kind(-1), QueryKind::InvalidArgument);
    assert_eq!(net.shared.view(0).unwrap().block.height, latest);
}

#[test]
fn a_pruned_height_is_not_found() {
    let options_of = StateOptions { keep_recent: 20, threads: 1, ..StateOptions::default() };
    let store = MemCommitStore::with_options(&state_spaces(), options_of).unwrap();
    let mut net = Net::with(&Spec::default(), store.clone(), options());
    net.blocks(50);
    while store.prune(10_000).unwrap() > 0 {}
    let earliest = store.earliest_height();
    assert!(earliest > 20, "{earliest}");
    assert_eq!(net.shared.view(earliest - 1).err().unwrap().kind, QueryKind::NotFound);
    assert_eq!(net.shared.view(1).err().unwrap().kind, QueryKind::NotFound);
    assert_eq!(net.shared.view(earliest).unwrap().block.height, earliest);
    assert_eq!(net.shared.view(50).unwrap().block.height, 50);
}

#[test]
fn a_view_taken_before_a_commit_stays_as_it_was() {
    let mut net = Net::standard();
    net.good();
    let view = net.shared.view(0).unwrap();
    let before = dump(view.query().store);
    let digest = net.table().digest();
    net.exclude(0);
    net.blocks(20);
    assert_eq!(dump(view.query().store), before);
    assert_eq!(view.table(net.shared.composition(), MODEL).unwrap().digest(), digest);
}

#[test]
fn tables_carried_from_block_to_block_are_those_of_a_restarted_node() {
    // The check mode was on for every block of the load; here every tenth height is rebuilt from its state alone.
    let load = played();
    let net = &load.net;
    let store = net.shared.store().clone();
    let restarted = App::open(store, options()).unwrap();
    for height in (1..=net.height()).step_by(10).chain([net.height()]) {
        let (a, b) = (net.shared.view(height).unwrap(), restarted.shared().view(height).unwrap());
        for model in [MODEL, OTHER] {
            let of =
                |view: &crate::views::QueryView| view.table(net.shared.composition(), model).unwrap().bytes();
            assert_eq!(of(&a), of(&b), "{model} at {height}");
        }
    }
}
