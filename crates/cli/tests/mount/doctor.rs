//! `percale doctor` says how each store would be read and written in a mount, and why not by the kernel.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::tmpfs::SmallFileSystem;
use percale_testkit::wait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::mounted::{Mounted, SOON, can_mount, run, site, to_mount, token, with_store};

/// What is said of this host.
const HOST: &str =
    "this host lets the kernel read and write local copies itself, where it can on their file system -> ";

/// Layers of overlayfs, each on the one before, on file systems in memory. Unmounted when it is dropped.
struct Layers(Vec<SmallFileSystem>);

impl Layers {
    /// Mounts some; nothing, said aloud, if the kernel has no overlayfs or nobody may mount it here.
    fn mount(count: usize) -> Option<Self> {
        let mut layers = Self(Vec::new());
        for _ in 0..count {
            let lower = layers.0.last().map(top);
            let bottom = SmallFileSystem::mount(64 << 20)?;
            for name in ["lower", "upper", "work", "top"] {
                fs::create_dir(bottom.path().join(name)).unwrap();
            }
            let lower = lower.unwrap_or_else(|| bottom.path().join("lower"));
            let at = |name| bottom.path().join(name).display().to_string();
            let options =
                format!("lowerdir={},upperdir={},workdir={}", lower.display(), at("upper"), at("work"));
            let output = Command::new("mount")
                .args(["-t", "overlay", "percale-test", "-o", &options, &at("top")])
                .output()
                .unwrap();
            if !output.status.success() {
                eprintln!("SKIPPED: overlayfs: {}", String::from_utf8_lossy(&output.stderr).trim());
                return None;
            }
            layers.0.push(bottom);
        }
        Some(layers)
    }

    fn path(&self) -> PathBuf {
        top(self.0.last().unwrap())
    }
}

impl Drop for Layers {
    fn drop(&mut self) {
        while let Some(layer) = self.0.pop() {
            let _ = Command::new("umount").arg("-l").arg(top(&layer)).output();
        }
    }
}

fn top(layer: &SmallFileSystem) -> PathBuf {
    layer.path().join("top")
}

fn site_on(root: &Path) -> Site {
    let site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")));
    with_store(site, &["--posix", root.to_str().unwrap()])
}

/// What doctor says of mounting, in lines.
fn of_mounting(said: &str) -> Vec<String> {
    let looks = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_mounting = looks.filter(|look| look["what"] == "mount");
    of_mounting
        .map(|look| {
            assert_eq!(look["result"], "ok", "{look}");
            format!("{} -> {}", look["detail"].as_str().unwrap(), look["hint"].as_str().unwrap_or_default())
        })
        .collect()
}

/// What runs where the words of `around` put it.
fn around(site: &Site, around: &[&str], script: &str, place: &Path) -> String {
    let percale = site.command(&[]);
    let mut command = Command::new("unshare");
    command.args(around).args(["sh", "-euc", script, "sh"]).arg(percale.get_program()).arg(place);
    for (name, value) in percale.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{told}");
    said.into_owned()
}

fn can_unshare(what: &str) -> bool {
    let can =
        Command::new("unshare").args([what, "true"]).output().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("SKIPPED: this host does not let `unshare {what}` run");
    }
    can
}

#[test]
fn one_layer_of_file_systems_is_for_the_kernel_and_two_are_not() {
    for count in [1, 2] {
        if !can_mount() {
            return;
        }
        let (Some(layers), folder) = (Layers::mount(count), tempfile::tempdir().unwrap()) else { return };
        let root = layers.path().join("store");
        let site = site_on(&root);
        let staged = || fs::metadata(root.join(".percale/stage")).unwrap().modified().unwrap();
        let before = staged();
        let said = of_mounting(&run(&site, &["doctor", "--json"]));
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], HOST);
        let store = format!("store disk at {}: ", root.display());
        match count {
            1 => assert_eq!(said[1], format!("{store}by the kernel -> ")),
            _ => {
                assert!(
                    said[1].starts_with(&format!(
                        "{store}through the mount's process, since it is on overlayfs that lies on other file systems"
                    )),
                    "{said:?}"
                );
                assert!(said[1].contains(" -> Give the store a directory "), "{said:?}");
            }
        }
        // No session was opened for it.
        assert_eq!(staged(), before);
        assert_eq!(fs::read_dir(root.join(".percale/stage")).unwrap().count(), 0);
        // The same files are there, whoever reads them.
        let mount = Mounted::start(&site, folder.path(), &[]);
        fs::write(mount.path("file"), "hello").unwrap();
        assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "hello");
        mount.stop();
        assert_eq!(run(&site, &["cat", "percale:/lab/file"]), "hello");
    }
}

