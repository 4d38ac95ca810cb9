//! The one port: TCP, TLS, HTTP/1.1, and their limits.
//!
//! - What begins with another first byte than TLS, and was agreed on, carries frames of other sites ([`crate::plain`]).
//! - A connection that does not send a whole request header in time, or stands still within a body, is closed.
//! - Bodies arrive in pieces of up to 1 MiB, also through TLS, whose records are 16 KiB.
//! - A connection that is closed before its request was read to the end is first emptied for a while: otherwise the
//!   operating system resets it, and the client loses the answer that says why.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use percale_core::ErrorCode;
use percale_mover::Line;
use percale_trust::SitePublicKey;
use percale_trust::tls::{TlsConfigs, site_peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConnection;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service as _;

use crate::config::HttpConfig;
use crate::plain::{FIRST_BYTE, Plain};
use crate::{ApiError, Result};

mod socket;

use socket::Socket;

/// Largest header of a request, in bytes (`docs/design/rest.md`).
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Most fields of a header.
const MAX_HEADER_FIELDS: usize = 128;
/// Largest piece of a body that is handed on, and how much of an answer waits for the client.
const BUFFER_BYTES: usize = 1 << 20;
/// TLS bytes that wait for the client: fewer, larger writes.
const TLS_BUFFER_BYTES: usize = 512 * 1024;
/// How long a closed connection is emptied.
const LINGER: Duration = Duration::from_secs(2);
/// How many bytes of it are thrown away at most; more would serve nobody.
const LINGER_BYTES: usize = 64 << 20;
/// After a failed `accept`: the usual reason is that no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The key that a site has proved on its connection (`docs/design/trust.md`). Whether it is a member's is asked later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerKey(pub SitePublicKey);

/// The place of a connection among those that may be open at once; whoever works for it when it is gone keeps it.
#[derive(Debug, Clone)]
pub struct Place(#[expect(dead_code, reason = "dropping it gives it up")] Arc<OwnedSemaphorePermit>);

/// A port that is listened on.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsConfigs>,
    plain: Option<Arc<Plain>>,
    limits: HttpConfig,
}

impl Listener {
    /// Takes the port.
    ///
    /// # Errors
    /// `invalid_configuration` if it is taken or may not be used.
    pub async fn bind(limits: &HttpConfig, tls: Option<TlsConfigs>) -> Result<Self> {
        let tcp = TcpListener::bind(limits.listen).await.map_err(|error| {
            let detail = format!("cannot listen on {}: {error}", limits.listen);
            ApiError::new(ErrorCode::InvalidConfiguration, detail)
        })?;
        Ok(Self { tcp, tls, plain: None, limits: limits.clone() })
    }

    /// Also lets in what other sites open without TLS, if any was agreed on.
    #[must_use]
    pub fn with_plain(self, plain: Arc<Plain>) -> Self {
        let plain = Some(plain).filter(|plain| plain.is_used());
        Self { plain, ..self }
    }

    /// Returns the address that was taken.
    ///
    /// # Errors
    /// `internal`, if the operating system does not tell.
    pub fn address(&self) -> Result<SocketAddr> {
        self.tcp
            .local_addr()
            .map_err(|error| ApiError::internal("cannot ask for the listener's address").with_source(error))
    }

    /// Serves until `stopping`, then lets requests in progress end, for at most the configured time.
    pub async fn serve(self, router: Router, stopping: CancellationToken) {
        let connections = TaskTracker::new();
        let room = Arc::new(Semaphore::new(self.limits.max_connections));
        let kill = CancellationToken::new();
        loop {
            let permit = tokio::select! {
                () = stopping.cancelled() => break,
                permit = room.clone().acquire_owned() => permit,
            };
            let Ok(permit) = permit else { break };
            let accepted = tokio::select! {
                () = stopping.cancelled() => break,
                accepted = self.tcp.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = Connection {
                router: router.clone(),
                limits: self.limits.clone(),
                peer: None,
                place: Some(Place(Arc::new(permit))),
                stopping: stopping.clone(),
                kill: kill.clone(),
            };
            let (tls, plain) = (self.tls.clone(), self.plain.clone());
            connections.spawn(connection.run(stream, tls, plain));
        }
        drop(self.tcp);
        connections.close();
        if tokio::time::timeout(self.limits.drain_timeout, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "requests did not end in time and are cut");
            kill.cancel();
            connections.wait().await;
        }
    }
}

/// Serves a connection that this site has dialled, and on which the site at the other end is the client.
pub async fn serve_reversed<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    router: Router,
    limits: HttpConfig,
    stream: S,
    peer: PeerKey,
    stopping: CancellationToken,
) {
    let kill = stopping.clone();
    Connection { router, limits, peer: Some(peer), place: None, stopping, kill }.serve(stream, None).await;
}

struct Connection {
    router: Router,
    limits: HttpConfig,
    /// The site at the other end.
    peer: Option<PeerKey>,
    /// None on a connection that this site has dialled.
    place: Option<Place>,
    stopping: CancellationToken,
    kill: CancellationToken,
}

