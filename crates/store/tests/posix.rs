//! What only a file system can do to a store: links, full disks, other programs, accounts.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use percale_core::ByteCount;
use percale_core::ids::{Fence, StoreId};
use percale_store::posix::{Account, Layout, Ownership, Posix, PosixConfig};
use percale_store::{
    ErrorKind, Kind, ListOptions, Publish, PublishMode, ReadOptions, Result, SmallFile, StageOptions,
    StageToken, Store, StoreExt, StoreKey,
};
use tempfile::TempDir;

fn key(text: &str) -> StoreKey {
    StoreKey::parse(text).unwrap()
}

fn token(name: &str) -> StageToken {
    StageToken::new(Fence(1), name).unwrap()
}

async fn open(layout: Layout) -> (TempDir, Posix) {
    let dir = tempfile::tempdir().unwrap();
    let store = Posix::open(PosixConfig::new(dir.path().join("root"), layout).create()).await.unwrap();
    (dir, store)
}

fn root(dir: &TempDir) -> PathBuf {
    dir.path().join("root")
}

async fn get(store: &Posix, from: &str) -> Result<Bytes> {
    store.read_all(&key(from), ReadOptions::default(), ByteCount::mib(64)).await
}

async fn put(store: &Posix, to: &str, bytes: &'static [u8]) -> Result<()> {
    let name = format!("t{}", fastrand::u64(..));
    store.put_small(token(&name), key(to), Bytes::from_static(bytes)).await.map(drop)
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[tokio::test]
async fn links_never_lead_out_of_the_root() {
    for layout in [Layout::Managed, Layout::Native] {
        let (dir, store) = open(layout).await;
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), b"secret").unwrap();
        symlink(&outside, root(&dir).join("absolute")).unwrap();
        symlink("../outside", root(&dir).join("relative")).unwrap();
        symlink(outside.join("secret"), root(&dir).join("file")).unwrap();
        symlink("/proc/self/root/etc", root(&dir).join("magic")).unwrap();

        for way in ["absolute/secret", "relative/secret", "file", "magic/passwd"] {
            assert_eq!(kind(get(&store, way).await), ErrorKind::Denied, "{layout:?} read {way}");
        }
        for way in ["absolute/new", "relative/new", "relative/deep/new", "magic/new"] {
            assert_eq!(kind(put(&store, way, b"x").await), ErrorKind::Denied, "{layout:?} write {way}");
            assert_eq!(kind(store.mkdir(&key(way)).await), ErrorKind::Denied, "{layout:?} mkdir {way}");
        }
        for way in ["absolute/secret", "relative/secret"] {
            assert_eq!(kind(store.delete_one(&key(way), None).await), ErrorKind::Denied, "delete {way}");
            assert_eq!(kind(store.rename(&key(way), &key("x")).await), ErrorKind::Denied, "rename {way}");
            let copy = store.clone_to_stage(&key(way), StageOptions::new(token("copy"))).await;
            assert_eq!(kind(copy), ErrorKind::Denied, "clone {way}");
        }
        assert_eq!(kind(store.list_all(ListOptions::of(key("absolute")), 10).await), ErrorKind::Denied);
        for entry in store.list_all(ListOptions::default().recursive(), 100).await.unwrap().entries {
            assert_eq!(entry.meta.kind, Kind::Other, "{layout:?} {}", entry.key);
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "{layout:?} wrote outside");
        // The link itself may go; what it leads to stays.
        assert!(store.delete_one(&key("file"), None).await.unwrap());
        assert!(outside.join("secret").exists());
    }
}

