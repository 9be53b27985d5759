//! Escrows through the whole application: a group that the breaker has a say in, and counts that it hears.

use holdfast_escrow::Status;
use holdfast_proto::holdfast::breaker::v1 as breaker;
use holdfast_types::{Address, ValidationParams};

use super::net::*;
use super::sessions::*;

/// Two misses in a row exclude for five blocks.
fn net(executors: usize) -> Net {
    Net::new(&Spec { executors: vec![Executor::new(10); executors], ..Spec::default() })
}

/// Executor of a slot.
fn index(net: &Net, owner: &Address) -> usize {
    net.index_of(&net.who(owner).bech32())
}

#[test]
fn a_settlement_pays_through_the_bank_and_its_counts_are_statistics() {
    let mut net = net(4);
    let creator = net.gateway(0);
    net.push(&creator, vec![create_escrow_msg(&creator, 4, 100_000)]);
    net.good();
    let escrow = net.escrow(1);
    // Prices of the tests: 1 000 for the creation, 10 a diff, 1 a token; four owners, a slot each.
    assert_eq!((escrow.config.owners().len(), escrow.stamps.len(), escrow.epoch), (4, 4, 0));
    assert_eq!(net.balance(&creator.address), BALANCE - 100_000);
    // Nonces 1, 3, 5 and 7 give work to slots 1, 3, 1 and 3: 12, 0, 12 and 0 earned. Eight diffs are paid for.
    let ends = [End::Finished, End::Errored, End::Finished, End::Cancelled];
    let state = finalized(&net.session(&escrow.config, &ends));
    assert_eq!((state.fees(), state.balance()), (1_080, 100_000 - 1_080 - 24));
    let by = net.who(&escrow.config.slots[2]);
    let short = settle_msg(&by, &net.signed(&state, 2));
    net.push(&by, vec![short]);
    codes(&net.block(), &[("escrow", 15)]);
    let good = settle_msg(&by, &net.signed(&state, 3));
    net.push(&by, vec![good]);
    let done = net.good();
    assert_eq!(
        names(&done.tx_results[0].events),
        [
            "EventEscrowSettled",
            "EventHostSettled",
            "EventHostSettled",
            "EventHostSettled",
            "EventHostSettled"
        ]
    );
    let owner = |slot: usize| &escrow.config.slots[slot];
    assert_eq!([0, 1, 2, 3].map(|slot| net.balance(owner(slot)) - BALANCE), [0, 24, 0, 0]);
    assert_eq!(net.balance(&creator.address), BALANCE - 1_080 - 24);
    assert_eq!(net.balance(&Address::module("fee_collector")), 1_080);
    let stats = |slot| net.stats(index(&net, owner(slot)), 0);
    let of = |slot| {
        let s = stats(slot);
        (s.assigned, s.inference_count, s.missed_requests, s.released, s.earned)
    };
    assert_eq!(of(1), (2, 2, 0, 0, "24".to_owned()));
    assert_eq!(of(3), (2, 0, 1, 1, "0".to_owned()));
    assert_eq!(of(0), (0, 0, 0, 0, "0".to_owned()));
    assert_eq!(net.escrow(1).status, Status::Settled);
}

#[test]
fn misses_of_a_session_exclude_a_host_through_the_breaker_in_their_block() {
    let mut net = net(4);
    let creator = net.gateway(0);
    net.push(&creator, vec![create_escrow_msg(&creator, 4, 100_000)]);
    net.good();
    let config = net.escrow(1).config;
    // Slot 1 fails twice, slot 3 once: nonces 1, 3, 5.
    let state = finalized(&net.session(&config, &[End::Errored, End::Errored, End::Errored]));
    let settle = settle_msg(&creator, &net.signed(&state, 4));
    net.push(&creator, vec![settle]);
    let done = net.good();
    let (bad, once) = (index(&net, &config.slots[1]), index(&net, &config.slots[3]));
    assert_eq!((net.state(bad), net.state(once)), ("X", "H"));
    assert_eq!(names(&done.events), ["EventExecutorExcluded"]);
    // The next group is drawn without it: three owners cannot fill four slots.
    net.push(&creator, vec![create_escrow_msg(&creator, 4, 100_000)]);
    codes(&net.block(), &[("escrow", 5)]);
    net.push(&creator, vec![create_escrow_msg(&creator, 3, 100_000)]);
    net.good();
    assert!(!net.escrow(2).config.slots.contains(&config.slots[1]));
    // The refused creation used no id up.
    assert_eq!(net.escrows(Status::Open).len(), 1);
}