impl Connection {
    async fn run(mut self, stream: TcpStream, tls: Option<TlsConfigs>, plain: Option<Arc<Plain>>) {
        // Small answers must not wait for an acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            return tracing::debug!(%error, "a connection ended before it began");
        }
        // Nothing tells its round trip.
        let Some(tls) = tls else { return self.serve(stream, None).await };
        let deadline = Instant::now() + self.limits.header_timeout;
        if let Some(plain) = plain {
            let mut first = [0];
            let looked = tokio::select! {
                looked = tokio::time::timeout_at(deadline, stream.peek(&mut first)) => looked,
                () = self.stopping.cancelled() => return,
            };
            match looked {
                Ok(Ok(1)) if first == [FIRST_BYTE] => return self.carry(stream, &plain).await,
                Ok(Ok(1)) => {}
                _ => return tracing::debug!("a connection ended before it began, or said nothing"),
            }
        }
        // What the client offers decides which certificate it sees, and whether it is asked for one.
        let handshake = async {
            let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let config = tls.choose(&start.client_hello());
            let answered = Instant::now();
            let limit = |session: &mut ServerConnection| session.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            let stream = start.into_stream_with(config, limit).await?;
            Ok::<_, std::io::Error>((stream, answered.elapsed()))
        };
        let handshake = tokio::select! {
            handshake = tokio::time::timeout_at(deadline, handshake) => handshake,
            () = self.stopping.cancelled() => return,
        };
        match handshake {
            Ok(Ok((stream, round_trip))) => {
                self.peer = site_peer(stream.get_ref().1).map(PeerKey);
                let line = socket::is_boundable().then(|| Line::new(round_trip));
                self.serve(stream, line.map(|line| Socket::new(line, below_tls))).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    /// Serves what another site has opened without TLS.
    async fn carry(self, stream: TcpStream, plain: &Plain) {
        let HttpConfig { header_timeout, stall_timeout, .. } = self.limits;
        tokio::select! {
            () = plain.serve(stream, header_timeout, stall_timeout, self.stopping.cancelled()) => {}
            () = self.kill.cancelled() => {}
        }
    }

    async fn serve<S>(self, stream: S, socket: Option<Socket<S>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let line = socket.as_ref().map(|socket| socket.line().clone());
        let stream = TokioIo::new(ClientStream::new(stream, socket, self.limits.stall_timeout));
        let (router, peer, place) = (self.router, self.peer, self.place);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let mut router = router.clone();
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            if let Some(place) = &place {
                request.extensions_mut().insert(place.clone());
            }
            if let Some(line) = &line {
                request.extensions_mut().insert(line.clone());
            }
            // A router is always ready.
            async move { router.call(request).await as Result<Response<Body>, _> }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_header_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADER_FIELDS)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(stream, service)
            // Sites turn connections round.
            .with_upgrades();
        tokio::pin!(connection);
        let mut is_stopping = false;
        loop {
            tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    return;
                }
                () = self.stopping.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = self.kill.cancelled() => return,
            }
        }
    }
}

fn below_tls(stream: &TlsStream<TcpStream>) -> &TcpStream {
    stream.get_ref().0
}

/// A client's connection: gathers what has arrived into large pieces, gives up on a client that does not take its
/// answer, and empties what is closed early.
struct ClientStream<S> {
    inner: S,
    socket: Option<Socket<S>>,
    stall: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    closing: Option<Closing>,
}

struct Closing {
    deadline: Pin<Box<Sleep>>,
    is_shut: bool,
    thrown_away: usize,
}

impl<S> ClientStream<S> {
    fn new(inner: S, socket: Option<Socket<S>>, stall: Duration) -> Self {
        Self { inner, socket, stall, stalled: None, closing: None }
    }

    fn keep(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.keep(&self.inner);
        }
    }

    /// Lets a write wait no longer than allowed since the last byte that went out.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stall = self.stall;
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        match sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(std::io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        // One read of a TLS stream gives one record. What has arrived already is taken together.
        loop {
            let filled = buffer.filled().len();
            match Pin::new(&mut this.inner).poll_read(context, buffer) {
                Poll::Ready(Ok(())) if buffer.filled().len() == filled || buffer.remaining() == 0 => {
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {}
                // What came before an error is good; the error comes again.
                Poll::Ready(Err(_)) | Poll::Pending if filled > before => return Poll::Ready(Ok(())),
                other => return other,
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        this.keep();
        let outcome = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.watch(context, outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        this.keep();
        let outcome = Pin::new(&mut this.inner).poll_write_vectored(context, pieces);
        this.watch(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_flush(context);
        this.watch(context, outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let closing = this.closing.get_or_insert_with(|| Closing {
            deadline: Box::pin(tokio::time::sleep_until(Instant::now() + LINGER)),
            is_shut: false,
            thrown_away: 0,
        });
        if closing.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !closing.is_shut {
            match Pin::new(&mut this.inner).poll_shutdown(context) {
                Poll::Ready(Ok(())) => closing.is_shut = true,
                other => return other,
            }
        }
        let mut scratch = [0; 16 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.inner).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() && closing.thrown_away < LINGER_BYTES => {
                    closing.thrown_away += buffer.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}
