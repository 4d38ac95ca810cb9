//! Several mounts, several programs, several spaces.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use percale_testkit::tools::python;

use crate::mounted::{Mounted, command, run, site, soon, to_mount, token, unmount, until_listed};

#[test]
fn of_two_mounts_that_write_one_file_the_last_to_close_wins() {
    let Some((site, folder)) = to_mount(site) else { return };
    let other = tempfile::tempdir().unwrap();
    let (one, two) = (Mounted::start(&site, folder.path(), &[]), Mounted::start(&site, other.path(), &[]));
    fs::write(one.path("file"), "old, and long").unwrap();
    soon("the other to see it", || fs::read_to_string(two.path("file")).is_ok_and(|text| text.len() == 13));
    let write = |mount: &Mounted| OpenOptions::new().write(true).open(mount.path("file")).unwrap();
    let (first, second) = (write(&one), write(&two));
    first.write_all_at(b"one", 0).unwrap();
    second.write_all_at(b"two", 5).unwrap();
    first.set_len(3).unwrap();
    assert_eq!(fs::read_to_string(one.path("file")).unwrap(), "one");
    assert_eq!(fs::read_to_string(two.path("file")).unwrap(), "old, two long");
    drop(first);
    until_listed(&site, &["/lab/file 3"]);
    // Whoever still writes does not see what others published meanwhile, and replaces all of it.
    assert_eq!(fs::read_to_string(two.path("file")).unwrap(), "old, two long");
    drop(second);
    until_listed(&site, &["/lab/file 13"]);
    for mount in [&one, &two] {
        soon("both to see it", || {
            fs::read_to_string(mount.path("file")).is_ok_and(|text| text == "old, two long")
        });
    }
    one.stop();
    two.stop();
    run(&site, &["check", "--deep", "percale:/lab"]);
}

#[test]
fn a_name_that_meant_nothing_is_found_once_it_means_something() {
    let Some((site, folder)) = to_mount(site) else { return };
    let local = folder.path().join("local");
    fs::write(&local, "bytes").unwrap();
    let put = |path: &str| run(&site, &["put", local.to_str().unwrap(), &format!("percale:/lab/{path}")]);
    for path in ["from/file", "to/there", "other/file"] {
        put(path);
    }
    let mount = Mounted::start(&site, folder.path(), &[]);
    let is_there = |path: &str| mount.path(path).exists();
    // What is in each is known now, and forgotten by what others do to it: the top by what is said of the space.
    assert!(!is_there("new") && !is_there("to/new"));
    run(&site, &["space", "set", "lab", "--quota", "1GB"]);
    put("new");
    soon("it in the top", || is_there("new"));
    put("to/new");
    soon("it in a collection", || is_there("to/new"));
    assert!(!is_there("other/new"));
    // From where nothing is known of.
    run(&site, &["mv", "percale:/lab/from/file", "percale:/lab/other/moved"]);
    put("other/new");
    soon("it beside what was moved there", || is_there("other/new"));
    assert!(is_there("other/moved"));
}

/// Says which locks on a file another process has.
const LOCKS: &str = "
import fcntl, sys
file = open(sys.argv[1], 'r+b')
for name, lock in (('flock', fcntl.flock), ('fcntl', fcntl.lockf)):
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print(name, 'free')
    except BlockingIOError:
        print(name, 'held')
";

#[test]
fn programs_of_one_host_lock_each_other_out() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("file");
    let file = File::create_new(&path).unwrap();
    let locks = || {
        let output = Command::new(python()).args(["-c", LOCKS]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(locks(), "flock free\nfcntl free\n");
    file.lock().unwrap();
    assert_eq!(locks(), "flock held\nfcntl free\n");
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(locks(), "flock held\nfcntl held\n");
    drop(file);
    assert_eq!(locks(), "flock free\nfcntl free\n");
    until_listed(&site, &["/lab/file 0"]);
}

/// Mounts all spaces that somebody may see, and returns their names and what a program says that it does there.
fn all_spaces(site: &percale_testkit::process::Site, folder: &Path, more: &[&str]) -> Vec<String> {
    let at = folder.join("mnt");
    fs::create_dir_all(&at).unwrap();
    let mut process = command(site, folder, more).arg(&at).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let said = process.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).unwrap();
    let mut names: Vec<String> =
        fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    fs::write(at.join("lab/new"), "new").unwrap();
    // Spaces are made by other means, and are file systems of their own.
    assert!(fs::create_dir(at.join("made")).is_err());
    if names.iter().any(|name| name == "other") {
        let moved = fs::rename(at.join("lab/new"), at.join("other/new")).unwrap_err();
        assert_eq!(moved.raw_os_error(), Some(rustix::io::Errno::XDEV.raw_os_error()));
    }
    unmount(&at);
    assert!(process.wait().unwrap().success());
    names
}

#[test]
fn without_a_path_every_space_is_a_directory_that_its_user_may_see() {
    let Some((site, folder)) = to_mount(site) else { return };
    let other = tempfile::tempdir().unwrap();
    run(&site, &["space", "create", "other", "--store", "disk"]);
    assert_eq!(all_spaces(&site, folder.path(), &[]), ["lab", "other"]);
    until_listed(&site, &["/lab/new 3"]);
    let token = token(&site, other.path(), "writer", "write");
    assert_eq!(all_spaces(&site, other.path(), &["--token-file", token.to_str().unwrap()]), ["lab"]);
}
