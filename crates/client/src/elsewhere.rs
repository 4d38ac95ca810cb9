//! Bytes that the entry site does not have are read straight from the site that it names
//! (`docs/design/federation.md`, "Redirects and relays").
//!
//! That site is known by the key that the entry site says, and opens the bytes for a ticket. What comes is verified as
//! ever. Whatever goes wrong there, the entry site is asked again and fetches the bytes itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderName;
use percale_api::uploads::PullItem;
use percale_api::{away, fields};
use percale_core::ErrorCode;
use percale_core::ids::SiteId;
use percale_mover::Bucket;
use percale_trust::SitePublicKey;
use percale_trust::tls::visitor_config;
use reqwest::header::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::client::{Client, ClientOptions};
use crate::error::{Error, ErrorKind};
use crate::pull::{Ask, Checks, FrameStream};
use crate::retry::RetryPolicy;

/// How long a site that could not be reached, refused or sent something wrong is not gone to. Longer than most programs
/// live; a mount lives for weeks.
const LEFT_ALONE: Duration = Duration::from_secs(600);
/// Time for a connection to come about: the entry site can do it as well.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Time without progress.
const STALL: Duration = Duration::from_secs(10);
/// A ticket is not used so shortly before its end.
const MARGIN: Duration = Duration::from_secs(30);
/// Most places that one stream may name.
const MAX_PLACES: usize = 1024;

/// The sites to which a client was sent.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    streams: Option<usize>,
    limit: Option<Arc<Bucket>>,
    connect_timeout: Duration,
    stall_timeout: Duration,
    sites: Mutex<HashMap<SiteId, Known>>,
}

#[derive(Debug)]
struct Known {
    name: String,
    url: String,
    keys: Vec<String>,
    /// Holds the connections.
    client: Option<Client>,
    /// When something went wrong there.
    failed: Option<Instant>,
}

/// Where bytes are, for as long as the ticket is good.
#[derive(Clone)]
pub(crate) struct Place {
    /// Asks with the ticket.
    pub client: Client,
    site: SiteId,
    name: String,
    until: Instant,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("site", &self.name).finish_non_exhaustive()
    }
}

impl Place {
    /// Tells whether its ticket is good for a while.
    pub fn is_good(&self) -> bool {
        Instant::now() < self.until
    }
}

impl Elsewhere {
    /// Of a client with these options.
    /// `limit` is what all that is read there keeps to, together with what that client reads itself.
    pub fn new(options: &ClientOptions, limit: Option<Arc<Bucket>>) -> Self {
        Self {
            streams: options.streams,
            limit,
            connect_timeout: options.connect_timeout.min(CONNECT_WITHIN),
            stall_timeout: options.stall_timeout.min(STALL),
            sites: Mutex::default(),
        }
    }

    fn sites(&self) -> std::sync::MutexGuard<'_, HashMap<SiteId, Known>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the entry site is told: that the client goes where it is sent, but for some sites.
    pub fn follow(&self) -> away::Follow {
        let sites = self.sites();
        let left_alone = sites.values().filter(|known| known.is_left_alone());
        let mut not: Vec<String> = left_alone.map(|known| known.name.clone()).collect();
        not.sort();
        away::Follow { not }
    }

    /// Makes a place of what the entry site says of it.
    ///
    /// # Errors
    /// What it says cannot be used.
    fn place(&self, operation: &str, json: &[u8]) -> crate::Result<Place> {
        let wrong = |what: &str| {
            let detail = format!("the site named a place to read from that cannot be used: {what}");
            Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail)
        };
        let away: away::Place =
            serde_json::from_slice(json).map_err(|error| wrong("it is not understood").with_source(error))?;
        let mut ticket = HeaderValue::from_str(&away.ticket).map_err(|_| wrong("its ticket is none"))?;
        ticket.set_sensitive(true);
        let position = HeaderValue::from_str(&away.position.to_string());
        let position = position.map_err(|_| wrong("its position is none"))?;
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(fields::TICKET), ticket);
        headers.insert(HeaderName::from_static(fields::POSITION), position);

        let mut sites = self.sites();
        let known = sites.entry(away.site).or_insert_with(|| Known {
            name: away.name.clone(),
            url: String::new(),
            keys: Vec::new(),
            client: None,
            failed: None,
        });
        if known.is_left_alone() {
            return Err(wrong("it failed a moment ago"));
        }
        let client = match &known.client {
            Some(client) if known.url == away.url && known.keys == away.keys => client.clone(),
            _ => {
                let client = self.connect(&away).map_err(|error| wrong(error.detail()))?;
                known.client = Some(client.clone());
                (known.url, known.keys) = (away.url, away.keys);
                client
            }
        };
        known.name.clone_from(&away.name);
        let life = Duration::from_secs(away.life_s).saturating_sub(MARGIN).min(LEFT_ALONE);
        tracing::debug!(site = away.name, "the bytes are read straight from the site that has them");
        let client = client.with_headers(headers);
        Ok(Place { client, site: away.site, name: away.name, until: Instant::now() + life })
    }

    fn connect(&self, away: &away::Place) -> crate::Result<Client> {
        let usage = |detail: &str| {
            let operation = format!("go to site {}", away.name);
            Error::new(ErrorKind::Usage, ErrorCode::InvalidRequest, operation, detail)
        };
        if !away.url.starts_with("https://") {
            return Err(usage("its address is not https"));
        }
        let keys: Result<Vec<SitePublicKey>, _> = away.keys.iter().map(|key| key.parse()).collect();
        let keys = keys.map_err(|_| usage("its key is none"))?;
        let mut options = ClientOptions::new(&away.url);
        options.site_tls = Some(visitor_config(keys).map_err(|error| usage(&error.to_string()))?);
        options.connect_timeout = self.connect_timeout;
        options.stall_timeout = self.stall_timeout;
        options.retry = RetryPolicy::never();
        options.streams = self.streams;
        Ok(Client::new(options)?.with_limit(self.limit.clone()))
    }

    /// Notes what went wrong at a place. Tells whether the entry site is to be asked again: not if it is this computer
    /// that cannot go on.
    pub fn failed(&self, place: &Place, error: &Error) -> bool {
        if error.kind() == ErrorKind::Local {
            return false;
        }
        tracing::debug!(site = place.name, %error, "the site that was asked first is to fetch the bytes itself");
        // What is the matter with one object, or cuts one connection, is not the site's fault.
        let is_at_fault = match error.kind() {
            ErrorKind::Problem => false,
            ErrorKind::Connection | ErrorKind::Timeout => error.is_unreached(),
            _ => true,
        };
        if is_at_fault {
            self.leave_alone(place);
        }
        true
    }

    /// Notes that a site does not answer requests with its tickets.
    pub fn refused(&self, place: &Place, error: &Error) {
        self.failed(place, error);
        self.leave_alone(place);
    }

    fn leave_alone(&self, place: &Place) {
        if let Some(known) = self.sites().get_mut(&place.site) {
            known.failed = Some(Instant::now());
        }
    }
}

