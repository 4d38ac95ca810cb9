//! Connections, retries, errors: what every call has in common.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use percale_api::{fields, media};
use percale_core::{ErrorCode, Rate, Timestamp};
use percale_mover::limit::most_streams;
use percale_mover::{Bucket, Streams};
use percale_trust::Secret;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, DATE, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use uuid::Uuid;

use crate::answer::parse_json;
use crate::bases::{Bases, RoundTrip};
use crate::body::{LastSent, Passed};
use crate::call::{Answer, Call, Repeat};
use crate::compression::{self, Compressed};
use crate::control::Raw;
use crate::elsewhere::Elsewhere;
use crate::error::{Error, ErrorKind};
use crate::plain::{Plain, PlainState};
use crate::retry::{Attempts, RetryPolicy};

/// Largest answer that is held in memory: a page of 10 000 entries with long paths, or the hash tree of 4 TiB.
const MAX_ANSWER_BYTES: usize = 128 << 20;

/// Most streams of one bulk transfer.
pub(crate) const MAX_STREAMS: usize = 64;
/// Connections that are opened ahead, before the round trip is known.
const WARM_STREAMS: usize = 10;

/// How to reach a site, and as whom.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The site's URL, such as `https://data.example.org`.
    pub url: String,
    /// Further URLs of the same site, such as those of its other servers: where one does not answer, the next is asked,
    /// and stays the one that is asked first.
    pub other_urls: Vec<String>,
    /// The bearer token; nobody is signed in without one.
    pub token: Option<Secret<String>>,
    /// A file of certificates (PEM) that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Time for a connection to come about. Default 10 s.
    pub connect_timeout: Duration,
    /// Time without progress, of what is sent or of what is answered, after which a call is given up. Default 60 s.
    pub stall_timeout: Duration,
    /// How long and how often a call is repeated.
    pub retry: RetryPolicy,
    /// Streams of one bulk transfer; chosen by the measured round trip if absent ([`Streams`]).
    pub streams: Option<usize>,
    /// How fast bytes may be sent and read, all streams together; as fast as they go if absent.
    pub limit: Option<Rate>,
    /// For calls between sites: what both prove themselves with (`docs/design/trust.md`). In place of `ca_file`.
    pub site_tls: Option<rustls::ClientConfig>,
    /// For calls between sites: a socket of this host whose connections lead to the site. The URL is then only a name, and
    /// `http`, since whoever owns the socket has encrypted what is behind it.
    pub socket: Option<PathBuf>,
    /// For calls between sites: the name of the site, if it may send frames without encryption, each authenticated.
    pub integrity_only: Option<String>,
    /// Whether bytes that the site does not have are read straight from the one that it names, by a ticket. Default yes;
    /// never in calls between sites.
    pub follow: bool,
}

impl ClientOptions {
    /// Begins with the defaults for a site.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            other_urls: Vec::new(),
            token: None,
            ca_file: None,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            retry: RetryPolicy::default(),
            streams: None,
            limit: None,
            site_tls: None,
            socket: None,
            integrity_only: None,
            follow: true,
        }
    }
}

/// A client of one site. Cheap to clone; clones share the connections.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    http: reqwest::Client,
    bases: Arc<Bases>,
    retry: RetryPolicy,
    streams: Option<usize>,
    limit: Option<Arc<Bucket>>,
    rtt: Arc<RoundTrip>,
    stall_timeout: Duration,
    /// Sent with every request besides its own.
    headers: HeaderMap,
    /// Whether the site has ever answered.
    reached: Arc<AtomicBool>,
    /// The sites to which it sent; nothing if this client does not go anywhere.
    elsewhere: Option<Arc<Elsewhere>>,
    /// Who hears of the site's time.
    clock: Option<OnTime>,
    /// The way beside TLS, if it may be used.
    plain: Option<Arc<Plain>>,
    /// What the site takes compressed; nothing where fewer bytes are no gain.
    compressed: Option<Arc<Compressed>>,
}

/// Hears of a site's time.
#[derive(Clone)]
struct OnTime(Arc<dyn Fn(Timestamp) + Send + Sync>);

impl std::fmt::Debug for OnTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnTime")
    }
}

