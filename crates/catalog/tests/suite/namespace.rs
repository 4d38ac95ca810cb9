//! Collections, renames, removals.

use percale_catalog::*;
use percale_core::{ErrorCode, FileMode, Timestamp};

use crate::site::{Site, kind, path, user};

async fn collections_are_made_with_and_without_parents(site: Site) {
    let make =
        async |at: &str, parents| site.catalog.create_collection(&site.admin, &path(at), parents).await;
    assert_eq!(kind(make("/lab/a/b", false).await), ErrorKind::NotFound);
    let made = make("/lab/a/b/c", true).await.unwrap();
    assert!(made.is_changed);
    assert_eq!(made.entry.name, "c");
    assert_eq!(site.tree("/lab").await, ["/lab/a/", "/lab/a/b/", "/lab/a/b/c/"]);
    assert_eq!(kind(make("/lab/a/b/c", false).await), ErrorKind::AlreadyExists { version: None });
    let again = make("/lab/a/b/c", true).await.unwrap();
    assert!(!again.is_changed);
    assert_eq!(again.position, made.position);
    assert_eq!(again.entry, made.entry);
    let beside = make("/lab/a/d", false).await.unwrap();
    assert_eq!(beside.position.seq, made.position.seq + 1);

    let object = site.put("/lab/a/x", 5).await;
    let there = ErrorKind::AlreadyExists { version: Some(object.version) };
    assert_eq!(kind(make("/lab/a/x", true).await), there);
    assert_eq!(kind(make("/lab/a/x/y", true).await), ErrorKind::NotACollection);
    assert_eq!(kind(make("/lab/a/x/y", false).await), ErrorKind::NotACollection);
    assert!(kind(make("/", true).await) == ErrorKind::InvalidRequest);
    assert_eq!(make("/nowhere/a", true).await.unwrap_err().code(), ErrorCode::SpaceNotFound);
    assert!(!make("/lab", true).await.unwrap().is_changed);
}

async fn renaming_moves_and_replaces(site: Site) {
    site.put("/lab/a/x", 1).await;
    let x = site.stat("/lab/a/x").await.unwrap();
    let moved = site.rename("/lab/a/x", "/lab/a/y", false).await.unwrap();
    assert_eq!((moved.entry.id, moved.entry.name.as_str()), (x.id, "y"));
    assert_eq!(kind(site.stat("/lab/a/x").await), ErrorKind::NotFound);
    assert_eq!(site.stat("/lab/a/y").await.unwrap().content, x.content);
    assert!(!site.rename("/lab/a/y", "/lab/a/y", false).await.unwrap().is_changed, "onto itself");

    let z = site.put("/lab/b/z", 2).await;
    let there = ErrorKind::AlreadyExists { version: Some(z.version) };
    assert_eq!(kind(site.rename("/lab/a/y", "/lab/b/z", false).await), there);
    site.rename("/lab/a/y", "/lab/b/z", true).await.unwrap();
    assert_eq!(site.stat("/lab/b/z").await.unwrap().id, x.id);
    let garbage = site.collect().await;
    assert_eq!(garbage.iter().map(|garbage| garbage.version).collect::<Vec<_>>(), [z.version]);

    // A whole tree moves with one row.
    site.put("/lab/tree/deep/er/file", 3).await;
    site.rename("/lab/tree", "/lab/b/tree", false).await.unwrap();
    assert!(site.stat("/lab/b/tree/deep/er/file").await.is_ok());

    site.mkdir("/lab/empty").await;
    assert_eq!(kind(site.rename("/lab/b/z", "/lab/empty", true).await), ErrorKind::IsCollection);
    assert_eq!(kind(site.rename("/lab/empty", "/lab/b/z", true).await), ErrorKind::NotACollection);
    assert_eq!(kind(site.rename("/lab/empty", "/lab/b/tree", true).await), ErrorKind::NotEmpty);
    site.rename("/lab/b/tree", "/lab/empty", true).await.unwrap();
    assert!(site.stat("/lab/empty/deep/er/file").await.is_ok());
}

