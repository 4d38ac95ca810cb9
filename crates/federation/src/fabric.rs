//! This site among the others.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use percale_api::fields;
use percale_catalog::{Catalog, PeerState};
use percale_client::{Client, ClientOptions, PlainState, RetryPolicy};
use percale_core::access::Caller;
use percale_core::ids::{SiteId, SpaceId, TaskId, TokenId, VersionId};
use percale_core::{ErrorCode, ObjectPath, Position, Timestamp};
use percale_trust::signed::{Delegation, MAX_DELEGATION_LIFE, Statement, Ticket, TicketOp};
use percale_trust::tls::{SiteCertificate, site_client_config, unpinned_client_config};
use percale_trust::{SiteKey, SitePublicKey};

use crate::contact::Contact;
use crate::error::{Error, Result};
use crate::reverse::Reverse;
use crate::roster::{self, Member, Roster};
use crate::servers;

/// How long a statement is good: a request is answered, or begins its body, well within.
const STATEMENT_LIFE: Duration = Duration::from_secs(120);
/// How long a delegation is good whose task has no deadline.
pub const DELEGATION_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a ticket is good: a client uses it at once, and asks for another when it is over.
pub const TICKET_LIFE: Duration = Duration::from_secs(5 * 60);
/// Connections to a site that are kept for the next transfer.
const STREAMS: usize = 16;

/// What a site is to the others.
#[derive(Debug)]
pub struct OwnSite {
    /// Its id.
    pub id: SiteId,
    /// Its name.
    pub name: String,
    /// Where this server can be reached; nothing if it only dials out.
    pub urls: Vec<String>,
    /// Where its key is, and where rows are set aside that give way to those of another home.
    pub state_dir: PathBuf,
    /// How long another site may be silent while it is asked something.
    pub stall_timeout: Duration,
    /// The names of the sites that may send frames without encryption.
    pub integrity_only: Vec<String>,
}

/// What a site proves itself with. It changes while the server runs.
#[derive(Debug)]
pub struct OwnKey {
    /// What it signs with.
    pub key: SiteKey,
    /// What it shows to other sites.
    pub certificate: SiteCertificate,
}

impl OwnSite {
    /// Tells whether other sites can dial it.
    pub fn is_dialable(&self) -> bool {
        !self.urls.is_empty()
    }
}

/// How requests reach a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// It is dialled, at the first of these that answers.
    Direct(Vec<String>),
    /// Over connections that it has dialled.
    Reverse,
    /// Through another member, since neither can dial the other.
    Relay(SiteId),
}

/// On whose behalf a request between sites is made.
#[derive(Debug, Clone)]
pub enum Acting {
    /// The site itself.
    Site,
    /// A user, as this site knows it.
    User(Caller),
    /// A task, by the delegation that it holds.
    Task(String),
}

/// This site among the others. Cheap to clone.
#[derive(Clone)]
pub struct Fabric {
    inner: Arc<Inner>,
}

struct Inner {
    own: OwnSite,
    key: RwLock<Arc<OwnKey>>,
    /// Held while the key is changed.
    changing_key: tokio::sync::Mutex<()>,
    catalog: Catalog,
    roster: RwLock<Arc<Roster>>,
    contacts: Mutex<HashMap<SiteId, Contact>>,
    /// By site, and URL where it must be that one.
    clients: Mutex<HashMap<(SiteId, Option<String>), Connected>>,
    reverse: Reverse,
    /// The last positions of other homes that were heard of.
    heard: Mutex<HashMap<SpaceId, Position>>,
    changed: tokio::sync::watch::Sender<u64>,
}

/// Returns the time of a change that takes the place of what is known.
pub(crate) fn newer_than(known: Option<&Arc<Member>>) -> Timestamp {
    let after = known.map(|known| known.changed.after(Duration::from_micros(1)));
    Timestamp::now().max(after.unwrap_or(Timestamp::EPOCH))
}

/// The connections to a member, and what they were made for.
struct Connected {
    member: Arc<Member>,
    route: Route,
    client: Client,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("own", &self.inner.own.name).finish_non_exhaustive()
    }
}

