//! Symbolic links: made, followed by those who ask, moved and removed.

use percale_catalog::*;
use percale_core::LinkTarget;
use percale_core::access::Permission;
use percale_core::query::{Builtin, Field, Literal, Test};

use crate::counting::summary;
use crate::pair::Pair;
use crate::searching::{builtin, search};
use crate::site::{Site, kind, path, subject, user};

fn to(text: &str) -> LinkTarget {
    text.parse().unwrap()
}

async fn link(site: &Site, at: &str, target: &str) -> Result<Changed> {
    site.catalog.create_link(&site.admin, &path(at), to(target)).await
}

fn leads(to: &str) -> ErrorKind {
    ErrorKind::IsLink { to: Some(path(to)) }
}

async fn links_are_made_and_looked_at(site: Site) {
    site.put("/lab/run/x", 5).await;
    let made = link(&site, "/lab/latest", "run").await.unwrap();
    assert!(made.is_changed);
    assert_eq!((made.entry.kind, made.entry.target.clone()), (EntryKind::Link, Some(to("run"))));
    assert_eq!(site.stat("/lab/latest").await.unwrap(), made.entry);
    assert_eq!(site.tree("/lab").await, ["/lab/latest -> run", "/lab/run/", "/lab/run/x"]);
    let again = link(&site, "/lab/latest", "run").await.unwrap();
    assert_eq!((again.is_changed, again.position, &again.entry), (false, made.position, &made.entry));
    assert_eq!(kind(link(&site, "/lab/latest", "./run").await), ErrorKind::AlreadyExists { version: None });
    let version = Some(site.version("/lab/run/x").await);
    assert_eq!(kind(link(&site, "/lab/run/x", "y").await), ErrorKind::AlreadyExists { version });
    assert_eq!(kind(link(&site, "/lab", "y").await), ErrorKind::AlreadyExists { version: None });
    assert_eq!(kind(link(&site, "/lab/no/y", "y").await), ErrorKind::NotFound);
    assert_eq!(kind(link(&site, "/lab/run/x/y", "y").await), ErrorKind::NotACollection);
    assert_eq!(kind(link(&site, "/lab/latest/y", "y").await), leads("/lab/run/y"));

    site.catalog.set_grant(&site.admin, &path("/lab"), subject("reader"), Permission::Read).await.unwrap();
    let reader = user("reader");
    assert_eq!(site.catalog.stat(&reader, &path("/lab/latest")).await.unwrap().target, Some(to("run")));
    let refused = site.catalog.create_link(&reader, &path("/lab/other"), to("run")).await;
    assert!(matches!(kind(refused), ErrorKind::Denied(_)));
    let stranger = site.catalog.stat(&user("stranger"), &path("/lab/latest/x")).await;
    assert!(matches!(kind(stranger), ErrorKind::Denied(_)), "who may not read learns of no link");
    site.assert_sound().await;
}

async fn who_meets_a_link_is_told_where_it_leads(site: Site) {
    site.put("/lab/run/x", 5).await;
    for (at, target) in [
        ("/lab/latest", "run"),
        ("/lab/run/back", "../latest/x"),
        ("/lab/out", "../sky/map"),
        ("/lab/host", "/etc/passwd"),
        ("/lab/too/far", "../../../x"),
    ] {
        site.mkdir(path(at).parent().unwrap().as_str()).await;
        link(&site, at, target).await.unwrap();
    }
    let admin = &site.admin;
    let nowhere = ErrorKind::IsLink { to: None };
    for (at, expected) in [
        ("/lab/latest", leads("/lab/run")),
        ("/lab/run/back", leads("/lab/latest/x")),
        ("/lab/out", leads("/sky/map")),
        ("/lab/host", nowhere.clone()),
        ("/lab/too/far", nowhere),
    ] {
        let at = path(at);
        assert_eq!(kind(site.catalog.open_object(admin, &at, None).await), expected, "{at}");
        let many = site.catalog.open_many(admin, std::slice::from_ref(&at)).await.remove(0);
        assert_eq!(kind(many), expected, "{at}");
        assert_eq!(kind(site.catalog.list(admin, &at, ListOptions::default()).await), expected, "{at}");
        let said = FileAttributes { mtime: None, mode: Some(percale_core::FileMode::of(0o700)) };
        assert_eq!(kind(site.catalog.set_attributes(admin, &at, said).await), expected, "{at}");
        let change = AttributeChange { set: vec![("x".parse().unwrap(), Vec::new())] };
        assert_eq!(kind(site.catalog.change_attributes(admin, &at, change).await), expected, "{at}");
        for condition in [Condition::Any, Condition::New, Condition::Existing] {
            let wanted = site.wanted(at.as_str(), condition);
            assert_eq!(kind(site.prepare(wanted).await), expected, "{at} is written by nobody");
        }
    }
    // On the way.
    assert_eq!(kind(site.stat("/lab/latest/x").await), leads("/lab/run/x"));
    assert_eq!(kind(site.stat("/lab/latest/a/b").await), leads("/lab/run/a/b"));
    assert_eq!(kind(site.remove("/lab/latest/x", false).await), leads("/lab/run/x"));
    assert_eq!(kind(site.rename("/lab/latest/x", "/lab/y", false).await), leads("/lab/run/x"));
    assert_eq!(kind(site.rename("/lab/run/x", "/lab/latest/y", false).await), leads("/lab/run/y"));
    let made = site.catalog.create_collection(admin, &path("/lab/latest/a/b"), true).await;
    assert_eq!(kind(made), leads("/lab/run/a/b"));
    assert_eq!(
        kind(site.prepare(site.wanted("/lab/latest/new", Condition::Any)).await),
        leads("/lab/run/new")
    );
    let message = site.stat("/lab/latest/x").await.unwrap_err().to_string();
    assert_eq!(message, "/lab/latest on the way to /lab/latest/x is a link, and leads to /lab/run/x");
}

