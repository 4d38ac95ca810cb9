//! What sites say about copies on their stores, and how it gets to the homes of the spaces.

use percale_catalog::*;
use percale_core::ids::{SiteId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::{ByteCount, Position};

use crate::site::{Site, kind, path, root};

fn report(site: &Site, version: VersionId, state: ReplicaState) -> ReplicaReport {
    ReplicaReport {
        space: site.space.id,
        version,
        store: site.store,
        key: None,
        state,
        generation: None,
        root: None,
        is_checked: true,
    }
}

async fn say(site: &Site, report: ReplicaReport) -> Result<Position> {
    site.catalog.report_replicas(&site.admin, vec![report]).await.pop().unwrap()
}

async fn state(site: &Site, at: &str) -> ReplicaState {
    let open = site.catalog.open_object(&site.admin, &path(at), None).await.unwrap();
    open.replicas[0].state
}

async fn done(site: &Site, number: u64, answer: ReportAnswer) {
    site.catalog.outbox_done(vec![OutboxDone { number, answer }]).await.unwrap();
}

async fn position(site: &Site) -> Position {
    site.catalog.position(site.space.id).await.unwrap()
}

async fn a_report_counts_here_and_waits_for_the_home(site: Site) {
    let x = site.put("/lab/x", 1).await.version;
    let home = SiteId::new();
    site.set_home(site.space.id, home).await;
    let at = position(&site).await;
    assert_eq!(
        say(&site, report(&site, x, ReplicaState::Suspect)).await.unwrap(),
        at,
        "nothing is ordered here"
    );
    assert_eq!(state(&site, "/lab/x").await, ReplicaState::Suspect);
    say(&site, report(&site, x, ReplicaState::Suspect)).await.unwrap();
    let rows = site.catalog.outbox(10).await.unwrap();
    assert_eq!(rows.len(), 1, "what is known is not said twice");
    // The home has to know which copy it is about.
    let expected = ReplicaReport { key: Some("lab/x".into()), ..report(&site, x, ReplicaState::Suspect) };
    assert_eq!((rows[0].home, &rows[0].report), (home, &expected));
    let refused = say(&site, report(&site, x, ReplicaState::Unverified)).await;
    assert!(matches!(kind(refused), ErrorKind::Conflict { .. }));
    say(&site, report(&site, x, ReplicaState::Good)).await.unwrap();
    let both = site.catalog.outbox(10).await.unwrap();
    assert!(both[0].number < both[1].number);
    assert_eq!(both[1].report.state, ReplicaState::Good);
    assert_eq!(site.catalog.outbox(1).await.unwrap(), both[..1]);
    assert_eq!(position(&site).await, at);

    let noted = ReportAnswer::Noted { position: at };
    done(&site, both[0].number, noted.clone()).await;
    done(&site, both[1].number, noted.clone()).await;
    done(&site, both[1].number, noted).await;
    assert!(site.catalog.outbox(10).await.unwrap().is_empty());
    assert_eq!(state(&site, "/lab/x").await, ReplicaState::Good);
    say(&site, report(&site, x, ReplicaState::Lost)).await.unwrap();
    assert!(site.catalog.outbox(10).await.unwrap()[0].number > both[1].number, "no number comes twice");
    site.assert_sound().await;
}

async fn what_is_not_for_the_outbox(site: Site) {
    let x = site.put("/lab/x", 1).await.version;
    let before = position(&site).await;
    let at = say(&site, report(&site, x, ReplicaState::Suspect)).await.unwrap();
    assert_eq!(at.seq, before.seq + 1, "the home is here: it is in the journal");
    let owner = SiteId::new();
    let store = site.add_foreign_store("theirs", owner).await;
    let foreign = ReplicaReport { store, ..report(&site, x, ReplicaState::Lost) };
    assert_eq!(kind(say(&site, foreign.clone()).await), ErrorKind::Foreign { home: owner });
    site.set_home(site.space.id, SiteId::new()).await;
    assert_eq!(
        kind(say(&site, foreign).await),
        ErrorKind::Foreign { home: owner },
        "its owner says what it is"
    );
    let unknown = report(&site, VersionId(9999), ReplicaState::Lost);
    assert_eq!(kind(say(&site, unknown).await), ErrorKind::NotFound);
    let checked = report(&site, x, ReplicaState::Suspect);
    say(&site, checked).await.unwrap();
    assert!(site.catalog.outbox(10).await.unwrap().is_empty(), "when it was looked at is its own affair");
}

async fn a_root_that_was_found_here_is_for_the_home_to_give(site: Site) {
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let commit = Commit::new(intent.id, ByteCount(1), None);
    let x = site.catalog.commit(vec![commit]).await.pop().unwrap().unwrap().version;
    site.set_home(site.space.id, SiteId::new()).await;
    let found = report(&site, x, ReplicaState::Good);
    let hashed = ReplicaReport { key: Some("lab/x".into()), root: Some(root(1)), ..found };
    say(&site, hashed.clone()).await.unwrap();
    assert_eq!(site.stat("/lab/x").await.unwrap().content.unwrap().root, None);
    assert_eq!(site.catalog.outbox(10).await.unwrap()[0].report, hashed);
}

async fn what_a_home_refuses_is_as_it_knows_it(site: Site) {
    let x = site.put("/lab/x", 1).await.version;
    site.set_home(site.space.id, SiteId::new()).await;
    let at = position(&site).await;
    let stale =
        ReportAnswer::Refused { state: ReplicaState::Stale, generation: Some("7".into()), position: at };
    say(&site, report(&site, x, ReplicaState::Suspect)).await.unwrap();
    say(&site, report(&site, x, ReplicaState::Lost)).await.unwrap();
    let rows = site.catalog.outbox(10).await.unwrap();
    done(&site, rows[0].number, stale.clone()).await;
    assert_eq!(state(&site, "/lab/x").await, ReplicaState::Lost, "the home will hear of that too");
    done(&site, rows[1].number, stale.clone()).await;
    let open = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
    assert_eq!(open.replicas[0].state, ReplicaState::Stale);
    assert_eq!(open.replicas[0].generation.as_deref(), Some("7"));

    say(&site, report(&site, x, ReplicaState::Lost)).await.unwrap();
    let number = site.catalog.outbox(10).await.unwrap()[0].number;
    done(&site, number, ReportAnswer::Gone).await;
    assert_eq!(state(&site, "/lab/x").await, ReplicaState::Lost, "its record takes it away");
    assert!(site.catalog.outbox(10).await.unwrap().is_empty());
    let both: Vec<_> = [ReplicaState::Suspect, ReplicaState::Good].into_iter().collect();
    for state in both {
        say(&site, report(&site, x, state)).await.unwrap();
    }
    let rows = site.catalog.outbox(10).await.unwrap();
    let noted = ReportAnswer::Noted { position: at };
    let answers = [stale, noted].into_iter().zip(rows);
    let answers = answers.map(|(answer, row)| OutboxDone { number: row.number, answer });
    site.catalog.outbox_done(answers.collect()).await.unwrap();
    assert_eq!(state(&site, "/lab/x").await, ReplicaState::Good, "the last answer counts");
}

async fn the_home_takes_what_follows(site: Site) {
    let other = SiteId::new();
    let store = site.add_foreign_store("theirs", other).await;
    let x = site.put("/lab/x", 1).await.version;
    let of = |state: ReplicaState| ReplicaReport { store, ..report(&site, x, state) };
    let tell =
        async |report: ReplicaReport| site.catalog.report_from(other, vec![report]).await.pop().unwrap();
    assert_eq!(tell(of(ReplicaState::Lost)).await.unwrap(), ReportAnswer::Gone, "there is no copy");
    let copy = NewCopy {
        id: ArrivalId::new(),
        space: site.space.id,
        version: x,
        store,
        key: "x".into(),
        generation: None,
        root: root(1),
    };
    site.catalog.add_copies(Some(other), &site.admin, vec![copy]).await.pop().unwrap().unwrap();
    let before = position(&site).await;
    let suspect = ReplicaReport { generation: Some("2".into()), ..of(ReplicaState::Suspect) };
    let told = tell(suspect.clone()).await.unwrap();
    assert_eq!(told, ReportAnswer::Noted { position: Position { seq: before.seq + 1, ..before } });
    assert_eq!(tell(suspect).await.unwrap(), told, "said again, nothing is new");
    let records = site.catalog.journal(&site.admin, site.space.id, Some(before), 10).await.unwrap();
    assert_eq!(records[0].actor, format!("site:{other}"));
    let RecordChange::ReplicasChanged(items) = records[0].change().unwrap() else { panic!("{records:?}") };
    assert_eq!((items[0].store, items[0].state), (store, ReplicaState::Suspect));
    let refused = tell(of(ReplicaState::Unverified)).await.unwrap();
    let at = position(&site).await;
    let generation = Some("2".to_owned());
    assert_eq!(
        refused,
        ReportAnswer::Refused { state: ReplicaState::Suspect, generation: generation.clone(), position: at }
    );
    tell(of(ReplicaState::Good)).await.unwrap();
    let other_root = ReplicaReport { root: Some(root(9)), ..of(ReplicaState::Good) };
    let at = Position { seq: at.seq + 2, ..at };
    let doubted = ReportAnswer::Refused { state: ReplicaState::Suspect, generation, position: at };
    assert_eq!(tell(other_root).await.unwrap(), doubted, "its bytes are not the version's");

    let own = ReplicaReport { store: site.store, ..of(ReplicaState::Lost) };
    assert_eq!(kind(tell(own).await), ErrorKind::NotAllowed);
    let nowhere = ReplicaReport { space: percale_core::ids::SpaceId::new(), ..of(ReplicaState::Lost) };
    assert_eq!(kind(tell(nowhere).await), ErrorKind::SpaceNotFound);
    let unknown = ReplicaReport { store: StoreId::new(), ..of(ReplicaState::Lost) };
    assert!(matches!(kind(tell(unknown).await), ErrorKind::Conflict { .. }));
    let home = SiteId::new();
    site.set_home(site.space.id, home).await;
    assert_eq!(kind(tell(of(ReplicaState::Lost)).await), ErrorKind::Foreign { home });
    site.assert_sound().await;
}

async fn reports_that_waited_for_a_home_that_is_here_now(site: Site) {
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let commit = Commit::new(intent.id, ByteCount(1), None);
    let x = site.catalog.commit(vec![commit]).await.pop().unwrap().unwrap().version;
    site.put("/lab/y", 1).await;
    site.set_home(site.space.id, SiteId::new()).await;
    let hashed = ReplicaReport { root: Some(root(1)), ..report(&site, x, ReplicaState::Good) };
    say(&site, hashed).await.unwrap();
    say(&site, report(&site, x, ReplicaState::Lost)).await.unwrap();
    let promoted = site.catalog.promote(site.space.id).await.unwrap();
    assert!(site.catalog.outbox(10).await.unwrap().is_empty());
    let before = promoted.position;
    let records = site.catalog.journal(&site.admin, site.space.id, Some(before), 10).await.unwrap();
    let RecordChange::ReplicasChanged(items) = records[0].change().unwrap() else { panic!("{records:?}") };
    assert_eq!(items.last().unwrap().state, ReplicaState::Lost);
    assert_eq!(items.iter().find_map(|item| item.root), Some(root(1)));
    assert_eq!(site.stat("/lab/x").await.unwrap().content.unwrap().root, Some(root(1)));
    site.assert_sound().await;
}

/// Leaves an arrival, a report that waits and an answer to another site; returns that site and what it asked about.
async fn leave_some_of_each(site: &Site) -> (SiteId, ArrivalId) {
    let other = SiteId::new();
    let store = site.add_foreign_store("theirs", other).await;
    let x = site.put("/lab/x", 1).await.version;
    let publication = Publication {
        caller: site.admin.clone(),
        path: path("/lab/y"),
        parents: true,
        condition: Condition::New,
        size: ByteCount(7),
        root: Some(root(7)),
        mtime: None,
        mode: None,
        digests: Vec::new(),
    };
    let id = ArrivalId::new();
    let theirs = Publication { caller: crate::site::user("owner"), ..publication.clone() };
    let item = RemotePublication { id, publication: theirs, store, key: "y".into(), generation: None };
    site.catalog.publish_from(other, vec![item]).await.pop().unwrap().unwrap();
    site.set_home(site.space.id, other).await;
    say(site, report(site, x, ReplicaState::Suspect)).await.unwrap();
    let wanted = NewArrival {
        lease: site.lease.id,
        fence: site.lease.fence,
        space: site.space.id,
        store: site.store,
        path: Some(path("/lab/z")),
        version: None,
        token: "token".into(),
        identity: None,
        body: ArrivalBody::Publication(Box::new(publication)),
    };
    site.catalog.reserve_arrivals(vec![wanted]).await.pop().unwrap().unwrap();
    (other, id)
}

async fn a_backup_has_what_is_on_its_way(site: Site) {
    let (other, id) = leave_some_of_each(&site).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("a.backup");
    site.catalog.backup(&archive).await.unwrap();
    let url = format!("sqlite:{}", folder.path().join("new.db").display());
    let restored = Catalog::open(&CatalogConfig::new(url)).await.unwrap();
    restored.restore(&archive).await.unwrap();
    let arrivals = site.catalog.arrivals_of(site.lease.id).await.unwrap();
    assert_eq!((arrivals.len(), &arrivals), (1, &restored.arrivals_of(site.lease.id).await.unwrap()));
    let reports = site.catalog.outbox(10).await.unwrap();
    assert_eq!((reports.len(), &reports), (1, &restored.outbox(10).await.unwrap()));
    let published = site.catalog.abandon_publications(other, vec![id]).await.unwrap();
    assert!(published[0].is_some());
    assert_eq!(restored.abandon_publications(other, vec![id]).await.unwrap(), published);
    assert_eq!(restored.fsck().await.unwrap(), []);
}

async fn fsck_finds_what_is_on_its_way_to_nobody(site: Site) {
    leave_some_of_each(&site).await;
    site.assert_sound().await;
    let found = async |sql: &str| {
        site.tamper(sql).await;
        let findings = site.catalog.fsck().await.unwrap();
        findings.into_iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    let theirs = "(SELECT st FROM store WHERE name = 'theirs')";
    let own = "(SELECT st FROM store WHERE name = 'disk')";
    let cases = [
        (
            "UPDATE arrival SET lease = (SELECT id FROM store LIMIT 1)".to_owned(),
            "UPDATE arrival SET lease = (SELECT id FROM lease LIMIT 1)".to_owned(),
            "lease_missing",
        ),
        (
            format!("UPDATE arrival SET st = {theirs}"),
            format!("UPDATE arrival SET st = {own}"),
            "arrival_foreign",
        ),
        ("UPDATE arrival SET key = 'lab/x'".into(), "UPDATE arrival SET key = 'lab/z'".into(), "key_twice"),
        (
            format!("UPDATE outbox SET st = {theirs}"),
            format!("UPDATE outbox SET st = {own}"),
            "report_dangling",
        ),
        (
            "UPDATE outbox SET sp = 77".into(),
            "UPDATE outbox SET sp = (SELECT sp FROM space)".into(),
            "report_dangling",
        ),
        (
            "UPDATE told SET answer = '{\"v\":1,\"told\":\"deciding\"}'".into(),
            "UPDATE told SET answer = '{\"v\":1,\"told\":\"abandoned\"}'".into(),
            "told_undecided",
        ),
        (
            "UPDATE told SET answer = '{}'".into(),
            "UPDATE told SET answer = '{\"v\":1,\"told\":\"abandoned\"}'".into(),
            "undecodable",
        ),
        (
            "UPDATE arrival SET state = 'odd'".into(),
            "UPDATE arrival SET state = 'reserved'".into(),
            "undecodable",
        ),
        (
            "UPDATE outbox SET body = '{}'".into(),
            "UPDATE outbox SET body = '{\"v\":1,\"state\":\"lost\"}'".into(),
            "undecodable",
        ),
    ];
    for (damage, repair, expected) in cases {
        let kinds = found(&damage).await;
        assert!(kinds.contains(&expected), "{damage}: {kinds:?}");
        assert_eq!(found(&repair).await, Vec::<&str>::new(), "{repair}");
    }
}

on_both!(
    a_backup_has_what_is_on_its_way,
    fsck_finds_what_is_on_its_way_to_nobody,
    a_report_counts_here_and_waits_for_the_home,
    what_is_not_for_the_outbox,
    a_root_that_was_found_here_is_for_the_home_to_give,
    what_a_home_refuses_is_as_it_knows_it,
    the_home_takes_what_follows,
    reports_that_waited_for_a_home_that_is_here_now,
);
