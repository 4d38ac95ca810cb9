//! Tasks and copies that a site does not take.

use std::time::Duration;

use percale_api::peer::{CheckCopies, Evict, HandOver, Outcome, OwnCopy, VersionOf};
use percale_api::tasks::{NewTask, TaskSpec};
use percale_core::access::{Caller, Identity, Issuer};
use percale_core::ids::TaskId;
use percale_core::{ErrorCode, Timestamp};
use percale_server::app::system_caller;
use percale_testkit::tmpfs::SmallFileSystem;
use percale_trust::signed::Delegation;
use serde_json::json;

use crate::common::eventually;
use crate::liar::Liar;
use crate::tasks::{ended, good_at, large, nothing_left, submit, with_space, write_small};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_gets_no_task_and_no_copy_that_is_not_its_own() {
    let [alps, baltic, _coast] = with_space().await;
    let here = alps.user("alice").await;
    write_small(&here, "run7", 1).await;
    let app = alps.running.as_ref().unwrap().app();
    let (alps_id, baltic_id) = (app.site.id, baltic.running.as_ref().unwrap().app().site.id);
    let path = "/climate/run7/0000".parse().unwrap();
    let object = app.catalog.open_object(&system_caller(), &path, None).await.unwrap();

    let liar = Liar::new("delta");
    let client = liar.join(&alps).await;
    let of = |name: &str, site: &str| Caller {
        scopes: vec!["write:/climate".parse().unwrap()],
        ..Caller::user(Identity { issuer: Issuer::site(site), name: name.into() })
    };
    let delegation = |task, holder, caller: Caller| {
        let life = Duration::from_secs(60);
        Delegation::new(liar.id, task, holder, caller, Timestamp::now(), life).sign(&liar.key).unwrap()
    };
    let (id, eve) = (TaskId::new(), of("eve", "delta"));
    let hand_over = async |delegation: String| {
        let path = "/climate/run7".parse().unwrap();
        let spec = TaskSpec::Evict { path, from: "alps".into() };
        let task = NewTask::new(spec);
        let client = liar.saying(&client, &liar.statement(alps_id, Some(of("eve", "delta"))));
        let task = HandOver { id, task, delegation, idempotency_key: None };
        client.peer_hand_over(&task).await.unwrap_err().code()
    };
    // For another task, at another site, of another of its users, of a user who is not its own.
    assert_eq!(hand_over(delegation(TaskId::new(), alps_id, eve.clone())).await, ErrorCode::SiteRefused);
    assert_eq!(hand_over(delegation(id, baltic_id, eve.clone())).await, ErrorCode::TokenInvalid);
    assert_eq!(hand_over(delegation(id, alps_id, of("mallory", "delta"))).await, ErrorCode::SiteRefused);
    assert_eq!(hand_over(delegation(id, alps_id, of("alice", "alps"))).await, ErrorCode::TokenInvalid);
    // All is in order, but the user has no grant.
    assert_eq!(hand_over(delegation(id, alps_id, eve.clone())).await, ErrorCode::NotFound);

    // A site lets go of its own copies only.
    let client = liar.saying(&client, &liar.statement(alps_id, Some(eve.clone())));
    let store = object.replicas[0].store;
    let theirs = OwnCopy { space: object.space, version: object.version, store };
    let answer = client.peer_evict(&Evict { items: vec![theirs] }).await.unwrap();
    match &answer.items[..] {
        [Outcome::Failed(problem)] => assert_eq!(problem.error_code(), ErrorCode::Forbidden, "{problem:?}"),
        other => panic!("{other:?}"),
    }
    // It learns nothing of what its user may not read, and nothing is repaired by another's delegation.
    let items = vec![VersionOf { space: object.space, version: object.version }];
    let client = liar.saying(&client, &liar.statement(alps_id, Some(eve)));
    let mut lines = client.peer_check(&CheckCopies { items: items.clone(), repair: None }).await.unwrap();
    let line = serde_json::to_value(lines.next().await.unwrap().unwrap()).unwrap();
    assert_eq!(line["version"]["problem"]["code"], "not_found", "{line}");
    assert!(lines.next().await.unwrap().is_none());
    let repair = Some(delegation(id, alps_id, of("mallory", "delta")));
    let client = liar.saying(&client, &liar.statement(alps_id, Some(of("eve", "delta"))));
    let refused = client.peer_check(&CheckCopies { items, repair }).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SiteRefused);
    good_at(&here, "/climate/run7", &["alps"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_or_drained_site_takes_no_copies_and_keeps_no_parts() {
    let Some(disk) = SmallFileSystem::mount(16 << 20) else { return };
    let [alps, baltic, _coast] = with_space().await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    write_small(&here, "run7", 5).await;
    for number in 0..4 {
        here.write(&format!("/climate/run7/large{number}"), large(6_000_000 + number)).await.expect(201);
    }
    baltic.sees(&there, "/v1/entries/climate/run7/large3").await;
    let store = json!({"name": "small", "connector": "posix", "config": {"root": disk.path().join("store")}});
    baltic.admin.post("/v1/stores", store).await.expect(201);
    baltic.admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200);
    let spec = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"});
    let id = submit(&here, spec.clone()).await;
    let task = ended(&here, &id).await;
    assert_eq!((&task["state"], &task["problem"]["code"]), (&json!("failed"), &json!("no_space")), "{task}");
    let items = here.get(&format!("/v1/tasks/{id}/items")).await.expect(200);
    assert!(items["items"].as_array().unwrap().iter().any(|item| item["code"] == "no_space"), "{items}");
    nothing_left(&baltic).await;
    // With room it is done to the end.
    baltic.admin.patch("/v1/stores/disk", json!({"state": "active"})).await.expect(200);
    baltic.admin.patch("/v1/stores/small", json!({"state": "draining"})).await.expect(200);
    eventually("the other store is used", || async {
        let retried = here.post(&format!("/v1/tasks/{id}/retry"), json!({})).await;
        if retried.status.as_u16() != 200 {
            return None;
        }
        (ended(&here, &id).await["state"] == "succeeded").then_some(())
    })
    .await;
    good_at(&here, "/climate/run7", &["alps", "baltic"]).await;
    // A drained site takes none.
    alps.admin.patch("/v1/sites/baltic", json!({"state": "drained"})).await.expect(200);
    eventually("baltic hears that it is drained", || async {
        let answer = here.post("/v1/tasks", spec.clone()).await;
        (answer.json()["code"] == "read_only").then_some(())
    })
    .await;
}
