//! What sites sign for each other: [`Statement`], [`Delegation`] and [`Ticket`] (`docs/design/trust.md`, "What is signed"),
//! and [`KeyChange`] ("Joining, keys, removal") and [`ReceiptSeal`] (`docs/design/tasks.md`, "Receipts"), which have the same header
//! but claims of their own.
//!
//! **Participants.** The site that signs (`iss`), the site that is asked, sometimes a relay or a holder between them, and the
//! user who is named. **Goals.** A signed text names who may use it, for what and until when; one form is never taken for
//! another. **Non-goals.** To decide what the user may do: whoever serves asks its own catalog.
//!
//! **Layout.** A JWT (RFC 7519) in compact form. Header, exactly: `typ` of the form, `alg` `EdDSA` (RFC 8037), `kid` the
//! [key id](crate::SitePublicKey::key_id). Claims of the first three:
//!
//! | claim | value |
//! |---|---|
//! | `iss` | id of the site that signs |
//! | `aud` | id of the site that is asked; of a delegation `fabric` |
//! | `user`, `groups` | identities as other sites see them, `alice@site:alps`; `user` may be `null` |
//! | `iat`, `nbf`, `exp` | whole seconds since 1970; `iat` = `nbf` |
//! | `jti` | UUIDv7 |
//!
//! **Checking** takes two steps, since who signed decides which keys are accepted: [`claimed_site`], then `verify` of the
//! form, with the [`Signatory`] as the roster knows it.
//!
//! **Failure.** Anything unclear is refused: a claim that is missing, unknown or there twice, another algorithm, a life
//! that is too long. **Compatibility.** A claim that a reader does not know might restrict, so it refuses; a form with
//! other claims gets another `typ`. [Samples](../../samples) of each form stay readable.

mod delegation;
mod envelope;
mod key_change;
mod receipt;
mod replay;
mod statement;
mod ticket;

use std::time::Duration;

use percale_core::access::{Caller, Identity, Issuer, Scope};
use percale_core::ids::SiteId;
use percale_core::{ErrorCode, Timestamp};

pub use delegation::{Delegation, MAX_DELEGATION_LIFE};
pub use envelope::claimed_site;
pub use key_change::{KeyChange, OLD_KEY_LIFE};
pub use receipt::ReceiptSeal;
pub use replay::ReplayGuard;
pub use statement::{MAX_STATEMENT_LIFE, Statement};
pub use ticket::{MAX_TICKET_LIFE, MAX_TICKET_RANGES, Ticket, TicketOp};

use crate::SitePublicKey;
use crate::token::{DEFAULT_LEEWAY, MAX_TOKEN_BYTES};

/// Most that two sites' clocks may be apart.
pub const MAX_CLOCK_ALLOWANCE: Duration = Duration::from_secs(15 * 60);

/// The time by which expiries are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    now: Timestamp,
    allowance: Duration,
}

impl Clock {
    /// Makes a clock for what a site signed whose clock was last seen `measured` away from ours, before or after. What is
    /// less than 30 s, or was never measured, counts as 30 s; what is more than [`MAX_CLOCK_ALLOWANCE`] as that.
    pub fn new(now: Timestamp, measured: Option<Duration>) -> Self {
        let allowance = measured.unwrap_or_default().clamp(DEFAULT_LEEWAY, MAX_CLOCK_ALLOWANCE);
        Self { now, allowance }
    }

    /// Returns the time now.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns how far clocks may be apart.
    pub fn allowance(&self) -> Duration {
        self.allowance
    }
}

/// What the roster says of a site that signed something.
#[derive(Debug, Clone, Copy)]
pub struct Signatory<'a> {
    /// Its id.
    pub site: SiteId,
    /// Its name.
    pub name: &'a str,
    /// Its key, and for a while after a change the one before.
    pub keys: &'a [SitePublicKey],
    /// URLs of the OpenID Connect issuers that are assigned to it.
    pub issuers: &'a [String],
}

/// Why something signed was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignedError {
    /// It has too many bytes.
    #[error("the signed text has {0} bytes, at most {MAX_TOKEN_BYTES} are accepted")]
    TooLong(usize),
    /// It is not a JWT, or its claims are not those of its form.
    #[error("the signed text is malformed: {0}")]
    Malformed(String),
    /// It is signed with another algorithm, or not at all.
    #[error("the signed text is signed with '{0}', only EdDSA is accepted")]
    WrongAlgorithm(String),
    /// It is of another form, such as a ticket in place of a statement.
    #[error("the signed text is a '{found}', not a '{expected}'")]
    WrongType {
        /// What is accepted here.
        expected: &'static str,
        /// What it says it is.
        found: String,
    },
    /// It is signed with a key that the site is not known to have. The roster may be behind.
    #[error("the site has no key '{0}' that is known here")]
    UnknownKey(String),
    /// The signature is not that of the site over these claims.
    #[error("the signature does not verify")]
    BadSignature,
    /// Another site made it.
    #[error("the signed text is by another site")]
    WrongIssuer,
    /// It is meant for another site.
    #[error("the signed text is meant for another site")]
    WrongAudience,
    /// The site on this connection is not one that may use it.
    #[error("the signed text may not be used by the site on this connection")]
    WrongBearer,
    /// The signing site vouches for a user or group that is not its own.
    #[error("the site '{site}' does not vouch for {identity}")]
    NotVouched {
        /// Name of the site that signed.
        site: String,
        /// For whom.
        identity: Identity,
    },
    /// It says something that may not be said in this form.
    #[error("the signed text is out of bounds: {0}")]
    OutOfBounds(String),
    /// Its time is over.
    #[error("the signed text expired at {0}")]
    Expired(Timestamp),
    /// Its time has not come.
    #[error("the signed text is not valid before {0}")]
    NotYetValid(Timestamp),
}

impl SignedError {
    /// Returns the code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Expired(_) => ErrorCode::TokenExpired,
            _ => ErrorCode::TokenInvalid,
        }
    }
}

/// Checks that a site may vouch for all that a caller is: each identity must be of its own built-in issuer (`site:` and
/// its name) or of an OpenID Connect issuer that is assigned to it. The identities are as seen from outside, so `local` is
/// never among them.
///
/// # Errors
/// [`SignedError::NotVouched`].
pub fn vouches(site_name: &str, issuers: &[String], caller: &Caller) -> Result<(), SignedError> {
    let is_its = |issuer: &Issuer| match issuer.as_site() {
        Some(name) => name == site_name,
        None => issuer.0 != Issuer::LOCAL && issuers.contains(&issuer.0),
    };
    match caller.user.iter().chain(&caller.groups).find(|identity| !is_its(&identity.issuer)) {
        None => Ok(()),
        Some(identity) => {
            Err(SignedError::NotVouched { site: site_name.to_owned(), identity: identity.clone() })
        }
    }
}

/// What must hold of every caller in something signed. Answers why it does not.
fn check_caller(caller: &Caller) -> Result<(), String> {
    if caller.scopes.contains(&Scope::Admin) {
        return Err("the scope 'admin' does not cross between sites".to_owned());
    }
    if caller.user.is_none() && !caller.groups.is_empty() {
        return Err("groups without a user".to_owned());
    }
    for identity in caller.user.iter().chain(&caller.groups) {
        if identity.issuer.0 == Issuer::LOCAL {
            return Err(format!("'{identity}' is not an identity as other sites see it"));
        }
        if identity.to_string().parse().as_ref() != Ok(identity) {
            return Err("an identity is not well formed".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
