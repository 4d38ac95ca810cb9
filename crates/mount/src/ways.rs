//! How a mount on this host would read and write the copies on each store of its site, found out without a mount.
//!
//! Which files the kernel takes depends on what is below them: a file system that lies on another one, such as overlayfs, may lie on one
//! more, and there it ends. No number tells how deep that is, so the kernel is asked about a file of the store, by a connection like a
//! mount's that is at no directory.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{BackingId, Filesystem, InitFlags, KernelConfig, Request, Session, SessionACL};
use percale_client::Client;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::ability::{Ability, Lack};
use crate::error::{Error, Result};
use crate::session::see;

/// File systems that lie on others: their numbers in `include/uapi/linux/magic.h`, and their names.
const STACKED: [(u64, &str); 3] =
    [(0x794c_7630, "overlayfs"), (0x6573_5546, "a FUSE file system"), (0xf15f, "ecryptfs")];
/// How many file systems may lie on each other where the kernel reads and writes itself, the mount counted: the most that it allows. An
/// overlayfs is possible below the mount, then, and none on top of it.
const STACK_DEPTH: u32 = 2;

/// A store of the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Its name.
    pub name: String,
    /// Its directory on the hosts that see it.
    pub root: String,
    /// How its copies are read and written.
    pub way: Way,
}

/// How copies are read and written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// By the kernel itself.
    Kernel,
    /// Through the process of the mount, for want of something.
    Daemon(Lack),
    /// Over the network, since this host does not see the store, for the reason given.
    Network(String),
}

/// Looks at the stores of a site that are directories. Opens a session there, as a mount does, and ends it.
///
/// # Errors
/// What the site answers; what the kernel answers if it does not let itself be asked.
pub async fn stores(client: &Client, host: &str) -> Result<Vec<Store>> {
    let probe = match Ability::of_this_host() {
        Ability::Passthrough => Probe::begin()
            .map_err(|error| Error::local("cannot ask the kernel which files it takes", error))?
            .ok_or_else(|| Lack {
                why: "this kernel was built without passthrough".to_owned(),
                remedy: "One with CONFIG_FUSE_PASSTHROUGH has it; all else works with this one.",
            }),
        Ability::Daemon(lack) | Ability::No(lack) => Err(lack),
    };
    let mount = client.open_mount(host).await?;
    let way = |root: &str| match (see(&mount, Path::new(root)), &probe) {
        (Err(errno), _) => Way::Network(errno.to_string()),
        (Ok(seen), Ok(probe)) => probe.way(&seen.proof),
        (Ok(_), Err(lack)) => Way::Daemon(lack.clone()),
    };
    let stores = mount.stores.iter();
    let stores = stores
        .map(|store| Store { name: store.name.clone(), root: store.root.clone(), way: way(&store.root) })
        .collect();
    // If it cannot be ended, it lapses.
    let _ = client.end_mount(mount.id).await;
    Ok(stores)
}

/// Asks the kernel to read and write files itself. Tells whether it can at all.
pub fn ask_for_passthrough(config: &mut KernelConfig) -> bool {
    config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(STACK_DEPTH).is_ok()
}

/// A connection of a file system to the kernel that is mounted at no directory.
struct Probe {
    // Closed before what would be mounted, so that nothing waits for an answer at the end.
    session: Session<Nothing>,
    _mounted: OwnedFd,
}

/// A file system that is asked for nothing, but notes whether the kernel has passthrough.
struct Nothing(Arc<AtomicBool>);

impl Filesystem for Nothing {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.0.store(ask_for_passthrough(config), Ordering::Relaxed);
        Ok(())
    }
}

impl Probe {
    /// Connects; nothing if the kernel has no passthrough.
    fn begin() -> std::io::Result<Option<Self>> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let wanted = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let settings = [
            ("fd", device.as_raw_fd().to_string()),
            ("rootmode", "40000".to_owned()),
            ("user_id", user.as_raw().to_string()),
            ("group_id", group.as_raw().to_string()),
        ];
        for (key, value) in &settings {
            rustix::mount::fsconfig_set_string(&wanted, *key, value.as_str())?;
        }
        rustix::mount::fsconfig_create(&wanted)?;
        let _mounted = rustix::mount::fsmount(
            &wanted,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::MOUNT_ATTR_NOSUID,
        )?;
        let is_given = Arc::new(AtomicBool::new(false));
        let nothing = Nothing(is_given.clone());
        let session = Session::from_fd(nothing, device, SessionACL::Owner, fuser::Config::default())?;
        Ok(is_given.load(Ordering::Relaxed).then_some(Self { session, _mounted }))
    }

    /// Returns how a file is read and written. What is registered goes with the connection.
    fn way(&self, file: &File) -> Way {
        let Err(error) = BackingId::create_raw(&self.session, file) else { return Way::Kernel };
        let kind = rustix::fs::fstatfs(file).ok().and_then(|stat| stacked(stat.f_type as u64));
        Way::Daemon(refused(&error, kind))
    }
}

/// Returns the name of a file system, by its number, if it lies on others.
fn stacked(magic: u64) -> Option<&'static str> {
    STACKED.into_iter().find(|(number, _)| *number == magic).map(|(_, name)| name)
}

/// Says why the kernel does not take a file.
fn refused(error: &std::io::Error, stacked: Option<&str>) -> Lack {
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        let kind = stacked.unwrap_or("a file system");
        return Lack {
            why: format!(
                "it is on {kind} that lies on other file systems, in more layers than the kernel goes through below a mount"
            ),
            remedy: "Give the store a directory of the file system at the bottom, in a container as a volume.",
        };
    }
    Lack {
        why: format!("the kernel does not take its files: {error}"),
        remedy: "Nothing has to be done; give the store a directory of another file system if it is too slow.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacked_file_systems_are_told_by_their_numbers() {
        assert_eq!(stacked(0x794c_7630), Some("overlayfs"));
        assert_eq!(stacked(0x6573_5546), Some("a FUSE file system"));
        // ext4, tmpfs, XFS, NFS
        for magic in [0xef53, 0x0102_1994, 0x5846_5342, 0x6969] {
            assert_eq!(stacked(magic), None);
        }
    }

    #[test]
    fn a_refusal_names_what_the_store_is_on() {
        let because = |errno: Errno| refused(&errno.into(), stacked(0x794c_7630)).why;
        assert!(because(Errno::LOOP).contains("overlayfs that lies on other file systems"));
        assert!(because(Errno::PERM).contains("Operation not permitted"));
    }
}
