//! An emulated network between the demo's sites, inside this process and on loopback, so that nobody needs root.
//!
//! Sites are numbered. Each is reached at a port of this process; every connection to it is passed on to where it listens.
//! What goes from one site to another travels on the *lane* of that ordered pair, which all connections between the two
//! share as they would share a link: it lets so many bytes through in a second, and each byte arrives a delay later. A
//! connection that is opened waits a round trip, as the handshake of TCP does. A site can be cut off: its connections
//! break, and new ones are broken at once.
//!
//! Not emulated: loss, and TCP's slow start. Each connection holds no more than its lane has on the way, and a little.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Most bytes that are taken from a connection at once.
const CHUNK: usize = 64 << 10;
/// A buffer with less room than this is not read into any more.
const LEAST_ROOM: usize = 4 << 10;
/// Pieces on the way of one connection.
const QUEUE: usize = 1024;
/// By how much a lane may run ahead of its rate: the timer is no finer than a millisecond.
const AHEAD: Duration = Duration::from_millis(2);

/// How links are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// Time from one end to the other; a round trip is twice as long.
    pub delay: Duration,
    /// What goes through, in bits per second and direction; at least 1.
    pub bits_per_second: u64,
}

/// Tells which site has the far end of a connection, given that end's address and the near end's. None for anybody else,
/// who has links of his own.
pub type WhoDials = dyn Fn(SocketAddr, SocketAddr) -> Option<usize> + Send + Sync;

/// The network. It ends when dropped.
pub struct Network {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    options: LinkOptions,
    /// By source and then target; the last of each stands for whoever is no site.
    lanes: Vec<Vec<Lane>>,
    /// Which sites are cut off.
    cut: watch::Sender<Vec<bool>>,
    who_dials: Box<WhoDials>,
}

impl Network {
    /// Starts the network in front of sites that listen, or will, at `targets`. `ports` are the ones that sites are to be
    /// reached at; 0 takes a free one.
    ///
    /// # Errors
    /// A port is taken.
    pub async fn start(
        options: LinkOptions,
        ports: &[u16],
        targets: &[SocketAddr],
        who_dials: Box<WhoDials>,
    ) -> anyhow::Result<Self> {
        let row = || (0..=targets.len()).map(|_| Lane::new(options)).collect();
        let shared = Arc::new(Shared {
            options,
            lanes: (0..=targets.len()).map(|_| row()).collect(),
            cut: watch::channel(vec![false; targets.len()]).0,
            who_dials,
        });
        let stopping = CancellationToken::new();
        let mut addresses = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            let port = ports.get(number).copied().unwrap_or_default();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .await
                .with_context(|| format!("cannot listen on port {port} for the emulated network"))?;
            addresses.push(listener.local_addr()?);
            tokio::spawn(accept(listener, number, *target, shared.clone(), stopping.clone()));
        }
        Ok(Self { addresses, shared, _stop: stopping.drop_guard() })
    }

    /// Returns where the other sites reach a site.
    pub fn address(&self, site: usize) -> SocketAddr {
        self.addresses[site]
    }

    /// Cuts a site off from all others.
    pub fn cut(&self, site: usize) {
        self.shared.cut.send_modify(|cut| cut[site] = true);
    }

    /// Connects a site again.
    pub fn heal(&self, site: usize) {
        self.shared.cut.send_modify(|cut| cut[site] = false);
    }
}

impl LinkOptions {
    /// Returns how many megabytes go through in a second.
    pub fn mb_per_s(&self) -> f64 {
        self.bits_per_second as f64 / 8e6
    }
}

async fn accept(
    listener: TcpListener,
    target: usize,
    address: SocketAddr,
    shared: Arc<Shared>,
    stopping: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopping.cancelled() => return,
        };
        let Ok((socket, peer)) = accepted else {
            // Out of descriptors: some will be closed.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (shared, stopping) = (shared.clone(), stopping.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(socket, peer, target, address, &shared) => {}
                () = stopping.cancelled() => {}
            }
        });
    }
}

