//! The workspace mount: the spaces of a fabric as directories of this host (`docs/mount.md`).
//!
//! **Participants.** The mount is a client of one site, its entry. Copies that lie on a store which this host sees are read and written
//! by the kernel itself (FUSE passthrough); others come over the network. What is written is staged in the store and published in the
//! background. The journal tells what changes elsewhere.
//!
//! **Goals.** Local copies at the speed of the local file system; a warm `stat` that never leaves the kernel; nothing acknowledged lost
//! when this process is killed; no program that hangs since a site is away.
//!
//! | module | holds |
//! |---|---|
//! | [`fs`] | what the kernel asks |
//! | [`requests`] | the same, where it takes time |
//! | [`names`] | nodes and their names |
//! | [`object`] | what is known of a file |
//! | [`listing`] | what is known of a directory |
//! | [`state`] | all that is known, and who shares it |
//! | [`files`] | files that programs have open |
//! | [`work`] | files that programs write |
//! | [`xattr`] | attributes |
//! | [`copy`] | the copies that changes begin with |
//! | [`tree`] | names that are made, changed and removed, here or by others |
//! | [`changes`] | what is not published yet |
//! | [`publish`] | how that is sent to the site |
//! | [`owned`] | names that this mount changes itself |
//! | [`follow`] | what changes elsewhere |
//! | [`remote`] | bytes of other hosts |
//! | [`pattern`] | which of them come next |
//! | [`session`] | the stores that this host sees |
//! | [`quota`] | how much room there is |
//! | [`ability`] | what this host lets a mount do |
//! | [`probe`] | what the kernel takes to read and write itself |
//! | [`access`] | how a mount would read and write each store |
//! | [`log`] | where what is staged belongs |
//! | [`left`] | what a killed process left |
//! | [`lease`] | whether a program still writes a file |
//! | [`error`] | what programs and the command are told |

mod ability;
mod access;
mod changes;
mod copy;
mod error;
mod files;
mod follow;
mod fs;
mod lease;
mod left;
mod listing;
mod log;
mod names;
mod object;
mod owned;
mod pattern;
mod probe;
mod publish;
mod quota;
mod remote;
mod requests;
mod session;
mod state;
mod tree;
mod work;
mod xattr;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, MountOption, SessionACL};
use percale_client::Client;
use percale_core::{ObjectPath, Position};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use tokio::runtime::Handle as Runtime;

use crate::changes::Changes;
use crate::files::Handles;
use crate::fs::Fs;
use crate::left::Lefts;
use crate::log::Log;
use crate::names::{Names, SpaceNumber, TOP};
use crate::owned::Owned;
use crate::quota::Quota;
use crate::remote::Remote;
use crate::session::Session;
use crate::state::{Shared, Space, State};

pub use crate::ability::{Ability, Reason};
pub use crate::access::{Access, StoreAccess, stores};
pub use crate::error::{Error, Result};

/// How often the session is renewed: far more often than it could lapse.
const RENEW: Duration = Duration::from_secs(300);
/// How often it is looked whether the last program has closed its files.
const LOOK: Duration = Duration::from_millis(100);
/// How far the kernel reads ahead, in KiB: twice what it asks for at once.
const READ_AHEAD_KIB: &str = "2048";
/// For how long the end of a mount waits for what is not published.
const LAST_WAIT: Duration = Duration::from_secs(60);
/// Bytes of other hosts that are kept on disk, unless said otherwise.
pub const CACHE_BYTES: u64 = 10 << 30;

/// How to mount.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// What is mounted: a space or a collection; several spaces, each a directory; all that the caller may see, if it is empty.
    pub paths: Vec<ObjectPath>,
    /// Where this process keeps what it must find again, and bytes of other hosts.
    pub state_dir: PathBuf,
    /// Most bytes of other hosts on disk.
    pub cache_bytes: u64,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// Whether other users of the host may use it.
    pub allow_other: bool,
    /// Whether the kernel may read and write copies itself.
    pub passthrough: bool,
    /// The name of this host.
    pub host: String,
}

impl Options {
    /// Mounts what the caller may see.
    pub fn new(state_dir: PathBuf, host: String) -> Self {
        Self {
            paths: Vec::new(),
            state_dir,
            cache_bytes: CACHE_BYTES,
            read_only: false,
            allow_other: false,
            passthrough: true,
            host,
        }
    }
}

