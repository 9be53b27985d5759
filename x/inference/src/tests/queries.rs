use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::holdfast::participants::v1::Participant;
use holdfast_store::Order;

use super::*;

fn q(w: &World) -> QueryContext<'_> {
    QueryContext { block: &w.block, store: &w.store }
}

fn page(limit: u64, key: Vec<u8>) -> Option<PageRequest> {
    Some(PageRequest { limit, key, ..Default::default() })
}

fn world() -> World {
    let mut w = World::new();
    for (id, n) in [("a", 1), ("b", 2), ("c", 1), ("d", 1)] {
        w.start(id, n).unwrap();
    }
    w.finish("a", 1).unwrap();
    w.report("c", 1).unwrap();
    w.finish("e", 1).unwrap();
    w.go(2);
    w
}

#[test]
fn an_inference_is_found_by_id_with_all_it_says() {
    let w = world();
    let ask =
        |id: &str| query_server::inference(q(&w), pb::QueryInferenceRequest { inference_id: id.into() });
    let a = ask("a").unwrap().inference.unwrap();
    assert_eq!((a.status, a.paid.as_str(), a.refunded.as_str(), a.escrowed.as_str()), (2, "15", "15", "30"));
    assert_eq!((a.assigned_to, a.executed_by, a.payer), (text(1), text(1), text(51)));
    assert_eq!((a.finish_height, a.end_height, a.stamp.unwrap().evidence), (1, 1, true));
    assert_eq!(ask("zz").unwrap_err().kind, QueryKind::NotFound);
    assert_eq!(ask("").unwrap_err().kind, QueryKind::InvalidArgument);
}

#[test]
fn inferences_are_listed_by_executor_and_status_page_by_page() {
    let w = world();
    let ask = |executor: String, status, pagination| {
        let req = pb::QueryInferencesRequest { executor, status, pagination };
        query_server::inferences(q(&w), req).map(|r| {
            let ids: Vec<_> = r.inferences.into_iter().map(|i| i.inference_id).collect();
            (ids.concat(), r.pagination.unwrap().next_key)
        })
    };
    assert_eq!(ask(String::new(), None, None).unwrap().0, "abcde");
    assert_eq!(ask(text(1), None, None).unwrap().0, "acde", "a waiting finish belongs to who finished");
    assert_eq!(ask(text(1), Some(4), None).unwrap().0, "c");
    let (ids, next) = ask(text(1), None, page(2, Vec::new())).unwrap();
    assert_eq!(ids, "ac");
    assert_eq!(ask(text(1), None, page(2, next)).unwrap().0, "de");
    for bad in
        [ask("x".into(), None, None), ask(String::new(), Some(0), None), ask(String::new(), Some(99), None)]
    {
        assert_eq!(bad.unwrap_err().kind, QueryKind::InvalidArgument);
    }
    assert_eq!(
        ask(String::new(), None, page(1001, Vec::new())).unwrap_err().kind,
        QueryKind::InvalidArgument
    );
}

#[test]
fn statistics_and_ratio_of_a_participant() {
    let w = world();
    let stats = |participant: String, epoch| {
        query_server::participant_stats(q(&w), pb::QueryParticipantStatsRequest { participant, epoch })
            .map(|r| r.stats.unwrap())
    };
    let one = stats(text(1), None).unwrap();
    assert_eq!(
        (one.assigned, one.inference_count, one.missed_requests, one.earned.as_str()),
        (3, 1, 1, "15")
    );
    assert_eq!(stats(text(1), Some(0)).unwrap(), one);
    let none = stats(text(9), Some(5)).unwrap();
    assert_eq!((none.epoch, none.assigned, none.earned.as_str()), (5, 0, "0"));
    assert_eq!(stats("x".into(), None).unwrap_err().kind, QueryKind::InvalidArgument);

    let sprt = query_server::sprt(q(&w), pb::QuerySprtRequest { participant: text(1) }).unwrap();
    let expected = pb::QuerySprtResponse {
        llr: "575364144904".into(),
        absorbed_ok: 1,
        absorbed_missed: 1,
        up: "693147180560".into(),
        down: "-117783035656".into(),
        h: "4000000000000".into(),
    };
    assert_eq!(sprt, expected);
    assert!(query_server::sprt(q(&w), pb::QuerySprtRequest { participant: "x".into() }).is_err());
    let params = query_server::params(q(&w), pb::QueryParamsRequest {}).unwrap().params.unwrap();
    assert_eq!(params.validation.unwrap().downtime_good_percentage, "0.1");
}

