//! Symbolic links: made, shown, followed, copied.

use std::fs;

use crate::lab::Lab;

fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("run/1/x.txt", b"one");
    lab.write("run/2/x.txt", b"second");
    lab.line("put -r run percale:/lab/").ok();
    lab
}

#[test]
fn links_are_made_shown_and_followed() {
    let lab = lab();
    let made = lab.line("ln percale:/lab/run/1 percale:/lab/latest").ok();
    assert!(made.err.contains("made percale:/lab/latest -> run/1"), "{}", made.err);
    assert!(lab.line("ln percale:/lab/run/1 percale:/lab/latest").ok().err.contains("found"));
    assert_eq!(lab.line("ls percale:/lab").ok().out, "latest -> run/1\nrun/\n");
    assert_eq!(lab.line("ls percale:/lab/latest").ok().out, "x.txt\n");
    assert_eq!(lab.line("ls -d percale:/lab/latest").ok().out, "latest -> run/1\n");
    assert_eq!(lab.line("cat percale:/lab/latest/x.txt").ok().out, "one");
    let stat = lab.line("stat percale:/lab/latest").ok().out;
    assert!(stat.contains("kind      link") && stat.contains("leads to  run/1"), "{stat}");
    assert_eq!(lab.line("stat --json percale:/lab/latest").ok().json()["target"], "run/1");
    assert_eq!(lab.line("stat --json percale:/lab/latest/x.txt").ok().json()["path"], "/lab/run/1/x.txt");

    let refused = lab.line("ln percale:/lab/run/2 percale:/lab/latest").code(8);
    assert!(refused.err.contains("--force"), "{}", refused.err);
    assert_eq!(
        lab.line("ln -f -n percale:/lab/run/2 percale:/lab/latest").ok().out,
        "would make percale:/lab/latest -> run/2\n"
    );
    lab.line("ln -f percale:/lab/run/2 percale:/lab/latest").ok();
    assert_eq!(lab.line("cat percale:/lab/latest/x.txt").ok().out, "second");
    assert_eq!(lab.line("ls percale:/lab").ok().out, "latest -> run/2\nrun/\n", "nothing is left beside it");
    lab.line("ln -f percale:/lab/run/2 percale:/lab/run/1/x.txt").code(8);

    // Into a collection, to a file, and by words of its own.
    lab.line("mkdir percale:/lab/view").ok();
    lab.line("ln percale:/lab/run/1/x.txt percale:/lab/view/").ok();
    assert_eq!(lab.line("cat percale:/lab/view/x.txt").ok().out, "one");
    lab.line("ln ../latest/x.txt percale:/lab/view/newest").ok();
    assert_eq!(lab.line("cat percale:/lab/view/newest").ok().out, "second");
    lab.line("ln /etc/passwd percale:/lab/view/host").ok();
    let nowhere = lab.line("cat percale:/lab/view/host").code(8);
    assert!(nowhere.err.contains("cannot be followed in the fabric"), "{}", nowhere.err);
    lab.line("ln round percale:/lab/round").ok();
    lab.line("cat percale:/lab/round").code(8);
    lab.line("ln nothing percale:/lab/dangling").ok();
    lab.line("cat percale:/lab/dangling").code(3);

    assert_eq!(lab.line("find percale:/lab --type link --name lat*").ok().out, "percale:/lab/latest\n");
    assert_eq!(lab.run(["-q", "search", "type:link path:/lab/view/*"]).ok().out.lines().count(), 3);
    let tree = lab.line("tree percale:/lab/latest").ok().out;
    assert!(tree.contains("  x.txt  (6 B)"), "{tree}");
    assert!(lab.line("du --bytes percale:/lab/latest").ok().out.trim_start().starts_with('6'));

    // What is written goes to where a link to a file leads, and never through one on the way.
    lab.write("new", b"third");
    lab.line("put --overwrite new percale:/lab/view/newest").ok();
    assert_eq!(lab.line("cat percale:/lab/run/2/x.txt").ok().out, "third");
    let refused = lab.line("put new percale:/lab/latest/y.txt").code(8);
    assert!(refused.err.contains("leads to /lab/run/2/y.txt"), "{}", refused.err);
    lab.write("large", &vec![7; 40_000_000]);
    for to in ["percale:/lab/latest/large", "percale:/lab/view/newest"] {
        let refused = lab.line(&format!("put large {to}")).code(8);
        assert!(refused.err.contains("leads to") && !lab.has_partial_files(), "{}", refused.err);
    }
    lab.line("mv percale:/lab/latest percale:/lab/newest").ok();
    lab.line("rm percale:/lab/newest").ok();
    assert_eq!(lab.line("ls percale:/lab/run/2").ok().out, "x.txt\n", "the link went, not what it leads to");
}