#[tokio::test]
async fn links_inside_are_followed_only_in_native_data() {
    for layout in [Layout::Managed, Layout::Native] {
        let (dir, store) = open(layout).await;
        put(&store, "data/file", b"data").await.unwrap();
        symlink("data", root(&dir).join("link")).unwrap();
        symlink("data/file", root(&dir).join("alias")).unwrap();
        symlink("loop", root(&dir).join("loop")).unwrap();
        if layout == Layout::Managed {
            assert_eq!(kind(get(&store, "link/file").await), ErrorKind::Denied);
            assert_eq!(store.stat(&key("alias")).await.unwrap().kind, Kind::Other);
            continue;
        }
        assert_eq!(get(&store, "link/file").await.unwrap().as_ref(), b"data");
        assert_eq!(get(&store, "alias").await.unwrap().as_ref(), b"data");
        assert_eq!(store.stat(&key("alias")).await.unwrap().kind, Kind::File);
        assert_eq!(store.stat(&key("loop")).await.unwrap().kind, Kind::Other);
        let page = store.list_all(ListOptions::default().recursive(), 100).await.unwrap();
        let listed: Vec<_> = page.entries.iter().map(|entry| (entry.key.as_str(), entry.meta.kind)).collect();
        let expected = [
            ("alias", Kind::File),
            ("data", Kind::Collection),
            ("data/file", Kind::File),
            ("link", Kind::Other),
            ("loop", Kind::Other),
        ];
        assert_eq!(listed, expected);
    }
}

/// What lies below `.percale` is another's: a file of a space, or one that is not published yet.
#[tokio::test]
async fn links_never_lead_to_what_is_reserved() {
    let (dir, store) = open(Layout::Native).await;
    let hidden = ".percale/versions/1/2";
    put(&store, hidden, b"hidden").await.unwrap();
    put(&store, "data/file", b"data").await.unwrap();
    std::fs::create_dir(root(&dir).join("data/.percale")).unwrap();
    std::fs::write(root(&dir).join("data/.percale/own"), b"own").unwrap();
    for (link, target) in [
        ("file", hidden),
        ("folder", ".percale/versions"),
        ("reserved", ".percale"),
        ("whole", "."),
        ("data/up", ".."),
        ("data/over", "../.percale/versions/1/2"),
        ("data/around", "../data/../.percale/versions"),
        ("twice", "data/up"),
        ("last", "folder"),
    ] {
        symlink(target, root(&dir).join(link)).unwrap();
    }
    for way in [
        "file",
        "folder/1/2",
        "reserved/versions/1/2",
        "whole/.percale/versions/1/2",
        "data/up/.percale/versions/1/2",
        "data/over",
        "data/around/1/2",
        "twice/.percale/versions/1/2",
        "last/1/2",
        "whole/whole/last/1/2",
        "whole/file",
    ] {
        assert_eq!(kind(get(&store, way).await), ErrorKind::Denied, "read {way}");
        match store.stat(&key(way)).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Denied, "stat {way}"),
            Ok(link) => assert_eq!(link.kind, Kind::Other, "stat {way}"),
        }
        let copy = store.clone_to_stage(&key(way), StageOptions::new(token("copy"))).await;
        assert_eq!(kind(copy), ErrorKind::Denied, "clone {way}");
    }
    for way in ["folder", "reserved", "whole", "data/up", "twice", "last", "whole/.percale", "folder/1"] {
        assert_eq!(
            kind(store.list_all(ListOptions::of(key(way)), 10).await),
            ErrorKind::Denied,
            "list {way}"
        );
    }
    for way in ["folder/1/2", "whole/.percale", "data/up/.percale/versions/1/2"] {
        assert_eq!(kind(store.delete_one(&key(way), None).await), ErrorKind::Denied, "delete {way}");
        assert_eq!(kind(store.rename(&key(way), &key("x")).await), ErrorKind::Denied, "rename {way}");
    }
    for way in ["folder/new", "reserved/new", "whole/.percale/new"] {
        assert_eq!(kind(put(&store, way, b"x").await), ErrorKind::Denied, "write {way}");
    }
    let listed = store.list_all(ListOptions::default().recursive(), 100).await.unwrap();
    assert!(listed.skipped.is_empty(), "{:?}", listed.skipped);
    let files: Vec<_> =
        listed.entries.iter().filter(|entry| entry.meta.is_file()).map(|entry| entry.key.as_str()).collect();
    assert_eq!(files, ["data/.percale/own", "data/file"]);

    assert_eq!(get(&store, hidden).await.unwrap().as_ref(), b"hidden", "the server itself reads it");
    assert_eq!(get(&store, "data/.percale/own").await.unwrap().as_ref(), b"own", "only that of the root is");
    assert_eq!(get(&store, "data/up/data/file").await.unwrap().as_ref(), b"data");
}

