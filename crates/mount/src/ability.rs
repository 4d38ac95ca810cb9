//! What this host lets a mount do.

use rustix::thread::CapabilitySet;

/// Kernel with FUSE passthrough: 6.9, of May 2024.
const PASSTHROUGH: (u32, u32) = (6, 9);

/// What a mount on this host can be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// The kernel reads and writes local copies itself, where it knows the file system below.
    Passthrough,
    /// Local copies are read and written through the process of the mount, for the reason given.
    Daemon(String),
    /// There is none, for the reason given.
    No(String),
}

impl Ability {
    /// Looks at the host, and mounts nothing.
    pub fn of_this_host() -> Self {
        let fuse = "/dev/fuse";
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(fuse);
        if let Err(error) = opened {
            return Self::No(format!("{fuse}: {error}"));
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if version(&release).is_none_or(|version| version < PASSTHROUGH) {
            let (major, minor) = PASSTHROUGH;
            return Self::Daemon(format!("Linux {release}; passthrough came with {major}.{minor}"));
        }
        let has_right = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        match has_right {
            true => Self::Passthrough,
            false => Self::Daemon("this process does not have CAP_SYS_ADMIN".to_owned()),
        }
    }
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
}
