//! Who is asking: the bearer token of a request becomes a [`Caller`]; so does the statement of another site.
//!
//! No `Authorization` means somebody who did not sign in; a token that is not good is refused, even where none is
//! needed. Tokens are never logged. On a connection of another site a statement takes the token's place
//! (`docs/design/trust.md`).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::header::{AUTHORIZATION, DATE};
use http::request::Parts;
use percale_api::fields;
use percale_catalog::Catalog;
use percale_core::access::{Caller, Subject};
use percale_core::ids::{SiteId, TokenId};
use percale_core::{ErrorCode, Timestamp};
use percale_federation::{Member, roster};
use percale_trust::signed::{
    Clock, Delegation, ReplayGuard, Signatory, SignedError, Statement, claimed_site, vouches,
};
use percale_trust::token::{DEFAULT_LEEWAY, MAX_TOKEN_BYTES};
use percale_trust::{
    IssueRequest, IssuedToken, SitePublicKey, TokenError, TokenIssuer, TokenVerifier, VerifiedToken,
};

use crate::listener::PeerKey;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};

/// How old the knowledge of revocations at other servers may be.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// Revocations are asked for again from so long before the last answer: transactions commit out of the order of their
/// times.
const OVERLAP: Duration = Duration::from_secs(120);
/// Checked tokens that are remembered. Checking one takes about 50 µs, more than the rest of a small request.
const MAX_CHECKED: usize = 10_000;
/// Statements of one site that came through a relay and are remembered while they could be used again: 20 minutes at 80
/// a second, in 10 MB.
const MAX_STATEMENTS: usize = 100_000;

/// The caller of a request: somebody with a good token, or nobody.
#[derive(Debug, Clone)]
pub struct Auth(pub Caller);

/// The caller of a request and the token that it came with.
#[derive(Debug, Clone)]
pub struct Session {
    /// Who is asking.
    pub caller: Caller,
    /// The token; nothing for somebody who did not sign in, or whom another site vouches for.
    pub token: Option<CheckedToken>,
    /// The site that vouches for the caller, or asks for itself, if it is another one.
    pub site: Option<Arc<Member>>,
    /// What the caller allowed a task, in the words of the site that signed it.
    pub delegation: Option<Arc<Delegation>>,
}

/// What is known of a good token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedToken {
    /// Its id.
    pub id: TokenId,
    /// When it ends.
    pub expires: Timestamp,
}

impl Session {
    /// Returns how this site calls a subject that the request names: a site names it as it is called there.
    pub fn named_here(&self, app: &AppState, subject: &Subject) -> Subject {
        match &self.site {
            Some(site) => subject.seen(&site.name, &app.site.name),
            None => subject.clone(),
        }
    }

    /// Returns from where the caller may be given bytes. Another site asks for what is here, or the two would send each
    /// other round.
    pub fn reach(&self) -> Reach {
        match self.site {
            Some(_) => Reach::Here,
            None => Reach::of(&self.caller),
        }
    }

    /// Returns the caller, if it is an administrator.
    ///
    /// # Errors
    /// `unauthenticated` or `forbidden`; `attempted` says what needs an administrator, such as "listing stores".
    pub fn require_admin(&self, attempted: &str) -> Result<&Caller> {
        require_admin(&self.caller, attempted)?;
        Ok(&self.caller)
    }

    /// Fails for somebody who did not sign in.
    ///
    /// # Errors
    /// `unauthenticated`; `attempted` says what needs a sign-in.
    pub fn require_user(&self, attempted: &str) -> Result<&Caller> {
        require_user(&self.caller, attempted)?;
        Ok(&self.caller)
    }
}

/// Fails for everybody but administrators.
///
/// # Errors
/// `unauthenticated` or `forbidden`.
pub fn require_admin(caller: &Caller, attempted: &str) -> Result<()> {
    require_user(caller, attempted)?;
    if caller.is_admin() {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::Forbidden, format!("{attempted} needs a token with the scope 'admin'")))
}

/// Fails for somebody who did not sign in.
///
/// # Errors
/// `unauthenticated`.
pub fn require_user(caller: &Caller, attempted: &str) -> Result<()> {
    if caller.user.is_some() {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::Unauthenticated, format!("{attempted} needs a sign-in")))
}

