//! Rules of collections, and what was said when.

use percale_catalog::*;
use percale_core::access::Permission;
use percale_core::attribute::MAX_ATTRIBUTES;
use percale_core::{AttributeName, AttributeValue};

use crate::site::{Site, kind, path, subject, user};

fn name(name: &str) -> AttributeName {
    name.parse().unwrap()
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

fn change(set: &[(&str, &[&str])]) -> AttributeChange {
    let set = set.iter().map(|(of, values)| (name(of), values.iter().map(|value| text(value)).collect()));
    AttributeChange { set: set.collect() }
}

async fn say(site: &Site, at: &str, set: &[(&str, &[&str])]) -> Result<()> {
    site.catalog.change_attributes(&site.admin, &path(at), change(set)).await.map(drop)
}

fn is_denied<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result.unwrap_err().kind(), ErrorKind::Denied(_))
}

async fn rules_hold_below_their_collection(site: Site) {
    for at in ["/lab/in", "/lab/in/deep", "/lab/out"] {
        site.mkdir(at).await;
    }
    for at in ["/lab/in/x", "/lab/in/deep/x", "/lab/out/x"] {
        site.put(at, 1).await;
    }
    say(&site, "/lab/in", &[("rules.required", &["instrument"]), ("rules.type.level", &["integer"])])
        .await
        .unwrap();
    say(&site, "/lab/in", &[("rules.values.instrument", &["MODIS", "VIIRS"])]).await.unwrap();
    say(&site, "/lab/in/deep", &[("rules.values.instrument", &["camera"])]).await.unwrap();
    let wrong = say(&site, "/lab/in/x", &[("note", &["a"])]).await.unwrap_err();
    assert!(wrong.to_string().contains("'instrument' would be missing"), "{wrong}");
    let wrong =
        say(&site, "/lab/in/x", &[("instrument", &["MODIS"]), ("level", &["high"])]).await.unwrap_err();
    assert_eq!(*wrong.kind(), ErrorKind::InvalidRequest);
    assert!(wrong.to_string().contains("rules.type.level"), "{wrong}");
    assert!(say(&site, "/lab/in/deep/x", &[("instrument", &["MODIS"])]).await.is_err());
    // Nothing was changed by what was refused.
    assert_eq!(site.catalog.attributes(&site.admin, &path("/lab/in/x")).await.unwrap().0, []);
    say(&site, "/lab/in/x", &[("instrument", &["MODIS"]), ("note", &["a"])]).await.unwrap();
    say(&site, "/lab/in/deep/x", &[("instrument", &["camera"])]).await.unwrap();
    say(&site, "/lab/out/x", &[("instrument", &["anything"])]).await.unwrap();
    say(&site, "/lab/in/deep", &[("anything", &["goes"])]).await.unwrap();
    // What is required stays, unless nothing is said any more.
    assert!(say(&site, "/lab/in/x", &[("instrument", &[])]).await.is_err());
    say(&site, "/lab/in/x", &[("instrument", &[]), ("note", &[])]).await.unwrap();
    // A rule that is taken back binds nobody.
    say(&site, "/lab/in", &[("rules.required", &[])]).await.unwrap();
    say(&site, "/lab/in/x", &[("note", &["b"])]).await.unwrap();
    let rules = site.catalog.rules(site.space.id).await.unwrap();
    assert_eq!(rules.at(&path("/lab/in/x")).extraction(), None);
    say(&site, "/lab", &[("rules.extraction", &["off"]), ("rules.keep", &["title"])]).await.unwrap();
    say(&site, "/lab/in", &[("rules.extraction", &["sync"])]).await.unwrap();
    let rules = site.catalog.rules(site.space.id).await.unwrap();
    assert_eq!(rules.at(&path("/lab/in/deep/x")).extraction(), Some(ExtractionMode::Sync));
    assert_eq!(rules.at(&path("/lab/out/x")).extraction(), Some(ExtractionMode::Off));
    assert!(!rules.at(&path("/lab/in/x")).keeps("history"));
    assert!(rules.any(|mode| mode == ExtractionMode::Sync));
    // They go along with their collection, and with it.
    site.rename("/lab/in", "/lab/else", false).await.unwrap();
    let rules = site.catalog.rules(site.space.id).await.unwrap();
    assert_eq!(rules.at(&path("/lab/in/x")).extraction(), Some(ExtractionMode::Off));
    assert_eq!(rules.at(&path("/lab/else/x")).extraction(), Some(ExtractionMode::Sync));
    site.remove("/lab/else", true).await.unwrap();
    assert!(!site.catalog.rules(site.space.id).await.unwrap().any(|mode| mode == ExtractionMode::Sync));
    site.assert_sound().await;
}

