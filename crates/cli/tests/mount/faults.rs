//! What goes wrong.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, Instant};

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::tmpfs::SmallFileSystem;

use crate::mounted::{
    Mounted, can_mount, listing, run, site, soon, to_mount, unmount, until_listed, with_store,
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
    site.spawn();
    site.wait_until_ready();
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
fn programs_go_on_while_the_server_is_away() {
    let Some((mut site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/a"), "one").unwrap();
    until_listed(&site, &["/lab/dir -", "/lab/dir/a 3"]);
    site.kill();
    let began = Instant::now();
    fs::write(mount.path("dir/b"), "two").unwrap();
    fs::write(mount.path("dir/a"), "three").unwrap();
    fs::rename(mount.path("dir/b"), mount.path("dir/c")).unwrap();
    assert_eq!(fs::read_to_string(mount.path("dir/a")).unwrap(), "three");
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 2);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    site.spawn();
    site.wait_until_ready();
    until_listed(&site, &["/lab/dir -", "/lab/dir/a 5", "/lab/dir/c 3"]);
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
