//! A space that may not have more than so much.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use percale_testkit::process::{Site, SiteOptions};

use crate::mounted::{Mounted, can_mount, run, soon, xattr};

/// All and free bytes, as `df` would tell.
fn room(mount: &Mounted) -> (u64, u64) {
    let told = Command::new("stat").args(["-f", "-c", "%b %f %S"]).arg(mount.root()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let numbers: Vec<u64> = told.split_whitespace().map(|number| number.parse().unwrap()).collect();
    (numbers[0] * numbers[2], numbers[1] * numbers[2])
}

#[test]
fn a_quota_is_the_size_of_the_disk_and_no_more_is_written() {
    if !can_mount() {
        return;
    }
    let (disk, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")));
    run(&site, &["store", "add", "disk", "--posix", disk.path().to_str().unwrap()]);
    run(&site, &["space", "create", "lab"]);
    let mount = Mounted::start(&site, target.path(), &[]);
    let (all, _) = room(&mount);
    assert!(all > 1 << 30, "without a quota it is the disk's: {all}");
    run(&site, &["space", "set", "lab", "--quota", "1MiB"]);
    soon("the quota", || room(&mount) == (1 << 20, 1 << 20));

    let content = vec![7; 600 << 10];
    fs::write(mount.path("first"), &content).unwrap();
    soon("what is used", || room(&mount) == (1 << 20, (1 << 20) - (600 << 10)));
    fs::write(mount.path("second"), &content).unwrap();
    // It is published behind the program's back, so the next ones hear of it.
    let made = AtomicUsize::new(0);
    let make = || File::create_new(mount.path(&format!("empty-{}", made.fetch_add(1, Ordering::Relaxed))));
    soon("the refusal", || make().is_err_and(|refused| refused.kind() == ErrorKind::QuotaExceeded));
    let directory = File::open(mount.root()).unwrap();
    assert_eq!(directory.sync_all().unwrap_err().kind(), ErrorKind::QuotaExceeded);
    directory.sync_all().unwrap();
    drop(directory);
    // What is there can be read, made smaller and removed; what was refused is not lost.
    assert_eq!(fs::read(mount.path("first")).unwrap(), content);
    assert_eq!(fs::read(mount.path("second")).unwrap(), content);
    assert!(!site.command(&["stat", "percale:/lab/second"]).output().unwrap().status.success());
    fs::remove_file(mount.path("first")).unwrap();
    soon("room for another", || make().is_ok());
    File::options().append(true).open(mount.path("second")).unwrap().write_all(b"!").unwrap();
    soon("what was refused", || {
        let read = site.command(&["cat", "percale:/lab/second"]).output().unwrap().stdout;
        read.len() == content.len() + 1
    });

    // What is refused again after the next start is not lost either.
    fs::write(mount.path("late"), &content).unwrap();
    soon("the refusal", || xattr(&mount.path("late"), "state") == "refused");
    mount.stop();
    Mounted::start(&site, target.path(), &[]).stop();
    run(&site, &["space", "set", "lab", "--quota", "none"]);
    let mount = Mounted::start(&site, target.path(), &[]);
    soon("what was refused twice", || {
        site.command(&["cat", "percale:/lab/late"]).output().unwrap().stdout == content
    });
    mount.stop();
}
