//! Files of native stores that are registered in place.

use percale_catalog::*;
use percale_core::access::{Caller, Permission};
use percale_core::ids::{SiteId, StoreId};
use percale_core::state::ReplicaState;
use percale_core::{ByteCount, ObjectPath, Timestamp};

use crate::site::{Site, kind, new_store, path, root, subject, user};

async fn native(site: &Site) -> StoreId {
    site.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id
}

fn file(name: &str, generation: &str) -> NativeFile {
    NativeFile {
        name: name.into(),
        size: ByteCount(generation.len() as u64),
        generation: generation.into(),
        mtime: Some(Timestamp::from_micros(7)),
        mode: None,
        root: None,
    }
}

fn folder(at: &str, key: &str, files: &[(&str, &str)]) -> NativeFolder {
    let files = files.iter().map(|(name, generation)| file(name, generation)).collect();
    NativeFolder { path: path(at), key: Some(key.into()), files }
}

fn register(caller: &Caller, store: StoreId, within: &str, folders: Vec<NativeFolder>) -> Register {
    Register { caller: caller.clone(), store, within: path(within), folders }
}

/// Registers, and returns for each file of the folders what became of it.
async fn done(site: &Site, store: StoreId, folders: Vec<NativeFolder>) -> Vec<Vec<Registered>> {
    let answer =
        site.catalog.register(None, register(&site.admin, store, "/lab/raw", folders)).await.unwrap();
    let folders = answer.folders.into_iter().map(Result::unwrap);
    folders.map(|files| files.into_iter().map(Result::unwrap).collect()).collect()
}

async fn replica(site: &Site, at: &str) -> (OpenVersion, Replica) {
    let open = site.catalog.open_object(&site.admin, &path(at), None).await.unwrap();
    let replica = open.replicas[0].clone();
    (open, replica)
}

async fn files_become_objects_and_again_nothing(site: Site) {
    use Registered::{Changed, Created, Unchanged};
    let store = native(&site).await;
    let mut hashed = folder("/lab/raw/in/deep", "data/in/deep", &[("x", "g1"), ("y", "g2")]);
    hashed.files[1].root = Some(root(1));
    let folders = vec![
        folder("/lab/raw", "data", &[("a.b", "g3")]),
        hashed.clone(),
        folder("/lab/raw/empty", "data/empty", &[]),
    ];
    let made = done(&site, store, folders.clone()).await;
    assert_eq!(made, [vec![Created], vec![Created, Created], vec![]]);
    let tree = ["/lab/raw/", "/lab/raw/a.b", "/lab/raw/empty/", "/lab/raw/in/", "/lab/raw/in/deep/"];
    let mut listed = site.tree("/lab").await;
    assert_eq!(listed.split_off(5), ["/lab/raw/in/deep/x", "/lab/raw/in/deep/y"]);
    assert_eq!(listed, tree);
    let (open, copy) = replica(&site, "/lab/raw/in/deep/x").await;
    assert_eq!((open.size, open.root, open.mtime), (ByteCount(2), None, Some(Timestamp::from_micros(7))));
    assert_eq!((copy.state, copy.key.as_str()), (ReplicaState::Unverified, "data/in/deep/x"));
    assert_eq!(copy.generation.as_deref(), Some("g1"));
    let (open, copy) = replica(&site, "/lab/raw/in/deep/y").await;
    assert_eq!((open.root, copy.state), (Some(root(1)), ReplicaState::Good));
    site.assert_sound().await;

    let before = site.catalog.position(site.space.id).await.unwrap();
    let again = done(&site, store, folders).await;
    assert_eq!(again, [vec![Unchanged], vec![Unchanged, Unchanged], vec![]]);
    assert_eq!(site.catalog.position(site.space.id).await.unwrap(), before, "no news, no record");

    hashed.files[0].generation = "g5 ".into();
    hashed.files[0].size = ByteCount(3);
    hashed.files.push(file("z", "g4"));
    assert_eq!(done(&site, store, vec![hashed]).await, [vec![Changed, Unchanged, Created]]);
    let (open, copy) = replica(&site, "/lab/raw/in/deep/x").await;
    assert_eq!((open.size, copy.generation.as_deref()), (ByteCount(3), Some("g5 ")));
    assert!(site.catalog.garbage(store, 10).await.unwrap().is_empty(), "the file is the same file");
    site.assert_sound().await;
    let records = site.catalog.journal(&site.admin, site.space.id, Some(before), 100).await.unwrap();
    assert_eq!(records.len(), 1);
    let Ok(RecordChange::ObjectsPublished(items)) = records[0].change() else { panic!("{records:?}") };
    let bases: Vec<bool> = items.iter().map(|item| item.base.is_some()).collect();
    assert_eq!(bases, [true, false]);
}

