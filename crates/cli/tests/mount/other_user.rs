//! A mount by somebody who is not root, and has neither the right to mount nor to read the stores.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use crate::mounted::{can_mount, listing, run, site, token};

/// Whom Debian calls nobody.
const NOBODY: u32 = 65534;

/// Runs in a mount namespace of its own, as root: there `/dev/fuse` is open to everybody, as desktops and clusters have it. What programs do in
/// the mount comes as the last argument.
const SCRIPT: &str = r#"
set -eu
percale=$1 folder=$2 programs=$3
mknod -m 666 "$folder/fuse" c 10 229
mount --bind "$folder/fuse" /dev/fuse
as="setpriv --reuid=65534 --regid=65534 --clear-groups"
$as "$percale" mount --json --state-dir "$folder/own/state" percale:/lab "$folder/own/mnt" >"$folder/own/said" &
for _ in $(seq 200); do [ -s "$folder/own/said" ] && break; sleep 0.1; done
cat "$folder/own/said" >&2
$as sh -euc "cd '$folder/own/mnt'; $programs"
$as fusermount3 -u "$folder/own/mnt"
wait
"#;

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn who_may_not_mount_has_a_helper_and_goes_by_the_network() {
    if !can_mount() {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !["fusermount3", "setpriv", "unshare"].into_iter().all(has) {
        eprintln!("SKIPPED: mounting as another user needs root, fusermount3, setpriv and unshare");
        return;
    }
    let (site, folder) = (site(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("there"), "there before").unwrap();
    run(&site, &["put", folder.path().join("there").to_str().unwrap(), "percale:/lab/there"]);

    let own = folder.path().join("own");
    fs::create_dir_all(own.join("mnt")).unwrap();
    let token = token(&site, &own, "nobody", "write");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where the program was built may be closed to others.
    let percale = folder.path().join("percale");
    fs::copy(env!("CARGO_BIN_EXE_percale"), &percale).unwrap();
    fs::copy(site.ca_file(), own.join("ca.pem")).unwrap();
    for path in [&own, &own.join("mnt"), &own.join("ca.pem"), &token] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let programs = "cat there; mkdir d; echo hello >d/x; ln -s d/x l; cat l; head -c 3000000 /dev/zero >big; \
                    mv big d/large; rm there; ls -lR . >/dev/null";
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", SCRIPT, "sh"])
        .args([percale.as_path(), folder.path(), Path::new(programs)])
        .env("PERCALE_URL", site.url())
        .env("PERCALE_TOKEN_FILE", &token)
        .env("PERCALE_CA_FILE", own.join("ca.pem"))
        .env("XDG_CONFIG_HOME", own.join("config"))
        .env_remove("PERCALE_TOKEN")
        .env_remove("PERCALE_PROFILE")
        .output()
        .unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{told}");
    assert_eq!(said, "there beforehello\n");
    assert!(told.contains("\"stores\":0"), "{told}");
    // All of it was published before the mount ended.
    assert_eq!(listing(&site), ["/lab/d -", "/lab/d/large 3000000", "/lab/d/x 6", "/lab/l -"]);
}
