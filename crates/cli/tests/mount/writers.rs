//! Who writes a file, for how long, and what others do to it meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use percale_testkit::tools::python;
use serde_json::Value;

use crate::mounted::{Mounted, listing, run, site, site_far_away, soon, to_mount, until_listed, xattr};

/// Maps a file, closes it, writes by the mapping when it is told to, and ends.
const MAPS: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
at = libc.mmap(None, 4096, 3, 1, file, 0)
os.close(file)
print('closed', flush=True)
sys.stdin.readline()
ctypes.memmove(at, b'mapped', 6)
";

#[test]
fn what_is_written_by_a_mapping_is_published_when_the_mapping_ends() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("file");
    fs::write(&path, "before and after").unwrap();
    until_listed(&site, &["/lab/file 16"]);
    soon("it to be published", || xattr(&path, "state") == "published");
    let mut program = Command::new(python())
        .args(["-c", MAPS])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(program.stdout.as_mut().unwrap()), &mut said)
        .unwrap();
    assert_eq!(said, "closed\n");
    assert_eq!(xattr(&path, "state"), "writing", "it is mapped");
    program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    assert!(program.wait().unwrap().success());
    File::open(mount.root()).unwrap().sync_all().unwrap();
    assert_eq!(run(&site, &["cat", "percale:/lab/file"]), "mapped and after", "all before it is published");
    mount.stop();
    run(&site, &["check", "--deep", "percale:/lab"]);
}

#[test]
fn who_reads_a_file_does_not_hold_up_what_others_wrote() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("file");
    let mut writer = File::create(&path).unwrap();
    let reader = File::open(&path).unwrap();
    writer.write_all(b"written").unwrap();
    drop(writer);
    until_listed(&site, &["/lab/file 7"]);
    drop(reader);
}

#[test]
fn a_program_that_outlives_the_mount_writes_on_until_it_closes_its_file() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    if !mount.passthrough {
        eprintln!("SKIPPED: without passthrough nothing can be written when the mount is dead");
        return;
    }
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(b"half").unwrap();
    mount.kill();
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::write(mount.path("other"), "other").unwrap();
    until_listed(&site, &["/lab/other 5"]);
    // It stays as it is also if a mount that waits for it ends.
    mount.stop();
    let mount = Mounted::start(&site, folder.path(), &[]);
    file.write_all(b", and the rest").unwrap();
    assert_eq!(listing(&site), ["/lab/other 5"], "it is still written");
    drop(file);
    until_listed(&site, &["/lab/file 18", "/lab/other 5"]);
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "half, and the rest");
}

#[test]
fn a_file_that_is_opened_and_left_as_it_is_keeps_its_time() {
    let Some((site, folder)) = to_mount(site) else { return };
    for more in [&[][..], &["--no-passthrough"]] {
        let mount = Mounted::start(&site, folder.path(), more);
        let path = mount.path("file");
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        fs::write(&path, "0123456789").unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_modified(old).unwrap();
        soon("it to be published", || xattr(&path, "state") == "published");
        let version = xattr(&path, "version");
        let modified = || fs::metadata(&path).unwrap().modified().unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(modified(), old);
        drop(file);
        assert_eq!((modified(), xattr(&path, "version")), (old, version.clone()));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        drop(file);
        soon("a new version", || xattr(&path, "state") == "published" && xattr(&path, "version") != version);
        assert!(modified() > old);
        mount.stop();
    }
}

#[test]
fn a_large_file_is_changed_again_while_it_is_published() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("large");
    let mut wanted: Vec<u8> = (0..5_000_000_u32).map(|at| (at / 7) as u8).collect();
    fs::write(&path, &wanted).unwrap();
    for round in 0..10_u8 {
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&[round; 100]).unwrap();
        wanted.extend([round; 100]);
        if round == 4 {
            drop(file);
            soon("it to be published", || xattr(&path, "state") == "published");
        }
    }
    assert_eq!(fs::read(&path).unwrap(), wanted);
    until_listed(&site, &["/lab/large 5001000"]);
    mount.stop();
    run(&site, &["check", "--deep", "percale:/lab"]);
}

#[test]
fn what_is_written_in_a_directory_that_others_move_goes_with_it() {
    let Some((site, folder)) = to_mount(site) else { return };
    run(&site, &["mkdir", "-p", "percale:/lab/elsewhere/deep"]);
    let mount = Mounted::start(&site, folder.path(), &[]);
    for (name, to) in [("run1", "elsewhere"), ("run2", "elsewhere/deep")] {
        fs::create_dir(mount.path(name)).unwrap();
        let mut file = File::create(mount.path(&format!("{name}/new"))).unwrap();
        file.write_all(b"new").unwrap();
        run(&site, &["mv", &format!("percale:/lab/{name}"), &format!("percale:/lab/{to}/{name}")]);
        soon("the move to be seen", || {
            let state = xattr_of(&file, "path");
            state == format!("/lab/{to}/{name}/new") || name == "run2"
        });
        drop(file);
    }
    soon("it to be published", || listing(&site).contains(&"/lab/elsewhere/run1/new 3".to_owned()));
    assert_eq!(fs::read_to_string(mount.path("elsewhere/run1/new")).unwrap(), "new");
    // Where nothing is known of where it is now, it is kept until somebody looks there.
    assert_eq!(fs::read_dir(mount.path("elsewhere/deep")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(mount.path("elsewhere/deep/run2/new")).unwrap(), "new");
}

#[test]
fn what_was_refused_is_published_where_its_directory_is_moved_by_others() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::create_dir(mount.path("run")).unwrap();
    run(&site, &["space", "set", "lab", "--quota", "10kB"]);
    fs::write(mount.path("run/file"), [7; 20_000]).unwrap();
    soon("the refusal", || xattr(&mount.path("run/file"), "state") == "refused");
    run(&site, &["space", "set", "lab", "--quota", "1MB"]);
    assert_eq!(listing(&site), ["/lab/run -"]);
    run(&site, &["mv", "percale:/lab/run", "percale:/lab/done"]);
    until_listed(&site, &["/lab/done -", "/lab/done/file 20000"]);
    assert!(!mount.path("run").exists());
}

