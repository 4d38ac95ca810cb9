//! Backup, restore, checks.

use percale_catalog::*;
use percale_core::ErrorCode;
use percale_core::access::Permission;

use crate::site::{HOUR, Site, kind, path, subject, user};

/// Fills a site with some of everything.
async fn fill(site: &Site, count: usize) {
    site.put_many(&(0..count).map(|n| format!("/lab/{}/{n} ü", n % 7)).collect::<Vec<_>>()).await;
    site.put("/lab/0/0 ü", 77).await;
    site.put("/lab/0/0 ü", 78).await;
    site.remove("/lab/1", true).await.unwrap();
    site.rename("/lab/2", "/lab/moved", false).await.unwrap();
    let catalog = &site.catalog;
    catalog.create_link(&site.admin, &path("/lab/latest"), "moved".parse().unwrap()).await.unwrap();
    catalog.set_grant(&site.admin, &path("/lab/3"), subject("alice"), Permission::Write).await.unwrap();
    site.prepare(site.wanted("/lab/pending", Condition::New)).await.unwrap();
    let new = NewTask {
        id: None,
        kind: "verify".into(),
        spec: serde_json::json!({}),
        deadline: None,
        idempotency_key: None,
    };
    catalog.submit_task(&user("alice"), new).await.unwrap();
    let key = AnswerKey { caller: "user:alice".into(), key: "k".into() };
    catalog.remember(&key, [7; 32]).await.unwrap();
    let now = catalog.now().await.unwrap();
    let token = TokenRecord {
        id: percale_core::ids::TokenId::new(),
        subject: percale_core::access::Identity::local("alice"),
        scopes: Vec::new(),
        label: None,
        issued: now,
        expires: now.after(HOUR),
        revoked: None,
    };
    catalog.record_token(token).await.unwrap();
}

/// What a catalog holds, as far as callers can tell.
async fn contents(catalog: &Catalog, site: &Site) -> String {
    let mut options = ListOptions::default();
    (options.recursive, options.replicas, options.limit) = (true, true, MAX_LIST);
    let page = catalog.list(&site.admin, &path("/lab"), options).await.unwrap();
    let tasks = catalog.tasks(&site.admin, TaskFilter::default(), None, 100).await.unwrap();
    format!(
        "{:?}",
        (
            page.items,
            catalog.garbage(site.store, 10_000).await.unwrap(),
            catalog.stores().await.unwrap(),
            catalog.site().await.unwrap(),
            catalog.intents_of(site.lease.id).await.unwrap(),
            catalog.lease(site.lease.id).await.unwrap(),
            catalog.grants(&site.admin, &path("/lab/3")).await.unwrap(),
            tasks.items,
            catalog.tokens(&site.admin).await.unwrap(),
        )
    )
}

async fn a_backup_is_restored_to_either_engine(site: Site) {
    fill(&site, 300).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("lab.backup");
    let before = contents(&site.catalog, &site).await;
    let info = site.catalog.backup(&archive).await.unwrap();
    assert_eq!(info.site, Some(site.catalog.site().await.unwrap().id));
    assert_eq!(info.positions, [site.catalog.position(site.space.id).await.unwrap()]);
    assert_eq!(Catalog::verify_backup(&archive).await.unwrap(), info);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no file is left beside it");
    let twice = site.catalog.backup(&archive).await;
    assert!(matches!(kind(twice), ErrorKind::AlreadyExists { .. }), "nothing is overwritten");

    let file = format!("sqlite:{}", folder.path().join("new.db").display());
    let mut urls = vec![file];
    if let Some(server) = tokio::task::spawn_blocking(percale_testkit::postgres::shared).await.unwrap() {
        urls.push(tokio::task::spawn_blocking(|| server.database()).await.unwrap());
    }
    for url in urls {
        let restored = Catalog::open(&CatalogConfig::new(&url)).await.unwrap();
        assert_eq!(restored.restore(&archive).await.unwrap(), info);
        assert!(contents(&restored, &site).await == before, "{url} holds something else");
        assert_eq!(restored.fsck().await.unwrap(), []);
        let position = restored.position(site.space.id).await.unwrap();
        assert_eq!(position.term, info.positions[0].term + 1);
        let old = restored.journal(&site.admin, site.space.id, Some(info.positions[0]), 10).await;
        assert_eq!(
            kind(old),
            ErrorKind::PreconditionFailed { version: None },
            "positions of before are refused"
        );
        // Ids and fences go on where nothing of the lost time can be met.
        let lease =
            restored.acquire_lease(LeaseKind::Server, "new", HOUR, serde_json::json!({})).await.unwrap();
        assert!(lease.fence.0 > site.lease.fence.0 + (1 << 29));
        let made = restored.create_collection(&site.admin, &path("/lab/new"), false).await.unwrap();
        assert!(made.entry.id.0 > 1 << 29);
        let records = restored.journal(&site.admin, site.space.id, Some(position), 10).await.unwrap();
        assert_eq!(records.len(), 1);
        let again = restored.restore(&archive).await;
        assert!(matches!(kind(again), ErrorKind::AlreadyExists { .. }), "only into an empty catalog");
        restored.close().await;
    }
}

