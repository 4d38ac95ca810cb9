//! A link between two sites that can be cut without a word: what is sent goes nowhere, and nobody is told.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// Most bytes that are passed on at once.
const PIECE: usize = 16 << 10;

/// A direction on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From who dials.
    There,
    /// To who dials.
    Back,
}

/// A port in front of another one. Ends when dropped.
///
/// While it is cut, connections come about and nothing moves on them, as behind a firewall that drops packets. A connection
/// that was there when it was cut, or came while it was, stays silent for good, also once the link is mended; neither end
/// hears of it when the other one closes.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<Option<SocketAddr>>,
    state: Mutex<State>,
    pace: Mutex<Pace>,
    /// Grows with each cut.
    cuts: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    is_cut: bool,
    /// Bytes that still pass in a direction before it is cut.
    after: Option<(Way, usize)>,
    /// Bytes that still pass in a direction before the connection that carries the next ones falls silent.
    silent_after: Option<(Way, usize)>,
    /// Bytes that have passed, there and back.
    passed: [usize; 2],
}

/// How fast bytes pass.
#[derive(Debug, Default)]
struct Pace {
    bytes_per_second: Option<u32>,
    /// When the next bytes may pass.
    next: Option<Instant>,
}

impl Link {
    /// Takes a port.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("cannot listen on loopback");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            target: Mutex::default(),
            state: Mutex::default(),
            pace: Mutex::default(),
            cuts: watch::channel(0).0,
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, accepting }
    }

    /// Returns what to dial.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Sets where it leads to.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
    }

    /// Cuts it once so many more bytes have passed in a direction; with 0 now.
    pub fn cut_after(&self, way: Way, bytes: usize) {
        self.shared.state().after = Some((way, bytes));
        if bytes == 0 {
            self.shared.cut();
        }
    }

    /// Silences one connection for good in a direction, the one that carries the next bytes once so many more have passed there. All
    /// others go on.
    pub fn silence_one_after(&self, way: Way, bytes: usize) {
        self.shared.state().silent_after = Some((way, bytes));
    }

    /// Tells whether the connection that was to be silenced is not silent yet.
    pub fn is_to_be_silenced(&self) -> bool {
        self.shared.state().silent_after.is_some()
    }

    /// Lets only so many bytes pass in a second, in both directions together. Whoever receives keeps up then, and what has
    /// passed has arrived, but for a few pieces.
    pub fn limit(&self, bytes_per_second: u32) {
        let pace = Pace { bytes_per_second: Some(bytes_per_second), next: None };
        *self.shared.pace.lock().unwrap_or_else(PoisonError::into_inner) = pace;
    }

    /// Returns how many bytes have passed in a direction since it was started or mended.
    pub fn passed(&self, way: Way) -> usize {
        self.shared.state().passed[way as usize]
    }

    /// Tells whether it is cut.
    pub fn is_cut(&self) -> bool {
        self.shared.state().is_cut
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        *self.shared.state() = State::default();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        *self.state() = State { is_cut: true, ..State::default() };
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Returns when these bytes may pass, if not now.
    fn turn(&self, bytes: usize) -> Option<Instant> {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = pace.bytes_per_second?;
        let turn = pace.next.unwrap_or_else(Instant::now).max(Instant::now());
        pace.next = Some(turn + Duration::from_secs_f64(bytes as f64 / f64::from(rate)));
        Some(turn)
    }

    /// Returns how many of these bytes still pass.
    fn pass(&self, way: Way, bytes: usize) -> usize {
        let mut state = self.state();
        state.passed[way as usize] += bytes;
        if let Some((watched, left)) = &mut state.silent_after
            && *watched == way
        {
            let passed = *left;
            *left = left.saturating_sub(bytes);
            if passed < bytes {
                state.silent_after = None;
                return passed;
            }
        }
        match &mut state.after {
            Some((watched, left)) if *watched == way => {
                let passed = bytes.min(*left);
                *left -= passed;
                let is_over = *left == 0;
                drop(state);
                if is_over {
                    self.cut();
                }
                passed
            }
            _ => bytes,
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // They end with this.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        connections.spawn(connection(near, shared.clone()));
    }
}

async fn connection(mut near: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let began = *cuts.borrow_and_update();
    let is_silent = shared.state().is_cut;
    let target = *shared.target.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(target), false) = (target, is_silent) else { return std::future::pending().await };
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let carried = {
        let (mut from_near, mut to_near) = near.split();
        let (mut from_far, mut to_far) = far.split();
        let carry = async {
            tokio::try_join!(
                carry(&mut from_near, &mut to_far, Way::There, &shared),
                carry(&mut from_far, &mut to_near, Way::Back, &shared)
            )
        };
        tokio::select! {
            biased;
            _ = cuts.wait_for(|cuts| *cuts > began) => None,
            carried = carry => Some(carried),
        }
    };
    if carried.is_none() {
        // Both ends stay open.
        std::future::pending::<()>().await;
    }
}

async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    way: Way,
    shared: &Shared,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if let Some(turn) = shared.turn(read) {
            tokio::time::sleep_until(turn).await;
        }
        let passed = shared.pass(way, read);
        to.write_all(piece.get(..passed).unwrap_or_default()).await?;
        if passed < read {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn say(socket: &mut TcpStream) -> bool {
        socket.write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        tokio::time::timeout(Duration::from_millis(200), socket.read_exact(&mut heard)).await.is_ok()
    }

    async fn echoing() -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::start().await;
        link.lead_to(listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = socket.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        link
    }

    #[tokio::test]
    async fn one_connection_falls_silent() {
        let link = echoing().await;
        let mut one = TcpStream::connect(link.address).await.unwrap();
        let mut other = TcpStream::connect(link.address).await.unwrap();
        link.silence_one_after(Way::Back, 6);
        assert!(say(&mut one).await && link.is_to_be_silenced());
        assert!(!say(&mut one).await && !link.is_to_be_silenced());
        assert!(say(&mut other).await && !say(&mut one).await);
    }

    #[tokio::test]
    async fn a_cut_is_silent_and_only_new_connections_come_back() {
        let link = echoing().await;
        let mut old = TcpStream::connect(link.address).await.unwrap();
        assert!(say(&mut old).await);
        link.cut_after(Way::Back, 6);
        assert!(say(&mut old).await && !link.is_cut());
        assert!(!say(&mut old).await && link.is_cut(), "two more bytes came, and then nothing");
        let mut meanwhile = TcpStream::connect(link.address).await.unwrap();
        assert!(!say(&mut meanwhile).await);
        link.mend();
        assert!(!say(&mut old).await && !say(&mut meanwhile).await, "they are dead for good");
        let mut new = TcpStream::connect(link.address).await.unwrap();
        assert!(say(&mut new).await);
    }
}
