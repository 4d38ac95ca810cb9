//! What goes wrong.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::tmpfs::SmallFileSystem;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

use crate::mounted::{
    Mounted, can_mount, command, listing, run, site, site_far_away, soon, to_mount, unmount, until_listed,
    with_store, xattr,
};

#[test]
fn what_was_written_survives_the_death_of_the_mount() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::write(mount.path("published"), "early").unwrap();
    until_listed(&site, &["/lab/published 5"]);
    // While the server is away nothing is published, and programs go on.
    site.kill();
    for number in 0..20 {
        fs::write(mount.path(&format!("closed{number:02}")), format!("bytes {number}")).unwrap();
    }
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(b"flushed").unwrap();
    open.sync_all().unwrap();
    let mut over = File::options().append(true).open(mount.path("published")).unwrap();
    over.write_all(b" and late").unwrap();
    mount.kill();
    drop((open, over));
    site.restart();
    assert_eq!(listing(&site), ["/lab/published 5"], "nothing half-written is seen");

    let mount = Mounted::start(&site, folder.path(), &[]);
    soon("all of it", || listing(&site).len() == 22);
    for number in 0..20 {
        let text = fs::read_to_string(mount.path(&format!("closed{number:02}"))).unwrap();
        assert_eq!(text, format!("bytes {number}"));
    }
    assert_eq!(fs::read_to_string(mount.path("open")).unwrap(), "flushed");
    soon("what was appended", || run(&site, &["cat", "percale:/lab/published"]) == "early and late");
    run(&site, &["check", "--deep", "percale:/lab"]);
}

#[test]
fn what_was_renamed_before_the_mount_died_is_published_where_it_was_last() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::create_dir_all(mount.path("a/deep")).unwrap();
    let mut open = File::create(mount.path("a/deep/open")).unwrap();
    fs::rename(mount.path("a"), mount.path("b")).unwrap();
    open.write_all(b"open").unwrap();
    fs::write(mount.path("target"), "old").unwrap();
    until_listed(&site, &["/lab/b -", "/lab/b/deep -", "/lab/target 3"]);
    site.kill();
    // The first is on its way when the second is renamed, or both are.
    fs::write(mount.path("first"), "first").unwrap();
    let mut safe = File::create(mount.path("safe")).unwrap();
    safe.write_all(b"replaced").unwrap();
    safe.sync_all().unwrap();
    drop(safe);
    std::thread::sleep(Duration::from_millis(500));
    fs::rename(mount.path("safe"), mount.path("target")).unwrap();
    mount.kill();
    drop(open);
    site.restart();
    let mount = Mounted::start(&site, folder.path(), &[]);
    let wanted = ["/lab/b -", "/lab/b/deep -", "/lab/b/deep/open 4", "/lab/first 5", "/lab/target 8"];
    until_listed(&site, &wanted);
    mount.stop();
}

#[test]
fn what_was_written_last_before_the_mount_died_is_what_is_there_in_the_end() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    assert!(!mount.path("file").exists());
    site.kill();
    let mut wanted = Vec::new();
    for number in 0..15 {
        fs::write(mount.path(&format!("other{number:02}")), "other").unwrap();
        wanted.push(format!("/lab/other{number:02} 5"));
    }
    // Each is on its way when the next is written, so it is staged anew.
    for text in ["first", "second", "third"] {
        fs::write(mount.path("file"), text).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    mount.kill();
    site.restart();
    let mount = Mounted::start(&site, folder.path(), &[]);
    wanted.insert(0, "/lab/file 5".to_owned());
    until_listed(&site, &wanted.iter().map(String::as_str).collect::<Vec<_>>());
    mount.stop();
    assert_eq!(run(&site, &["cat", "percale:/lab/file"]), "third");
}

/// Writes to a mount while its server is away, and gives it a session that is not there, as if it had not come back for long.
fn leave_without_session(mut site: Site, folder: &Path) -> Site {
    let mount = Mounted::start(&site, folder, &[]);
    assert!(!mount.path("file").exists());
    site.kill();
    fs::write(mount.path("file"), "bytes").unwrap();
    mount.kill();
    let log = folder.join("state/staged.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let begin = text.find("\"id\":\"").unwrap() + 6;
    let other = "01999999-0000-7000-8000-000000000001";
    fs::write(&log, [&text[..begin], other, &text[begin + other.len()..]].concat()).unwrap();
    site.restart();
    site
}