/// Passes one connection on until it ends or is cut.
async fn connection(
    mut dialler: TcpStream,
    peer: SocketAddr,
    target: usize,
    address: SocketAddr,
    shared: &Arc<Shared>,
) {
    let (asked, near) = (shared.clone(), dialler.local_addr());
    let source = tokio::task::spawn_blocking(move || (asked.who_dials)(peer, near.ok()?)).await;
    let source = source.ok().flatten();
    let mut cut = shared.cut.subscribe();
    let is_cut = |cut: &Vec<bool>| cut[target] || source.is_some_and(|source| cut[source]);
    let outside = shared.lanes.len() - 1;
    let there = &shared.lanes[source.unwrap_or(outside)][target];
    let back = &shared.lanes[target][source.unwrap_or(outside)];
    let mut listener = None;
    let passing = async {
        sleep(shared.options.delay * 2).await;
        let other = listener.insert(TcpStream::connect(address).await?);
        dialler.set_nodelay(true)?;
        other.set_nodelay(true)?;
        let (mut from_dialler, mut to_dialler) = dialler.split();
        let (mut from_listener, mut to_listener) = other.split();
        // One direction may end long before the other.
        tokio::try_join!(
            there.carry(&mut from_dialler, &mut to_listener),
            back.carry(&mut from_listener, &mut to_dialler)
        )?;
        io::Result::Ok(())
    };
    let is_whole = tokio::select! {
        passed = passing => passed.is_ok(),
        _ = cut.wait_for(is_cut) => false,
    };
    if !is_whole {
        // Neither side must take what it has for the whole.
        for socket in std::iter::once(&dialler).chain(&listener) {
            let _ = socket.set_zero_linger();
        }
    }
}

/// What goes from one site to another.
struct Lane {
    options: LinkOptions,
    /// When all that was taken so far has been sent.
    free: Mutex<Instant>,
}

impl Lane {
    fn new(options: LinkOptions) -> Self {
        Self { options, free: Mutex::new(Instant::now()) }
    }

    /// Bytes that one connection may have on the way: what fills the lane, and a few pieces more.
    fn window(&self) -> usize {
        let filled = self.options.bits_per_second as f64 / 8.0 * (self.options.delay + AHEAD).as_secs_f64();
        filled as usize + 4 * CHUNK
    }

