//! The members of the fabric.
//!
//! The catalog keeps the roster; this is what of it every request needs, in memory. It is read again when it changes
//! here, and every few seconds, since another server of the site may have changed it.

use std::collections::HashMap;
use std::sync::Arc;

use percale_api::peer::{self, MemberState};
use percale_catalog::{Peer, PeerState};
use percale_core::ErrorCode;
use percale_core::Timestamp;
use percale_core::access::is_site_name;
use percale_core::ids::SiteId;
use percale_trust::SitePublicKey;

use crate::error::{Error, Result};

/// A member as it is known here.
pub type Member = Peer;

/// Most URLs of a member.
pub(crate) const MAX_URLS: usize = 16;
/// Longest URL.
const MAX_URL: usize = 2048;
/// Most issuers of a member.
const MAX_ISSUERS: usize = 64;
/// Most members that are taken from another site at once.
const MAX_MEMBERS: usize = 10_000;

/// The members, by id, name and key. Removed ones are known by id only.
#[derive(Debug, Default, Clone)]
pub struct Roster {
    members: HashMap<SiteId, Arc<Member>>,
    names: HashMap<String, SiteId>,
    keys: HashMap<[u8; 32], SiteId>,
}

impl Roster {
    /// Makes a roster of what the catalog keeps.
    pub fn new(members: Vec<Member>, now: Timestamp) -> Self {
        let mut roster = Self::default();
        for member in members {
            if member.state != PeerState::Removed {
                roster.names.insert(member.name.clone(), member.id);
                roster.keys.insert(member.key, member.id);
                if let Some((key, until)) = member.old_key
                    && now < until
                {
                    roster.keys.insert(key, member.id);
                }
            }
            roster.members.insert(member.id, Arc::new(member));
        }
        roster
    }

    /// Returns a member that takes part.
    pub fn get(&self, id: SiteId) -> Option<&Arc<Member>> {
        self.members.get(&id).filter(|member| member.state != PeerState::Removed)
    }

    /// Returns a member that takes part, by name.
    pub fn named(&self, name: &str) -> Option<&Arc<Member>> {
        self.names.get(name).and_then(|id| self.get(*id))
    }

    /// Returns the member whose key this is.
    pub fn with_key(&self, key: &SitePublicKey) -> Option<&Arc<Member>> {
        self.keys.get(&key.0).and_then(|id| self.get(*id))
    }

    /// Returns all that take part.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values().filter(|member| member.state != PeerState::Removed)
    }

    /// Returns all, also those that were removed.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// Returns what goes to other sites.
    pub fn to_wire(&self) -> peer::Roster {
        let mut members: Vec<_> = self.members.values().map(|member| to_wire(member)).collect();
        members.sort_by_key(|member| member.id);
        peer::Roster { members }
    }
}

/// Returns the keys by which a member is known now.
pub fn keys_of(member: &Member, now: Timestamp) -> Vec<SitePublicKey> {
    let old = member.old_key.filter(|(_, until)| now < *until).map(|(key, _)| SitePublicKey(key));
    std::iter::once(SitePublicKey(member.key)).chain(old).collect()
}

/// Returns what goes over the wire.
pub fn to_wire(member: &Member) -> peer::Member {
    peer::Member {
        id: member.id,
        name: member.name.clone(),
        key: hex::encode(member.key),
        old_key: member.old_key.map(|(key, _)| hex::encode(key)),
        old_key_until: member.old_key.map(|(_, until)| until),
        urls: member.urls.clone(),
        is_dialable: member.is_dialable,
        issuers: member.issuers.clone(),
        state: match member.state {
            PeerState::Active => MemberState::Active,
            PeerState::Drained => MemberState::Drained,
            PeerState::Removed => MemberState::Removed,
        },
        changed: member.changed,
        changed_by: member.changed_by,
    }
}