/// While somebody swaps a directory for a link that leads out, nothing is ever read or written outside.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_swapped_in_during_operations_is_no_way_out() {
    let (dir, store) = open(Layout::Native).await;
    let (root, outside) = (root(&dir), dir.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), b"secret").unwrap();
    put(&store, "a/file", b"inside").await.unwrap();
    symlink(&outside, root.join("b")).unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, root) = (stop.clone(), std::fs::File::open(&root).unwrap());
        move || {
            let mut swaps = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let how = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&root, "a", &root, "b", how).unwrap();
                swaps += 1;
            }
            swaps
        }
    });
    let (mut inside, mut refused) = (0, 0);
    for round in 0..2000 {
        match get(&store, "a/file").await {
            Ok(bytes) => {
                assert_eq!(bytes.as_ref(), b"inside");
                inside += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error}");
                refused += 1;
            }
        }
        let _ = put(&store, &format!("a/new{round}"), b"x").await;
        let _ = store.delete_one(&key("a/file2"), None).await;
        let _ = store.mkdir(&key("a/dir/dir")).await;
    }
    stop.store(true, Ordering::Relaxed);
    let swaps = swapper.join().unwrap();
    assert!(inside > 0 && refused > 0 && swaps > 100, "{inside} inside, {refused} refused, {swaps} swaps");
    let names: Vec<_> =
        std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "something was written outside");
}