    fn time_of(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / self.options.bits_per_second as f64)
    }

    /// Takes a place in the lane. Returns when the last of the bytes has been sent.
    fn send(&self, bytes: usize) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(Instant::now()) + self.time_of(bytes);
        *free
    }

    /// Carries all bytes from one end to the other, in order, until the first ends; then ends the other.
    async fn carry(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let window = Semaphore::new(self.window());
        let (sender, mut arriving) = mpsc::channel::<(Instant, Bytes)>(QUEUE);
        let send = async {
            let mut buffer = BytesMut::new();
            loop {
                if buffer.capacity() < LEAST_ROOM {
                    buffer.reserve(CHUNK);
                }
                let read = from.read_buf(&mut buffer).await?;
                if let Ok(room) = window.acquire_many(u32::try_from(read).unwrap_or(u32::MAX)).await {
                    room.forget();
                }
                let sent = self.send(read);
                // Nothing on it tells the end of the stream, which takes as long as everything else.
                if sender.send((sent + self.options.delay, buffer.split().freeze())).await.is_err()
                    || read == 0
                {
                    drop(sender);
                    return io::Result::Ok(());
                }
                if sent > Instant::now() + AHEAD {
                    sleep_until(sent - AHEAD).await;
                }
            }
        };
        let receive = async {
            while let Some((at, bytes)) = arriving.recv().await {
                sleep_until(at).await;
                to.write_all(&bytes).await?;
                window.add_permits(bytes.len());
            }
            to.shutdown().await
        };
        tokio::try_join!(send, receive).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const LINK: LinkOptions = LinkOptions { delay: Duration::from_millis(50), bits_per_second: 8_000_000 };

    fn is_about(took: Duration, expected: Duration) -> bool {
        took >= expected - AHEAD && took <= expected + 3 * AHEAD
    }

    /// Sends so many bytes over a lane and returns when they are there.
    async fn send_over(lane: &Lane, bytes: usize) -> Duration {
        let began = Instant::now();
        let (mut source, mut from) = duplex(1 << 16);
        let (mut to, mut target) = duplex(1 << 16);
        let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let write = async {
            source.write_all(&sent).await.unwrap();
            drop(source);
        };
        let mut heard = Vec::new();
        let (carried, (), read) =
            tokio::join!(lane.carry(&mut from, &mut to), write, target.read_to_end(&mut heard));
        carried.unwrap();
        read.unwrap();
        assert!(heard == sent, "bytes came in another order, or others");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_takes_the_delay_and_many_take_what_the_rate_allows() {
        let lane = Lane::new(LINK);
        let took = send_over(&lane, 1).await;
        assert!(is_about(took, Duration::from_millis(50)), "{took:?}");
        let took = send_over(&lane, 2_000_000).await;
        assert!(is_about(took, Duration::from_millis(2_050)), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_share_a_lane() {
        let lane = Lane::new(LINK);
        let (one, other) = tokio::join!(send_over(&lane, 1_000_000), send_over(&lane, 1_000_000));
        assert!(is_about(one.max(other), Duration::from_millis(2_050)), "{one:?} {other:?}");
        // In turns, not one after the other.
        assert!(one.min(other) > Duration::from_millis(1_500), "{one:?} {other:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_held_than_is_on_the_way() {
        let lane = Lane::new(LINK);
        let (mut source, mut from) = duplex(1);
        let (mut to, _nobody_reads) = duplex(1);
        let mut taken = 0;
        let fill = async {
            let piece = [0; 1024];
            loop {
                // Far longer than a lane needs to take a piece.
                match tokio::time::timeout(Duration::from_secs(60), source.write_all(&piece)).await {
                    Ok(written) => written.unwrap(),
                    Err(_) => return,
                }
                taken += piece.len();
            }
        };
        tokio::select! {
            _ = lane.carry(&mut from, &mut to) => unreachable!("nobody closed it"),
            () = fill => {}
        }
        assert!(taken <= lane.window() + 2 * CHUNK, "{taken} of {}", lane.window());
    }

    /// Answers every connection with what it sent.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = socket.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn say(socket: &mut TcpStream) -> io::Result<()> {
        socket.write_all(b"ping").await?;
        let mut heard = [0; 4];
        socket.read_exact(&mut heard).await?;
        assert_eq!(&heard, b"ping");
        Ok(())
    }

    #[tokio::test]
    async fn a_site_that_is_cut_off_is_not_reached_and_reaches_nobody_until_it_is_healed() {
        let link = LinkOptions { delay: Duration::from_millis(1), bits_per_second: 1_000_000_000 };
        let targets = [echo().await, echo().await, echo().await];
        // Site 1 dials all connections.
        let network = Network::start(link, &[], &targets, Box::new(|_, _| Some(1))).await.unwrap();
        let mut open = Vec::new();
        for site in [0, 2] {
            let mut socket = TcpStream::connect(network.address(site)).await.unwrap();
            say(&mut socket).await.unwrap();
            open.push(socket);
        }
        network.cut(2);
        assert!(say(&mut open[1]).await.is_err(), "its connections break");
        say(&mut open[0]).await.unwrap();
        let mut new = TcpStream::connect(network.address(2)).await.unwrap();
        assert!(say(&mut new).await.is_err(), "new ones too");

        network.heal(2);
        network.cut(1);
        assert!(say(&mut open[0]).await.is_err(), "it is also cut off from those that it dialled");
        network.heal(1);
        for site in [0, 2] {
            say(&mut TcpStream::connect(network.address(site)).await.unwrap()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn opening_a_connection_takes_a_round_trip() {
        let link = LinkOptions { delay: Duration::from_millis(20), bits_per_second: 1_000_000_000 };
        let network = Network::start(link, &[], &[echo().await], Box::new(|_, _| None)).await.unwrap();
        let began = Instant::now();
        say(&mut TcpStream::connect(network.address(0)).await.unwrap()).await.unwrap();
        // Never less; more on a machine with other work.
        assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());
    }
}