#[test]
fn what_lies_in_the_spool_outlives_its_session() {
    let Some((site, folder)) = to_mount(site_far_away) else { return };
    let site = leave_without_session(site, folder.path());
    let mount = Mounted::start(&site, folder.path(), &[]);
    until_listed(&site, &["/lab/file 5"]);
    mount.stop();
    let aside = fs::read_dir(folder.path().join("state")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!aside.into_iter().any(|name| name.to_str().unwrap().starts_with("staged.jsonl-")));
}

#[test]
fn what_was_staged_in_a_session_that_is_over_is_listed() {
    let Some((site, folder)) = to_mount(site) else { return };
    let site = leave_without_session(site, folder.path());
    Mounted::start(&site, folder.path(), &[]).stop();
    let aside = folder.path().join("state/staged.jsonl-01999999-0000-7000-8000-000000000001");
    assert!(fs::read_to_string(aside).unwrap().contains("/lab/file"));
    assert_eq!(listing(&site), [""; 0]);
}

#[test]
fn nothing_is_written_once_the_session_is_over() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::write(mount.path("published"), "bytes").unwrap();
    until_listed(&site, &["/lab/published 5"]);
    let mut open = File::create(mount.path("open")).unwrap();
    let log = fs::read_to_string(folder.path().join("state/staged.jsonl")).unwrap();
    let session = log.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let ended = Command::new("curl")
        .args(["--silent", "--fail", "--request", "DELETE", "--cacert"])
        .arg(site.ca_file())
        .args(["--header", &format!("Authorization: Bearer {}", site.admin_token())])
        .arg(format!("{}/v1/mounts/{session}", site.url()))
        .status();
    assert!(ended.unwrap().success());
    // It learns of that by its next change.
    soon("the mount knows", || fs::create_dir(mount.path("directory")).is_err());
    let is_refused =
        |made: std::io::Result<()>| made.unwrap_err().raw_os_error() == Some(Errno::IO.raw_os_error());
    assert!(is_refused(fs::write(mount.path("another"), "bytes")));
    assert!(is_refused(File::options().append(true).open(mount.path("published")).map(drop)));
    open.write_all(b"half").unwrap();
    assert!(is_refused(open.sync_all()), "it is not kept");
    assert_eq!(fs::read_to_string(mount.path("published")).unwrap(), "bytes");
}

#[test]
fn a_state_directory_has_one_mount() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(b"half").unwrap();
    let second = command(&site, folder.path(), &[]).arg("percale:/lab").arg(mount.root()).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another mount"), "{said}");
    fs::write(mount.path("closed"), "closed").unwrap();
    until_listed(&site, &["/lab/closed 6"]);
    open.write_all(b", whole").unwrap();
    drop(open);
    until_listed(&site, &["/lab/closed 6", "/lab/open 11"]);
}

#[test]
fn what_lies_on_a_store_that_is_not_seen_for_a_while_is_published_later() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    assert!(!mount.path("file").exists());
    site.kill();
    fs::write(mount.path("file"), "bytes").unwrap();
    mount.kill();
    site.restart();
    let (store, away) = (site.directory().join("store"), site.directory().join("away"));
    fs::rename(&store, &away).unwrap();
    Mounted::start(&site, folder.path(), &[]).stop();
    fs::rename(&away, &store).unwrap();
    let mount = Mounted::start(&site, folder.path(), &[]);
    until_listed(&site, &["/lab/file 5"]);
    mount.stop();
}

/// Makes `dir/a`, and waits until the site has it.
fn publish_one(site: &Site, mount: &Mounted) {
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/a"), "one").unwrap();
    until_listed(site, &["/lab/dir -", "/lab/dir/a 3"]);
}