impl Known {
    fn is_left_alone(&self) -> bool {
        self.failed.is_some_and(|failed| failed.elapsed() < LEFT_ALONE)
    }
}

/// The places that a stream has named; nothing for one that cannot be used.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<Option<Place>>);

impl Places {
    /// Takes what an AWAY frame says, and returns the number of its place.
    ///
    /// # Errors
    /// It names a place that it has not described, or too many.
    pub fn take(
        &mut self,
        elsewhere: &Elsewhere,
        operation: &str,
        number: u64,
        info: &[u8],
    ) -> crate::Result<usize> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if at == self.0.len() && at < MAX_PLACES {
            let place = elsewhere.place(operation, info);
            self.0.push(place.map_err(|error| tracing::warn!("{error}; it is to fetch them itself")).ok());
        }
        if at < self.0.len() {
            return Ok(at);
        }
        let detail = "the site did not say where the bytes are";
        Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail))
    }

    /// Returns a place by its number.
    pub fn get(&self, number: usize) -> Option<&Place> {
        self.0.get(number)?.as_ref()
    }
}

/// From where one object is read: the site that was asked, or the one that it names.
#[derive(Debug)]
pub(crate) struct Way {
    client: Client,
    place: Mutex<Option<Place>>,
    /// Whether the site that is asked has to fetch the bytes itself.
    is_relayed: AtomicBool,
}

/// Frames, and the place that they come from if it is not the site that was asked.
pub(crate) struct Opened {
    pub frames: FrameStream,
    pub place: Option<Place>,
}

impl Way {
    /// Begins at the site that is asked.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), place: Mutex::default(), is_relayed: AtomicBool::new(false) }
    }

    /// Asks for an item, or parts of it, where it is.
    ///
    /// # Errors
    /// As the site that was asked answers.
    pub async fn open(
        &self,
        operation: &str,
        item: PullItem,
        share: Option<&str>,
        checks: Checks,
    ) -> crate::Result<Opened> {
        loop {
            if let Some(place) = self.place() {
                let ask = Ask { follow: false, share, checks };
                match FrameStream::open(&place.client, operation, vec![item.clone()], ask).await {
                    Ok(frames) => return Ok(Opened { frames, place: Some(place) }),
                    Err(error) => self.refused(&place, &error),
                }
            }
            let follow = !self.is_relayed.load(Relaxed);
            let ask = Ask { follow, share, checks };
            let mut frames = FrameStream::open(&self.client, operation, vec![item.clone()], ask).await?;
            match frames.sent_on().await? {
                None => return Ok(Opened { frames, place: None }),
                Some(place) => self.go_to(place),
            }
        }
    }

    /// Notes what went wrong with frames that came from a place. Tells whether to ask again at once: the bytes then come
    /// through the site that was asked.
    pub fn failed(&self, place: Option<&Place>, error: &Error) -> bool {
        let (Some(place), Some(elsewhere)) = (place, self.client.elsewhere()) else { return false };
        let is_again = elsewhere.failed(place, error);
        if is_again {
            self.go_to(None);
        }
        is_again
    }

    fn refused(&self, place: &Place, error: &Error) {
        if let Some(elsewhere) = self.client.elsewhere() {
            elsewhere.refused(place, error);
        }
        self.go_to(None);
    }

    fn place(&self) -> Option<Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(Place::is_good)
    }

    fn go_to(&self, place: Option<Place>) {
        let place = place.filter(Place::is_good);
        if place.is_none() {
            self.is_relayed.store(true, Relaxed);
        }
        // Whoever failed there earlier knows better.
        let place = place.filter(|_| !self.is_relayed.load(Relaxed));
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}
