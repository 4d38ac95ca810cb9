//! An invitation: one line that lets a site join a fabric (`docs/design/trust.md`, "Joining, keys, removal").
//!
//! **Participants.** The site that invites, the site that joins, and the two administrators who hand the line over, by
//! whatever way they trust. **Goals.** Either site learns the other's key for certain; the line is good once, and until it
//! ends. **Non-goals.** To keep the line secret: whoever reads it first can join with it.
//!
//! **Layout.** `percale-invite:` and base64url, without padding, of JSON:
//!
//! | field | value |
//! |---|---|
//! | `v` | 1 |
//! | `urls` | where the inviting site can be reached: 1 to 16 `https` URLs of at most 2048 bytes |
//! | `name`, `id`, `key` | name, id and public key of the inviting site |
//! | `secret` | 32 random bytes, base64url |
//! | `expires` | when it ends, RFC 3339 |
//!
//! **Messages.** The inviting site keeps the `hash` only; the joining site sends `proof`, with its own id and the key that it
//! shows on the connection:
//!
//! ```text
//! hash  = SHA-256("percale invitation 1 secret\0" ‖ secret)
//! proof = HMAC-SHA-256(hash, "percale invitation 1 proof\0" ‖ joiner's public key, 32 B ‖ joiner's id, 16 B)
//! ```
//!
//! What that protects: a proof is of no use to anybody without the private half of the key that it names, so whoever sees
//! it on its way or in a log cannot join with it; neither proof nor hash lead to the secret or to the line. What it
//! does not: the hash is as good as the secret for making a proof, so whoever *reads* the inviting site's database could
//! join until the invitation was used or has ended. Whoever *writes* it could add members anyway.
//!
//! **Failure.** A line that was damaged on the way is refused, or names another secret, key or address, with which joining
//! fails. **Compatibility.** Another set of fields gets another `v`, which this release refuses by name; a
//! [sample](../../samples) of each form stays readable.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use percale_core::Timestamp;
use percale_core::access::{MAX_SITE_NAME_BYTES, is_site_name};
use percale_core::ids::SiteId;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::seal::fill_random;
use crate::{Error, ErrorKind, Secret, SitePublicKey};

/// Longest line, in bytes. It must pass through mail and chat.
pub const MAX_INVITATION_BYTES: usize = 8 * 1024;
/// Most URLs of one site.
pub const MAX_INVITATION_URLS: usize = 16;
/// Longest URL, in bytes.
pub const MAX_INVITATION_URL_BYTES: usize = 2048;

const PREFIX: &str = "percale-invite:";
const VERSION: u64 = 1;
const HASH_DOMAIN: &[u8] = b"percale invitation 1 secret\0";
const PROOF_DOMAIN: &[u8] = b"percale invitation 1 proof\0";

/// What one site hands to another so that it can join.
///
/// `Debug` does not show the secret. [`Display`](fmt::Display) does, since it gives the line: it is for the person who asked
/// for the invitation, never for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    /// Where the inviting site can be reached, the best first.
    pub urls: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: SiteId,
    /// Its key, to be pinned when it is dialled.
    pub key: SitePublicKey,
    /// When the invitation ends. Reading one that has ended is no error.
    pub expires: Timestamp,
    secret: Secret<[u8; 32]>,
}

/// The JSON in the line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    v: u64,
    urls: Vec<String>,
    name: String,
    id: SiteId,
    key: SitePublicKey,
    secret: SecretText,
    expires: Timestamp,
}

/// The secret as it is written in the line.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct SecretText(Secret<[u8; 32]>);

impl TryFrom<String> for SecretText {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = Zeroizing::new(text);
        let mut secret = Zeroizing::new([0; 32]);
        match BASE64.decode_slice(text.as_bytes(), secret.as_mut()) {
            Ok(32) => Ok(Self(Secret::new(*secret))),
            _ => Err("the secret is not 32 bytes in base64url"),
        }
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(BASE64.encode(self.0.expose())))
    }
}

impl Invitation {
    /// Makes an invitation to the site of this name, id and key, with a new secret.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`]: no URL or more than [`MAX_INVITATION_URLS`], one that is not `https://host`,
    /// `https://host:port` or either with a path or is longer than [`MAX_INVITATION_URL_BYTES`], a name that no site may
    /// have, or a line beyond [`MAX_INVITATION_BYTES`]. [`ErrorKind::Crypto`]: the system has no random numbers.
    pub fn new(
        urls: Vec<String>,
        name: String,
        id: SiteId,
        key: SitePublicKey,
        expires: Timestamp,
    ) -> Result<Self, Error> {
        let mut secret = Zeroizing::new([0; 32]);
        fill_random(secret.as_mut())?;
        let invitation = Self { urls, name, id, key, expires, secret: Secret::new(*secret) };
        let refuse = |why: &str| refusal(&format!("cannot make an invitation: {why}"));
        invitation.check().map_err(|why| refuse(&why))?;
        let length = invitation.line().map_err(|_| refuse("it cannot be written"))?.len();
        if length > MAX_INVITATION_BYTES {
            return Err(refuse(&format!(
                "with these URLs it has {length} bytes, at most {MAX_INVITATION_BYTES} are accepted"
            )));
        }
        Ok(invitation)
    }

    /// Returns what the inviting site keeps of the secret, and later [checks](Self::check_proof) proofs with.
    pub fn secret_hash(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        context.update(HASH_DOMAIN);
        context.update(self.secret.expose());
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        hash
    }