async fn renames_that_cannot_be(site: Site) {
    site.mkdir("/lab/a/b").await;
    site.put("/lab/f", 1).await;
    assert_eq!(kind(site.rename("/lab/a", "/lab/a/b/c", false).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(site.rename("/lab/a", "/lab/a/c", false).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(site.rename("/lab", "/lab/a/c", false).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(site.rename("/lab/a", "/lab", true).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(site.rename("/lab/a", "/other/a", false).await), ErrorKind::Unsupported);
    assert_eq!(kind(site.rename("/lab/none", "/lab/x", false).await), ErrorKind::NotFound);
    assert_eq!(kind(site.rename("/lab/a", "/lab/no/x", false).await), ErrorKind::NotFound);
    assert_eq!(kind(site.rename("/lab/a", "/lab/f/x", false).await), ErrorKind::NotACollection);
    assert_eq!(kind(site.rename("/lab/f/x", "/lab/y", false).await), ErrorKind::NotACollection);
    assert_eq!(site.tree("/lab").await, ["/lab/a/", "/lab/a/b/", "/lab/f"], "nothing moved");
}

async fn removing(site: Site) {
    let old = site.put("/lab/a/x", 1).await;
    let new = site.put("/lab/a/x", 2).await;
    site.put("/lab/a/sub/y", 3).await;
    assert_eq!(kind(site.remove("/lab/a", false).await), ErrorKind::NotEmpty);
    let only = RemoveOptions::default().if_version(Some(old.version));
    let failed = site.catalog.remove(&site.admin, &path("/lab/a/x"), only).await;
    assert_eq!(kind(failed), ErrorKind::PreconditionFailed { version: Some(new.version) });
    let only = RemoveOptions::default().if_version(Some(new.version));
    let removed = site.catalog.remove(&site.admin, &path("/lab/a/x"), only).await.unwrap();
    assert_eq!((removed.entries, removed.is_done), (1, true));
    assert_eq!(kind(site.remove("/lab/a/x", false).await), ErrorKind::NotFound);
    assert_eq!(kind(site.remove("/lab/a/sub/y/z", false).await), ErrorKind::NotACollection);
    assert_eq!(kind(site.remove("/lab", true).await), ErrorKind::InvalidRequest);
    assert_eq!(site.remove("/lab/a", true).await.unwrap().entries, 3);
    assert!(site.names("/lab").await.is_empty());
    assert_eq!(site.collect().await.len(), 3, "the bytes of all three versions");
    assert!(site.catalog.garbage(site.store, 10).await.unwrap().is_empty());
}

async fn a_removal_in_steps_takes_the_leaves_first(site: Site) {
    let paths: Vec<String> = (0..120)
        .map(|n| format!("/lab/top/d{}/e{}/f{n:03}", n % 3, n % 7))
        .chain(["/lab/top/solo".into()])
        .collect();
    site.put_many(&paths).await;
    site.mkdir("/lab/top/empty/er").await;
    let all = site.tree("/lab").await.len() as u64;
    let mut removed = 0;
    for step in 0.. {
        assert!(step < 200, "it does not come to an end");
        let before = site.tree("/lab").await.len();
        let step = site.catalog.remove_some(&site.admin, &path("/lab/top"), 10).await.unwrap();
        assert!((1..=10).contains(&step.entries), "{step:?}");
        removed += step.entries;
        assert_eq!(before - step.entries as usize, site.tree("/lab").await.len(), "the tree stays connected");
        if step.is_done {
            break;
        }
    }
    assert_eq!(removed, all);
    let gone = site.catalog.remove_some(&site.admin, &path("/lab/top"), 10).await;
    assert_eq!(kind(gone), ErrorKind::NotFound);
    site.put("/lab/one/deep/er", 1).await;
    let mut steps = 0;
    while !site.catalog.remove_some(&site.admin, &path("/lab/one"), 1).await.unwrap().is_done {
        steps += 1;
    }
    assert_eq!(steps, 2, "one entry at a time");
}

async fn a_big_tree_is_not_removed_in_one_step(site: Site) {
    let paths: Vec<String> = (0..MAX_REMOVE + 1).map(|n| format!("/lab/big/{n}")).collect();
    site.put_many(&paths).await;
    assert_eq!(kind(site.remove("/lab/big", true).await), ErrorKind::Unsupported);
    site.remove("/lab/big/0", false).await.unwrap();
    site.remove("/lab/big/1", false).await.unwrap();
    assert_eq!(site.remove("/lab/big", true).await.unwrap().entries, MAX_REMOVE as u64);
    assert_eq!(site.collect().await.len(), MAX_REMOVE + 1);
}

async fn two_renames_cannot_close_a_circle(site: Site) {
    let second = site.second().await;
    for round in 0..20 {
        site.mkdir(&format!("/lab/{round}/a")).await;
        site.mkdir(&format!("/lab/{round}/b")).await;
        let at = |name: &str| path(&format!("/lab/{round}/{name}"));
        let (a, b, into_b, into_a) = (at("a"), at("b"), at("b/a"), at("a/b"));
        let options = RenameOptions::default();
        let (one, two) = tokio::join!(
            site.catalog.rename(&site.admin, &a, &into_b, options),
            second.rename(&site.admin, &b, &into_a, options),
        );
        assert_eq!([&one, &two].iter().filter(|outcome| outcome.is_ok()).count(), 1, "{one:?} {two:?}");
        let left = site.tree(&format!("/lab/{round}")).await;
        assert_eq!(left.len(), 2, "both are still connected to the root: {left:?}");
    }
}

async fn a_rename_may_be_repeated_by_the_id(site: Site) {
    site.mkdir("/lab/a").await;
    let (a, b) = (path("/lab/a"), path("/lab/b"));
    let id = site.catalog.stat(&site.admin, &a).await.unwrap().id;
    let options = RenameOptions::default().entry(Some(id));
    assert!(site.catalog.rename(&site.admin, &a, &b, options).await.unwrap().is_changed);
    let again = site.catalog.rename(&site.admin, &a, &b, options).await.unwrap();
    assert!(!again.is_changed);
    assert_eq!(again.entry.id, id);
    // Also when the old name was taken anew meanwhile, and not for another entry.
    site.mkdir("/lab/a").await;
    assert!(!site.catalog.rename(&site.admin, &a, &b, options).await.unwrap().is_changed);
    site.mkdir("/lab/c").await;
    let refused =
        site.catalog.rename(&site.admin, &path("/lab/c"), &path("/lab/d"), options).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::NotFound, "{refused:?}");
}

async fn changes_in_one_batch_see_each_other(site: Site) {
    // Sent at once, they are committed in few batches; each must be decided on what the one before it left.
    site.mkdir("/lab/d").await;
    let mut tasks = Vec::new();
    for n in 0..200 {
        let (catalog, admin) = (site.catalog.clone(), site.admin.clone());
        tasks.push(tokio::spawn(async move {
            let at = path(&format!("/lab/d/{}", n % 10));
            catalog.create_collection(&admin, &at, false).await.is_ok()
        }));
    }
    let mut made = 0;
    for task in tasks {
        made += usize::from(task.await.unwrap());
    }
    assert_eq!(made, 10, "each name once");
    assert_eq!(site.names("/lab/d").await.len(), 10);
    let nobody = site.catalog.create_collection(&user("nobody"), &path("/lab/d/x"), false).await;
    assert_eq!(nobody.unwrap_err().code(), ErrorCode::NotFound);
}

async fn what_is_said_of_an_object_stays_with_it(site: Site) {
    let (time, mode) = (Timestamp::from_micros(77), FileMode::of(0o750));
    let say = async |at: &str, mtime, mode| {
        site.catalog.set_attributes(&site.admin, &path(at), FileAttributes { mtime, mode }).await
    };
    let said = async |at: &str| {
        let content = site.stat(at).await.unwrap().content.unwrap();
        (content.mtime, content.mode)
    };
    let mut wanted = site.wanted("/lab/x", Condition::New);
    wanted.mode = Some(mode);
    let intent = site.prepare(wanted).await.unwrap();
    let first = site.commit(&intent, 1).await.unwrap();
    assert_eq!(said("/lab/x").await, (None, Some(mode)));
    let changed = say("/lab/x", Some(time), None).await.unwrap();
    assert!(changed.is_changed && changed.position.seq == first.position.seq + 1);
    assert_eq!(said("/lab/x").await, (Some(time), Some(mode)));
    assert_eq!(site.version("/lab/x").await, first.version, "the version stays");
    let again = say("/lab/x", Some(time), Some(mode)).await.unwrap();
    assert!(!again.is_changed && again.position == changed.position);
    // Who writes other bytes and says nothing of the bits leaves them.
    site.put("/lab/x", 2).await;
    assert_eq!(said("/lab/x").await, (None, Some(mode)));
    say("/lab/x", None, Some(FileMode::of(0))).await.unwrap();
    site.rename("/lab/x", "/lab/y", false).await.unwrap();
    assert_eq!(said("/lab/y").await, (None, Some(FileMode::of(0))));

    site.mkdir("/lab/d").await;
    assert_eq!(kind(say("/lab/d", Some(time), None).await), ErrorKind::IsCollection);
    assert_eq!(kind(say("/lab/none", Some(time), None).await), ErrorKind::NotFound);
    assert_eq!(kind(say("/lab/y/z", Some(time), None).await), ErrorKind::NotACollection);
    let attributes = FileAttributes { mtime: Some(time), mode: None };
    let nobody = site.catalog.set_attributes(&user("nobody"), &path("/lab/y"), attributes).await;
    assert_eq!(nobody.unwrap_err().code(), ErrorCode::NotFound);
    site.tamper("UPDATE entry SET mode = 4095 WHERE name = 'y'").await;
    assert_eq!(kind(site.stat("/lab/y").await), ErrorKind::Corrupt);
}

on_both!(
    collections_are_made_with_and_without_parents,
    renaming_moves_and_replaces,
    renames_that_cannot_be,
    removing,
    a_removal_in_steps_takes_the_leaves_first,
    a_big_tree_is_not_removed_in_one_step,
    two_renames_cannot_close_a_circle,
    a_rename_may_be_repeated_by_the_id,
    changes_in_one_batch_see_each_other,
    what_is_said_of_an_object_stays_with_it,
);
