//! New versions whose bytes lie at another site, at the home of their space.

use std::time::Duration;

use percale_catalog::*;
use percale_core::access::{Caller, Permission};
use percale_core::ids::{SiteId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::{ByteCount, ErrorCode, Timestamp};

use crate::site::{HOUR, Site, arrival_made, kind, path, root, subject, user};

/// Another site with a store of its own.
struct Other {
    id: SiteId,
    store: StoreId,
}

impl Other {
    async fn of(site: &Site, name: &str) -> Self {
        let id = SiteId::new();
        Self { id, store: site.add_foreign_store(name, id).await }
    }

    fn item(&self, at: &str, condition: Condition) -> RemotePublication {
        RemotePublication {
            id: ArrivalId::new(),
            publication: Publication {
                caller: user("owner"),
                path: path(at),
                parents: true,
                condition,
                size: ByteCount(7),
                root: Some(root(7)),
                mtime: Some(Timestamp::from_micros(70)),
                mode: None,
                digests: vec!["crc32c:00000007".parse().unwrap()],
            },
            store: self.store,
            key: format!("there{at}/{}", uuid::Uuid::new_v4()),
            generation: Some("1".into()),
        }
    }

    async fn publish(&self, catalog: &Catalog, item: RemotePublication) -> Result<Committed> {
        catalog.publish_from(self.id, vec![item]).await.pop().unwrap()
    }

    async fn abandon(&self, catalog: &Catalog, id: ArrivalId) -> Result<Option<Committed>> {
        catalog.abandon_publications(self.id, vec![id]).await.map(|mut found| found.pop().unwrap())
    }
}

async fn kinds(site: &Site) -> Vec<String> {
    let records = site.catalog.journal(&site.admin, site.space.id, None, 1000).await.unwrap();
    records.into_iter().map(|record| record.kind).collect()
}

async fn bytes_elsewhere_are_a_version_here(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let item = other.item("/lab/d/e/x", Condition::New);
    let committed = other.publish(&site.catalog, item.clone()).await.unwrap();
    assert!(committed.created);
    assert_eq!(committed.position, site.catalog.position(site.space.id).await.unwrap());
    let open = site.catalog.open_object(&site.admin, &path("/lab/d/e/x"), None).await.unwrap();
    assert_eq!((open.version, open.size, open.root), (committed.version, ByteCount(7), Some(root(7))));
    assert_eq!((open.mtime, open.digests), (item.publication.mtime, item.publication.digests.clone()));
    let copy = &open.replicas[0];
    assert_eq!((copy.store, copy.state, &copy.key), (other.store, ReplicaState::Good, &item.key));
    assert_eq!(copy.generation.as_deref(), Some("1"));
    assert_eq!(kinds(&site).await[2..], ["entries.created", "objects.published"]);
    let records = site.catalog.journal(&site.admin, site.space.id, None, 1000).await.unwrap();
    assert_eq!(records.last().unwrap().actor, "user:owner");

    let over = other.item("/lab/d/e/x", Condition::Match(committed.version));
    let newer = other.publish(&site.catalog, over).await.unwrap();
    assert_eq!((newer.entry, newer.created), (committed.entry, false));
    let again = other.publish(&site.catalog, item.clone()).await.unwrap();
    assert_eq!(again, committed, "asked again, the same answer, whatever came after");
    assert_eq!(site.version("/lab/d/e/x").await, newer.version);
    assert!(site.collect().await.is_empty(), "its bytes are not here");
    let unhashed = RemotePublication {
        publication: Publication { root: None, ..other.item("/lab/y", Condition::Any).publication },
        ..other.item("/lab/y", Condition::Any)
    };
    other.publish(&site.catalog, unhashed).await.unwrap();
    let open = site.catalog.open_object(&site.admin, &path("/lab/y"), None).await.unwrap();
    assert_eq!(open.replicas[0].state, ReplicaState::Unverified);
    site.assert_sound().await;
}

async fn permission_and_conditions_are_those_of_publishing(site: Site) {
    let (catalog, other) = (&site.catalog, Other::of(&site, "theirs").await);
    let by = |name: &str, item: RemotePublication| RemotePublication {
        publication: Publication { caller: user(name), ..item.publication },
        ..item
    };
    let hers = by("alice", other.item("/lab/x", Condition::New));
    assert_eq!(other.publish(catalog, hers.clone()).await.unwrap_err().code(), ErrorCode::NotFound);
    let lab = path("/lab");
    catalog.set_grant(&site.admin, &lab, subject("alice"), Permission::Read).await.unwrap();
    assert_eq!(other.publish(catalog, hers.clone()).await.unwrap_err().code(), ErrorCode::Forbidden);
    catalog.set_grant(&site.admin, &lab, subject("alice"), Permission::Write).await.unwrap();
    let committed = other.publish(catalog, hers).await.unwrap();
    let known = Some(committed.version);

    let new = other.publish(catalog, other.item("/lab/x", Condition::New)).await;
    assert_eq!(kind(new), ErrorKind::AlreadyExists { version: known });
    let other_version = Condition::Match(VersionId(committed.version.0 + 1));
    let matched = other.publish(catalog, other.item("/lab/x", other_version)).await;
    assert_eq!(kind(matched), ErrorKind::PreconditionFailed { version: known });
    let missing = other.publish(catalog, other.item("/lab/y", Condition::Existing)).await;
    assert_eq!(kind(missing), ErrorKind::PreconditionFailed { version: None });
    let through = other.publish(catalog, other.item("/lab/x/y", Condition::Any)).await;
    assert_eq!(kind(through), ErrorKind::NotACollection);
    let mut no_parents = other.item("/lab/d/x", Condition::New);
    no_parents.publication.parents = false;
    assert_eq!(kind(other.publish(catalog, no_parents).await), ErrorKind::NotFound);
    site.mkdir("/lab/d").await;
    let collection = other.publish(catalog, other.item("/lab/d", Condition::Any)).await;
    assert_eq!(kind(collection), ErrorKind::IsCollection);
    let closed = SpaceChange { state: Some(SpaceState::ReadOnly), ..Default::default() };
    catalog.update_space(&site.admin, &site.space.name, closed).await.unwrap();
    let closed = other.publish(catalog, other.item("/lab/z", Condition::New)).await;
    assert_eq!(kind(closed), ErrorKind::ReadOnly);
    let home = SiteId::new();
    site.set_home(site.space.id, home).await;
    let away = other.publish(catalog, other.item("/lab/z", Condition::New)).await;
    assert_eq!(kind(away), ErrorKind::Foreign { home });
}

async fn a_site_speaks_only_of_what_is_its_own(site: Site) {
    let (catalog, other) = (&site.catalog, Other::of(&site, "theirs").await);
    let third = Other::of(&site, "thirds").await;
    let nobodys = site.add_foreign_store("heard-of", SiteId(uuid::Uuid::nil())).await;
    let item = |store: StoreId| RemotePublication { store, ..other.item("/lab/x", Condition::New) };
    for store in [site.store, third.store] {
        let refused = other.publish(catalog, item(store)).await.unwrap_err();
        assert_eq!((refused.kind(), refused.code()), (&ErrorKind::NotAllowed, ErrorCode::Forbidden));
    }
    for store in [nobodys, StoreId::new()] {
        let refused = other.publish(catalog, item(store)).await.unwrap_err();
        assert_eq!(refused.retry(), Retry::Temporary, "its owner may be heard of: {refused}");
    }
    let mut as_admin = item(other.store);
    as_admin.publication.caller = site.admin.clone();
    assert_eq!(kind(other.publish(catalog, as_admin).await), ErrorKind::NotAllowed);
    let mut anonymous = item(other.store);
    anonymous.publication.caller = Caller::anonymous();
    assert_eq!(other.publish(catalog, anonymous).await.unwrap_err().code(), ErrorCode::Unauthenticated);
    for key in ["", "../x", "a//b", "/a", &"k".repeat(5000)] {
        let strange = RemotePublication { key: key.into(), ..item(other.store) };
        assert_eq!(kind(other.publish(catalog, strange).await), ErrorKind::InvalidRequest, "{key}");
    }
    let mut huge = item(other.store);
    huge.publication.size = ByteCount(u64::MAX);
    assert_eq!(kind(other.publish(catalog, huge).await), ErrorKind::InvalidRequest);
    let first = item(other.store);
    other.publish(catalog, first.clone()).await.unwrap();
    let clash = RemotePublication { key: first.key, ..other.item("/lab/d/y", Condition::New) };
    assert!(matches!(kind(other.publish(catalog, clash).await), ErrorKind::Conflict { .. }));
    assert_eq!(site.tree("/lab").await, ["/lab/x"], "nothing is left of what was refused");
    site.assert_sound().await;
}

async fn arrivals_have_an_age(site: Site) {
    let (catalog, other) = (&site.catalog, Other::of(&site, "theirs").await);
    let now = catalog.now().await.unwrap();
    let before = |hours: u32| Timestamp::from_micros(now.as_micros() - (HOUR * hours).as_micros() as i64);
    let made = |id: ArrivalId| RemotePublication { id, ..other.item("/lab/x", Condition::Any) };
    for id in
        [arrival_made(before(7 * 24 + 1)), arrival_made(now.after(HOUR)), ArrivalId(uuid::Uuid::new_v4())]
    {
        assert_eq!(kind(other.publish(catalog, made(id)).await), ErrorKind::InvalidRequest);
        assert_eq!(kind(other.abandon(catalog, id).await), ErrorKind::InvalidRequest);
    }
    let old = made(arrival_made(before(7 * 24 - 1)));
    let committed = other.publish(catalog, old.clone()).await.unwrap();
    let age = Duration::from_secs(8 * 24 * 3600 - 60).as_micros();
    site.tamper(&format!("UPDATE told SET since = since - {age}")).await;
    catalog.prune(HOUR).await.unwrap();
    assert_eq!(other.publish(catalog, old.clone()).await.unwrap(), committed, "it is still known");
    site.tamper(&format!("UPDATE told SET since = since - {}", 120_000_000)).await;
    assert_eq!(catalog.prune(HOUR).await.unwrap(), 1);
    other.publish(catalog, made(arrival_made(before(0)))).await.unwrap();
    site.assert_sound().await;
}

async fn what_was_given_up_never_becomes_visible(site: Site) {
    let (catalog, other) = (&site.catalog, Other::of(&site, "theirs").await);
    let item = other.item("/lab/x", Condition::New);
    assert_eq!(other.abandon(catalog, item.id).await.unwrap(), None);
    assert_eq!(other.abandon(catalog, item.id).await.unwrap(), None);
    assert!(matches!(kind(other.publish(catalog, item).await), ErrorKind::Conflict { .. }));
    assert!(site.names("/lab").await.is_empty());
    let done = other.item("/lab/x", Condition::New);
    let committed = other.publish(catalog, done.clone()).await.unwrap();
    let both = catalog.abandon_publications(other.id, vec![ArrivalId::new(), done.id]).await.unwrap();
    assert_eq!(both, [None, Some(committed.clone())]);
    assert_eq!(other.publish(catalog, done.clone()).await.unwrap(), committed);
    let third = SiteId::new();
    let theirs = catalog.abandon_publications(third, vec![done.id]).await.unwrap();
    assert_eq!(theirs, [None], "ids are each site's own");
}

async fn giving_up_and_publishing_at_once(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let second = site.second().await;
    for round in 0..20 {
        let at = format!("/lab/{round:02}");
        let item = other.item(&at, Condition::New);
        let (published, abandoned) =
            tokio::join!(other.publish(&site.catalog, item.clone()), other.abandon(&second, item.id),);
        let abandoned = abandoned.unwrap();
        assert_eq!(published.as_ref().ok(), abandoned.as_ref(), "both say the same");
        assert_eq!(site.stat(&at).await.is_ok(), abandoned.is_some());
        assert_eq!(other.publish(&site.catalog, item).await.ok(), abandoned);
    }
    site.assert_sound().await;
}

async fn asked_twice_at_once_it_is_done_once(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let second = site.second().await;
    for round in 0..10 {
        let item = other.item(&format!("/lab/{round}"), Condition::Any);
        let twice = vec![item.clone(), item.clone()];
        let (one, two) = tokio::join!(
            site.catalog.publish_from(other.id, twice.clone()),
            second.publish_from(other.id, twice),
        );
        let all: Vec<Committed> = one.into_iter().chain(two).map(|outcome| outcome.unwrap()).collect();
        assert!(all.iter().all(|committed| *committed == all[0]), "{all:?}");
    }
    let published = kinds(&site).await.into_iter().filter(|kind| kind == "objects.published").count();
    assert_eq!(published, 10);
    site.assert_sound().await;
}

async fn of_two_sites_that_create_one_path_one_wins(site: Site) {
    let (one, two) = (Other::of(&site, "ones").await, Other::of(&site, "twos").await);
    let second = site.second().await;
    for round in 0..20 {
        let at = format!("/lab/d{round}/x");
        let (of_one, of_two) = tokio::join!(
            one.publish(&site.catalog, one.item(&at, Condition::New)),
            two.publish(&second, two.item(&at, Condition::New)),
        );
        assert_ne!(of_one.is_ok(), of_two.is_ok(), "{of_one:?} {of_two:?}");
        let (won, lost) = if of_one.is_ok() { (of_one, of_two) } else { (of_two, of_one) };
        let version = won.unwrap().version;
        assert_eq!(kind(lost), ErrorKind::AlreadyExists { version: Some(version) });
        assert_eq!(site.version(&at).await, version);
    }
    site.assert_sound().await;
}

/// Names of users in the order against that of what they do.
async fn records_of_one_call_are_in_the_order_of_its_items(site: Site) {
    let (catalog, other) = (&site.catalog, Other::of(&site, "theirs").await);
    for name in ["zoe", "adam"] {
        catalog.set_grant(&site.admin, &path("/lab"), subject(name), Permission::Write).await.unwrap();
    }
    let by = |name: &str, at: &str| {
        let mut item = other.item(at, Condition::Any);
        item.publication.caller = user(name);
        item
    };
    let items = vec![by("zoe", "/lab/d/x"), by("adam", "/lab/d/e/y"), by("adam", "/lab/d/x")];
    let done: Result<Vec<Committed>> = catalog.publish_from(other.id, items).await.into_iter().collect();
    let done = done.unwrap();
    let records = catalog.journal(&site.admin, site.space.id, None, 100).await.unwrap();
    let (mut entries, mut versions) = (vec![site.stat("/lab").await.unwrap().id], Vec::new());
    for record in records {
        match record.change().unwrap() {
            RecordChange::EntriesCreated(items) => {
                for item in items {
                    assert!(entries.contains(&item.parent), "{item:?} came before its collection");
                    entries.push(item.id);
                }
            }
            RecordChange::ObjectsPublished(items) => {
                for item in items {
                    assert!(entries.contains(&item.parent));
                    assert_eq!(versions.contains(&item.base), item.base.is_some(), "{item:?}");
                    versions.push(Some(item.version));
                    let answer = done.iter().find(|committed| committed.version == item.version).unwrap();
                    assert_eq!(answer.position, record.position);
                }
            }
            _ => {}
        }
    }
    assert_eq!(versions, done.iter().map(|committed| Some(committed.version)).collect::<Vec<_>>());
    site.assert_sound().await;
}

async fn an_arrival_of_a_space_that_came_home(site: Site) {
    let catalog = &site.catalog;
    let own = catalog.site().await.unwrap().id;
    site.set_home(site.space.id, SiteId::new()).await;
    let publication = Publication {
        caller: user("owner"),
        ..Other::of(&site, "x").await.item("/lab/x", Condition::New).publication
    };
    let wanted = NewArrival {
        lease: site.lease.id,
        fence: site.lease.fence,
        space: site.space.id,
        store: site.store,
        path: Some(path("/lab/x")),
        version: None,
        token: "token".into(),
        identity: None,
        body: ArrivalBody::Publication(Box::new(publication.clone())),
    };
    let arrival = catalog.reserve_arrivals(vec![wanted]).await.pop().unwrap().unwrap();
    site.tamper("UPDATE space SET home = NULL").await;
    let id = arrival.id;
    let item = RemotePublication { id, publication, store: site.store, key: arrival.key, generation: None };
    let publish = async || catalog.publish_from(own, vec![item.clone()]).await.pop().unwrap();
    assert!(matches!(kind(publish().await), ErrorKind::Conflict { .. }), "its bytes are not on disk");
    let settled = Settled { id, key: None, generation: None };
    catalog.settle_arrivals(vec![settled]).await.pop().unwrap().unwrap();
    let done = publish().await.unwrap();
    assert_eq!(publish().await.unwrap(), done);
    assert_eq!(catalog.written_arrivals(10, None).await.unwrap()[0].home, None);
    let told = ToldArrival { id, version: done.version, position: done.position };
    catalog.note_told(vec![told]).await.pop().unwrap().unwrap();
    assert_eq!(catalog.finish_arrived().await.unwrap(), 1);
    site.assert_sound().await;
}

on_both!(
    bytes_elsewhere_are_a_version_here,
    permission_and_conditions_are_those_of_publishing,
    a_site_speaks_only_of_what_is_its_own,
    arrivals_have_an_age,
    what_was_given_up_never_becomes_visible,
    giving_up_and_publishing_at_once,
    asked_twice_at_once_it_is_done_once,
    of_two_sites_that_create_one_path_one_wins,
    records_of_one_call_are_in_the_order_of_its_items,
    an_arrival_of_a_space_that_came_home,
);