    /// Proves that a site with this key and id has the invitation. The module's page has the formula.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`]: the site has the inviting site's own id or key; a site does not join itself.
    pub fn prove(&self, key: &SitePublicKey, joiner: SiteId) -> Result<[u8; 32], Error> {
        if joiner == self.id || *key == self.key {
            let name = &self.name;
            return Err(refusal(&format!(
                "cannot use the invitation by {name}: it was made by this site itself, hand it to another one"
            )));
        }
        let secret = hmac::Key::new(HMAC_SHA256, &self.secret_hash());
        let mut proof = [0; 32];
        proof.copy_from_slice(hmac::sign(&secret, &proved(key, joiner)).as_ref());
        Ok(proof)
    }

    /// Tells whether a proof was made by somebody who has the invitation with this [hash](Self::secret_hash), for a site with
    /// this id and this key, which must be the one that the connection [proved](crate::tls::site_peer). Takes the
    /// same time whatever the proof. Whether the invitation has ended or was used is for the caller to find out.
    pub fn check_proof(hash: &[u8; 32], key: &SitePublicKey, joiner: SiteId, proof: &[u8; 32]) -> bool {
        hmac::verify(&hmac::Key::new(HMAC_SHA256, hash), &proved(key, joiner), proof).is_ok()
    }

    fn line(&self) -> serde_json::Result<Zeroizing<String>> {
        let json = Zeroizing::new(serde_json::to_vec(&Line {
            v: VERSION,
            urls: self.urls.clone(),
            name: self.name.clone(),
            id: self.id,
            key: self.key,
            secret: SecretText(self.secret.clone()),
            expires: self.expires,
        })?);
        let text = Zeroizing::new(BASE64.encode(&*json));
        Ok(Zeroizing::new(format!("{PREFIX}{}", *text)))
    }

    /// Answers why such an invitation may not be.
    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_INVITATION_URLS).contains(&self.urls.len()) {
            let count = self.urls.len();
            return Err(format!("it has {count} URLs, it needs 1 to {MAX_INVITATION_URLS}"));
        }
        for url in &self.urls {
            check_url(url).map_err(|why| {
                let excerpt: String = url.chars().take(80).collect();
                format!("the URL '{}' {why}", excerpt.escape_debug())
            })?;
        }
        if !is_site_name(&self.name) {
            let excerpt: String = self.name.chars().take(80).collect();
            let excerpt = excerpt.escape_debug();
            return Err(format!(
                "'{excerpt}' cannot name a site, which takes 1 to {MAX_SITE_NAME_BYTES} of a-z, 0-9, '-', '.', '_'"
            ));
        }
        Ok(())
    }
}

/// The line to hand over, with the secret.
impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line().map_err(|_| fmt::Error)?)
    }
}

/// Reads the line. White space is passed over, also within: mail programs break long lines.
impl FromStr for Invitation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |why: &str| refusal(&format!("cannot read the invitation: {why}"));
        if text.len() > MAX_INVITATION_BYTES {
            let length = text.len();
            return Err(refuse(&format!(
                "it has {length} bytes, at most {MAX_INVITATION_BYTES} are accepted"
            )));
        }
        let text = Zeroizing::new(text.split_ascii_whitespace().collect::<String>());
        let Some(encoded) = text.strip_prefix(PREFIX) else {
            return Err(refuse(&format!("it does not begin with '{PREFIX}'; copy the whole line")));
        };
        // No reason is passed on, since it could quote the secret.
        let damaged = || refuse("it is damaged; copy the whole line, or ask for a new one");
        let json = Zeroizing::new(BASE64.decode(encoded).map_err(|_| damaged())?);
        check_version(&json, refuse)?;
        let line: Line = serde_json::from_slice(&json).map_err(|_| damaged())?;
        let Line { v: _, urls, name, id, key, secret, expires } = line;
        let invitation = Self { urls, name, id, key, expires, secret: secret.0 };
        // An invitation has one text, so that one that was altered never passes for the one that was made.
        if !invitation.line().is_ok_and(|line| *line == *text) {
            return Err(damaged());
        }
        invitation.check().map_err(|why| refuse(&why))?;
        Ok(invitation)
    }
}

/// Before anything else is read, since another version may have other fields.
fn check_version(json: &[u8], refuse: impl Fn(&str) -> Error) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }
    match serde_json::from_slice(json) {
        Ok(Version { v: VERSION }) => Ok(()),
        Ok(Version { v }) => Err(refuse(&format!(
            "it has version {v}, and this release knows version {VERSION} only; update the older one of the two sites, \
             or have the invitation made by the other one"
        ))),
        Err(_) => Err(refuse("it is damaged; copy the whole line, or ask for a new one")),
    }
}

/// What a proof is over.
fn proved(key: &SitePublicKey, joiner: SiteId) -> Vec<u8> {
    [PROOF_DOMAIN, &key.0, joiner.0.as_bytes()].concat()
}

/// Answers, to be put behind the URL, why it is not a site's: `https`, a host, perhaps a port and a path, nothing else.
fn check_url(url: &str) -> Result<(), String> {
    if url.len() > MAX_INVITATION_URL_BYTES {
        return Err(format!("has {} bytes, at most {MAX_INVITATION_URL_BYTES} are accepted", url.len()));
    }
    let rest = url.strip_prefix("https://").ok_or("does not begin with https://")?;
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}?#@".contains(&byte);
    if !rest.bytes().all(is_plain) {
        return Err("has a character that cannot be in a site's URL".to_owned());
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon of an address of version 6 without a port is within the brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if is_bracketed != bare.contains(':') || ServerName::try_from(bare).is_err() {
        return Err("does not name a host".to_owned());
    }
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match port {
        Some(port) if !is_port(port) => Err("has a port that is not 1 to 65535".to_owned()),
        _ => Ok(()),
    }
}

fn refusal(message: &str) -> Error {
    Error::new(ErrorKind::InvalidRequest, message)
}

#[cfg(test)]
mod tests;
