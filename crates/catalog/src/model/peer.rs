//! The roster: sites of the fabric.

use percale_core::Timestamp;
use percale_core::ids::SiteId;

use super::words;

words!(
    /// What a site takes part in.
    PeerState {
        /// All.
        Active = "active",
        /// It is a member, but its stores take nothing new.
        Drained = "drained",
        /// Nothing, for ever: its id does not come back.
        Removed = "removed",
    }
);

/// A site of the fabric, as the roster knows it (docs/design/trust.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: SiteId,
    /// Its name, unique among those that were not removed.
    pub name: String,
    /// Its public key.
    pub key: [u8; 32],
    /// The key before that one, and until when it is accepted.
    pub old_key: Option<([u8; 32], Timestamp)>,
    /// The announcement of the key, signed by the site, for those that have not heard of it.
    pub key_change: Option<String>,
    /// Whether the key is accepted at this site. One that took the place of a stolen one is not until an administrator
    /// says so. Each site has its own answer.
    pub is_confirmed: bool,
    /// Where it can be reached.
    pub urls: Vec<String>,
    /// Whether it can be dialled at all.
    pub is_dialable: bool,
    /// The issuers it vouches for besides its own.
    pub issuers: Vec<String>,
    /// What it takes part in.
    pub state: PeerState,
    /// When this was changed: with `changed_by` the version, of which the greater one wins.
    pub changed: Timestamp,
    /// The site where it was changed.
    pub changed_by: SiteId,
}

/// A step from one key of a site to the next, which was proved to whoever calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStep {
    /// The site.
    pub site: SiteId,
    /// The key that it must have here, or the step is not taken.
    pub from: [u8; 32],
    /// The key that it has.
    pub to: [u8; 32],
    /// Until when `from` is accepted; nothing if it is not any more.
    pub old_until: Option<Timestamp>,
    /// The announcement.
    pub change: Option<String>,
    /// Whether the new key is accepted, if the one before was.
    pub is_confirmed: bool,
}

/// What becomes of the tokens that this site issued with a key that it has no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTokens {
    /// They stay good until then.
    Until(Timestamp),
    /// They are void, and so are those of all keys before.
    Void,
}

impl Peer {
    /// Tells whether this takes the place of what is known of the same site. Removal is final, whatever the versions:
    /// sites that hear of a removal and of another change in different orders must come to the same.
    pub fn supersedes(&self, known: &Peer) -> bool {
        let rank = |peer: &Peer| (peer.state == PeerState::Removed, peer.changed, peer.changed_by);
        rank(self) > rank(known)
    }
}