#[test]
fn the_right_of_a_user_namespace_is_not_the_hosts() {
    let Some((site, folder)) = to_mount(site) else { return };
    if !can_unshare("-Urm") {
        return;
    }
    let before = Mounted::start(&site, folder.path(), &[]);
    fs::write(before.path("file"), "hello").unwrap();
    before.stop();
    let said = around(&site, &["-Ur"], "\"$1\" doctor --json", folder.path());
    let said = of_mounting(&said);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("through the mount's process: this process is in a user namespace"), "{said:?}");
    let root = site.directory().join("store");
    assert_eq!(said[1], format!("store disk at {}: through the mount's process -> ", root.display()));

    let script = r#"
        "$1" mount --json --state-dir "$2/state" percale:/lab "$2/mnt" >"$2/said" &
        for _ in $(seq 200); do [ -s "$2/said" ] && break; sleep 0.1; done
        cat "$2/said" "$2/mnt/file"
        umount "$2/mnt"
        wait
    "#;
    let said = around(&site, &["-Urm"], script, folder.path());
    let (mounted, file) = said.split_once('\n').unwrap();
    let mounted: Value = serde_json::from_str(mounted).unwrap();
    assert_eq!((&mounted["stores"], &mounted["passthrough"]), (&Value::from(1), &Value::from(false)));
    assert_eq!(file, "hello");
}

#[test]
fn a_store_that_the_host_does_not_see_is_named() {
    let Some((site, _)) = to_mount(site) else { return };
    if !can_unshare("-m") {
        return;
    }
    let store = site.directory().join("store");
    let script = "mount -t tmpfs percale-test \"$2\"; \"$1\" doctor --json";
    let said = of_mounting(&around(&site, &["-m", "--propagation", "private"], script, &store));
    let not_seen =
        format!("store disk: over the network, since this host does not see it at {} ", store.display());
    assert!(said[1].starts_with(&format!("{not_seen}(another directory is there) -> ")), "{said:?}");
}

#[test]
fn a_store_whose_file_system_hangs_does_not_hang_doctor() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let site = site_on(&folder.path().join("mnt"));
    // On the root of the store lies a mount of what is in it, which does not answer.
    let mount = Mounted::start(&site, folder.path(), &[]);
    mount.signal(Signal::STOP);
    let mut doctor = site.command(&["doctor", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    wait::until("doctor to end", SOON, || doctor.try_wait().unwrap());
    mount.signal(Signal::CONT);
    let said = doctor.wait_with_output().unwrap().stdout;
    let said = of_mounting(str::from_utf8(&said).unwrap());
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[1].starts_with("store disk: over the network, since this host does not see it at"),
        "{said:?}"
    );
    assert!(said[1].contains("(its file system does not answer within 5 s)"), "{said:?}");
    mount.stop();
}

#[test]
fn only_administrators_are_told_of_stores() {
    let Some((site, folder)) = to_mount(site) else { return };
    let token = token(&site, folder.path(), "reader", "read");
    let said = of_mounting(&run(&site, &["doctor", "--json", "--token-file", token.to_str().unwrap()]));
    let of_stores = "how the copies on each store are read and written was not looked at -> An administrator of the site is told it store by store.";
    assert_eq!(said, [HOST, of_stores]);
}

#[test]
fn a_mount_does_not_say_that_the_kernel_takes_every_file() {
    let Some((site, folder)) = to_mount(site) else { return };
    let at = folder.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let mut mount = site.command(&["mount", "--state-dir"]);
    mount.arg(folder.path().join("state")).arg("percale:/lab").arg(&at).stdout(Stdio::piped());
    let mut mount = mount.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(mount.stdout.take().unwrap()).read_line(&mut said).unwrap();
    kill_process(Pid::from_child(&mount), Signal::TERM).unwrap();
    assert!(mount.wait().unwrap().success());
    assert_eq!(
        said,
        format!(
            "mounted at {}: 1 of the site's stores on this host, read and written by the kernel where it takes their files \
             (`percale doctor` tells an administrator which)\n",
            at.canonicalize().unwrap().display()
        )
    );
}
