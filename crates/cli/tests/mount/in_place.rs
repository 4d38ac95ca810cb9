//! Native stores: their files are written where they lie.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use percale_testkit::process::{Site, SiteOptions};
use serde_json::Value;

use crate::mounted::{Mounted, can_mount, run, soon, xattr};

/// A site whose store is a directory with a file in it, which is `percale:/lab/data/file`.
fn site(options: SiteOptions, folder: &Path) -> (Site, PathBuf) {
    let site = Site::start(options);
    let raw = folder.join("raw");
    fs::create_dir_all(raw.join("data")).unwrap();
    fs::write(raw.join("data/file"), vec![b'o'; 3 << 20]).unwrap();
    run(&site, &["store", "add", "disk", "--posix", raw.to_str().unwrap(), "--native"]);
    run(&site, &["space", "create", "lab", "--store", "disk"]);
    import(&site, &raw);
    (site, raw)
}

fn import(site: &Site, raw: &Path) {
    let from = format!("test:{}/data", raw.display());
    run(site, &["import", "--hash", "now", &from, "percale:/lab/data"]);
}

fn options() -> SiteOptions {
    SiteOptions::new(env!("CARGO_BIN_EXE_percale"))
}

/// The states of the copies of the file, and its root.
fn looks(site: &Site) -> (Vec<String>, Option<String>) {
    let entry: Value =
        serde_json::from_str(&run(site, &["stat", "--json", "percale:/lab/data/file"])).unwrap();
    let replicas = entry["replicas"].as_array().unwrap();
    let states = replicas.iter().map(|replica| replica["state"].as_str().unwrap().to_owned()).collect();
    (states, entry["content"]["root"].as_str().map(str::to_owned))
}

fn is(site: &Site, state: &str) -> bool {
    looks(site).0 == [state]
}

#[test]
fn a_native_file_is_written_where_it_lies() {
    if !can_mount() {
        return;
    }
    for more in [&[][..], &["--no-passthrough"]] {
        let folder = tempfile::tempdir().unwrap();
        let (site, raw) = site(options(), folder.path());
        let native = raw.join("data/file");
        let (before, (_, root)) = (fs::metadata(&native).unwrap(), looks(&site));
        let mount = Mounted::start(&site, folder.path(), more);
        let path = mount.path("data/file");
        // A reader that has it open sees what is written, as on any file system.
        let reader = File::open(&path).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"new", 1 << 20).unwrap();
        for seen in [&reader, &File::open(&native).unwrap()] {
            let mut bytes = [0; 4];
            seen.read_exact_at(&mut bytes, 1 << 20).unwrap();
            assert_eq!(&bytes, b"newo");
        }
        // Nobody else reads what is half written.
        soon("the mark", || is(&site, "writing"));
        let read = site.command(&["cat", "percale:/lab/data/file"]).output().unwrap();
        assert!(!read.status.success());
        assert!(String::from_utf8_lossy(&read.stderr).contains("being written"), "{read:?}");
        // Another look at the directory does not publish it either.
        import(&site, &raw);
        assert!(is(&site, "writing"));
        drop((file, reader));
        soon("the new version", || is(&site, "good"));
        let (states, new_root) = looks(&site);
        assert_eq!(states, ["good"]);
        assert!(new_root.is_some() && new_root != root);
        assert_eq!(fs::metadata(&native).unwrap().ino(), before.ino());
        assert_eq!(run(&site, &["cat", "percale:/lab/data/file"]).as_bytes(), fs::read(&native).unwrap());
        run(&site, &["check", "--deep", "percale:/lab"]);

        // Opened to be written, and not written.
        let version = xattr(&path, "version");
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        soon("the mark", || is(&site, "writing"));
        drop(file);
        soon("the mark to go", || is(&site, "good"));
        drop(OpenOptions::new().append(true).open(&path).unwrap());
        assert_eq!(xattr(&path, "version"), version);

        // Cut, made longer, replaced.
        fs::write(&path, "short").unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b" and long").unwrap();
        soon("it to be published", || xattr(&path, "state") == "published");
        assert_eq!(run(&site, &["cat", "percale:/lab/data/file"]), "short and long");
        assert_eq!(fs::read_to_string(&native).unwrap(), "short and long");
        fs::rename(&path, mount.path("renamed")).unwrap();
        fs::write(mount.path("renamed"), "under another name").unwrap();
        mount.stop();
        assert_eq!(run(&site, &["cat", "percale:/lab/renamed"]), "under another name");
        assert_eq!(fs::read_to_string(&native).unwrap(), "under another name");
        run(&site, &["check", "--deep", "percale:/lab"]);
    }
}