#[test]
fn what_is_written_in_a_directory_that_others_remove_is_kept_until_it_has_one() {
    for site in [site, site_far_away] {
        let Some((site, folder)) = to_mount(site) else { return };
        let mount = Mounted::start(&site, folder.path(), &[]);
        for name in ["again", "gone"] {
            fs::create_dir(mount.path(name)).unwrap();
            fs::write(mount.path(&format!("{name}/old")), "old").unwrap();
            soon("it to be published", || xattr(&mount.path(&format!("{name}/old")), "state") == "published");
            let mut file = File::create(mount.path(&format!("{name}/new"))).unwrap();
            file.write_all(b"new").unwrap();
            run(&site, &["rm", "-r", "-y", &format!("percale:/lab/{name}")]);
            soon("the removal to be seen", || !mount.path(&format!("{name}/old")).exists());
            drop(file);
            soon("the refusal", || xattr(&mount.path(&format!("{name}/new")), "state") == "refused");
            assert_eq!(fs::read_to_string(mount.path(&format!("{name}/new"))).unwrap(), "new");
        }
        assert_eq!(listing(&site), [""; 0]);
        run(&site, &["mkdir", "percale:/lab/again"]);
        until_listed(&site, &["/lab/again -", "/lab/again/new 3"]);
        // It is the directory that is there now.
        run(&site, &["mkdir", "percale:/lab/again/deep"]);
        soon("what others make in it", || mount.path("again/deep").exists());

        let left = fs::remove_dir(mount.path("gone")).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::DirectoryNotEmpty);
        fs::rename(mount.path("gone/new"), mount.path("kept")).unwrap();
        fs::remove_dir(mount.path("gone")).unwrap();
        assert!(!mount.path("gone").exists());
        until_listed(&site, &["/lab/again -", "/lab/again/deep -", "/lab/again/new 3", "/lab/kept 3"]);
        mount.stop();
    }
}

#[test]
fn a_name_that_was_removed_is_not_there_again_when_its_file_is_opened() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let path = mount.path("file");
    fs::write(&path, "bytes").unwrap();
    soon("it to be published", || xattr(&path, "state") == "published");
    let file = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().write(true).open(again).unwrap_err();
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
    until_listed(&site, &[]);
}

fn xattr_of(file: &File, name: &str) -> String {
    let mut value = [0_u8; 4096];
    let len = rustix::fs::fgetxattr(file, format!("user.percale.{name}"), &mut value[..]).unwrap_or(0);
    String::from_utf8(value[..len].to_vec()).unwrap()
}

#[test]
fn what_others_move_onto_a_file_that_is_being_written_comes_before_it() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    fs::write(mount.path("other"), "other").unwrap();
    until_listed(&site, &["/lab/other 5"]);
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(b"mine").unwrap();
    run(&site, &["mv", "percale:/lab/other", "percale:/lab/file"]);
    soon("the move to be seen", || !mount.path("other").exists());
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "mine");
    drop(file);
    until_listed(&site, &["/lab/file 4"]);
    assert_eq!(run(&site, &["cat", "percale:/lab/file"]), "mine");
}

#[test]
fn what_is_uploaded_has_its_conditions_and_bits() {
    let Some((site, folder)) = to_mount(site_far_away) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let local = folder.path().join("local");
    fs::write(&local, "theirs").unwrap();
    let mut new = OpenOptions::new().write(true).create_new(true).open(mount.path("new")).unwrap();
    new.write_all(b"mine").unwrap();
    run(&site, &["put", local.to_str().unwrap(), "percale:/lab/new"]);
    drop(new);
    soon("it to be refused", || xattr(&mount.path("new"), "state") == "refused");
    assert_eq!(run(&site, &["cat", "percale:/lab/new"]), "theirs");
    fs::remove_file(mount.path("new")).unwrap();

    let mut bits = OpenOptions::new();
    bits.write(true).create_new(true).mode(0o444).open(mount.path("bits")).unwrap().write_all(b"x").unwrap();
    soon("it to be published", || xattr(&mount.path("bits"), "state") == "published");
    let said: Value = serde_json::from_str(&run(&site, &["stat", "--json", "percale:/lab/bits"])).unwrap();
    assert_eq!(said["content"]["mode"], "0444");
    assert_eq!(fs::metadata(mount.path("bits")).unwrap().permissions().mode() & 0o777, 0o444);
    assert_eq!(
        OpenOptions::new().write(true).create_new(true).open(mount.path("bits")).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
}