#[test]
fn misses_from_before_a_restoration_are_statistics_and_no_evidence() {
    let mut net = net(4);
    let creator = net.gateway(0);
    net.push(&creator, vec![create_escrow_msg(&creator, 4, 100_000)]);
    net.good();
    let config = net.escrow(1).config;
    let host = index(&net, &config.slots[1]);
    // Excluded and restored since: the stamp of the creation is of generation 0, the entry at 2.
    net.make_ready(host);
    net.start("probe", host);
    net.good();
    net.finish("probe", host);
    net.good();
    assert_eq!((net.state(host), net.entry(host).generation), ("H", 2));
    let missed = net.stats(host, 0).missed_requests;
    let state = finalized(&net.session(&config, &[End::Errored; 5]));
    let settle = settle_msg(&creator, &net.signed(&state, 4));
    net.push(&creator, vec![settle]);
    net.good();
    assert_eq!((net.state(host), net.entry(host).consecutive_misses), ("H", 0));
    assert_eq!(net.stats(host, 0).missed_requests, missed + 3);
    // The host of slot 3 has the same stamp as ever: two misses, and out.
    assert_eq!(net.state(index(&net, &config.slots[3])), "X");
}

#[test]
fn an_abandoned_escrow_is_paid_by_its_hosts_and_the_counts_are_judged_with_the_block() {
    let mut net = net(4);
    let creator = net.gateway(0);
    net.push(&creator, vec![create_escrow_msg(&creator, 4, 100_000), create_escrow_msg(&creator, 4, 5_000)]);
    net.good();
    let escrow = net.escrow(1);
    assert_eq!((escrow.created_at, escrow.expires_at, escrow.dispute_window), (1, 13, 5));
    let state = net.session(&escrow.config, &[End::Errored, End::Finished, End::Errored, End::Open]);
    let by = net.who(&escrow.config.slots[0]);
    let dispute = dispute_msg(&by, &net.signed(&state, 4));
    net.push(&by, vec![dispute.clone()]);
    codes(&net.block(), &[("escrow", 9)]);
    net.until(13);
    net.push(&by, vec![dispute]);
    net.good();
    assert_eq!(net.escrow(1).status, Status::Disputed);
    net.until(18);
    let host = index(&net, &escrow.config.slots[1]);
    assert_eq!(net.state(host), "H");
    let done = net.good();
    // Both windows end with this block: the one of the dispute, and the one nobody used.
    assert_eq!((net.escrow(1).status, net.escrow(2).status), (Status::Settled, Status::Expired));
    assert_eq!(net.state(host), "X");
    let names = names(&done.events);
    assert_eq!((names[0], *names.last().unwrap()), ("EventEscrowSettled", "EventExecutorExcluded"));
    // 12 earned; 1 080 + 1 000 of fees; what the open inference held is back.
    assert_eq!(net.balance(&creator.address), BALANCE - 12 - 2_080);
}

#[test]
fn what_if_hears_what_the_breaker_heard_of_escrows() {
    let mut net = net(4);
    let creator = net.gateway(0);
    net.push(&creator, vec![create_escrow_msg(&creator, 4, 100_000)]);
    net.good();
    let config = net.escrow(1).config;
    let state = finalized(&net.session(&config, &[End::Errored, End::Errored, End::Errored]));
    let settle = settle_msg(&creator, &net.signed(&state, 4));
    net.push(&creator, vec![settle]);
    net.good();
    let ask = |params: Option<ValidationParams>| {
        let params = params.map(|validation| {
            let token_price = holdfast_types::Coin { denom: DENOM.into(), amount: 1 };
            holdfast_inference::Params { validation, token_price }.to_pb().validation.unwrap()
        });
        let request = breaker::QueryWhatIfRequest { params, ..Default::default() };
        let reply: breaker::QueryWhatIfResponse = net.query(crate::what_if::PATH, &request).unwrap();
        (reply.agrees, reply.happened.unwrap().exclusions, reply.would_be.unwrap().exclusions)
    };
    assert_eq!(ask(None), (true, 1, 1));
    let patient = ValidationParams { health_cb_consecutive_misses: 3, ..quick() };
    assert_eq!(ask(Some(patient)), (true, 1, 0));
    let strict = ValidationParams { health_cb_consecutive_misses: 1, ..quick() };
    assert_eq!(ask(Some(strict)), (true, 1, 2));
}
