//! The roster of the fabric, and invitations into it (docs/design/trust.md).

use std::collections::HashMap;

use percale_core::Timestamp;
use percale_core::access::Caller;
use percale_core::ids::SiteId;

use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{KeyStep, OldTokens, Peer, PeerState};
use crate::rows::publish::actor;
use crate::rows::{peer, site};

/// Sites of the fabric. These calls take no caller: the server lets only administrators and members make them.
impl Catalog {
    /// Returns the roster, by id, with the sites that were removed.
    pub async fn peers(&self) -> Result<Vec<Peer>> {
        self.ask(ListPeers).await
    }

    /// Takes what another site or an administrator knows of sites, and returns those that changed here
    /// ([`Peer::supersedes`]). What says that a known site has another key is left out: keys change by
    /// [`Catalog::change_key`] alone, and what is known of them stays.
    ///
    /// # Errors
    /// `AlreadyExists` if two sites that were not removed would have one name or one key; then nothing is changed.
    pub async fn merge_peers(&self, peers: Vec<Peer>) -> Result<Vec<Peer>> {
        self.change(MergePeers(peers)).await
    }

    /// Takes a step from one key of a site to the next; of this site's own with what becomes of its tokens. Returns whether
    /// it was taken: not if the site has another key than that from which the step goes.
    ///
    /// # Errors
    /// `AlreadyExists` if another site has the key.
    pub async fn change_key(&self, step: KeyStep, tokens: Option<OldTokens>) -> Result<bool> {
        self.change(ChangeKey { step, tokens }).await
    }

    /// Accepts a key of a site, whatever was known before: an administrator has compared it. Returns the site as it is now.
    /// What is known of it besides gives way to what it says next.
    ///
    /// # Errors
    /// `NotFound` if there is no such site or it was removed; `AlreadyExists` if another site has the key.
    pub async fn confirm_key(&self, site: SiteId, key: [u8; 32]) -> Result<Peer> {
        self.change(ConfirmKey { site, key }).await
    }

    /// Returns the keys that this site had before and whose tokens are still good, and until when.
    pub async fn retired_keys(&self) -> Result<Vec<([u8; 32], Timestamp)>> {
        self.ask(RetiredKeys).await
    }

    /// Notes an invitation by the hash of its secret.
    pub async fn add_invitation(&self, hash: [u8; 32], made_by: &Caller, expires: Timestamp) -> Result<()> {
        self.change(AddInvitation { hash, made_by: actor(made_by), expires }).await
    }

    /// Uses an invitation up. The site that did so may do so again, since it may not have heard the answer.
    ///
    /// # Errors
    /// `InvalidRequest` if there is none, it has ended, or another site used it.
    pub async fn use_invitation(&self, hash: [u8; 32], by: SiteId) -> Result<()> {
        self.change(UseInvitation { hash, by }).await
    }

    /// Returns the hashes of the invitations that have not ended, also of used ones.
    pub async fn invitation_hashes(&self) -> Result<Vec<[u8; 32]>> {
        self.ask(Hashes).await
    }
}

struct ListPeers;

impl Query for ListPeers {
    type Out = Vec<Peer>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Peer>> {
        peer::peers(tx).await
    }
}

struct MergePeers(Vec<Peer>);

impl Change for MergePeers {
    type Draft = Vec<Peer>;
    type Out = Vec<Peer>;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Vec<Peer>> {
        peer::lock(batch.tx).await?;
        let known = peer::peers(batch.tx).await?;
        let mut after: HashMap<SiteId, Peer> = known.iter().map(|peer| (peer.id, peer.clone())).collect();
        for peer in &self.0 {
            match after.get(&peer.id) {
                None => {
                    after.insert(peer.id, peer.clone());
                }
                // Whoever removes a site may know it by another key.
                Some(known)
                    if peer.supersedes(known)
                        && (peer.key == known.key || peer.state == PeerState::Removed) =>
                {
                    let Peer { key, old_key, is_confirmed, .. } = *known;
                    let key_change = known.key_change.clone();
                    after.insert(peer.id, Peer { key, old_key, key_change, is_confirmed, ..peer.clone() });
                }
                Some(_) => {}
            }
        }
        let mut names: HashMap<String, SiteId> = HashMap::new();
        names.extend(site::site(batch.tx).await?.map(|site| (site.name, site.id)));
        for peer in after.values().filter(|peer| peer.state != PeerState::Removed) {
            let holder = *names.entry(peer.name.clone()).or_insert(peer.id);
            if holder != peer.id {
                let Peer { id, name, .. } = peer;
                let message = format!("there are two sites '{name}': {holder} and {id}");
                return Err(Error::new(ErrorKind::AlreadyExists { version: None }, message));
            }
        }
        for peer in after.values().filter(|peer| peer.state != PeerState::Removed) {
            check_key_is_free(after.values(), peer.id, &peer.key)?;
        }
        let before: HashMap<SiteId, &Peer> = known.iter().map(|peer| (peer.id, peer)).collect();
        let is_news = |peer: &Peer| before.get(&peer.id) != Some(&peer);
        let mut changed: Vec<Peer> = after.values().filter(|peer| is_news(peer)).cloned().collect();
        changed.sort_by_key(|peer| peer.id);
        for peer in &changed {
            peer::put(batch.tx, peer).await?;
        }
        Ok(changed)
    }

