//! Put and get: whole trees, large files, resumed, refused, dry.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;

use percale_testkit::data::content;
use rustix::process::{Signal, kill_process};

use crate::lab::{Lab, finished, groups_of, tree};

/// A file that takes long enough to be interrupted.
const LARGE: u64 = 512 << 20;

#[test]
fn a_tree_comes_back_byte_for_byte() {
    let lab = Lab::new();
    for (name, len) in [
        ("d/empty", 0),
        ("d/small", 10),
        ("d/one-group", 1 << 20),
        ("d/two-groups", (1 << 20) + 1),
        ("d/deep/er/just-small", (8 << 20) - 1),
        ("d/deep/large", (8 << 20) + 7),
        ("d/deep/larger", 40 << 20),
        ("d/ä b#?%.nc", 3000),
    ] {
        lab.write(name, &content::bytes(len as u64, len));
    }
    for number in 0..1200 {
        lab.write(&format!("d/many/{number:04}"), &content::bytes(number, 100 + number as usize));
    }
    fs::create_dir(lab.path("d/hollow")).unwrap();
    let put = lab.line("put -r --json d percale:/lab/").ok().json_lines();
    let sum = &put.last().unwrap()["summary"];
    assert_eq!((sum["done"].as_u64(), sum["failed"].as_u64()), (Some(1208), Some(0)));
    lab.line("get -r percale:/lab/d back").ok();
    assert_eq!(tree(&lab.path("d")), tree(&lab.path("back/d")));
    let mtime = |path: &str| fs::metadata(lab.path(path)).unwrap().modified().unwrap();
    let apart = mtime("d/deep/large").duration_since(mtime("back/d/deep/large")).unwrap();
    assert!(apart.as_micros() <= 1, "the time is kept, to the microsecond");

    // Again: nothing is sent, in either direction, and one may be told so.
    let again = lab.line("put -r --json d percale:/lab/").ok().json_lines();
    assert_eq!(again.last().unwrap()["summary"]["same"], 1208);
    lab.line("put -r --error-on-noop d percale:/lab/").code(9);
    lab.line("get -r --error-on-noop percale:/lab/d back").code(9);

    // What is in it, rather than it.
    lab.line("get -r percale:/lab/d/ flat").ok();
    assert_eq!(tree(&lab.path("d")), tree(&lab.path("flat")));
}

