//! One mount: files and directories.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use percale_testkit::process::Site;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};
use rustix::process::{Signal, kill_process};

use crate::mounted::{
    Mounted, can_mount, listing, run, site, site_far_away, soon, to_mount, until_listed, xattr,
};

#[test]
fn what_is_written_is_in_the_fabric_and_what_is_in_the_fabric_is_read() {
    if !can_mount() {
        return;
    }
    for more in [&[][..], &["--no-passthrough"]] {
        let (site, folder) = (site(), tempfile::tempdir().unwrap());
        let local = folder.path().join("local");
        fs::write(&local, "from outside").unwrap();
        run(&site, &["put", local.to_str().unwrap(), "percale:/lab/before"]);
        let mount = Mounted::start(&site, folder.path(), more);
        assert_eq!(mount.passthrough, more.is_empty());
        assert_eq!(fs::read_to_string(mount.path("before")).unwrap(), "from outside");

        fs::create_dir(mount.path("a")).unwrap();
        fs::write(mount.path("a/b"), "hello").unwrap();
        fs::write(mount.path("a/empty"), "").unwrap();
        assert_eq!(fs::read_to_string(mount.path("a/b")).unwrap(), "hello");
        until_listed(&site, &["/lab/a -", "/lab/a/b 5", "/lab/a/empty 0", "/lab/before 12"]);

        // What others do is seen without asking.
        run(&site, &["put", local.to_str().unwrap(), "percale:/lab/a/later"]);
        soon("a file to appear", || mount.path("a/later").exists());
        fs::write(&local, "other bytes").unwrap();
        run(&site, &["put", "--overwrite", local.to_str().unwrap(), "percale:/lab/before"]);
        soon("a file to change", || fs::read_to_string(mount.path("before")).unwrap() == "other bytes");
        run(&site, &["mv", "percale:/lab/a/later", "percale:/lab/moved"]);
        soon("a file to move", || mount.path("moved").exists() && !mount.path("a/later").exists());
        run(&site, &["rm", "-y", "percale:/lab/moved"]);
        soon("a file to go", || !mount.path("moved").exists());
        mount.stop();
        let wanted = ["/lab/a -", "/lab/a/b 5", "/lab/a/empty 0", "/lab/before 11"];
        assert_eq!(listing(&site), wanted);
        // What was published is right on the disk, too.
        run(&site, &["check", "--deep", "percale:/lab"]);
    }
}

#[test]
fn links_are_as_on_a_local_disk() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::create_dir(mount.path("run")).unwrap();
    fs::write(mount.path("run/x"), "one").unwrap();
    symlink("run", mount.path("latest")).unwrap();
    symlink("../run/x", mount.path("run/x2")).unwrap();
    symlink("/nowhere/at/all", mount.path("dangling")).unwrap();
    assert_eq!(fs::read_link(mount.path("latest")).unwrap().to_str(), Some("run"));
    assert_eq!(fs::read_to_string(mount.path("latest/x2")).unwrap(), "one");
    let stat = fs::symlink_metadata(mount.path("latest")).unwrap();
    assert!(stat.is_symlink() && stat.len() == 3 && stat.permissions().mode() & 0o777 == 0o777);
    assert_eq!(fs::read(mount.path("dangling")).unwrap_err().kind(), ErrorKind::NotFound);
    let there = symlink("x", mount.path("latest")).unwrap_err();
    assert_eq!(there.kind(), ErrorKind::AlreadyExists);
    let long = symlink("x".repeat(4096), mount.path("long")).unwrap_err();
    assert_eq!(long.raw_os_error(), Some(36), "ENAMETOOLONG");
    let not_utf8 = symlink(OsStr::from_bytes(b"\xff"), mount.path("bytes")).unwrap_err();
    assert_eq!(not_utf8.raw_os_error(), Some(84), "EILSEQ");

    // Written through, moved over, removed as itself.
    fs::write(mount.path("latest/x2"), "other").unwrap();
    assert_eq!(fs::read_to_string(mount.path("run/x")).unwrap(), "other");
    fs::write(mount.path("latest/new"), "new").unwrap();
    fs::rename(mount.path("dangling"), mount.path("run/x2")).unwrap();
    assert_eq!(fs::read_link(mount.path("run/x2")).unwrap().to_str(), Some("/nowhere/at/all"));
    fs::write(mount.path("file"), "in place of a link").unwrap();
    fs::rename(mount.path("file"), mount.path("run/x2")).unwrap();
    fs::remove_file(mount.path("latest")).unwrap();
    symlink("run/x", mount.path("latest")).unwrap();
    until_listed(&site, &["/lab/latest -", "/lab/run -", "/lab/run/new 3", "/lab/run/x 5", "/lab/run/x2 18"]);
    assert_eq!(run(&site, &["cat", "percale:/lab/latest"]), "other");

    // What others make of links is seen without asking.
    run(&site, &["ln", "-f", "percale:/lab/run/new", "percale:/lab/latest"]);
    soon("the link to lead elsewhere", || {
        fs::read_to_string(mount.path("latest")).unwrap_or_default() == "new"
    });
    run(&site, &["ln", "percale:/lab/run", "percale:/lab/also"]);
    soon("a link to appear", || mount.path("also/new").exists());
    run(&site, &["rm", "percale:/lab/also"]);
    soon("a link to go", || fs::symlink_metadata(mount.path("also")).is_err());
    let names: Vec<_> =
        fs::read_dir(mount.root()).unwrap().map(|entry| entry.unwrap().file_type().unwrap()).collect();
    assert_eq!((names.len(), names.iter().filter(|kind| kind.is_symlink()).count()), (2, 1));
    mount.stop();
    let mount = Mounted::start(&site, folder.path(), &[]);
    assert_eq!(fs::read_link(mount.path("latest")).unwrap().to_str(), Some("run/new"));
}

