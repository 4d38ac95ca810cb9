//! The site, spaces and stores.

use percale_catalog::*;
use percale_core::access::Caller;
use percale_core::{AttributeValue, ByteCount, ErrorCode};

use crate::site::{Site, kind, new_store, path, subject, user};

fn new(name: &str, scope: SpaceScope) -> NewSpace {
    NewSpace {
        name: name.parse().unwrap(),
        owner: subject("owner"),
        scope,
        store: None,
        members: Vec::new(),
        extraction: ExtractionMode::Async,
        quota: None,
        rules: Vec::new(),
    }
}

async fn a_site_keeps_its_name(site: Site) {
    let known = site.catalog.site().await.unwrap();
    assert_eq!(site.catalog.init_site("alps").await.unwrap(), known);
    assert_eq!(kind(site.catalog.init_site("other").await), ErrorKind::AlreadyExists { version: None });
    assert_eq!(site.second().await.site().await.unwrap(), known);
    assert!(site.catalog.schema_version().await.unwrap() >= 1);
    site.catalog.ping().await.unwrap();
}

async fn who_learns_of_which_space(site: Site) {
    let catalog = &site.catalog;
    catalog.create_space(&site.admin, new("members", SpaceScope::Members)).await.unwrap();
    catalog.create_space(&site.admin, new("public", SpaceScope::Public)).await.unwrap();
    let names = async |caller: &Caller| {
        let spaces = catalog.spaces(caller).await.unwrap();
        spaces.into_iter().map(|space| space.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&site.admin).await, ["lab", "members", "public"]);
    assert_eq!(names(&user("owner")).await, ["lab", "members", "public"]);
    assert_eq!(names(&user("bob")).await, ["members", "public"]);
    assert_eq!(names(&Caller::anonymous()).await, ["public"]);
    let bob = user("bob");
    assert!(catalog.space(&bob, &"members".parse().unwrap()).await.is_ok());
    assert!(catalog.stat(&bob, &path("/members")).await.is_err(), "known, not open");
    assert!(catalog.stat(&Caller::anonymous(), &path("/public")).await.is_ok());
    assert_eq!(catalog.space(&bob, &"lab".parse().unwrap()).await.unwrap_err().code(), ErrorCode::NotFound);

    let private = SpaceChange { scope: Some(SpaceScope::Private), ..Default::default() };
    catalog.update_space(&user("owner"), &"public".parse().unwrap(), private).await.unwrap();
    assert!(names(&Caller::anonymous()).await.is_empty());
}

async fn only_administrators_make_spaces(site: Site) {
    let catalog = &site.catalog;
    let denied = catalog.create_space(&user("alice"), new("hers", SpaceScope::Private)).await;
    assert_eq!(denied.unwrap_err().code(), ErrorCode::Forbidden);
    let anonymous = catalog.create_space(&Caller::anonymous(), new("x", SpaceScope::Private)).await;
    assert_eq!(anonymous.unwrap_err().code(), ErrorCode::Unauthenticated);
    let twice = catalog.create_space(&site.admin, new("lab", SpaceScope::Private)).await;
    assert_eq!(kind(twice), ErrorKind::AlreadyExists { version: None });
    let mut nowhere = new("nowhere", SpaceScope::Private);
    nowhere.store = Some(percale_core::ids::StoreId::new());
    assert_eq!(kind(catalog.create_space(&site.admin, nowhere).await), ErrorKind::NotFound);
}

