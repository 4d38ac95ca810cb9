//! The connections to a site that have no encryption, and when they are used (`docs/design/transfers.md`, "Integrity only").

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use percale_api::plain::{HELLO, ID_LEN};
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Connections that are kept for the next stream.
const MAX_IDLE: usize = 20;
/// For how long: well below the time after which a server closes those that are idle.
const IDLE_FOR: Duration = Duration::from_secs(15);
/// For how long a connection is waited for. The site waits no longer either.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// For how long streams come over TLS after one that did not come, or not as it was sent, without it.
pub(crate) const ENCRYPTED_FOR: Duration = Duration::from_secs(60);
/// Bytes that are read at least, where groups are small.
const SMALL_READ: usize = 64 << 10;

/// How the frames of a stream travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Over TLS; with the reason if both sites may have agreed on integrity only.
    Tls(Option<String>),
    /// Without encryption, every byte authenticated.
    IntegrityOnly,
}

/// What is known of streams from a site with which integrity only was agreed.
#[derive(Debug, Clone, Default)]
pub struct PlainState {
    /// How the last one travelled; nothing before the first.
    pub last: Option<Transport>,
    /// Those that came without encryption.
    pub streams: u64,
    /// Those of them that were not what was sent.
    pub altered: u64,
    /// Until when streams come over TLS, and why.
    encrypted: Option<(Instant, String)>,
    /// Those of the altered ones that a damaged copy of the site may explain.
    doubtful: u64,
}

/// The way to a site beside TLS.
#[derive(Debug)]
pub(crate) struct Plain {
    /// The site's name.
    site: String,
    kept: Mutex<Kept>,
    state: Mutex<PlainState>,
}

/// Connections that wait for the next stream.
#[derive(Debug, Default)]
struct Kept {
    idle: Vec<Idle>,
    /// Whether somebody sees to it that they are closed in time.
    is_watched: bool,
}

#[derive(Debug)]
struct Idle {
    address: (String, u16),
    since: Instant,
    stream: TcpStream,
}

impl Plain {
    /// Nothing is dialled yet.
    pub fn new(site: String) -> Self {
        Self { site, kept: Mutex::default(), state: Mutex::default() }
    }

    fn state_mut(&self) -> MutexGuard<'_, PlainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is known.
    pub fn state(&self) -> PlainState {
        self.state_mut().clone()
    }

    /// Returns why the next stream comes over TLS, if it does.
    pub fn why_encrypted(&self) -> Option<String> {
        let mut state = self.state_mut();
        let (until, why) = state.encrypted.as_ref()?;
        if Instant::now() < *until {
            return Some(why.clone());
        }
        (state.encrypted, state.doubtful) = (None, 0);
        None
    }

    /// Notes how a stream travels.
    pub fn note(&self, transport: &Transport) {
        let mut state = self.state_mut();
        state.streams += u64::from(*transport == Transport::IntegrityOnly);
        // How the next one travels was decided anew while this one was opened.
        let is_outdated = match transport {
            Transport::Tls(why) => why.is_some() && state.encrypted.is_none(),
            Transport::IntegrityOnly => state.encrypted.is_some(),
        };
        if !is_outdated {
            state.last = Some(transport.clone());
        }
    }

    /// Has streams come over TLS for a while.
    pub fn encrypt(&self, why: &str) {
        let mut state = self.state_mut();
        let is_new = state.encrypted.as_ref().is_none_or(|(until, _)| *until <= Instant::now());
        state.encrypted = Some((Instant::now() + ENCRYPTED_FOR, why.to_owned()));
        drop(state);
        if is_new {
            let site = &self.site;
            tracing::info!(site, why, "streams of frames come over TLS for a minute");
        }
    }

    /// Notes that a stream was not what was sent. Streams come over TLS for a while.
    pub fn altered(&self, why: &str) {
        {
            let mut state = self.state_mut();
            (state.altered, state.doubtful) = (state.altered + 1, state.doubtful + 1);
        }
        let site = &self.site;
        tracing::warn!(
            site,
            why,
            "a stream without encryption was altered on its way, or its sender is wrong; it is asked for again over TLS"
        );
        self.encrypt(&format!("what came without encryption was not what was sent: {why}"));
    }

    /// Notes that the site has found its own copy damaged: that is what came, and nobody has altered it on its way.
    pub fn explained(&self) {
        let mut state = self.state_mut();
        let doubtful = std::mem::take(&mut state.doubtful);
        if doubtful == 0 {
            return;
        }
        state.altered = state.altered.saturating_sub(doubtful);
        state.encrypted = None;
        state.last = Some(Transport::Tls(Some("a damaged copy was asked for once more".to_owned())));
        drop(state);
        tracing::info!(site = self.site, "what was not what it should be was a damaged copy of the site");
    }

