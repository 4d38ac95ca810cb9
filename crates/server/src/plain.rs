//! Frames that go to another site without encryption, each authenticated (`docs/design/transfers.md`, "Integrity only").
//!
//! A site that wants frames says in its request, within TLS, under which id it will show itself on a connection without TLS, and
//! with which key the frames are to be authenticated. Request and connection come on their own, in any order, and [meet](Plain::meet)
//! here. What is sent is decided by the request alone; the connection proves nothing and gives nothing, it only carries.
//!
//! Whoever can reach the port can open such a connection. One that nobody has asked for is closed within [`GREET_WITHIN`], and so many
//! are let in at once that they are in nobody's way.

mod file;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use percale_api::fields;
use percale_api::plain::{HELLO, ID_LEN, Offer, Taken};
use percale_federation::Member;
use percale_store::FileRange;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::config::FederationConfig;
use crate::{ApiError, Result};

/// The first byte of a connection without TLS.
pub(crate) const FIRST_BYTE: u8 = HELLO[0];
/// How long a request waits for its connection, at most; and no longer than half of the time that makes a silent site a dead one.
const MEET_WITHIN: Duration = Duration::from_secs(2);
/// How long a connection has to say what it is, and then waits for its request.
const GREET_WITHIN: Duration = Duration::from_secs(5);
/// Connections at once that have not met a request yet. More are closed as they come; their requests are answered over TLS.
const MAX_STRANGERS: usize = 256;
/// Pieces that are written at once.
const PIECES: usize = 16;

type Id = [u8; ID_LEN];

/// The sites with which integrity only was agreed, and those that are about to meet.
#[derive(Debug)]
pub struct Plain {
    sites: Vec<String>,
    meet_within: Duration,
    greet_within: Duration,
    waiting: Mutex<HashMap<Id, Waiting>>,
    strangers: Semaphore,
}

/// Who came first.
#[derive(Debug)]
enum Waiting {
    Connection(oneshot::Sender<Outgoing>),
    Request(oneshot::Sender<oneshot::Sender<Outgoing>>),
}

/// Part of a stream.
#[derive(Debug)]
pub enum Part {
    /// Bytes.
    Bytes(Bytes),
    /// Bytes of a file, which the operating system takes from there.
    File(FileRange),
}

/// A stream that is to be written onto a connection.
#[derive(Debug)]
struct Outgoing {
    parts: mpsc::Receiver<Part>,
    /// Says that it has come to its end, so that the connection is good for another one.
    is_whole: oneshot::Receiver<()>,
}

/// A connection that was met.
#[derive(Debug)]
pub struct Met(oneshot::Sender<Outgoing>);

impl Met {
    /// Begins a stream on the connection, of which so many parts may wait. Nothing if the connection has gone meanwhile.
    pub fn carry(self, waiting: usize) -> Option<Carried> {
        let (sender, parts) = mpsc::channel(waiting);
        let (end, is_whole) = oneshot::channel();
        self.0.send(Outgoing { parts, is_whole }).ok()?;
        Some(Carried { parts: sender, end })
    }
}

/// A stream on its way. One that is dropped before its end takes the connection with it.
#[derive(Debug)]
pub struct Carried {
    parts: mpsc::Sender<Part>,
    end: oneshot::Sender<()>,
}

impl Carried {
    /// Sends the next part.
    ///
    /// # Errors
    /// The part, if the connection has gone.
    pub async fn send(&self, part: Part) -> Result<(), Part> {
        self.parts.send(part).await.map_err(|error| error.0)
    }

    /// Says that all was sent: the connection is good for the next stream.
    pub fn end(self) {
        // Whoever would hear it has gone with the connection.
        let _ = self.end.send(());
    }
}

/// Forgets whoever waits in vain.
struct Wait<'a> {
    plain: &'a Plain,
    id: Id,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.plain.waiting().remove(&self.id);
    }
}

