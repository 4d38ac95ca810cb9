//! Tokens of the built-in issuer.
//!
//! **Participants.** A site that issues, and the same site that checks; other sites know nothing of its local users.
//! **Goals.** Checked without asking a database, bounded life, one algorithm. **Non-goals.** Sign-in (OpenID Connect) and
//! revocation, which is the server's: it keeps the ids of revoked tokens.
//!
//! A token is a JWT (RFC 7519) signed with EdDSA (RFC 8037) by the [site key](crate::SiteKey). Header: `typ` `JWT`,
//! `alg` `EdDSA`, `kid` the key's id. Claims, all required:
//!
//! | claim | value |
//! |---|---|
//! | `iss` | `local` |
//! | `aud` | the site's id |
//! | `sub` | the user's name |
//! | `groups` | names of groups |
//! | `scopes` | list of scope texts; a list, since paths may hold spaces. Empty: no restriction |
//! | `iat`, `nbf`, `exp` | whole seconds since 1970 |
//! | `jti` | the token's id |
//!
//! **Failure.** Anything unclear is refused: a missing claim, an unknown scope, another algorithm. **Compatibility.** A new
//! claim that only adds knowledge is passed over; a new restriction must be a scope, which older readers refuse.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use percale_core::access::{Caller, Identity, Issuer, MAX_SUBJECT_BYTES, Scope};
use percale_core::ids::{SiteId, TokenId};
use percale_core::{ErrorCode, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Secret, SiteKey, SitePublicKey};

/// Longest token, in bytes: it must fit the header of a request beside others.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Longest life of a token: 366 days.
pub const MAX_LIFE: Duration = Duration::from_secs(366 * 24 * 3600);
/// How far clocks may be apart unless said otherwise.
pub const DEFAULT_LEEWAY: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: String,
    groups: Vec<String>,
    scopes: Vec<String>,
    iat: i64,
    nbf: i64,
    exp: i64,
    jti: TokenId,
}

/// Makes tokens.
pub struct TokenIssuer {
    key: EncodingKey,
    key_id: String,
    site: SiteId,
}

/// What to make a token for.
#[derive(Debug, Clone)]
pub struct IssueRequest {
    /// The user; of the built-in issuer.
    pub subject: Identity,
    /// Groups to vouch for; of the built-in issuer.
    pub groups: Vec<Identity>,
    /// Restrictions; empty for none.
    pub scopes: Vec<Scope>,
    /// How long it lives: a second to [`MAX_LIFE`].
    pub ttl: Duration,
    /// The time now.
    pub now: Timestamp,
}

/// A token that was made.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    /// Its text, for `Authorization: Bearer …`.
    pub secret: Secret<String>,
    /// Its id.
    pub id: TokenId,
    /// When it was made.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
}

impl TokenIssuer {
    /// Makes an issuer that signs with the site's key.
    pub fn new(key: &SiteKey, site: SiteId) -> Self {
        Self { key: EncodingKey::from_ed_der(key.pkcs8()), key_id: key.public().key_id(), site }
    }

