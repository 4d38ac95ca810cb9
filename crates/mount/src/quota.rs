//! How much room there is for what programs write: on the store that it goes to, and in the space.

use std::time::{Duration, Instant};

use fuser::Errno;

use crate::error::from_rustix;
use crate::names::{NodeId, SpaceNumber};
use crate::state::{Shared, State};

/// How long what the site said of a space is believed. Programs that walk a tree ask for the room in each directory.
const BELIEF: Duration = Duration::from_secs(2);
/// How long the site may take to say it. Then the room on the store is all that is told.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long nothing is made in a space after a file was too much for it.
const FULL: Duration = Duration::from_secs(5);

/// What is known of the quota of a space.
#[derive(Debug, Default)]
pub struct Quota {
    /// When the site was asked, and the quota and what is used of it, if there is one.
    known: Option<(Instant, Option<(u64, u64)>)>,
    /// When the site refused a file, since the space would have had more than it may.
    refused: Option<Instant>,
}

impl Shared {
    /// Returns how much room there is for what is written below a node: all and free, in bytes. In a space with a quota it is what
    /// that leaves, if the store has as much.
    ///
    /// # Errors
    /// What the file system of the store answers.
    pub async fn room(&self, node: NodeId) -> Result<(u64, u64), Errno> {
        let (all, free) = self.session.room().map_err(from_rustix)?;
        let space = self.state().names.get(node).and_then(|node| node.space);
        Ok(match self.quota(space).await {
            Some((quota, used)) => (quota, quota.saturating_sub(used).min(free)),
            None => (all, free),
        })
    }

    async fn quota(&self, number: Option<SpaceNumber>) -> Option<(u64, u64)> {
        let at = usize::from(number?.0);
        let (name, known) = {
            let state = self.state();
            let space = state.spaces.get(at)?;
            (space.name.clone(), space.quota.known)
        };
        match known {
            Some((asked, quota)) if asked.elapsed() < BELIEF => return quota,
            _ => {}
        }
        let asked = tokio::time::timeout(PATIENCE, self.session.client.space(&name)).await;
        let quota = match asked {
            Ok(Ok(space)) => space.quota.map(|quota| (quota, space.used)),
            Ok(Err(error)) => {
                tracing::debug!(space = %name, %error, "what room a space has is not known now");
                known.and_then(|(_, quota)| quota)
            }
            Err(_) => known.and_then(|(_, quota)| quota),
        };
        if let Some(space) = self.state().spaces.get_mut(at) {
            space.quota.known = Some((Instant::now(), quota));
        }
        quota
    }

    /// Notes that a file was too much for the space that it is in.
    pub fn over_quota(&self, state: &mut State, node: NodeId) {
        let space = state.names.get(node).and_then(|node| node.space);
        if let Some(space) = space.and_then(|space| state.spaces.get_mut(usize::from(space.0))) {
            space.quota.refused = Some(Instant::now());
        }
    }

    /// Fails if a file was too much for a space a moment ago: what is published behind a program's back could not tell it.
    pub fn may_grow(&self, state: &State, space: SpaceNumber) -> Result<(), Errno> {
        let refused = state.spaces.get(usize::from(space.0)).and_then(|space| space.quota.refused);
        match refused {
            Some(refused) if refused.elapsed() < FULL => Err(Errno::EDQUOT),
            _ => Ok(()),
        }
    }
}
