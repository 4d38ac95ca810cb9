//! What a task is busy with, what holds it up, and what holds it back.

use percale_core::Rate;
use serde_json::{Value, json};

use crate::common::{Client, eventually};
use crate::fabric::Site;
use crate::tasks::{ended, large, submit, write_small};

/// Two sites with these settings, and alice's space at the first one, which she may use from both.
pub async fn two(
    alps: impl FnOnce(&mut percale_server::Config),
    baltic: impl FnOnce(&mut percale_server::Config),
) -> [Site; 2] {
    let (alps, baltic) = tokio::join!(Site::with("alps", alps), Site::with("baltic", baltic));
    baltic.join(&alps.invite().await).await;
    for site in [&alps, &baltic] {
        site.reaches(&["alps", "baltic"]).await;
    }
    alps.admin.post("/v1/spaces", json!({"name": "climate", "owner": "user:alice"})).await.expect(201);
    let grant = json!({"subject": "user:alice@site:baltic", "permission": "write"});
    alps.admin.put("/v1/grants/climate", grant).await.expect(200);
    [alps, baltic]
}

fn rate(text: &str) -> Option<Rate> {
    Some(text.parse().unwrap())
}

/// Waits until a running task shows what is wanted.
async fn while_running(client: &Client, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || async {
        let task = client.get(&format!("/v1/tasks/{id}")).await.expect(200);
        assert!(
            !["succeeded", "partial", "failed"].iter().any(|end| task["state"] == *end),
            "{what}: {task}"
        );
        (task["state"] == "running" && wanted(&task)).then_some(task)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_keeps_to_its_limit_and_says_how_far_it_is_and_what_holds_it_up() {
    let [alps, _baltic] = two(|_| {}, |_| {}).await;
    let alice = alps.user("alice").await;
    alice.write("/climate/large", large(12 << 20)).await.expect(201);
    let too_fast = json!({"kind": "replicate", "path": "/climate", "to": "baltic", "limit": "1bit/s"});
    alice.post("/v1/tasks", too_fast).await.expect_problem("invalid_request");
    let spec = json!({"kind": "replicate", "path": "/climate", "to": "baltic", "limit": "32Mbit/s"});
    let id = submit(&alice, spec).await;
    let task = while_running(&alice, &id, "the task is under way", |task| {
        let done = task["progress"]["bytes_done"].as_u64().unwrap();
        task["activity"]["bottleneck"] == "limit" && (1..12 << 20).contains(&done)
    })
    .await;
    let (progress, activity) = (&task["progress"], &task["activity"]);
    assert_eq!((&task["limit"], &progress["bytes_total"]), (&json!("32Mbit/s"), &json!(12 << 20)), "{task}");
    assert_eq!(progress["items_total"], 1, "{task}");
    assert!(activity["rate"].as_u64().unwrap() > 0 && activity["seconds_left"].is_u64(), "{task}");
    assert!(activity["streams_reason"].as_str().unwrap().contains(" streams: "), "{task}");
    assert!(activity["reason"].as_str().unwrap().contains("a limit held the streams back"), "{task}");

    let task = ended(&alice, &id).await;
    let (progress, activity) = (&task["progress"], &task["activity"]);
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!((&progress["bytes_done"], &progress["bytes_total"]), (&json!(12 << 20), &json!(12 << 20)));
    assert_eq!((&activity["bottleneck"], &activity["streams"]), (&json!("limit"), &json!(0)), "{task}");
    let average = activity["average"].as_u64().unwrap();
    // Never more than that and what an idle moment saves up.
    assert!((1..4_500_000).contains(&average), "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_keeps_to_its_limit_in_both_directions() {
    let [alps, baltic] = two(
        |config| config.transfers.limit = rate("40Mbit/s"),
        |config| {
            config.transfers.limit = rate("1Gbit/s");
            config.transfers.times = vec![
                serde_json::from_value(json!({"from": "00:00", "to": "24:00", "limit": "24Mbit/s"})).unwrap(),
            ];
        },
    )
    .await;
    let alice = alps.user("alice").await;
    for name in ["one", "two"] {
        alice.write(&format!("/climate/{name}"), large(5 << 20)).await.expect(201);
    }
    // At what the destination sets for this hour.
    let id = submit(&alice, json!({"kind": "replicate", "path": "/climate/one", "to": "baltic"})).await;
    let task = ended(&alice, &id).await;
    let average = task["activity"]["average"].as_u64().unwrap();
    assert_eq!(
        (&task["state"], &task["activity"]["bottleneck"]),
        (&json!("succeeded"), &json!("limit")),
        "{task}"
    );
    assert!(average < 3_500_000, "{task}");
    // And what goes out, with the destination's own limit away: there it looks like a slow line.
    let mut baltic = baltic;
    baltic.stop().await;
    baltic.config.transfers = Default::default();
    baltic.resume().await;
    alps.reaches(&["baltic"]).await;
    let id = submit(&alice, json!({"kind": "replicate", "path": "/climate/two", "to": "baltic"})).await;
    let task = ended(&alice, &id).await;
    let average = task["activity"]["average"].as_u64().unwrap();
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!(task["activity"]["bottleneck"], "source_or_network", "{task}");
    assert!(average < 6_000_000, "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_behind_its_deadline_has_failed() {
    let [alps, baltic] = two(|_| {}, |config| config.transfers.limit = rate("1Mbit/s")).await;
    let alice = alps.user("alice").await;
    alice.write("/climate/large", large(8 << 20)).await.expect(201);
    let over =
        json!({"kind": "replicate", "path": "/climate", "to": "baltic", "deadline": "2020-01-01T00:00Z"});
    alice.post("/v1/tasks", over).await.expect_problem("invalid_request");
    let deadline = percale_core::Timestamp::now().after(std::time::Duration::from_secs(3)).to_string();
    let spec = json!({"kind": "replicate", "path": "/climate", "to": "baltic", "deadline": deadline});
    let id = submit(&alice, spec).await;
    let task = ended(&alice, &id).await;
    assert_eq!((&task["state"], &task["problem"]["code"]), (&json!("failed"), &json!("timeout")), "{task}");
    assert!(task["problem"]["detail"].as_str().unwrap().contains("deadline"), "{task}");
    // What was staged is gone.
    eventually("nothing is left of it", || async { crate::tasks::files(&baltic).is_empty().then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_take_turns_at_a_source() {
    let [alps, _baltic] = two(|_| {}, |config| config.transfers.per_source = 1).await;
    let alice = alps.user("alice").await;
    alice.write("/climate/slow/large", large(16 << 20)).await.expect(201);
    write_small(&alice, "quick", 20).await;
    let limited = json!({"kind": "replicate", "path": "/climate/slow", "to": "baltic", "limit": "24Mbit/s"});
    let first = submit(&alice, limited).await;
    while_running(&alice, &first, "the first task moves", |task| {
        task["activity"]["streams"].as_u64().is_some_and(|streams| streams > 0)
    })
    .await;
    let second = submit(&alice, json!({"kind": "replicate", "path": "/climate/quick", "to": "baltic"})).await;
    let waiting = while_running(&alice, &second, "the second task waits", |task| {
        task["activity"]["bottleneck"] == "turn"
    })
    .await;
    assert_eq!(waiting["progress"]["bytes_done"], 0, "{waiting}");
    for id in [first, second] {
        assert_eq!(ended(&alice, &id).await["state"], "succeeded");
    }
}

/// Follows a task, from behind an event. Returns name, id and data of each event up to the end of the stream.
async fn followed(client: &Client, id: &str, behind: Option<&str>) -> Vec<(String, String, Value)> {
    let request = client.request(reqwest::Method::GET, &format!("/v1/tasks/{id}/events"));
    let answer = crate::common::send(match behind {
        Some(behind) => request.header("last-event-id", behind),
        None => request,
    })
    .await;
    if answer.status.as_u16() == 204 {
        return Vec::new();
    }
    answer.expect(200);
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim_start().to_owned())
    };
    let events = answer.text.split("\n\n").filter_map(|block| {
        let data = serde_json::from_str(&field(block, "data")?).unwrap();
        Some((field(block, "event")?, field(block, "id")?, data))
    });
    events.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_at_another_site_is_followed_to_its_end() {
    let [alps, _baltic] = two(|_| {}, |_| {}).await;
    let alice = alps.user("alice").await;
    alice.write("/climate/large", large(8 << 20)).await.expect(201);
    let spec = json!({"kind": "replicate", "path": "/climate", "to": "baltic", "limit": "24Mbit/s"});
    let id = submit(&alice, spec).await;
    let events = followed(&alice, &id, None).await;
    let kinds: Vec<&str> = events
        .iter()
        .filter(|(name, ..)| name == "happened")
        .map(|(.., event)| event["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["submitted", "claimed", "succeeded"], "{events:?}");
    let is_moving = |(name, _, task): &(String, String, Value)| {
        name == "progress" && task["state"] == "running" && task["activity"]["bottleneck"] == "limit"
    };
    assert!(events.iter().any(is_moving), "{events:?}");
    let (name, last, task) = events.last().unwrap();
    assert_eq!((name.as_str(), &task["state"]), ("progress", &json!("succeeded")));
    // Again from behind the first, as after a cut; behind the last nothing comes.
    let rest = followed(&alice, &id, Some(&events[0].1)).await;
    let numbers: Vec<_> = rest.iter().filter_map(|(.., event)| event["number"].as_u64()).collect();
    assert_eq!((numbers, rest.last()), (vec![2, 3], events.last()));
    assert!(followed(&alice, &id, Some(last)).await.is_empty());
    let wrong = alice.request(reqwest::Method::GET, &format!("/v1/tasks/{id}/events"));
    let wrong = crate::common::send(wrong.header("last-event-id", "x")).await;
    wrong.expect_problem_at("invalid_request", "baltic");
    let bob = alps.user("bob").await;
    bob.get(&format!("/v1/tasks/{id}/events")).await.expect_problem("not_found");
}