    fn finish(self, changed: Vec<Peer>, _written: &Written) -> Vec<Peer> {
        changed
    }
}

/// Whoever has the key of two sites would be both. An old key is looked at as well, whether its time is over or not.
fn check_key_is_free<'a>(
    peers: impl IntoIterator<Item = &'a Peer>,
    id: SiteId,
    key: &[u8; 32],
) -> Result<()> {
    let has_it = |peer: &&Peer| {
        let is_other = peer.id != id && peer.state != PeerState::Removed;
        is_other && (peer.key == *key || peer.old_key.is_some_and(|(old, _)| old == *key))
    };
    match peers.into_iter().find(has_it) {
        None => Ok(()),
        Some(holder) => {
            let message = format!("the key of site {id} is that of site '{}'", holder.name);
            Err(Error::new(ErrorKind::AlreadyExists { version: None }, message))
        }
    }
}

struct ChangeKey {
    step: KeyStep,
    tokens: Option<OldTokens>,
}

impl Change for ChangeKey {
    type Draft = bool;
    type Out = bool;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<bool> {
        peer::lock(batch.tx).await?;
        let KeyStep { site, from, to, old_until, change, is_confirmed } = &self.step;
        let known = peer::peers(batch.tx).await?;
        let Some(before) = known.iter().find(|peer| peer.id == *site && peer.key == *from) else {
            return Ok(false);
        };
        if before.state == PeerState::Removed {
            return Ok(false);
        }
        check_key_is_free(&known, *site, to)?;
        let after = Peer {
            key: *to,
            old_key: old_until.map(|until| (*from, until)),
            key_change: change.clone(),
            is_confirmed: before.is_confirmed && *is_confirmed,
            ..before.clone()
        };
        peer::put(batch.tx, &after).await?;
        match self.tokens {
            None => {}
            Some(OldTokens::Until(until)) => peer::retire_key(batch.tx, from, until).await?,
            Some(OldTokens::Void) => {
                peer::forget_retired_keys(batch.tx, Timestamp::from_micros(i64::MAX)).await?;
            }
        }
        Ok(true)
    }

    fn finish(self, is_taken: bool, _written: &Written) -> bool {
        is_taken
    }
}

struct ConfirmKey {
    site: SiteId,
    key: [u8; 32],
}

impl Change for ConfirmKey {
    type Draft = Peer;
    type Out = Peer;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Peer> {
        peer::lock(batch.tx).await?;
        let known = peer::peers(batch.tx).await?;
        let is_it = |peer: &&Peer| peer.id == self.site && peer.state != PeerState::Removed;
        let before = known.iter().find(is_it).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no site {} in this fabric", self.site))
        })?;
        check_key_is_free(&known, self.site, &self.key)?;
        let mut after = Peer { is_confirmed: true, ..before.clone() };
        if before.key != self.key {
            // Whoever has the key that was known may have said the rest, with a version of any time.
            (after.key, after.old_key, after.key_change) = (self.key, None, None);
            (after.changed, after.changed_by) = (Timestamp::EPOCH, self.site);
        }
        peer::put(batch.tx, &after).await?;
        Ok(after)
    }

    fn finish(self, peer: Peer, _written: &Written) -> Peer {
        peer
    }
}

struct RetiredKeys;

impl Query for RetiredKeys {
    type Out = Vec<([u8; 32], Timestamp)>;
    // Only a transaction knows what time it is.
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<([u8; 32], Timestamp)>> {
        peer::retired_keys(tx, tx.now()).await
    }
}

struct AddInvitation {
    hash: [u8; 32],
    made_by: String,
    expires: Timestamp,
}

impl Change for AddInvitation {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        if peer::invitation(batch.tx, &self.hash).await?.is_some() {
            let kind = ErrorKind::AlreadyExists { version: None };
            return Err(Error::new(kind, "there is an invitation with this secret already"));
        }
        peer::add_invitation(batch.tx, &self.hash, &self.made_by, self.expires).await
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct UseInvitation {
    hash: [u8; 32],
    by: SiteId,
}

impl Change for UseInvitation {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        match peer::invitation(batch.tx, &self.hash).await? {
            None => Err(Error::invalid("this site made no such invitation, or it ended long ago")),
            Some((expires, _)) if expires <= batch.now() => {
                Err(Error::invalid(format!("the invitation ended at {expires}: ask for a new one")))
            }
            Some((_, Some(used_by))) if used_by != self.by => {
                let message = format!("the invitation was used by site {used_by} already: ask for a new one");
                Err(Error::invalid(message))
            }
            Some((_, Some(_))) => Ok(()),
            Some((_, None)) => peer::use_invitation(batch.tx, &self.hash, self.by).await,
        }
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct Hashes;

impl Query for Hashes {
    type Out = Vec<[u8; 32]>;
    // Only a transaction knows what time it is.
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<[u8; 32]>> {
        peer::invitation_hashes(tx, tx.now()).await
    }
}