async fn a_space_begins_with_rules(site: Site) {
    let mut strict = new("strict", SpaceScope::Private);
    let text = |text: &str| vec![AttributeValue::Text(text.into())];
    let rules = [("rules.extraction", text("off")), ("rules.names", text("level"))];
    strict.rules = rules.map(|(name, values)| (name.parse().unwrap(), values)).into();
    strict.extraction = ExtractionMode::Sync;
    let space = site.catalog.create_space(&site.admin, strict).await.unwrap();
    assert_eq!(
        (space.extraction, space.position),
        (ExtractionMode::Sync, site.catalog.position(space.id).await.unwrap())
    );
    let root = path("/strict");
    let (said, _) = site.catalog.attributes(&site.admin, &root).await.unwrap();
    let names: Vec<_> = said.iter().map(|one| (one.name.as_str(), one.source)).collect();
    let person = AttributeSource::Person;
    assert_eq!(names, [("rules.extraction", person), ("rules.names", person)]);
    let rules = site.catalog.rules(space.id).await.unwrap();
    assert_eq!(rules.at(&path("/strict/x")).extraction(), Some(ExtractionMode::Off));
    let records = site.catalog.journal(&site.admin, space.id, None, 10).await.unwrap();
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["space.created", "grants.changed", "attributes.changed"]);
    site.put("/strict/x", 1).await;
    let other = AttributeChange { set: vec![("colour".parse().unwrap(), text("red"))] };
    let refused = site.catalog.change_attributes(&site.admin, &path("/strict/x"), other).await;
    assert_eq!(kind(refused), ErrorKind::InvalidRequest);
    site.assert_sound().await;
}

async fn changing_a_space(site: Site) {
    let catalog = &site.catalog;
    let lab = &site.space.name;
    let before = catalog.position(site.space.id).await.unwrap();
    let same = catalog.update_space(&user("owner"), lab, SpaceChange::default()).await.unwrap();
    assert_eq!(same.position, before, "no change, no record");
    let owner = SpaceChange { owner: Some(subject("alice")), ..Default::default() };
    let changed = catalog.update_space(&user("owner"), lab, owner).await.unwrap();
    assert_eq!(changed.owner, subject("alice"));
    assert!(changed.position.seq > before.seq);
    let closed = SpaceChange { state: Some(SpaceState::ReadOnly), ..Default::default() };
    catalog.update_space(&user("alice"), lab, closed).await.unwrap();
    let make = catalog.create_collection(&site.admin, &path("/lab/x"), false).await;
    assert_eq!(kind(make), ErrorKind::ReadOnly, "whoever asks");
    let store = SpaceChange { store: Some(None), ..Default::default() };
    let denied = catalog.update_space(&user("alice"), lab, store).await;
    assert_eq!(denied.unwrap_err().code(), ErrorCode::Forbidden, "stores are the administrators'");
    let denied = catalog.update_space(&user("bob"), lab, SpaceChange::default()).await;
    assert_eq!(denied.unwrap_err().code(), ErrorCode::NotFound);
}