#[test]
fn trees_are_copied_with_their_links() {
    let lab = lab();
    lab.line("ln percale:/lab/run/1 percale:/lab/run/latest").ok();
    lab.line("ln percale:/lab/run/1/x.txt percale:/lab/run/2/old.txt").ok();
    lab.line("ln ../../else percale:/lab/run/out").ok();
    lab.line("ln /etc/passwd percale:/lab/run/host").ok();

    lab.line("cp -r percale:/lab/run percale:/lab/copy").ok();
    let names = "1/\n2/\nhost -> /etc/passwd\nlatest -> 1\nout -> ../../else\n";
    assert_eq!(lab.line("ls percale:/lab/copy").ok().out, names);
    assert_eq!(lab.line("cat percale:/lab/copy/2/old.txt").ok().out, "one");
    lab.line("ln -f percale:/lab/run/2 percale:/lab/run/latest").ok();
    lab.line("ln percale:/lab/run/2 percale:/lab/copy/extra").ok();
    lab.line("sync --delete -y percale:/lab/run percale:/lab/copy").ok();
    assert_eq!(lab.line("ls percale:/lab/copy").ok().out, names.replace("latest -> 1", "latest -> 2"));

    // On this computer only what stays in the tree is made.
    let got = lab.line("get -r percale:/lab/run here").ok();
    assert!(got.err.contains("leads out"), "{}", got.err);
    let here = lab.path("here");
    let here = if here.join("run").exists() { here.join("run") } else { here };
    assert_eq!(fs::read_link(here.join("latest")).unwrap().to_str(), Some("2"));
    assert_eq!(fs::read_to_string(here.join("2/old.txt")).unwrap(), "one");
    assert!(
        fs::symlink_metadata(here.join("out")).is_err() && fs::symlink_metadata(here.join("host")).is_err()
    );
    lab.line("get -r percale:/lab/run here").ok();
    lab.line("ln -f percale:/lab/run/1 percale:/lab/run/latest").ok();
    lab.line("get -r --overwrite percale:/lab/run here").ok();
    assert_eq!(fs::read_link(here.join("latest")).unwrap().to_str(), Some("1"));
}

#[test]
fn what_is_got_never_leaves_its_directory() {
    let lab = lab();
    lab.write("new", b"third");
    lab.line("put new percale:/lab/run/x/y/new").ok();
    lab.line("ln ../.. percale:/lab/run/x/y/s").ok();
    // By its words inside; but on a disk `x/y/s` is the root.
    lab.line("ln x/y/s/../../../outside percale:/lab/run/t").ok();
    let got = lab.line("get -r percale:/lab/run here").ok();
    assert!(got.err.contains("leads out"), "{}", got.err);
    let here = lab.path("here");
    let here = if here.join("run").exists() { here.join("run") } else { here };
    assert_eq!(fs::read_link(here.join("x/y/s")).unwrap().to_str(), Some("../.."));
    assert!(fs::symlink_metadata(here.join("t")).is_err());

    // However a link came there: what lies below it in the fabric by now is not written where it leads.
    let outside = lab.path("outside");
    fs::create_dir_all(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, here.join("t")).unwrap();
    lab.line("rm percale:/lab/run/t").ok();
    lab.line("put new percale:/lab/run/t/new").ok();
    let refused = lab.line("get -r percale:/lab/run here").code(6);
    assert!(refused.err.contains("symbolic link"), "{}", refused.err);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
