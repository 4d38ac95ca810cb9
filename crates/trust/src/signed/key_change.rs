//! An announcement: a site has another key from now on.
//!
//! **Participants.** The site, and every other that knows the key that it had. **Goals.** Nobody but the holder of the old key
//! can put another in its place, and nobody can claim a key that they do not hold, such as another member's. **Non-goals.**
//! To help where the old key is known to others: then an announcement of a new key proves nothing, and administrators
//! confirm it. What the old key can still do then is to revoke itself.
//!
//! **Layout.** A JWT like the other forms, `typ` `percale-key-change+jwt`, signed with the old key. Claims: `iss` the site, `aud`
//! `fabric`, `key` the new public key, `at` when (RFC 3339), and `proof`, the new key's signature, base64url, over
//!
//! ```text
//! "percale key change 1\0" ‖ old key, 32 B ‖ new key, 32 B ‖ site's id, 16 B ‖ at in µs since 1970, 8 B big-endian
//! ```
//!
//! A *revocation* says the same of a key that others know: `typ` `percale-key-revocation+jwt`, and `percale key revocation 1`
//! in the place of `percale key change 1`. Whoever reads it accepts the old key no more, and the new one only when somebody
//! confirms it. A stolen key can so be made worthless by its thief as well; that is all that the thief gains.
//!
//! It does not expire, since a site that was away for a year must still be able to learn of the change.
//!
//! **Failure.** It is checked with the key that *is* the site's, as known here, never with the one before: an announcement of
//! an earlier change is refused. A site that missed two changes cannot follow from the last alone.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use percale_core::Timestamp;
use percale_core::ids::SiteId;
use serde::{Deserialize, Serialize};

use super::envelope;
use super::{Signatory, SignedError};
use crate::{Error, SiteKey, SitePublicKey};

/// How long the old key of a site is accepted beside the new one: 24 hours.
pub const OLD_KEY_LIFE: Duration = Duration::from_secs(24 * 3600);

const WHAT: &str = "change of the site key";
const TYPE: &str = "percale-key-change+jwt";
const REVOCATION_TYPE: &str = "percale-key-revocation+jwt";
const AUDIENCE: &str = "fabric";
const PROOF_DOMAIN: &[u8] = b"percale key change 1\0";
const REVOCATION_PROOF_DOMAIN: &[u8] = b"percale key revocation 1\0";

/// What a site says when it changes its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyChange {
    /// The site.
    pub site: SiteId,
    /// The key that it had.
    pub old: SitePublicKey,
    /// The key that it has.
    pub new: SitePublicKey,
    /// When it was changed; the old key is accepted for [`OLD_KEY_LIFE`] from then.
    pub at: Timestamp,
    /// Whether others know the old key: then it is not accepted any more, and does not prove the new one.
    pub is_revocation: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: SiteId,
    aud: String,
    key: SitePublicKey,
    at: Timestamp,
    proof: String,
}

impl KeyChange {
    /// Announces that the site has the key `new` in place of `old`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest): the two are one key.
    pub fn sign(old: &SiteKey, site: SiteId, new: &SiteKey, at: Timestamp) -> Result<String, Error> {
        Self::write(old, site, new, at, false)
    }

    /// Announces the same, and that others know the key `old`.
    ///
    /// # Errors
    /// As [`sign`](Self::sign).
    pub fn revoke(old: &SiteKey, site: SiteId, new: &SiteKey, at: Timestamp) -> Result<String, Error> {
        Self::write(old, site, new, at, true)
    }

    fn write(
        old: &SiteKey,
        site: SiteId,
        new: &SiteKey,
        at: Timestamp,
        is_revocation: bool,
    ) -> Result<String, Error> {
        let change = Self { site, old: old.public(), new: new.public(), at, is_revocation };
        change.check().map_err(|why| envelope::refuse(WHAT, &why))?;
        let proof = BASE64.encode(new.sign(&change.proved()));
        let claims = Claims { iss: site, aud: AUDIENCE.to_owned(), key: change.new, at, proof };
        envelope::seal(WHAT, if is_revocation { REVOCATION_TYPE } else { TYPE }, &claims, old)
    }

