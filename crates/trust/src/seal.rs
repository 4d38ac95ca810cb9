//! Secrets at rest: what stores and issuers entrust to the site lies in the database only sealed.
//!
//! **Participants.** The site's servers, which share a state directory or a copy of its `seal.key`. **Goals.** A copy of
//! the database alone reveals nothing; a value cannot be moved to another purpose unnoticed. **Non-goals.** Protection
//! from whoever reads the key file or the server's memory.
//!
//! A sealed value is AES-256-GCM (NIST SP 800-38D) with a random nonce:
//!
//! ```text
//!  0        6        8         16         28
//!  ┌────────┬────────┬─────────┬──────────┬──────────────────────┐
//!  │ PCSEAL │ format │ key id  │ nonce    │ ciphertext, 16 B tag │
//!  └────────┴────────┴─────────┴──────────┴──────────────────────┘
//! ```
//!
//! `format` is 1, 16 bits big-endian; the key id is the first 8 bytes of the SHA-256 of the key. The first 16 bytes and
//! the purpose are authenticated as well. With random nonces a key is good for 2^32 values, far beyond what a site has.
//! **Compatibility.** Another form gets another number; format 1 stays readable.

use std::fmt;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use zeroize::Zeroizing;

use crate::{Error, ErrorKind, Secret, private_file};

/// Name of the key's file in the state directory.
pub const SEAL_KEY_FILE: &str = "seal.key";

const MAGIC: &[u8; 6] = b"PCSEAL";
const FORMAT: u16 = 1;
const HEADER_LEN: usize = 16;
const KEY_FILE_PREFIX: &str = "percale-seal-1 ";

/// Seals and opens values with the site's key.
pub struct Sealer {
    key: LessSafeKey,
    key_id: [u8; 8],
}

impl Sealer {
    /// Loads the key from `<state>/seal.key`, or makes one and keeps it there with mode 0600. An existing file is never
    /// written over: without its key, what was sealed is lost.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read or written, may be read by others, or is not such a key.
    pub fn load_or_create(state: &Path) -> Result<Self, Error> {
        private_file::make_directory(state)?;
        let path = state.join(SEAL_KEY_FILE);
        let file = private_file::read_or_create("the seal key", &path, || {
            let mut key = Zeroizing::new([0; 32]);
            fill_random(key.as_mut())?;
            Ok(Zeroizing::new(format!("{KEY_FILE_PREFIX}{}\n", hex::encode(key.as_ref())).into_bytes()))
        })?;
        let at = path.display();
        let text = std::str::from_utf8(&file).unwrap_or_default().trim_end();
        let digits = match text.strip_prefix(KEY_FILE_PREFIX) {
            Some(digits) => digits,
            None if text.starts_with("percale-seal-") => {
                return Err(Error::new(
                    ErrorKind::UnknownFormat,
                    format!("the seal key at {at} has an unknown form"),
                ));
            }
            None => return Err(Error::new(ErrorKind::Malformed, format!("no seal key at {at}"))),
        };
        let mut key = Zeroizing::new([0; 32]);
        hex::decode_to_slice(digits, key.as_mut()).map_err(|_| {
            Error::new(ErrorKind::Malformed, format!("the seal key at {at} is not 64 digits"))
        })?;
        Self::from_key(&key)
    }

