//! How a mount on this host would read and write the copies on each store of its site. Nothing is opened at the site for it, and
//! nothing is left.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percale_client::Client;
use percale_core::ids::StoreId;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::ability::{Ability, Reason};
use crate::error::Result;
use crate::probe::Probe;

/// File systems that lie on others: their numbers in `include/uapi/linux/magic.h`, and their names.
const STACKED: [(u64, &str); 3] =
    [(0x794c_7630, "overlayfs"), (0x6573_5546, "a FUSE file system"), (0xf15f, "ecryptfs")];
/// The file that a store has in its root: a line with its format, and one with the store's id.
const MARKER: &str = ".percale/store";
/// How long the stores are looked at. A network file system whose server is gone does not answer at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// A store of the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreAccess {
    /// Its name.
    pub name: String,
    /// Its directory on the hosts that see it.
    pub root: String,
    /// How its copies are read and written.
    pub access: Access,
}

/// How copies are read and written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// By the kernel itself.
    Kernel,
    /// Through the process of the mount, for a reason of the host or the store.
    Daemon(Reason),
    /// Over the network, since this host does not see the store, for the reason given.
    Network(String),
}

/// A file of a store, and the number of the file system that it is on.
struct Marker {
    file: File,
    magic: Option<u64>,
}

/// Looks at the stores of a site that are directories, on a host that lets a mount do so much. One that does not answer for 5 s is not
/// seen. There are none where nothing can be mounted.
///
/// # Errors
/// What the site answers: `forbidden` to others than administrators. What the kernel answers if it does not let itself be asked.
pub async fn stores(client: &Client, host: &Ability) -> Result<Vec<StoreAccess>> {
    if matches!(host, Ability::No(_)) {
        return Ok(Vec::new());
    }
    let mut looks = Vec::new();
    for store in client.all_stores().await? {
        if let Some(root) = directory(&store) {
            let at = PathBuf::from(&root);
            looks.push((store.name, root, tokio::task::spawn_blocking(move || marker(&at, store.id))));
        }
    }
    let until = Instant::now() + PATIENCE;
    let mut found = Vec::with_capacity(looks.len());
    for (name, root, look) in looks {
        let marker = match tokio::time::timeout_at(until, look).await {
            Ok(Ok(marker)) => marker,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("its file system does not answer within {} s", PATIENCE.as_secs())),
        };
        found.push((name, root, marker));
    }
    // Nothing is waited for while it is there.
    let probe = match host {
        Ability::Passthrough => Probe::begin()?,
        Ability::Daemon(reason) | Ability::No(reason) => Err(reason.clone()),
    };
    let access = |marker: Result<Marker, String>| match (marker, &probe) {
        (Err(why), _) => Access::Network(why),
        (Ok(_), Err(reason)) => Access::Daemon(reason.clone()),
        (Ok(Marker { file, magic }), Ok(probe)) => match probe.register(&file) {
            Ok(()) => Access::Kernel,
            Err(error) => Access::Daemon(refused(&error, magic.and_then(stacked))),
        },
    };
    let stores = found.into_iter();
    Ok(stores.map(|(name, root, marker)| StoreAccess { name, root, access: access(marker) }).collect())
}

/// Returns the directory that a store is; nothing for other storages, and where files belong to mapped accounts, which no mount has.
fn directory(store: &percale_api::spaces::Store) -> Option<String> {
    let is_mapped = store.config.get("identity").is_some_and(|identity| identity == "mapped");
    let is_directory = store.connector == "posix" && !is_mapped;
    is_directory.then(|| store.config.get("root")?.as_str().map(str::to_owned)).flatten()
}

/// Opens a file of a store, if its directory is here. Says in words why not.
fn marker(root: &Path, id: StoreId) -> Result<Marker, String> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, directory, Mode::empty()).map_err(|errno| errno.to_string())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = match rustix::fs::openat2(&root, MARKER, flags, Mode::empty(), resolve) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Err("another directory is there".to_owned()),
        Err(errno) => return Err(errno.to_string()),
    };
    let mut text = [0_u8; 256];
    let len = rustix::io::read(&file, &mut text).map_err(|errno| errno.to_string())?;
    let text = String::from_utf8_lossy(text.get(..len).unwrap_or_default());
    if text.lines().nth(1) != Some(&*id.to_string()) {
        return Err("another store is there".to_owned());
    }
    let magic = rustix::fs::fstatfs(&file).ok().map(|stat| stat.f_type as u64);
    Ok(Marker { file, magic })
}

/// Returns the name of a file system, by its number, if it lies on others.
fn stacked(magic: u64) -> Option<&'static str> {
    STACKED.into_iter().find(|(number, _)| *number == magic).map(|(_, name)| name)
}

/// Says why the kernel does not take a file.
fn refused(error: &std::io::Error, stacked: Option<&str>) -> Reason {
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        let kind = stacked.unwrap_or("a file system");
        return Reason {
            why: format!(
                "it is on {kind} that lies on other file systems, in more layers than the kernel goes through below a mount"
            ),
            remedy: "Give the store a directory of the file system at the bottom, in a container as a volume.",
        };
    }
    Reason {
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

    #[test]
    fn what_is_not_the_directory_of_the_store_is_told_in_words() {
        let root = tempfile::tempdir().unwrap();
        let id: StoreId = "01999999-0000-7000-8000-000000000001".parse().unwrap();
        let why = |root: &Path| marker(root, id).err();
        assert_eq!(why(root.path()).unwrap(), "another directory is there");
        std::fs::create_dir(root.path().join(".percale")).unwrap();
        std::fs::write(root.path().join(MARKER), "a format\n01999999-0000-7000-8000-000000000002\n").unwrap();
        assert_eq!(why(root.path()).unwrap(), "another store is there");
        std::fs::write(root.path().join(MARKER), format!("a format\n{id}\n")).unwrap();
        assert_eq!(why(root.path()), None);
        assert!(why(&root.path().join("none")).unwrap().contains("No such file or directory"));
    }
}