async fn a_file_follows_its_object_and_what_is_in_the_way_stays(site: Site) {
    use Registered::{Changed, Unchanged};
    let store = native(&site).await;
    let at = |files: &[(&str, &str)]| vec![folder("/lab/raw", "data", files)];
    done(&site, store, at(&[("a", "1"), ("b", "1")])).await;
    site.mkdir("/lab/raw/in").await;
    site.rename("/lab/raw/a", "/lab/raw/in/z", false).await.unwrap();
    assert_eq!(done(&site, store, at(&[("a", "1")])).await, [[Unchanged]], "it was only renamed");
    assert_eq!(done(&site, store, at(&[("a", "22")])).await, [[Changed]]);
    assert_eq!(site.stat("/lab/raw/in/z").await.unwrap().content.unwrap().size, ByteCount(2));
    let elsewhere =
        register(&site.admin, store, "/lab/other", vec![folder("/lab/other", "data", &[("b", "1")])]);
    let answer = site.catalog.register(None, elsewhere).await.unwrap();
    let refused = answer.folders.into_iter().next().unwrap().unwrap().pop().unwrap();
    assert!(refused.unwrap_err().to_string().contains("/lab/raw/b"), "it is another object's");

    site.put("/lab/raw/c", 1).await;
    site.mkdir("/lab/raw/d").await;
    let files = at(&[("a", "22"), ("c", "1"), ("d", "1"), ("e", "1")]);
    let answer = site.catalog.register(None, register(&site.admin, store, "/lab/raw", files)).await.unwrap();
    let outcomes = answer.folders.into_iter().next().unwrap().unwrap();
    let kinds: Vec<_> =
        outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.kind().clone())).collect();
    assert!(matches!(kinds[1], Err(ErrorKind::Conflict { version: Some(_) })), "{kinds:?}");
    assert_eq!((&kinds[2], &kinds[3]), (&Err(ErrorKind::IsCollection), &Ok(Registered::Created)));
    // What is being deleted is not registered again.
    site.remove("/lab/raw/e", false).await.unwrap();
    let files = at(&[("e", "1")]);
    let answer = site.catalog.register(None, register(&site.admin, store, "/lab/raw", files)).await.unwrap();
    let outcome = answer.folders.into_iter().next().unwrap().unwrap().pop().unwrap();
    assert!(matches!(kind(outcome), ErrorKind::Conflict { version: None }));
    // One that was lost and is there again may be anything.
    let (open, _) = replica(&site, "/lab/raw/b").await;
    let lost = ReplicaReport {
        space: site.space.id,
        version: open.version,
        store,
        key: None,
        state: ReplicaState::Lost,
        generation: None,
        root: None,
        is_checked: false,
    };
    site.catalog.report_replicas(&site.admin, vec![lost]).await.pop().unwrap().unwrap();
    assert_eq!(done(&site, store, at(&[("b", "1")])).await, [[Changed]]);
    assert_eq!(replica(&site, "/lab/raw/b").await.1.state, ReplicaState::Unverified);
    site.assert_sound().await;
}

