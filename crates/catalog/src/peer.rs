//! The roster of the fabric, and invitations into it (docs/design/trust.md).

use std::collections::HashMap;

use percale_core::Timestamp;
use percale_core::access::Caller;
use percale_core::ids::SiteId;

use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Peer, PeerState};
use crate::rows::publish::actor;
use crate::rows::{peer, site};

/// Sites of the fabric. These calls take no caller: the server lets only administrators and members make them.
impl Catalog {
    /// Returns the roster, by id, with the sites that were removed.
    pub async fn peers(&self) -> Result<Vec<Peer>> {
        self.ask(ListPeers).await
    }

    /// Takes what another site or an administrator knows of sites, and returns those that changed here
    /// ([`Peer::supersedes`]).
    ///
    /// # Errors
    /// `AlreadyExists` if two sites that were not removed would have one name; then nothing is changed.
    pub async fn merge_peers(&self, peers: Vec<Peer>) -> Result<Vec<Peer>> {
        self.change(MergePeers(peers)).await
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
        let mut after: HashMap<SiteId, &Peer> = known.iter().map(|peer| (peer.id, peer)).collect();
        for peer in &self.0 {
            if after.get(&peer.id).is_none_or(|known| peer.supersedes(known)) {
                after.insert(peer.id, peer);
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
        let before: HashMap<SiteId, &Peer> = known.iter().map(|peer| (peer.id, peer)).collect();
        let is_news = |peer: &&Peer| before.get(&peer.id) != Some(peer);
        let mut changed: Vec<Peer> = after.into_values().filter(is_news).cloned().collect();
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
