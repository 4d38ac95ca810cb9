//! Programs that people use, which know nothing of a mount. One that is not installed is left out, aloud.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use percale_testkit::tools::python;

use crate::mounted::{Mounted, run, site, soon, to_mount};

/// Runs a program in a directory. Returns what it said; nothing if it is not installed.
fn run_in(directory: &Path, program: impl AsRef<Path>, arguments: &[&str]) -> Option<String> {
    let program = program.as_ref();
    let output = match Command::new(program).args(arguments).current_dir(directory).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("LEFT OUT: {} is not installed", program.display());
            return None;
        }
        Err(error) => panic!("{}: {error}", program.display()),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {said}", program.display());
    Some(said)
}

const PROGRAM: &[(&str, &str)] = &[
    (
        "Makefile",
        "sums: main.o add.o\n\tcc -o $@ $^\n%.o: %.c add.h\n\tcc -c -o $@ $<\nclean:\n\trm -f sums *.o\n.PHONY: clean\n",
    ),
    ("add.h", "int add(int, int);\n"),
    ("add.c", "#include \"add.h\"\nint add(int a, int b) { return a + b; }\n"),
    (
        "main.c",
        "#include <stdio.h>\n#include \"add.h\"\nint main(void) { printf(\"%d\\n\", add(40, 2)); return 0; }\n",
    ),
];

#[test]
fn sources_are_cloned_and_built() {
    let Some((site, folder)) = to_mount(site) else { return };
    let origin = folder.path().join("origin");
    fs::create_dir(&origin).unwrap();
    for (name, text) in PROGRAM {
        fs::write(origin.join(name), text).unwrap();
    }
    symlink("add.h", origin.join("header.h")).unwrap();
    let author = ["-c", "user.name=A", "-c", "user.email=a@example.org"];
    if run_in(&origin, "git", &["init", "-q"]).is_none() {
        return;
    }
    run_in(&origin, "git", &["add", "."]);
    run_in(&origin, "git", &[&author[..], &["commit", "-q", "-m", "First"]].concat());
    let mount = Mounted::start(&site, folder.path(), &[]);
    run_in(&mount.root(), "git", &["clone", "-q", origin.to_str().unwrap(), "work"]);
    let work = mount.path("work");
    assert_eq!(run_in(&work, "git", &["status", "--porcelain"]).unwrap(), "");
    for _ in 0..2 {
        assert_eq!(fs::read_link(work.join("header.h")).unwrap(), Path::new("add.h"));
        if run_in(&work, "make", &[]).is_some() {
            assert_eq!(run_in(&work, "./sums", &[]).unwrap(), "42\n");
            assert!(run_in(&work, "make", &[]).unwrap().contains("up to date"));
            run_in(&work, "make", &["clean"]);
        }
    }
    fs::write(work.join("add.h"), "long add(long, long);\n").unwrap();
    assert_eq!(run_in(&work, "git", &["status", "--porcelain"]).unwrap(), " M add.h\n");
    run_in(&work, "git", &[&author[..], &["commit", "-q", "-a", "-m", "Second"]].concat());
    run_in(&work, "git", &["gc", "-q"]);
    run_in(&work, "git", &["fsck", "--strict"]);
    mount.stop();
    assert_eq!(run(&site, &["cat", "percale:/lab/work/header.h"]), "long add(long, long);\n");
}

#[test]
fn a_database_is_kept() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let root = mount.root();
    for journal in ["delete", "wal"] {
        let name = format!("{journal}.db");
        let make = format!(
            "PRAGMA journal_mode={journal}; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); BEGIN; \
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
             INSERT INTO t SELECT i, hex(randomblob(200)) FROM n; COMMIT; UPDATE t SET b = 'changed' WHERE a % 3 = 0;"
        );
        if run_in(&root, "sqlite3", &[&name, &make]).is_none() {
            return;
        }
        let look = "SELECT count(*) FROM t WHERE b = 'changed'; PRAGMA integrity_check;";
        assert_eq!(run_in(&root, "sqlite3", &[&name, look]).unwrap(), "666\nok\n");
        run_in(&root, "sqlite3", &[&name, "DELETE FROM t WHERE a > 10; VACUUM;"]);
        assert_eq!(run_in(&root, "sqlite3", &[&name, "SELECT count(*) FROM t"]).unwrap(), "10\n");
    }
}

/// Makes a file, looks at it, changes it in place, and reads it by parts.
const ARRAYS: &str = "
import sys, numpy, xarray
made = xarray.Dataset(
    {'t': (('time', 'x'), numpy.arange(200_000.0).reshape(200, 1000))},
    coords={'time': numpy.arange(200)}, attrs={'title': 'made in a mount'},
)
made.to_netcdf('a.nc', engine='h5netcdf')
made.to_netcdf('b.nc', engine='h5netcdf')
with xarray.open_dataset('a.nc', engine='h5netcdf') as read:
    assert read.title == 'made in a mount'
    assert float(read.t.isel(time=slice(100, 110)).mean()) == 104999.5
import h5py
with h5py.File('b.nc', 'r+') as file:
    file['t'][7, 7] = -1
with xarray.open_dataset('b.nc', engine='h5netcdf') as read:
    assert float(read.t.min()) == -1
with xarray.open_dataset('a.nc', engine='h5netcdf') as read:
    assert read.identical(made)
print('right')
";

#[test]
fn scientific_files_are_made_and_read() {
    let Some((site, folder)) = to_mount(site) else { return };
    let mount = Mounted::start(&site, folder.path(), &[]);
    let root = mount.root();
    match run_in(&root, python(), &["-c", ARRAYS]) {
        Some(said) => assert!(said.ends_with("right\n"), "{said}"),
        None => return,
    }
    if let Some(said) = run_in(&root, "h5dump", &["-H", "a.nc"]) {
        assert!(said.contains("DATASET \"t\""), "{said}");
        run_in(&root, "h5diff", &["a.nc", "a.nc"]);
        let other = Command::new("h5diff").args(["a.nc", "b.nc"]).current_dir(&root).output().unwrap();
        assert_eq!(other.status.code(), Some(1), "one value differs");
    }
    // And what others get is the same.
    soon("the files", || run(&site, &["ls", "-R", "percale:/lab"]).lines().count() == 2);
    mount.stop();
    run(&site, &["check", "--deep", "percale:/lab"]);
}
