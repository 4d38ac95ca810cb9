//! A delegation: this task acts for this user until it is done.

use std::time::Duration;

use percale_core::Timestamp;
use percale_core::access::{Caller, Scope};
use percale_core::ids::{SiteId, TaskId, TokenId};
use serde::{Deserialize, Serialize};

use super::envelope::{self, Life};
use super::{Clock, Signatory, SignedError, check_caller, vouches};
use crate::{Error, SiteKey};

/// Longest life of a delegation: 30 days.
pub const MAX_DELEGATION_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

const WHAT: &str = "delegation";
const TYPE: &str = "percale-delegation+jwt";
const AUDIENCE: &str = "fabric";

/// What lets a task go on when the user's own token is long over. Good at every site, in the hands of its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// The site that vouches.
    pub issuer_site: SiteId,
    /// The task that acts.
    pub task: TaskId,
    /// The site where the task runs, on whose connections alone it is accepted.
    pub holder: SiteId,
    /// For whom, as other sites see it ([`Caller::seen`]), with at least one scope: a task never may all that its user may.
    pub caller: Caller,
    /// When it was made, in whole seconds.
    pub issued: Timestamp,
    /// When it ends, in whole seconds.
    pub expires: Timestamp,
    /// Its own id.
    pub id: TokenId,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: SiteId,
    aud: String,
    user: String,
    groups: Vec<String>,
    scopes: Vec<Scope>,
    task: TaskId,
    holder: SiteId,
    iat: i64,
    nbf: i64,
    exp: i64,
    jti: TokenId,
}

impl Delegation {
    /// Makes a delegation that is valid from now, under a new id. Times are cut to whole seconds; a life beyond
    /// [`MAX_DELEGATION_LIFE`] is refused by [`sign`](Self::sign).
    pub fn new(
        issuer_site: SiteId,
        task: TaskId,
        holder: SiteId,
        caller: Caller,
        now: Timestamp,
        life: Duration,
    ) -> Self {
        let (issued, expires) = envelope::times(now, life);
        Self { issuer_site, task, holder, caller, issued, expires, id: TokenId::new() }
    }

    /// Signs it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest): a life beyond [`MAX_DELEGATION_LIFE`], no scope, the
    /// scope `admin`, nobody, or somebody of the built-in issuer as seen at home; or the text would be longer than
    /// [`MAX_TOKEN_BYTES`](crate::token::MAX_TOKEN_BYTES).
    pub fn sign(&self, key: &SiteKey) -> Result<String, Error> {
        let life = Life::new(self.issued, self.expires);
        self.check(life).map_err(|why| envelope::refuse(WHAT, &why))?;
        let claims = Claims {
            iss: self.issuer_site,
            aud: AUDIENCE.to_owned(),
            user: envelope::user_text(&self.caller).unwrap_or_default(),
            groups: envelope::group_texts(&self.caller),
            scopes: self.caller.scopes.clone(),
            task: self.task,
            holder: self.holder,
            iat: life.issued,
            nbf: life.issued,
            exp: life.expires,
            jti: self.id,
        };
        envelope::seal(WHAT, TYPE, &claims, key)
    }

    /// Checks a delegation that came over a connection with the site `from`, which must be its holder. The signatory is the
    /// site that it [claims](super::claimed_site) to be by, as the roster knows it.
    ///
    /// # Errors
    /// [`SignedError`].
    pub fn verify(
        text: &str,
        signatory: &Signatory<'_>,
        from: SiteId,
        clock: &Clock,
    ) -> Result<Self, SignedError> {
        let claims: Claims = envelope::open(text, TYPE, signatory)?;
        if claims.iss != signatory.site {
            return Err(SignedError::WrongIssuer);
        }
        if claims.aud != AUDIENCE {
            return Err(SignedError::WrongAudience);
        }
        if claims.holder != from {
            return Err(SignedError::WrongBearer);
        }
        let life = Life::claimed(claims.iat, claims.nbf, claims.exp)?;
        let delegation = Self {
            issuer_site: claims.iss,
            task: claims.task,
            holder: claims.holder,
            caller: envelope::caller(Some(&claims.user), &claims.groups, claims.scopes)?,
            issued: life.issued(),
            expires: life.expires(),
            id: claims.jti,
        };
        delegation.check(life).map_err(SignedError::OutOfBounds)?;
        vouches(signatory.name, signatory.issuers, &delegation.caller)?;
        life.check_now(clock)?;
        Ok(delegation)
    }

    fn check(&self, life: Life) -> Result<(), String> {
        life.check(MAX_DELEGATION_LIFE)?;
        if self.caller.user.is_none() {
            return Err("it names nobody".to_owned());
        }
        if self.caller.scopes.is_empty() {
            return Err("it has no scope".to_owned());
        }
        check_caller(&self.caller)
    }
}