/// A mount that is there until it is unmounted.
#[derive(Debug)]
pub struct Mounted {
    shared: Arc<Shared>,
    at: PathBuf,
    session: BackgroundSession,
    work: Vec<tokio::task::JoinHandle<()>>,
}

/// Mounts at a directory.
///
/// # Errors
/// What the site answers; what this host answers: no `/dev/fuse`, a directory that is not there, no right to mount.
pub async fn mount(client: Client, at: &Path, options: Options) -> Result<Mounted> {
    let dir = &*options.state_dir;
    let lock = log::lock(dir, &options.host)?;
    let before = log::read(dir)?;
    let session = Session::open(client.clone(), &options.host, &dir.join("spool"), before.session).await?;
    let mut left = before.left;
    if let Some(id) = before.session.filter(|id| *id != session.id()) {
        // What lies in the spool needs no session.
        let lost: Vec<_> = left.extract_if(.., |(_, left)| left.store.is_some()).collect();
        if !lost.is_empty() {
            let aside = log::put_aside(dir, id, &lost)?;
            tracing::error!(
                files = lost.len(), log = %aside.display(),
                "the session of the mount before is over, and what it had not published with it; the log names it"
            );
        }
    }
    let log = Log::begin((dir, lock), session.id(), &left)?;
    let session = Arc::new(session);
    let runtime = Runtime::current();
    let kept = (options.cache_bytes > 0).then(|| (options.state_dir.join("cache"), options.cache_bytes));
    let (state, since) = open_spaces(&session, &options).await?;
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let remote = Arc::new(Remote::new(client, runtime.clone(), kept));
    let (sender, news) = std::sync::mpsc::channel();
    let shared = Arc::new(Shared::new(
        session.clone(),
        state,
        Changes::default(),
        (remote, log),
        (runtime.clone(), sender),
        (owner, options.read_only),
    ));
    {
        let mut state = shared.state();
        if state.names.get(TOP).is_some_and(|top| top.space.is_none()) {
            for number in 0..state.spaces.len() {
                shared.add_space(&mut state, SpaceNumber(u16::try_from(number).unwrap_or(u16::MAX)));
            }
            if let Some(top) = state.names.collection_mut(TOP) {
                top.is_listed = true;
            }
        }
    }
    let mut work =
        vec![runtime.spawn(publish::publish(shared.clone())), runtime.spawn(keep(session.clone()))];
    work.extend(left::publish(&shared, left));
    for (number, since) in since.into_iter().enumerate() {
        let number = SpaceNumber(u16::try_from(number).unwrap_or(u16::MAX));
        work.push(runtime.spawn(follow::follow(shared.clone(), number, since)));
    }
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName("percale".to_owned()),
        MountOption::Subtype("percale".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    // One answers while another waits for a disk.
    config.n_threads = Some(2);
    config.clone_fd = true;
    // Without the right each file would be refused.
    let wants_passthrough = options.passthrough && ability::lacks_right().is_none();
    let fs = Fs::new(shared.clone(), wants_passthrough);
    let session = fuser::spawn_mount(fs, at, &config).map_err(|source| Error::Mount {
        what: "mount at",
        at: at.to_owned(),
        source,
    })?;
    read_further_ahead(at);
    let notifier = session.notifier();
    let telling = std::thread::Builder::new().name("percale-news".to_owned());
    telling
        .spawn(move || state::tell_kernel(&notifier, &news))
        .map_err(|error| Error::local("cannot start a thread", error))?;
    Ok(Mounted { shared, at: at.to_owned(), session, work })
}

/// Has the kernel ask for more at once than the 128 KiB that it does by itself. Only root may set that; without, each request costs more.
fn read_further_ahead(at: &Path) {
    let set = rustix::fs::stat(at).map_err(Into::into).and_then(|stat| {
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB)
    });
    if let Err(error) = set {
        tracing::debug!(%error, "the kernel reads ahead as far as it does by itself");
    }
}