async fn only_who_manages_a_collection_makes_rules_that_there_are(site: Site) {
    let writer = user("bob");
    site.mkdir("/lab/d").await;
    site.put("/lab/d/x", 1).await;
    site.catalog.set_grant(&site.admin, &path("/lab/d"), subject("bob"), Permission::Write).await.unwrap();
    let rule = change(&[("rules.extraction", &["off"])]);
    let denied = site.catalog.change_attributes(&writer, &path("/lab/d"), rule.clone()).await;
    assert!(is_denied(denied));
    let removed = change(&[("rules.extraction", &[])]);
    assert!(is_denied(site.catalog.change_attributes(&writer, &path("/lab/d"), removed).await));
    site.catalog.change_attributes(&writer, &path("/lab/d"), change(&[("a", &["b"])])).await.unwrap();
    site.catalog.set_grant(&site.admin, &path("/lab/d"), subject("bob"), Permission::Manage).await.unwrap();
    site.catalog.change_attributes(&writer, &path("/lab/d"), rule).await.unwrap();
    for (at, rule, value) in [
        ("/lab/d", "rules.extraction", "never"),
        ("/lab/d", "rules.unknown", "x"),
        ("/lab/d/x", "rules.keep", "x"),
    ] {
        assert_eq!(kind(say(&site, at, &[(rule, &[value])]).await), ErrorKind::InvalidRequest, "{rule}");
    }
}

async fn what_was_said_is_told_from_the_last_change_on(site: Site) {
    site.put("/lab/x", 1).await;
    site.put("/lab/y", 1).await;
    let bob = user("bob");
    site.catalog.set_grant(&site.admin, &path("/lab/x"), subject("bob"), Permission::Write).await.unwrap();
    say(&site, "/lab/x", &[("a", &["1"]), ("b", &["1"])]).await.unwrap();
    say(&site, "/lab/y", &[("a", &["of another"])]).await.unwrap();
    site.catalog.change_attributes(&bob, &path("/lab/x"), change(&[("a", &["2"])])).await.unwrap();
    say(&site, "/lab/x", &[("a", &["2"]), ("b", &[])]).await.unwrap();
    for n in 0..20 {
        say(&site, "/lab/y", &[("n", &[&n.to_string()])]).await.unwrap();
    }
    let (mut told, mut after) = (Vec::new(), None);
    loop {
        let page = site.catalog.attribute_history(&bob, &path("/lab/x"), after, 2).await.unwrap();
        for event in page.items {
            for one in event.set {
                let values: Vec<String> = one.values.iter().map(ToString::to_string).collect();
                told.push(format!("{} {}={}", event.actor, one.name, values.join(",")));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let admin = told[0].split(' ').next().unwrap();
    let wanted = ["b=", "a=2", "a=1", "b=1"].map(|set| match set {
        "a=2" => format!("user:bob {set}"),
        set => format!("{admin} {set}"),
    });
    assert_eq!(told, wanted);
    // It is for who may read, and of what is there.
    assert!(is_denied(site.catalog.attribute_history(&bob, &path("/lab/y"), None, 2).await));
    let nowhere = site.catalog.attribute_history(&site.admin, &path("/lab/x"), Some("x".into()), 2).await;
    assert_eq!(kind(nowhere), ErrorKind::InvalidRequest);
    let empty =
        site.catalog.attribute_history(&site.admin, &path("/lab"), None, MAX_ATTRIBUTES).await.unwrap();
    assert_eq!((empty.items.len(), empty.next), (0, None));
}

on_both! {
    rules_hold_below_their_collection,
    only_who_manages_a_collection_makes_rules_that_there_are,
    what_was_said_is_told_from_the_last_change_on,
}