#[test]
fn programs_go_on_while_the_server_is_away() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    publish_one(&site, &mount);
    site.kill();
    let began = Instant::now();
    fs::write(mount.path("dir/b"), "two").unwrap();
    fs::write(mount.path("dir/a"), "three").unwrap();
    fs::rename(mount.path("dir/b"), mount.path("dir/c")).unwrap();
    assert_eq!(fs::read_to_string(mount.path("dir/a")).unwrap(), "three");
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 2);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    site.restart();
    until_listed(&site, &["/lab/dir -", "/lab/dir/a 5", "/lab/dir/c 3"]);
}

/// What a program does to files that were closed a moment before, and what is there in the end.
fn go_on(mount: &Mounted) {
    let file = |name: &str| mount.path(name);
    fs::write(file("again"), "written again").unwrap();
    File::options().append(true).open(file("more")).unwrap().write_all(b" and more").unwrap();
    assert_eq!(fs::read_to_string(file("read")).unwrap(), "read: first");
    // Opened to be written, and left as it is.
    drop(File::options().append(true).open(file("same")).unwrap());
    fs::rename(file("moved"), file("here")).unwrap();
    File::options().append(true).open(file("both")).unwrap().write_all(b", moved").unwrap();
    fs::rename(file("both"), file("there")).unwrap();
    fs::remove_file(file("gone")).unwrap();
    fs::write(file("lost"), "written again and lost").unwrap();
    fs::remove_file(file("lost")).unwrap();
    File::options().write(true).open(file("old")).unwrap().set_modified(long_ago()).unwrap();
    fs::write(file("twice"), "second").unwrap();
    fs::write(file("twice"), "third").unwrap();
}

fn long_ago() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

const CLOSED: [&str; 10] = ["again", "both", "gone", "lost", "moved", "more", "old", "read", "same", "twice"];
const IN_THE_END: [(&str, &str); 8] = [
    ("again", "written again"),
    ("here", "moved: first"),
    ("more", "more: first and more"),
    ("old", "old: first"),
    ("read", "read: first"),
    ("same", "same: first"),
    ("there", "both: first, moved"),
    ("twice", "third"),
];

#[test]
fn programs_go_on_with_files_whose_server_died_while_it_published_them() {
    if !can_mount() {
        return;
    }
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: failpoints are only in builds with debug assertions");
        return;
    }
    for step in
        ["publish.after_stage", "publish.after_prepare", "publish.after_rename", "publish.after_commit"]
    {
        let (mut site, folder) = (site(), tempfile::tempdir().unwrap());
        let mount = Mounted::start(&site, folder.path(), &[]);
        fs::write(mount.path("before"), "one").unwrap();
        until_listed(&site, &["/lab/before 3"]);
        assert!(site.stop().success());
        site.set_environment(vec![("PERCALE_FAILPOINT".into(), step.into())]);
        site.restart();
        // While the removal is on its way, the rest waits, and goes with one request.
        rustix::process::kill_process(site.pid(), Signal::STOP).unwrap();
        fs::remove_file(mount.path("before")).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        for name in CLOSED {
            fs::write(mount.path(name), format!("{name}: first")).unwrap();
        }
        rustix::process::kill_process(site.pid(), Signal::CONT).unwrap();
        assert!(!site.wait_for_end().success(), "{step}");
        let began = Instant::now();
        go_on(&mount);
        let names: BTreeSet<String> = fs::read_dir(mount.root())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.iter().eq(IN_THE_END.iter().map(|(name, _)| name)), "{step}: {names:?}");
        for (name, text) in IN_THE_END {
            assert_eq!(fs::read_to_string(mount.path(name)).unwrap(), text, "{step}");
            assert_eq!(fs::metadata(mount.path(name)).unwrap().len(), text.len() as u64, "{step}: {name}");
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{step}: {:?}", began.elapsed());

        site.set_environment(Vec::new());
        site.restart();
        let wanted = IN_THE_END.map(|(name, text)| format!("/lab/{name} {}", text.len()));
        until_listed(&site, &wanted.each_ref().map(String::as_str));
        soon("the time of one", || {
            fs::metadata(mount.path("old")).unwrap().modified().unwrap() == long_ago()
        });
        mount.stop();
        for (name, text) in IN_THE_END {
            assert_eq!(run(&site, &["cat", &format!("percale:/lab/{name}")]), text, "{step}: {name}");
        }
        let old: Value = serde_json::from_str(&run(&site, &["stat", "--json", "percale:/lab/old"])).unwrap();
        assert_eq!(old["content"]["mtime"], "2001-09-09T01:46:40Z", "{step}");
        run(&site, &["check", "--deep", "percale:/lab"]);
    }
}