#[test]
fn files_change_as_on_a_local_disk() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("file");
    fs::write(&path, "0123456789").unwrap();
    until_listed(&site, &["/lab/file 10"]);

    // In the middle of a file that is published, and others see it at once.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"xyz", 4).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "0123xyz789");
    assert_eq!(run(&site, &["cat", "percale:/lab/file"]), "0123456789", "until it is closed");
    drop(file);
    soon("a change", || cat(&site, "percale:/lab/file").is_some_and(|text| text == "0123xyz789"));

    // Two who append never write over one another.
    let open = || OpenOptions::new().append(true).open(&path).unwrap();
    let (mut one, mut other) = (open(), open());
    for _ in 0..3 {
        one.write_all(b"A").unwrap();
        other.write_all(b"B").unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "0123xyz789ABABAB");
    drop((one, other));

    // Sizes.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4).unwrap();
    file.set_len(8).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8);
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"0123\0\0\0\0");
    until_listed(&site, &["/lab/file 8"]);
    File::create(&path).unwrap();
    until_listed(&site, &["/lab/file 0"]);

    // A file that was removed is still there for who has it open.
    fs::write(&path, "gone soon").unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"X").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "Xone soon");
    drop(file);
    until_listed(&site, &[]);

    // O_EXCL.
    OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    let again = OpenOptions::new().write(true).create_new(true).open(&path).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn who_reads_goes_on_with_what_was_there() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let (path, local) = (mount.path("file"), folder.path().join("local"));
    fs::write(&local, vec![b'o'; 3 << 20]).unwrap();
    run(&site, &["put", local.to_str().unwrap(), "percale:/lab/file"]);
    soon("a file to appear", || path.exists());
    let reader = File::open(&path).unwrap();
    // Overwritten elsewhere, and then here, while it is open.
    fs::write(&local, vec![b'n'; 3 << 20]).unwrap();
    run(&site, &["put", "--overwrite", local.to_str().unwrap(), "percale:/lab/file"]);
    soon("a change", || fs::read(&path).unwrap()[0] == b'n');
    let newer = File::open(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    for (file, byte) in [(&reader, b'o'), (&newer, b'n')] {
        let mut bytes = vec![0; 3 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|found| *found == byte));
    }
}

