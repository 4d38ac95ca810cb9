//! Tasks.

use std::time::Duration;

use percale_catalog::*;
use percale_core::access::Caller;
use percale_core::ids::{Fence, SiteId, TaskId, VersionId};
use percale_core::state::TaskState;
use percale_core::tree::RootHash;
use percale_core::{ErrorCode, Timestamp};
use percale_testkit::wait::until_async;
use serde_json::json;

use crate::site::{HOUR, Site, kind, user};

fn new(kind: &str) -> NewTask {
    NewTask {
        id: None,
        kind: kind.into(),
        spec: json!({ "v": 1, "path": "/lab" }),
        deadline: None,
        idempotency_key: None,
    }
}

fn holder(lease: &Lease) -> TaskHolder {
    TaskHolder { lease: lease.id, fence: lease.fence }
}

fn fault() -> TaskFault {
    TaskFault { code: ErrorCode::StoreUnavailable, detail: "cannot read x".into() }
}

fn item(n: usize) -> TaskItem {
    TaskItem {
        path: format!("/lab/{n}"),
        outcome: "failed".into(),
        code: Some(ErrorCode::Integrity),
        detail: "wrong bytes".into(),
    }
}

async fn events(site: &Site, id: TaskId) -> Vec<String> {
    let events = site.catalog.task_events(&site.admin, id, 0).await.unwrap();
    assert!(events.iter().zip(1..).all(|(event, number)| event.number == number));
    events.into_iter().map(|event| event.kind).collect()
}

async fn a_task_from_submission_to_its_end(site: Site) {
    let catalog = &site.catalog;
    let mut alice = user("alice");
    alice.scopes = vec!["read:/lab".parse().unwrap()];
    let task = catalog.submit_task(&alice, new("verify")).await.unwrap();
    assert_eq!((task.state, task.attempt), (TaskState::Queued, 0));
    let of_another_kind = catalog.claim_task(holder(&site.lease), &["copy".into()], None).await.unwrap();
    assert_eq!(of_another_kind, None);
    let claimed = catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    assert_eq!((claimed.id, claimed.state, claimed.attempt), (task.id, TaskState::Running, 1));
    assert_eq!(claimed.caller, alice, "with the scopes of the submission");
    assert_eq!(claimed.spec, json!({ "v": 1, "path": "/lab" }));
    assert_eq!(catalog.claim_task(holder(&site.lease), &[], None).await.unwrap(), None);

    let progress = TaskProgress { items_done: 3, bytes_done: 30, ..Default::default() };
    let report = TaskReport {
        cursor: Some(json!("a/b")),
        progress: progress.clone(),
        items: vec![item(1)],
        ..Default::default()
    };
    let running = catalog.record_progress(task.id, holder(&site.lease), report).await.unwrap();
    assert_eq!((running.cursor, running.progress), (Some(json!("a/b")), progress));
    let report = TaskReport { items: (2..5).map(item).collect(), ..Default::default() };
    let done = catalog.finish_task(task.id, holder(&site.lease), report, TaskOutcome::Partial).await.unwrap();
    assert_eq!((done.state, done.lease), (TaskState::Partial, None));
    let page = catalog.task_items(&alice, task.id, None, 3).await.unwrap();
    assert_eq!(page.items, (1..4).map(item).collect::<Vec<_>>());
    let page = catalog.task_items(&alice, task.id, page.next, 3).await.unwrap();
    assert_eq!((page.items, page.next), (vec![item(4)], None));
    assert_eq!(events(&site, task.id).await, ["submitted", "claimed", "partial"]);

    let retried = catalog.retry_task(&alice, task.id).await.unwrap();
    assert_eq!((retried.state, retried.attempt, retried.cursor), (TaskState::Queued, 1, None));
    assert!(catalog.task_items(&alice, task.id, None, 3).await.unwrap().items.is_empty());
    let report = TaskReport::default();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    let done =
        catalog.finish_task(task.id, holder(&site.lease), report, TaskOutcome::Succeeded).await.unwrap();
    assert_eq!(done.state, TaskState::Succeeded);
    assert!(matches!(kind(catalog.retry_task(&alice, task.id).await), ErrorKind::Conflict { .. }));
    assert!(matches!(kind(catalog.cancel_task(&alice, task.id).await), ErrorKind::Conflict { .. }));
}

