//! Which process has the other end of a connection on this machine, as Linux tells it to the same user.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Returns the first of the processes that has a socket from `local` to `remote`. None if no one has, or nothing can be
/// learned.
pub fn find(pids: impl IntoIterator<Item = u32>, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let socket = format!("socket:[{}]", inode(&table, local, remote)?);
    pids.into_iter().find(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        open.into_iter()
            .flatten()
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == Path::new(&socket)))
    })
}

/// Finds a socket's number in the table of proc(5).
fn inode(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<&str> {
    let (local, remote) = (hex(local)?, hex(remote)?);
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_it = fields.get(1) == Some(&local.as_str()) && fields.get(2) == Some(&remote.as_str());
        fields.get(9).copied().filter(|_| is_it)
    })
}

/// An address as the kernel prints it: the bytes of the IP address as a number of this machine.
fn hex(address: SocketAddr) -> Option<String> {
    match address.ip() {
        IpAddr::V4(ip) => Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port())),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_found() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let dialler = std::net::TcpStream::connect(address).unwrap();
        let own = std::process::id();
        let from = dialler.local_addr().unwrap();
        assert_eq!(find([own], from, address), Some(own));
        assert_eq!(find([], from, address), None);
        // A connection that is not there.
        assert_eq!(find([own], from, SocketAddr::from(([127, 0, 0, 1], 1))), None);
    }
}
