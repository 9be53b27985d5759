//! Queries: filters, pages, and the digest that hosts compare.

use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::QueryKind;

use super::world::*;
use crate::query_server;

/// 1 settled, 2 and 3 open of `creator`, 4 open of `other` without host-0.
fn scene() -> World {
    let mut w = World::new();
    w.give("other", AMOUNT);
    for _ in 0..3 {
        w.create();
    }
    w.settle("creator", &signed(&vectors(&w, 1), &THREE));
    w.near.slots = vec!["host-1", "host-2", "host-3", "host-4"];
    let mut msg = create_msg();
    msg.creator = text("other");
    w.ok(|ctx, deps| crate::msg_server::create_escrow(ctx, deps, msg));
    w
}

fn ids(escrows: &[pb::Escrow]) -> Vec<u64> {
    escrows.iter().map(|row| row.config.as_ref().unwrap().escrow_id).collect()
}

#[test]
fn one_escrow_is_answered_with_its_terms_and_their_digest() {
    let w = scene();
    let reply = query_server::escrow(w.chain.query(), pb::QueryEscrowRequest { escrow_id: 2 }).unwrap();
    assert_eq!(reply.config_digest, w.row(2).config.digest());
    let escrow = reply.escrow.unwrap();
    assert_eq!(crate::Escrow::from_pb(&escrow, &w.chain.block.hrp), Ok(w.row(2)));
    assert_eq!((escrow.status, escrow.expires_at_height), (1, 200));
    let kind = |id| {
        query_server::escrow(w.chain.query(), pb::QueryEscrowRequest { escrow_id: id }).unwrap_err().kind
    };
    assert_eq!((kind(5), kind(0)), (QueryKind::NotFound, QueryKind::InvalidArgument));
    let params = query_server::params(w.chain.query(), pb::QueryParamsRequest {}).unwrap();
    assert_eq!(params.params, Some(prices().to_pb()));
}

#[test]
fn escrows_are_filtered_by_status_creator_and_model() {
    let w = scene();
    let ask = |status: Option<i32>, creator: &str, model: &str| {
        let creator = if creator.is_empty() { String::new() } else { text(creator) };
        let request = pb::QueryEscrowsRequest { status, creator, model: model.into(), pagination: None };
        query_server::escrows(w.chain.query(), request).map(|reply| ids(&reply.escrows))
    };
    assert_eq!(ask(None, "", "").unwrap(), [1, 2, 3, 4]);
    assert_eq!(ask(Some(1), "", "").unwrap(), [2, 3, 4]);
    assert_eq!(ask(Some(3), "", "").unwrap(), [1]);
    assert_eq!(ask(Some(1), "creator", "").unwrap(), [2, 3]);
    assert_eq!(ask(None, "other", MODEL).unwrap(), [4]);
    assert_eq!(ask(None, "", "another").unwrap(), [0; 0]);
    assert!(ask(Some(0), "", "").is_err() && ask(Some(5), "", "").is_err());
}

#[test]
fn a_participant_finds_its_escrows_page_by_page() {
    let w = scene();
    let ask = |participant: &str, status: Option<i32>, pagination: Option<PageRequest>| {
        let request =
            pb::QueryEscrowsByParticipantRequest { participant: text(participant), status, pagination };
        let reply = query_server::escrows_by_participant(w.chain.query(), request).unwrap();
        (ids(&reply.escrows), reply.pagination.unwrap().next_key)
    };
    assert_eq!(ask("host-0", None, None).0, [1, 2, 3]);
    assert_eq!(ask("host-1", None, None).0, [1, 2, 3, 4]);
    assert_eq!(ask("host-4", None, None).0, [4]);
    assert_eq!(ask("gateway", None, None).0, [0; 0]);
    assert_eq!(ask("host-1", Some(1), None).0, [2, 3, 4]);
    let page = |key: Vec<u8>| Some(PageRequest { key, limit: 3, ..PageRequest::default() });
    let (first, key) = ask("host-1", None, page(Vec::new()));
    assert_eq!((first.as_slice(), key.as_slice()), (&[1, 2, 3][..], &4_u64.to_be_bytes()[..]));
    assert_eq!(ask("host-1", None, page(key)), (vec![4], Vec::new()));
    let request = pb::QueryEscrowsByParticipantRequest { participant: "nobody".into(), ..Default::default() };
    assert!(query_server::escrows_by_participant(w.chain.query(), request).is_err());
}
