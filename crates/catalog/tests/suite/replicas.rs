//! Copies and their states.

use percale_catalog::*;
use percale_core::ByteCount;
use percale_core::ids::EntryId;
use percale_core::state::ReplicaState;

use crate::site::{Site, kind, new_store, path, root};

fn report(site: &Site, version: percale_core::ids::VersionId, state: ReplicaState) -> ReplicaReport {
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

async fn states_follow_the_rules(site: Site) {
    let x = site.put("/lab/x", 1).await;
    let tell = async |reports: Vec<ReplicaReport>| site.catalog.report_replicas(&site.admin, reports).await;
    let before = site.catalog.position(site.space.id).await.unwrap();
    let told = tell(vec![report(&site, x.version, ReplicaState::Suspect)]).await.pop().unwrap().unwrap();
    assert_eq!(told.seq, before.seq + 1);
    let refused = tell(vec![report(&site, x.version, ReplicaState::Unverified)]).await.pop().unwrap();
    assert!(matches!(kind(refused), ErrorKind::Conflict { .. }), "a doubt is not forgotten");
    let open = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
    assert_eq!(open.replicas[0].state, ReplicaState::Suspect);
    assert!(open.replicas[0].checked.is_some());
    let told = tell(vec![
        report(&site, x.version, ReplicaState::Good),
        report(&site, percale_core::ids::VersionId(9999), ReplicaState::Good),
    ])
    .await;
    assert!(told[0].is_ok());
    assert_eq!(*told[1].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    let again = tell(vec![report(&site, x.version, ReplicaState::Good)]).await.pop().unwrap().unwrap();
    assert_eq!(again, *told[0].as_ref().unwrap(), "no news, no record");
}

async fn a_root_is_added_once(site: Site) {
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let commit = Commit::new(intent.id, ByteCount(1), None);
    let x = site.catalog.commit(vec![commit]).await.pop().unwrap().unwrap();
    let with_root = |seed| ReplicaReport {
        root: Some(root(seed)),
        generation: Some("g2".into()),
        ..report(&site, x.version, ReplicaState::Good)
    };
    let tell =
        async |seed| site.catalog.report_replicas(&site.admin, vec![with_root(seed)]).await.pop().unwrap();
    tell(1).await.unwrap();
    assert_eq!(site.stat("/lab/x").await.unwrap().content.unwrap().root, Some(root(1)));
    assert!(matches!(kind(tell(2).await), ErrorKind::Conflict { .. }), "a version's root never changes");
    tell(1).await.unwrap();
    let stored = site.catalog.replicas_on(site.store, None, 10).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!((stored[0].root, stored[0].is_current, stored[0].size), (Some(root(1)), true, ByteCount(1)));
    assert_eq!(stored[0].replica.generation.as_deref(), Some("g2"));
}

async fn the_copies_on_a_store_are_listed_by_key(site: Site) {
    let paths: Vec<String> = (0..25).map(|n| format!("/lab/{n:02}")).collect();
    site.put_many(&paths).await;
    let mut keys = Vec::new();
    loop {
        let page = site.catalog.replicas_on(site.store, keys.last().map(String::as_str), 10).await.unwrap();
        if page.is_empty() {
            break;
        }
        keys.extend(page.into_iter().map(|stored| stored.replica.key));
    }
    assert_eq!(keys, paths.iter().map(|at| at.trim_start_matches('/')).collect::<Vec<_>>());
}

async fn a_native_file_that_changed_is_a_new_version(site: Site) {
    let native = site.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id;
    let mut wanted = site.wanted("/lab/x", Condition::New);
    wanted.store = native;
    let intent = site.prepare(wanted).await.unwrap();
    let x = site.commit(&intent, 1).await.unwrap();
    let change = NativeChange {
        space: site.space.id,
        version: x.version,
        store: native,
        size: ByteCount(2),
        generation: "2".into(),
        mtime: None,
        mode: None,
        state: ReplicaState::Unverified,
    };
    // Not while a mount writes it.
    let report = |state| ReplicaReport { store: native, ..report(&site, x.version, state) };
    let written = async || site.catalog.written_in_place(native).await.unwrap();
    for state in [ReplicaState::Writing, ReplicaState::Unverified] {
        site.catalog.report_replicas(&site.admin, vec![report(state)]).await.remove(0).unwrap();
        let is_written = state == ReplicaState::Writing;
        assert_eq!(written().await.len(), usize::from(is_written));
        if is_written {
            let refused = site.catalog.native_changed(&site.admin, change.clone()).await;
            assert_eq!(kind(refused), ErrorKind::Conflict { version: Some(x.version) });
        }
    }
    let changed = site.catalog.native_changed(&site.admin, change.clone()).await.unwrap();
    assert_eq!((changed.entry, &changed.path), (x.entry, &path("/lab/x")));
    let open = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
    assert_eq!((open.version, open.size, open.root), (changed.version, ByteCount(2), None));
    assert_eq!((open.replicas[0].state, open.replicas[0].key.as_str()), (ReplicaState::Unverified, "lab/x"));
    assert!(site.catalog.garbage(native, 10).await.unwrap().is_empty(), "the file is the same file");
    let old = site.catalog.open_by_id(&site.admin, site.space.id, x.version).await;
    assert_eq!(kind(old), ErrorKind::NotFound, "no bytes of it are left");
    let late = site.catalog.native_changed(&site.admin, change.clone()).await;
    assert_eq!(kind(late), ErrorKind::NotFound);
    let managed = site.put("/lab/y", 1).await;
    let managed = NativeChange { store: site.store, version: managed.version, ..change };
    assert_eq!(kind(site.catalog.native_changed(&site.admin, managed).await), ErrorKind::Unsupported);
    assert!(site.catalog.fsck().await.unwrap().is_empty());
}

async fn a_file_that_is_written_in_place_stays_when_it_is_replaced(site: Site) {
    let native = site.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id;
    let put = async |at: &str, store, size| {
        let mut wanted = site.wanted(at, Condition::Any);
        wanted.store = store;
        let intent = site.prepare(wanted).await.unwrap();
        site.commit(&intent, size).await.unwrap()
    };
    let write = async |version| {
        let report = ReplicaReport { store: native, ..report(&site, version, ReplicaState::Writing) };
        site.catalog.report_replicas(&site.admin, vec![report]).await.remove(0).unwrap();
    };
    let garbage = async || site.catalog.garbage(native, 10).await.unwrap();
    let old = put("/lab/x", native, 1).await;
    write(old.version).await;
    let new = put("/lab/x", site.store, 2).await;
    assert_eq!(site.version("/lab/x").await, new.version);
    assert!(garbage().await.is_empty(), "a mount has it open");
    assert!(site.catalog.replicas_on(native, None, 10).await.unwrap().is_empty());
    let former = site.catalog.open_by_id(&site.admin, site.space.id, old.version).await;
    assert_eq!(kind(former), ErrorKind::NotFound);
    site.assert_sound().await;
    // Of one that nobody writes the bytes go, and so they do with the object.
    put("/lab/y", native, 1).await;
    put("/lab/y", site.store, 2).await;
    assert_eq!(garbage().await.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["lab/y"]);
    let z = put("/lab/z", native, 1).await;
    write(z.version).await;
    site.remove("/lab/z", false).await.unwrap();
    let keys: Vec<_> = garbage().await.into_iter().map(|one| one.key).collect();
    assert_eq!(keys, ["lab/y", "lab/z"]);
    site.assert_sound().await;
}

async fn garbage_tells_which_content_it_was(site: Site) {
    let native = site.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id;
    for (at, state) in [("/lab/x", ReplicaState::Good), ("/lab/y", ReplicaState::Writing)] {
        let intent =
            site.prepare(Prepare { store: native, ..site.wanted(at, Condition::Any) }).await.unwrap();
        let version = site.commit(&intent, 1).await.unwrap().version;
        let generation = Some(format!("of {at}"));
        let report = ReplicaReport { store: native, generation, ..report(&site, version, state) };
        site.catalog.report_replicas(&site.admin, vec![report]).await.remove(0).unwrap();
        site.remove(at, false).await.unwrap();
    }
    let garbage = site.catalog.garbage(native, 10).await.unwrap().into_iter();
    let mut told: Vec<_> = garbage.map(|one| (one.key, one.generation)).collect();
    told.sort();
    let expected = [("lab/x".into(), Some("of /lab/x".into())), ("lab/y".into(), None)];
    assert_eq!(told, expected, "what a mount is writing is of no known generation");
    site.assert_sound().await;
}

async fn removing_an_object_discards_the_copies_of_all_its_versions(site: Site) {
    let native = site.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id;
    let mut wanted = site.wanted("/lab/x", Condition::New);
    wanted.store = native;
    let intent = site.prepare(wanted).await.unwrap();
    let x = site.commit(&intent, 1).await.unwrap();
    // As replication will leave it: a second copy, on the managed store.
    let st = "(SELECT st FROM store WHERE name = 'disk')";
    let copy = format!(
        "INSERT INTO replica (sp, version, st, entry, key, state) \
         SELECT sp, version, {st}, entry, 'copy', state FROM replica WHERE version = {}",
        x.version
    );
    site.tamper(&copy).await;
    let change = NativeChange {
        space: site.space.id,
        version: x.version,
        store: native,
        size: ByteCount(2),
        generation: "2".into(),
        mtime: None,
        mode: None,
        state: ReplicaState::Unverified,
    };
    let changed = site.catalog.native_changed(&site.admin, change).await.unwrap();
    let old = site.catalog.open_object(&site.admin, &path("/lab/x"), Some(x.version)).await.unwrap();
    assert_eq!((old.replicas.len(), old.replicas[0].state), (1, ReplicaState::Stale));
    site.assert_sound().await;
    site.remove("/lab/x", false).await.unwrap();
    site.assert_sound().await;
    let records = site.catalog.journal(&site.admin, site.space.id, None, 1000).await.unwrap();
    let from = Some(FormerPlace { parent: EntryId::ROOT, name: "x".into() });
    let removed = RemovedItem { id: x.entry, versions: vec![changed.version, x.version], from };
    assert_eq!(records.last().unwrap().change().unwrap(), RecordChange::EntriesRemoved(vec![removed]));
    assert_eq!(site.collect().await.iter().map(|garbage| garbage.key.as_str()).collect::<Vec<_>>(), ["copy"]);
    let rest = site.catalog.garbage(native, 10).await.unwrap();
    assert_eq!(rest.iter().map(|garbage| garbage.version).collect::<Vec<_>>(), [changed.version]);
    site.catalog.collected(rest).await.unwrap();
    site.assert_sound().await;
}

async fn collecting_twice_is_collecting_once(site: Site) {
    site.put("/lab/x", 1).await;
    site.remove("/lab/x", false).await.unwrap();
    let garbage = site.collect().await;
    site.catalog.collected(garbage).await.unwrap();
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    assert_eq!(intent.key, "lab/x");
}

on_both!(
    states_follow_the_rules,
    a_root_is_added_once,
    the_copies_on_a_store_are_listed_by_key,
    a_native_file_that_changed_is_a_new_version,
    a_file_that_is_written_in_place_stays_when_it_is_replaced,
    garbage_tells_which_content_it_was,
    removing_an_object_discards_the_copies_of_all_its_versions,
    collecting_twice_is_collecting_once,
);
