//! What is said of entries.

use percale_catalog::*;
use percale_core::access::Permission;
use percale_core::attribute::{
    Float, MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTE_TEXT, MAX_ATTRIBUTE_VALUES, MAX_ATTRIBUTES,
};
use percale_core::{AttributeName, AttributeValue, ErrorCode, Timestamp};

use crate::site::{Site, kind, path, subject, user};

pub fn name(name: &str) -> AttributeName {
    name.parse().unwrap()
}

pub fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

pub async fn say(site: &Site, at: &str, set: &[(&str, &[AttributeValue])]) -> Result<()> {
    let set = set.iter().map(|(of, values)| (name(of), values.to_vec())).collect();
    site.catalog.change_attributes(&site.admin, &path(at), AttributeChange { set }).await.map(drop)
}

pub async fn said(site: &Site, at: &str) -> Vec<(String, Vec<AttributeValue>)> {
    let (attributes, _) = site.catalog.attributes(&site.admin, &path(at)).await.unwrap();
    attributes.into_iter().map(|attribute| (attribute.name.to_string(), attribute.values)).collect()
}

async fn attributes_are_set_changed_and_removed(site: Site) {
    site.put("/lab/x", 1).await;
    site.mkdir("/lab/d").await;
    let values = [
        AttributeValue::Integer(i64::MAX),
        AttributeValue::Float(Float(-0.5)),
        AttributeValue::Float(Float(f64::NAN)),
        AttributeValue::Float(Float(f64::NEG_INFINITY)),
        text("Größe 'x' \"y\" \\ %"),
        text(""),
        AttributeValue::Bool(false),
        AttributeValue::Time(Timestamp::from_micros(-1)),
    ];
    say(&site, "/lab/x", &[("all", &values), ("b", &[text("c")])]).await.unwrap();
    say(&site, "/lab/d", &[("tag", &[text("t")])]).await.unwrap();
    assert_eq!(
        said(&site, "/lab/x").await,
        [("all".to_owned(), values.to_vec()), ("b".into(), vec![text("c")])]
    );
    assert_eq!(said(&site, "/lab/d").await, [("tag".to_owned(), vec![text("t")])]);
    // What is so already makes no record.
    let before = site.catalog.position(site.space.id).await.unwrap();
    say(&site, "/lab/x", &[("all", &values), ("none", &[])]).await.unwrap();
    assert_eq!(site.catalog.position(site.space.id).await.unwrap(), before);
    say(&site, "/lab/x", &[("all", &[]), ("b", &[text("C")])]).await.unwrap();
    assert_eq!(said(&site, "/lab/x").await, [("b".to_owned(), vec![text("C")])]);
    // They go with the entry, stay when it is overwritten and go along with it when it is renamed.
    site.put("/lab/x", 2).await;
    site.rename("/lab/x", "/lab/d/y", false).await.unwrap();
    assert_eq!(said(&site, "/lab/d/y").await.len(), 1);
    site.remove("/lab/d", true).await.unwrap();
    site.put("/lab/x", 3).await;
    assert_eq!(said(&site, "/lab/x").await, []);
    assert_eq!(kind(site.catalog.attributes(&site.admin, &path("/lab/d")).await), ErrorKind::NotFound);
    assert_eq!(kind(say(&site, "/lab/none", &[("a", &[text("b")])]).await), ErrorKind::NotFound);
    assert_eq!(kind(say(&site, "/lab/x/y", &[("a", &[text("b")])]).await), ErrorKind::NotACollection);
    site.assert_sound().await;
}

async fn attributes_are_bounded(site: Site) {
    site.put("/lab/x", 1).await;
    let long = text(&"x".repeat(MAX_ATTRIBUTE_TEXT + 1));
    assert_eq!(kind(say(&site, "/lab/x", &[("a", &[long])]).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(say(&site, "/lab/x", &[("a", &[text("\0")])]).await), ErrorKind::InvalidRequest);
    let many = vec![AttributeValue::Bool(true); MAX_ATTRIBUTE_VALUES + 1];
    assert_eq!(kind(say(&site, "/lab/x", &[("a", &many)]).await), ErrorKind::InvalidRequest);
    let set = |count: usize| AttributeChange {
        set: (0..count).map(|n| (name(&format!("a{n}")), vec![AttributeValue::Bool(true)])).collect(),
    };
    let x = path("/lab/x");
    let most = set(MAX_ATTRIBUTES);
    site.catalog.change_attributes(&site.admin, &x, most.clone()).await.unwrap();
    site.catalog.change_attributes(&site.admin, &x, most).await.unwrap();
    let one_more = say(&site, "/lab/x", &[("more", &[text("b")])]).await;
    assert_eq!(kind(one_more), ErrorKind::InvalidRequest);
    say(&site, "/lab/x", &[("more", &[text("b")]), ("a0", &[])]).await.unwrap();
    // All together, also those of an earlier change.
    site.put("/lab/y", 1).await;
    let half = vec![text(&"x".repeat(MAX_ATTRIBUTE_TEXT)); MAX_ATTRIBUTE_BYTES / MAX_ATTRIBUTE_TEXT / 2];
    say(&site, "/lab/y", &[("a", &half)]).await.unwrap();
    let whole = say(&site, "/lab/y", &[("b", &half)]).await.unwrap_err();
    assert!(whole.to_string().contains("bytes of attributes"), "{whole}");
    say(&site, "/lab/y", &[("a", &[]), ("b", &half)]).await.unwrap();
}

async fn only_who_may_write_says_anything(site: Site) {
    site.put("/lab/x", 1).await;
    let change = || AttributeChange { set: vec![(name("a"), vec![text("b")])] };
    let bob = user("bob");
    let refused =
        async || site.catalog.change_attributes(&bob, &path("/lab/x"), change()).await.unwrap_err().code();
    assert_eq!(refused().await, ErrorCode::NotFound);
    site.catalog.set_grant(&site.admin, &path("/lab"), subject("bob"), Permission::Read).await.unwrap();
    assert_eq!(refused().await, ErrorCode::Forbidden);
    assert!(site.catalog.attributes(&bob, &path("/lab/x")).await.is_ok());
    site.catalog.set_grant(&site.admin, &path("/lab"), subject("bob"), Permission::Write).await.unwrap();
    site.catalog.change_attributes(&bob, &path("/lab/x"), change()).await.unwrap();
    assert_eq!(said(&site, "/lab/x").await.len(), 1);
}

on_both! {
    attributes_are_set_changed_and_removed,
    attributes_are_bounded,
    only_who_may_write_says_anything,
}
