//! Changes of names that a task makes, by the home of their space.

use std::sync::Arc;

use percale_api::tasks::Looks;
use percale_catalog::Content;
use percale_client::Client;
use percale_core::ids::VersionId;
use percale_core::tree::RootHash;
use percale_core::{ErrorCode, LinkTarget, ObjectPath};
use percale_federation::Member;

use super::Attempt;
use crate::http::forward;
use crate::{ApiError, OnPath as _, Result};

/// Entries that are removed in one transaction.
const STEP: usize = 1000;

/// The home of the space of a path, on behalf of whom a task is for.
pub(super) struct Home<'a> {
    attempt: &'a Attempt,
    /// Nothing where that is this site.
    elsewhere: Option<(Arc<Member>, Client)>,
}

impl<'a> Home<'a> {
    /// Finds the home of the space that a path is in.
    ///
    /// # Errors
    /// `SiteUnavailable` if it is a site that cannot be reached.
    pub async fn of(attempt: &'a Attempt, path: &ObjectPath) -> Result<Self> {
        let name = path.space().ok_or_else(|| ApiError::invalid(format!("{path} is in no space")))?;
        let elsewhere = match forward::home_of(&attempt.app, &name).await? {
            Some(site) => {
                let client = attempt.app.fabric.client(site.id, &attempt.acting)?;
                Some((site, client))
            }
            None => None,
        };
        Ok(Self { attempt, elsewhere })
    }

    /// Makes a collection, which may be there already, and those above it.
    ///
    /// # Errors
    /// Those of the home.
    pub async fn make_collection(&self, path: &ObjectPath) -> Result<()> {
        match &self.elsewhere {
            None => {
                let caller = &self.attempt.task.caller;
                self.attempt.app.catalog.create_collection(caller, path, true).await.on_path(path).map(drop)
            }
            Some((site, client)) => {
                client.make_collection(path, true).await.map(drop).map_err(|error| told(site, error))
            }
        }
    }

    /// Makes a link, which may be there already.
    ///
    /// # Errors
    /// Those of the home.
    pub async fn make_link(&self, path: &ObjectPath, target: &LinkTarget) -> Result<()> {
        match &self.elsewhere {
            None => {
                let caller = &self.attempt.task.caller;
                self.attempt
                    .app
                    .catalog
                    .create_link(caller, path, target.clone())
                    .await
                    .on_path(path)
                    .map(drop)
            }
            Some((site, client)) => {
                client.make_link(path, target).await.map(drop).map_err(|error| told(site, error))
            }
        }
    }

    /// Removes an entry and all below it. What is not there is no error. A home elsewhere may go on with a large tree after
    /// it has answered.
    ///
    /// # Errors
    /// Those of the home.
    pub async fn remove(&self, path: &ObjectPath) -> Result<()> {
        let removed = match &self.elsewhere {
            None => loop {
                match self.attempt.app.catalog.remove_some(&self.attempt.task.caller, path, STEP).await {
                    Ok(removed) if removed.is_done => break Ok(()),
                    Ok(_) => {}
                    Err(error) => break Err(ApiError::from(error).with_path(path)),
                }
            },
            Some((site, client)) => client.remove(path, true, None).await.map_err(|error| told(site, error)),
        };
        match removed {
            Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns the version of an object there if it has this content now: a lost answer of ours may have made it.
    pub async fn has_now(&self, path: &ObjectPath, root: Option<RootHash>) -> Option<VersionId> {
        let there = match &self.elsewhere {
            None => {
                let entry = self.attempt.app.catalog.stat(&self.attempt.task.caller, path).await;
                entry.ok().and_then(|entry| entry.content).map(|content| (content.version, content.root))
            }
            Some((_, client)) => {
                let entry = client.stat(path).await;
                entry.ok().and_then(|entry| entry.content).map(|content| (content.version, content.root))
            }
        };
        there.filter(|(_, there)| there.is_some() && *there == root).map(|(version, _)| version)
    }
}

fn told(site: &Member, error: percale_client::Error) -> ApiError {
    ApiError::from(percale_federation::Error::from(error)).context(format!("site {}", site.name))
}

/// Returns what of a content is compared.
pub(super) fn looks(content: &Content) -> Looks {
    Looks { size: content.size.0, root: content.root, mtime: content.mtime }
}
