//! Opening, and the journal as readers see it.

use percale_catalog::*;
use percale_core::ids::{SpaceId, VersionId};
use percale_core::{AttributeValue, Position};
use percale_testkit::wait::until_async;

use crate::attributes::{say, text};
use crate::site::{HOUR, Site, kind, path, user};

async fn many_are_opened_at_once(site: Site) {
    site.put_many(&(0..50).map(|n| format!("/lab/{}/{n}", n % 3)).collect::<Vec<_>>()).await;
    let mut paths: Vec<_> = (0..50).map(|n| path(&format!("/lab/{}/{n}", n % 3))).collect();
    paths.extend(["/lab/none", "/lab/0", "/lab/0/0/x", "/none/x", "/"].map(path));
    let opened = site.catalog.open_many(&site.admin, &paths).await;
    for (at, open) in paths.iter().zip(&opened).take(50) {
        let alone = site.catalog.open_object(&site.admin, at, None).await.unwrap();
        assert_eq!(*open.as_ref().unwrap(), alone);
    }
    let kinds: Vec<_> = opened[50..].iter().map(|open| open.as_ref().unwrap_err().kind().clone()).collect();
    let expected = [
        ErrorKind::NotFound,
        ErrorKind::IsCollection,
        ErrorKind::NotACollection,
        ErrorKind::SpaceNotFound,
        ErrorKind::InvalidRequest,
    ];
    assert_eq!(kinds, expected);
    for (at, expected) in paths[50..].iter().zip(expected) {
        assert_eq!(kind(site.catalog.open_object(&site.admin, at, None).await), expected);
    }
}

async fn a_version_is_found_wherever_its_object_is(site: Site) {
    let first = site.put("/lab/a/x", 1).await;
    site.rename("/lab/a", "/lab/b", false).await.unwrap();
    let open = site.catalog.open_by_id(&site.admin, site.space.id, first.version).await.unwrap();
    assert_eq!((open.path, open.entry, open.is_current), (path("/lab/b/x"), first.entry, true));
    let second = site.put("/lab/b/x", 2).await;
    let old = site.catalog.open_by_id(&site.admin, site.space.id, first.version).await.unwrap();
    assert!(!old.is_current);
    site.put("/lab/b/y", 3).await;
    let wrong = site.catalog.open_object(&site.admin, &path("/lab/b/y"), Some(second.version)).await;
    assert_eq!(kind(wrong), ErrorKind::NotFound, "a version of another object");
    site.remove("/lab/b", true).await.unwrap();
    for version in [first.version, second.version, VersionId(1 << 60)] {
        let gone = site.catalog.open_by_id(&site.admin, site.space.id, version).await;
        assert_eq!(kind(gone), ErrorKind::NotFound);
    }
    assert_eq!(
        kind(site.catalog.open_by_id(&site.admin, SpaceId::new(), second.version).await),
        ErrorKind::NotFound
    );
}

async fn an_object_that_is_overwritten_is_always_readable(site: Site) {
    site.put("/lab/x", 0).await;
    let writes = async {
        for n in 1..60 {
            site.put("/lab/x", n).await;
            site.collect().await;
        }
    };
    let reads = async {
        for _ in 0..200 {
            let open = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
            assert_eq!(open.replicas.len(), 1, "a version with its copy");
            assert_eq!(open.replicas[0].version, open.version);
        }
    };
    tokio::join!(writes, reads);
}

