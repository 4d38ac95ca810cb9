//! Whether a program can still write a file that this process has closed: one that a killed mount handed to the kernel stays open, and
//! a mapping outlives the descriptor that it was made by.
//!
//! The kernel grants a read lease on a file only while nobody has it open or mapped to be written, so it is asked for one, which is
//! given up at once. No library in the tree makes this call, so it is made here, and `unsafe` is allowed in this module alone.

#![allow(
    unsafe_code,
    reason = "fcntl takes any kind of argument; here they are numbers, of which it reads no memory"
)]

use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Chooses the signal that the holder of a lease gets. The same on every architecture that Linux is used on; `libc` does not have it.
const F_SETSIG: libc::c_int = 10;
/// File systems that grant leases by what their server lets them keep, not by who has a file open here.
const BY_SERVER: [u32; 3] = [0x6969, 0xff53_4d42, 0xfe53_4d42];

/// Tells whether anybody may still write a file, which must be open to be read only, and nowhere else in this process to be written.
/// Where there are no leases nobody is known to.
pub fn is_open_for_write(file: &File) -> bool {
    // Whoever opens it just then has the holder told; of all signals this one is of no consequence, the usual one ends the process.
    if set(file, F_SETSIG, libc::SIGURG).is_err() {
        return false;
    }
    match set(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            // Closing it gives it up, too.
            let _ = set(file, libc::F_SETLEASE, libc::F_UNLCK);
            false
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            let is_by_server =
                rustix::fs::fstatfs(file).is_ok_and(|stat| BY_SERVER.contains(&(stat.f_type as u32)));
            !is_by_server
        }
        Err(_) => false,
    }
}

fn set(file: &File, what: libc::c_int, value: libc::c_int) -> std::io::Result<()> {
    // SAFETY: the descriptor is open as long as `file` is borrowed, and both commands take a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), what, value) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_file_open_to_write_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writer = File::create(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert!(is_open_for_write(&file));
        drop(writer);
        assert!(!is_open_for_write(&file), "only open to be read");
        // It was given up: nobody waits for it.
        drop(File::options().write(true).open(&path).unwrap());
    }
}
