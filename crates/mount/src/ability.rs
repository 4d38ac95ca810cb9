//! What this host lets a mount do.

use std::os::unix::fs::MetadataExt as _;

use rustix::thread::CapabilitySet;

/// Kernel with FUSE passthrough: 6.9, of May 2024.
const PASSTHROUGH: (u32, u32) = (6, 9);
/// The number of the host's own user namespace, the same everywhere: `PROC_USER_INIT_INO` of the kernel's `include/linux/proc_ns.h`.
const HOST_NAMESPACE: u64 = 0xEFFF_FFFD;

/// What a mount on this host can be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// The kernel reads and writes local copies itself, where it can on their file system ([`crate::stores`]).
    Passthrough,
    /// Local copies are read and written through the process of the mount, for want of something.
    Daemon(Lack),
    /// There is none, for want of something.
    No(Lack),
}

/// What a host or a store lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// What it is, and why it is needed.
    pub why: String,
    /// What to do to have it.
    pub remedy: &'static str,
}

impl Ability {
    /// Looks at the host, and mounts nothing.
    pub fn of_this_host() -> Self {
        let fuse = "/dev/fuse";
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(fuse);
        if let Err(error) = opened {
            let remedy = "In a container, give it /dev/fuse.";
            return Self::No(Lack { why: format!("{fuse}: {error}"), remedy });
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let has_right = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        // Where that is not told, the kernel says it when it is asked for a file.
        let namespace = std::fs::metadata("/proc/self/ns/user").map_or(HOST_NAMESPACE, |meta| meta.ino());
        match lack(&release, has_right, namespace) {
            Some(lack) => Self::Daemon(lack),
            None => Self::Passthrough,
        }
    }
}

/// Returns what keeps the kernel from reading and writing files itself, whatever file system they are on.
fn lack(release: &str, has_right: bool, namespace: u64) -> Option<Lack> {
    let (major, minor) = PASSTHROUGH;
    if version(release).is_none_or(|version| version < PASSTHROUGH) {
        let why = format!("this is Linux {release}, and passthrough came with {major}.{minor}");
        return Some(Lack { why, remedy: "A newer kernel has it; all else works with this one." });
    }
    if !has_right {
        return Some(Lack {
            why: "this process does not have CAP_SYS_ADMIN, which the kernel asks for".to_owned(),
            remedy: "Mount as root, or as a service of the store's account with AmbientCapabilities=CAP_SYS_ADMIN.",
        });
    }
    (namespace != HOST_NAMESPACE).then(|| Lack {
        why: "this process is in a user namespace, as in a container without root, where its CAP_SYS_ADMIN is not the host's, \
              which the kernel asks for"
            .to_owned(),
        remedy: "Mount on the host itself, or in a container that shares the host's user namespace and has CAP_SYS_ADMIN.",
    })
}

/// Reads the first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels_are_understood() {
        assert_eq!(version("6.18.0"), Some((6, 18)));
        assert_eq!(version("5.15.0-1056-aws"), Some((5, 15)));
        assert_eq!(version("6.9-rc1"), Some((6, 9)));
        assert_eq!(version("strange"), None);
    }

    #[test]
    fn what_a_host_lacks_is_named() {
        let why = |release, has_right, namespace| lack(release, has_right, namespace).map(|lack| lack.why);
        assert_eq!(why("6.9.0", true, HOST_NAMESPACE), None);
        assert!(why("6.8.0", true, HOST_NAMESPACE).unwrap().contains("Linux 6.8.0"));
        assert!(why("6.9.0", false, HOST_NAMESPACE).unwrap().contains("does not have CAP_SYS_ADMIN"));
        // Without the right the namespace does not matter.
        assert!(why("6.9.0", false, 4_026_532_178).unwrap().contains("does not have CAP_SYS_ADMIN"));
        assert!(why("6.9.0", true, 4_026_532_178).unwrap().contains("user namespace"));
    }
}
