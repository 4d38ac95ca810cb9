//! A statement: this user, or the site itself, asks this now.

use std::time::Duration;

use percale_core::Timestamp;
use percale_core::access::{Caller, Scope};
use percale_core::ids::{SiteId, TokenId};
use serde::{Deserialize, Serialize};

use super::envelope::{self, Life};
use super::{Clock, Signatory, SignedError, check_caller, vouches};
use crate::{Error, SiteKey};

/// Longest life of a statement: 5 minutes.
pub const MAX_STATEMENT_LIFE: Duration = Duration::from_secs(5 * 60);

const WHAT: &str = "statement";
const TYPE: &str = "percale-statement+jwt";

/// What one site tells another with a request: for whom it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The site that vouches.
    pub issuer_site: SiteId,
    /// The site that is asked.
    pub audience: SiteId,
    /// The user who asks, as other sites see it ([`Caller::seen`]); nothing if the site asks for itself. Somebody who did
    /// not sign in cannot be named: such a request goes without a statement.
    pub caller: Option<Caller>,
    /// The relay that may bring it, if there is one.
    pub via: Option<SiteId>,
    /// When it was made, in whole seconds.
    pub issued: Timestamp,
    /// When it ends, in whole seconds.
    pub expires: Timestamp,
    /// Its own id; see [`Statement::is_once_only`].
    pub id: TokenId,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: SiteId,
    aud: SiteId,
    #[serde(deserialize_with = "envelope::present")]
    user: Option<String>,
    groups: Vec<String>,
    scopes: Vec<Scope>,
    #[serde(deserialize_with = "envelope::present")]
    via: Option<SiteId>,
    iat: i64,
    nbf: i64,
    exp: i64,
    jti: TokenId,
}

impl Statement {
    /// Makes a statement that is valid from now, under a new id. Times are cut to whole seconds; a life beyond
    /// [`MAX_STATEMENT_LIFE`] is refused by [`sign`](Self::sign).
    pub fn new(
        issuer_site: SiteId,
        audience: SiteId,
        caller: Option<Caller>,
        via: Option<SiteId>,
        now: Timestamp,
        life: Duration,
    ) -> Self {
        let (issued, expires) = envelope::times(now, life);
        Self { issuer_site, audience, caller, via, issued, expires, id: TokenId::new() }
    }

    /// Tells whether it may be accepted only once, since it passed through the hands of a relay, which could use it
    /// again: whoever verified it asks a [`ReplayGuard`](super::ReplayGuard).
    pub fn is_once_only(&self) -> bool {
        self.via.is_some()
    }

    /// Signs it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest): a life beyond [`MAX_STATEMENT_LIFE`], a caller who
    /// did not sign in, who is of the built-in issuer as seen at home, or who has the scope `admin`; or the text would be
    /// longer than [`MAX_TOKEN_BYTES`](crate::token::MAX_TOKEN_BYTES).
    pub fn sign(&self, key: &SiteKey) -> Result<String, Error> {
        let life = Life::new(self.issued, self.expires);
        self.check(life).map_err(|why| envelope::refuse(WHAT, &why))?;
        let caller = self.caller.as_ref();
        let claims = Claims {
            iss: self.issuer_site,
            aud: self.audience,
            user: caller.and_then(envelope::user_text),
            groups: caller.map(envelope::group_texts).unwrap_or_default(),
            scopes: caller.map(|caller| caller.scopes.clone()).unwrap_or_default(),
            via: self.via,
            iat: life.issued,
            nbf: life.issued,
            exp: life.expires,
            jti: self.id,
        };
        envelope::seal(WHAT, TYPE, &claims, key)
    }

    /// Checks a statement that came over a connection with the site `from` to the site `to`.
    ///
    /// - The signatory is the site that it [claims](super::claimed_site) to be by, as the roster knows it.
    /// - `from` must be that site, or the relay that it names.
    /// - What [is good only once](Self::is_once_only) must still be put to a [`ReplayGuard`](super::ReplayGuard).
    ///
    /// # Errors
    /// [`SignedError`].
    pub fn verify(
        text: &str,
        signatory: &Signatory<'_>,
        from: SiteId,
        to: SiteId,
        clock: &Clock,
    ) -> Result<Self, SignedError> {
        let claims: Claims = envelope::open(text, TYPE, signatory)?;
        if claims.iss != signatory.site {
            return Err(SignedError::WrongIssuer);
        }
        if claims.aud != to {
            return Err(SignedError::WrongAudience);
        }
        if from != claims.iss && claims.via != Some(from) {
            return Err(SignedError::WrongBearer);
        }
        let life = Life::claimed(claims.iat, claims.nbf, claims.exp)?;
        let is_of_the_site = claims.user.is_none() && claims.groups.is_empty() && claims.scopes.is_empty();
        let caller = match is_of_the_site {
            true => None,
            false => Some(envelope::caller(claims.user.as_deref(), &claims.groups, claims.scopes)?),
        };
        let statement = Self {
            issuer_site: claims.iss,
            audience: claims.aud,
            caller,
            via: claims.via,
            issued: life.issued(),
            expires: life.expires(),
            id: claims.jti,
        };
        statement.check(life).map_err(SignedError::OutOfBounds)?;
        if let Some(caller) = &statement.caller {
            vouches(signatory.name, signatory.issuers, caller)?;
        }
        life.check_now(clock)?;
        Ok(statement)
    }

    fn check(&self, life: Life) -> Result<(), String> {
        life.check(MAX_STATEMENT_LIFE)?;
        match &self.caller {
            Some(caller) if caller.user.is_none() => Err("it names nobody".to_owned()),
            Some(caller) => check_caller(caller),
            None => Ok(()),
        }
    }
}
