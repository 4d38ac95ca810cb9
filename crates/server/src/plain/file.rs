//! Bytes that the operating system takes from a file onto a connection without anybody here looking at them (`sendfile`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use percale_core::ByteRange;
use percale_store::FileRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// For how long a thread waits for the connection to take more before it is given back: longer than a busy reader on the same host
/// takes, and short beside a network's round trip.
const LINGER: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// Bytes that are read at a time where the file system does not hand them to the connection itself.
const READ: usize = 256 << 10;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Sends bytes of a file. A file that ends before them breaks the stream.
///
/// # Errors
/// The connection broke, or took nothing for `stall`; the file cannot be read.
pub(super) async fn send(connection: &TcpStream, part: FileRange, stall: Duration) -> io::Result<()> {
    let socket = Arc::new(connection.as_fd().try_clone_to_owned()?);
    let FileRange { file, range } = part;
    let mut left = range;
    loop {
        let (to, from) = (socket.clone(), file.clone());
        // The file may have to come from a disk.
        let sent = tokio::task::spawn_blocking(move || send_while_taken(&to, &from, left));
        left = sent.await.map_err(io::Error::other)??;
        if left.is_empty() {
            return Ok(());
        }
        // Asked within, so that a connection that became ready just now is not waited for.
        let ready = connection.async_io(Interest::WRITABLE, || match is_ready(connection, &AT_ONCE)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
        tokio::time::timeout(stall, ready).await??;
    }
}

/// Sends as much as the connection takes; returns what is left.
fn send_while_taken(to: &OwnedFd, from: &OwnedFd, range: ByteRange) -> io::Result<ByteRange> {
    let mut at = range.start();
    let mut is_read = false;
    while at < range.end() {
        let len = usize::try_from(range.end() - at).unwrap_or(usize::MAX);
        let send = if is_read { send_read } else { send_from_file };
        match send(to, from, at, len) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter")),
            Ok(sent) => at += sent as u64,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if is_ready(to, &LINGER)? => {}
            Err(Errno::AGAIN) => break,
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if !is_read => is_read = true,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(ByteRange::at(at, range.end() - at))
}

fn send_from_file(to: &OwnedFd, from: &OwnedFd, mut at: u64, len: usize) -> Result<usize, Errno> {
    rustix::fs::sendfile(to, from, Some(&mut at), len)
}

/// Sends the first bytes of what is there; sent is less than was read where the connection does not take more.
fn send_read(to: &OwnedFd, from: &OwnedFd, at: u64, len: usize) -> Result<usize, Errno> {
    let mut piece = vec![0; len.min(READ)];
    let len = rustix::io::pread(from, &mut piece[..], at)?;
    rustix::net::send(to, &piece[..len], SendFlags::NOSIGNAL)
}

fn is_ready(connection: impl AsFd, patience: &Timespec) -> io::Result<bool> {
    let mut wanted = [PollFd::new(&connection, PollFlags::OUT)];
    match poll(&mut wanted, Some(patience)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (listener.accept().await.unwrap().0, far)
    }

    fn file(bytes: &[u8]) -> Arc<OwnedFd> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file.into())
    }

    #[tokio::test]
    async fn a_slow_reader_gets_every_byte() {
        let (near, mut far) = connected().await;
        let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at % 251) as u8).collect();
        let range = ByteRange::at(5, 9_000_000 - 7);
        let part = FileRange { file: file(&bytes), range };
        let send = tokio::spawn(async move { send(&near, part, Duration::from_secs(60)).await });
        let mut got = Vec::new();
        // Now and then a little, so that the sender's thread is given back.
        while got.len() < range.len() as usize {
            tokio::time::sleep(Duration::from_millis(7)).await;
            let mut piece = vec![0; 1 << 20];
            let len = far.read(&mut piece).await.unwrap();
            assert_ne!(len, 0);
            got.extend_from_slice(&piece[..len]);
        }
        send.await.unwrap().unwrap();
        assert!(got == bytes[5..9_000_000 - 2]);
    }

    #[tokio::test]
    async fn what_the_file_system_does_not_hand_on_is_read() {
        let (near, mut far) = connected().await;
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 241) as u8).collect();
        let from = file(&bytes);
        let near = near.into_std().unwrap();
        let near: OwnedFd = near.into();
        let sent = send_read(&near, &from, 7, bytes.len() - 7).unwrap();
        assert!((1..=READ).contains(&sent));
        let mut got = vec![0; sent];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == bytes[7..7 + sent]);
        assert_eq!(send_read(&near, &from, bytes.len() as u64, 5), Ok(0), "the end of the file");
    }

    #[tokio::test]
    async fn a_file_that_ends_early_breaks_the_stream() {
        let (near, _far) = connected().await;
        let part = FileRange { file: file(b"short"), range: ByteRange::at(0, 100) };
        let error = send(&near, part, Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn who_takes_nothing_is_given_up() {
        let (near, _far) = connected().await;
        let part = FileRange { file: file(&vec![7; 64 << 20]), range: ByteRange::at(0, 64 << 20) };
        let error = send(&near, part, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