async fn grants_stores_and_forms_are_checked(site: Site) {
    let store = native(&site).await;
    let ask = async |caller: &Caller, store, folders| {
        site.catalog.register(None, register(caller, store, "/lab", folders)).await
    };
    let one = |at: &str| vec![folder(at, "data", &[("a", "1")])];
    let managed = ask(&site.admin, site.store, one("/lab")).await;
    assert_eq!(kind(managed), ErrorKind::Unsupported);
    let foreign = site.add_foreign_store("far", SiteId::new()).await;
    assert!(matches!(kind(ask(&site.admin, foreign, one("/lab")).await), ErrorKind::Foreign { .. }));
    let folder_of = |answer: RegisterAnswer| answer.folders.into_iter().next().unwrap();
    let denied = folder_of(ask(&user("stranger"), store, one("/lab")).await.unwrap());
    let denied = kind(denied);
    site.mkdir("/lab/in").await;
    site.catalog
        .set_grant(&site.admin, &path("/lab/in"), subject("stranger"), Permission::Write)
        .await
        .unwrap();
    assert_ne!(denied, ErrorKind::NotFound);
    let given = folder_of(ask(&user("stranger"), store, one("/lab/in/deep")).await.unwrap()).unwrap();
    assert_eq!(*given[0].as_ref().unwrap(), Registered::Created);
    for wrong in [
        vec![folder("/lab/x", "data", &[("b", "1"), ("a", "1")])],
        vec![folder("/lab/x", "data", &[("a", "1"), ("a", "1")])],
        vec![folder("/lab/x", "data", &[("..", "1")])],
        vec![folder("/lab/x", "data/../..", &[])],
        vec![folder("/lab/x", "data", &[]), folder("/lab/y", "data", &[])],
        vec![folder("/lab/x", "data", &[]), folder("/lab/x", "other", &[])],
        vec![folder("/other/x", "data", &[])],
    ] {
        assert_eq!(
            kind(ask(&site.admin, store, wrong.clone()).await),
            ErrorKind::InvalidRequest,
            "{wrong:?}"
        );
    }
    let missing = ask(&site.admin, store, one("/lab/x")).await;
    assert!(missing.unwrap().folders[0].is_ok());
    site.put("/lab/file", 1).await;
    let through = folder_of(ask(&site.admin, store, one("/lab/file/below")).await.unwrap());
    assert_eq!(kind(through), ErrorKind::NotACollection);
    site.assert_sound().await;
}

async fn two_at_once_register_everything_once(site: Site) {
    use Registered::Created;
    let store = native(&site).await;
    let names: Vec<String> = (0..500).map(|n| format!("{n:03}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let folders = vec![folder("/lab/raw/a", "a", &files), folder("/lab/raw/b", "b", &files)];
    let second = site.second().await;
    let ask = |catalog: Catalog| {
        let files = register(&site.admin, store, "/lab/raw", folders.clone());
        async move { catalog.register(None, files).await.unwrap() }
    };
    let (left, right) = tokio::join!(ask(site.catalog.clone()), ask(second));
    let mut created = 0;
    for answer in [left, right] {
        for outcomes in answer.folders {
            created += outcomes.unwrap().into_iter().filter(|one| *one.as_ref().unwrap() == Created).count();
        }
    }
    assert_eq!(created, 1000);
    site.assert_sound().await;
}

async fn what_is_known_of_a_store_is_listed_by_key(site: Site) {
    let store = native(&site).await;
    let files = [("a", "1"), ("a-b", "1"), ("a.b", "1"), ("b", "1")];
    let folders = vec![
        folder("/lab/raw/x", "data", &files),
        folder("/lab/raw/x/a0", "data/a0", &files),
        folder("/lab/raw/y", "data-2", &files),
    ];
    done(&site, store, folders).await;
    let mut keys: Vec<String> = Vec::new();
    loop {
        let after = keys.last().map_or("data/", String::as_str);
        let page = site.catalog.known_files(store, after, "data0", 3).await.unwrap();
        let Some(first) = page.first() else { break };
        assert_eq!(
            (first.space, first.generation.as_deref(), first.is_current),
            (site.space.id, Some("1"), true)
        );
        keys.extend(page.into_iter().map(|known| known.key));
    }
    let expected =
        ["data/a", "data/a-b", "data/a.b", "data/a0/a", "data/a0/a-b", "data/a0/a.b", "data/a0/b", "data/b"];
    assert_eq!(keys, expected);
    let parent: ObjectPath = path("/lab/raw/x");
    let parent = site.catalog.stat(&site.admin, &parent).await.unwrap().id;
    let page = site.catalog.known_files(store, "data/", "data0", 1).await.unwrap();
    assert_eq!((page[0].parent, page[0].name.as_str()), (parent, "a"));
}

on_both!(
    files_become_objects_and_again_nothing,
    a_file_follows_its_object_and_what_is_in_the_way_stays,
    grants_stores_and_forms_are_checked,
    two_at_once_register_everything_once,
    what_is_known_of_a_store_is_listed_by_key,
);
