//! Upgrade plans and module versions.

use super::*;

fn plan(name: &str, height: i64) -> upgrade::Plan {
    upgrade::Plan { name: name.into(), height, info: "{}".into(), ..upgrade::Plan::default() }
}

fn try_plan(w: &mut World, plan: upgrade::Plan) -> Result<(), ModuleError> {
    let msg = upgrade::MsgSoftwareUpgrade { authority: w.gov(), plan: Some(plan) };
    w.send(|ctx, _| msg_server::software_upgrade(ctx, msg)).map(|_| ())
}

fn current(w: &World) -> Option<(String, i64)> {
    Keeper.upgrade_plan(&w.chain.store).unwrap().map(|p| (p.name, p.height))
}

#[test]
fn a_proposal_plans_an_upgrade_which_is_applied_once() {
    let mut w = World::new();
    let msg = upgrade::MsgSoftwareUpgrade { authority: w.gov(), plan: Some(plan("v2", 150)) };
    let id = w.voting(vec![pack(&msg)]);
    w.votes(id, &[1, 1, 1, 1]);
    assert_eq!(current(&w), None);
    let events = w.block(2 * DAY);
    assert_eq!(current(&w), Some(("v2".into(), 150)));
    let planned: Vec<_> = events.iter().filter(|e| e.kind.starts_with("holdfast")).map(line).collect();
    assert_eq!(planned, ["holdfast.gov.v1.EventUpgradePlanned name=v2 height=150"]);
    // A later plan takes its place.
    try_plan(&mut w, plan("v2b", 160)).unwrap();
    assert_eq!(current(&w), Some(("v2b".into(), 160)));
    w.chain.block.height = 160;
    let due = Keeper.upgrade_plan(&w.chain.store).unwrap().unwrap();
    w.chain.take_events();
    w.send(|ctx, _| Keeper.apply_upgrade(ctx, &due)).unwrap();
    assert_eq!(
        w.chain.take_events().iter().map(line).collect::<Vec<_>>(),
        ["holdfast.gov.v1.EventUpgradeApplied name=v2b height=160"]
    );
    assert_eq!(current(&w), None);
    assert_eq!(Keeper.last_applied(&w.chain.store).unwrap(), Some(("v2b".into(), 160)));
    let error = try_plan(&mut w, plan("v2b", 200)).unwrap_err();
    assert_eq!((error.codespace, error.code), ("sdk", 18));
    assert!(error.message.starts_with("plan.name: was done at height 160"), "{error}");
    try_plan(&mut w, plan("v2", 200)).unwrap();
    let due = Keeper.upgrade_plan(&w.chain.store).unwrap().unwrap();
    w.chain.block.height = 200;
    w.send(|ctx, _| Keeper.apply_upgrade(ctx, &due)).unwrap();
    assert_eq!(Keeper.last_applied(&w.chain.store).unwrap(), Some(("v2".into(), 200)));
    let applied = |name: &str| {
        let req = upgrade::QueryAppliedPlanRequest { name: name.into() };
        query_server::applied_plan(w.chain.query(), req).unwrap().height
    };
    assert_eq!([applied("v2"), applied("v2b"), applied("v3")], [200, 160, 0]);
}

