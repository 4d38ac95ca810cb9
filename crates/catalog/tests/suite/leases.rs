//! Leases.

use std::time::Duration;

use percale_catalog::*;
use percale_core::ids::LeaseId;
use percale_testkit::wait::until_async;
use serde_json::json;

use crate::site::{HOUR, Site, kind};

async fn a_lease_is_renewed_changed_and_released(site: Site) {
    let catalog = &site.catalog;
    let lease =
        catalog.acquire_lease(LeaseKind::Upload, "client 7", HOUR, json!({ "v": 1, "at": 0 })).await.unwrap();
    assert!(lease.fence > site.lease.fence);
    assert_eq!(catalog.lease(lease.id).await.unwrap(), lease);
    let renewed = catalog.renew_lease(lease.id, lease.fence, 2 * HOUR).await.unwrap();
    assert!(renewed.expires > lease.expires);
    catalog.update_lease_body(lease.id, lease.fence, json!({ "v": 1, "at": 7, "new": [1] })).await.unwrap();
    let known = catalog.lease(lease.id).await.unwrap();
    assert_eq!((known.body["at"].clone(), known.expires), (json!(7), renewed.expires));
    assert_eq!(catalog.leases(LeaseKind::Upload).await.unwrap(), [known]);
    assert_eq!(kind(catalog.renew_lease(lease.id, site.lease.fence, HOUR).await), ErrorKind::LeaseExpired);
    assert_eq!(kind(catalog.release_lease(lease.id, site.lease.fence).await), ErrorKind::LeaseExpired);
    catalog.release_lease(lease.id, lease.fence).await.unwrap();
    catalog.release_lease(lease.id, lease.fence).await.unwrap();
    assert_eq!(kind(catalog.lease(lease.id).await), ErrorKind::NotFound);
    assert_eq!(kind(catalog.renew_lease(lease.id, lease.fence, HOUR).await), ErrorKind::LeaseExpired);
    assert_eq!(kind(catalog.lease(LeaseId::new()).await), ErrorKind::NotFound);
}

async fn a_lease_with_intents_is_not_released(site: Site) {
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let SiteLease { id, fence } = SiteLease::of(&site);
    assert_eq!(kind(site.catalog.release_lease(id, fence).await), ErrorKind::NotEmpty);
    site.catalog.abandon(vec![intent.id]).await.unwrap();
    site.catalog.release_lease(id, fence).await.unwrap();
}

struct SiteLease {
    id: LeaseId,
    fence: percale_core::ids::Fence,
}

impl SiteLease {
    fn of(site: &Site) -> Self {
        Self { id: site.lease.id, fence: site.lease.fence }
    }
}

async fn lapsed_leases_are_taken_over_once(site: Site) {
    let second = site.second().await;
    let short = Duration::from_millis(100);
    let mut old = Vec::new();
    for n in 0..10 {
        let kind = if n < 5 { LeaseKind::Server } else { LeaseKind::Upload };
        old.push(site.catalog.acquire_lease(kind, "dead", short, json!({ "n": n })).await.unwrap());
    }
    let last = old.iter().map(|lease| lease.expires).max().unwrap();
    until_async("the leases to lapse", HOUR, async || {
        (site.catalog.now().await.unwrap() > last).then_some(())
    })
    .await;
    let (one, two) = tokio::join!(
        site.catalog.take_over_lapsed(Some(LeaseKind::Server), "one", HOUR, 100),
        second.take_over_lapsed(Some(LeaseKind::Server), "two", HOUR, 100),
    );
    let mut taken = one.unwrap();
    taken.extend(two.unwrap());
    assert_eq!(taken.len(), 5, "each by one of the two, and the one that is held by none");
    for lapsed in &taken {
        let before = old.iter().find(|lease| lease.id == lapsed.lease.id).unwrap();
        assert_eq!((lapsed.old_fence, lapsed.old_holder.as_str()), (before.fence, "dead"));
        assert_eq!(lapsed.lease.body, json!({ "v": 1 }), "what the dead server said of itself is gone");
        assert!(lapsed.lease.fence > old.last().unwrap().fence);
        let renewed = site.catalog.renew_lease(before.id, before.fence, HOUR).await;
        assert_eq!(kind(renewed), ErrorKind::LeaseExpired, "the old holder is out");
    }
    let rest = site.catalog.take_over_lapsed(None, "one", HOUR, 3).await.unwrap();
    assert_eq!(rest.len(), 3, "no more than asked for");
    assert!(rest.iter().all(|lapsed| lapsed.lease.body["n"].is_number()), "what is known of an upload stays");
    let mut fences: Vec<_> = taken.iter().chain(&rest).map(|lapsed| lapsed.lease.fence).collect();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 8, "fences are unique");
}

async fn a_take_over_and_a_commit_do_not_both_win(site: Site) {
    let second = site.second().await;
    for round in 0..20 {
        let lease = site.catalog.acquire_lease(LeaseKind::Server, "one", HOUR, json!({})).await.unwrap();
        let mut wanted = site.wanted(&format!("/lab/{round}"), Condition::New);
        (wanted.lease, wanted.fence) = (lease.id, lease.fence);
        let intent = site.prepare(wanted).await.unwrap();
        let recover = async {
            second.take_over_all(LeaseKind::Server, "two", HOUR).await.unwrap();
            second.intents_of(lease.id).await.unwrap()
        };
        let (committed, left) = tokio::join!(site.commit(&intent, 1), recover);
        assert_eq!(committed.is_err(), !left.is_empty(), "{committed:?} {left:?}");
        for row in left {
            second.delete_intent(row.intent.id).await.unwrap();
        }
    }
}

on_both!(
    a_lease_is_renewed_changed_and_released,
    a_lease_with_intents_is_not_released,
    lapsed_leases_are_taken_over_once,
    a_take_over_and_a_commit_do_not_both_win,
);