#[test]
fn what_was_written_in_place_is_published_by_the_next_mount() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut site, _) = site(options(), folder.path());
    let mount = Mounted::start(&site, folder.path(), &[]);
    assert!(mount.path("data/file").exists());
    site.kill();
    let file = OpenOptions::new().write(true).open(mount.path("data/file")).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    mount.kill();
    drop(file);
    site.restart();
    let mount = Mounted::start(&site, folder.path(), &[]);
    soon("the new version", || {
        let read = site.command(&["cat", "percale:/lab/data/file"]).output().unwrap();
        read.status.success() && read.stdout.starts_with(b"newo")
    });
    drop(mount);
    run(&site, &["check", "--deep", "percale:/lab"]);
}

#[test]
fn a_file_whose_writer_is_gone_for_good_can_be_read_again() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (site, _) = site(options().set("uploads.lease", "\"3s\""), folder.path());
    let mount = Mounted::start(&site, folder.path(), &[]);
    let file = OpenOptions::new().write(true).open(mount.path("data/file")).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    soon("the mark", || is(&site, "writing"));
    mount.kill();
    drop(file);
    soon("it to be read again", || {
        let read = site.command(&["cat", "percale:/lab/data/file"]).output().unwrap();
        read.status.success() && read.stdout.starts_with(b"newo")
    });
}

#[test]
fn a_file_that_somebody_goes_on_writing_does_not_hold_up_others() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (site, raw) = site(options(), folder.path());
    let busy = raw.join("data/busy");
    fs::write(&busy, vec![b'o'; 1 << 20]).unwrap();
    import(&site, &raw);
    let mount = Mounted::start(&site, folder.path(), &[]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Beside the mount, as a job that writes straight into the store.
        scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(&busy).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                file.write_all_at(b"busy", 0).unwrap();
            }
        });
        let published = std::panic::catch_unwind(|| {
            let write = |name: &str| OpenOptions::new().append(true).open(mount.path(name)).unwrap();
            write("data/busy").write_all(b"!").unwrap();
            write("data/file").write_all(b"behind it").unwrap();
            soon("the other one", || xattr(&mount.path("data/file"), "state") == "published");
        });
        is_over.store(true, Ordering::Relaxed);
        published.unwrap();
    });
    assert!(run(&site, &["cat", "percale:/lab/data/file"]).ends_with("behind it"));
}

#[test]
fn a_copy_is_not_being_written_for_good() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (site, raw) = site(options(), folder.path());
    let call = |arguments: &[&str]| run(&site, &[&["api"], arguments].concat());
    let mount: Value =
        serde_json::from_str(&call(&["POST", "/v1/mounts", "--data", r#"{"host": "here"}"#])).unwrap();
    let at = format!("/v1/mounts/{}", mount["id"].as_str().unwrap());
    let change = |op: &str| {
        let change =
            serde_json::json!({"op": op, "path": "/lab/data/file", "store": mount["stores"][0]["id"]});
        let body = serde_json::json!({ "changes": [change] }).to_string();
        let answer: Value =
            serde_json::from_str(&call(&["POST", &format!("{at}/changes"), "--data", &body])).unwrap();
        answer["results"][0].clone()
    };
    // What it has become is refused, since its owner has moved it away meanwhile.
    let file = raw.join("data/file");
    assert!(change("writing")["done"].is_object());
    assert!(is(&site, "writing"));
    fs::rename(&file, raw.join("away")).unwrap();
    assert!(change("written")["failed"].is_object());
    assert!(is(&site, "unverified"));
    fs::rename(raw.join("away"), &file).unwrap();
    // The mount ends, and never says that it has written it.
    assert!(change("writing")["done"].is_object());
    assert!(is(&site, "writing"));
    call(&["DELETE", &at]);
    assert!(is(&site, "unverified"));
}