#[test]
fn names_change_as_on_a_local_disk() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let kind = |error: std::io::Error| error.kind();
    fs::create_dir_all(mount.path("a/b")).unwrap();
    assert_eq!(kind(fs::create_dir(mount.path("a")).unwrap_err()), ErrorKind::AlreadyExists);
    fs::write(mount.path("a/b/new"), "new").unwrap();
    fs::write(mount.path("a/old"), "old").unwrap();
    // In place of another, as editors do.
    fs::rename(mount.path("a/b/new"), mount.path("a/old")).unwrap();
    assert_eq!(fs::read_to_string(mount.path("a/old")).unwrap(), "new");
    until_listed(&site, &["/lab/a -", "/lab/a/b -", "/lab/a/old 3"]);
    assert_eq!(run(&site, &["cat", "percale:/lab/a/old"]), "new");
    // While it is written.
    let mut file = File::create(mount.path("open")).unwrap();
    fs::rename(mount.path("open"), mount.path("a/renamed")).unwrap();
    file.write_all(b"written afterwards").unwrap();
    drop(file);
    until_listed(&site, &["/lab/a -", "/lab/a/b -", "/lab/a/old 3", "/lab/a/renamed 18"]);
    // Directories.
    assert_eq!(kind(fs::remove_dir(mount.path("a")).unwrap_err()), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs::rename(mount.path("a"), mount.path("a/b/c")).unwrap_err()), ErrorKind::InvalidInput);
    fs::rename(mount.path("a"), mount.path("z")).unwrap();
    assert_eq!(fs::read_to_string(mount.path("z/old")).unwrap(), "new");
    assert!(!mount.path("a").exists());
    fs::remove_dir(mount.path("z/b")).unwrap();
    until_listed(&site, &["/lab/z -", "/lab/z/old 3", "/lab/z/renamed 18"]);
    let names: Vec<_> =
        fs::read_dir(mount.path("z")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["old", "renamed"]);
    fs::remove_dir_all(mount.path("z")).unwrap();
    until_listed(&site, &[]);
    // Names that the fabric has not.
    let raw = mount.root().join(OsStr::from_bytes(b"\xff"));
    assert_eq!(File::create(raw).unwrap_err().raw_os_error(), Some(rustix::io::Errno::ILSEQ.raw_os_error()));
    assert!(fs::hard_link(mount.path("x"), mount.path("y")).is_err());
    fs::write(mount.path("x"), "").unwrap();
    assert_eq!(
        kind(fs::hard_link(mount.path("x"), mount.path("y")).unwrap_err()),
        ErrorKind::PermissionDenied
    );
}

#[test]
fn a_store_that_the_host_does_not_see_is_used_over_the_network() {
    let Some((site, folder)) = to_mount(site_far_away) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|at| (at / 5) as u8).collect();
    fs::create_dir(mount.path("a")).unwrap();
    fs::write(mount.path("a/large"), &bytes).unwrap();
    fs::write(mount.path("a/small"), "small").unwrap();
    until_listed(&site, &["/lab/a -", "/lab/a/large 9000000", "/lab/a/small 5"]);
    soon("it to be published", || xattr(&mount.path("a/small"), "state") == "published");
    assert_eq!(fs::read(mount.path("a/large")).unwrap(), bytes);
    OpenOptions::new().append(true).open(mount.path("a/small")).unwrap().write_all(b" and more").unwrap();
    assert_eq!(fs::read_to_string(mount.path("a/small")).unwrap(), "small and more");
    fs::rename(mount.path("a/large"), mount.path("b")).unwrap();
    until_listed(&site, &["/lab/a -", "/lab/a/small 14", "/lab/b 9000000"]);
    assert_eq!(fs::read(mount.path("b")).unwrap(), bytes);
}