fn copy(n: u64, source: SiteId) -> TaskCopy {
    TaskCopy {
        path: format!("/lab/{n}").parse().unwrap(),
        version: VersionId(n),
        size: n,
        root: RootHash([7; 32]),
        sources: vec![source],
        store: Some("disk".into()),
        verified: Verified::Frames,
        at_us: 1,
    }
}

async fn what_a_task_has_brought_is_kept_with_its_progress(site: Site) {
    let catalog = &site.catalog;
    let alice = user("alice");
    let task = catalog.submit_task(&alice, new("copy")).await.unwrap();
    assert_eq!(catalog.task_copy_sums(&alice, task.id).await.unwrap(), TaskCopies::default());
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    let (one, two) = (SiteId::new(), SiteId::new());
    let all: Vec<TaskCopy> = (1..=1203).map(|n| copy(n, if n % 2 == 0 { one } else { two })).collect();
    for copies in [&all[..3], &all[3..]] {
        let report = TaskReport { copies: copies.to_vec(), ..Default::default() };
        catalog.record_progress(task.id, holder(&site.lease), report).await.unwrap();
    }
    let behind = async |mut after| {
        let mut found = Vec::new();
        while let Some((last, copies)) = catalog.task_copies(&alice, task.id, after).await.unwrap() {
            assert!(copies.len() <= MAX_TASK_COPIES && last == after + copies.len() as u64);
            found.extend(copies);
            after = last;
        }
        found
    };
    assert!(behind(0).await == all);
    assert!(behind(600).await == all[600..], "also from the middle of a record");
    let sums = catalog.task_copy_sums(&alice, task.id).await.unwrap();
    assert_eq!((sums.count, sums.bytes), (1203, (1..=1203).sum()));
    assert_eq!(sums.sources, [one, two].into());

    // A worker whose lease was lost adds nothing; a second run adds to the first.
    let lost = TaskHolder { fence: Fence(site.lease.fence.0 - 1), ..holder(&site.lease) };
    let report = TaskReport { copies: vec![copy(9999, one)], ..Default::default() };
    assert!(catalog.record_progress(task.id, lost, report.clone()).await.is_err());
    let partial = TaskOutcome::Partial;
    catalog.finish_task(task.id, holder(&site.lease), TaskReport::default(), partial).await.unwrap();
    catalog.retry_task(&alice, task.id).await.unwrap();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    catalog.finish_task(task.id, holder(&site.lease), report, TaskOutcome::Succeeded).await.unwrap();
    assert_eq!(catalog.task_copy_sums(&alice, task.id).await.unwrap().count, 1204);
    for stranger in [user("bob"), Caller::anonymous()] {
        assert_eq!(kind(catalog.task_copies(&stranger, task.id, 0).await), ErrorKind::NotFound);
        assert_eq!(kind(catalog.task_copy_sums(&stranger, task.id).await), ErrorKind::NotFound);
    }
}

async fn a_task_is_its_owners(site: Site) {
    let catalog = &site.catalog;
    let (alice, bob) = (user("alice"), user("bob"));
    let task = catalog.submit_task(&alice, new("verify")).await.unwrap();
    assert_eq!(kind(catalog.task(&bob, task.id).await), ErrorKind::NotFound);
    assert_eq!(kind(catalog.cancel_task(&bob, task.id).await), ErrorKind::NotFound);
    assert_eq!(kind(catalog.task_items(&bob, task.id, None, 1).await), ErrorKind::NotFound);
    assert_eq!(kind(catalog.task_events(&bob, task.id, 0).await), ErrorKind::NotFound);
    assert_eq!(kind(catalog.task(&Caller::anonymous(), task.id).await), ErrorKind::NotFound);
    assert!(catalog.submit_task(&Caller::anonymous(), new("verify")).await.is_err());
    assert_eq!(catalog.task(&site.admin, task.id).await.unwrap(), task);
    assert_eq!(catalog.task(&alice, task.id).await.unwrap(), task);
}