    /// Shows an id on a connection to a site's address: one that was kept, or a new one.
    ///
    /// # Errors
    /// No connection comes about.
    pub async fn dial(&self, url: &Url, id: &[u8; ID_LEN]) -> std::io::Result<PlainConnection> {
        let address = address(url)?;
        let kept = self.take(&address);
        let dialled = async {
            match kept {
                Some(mut stream) => {
                    stream.write_all(id).await?;
                    std::io::Result::Ok(stream)
                }
                None => {
                    let mut stream = TcpStream::connect((address.0.as_str(), address.1)).await?;
                    stream.set_nodelay(true)?;
                    let mut hello = [0; HELLO.len() + ID_LEN];
                    hello[..HELLO.len()].copy_from_slice(HELLO);
                    hello[HELLO.len()..].copy_from_slice(id);
                    stream.write_all(&hello).await?;
                    Ok(stream)
                }
            }
        };
        match tokio::time::timeout(CONNECT_WITHIN, dialled).await {
            Ok(stream) => Ok(PlainConnection { address: address.clone(), stream: stream? }),
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// Takes a connection that is still open.
    fn take(&self, address: &(String, u16)) -> Option<TcpStream> {
        let mut kept = self.kept();
        kept.forget_old();
        let idle = &mut kept.idle;
        while let Some(at) = idle.iter().rposition(|kept| kept.address == *address) {
            let stream = idle.remove(at).stream;
            // Nothing comes on it unless the site has closed it, or is wrong.
            let is_quiet =
                stream.try_read(&mut [0]).is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock);
            if is_quiet {
                return Some(stream);
            }
        }
        None
    }

    /// Keeps a connection for the next stream: the last one has ended on it.
    pub fn give_back(self: &Arc<Self>, PlainConnection { address, stream }: PlainConnection) {
        let mut kept = self.kept();
        if kept.idle.len() >= MAX_IDLE {
            return;
        }
        kept.idle.push(Idle { address, since: Instant::now(), stream });
        if !std::mem::replace(&mut kept.is_watched, true) {
            tokio::spawn(close_old(Arc::downgrade(self)));
        }
    }
}

impl Kept {
    fn forget_old(&mut self) {
        self.idle.retain(|kept| kept.since.elapsed() < IDLE_FOR);
    }
}

/// Closes connections that nobody has used, until there are none.
async fn close_old(plain: Weak<Plain>) {
    loop {
        tokio::time::sleep(IDLE_FOR).await;
        let Some(plain) = plain.upgrade() else { return };
        let mut kept = plain.kept();
        kept.forget_old();
        kept.is_watched = !kept.idle.is_empty();
        if !kept.is_watched {
            return;
        }
    }
}

fn address(url: &Url) -> std::io::Result<(String, u16)> {
    let host = url.host_str().map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned());
    let address = host.zip(url.port_or_known_default());
    address.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "the URL names no host"))
}

/// A connection on which an id was shown.
#[derive(Debug)]
pub(crate) struct PlainConnection {
    address: (String, u16),
    stream: TcpStream,
}

impl PlainConnection {
    /// Reads what is wanted at least; no more than that if it goes into a buffer of its own, or what has come already. Nothing
    /// if the site has closed the connection.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn read(&mut self, wanted: usize, is_exact: bool) -> std::io::Result<Option<Bytes>> {
        let room = if is_exact { wanted } else { wanted.max(SMALL_READ) };
        let mut buffer = BytesMut::with_capacity(room);
        while buffer.len() < wanted {
            let left = room - buffer.len();
            if self.stream.read_buf(&mut (&mut buffer).limit(left)).await? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(buffer.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listening() -> (TcpListener, Url) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
        (listener, url)
    }

    #[tokio::test]
    async fn a_connection_is_used_again_unless_the_site_has_closed_it() {
        let (listener, url) = listening().await;
        let plain = Arc::new(Plain::new("alps".into()));
        let first = plain.dial(&url, b"the first stream").await.unwrap();
        let (mut site, _) = listener.accept().await.unwrap();
        let mut shown = [0; 24];
        site.read_exact(&mut shown).await.unwrap();
        assert_eq!(&shown, b"PCPLAIN1the first stream");
        plain.give_back(first);
        let second = plain.dial(&url, b"the next one ...").await.unwrap();
        site.read_exact(&mut shown[..16]).await.unwrap();
        assert_eq!(&shown[..16], b"the next one ...");
        plain.give_back(second);
        drop(site);
        // The end of it takes a moment to arrive.
        let closed = async {
            while plain.kept().idle.first().is_some_and(|kept| kept.stream.try_read(&mut [0]).is_err()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap();
        let _third = plain.dial(&url, b"and another one.").await.unwrap();
        let (mut site, _) = listener.accept().await.unwrap();
        site.read_exact(&mut shown).await.unwrap();
        assert_eq!(&shown, b"PCPLAIN1and another one.");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_fault_streams_come_over_tls_for_a_while() {
        let plain = Plain::new("alps".into());
        assert_eq!(plain.why_encrypted(), None);
        plain.altered("frame 7");
        assert!(plain.why_encrypted().unwrap().contains("frame 7"));
        assert_eq!(plain.state().altered, 1);
        tokio::time::advance(ENCRYPTED_FOR).await;
        assert_eq!(plain.why_encrypted(), None);
        plain.explained();
        assert_eq!(plain.state().altered, 1, "that was too long ago to be explained");
    }

    #[tokio::test]
    async fn a_damaged_copy_explains_what_was_not_as_it_should_be() {
        let plain = Plain::new("alps".into());
        plain.altered("group 7");
        plain.altered("group 8");
        plain.explained();
        assert_eq!((plain.state().altered, plain.why_encrypted()), (0, None));
        plain.encrypt("the connection without encryption broke");
        plain.explained();
        assert!(plain.why_encrypted().is_some(), "nothing was in doubt");
    }

    #[test]
    fn addresses_are_those_of_the_url() {
        let of = |url: &str| address(&url.parse().unwrap()).unwrap();
        assert_eq!(of("https://data.example.org/"), ("data.example.org".to_owned(), 443));
        assert_eq!(of("https://[::1]:8787/a/"), ("::1".to_owned(), 8787));
    }
}
