//! The outside of everything signed: a JWT whose header and signature are checked before a claim is believed.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use percale_core::Timestamp;
use percale_core::access::{Caller, Identity, Scope};
use percale_core::ids::SiteId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Clock, Signatory, SignedError};
use crate::token::MAX_TOKEN_BYTES;
use crate::{Error, ErrorKind, SiteKey};

const ALGORITHM: &str = "EdDSA";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    typ: Option<String>,
    alg: String,
    kid: Option<String>,
}

/// Signs claims as a form of this `typ`.
pub fn seal(what: &str, typ: &str, claims: &impl Serialize, key: &SiteKey) -> Result<String, Error> {
    let encode = |part: serde_json::Result<Vec<u8>>| {
        part.map(|json| BASE64.encode(json)).map_err(|error| {
            Error::new(ErrorKind::Crypto, format!("cannot encode a {what}")).with_source(error)
        })
    };
    let header = Header { typ: Some(typ.into()), alg: ALGORITHM.into(), kid: Some(key.public().key_id()) };
    let mut text =
        format!("{}.{}", encode(serde_json::to_vec(&header))?, encode(serde_json::to_vec(claims))?);
    let signature = BASE64.encode(key.sign(text.as_bytes()));
    text.push('.');
    text.push_str(&signature);
    if text.len() > MAX_TOKEN_BYTES {
        return Err(refuse(what, &format!("it would have more than {MAX_TOKEN_BYTES} bytes")));
    }
    Ok(text)
}

/// The error for something that may not be signed.
pub fn refuse(what: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidRequest, format!("cannot sign a {what}: {why}"))
}

/// Checks form, algorithm and signature, and returns the claims. Times and claims are the caller's to check.
pub fn open<C: DeserializeOwned>(
    text: &str,
    typ: &'static str,
    signatory: &Signatory<'_>,
) -> Result<C, SignedError> {
    let parts = Parts::split(text)?;
    let header: Header = serde_json::from_slice(&decode(parts.header, "its header")?)
        .map_err(|_| malformed("its header is unreadable or incomplete"))?;
    if header.alg != ALGORITHM {
        return Err(SignedError::WrongAlgorithm(excerpt(&header.alg)));
    }
    let found = header.typ.unwrap_or_default();
    if found != typ {
        return Err(SignedError::WrongType { expected: typ, found: excerpt(&found) });
    }
    let key_id = header.kid.ok_or_else(|| malformed("its header names no key"))?;
    let mut keys = signatory.keys.iter().filter(|key| key.key_id() == key_id).peekable();
    if keys.peek().is_none() {
        return Err(SignedError::UnknownKey(excerpt(&key_id)));
    }
    let signature = decode(parts.signature, "its signature")?;
    if !keys.any(|key| key.verifies(parts.signed.as_bytes(), &signature)) {
        return Err(SignedError::BadSignature);
    }
    // Only now, so that nobody but the site itself can make us parse what it likes.
    serde_json::from_slice(&decode(parts.claims, "its claims")?)
        .map_err(|error| malformed(&format!("its claims are unreadable or incomplete: {error}")))
}

/// Reads which site a text claims to be signed by, in order to look up its keys. **Nothing is checked**: anybody can
/// write anything there.
///
/// # Errors
/// [`SignedError::TooLong`], [`SignedError::Malformed`].
pub fn claimed_site(text: &str) -> Result<SiteId, SignedError> {
    #[derive(Deserialize)]
    struct Iss {
        iss: SiteId,
    }
    let parts = Parts::split(text)?;
    serde_json::from_slice(&decode(parts.claims, "its claims")?)
        .map(|claims: Iss| claims.iss)
        .map_err(|_| malformed("its claims name no site that signed it"))
}