impl FromRequestParts<AppState> for Session {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self> {
        if let Some(session) = parts.extensions.get::<Session>() {
            return Ok(session.clone());
        }
        let session = match parts.extensions.get::<PeerKey>() {
            Some(PeerKey(key)) => of_site(parts, app, key)?,
            None => of_token(parts, app)?,
        };
        parts.extensions.insert(session.clone());
        Ok(session)
    }
}

impl FromRequestParts<AppState> for Auth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self> {
        Ok(Auth(Session::from_request_parts(parts, app).await?.caller))
    }
}

fn of_token(parts: &Parts, app: &AppState) -> Result<Session> {
    let (caller, token) = match bearer(parts)? {
        None => (Caller::anonymous(), None),
        Some(text) => {
            let token = app.authenticator.check(text, Timestamp::now())?;
            (token.caller, Some(CheckedToken { id: token.id, expires: token.expires }))
        }
    };
    Ok(Session { caller, token, site: None, delegation: None })
}

/// Finds out for whom a site asks, over a connection on which it has proved this key.
fn of_site(parts: &Parts, app: &AppState, key: &SitePublicKey) -> Result<Session> {
    let refuse = |detail: String| ApiError::new(ErrorCode::SiteRefused, detail);
    let roster = app.fabric.roster();
    let Some(from) = roster.with_key(key) else {
        if let Some(unconfirmed) = roster.with_unconfirmed_key(key) {
            app.fabric.require_confirmed(unconfirmed)?;
        }
        return Err(refuse(
            "the site on this connection is not a member of the fabric, or was removed from it".to_owned(),
        ));
    };
    if parts.headers.contains_key(AUTHORIZATION) {
        return Err(refuse("a site asks with a statement, not with a token".to_owned()));
    }
    let text = one_field(parts, fields::STATEMENT)?
        .ok_or_else(|| refuse(format!("the request of site {} has no statement", from.name)))?;
    // Whoever proved its key on this connection says what time it is; with a statement of another it is only passed on.
    let date = parts.headers.get(DATE).and_then(|date| Timestamp::from_http_date(date.to_str().ok()?));
    if let Some(date) = date
        && claimed_site(text) == Ok(from.id)
    {
        app.fabric.hear_time(from.id, date);
    }
    let (signer, statement) = signed(app, text, |signatory, clock| {
        Statement::verify(text, signatory, from.id, app.site.id, clock)
    })?;
    if statement.is_once_only() && !app.authenticator.is_first_use(&statement) {
        return Err(refuse(format!("the statement of site {} was used before", signer.name)));
    }
    let delegation = match one_field(parts, fields::DELEGATION)? {
        None => None,
        Some(text) => {
            let (_, delegation) = delegated(app, text, signer.id)?;
            Some(Arc::new(delegation))
        }
    };
    let caller = match (&delegation, statement.caller) {
        (Some(delegation), None) => delegation.caller.seen(&signer.name, &app.site.name),
        (None, Some(caller)) => caller,
        (None, None) => Caller::anonymous(),
        (Some(_), Some(_)) => {
            return Err(refuse("a statement of a user and a delegation exclude each other".to_owned()));
        }
    };
    Ok(Session { caller, token: None, site: Some(signer), delegation })
}

/// Checks a delegation to a task at this site, as it was handed over or is kept. Returns who signed it, and what it says
/// with the user as this site names it.
///
/// # Errors
/// `token_invalid`, `token_expired`; `site_refused` if the site that signed it was removed.
pub(crate) fn delegated_here(app: &AppState, text: &str) -> Result<(Arc<Member>, Delegation)> {
    let (signer, mut delegation) = delegated(app, text, app.site.id)?;
    delegation.caller = delegation.caller.seen(&signer.name, &app.site.name);
    Ok((signer, delegation))
}