async fn a_backup_is_of_one_moment(site: Site) {
    let catalog = site.catalog.clone();
    let admin = site.admin.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    // Two collections that only ever exist together with their twin.
    let writer = tokio::spawn(async move {
        let mut n = 0;
        while stopped.try_recv().is_err() {
            let (a, b) = (path(&format!("/lab/{n}")), path(&format!("/lab/{n}/twin")));
            catalog.create_collection(&admin, &b, true).await.unwrap();
            catalog.create_collection(&admin, &a, true).await.unwrap();
            n += 1;
        }
    });
    let folder = tempfile::tempdir().unwrap();
    for n in 0..5 {
        let archive = folder.path().join(format!("{n}.backup"));
        let info = site.catalog.backup(&archive).await.unwrap();
        let url = format!("sqlite:{}", folder.path().join(format!("{n}.db")).display());
        let restored = Catalog::open(&CatalogConfig::new(url)).await.unwrap();
        restored.restore(&archive).await.unwrap();
        assert_eq!(restored.fsck().await.unwrap(), []);
        assert_eq!(restored.position(site.space.id).await.unwrap().seq, info.positions[0].seq);
    }
    stop.send(()).unwrap();
    writer.await.unwrap();
}

async fn damage_of_an_archive_is_found(site: Site) {
    site.put("/lab/x", 1).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("lab.backup");
    site.catalog.backup(&archive).await.unwrap();
    let good = std::fs::read(&archive).unwrap();
    let bad = folder.path().join("bad");
    let verify = async |bytes: &[u8]| {
        std::fs::write(&bad, bytes).unwrap();
        Catalog::verify_backup(&bad).await.unwrap_err()
    };
    for at in (0..good.len()).step_by(97) {
        let mut damaged = good.clone();
        damaged[at] ^= 1;
        verify(&damaged).await;
        verify(&good[..at]).await;
    }
    verify(&[&good[..], b"\n"].concat()).await;
    verify(b"").await;
    verify(b"hello\n").await;
    let newer = String::from_utf8(good.clone()).unwrap().replacen("\"v\":1", "\"v\":2", 1);
    assert_eq!(*verify(newer.as_bytes()).await.kind(), ErrorKind::Unsupported);
    let missing = Catalog::verify_backup(&folder.path().join("none")).await;
    assert_eq!(missing.unwrap_err().code(), ErrorCode::NotFound);
    let empty =
        Catalog::open(&CatalogConfig::new(format!("sqlite:{}", folder.path().join("e.db").display())))
            .await
            .unwrap();
    std::fs::write(&bad, &good[..good.len() - 5]).unwrap();
    assert_eq!(kind(empty.restore(&bad).await), ErrorKind::Corrupt);
    std::fs::write(&bad, &good).unwrap();
    empty.restore(&bad).await.unwrap();
}

