//! What sites believe of each other, and what not.

use std::time::Duration;

use percale_api::fields;
use percale_api::peer::{MemberState, Roster};
use percale_client::Client;
use percale_core::access::{Caller, Identity, Issuer};
use percale_core::ids::SiteId;
use percale_core::{ErrorCode, Timestamp};
use serde_json::json;

use crate::fabric::{Site, three};
use crate::liar::{Liar, with_field};

pub async fn id_of(site: &Site) -> SiteId {
    let own = site.admin.get("/v1/site").await.expect(200);
    own["id"].as_str().unwrap().parse().unwrap()
}

fn user(name: &str, site: &str) -> Caller {
    Caller::user(Identity { issuer: Issuer::site(site), name: name.into() })
}

/// The code with which a site refuses to say who asks.
async fn refusal(client: &Client) -> ErrorCode {
    match client.whoami().await {
        Ok(who) => panic!("it was taken for {:?}", who.user),
        Err(error) => error.code(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_speaks_for_its_own_users_for_a_short_time_and_to_one_site() {
    let [alps, baltic, _coast] = three().await;
    let (alps_id, baltic_id) = (id_of(&alps).await, id_of(&baltic).await);
    let liar = Liar::new("delta");
    let stranger = liar.dial(&alps).await;
    let good = liar.statement(alps_id, Some(user("eve", "delta")));
    assert_eq!(refusal(&liar.saying(&stranger, &good)).await, ErrorCode::SiteRefused, "no member yet");

    let client = liar.join(&alps).await;
    let who = liar.saying(&client, &good).whoami().await.unwrap();
    assert_eq!(who.user.unwrap().to_string(), "user:eve@site:delta");
    assert!(liar.saying(&client, &liar.statement(alps_id, None)).whoami().await.unwrap().user.is_none());
    assert_eq!(refusal(&client).await, ErrorCode::SiteRefused, "nobody said who asks");

    // Users of others, whatever they are called there or here.
    for other in [user("alice", "alps"), user("alice", "baltic"), Caller::user(Identity::local("alice"))] {
        let mut statement = liar.statement(alps_id, Some(user("eve", "delta")));
        statement.caller = Some(other);
        // Our own code does not even sign some of these; the checks of the others are those of the trust crate.
        if let Ok(text) = statement.sign(&liar.key) {
            let code = refusal(&with_field(&client, fields::STATEMENT, &text)).await;
            assert_eq!(code, ErrorCode::TokenInvalid);
        }
    }
    let mut to_another = good.clone();
    to_another.audience = baltic_id;
    assert_eq!(refusal(&liar.saying(&client, &to_another)).await, ErrorCode::TokenInvalid);
    let mut of_another = good.clone();
    of_another.issuer_site = baltic_id;
    assert_eq!(
        refusal(&liar.saying(&client, &of_another)).await,
        ErrorCode::TokenInvalid,
        "its key, another's name"
    );
    let mut expired = good.clone();
    (expired.issued, expired.expires) = (ago(600), ago(500));
    assert_eq!(refusal(&liar.saying(&client, &expired)).await, ErrorCode::TokenExpired);
    let mut early = good.clone();
    (early.issued, early.expires) =
        (Timestamp::now().after(Duration::from_secs(300)), Timestamp::now().after(Duration::from_secs(400)));
    assert_eq!(refusal(&liar.saying(&client, &early)).await, ErrorCode::TokenInvalid);
    // What one site was told is worth nothing to another: baltic sees the text come over a connection that is not delta's.
    let text = liar.statement(baltic_id, Some(user("eve", "delta"))).sign(&liar.key).unwrap();
    let other = Liar::new("echo");
    let heard = other.join(&baltic).await;
    let code = refusal(&with_field(&heard, fields::STATEMENT, &text)).await;
    assert!(matches!(code, ErrorCode::TokenInvalid | ErrorCode::SiteRefused), "{code}");
    // Nor does a token of a user go together with a connection of a site.
    let token = alps.admin.token.clone().unwrap();
    let both = with_field(&client, "authorization", &format!("Bearer {token}"));
    assert_eq!(refusal(&both).await, ErrorCode::SiteRefused);
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_micros(Timestamp::now().as_micros() - seconds * 1_000_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn members_only_ask_what_members_may() {
    let alps = Site::start("alps").await;
    let ordinary = &alps.admin;
    for (path, body) in [
        ("/v1/peer/roster", json!({"members": []})),
        ("/v1/peer/changes", json!({"positions": []})),
        ("/v1/peer/publish", json!({"caller": {"user": null, "groups": [], "scopes": []}, "items": []})),
        ("/v1/peer/copies", json!({"actor": null, "items": []})),
    ] {
        ordinary.post(path, body).await.expect_problem("site_refused");
    }
    ordinary
        .get("/v1/peer/snapshot/00000000-0000-7000-8000-000000000000")
        .await
        .expect_problem("site_refused");
    ordinary.get("/v1/peer/control").await.expect_problem("site_refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_does_not_rewrite_others() {
    let [alps, baltic, _coast] = three().await;
    let liar = Liar::new("delta");
    let client = liar.join(&alps).await;
    let client = liar.saying(&client, &liar.statement(id_of(&alps).await, None));
    let known = client.peer_roster(&Roster { members: Vec::new() }).await.unwrap();
    let line = |name: &str| known.members.iter().find(|member| member.name == name).unwrap().clone();

    let mut stolen = line("baltic");
    stolen.key = liar.key.public().to_string();
    stolen.changed = Timestamp::now();
    let mut moved = line("alps");
    moved.urls = vec!["https://evil.example.org".into()];
    moved.changed = Timestamp::now();
    let mut own = line("delta");
    own.issuers = vec!["https://id.example.org".into()];
    own.changed = Timestamp::now();
    let answer = client.peer_roster(&Roster { members: vec![stolen, moved, own] }).await.unwrap();
    let after = |name: &str| answer.members.iter().find(|member| member.name == name).unwrap().clone();
    assert_eq!(after("baltic").key, line("baltic").key);
    assert_eq!(after("alps").urls, line("alps").urls);
    assert!(after("delta").issuers.is_empty(), "nobody assigns issuers to itself");
    // But whoever is a member may remove another, as its administrator decides.
    let mut removed = line("baltic");
    (removed.state, removed.changed, removed.changed_by) = (MemberState::Removed, Timestamp::now(), liar.id);
    client.peer_roster(&Roster { members: vec![removed] }).await.unwrap();
    alps.admin.get("/v1/sites/baltic").await.expect(404);
    drop(baltic);
}
