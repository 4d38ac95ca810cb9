//! A site with a store and a space, and a mount of it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::tmpfs::SmallFileSystem;
use percale_testkit::wait;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// Within this what was changed in one place must be seen in another.
pub const SOON: Duration = Duration::from_secs(20);

/// Tells whether this host can mount; says so if not.
pub fn can_mount() -> bool {
    if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("SKIPPED: mounting needs /dev/fuse");
        return false;
    }
    // Says itself what is missing.
    SmallFileSystem::mount(1 << 20).is_some()
}

/// A site as `site` makes it, and a folder for a mount; nothing if this host cannot mount.
pub fn to_mount(site: fn() -> Site) -> Option<(Site, TempDir)> {
    can_mount().then(|| (site(), tempfile::tempdir().unwrap()))
}

/// A mount, unmounted when it is dropped.
pub struct Mounted {
    process: Child,
    folder: PathBuf,
    /// Whether the kernel reads and writes local copies itself.
    pub passthrough: bool,
}

impl Mounted {
    /// Mounts a path of a site at a directory below `folder`, where the mount also keeps its state.
    pub fn start(site: &Site, folder: &Path, more: &[&str]) -> Self {
        let at = folder.join("mnt");
        fs::create_dir_all(&at).unwrap();
        let mut process =
            command(site, folder, more).arg("percale:/lab").arg(&at).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: '{line}'"));
        Self { process, folder: folder.to_owned(), passthrough: said["passthrough"].as_bool().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join("mnt").join(name)
    }

    pub fn root(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// Kills the process, as the system does when it is out of memory.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        unmount(&self.root());
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until it has ended in an orderly way.
    pub fn wait(mut self) {
        let status = wait::until("the mount to end", SOON, || self.process.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }

    /// Ends it in an orderly way: what was written is published then.
    pub fn stop(self) {
        self.terminate();
        self.wait();
    }

    /// Tells whether its process is there.
    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
            let ended = (0..100).any(|_| {
                std::thread::sleep(Duration::from_millis(100));
                self.process.try_wait().unwrap().is_some()
            });
            if !ended {
                let _ = self.process.kill();
                let _ = self.process.wait();
                unmount(&self.root());
            }
        }
    }
}

/// The command that mounts a path of a site, with its state in `folder`.
pub fn command(site: &Site, folder: &Path, more: &[&str]) -> Command {
    let mut command = site.command(&["mount", "--json"]);
    command.arg("--state-dir").arg(folder.join("state")).args(more).stdin(Stdio::null());
    command
}

/// Unmounts what a dead process left, or takes a mount off as somebody else does.
pub fn unmount(at: &Path) {
    let _ = Command::new("umount").arg("-l").arg(at).status();
}

/// A site with a store and the space `lab`.
pub fn site() -> Site {
    let site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")));
    let store = site.directory().join("store");
    with_store(site, &["--posix", store.to_str().unwrap()])
}

/// The same, with a store that no host sees.
pub fn site_far_away() -> Site {
    with_store(Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale"))), &["--connector", "memory"])
}

/// Adds a store and the space `lab` to a site.
pub fn with_store(site: Site, store: &[&str]) -> Site {
    run(&site, &[&["store", "add", "disk"], store].concat());
    run(&site, &["space", "create", "lab", "--store", "disk"]);
    site
}

/// Runs a command of the binary as the administrator.
#[track_caller]
pub fn run(site: &Site, arguments: &[&str]) -> String {
    let output = site.command(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Lets a user do something in the space `lab`, and returns the file of their token.
pub fn token(site: &Site, folder: &Path, user: &str, permission: &str) -> PathBuf {
    let subject = format!("user:{user}");
    let issued = run(site, &["token", "create", "--subject", &subject, "--json"]);
    let issued: Value = serde_json::from_str(&issued).unwrap();
    run(site, &["grant", "add", "percale:/lab", &subject, permission]);
    let token = folder.join("token");
    fs::write(&token, issued["secret"].as_str().unwrap()).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    token
}

/// What the fabric has: each path with its size, or `-` for a collection.
pub fn listing(site: &Site) -> Vec<String> {
    let lines = run(site, &["ls", "-R", "--json", "percale:/lab"]);
    let entries = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut listed: Vec<String> = entries
        .map(|entry| {
            let path = entry["path"].as_str().unwrap().to_owned();
            entry["content"]["size"].as_u64().map_or(format!("{path} -"), |size| format!("{path} {size}"))
        })
        .collect();
    listed.sort();
    listed
}

/// Waits until the fabric has just that.
#[track_caller]
pub fn until_listed(site: &Site, wanted: &[&str]) {
    let mut last = Vec::new();
    for _ in 0..SOON.as_millis() / 50 {
        last = listing(site);
        if last == wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the fabric has {last:?}, not {wanted:?}");
}

/// Waits until something holds.
#[track_caller]
pub fn soon(what: &str, holds: impl Fn() -> bool) {
    wait::until(what, SOON, || holds().then_some(()));
}

/// The value of an attribute of a file in a mount.
#[track_caller]
pub fn xattr(path: &Path, name: &str) -> String {
    let mut value = [0_u8; 4096];
    let len = rustix::fs::getxattr(path, format!("user.percale.{name}"), &mut value[..]).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}
