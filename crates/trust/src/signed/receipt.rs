//! What a site signs below a receipt of a task: that these lines are what its task did.

use percale_core::Timestamp;
use percale_core::ids::{SiteId, TaskId};
use percale_core::tree::RootHash;
use serde::{Deserialize, Serialize};

use super::envelope::{self, Life};
use super::{Signatory, SignedError};
use crate::{Error, SiteKey};

const TYPE: &str = "percale-receipt+jwt";
const WHAT: &str = "receipt";

/// A site's word that a receipt is its own. It does not end: who wants to know whether the key is still the site's asks the
/// roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptSeal {
    /// The site where the task ran.
    pub site: SiteId,
    /// The task.
    pub task: TaskId,
    /// How many lines there are before the seal.
    pub lines: u64,
    /// The BLAKE3 of these lines, with the line feed of each.
    pub digest: RootHash,
    /// When it was signed, in whole seconds.
    pub signed: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: SiteId,
    task: TaskId,
    lines: u64,
    blake3: RootHash,
    iat: i64,
}

impl ReceiptSeal {
    /// Signs it.
    ///
    /// # Errors
    /// None that can be met; those of the encoding.
    pub fn sign(&self, key: &SiteKey) -> Result<String, Error> {
        let iat = Life::new(self.signed, self.signed).issued;
        let claims = Claims { iss: self.site, task: self.task, lines: self.lines, blake3: self.digest, iat };
        envelope::seal(WHAT, TYPE, &claims, key)
    }

    /// Checks that a text is a seal by the site, with one of its keys, and returns what it says.
    ///
    /// # Errors
    /// [`SignedError`].
    pub fn verify(text: &str, signatory: &Signatory<'_>) -> Result<Self, SignedError> {
        let Claims { iss, task, lines, blake3, iat } = envelope::open(text, TYPE, signatory)?;
        if iss != signatory.site {
            return Err(SignedError::WrongIssuer);
        }
        let signed = Life { issued: iat, expires: iat }.issued();
        Ok(Self { site: iss, task, lines, digest: blake3, signed })
    }
}