struct Parts<'a> {
    header: &'a str,
    claims: &'a str,
    signature: &'a str,
    /// What the signature is over.
    signed: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, SignedError> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(SignedError::TooLong(text.len()));
        }
        let parts = || {
            let (signed, signature) = text.rsplit_once('.')?;
            let (header, claims) = signed.split_once('.')?;
            (!claims.contains('.')).then_some(Self { header, claims, signature, signed })
        };
        parts().ok_or_else(|| malformed("it does not have three parts"))
    }
}

/// Reads base64url; `what` is such as "its header".
pub fn decode(part: &str, what: &str) -> Result<Vec<u8>, SignedError> {
    BASE64.decode(part).map_err(|_| malformed(&format!("{what} is not base64url")))
}

fn malformed(why: &str) -> SignedError {
    SignedError::Malformed(why.chars().take(200).collect())
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

/// From when to when something is valid, in whole seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub issued: i64,
    pub expires: i64,
}

impl Life {
    pub fn new(issued: Timestamp, expires: Timestamp) -> Self {
        let seconds = |time: Timestamp| time.as_micros().div_euclid(1_000_000);
        Self { issued: seconds(issued), expires: seconds(expires) }
    }

    /// Takes the times out of claims.
    pub fn claimed(iat: i64, nbf: i64, exp: i64) -> Result<Self, SignedError> {
        if iat == nbf {
            Ok(Self { issued: iat, expires: exp })
        } else {
            Err(SignedError::OutOfBounds("'iat' and 'nbf' differ".to_owned()))
        }
    }

    pub fn issued(self) -> Timestamp {
        Timestamp::from_micros(self.issued.saturating_mul(1_000_000))
    }

    pub fn expires(self) -> Timestamp {
        Timestamp::from_micros(self.expires.saturating_mul(1_000_000))
    }

    /// Answers why such a life may not be.
    pub fn check(self, most: Duration) -> Result<(), String> {
        let life = self.expires.checked_sub(self.issued).and_then(|seconds| u64::try_from(seconds).ok());
        match life {
            Some(seconds) if (1..=most.as_secs()).contains(&seconds) => Ok(()),
            _ => Err(format!("its life must be 1 to {} seconds", most.as_secs())),
        }
    }

    pub fn check_now(self, clock: &Clock) -> Result<(), SignedError> {
        if clock.now.after(clock.allowance) < self.issued() {
            return Err(SignedError::NotYetValid(self.issued()));
        }
        if clock.now >= self.expires().after(clock.allowance) {
            return Err(SignedError::Expired(self.expires()));
        }
        Ok(())
    }
}

/// From when to when something that is made now is valid, in whole seconds.
pub fn times(now: Timestamp, life: Duration) -> (Timestamp, Timestamp) {
    let life = Life::new(now, now.after(life));
    (life.issued(), life.expires())
}

/// Reads identities.
pub fn identities(texts: &[String]) -> Result<Vec<Identity>, SignedError> {
    texts.iter().map(|text| identity(text)).collect()
}

/// Reads an identity, and refuses a text that another would be written as.
pub fn identity(text: &str) -> Result<Identity, SignedError> {
    let identity: Identity = text.parse().map_err(|_| malformed("an identity is not well formed"))?;
    if identity.to_string() == text { Ok(identity) } else { Err(malformed("an identity is ambiguous")) }
}

/// Puts a caller together.
pub fn caller(user: Option<&str>, groups: &[String], scopes: Vec<Scope>) -> Result<Caller, SignedError> {
    Ok(Caller { user: user.map(identity).transpose()?, groups: identities(groups)?, scopes })
}

/// The user of a caller as it is written into claims.
pub fn user_text(caller: &Caller) -> Option<String> {
    caller.user.as_ref().map(Identity::to_string)
}

/// The groups of a caller as they are written into claims.
pub fn group_texts(caller: &Caller) -> Vec<String> {
    caller.groups.iter().map(Identity::to_string).collect()
}

/// For claims that may be `null` but not missing, which serde would take for the same.
pub fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}