/// Looks up what is mounted, and where the journal of each space stands.
async fn open_spaces(session: &Session, options: &Options) -> Result<(State, Vec<Option<Position>>)> {
    let client = &session.client;
    let mut spaces = Vec::new();
    let mut since = Vec::new();
    let mut top = None;
    let names: Vec<ObjectPath> = match options.paths.is_empty() {
        true => client.all_spaces().await?.iter().map(|space| ObjectPath::of_space(&space.name)).collect(),
        false => options.paths.clone(),
    };
    if names.len() > SpaceNumber::MOST {
        return Err(Error::Usage(format!(
            "at most {} spaces can be mounted at one place; name some",
            SpaceNumber::MOST
        )));
    }
    let is_one = options.paths.len() == 1;
    for path in names {
        let name = path.space().ok_or_else(|| Error::Usage(format!("{path} is no path of a space")))?;
        if !is_one && !path.is_space() {
            return Err(Error::Usage(format!("several spaces are mounted as a whole; mount {path} alone")));
        }
        let space = client.space(&name).await?;
        since.push(space.position.parse().ok());
        let entry = client.stat(&path).await?;
        if entry.content.is_some() {
            return Err(Error::Usage(format!("{path} is an object; a space or a collection can be mounted")));
        }
        top = Some(entry.id);
        spaces.push(Space { name, id: space.id, top: path, is_followed: false, quota: Quota::default() });
    }
    let state = State {
        names: Names::new(top.filter(|_| is_one)),
        handles: Handles::default(),
        spaces,
        owned: Owned::default(),
        left: Lefts::new(),
        mapped: Vec::new(),
    };
    Ok((state, since))
}

/// Renews the session, until the mount ends.
async fn keep(session: Arc<Session>) {
    loop {
        tokio::time::sleep(RENEW).await;
        if let Err(error) = session.renew().await {
            tracing::warn!(%error, "cannot renew the session of the mount");
        }
    }
}

impl Mounted {
    /// Tells whether the kernel may read and write local copies itself.
    pub fn has_passthrough(&self) -> bool {
        self.shared.passthrough.get().copied().unwrap_or_default()
    }

    /// Returns how many stores this host sees.
    pub fn stores(&self) -> usize {
        self.shared.session.stores()
    }

    /// Takes the mount off its directory, waits until the last program has closed its files, and publishes what was written. What
    /// cannot be published within a minute is left for the next mount.
    ///
    /// # Errors
    /// The directory cannot be taken off.
    pub async fn unmount(self) -> Result<()> {
        if !self.has_ended() {
            take_off(&self.at)?;
            if tokio::time::timeout(Duration::from_secs(1), self.ended()).await.is_err() {
                tracing::warn!(
                    at = %self.at.display(),
                    "programs still have files open; the mount ends when they close them, or now if it is told again to end"
                );
            }
        }
        self.ended().await;
        let Self { shared, session, work, .. } = self;
        // It would unmount once more when it is dropped, and somebody else may have mounted there by now.
        std::mem::forget(session);
        shared.close_all();
        let published = async {
            loop {
                while !shared.state().mapped.is_empty() {
                    tokio::time::sleep(LOOK).await;
                }
                shared.changes.until_done(None).await;
                // A program that outlived the mount before may have closed its file meanwhile.
                if !shared.changes.has_waiting() {
                    break;
                }
            }
        };
        let is_published = tokio::time::timeout(LAST_WAIT, published).await.is_ok();
        for task in work {
            task.abort();
            // It may be just about to note something; after this it does not any more.
            let _ = task.await;
        }
        let refused = {
            let state = shared.state();
            state.names.works() + state.left.len()
        };
        // With the session goes all that is staged in it.
        if is_published && refused == 0 && !shared.changes.has_waiting() {
            if let Err(error) = shared.session.client.end_mount(shared.session.id()).await {
                tracing::info!(%error, "the session of the mount ends by itself");
            }
        } else {
            tracing::warn!(
                changes = shared.changes.len(),
                refused,
                "not everything could be published; the next mount at this directory goes on with it"
            );
        }
        Ok(())
    }

    /// Waits until it is unmounted and no program has a file open.
    pub async fn ended(&self) {
        while !self.has_ended() {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn has_ended(&self) -> bool {
        self.session.guard.is_finished()
    }
}

/// Unmounts a directory. If programs have files open there, they keep them, and nobody finds the mount any more.
fn take_off(at: &Path) -> Result<()> {
    let unmounted = match rustix::mount::unmount(at, UnmountFlags::empty()) {
        Err(Errno::BUSY) => rustix::mount::unmount(at, UnmountFlags::DETACH).map_err(Into::into),
        // Who is not root has a program for it.
        Err(Errno::PERM) => fusermount(at),
        // Somebody else was faster.
        Err(Errno::INVAL) => Ok(()),
        outcome => outcome.map_err(Into::into),
    };
    unmounted.map_err(|source| Error::Mount { what: "unmount", at: at.to_owned(), source })
}

fn fusermount(at: &Path) -> std::io::Result<()> {
    let output = std::process::Command::new("fusermount3").args(["-u", "-z", "--"]).arg(at).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