/// A directory that is removed whenever it is empty does not make publishing fail.
#[tokio::test(flavor = "multi_thread")]
async fn publishing_into_a_directory_that_comes_and_goes() {
    let (dir, store) = open(Layout::Native).await;
    let stop = Arc::new(AtomicBool::new(false));
    let remover = std::thread::spawn({
        let (stop, root) = (stop.clone(), root(&dir));
        move || {
            let mut removed = 0;
            while !stop.load(Ordering::Relaxed) {
                removed += u64::from(std::fs::remove_dir(root.join("a/b")).is_ok());
                removed += u64::from(std::fs::remove_dir(root.join("a")).is_ok());
                // Often enough to hit some tens of the rounds in between; without a pause it would win for seconds on a busy machine.
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
            removed
        }
    });
    for round in 0..300 {
        put(&store, "a/b/file", b"x").await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(store.delete_one(&key("a/b/file"), None).await.unwrap(), "round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(remover.join().unwrap() > 0, "nothing was ever removed");
}

#[tokio::test]
async fn pipes_and_devices_are_neither_read_nor_waited_for() {
    let (dir, store) = open(Layout::Native).await;
    let fifo = root(&dir).join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root(&dir).join("socket")).unwrap();
    for name in ["fifo", "socket"] {
        assert_eq!(kind(get(&store, name).await), ErrorKind::Unsupported, "{name}");
        assert_eq!(store.stat(&key(name)).await.unwrap().kind, Kind::Other);
    }
}

#[tokio::test]
async fn names_that_are_no_keys_are_reported() {
    let (dir, store) = open(Layout::Native).await;
    put(&store, "good", b"x").await.unwrap();
    std::fs::write(root(&dir).join(std::ffi::OsStr::from_bytes(b"bad\xff")), b"x").unwrap();
    let page = store.list_all(ListOptions::default(), 10).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    assert!(
        matches!(page.skipped.as_slice(), [only] if only.path.starts_with("bad") && only.kind == ErrorKind::InvalidKey),
        "{:?}",
        page.skipped
    );
}

#[tokio::test]
async fn deep_trees_are_listed_and_continued() {
    let (_dir, store) = open(Layout::Managed).await;
    // Deeper than the directories that a walk keeps open.
    let deep = vec!["d"; 150].join("/");
    put(&store, &format!("{deep}/file"), b"x").await.unwrap();
    for level in [10, 70, 140] {
        put(&store, &format!("{}/z", vec!["d"; level].join("/")), b"x").await.unwrap();
    }
    let all = store.list_all(ListOptions::default().recursive(), 1000).await.unwrap().entries;
    assert_eq!(all.len(), 150 + 4);
    let after = ListOptions::default().recursive().after(all[100].key.clone());
    assert_eq!(store.list_all(after, 1000).await.unwrap().entries, all[101..]);
    let too_long = vec!["x".repeat(250); 17].join("/");
    assert!(StoreKey::parse(&too_long).is_err());
}

#[tokio::test]
async fn a_deletion_does_not_disturb_readers_of_a_managed_store() {
    let (_dir, store) = open(Layout::Managed).await;
    let stage = store.stage(StageOptions::new(token("large"))).await.unwrap();
    for part in 0..8u64 {
        stage.write_at(part << 20, Bytes::from(vec![part as u8; 1 << 20])).await.unwrap();
    }
    let staged = stage.finish().await.unwrap();
    store.publish_one(Publish::if_absent(token("large"), key("file"), staged.identity)).await.unwrap();
    let mut stream = store.read(&key("file"), ReadOptions::default()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    assert!(store.delete_one(&key("file"), None).await.unwrap());
    let mut pieces = 1;
    while let Some(piece) = stream.next().await.unwrap() {
        assert_eq!(piece[0], pieces);
        pieces += 1;
    }
    assert_eq!(pieces, 8);
}

#[tokio::test]
async fn a_link_is_deleted_by_what_it_leads_to() {
    let (dir, store) = open(Layout::Native).await;
    std::fs::write(root(&dir).join("data"), "one").unwrap();
    for link in ["a", "b", "c"] {
        symlink("data", root(&dir).join(link)).unwrap();
    }
    let known = store.stat(&key("a")).await.unwrap().generation;
    assert!(known.is_some());
    let delete = async |link: &str| {
        let item = percale_store::Delete::key(key(link)).if_generation(known.clone());
        store.delete(vec![item]).await.unwrap().remove(0)
    };
    assert!(delete("a").await.unwrap());
    std::fs::write(root(&dir).join("data"), "two").unwrap();
    assert_eq!(kind(delete("b").await), ErrorKind::Changed);
    std::fs::remove_file(root(&dir).join("data")).unwrap();
    assert!(delete("c").await.unwrap(), "nothing is left that could be lost");
    let left: Vec<_> = std::fs::read_dir(root(&dir)).unwrap().map(|at| at.unwrap().file_name()).collect();
    assert!(
        left.contains(&"b".into()) && !left.contains(&"a".into()) && !left.contains(&"c".into()),
        "{left:?}"
    );
}

#[tokio::test]
async fn names_of_one_file_are_deleted_by_what_all_were_known_by() {
    let (dir, store) = open(Layout::Native).await;
    let at = |name: &str| root(&dir).join(name);
    std::fs::write(at("a"), "one").unwrap();
    for name in ["b", "c", "d"] {
        std::fs::hard_link(at("a"), at(name)).unwrap();
    }
    let known = store.stat(&key("a")).await.unwrap().generation;
    let delete = async |name: &str| {
        let item = percale_store::Delete::key(key(name)).if_generation(known.clone());
        store.delete(vec![item]).await.unwrap().remove(0)
    };
    assert!(delete("a").await.unwrap());
    assert!(delete("b").await.unwrap());
    // That somebody writes is not what a deletion does.
    std::fs::write(at("c"), "two").unwrap();
    assert_eq!(kind(delete("c").await), ErrorKind::Changed);
    assert_eq!(kind(delete("d").await), ErrorKind::Changed);
    assert_eq!(std::fs::read(at("d")).unwrap(), b"two");
}

#[tokio::test]
async fn a_native_file_replaced_while_it_is_read_is_noticed() {
    let (dir, store) = open(Layout::Native).await;
    std::fs::write(root(&dir).join("file"), vec![1; 8 << 20]).unwrap();
    let mut stream = store.read(&key("file"), ReadOptions::default()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let mut new = store
        .stage_small(vec![SmallFile { token: token("new"), key: None, bytes: vec![2; 8].into() }])
        .await
        .unwrap();
    let staged = new.remove(0).unwrap();
    let replace = Publish {
        token: staged.token,
        key: key("file"),
        mode: PublishMode::Replace,
        identity: staged.identity,
    };
    store.publish_one(replace).await.unwrap();
    let ended = loop {
        match stream.next().await {
            Ok(Some(piece)) => assert_eq!(piece[0], 1),
            other => break other,
        }
    };
    assert_eq!(kind(ended), ErrorKind::Changed);
    assert_eq!(get(&store, "file").await.unwrap().as_ref(), [2; 8]);
}

#[tokio::test]
async fn a_holder_whose_fence_was_discarded_cannot_publish() {
    let (_dir, store) = open(Layout::Managed).await;
    let stage = store.stage(StageOptions::new(token("one"))).await.unwrap();
    stage.write_at(0, Bytes::from_static(b"before")).await.unwrap();
    assert_eq!(store.discard_fence(Fence(1)).await.unwrap(), 1);
    // The file is still open, so its holder notices nothing until it publishes.
    stage.write_at(6, Bytes::from_static(b"after")).await.unwrap();
    let staged = stage.finish().await.unwrap();
    let publish = Publish::if_absent(token("one"), key("file"), staged.identity);
    assert_eq!(kind(store.publish_one(publish).await), ErrorKind::NotFound);
    assert!(store.list_all(ListOptions::default(), 10).await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn the_root_must_be_the_one_that_was_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let (root, id) = (dir.path().join("root"), StoreId::new());
    let config = || PosixConfig::new(&root, Layout::Managed).store_id(id);
    assert_eq!(kind(Posix::open(config()).await), ErrorKind::Unavailable, "nothing is there");
    Posix::open(config().create()).await.unwrap();
    Posix::open(config()).await.unwrap();
    Posix::open(config().create()).await.unwrap();
    let other = PosixConfig::new(&root, Layout::Managed).store_id(StoreId::new());
    assert_eq!(kind(Posix::open(other.clone()).await), ErrorKind::Unavailable, "it is another store's");
    assert_eq!(kind(Posix::open(other.create()).await), ErrorKind::Unavailable, "it was claimed twice");

    // As after a restart without the mount: the directory is there, and empty.
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::create_dir(&root).unwrap();
    let error = Posix::open(config()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_temporary(), "{error}");
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0, "something was made in a foreign directory");
    assert_eq!(
        kind(Posix::open(PosixConfig::new("relative", Layout::Managed)).await),
        ErrorKind::InvalidInput
    );
}

#[tokio::test]
async fn files_get_the_configured_mode() {
    let dir = tempfile::tempdir().unwrap();
    let group = rustix::process::getegid().as_raw();
    let ownership = Ownership::Service { group: Some(group), file_mode: Some(0o640), dir_mode: Some(0o2750) };
    let config = PosixConfig::new(dir.path(), Layout::Managed).ownership(ownership).create();
    let store = Posix::open(config).await.unwrap();
    put(&store, "a/b/file", b"x").await.unwrap();
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("a"), mode("a/b"), mode("a/b/file")), (0o2750, 0o2750, 0o640));
    assert_eq!(mode(".percale"), 0o700);
}

fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED {test}: needs to run as root");
    }
    is_root
}

