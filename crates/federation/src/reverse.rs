//! Connections of sites that only dial out (`docs/design/federation.md`).
//!
//! To a client that wants to talk to such a site, it is a socket of this host: each connection to the socket is joined
//! with one that the site has dialled. If none is waiting, the site is asked for one over its control session.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use percale_core::ErrorCode;
use percale_core::ids::SiteId;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};
use crate::roster::Member;

/// The protocol of a control session.
pub const CONTROL: &str = "percale-control";
/// The protocol of a connection on which the dialler is the server.
pub const REVERSE: &str = "percale-reverse";
/// So many lines are sent in the time after which a session that is silent is dead, so that what is in between keeps it.
const BEATS: u32 = 3;
/// How long a request waits for the site to dial.
const DIAL_WITHIN: Duration = Duration::from_secs(15);
/// How long it waits while the site holds no session: what a restart of either side takes.
const SESSION_WITHIN: Duration = Duration::from_secs(3);
/// Connections that may wait for a request.
const MAX_WAITING: usize = 64;
/// Longest line of a control session.
const MAX_LINE: u64 = 4096;
/// Bytes of one copy between the two ends.
const BUFFER: usize = 256 << 10;

/// A byte stream both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, whatever is below it.
pub type Connection = Box<dyn Stream>;

/// A line of a control session. An empty object is a sign of life.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Line {
    /// Connections that are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dial: Option<u32>,
}

/// The sites that only dial out, as their callers see them.
pub struct Reverse {
    /// Where the sockets are; only this user may enter.
    /// Has the sockets. Made with the first one: what a killed server leaves in /tmp is then only there where sites dial.
    folder: OnceLock<tempfile::TempDir>,
    sites: Mutex<HashMap<SiteId, Arc<Site>>>,
    /// A session on which nothing came for so long is dead.
    silence: Duration,
    stopping: CancellationToken,
}

struct Site {
    socket: PathBuf,
    state: Mutex<State>,
    arrived: Notify,
    /// Ends what the site has dialled.
    cut: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Connection>,
    /// Ask the site for connections, by the number of their session. It has one for each of its servers; a new one may come
    /// before the old one is known to be dead.
    controls: BTreeMap<u64, mpsc::Sender<u32>>,
    sessions: u64,
}

impl Site {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reverse {
    /// Begins without any site.
    pub(crate) fn new(silence: Duration) -> Self {
        let (folder, sites) = (OnceLock::new(), Mutex::default());
        Self { folder, sites, silence, stopping: CancellationToken::new() }
    }