async fn fsck_finds_what_is_wrong(site: Site) {
    fill(&site, 300).await;
    site.assert_sound().await;
    let found = async |sql: &str| {
        site.tamper(sql).await;
        let kinds: Vec<_> =
            site.catalog.fsck().await.unwrap().into_iter().map(|finding| finding.kind).collect();
        kinds
    };
    let moved = site.stat("/lab/moved").await.unwrap();
    let (d3, d4) = (site.stat("/lab/3").await.unwrap().id, site.stat("/lab/4").await.unwrap().id);
    let x = site.stat("/lab/5/5 ü").await.unwrap();
    let version = x.content.unwrap().version;
    let cases = [
        (
            format!("UPDATE entry SET parent = 999999 WHERE id = {}", moved.id),
            format!("UPDATE entry SET parent = 1 WHERE id = {}", moved.id),
            "orphan",
        ),
        (
            format!(
                "UPDATE entry SET parent = {d4} WHERE id = {d3}; UPDATE entry SET parent = {d3} WHERE id = {d4}"
            ),
            format!(
                "UPDATE entry SET parent = 1 WHERE id = {d3}; UPDATE entry SET parent = 1 WHERE id = {d4}"
            ),
            "cycle",
        ),
        (
            "UPDATE entry SET kind = 2 WHERE id = 1".into(),
            "UPDATE entry SET kind = 1 WHERE id = 1".into(),
            "root_missing",
        ),
        (
            format!("UPDATE entry SET size = NULL WHERE id = {}", x.id),
            format!("UPDATE entry SET size = 5 WHERE id = {}", x.id),
            "content_missing",
        ),
        (
            format!("UPDATE replica SET version = version + 500000 WHERE version = {version}"),
            format!("UPDATE replica SET version = version - 500000 WHERE version = {version} + 500000"),
            "replica_missing",
        ),
        (
            format!("UPDATE replica SET entry = 999999 WHERE version = {version}"),
            format!("UPDATE replica SET entry = {} WHERE version = {version}", x.id),
            "replica_dangling",
        ),
        (
            "UPDATE garbage SET version = version + 500".into(),
            "UPDATE garbage SET version = version - 500".into(),
            "version_empty",
        ),
        (
            "UPDATE grants SET entry = 999999 WHERE subject = 'user:alice'".into(),
            format!("UPDATE grants SET entry = {d3} WHERE subject = 'user:alice'"),
            "grant_dangling",
        ),
        (
            "INSERT INTO attribute (sp, entry, name, source, ord, type, value) VALUES (1, 999999, 'a', 2, 0, 3, 'b')".into(),
            "DELETE FROM attribute WHERE entry = 999999".into(),
            "attribute_dangling",
        ),
        (
            format!(
                "INSERT INTO attribute (sp, entry, name, source, ord, type, word, value) VALUES (1, {}, 'a', 2, 0, 3, 'b', 'B'); \
                 DELETE FROM word WHERE name = 'a'",
                x.id
            ),
            "DELETE FROM attribute WHERE name = 'a'".into(),
            "word_missing",
        ),
        (
            // PostgreSQL may have kept two parts of it that come to nothing.
            "DELETE FROM tally WHERE name = 'a'; \
             INSERT INTO tally (sp, name, type, value, n) VALUES (1, 'a', 3, 'b', 1)"
                .into(),
            "DELETE FROM tally WHERE name = 'a'".into(),
            "tally",
        ),
        (
            "UPDATE used SET bytes = bytes + 64".into(),
            "UPDATE used SET bytes = bytes - 64".into(),
            "used",
        ),
        (
            "UPDATE journal SET seq = 999999 WHERE seq = 3".into(),
            "UPDATE journal SET seq = 3 WHERE seq = 999999".into(),
            "journal_gap",
        ),
        ("UPDATE space SET next_id = 5".into(), "UPDATE space SET next_id = 5000".into(), "counter"),
        ("UPDATE site SET fence = 0".into(), "UPDATE site SET fence = 1".into(), "counter"),
        (
            "UPDATE garbage SET key = 'lab/5/5 ü' WHERE key = 'lab/0/0 ü'".into(),
            "UPDATE garbage SET key = 'lab/0/0 ü' WHERE key = 'lab/5/5 ü'".into(),
            "key_twice",
        ),
        (
            "UPDATE lease SET fence = fence; UPDATE intent SET lease = (SELECT id FROM store LIMIT 1)".into(),
            "UPDATE intent SET lease = (SELECT id FROM lease LIMIT 1)".into(),
            "lease_missing",
        ),
        (
            "UPDATE replica SET state = 'odd' WHERE key = 'lab/5/5 ü'".into(),
            "UPDATE replica SET state = 'good' WHERE key = 'lab/5/5 ü'".into(),
            "undecodable",
        ),
    ];
    for (damage, repair, expected) in cases {
        let kinds = found(&damage).await;
        assert!(kinds.contains(&expected), "{damage}: {kinds:?}");
        assert_eq!(found(&repair).await, Vec::<&str>::new(), "{repair}");
    }
}

