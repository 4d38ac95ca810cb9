//! Asking for bytes as frames.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use percale_api::plain::{Offer, Taken};
use percale_api::uploads::{Pull, PullItem, PulledItem};
use percale_api::{Problem, fields, media};
use percale_core::ErrorCode;
use percale_core::tree::group_count;
use percale_mover::{Decoder, Frame, FrameError, StreamKey};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};

use crate::call::Call;
use crate::client::Client;
use crate::elsewhere::{Elsewhere, Place, Places};
use crate::error::{Error, ErrorKind, Retry};
use crate::plain::{Plain, PlainConnection, Transport};

/// How long the end of a stream is waited for.
const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// Where groups are compared with the trees of their versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// By the site before they leave, and here.
    There,
    /// Here alone, each before it is used.
    Here,
}

/// How frames are asked for, besides what is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Whether items may come as AWAY.
    pub follow: bool,
    /// The id of the streams that bring together what they were asked for.
    pub share: Option<&'a str>,
    /// Where its groups are compared.
    pub checks: Checks,
}

/// Where the groups of what is read are compared: here alone, until something that came so was wrong.
#[derive(Debug, Default)]
pub(crate) struct Comparing {
    is_doubted: AtomicBool,
}

impl Comparing {
    /// Returns where the next stream is to be compared.
    pub fn checks(&self) -> Checks {
        if self.is_doubted.load(Relaxed) { Checks::There } else { Checks::Here }
    }

    /// Takes what went wrong with a stream. Wrong bytes that its site has not looked at are worth asking for again: the site then finds out
    /// whether its copy is damaged, and takes another one.
    pub fn judge(&self, error: Error, is_unchecked: bool) -> Error {
        if !is_unchecked || error.kind() != ErrorKind::Integrity {
            return error;
        }
        tracing::debug!(%error, "the site is asked again, and is to compare what it sends");
        self.is_doubted.store(true, Relaxed);
        error.with_retry(Retry::Temporary)
    }
}

/// The answer to one pull, frame by frame.
#[derive(Debug)]
pub struct FrameStream {
    client: Client,
    operation: Arc<str>,
    way: Way,
    /// Why it came over TLS, where both sites may have agreed on integrity only.
    why_encrypted: Option<String>,
    /// Whether its groups left without having been compared.
    is_unchecked: bool,
    decoder: Decoder,
    ended: bool,
    /// The sites to which items may be sent on, if the site was told that they may.
    elsewhere: Option<Arc<Elsewhere>>,
    /// A frame that was read ahead.
    ahead: Option<Frame>,
}

/// Over what the frames come.
#[derive(Debug)]
enum Way {
    /// The answer itself.
    Answer(Response),
    /// A connection without encryption; nothing once it was given back, or is of no use any more.
    Plain { plain: Arc<Plain>, connection: Option<PlainConnection>, is_large: bool, is_altered: bool },
}

impl FrameStream {
    /// Asks once; whoever reads the frames knows what to ask for again. `operation` completes "cannot …". Items may come as AWAY
    /// if that is asked for and the client goes where it is sent.
    ///
    /// # Errors
    /// As the site answers.
    pub(crate) async fn open(
        client: &Client,
        operation: &str,
        items: Vec<PullItem>,
        Ask { follow, share, checks }: Ask<'_>,
    ) -> crate::Result<Self> {
        let mut call = call(operation, items, share, checks);
        let elsewhere = client.elsewhere().filter(|_| follow).cloned();
        if let Some(elsewhere) = &elsewhere {
            call = call.header(fields::REDIRECT, &elsewhere.follow().to_string());
        }
        let response = client.open_once(call).await?;
        let stream = Self::begin(client, operation, Way::Answer(response), Decoder::new());
        Ok(Self { elsewhere, is_unchecked: checks == Checks::Here, ..stream })
    }