impl Fabric {
    /// Reads the roster, and enters this site into it as it is now.
    ///
    /// # Errors
    /// Those of the catalog.
    pub async fn open(own: OwnSite, key: OwnKey, catalog: Catalog) -> Result<Self> {
        let stall_timeout = own.stall_timeout;
        let inner = Inner {
            own,
            key: RwLock::new(Arc::new(key)),
            changing_key: tokio::sync::Mutex::default(),
            catalog,
            roster: RwLock::default(),
            contacts: Mutex::default(),
            clients: Mutex::default(),
            reverse: Reverse::new(stall_timeout),
            heard: Mutex::default(),
            changed: tokio::sync::watch::channel(0).0,
        };
        let fabric = Self { inner: Arc::new(inner) };
        fabric.reload().await?;
        fabric.announce().await?;
        Ok(fabric)
    }

    /// Returns this site's own line of the roster.
    fn own_line(&self) -> Option<Arc<Member>> {
        self.roster().all().find(|member| member.id == self.own().id).cloned()
    }

    /// Writes this site's own line of the roster if it is not what it was.
    async fn announce(&self) -> Result<()> {
        let own = self.own();
        let urls = servers::urls(self).await?;
        let key = self.key().key.public().0;
        let known = self.own_line();
        if known.as_ref().is_some_and(|known| known.state == PeerState::Removed) {
            return Ok(());
        }
        if let Some(known) = known.as_ref().filter(|known| known.key != key) {
            self.announce_lost_key(known.key).await?;
        }
        let is_same = known
            .as_ref()
            .is_some_and(|known| known.name == own.name && known.key == key && known.urls == urls);
        if is_same {
            return Ok(());
        }
        let member = Member {
            id: own.id,
            name: own.name.clone(),
            key,
            old_key: None,
            key_change: None,
            is_confirmed: true,
            is_dialable: !urls.is_empty(),
            urls,
            issuers: known.as_ref().map(|known| known.issuers.clone()).unwrap_or_default(),
            state: known.as_ref().map_or(PeerState::Active, |known| known.state),
            changed: newer_than(known.as_ref()),
            changed_by: own.id,
        };
        self.merge(vec![member]).await.map(drop)
    }

    /// Reads the roster again, and sees to it that this site's line names the servers that there are. What another server
    /// of this site changed is told to all.
    ///
    /// # Errors
    /// Those of the catalog.
    pub(crate) async fn look_around(&self) -> Result<()> {
        let before = self.own_line();
        self.reload().await?;
        self.announce().await?;
        if self.own_line() != before {
            self.spread();
        }
        Ok(())
    }

    /// Returns this site.
    pub fn own(&self) -> &OwnSite {
        &self.inner.own
    }

