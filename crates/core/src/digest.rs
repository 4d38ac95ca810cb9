//! Digests over whole contents, several in one pass.
//!
//! BLAKE3 is always computed (see [`crate::tree`]); the others when a client asks for them. md5 and adler32 are here
//! because clients of the grid and of S3 compare them, not because they protect anything.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::Md5;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};

/// An algorithm that clients may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// BLAKE3, 256 bits; equal to the root of the hash tree.
    Blake3,
    /// SHA-256.
    #[serde(rename = "sha-256")]
    Sha256,
    /// SHA-512.
    #[serde(rename = "sha-512")]
    Sha512,
    /// MD5.
    Md5,
    /// CRC-32C (Castagnoli), most significant byte first.
    Crc32c,
    /// Adler-32, most significant byte first.
    Adler32,
}

impl Algorithm {
    /// All algorithms, the strongest first.
    pub const ALL: [Algorithm; 6] =
        [Self::Blake3, Self::Sha512, Self::Sha256, Self::Md5, Self::Crc32c, Self::Adler32];

    /// Returns the name in lower case, as RFC 9530 and the IANA registry write it where they know the algorithm.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha-256",
            Self::Sha512 => "sha-512",
            Self::Md5 => "md5",
            Self::Crc32c => "crc32c",
            Self::Adler32 => "adler32",
        }
    }

    /// Returns the length of a value in bytes.
    pub const fn value_len(self) -> usize {
        match self {
            Self::Blake3 | Self::Sha256 => 32,
            Self::Sha512 => 64,
            Self::Md5 => 16,
            Self::Crc32c | Self::Adler32 => 4,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that does not name an algorithm, or is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// No such algorithm here.
    #[error("unknown digest algorithm '{0}'")]
    UnknownAlgorithm(String),
    /// The value has the wrong length or alphabet.
    #[error("not a {0} digest: expected {len} bytes as hexadecimal or base64", len = .0.value_len())]
    Malformed(Algorithm),
    /// There is no colon between algorithm and value.
    #[error("not a digest: expected ALGORITHM:HEX")]
    NoAlgorithm,
}

impl FromStr for Algorithm {
    type Err = DigestError;

    /// Reads a name in any case, with or without the hyphen (`sha256`, `SHA-256`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
        let wanted = plain(text.get(..text.len().min(32)).unwrap_or_default());
        Self::ALL
            .into_iter()
            .find(|algorithm| plain(algorithm.as_str()) == wanted)
            .ok_or_else(|| DigestError::UnknownAlgorithm(text.chars().take(32).collect()))
    }
}

/// The value of one algorithm over a whole content. Its text is `algorithm:hex`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    value: Vec<u8>,
}

impl Digest {
    /// Makes a digest from its bytes.
    ///
    /// # Errors
    /// [`DigestError::Malformed`], if their number is wrong.
    pub fn new(algorithm: Algorithm, value: impl Into<Vec<u8>>) -> Result<Self, DigestError> {
        let value = value.into();
        if value.len() == algorithm.value_len() {
            Ok(Self { algorithm, value })
        } else {
            Err(DigestError::Malformed(algorithm))
        }
    }