async fn links_are_moved_and_removed_as_themselves(site: Site) {
    site.put("/lab/x", 5).await;
    link(&site, "/lab/one", "x").await.unwrap();
    let moved = site.rename("/lab/one", "/lab/two", false).await.unwrap();
    assert_eq!(moved.entry.target, Some(to("x")));
    let there = ErrorKind::AlreadyExists { version: None };
    assert_eq!(kind(site.rename("/lab/x", "/lab/two", false).await), there);
    site.mkdir("/lab/d").await;
    assert_eq!(kind(site.rename("/lab/two", "/lab/d", true).await), ErrorKind::IsCollection);
    assert_eq!(kind(site.rename("/lab/d", "/lab/two", true).await), ErrorKind::NotACollection);
    // An object takes the place of a link, and a link that of an object.
    site.rename("/lab/x", "/lab/two", true).await.unwrap();
    assert_eq!(site.tree("/lab").await, ["/lab/d/", "/lab/two"]);
    link(&site, "/lab/d/l", "../gone").await.unwrap();
    site.rename("/lab/d/l", "/lab/two", true).await.unwrap();
    assert_eq!(site.tree("/lab").await, ["/lab/d/", "/lab/two -> ../gone"]);
    assert_eq!(site.collect().await.len(), 1, "the bytes of the object");
    link(&site, "/lab/d/l", "..").await.unwrap();
    site.remove("/lab/two", false).await.unwrap();
    site.remove("/lab/d", true).await.unwrap();
    assert_eq!(site.tree("/lab").await, Vec::<String>::new());
    site.assert_sound().await;
}

async fn followers_and_backups_have_links(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put("/lab/run/x", 1).await;
    link(&pair.home, "/lab/latest", "run/x").await.unwrap();
    pair.catch_up(1).await;
    pair.assert_same().await;
    assert_eq!(pair.own.stat("/lab/latest").await.unwrap().target, Some(to("run/x")));
    pair.home.rename("/lab/latest", "/lab/run/l", false).await.unwrap();
    link(&pair.home, "/lab/more", "/scratch").await.unwrap();
    pair.take_snapshot().await.unwrap();
    pair.assert_same().await;
    assert_eq!(pair.own.tree("/lab").await, pair.home.tree("/lab").await);
    let refused = pair.own.catalog.create_link(&pair.own.admin, &path("/lab/own"), to("x")).await;
    assert_eq!(kind(refused), ErrorKind::Foreign { home: pair.home_id });

    let item = |name: &str, target: &str| serde_json::json!({ "items": [{ "id": 900, "parent": 1, "name": name, "target": target, "at": "2026-11-24T00:00:00Z" }] });
    for (name, target) in [("", "x"), ("a/b", "x"), ("new", ""), ("new", "a\0b"), ("more", "x")] {
        assert_eq!(
            kind(pair.apply("links.created", item(name, target)).await),
            ErrorKind::DoesNotFit,
            "{name} {target}"
        );
    }
    pair.assert_same().await;
}

async fn links_are_found_by_name_and_type(site: Site) {
    site.put("/lab/x", 5).await;
    link(&site, "/lab/latest", "x").await.unwrap();
    let options = FindOptions::new(NamePattern::new("lat*").unwrap());
    let found = site.catalog.find(&site.admin, &path("/lab"), options).await.unwrap();
    assert_eq!(found.items[0].entry.target, Some(to("x")));
    let is_link = builtin(Builtin::Type, Test::Has(Literal::text("link")));
    assert_eq!(search(&site, is_link.clone()).await, ["/lab/latest"]);
    let types = [Field::Builtin(Builtin::Type)];
    assert_eq!(summary(&site, &site.admin, is_link, &types).await, (1, vec!["link 1".into()]));
    let all = summary(&site, &site.admin, percale_core::query::Condition::All(Vec::new()), &types).await;
    assert_eq!(all, (2, vec!["link 1, object 1".into()]));
}

on_both!(
    links_are_made_and_looked_at,
    who_meets_a_link_is_told_where_it_leads,
    links_are_moved_and_removed_as_themselves,
    followers_and_backups_have_links,
    links_are_found_by_name_and_type,
);