async fn listing_tasks(site: Site) {
    let catalog = &site.catalog;
    let alice = user("alice");
    let mut ids = Vec::new();
    for n in 0..7 {
        let kind = if n % 2 == 0 { "verify" } else { "copy" };
        ids.push(catalog.submit_task(&alice, new(kind)).await.unwrap().id);
    }
    catalog.submit_task(&user("bob"), new("verify")).await.unwrap();
    catalog.cancel_task(&alice, ids[0]).await.unwrap();
    ids.reverse();
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = catalog.tasks(&alice, TaskFilter::default(), after, 3).await.unwrap();
        found.extend(page.items.iter().map(|task| task.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, ids, "the newest first, only hers");
    let filter = TaskFilter { states: vec![TaskState::Queued], kind: Some("verify".into()) };
    assert_eq!(catalog.tasks(&alice, filter.clone(), None, 100).await.unwrap().items.len(), 3);
    assert_eq!(catalog.tasks(&site.admin, filter, None, 100).await.unwrap().items.len(), 4);
    assert!(
        catalog.tasks(&Caller::anonymous(), TaskFilter::default(), None, 9).await.unwrap().items.is_empty()
    );
    assert_eq!(
        kind(catalog.tasks(&alice, TaskFilter::default(), Some("x".into()), 9).await),
        ErrorKind::InvalidRequest
    );
}

async fn submitting_twice_with_one_key_is_once(site: Site) {
    let second = site.second().await;
    let alice = user("alice");
    let with_key = NewTask { idempotency_key: Some("k".into()), ..new("copy") };
    let (one, two) = tokio::join!(
        site.catalog.submit_task(&alice, with_key.clone()),
        second.submit_task(&alice, with_key.clone())
    );
    assert_eq!(one.unwrap().id, two.unwrap().id);
    let other = site.catalog.submit_task(&user("bob"), with_key).await.unwrap();
    assert_eq!(site.catalog.tasks(&site.admin, TaskFilter::default(), None, 9).await.unwrap().items.len(), 2);
    assert_eq!(other.caller, user("bob"));
}

async fn a_task_that_has_its_id_already_is_submitted_once(site: Site) {
    let catalog = &site.catalog;
    let id = TaskId::new();
    let with_id = NewTask { id: Some(id), ..new("evict") };
    let task = catalog.submit_task(&user("alice"), with_id.clone()).await.unwrap();
    assert_eq!(task.id, id);
    let again = NewTask { kind: "copy".into(), ..with_id.clone() };
    assert_eq!(catalog.submit_task(&user("alice"), again).await.unwrap(), task, "the first task again");
    let taken = kind(catalog.submit_task(&user("bob"), with_id).await);
    assert_eq!(taken, ErrorKind::Conflict { version: None });
}

async fn a_task_outlives_its_server(site: Site) {
    let catalog = &site.catalog;
    let task = catalog.submit_task(&user("alice"), new("verify")).await.unwrap();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    let report = TaskReport { cursor: Some(json!(17)), ..Default::default() };
    catalog.record_progress(task.id, holder(&site.lease), report.clone()).await.unwrap();
    let taken = catalog.take_over_all(LeaseKind::Server, "two", HOUR).await.unwrap().remove(0).lease;
    let stale = catalog.record_progress(task.id, holder(&site.lease), report.clone()).await;
    assert_eq!(kind(stale), ErrorKind::LeaseExpired);
    let queued = catalog.task(&site.admin, task.id).await.unwrap();
    assert_eq!((queued.state, queued.attempt, queued.cursor), (TaskState::Queued, 1, Some(json!(17))));
    assert!(queued.not_before > queued.changed, "it waits before the next attempt");
    assert_eq!(catalog.claim_task(holder(&taken), &[], None).await.unwrap(), None, "not yet");
    let claimed = until_async("the wait to be over", HOUR, async || {
        catalog.claim_task(holder(&taken), &[], None).await.unwrap()
    })
    .await;
    assert_eq!((claimed.attempt, claimed.cursor), (2, Some(json!(17))));
    // An orderly end gives it back at once and does not count.
    catalog.release_lease(taken.id, taken.fence).await.unwrap();
    let queued = catalog.task(&site.admin, task.id).await.unwrap();
    assert_eq!((queued.state, queued.attempt), (TaskState::Queued, 1));
    assert_eq!(events(&site, task.id).await, ["submitted", "claimed", "requeued", "claimed", "requeued"]);
}

async fn a_cancelled_task_stops_its_worker(site: Site) {
    let catalog = &site.catalog;
    let alice = user("alice");
    let task = catalog.submit_task(&alice, new("verify")).await.unwrap();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    assert_eq!(catalog.cancel_task(&alice, task.id).await.unwrap().state, TaskState::Cancelled);
    let late = catalog.record_progress(task.id, holder(&site.lease), TaskReport::default()).await;
    assert_eq!(kind(late), ErrorKind::LeaseExpired);
    let late = catalog
        .finish_task(task.id, holder(&site.lease), TaskReport::default(), TaskOutcome::Succeeded)
        .await;
    assert_eq!(kind(late), ErrorKind::LeaseExpired);
    assert_eq!(catalog.task(&alice, task.id).await.unwrap().state, TaskState::Cancelled);
}

async fn faults_deadlines_and_used_up_attempts(site: Site) {
    let catalog = &site.catalog;
    let alice = user("alice");
    let again = catalog.submit_task(&alice, new("verify")).await.unwrap();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    let outcome = TaskOutcome::Again(fault());
    let queued =
        catalog.finish_task(again.id, holder(&site.lease), TaskReport::default(), outcome).await.unwrap();
    assert_eq!((queued.state, queued.fault), (TaskState::Queued, Some(fault())));
    assert_eq!(queued.not_before.since(queued.changed), std::time::Duration::from_secs(1));
    catalog.cancel_task(&alice, again.id).await.unwrap();

    let failed = catalog.submit_task(&alice, new("verify")).await.unwrap();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    let outcome = TaskOutcome::Failed(fault());
    let failed =
        catalog.finish_task(failed.id, holder(&site.lease), TaskReport::default(), outcome).await.unwrap();
    assert_eq!((failed.state, failed.fault), (TaskState::Failed, Some(fault())));

    let late = NewTask { deadline: Some(Timestamp::from_micros(1)), ..new("verify") };
    let late = catalog.submit_task(&alice, late).await.unwrap();
    assert_eq!(catalog.claim_task(holder(&site.lease), &[], None).await.unwrap(), None);
    assert_eq!(
        (catalog.end_overdue_tasks().await.unwrap(), catalog.end_overdue_tasks().await.unwrap()),
        (1, 0)
    );
    let late = catalog.task(&alice, late.id).await.unwrap();
    assert_eq!((late.state, late.fault.unwrap().code), (TaskState::Failed, ErrorCode::Timeout));
    // Whoever tries it again wants it late.
    catalog.retry_task(&alice, late.id).await.unwrap();
    assert_eq!(catalog.end_overdue_tasks().await.unwrap(), 0);
    assert_eq!(catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap().id, late.id);
}

async fn only_attempts_that_achieve_nothing_use_patience_up(site: Site) {
    let catalog = &site.catalog;
    let task = catalog.submit_task(&user("alice"), new("replicate")).await.unwrap();
    let further = TaskReport { is_further: true, ..Default::default() };
    // Ends an attempt, and returns the task. The wait behind it is not waited for.
    let attempt = async |report: Option<TaskReport>| {
        catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
        if let Some(report) = report {
            catalog.record_progress(task.id, holder(&site.lease), report).await.unwrap();
        }
        let outcome = TaskOutcome::Again(fault());
        let ended = catalog.finish_task(task.id, holder(&site.lease), TaskReport::default(), outcome);
        let ended = ended.await.unwrap();
        site.tamper("UPDATE task SET not_before = 0").await;
        ended
    };
    let wait = |task: &Task| task.not_before.since(task.changed).as_secs();
    for (number, expected) in [(1, 1), (2, 2), (3, 4)] {
        let queued = attempt(None).await;
        assert_eq!((queued.attempt, queued.vain, wait(&queued)), (number, number, expected));
    }
    for number in 4..30 {
        let queued = attempt(Some(further.clone())).await;
        assert_eq!((queued.attempt, queued.vain, wait(&queued)), (number, 0, 1), "as if it were the first");
    }
    for vain in 1..MAX_VAIN_ATTEMPTS {
        assert_eq!(attempt(None).await.vain, vain);
    }
    let failed = attempt(None).await;
    assert_eq!((failed.state, failed.attempt), (TaskState::Failed, 29 + MAX_VAIN_ATTEMPTS));
    let retried = catalog.retry_task(&user("alice"), task.id).await.unwrap();
    assert_eq!((retried.attempt, retried.vain), (failed.attempt, 0));
}

async fn what_a_task_holds_ends_with_it(site: Site) {
    let catalog = &site.catalog;
    let alice = user("alice");
    for end in ["cancelled", "failed", "succeeded"] {
        let task = catalog.submit_task(&alice, new("replicate")).await.unwrap();
        let other = catalog.submit_task(&alice, new("replicate")).await.unwrap();
        let take = async |task: &Task| {
            let holder = task.id.to_string();
            catalog.acquire_lease(LeaseKind::Task, &holder, HOUR, json!({ "v": 1 })).await.unwrap()
        };
        let (own, others) = (take(&task).await, take(&other).await);
        assert_eq!(
            catalog.leases_of(LeaseKind::Task, &task.id.to_string()).await.unwrap(),
            std::slice::from_ref(&own)
        );
        assert_eq!(catalog.take_over_lapsed(None, "two", HOUR, 9).await.unwrap(), []);
        let claimed = catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
        assert_eq!(claimed.id, task.id);
        let finish =
            |outcome| catalog.finish_task(task.id, holder(&site.lease), TaskReport::default(), outcome);
        match end {
            "cancelled" => drop(catalog.cancel_task(&alice, task.id).await.unwrap()),
            "failed" => {
                // It stays while there is to be another attempt.
                finish(TaskOutcome::Again(fault())).await.unwrap();
                assert_eq!(catalog.lease(own.id).await.unwrap(), own);
                site.tamper("UPDATE task SET not_before = 0").await;
                while catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap().id != task.id
                {
                }
                drop(finish(TaskOutcome::Failed(fault())).await.unwrap());
            }
            _ => drop(finish(TaskOutcome::Succeeded).await.unwrap()),
        }
        let renewed = catalog.renew_lease(own.id, own.fence, HOUR).await;
        assert_eq!(kind(renewed), ErrorKind::LeaseExpired);
        let lapsed = catalog.take_over_lapsed(None, "two", HOUR, 9).await.unwrap().remove(0);
        assert_eq!((lapsed.lease.id, lapsed.old_fence), (own.id, own.fence));
        catalog.release_lease(own.id, lapsed.lease.fence).await.unwrap();
        assert_eq!(catalog.lease(others.id).await.unwrap(), others);
        catalog.cancel_task(&alice, other.id).await.unwrap();
        let lapsed = catalog.take_over_lapsed(None, "two", HOUR, 9).await.unwrap().remove(0).lease;
        catalog.release_lease(lapsed.id, lapsed.fence).await.unwrap();
    }
}

async fn owners_take_turns(site: Site) {
    let catalog = &site.catalog;
    let mut many = Vec::new();
    for _ in 0..6 {
        many.push(catalog.submit_task(&user("alice"), new("copy")).await.unwrap().id);
    }
    let mut of_bob = Vec::new();
    for _ in 0..2 {
        of_bob.push(catalog.submit_task(&user("bob"), new("copy")).await.unwrap().id);
    }
    let of_carol = catalog.submit_task(&user("carol"), new("copy")).await.unwrap().id;
    let claim =
        async || catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().map(|task| task.id);
    let end = async |id: TaskId| {
        let done = TaskOutcome::Succeeded;
        catalog.finish_task(id, holder(&site.lease), TaskReport::default(), done).await.unwrap();
    };
    // One after the other, as by a single worker: whoever had no turn for the longest is next.
    for expected in [many[0], of_bob[0], of_carol, many[1], of_bob[1], many[2]] {
        assert_eq!(claim().await, Some(expected));
        end(expected).await;
    }
    // Side by side: of whom the fewest run is next, however many others wait and for how long.
    assert_eq!((claim().await, claim().await), (Some(many[3]), Some(many[4])));
    let late = catalog.submit_task(&user("bob"), new("copy")).await.unwrap().id;
    assert_eq!(claim().await, Some(late));
    assert_eq!((claim().await, claim().await), (Some(many[5]), None));
}

async fn one_owner_does_not_get_all_workers_of_a_server(site: Site) {
    let catalog = &site.catalog;
    let claim = async |lease: &Lease| {
        catalog.claim_task(holder(lease), &[], Some(3)).await.unwrap().map(|task| task.caller)
    };
    for _ in 0..10 {
        catalog.submit_task(&user("alice"), new("copy")).await.unwrap();
    }
    for _ in 0..3 {
        assert_eq!(claim(&site.lease).await, Some(user("alice")));
    }
    assert_eq!(claim(&site.lease).await, None, "the rest waits, and a worker is free");
    catalog.submit_task(&user("bob"), new("copy")).await.unwrap();
    assert_eq!(claim(&site.lease).await, Some(user("bob")));
    let second = site.second().await;
    let other = second.acquire_lease(LeaseKind::Server, "two", HOUR, json!({})).await.unwrap();
    assert_eq!(claim(&other).await, Some(user("alice")), "another server has workers of its own");
}

async fn a_deadline_is_noticed_while_a_task_waits_for_another_attempt(site: Site) {
    let catalog = &site.catalog;
    let alice = user("alice");
    let now = catalog.now().await.unwrap();
    let deadline = now.after(std::time::Duration::from_millis(300));
    let task = NewTask { deadline: Some(deadline), ..new("copy") };
    let task = catalog.submit_task(&alice, task).await.unwrap();
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    let again = TaskOutcome::Again(fault());
    let queued =
        catalog.finish_task(task.id, holder(&site.lease), TaskReport::default(), again).await.unwrap();
    assert!(queued.not_before > deadline, "its next attempt would begin behind its deadline");
    let ended = until_async("the deadline to be noticed", HOUR, async || {
        catalog.end_overdue_tasks().await.unwrap();
        let task = catalog.task(&alice, task.id).await.unwrap();
        (task.state == TaskState::Failed).then_some(task)
    })
    .await;
    assert!(ended.changed < queued.not_before, "and not only then");
}

async fn a_task_that_is_done_for_now_begins_anew(site: Site) {
    let catalog = &site.catalog;
    let task = catalog.submit_task(&user("alice"), new("import")).await.unwrap();
    let item = TaskItem { path: "/x".into(), outcome: "failed".into(), code: None, detail: String::new() };
    for pass in 0..3 {
        let claimed = catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
        assert_eq!((claimed.attempt, claimed.cursor), (1, None), "pass {pass}");
        let report = TaskReport {
            items: vec![item.clone()],
            begins_anew: true,
            cursor: Some(json!(pass)),
            ..Default::default()
        };
        let later = TaskOutcome::Later(Duration::ZERO, None);
        let queued = catalog.finish_task(task.id, holder(&site.lease), report, later).await.unwrap();
        assert_eq!(queued.state, TaskState::Queued);
        assert_eq!(catalog.task_items(&site.admin, task.id, None, 9).await.unwrap().items.len(), 1);
        let events = catalog.task_events(&site.admin, task.id, 0).await.unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!((kinds, events[2].number), (vec!["submitted", "claimed", "requeued"], 3 + 2 * pass));
    }
    catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().unwrap();
    assert!(!catalog.hasten_task(task.id).await.unwrap(), "it runs");
    let later = TaskOutcome::Later(HOUR, None);
    catalog.finish_task(task.id, holder(&site.lease), TaskReport::default(), later).await.unwrap();
    assert_eq!(catalog.claim_task(holder(&site.lease), &[], None).await.unwrap(), None, "not yet");
    assert!(catalog.hasten_task(task.id).await.unwrap());
    assert!(catalog.claim_task(holder(&site.lease), &[], None).await.unwrap().is_some());
}

async fn two_servers_do_not_claim_the_same_task(site: Site) {
    let second = site.second().await;
    let other = second.acquire_lease(LeaseKind::Server, "two", HOUR, json!({})).await.unwrap();
    for _ in 0..20 {
        site.catalog.submit_task(&user("alice"), new("verify")).await.unwrap();
    }
    let claim_all = async |catalog: &Catalog, lease: &Lease| {
        let mut claimed = Vec::new();
        while let Some(task) = catalog.claim_task(holder(lease), &[], None).await.unwrap() {
            claimed.push(task.id);
        }
        claimed
    };
    let (mut one, two) = tokio::join!(claim_all(&site.catalog, &site.lease), claim_all(&second, &other));
    one.extend(two);
    one.sort();
    one.dedup();
    assert_eq!(one.len(), 20);
}

on_both!(
    a_task_from_submission_to_its_end,
    what_a_task_has_brought_is_kept_with_its_progress,
    a_task_is_its_owners,
    listing_tasks,
    submitting_twice_with_one_key_is_once,
    a_task_that_has_its_id_already_is_submitted_once,
    a_task_outlives_its_server,
    a_cancelled_task_stops_its_worker,
    faults_deadlines_and_used_up_attempts,
    only_attempts_that_achieve_nothing_use_patience_up,
    what_a_task_holds_ends_with_it,
    a_task_that_is_done_for_now_begins_anew,
    two_servers_do_not_claim_the_same_task,
    owners_take_turns,
    one_owner_does_not_get_all_workers_of_a_server,
    a_deadline_is_noticed_while_a_task_waits_for_another_attempt,
);