async fn a_quota_bounds_what_a_space_has(site: Site) {
    let (catalog, lab) = (&site.catalog, &site.space.name);
    let used =
        async || catalog.used(vec![site.space.id]).await.unwrap().remove(&site.space.id).map(|used| used.0);
    assert_eq!(used().await, None);
    site.put("/lab/a", 60).await;
    site.put("/lab/b", 30).await;
    site.put("/lab/empty", 0).await;
    let quota = |bytes: Option<u64>| SpaceChange { quota: Some(bytes.map(ByteCount)), ..Default::default() };
    let denied = catalog.update_space(&user("owner"), lab, quota(Some(100))).await;
    assert_eq!(denied.unwrap_err().code(), ErrorCode::Forbidden, "who pays for the disks decides");
    let space = catalog.update_space(&site.admin, lab, quota(Some(100))).await.unwrap();
    assert_eq!((space.quota, used().await), (Some(ByteCount(100)), Some(90)));
    assert_eq!(catalog.space(&site.admin, lab).await.unwrap().quota, Some(ByteCount(100)));

    let put = async |at: &str, size| {
        let intent = site.prepare(site.wanted(at, Condition::Any)).await?;
        site.commit(&intent, size).await
    };
    let refused = put("/lab/c", 11).await.unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (&ErrorKind::QuotaExceeded, ErrorCode::QuotaExceeded));
    assert_eq!(
        refused.to_string(),
        "cannot write /lab/c, which has 11 B: the space 'lab' may have 100 B and has 90 B"
    );
    assert!(site.stat("/lab/c").await.is_err());
    put("/lab/c", 10).await.unwrap();
    put("/lab/empty", 0).await.unwrap();
    // A version takes the place of the one before it.
    assert_eq!(put("/lab/a", 61).await.unwrap_err().code(), ErrorCode::QuotaExceeded);
    put("/lab/a", 50).await.unwrap();
    assert_eq!(used().await, Some(90));
    for (at, size, fits) in
        [("/lab/a", 60, true), ("/lab/a", 61, false), ("/lab/new", 10, true), ("/lab/new", 11, false)]
    {
        let asked = vec![(path(at), ByteCount(size)), (path("/nowhere/x"), ByteCount(size))];
        let asked = catalog.require_quotas(asked).await;
        assert_eq!((asked[0].is_ok(), asked[1].is_ok()), (fits, true), "{at} {size}");
    }
    // Several in one transaction count together.
    let mut commits = Vec::new();
    for at in ["/lab/x", "/lab/y", "/lab/z"] {
        let intent = site.prepare(site.wanted(at, Condition::Any)).await.unwrap();
        commits.push(Commit::new(intent.id, ByteCount(5), None));
    }
    let fits: Vec<bool> = catalog.commit(commits).await.iter().map(Result::is_ok).collect();
    assert_eq!(fits, [true, true, false]);
    assert_eq!(used().await, Some(100));

    // A smaller quota takes nothing away, and lets what is there become less.
    catalog.update_space(&site.admin, lab, quota(Some(10))).await.unwrap();
    assert_eq!(put("/lab/empty", 1).await.unwrap_err().code(), ErrorCode::QuotaExceeded);
    put("/lab/a", 40).await.unwrap();
    site.rename("/lab/a", "/lab/moved", false).await.unwrap();
    site.remove("/lab/b", false).await.unwrap();
    assert_eq!(used().await, Some(60));
    catalog.update_space(&site.admin, lab, quota(None)).await.unwrap();
    put("/lab/d", u64::from(u32::MAX)).await.unwrap();
    site.assert_sound().await;
    assert_eq!(used().await, Some(60 + u64::from(u32::MAX)));
}

async fn more_bytes_than_a_number_holds_are_no_fault(site: Site) {
    let most = i64::MAX as u64;
    site.put("/lab/a", most).await;
    site.put("/lab/b", most).await;
    let used = async || site.catalog.used(vec![site.space.id]).await.unwrap()[&site.space.id].0;
    assert_eq!(used().await, most);
    site.assert_sound().await;
    site.remove("/lab/a", false).await.unwrap();
    assert_eq!(used().await, most);
    site.assert_sound().await;
}

async fn what_was_there_before_quotas_is_counted(site: Site) {
    site.put("/lab/a", 60).await;
    let migration = match site.is_postgres() {
        true => include_str!("../../migrations/postgres/V11__quotas.sql"),
        false => include_str!("../../migrations/sqlite/V11__quotas.sql"),
    };
    let counting = migration.split(';').map(str::trim).find(|text| text.starts_with("INSERT INTO used (sp"));
    site.tamper(&format!("DELETE FROM used; {}", counting.unwrap())).await;
    site.assert_sound().await;
}

async fn removing_a_space(site: Site) {
    let catalog = &site.catalog;
    let lab = &site.space.name;
    site.put("/lab/x", 1).await;
    assert_eq!(kind(catalog.remove_space(&site.admin, lab).await), ErrorKind::NotEmpty);
    site.remove("/lab/x", false).await.unwrap();
    assert_eq!(kind(catalog.remove_space(&site.admin, lab).await), ErrorKind::NotEmpty, "bytes are left");
    site.collect().await;
    assert_eq!(catalog.remove_space(&user("owner"), lab).await.unwrap_err().code(), ErrorCode::Forbidden);
    catalog.remove_space(&site.admin, lab).await.unwrap();
    assert_eq!(site.stat("/lab").await.unwrap_err().code(), ErrorCode::SpaceNotFound);
    assert!(catalog.spaces(&site.admin).await.unwrap().is_empty());
    let records = catalog.journal(&site.admin, site.space.id, None, 100).await.unwrap();
    assert_eq!(records.last().unwrap().change().unwrap(), RecordChange::SpaceRemoved);
    let again = catalog.create_space(&site.admin, new("lab", SpaceScope::Private)).await.unwrap();
    assert_ne!(again.id, site.space.id);
    assert!(site.names("/lab").await.is_empty());
    assert!(catalog.fsck().await.unwrap().is_empty());
}

