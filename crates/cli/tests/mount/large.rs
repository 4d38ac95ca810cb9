//! A directory of more names than a listing has in one piece.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use percale_testkit::process::{Site, SiteOptions};

use crate::mounted::{Mounted, can_mount, run, soon, token};

/// More than a page of them.
const FILES: usize = 10_050;

/// A site whose space has a collection of very many files.
fn site(folder: &Path) -> Site {
    let site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")));
    let raw = folder.join("raw");
    fs::create_dir_all(raw.join("many")).unwrap();
    for number in 0..FILES {
        File::create(raw.join(format!("many/{number:05}"))).unwrap();
    }
    fs::write(raw.join("many/00077"), "seventy-seven").unwrap();
    run(&site, &["store", "add", "disk", "--posix", raw.to_str().unwrap(), "--native"]);
    run(&site, &["space", "create", "lab", "--store", "disk"]);
    let from = format!("test:{}/many", raw.display());
    run(&site, &["import", "--hash", "never", &from, "percale:/lab/many"]);
    site
}

/// How many names the mount knows, as `statfs` tells.
fn known(mount: &Mounted) -> usize {
    let told = Command::new("stat").args(["-f", "-c", "%c"]).arg(mount.root()).output().unwrap();
    String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
}

fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[test]
fn a_name_in_a_large_directory_is_asked_for_alone() {
    if !can_mount() {
        return;
    }
    let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = site(folder.path());
    run(&site, &["mkdir", "percale:/lab/many/below"]);
    run(&site, &["ln", "00077", "percale:/lab/many/link"]);
    let mount = Mounted::start(&site, target.path(), &[]);
    let path = |name: &str| mount.path(&format!("many/{name}"));

    assert_eq!(fs::read_to_string(path("00077")).unwrap(), "seventy-seven");
    assert_eq!(fs::read_to_string(path("link")).unwrap(), "seventy-seven");
    assert_eq!(fs::metadata(path("00078")).unwrap().len(), 0);
    assert!(fs::metadata(path("below")).unwrap().is_dir());
    assert!(is_missing(&path("99999")));
    assert!(known(&mount) < 20, "{} names are known", known(&mount));

    // What changes elsewhere is seen by the next look.
    let local = folder.path().join("local");
    for (name, content) in [("99999", "new"), ("00077", "another"), ("below/deep", "deep")] {
        fs::write(&local, content).unwrap();
        let to = format!("percale:/lab/many/{name}");
        run(&site, &["put", "-q", "--overwrite", local.to_str().unwrap(), &to]);
        soon(name, || fs::read_to_string(path(name)).is_ok_and(|read| read == content));
    }
    run(&site, &["mv", "percale:/lab/many/99999", "percale:/lab/many/88888"]);
    run(&site, &["rm", "percale:/lab/many/00078"]);
    soon("the new name", || fs::read_to_string(path("88888")).is_ok_and(|read| read == "new"));
    soon("no old name", || is_missing(&path("99999")) && is_missing(&path("00078")));
    assert!(known(&mount) < 20, "{} names are known", known(&mount));

    // Names are changed one by one, too.
    fs::write(path("made"), "here").unwrap();
    assert_eq!(fs::read_to_string(path("made")).unwrap(), "here");
    File::options().append(true).open(path("00079")).unwrap().write_all(b"longer").unwrap();
    let exclusive = |name: &str| File::create_new(path(name));
    assert!(exclusive("00080").is_err_and(|error| error.kind() == ErrorKind::AlreadyExists));
    exclusive("exclusive").unwrap();
    fs::create_dir(path("folder")).unwrap();
    assert!(fs::create_dir(path("00080")).is_err_and(|error| error.kind() == ErrorKind::AlreadyExists));
    symlink("00077", path("symlink")).unwrap();
    fs::rename(path("00081"), path("moved")).unwrap();
    fs::rename(path("made"), path("00082")).unwrap();
    fs::remove_file(path("00083")).unwrap();
    fs::remove_dir(path("folder")).unwrap();
    assert!(known(&mount) < 40, "{} names are known", known(&mount));
    for gone in ["00081", "made", "00083", "folder"] {
        assert!(is_missing(&path(gone)), "{gone}");
    }
    soon("what was changed", || {
        let read = |name: &str| {
            let read = site.command(&["cat", &format!("percale:/lab/many/{name}")]).output().unwrap();
            String::from_utf8(read.stdout).unwrap()
        };
        read("00079") == "longer" && read("00082") == "here" && read("moved").is_empty()
    });

    // Who reads the directory has it listed.
    // Two were removed and one replaced; a directory, two links, and three files came.
    assert_eq!(fs::read_dir(mount.path("many")).unwrap().count(), FILES - 3 + 6);
    assert!(known(&mount) > FILES);
    assert!(is_missing(&path("00078")));
    mount.stop();
}

#[test]
fn a_large_directory_may_be_closed_to_who_mounts_it() {
    if !can_mount() {
        return;
    }
    let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = site(folder.path());
    let token = token(&site, folder.path(), "reader", "read");
    let mount = Mounted::start(&site, target.path(), &["--token-file", token.to_str().unwrap()]);
    let path = |name: &str| mount.path(&format!("many/{name}"));
    let is_refused = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    assert_eq!(fs::read_to_string(path("00077")).unwrap(), "seventy-seven");
    assert!(fs::write(path("made"), "").is_err_and(is_refused));
    assert!(fs::write(path("00077"), "").is_err_and(is_refused));
    assert!(fs::remove_file(path("00077")).is_err_and(is_refused));
    assert!(fs::rename(path("00077"), path("moved")).is_err_and(is_refused));
    assert!(known(&mount) < 20, "{} names are known", known(&mount));
    mount.stop();
}

#[test]
fn a_large_directory_is_listed_once_many_names_in_it_were_asked_for() {
    if !can_mount() {
        return;
    }
    let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = site(folder.path());
    let mount = Mounted::start(&site, target.path(), &[]);
    for number in 0..150 {
        assert!(fs::metadata(mount.path(&format!("many/{number:05}"))).is_ok());
    }
    assert!(known(&mount) > FILES, "{} names are known", known(&mount));
    assert_eq!(fs::read_dir(mount.path("many")).unwrap().count(), FILES);
    mount.stop();
}
