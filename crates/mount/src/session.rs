//! The session of a mount at its site: which stores this host sees, and where files are staged in them.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use percale_api::mounts::Mount;
use percale_client::Client;
use percale_core::ids::{LeaseId, StoreId};
use percale_core::state::ReplicaState;
use percale_core::{ErrorCode, FileMode, ObjectPath};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, errno};

/// A store's number within this mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreNumber(pub u16);

/// Where a file lies that programs write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The store; nothing for the spool of this host.
    pub store: Option<StoreNumber>,
    /// Its name among the staged files; of a file that is written in place, only what the log calls it.
    pub token: Box<str>,
    /// Where it lies in the store, if it is written in place.
    pub key: Option<Box<str>>,
}

impl Place {
    /// Tells whether it is the copy itself that is written.
    pub fn is_the_copy(&self) -> bool {
        self.key.is_some()
    }
}

/// A store that this host sees.
#[derive(Debug)]
struct Seen {
    id: StoreId,
    takes_data: bool,
    is_native: bool,
    root: OwnedFd,
    stage: OwnedFd,
}

/// The session.
#[derive(Debug)]
pub struct Session {
    /// Asks the site.
    pub client: Client,
    id: LeaseId,
    seen: Vec<Seen>,
    /// Where files are written that no store on this host takes.
    spool: OwnedFd,
    spool_path: PathBuf,
    next: AtomicU64,
    prefix: String,
    is_lost: AtomicBool,
}

/// Names of fields that change when the content of a file does.
const CONTENT: StatxFlags = StatxFlags::BASIC_STATS;

impl Session {
    /// Opens the session that is to be gone on with, or a new one if that is over, and looks which stores can be seen.
    ///
    /// # Errors
    /// What the site answers; what the spool's directory answers.
    pub async fn open(client: Client, host: &str, spool: &Path, before: Option<LeaseId>) -> Result<Self> {
        let renewed = match before {
            Some(id) => match client.renew_mount(id).await {
                Ok(mount) => Some(mount),
                Err(error) if is_over(error.code()) => None,
                // It may be there, and what was staged under it.
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let mount = match renewed {
            Some(mount) => mount,
            None => client.open_mount(host).await?,
        };
        std::fs::create_dir_all(spool)
            .map_err(|error| Error::local(format!("cannot make {}", spool.display()), error))?;
        let spool_fd = directory(spool)
            .map_err(|errno| Error::local(format!("cannot open {}", spool.display()), errno.into()))?;
        let seen = mount.stores.iter().filter_map(|store| {
            let root = Path::new(&store.root);
            match see(&mount, root) {
                Ok((root, stage)) => Some(Seen {
                    id: store.id,
                    takes_data: store.takes_data,
                    is_native: store.is_native,
                    root,
                    stage,
                }),
                Err(errno) => {
                    tracing::info!(store = store.name, root = store.root, %errno, "this host does not see a store; its files go over the network");
                    None
                }
            }
        });
        let seen: Vec<Seen> = seen.collect();
        Ok(Self {
            client,
            id: mount.id,
            seen,
            spool: spool_fd,
            spool_path: spool.to_owned(),
            next: AtomicU64::new(0),
            // Tokens of an earlier process of the same session must not come again.
            prefix: format!(
                "{:x}",
                std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_micros()
            ),
            is_lost: AtomicBool::new(false),
        })
    }

    /// Returns the session's id.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Returns how many stores this host sees.
    pub fn stores(&self) -> usize {
        self.seen.len()
    }

    /// Returns the number of a store, if this host sees it.
    pub fn number(&self, id: StoreId) -> Option<StoreNumber> {
        let at = self.seen.iter().position(|seen| seen.id == id)?;
        u16::try_from(at).ok().map(StoreNumber)
    }

    /// Returns the id of a store.
    pub fn store_id(&self, store: StoreNumber) -> Option<StoreId> {
        self.seen.get(usize::from(store.0)).map(|seen| seen.id)
    }

    /// Tells whether the files of a store may be written where they lie.
    pub fn is_native(&self, store: StoreNumber) -> bool {
        self.seen(store).is_ok_and(|seen| seen.is_native)
    }

    /// Tells whether a copy on a store that this host sees may be read there. One that is being written in place may, as on any
    /// file system.
    pub fn is_usable(&self, store: StoreNumber, state: ReplicaState) -> bool {
        state.is_readable() || (state == ReplicaState::Writing && self.is_native(store))
    }

    /// Returns the store that new files go to; nothing if they go to the spool.
    pub fn for_new_data(&self) -> Option<StoreNumber> {
        let at = self.seen.iter().position(|seen| seen.takes_data)?;
        u16::try_from(at).ok().map(StoreNumber)
    }

    fn seen(&self, store: StoreNumber) -> Result<&Seen, Errno> {
        self.seen.get(usize::from(store.0)).ok_or(Errno::STALE)
    }

    /// Opens a copy. No link is followed, and nothing outside the store is opened, whatever lies there.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn open_copy(&self, store: StoreNumber, key: &str) -> Result<File, Errno> {
        self.open_in(store, key, OFlags::RDONLY)
    }

    fn open_in(&self, store: StoreNumber, key: &str, flags: OFlags) -> Result<File, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat2(&self.seen(store)?.root, key, flags, Mode::empty(), resolve)?;
        Ok(File::from(fd))
    }