async fn a_space_goes_only_if_nobody_adds_to_it(site: Site) {
    let second = site.second().await;
    for round in 0..20 {
        let name = format!("s{round}");
        site.catalog.create_space(&site.admin, new(&name, SpaceScope::Private)).await.unwrap();
        let at = path(&format!("/{name}/d"));
        let name = name.parse().unwrap();
        let (removed, made) = tokio::join!(
            site.catalog.remove_space(&site.admin, &name),
            second.create_collection(&site.admin, &at, false),
        );
        assert_ne!(removed.is_ok(), made.is_ok(), "{removed:?} {made:?}");
    }
    assert!(site.catalog.fsck().await.unwrap().is_empty());
}

async fn stores_are_added_changed_and_removed(site: Site) {
    let catalog = &site.catalog;
    let mut tape = new_store("tape", StoreLayout::Native);
    tape.secret = Some(SealedSecret(vec![1, 2, 3]));
    let tape = catalog.add_store(tape).await.unwrap();
    assert!(!format!("{tape:?}").contains("1, 2, 3"), "a secret is not printed");
    let names: Vec<_> = catalog.stores().await.unwrap().into_iter().map(|store| store.name).collect();
    assert_eq!(names, ["disk", "tape"]);
    let twice = catalog.add_store(new_store("tape", StoreLayout::Native)).await;
    assert_eq!(kind(twice), ErrorKind::AlreadyExists { version: None });
    assert_eq!(
        kind(catalog.add_store(new_store("Not A Name", StoreLayout::Native)).await),
        ErrorKind::InvalidRequest
    );
    let change = StoreChange { state: Some(StoreState::Offline), secret: Some(None), ..Default::default() };
    let changed = catalog.update_store(tape.id, change).await.unwrap();
    assert_eq!((changed.state, changed.secret), (StoreState::Offline, None));
    assert_eq!(catalog.stores().await.unwrap()[1].state, StoreState::Offline);
    catalog.remove_store(tape.id).await.unwrap();
    assert_eq!(kind(catalog.remove_store(tape.id).await), ErrorKind::NotFound);
    site.put("/lab/x", 1).await;
    assert_eq!(kind(catalog.remove_store(site.store).await), ErrorKind::NotEmpty);
    site.remove("/lab/x", false).await.unwrap();
    assert_eq!(kind(catalog.remove_store(site.store).await), ErrorKind::NotEmpty, "garbage is left");
}

async fn urls_that_cannot_be(_site: Site) {
    for url in
        ["", "mysql://x", "sqlite:", "sqlite::memory:", "postgres://[", "postgres://h/db?sslmode=require"]
    {
        let outcome = Catalog::open(&CatalogConfig::new(url)).await;
        assert_eq!(kind(outcome), ErrorKind::InvalidConfiguration, "{url}");
    }
}

on_both!(
    a_site_keeps_its_name,
    who_learns_of_which_space,
    only_administrators_make_spaces,
    a_space_begins_with_rules,
    a_quota_bounds_what_a_space_has,
    more_bytes_than_a_number_holds_are_no_fault,
    what_was_there_before_quotas_is_counted,
    changing_a_space,
    removing_a_space,
    a_space_goes_only_if_nobody_adds_to_it,
    stores_are_added_changed_and_removed,
    urls_that_cannot_be,
);