#[test]
fn a_bad_plan_is_refused_by_field() {
    let mut w = World::new();
    let time = |seconds| Some(holdfast_proto::Timestamp { seconds, nanos: 0 });
    let long = "n".repeat(141);
    for (field, plan) in [
        ("plan.name", plan("", 200)),
        ("plan.name", plan(&long, 200)),
        ("plan.name", plan("a\nb", 200)),
        ("plan.name", plan("../v2", 200)),
        ("plan.name", plan("..", 200)),
        ("plan.name", plan(" v2", 200)),
        ("plan.name", plan("größer", 200)),
        ("plan.time", upgrade::Plan { time: time(1), ..plan("v2", 200) }),
        ("plan.height", plan("v2", 0)),
        ("plan.height", plan("v2", -5)),
        ("plan.height", plan("v2", 100)),
        ("plan.info", upgrade::Plan { info: "i".repeat((1 << 20) + 1), ..plan("v2", 200) }),
        (
            "plan.upgraded_client_state",
            upgrade::Plan { upgraded_client_state: Some(Any::default()), ..plan("v2", 200) },
        ),
    ] {
        let error = try_plan(&mut w, plan).unwrap_err();
        assert_eq!((error.codespace, error.code), ("sdk", 18), "{field}");
        assert!(error.message.starts_with(&format!("{field}:")), "{error}");
    }
    let msg = upgrade::MsgSoftwareUpgrade { authority: w.gov(), plan: None };
    assert_eq!(w.refused(|ctx, _| msg_server::software_upgrade(ctx, msg)).1, 18);
    let msg = upgrade::MsgSoftwareUpgrade { authority: w.text(1), plan: Some(plan("v2", 200)) };
    let refused = w.refused(|ctx, _| msg_server::software_upgrade(ctx, msg));
    assert_eq!((refused.0, refused.1), ("gov", 13));
    // What Go clients write for no time, and the longest name.
    try_plan(&mut w, upgrade::Plan { time: time(-62_135_596_800), ..plan(&"n".repeat(140), 101) }).unwrap();
}

#[test]
fn a_plan_is_cancelled_by_the_authority_when_there_is_one() {
    let mut w = World::new();
    let cancel = |authority: String| upgrade::MsgCancelUpgrade { authority };
    let (gov, other) = (w.gov(), w.text(1));
    let refused = w.refused(|ctx, _| msg_server::cancel_upgrade(ctx, cancel(gov.clone())));
    assert_eq!((refused.0, refused.1), ("gov", 27));
    try_plan(&mut w, plan("v2", 200)).unwrap();
    assert_eq!(w.refused(|ctx, _| msg_server::cancel_upgrade(ctx, cancel(other))).1, 13);
    w.chain.take_events();
    w.send(|ctx, _| msg_server::cancel_upgrade(ctx, cancel(gov))).unwrap();
    assert_eq!(current(&w), None);
    assert_eq!(
        w.chain.take_events().iter().map(line).collect::<Vec<_>>(),
        ["holdfast.gov.v1.EventUpgradeCancelled name=v2 height=200"]
    );
    // The app drops a skipped plan the same way; without one it does nothing.
    w.send(|ctx, _| Keeper.clear_upgrade_plan(ctx)).unwrap();
    assert_eq!(w.chain.take_events(), []);
}

#[test]
fn a_plan_whose_height_passes_during_the_vote_fails_then() {
    let mut w = World::new();
    let msg = upgrade::MsgSoftwareUpgrade { authority: w.gov(), plan: Some(plan("v2", 101)) };
    let id = w.voting(vec![pack(&msg)]);
    w.votes(id, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    assert_eq!((w.status(id), current(&w)), (ProposalStatus::Failed, None));
}

#[test]
fn module_versions_are_replaced_as_a_whole_and_listed_by_name() {
    let mut w = World::new();
    let set = |w: &mut World, rows: &[(&str, u64)]| {
        let rows: Vec<_> = rows.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        w.send(|ctx, _| Keeper.set_module_versions(ctx, &rows)).unwrap();
    };
    set(&mut w, &[("gov", 1), ("bank", 2), ("old", 1)]);
    set(&mut w, &[("gov", 1), ("bank", 3)]);
    let list = |w: &World, name: &str| {
        let req = upgrade::QueryModuleVersionsRequest { module_name: name.into() };
        let response = query_server::module_versions(w.chain.query(), req);
        response.map(|r| r.module_versions.into_iter().map(|v| (v.name, v.version)).collect::<Vec<_>>())
    };
    assert_eq!(list(&w, "").unwrap(), [("bank".into(), 3), ("gov".into(), 1)]);
    assert_eq!(list(&w, "bank").unwrap(), [("bank".into(), 3)]);
    assert_eq!(list(&w, "old").unwrap_err().kind, QueryKind::NotFound);
    assert_eq!(Keeper.module_versions(&w.chain.store).unwrap().len(), 2);
}
