//! A ticket: whoever brings it may move these bytes.

use std::fmt;
use std::time::Duration;

use percale_core::access::{Caller, Permission, Scope};
use percale_core::ids::{SiteId, SpaceId, TokenId, VersionId};
use percale_core::range::RangeSet;
use percale_core::{ByteRange, ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};

use super::envelope::{self, Life};
use super::{Clock, Signatory, SignedError, check_caller, vouches};
use crate::{Error, SiteKey};

/// Longest life of a ticket: 15 minutes. It counts when the body begins; a body may last longer.
pub const MAX_TICKET_LIFE: Duration = Duration::from_secs(15 * 60);
/// Most ranges of one ticket: it becomes part of a URL.
pub const MAX_TICKET_RANGES: usize = 64;

const WHAT: &str = "ticket";
const TYPE: &str = "percale-ticket+jwt";

/// What the bearer may do with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketOp {
    /// Read them.
    Read,
    /// Write them.
    Write,
}

impl fmt::Display for TicketOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl TicketOp {
    /// Returns the permission that the user must have for it.
    pub fn permission(self) -> Permission {
        match self {
            Self::Read => Permission::Read,
            Self::Write => Permission::Write,
        }
    }
}

/// What a client carries that was sent from one site to another. Anybody may use it, so it is narrow and short-lived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The site that sends the client elsewhere.
    pub issuer_site: SiteId,
    /// The site that has or takes the bytes.
    pub audience: SiteId,
    /// On whose behalf, as other sites see it ([`Caller::seen`]); somebody who did not sign in has no user. Of its scopes
    /// nothing is written: after [`Ticket::verify`] the only one is the ticket's operation on its path.
    pub user: Caller,
    /// The space.
    pub space: SpaceId,
    /// The object; of a ticket without a version also a collection, for all that is below.
    pub path: ObjectPath,
    /// The version. Nothing means any version of what is at the path or below it.
    pub version: Option<VersionId>,
    /// Which bytes: sorted ranges that neither touch nor overlap, at most [`MAX_TICKET_RANGES`]. None means all of them.
    pub ranges: Vec<ByteRange>,
    /// What may be done with them.
    pub op: TicketOp,
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
    aud: SiteId,
    #[serde(deserialize_with = "envelope::present")]
    user: Option<String>,
    groups: Vec<String>,
    space: SpaceId,
    path: ObjectPath,
    #[serde(deserialize_with = "envelope::present")]
    version: Option<VersionId>,
    /// First byte and the one behind the last.
    ranges: Vec<(u64, u64)>,
    op: TicketOp,
    iat: i64,
    nbf: i64,
    exp: i64,
    jti: TokenId,
}

impl Ticket {
    /// Tells whether these bytes are among those of the ticket.
    pub fn covers(&self, range: ByteRange) -> bool {
        self.ranges.is_empty() || self.ranges.iter().any(|allowed| allowed.contains(range))
    }

    /// Tells whether it is for this: of the operation, the object and, if one is named, the version. Whether the path is
    /// that of the ticket's space is for whoever looks it up.
    ///
    /// # Errors
    /// What it is for instead.
    pub fn allows(&self, op: TicketOp, path: &ObjectPath, version: Option<VersionId>) -> Result<(), String> {
        if self.op != op {
            return Err(format!("the ticket is to {}, not to {op}", self.op));
        }
        match self.version {
            Some(only) if self.path != *path => {
                Err(format!("the ticket is for version {only} of {}", self.path))
            }
            Some(only) if version.is_some_and(|version| version != only) => {
                Err(format!("the ticket is for version {only} of this object"))
            }
            None if !path.is_within(&self.path) => Err(format!("the ticket is for {}", self.path)),
            _ => Ok(()),
        }
    }

    /// Signs it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest): a life beyond [`MAX_TICKET_LIFE`], ranges that are not
    /// as [`Ticket::ranges`] says, or a user of the built-in issuer as seen at home; or the text would be longer than
    /// [`MAX_TOKEN_BYTES`](crate::token::MAX_TOKEN_BYTES).
    pub fn sign(&self, key: &SiteKey) -> Result<String, Error> {
        let life = Life::new(self.issued, self.expires);
        self.check(life).map_err(|why| envelope::refuse(WHAT, &why))?;
        let claims = Claims {
            iss: self.issuer_site,
            aud: self.audience,
            user: envelope::user_text(&self.user),
            groups: envelope::group_texts(&self.user),
            space: self.space,
            path: self.path.clone(),
            version: self.version,
            ranges: self.ranges.iter().map(|range| (range.start(), range.end())).collect(),
            op: self.op,
            iat: life.issued,
            nbf: life.issued,
            exp: life.expires,
            jti: self.id,
        };
        envelope::seal(WHAT, TYPE, &claims, key)
    }

    /// Checks a ticket that somebody brought to the site `to`. The signatory is the site that it
    /// [claims](super::claimed_site) to be by, as the roster knows it.
    ///
    /// # Errors
    /// [`SignedError`].
    pub fn verify(
        text: &str,
        signatory: &Signatory<'_>,
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
        let life = Life::claimed(claims.iat, claims.nbf, claims.exp)?;
        let ranges: Option<Vec<_>> =
            claims.ranges.iter().map(|(start, end)| ByteRange::new(*start, *end)).collect();
        let scope = Scope::Path(claims.op.permission(), claims.path.clone());
        let ticket = Self {
            issuer_site: claims.iss,
            audience: claims.aud,
            user: envelope::caller(claims.user.as_deref(), &claims.groups, vec![scope])?,
            space: claims.space,
            path: claims.path,
            version: claims.version,
            ranges: ranges.ok_or_else(|| SignedError::OutOfBounds("a range ends before it begins".into()))?,
            op: claims.op,
            issued: life.issued(),
            expires: life.expires(),
            id: claims.jti,
        };
        ticket.check(life).map_err(SignedError::OutOfBounds)?;
        vouches(signatory.name, signatory.issuers, &ticket.user)?;
        life.check_now(clock)?;
        Ok(ticket)
    }

    fn check(&self, life: Life) -> Result<(), String> {
        life.check(MAX_TICKET_LIFE)?;
        if self.ranges.len() > MAX_TICKET_RANGES {
            return Err(format!(
                "it has {} ranges, at most {MAX_TICKET_RANGES} are allowed",
                self.ranges.len()
            ));
        }
        if !self.ranges.iter().copied().collect::<RangeSet>().iter().eq(self.ranges.iter().copied()) {
            return Err("its ranges are empty, touch, overlap or are not sorted".to_owned());
        }
        check_caller(&self.user)
    }
}