#[tokio::test]
async fn mapped_accounts_get_what_their_mode_bits_say() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let config =
        PosixConfig::new(dir.path().join("root"), Layout::Native).ownership(Ownership::Mapped).create();
    if !is_root("mapped_accounts_get_what_their_mode_bits_say") {
        assert_eq!(kind(Posix::open(config).await), ErrorKind::Unsupported);
        return;
    }
    let store = Posix::open(config).await.unwrap();
    let root = root(&dir);
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o1777)).unwrap();
    let account = |uid: u32| Account { uid, gid: uid, groups: vec![4242] };
    let (alice, bob) =
        (store.with_account(account(4001)).unwrap(), store.with_account(account(4002)).unwrap());

    let large = StageOptions::new(token("large")).size(ByteCount(3));
    let stage = alice.stage(large).await.unwrap();
    stage.write_at(0, Bytes::from_static(b"abc")).await.unwrap();
    stage.write_marker(Bytes::from_static(b"m")).await.unwrap();
    let staged = stage.finish().await.unwrap();
    alice.publish_one(Publish::if_absent(token("large"), key("alice/file"), staged.identity)).await.unwrap();
    let meta = std::fs::metadata(root.join("alice/file")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4001, 4001));

    std::fs::set_permissions(root.join("alice/file"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(get(&alice, "alice/file").await.unwrap().as_ref(), b"abc");
    assert_eq!(kind(get(&bob, "alice/file").await), ErrorKind::Denied);
    assert_eq!(kind(put(&bob, "alice/other", b"x").await), ErrorKind::Denied);
    assert_eq!(kind(bob.delete_one(&key("alice/file"), None).await), ErrorKind::Denied);
    std::fs::set_permissions(root.join("alice/file"), PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(root.join("alice/file"), None, Some(4242)).unwrap();
    assert_eq!(get(&bob, "alice/file").await.unwrap().as_ref(), b"abc", "a further group counts");

    // Without an account, only what is reserved.
    assert_eq!(kind(get(&store, "alice/file").await), ErrorKind::Denied);
    assert_eq!(kind(put(&store, "new", b"x").await), ErrorKind::Denied);
    put(&store, ".percale/trees/1", b"x").await.unwrap();
    assert_eq!(get(&store, ".percale/trees/1").await.unwrap().as_ref(), b"x");
    // What bob staged and was refused, and what the store was.
    assert_eq!(
        store.discard_fence(Fence(1)).await.unwrap(),
        0,
        "what was refused was discarded by its owner"
    );
    // This process is still who it was.
    assert!(rustix::process::geteuid().is_root());
    std::fs::write(root.join("by-root"), b"x").unwrap();
    assert_eq!(std::fs::metadata(root.join("by-root")).unwrap().uid(), 0);
}

/// A file system of a few megabytes, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "percale-test"]).arg(at).status();
        assert!(done.unwrap().success(), "cannot mount a tmpfs");
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_is_usable_afterwards() {
    if !is_root("a_full_disk_is_told_as_such_and_is_usable_afterwards") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path());
    let store = Posix::open(PosixConfig::new(dir.path(), Layout::Managed).create()).await.unwrap();
    assert!(store.usage().await.unwrap().total <= ByteCount::mib(4));
    put(&store, "kept", b"kept").await.unwrap();

    // Announced: refused before the bytes come.
    let announced = store.stage(StageOptions::new(token("big")).size(ByteCount::mib(16))).await;
    assert_eq!(kind(announced), ErrorKind::NoSpace);
    assert!(store.staged(None).await.unwrap().is_empty(), "the refused file stays");

    // Not announced: refused when it is full, what was written before stays readable.
    let stage = store.stage(StageOptions::new(token("growing"))).await.unwrap();
    let mut written = 0u64;
    let error = loop {
        match stage.write_at(written << 20, Bytes::from(vec![7; 1 << 20])).await {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 8, "the disk is not full");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(written > 0);
    assert_eq!(stage.read_at(percale_core::ByteRange::at(0, 1)).await.unwrap().as_ref(), [7]);

    // Small files, markers and published files on the same full disk.
    let small = SmallFile { token: token("small"), key: None, bytes: vec![1; 100_000].into() };
    let result = store.stage_small(vec![small]).await.unwrap().remove(0);
    assert_eq!(kind(result), ErrorKind::NoSpace);
    assert_eq!(kind(stage.write_marker(vec![0; 100_000].into()).await), ErrorKind::NoSpace);
    assert_eq!(get(&store, "kept").await.unwrap().as_ref(), b"kept");

    drop(stage);
    store.discard_fence(Fence(1)).await.unwrap();
    put(&store, "after", b"after").await.unwrap();
    assert_eq!(get(&store, "after").await.unwrap().as_ref(), b"after");
    drop(store);
    drop(disk);
}

#[tokio::test]
async fn a_root_that_cannot_be_written_is_read_only() {
    if !is_root("a_root_that_cannot_be_written_is_read_only") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path());
    std::fs::write(dir.path().join("file"), b"data").unwrap();
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(dir.path()).status().unwrap();
    assert!(remount.success());
    let store = Posix::open(PosixConfig::new(dir.path(), Layout::Native)).await.unwrap();
    assert!(!store.capabilities().write.publish_if_absent);
    assert_eq!(get(&store, "file").await.unwrap().as_ref(), b"data");
    assert_eq!(kind(put(&store, "new", b"x").await), ErrorKind::Denied);
    assert_eq!(kind(store.delete_one(&key("file"), None).await), ErrorKind::Denied);
    drop(store);
    drop(disk);
}

/// Tells whether a byte of a file is in memory; nothing where the file system does not say.
fn is_in_memory(path: &Path, at: u64) -> Option<bool> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let file = std::fs::File::open(path).unwrap();
    let mut byte = [0];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    match preadv2(&file, &mut into, at, ReadWriteFlags::NOWAIT) {
        Ok(read) => Some(read == 1),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[tokio::test]
async fn what_is_read_back_comes_from_the_medium() {
    const SIZE: usize = 64 << 20;
    let (dir, store) = open(Layout::Managed).await;
    let stage = store.stage(StageOptions::new(token("one"))).await.unwrap();
    for at in 0..SIZE >> 20 {
        stage.write_at((at << 20) as u64, vec![at as u8; 1 << 20].into()).await.unwrap();
    }
    stage.finish().await.unwrap();
    let file = root(&dir).join(".percale/stage/1/one");
    let last = SIZE as u64 - 1;
    let rustix::fs::StatFs { f_type, .. } = rustix::fs::statfs(&file).unwrap();
    if f_type == 0x0102_1994 || is_in_memory(&file, last) != Some(true) {
        eprintln!("SKIPPED: the file system does not tell what is in memory, or is nowhere else");
        return;
    }
    let mut read = store.read_back(&token("one")).await.unwrap();
    // The first pieces are in memory again by now, but not the last.
    assert_eq!(is_in_memory(&file, last), Some(false));
    let mut at = 0;
    while let Some(piece) = read.next().await.unwrap() {
        assert!(piece.iter().all(|byte| *byte == at as u8), "piece {at}");
        at += 1;
    }
    assert_eq!(at, SIZE >> 20);
}

/// That of an upload of 64 TiB has 2.5 GiB.
#[tokio::test]
async fn the_marker_of_a_large_file_is_read_back() {
    let (dir, store) = open(Layout::Managed).await;
    let stage = store.stage(StageOptions::new(token("large"))).await.unwrap();
    stage.write_marker(Bytes::from_static(b"begins")).await.unwrap();
    let size = 65 << 20;
    let marker = root(&dir).join(".percale/stage/1/large.marker");
    std::fs::OpenOptions::new().write(true).open(marker).unwrap().set_len(size).unwrap();
    let read = stage.read_marker().await.unwrap().unwrap();
    assert!(read.len() as u64 == size && read.starts_with(b"begins"));
}