#[test]
fn what_is_said_of_a_file_is_said_in_the_fabric() {
    use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
    use rustix::io::Errno;
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("a.nc");
    fs::write(&path, "content").unwrap();
    let get = |name: &str| {
        let mut value = [0_u8; 64];
        let len = getxattr(&path, name, &mut value[..])?;
        Ok::<_, Errno>(String::from_utf8(value[..len].to_vec()).unwrap())
    };
    let set = |name: &str, value: &str, flags| setxattr(&path, name, value.as_bytes(), flags);
    let none = XattrFlags::empty();
    set("user.instrument", "MODIS", none).unwrap();
    set("user.level", "500", XattrFlags::CREATE).unwrap();
    set("user.code", "007", none).unwrap();
    assert_eq!(get("user.instrument"), Ok("MODIS".into()));
    assert_eq!(get("user.code"), Ok("007".into()));
    assert_eq!(get("user.none"), Err(Errno::NODATA));
    assert_eq!(set("user.level", "501", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.none", "1", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("user.percale.version", "1", none), Err(Errno::PERM));
    assert_eq!(set("trusted.x", "1", none), Err(Errno::INVAL));
    assert_eq!(set("user.x", &"x".repeat(8193), none), Err(Errno::TOOBIG));
    assert_eq!(setxattr(&path, "user.x", b"\xff", none), Err(Errno::INVAL));
    let found = run(&site, &["search", "instrument=modis level:400..600 code:007"]);
    assert_eq!(found.trim(), "percale:/lab/a.nc");
    run(&site, &["meta", "set", "percale:/lab/a.nc", "band=1", "band=2"]);
    assert_eq!(get("user.band"), Ok("1\n2".into()));
    removexattr(&path, "user.band").unwrap();
    assert_eq!(removexattr(&path, "user.band"), Err(Errno::NODATA));
    assert!(!run(&site, &["meta", "get", "percale:/lab/a.nc"]).contains("band"));
}

#[test]
fn what_is_said_of_a_file_that_is_still_written_is_told_with_it() {
    use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr};
    use rustix::io::Errno;
    for site in [site, site_far_away] {
        let Some((site, folder)) = to_mount(site) else { return };
        let mount = Mounted::start(&site, folder.path(), &[]);
        let path = mount.path("a.nc");
        // As `cp -a` and `tar --xattrs` do.
        let file = File::create(&path).unwrap();
        let set = |name: &str, value: &str, flags| fsetxattr(&file, name, value.as_bytes(), flags);
        set("user.instrument", "MODIS", XattrFlags::empty()).unwrap();
        set("user.draft", "true", XattrFlags::CREATE).unwrap();
        assert_eq!(set("user.draft", "true", XattrFlags::CREATE), Err(Errno::EXIST));
        fremovexattr(&file, "user.draft").unwrap();
        assert_eq!(fremovexattr(&file, "user.draft"), Err(Errno::NODATA));
        let mut value = [0_u8; 64];
        let len = getxattr(&path, "user.instrument", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"MODIS");
        fs::rename(&path, mount.path("b.nc")).unwrap();
        drop(file);
        mount.stop();
        assert!(run(&site, &["meta", "get", "percale:/lab/b.nc"]).contains("MODIS"));
    }
}

#[test]
fn attributes_are_kept() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("tool");
    fs::write(&path, "#!/bin/sh\necho it runs\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000_000_123_456);
    File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
    until_listed(&site, &["/lab/tool 23"]);
    soon("it to be published", || xattr(&path, "state") == "published");
    let before = fs::metadata(&path).unwrap();
    assert_eq!((before.modified().unwrap(), before.mode() & 0o777), (then, 0o755));
    assert_eq!(Command::new(&path).output().unwrap().stdout, b"it runs\n");
    assert_eq!(xattr(&path, "path"), "/lab/tool");
    assert_eq!(xattr(&path, "blake3").len(), 64);
    assert_eq!(xattr(&path, "replicas").lines().count(), 1);
    drop(mount);
    // The next mount sees the same, and the catalog's number as the inode's.
    let mount = Mounted::start(&site, folder.path(), &[]);
    let after = fs::metadata(mount.path("tool")).unwrap();
    assert_eq!((after.modified().unwrap(), after.mode() & 0o777), (then, 0o755));
    let entry: serde_json::Value =
        serde_json::from_str(&run(&site, &["stat", "--json", "percale:/lab/tool"])).unwrap();
    assert_eq!(Some(after.ino()), entry["id"].as_u64());
}

/// What the suite of `posix.rs` only asks together with access times, which are not kept.
#[test]
fn any_modification_time_is_kept_and_that_of_a_link_is_not_its_targets() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    // Before 1970, with a part of a second, past what 31 and 32 bits hold.
    const SECONDS: [i64; 4] = [-5, 100_000_000, 2_147_483_648, 4_294_967_296];
    let set = |path: &Path, seconds, flags| {
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let last_modification = Timespec { tv_sec: seconds, tv_nsec: 100_000_000 };
        rustix::fs::utimensat(CWD, path, &Timestamps { last_access, last_modification }, flags).unwrap();
    };
    let time = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.mtime(), meta.mtime_nsec())
    };
    let mut files: Vec<(String, i64)> =
        SECONDS.into_iter().cycle().zip(0..100).map(|(at, number)| (format!("file-{number}"), at)).collect();
    // One is on its way to the site when its time is set, and some of the others may be.
    let sent = mount.path("sent");
    assert!(!sent.exists());
    kill_process(site.pid(), Signal::STOP).unwrap();
    fs::write(&sent, "bytes").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    set(&sent, SECONDS[0], AtFlags::empty());
    let seen = time(&sent);
    kill_process(site.pid(), Signal::CONT).unwrap();
    assert_eq!(seen, (SECONDS[0], 100_000_000));
    for (name, at) in &files {
        let path = mount.path(name);
        fs::write(&path, "bytes").unwrap();
        set(&path, 1_000_000_000, AtFlags::empty());
        set(&path, *at, AtFlags::empty());
        assert_eq!(time(&path), (*at, 100_000_000), "{name}");
    }
    files.push(("sent".to_owned(), SECONDS[0]));
    let link = mount.path("link");
    symlink("file-0", &link).unwrap();
    set(&link, 6, AtFlags::SYMLINK_NOFOLLOW);
    let check = |mount: &Mounted, when: &str| {
        for (name, at) in &files {
            assert_eq!(time(&mount.path(name)), (*at, 100_000_000), "{name}, {when}");
        }
    };
    check(&mount, "set");
    File::open(mount.root()).unwrap().sync_all().unwrap();
    check(&mount, "published");
    // Set again, through a link, too: that makes no version.
    set(&link, 8, AtFlags::empty());
    assert_eq!(time(&mount.path("file-0")), (8, 100_000_000));
    set(&link, SECONDS[0], AtFlags::empty());
    mount.stop();
    check(&Mounted::start(&site, folder.path(), &[]), "looked at by the next mount");
}