/// Checks what another site says of a member.
///
/// # Errors
/// `invalid_request`, naming the limit.
pub fn from_wire(wire: peer::Member) -> Result<Member> {
    let wrong = |what: &str| {
        let name: String = wire.name.chars().take(80).collect();
        Error::new(ErrorCode::InvalidRequest, format!("cannot take the member '{name}': {what}"))
    };
    let key = |text: &str| {
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).map(|()| key).map_err(|_| wrong("its key is not 64 digits"))
    };
    if !is_site_name(&wire.name) {
        return Err(wrong("its name must have 1 to 63 of a-z, 0-9, '.', '_' and '-'"));
    }
    if wire.urls.len() > MAX_URLS || wire.urls.iter().any(|url| url.len() > MAX_URL || !is_url(url)) {
        return Err(wrong("it has more than 16 URLs, or one that is not https or too long"));
    }
    if wire.issuers.len() > MAX_ISSUERS || wire.issuers.iter().any(|issuer| !is_url(issuer)) {
        return Err(wrong("it has more than 64 issuers, or one that is not an https URL"));
    }
    // A clock that is far ahead would make a change that nobody can follow.
    if wire.changed > Timestamp::now().after(std::time::Duration::from_secs(3600)) {
        return Err(wrong("it was changed in the future"));
    }
    let old_key = match (&wire.old_key, wire.old_key_until) {
        (Some(old), Some(until)) => Some((key(old)?, until)),
        _ => None,
    };
    Ok(Member {
        id: wire.id,
        key: key(&wire.key)?,
        old_key,
        is_dialable: wire.is_dialable && !wire.urls.is_empty(),
        state: match wire.state {
            MemberState::Active => PeerState::Active,
            MemberState::Drained => PeerState::Drained,
            MemberState::Removed => PeerState::Removed,
        },
        changed: wire.changed,
        changed_by: wire.changed_by,
        name: wire.name,
        urls: wire.urls,
        // Issuers are assigned by administrators, which none can do yet; no site assigns them to itself.
        issuers: Vec::new(),
    })
}

/// Checks a whole roster.
///
/// # Errors
/// As [`from_wire`].
pub fn all_from_wire(roster: peer::Roster) -> Result<Vec<Member>> {
    if roster.members.len() > MAX_MEMBERS {
        let detail = format!("a roster has at most {MAX_MEMBERS} members");
        return Err(Error::new(ErrorCode::InvalidRequest, detail));
    }
    roster.members.into_iter().map(from_wire).collect()
}

fn is_url(text: &str) -> bool {
    text.len() <= MAX_URL
        && text.strip_prefix("https://").is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"')
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

    use super::*;

    fn member(name: &str, key: u8) -> Member {
        let id = SiteId::new();
        Member {
            id,
            name: name.into(),
            key: [key; 32],
            old_key: None,
            urls: vec!["https://127.0.0.1:1".into()],
            is_dialable: true,
            issuers: Vec::new(),
            state: PeerState::Active,
            changed: Timestamp::now(),
            changed_by: id,
        }
    }

    #[test]
    fn removed_members_and_old_keys_that_ended_are_not_found() {
        let now = Timestamp::now();
        let (alps, mut baltic, mut coast) = (member("alps", 1), member("baltic", 2), member("coast", 3));
        baltic.state = PeerState::Removed;
        coast.old_key = Some(([4; 32], now));
        let roster = Roster::new(vec![alps.clone(), baltic.clone(), coast], now);
        assert_eq!(roster.named("alps").unwrap().id, alps.id);
        assert!(roster.get(baltic.id).is_none() && roster.named("baltic").is_none());
        assert!(roster.with_key(&SitePublicKey([2; 32])).is_none());
        assert!(roster.with_key(&SitePublicKey([4; 32])).is_none(), "its time is over");
        assert_eq!(roster.all().count(), 3);
    }

    #[test]
    fn members_round_trip_and_junk_is_refused() {
        let good = member("alps", 7);
        assert_eq!(from_wire(to_wire(&good)).unwrap(), good);
        let refuse = |change: &dyn Fn(&mut peer::Member)| {
            let mut wire = to_wire(&good);
            change(&mut wire);
            assert_eq!(from_wire(wire).unwrap_err().code(), ErrorCode::InvalidRequest);
        };
        refuse(&|wire| wire.key = "12".into());
        refuse(&|wire| wire.name = "Alps\n".into());
        refuse(&|wire| wire.urls = vec!["http://plain".into()]);
        refuse(&|wire| wire.urls = vec!["https://a".into(); 17]);
        refuse(&|wire| wire.changed = Timestamp::now().after(std::time::Duration::from_secs(7200)));
        refuse(&|wire| wire.issuers = vec!["local".into()]);
    }
}
