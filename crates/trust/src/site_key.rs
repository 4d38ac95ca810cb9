//! The key of a site: Ed25519, made on first use, kept in the state directory as PKCS #8 in PEM (RFC 5958, RFC 8410),
//! which `openssl pkey` reads.
//!
//! A change of the key goes in steps, each of which can be done again, so that a site that dies in between goes on where
//! it was. There is a `site.key` at every moment:
//!
//! | step | done by | files after it |
//! |---|---|---|
//! | the new key is made | [`SiteKey::prepare_next`] | `site.key` is the old one, `site.key.new` the new one |
//! | it is announced | the caller, with a [`KeyChange`](crate::signed::KeyChange) | the same |
//! | it is taken into use | [`SiteKey::adopt_next`] | `site.key` is the new one, `site.key.old` the old one |
//! | the old one's time is over | [`SiteKey::discard_old`] | `site.key` |
//!
//! At a start, a key in `site.key.new` that was announced already is adopted.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::private_file;
use crate::{Error, ErrorKind};

/// Name of the key's file in the state directory.
pub const SITE_KEY_FILE: &str = "site.key";
/// Name of the file of a key that is not yet in use.
pub const NEXT_SITE_KEY_FILE: &str = "site.key.new";
/// Name of the file of the key that was in use before.
pub const OLD_SITE_KEY_FILE: &str = "site.key.old";

/// The key that the site signs with.
pub struct SiteKey {
    pair: Ed25519KeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
}

/// What others check the site's signatures with. As text and on the wire: 64 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SitePublicKey(pub [u8; 32]);

/// A text that is not a [`SitePublicKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the public key of a site: expected 64 hexadecimal digits in lower case")]
pub struct SitePublicKeyError(String);

impl SiteKey {
    /// Loads the site's key from `<state>/site.key`, or makes one and keeps it there with mode 0600. An existing file is
    /// never written over.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read or written, may be read by others, or is not an Ed25519 key.
    pub fn load_or_create(state: &Path) -> Result<Self, Error> {
        private_file::make_directory(state)?;
        Self::read_or_make(&state.join(SITE_KEY_FILE))
    }

    /// Loads the key that is to be the next one from `<state>/site.key.new`, or makes one and keeps it there with mode 0600.
    ///
    /// # Errors
    /// As [`load_or_create`](Self::load_or_create).
    pub fn prepare_next(state: &Path) -> Result<Self, Error> {
        Self::read_or_make(&state.join(NEXT_SITE_KEY_FILE))
    }

    /// Loads the key that was prepared to be the next one, if there is one.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read, may be read by others, or is not an Ed25519 key.
    pub fn load_next(state: &Path) -> Result<Option<Self>, Error> {
        Self::read_if_there(&state.join(NEXT_SITE_KEY_FILE))
    }