    /// Asks once a site that may send frames without encryption: then they come so if it does, and over TLS otherwise. Each
    /// frame is authenticated; the bytes of a group are known to be right only once they were compared with a hash. The site need
    /// not do that as well where `checks` says that it is done here. Streams of one version that are open at the same time with the same id
    /// in `share` bring together what they were asked for.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn open_bulk(
        client: &Client,
        operation: &str,
        items: Vec<PullItem>,
        checks: Checks,
        share: Option<&str>,
    ) -> crate::Result<Self> {
        let call = call(operation, items, share, checks);
        let over_tls = async |call| {
            let response = client.open_once(call).await?;
            Ok(Self::begin(client, operation, Way::Answer(response), Decoder::new()))
        };
        let stream = match client.plain().cloned() {
            None => over_tls(call).await?,
            Some(plain) => {
                let stream = match plain.why_encrypted() {
                    Some(why) => Self { why_encrypted: Some(why), ..over_tls(call).await? },
                    None => Self::offer(client, operation, call, &plain).await?,
                };
                plain.note(&stream.transport());
                stream
            }
        };
        Ok(Self { is_unchecked: checks == Checks::Here, ..stream })
    }

    /// Offers the site to send the frames beside TLS. The request and the connection are on their way at once.
    async fn offer(client: &Client, operation: &str, call: Call, plain: &Arc<Plain>) -> crate::Result<Self> {
        let random = |error: percale_trust::Error| {
            Error::new(ErrorKind::Local, ErrorCode::Internal, operation, error.to_string()).with_source(error)
        };
        let offer = Offer {
            id: percale_trust::random().map_err(random)?,
            secret: percale_trust::random().map_err(random)?,
        };
        let url = client.url().clone();
        let mut dial = pin!(plain.dial(&url, &offer.id));
        let call = call.secret_header(fields::PLAIN, &offer.to_text());
        let mut ask = pin!(client.open_once(call));
        let mut dialled = None;
        let answer = loop {
            tokio::select! {
                answer = &mut ask => break answer,
                connection = &mut dial, if dialled.is_none() => dialled = Some(connection),
            }
        };
        let response = answer.inspect_err(|error| {
            // A site that is not there, or waits for the connection longer than this one for the answer.
            if matches!(error.kind(), ErrorKind::Connection | ErrorKind::Timeout) {
                plain.encrypt("a request that offered to do without failed");
            }
        })?;
        let taken =
            response.headers().get(fields::PLAIN).and_then(|taken| Taken::parse(taken.to_str().ok()?));
        let why = match taken {
            Some(Taken::Yes) => {
                let dialled = match dialled {
                    Some(dialled) => dialled,
                    None => dial.await,
                };
                let connection = dialled.map_err(|error| {
                    plain.encrypt("the connection without encryption broke");
                    broke(operation, error)
                })?;
                let decoder = Decoder::authentic(StreamKey::new(&offer.id, &offer.secret));
                let (plain, connection) = (plain.clone(), Some(connection));
                let way = Way::Plain { plain, connection, is_large: false, is_altered: false };
                return Ok(Self::begin(client, operation, way, decoder));
            }
            Some(Taken::Late) => match dialled {
                Some(Err(error)) => format!("no connection without encryption comes about: {error}"),
                _ => "the connection without encryption did not reach the server that was asked".to_owned(),
            },
            _ => "the other site does not name this one in federation.integrity_only".to_owned(),
        };
        plain.encrypt(&why);
        let stream = Self::begin(client, operation, Way::Answer(response), Decoder::new());
        Ok(Self { why_encrypted: Some(why), ..stream })
    }

    fn begin(client: &Client, operation: &str, way: Way, decoder: Decoder) -> Self {
        let (client, operation) = (client.clone(), operation.into());
        Self {
            client,
            operation,
            way,
            why_encrypted: None,
            is_unchecked: false,
            decoder,
            ended: false,
            elsewhere: None,
            ahead: None,
        }
    }

    /// Returns how the frames travel.
    pub fn transport(&self) -> Transport {
        match &self.way {
            Way::Answer(_) => Transport::Tls(self.why_encrypted.clone()),
            Way::Plain { .. } => Transport::IntegrityOnly,
        }
    }

    /// Uses nothing more of a stream whose bytes are not what they should be. Tells whether it came without encryption: then it is
    /// not known who is to blame, and the next one comes over TLS.
    pub fn distrust(&mut self, why: &str) -> bool {
        match &mut self.way {
            Way::Answer(_) => false,
            Way::Plain { plain, connection, is_altered, .. } => {
                *connection = None;
                if !std::mem::replace(is_altered, true) {
                    plain.altered(why);
                }
                true
            }
        }
    }

    /// Reads the problem of an item that the site cannot send. If it has found its copy damaged, that explains what came without encryption
    /// before and was not what it should be.
    pub fn refused(&self, problem: &[u8]) -> Error {
        let error = parse_problem(&self.operation, problem);
        if error.code() == ErrorCode::Integrity
            && let Some(plain) = self.client.plain()
        {
            plain.explained();
        }
        error
    }

    /// Tells whether its groups left without having been compared: then wrong bytes may be the fault of a disk there, which the site
    /// finds when it is asked to compare them itself.
    pub fn is_unchecked(&self) -> bool {
        self.is_unchecked
    }

    /// Tells whether the stream was found not to be what its site sent, on a way without encryption.
    pub fn is_altered(&self) -> bool {
        matches!(self.way, Way::Plain { is_altered: true, .. })
    }

    /// Reads ahead in a stream of one item, to find out whether that is elsewhere: then this stream is at its end, and
    /// the place is returned, or nothing in its stead if it cannot be used.
    ///
    /// # Errors
    /// As [`FrameStream::next`].
    pub(crate) async fn sent_on(&mut self) -> crate::Result<Option<Option<Place>>> {
        loop {
            match self.next().await? {
                Some(Frame::Item { .. }) => {}
                Some(Frame::Away { place, info, .. }) => {
                    let operation = self.operation.clone();
                    let Some(elsewhere) = self.elsewhere.clone() else { return Err(self.sent_on_unasked()) };
                    let mut places = Places::default();
                    let number = places.take(&elsewhere, &operation, place, &info)?;
                    while self.next().await?.is_some() {}
                    return Ok(Some(places.get(number).cloned()));
                }
                frame => {
                    self.ahead = frame;
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the next frame, or nothing behind the last one. A stream that was cut is an error, and so is one that the
    /// server ended with ERROR.
    ///
    /// # Errors
    /// As above.
    pub async fn next(&mut self) -> crate::Result<Option<Frame>> {
        if let Some(frame) = self.ahead.take() {
            return Ok(Some(frame));
        }
        loop {
            let decoded = self.decoder.next();
            if let Some(frame) = decoded.map_err(|error| self.broken(error))? {
                self.expect(&frame);
                match frame {
                    Frame::Error { problem } => return Err(parse_problem(&self.operation, &problem)),
                    Frame::End { .. } => self.ended = true,
                    // Whoever would ask again would be sent on again, without end.
                    Frame::Away { .. } if self.elsewhere.is_none() => return Err(self.sent_on_unasked()),
                    frame => return Ok(Some(frame)),
                }
                continue;
            }
            match self.piece().await {
                Ok(Some(piece)) => self.decoder.feed(piece),
                Ok(None) => {
                    let finished = self.decoder.finish();
                    finished.map_err(|error| self.broken(error))?;
                    self.give_back();
                    return Ok(None);
                }
                // Whatever the transport says of its end, END was there.
                Err(_) if self.ended => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how long groups have been hashed for since it was last asked.
    pub fn take_hashing(&mut self) -> Duration {
        self.decoder.take_hashing()
    }

    /// Reads what is left of a stream of which nothing more is wanted, if it is the end: the connection is then good for
    /// the next request.
    pub(crate) async fn finish(mut self) {
        let rest = async {
            while let Ok(Some(frame)) = self.next().await {
                if matches!(frame, Frame::Data(_)) {
                    break;
                }
            }
        };
        drop(tokio::time::timeout(FINISH_WITHIN, rest).await);
    }

    /// Reads the next bytes of the stream; nothing at its end.
    async fn piece(&mut self) -> crate::Result<Option<Bytes>> {
        let (plain, connection, is_large) = match &mut self.way {
            Way::Answer(response) => return self.client.piece(&self.operation, response).await,
            Way::Plain { plain, connection, is_large, .. } => (plain, connection, *is_large),
        };
        let wanted = self.decoder.wanted();
        let Some(open) = connection.as_mut().filter(|_| wanted > 0) else { return Ok(None) };
        let read = tokio::time::timeout(self.client.stall_timeout(), open.read(wanted, is_large)).await;
        let why = match read {
            Ok(Ok(Some(piece))) => {
                if let Some(limit) = self.client.limit() {
                    limit.take(piece.len() as u64).await;
                }
                return Ok(Some(piece));
            }
            // Whoever looks finds that the stream was cut.
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some(broke(&self.operation, error)),
            Err(_) => Some(self.client.stalled(&self.operation)),
        };
        *connection = None;
        plain.encrypt("a connection without encryption broke within a stream");
        why.map_or(Ok(None), Err)
    }

    /// Keeps a connection of which the whole stream was read for the next one.
    fn give_back(&mut self) {
        if let Way::Plain { plain, connection, is_altered: false, .. } = &mut self.way
            && let Some(connection) = connection.take()
        {
            plain.give_back(connection);
        }
    }

    /// Prepares for what follows: the groups of a large item go each into a buffer of its own.
    fn expect(&mut self, frame: &Frame) {
        if let (Way::Plain { is_large, .. }, Frame::Item { size, .. }) = (&mut self.way, frame) {
            *is_large = group_count(*size) > 1;
        }
    }

    fn sent_on_unasked(&self) -> Error {
        let detail = "the site names another one to read from, and was not asked to";
        Error::new(ErrorKind::Protocol, ErrorCode::Internal, &*self.operation, detail)
    }

    fn broken(&mut self, error: FrameError) -> Error {
        let is_wrong = error != FrameError::Cut && self.distrust(&error.to_string());
        let (kind, retry) = match error {
            FrameError::Cut => (ErrorKind::Connection, Retry::Temporary),
            // It may be another's doing, and comes over TLS next.
            _ if is_wrong => (ErrorKind::Connection, Retry::Temporary),
            _ => (ErrorKind::Protocol, Retry::Permanent),
        };
        let code = if retry == Retry::Temporary { ErrorCode::SiteUnavailable } else { ErrorCode::Internal };
        Error::new(kind, code, &*self.operation, error.to_string()).with_source(error).with_retry(retry)
    }
}

fn call(operation: &str, items: Vec<PullItem>, share: Option<&str>, checks: Checks) -> Call {
    let mut call = Call::new(operation, Method::POST, "/v1/frames/pull")
        .json(&Pull { items })
        .header(ACCEPT.as_str(), &format!("{}, {}", media::FRAMES, media::PROBLEM));
    if checks == Checks::Here {
        call = call.header(fields::VERIFY, fields::RECEIVER);
    }
    match share {
        Some(share) => call.header(fields::SHARE, share),
        None => call,
    }
}

fn broke(operation: &str, error: std::io::Error) -> Error {
    let detail = format!("the connection without encryption broke: {error}");
    Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, operation, detail).with_source(error)
}

/// Reads the problem of a FAIL or ERROR frame.
pub fn parse_problem(operation: &str, json: &[u8]) -> Error {
    match serde_json::from_slice::<Problem>(json) {
        Ok(problem) => Error::problem(operation, problem),
        Err(error) => {
            let detail = format!("the site sent a problem that is not understood: {error}");
            Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail).with_source(error)
        }
    }
}

/// Reads the description of an item.
///
/// # Errors
/// It is not one.
pub fn parse_item(operation: &str, json: &[u8]) -> crate::Result<PulledItem> {
    serde_json::from_slice(json).map_err(|error| {
        let detail = format!("the site sent an item that is not understood: {error}");
        Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail).with_source(error)
    })
}