impl Client {
    /// Makes a client. Nothing is sent yet.
    ///
    /// # Errors
    /// The URL is not one, the file of certificates cannot be read, or a token would travel unencrypted.
    pub fn new(options: ClientOptions) -> crate::Result<Self> {
        let usage = |detail: String| {
            Error::new(
                ErrorKind::Usage,
                ErrorCode::InvalidConfiguration,
                format!("use {}", options.url),
                detail,
            )
        };
        let mut urls = Vec::with_capacity(1 + options.other_urls.len());
        let mut is_loopback = true;
        for text in std::iter::once(&options.url).chain(&options.other_urls) {
            let mut base = Url::parse(text).map_err(|error| {
                usage(format!("it is not a URL such as https://data.example.org: {error}"))
            })?;
            let is_here = self::is_loopback(base.host_str().unwrap_or_default());
            match base.scheme() {
                "https" => {}
                "http" if options.token.is_none() || is_here || options.socket.is_some() => {}
                "http" => return Err(usage("a token is only sent over https".into())),
                _ => return Err(usage("it must begin with https://".into())),
            }
            base.set_query(None);
            base.set_fragment(None);
            if !base.path().ends_with('/') {
                base.set_path(&format!("{}/", base.path()));
            }
            is_loopback &= is_here;
            urls.push(base);
        }
        let is_ordinary = options.site_tls.is_none() && options.socket.is_none();
        let limit = options.limit.map(|limit| Arc::new(Bucket::new(limit)));
        let elsewhere =
            (options.follow && is_ordinary).then(|| Arc::new(Elsewhere::new(&options, limit.clone())));
        let tls = match options.site_tls {
            Some(tls) => tls,
            None => percale_trust::client_config(options.ca_file.as_deref())
                .map_err(|error| usage(error.to_string()).with_source(error))?,
        };
        let mut headers = HeaderMap::new();
        if let Some(token) = &options.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose().trim()))
                .map_err(|_| usage("the token holds characters that no token has".into()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("percale/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            // Bulk transfers open several connections on purpose; HTTP/2 would put them all on one.
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(options.connect_timeout)
            .pool_max_idle_per_host(options.streams.unwrap_or(MAX_STREAMS) + 4)
            .pool_idle_timeout(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none());
        // Nothing is gained by fewer bytes there.
        let compressed = (!is_loopback && options.socket.is_none()).then(Arc::default);
        if is_loopback {
            builder = builder.no_proxy().no_gzip();
        }
        if let Some(socket) = options.socket {
            builder = builder.unix_socket(socket).no_proxy().no_gzip();
        }
        let http = builder.build().map_err(|error| usage(error.to_string()))?;
        let streams = options.streams.map(|streams| streams.clamp(1, MAX_STREAMS));
        Ok(Self {
            inner: Arc::new(Inner {
                http,
                bases: Arc::new(Bases::new(urls)),
                retry: options.retry,
                streams,
                limit,
                rtt: Arc::default(),
                stall_timeout: options.stall_timeout,
                headers: HeaderMap::new(),
                reached: Arc::default(),
                elsewhere,
                clock: None,
                plain: options.integrity_only.map(|site| Arc::new(Plain::new(site))),
                compressed,
            }),
        })
    }

    /// Returns a client that shares the connections and sends these fields with every request.
    pub fn with_headers(&self, headers: HeaderMap) -> Self {
        Self { inner: Arc::new(Inner { headers, ..Inner::clone(&self.inner) }) }
    }

    /// Returns a client that shares the connections and tells what time it is at the site, to a second, with every answer.
    pub fn with_clock(&self, clock: impl Fn(Timestamp) + Send + Sync + 'static) -> Self {
        let clock = Some(OnTime(Arc::new(clock)));
        Self { inner: Arc::new(Inner { clock, ..Inner::clone(&self.inner) }) }
    }

    /// Returns a client that shares the connections and retries in another way.
    pub fn with_retry(&self, retry: RetryPolicy) -> Self {
        Self { inner: Arc::new(Inner { retry, ..Inner::clone(&self.inner) }) }
    }

    /// Passes a request on as it is and returns the answer before its body; nothing is repeated. Between sites only.
    ///
    /// # Errors
    /// The site could not be reached, or nothing moved for too long. Any answer is a success.
    pub async fn pass_on(
        &self,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: Passed,
    ) -> crate::Result<Response> {
        // The query may hold a ticket.
        let operation = format!("pass {method} {} on", path_and_query.split('?').next().unwrap_or_default());
        let url = self.url().join(path_and_query.trim_start_matches('/')).map_err(|error| {
            Error::new(ErrorKind::Usage, ErrorCode::InvalidRequest, &operation, error.to_string())
        })?;
        let request =
            self.inner.http.request(method, url).headers(headers).headers(self.inner.headers.clone());
        self.answered(&operation, request.body(body.body), body.sent.as_ref()).await
    }

    /// Returns the body of an answer to what was passed on. It ends with an error where nothing moved for too long.
    pub fn passed_back(&self, response: Response) -> impl Stream<Item = crate::Result<Bytes>> + use<> {
        futures::stream::try_unfold((self.clone(), response), |(client, mut response)| async move {
            let piece = client.piece("pass an answer back", &mut response).await?;
            Ok(piece.map(|piece| (piece, (client, response))))
        })
    }

    /// Returns the site's URL, with a slash at its end; the one that is asked now if there are several.
    pub fn url(&self) -> &Url {
        self.inner.bases.now()
    }

    /// Returns the way beside TLS, if it may be used.
    pub(crate) fn plain(&self) -> Option<&Arc<Plain>> {
        self.inner.plain.as_ref()
    }

    /// Returns what is known of streams without encryption, if the site may send such.
    pub fn plain_state(&self) -> Option<PlainState> {
        self.plain().map(|plain| plain.state())
    }

    /// Returns the time without progress after which a call is given up.
    pub(crate) fn stall_timeout(&self) -> Duration {
        self.inner.stall_timeout
    }

    /// Returns how many streams a bulk transfer takes.
    pub(crate) fn streams(&self) -> usize {
        let streams = self.inner.streams.unwrap_or_else(|| self.tuned().count);
        let limit = self.limit().and_then(|limit| limit.rate());
        limit.map_or(streams, |limit| streams.min(most_streams(limit)))
    }

    /// The same for one that begins before the site has answered for the first time.
    pub(crate) fn first_streams(&self) -> usize {
        let is_known = self.inner.streams.is_some() || self.inner.rtt.shortest().is_some();
        let streams = self.streams();
        if is_known || self.limit().is_some() || self.is_here() { streams } else { streams.max(WARM_STREAMS) }
    }

    /// Tells whether the site is on this host: then nothing is gained by what saves round trips.
    pub fn is_here(&self) -> bool {
        is_loopback(self.url().host_str().unwrap_or_default())
    }

    /// Returns what the bytes of this client keep to.
    pub(crate) fn limit(&self) -> Option<&Arc<Bucket>> {
        self.inner.limit.as_ref()
    }

    /// Returns a client that shares the connections and keeps to a limit, which others may keep to as well.
    pub(crate) fn with_limit(&self, limit: Option<Arc<Bucket>>) -> Self {
        Self { inner: Arc::new(Inner { limit, ..Inner::clone(&self.inner) }) }
    }

    /// Returns how many streams the path to the site asks for, by what was measured so far, and why.
    pub fn tuned(&self) -> Streams {
        Streams::for_path(self.inner.rtt.shortest(), None)
    }

    /// Returns the shortest round trip to the site that was seen.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.inner.rtt.shortest()
    }

    /// Opens connections ahead of a bulk transfer, while other things are asked: each takes two round trips. What goes wrong
    /// is found out by the transfer. Does nothing for a site on this host, where nothing is gained.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn warm_up(&self) {
        self.open_ahead(self.inner.streams.unwrap_or(WARM_STREAMS));
    }

    pub(crate) fn open_ahead(&self, connections: usize) {
        if self.is_here() {
            return;
        }
        for _ in 0..connections {
            let client = self.clone();
            tokio::spawn(async move {
                let call = Call::new("open a connection", Method::GET, "/livez");
                drop(client.fetch_once(&call, None).await);
            });
        }
    }

    pub(crate) fn elsewhere(&self) -> Option<&Arc<Elsewhere>> {
        self.inner.elsewhere.as_ref()
    }

    pub(crate) fn attempts(&self) -> Attempts {
        Attempts::new(self.inner.retry, self.inner.reached.clone())
    }

    /// Sends a call and reads its answer; again if that is allowed and can help.
    pub(crate) async fn fetch(&self, call: Call) -> crate::Result<Answer> {
        let mut attempts = self.attempts();
        let key = (call.repeat == Repeat::Keyed).then(|| Uuid::now_v7().to_string());
        loop {
            match self.fetch_once(&call, key.as_deref()).await {
                Ok(answer) => return Ok(answer),
                // A repeated removal finds nothing: the first one did it, though its answer was lost.
                Err(error)
                    if call.method == Method::DELETE
                        && attempts.failed() > 0
                        && error.code() == ErrorCode::NotFound =>
                {
                    return Ok(Answer {
                        status: StatusCode::NO_CONTENT,
                        headers: HeaderMap::new(),
                        body: Bytes::new(),
                    });
                }
                Err(error) if call.repeat == Repeat::Never && !never_arrived(&error) => return Err(error),
                Err(error) => attempts.pause_after(error).await?,
            }
        }
    }

    async fn fetch_once(&self, call: &Call, key: Option<&str>) -> crate::Result<Answer> {
        let mut response = self.send(call, key).await?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let body = self.read_bytes(&call.operation, response, MAX_ANSWER_BYTES).await?;
        Ok(Answer { status, headers, body })
    }

    /// Sends a call and reads its answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> crate::Result<T> {
        let operation = call.operation.clone();
        parse_json(&operation, &self.fetch(call).await?.body)
    }

    /// Sends a call once and returns the answer before its body.
    pub(crate) async fn open_once(&self, call: Call) -> crate::Result<Response> {
        self.send(&call, None).await
    }

    /// Sends a call once, its JSON compressed if the site takes that. One that does not take it after all is another server of the site, or was
    /// put back to an older release: it has done nothing for a call that it refused, and gets it as it is.
    async fn send(&self, call: &Call, key: Option<&str>) -> crate::Result<Response> {
        let known = self.inner.compressed.as_deref();
        let mut compressed = known.and_then(|known| known.of(call));
        loop {
            let (mut request, trace) = self.request(call)?;
            if let Some(key) = key {
                request = request.header(fields::IDEMPOTENCY_KEY, key);
            }
            let is_compressed = compressed.is_some();
            if is_compressed {
                request = request.header(CONTENT_ENCODING, compression::CODING);
            }
            if let Some(json) = compressed.take().or_else(|| call.json.clone()) {
                request = request.header(CONTENT_TYPE, "application/json").body(json);
            }
            let answer = self.finish(&call.operation, request, &trace, None).await;
            if let Some(known) = known {
                known.note(call, answer.as_ref().ok());
            }
            match answer {
                Err(error) if is_compressed && compression::is_refused(&error) => {}
                answer => return answer,
            }
        }
    }

    /// Sends a call once and returns the answer before its body, whatever its status.
    pub(crate) async fn open_any(&self, call: Call) -> crate::Result<Response> {
        let (request, trace) = self.request(&call)?;
        self.answered(&call.operation, request, None).await.map_err(|error| error.with_trace(&trace))
    }

    /// Sends a stream of frames, once.
    pub(crate) async fn send_frames(
        &self,
        call: Call,
        body: reqwest::Body,
        sent: &LastSent,
    ) -> crate::Result<Response> {
        let (request, trace) = self.request(&call)?;
        let request = request.header(CONTENT_TYPE, media::FRAMES).body(body);
        self.finish(&call.operation, request, &trace, Some(sent)).await
    }

    pub(crate) async fn raw_call(&self, method: &str, path: &str, json: Option<&[u8]>) -> crate::Result<Raw> {
        let operation = format!("call {method} {path}");
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| {
            Error::new(ErrorKind::Usage, ErrorCode::InvalidRequest, &operation, error.to_string())
        })?;
        let (mut request, trace) = self.request(&Call::new(&operation, method, path))?;
        if let Some(json) = json {
            request = request.header(CONTENT_TYPE, "application/json").body(json.to_vec());
        }
        let response =
            self.answered(&operation, request, None).await.map_err(|error| error.with_trace(&trace))?;
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let body = self.read_bytes(&operation, response, MAX_ANSWER_BYTES).await?;
        Ok(Raw { status, content_type, body })
    }

    fn request(&self, call: &Call) -> crate::Result<(reqwest::RequestBuilder, String)> {
        let url = self.url().join(call.path.trim_start_matches('/')).map_err(|error| {
            Error::new(ErrorKind::Usage, ErrorCode::InvalidRequest, &call.operation, error.to_string())
        })?;
        let trace = Uuid::now_v7().simple().to_string();
        let traceparent = format!("00-{trace}-{:016x}-01", fastrand::u64(1..));
        let mut request = self
            .inner
            .http
            .request(call.method.clone(), url)
            .headers(self.inner.headers.clone())
            .headers(call.headers.clone())
            .header(fields::TRACEPARENT, traceparent);
        if !call.headers.contains_key(ACCEPT) {
            request = request.header(ACCEPT, "application/json, application/problem+json");
        }
        if !call.query.is_empty() {
            request = request.query(&call.query);
        }
        Ok((request, trace))
    }

    async fn finish(
        &self,
        operation: &str,
        request: reqwest::RequestBuilder,
        trace: &str,
        sent: Option<&LastSent>,
    ) -> crate::Result<Response> {
        let response =
            self.answered(operation, request, sent).await.map_err(|error| error.with_trace(trace))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.problem(operation, response).await.with_trace(trace))
    }

    /// Sends a request and waits for the head of its answer, for as long as what is sent makes progress. Where the site has
    /// several URLs, one that cannot be connected to gives way to the next.
    async fn answered(
        &self,
        operation: &str,
        request: reqwest::RequestBuilder,
        sent: Option<&LastSent>,
    ) -> crate::Result<Response> {
        let bases = &*self.inner.bases;
        let mut request = request.build().map_err(|error| Error::transport(operation, error))?;
        for left in (0..bases.count()).rev() {
            let at = bases.of(request.url());
            let again = if left > 0 { request.try_clone() } else { None };
            let error = match self.answered_once(operation, request, sent).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            if matches!(error.kind(), ErrorKind::Connection | ErrorKind::Timeout) {
                bases.turn_from(at);
            }
            let Some(mut next) = again.filter(|_| never_arrived(&error)) else { return Err(error) };
            if bases.redirect(next.url_mut(), at).is_none() {
                return Err(error);
            }
            request = next;
        }
        Err(self.stalled(operation))
    }

    async fn answered_once(
        &self,
        operation: &str,
        request: reqwest::Request,
        sent: Option<&LastSent>,
    ) -> crate::Result<Response> {
        let began = Instant::now();
        let send = self.inner.http.execute(request);
        tokio::pin!(send);
        loop {
            let last = sent.map_or(began, |sent| sent.at().max(began));
            match tokio::time::timeout_at(last + self.inner.stall_timeout, &mut send).await {
                Ok(response) => {
                    let response = response.map_err(|error| Error::transport(operation, error))?;
                    let is_first = !self.inner.reached.swap(true, Relaxed);
                    if sent.is_none() {
                        self.inner.rtt.note(began.elapsed(), is_first);
                    }
                    let date = response
                        .headers()
                        .get(DATE)
                        .and_then(|date| Timestamp::from_http_date(date.to_str().ok()?));
                    if let (Some(clock), Some(date)) = (&self.inner.clock, date) {
                        (clock.0)(date);
                    }
                    return Ok(response);
                }
                Err(_) if sent.is_some_and(|sent| sent.at() > last) => {}
                Err(_) => return Err(self.stalled(operation)),
            }
        }
    }

    /// Reads the next piece of an answer.
    pub(crate) async fn piece(
        &self,
        operation: &str,
        response: &mut Response,
    ) -> crate::Result<Option<Bytes>> {
        match tokio::time::timeout(self.inner.stall_timeout, response.chunk()).await {
            Ok(piece) => {
                let piece = piece.map_err(|error| Error::transport(operation, error))?;
                if let (Some(limit), Some(piece)) = (self.limit(), &piece) {
                    limit.take(piece.len() as u64).await;
                }
                Ok(piece)
            }
            Err(_) => Err(self.stalled(operation)),
        }
    }

    pub(crate) fn stalled(&self, operation: &str) -> Error {
        let detail = format!("nothing moved for {} s", self.inner.stall_timeout.as_secs_f32());
        Error::new(ErrorKind::Timeout, ErrorCode::Timeout, operation, detail)
    }
}

/// Tells whether a request surely did not reach the server, or was turned away before anything was done.
fn never_arrived(error: &Error) -> bool {
    let refused_before = matches!(error.code(), ErrorCode::RateLimited)
        && error.as_problem().is_some_and(|problem| problem.status == StatusCode::TOO_MANY_REQUESTS.as_u16());
    refused_before || error.is_unreached()
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_travels_unencrypted() {
        let with_token = |url: &str| {
            let mut options = ClientOptions::new(url);
            options.token = Some("secret".to_owned().into());
            Client::new(options)
        };
        let error = with_token("http://data.example.org").unwrap_err();
        assert!(error.to_string().contains("https"), "{error}");
        assert!(!format!("{error:?}").contains("secret"));
        for url in ["https://data.example.org", "http://127.0.0.1:8787", "http://[::1]:1/"] {
            with_token(url).unwrap();
        }
        for url in ["", "data.example.org", "ftp://x/", "//x"] {
            assert!(with_token(url).is_err(), "{url:?}");
        }
    }
}