    /// Returns where the sockets are.
    fn folder(&self) -> Result<&Path> {
        if let Some(folder) = self.folder.get() {
            return Ok(folder.path());
        }
        // Short: the path of a socket has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("percale-").tempdir_in("/tmp").map_err(|error| {
            Error::new(ErrorCode::Internal, "cannot make a folder for sockets in /tmp").with_source(error)
        })?;
        Ok(self.folder.get_or_init(|| folder).path())
    }

    /// Tells whether a site holds a control session with this server.
    pub fn is_connected(&self, id: SiteId) -> bool {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.get(&id).is_some_and(|site| !site.state().controls.is_empty())
    }

    fn site(&self, id: SiteId) -> Result<Arc<Site>> {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(site) = sites.get(&id) {
            return Ok(site.clone());
        }
        let socket = self.folder()?.join(format!("{}", sites.len()));
        let listener = UnixListener::bind(&socket).map_err(|error| {
            let detail = format!("cannot make a socket at {}", socket.display());
            Error::new(ErrorCode::Internal, detail).with_source(error)
        })?;
        let site =
            Arc::new(Site { socket, state: Mutex::default(), arrived: Notify::new(), cut: Notify::new() });
        tokio::spawn(accept(listener, site.clone(), self.stopping.clone()));
        sites.insert(id, site.clone());
        Ok(site)
    }

    /// Returns the socket that leads to a site.
    pub(crate) fn socket(&self, id: SiteId) -> Result<PathBuf> {
        self.site(id).map(|site| site.socket.clone())
    }

    /// Takes a connection that a site has dialled for requests to it.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn arrived(&self, id: SiteId, connection: Connection) -> Result<()> {
        let site = self.site(id)?;
        let mut state = site.state();
        if state.waiting.len() < MAX_WAITING {
            state.waiting.push_back(connection);
        }
        drop(state);
        site.arrived.notify_waiters();
        Ok(())
    }

    /// Ends all that a site has dialled: the key that it did so with is not accepted any more.
    pub(crate) fn cut(&self, id: SiteId) {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(site) = sites.get(&id) {
            let mut state = site.state();
            state.controls.clear();
            state.waiting.clear();
            drop(state);
            site.cut.notify_waiters();
        }
    }

    /// Holds a site's control session until it ends.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub async fn control(&self, id: SiteId, connection: Connection) -> Result<()> {
        let site = self.site(id)?;
        let (ask, asked) = mpsc::channel(64);
        let cut = site.cut.notified();
        let number = {
            let mut state = site.state();
            state.sessions += 1;
            let number = state.sessions;
            state.controls.insert(number, ask);
            number
        };
        site.arrived.notify_waiters();
        let ended = tokio::select! {
            ended = hold(connection, asked, self.silence) => ended,
            () = cut => Ok(()),
            () = self.stopping.cancelled() => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(site = %id, %error, "a control session ended");
        }
        let mut state = site.state();
        state.controls.remove(&number);
        if state.controls.is_empty() {
            state.waiting.clear();
        }
        drop(state);
        // Whoever waits for this session asks another one.
        site.arrived.notify_waiters();
        Ok(())
    }
}

impl Drop for Reverse {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

/// Sends orders and signs of life, and listens for those of the other side.
async fn hold(
    connection: Connection,
    mut asked: mpsc::Receiver<u32>,
    silence: Duration,
) -> std::io::Result<()> {
    let (read, mut write) = tokio::io::split(connection);
    let mut lines = Lines::new(read, silence);
    let mut beat = tokio::time::interval(silence / BEATS);
    loop {
        let line = tokio::select! {
            heard = lines.next() => match heard? {
                Some(_) => continue,
                None => return Ok(()),
            },
            wanted = asked.recv() => match wanted {
                Some(dial) => Line { dial: Some(dial) },
                None => return Ok(()),
            },
            _ = beat.tick() => Line::default(),
        };
        send(&mut write, &line).await?;
    }
}

async fn send(write: &mut (impl AsyncWrite + Unpin), line: &Line) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    write.write_all(&text).await?;
    write.flush().await
}

/// Reads bounded lines, each within the time after which silence is death.
struct Lines<R> {
    read: BufReader<R>,
    line: Vec<u8>,
    silence: Duration,
    deadline: Instant,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(read: R, silence: Duration) -> Self {
        let deadline = Instant::now() + silence;
        Self { read: BufReader::new(read), line: Vec::new(), silence, deadline }
    }

    /// May be dropped and called again: what was read of a line is kept.
    async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let available = match tokio::time::timeout_at(self.deadline, self.read.fill_buf()).await {
                Ok(available) => available?,
                Err(_) => return Err(std::io::ErrorKind::TimedOut.into()),
            };
            if available.is_empty() {
                return Ok(None);
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            self.line.extend_from_slice(available.get(..taken).unwrap_or_default());
            self.read.consume(taken);
            if self.line.len() as u64 > MAX_LINE {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a line is too long"));
            }
            if end.is_some() {
                self.deadline = Instant::now() + self.silence;
                let line = serde_json::from_slice(&self.line)?;
                self.line.clear();
                return Ok(Some(line));
            }
        }
    }
}

