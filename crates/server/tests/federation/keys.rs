//! Sites change their keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderMap;
use percale_api::fields;
use percale_api::peer::{Join, Roster};
use percale_catalog::{Catalog, CatalogConfig, KeyStep, OldTokens};
use percale_core::access::{Caller, Identity, Issuer, Scope};
use percale_core::ids::{SiteId, TaskId};
use percale_core::{ErrorCode, Timestamp};
use percale_trust::invitation::Invitation;
use percale_trust::signed::{Delegation, OLD_KEY_LIFE};
use percale_trust::{KeyChange, SiteKey, SitePublicKey};
use serde_json::{Value, json};

use crate::common::eventually;
use crate::fabric::{Site, three};
use crate::liar::Liar;
use crate::tasks::{ended, good_at, submit, with_space, write_small};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a site says of another, or of itself.
async fn status(at: &Site, of: &str) -> Value {
    at.admin.get(&format!("/v1/sites/{of}")).await.expect(200)
}

async fn id_of(site: &Site) -> SiteId {
    status(site, site.name).await["id"].as_str().unwrap().parse().unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

async fn rotate(site: &Site, compromised: bool) -> Value {
    let key = status(site, site.name).await["key"].clone();
    site.admin.post("/v1/site/key", json!({"key": key, "compromised": compromised})).await.expect(200)
}

/// Waits until a site knows this key of another and reaches it.
async fn knows(at: &Site, of: &str, key: &Value) {
    eventually(&format!("{} knows the key of {of}", at.name), || async {
        let status = status(at, of).await;
        let is_known = status["key"] == *key && status["key_trouble"].is_null();
        (is_known && !["unreachable", "refused"].iter().any(|no| status["route"] == *no)).then_some(())
    })
    .await;
}

fn key_file(site: &Site) -> PathBuf {
    site.config.site.state_dir.join("site.key")
}

/// Does by hand, at a site that is stopped, what comes before the new key is used.
async fn announce_by_hand(site: &Site, id: SiteId, at: Timestamp) -> SitePublicKey {
    let state = &site.config.site.state_dir;
    let (old, new) = (SiteKey::load_or_create(state).unwrap(), SiteKey::prepare_next(state).unwrap());
    let catalog = Catalog::open(&CatalogConfig::new(site.config.catalog_url().unwrap())).await.unwrap();
    let step = KeyStep {
        site: id,
        from: old.public().0,
        to: new.public().0,
        old_until: Some(at.after(OLD_KEY_LIFE)),
        change: Some(KeyChange::sign(&old, id, &new, at).unwrap()),
        is_confirmed: true,
    };
    assert!(catalog.change_key(step, Some(OldTokens::Until(at.after(30 * DAY)))).await.unwrap());
    catalog.close().await;
    new.public()
}

fn days_ago(days: i64) -> Timestamp {
    Timestamp::from_micros(Timestamp::now().as_micros() - days * 24 * 3600 * 1_000_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_changes_while_others_read() {
    let [alps, baltic, coast] = with_space().await;
    let alice = alps.user("alice").await;
    alice.write("/climate/a", "one").await.expect(201);
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/entries/climate/a").await;
    let (is_over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let reading = tokio::spawn({
        let (is_over, reads) = (is_over.clone(), reads.clone());
        async move {
            while !is_over.load(Ordering::SeqCst) {
                let answer = there.get("/v1/data/climate/a").await;
                assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, "one"));
                reads.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let more = async |many: u32| {
        let before = reads.load(Ordering::SeqCst);
        eventually("more is read", || async { (reads.load(Ordering::SeqCst) > before + many).then_some(()) })
            .await;
    };
    more(3).await;
    let before = status(&alps, "alps").await["key"].clone();
    let made = rotate(&alps, false).await;
    assert_ne!(made["key"], before);
    assert_eq!((&made["told"], &made["untold"]), (&json!(["baltic", "coast"]), &json!([])));
    for site in [&alps, &baltic, &coast] {
        let known = status(site, "alps").await;
        assert_eq!((&known["key"], &known["key_id"]), (&made["key"], &made["key_id"]), "at {}", site.name);
        assert_eq!((&known["old_key"], &known["old_key_until"]), (&before, &made["old_key_until"]));
        knows(site, "alps", &made["key"]).await;
    }
    more(3).await;
    is_over.store(true, Ordering::SeqCst);
    reading.await.unwrap();
    // Tokens of the old key go on, and new ones are made with the new one.
    alice.write("/climate/b", "two").await.expect(201);
    alps.user("bob").await.get("/v1/whoami").await.expect(200);
    // The same request changes nothing more; one about a key that is long gone is refused.
    let again = alps.admin.post("/v1/site/key", json!({"key": before})).await.expect(200);
    assert_eq!(again["key"], made["key"]);
    rotate(&alps, false).await;
    alps.admin.post("/v1/site/key", json!({"key": before})).await.expect_problem("precondition_failed");
    alps.admin.post("/v1/site/key", json!({"key": "junk"})).await.expect_problem("invalid_request");
    alice.post("/v1/site/key", json!({"key": before})).await.expect_problem("forbidden");
    alice.put("/v1/sites/baltic/key", json!({"key": before})).await.expect_problem("forbidden");
    alice.get("/v1/data/climate/b").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_on_when_the_site_that_allowed_it_changes_its_key() {
    let [mut alps, baltic, coast] = with_space().await;
    write_small(&alps.user("alice").await, "many", 20).await;
    let alice = baltic.user("alice").await;
    for site in [&baltic, &coast] {
        let client = site.user("alice").await;
        site.sees(&client, "/v1/entries/climate/many/0019").await;
    }
    // It waits for its source, which does not hear of the change.
    alps.stop().await;
    let spec = json!({"kind": "replicate", "path": "/climate/many", "to": "coast"});
    let id = submit(&alice, spec).await;
    let made = rotate(&baltic, false).await;
    assert_eq!((&made["told"], &made["untold"]), (&json!(["coast"]), &json!(["alps"])));
    alps.resume().await;
    let task = ended(&alice, &id).await;
    assert_eq!(task["state"], "succeeded", "{task}");
    knows(&alps, "baltic", &made["key"]).await;
    good_at(&alps.user("alice").await, "/climate/many", &["alps", "coast"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_away_learns_of_a_change_from_the_site_itself() {
    let mut alps = Site::start("alps").await;
    let mut baltic = Site::start("baltic").await;
    baltic.join(&alps.invite().await).await;
    baltic.reaches(&["alps"]).await;
    alps.reaches(&["baltic"]).await;
    baltic.stop().await;
    let made = rotate(&alps, false).await;
    assert_eq!(made["untold"], json!(["baltic"]));
    baltic.resume().await;
    knows(&baltic, "alps", &made["key"]).await;
    alps.reaches(&["baltic"]).await;
    baltic.stop().await;

    // One that only dials out, either way round.
    let mut coast = Site::with("coast", |config| config.federation.outgoing_only = true).await;
    coast.join(&alps.invite().await).await;
    alps.reaches(&["coast"]).await;
    coast.stop().await;
    let made = rotate(&alps, false).await;
    coast.resume().await;
    knows(&coast, "alps", &made["key"]).await;
    alps.reaches(&["coast"]).await;
    alps.stop().await;
    let made = rotate(&coast, false).await;
    alps.resume().await;
    knows(&alps, "coast", &made["key"]).await;
    coast.reaches(&["alps"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_missed_two_changes_asks_an_administrator() {
    let alps = Site::start("alps").await;
    let mut baltic = Site::start("baltic").await;
    baltic.join(&alps.invite().await).await;
    baltic.reaches(&["alps"]).await;
    baltic.stop().await;
    rotate(&alps, false).await;
    let made = rotate(&alps, false).await;
    baltic.resume().await;
    let trouble = eventually("baltic shows the trouble", || async {
        status(&baltic, "alps").await["key_trouble"].as_str().map(str::to_owned)
    })
    .await;
    let todo = format!("percale site confirm-key alps {}", text(&made["key"]));
    assert!(trouble.contains(&todo) && trouble.contains(&text(&made["key_id"])), "{trouble}");
    eventually("alps hears why it is refused", || async {
        let fault = text(&status(&alps, "baltic").await["fault"]);
        fault.contains(&todo).then_some(())
    })
    .await;
    let confirm = |key: Value| baltic.admin.put("/v1/sites/alps/key", json!({"key": key}));
    confirm(json!("0123456789abcdef")).await.expect_problem_at("invalid_request", "baltic");
    confirm(json!("alps")).await.expect_problem_at("invalid_request", "baltic");
    let own = status(&baltic, "baltic").await["key"].clone();
    confirm(own.clone()).await.expect_problem_at("already_exists", "baltic");
    baltic
        .admin
        .put("/v1/sites/baltic/key", json!({"key": own}))
        .await
        .expect_problem_at("unsupported", "baltic");
    confirm(made["key_id"].clone()).await.expect(200);
    knows(&baltic, "alps", &made["key"]).await;
    alps.reaches(&["baltic"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_changes_are_refused_and_shown() {
    let [alps, baltic, _coast] = three().await;
    let liar = Liar::new("delta");
    let client = liar.join(&alps).await;
    let client = liar.saying(&client, &liar.statement(id_of(&alps).await, None));
    let known = client.peer_roster(&Roster { members: Vec::new() }).await.unwrap();
    let line = |name: &str| known.members.iter().find(|member| member.name == name).unwrap().clone();
    let after = async |member| {
        let name = text(&json!(member));
        let answer = client.peer_roster(&Roster { members: Vec::new() }).await.unwrap();
        answer.members.into_iter().find(|member| member.name == name)
    };
    let say = async |member| client.peer_roster(&Roster { members: vec![member] }).await.unwrap();

    // Of another site: signed with its own key, or not at all.
    let next = liar.next_key();
    let mut stolen = line("baltic");
    (stolen.key, stolen.changed) = (next.public().to_string(), Timestamp::now());
    for change in [None, Some(KeyChange::sign(&liar.key, stolen.id, &next, Timestamp::now()).unwrap())] {
        stolen.key_change = change;
        say(stolen.clone()).await;
        assert_eq!(after("baltic").await.unwrap().key, line("baltic").key);
    }
    let trouble = text(&status(&alps, "baltic").await["key_trouble"]);
    assert!(trouble.contains(&next.public().key_id()), "{trouble}");
    // Of itself: a key that is not held, and that of another member.
    let mut own = line("delta");
    own.key_change = Some(KeyChange::sign(&liar.key, liar.id, &next, Timestamp::now()).unwrap());
    (own.key, own.changed) = (line("baltic").key, Timestamp::now());
    say(own.clone()).await;
    assert_eq!(after("delta").await.unwrap().key, liar.key.public().to_string());
    let mut friend = Liar::new("echo").member();
    friend.key = line("baltic").key;
    say(friend).await;
    assert!(after("echo").await.is_none(), "two members with one key");
    // As a member that it is not, with an invitation that is good.
    let invitation: Invitation = alps.invite().await.parse().unwrap();
    let mut member = line("baltic");
    (member.key, member.changed) = (liar.key.public().to_string(), Timestamp::now());
    let proof = hex::encode(invitation.prove(&liar.key.public(), member.id).unwrap());
    let refused = client.peer_join(&Join { member, proof }).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SiteRefused);
    assert_eq!(after("baltic").await.unwrap().key, line("baltic").key);

    // What it holds is taken, from then on its statements are signed with either key.
    own.key = next.public().to_string();
    say(own).await;
    let changed = after("delta").await.unwrap();
    assert_eq!(
        (changed.key, changed.old_key),
        (next.public().to_string(), Some(liar.key.public().to_string()))
    );
    // What was said of baltic is forgotten when it speaks for itself.
    rotate(&baltic, false).await;
    assert!(status(&alps, "baltic").await["key_trouble"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_until_each_administrator_confirms_the_new_one() {
    let [mut alps, baltic, coast] = with_space().await;
    let (alps_id, baltic_id) = (id_of(&alps).await, id_of(&baltic).await);
    let alice = baltic.user("alice").await;
    baltic.sees(&alice, "/v1/spaces/climate").await;
    let thief = Liar::thief("alps", alps_id, &key_file(&alps));
    let statement = |to| thief.statement(to, None);
    let dialled = thief.dial(&baltic).await;
    thief.saying(&dialled, &statement(baltic_id)).whoami().await.unwrap();

    let (old_admin, old_user) = (alps.admin.clone(), alps.user("alice").await);
    let made = rotate(&alps, true).await;
    assert_eq!(made["told"], json!(["baltic", "coast"]));
    assert!(made["old_key_until"].is_null());
    // Tokens of the old key are void at its own site; the administrator finds another one.
    for void in [&old_admin, &old_user] {
        void.get("/v1/whoami").await.expect_problem("token_invalid");
    }
    let fresh = std::fs::read_to_string(alps.running.as_ref().unwrap().admin_token_path()).unwrap();
    alps.admin = alps.admin.as_token(fresh.trim());
    assert!(!alps.config.site.state_dir.join("site.key.old").exists());

    // The thief is refused with what is open already, and so is alps.
    let refused = thief.saying(&dialled, &statement(baltic_id)).whoami().await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SiteRefused);
    let known = status(&baltic, "alps").await;
    assert_eq!((&known["route"], &known["is_unconfirmed"]), (&json!("refused"), &json!(true)));
    let todo = format!("percale site confirm-key alps {}", text(&made["key"]));
    assert!(text(&known["key_trouble"]).contains(&todo), "{known}");
    let problem = alice.mkdir("/climate/early").await.expect_problem_at("site_refused", "baltic");
    assert!(text(&problem["detail"]).contains(&todo), "{problem}");
    eventually("alps hears why it is refused", || async {
        text(&status(&alps, "baltic").await["fault"]).contains(&todo).then_some(())
    })
    .await;
    // Also for whoever comes with an announcement of the old key.
    let later = Liar::thief("alps", alps_id, &key_file(&alps));
    let text = KeyChange::sign(&thief.key, alps_id, &later.next_key(), Timestamp::now()).unwrap();
    let mut forged = thief.member();
    (forged.key, forged.key_change) = (thief.key.public().to_string(), Some(text));
    assert_eq!(dialled.peer_show_key(&forged).await.unwrap_err().code(), ErrorCode::SiteRefused);
    assert_eq!(status(&baltic, "alps").await["key"], made["key"]);

    baltic.admin.put("/v1/sites/alps/key", json!({"key": made["key_id"]})).await.expect(200);
    knows(&baltic, "alps", &made["key"]).await;
    eventually("baltic changes the space at alps", || async {
        alice.mkdir("/climate/later").await.status.is_success().then_some(())
    })
    .await;
    let refused = thief.saying(&dialled, &statement(baltic_id)).whoami().await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SiteRefused);
    // Each site has its own answer.
    assert_eq!(status(&coast, "alps").await["route"], "refused");
    coast.admin.put("/v1/sites/alps/key", json!({"key": made["key"]})).await.expect(200);
    knows(&coast, "alps", &made["key"]).await;
    alps.reaches(&["baltic", "coast"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_died_within_a_change_goes_on_where_it_was() {
    let mut alps = Site::start("alps").await;
    let baltic = Site::start("baltic").await;
    baltic.join(&alps.invite().await).await;
    baltic.reaches(&["alps"]).await;
    let (id, before) = (id_of(&alps).await, status(&alps, "alps").await["key"].clone());
    // Before it was announced: nothing has happened, and the next change takes the key.
    alps.stop().await;
    let prepared = SiteKey::prepare_next(&alps.config.site.state_dir).unwrap().public();
    alps.resume().await;
    assert_eq!(status(&alps, "alps").await["key"], before);
    knows(&baltic, "alps", &before).await;
    assert_eq!(rotate(&alps, false).await["key"], prepared.to_string());
    // Behind the announcement: it uses the new key, and whoever was not told learns of it.
    alps.stop().await;
    let announced = announce_by_hand(&alps, id, Timestamp::now()).await;
    alps.resume().await;
    let announced = json!(announced.to_string());
    assert_eq!(status(&alps, "alps").await["key"], announced);
    knows(&baltic, "alps", &announced).await;
    alps.reaches(&["baltic"]).await;
    assert!(!alps.config.site.state_dir.join("site.key.new").exists());
    // The files are lost: nothing proves the key that is made then.
    alps.stop().await;
    std::fs::remove_file(key_file(&alps)).unwrap();
    alps.resume().await;
    let made = status(&alps, "alps").await["key"].clone();
    assert_ne!(made, announced);
    eventually("baltic shows the trouble", || async {
        status(&baltic, "alps").await["key_trouble"].as_str().map(|_| ())
    })
    .await;
    baltic.admin.put("/v1/sites/alps/key", json!({"key": made})).await.expect(200);
    knows(&baltic, "alps", &made).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_key_is_refused_after_a_day_but_for_delegations_that_were_made_before() {
    let mut alps = Site::start("alps").await;
    let baltic = Site::start("baltic").await;
    baltic.join(&alps.invite().await).await;
    baltic.reaches(&["alps"]).await;
    let (alps_id, baltic_id) = (id_of(&alps).await, id_of(&baltic).await);
    let thief = Liar::thief("alps", alps_id, &key_file(&alps));
    let dialled = thief.dial(&baltic).await;
    let ask = async || thief.saying(&dialled, &thief.statement(baltic_id, None)).whoami().await;
    ask().await.unwrap();
    alps.stop().await;
    let key = announce_by_hand(&alps, alps_id, days_ago(3)).await;
    alps.resume().await;
    knows(&baltic, "alps", &json!(key.to_string())).await;
    assert_eq!(ask().await.unwrap_err().code(), ErrorCode::SiteRefused, "its time is over");
    eventually("the file of the old key is removed", || async {
        (!alps.config.site.state_dir.join("site.key.old").exists()).then_some(())
    })
    .await;

    let holder = Liar::new("delta");
    let client = holder.join(&baltic).await;
    let with_delegation = async |made: Timestamp, life: Duration| {
        let alice = Identity { issuer: Issuer::site("alps"), name: "alice".into() };
        let scope: Scope = "read:/climate".parse().unwrap();
        let caller = Caller { scopes: vec![scope], ..Caller::user(alice) };
        let delegation = Delegation::new(alps_id, TaskId::new(), holder.id, caller, made, life);
        let statement = holder.statement(baltic_id, None).sign(&holder.key).unwrap();
        let mut headers = HeaderMap::new();
        for (name, text) in
            [(fields::STATEMENT, statement), (fields::DELEGATION, delegation.sign(&thief.key).unwrap())]
        {
            headers.insert(name, text.parse().unwrap());
        }
        client.with_headers(headers).whoami().await
    };
    let who = with_delegation(days_ago(4), 20 * DAY).await.unwrap();
    assert_eq!(who.user.unwrap().to_string(), "user:alice@site:alps");
    let code = async |made, life| with_delegation(made, life).await.unwrap_err().code();
    assert_eq!(code(days_ago(2), 20 * DAY).await, ErrorCode::TokenInvalid, "made after the change");
    assert_eq!(code(days_ago(4), 2 * DAY).await, ErrorCode::TokenExpired);
}