    /// Makes a token.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`]: a user or group of another issuer, a name that is empty, too long or has control
    /// characters, a life that is out of bounds, or so many groups and scopes that the token would be longer than
    /// [`MAX_TOKEN_BYTES`].
    pub fn issue(&self, request: IssueRequest) -> Result<IssuedToken, Error> {
        let refuse =
            |why: String| Err(Error::new(ErrorKind::InvalidRequest, format!("cannot issue a token: {why}")));
        for identity in std::iter::once(&request.subject).chain(&request.groups) {
            if identity.issuer.0 != Issuer::LOCAL {
                return refuse(format!("the built-in issuer does not vouch for {identity}"));
            }
            if !is_name(&identity.name) {
                return refuse(format!(
                    "a name must have 1 to {MAX_SUBJECT_BYTES} bytes and no control characters"
                ));
            }
        }
        if request.ttl < Duration::from_secs(1) || request.ttl > MAX_LIFE {
            return refuse(format!("its life must be 1 to {} seconds", MAX_LIFE.as_secs()));
        }
        let issued = request.now.as_micros().div_euclid(1_000_000);
        let life = i64::try_from(request.ttl.as_secs()).unwrap_or(i64::MAX);
        let claims = Claims {
            iss: Issuer::LOCAL.into(),
            aud: self.site.to_string(),
            sub: request.subject.name,
            groups: request.groups.into_iter().map(|group| group.name).collect(),
            scopes: request.scopes.iter().map(Scope::to_string).collect(),
            iat: issued,
            nbf: issued,
            exp: issued.saturating_add(life),
            jti: TokenId::new(),
        };
        self.sign(&claims).and_then(|text| {
            if text.len() > MAX_TOKEN_BYTES {
                return refuse(format!(
                    "with these groups and scopes it has more than {MAX_TOKEN_BYTES} bytes"
                ));
            }
            Ok(IssuedToken {
                secret: Secret::new(text),
                id: claims.jti,
                issued: seconds(claims.iat),
                expires: seconds(claims.exp),
            })
        })
    }

    fn sign(&self, claims: &Claims) -> Result<String, Error> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.key_id.clone());
        jsonwebtoken::encode(&header, claims, &self.key)
            .map_err(|error| Error::new(ErrorKind::Crypto, "cannot sign a token").with_source(error))
    }
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer")
            .field("key_id", &self.key_id)
            .field("site", &self.site)
            .finish_non_exhaustive()
    }
}

/// Checks tokens.
#[derive(Debug, Clone)]
pub struct TokenVerifier {
    key: DecodingKey,
    /// Keys that the site had before, or will have, and until when tokens of theirs are accepted.
    others: Vec<(DecodingKey, Timestamp)>,
    validation: Validation,
    leeway: Duration,
}

/// What a valid token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedToken {
    /// Who is asking.
    pub caller: Caller,
    /// The token's id, for looking up whether it was revoked.
    pub id: TokenId,
    /// When it was made.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
}

/// Why a token was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It has too many bytes.
    #[error("the token has {0} bytes, at most {MAX_TOKEN_BYTES} are accepted")]
    TooLong(usize),
    /// It is not a JWT, or a claim is missing or unreadable.
    #[error("the token is malformed: {0}")]
    Malformed(String),
    /// It is signed with another algorithm, or not at all.
    #[error("the token is signed with '{0}', only EdDSA is accepted")]
    WrongAlgorithm(String),
    /// The signature is not that of this site over these claims.
    #[error("the token's signature does not verify")]
    BadSignature,
    /// Another issuer made it.
    #[error("this site does not accept tokens of the issuer '{0}'")]
    WrongIssuer(String),
    /// It is meant for another site.
    #[error("the token is meant for another site")]
    WrongAudience,
    /// Its time is over.
    #[error("the token expired at {0}")]
    Expired(Timestamp),
    /// Its time has not come.
    #[error("the token is not valid before {0}")]
    NotYetValid(Timestamp),
}

impl TokenError {
    /// Returns the code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Expired(_) => ErrorCode::TokenExpired,
            _ => ErrorCode::TokenInvalid,
        }
    }
}

impl TokenVerifier {
    /// Makes a verifier of tokens that the site with this key issued for itself, with [`DEFAULT_LEEWAY`].
    pub fn new(key: SitePublicKey, site: SiteId) -> Self {
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_audience(&[site]);
        validation.set_issuer(&[Issuer::LOCAL]);
        validation.set_required_spec_claims(&["iss", "aud", "sub", "exp", "nbf"]);
        // Times are compared here, with the clock that is handed in.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        Self { key: DecodingKey::from_ed_der(&key.0), others: Vec::new(), validation, leeway: DEFAULT_LEEWAY }
    }

    /// Accepts tokens that are signed with another key of the site as well, until then: after a change of the key, as long
    /// as what was issued with the one before may live.
    pub fn also(mut self, key: SitePublicKey, until: Timestamp) -> Self {
        self.others.push((DecodingKey::from_ed_der(&key.0), until));
        self
    }

