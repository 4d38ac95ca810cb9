//! Tokens and remembered answers.

use percale_catalog::*;
use percale_core::Timestamp;
use percale_core::access::{Caller, Identity};
use percale_core::ids::TokenId;

use crate::site::{HOUR, Site, kind, user};

fn token(name: &str, expires: Timestamp) -> TokenRecord {
    TokenRecord {
        id: TokenId::new(),
        subject: Identity::local(name),
        scopes: vec!["read:/lab".parse().unwrap()],
        label: Some("notebook".into()),
        issued: Timestamp::now(),
        expires,
        revoked: None,
    }
}

async fn tokens_are_listed_and_withdrawn(site: Site) {
    let catalog = &site.catalog;
    let now = catalog.now().await.unwrap();
    let hers = token("alice", now.after(HOUR));
    let his = token("bob", now.after(HOUR));
    let over = token("alice", Timestamp::from_micros(now.as_micros() - 1));
    for token in [&hers, &his, &over] {
        catalog.record_token(token.clone()).await.unwrap();
    }
    assert_eq!(kind(catalog.record_token(hers.clone()).await), ErrorKind::AlreadyExists { version: None });
    assert_eq!(catalog.tokens(&user("alice")).await.unwrap(), std::slice::from_ref(&hers));
    assert_eq!(catalog.tokens(&site.admin).await.unwrap(), [hers.clone(), his.clone()]);
    assert!(catalog.tokens(&Caller::anonymous()).await.unwrap().is_empty());
    assert_eq!(kind(catalog.revoke_token(&user("alice"), his.id).await), ErrorKind::NotFound);
    assert!(!catalog.is_revoked(hers.id).await.unwrap());
    catalog.revoke_token(&user("alice"), hers.id).await.unwrap();
    catalog.revoke_token(&user("alice"), hers.id).await.unwrap();
    assert!(catalog.is_revoked(hers.id).await.unwrap());
    assert!(!catalog.is_revoked(TokenId::new()).await.unwrap());
    assert_eq!(catalog.revoked_since(now).await.unwrap(), [hers.id]);
    assert!(catalog.revoked_since(now.after(HOUR)).await.unwrap().is_empty());
    assert!(catalog.prune(HOUR).await.unwrap() >= 1, "the one that is over");
    assert!(!catalog.is_revoked(over.id).await.unwrap());
}

async fn a_request_again_gets_the_same_answer(site: Site) {
    let second = site.second().await;
    let key = AnswerKey { caller: "user:alice".into(), key: "4711".into() };
    let (one, two) = tokio::join!(site.catalog.remember(&key, [1; 32]), second.remember(&key, [1; 32]));
    let mut both = [one.unwrap(), two.unwrap()];
    both.sort_by_key(|remembered| *remembered != Remembered::First);
    assert_eq!(both, [Remembered::First, Remembered::InProgress]);
    assert_eq!(second.remember(&key, [2; 32]).await.unwrap(), Remembered::Mismatch);
    let other = AnswerKey { caller: "user:bob".into(), ..key.clone() };
    assert_eq!(second.remember(&other, [2; 32]).await.unwrap(), Remembered::First, "keys are the caller's");
    let answer = Answer { status: 201, body: "{\"a\":\"ü\"}".into() };
    site.catalog.answer(&key, answer.clone()).await.unwrap();
    assert_eq!(second.remember(&key, [1; 32]).await.unwrap(), Remembered::Same(answer));
    assert_eq!(second.remember(&key, [2; 32]).await.unwrap(), Remembered::Mismatch);
    for key in [&key, &other] {
        site.catalog.forget(key).await.unwrap();
    }
    assert_eq!(second.remember(&key, [2; 32]).await.unwrap(), Remembered::Mismatch, "it was answered");
    assert_eq!(second.remember(&other, [3; 32]).await.unwrap(), Remembered::First);
    let unknown = AnswerKey { key: "none".into(), ..key };
    assert_eq!(
        kind(site.catalog.answer(&unknown, Answer { status: 200, body: String::new() }).await),
        ErrorKind::NotFound
    );
    let too_long = AnswerKey { key: "k".repeat(300), ..unknown };
    assert_eq!(kind(site.catalog.remember(&too_long, [0; 32]).await), ErrorKind::InvalidRequest);
}

on_both!(tokens_are_listed_and_withdrawn, a_request_again_gets_the_same_answer);