/// Checks a delegation to a task at a site. One that was made before its signer changed the key is good until it ends: a task
/// runs for days, and nobody is there to sign another.
fn delegated(app: &AppState, text: &str, holder: SiteId) -> Result<(Arc<Member>, Delegation)> {
    signed(app, text, |signatory, clock| {
        let now = Delegation::verify(text, signatory, holder, clock);
        let (Err(SignedError::UnknownKey(_)), Some((key, changed))) =
            (&now, signatory_before(app, signatory.site))
        else {
            return now;
        };
        let before = Signatory { keys: &[key], ..*signatory };
        let delegation = Delegation::verify(text, &before, holder, clock)?;
        if delegation.issued > changed.after(clock.allowance()) {
            return now;
        }
        Ok(delegation)
    })
}

fn signatory_before(app: &AppState, site: SiteId) -> Option<(SitePublicKey, Timestamp)> {
    roster::key_of_old_delegations(app.fabric.roster().get(site)?, Timestamp::now())
}

/// Looks up who signed a text, and lets `verify` check it by that site's keys.
pub(super) fn signed<T>(
    app: &AppState,
    text: &str,
    verify: impl FnOnce(&Signatory<'_>, &Clock) -> Result<T, SignedError>,
) -> Result<(Arc<Member>, T)> {
    let wrong = |error: SignedError| ApiError::new(error.code(), error.to_string());
    let now = Timestamp::now();
    let id = claimed_site(text).map_err(wrong)?;
    let signer = app.fabric.member(id)?;
    app.fabric.require_confirmed(&signer)?;
    let keys = roster::keys_of(&signer, now);
    let signatory = Signatory { site: signer.id, name: &signer.name, keys: &keys, issuers: &signer.issuers };
    let clock = Clock::new(now, Some(app.fabric.clock_allowance(signer.id)));
    let value = verify(&signatory, &clock).map_err(|error| match error {
        SignedError::Expired(_) | SignedError::NotYetValid(_) => {
            let (words, now) = (app.fabric.clock_words(&signer), now);
            let detail =
                format!("{error}, and here it is {now}: {words}; clocks of sites may be 15 minutes apart");
            ApiError::new(error.code(), detail)
        }
        error => wrong(error),
    })?;
    Ok((signer, value))
}

/// Returns a field that may be there at most once.
pub(super) fn one_field<'a>(parts: &'a Parts, name: &'static str) -> Result<Option<&'a str>> {
    let refuse = |why: &str| ApiError::new(ErrorCode::TokenInvalid, format!("cannot read {name}: {why}"));
    let mut values = parts.headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(refuse("it is there more than once"));
    }
    if value.len() > MAX_TOKEN_BYTES {
        return Err(refuse(&format!("it has more than {MAX_TOKEN_BYTES} bytes")));
    }
    value.to_str().map(Some).map_err(|_| refuse("it has other characters than visible ASCII"))
}

/// Returns the token's text, or nothing if no credential was sent.
fn bearer(parts: &Parts) -> Result<Option<&str>> {
    let refuse =
        |why: &str| ApiError::new(ErrorCode::TokenInvalid, format!("cannot read the credential: {why}"));
    let mut fields = parts.headers.get_all(AUTHORIZATION).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    if fields.next().is_some() {
        return Err(refuse("there is more than one Authorization field"));
    }
    // Bounded before anything reads it.
    if field.len() > MAX_TOKEN_BYTES + 16 {
        return Err(refuse(&format!("the token has more than {MAX_TOKEN_BYTES} bytes")));
    }
    let text = field.to_str().map_err(|_| refuse("it has other characters than visible ASCII"))?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err(refuse("expected 'Authorization: Bearer TOKEN'")),
    }
}

/// Issues and checks tokens, and knows which were revoked.
pub struct Authenticator {
    tokens: RwLock<Arc<(TokenIssuer, TokenVerifier)>>,
    checked: Mutex<HashMap<[u8; 32], VerifiedToken>>,
    revoked: RwLock<HashSet<TokenId>>,
    /// For each site that signs, so that none fills the memory of the others.
    statements: Mutex<HashMap<SiteId, ReplayGuard>>,
}

impl Authenticator {
    /// Makes one that knows of no revocation yet; [`Authenticator::refresh`] comes next.
    pub fn new(issuer: TokenIssuer, verifier: TokenVerifier) -> Self {
        Self {
            tokens: RwLock::new(Arc::new((issuer, verifier))),
            checked: Mutex::default(),
            revoked: RwLock::default(),
            statements: Mutex::default(),
        }
    }