/// Joins each connection to the socket with one that the site has dialled.
async fn accept(listener: UnixListener, site: Arc<Site>, stopping: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopping.cancelled() => return,
        };
        let Ok((local, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (site, stopping) = (site.clone(), stopping.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = join(local, &site) => {}
                () = stopping.cancelled() => {}
            }
        });
    }
}

async fn join(mut local: UnixStream, site: &Site) {
    // If none comes the local end is closed, and whoever waits there hears of it as of any broken connection.
    let Some((mut remote, cut)) = take(site).await else { return };
    tokio::select! {
        joined = tokio::io::copy_bidirectional_with_sizes(&mut local, &mut remote, BUFFER, BUFFER) => {
            if let Err(error) = joined {
                tracing::debug!(%error, "a reverse connection ended early");
            }
        }
        () = cut => {}
    }
}

/// Takes a connection that waits, or asks for one and waits for it; with it comes what ends it.
async fn take(site: &Site) -> Option<(Connection, Notified<'_>)> {
    let began = Instant::now();
    let mut asked_of = BTreeSet::new();
    loop {
        // Told to wait before looking, so that nothing that arrives in between is missed.
        let arrived = site.arrived.notified();
        let (ask, patience) = {
            let mut state = site.state();
            if let Some(connection) = state.waiting.pop_front() {
                // While none can be cut, so that this one is not missed.
                return Some((connection, site.cut.notified()));
            }
            // The newest is the one most likely to be alive.
            match state.controls.last_key_value() {
                Some((number, ask)) if asked_of.insert(*number) => (Some(ask.clone()), DIAL_WITHIN),
                Some(_) => (None, DIAL_WITHIN),
                None => (None, SESSION_WITHIN),
            }
        };
        if let Some(ask) = ask {
            let _ = ask.send(1).await;
        }
        tokio::time::timeout_at(began + patience, arrived).await.ok()?;
    }
}

/// The other side: keeps a control session with every server of every member that can be dialled, also those that come
/// later.
pub async fn dial_all<S, F>(fabric: crate::Fabric, serve: S, tasks: TaskTracker, stopping: CancellationToken)
where
    S: Fn(percale_client::peer::Upgraded, Arc<Member>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut held: HashMap<(SiteId, String), tokio::task::JoinHandle<()>> = HashMap::new();
    let mut changed = fabric.watch();
    loop {
        held.retain(|_, session| !session.is_finished());
        for member in fabric.others().into_iter().filter(|member| member.is_dialable) {
            for url in &member.urls {
                held.entry((member.id, url.clone())).or_insert_with(|| {
                    let (fabric, serve, stopping) = (fabric.clone(), serve.clone(), stopping.clone());
                    tasks.spawn(dial(fabric, member.id, url.clone(), serve, stopping))
                });
            }
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = changed.changed() => {}
        }
    }
}

