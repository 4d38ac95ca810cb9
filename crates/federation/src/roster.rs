//! The members of the fabric.
//!
//! The catalog keeps the roster; this is what of it every request needs, in memory. It is read again when it changes
//! here, and every few seconds, since another server of the site may have changed it.

use std::collections::HashMap;
use std::sync::Arc;

use percale_api::peer::{self, MemberState};
use percale_catalog::{KeyStep, Peer, PeerState};
use percale_core::ErrorCode;
use percale_core::Timestamp;
use percale_core::access::is_site_name;
use percale_core::ids::SiteId;
use percale_trust::signed::{MAX_DELEGATION_LIFE, OLD_KEY_LIFE};
use percale_trust::{KeyChange, SitePublicKey};

use crate::error::{Error, Result};

/// A member as it is known here.
pub type Member = Peer;

/// Most URLs of a member.
pub(crate) const MAX_URLS: usize = 16;
/// Longest URL.
const MAX_URL: usize = 2048;
/// Most issuers of a member.
const MAX_ISSUERS: usize = 64;
/// Longest announcement of a key; one has about 700 bytes.
const MAX_KEY_CHANGE: usize = 2048;
/// Most members that are taken from another site at once.
const MAX_MEMBERS: usize = 10_000;

/// The members, by id, name and key. Removed ones are known by id only.
#[derive(Debug, Default, Clone)]
pub struct Roster {
    members: HashMap<SiteId, Arc<Member>>,
    names: HashMap<String, SiteId>,
    keys: HashMap<[u8; 32], SiteId>,
    /// Keys of members that are refused until an administrator confirms theirs.
    unconfirmed: HashMap<[u8; 32], SiteId>,
}