    /// Returns what this site proves itself with now.
    pub fn key(&self) -> Arc<OwnKey> {
        self.inner.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Proves itself with another key from now on.
    pub(crate) fn use_key(&self, key: OwnKey) {
        *self.inner.key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
        // Their connections show the old one.
        self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keeps other changes of the key by this server away.
    pub(crate) async fn changing_key(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.changing_key.lock().await
    }

    /// Returns the catalog of this site.
    pub fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// Returns the connections of sites that only dial out.
    pub fn reverse(&self) -> &Reverse {
        &self.inner.reverse
    }

    /// Returns the members.
    pub fn roster(&self) -> Arc<Roster> {
        self.inner.roster.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a number that grows when the roster changes.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// Waits until a key is none of a member any more: it was removed, changed its key a day ago, or revoked it.
    pub async fn until_key_ends(&self, key: SitePublicKey) {
        let mut watch = self.watch();
        while self.roster().with_key(&key).is_some() {
            if watch.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the other members that take part.
    pub fn others(&self) -> Vec<Arc<Member>> {
        let own = self.own().id;
        self.roster().active().filter(|member| member.id != own).cloned().collect()
    }

    /// Reads the roster from the catalog again.
    ///
    /// # Errors
    /// Those of the catalog.
    pub async fn reload(&self) -> Result<()> {
        let members = self.inner.catalog.peers().await?;
        let fresh = Roster::new(members, Timestamp::now());
        let mut current = self.inner.roster.write().unwrap_or_else(PoisonError::into_inner);
        let cut = current.with_other_keys_than(&fresh);
        let is_same = cut.is_empty() && current.to_wire() == fresh.to_wire();
        *current = Arc::new(fresh);
        drop(current);
        for id in cut {
            self.inner.reverse.cut(id);
        }
        if !is_same {
            self.inner.changed.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// Takes what this site, or one of its administrators, says of members. Returns those that changed here.
    ///
    /// # Errors
    /// Those of the catalog.
    pub(crate) async fn merge(&self, members: Vec<Member>) -> Result<Vec<Member>> {
        // Nobody else decides how this site is called or reached; but it can be drained or removed.
        let (own, roster) = (self.own(), self.roster());
        let is_own_key = |key: [u8; 32]| roster.known(own.id).is_none_or(|known| known.key == key);
        let members = members
            .into_iter()
            .filter(|member| member.id != own.id || member.changed_by == own.id || is_own_key(member.key));
        let changed = self.inner.catalog.merge_peers(members.collect()).await?;
        if !changed.is_empty() {
            self.reload().await?;
        }
        Ok(changed)
    }

    /// Returns the way to a member.
    ///
    /// # Errors
    /// `site_unavailable` if there is none.
    pub fn route(&self, member: &Member) -> Result<Route> {
        if member.is_dialable && !member.urls.is_empty() {
            return Ok(Route::Direct(member.urls.clone()));
        }
        if self.own().is_dialable() || self.inner.reverse.is_connected(member.id) {
            return Ok(Route::Reverse);
        }
        let is_relay = |other: &Arc<Member>| other.is_dialable && other.is_confirmed && other.id != member.id;
        let relay = self.others().into_iter().filter(is_relay);
        // The one that answered last is the one most likely to answer now.
        let relay = relay.max_by_key(|other| self.contact(other.id).seen);
        match relay {
            Some(relay) => Ok(Route::Relay(relay.id)),
            None => Err(Error::new(
                ErrorCode::SiteUnavailable,
                format!(
                    "neither {} nor {} can be dialled, and no other site can",
                    self.own().name,
                    member.name
                ),
            )),
        }
    }

    /// Returns a member by id.
    ///
    /// # Errors
    /// `site_refused` if it does not take part.
    pub fn member(&self, id: SiteId) -> Result<Arc<Member>> {
        self.roster().get(id).cloned().ok_or_else(|| {
            Error::new(ErrorCode::SiteRefused, format!("the site {id} is not a member of this fabric"))
        })
    }

    /// Returns a member by name.
    ///
    /// # Errors
    /// `not_found`.
    pub fn named(&self, name: &str) -> Result<Arc<Member>> {
        self.roster().named(name).cloned().ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            Error::new(
                ErrorCode::NotFound,
                format!(
                    "there is no site '{shown}' in this fabric; `percale site list` shows those that are"
                ),
            )
        })
    }

    /// Returns a client for a member, on somebody's behalf, for requests that begin within the next two minutes. It
    /// repeats nothing by itself.
    ///
    /// # Errors
    /// `site_refused`, also if its key must be confirmed first; `site_unavailable`.
    pub fn client(&self, id: SiteId, acting: &Acting) -> Result<Client> {
        self.client_at(id, acting, None)
    }

    /// The same for requests that the member answers only once it stands at a position, or after a second.
    ///
    /// # Errors
    /// As [`Fabric::client`].
    pub fn client_at(&self, id: SiteId, acting: &Acting, at: Option<Position>) -> Result<Client> {
        let member = self.member(id)?;
        self.require_confirmed(&member)?;
        let route = self.route(&member)?;
        let (client, via) = match &route {
            Route::Relay(relay) => {
                let relay = self.member(*relay)?;
                (self.connected(&relay, self.route(&relay)?)?, Some(relay.id))
            }
            route => (self.connected(&member, route.clone())?, None),
        };
        Ok(self.watched(&client.with_headers(self.headers(&member, acting, via, at)?), member.id))
    }

    /// Returns a client for one of the servers of a member, of this URL, on behalf of this site.
    ///
    /// # Errors
    /// As [`Fabric::client`]; `site_unavailable` if the member does not name the URL any more.
    pub(crate) fn client_of_server(&self, id: SiteId, url: &str) -> Result<Client> {
        let member = self.member(id)?;
        if !member.is_dialable || member.urls.iter().all(|known| known != url) {
            let detail = format!("{} is not at {url} any more", member.name);
            return Err(Error::new(ErrorCode::SiteUnavailable, detail));
        }
        let client = self.connected_to(&member, Route::Direct(vec![url.to_owned()]), Some(url))?;
        Ok(self.watched(&client.with_headers(self.headers(&member, &Acting::Site, None, None)?), member.id))
    }

    /// Learns a member's time from whatever it answers: also from a refusal, or two sites whose clocks are apart, and which
    /// therefore refuse each other, would never find out.
    fn watched(&self, client: &Client, id: SiteId) -> Client {
        let inner = Arc::downgrade(&self.inner);
        client.with_clock(move |time| {
            if let Some(inner) = inner.upgrade() {
                Self { inner }.note_time(id, time);
            }
        })
    }

    /// Notes what time it is at a member, as it says with a request over a connection of its own, if nothing is known yet:
    /// what only dials out cannot be asked before its first request was accepted.
    pub fn hear_time(&self, id: SiteId, time: Timestamp) {
        if self.contact(id).clock_us.is_none() {
            self.note_time(id, time);
        }
    }

    /// Notes what time it is at a member, as it says with an answer, in whole seconds. Where it is known better, that stays.
    fn note_time(&self, id: SiteId, time: Timestamp) {
        const CUT_OFF_US: i64 = 500_000;
        const UNSURE_US: u64 = 2_000_000;
        let offset = time.as_micros() + CUT_OFF_US - Timestamp::now().as_micros();
        let mut contacts = self.inner.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut contacts.entry(id).or_default().clock_us;
        if known.is_none_or(|known| known.abs_diff(offset) > UNSURE_US) {
            *known = Some(offset);
        }
    }

    /// Returns a client for passing requests of other sites on to a member: it adds nothing of its own.
    ///
    /// # Errors
    /// `site_refused`; `site_unavailable` if the member can only be reached through yet another one.
    pub fn passing(&self, id: SiteId) -> Result<Client> {
        let member = self.member(id)?;
        self.require_confirmed(&member)?;
        match self.route(&member)? {
            Route::Relay(_) => {
                let detail = format!("{} cannot reach {} by itself", self.own().name, member.name);
                Err(Error::new(ErrorCode::SiteUnavailable, detail))
            }
            route => self.connected(&member, route),
        }
    }

    /// Returns the fields that a request to a member carries.
    pub(crate) fn headers(
        &self,
        member: &Member,
        acting: &Acting,
        via: Option<SiteId>,
        at: Option<Position>,
    ) -> Result<HeaderMap> {
        let own = self.own();
        let mut headers = HeaderMap::new();
        let mut insert = |name: &'static str, value: &str| {
            HeaderValue::from_str(value)
                .map(|value| drop(headers.insert(HeaderName::from_static(name), value)))
                .map_err(|error| {
                    Error::new(ErrorCode::Internal, format!("cannot send {name}")).with_source(error)
                })
        };
        if let Some(at) = at {
            insert(fields::POSITION, &at.to_string())?;
        }
        if via.is_some() {
            insert(fields::TO, &member.name)?;
        }
        let caller = match acting {
            Acting::User(caller) => Some(caller.seen(&own.name, &member.name)),
            Acting::Site | Acting::Task(_) => None,
        };
        if let Acting::Task(delegation) = acting {
            insert(fields::DELEGATION, delegation)?;
        }
        let now = Timestamp::now();
        insert("date", &now.to_http_date())?;
        let statement = Statement {
            issuer_site: own.id,
            audience: member.id,
            caller,
            via,
            issued: now,
            expires: now.after(STATEMENT_LIFE),
            id: TokenId::new(),
        };
        insert(fields::STATEMENT, &statement.sign(&self.key().key)?)?;
        Ok(headers)
    }

    /// Signs what lets a task at another site act for a user of this one, who is named as this site knows it. Returns
    /// the text and when it ends: at the deadline, or after [`DELEGATION_LIFE`], but within
    /// [`MAX_DELEGATION_LIFE`].
    ///
    /// # Errors
    /// `invalid_request` for a caller without a user or scopes.
    pub fn delegate(
        &self,
        task: TaskId,
        holder: &Member,
        caller: &Caller,
        deadline: Option<Timestamp>,
    ) -> Result<(String, Timestamp)> {
        let own = self.own();
        let now = Timestamp::now();
        let life = deadline.map_or(DELEGATION_LIFE, |deadline| deadline.since(now));
        let caller = caller.seen(&own.name, &holder.name);
        let life = life.min(MAX_DELEGATION_LIFE);
        let delegation = Delegation::new(own.id, task, holder.id, caller, now, life);
        Ok((delegation.sign(&self.key().key)?, delegation.expires))
    }

    /// Signs what opens bytes at another site for a client that is sent there. The caller is as this site knows it.
    ///
    /// # Errors
    /// `invalid_request` for a caller with more groups than a ticket can name.
    pub fn ticket(
        &self,
        at: &Member,
        caller: &Caller,
        space: SpaceId,
        path: &ObjectPath,
        version: Option<VersionId>,
    ) -> Result<String> {
        let own = self.own();
        let now = Timestamp::now();
        let ticket = Ticket {
            issuer_site: own.id,
            audience: at.id,
            user: caller.seen(&own.name, &at.name),
            space,
            path: path.clone(),
            version,
            ranges: Vec::new(),
            op: TicketOp::Read,
            issued: now,
            expires: now.after(TICKET_LIFE),
            id: TokenId::new(),
        };
        Ok(ticket.sign(&self.key().key)?)
    }

    /// Tells whether this site has agreed to integrity only with another one, which must have done so too.
    pub fn may_be_plain(&self, name: &str) -> bool {
        self.own().integrity_only.iter().any(|agreed| agreed == name)
    }

    /// Returns what is known of streams of frames from a member that come without encryption; nothing if none were asked for
    /// since this server started.
    pub fn plain_state(&self, id: SiteId) -> Option<PlainState> {
        let clients = self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.get(&(id, None))?.client.plain_state()
    }

    /// Returns the client that holds the connections to a member.
    pub(crate) fn connected(&self, member: &Arc<Member>, route: Route) -> Result<Client> {
        self.connected_to(member, route, None)
    }

    /// The same; a URL of its own has connections of its own.
    fn connected_to(&self, member: &Arc<Member>, route: Route, url: Option<&str>) -> Result<Client> {
        let mut clients = self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (member.id, url.map(str::to_owned));
        if let Some(known) = clients.get(&place)
            && known.route == route
            && (Arc::ptr_eq(&known.member, member) || *known.member == **member)
        {
            return Ok(known.client.clone());
        }
        let mut options = match &route {
            Route::Direct(urls) => {
                let keys = roster::keys_of(member, Timestamp::now());
                let mut urls = urls.iter().cloned();
                let mut options = ClientOptions::new(urls.next().unwrap_or_default());
                options.other_urls = urls.collect();
                options.site_tls = Some(site_client_config(&self.key().certificate, keys)?);
                // Only a site that is dialled has a port to dial beside TLS.
                options.integrity_only = Some(member.name.clone()).filter(|name| self.may_be_plain(name));
                options
            }
            _ => {
                let mut options = ClientOptions::new(format!("http://{}.site.invalid", member.name));
                options.socket = Some(self.socket(member.id)?);
                options
            }
        };
        options.retry = RetryPolicy::never();
        options.streams = Some(STREAMS);
        options.stall_timeout = self.own().stall_timeout;
        options.connect_timeout = options.connect_timeout.min(options.stall_timeout);
        let client = Client::new(options)?;
        clients.insert(place, Connected { member: member.clone(), route, client: client.clone() });
        Ok(client)
    }

    fn socket(&self, id: SiteId) -> Result<PathBuf> {
        self.inner.reverse.socket(id)
    }

    /// Makes a client for a site that is not a member yet, whose key an invitation names.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub(crate) fn stranger(&self, url: &str, key: SitePublicKey) -> Result<Client> {
        let mut options = ClientOptions::new(url);
        options.site_tls = Some(site_client_config(&self.key().certificate, vec![key])?);
        options.stall_timeout = self.own().stall_timeout;
        options.connect_timeout = options.connect_timeout.min(options.stall_timeout);
        Ok(Client::new(options)?)
    }

    /// Makes a client for whoever answers at a URL, to ask for what proves itself.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub(crate) fn anybody(&self, url: &str) -> Result<Client> {
        let mut options = ClientOptions::new(url);
        options.site_tls = Some(unpinned_client_config(&self.key().certificate)?);
        options.retry = RetryPolicy::never();
        options.stall_timeout = self.own().stall_timeout;
        options.connect_timeout = options.connect_timeout.min(options.stall_timeout);
        Ok(Client::new(options)?)
    }

    /// Returns the last position of a space's home that was heard of since this server started.
    pub fn heard(&self, space: SpaceId) -> Option<Position> {
        self.inner.heard.lock().unwrap_or_else(PoisonError::into_inner).get(&space).copied()
    }

    pub(crate) fn hear(&self, position: Position) {
        let mut heard = self.inner.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let known = heard.entry(position.space).or_insert(position);
        if (known.term, known.seq) < (position.term, position.seq) {
            *known = position;
        }
    }

    /// Returns what is known of the way to a member.
    pub fn contact(&self, id: SiteId) -> Contact {
        let contacts = self.inner.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.get(&id).cloned().unwrap_or_default()
    }

    /// Notes why a space of a member cannot be followed, or that all can.
    pub(crate) fn note_trouble(&self, id: SiteId, trouble: Option<String>) {
        let mut contacts = self.inner.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.entry(id).or_default().trouble = trouble;
    }

    /// Notes how much a member keeps in flight.
    pub(crate) fn note_window(&self, id: SiteId, window: Option<u64>) {
        let mut contacts = self.inner.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.entry(id).or_default().window = window;
    }

    /// Notes which key a member is said to have, or that it has the one that is known. Returns whether that is news.
    pub(crate) fn note_claimed_key(&self, id: SiteId, key: Option<SitePublicKey>) -> bool {
        let mut contacts = self.inner.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        let claimed = &mut contacts.entry(id).or_default().claimed_key;
        std::mem::replace(claimed, key) != key
    }

    /// Notes how an exchange with a member went.
    pub(crate) fn note(&self, id: SiteId, outcome: Result<(Option<Duration>, Option<i64>), String>) {
        let mut contacts = self.inner.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        let contact = contacts.entry(id).or_default();
        contact.note(outcome);
    }

    /// Says how far a member's clock is from this site's, for the one who is to set them.
    pub fn clock_words(&self, member: &Member) -> String {
        match self.contact(member.id).clock_us {
            Some(offset) => {
                let by = Duration::from_secs(offset.unsigned_abs() / 1_000_000);
                let way = if offset < 0 { "behind" } else { "ahead of" };
                let (theirs, ours) = (&member.name, &self.own().name);
                format!("the clock of {theirs} is {} s {way} that of {ours}", by.as_secs())
            }
            None => format!(
                "how far the clocks of {} and {} are apart is not known",
                member.name,
                self.own().name
            ),
        }
    }

    /// Returns by how much the clock of a member may differ from ours: what was measured, with some room, at most 15
    /// minutes; 30 s where nothing was measured.
    pub fn clock_allowance(&self, id: SiteId) -> Duration {
        const MOST: Duration = Duration::from_secs(15 * 60);
        const LEAST: Duration = Duration::from_secs(30);
        match self.contact(id).clock_us {
            Some(offset) => (Duration::from_micros(offset.unsigned_abs()) + LEAST).min(MOST),
            None => LEAST,
        }
    }
}