/// Keeps a control session with a server of a member, and dials it when it is asked to. `serve` is given each connection,
/// on which this site is the server. Ends with `stopping`, and when the member does not name the server any more.
async fn dial<S, F>(fabric: crate::Fabric, member: SiteId, url: String, serve: S, stopping: CancellationToken)
where
    S: Fn(percale_client::peer::Upgraded, Arc<Member>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    const FIRST_PAUSE: Duration = Duration::from_millis(200);
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);
    let mut pause = FIRST_PAUSE;
    loop {
        let session = session(&fabric, member, &url, &serve, &stopping);
        let began = Instant::now();
        let ended = tokio::select! {
            ended = session => ended,
            () = stopping.cancelled() => return,
        };
        if let Err(error) = ended {
            tracing::debug!(site = %member, url, %error, "cannot hold a control session; will dial again");
        }
        if !fabric.member(member).is_ok_and(|member| member.urls.contains(&url)) {
            return;
        }
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopping.cancelled() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn session<S, F>(
    fabric: &crate::Fabric,
    member: SiteId,
    url: &str,
    serve: &S,
    stopping: &CancellationToken,
) -> Result<()>
where
    S: Fn(percale_client::peer::Upgraded, Arc<Member>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let client = fabric.client_of_server(member, url)?;
    let silence = fabric.own().stall_timeout;
    let (read, mut write) = tokio::io::split(client.upgrade("/v1/peer/control", CONTROL).await?);
    let mut lines = Lines::new(read, silence);
    let mut beat = tokio::time::interval(silence / BEATS);
    let broken = |error: std::io::Error| {
        Error::new(ErrorCode::SiteUnavailable, "a control session broke").with_source(error)
    };
    tracing::info!(site = %member, url, "control session open");
    loop {
        tokio::select! {
            line = lines.next() => match line.map_err(broken)? {
                Some(Line { dial }) => {
                    for _ in 0..dial.unwrap_or_default().min(MAX_WAITING as u32) {
                        let (fabric, serve, stopping) = (fabric.clone(), serve.clone(), stopping.clone());
                        let url = url.to_owned();
                        tokio::spawn(async move {
                            let work = async {
                                // The one that asked is the one that waits.
                                let client = fabric.client_of_server(member, &url)?;
                                let connection = client.upgrade("/v1/peer/reverse", REVERSE).await?;
                                serve(connection, fabric.member(member)?).await;
                                Ok::<_, Error>(())
                            };
                            tokio::select! {
                                ended = work => if let Err(error) = ended {
                                    tracing::debug!(site = %member, %error, "cannot dial for a request");
                                },
                                () = stopping.cancelled() => {}
                            }
                        });
                    }
                }
                None => return Ok(()),
            },
            _ = beat.tick() => send(&mut write, &Line::default()).await.map_err(broken)?,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    const SILENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_request_over_the_socket_meets_a_connection_that_was_asked_for() {
        let reverse = Arc::new(Reverse::new(SILENCE));
        let id = SiteId::new();
        let socket = reverse.socket(id).unwrap();
        assert!(!reverse.is_connected(id));
        let (far, near) = duplex(1024);
        let session = tokio::spawn({
            let reverse = reverse.clone();
            async move { reverse.control(id, Box::new(near)).await }
        });
        let (read, mut write) = tokio::io::split(far);
        let mut lines = Lines::new(read, SILENCE);
        assert_eq!(lines.next().await.unwrap().unwrap().dial, None, "a sign of life comes first");
        assert!(reverse.is_connected(id));
        send(&mut write, &Line::default()).await.unwrap();

        let mut local = UnixStream::connect(&socket).await.unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap().dial, Some(1));
        let (mut dialled, taken) = duplex(1024);
        reverse.arrived(id, Box::new(taken)).unwrap();
        local.write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        dialled.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ping");
        dialled.write_all(b"pong").await.unwrap();
        local.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"pong");

        drop((lines, write));
        session.await.unwrap().unwrap();
        assert!(!reverse.is_connected(id), "the session ended with its connection");
    }

    #[tokio::test(start_paused = true)]
    async fn a_site_that_does_not_dial_is_noticed() {
        let reverse = Reverse::new(SILENCE);
        let id = SiteId::new();
        let mut local = UnixStream::connect(reverse.socket(id).unwrap()).await.unwrap();
        let mut heard = Vec::new();
        assert_eq!(
            local.read_to_end(&mut heard).await.unwrap(),
            0,
            "the connection is closed, not left hanging"
        );
    }

    #[tokio::test]
    async fn long_lines_and_junk_end_a_session() {
        for junk in [&b"{}garbage\n"[..], &[b'x'; 5000][..]] {
            let (mut far, near) = duplex(8192);
            far.write_all(junk).await.unwrap();
            let (_ask, asked) = mpsc::channel(1);
            assert!(hold(Box::new(near), asked, SILENCE).await.is_err());
        }
    }
}