    fn from_key(key: &[u8; 32]) -> Result<Self, Error> {
        let refused = |_| Error::new(ErrorKind::Crypto, "cannot use the seal key");
        let mut key_id = [0; 8];
        key_id.copy_from_slice(digest(&SHA256, key).as_ref().get(..8).unwrap_or(&[0; 8]));
        Ok(Self { key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).map_err(refused)?), key_id })
    }

    /// Seals a value for a purpose, such as `store 0199… secret`. The purpose is not stored, and the same one is needed
    /// to open it.
    ///
    /// # Errors
    /// [`ErrorKind::Crypto`]: the system has no random numbers.
    pub fn seal(&self, purpose: &str, value: &[u8]) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce)?;
        let header = self.header();
        let mut text = Zeroizing::new(value.to_vec());
        let tag = self
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(associated(&header, purpose)),
                &mut text,
            )
            .map_err(|_| Error::new(ErrorKind::Crypto, format!("cannot seal {purpose}")))?;
        Ok([&header[..], &nonce, &text, tag.as_ref()].concat())
    }

    /// Opens a sealed value.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`], [`ErrorKind::UnknownFormat`], or [`ErrorKind::NotAuthentic`]: sealed with another key or
    /// for another purpose, or altered.
    pub fn open(&self, purpose: &str, sealed: &[u8]) -> Result<Secret<Vec<u8>>, Error> {
        let cannot = |kind, why: &str| Error::new(kind, format!("cannot open {purpose}: {why}"));
        let malformed = || cannot(ErrorKind::Malformed, "it is not a sealed value");
        let (header, rest) = sealed.split_first_chunk::<HEADER_LEN>().ok_or_else(malformed)?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>().ok_or_else(malformed)?;
        if !header.starts_with(MAGIC) {
            return Err(malformed());
        }
        if header.get(6..8) != Some(&FORMAT.to_be_bytes()) {
            return Err(cannot(ErrorKind::UnknownFormat, "this release does not know its form"));
        }
        if header.get(8..) != Some(&self.key_id) {
            return Err(cannot(
                ErrorKind::NotAuthentic,
                "it was sealed with another key than this site's seal.key",
            ));
        }
        let mut text = Zeroizing::new(rest.to_vec());
        let aad = Aad::from(associated(header, purpose));
        let opened = self
            .key
            .open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut text)
            .map_err(|_| cannot(ErrorKind::NotAuthentic, "it was altered, or sealed for another purpose"))?;
        Ok(Secret::new(opened.to_vec()))
    }

    fn header(&self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[..6].copy_from_slice(MAGIC);
        header[6..8].copy_from_slice(&FORMAT.to_be_bytes());
        header[8..].copy_from_slice(&self.key_id);
        header
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("key_id", &hex::encode(self.key_id)).finish_non_exhaustive()
    }
}

fn associated(header: &[u8; HEADER_LEN], purpose: &str) -> Vec<u8> {
    [header.as_slice(), purpose.as_bytes()].concat()
}

/// Fills bytes from the operating system's random numbers.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    aws_lc_rs::rand::fill(bytes).map_err(|_| Error::new(ErrorKind::Crypto, "cannot get random numbers"))
}

/// Returns random bytes of the operating system.
///
/// # Errors
/// [`ErrorKind::Crypto`]: there are none.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer() -> Sealer {
        Sealer::from_key(&[7; 32]).unwrap()
    }

    #[test]
    fn a_value_is_read_back_only_for_its_purpose() {
        let sealer = sealer();
        for value in [&b""[..], b"x", &[0; 5000]] {
            let sealed = sealer.seal("store a secret", value).unwrap();
            assert_ne!(sealed, sealer.seal("store a secret", value).unwrap(), "the nonce is new each time");
            assert_eq!(sealer.open("store a secret", &sealed).unwrap().expose(), value);
            let error = sealer.open("store b secret", &sealed).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotAuthentic);
        }
    }

    #[test]
    fn damage_and_other_keys_are_noticed() {
        let sealer = sealer();
        let sealed = sealer.seal("p", b"value").unwrap();
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(sealer.open("p", &damaged).is_err(), "damage at byte {at}");
            assert!(sealer.open("p", &sealed[..at]).is_err(), "cut at byte {at}");
        }
        let other = Sealer::from_key(&[8; 32]).unwrap();
        let error = other.open("p", &sealed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAuthentic);
        assert!(error.to_string().contains("another key"), "{error}");
        let mut newer = sealed;
        newer[7] = 2;
        assert_eq!(sealer.open("p", &newer).unwrap_err().kind(), ErrorKind::UnknownFormat);
    }

    #[test]
    fn the_key_is_made_once_and_a_damaged_one_is_kept() {
        let state = tempfile::tempdir().unwrap();
        let sealed = Sealer::load_or_create(state.path()).unwrap().seal("p", b"value").unwrap();
        let again = Sealer::load_or_create(state.path()).unwrap();
        assert_eq!(again.open("p", &sealed).unwrap().expose(), b"value");
        let path = state.path().join(SEAL_KEY_FILE);
        for (text, kind) in [
            ("", ErrorKind::Malformed),
            ("percale-seal-1 12", ErrorKind::Malformed),
            ("percale-seal-2 00", ErrorKind::UnknownFormat),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Sealer::load_or_create(state.path()).unwrap_err().kind(), kind, "{text:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    /// The stored sample of format 1. Never changed; a new format gets a sample of its own.
    #[test]
    fn format_1_sample_is_still_read() {
        let sample = include_bytes!("../samples/sealed-v1.bin");
        let opened = sealer().open("sample", sample).unwrap();
        assert_eq!(opened.expose(), b"the secret of format 1");
    }
}