    /// Checks an announcement of a site whose key was `known` here until now.
    ///
    /// # Errors
    /// [`SignedError`]; [`SignedError::UnknownKey`] if it is signed with another key than `known`, such as one before that,
    /// or one between the two that never was heard of here.
    pub fn verify(text: &str, site: SiteId, known: &SitePublicKey) -> Result<Self, SignedError> {
        let signatory = Signatory { site, name: "", keys: std::slice::from_ref(known), issuers: &[] };
        let (claims, is_revocation): (Claims, bool) = match envelope::open(text, TYPE, &signatory) {
            Err(SignedError::WrongType { found, .. }) if found == REVOCATION_TYPE => {
                (envelope::open(text, REVOCATION_TYPE, &signatory)?, true)
            }
            opened => (opened?, false),
        };
        if claims.iss != site {
            return Err(SignedError::WrongIssuer);
        }
        if claims.aud != AUDIENCE {
            return Err(SignedError::WrongAudience);
        }
        let change = Self { site, old: *known, new: claims.key, at: claims.at, is_revocation };
        change.check().map_err(SignedError::OutOfBounds)?;
        let proof = envelope::decode(&claims.proof, "its proof")?;
        if change.new.verifies(&change.proved(), &proof) {
            Ok(change)
        } else {
            Err(SignedError::BadSignature)
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.old == self.new {
            return Err("the new key is the old one".to_owned());
        }
        Ok(())
    }

    /// What the new key signs.
    fn proved(&self) -> Vec<u8> {
        let at = self.at.as_micros().to_be_bytes();
        let domain = if self.is_revocation { REVOCATION_PROOF_DOMAIN } else { PROOF_DOMAIN };
        [domain, &self.old.0, &self.new.0, self.site.0.as_bytes(), &at].concat()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{ErrorKind, Statement};

    fn site(last: u8) -> SiteId {
        format!("0199a2b4-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
    }

    fn key(seed: u8) -> SiteKey {
        SiteKey::from_seed([seed; 32])
    }

    fn change() -> KeyChange {
        let (old, new) = (key(7).public(), key(8).public());
        KeyChange { site: site(1), old, new, at: at(), is_revocation: false }
    }

    fn at() -> Timestamp {
        "2026-11-21T08:30:00.000001Z".parse().unwrap()
    }

    /// From key 7 to key 8.
    fn text() -> String {
        KeyChange::sign(&key(7), site(1), &key(8), at()).unwrap()
    }

    fn verify(text: &str) -> Result<KeyChange, SignedError> {
        KeyChange::verify(text, site(1), &key(7).public())
    }

    fn claims() -> Value {
        let text = text();
        let part = text.split('.').nth(1).unwrap();
        serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap()
    }

    fn seal(claims: &Value) -> String {
        envelope::seal(WHAT, TYPE, claims, &key(7)).unwrap()
    }

    fn with_claim(name: &str, value: Value) -> String {
        let mut claims = claims();
        claims[name] = value;
        seal(&claims)
    }

    #[test]
    fn an_announcement_is_read_back() {
        assert_eq!(verify(&text()), Ok(change()));
    }

    #[test]
    fn the_first_form_is_still_read_and_written() {
        let sample = include_str!("../../samples/key-change-v1.jwt").trim();
        assert_eq!(text(), sample);
        assert_eq!(verify(sample).unwrap().new, key(8).public());
    }

    #[test]
    fn a_revocation_is_read_back_and_is_no_change() {
        let text = KeyChange::revoke(&key(7), site(1), &key(8), at()).unwrap();
        assert_eq!(text, include_str!("../../samples/key-revocation-v1.jwt").trim());
        assert_eq!(verify(&text), Ok(KeyChange { is_revocation: true, ..change() }));
        // The proof of one is none of the other, should somebody with the old key alone want to change the words.
        let as_revocation = envelope::seal(WHAT, REVOCATION_TYPE, &claims(), &key(7)).unwrap();
        assert_eq!(verify(&as_revocation), Err(SignedError::BadSignature));
    }

    #[test]
    fn only_the_key_that_is_known_announces_the_next() {
        let unknown = |seed| SignedError::UnknownKey(key(seed).public().key_id());
        let check = |text: &str, known| KeyChange::verify(text, site(1), &key(known).public()).map(|c| c.new);
        assert_eq!(check(&text(), 8), Err(unknown(7)), "heard of it before");
        let next = KeyChange::sign(&key(8), site(1), &key(9), at()).unwrap();
        assert_eq!(check(&next, 7), Err(unknown(8)), "missed one");
        assert_eq!(check(&next, 8), Ok(key(9).public()));
        // Not with the new key, or anybody could.
        let own = KeyChange::sign(&key(9), site(1), &key(8), at()).unwrap();
        assert_eq!(check(&own, 7), Err(unknown(9)));
    }

    #[test]
    fn a_key_that_is_not_held_cannot_be_claimed() {
        let theirs = key(3).public().to_string();
        assert_eq!(verify(&with_claim("key", theirs.into())), Err(SignedError::BadSignature));
        // A proof that another site made with the key, for itself, from the same key, or at another time.
        for (old, id, time) in
            [(&key(7), site(2), at()), (&key(5), site(1), at()), (&key(7), site(1), Timestamp::EPOCH)]
        {
            let change = KeyChange { site: id, old: old.public(), at: time, ..change() };
            let proof = BASE64.encode(key(8).sign(&change.proved()));
            assert_eq!(verify(&with_claim("proof", proof.into())), Err(SignedError::BadSignature));
        }
        let proof = BASE64.encode(key(7).sign(&change().proved()));
        assert_eq!(verify(&with_claim("proof", proof.into())), Err(SignedError::BadSignature));
    }

    #[test]
    fn other_sites_forms_and_altered_texts_are_refused() {
        let elsewhere = KeyChange::verify(&text(), site(2), &key(7).public());
        assert_eq!(elsewhere, Err(SignedError::WrongIssuer));
        let audience = site(2).to_string();
        assert_eq!(verify(&with_claim("aud", audience.into())), Err(SignedError::WrongAudience));
        assert_eq!(verify(&with_claim("iss", site(2).to_string().into())), Err(SignedError::WrongIssuer));
        let minute = Duration::from_secs(60);
        let statement = Statement::new(site(1), site(2), None, None, at(), minute).sign(&key(7)).unwrap();
        assert!(matches!(verify(&statement), Err(SignedError::WrongType { .. })));
        let text = text();
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            verify(&String::from_utf8(bytes).unwrap()).unwrap_err();
        }
    }

    #[test]
    fn each_claim_is_there_and_no_other() {
        for name in claims().as_object().unwrap().keys() {
            let mut claims = claims();
            claims.as_object_mut().unwrap().remove(name);
            assert!(matches!(verify(&seal(&claims)), Err(SignedError::Malformed(_))), "without {name}");
            let error = verify(&with_claim(name, json!("?"))).unwrap_err();
            assert!(
                matches!(error, SignedError::Malformed(_) | SignedError::WrongAudience),
                "{name}: {error}"
            );
        }
        assert!(matches!(verify(&with_claim("until", json!(1))), Err(SignedError::Malformed(_))));
    }

    #[test]
    fn a_change_changes_something() {
        let error = KeyChange::sign(&key(7), site(1), &key(7), at()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let same = with_claim("key", key(7).public().to_string().into());
        assert!(matches!(verify(&same), Err(SignedError::OutOfBounds(_))));
    }
}