#[test]
fn a_draw_request_is_checked_before_any_state_is_read() {
    let ask = |model: &str, seed: Vec<u8>| {
        query_server::requested_seed(&pb::QueryGetRandomExecutorRequest { model: model.into(), seed })
    };
    assert_eq!(ask("m1", Vec::new()), Ok(None));
    assert_eq!(ask("m1", vec![7; 32]), Ok(Some([7; 32])));
    for (model, seed) in [("", vec![]), ("m1", vec![7; 31]), ("m1", vec![7; 33])] {
        assert_eq!(ask(model, seed).unwrap_err().kind, QueryKind::InvalidArgument);
    }
}

#[test]
fn a_drawn_executor_comes_with_all_that_is_needed_to_check_the_draw() {
    let mut w = World::new();
    for n in 1..=3 {
        w.near.health.insert(who(n), HealthClass::Out);
    }
    let table = build_table(&w.store, &w.block, &w.near, &w.near, MODEL).unwrap();
    let draw = query_server::draw(&table, [5; 32]).unwrap();
    let drawn = table.rows()[draw.row].address.to_bech32(&Hrp::default());
    let executor = Participant { address: drawn.clone(), ..Default::default() };
    let reply = query_server::executor_response(&table, 12, [5; 32], draw, executor, 6);
    assert_eq!(reply.executor.unwrap().address, drawn);
    assert_eq!((reply.height, reply.epoch, reply.generation, reply.eligible_count), (12, 0, 6, 3));
    assert_eq!((reply.lane, reply.fallback), (pb::Lane::Fallback as i32, true));
    assert_eq!((reply.seed, reply.table_digest), (vec![5; 32], table.digest().to_vec()));
}

#[test]
fn with_nobody_eligible_a_draw_says_why() {
    let mut w = World::new();
    w.near.standings.clear();
    let table = build_table(&w.store, &w.block, &w.near, &w.near, MODEL).unwrap();
    let error = query_server::draw(&table, [5; 32]).unwrap_err();
    assert_eq!(error.kind, QueryKind::FailedPrecondition);
    assert!(error.message.ends_with("no_members"), "{error}");
}

#[test]
fn a_candidate_table_is_paged_and_each_page_has_the_whole_header() {
    let mut w = World::new();
    w.near.health.insert(who(2), HealthClass::ProbeReady { since: 44 });
    let table = build_table(&w.store, &w.block, &w.near, &w.near, MODEL).unwrap();
    let ask = |pagination| {
        let req = pb::QueryCandidateTableRequest { model: MODEL.into(), pagination };
        query_server::candidate_table(&table, 12, &Hrp::default(), &req)
    };
    let first = ask(page(2, Vec::new())).unwrap();
    let names = |r: &pb::QueryCandidateTableResponse| {
        r.rows.iter().map(|r| r.participant.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first), [text(1), text(2)]);
    assert_eq!((first.rows[1].class, first.rows[1].since, first.rows[1].weight), (1, 44, 10));
    let next = first.pagination.as_ref().unwrap().next_key.clone();
    assert_eq!(next, who(3).0);
    let second = ask(page(2, next)).unwrap();
    assert_eq!(names(&second), [text(3)]);
    for reply in [&first, &second] {
        assert_eq!((reply.height, reply.share_bp, reply.poc, reply.eligible_count), (12, 500, false, 3));
        assert_eq!(reply.digest, table.digest());
    }
    let reverse = PageRequest { reverse: true, offset: 1, limit: 5, count_total: true, ..Default::default() };
    let back = ask(Some(reverse)).unwrap();
    assert_eq!((names(&back), back.pagination.unwrap().total), (vec![text(2), text(1)], 3));
    assert!(ask(page(1001, Vec::new())).is_err());
}

#[test]
fn no_query_writes() {
    let w = world();
    let rows = |w: &World| w.store.scan(b"", None, Order::Ascending).map(Result::unwrap).collect::<Vec<_>>();
    let before = rows(&w);
    let view = holdfast_store::ReadOnlyKv::new(&w.store);
    let q = QueryContext { block: &w.block, store: &view };
    for _ in 0..1000 {
        query_server::params(q, pb::QueryParamsRequest {}).unwrap();
        query_server::inference(q, pb::QueryInferenceRequest { inference_id: "a".into() }).unwrap();
        query_server::inferences(q, Default::default()).unwrap();
        let participant = text(1);
        query_server::participant_stats(
            q,
            pb::QueryParticipantStatsRequest { participant: participant.clone(), epoch: None },
        )
        .unwrap();
        query_server::sprt(q, pb::QuerySprtRequest { participant }).unwrap();
        build_table(&view, &w.block, &w.near, &w.near, MODEL).unwrap().draw([1; 32]).unwrap();
    }
    assert_eq!(rows(&w), before);
}