impl Plain {
    /// Agrees to what is configured.
    pub fn new(config: &FederationConfig) -> Self {
        Self {
            sites: config.integrity_only.clone(),
            meet_within: MEET_WITHIN.min(config.stall_timeout / 2),
            greet_within: GREET_WITHIN,
            waiting: Mutex::default(),
            strangers: Semaphore::new(MAX_STRANGERS),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Id, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether any connection without TLS is let in.
    pub fn is_used(&self) -> bool {
        !self.sites.is_empty()
    }

    /// Returns the offer of a request, with what becomes of it: `asker` is the site that proved its key on the request's own
    /// connection and asks for itself or its users.
    ///
    /// # Errors
    /// `invalid_request` if it is none.
    pub fn offered(
        &self,
        headers: &HeaderMap,
        asker: Option<&Member>,
    ) -> Result<Option<Result<Offer, Taken>>> {
        let Some(text) = headers.get(fields::PLAIN) else { return Ok(None) };
        let offer = text.to_str().ok().and_then(|text| text.parse::<Offer>().ok());
        let wrong = || ApiError::invalid(format!("cannot read {}: it is no offer", fields::PLAIN));
        let offer = offer.ok_or_else(wrong)?;
        let is_agreed = asker.is_some_and(|asker| self.sites.contains(&asker.name));
        Ok(Some(if is_agreed { Ok(offer) } else { Err(Taken::NotAgreed) }))
    }

    /// Waits for the connection that shows an id.
    ///
    /// # Errors
    /// [`Taken::Late`], also if the id was used before.
    pub async fn meet(&self, id: Id) -> Result<Met, Taken> {
        let met = {
            let mut waiting = self.waiting();
            match waiting.entry(id) {
                Entry::Occupied(known) => match known.remove() {
                    Waiting::Connection(connection) => return Ok(Met(connection)),
                    // Two requests with one id: neither is served this way.
                    Waiting::Request(_) => return Err(Taken::Late),
                },
                Entry::Vacant(free) => {
                    let (here, met) = oneshot::channel();
                    free.insert(Waiting::Request(here));
                    met
                }
            }
        };
        let _wait = Wait { plain: self, id };
        match tokio::time::timeout(self.meet_within, met).await {
            Ok(Ok(connection)) => Ok(Met(connection)),
            _ => Err(Taken::Late),
        }
    }

    /// Waits for the request that named an id, and returns what it wants written. Nothing if there is none.
    async fn wanted(&self, id: Id) -> Option<Outgoing> {
        let (here, wanted) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            match waiting.entry(id) {
                Entry::Occupied(known) => match known.remove() {
                    Waiting::Request(request) => request.send(here).ok()?,
                    // Two connections with one id: neither is used.
                    Waiting::Connection(_) => return None,
                },
                Entry::Vacant(free) => drop(free.insert(Waiting::Connection(here))),
            }
        }
        let _wait = Wait { plain: self, id };
        tokio::time::timeout(self.greet_within, wanted).await.ok()?.ok()
    }

    /// Serves a connection that begins with [`FIRST_BYTE`]: stream after stream, until it is idle for too long, the other side closes
    /// it or does not take what is written, or anything is wrong.
    pub(crate) async fn serve(
        &self,
        mut connection: TcpStream,
        idle: Duration,
        stall: Duration,
        stopping: impl Future<Output = ()>,
    ) {
        tokio::pin!(stopping);
        let Ok(stranger) = self.strangers.try_acquire() else {
            return tracing::debug!("too many connections that nobody asked for; one is closed");
        };
        let mut stranger = Some(stranger);
        let mut hello = [0; HELLO.len()];
        let greeted = tokio::select! {
            greeted = tokio::time::timeout(self.greet_within, connection.read_exact(&mut hello)) => greeted,
            () = &mut stopping => return,
        };
        if !matches!(greeted, Ok(Ok(_))) || hello != *HELLO {
            return tracing::debug!("a connection begins with neither TLS nor an id; it is closed");
        }
        loop {
            let mut id = [0; ID_LEN];
            let patience = if stranger.is_some() { self.greet_within } else { idle };
            let shown = tokio::select! {
                shown = tokio::time::timeout(patience, connection.read_exact(&mut id)) => shown,
                () = &mut stopping => return,
            };
            if !matches!(shown, Ok(Ok(_))) {
                return;
            }
            let wanted = tokio::select! {
                wanted = self.wanted(id) => wanted,
                () = &mut stopping => return,
            };
            let Some(stream) = wanted else {
                return tracing::debug!("a connection shows an id that no request named; it is closed");
            };
            // It belongs to a member.
            stranger.take();
            match write(&connection, stream, stall).await {
                Ok(true) => {}
                // The other side sees that the stream was cut.
                Ok(false) => return,
                Err(error) => return tracing::debug!(%error, "a stream without encryption ended early"),
            }
        }
    }
}

/// Writes a stream; tells whether it came to its end. What is large goes to the operating system from where it was read to, or is
/// taken by it from its file.
async fn write(connection: &TcpStream, mut stream: Outgoing, stall: Duration) -> std::io::Result<bool> {
    let mut parts = Vec::with_capacity(PIECES);
    let mut pieces = Vec::with_capacity(PIECES);
    while stream.parts.recv_many(&mut parts, PIECES).await > 0 {
        for part in parts.drain(..) {
            match part {
                Part::Bytes(piece) if piece.is_empty() => {}
                Part::Bytes(piece) => pieces.push(piece),
                Part::File(part) => {
                    // What leads a group goes out with it.
                    write_pieces(connection, &mut pieces, SendFlags::MORE, stall).await?;
                    file::send(connection, part, stall).await?;
                }
            }
        }
        write_pieces(connection, &mut pieces, SendFlags::empty(), stall).await?;
    }
    Ok(stream.is_whole.await.is_ok())
}

async fn write_pieces(
    connection: &TcpStream,
    pieces: &mut Vec<Bytes>,
    flags: SendFlags,
    stall: Duration,
) -> std::io::Result<()> {
    let mut left = &mut pieces[..];
    while !left.is_empty() {
        let mut slices = [IoSlice::new(&[]); PIECES];
        for (slice, piece) in slices.iter_mut().zip(left.iter()) {
            *slice = IoSlice::new(piece);
        }
        let slices = &slices[..left.len().min(PIECES)];
        let writing = connection.async_io(Interest::WRITABLE, || {
            let flags = flags | SendFlags::NOSIGNAL;
            Ok(sendmsg(connection, slices, &mut SendAncillaryBuffer::default(), flags)?)
        });
        let mut written = tokio::time::timeout(stall, writing).await??;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        while let Some(first) = left.first_mut() {
            let taken = written.min(first.len());
            first.advance(taken);
            written -= taken;
            if first.has_remaining() {
                break;
            }
            left = &mut left[1..];
        }
    }
    pieces.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    fn plain() -> Arc<Plain> {
        let config =
            FederationConfig { integrity_only: vec!["baltic".into()], ..FederationConfig::default() };
        Arc::new(Plain::new(&config))
    }

    /// A served connection, as the other side sees it.
    async fn connection(plain: &Arc<Plain>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let plain = plain.clone();
        tokio::spawn(async move {
            let minute = Duration::from_secs(60);
            plain.serve(near, minute, minute, std::future::pending()).await;
        });
        far
    }

    async fn is_closed(connection: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        matches!(connection.read_to_end(&mut rest).await, Ok(0) | Err(_))
    }

    async fn carry(met: Met, pieces: &[&[u8]], is_whole: bool) {
        let carried = met.carry(1).unwrap();
        for piece in pieces {
            carried.send(Part::Bytes(Bytes::copy_from_slice(piece))).await.unwrap();
        }
        if is_whole {
            carried.end();
        }
    }

    #[tokio::test]
    async fn request_and_connection_meet_in_either_order_stream_after_stream() {
        let plain = plain();
        let mut far = connection(&plain).await;
        far.write_all(b"PCPLAIN1the first stream").await.unwrap();
        let waits = async {
            while plain.waiting().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waits).await.unwrap();
        carry(plain.meet(*b"the first stream").await.unwrap(), &[b"ab", b"", b"cde"], true).await;
        let mut read = [0; 5];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"abcde");

        let meeting = tokio::spawn({
            let plain = plain.clone();
            async move { plain.meet(*b"the next one ...").await }
        });
        far.write_all(b"the next one ...").await.unwrap();
        // One that was cut takes its connection with it.
        carry(meeting.await.unwrap().unwrap(), &[b"fghij"], false).await;
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"fghij");
        assert!(is_closed(&mut far).await);
        assert!(plain.waiting().is_empty());
    }

    #[tokio::test]
    async fn whoever_waits_in_vain_is_let_go() {
        let soon = Duration::from_millis(50);
        let plain = Arc::into_inner(plain()).unwrap();
        let plain = Arc::new(Plain { meet_within: soon, greet_within: soon, ..plain });
        assert_eq!(plain.meet([1; 16]).await.unwrap_err(), Taken::Late);
        for hello in [
            &b""[..],
            b"P",
            b"POST / HTTP/1.1\r\n\r\n",
            b"PCPLAIN2................",
            b"PCPLAIN1nobody wants it.",
        ] {
            let mut far = connection(&plain).await;
            far.write_all(hello).await.unwrap();
            assert!(is_closed(&mut far).await, "{hello:?}");
        }
        assert!(plain.waiting().is_empty());
        assert_eq!(plain.strangers.available_permits(), MAX_STRANGERS);
    }

    #[tokio::test]
    async fn an_id_is_good_once() {
        let plain = plain();
        let (mut one, mut other) = (connection(&plain).await, connection(&plain).await);
        one.write_all(b"PCPLAIN1...the same id..").await.unwrap();
        other.write_all(b"PCPLAIN1...the same id..").await.unwrap();
        assert!(is_closed(&mut one).await && is_closed(&mut other).await);
    }

    #[tokio::test]
    async fn so_many_strangers_are_let_in_and_the_next_is_closed() {
        let plain = plain();
        let mut strangers = Vec::new();
        for _ in 0..MAX_STRANGERS {
            let mut stranger = connection(&plain).await;
            stranger.write_all(b"P").await.unwrap();
            strangers.push(stranger);
        }
        let all = async {
            while plain.strangers.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), all).await.unwrap();
        let mut next = connection(&plain).await;
        assert!(is_closed(&mut next).await);
    }
}