impl Roster {
    /// Makes a roster of what the catalog keeps.
    pub fn new(members: Vec<Member>, now: Timestamp) -> Self {
        let mut roster = Self::default();
        for member in members {
            if member.state != PeerState::Removed {
                roster.names.insert(member.name.clone(), member.id);
                for SitePublicKey(key) in keys_of(&member, now) {
                    roster.keys.insert(key, member.id);
                }
                if !member.is_confirmed {
                    roster.unconfirmed.insert(member.key, member.id);
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

    /// Returns the member that has this key and is refused, since no administrator has confirmed it.
    pub fn with_unconfirmed_key(&self, key: &SitePublicKey) -> Option<&Arc<Member>> {
        self.unconfirmed.get(&key.0).and_then(|id| self.get(*id))
    }

    /// Returns a member, also one that was removed.
    pub fn known(&self, id: SiteId) -> Option<&Arc<Member>> {
        self.members.get(&id)
    }

    /// Returns the members of which a key is accepted that `other` does not accept of them.
    pub(crate) fn with_other_keys_than(&self, other: &Roster) -> Vec<SiteId> {
        let is_other = |(key, id): &(&[u8; 32], &SiteId)| other.keys.get(*key) != Some(id);
        self.keys.iter().filter(is_other).map(|(_, id)| *id).collect()
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

/// Returns the keys by which a member is known now: none while its key is not confirmed.
pub fn keys_of(member: &Member, now: Timestamp) -> Vec<SitePublicKey> {
    if !member.is_confirmed {
        return Vec::new();
    }
    let old = member.old_key.filter(|(_, until)| now < *until).map(|(key, _)| SitePublicKey(key));
    std::iter::once(SitePublicKey(member.key)).chain(old).collect()
}

/// Returns the key before that of a member, and when it was changed, for as long as a delegation that was made before may
/// live: a task that runs for days goes on with the one that it holds.
pub fn key_of_old_delegations(member: &Member, now: Timestamp) -> Option<(SitePublicKey, Timestamp)> {
    let (key, until) = member.old_key.filter(|_| member.is_confirmed)?;
    let life = i64::try_from(OLD_KEY_LIFE.as_micros()).unwrap_or(i64::MAX);
    let changed = Timestamp::from_micros(until.as_micros().saturating_sub(life));
    (now < changed.after(MAX_DELEGATION_LIFE)).then_some((SitePublicKey(key), changed))
}

/// Returns the step from the key of a member that is known here to the one that it is said to have, if the announcement
/// proves it. The old key is accepted until 24 h after the change, and for 24 h at most, whatever the other clock says.
///
/// # Errors
/// Why it does not.
pub fn step(known: &Member, said: &Member, now: Timestamp) -> Result<KeyStep, String> {
    let text = said.key_change.as_ref().ok_or("there is no announcement of it")?;
    let known_key = SitePublicKey(known.key);
    let change = KeyChange::verify(text, known.id, &known_key).map_err(|error| error.to_string())?;
    if change.new.0 != said.key {
        return Err("the announcement is of another key".to_owned());
    }
    let is_followed = !change.is_revocation && known.is_confirmed;
    Ok(KeyStep {
        site: known.id,
        from: known.key,
        to: said.key,
        old_until: is_followed.then(|| change.at.min(now).after(OLD_KEY_LIFE)),
        change: Some(text.clone()),
        is_confirmed: !change.is_revocation,
    })
}

/// Returns what goes over the wire.
pub fn to_wire(member: &Member) -> peer::Member {
    peer::Member {
        id: member.id,
        name: member.name.clone(),
        key: hex::encode(member.key),
        old_key: member.old_key.map(|(key, _)| hex::encode(key)),
        old_key_until: member.old_key.map(|(_, until)| until),
        key_change: member.key_change.clone(),
        is_unconfirmed: !member.is_confirmed,
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
    if wire.key_change.as_ref().is_some_and(|text| text.len() > MAX_KEY_CHANGE) {
        return Err(wrong("the announcement of its key has more than 2048 bytes"));
    }
    let (new, now) = (key(&wire.key)?, Timestamp::now());
    // Only what the old key has signed says that it was this site's, and until when it counts.
    let old_key = match (&wire.old_key, &wire.key_change) {
        (Some(old), Some(text)) => KeyChange::verify(text, wire.id, &SitePublicKey(key(old)?))
            .ok()
            .filter(|change| change.new.0 == new && !change.is_revocation)
            .map(|change| (change.old.0, change.at.min(now).after(OLD_KEY_LIFE))),
        _ => None,
    };
    Ok(Member {
        id: wire.id,
        key: new,
        old_key,
        key_change: wire.key_change,
        is_confirmed: !wire.is_unconfirmed,
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

    use std::time::Duration;

    use percale_trust::SiteKey;

    use super::*;

    fn member(name: &str, key: u8) -> Member {
        let id = SiteId::new();
        Member {
            id,
            name: name.into(),
            key: [key; 32],
            old_key: None,
            key_change: None,
            is_confirmed: true,
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
        refuse(&|wire| wire.key_change = Some("a".repeat(2049)));
    }

    /// A member with a key of its own, and a folder for it.
    fn with_key(name: &str) -> (Member, SiteKey, tempfile::TempDir) {
        let state = tempfile::tempdir().unwrap();
        let key = SiteKey::load_or_create(state.path()).unwrap();
        (Member { key: key.public().0, ..member(name, 0) }, key, state)
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_step_is_taken_from_the_known_key_alone_and_the_old_one_counts_for_a_day() {
        let (known, key, state) = with_key("alps");
        let next = SiteKey::prepare_next(state.path()).unwrap();
        let now = Timestamp::now();
        let said = |key_change: Option<String>| Member { key: next.public().0, key_change, ..known.clone() };
        let announced = |at| said(Some(KeyChange::sign(&key, known.id, &next, at).unwrap()));
        let taken = step(&known, &announced(now), now).unwrap();
        assert_eq!((taken.from, taken.to, taken.is_confirmed), (known.key, next.public().0, true));
        assert_eq!(taken.old_until, Some(now.after(OLD_KEY_LIFE)));
        // Late news, and a clock that is ahead.
        assert_eq!(
            step(&known, &announced(days_before(now, 3)), now).unwrap().old_until,
            Some(days_before(now, 2))
        );
        let ahead = step(&known, &announced(now.after(99 * HOUR)), now).unwrap();
        assert_eq!(ahead.old_until, Some(now.after(OLD_KEY_LIFE)));

        step(&known, &said(None), now).unwrap_err();
        let another = Member { key: [9; 32], ..announced(now) };
        step(&known, &another, now).unwrap_err();
        let missed = Member { key: [9; 32], ..known.clone() };
        step(&missed, &announced(now), now).unwrap_err();
        let elsewhere = Member { id: SiteId::new(), ..known.clone() };
        step(&elsewhere, &announced(now), now).unwrap_err();

        let revoked = said(Some(KeyChange::revoke(&key, known.id, &next, now).unwrap()));
        let taken = step(&known, &revoked, now).unwrap();
        assert_eq!((taken.old_until, taken.is_confirmed), (None, false));
        let refused = Member { is_confirmed: false, ..known.clone() };
        assert_eq!(step(&refused, &announced(now), now).unwrap().old_until, None);
    }

    fn days_before(now: Timestamp, days: i64) -> Timestamp {
        Timestamp::from_micros(now.as_micros() - days * 24 * 3600 * 1_000_000)
    }

    #[test]
    fn an_old_key_goes_over_the_wire_only_with_its_own_word() {
        let (mut alps, key, state) = with_key("alps");
        let next = SiteKey::prepare_next(state.path()).unwrap();
        let now = Timestamp::now();
        alps.key_change = Some(KeyChange::sign(&key, alps.id, &next, now).unwrap());
        alps.old_key = Some((alps.key, now.after(OLD_KEY_LIFE)));
        alps.key = next.public().0;
        assert_eq!(from_wire(to_wire(&alps)).unwrap(), alps);
        let old_key = |change: &dyn Fn(&mut peer::Member)| {
            let mut wire = to_wire(&alps);
            change(&mut wire);
            from_wire(wire).unwrap().old_key
        };
        assert_eq!(old_key(&|wire| wire.old_key_until = Some(now.after(999 * HOUR))), alps.old_key);
        assert_eq!(old_key(&|wire| wire.old_key = Some(hex::encode([4; 32]))), None);
        assert_eq!(old_key(&|wire| wire.key_change = None), None);
        assert_eq!(old_key(&|wire| wire.key = hex::encode([4; 32])), None);
        assert_eq!(old_key(&|wire| wire.id = SiteId::new()), None);
    }

    #[test]
    fn keys_count_until_their_time_is_over_and_old_delegations_longer() {
        let now = Timestamp::now();
        let mut alps = member("alps", 1);
        let (new, old) = (SitePublicKey([1; 32]), SitePublicKey([4; 32]));
        alps.old_key = Some(([4; 32], now.after(HOUR)));
        assert_eq!(keys_of(&alps, now), [new, old]);
        assert_eq!(keys_of(&alps, now.after(HOUR)), [new]);
        let (key, changed) = key_of_old_delegations(&alps, now.after(20 * 24 * HOUR)).unwrap();
        assert_eq!((key, changed.after(OLD_KEY_LIFE)), (old, now.after(HOUR)));
        assert!(key_of_old_delegations(&alps, now.after(31 * 24 * HOUR)).is_none());

        let before = Roster::new(vec![alps.clone()], now);
        let later = Roster::new(vec![alps.clone()], now.after(HOUR));
        assert_eq!(before.with_other_keys_than(&later), [alps.id]);
        assert!(later.with_other_keys_than(&before).is_empty());
        alps.is_confirmed = false;
        assert!(keys_of(&alps, now).is_empty() && key_of_old_delegations(&alps, now).is_none());
        let roster = Roster::new(vec![alps.clone()], now);
        assert!(roster.with_key(&new).is_none() && roster.with_key(&old).is_none());
        assert_eq!(roster.with_unconfirmed_key(&new).unwrap().id, alps.id);
        assert!(roster.with_unconfirmed_key(&old).is_none());
    }
}