    /// Removes the key that was prepared to be the next one, if there is one: at a moment when others may have read the
    /// state directory, another one must be made. Only while it is not announced.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn discard_next(state: &Path) -> Result<(), Error> {
        private_file::remove("the next site key", &state.join(NEXT_SITE_KEY_FILE))
    }

    /// Makes the prepared key the site's key, and keeps the one before as `<state>/site.key.old`. Does nothing if it is the
    /// site's key already, so that several servers with one state directory may each do it.
    ///
    /// To be called once the new key is announced: before, nobody would know it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`]: the key that was prepared is not `next`, or none was. [`Error`]: a file cannot be read
    /// or written; then the site's key is still the old one.
    pub fn adopt_next(state: &Path, next: &SitePublicKey) -> Result<(), Error> {
        let path = state.join(SITE_KEY_FILE);
        let is_adopted = || Ok(Self::read_if_there(&path)?.is_some_and(|key| key.public() == *next));
        // Read before anything else: should another server adopt the key meanwhile, this is still the old one.
        let old = private_file::read_private("the site key", &path)?;
        if Self::from_pem(&old, &path)?.public() == *next {
            return Ok(());
        }
        let prepared = state.join(NEXT_SITE_KEY_FILE);
        match Self::read_if_there(&prepared)? {
            Some(key) if key.public() == *next => {}
            _ if is_adopted()? => return Ok(()),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidRequest,
                    format!(
                        "cannot change the site key: {} does not hold the key {}, prepare and announce one first",
                        prepared.display(),
                        next.key_id()
                    ),
                ));
            }
        }
        private_file::replace("the old site key", &state.join(OLD_SITE_KEY_FILE), &old, 0o600)?;
        match private_file::rename("the new site key", &prepared, &path) {
            Err(_) if is_adopted()? => Ok(()),
            renamed => renamed,
        }
    }

    /// Loads the key that was in use before, if it is still kept.
    ///
    /// # Errors
    /// As [`load_next`](Self::load_next).
    pub fn load_old(state: &Path) -> Result<Option<Self>, Error> {
        Self::read_if_there(&state.join(OLD_SITE_KEY_FILE))
    }

    /// Removes the key that was in use before, if it is still kept: [`OLD_KEY_LIFE`](crate::signed::OLD_KEY_LIFE) after the
    /// change, or at once if it is known to others.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn discard_old(state: &Path) -> Result<(), Error> {
        private_file::remove("the old site key", &state.join(OLD_SITE_KEY_FILE))
    }

    fn read_or_make(path: &Path) -> Result<Self, Error> {
        let pem = private_file::read_or_create("the site key", path, || {
            let pair = Ed25519KeyPair::generate()
                .map_err(|_| Error::new(ErrorKind::Crypto, "cannot make a site key"))?;
            Ok(to_pem(&to_pkcs8(&pair)?))
        })?;
        Self::from_pem(&pem, path)
    }

    fn read_if_there(path: &Path) -> Result<Option<Self>, Error> {
        match private_file::read_private("the site key", path) {
            Ok(pem) => Self::from_pem(&pem, path).map(Some),
            Err(_) if matches!(path.try_exists(), Ok(false)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn from_pem(pem: &[u8], path: &Path) -> Result<Self, Error> {
        let malformed = || {
            Error::new(
                ErrorKind::Malformed,
                format!("the site key at {} is not an Ed25519 key", path.display()),
            )
        };
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| malformed())?;
        let pair = Ed25519KeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| malformed())?;
        let pkcs8 = to_pkcs8(&pair)?;
        Ok(Self { pair, pkcs8 })
    }

    /// Returns the public half.
    pub fn public(&self) -> SitePublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.pair.public_key().as_ref());
        SitePublicKey(bytes)
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(self.pair.sign(message).as_ref());
        bytes
    }

    pub(crate) fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    #[cfg(test)]
    pub(crate) fn from_seed(seed: [u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let pkcs8 = to_pkcs8(&pair).unwrap();
        Self { pair, pkcs8 }
    }
}

impl fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteKey").field("public", &self.public()).finish_non_exhaustive()
    }
}

impl SitePublicKey {
    /// Tells whether `signature` is the site's over `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }

    /// Returns a short name of the key: the first 8 bytes of its SHA-256, in hexadecimal.
    pub fn key_id(&self) -> String {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &self.0);
        hex::encode(digest.as_ref().get(..8).unwrap_or_default())
    }
}

impl fmt::Display for SitePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for SitePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Accepts only what [`Display`](fmt::Display) writes, so that a key has one text.
impl FromStr for SitePublicKey {
    type Err = SitePublicKeyError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) if !text.bytes().any(|byte| byte.is_ascii_uppercase()) => Ok(Self(bytes)),
            _ => Err(SitePublicKeyError(text.chars().take(80).collect())),
        }
    }
}