#[test]
fn names_that_are_known_are_known_while_the_server_is_away() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    publish_one(&site, &mount);
    site.kill();
    // The journal is given up after 5 s, and the kernel asks again each second then.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(9) {
        let asked = Instant::now();
        assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(mount.path("dir/a")).unwrap(), "one");
        assert!(!mount.path("dir/b").exists());
        assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(250));
    }
    site.restart();
    let other = folder.path().join("other");
    fs::write(&other, "other").unwrap();
    run(&site, &["put", other.to_str().unwrap(), "percale:/lab/dir/b"]);
    soon("what was put elsewhere", || mount.path("dir/b").exists());
}

#[test]
fn a_full_disk_is_told_and_what_fits_goes_on() {
    if !can_mount() {
        return;
    }
    let Some(disk) = SmallFileSystem::mount(96 << 20) else { return };
    let site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")));
    let store = disk.path().join("store");
    let (site, folder) =
        (with_store(site, &["--posix", store.to_str().unwrap()]), tempfile::tempdir().unwrap());
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::write(mount.path("small"), "fits").unwrap();
    let error = fs::write(mount.path("large"), vec![1; 128 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    fs::remove_file(mount.path("large")).unwrap();
    soon("room", || fs::write(mount.path("other"), "fits, too").is_ok());
    until_listed(&site, &["/lab/other 9", "/lab/small 4"]);
}

#[test]
fn who_has_a_file_open_finishes_it_when_the_mount_is_told_to_end() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mut mount = Mounted::start(&site, folder.path(), &[]);
    fs::write(mount.path("before"), "closed").unwrap();
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(b"begun").unwrap();
    mount.terminate();
    soon("the mount to be taken off", || !mount.path("open").exists());
    assert!(mount.is_running(), "somebody still writes");
    open.write_all(b" and ended").unwrap();
    drop(open);
    mount.wait();
    assert_eq!(listing(&site), ["/lab/before 6", "/lab/open 15"]);
    assert_eq!(run(&site, &["cat", "percale:/lab/open"]), "begun and ended");
}

#[test]
fn a_mount_that_somebody_else_takes_off_publishes_what_was_written() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    for number in 0..50 {
        fs::write(mount.path(&format!("file{number:02}")), "bytes").unwrap();
    }
    unmount(&mount.root());
    mount.wait();
    assert_eq!(listing(&site).len(), 50);
}

#[test]
fn what_came_after_a_change_whose_answer_was_lost_stays() {
    if !can_mount() {
        return;
    }
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: failpoints are only in builds with debug assertions");
        return;
    }
    for request in 1..=3 {
        let (mut site, folder) = (site(), tempfile::tempdir().unwrap());
        let mount = Mounted::start(&site, folder.path(), &[]);
        for name in ["file", "log", "tmp"] {
            fs::write(mount.path(name), format!("old {name}")).unwrap();
        }
        until_listed(&site, &["/lab/file 8", "/lab/log 7", "/lab/tmp 7"]);
        assert!(site.stop().success());
        let failpoint = format!("mount.before_answer:{request}");
        site.set_environment(vec![("PERCALE_FAILPOINT".into(), failpoint)]);
        site.restart();
        // While the removal is on its way the rest waits.
        rustix::process::kill_process(site.pid(), Signal::STOP).unwrap();
        fs::remove_file(mount.path("file")).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        fs::write(mount.path("file"), "new").unwrap();
        fs::rename(mount.path("log"), mount.path("log.1")).unwrap();
        fs::write(mount.path("log"), "second").unwrap();
        fs::rename(mount.path("tmp"), mount.path("moved")).unwrap();
        fs::remove_file(mount.path("moved")).unwrap();
        fs::write(mount.path("moved"), "again").unwrap();
        rustix::process::kill_process(site.pid(), Signal::CONT).unwrap();
        assert!(!site.wait_for_end().success(), "{request}");
        site.set_environment(Vec::new());
        site.restart();
        until_listed(&site, &["/lab/file 3", "/lab/log 6", "/lab/log.1 7", "/lab/moved 5"]);
        for (name, text) in [("file", "new"), ("log", "second"), ("log.1", "old log"), ("moved", "again")] {
            assert_eq!(run(&site, &["cat", &format!("percale:/lab/{name}")]), text, "{request}: {name}");
        }
        mount.stop();
        assert_eq!(listing(&site).len(), 4);
    }
}

