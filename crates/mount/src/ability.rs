//! What this host lets a mount do.

use std::os::unix::fs::MetadataExt as _;

use rustix::thread::CapabilitySet;

use crate::error::Result;
use crate::probe::Probe;

/// The number of the host's own user namespace, the same everywhere: `PROC_USER_INIT_INO` of the kernel's `include/linux/proc_ns.h`.
const HOST_NAMESPACE: u64 = 0xEFFF_FFFD;

/// What a mount on this host can be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// The kernel reads and writes local copies itself, where it can on their file system ([`crate::stores`]).
    Passthrough,
    /// Local copies are read and written through the process of the mount, for the reason given.
    Daemon(Reason),
    /// There is none, for the reason given.
    No(Reason),
}

/// Why something is not done as it could be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// What is lacking or refused.
    pub why: String,
    /// What to do about it.
    pub remedy: &'static str,
}

impl Ability {
    /// Looks at the host, and mounts nothing at any directory.
    ///
    /// # Errors
    /// What the kernel answers if it does not let itself be asked.
    pub fn of_this_host() -> Result<Self> {
        let fuse = "/dev/fuse";
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(fuse);
        if let Err(error) = opened {
            let remedy = "In a container, give it /dev/fuse.";
            return Ok(Self::No(Reason { why: format!("{fuse}: {error}"), remedy }));
        }
        if let Some(reason) = lacks_right() {
            return Ok(Self::Daemon(reason));
        }
        Ok(match Probe::begin()? {
            Ok(_) => Self::Passthrough,
            Err(reason) => Self::Daemon(reason),
        })
    }
}

/// Returns what this process lacks for the kernel to take any file from it, whatever the kernel can do.
pub fn lacks_right() -> Option<Reason> {
    let has_right = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    // Where that is not told, the kernel says it when it is asked for a file.
    let namespace = std::fs::metadata("/proc/self/ns/user").map_or(HOST_NAMESPACE, |meta| meta.ino());
    lacking(has_right, namespace)
}

fn lacking(has_right: bool, namespace: u64) -> Option<Reason> {
    if !has_right {
        return Some(Reason {
            why: "this process does not have CAP_SYS_ADMIN, which the kernel asks for".to_owned(),
            remedy: "Mount as root, or as a service of the store's account with AmbientCapabilities=CAP_SYS_ADMIN.",
        });
    }
    (namespace != HOST_NAMESPACE).then(|| Reason {
        why: "this process is in a user namespace, as in a container without root, where its CAP_SYS_ADMIN is not the host's, \
              which the kernel asks for"
            .to_owned(),
        remedy: "Mount on the host itself, or in a container that shares the host's user namespace and has CAP_SYS_ADMIN.",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_lacks_is_named() {
        let why = |has_right, namespace| lacking(has_right, namespace).map(|reason| reason.why);
        assert_eq!(why(true, HOST_NAMESPACE), None);
        assert!(why(false, HOST_NAMESPACE).unwrap().contains("does not have CAP_SYS_ADMIN"));
        // Without the right the namespace does not matter.
        assert!(why(false, 4_026_532_178).unwrap().contains("does not have CAP_SYS_ADMIN"));
        assert!(why(true, 4_026_532_178).unwrap().contains("user namespace"));
    }
}
