//! The buffer that a connection sends from, kept to what the connection may have on its way ([`Line`]).
//!
//! The kernel sizes it by itself until it is told a size, and does not take that back. So it is only bounded where it can
//! be made as large again as it was.

use std::sync::OnceLock;

use percale_mover::{Line, tuning};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::TcpStream;

/// Returns the size to ask for where nothing is bounded any more: that which the kernel itself chooses at most. Nothing if this host does not allow
/// programs so much (`net.core.wmem_max`).
fn free_size() -> Option<usize> {
    static FREE: OnceLock<Option<usize>> = OnceLock::new();
    *FREE.get_or_init(|| {
        let last = |name: &str| -> Option<usize> {
            let values = std::fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
            values.split_whitespace().last()?.parse().ok()
        };
        allowed(last("core/wmem_max")?, last("ipv4/tcp_wmem")?)
    })
}

/// The kernel takes twice of what it is asked for, of which `wmem_max` bounds the question.
fn allowed(wmem_max: usize, tcp_wmem_max: usize) -> Option<usize> {
    Some(tcp_wmem_max / 2).filter(|size| *size <= wmem_max)
}

/// Says whether sockets may be bounded here.
pub fn is_boundable() -> bool {
    free_size().is_some()
}

/// What carries a stream, and what that was last told.
pub struct Socket<S> {
    line: Line,
    tcp: fn(&S) -> &TcpStream,
    most: Option<u64>,
}

impl<S> Socket<S> {
    /// `tcp` returns the socket of a stream.
    pub fn new(line: Line, tcp: fn(&S) -> &TcpStream) -> Self {
        Self { line, tcp, most: None }
    }

    /// Returns the line that it is kept to.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Tells the kernel what changed since the last time. What it has is sent all the same: it only takes no more until that is less.
    pub fn keep(&mut self, stream: &S) {
        let most = self.line.most();
        if most == self.most {
            return;
        }
        self.most = most;
        let Some(free) = free_size() else { return };
        let size = most.map_or(free, |most| tuning::buffer_for(most).min(free));
        if let Err(error) = set_socket_send_buffer_size((self.tcp)(stream), size) {
            tracing::debug!(%error, "the kernel does not size the buffer of a connection");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use percale_mover::Flight;
    use rustix::net::sockopt::socket_send_buffer_size;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_buffer_is_only_bounded_where_it_can_grow_again() {
        assert_eq!(allowed(212_992, 4 << 20), None, "an untuned host");
        assert_eq!(allowed(2 << 20, 4 << 20), Some(2 << 20));
        assert_eq!(allowed(64 << 20, 64 << 20), Some(32 << 20));
    }

    #[tokio::test]
    async fn a_socket_is_bounded_and_let_go_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let line = Line::new(Duration::from_millis(50));
        let mut socket = Socket::new(line.clone(), |stream| stream);
        let untouched = socket_send_buffer_size(&tcp).unwrap();
        socket.keep(&tcp);
        assert_eq!(socket_send_buffer_size(&tcp).unwrap(), untouched);

        let flight = Arc::new(Flight::default());
        let aboard = flight.board(line.clone());
        // Two looks at 20 MB/s.
        for _ in 0..22 {
            aboard.moved(2_000_000);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let most = line.most().expect("it is bounded");
        socket.keep(&tcp);
        let Some(free) = free_size() else {
            assert_eq!(socket_send_buffer_size(&tcp).unwrap(), untouched, "this host does not allow it");
            return;
        };
        assert_eq!(socket_send_buffer_size(&tcp).unwrap(), 2 * tuning::buffer_for(most));
        drop(aboard);
        socket.keep(&tcp);
        assert_eq!(socket_send_buffer_size(&tcp).unwrap(), 2 * free);
    }
}
