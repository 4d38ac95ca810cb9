//! Frames beside TLS, between two sites that want integrity only (`docs/design/transfers.md`).
//!
//! Whoever wants frames makes an [`Offer`] in its request, which travels within TLS, and at the same time opens a connection
//! without TLS to the same address: [`HELLO`], then the offer's id. On a connection that was used before, the id alone.

use std::fmt;
use std::str::FromStr;

/// The first bytes of a connection without TLS. A TLS connection begins with 0x16.
pub const HELLO: &[u8; 8] = b"PCPLAIN1";
/// Bytes of an id.
pub const ID_LEN: usize = 16;
/// Bytes of a secret.
pub const SECRET_LEN: usize = 32;

/// What a request offers: that the answer's frames come on the connection that shows the id, authenticated with a key made of the
/// secret. Both are of one stream.
#[derive(Clone, PartialEq, Eq)]
pub struct Offer {
    /// Shown without encryption.
    pub id: [u8; ID_LEN],
    /// Never shown without encryption.
    pub secret: [u8; SECRET_LEN],
}

/// A text that is no offer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 and 64 hexadecimal digits with a dot between them")]
pub struct OfferTextError;

impl Offer {
    /// Returns the text that a request carries. Not for logs.
    pub fn to_text(&self) -> String {
        format!("{}.{}", hex::encode(self.id), hex::encode(self.secret))
    }
}

impl FromStr for Offer {
    type Err = OfferTextError;

    fn from_str(text: &str) -> Result<Self, OfferTextError> {
        let (mut id, mut secret) = ([0; ID_LEN], [0; SECRET_LEN]);
        let (left, right) = text.split_once('.').ok_or(OfferTextError)?;
        hex::decode_to_slice(left, &mut id).map_err(|_| OfferTextError)?;
        hex::decode_to_slice(right, &mut secret).map_err(|_| OfferTextError)?;
        Ok(Self { id, secret })
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("id", &hex::encode(self.id)).finish_non_exhaustive()
    }
}

/// What became of an offer. A site of an older release does not answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The frames come on the other connection; the answer has no body.
    Yes,
    /// The site has not agreed on this with the one that asks. The frames are in the answer.
    NotAgreed,
    /// The other connection did not come in time. The frames are in the answer.
    Late,
}

impl Taken {
    /// Returns the text that an answer carries.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::NotAgreed => "not-agreed",
            Self::Late => "late",
        }
    }

    /// Reads that text.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Yes, Self::NotAgreed, Self::Late].into_iter().find(|taken| taken.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_written_and_never_shown() {
        let offer = Offer { id: [1; 16], secret: [0xab; 32] };
        let text = offer.to_text();
        assert_eq!(text.len(), 97);
        assert_eq!(text.parse(), Ok(offer.clone()));
        assert!(!format!("{offer:?}").contains("ab"), "{offer:?}");
        for wrong in ["", ".", &text[1..], &text[..96], &text.replace('.', "0"), &format!("{text}0")] {
            assert_eq!(wrong.parse::<Offer>(), Err(OfferTextError), "{wrong}");
        }
    }

    #[test]
    fn what_became_of_an_offer_is_read_as_it_was_written() {
        for taken in [Taken::Yes, Taken::NotAgreed, Taken::Late] {
            assert_eq!(Taken::parse(taken.as_str()), Some(taken));
        }
        assert_eq!(Taken::parse("maybe"), None);
    }
}
