//! pjdfstest, a public suite of what POSIX asks of a file system. What a mount does not do is in `pjdfstest.toml`, with the reasons.
//!
//! It takes a minute and is not a part of the tools of the tests, so it runs where it is asked for: `cargo install pjdfstest@0.2.2`, and its path in
//! `PERCALE_PJDFSTEST`.

use std::path::Path;
use std::process::Command;

use crate::mounted::{Mounted, can_mount, site};

#[test]
fn a_mount_does_what_posix_asks_but_for_what_is_named() {
    if !can_mount() {
        return;
    }
    let Some(program) = std::env::var_os("PERCALE_PJDFSTEST") else {
        eprintln!("SKIPPED: PERCALE_PJDFSTEST does not name pjdfstest");
        return;
    };
    let (site, folder) = (site(), tempfile::tempdir().unwrap());
    let mount = Mounted::start(&site, folder.path(), &["--allow-other"]);
    // Other accounts, which some of its tests take on, have to get there.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/pjdfstest.toml");
    let mut command = Command::new(program);
    command.arg("-c").arg(config).arg("-p").arg(mount.root());
    // Another file system, to which nothing can be renamed.
    command.arg("-s").arg(folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> =
        said.lines().filter(|line| line.contains("FAILED") || line.contains("UNEXPECTEDLY")).collect();
    assert!(output.status.success(), "{failed:#?}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().last().unwrap_or_default());
}