    /// Sets how far the issuing and the checking server's clocks may be apart.
    pub fn with_leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// Checks a token and says who is asking. Whether it was revoked is for the caller to find out.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(&self, text: &str, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong(text.len()));
        }
        let algorithm = claimed_algorithm(text)?;
        if algorithm != "EdDSA" {
            return Err(TokenError::WrongAlgorithm(algorithm.chars().take(20).collect()));
        }
        let open = |key| {
            jsonwebtoken::decode(text, key, &self.validation)
                .map(|token| token.claims)
                .map_err(|error| refusal(&error, text))
        };
        let others = self.others.iter().filter(|(_, until)| now < *until);
        let claims: Claims = others.fold(open(&self.key), |opened, (key, _)| match opened {
            Err(TokenError::BadSignature) => open(key),
            opened => opened,
        })?;
        let (not_before, expires) = (seconds(claims.nbf), seconds(claims.exp));
        if now.after(self.leeway) < not_before {
            return Err(TokenError::NotYetValid(not_before));
        }
        if now >= expires.after(self.leeway) {
            return Err(TokenError::Expired(expires));
        }
        let malformed = |what: &str| TokenError::Malformed(what.to_owned());
        if !claims.groups.iter().chain([&claims.sub]).all(|name| is_name(name)) {
            return Err(malformed("a name is empty, too long or has control characters"));
        }
        let scopes: Result<Vec<Scope>, _> = claims.scopes.iter().map(|scope| scope.parse()).collect();
        Ok(VerifiedToken {
            caller: Caller {
                user: Some(Identity::local(claims.sub)),
                groups: claims.groups.into_iter().map(Identity::local).collect(),
                scopes: scopes.map_err(|_| malformed("a scope is not known here"))?,
            },
            id: claims.jti,
            issued: seconds(claims.iat),
            expires,
        })
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_SUBJECT_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn seconds(since_1970: i64) -> Timestamp {
    Timestamp::from_micros(since_1970.saturating_mul(1_000_000))
}

/// Reads the algorithm that the header names, before anything is trusted: the library does not say which one it refused.
fn claimed_algorithm(text: &str) -> Result<String, TokenError> {
    #[derive(Deserialize)]
    struct Alg {
        alg: String,
    }
    let malformed = |what: &str| TokenError::Malformed(what.to_owned());
    let mut parts = text.split('.');
    let (Some(header), Some(_), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed("it does not have three parts"));
    };
    let header = BASE64.decode(header).map_err(|_| malformed("its header is not base64url"))?;
    let Alg { alg } =
        serde_json::from_slice(&header).map_err(|_| malformed("its header names no algorithm"))?;
    Ok(alg)
}

fn refusal(error: &jsonwebtoken::errors::Error, text: &str) -> TokenError {
    use jsonwebtoken::errors::ErrorKind as Kind;
    match error.kind() {
        Kind::InvalidSignature => TokenError::BadSignature,
        Kind::InvalidIssuer => TokenError::WrongIssuer(claimed_issuer(text)),
        Kind::InvalidAudience => TokenError::WrongAudience,
        Kind::MissingRequiredClaim(claim) => TokenError::Malformed(format!("the claim '{claim}' is missing")),
        Kind::InvalidClaimFormat(claim) => {
            TokenError::Malformed(format!("the claim '{claim}' is unreadable"))
        }
        Kind::Base64(_) => TokenError::Malformed("a part is not base64url".into()),
        Kind::Json(_) => TokenError::Malformed("its claims are unreadable or incomplete".into()),
        _ => TokenError::Malformed("it is not a token".into()),
    }
}

/// Only for the message.
fn claimed_issuer(text: &str) -> String {
    #[derive(Deserialize)]
    struct Iss {
        iss: String,
    }
    let payload = text.split('.').nth(1).and_then(|part| BASE64.decode(part).ok()).unwrap_or_default();
    serde_json::from_slice::<Iss>(&payload)
        .map(|claims| claims.iss.chars().take(80).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