/// What is in an object; nothing while it is being replaced.
fn cat(site: &Site, path: &str) -> Option<String> {
    let output = site.command(&["cat", path]).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_directory_takes_the_name_of_a_file_that_was_moved_or_removed() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    for name in ["moved", "removed"] {
        fs::write(mount.path(name), "before").unwrap();
    }
    until_listed(&site, &["/lab/moved 6", "/lab/removed 6"]);
    fs::rename(mount.path("moved"), mount.path("away")).unwrap();
    fs::remove_file(mount.path("removed")).unwrap();
    for name in ["moved", "removed"] {
        fs::create_dir(mount.path(name)).unwrap();
        fs::write(mount.path(name).join("file"), "after").unwrap();
    }
    until_listed(
        &site,
        &["/lab/away 6", "/lab/moved -", "/lab/moved/file 5", "/lab/removed -", "/lab/removed/file 5"],
    );
    for (name, bytes) in [("away", "before"), ("moved/file", "after"), ("removed/file", "after")] {
        assert_eq!(fs::read_to_string(mount.path(name)).unwrap(), bytes);
    }
    mount.stop();
}

#[test]
fn a_mount_that_may_only_read_changes_nothing() {
    let Some((site, folder)) = to_mount(site) else { return };
    let local = folder.path().join("local");
    fs::write(&local, "bytes").unwrap();
    run(&site, &["put", local.to_str().unwrap(), "percale:/lab/file"]);
    let mount = Mounted::start(&site, folder.path(), &["--read-only"]);
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "bytes");
    for error in [
        fs::write(mount.path("new"), "").unwrap_err(),
        fs::write(mount.path("file"), "").unwrap_err(),
        fs::create_dir(mount.path("dir")).unwrap_err(),
        fs::remove_file(mount.path("file")).unwrap_err(),
        fs::rename(mount.path("file"), mount.path("other")).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    }
}