    fn tokens(&self) -> Arc<(TokenIssuer, TokenVerifier)> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a token of the built-in issuer.
    ///
    /// # Errors
    /// `invalid_request`, naming the limit.
    pub fn issue(&self, request: IssueRequest) -> Result<IssuedToken> {
        Ok(self.tokens().0.issue(request)?)
    }

    /// Issues and checks with other keys from now on, also what was checked before.
    pub fn use_keys(&self, issuer: TokenIssuer, verifier: TokenVerifier) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new((issuer, verifier));
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Checks a token's text.
    ///
    /// # Errors
    /// `token_invalid`, `token_expired` or `token_revoked`.
    pub fn check(&self, text: &str, now: Timestamp) -> Result<VerifiedToken> {
        let token = self.verify(text, now).map_err(|error| ApiError::new(error.code(), error.to_string()))?;
        if self.revoked.read().unwrap_or_else(PoisonError::into_inner).contains(&token.id) {
            return Err(ApiError::new(
                ErrorCode::TokenRevoked,
                format!("the token {} was revoked", token.id),
            ));
        }
        Ok(token)
    }

    fn verify(&self, text: &str, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        let key = *blake3::hash(text.as_bytes()).as_bytes();
        if let Some(token) = self.checked.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return match now < token.expires.after(DEFAULT_LEEWAY) {
                true => Ok(token.clone()),
                false => Err(TokenError::Expired(token.expires)),
            };
        }
        let tokens = self.tokens();
        let token = tokens.1.verify(text, now)?;
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&tokens, &self.tokens()) {
            return Ok(token);
        }
        if checked.len() >= MAX_CHECKED {
            checked.clear();
        }
        checked.insert(key, token.clone());
        Ok(token)
    }

    /// Checks that a site may speak for a caller, seen as from outside.
    ///
    /// # Errors
    /// `site_refused`.
    pub fn vouched_for<'a>(&self, site: &Member, caller: &'a Caller) -> Result<&'a Caller> {
        match vouches(&site.name, &site.issuers, caller) {
            Ok(()) if !caller.is_admin() => Ok(caller),
            Ok(()) => {
                Err(ApiError::new(ErrorCode::SiteRefused, "the scope 'admin' does not cross between sites"))
            }
            Err(error) => Err(ApiError::new(ErrorCode::SiteRefused, error.to_string())),
        }
    }

    /// Tells whether a verified statement that is good only once comes for the first time.
    fn is_first_use(&self, statement: &Statement) -> bool {
        let mut guards = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = guards.entry(statement.issuer_site).or_insert_with(|| ReplayGuard::new(MAX_STATEMENTS));
        guard.first_use(statement.id, statement.expires, Timestamp::now())
    }

    /// Refuses a token from now on.
    pub fn revoke(&self, id: TokenId) {
        self.revoked.write().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Asks the catalog for tokens that were revoked since a time. Returns the time to ask from next.
    ///
    /// # Errors
    /// Those of the catalog.
    pub async fn refresh(&self, catalog: &Catalog, since: Timestamp) -> Result<Timestamp> {
        let now = catalog.now().await?;
        let revoked = catalog.revoked_since(since).await?;
        self.revoked.write().unwrap_or_else(PoisonError::into_inner).extend(revoked);
        let overlap = i64::try_from(OVERLAP.as_micros()).unwrap_or(i64::MAX);
        Ok(Timestamp::from_micros(now.as_micros().saturating_sub(overlap)))
    }
}

/// Learns of revocations at other servers until the server ends.
pub async fn follow_revocations(app: AppState) {
    let mut since = Timestamp::EPOCH;
    let mut pause = tokio::time::interval(REFRESH_EVERY);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            _ = pause.tick() => {}
        }
        match app.authenticator.refresh(&app.catalog, since).await {
            Ok(next) => since = next,
            Err(error) => {
                tracing::warn!(error = %error, "cannot ask the catalog for revoked tokens; will ask again")
            }
        }
    }
}
