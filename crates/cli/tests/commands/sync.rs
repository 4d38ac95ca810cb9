//! A destination like its source, in each direction and within the fabric.

use std::fs;

use crate::lab::{Lab, tree};

/// A directory with a few files, and the same in the fabric.
fn synced() -> Lab {
    let lab = Lab::new();
    for name in ["a", "b", "deep/c", "deep/er/d", "gone/e", "gone/f"] {
        lab.write(&format!("out/{name}"), name.as_bytes());
    }
    fs::create_dir(lab.path("out/hollow")).unwrap();
    lab.line("sync out percale:/lab/out").ok();
    lab
}

fn changed(lab: &Lab) {
    lab.write("out/a", b"another");
    lab.write("out/new", b"new");
    fs::remove_file(lab.path("out/b")).unwrap();
    fs::remove_dir_all(lab.path("out/gone")).unwrap();
}

#[test]
fn the_fabric_becomes_like_a_directory() {
    let lab = synced();
    assert_eq!(
        lab.line("sync --json --delete out percale:/lab/out").ok().json_lines().last().unwrap()["summary"]["same"],
        6
    );
    changed(&lab);

    // The plan changes nothing, and is what happens then.
    let before = lab.listing();
    let plan = lab.line("sync -n --delete out percale:/lab/out").ok();
    let mut lines: Vec<&str> = plan.out.lines().map(|line| line.split("  ").next().unwrap()).collect();
    lines.sort_unstable();
    let expected = [
        "would make /lab/out/new",
        "would remove /lab/out/b",
        "would remove /lab/out/gone",
        "would replace /lab/out/a",
    ];
    assert_eq!(lines, expected, "{}", plan.out);
    assert_eq!(lab.listing(), before);

    // Without --delete nothing goes.
    let sum = lab.line("sync --json out percale:/lab/out").ok().json_lines().pop().unwrap();
    assert_eq!((&sum["summary"]["done"], &sum["summary"]["removed"]), (&2.into(), &0.into()));
    lab.line("stat percale:/lab/out/gone/e").ok();
    let sum = lab.line("sync --json --delete out percale:/lab/out").ok().json_lines().pop().unwrap();
    assert_eq!((&sum["summary"]["done"], &sum["summary"]["removed"]), (&0.into(), &2.into()));
    lab.line("get -r percale:/lab/out back").ok();
    assert_eq!(tree(&lab.path("back/out")), tree(&lab.path("out")));
    lab.line("sync --delete --error-on-noop out percale:/lab/out").code(9);
}

#[test]
fn a_directory_becomes_like_the_fabric() {
    let lab = synced();
    lab.line("sync --delete percale:/lab/out back").ok();
    assert_eq!(tree(&lab.path("back")), tree(&lab.path("out")));
    changed(&lab);
    lab.line("sync --delete out percale:/lab/out").ok();
    lab.write("back/mine", b"mine");
    // A link is removed, not what it points at.
    lab.write("elsewhere/kept", b"kept");
    std::os::unix::fs::symlink(lab.path("elsewhere"), lab.path("back/link")).unwrap();
    let plan = lab.line("sync -n --delete percale:/lab/out back").ok();
    assert!(
        plan.out.contains("would remove back/mine") && plan.out.contains("would remove back/link"),
        "{}",
        plan.out
    );
    assert!(lab.path("back/mine").exists());
    lab.line("sync --delete percale:/lab/out back").ok();
    assert_eq!(tree(&lab.path("back")), tree(&lab.path("out")));
    assert!(lab.path("elsewhere/kept").exists());
}

#[test]
fn what_a_filter_leaves_out_is_left_alone() {
    let lab = synced();
    lab.line("put out/a percale:/lab/out/notes.txt").ok();
    lab.line("put out/a percale:/lab/out/gone/notes.txt").ok();
    changed(&lab);
    lab.line("sync --delete --exclude *.txt out percale:/lab/out").ok();
    for kept in ["out/notes.txt", "out/gone/notes.txt"] {
        lab.line(&format!("stat percale:/lab/{kept}")).ok();
    }
    for removed in ["out/b", "out/gone/e"] {
        lab.line(&format!("stat percale:/lab/{removed}")).code(3);
    }
    lab.write("back/mine.txt", b"mine");
    lab.write("back/mine.nc", b"mine");
    lab.line("sync --delete --exclude *.txt percale:/lab/out back").ok();
    assert!(lab.path("back/mine.txt").exists() && !lab.path("back/mine.nc").exists());
}

#[test]
fn nothing_is_removed_when_something_could_not_be_copied() {
    let lab = synced();
    changed(&lab);
    // A directory where the fabric has an object.
    lab.line("put out/a percale:/lab/out/x").ok();
    lab.write("out/x/y", b"y");
    let failed = lab.line("sync --delete out percale:/lab/out").code(6);
    assert!(failed.err.contains("nothing was removed"), "{}", failed.err);
    lab.line("stat percale:/lab/out/b").ok();
}

#[test]
fn within_the_fabric_it_is_a_task() {
    let lab = synced();
    let ran = lab.line("sync percale:/lab/out percale:/lab/copy").ok();
    assert!(
        ran.err.contains("sync /lab/out -> /lab/copy") || ran.err.contains("percale:/lab/copy"),
        "{}",
        ran.err
    );
    changed(&lab);
    lab.line("sync --delete out percale:/lab/out").ok();
    let plan = lab.line("sync -n --delete percale:/lab/out percale:/lab/copy").ok();
    for line in [
        "would replace percale:/lab/copy/a",
        "would make percale:/lab/copy/new",
        "would remove percale:/lab/copy/b",
    ] {
        assert!(plan.out.contains(line), "{line}: {}", plan.out);
    }
    let id = lab.line("sync --delete --detach percale:/lab/out percale:/lab/copy").ok().out;
    lab.line(&format!("task wait {id}")).ok();
    lab.line("get -r percale:/lab/copy back").ok();
    assert_eq!(tree(&lab.path("back/copy")), tree(&lab.path("out")));
    lab.line("sync --exclude *.txt percale:/lab/out percale:/lab/copy").code(2);
    lab.line("sync percale:/lab/out/a percale:/lab/copy").code(8);
}