impl TryFrom<String> for SitePublicKey {
    type Error = SitePublicKeyError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SitePublicKey> for String {
    fn from(key: SitePublicKey) -> Self {
        key.to_string()
    }
}

/// Version 1 of PKCS #8, without the public key: version 2 is not read by OpenSSL before 3.0.
fn to_pkcs8(pair: &Ed25519KeyPair) -> Result<Zeroizing<Vec<u8>>, Error> {
    let document =
        pair.to_pkcs8v1().map_err(|_| Error::new(ErrorKind::Crypto, "cannot encode the site key"))?;
    Ok(Zeroizing::new(document.as_ref().to_vec()))
}

fn to_pem(der: &[u8]) -> Zeroizing<Vec<u8>> {
    let body = Zeroizing::new(BASE64.encode(der));
    let mut pem = Zeroizing::new(String::from("-----BEGIN PRIVATE KEY-----\n"));
    for line in body.as_bytes().chunks(64) {
        pem.push_str(std::str::from_utf8(line).unwrap_or_default());
        pem.push('\n');
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    Zeroizing::new(pem.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn the_key_is_made_once_and_loaded_after() {
        let state = tempfile::tempdir().unwrap();
        let first = SiteKey::load_or_create(state.path()).unwrap();
        let second = SiteKey::load_or_create(state.path()).unwrap();
        assert_eq!(first.public(), second.public());
        assert_eq!(state.path().join(SITE_KEY_FILE).metadata().unwrap().mode() & 0o777, 0o600);
        let signature = first.sign(b"statement");
        assert!(second.public().verifies(b"statement", &signature));
        assert!(!second.public().verifies(b"another", &signature));
        assert!(!second.public().verifies(b"statement", &signature[..63]));
        assert!(!format!("{first:?}").contains(&hex::encode(first.pkcs8())));
    }

    #[test]
    fn an_exposed_or_damaged_key_is_refused_and_kept() {
        let state = tempfile::tempdir().unwrap();
        SiteKey::load_or_create(state.path()).unwrap();
        let path = state.path().join(SITE_KEY_FILE);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(SiteKey::load_or_create(state.path()).unwrap_err().kind(), ErrorKind::Exposed);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for damaged in ["", "junk", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(SiteKey::load_or_create(state.path()).unwrap_err().kind(), ErrorKind::Malformed);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged, "a damaged key is not written over");
        }
    }

    fn names(state: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(state)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_change_of_the_key_can_stop_and_go_on_at_every_step() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        let in_use = || SiteKey::load_or_create(state).unwrap().public();
        let old = in_use();
        assert!(SiteKey::load_next(state).unwrap().is_none());
        let mut next = SiteKey::prepare_next(state).unwrap().public();
        assert_ne!(next, old);
        assert_eq!(SiteKey::prepare_next(state).unwrap().public(), next, "it is made once");
        SiteKey::discard_next(state).unwrap();
        let discarded = std::mem::replace(&mut next, SiteKey::prepare_next(state).unwrap().public());
        assert_ne!(next, discarded);
        assert_eq!(SiteKey::load_next(state).unwrap().unwrap().public(), next);
        assert_eq!(in_use(), old, "it is not used before it was announced");

        // As a site that died after it had kept the old one.
        std::fs::copy(state.join(SITE_KEY_FILE), state.join(OLD_SITE_KEY_FILE)).unwrap();
        for _ in 0..2 {
            SiteKey::adopt_next(state, &next).unwrap();
            assert_eq!(in_use(), next);
            assert_eq!(SiteKey::load_old(state).unwrap().unwrap().public(), old);
            assert_eq!(names(state), [SITE_KEY_FILE, OLD_SITE_KEY_FILE]);
        }
        for name in [SITE_KEY_FILE, OLD_SITE_KEY_FILE] {
            assert_eq!(state.join(name).metadata().unwrap().mode() & 0o777, 0o600, "{name}");
        }
        for _ in 0..2 {
            SiteKey::discard_old(state).unwrap();
            assert!(SiteKey::load_old(state).unwrap().is_none());
            assert_eq!(names(state), [SITE_KEY_FILE]);
        }
    }

    #[test]
    fn only_the_key_that_was_prepared_is_adopted() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        let old = SiteKey::load_or_create(state).unwrap().public();
        let other = SiteKey::from_seed([9; 32]).public();
        let refused = || {
            let error = SiteKey::adopt_next(state, &other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert_eq!(SiteKey::load_or_create(state).unwrap().public(), old);
            assert!(SiteKey::load_old(state).unwrap().is_none());
        };
        refused();
        let next = SiteKey::prepare_next(state).unwrap().public();
        refused();
        let path = state.join(NEXT_SITE_KEY_FILE);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(SiteKey::adopt_next(state, &next).unwrap_err().kind(), ErrorKind::Exposed);
        std::fs::write(&path, "junk").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(SiteKey::load_next(state).unwrap_err().kind(), ErrorKind::Malformed);
        assert_eq!(SiteKey::adopt_next(state, &next).unwrap_err().kind(), ErrorKind::Malformed);
        assert_eq!(SiteKey::load_or_create(state).unwrap().public(), old);
    }

    #[test]
    fn several_servers_may_adopt_the_key_at_once() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        let old = SiteKey::load_or_create(state).unwrap().public();
        let next = SiteKey::prepare_next(state).unwrap().public();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| SiteKey::adopt_next(state, &next))).collect();
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        assert_eq!(SiteKey::load_or_create(state).unwrap().public(), next);
        assert_eq!(SiteKey::load_old(state).unwrap().unwrap().public(), old);
        assert_eq!(names(state), [SITE_KEY_FILE, OLD_SITE_KEY_FILE]);
    }

    #[test]
    fn a_public_key_has_one_text() {
        let key = SiteKey::from_seed([7; 32]).public();
        let text = key.to_string();
        assert_eq!(text.parse(), Ok(key));
        assert_eq!(serde_json::from_value::<SitePublicKey>(serde_json::json!(text)).unwrap(), key);
        for wrong in [&text.to_uppercase(), &text[..62], "", &text.replacen('e', "g", 1), &format!(" {text}")]
        {
            assert!(wrong.parse::<SitePublicKey>().is_err(), "{wrong:?} was accepted");
        }
    }

    /// RFC 8032, section 7.1, test 2.
    #[test]
    fn signatures_are_ed25519() {
        let mut seed = [0; 32];
        hex::decode_to_slice("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", &mut seed)
            .unwrap();
        let key = SiteKey::from_seed(seed);
        assert_eq!(
            key.public().to_string(),
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
        );
        assert!(
            hex::encode(key.sign(&[0x72])).starts_with("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8f")
        );
    }
}