    /// Looks at a copy.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn stat_copy(&self, store: StoreNumber, key: &str) -> Result<Statx, Errno> {
        rustix::fs::statx(&self.seen(store)?.root, key, AtFlags::SYMLINK_NOFOLLOW, CONTENT)
    }

    /// Returns a name for a staged file that was never used before. Those of a process sort in the order in which they were made.
    pub fn token(&self) -> Box<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number:016x}", self.prefix).into()
    }

    fn stage(&self, store: Option<StoreNumber>) -> Result<&OwnedFd, Errno> {
        match store {
            Some(store) => Ok(&self.seen(store)?.stage),
            None => Ok(&self.spool),
        }
    }

    /// Makes a staged file.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn create_staged(
        &self,
        store: Option<StoreNumber>,
        token: &str,
        mode: FileMode,
    ) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // It belongs to the store's service, which must be able to read it whatever a program wants others to do with it.
        let mode = on_disk(mode);
        Ok(File::from(rustix::fs::openat(self.stage(store)?, token, flags, mode)?))
    }

    /// Opens a file that programs write.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn open_written(&self, place: &Place) -> Result<File, Errno> {
        self.open_at(place, OFlags::RDWR)
    }

    /// Opens a file that programs write, to be read.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn open_to_read(&self, place: &Place) -> Result<File, Errno> {
        self.open_at(place, OFlags::RDONLY)
    }

    fn open_at(&self, place: &Place, flags: OFlags) -> Result<File, Errno> {
        if let (Some(store), Some(key)) = (place.store, &place.key) {
            return self.open_in(store, key, flags);
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(self.stage(place.store)?, &*place.token, flags, Mode::empty())?))
    }

    /// Tells whether a program may still write a staged file that this process does not have open to be written. One that is written
    /// in place is its owner's, who may always: nobody waits for that.
    pub fn is_written(&self, place: &Place) -> bool {
        !place.is_the_copy()
            && self.open_to_read(place).is_ok_and(|file| crate::lease::is_open_for_write(&file))
    }

    /// Looks at a file that programs write.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn stat_written(&self, place: &Place) -> Result<Statx, Errno> {
        match (place.store, &place.key) {
            (Some(store), Some(key)) => self.stat_copy(store, key),
            _ => {
                let stage = self.stage(place.store)?;
                rustix::fs::statx(stage, &*place.token, AtFlags::SYMLINK_NOFOLLOW, CONTENT)
            }
        }
    }

    /// Removes a staged file; one that is written in place stays.
    pub fn discard(&self, place: &Place) {
        let token = &*place.token;
        let Ok(stage) = self.stage(place.store) else { return };
        if place.is_the_copy() {
            return;
        }
        if let Err(errno) = rustix::fs::unlinkat(stage, token, AtFlags::empty())
            && errno != Errno::NOENT
        {
            tracing::warn!(token, %errno, "cannot remove a staged file; it goes when the mount ends");
        }
    }

    /// Returns the path of a file in the spool.
    pub fn spooled(&self, token: &str) -> PathBuf {
        self.spool_path.join(token)
    }

    /// Returns how much room there is where new files go: all and free, in bytes.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn room(&self) -> Result<(u64, u64), Errno> {
        let at = match self.for_new_data() {
            Some(store) => &self.seen(store)?.root,
            None => &self.spool,
        };
        let room = rustix::fs::fstatvfs(at)?;
        Ok((room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize))
    }

    /// Renews the session, or notes that it is over.
    ///
    /// # Errors
    /// What the site answers.
    pub async fn renew(&self) -> Result<()> {
        let renewed = self.client.renew_mount(self.id).await;
        if let Err(error) = &renewed
            && is_over(error.code())
        {
            self.set_lost(error.to_string());
        }
        Ok(renewed.map(drop)?)
    }

    /// Logs that the site does not let this mount look at something, or notes that the session is over. Returns what a program is told.
    pub fn not_seen(&self, path: &ObjectPath, error: &percale_client::Error) -> fuser::Errno {
        if error.code() == ErrorCode::PreconditionFailed {
            self.set_lost(error.to_string());
            return fuser::Errno::EIO;
        }
        tracing::warn!(%path, %error, "cannot look at what is in the fabric");
        errno(error.code())
    }

    /// Notes why nothing can be looked at or published any more, and tells it once.
    pub fn set_lost(&self, why: String) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            tracing::error!(
                session = %self.id, why,
                "the session of this mount is over, as after a host slept for long; unmount it, and mount it again"
            );
        }
    }

    /// Tells whether the session is over, so that nothing can be looked at or published any more.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

/// Tells whether an answer means that a session is not there any more, nor what was staged under it in stores. What lies in the spool is.
pub fn is_over(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NotFound | ErrorCode::LeaseExpired)
}

fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the root of a store and the session's directory there, if it is the store that the site speaks of.
fn see(mount: &Mount, root: &Path) -> Result<(OwnedFd, OwnedFd), Errno> {
    let root = directory(root)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stage = rustix::fs::openat(&root, mount.stage_dir(), flags, Mode::empty())?;
    let proof = rustix::fs::openat(
        &stage,
        Mount::PROOF,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut text = [0_u8; 64];
    let len = rustix::io::read(&proof, &mut text)?;
    // Another store may be mounted at the same place on another host.
    if text.get(..len) == Some(mount.id.to_string().as_bytes()) {
        Ok((root, stage))
    } else {
        Err(Errno::STALE)
    }
}

/// Returns the bits that a file has on disk: this process goes on reading and writing it.
pub fn on_disk(mode: FileMode) -> Mode {
    Mode::from_raw_mode(u32::from(mode.bits()) | 0o600)
}
