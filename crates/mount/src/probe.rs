//! What the kernel takes to read and write itself, asked without a mount.
//!
//! Which files it takes depends on what is below them: a file system that lies on another one, such as overlayfs, may lie on one
//! more, and there it ends. No number tells how deep that is, so the kernel is asked about a file, by a connection like a mount's that
//! is at no directory.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{BackingId, Filesystem, InitFlags, KernelConfig, Request, Session, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::mount::FsOpenFlags;

use crate::ability::Reason;
use crate::error::{Error, Result};

/// How many file systems may lie on each other where the kernel reads and writes itself, the mount counted: the most that it allows. An
/// overlayfs is possible below the mount, then, and none on top of it.
const STACK_DEPTH: u32 = 2;

/// Asks the kernel to read and write files itself. Tells whether it can at all.
pub fn ask_for_passthrough(config: &mut KernelConfig) -> bool {
    config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(STACK_DEPTH).is_ok()
}

/// A connection of a file system to the kernel that is mounted at no directory.
pub struct Probe {
    // Closed before what would be mounted, so that nothing waits for an answer at the end.
    session: Session<Nothing>,
    _context: OwnedFd,
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
    /// Connects. Needs the rights that the kernel asks for ([`crate::ability::lacks_right`]).
    ///
    /// # Errors
    /// What the kernel answers if it does not let itself be asked.
    pub fn begin() -> Result<Result<Self, Reason>> {
        Self::connect().map_err(|error| Error::local("cannot ask the kernel what it reads and writes", error))
    }

    fn connect() -> std::io::Result<Result<Self, Reason>> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let settings = [
            ("fd", device.as_raw_fd().to_string()),
            ("rootmode", "40000".to_owned()),
            ("user_id", user.as_raw().to_string()),
            ("group_id", group.as_raw().to_string()),
        ];
        for (key, value) in &settings {
            rustix::mount::fsconfig_set_string(&context, *key, value.as_str())?;
        }
        rustix::mount::fsconfig_create(&context)?;
        let is_given = Arc::new(AtomicBool::new(false));
        let nothing = Nothing(is_given.clone());
        let session = Session::from_fd(nothing, device, SessionACL::Owner, fuser::Config::default())?;
        if is_given.load(Ordering::Relaxed) {
            return Ok(Ok(Self { session, _context: context }));
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Ok(Err(Reason {
            why: format!(
                "this kernel, Linux {release}, has no passthrough, which came with 6.9 and can be left out"
            ),
            remedy: "A newer one with CONFIG_FUSE_PASSTHROUGH has it; all else works with this one.",
        }))
    }

    /// Has the kernel take a file, until the connection ends.
    ///
    /// # Errors
    /// What it answers if it does not take the file: `ELOOP` if that is too deep.
    pub fn register(&self, file: &File) -> std::io::Result<()> {
        BackingId::create_raw(&self.session, file).map(drop)
    }
}