    /// Makes a digest from hexadecimal or base64 text. No text is both: a base64 text as long as a hexadecimal one is
    /// padded.
    ///
    /// # Errors
    /// [`DigestError::Malformed`].
    pub fn from_text(algorithm: Algorithm, text: &str) -> Result<Self, DigestError> {
        let hexadecimal = (text.len() == 2 * algorithm.value_len()).then(|| hex::decode(text).ok()).flatten();
        let bytes = hexadecimal.or_else(|| BASE64.decode(text).ok());
        Self::new(algorithm, bytes.ok_or(DigestError::Malformed(algorithm))?)
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the bytes of the value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the value in hexadecimal.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.value)
    }

    /// Returns the value in base64.
    pub fn to_base64(&self) -> String {
        BASE64.encode(&self.value)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (algorithm, value) = text.split_once(':').ok_or(DigestError::NoAlgorithm)?;
        Self::from_text(algorithm.parse()?, value)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Computes several digests over bytes that come in order.
#[derive(Default)]
pub struct Hasher(Vec<State>);

enum State {
    Blake3(Box<blake3::Hasher>),
    Sha256(Sha256),
    Sha512(Sha512),
    Md5(Md5),
    Crc32c(crc_fast::Digest),
    Adler32(simd_adler32::Adler32),
}

impl Hasher {
    /// Begins to compute these algorithms, each once however often it is named.
    pub fn new(algorithms: impl IntoIterator<Item = Algorithm>) -> Self {
        let mut wanted: Vec<_> = algorithms.into_iter().collect();
        wanted.sort_unstable();
        wanted.dedup();
        Self(
            wanted
                .into_iter()
                .map(|algorithm| match algorithm {
                    Algorithm::Blake3 => State::Blake3(Box::default()),
                    Algorithm::Sha256 => State::Sha256(Sha256::new()),
                    Algorithm::Sha512 => State::Sha512(Sha512::new()),
                    Algorithm::Md5 => State::Md5(Md5::new()),
                    Algorithm::Crc32c => {
                        State::Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
                    }
                    Algorithm::Adler32 => State::Adler32(simd_adler32::Adler32::new()),
                })
                .collect(),
        )
    }

    /// Tells whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for state in &mut self.0 {
            match state {
                State::Blake3(hasher) => drop(hasher.update(bytes)),
                State::Sha256(hasher) => hasher.update(bytes),
                State::Sha512(hasher) => hasher.update(bytes),
                State::Md5(hasher) => hasher.update(bytes),
                State::Crc32c(hasher) => hasher.update(bytes),
                State::Adler32(hasher) => hasher.write(bytes),
            }
        }
    }

    /// Returns the digests of all bytes taken, in the order of [`Algorithm`].
    pub fn finish(self) -> Vec<Digest> {
        self.0
            .into_iter()
            .map(|state| match state {
                State::Blake3(hasher) => (Algorithm::Blake3, hasher.finalize().as_bytes().to_vec()),
                State::Sha256(hasher) => (Algorithm::Sha256, hasher.finalize().to_vec()),
                State::Sha512(hasher) => (Algorithm::Sha512, hasher.finalize().to_vec()),
                State::Md5(hasher) => (Algorithm::Md5, hasher.finalize().to_vec()),
                State::Crc32c(hasher) => {
                    (Algorithm::Crc32c, (hasher.finalize() as u32).to_be_bytes().to_vec())
                }
                State::Adler32(hasher) => (Algorithm::Adler32, hasher.finish().to_be_bytes().to_vec()),
            })
            .map(|(algorithm, value)| Digest { algorithm, value })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Check values: "123456789" of the CRC catalogue and of RFC 1950's adler32, "abc" of FIPS 180-4 and RFC 1321.
    #[test]
    fn known_values() {
        let of = |algorithm, bytes: &[u8]| {
            let mut hasher = Hasher::new([algorithm]);
            hasher.update(bytes);
            hasher.finish()[0].to_hex()
        };
        assert_eq!(of(Algorithm::Crc32c, b"123456789"), "e3069283");
        assert_eq!(of(Algorithm::Adler32, b"123456789"), "091e01de");
        assert_eq!(of(Algorithm::Md5, b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            of(Algorithm::Sha256, b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(of(Algorithm::Blake3, b""), blake3::hash(b"").to_hex().as_str());
    }

    #[test]
    fn names_are_read_as_clients_write_them() {
        for name in ["sha256", "SHA-256", "sha-256", "Sha256"] {
            assert_eq!(name.parse(), Ok(Algorithm::Sha256));
        }
        assert!("rot13".parse::<Algorithm>().is_err());
        assert!("sha-256:00".parse::<Digest>().is_err());
    }

    proptest! {
        #[test]
        fn pieces_and_encodings_do_not_matter(bytes in prop::collection::vec(any::<u8>(), 0..4000), cut in 0usize..4000) {
            let mut whole = Hasher::new(Algorithm::ALL);
            whole.update(&bytes);
            let mut pieces = Hasher::new(Algorithm::ALL);
            let (left, right) = bytes.split_at(cut.min(bytes.len()));
            pieces.update(left);
            pieces.update(right);
            let digests = whole.finish();
            prop_assert_eq!(&digests, &pieces.finish());
            for digest in digests {
                prop_assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest.clone());
                prop_assert_eq!(Digest::from_text(digest.algorithm(), &digest.to_base64()).unwrap(), digest);
            }
        }
    }
}