async fn the_journal_has_no_gaps_and_keeps_its_terms(site: Site) {
    let catalog = &site.catalog;
    for n in 0..5 {
        site.put(&format!("/lab/d/{n}"), n).await;
    }
    let space = site.space.id;
    let records = catalog.journal(&site.admin, space, None, 1000).await.unwrap();
    let seqs: Vec<_> = records.iter().map(|record| record.position.seq).collect();
    assert_eq!(seqs, (1..=records.len() as u64).collect::<Vec<_>>());
    assert!(records.iter().all(|record| record.position.term == 1 && record.v == 1));
    assert_eq!(records[0].kind, "space.created");
    assert_eq!(records[0].actor, "user:admin");
    let end = catalog.position(space).await.unwrap();
    assert_eq!(records.last().unwrap().position, end);
    let rest = catalog.journal(&site.admin, space, Some(records[3].position), 2).await.unwrap();
    assert_eq!(rest, records[4..6]);
    assert!(catalog.journal(&site.admin, space, Some(end), 10).await.unwrap().is_empty());

    let journal = async |after: Position| kind(catalog.journal(&site.admin, space, Some(after), 10).await);
    let failed = ErrorKind::PreconditionFailed { version: None };
    assert_eq!(journal(Position { term: 0, ..end }).await, failed);
    assert_eq!(journal(Position { term: 2, ..end }).await, failed);
    assert_eq!(journal(Position { seq: end.seq + 1, ..end }).await, failed);
    assert_eq!(journal(Position { space: SpaceId::new(), ..end }).await, ErrorKind::InvalidRequest);
    assert!(catalog.journal(&user("owner"), space, None, 10).await.is_ok());

    assert_eq!(catalog.prune_journal(HOUR, 0).await.unwrap(), 0, "all are young");
    assert_eq!(
        catalog.prune_journal(std::time::Duration::ZERO, end.seq).await.unwrap(),
        0,
        "all are among the last"
    );
    assert_eq!(catalog.prune_journal(std::time::Duration::ZERO, 3).await.unwrap(), end.seq - 3);
    assert_eq!(journal(records[0].position).await, failed, "pruned");
    assert_eq!(catalog.journal(&site.admin, space, None, 10).await.unwrap().len(), 3);
    let last_pruned = records[records.len() - 4].position;
    assert_eq!(catalog.journal(&site.admin, space, Some(last_pruned), 10).await.unwrap().len(), 3);
}

/// However many are asked for: a site must not hold in memory what a thousand of them say.
async fn long_records_of_the_journal_come_some_at_a_time(site: Site) {
    const LONG: u64 = 40;
    site.put("/lab/x", 1).await;
    let before = site.catalog.position(site.space.id).await.unwrap();
    let words: Vec<AttributeValue> = (0..16).map(|n| text(&format!("{n:0>8000}"))).collect();
    for n in 0..LONG {
        site.put(&format!("/lab/short/{n}"), n).await;
    }
    for n in 0..LONG {
        let values = if n % 2 == 0 { &words[..] } else { &words[1..] };
        say(&site, "/lab/x", &[("words", values)]).await.unwrap();
    }
    let end = site.catalog.position(site.space.id).await.unwrap();
    let (mut after, mut pages) = (before, 0);
    while after != end {
        let records =
            site.catalog.journal(&site.admin, site.space.id, Some(after), MAX_JOURNAL).await.unwrap();
        let seqs: Vec<u64> = records.iter().map(|record| record.position.seq).collect();
        assert_eq!(seqs, (after.seq + 1..=after.seq + seqs.len() as u64).collect::<Vec<_>>(), "no gap");
        let bytes: usize = records.iter().map(|record| record.body.to_string().len()).sum();
        // A mebibyte, and what one statement may read beyond it.
        assert!(bytes < 6 << 20, "{bytes} bytes in {} records", records.len());
        after = records.last().expect("there are more").position;
        pages += 1;
    }
    assert!(pages > 1, "40 records of 128 kB in one page");
    let one = site.catalog.journal(&site.admin, site.space.id, Some(before), 1).await.unwrap();
    assert_eq!(one.len(), 1);
}

async fn watchers_hear_of_records_of_any_server(site: Site) {
    let second = site.second().await;
    let mut watch = site.catalog.watch();
    watch.mark_unchanged();
    site.mkdir("/lab/mine").await;
    tokio::time::timeout(HOUR, watch.changed()).await.unwrap().unwrap();
    watch.mark_unchanged();
    second.create_collection(&site.admin, &path("/lab/theirs"), false).await.unwrap();
    until_async("the other's record to be noticed", HOUR, async || {
        watch.has_changed().unwrap().then_some(())
    })
    .await;
}

async fn a_closed_catalog_refuses(site: Site) {
    site.put("/lab/x", 1).await;
    site.catalog.close().await;
    let make = site.catalog.create_collection(&site.admin, &path("/lab/d"), false).await;
    assert_eq!(kind(make), ErrorKind::Unavailable);
    assert_eq!(kind(site.stat("/lab/x").await), ErrorKind::Unavailable);
    let again = Catalog::open(&site.config).await.unwrap();
    assert!(again.stat(&site.admin, &path("/lab/x")).await.is_ok(), "nothing was lost");
}

on_both!(
    many_are_opened_at_once,
    a_version_is_found_wherever_its_object_is,
    an_object_that_is_overwritten_is_always_readable,
    the_journal_has_no_gaps_and_keeps_its_terms,
    long_records_of_the_journal_come_some_at_a_time,
    watchers_hear_of_records_of_any_server,
    a_closed_catalog_refuses,
);