#[test]
fn who_may_execute_is_kept() {
    let lab = Lab::new();
    let mode = |path: &str| fs::metadata(lab.path(path)).unwrap().permissions().mode() & 0o777;
    for (name, mode) in [("d/run.sh", 0o755), ("d/private", 0o600), ("d/large.bin", 0o744)] {
        let len = if name.ends_with("bin") { 9 << 20 } else { 20 };
        lab.write(name, &content::bytes(len as u64, len));
        fs::set_permissions(lab.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    lab.line("put -r d percale:/lab/").ok();
    let told = lab.line("stat --json percale:/lab/d/run.sh").ok().json();
    assert_eq!(told["content"]["mode"], "0755");
    lab.line("get -r percale:/lab/d back").ok();
    for name in ["run.sh", "private", "large.bin"] {
        let (there, back) = (mode(&format!("d/{name}")), mode(&format!("back/d/{name}")));
        // The user's mask may take something away from others.
        assert_eq!(there & 0o700, back & 0o700, "{name}: {back:o}");
        assert_eq!(back & !there, 0, "{name}: {back:o}");
    }
    // Other bytes alone change nothing of it.
    fs::set_permissions(lab.path("d/run.sh"), fs::Permissions::from_mode(0o700)).unwrap();
    lab.write("d/run.sh", b"other");
    lab.line("put --overwrite d/run.sh percale:/lab/d/run.sh").ok();
    assert_eq!(lab.line("stat --json percale:/lab/d/run.sh").ok().json()["content"]["mode"], "0700");
}

#[test]
fn what_is_there_is_only_replaced_when_asked() {
    let lab = Lab::new();
    lab.write("a", b"one");
    lab.line("put a percale:/lab/a").ok();
    lab.line("put a percale:/lab/a").ok();
    lab.write("a", b"two");
    let refused = lab.line("put --json a percale:/lab/a").code(8);
    assert_eq!(refused.json_lines()[0]["error"]["code"], "already_exists");
    assert_eq!(lab.line("cat percale:/lab/a").ok().out, "one");
    lab.line("put --overwrite a percale:/lab/a").ok();
    assert_eq!(lab.line("cat percale:/lab/a").ok().out, "two");

    lab.write("b", b"mine");
    lab.line("get percale:/lab/a b").code(8);
    assert_eq!(fs::read(lab.path("b")).unwrap(), b"mine");
    lab.line("get --overwrite percale:/lab/a b").ok();
    assert_eq!(fs::read(lab.path("b")).unwrap(), b"two");

    lab.line("put . percale:/lab/").code(8);
    lab.line("put missing percale:/lab/").code(3);
    lab.line("get percale:/lab b").code(8);
    // Some of it fails, some of it does not.
    lab.write("d/a", b"new");
    lab.write("d/c", b"c");
    lab.line("put -r d/ percale:/lab").code(6);
    assert_eq!(lab.line("cat percale:/lab/c").ok().out, "c");
}

#[test]
fn dry_runs_and_filters_say_what_would_happen() {
    let lab = Lab::new();
    for name in ["d/a.nc", "d/b.tmp", "d/x/c.nc", "d/scratch/e.nc"] {
        lab.write(name, name.as_bytes());
    }
    let shown = lab.line("put -r -n d percale:/lab/").ok();
    assert_eq!(shown.out.lines().count(), 4);
    assert!(shown.out.contains("would make /lab/d/a.nc"), "{}", shown.out);
    assert!(shown.err.contains("would be transferred"), "{}", shown.err);
    assert!(lab.listing().is_empty());
    assert!(!lab.path("state/percale").exists(), "a dry run leaves no notes");

    lab.line("put -r --exclude *.tmp --exclude scratch/ d percale:/lab/").ok();
    assert_eq!(lab.listing(), ["/lab/d -", "/lab/d/a.nc 6", "/lab/d/x -", "/lab/d/x/c.nc 8"]);
    assert_eq!(lab.line("get -r -n percale:/lab/d out").ok().out.lines().count(), 2);
    assert!(!lab.path("out").exists());
    lab.line("get -r --include a.* percale:/lab/d/ out").ok();
    assert_eq!(fs::read(lab.path("out/a.nc")).unwrap(), b"d/a.nc");
    assert!(!lab.path("out/x/c.nc").exists());

    let report = lab.path("report.jsonl");
    lab.run(["put", "-r", "--report", report.to_str().unwrap(), "--overwrite", "d", "percale:/lab/"]).ok();
    assert_eq!(fs::read_to_string(report).unwrap().lines().count(), 4);
}

#[test]
fn links_and_strange_names_are_told() {
    let lab = Lab::new();
    lab.write("d/a", b"1");
    std::os::unix::fs::symlink("a", lab.path("d/link")).unwrap();
    use std::os::unix::ffi::OsStrExt;
    let strange = lab.path("d").join(std::ffi::OsStr::from_bytes(b"\xff"));
    fs::write(strange, "x").unwrap();
    let ran = lab.line("put -r d percale:/lab/").code(6);
    assert!(ran.err.contains("symbolic link") && ran.err.contains("UTF-8"), "{}", ran.err);
    assert_eq!(lab.listing(), ["/lab/d -", "/lab/d/a 1"]);
    lab.line("put -r --follow-links d percale:/lab/").code(6);
    assert_eq!(lab.listing(), ["/lab/d -", "/lab/d/a 1", "/lab/d/link 1"]);
}

/// The upload that a note of an interrupted run names.
fn noted_upload(lab: &Lab) -> String {
    let notes: Vec<_> = fs::read_dir(lab.path("state/percale/uploads")).unwrap().collect();
    assert_eq!(notes.len(), 1);
    let note: serde_json::Value =
        serde_json::from_slice(&fs::read(notes[0].as_ref().unwrap().path()).unwrap()).unwrap();
    note["upload"].as_str().unwrap().to_owned()
}

#[test]
fn an_upload_goes_on_after_the_client_was_killed() {
    let lab = Lab::new();
    content::write_file(&lab.path("big"), 7, LARGE).unwrap();
    let mut put = lab.start(["put", "big", "percale:/lab/big"]);
    lab.wait_for_staged(128);
    put.kill().unwrap();
    put.wait().unwrap();
    lab.line("stat percale:/lab/big").code(3);

    let upload = noted_upload(&lab);
    let address = format!("/v1/uploads/{upload}");
    let missing: u64 = lab.run(["api", "GET", &address]).ok().json()["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|range| range["end"].as_u64().unwrap() - range["start"].as_u64().unwrap())
        .sum();
    assert!(missing > 0 && missing <= LARGE - LARGE / 8, "{missing} of {LARGE} are missing");
    lab.line("put big percale:/lab/big").ok();
    // The same upload was completed: a new one would have left this one behind.
    lab.run(["api", "GET", &address]).code(3);
    assert_eq!(fs::read_dir(lab.path("state/percale/uploads")).unwrap().count(), 0);
    lab.line("check big percale:/lab/big").ok();
}

#[test]
fn ctrl_c_says_how_to_go_on() {
    let lab = Lab::new();
    content::write_file(&lab.path("big"), 8, LARGE).unwrap();
    let put = lab.start(["put", "big", "percale:/lab/big"]);
    lab.wait_for_staged(64);
    kill_process(rustix::process::Pid::from_child(&put), Signal::INT).unwrap();
    let ran = finished(put.wait_with_output().unwrap()).code(130);
    assert!(ran.err.contains("goes on where it stopped"), "{}", ran.err);
    lab.line("stat percale:/lab/big").code(3);
    noted_upload(&lab);
    lab.line("put big percale:/lab/big").ok();
}

#[test]
fn a_download_goes_on_after_the_client_was_killed() {
    let lab = Lab::new();
    content::write_file(&lab.path("big"), 9, LARGE).unwrap();
    lab.line("put big percale:/lab/big").ok();
    fs::create_dir(lab.path("out")).unwrap();
    let mut get = lab.start(["get", "percale:/lab/big", "out/big"]);
    let part = lab.path("out/.big.percale-part");
    percale_testkit::wait::until("half of the file", std::time::Duration::from_secs(60), || {
        (groups_of(&part) >= 64).then_some(())
    });
    get.kill().unwrap();
    get.wait().unwrap();
    assert!(!lab.path("out/big").exists() && part.exists());
    // A part of it is damaged meanwhile: that part comes again.
    let file = fs::File::options().write(true).open(&part).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", 5000).unwrap();
    drop(file);
    lab.line("get percale:/lab/big out/big").ok();
    assert_eq!(fs::read_dir(lab.path("out")).unwrap().count(), 1);
    lab.line("check out/big percale:/lab/big").ok();
}

#[test]
fn a_file_that_changes_while_it_is_sent_is_refused() {
    let lab = Lab::new();
    content::write_file(&lab.path("big"), 10, LARGE).unwrap();
    let put = lab.start(["put", "--json", "big", "percale:/lab/big"]);
    lab.wait_for_staged(64);
    let mut file = fs::File::options().append(true).open(lab.path("big")).unwrap();
    file.write_all(b"one line more").unwrap();
    drop(file);
    let ran = finished(put.wait_with_output().unwrap()).code(8);
    assert_eq!(ran.json_lines()[0]["error"]["code"], "version_changed");
    lab.line("stat percale:/lab/big").code(3);
    assert_eq!(
        fs::read_dir(lab.path("state/percale/uploads")).unwrap().count(),
        0,
        "nothing is left to resume"
    );
    lab.line("put big percale:/lab/big").ok();
}