async fn a_newer_schema_is_refused(site: Site) {
    site.tamper("INSERT INTO refinery_schema_history (version, name, applied_on, checksum) VALUES (9999, 'later', '2030-01-01T00:00:00Z', '1')").await;
    assert_eq!(kind(Catalog::open(&site.config).await), ErrorKind::InvalidConfiguration);
}

async fn two_servers_open_a_new_database_at_once(site: Site) {
    let folder = tempfile::tempdir().unwrap();
    let config = match site.is_postgres() {
        true => {
            let server = percale_testkit::postgres::shared().unwrap();
            CatalogConfig::new(tokio::task::spawn_blocking(|| server.database()).await.unwrap())
        }
        false => CatalogConfig::new(format!("sqlite:{}", folder.path().join("two.db").display())),
    };
    let opened = futures::future::join_all((0..4).map(|_| Catalog::open(&config))).await;
    for catalog in opened {
        let catalog = catalog.unwrap();
        catalog.init_site("alps").await.unwrap();
        catalog.close().await;
    }
}

/// The stored archive of form 1. Never changed; a new form gets a sample of its own.
const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/samples/archive-v1.jsonl");

async fn the_archive_of_form_1_is_still_restored(site: Site) {
    if std::env::var("PERCALE_WRITE_SAMPLES").is_ok() && !site.is_postgres() {
        fill(&site, 20).await;
        site.remove("/lab/3", true).await.unwrap();
        site.collect().await;
        site.catalog.backup(std::path::Path::new(ARCHIVE)).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let url = match site.is_postgres() {
        true => {
            let server = percale_testkit::postgres::shared().unwrap();
            tokio::task::spawn_blocking(|| server.database()).await.unwrap()
        }
        false => format!("sqlite:{}", folder.path().join("sample.db").display()),
    };
    let restored = Catalog::open(&CatalogConfig::new(url)).await.unwrap();
    let info = restored.restore(std::path::Path::new(ARCHIVE)).await.unwrap();
    assert_eq!((info.format, info.schema), (1, 1));
    assert_eq!(restored.fsck().await.unwrap(), []);
    let open = restored.open_object(&site.admin, &path("/lab/moved/16 ü"), None).await.unwrap();
    assert_eq!(open.replicas.len(), 1);
    assert_eq!(open.replicas[0].key, "lab/2/16 ü");
    assert_eq!(restored.tasks(&site.admin, TaskFilter::default(), None, 9).await.unwrap().items.len(), 1);
    let server = restored.leases(LeaseKind::Server).await.unwrap();
    assert_eq!(restored.intents_of(server[0].id).await.unwrap().len(), 1);
}

on_both!(
    a_backup_is_restored_to_either_engine,
    a_backup_is_of_one_moment,
    damage_of_an_archive_is_found,
    fsck_finds_what_is_wrong,
    a_newer_schema_is_refused,
    two_servers_open_a_new_database_at_once,
    the_archive_of_form_1_is_still_restored,
);