#[test]
fn a_time_that_is_set_on_a_file_on_its_way_stays_where_that_is_refused() {
    let Some((site, folder)) = to_mount(site) else { return };
    run(&site, &["space", "set", "lab", "--quota", "1KiB"]);
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("file");
    assert!(!path.exists());
    rustix::process::kill_process(site.pid(), Signal::STOP).unwrap();
    fs::write(&path, [7; 2048]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let at = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: at, last_modification: at };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    rustix::process::kill_process(site.pid(), Signal::CONT).unwrap();
    soon("the refusal", || xattr(&path, "state") == "refused");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago());
    // And it is what is published in the end.
    run(&site, &["space", "set", "lab", "--quota", "none"]);
    fs::rename(&path, mount.path("moved")).unwrap();
    until_listed(&site, &["/lab/moved 2048"]);
    let moved: Value = serde_json::from_str(&run(&site, &["stat", "--json", "percale:/lab/moved"])).unwrap();
    assert_eq!(moved["content"]["mtime"], "2001-09-09T01:46:40Z");
}

#[test]
fn what_lost_its_name_while_it_was_open_does_not_come_back() {
    for site in [site, site_far_away] {
        let Some((site, folder)) = to_mount(site) else { return };
        let mount = Mounted::start(&site, folder.path(), &[]);
        fs::write(mount.path("target"), "old").unwrap();
        soon("it to be published", || xattr(&mount.path("target"), "state") == "published");
        let mut replaced = File::options().append(true).open(mount.path("target")).unwrap();
        replaced.write_all(b" and stale").unwrap();
        fs::write(mount.path("new"), "new one").unwrap();
        fs::rename(mount.path("new"), mount.path("target")).unwrap();
        let mut removed = File::create(mount.path("removed")).unwrap();
        removed.write_all(b"stale").unwrap();
        fs::remove_file(mount.path("removed")).unwrap();
        until_listed(&site, &["/lab/target 7"]);
        mount.kill();
        drop((replaced, removed));
        let mount = Mounted::start(&site, folder.path(), &[]);
        fs::write(mount.path("other"), "other").unwrap();
        until_listed(&site, &["/lab/other 5", "/lab/target 7"]);
        mount.stop();
        assert_eq!(listing(&site), ["/lab/other 5", "/lab/target 7"]);
        assert_eq!(run(&site, &["cat", "percale:/lab/target"]), "new one");
    }
}

#[test]
fn who_syncs_a_directory_is_told_that_the_site_is_away() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    publish_one(&site, &mount);
    let directory = File::open(mount.path("dir")).unwrap();
    directory.sync_all().unwrap();
    site.kill();
    fs::write(mount.path("dir/b"), "two").unwrap();
    let told = directory.sync_all().unwrap_err();
    assert_eq!(told.raw_os_error(), Some(rustix::io::Errno::HOSTDOWN.raw_os_error()));
    site.restart();
    directory.sync_all().unwrap();
    assert_eq!(listing(&site), ["/lab/dir -", "/lab/dir/a 3", "/lab/dir/b 3"]);
}

#[test]
fn a_mount_whose_session_is_over_says_so_instead_of_losing_names() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    publish_one(&site, &mount);
    run(&site, &["mkdir", "percale:/lab/dir/deep"]);
    soon("what others make", || mount.path("dir/deep").exists());
    let log = fs::read_to_string(folder.path().join("state/staged.jsonl")).unwrap();
    let session: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    let session = session["session"]["id"].as_str().unwrap().to_owned();
    run(&site, &["api", "DELETE", &format!("/v1/mounts/{session}")]);
    let told = fs::read_dir(mount.path("dir/deep")).unwrap_err();
    assert_eq!(told.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(fs::read_to_string(mount.path("dir/a")).unwrap(), "one", "what is known stays");
}
