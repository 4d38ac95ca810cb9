//! The calls of a mount: its session, what it lists, and what it changes.

use percale_api::Page;
use percale_api::entries::Entry;
use percale_api::mounts::{Mount, MountChange, MountChanges, MountResult, MountResults, NewMount};
use percale_api::{MAX_PAGE, fields};
use percale_core::access::Permission;
use percale_core::ids::LeaseId;
use percale_core::{ErrorCode, ObjectPath, Position};
use reqwest::Method;

use crate::answer::parse_json;
use crate::call::{Call, Repeat, encode_path};
use crate::client::Client;
use crate::error::{Error, ErrorKind};

/// A part of a collection as a mount sees it.
#[derive(Debug, Clone)]
pub struct Listing {
    /// Its entries, with their copies and where these lie.
    pub page: Page<Entry>,
    /// The journal when it was read.
    pub position: Option<Position>,
    /// What the caller may do with the collection.
    pub permission: Option<Permission>,
}

impl Client {
    /// Opens a session for a mount.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn open_mount(&self, host: &str) -> crate::Result<Mount> {
        let call =
            Call::new("open a mount", Method::POST, "/v1/mounts").json(&NewMount { host: host.to_owned() });
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Renews the session of a mount.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn renew_mount(&self, id: LeaseId) -> crate::Result<Mount> {
        let call = Call::new(format!("renew mount {id}"), Method::POST, format!("/v1/mounts/{id}"));
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Ends the session of a mount.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn end_mount(&self, id: LeaseId) -> crate::Result<()> {
        self.fetch(Call::new(format!("end mount {id}"), Method::DELETE, format!("/v1/mounts/{id}")))
            .await
            .map(drop)
    }

    /// Makes changes in their order; there is a result for each.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_by_mount(
        &self,
        id: LeaseId,
        changes: Vec<MountChange>,
    ) -> crate::Result<Vec<MountResult>> {
        let operation = "publish what a mount changed";
        let count = changes.len();
        let call = Call::new(operation, Method::POST, format!("/v1/mounts/{id}/changes"));
        let call = call.json(&MountChanges { changes }).repeat(Repeat::Keyed);
        let MountResults { results } = self.json(call).await?;
        if results.len() != count {
            let detail = format!("the site answered {} results for {count} changes", results.len());
            return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail));
        }
        Ok(results)
    }

    /// Lists a page of a collection for a mount.
    ///
    /// # Errors
    /// As the server answers; `precondition_failed` if the session is over.
    pub async fn list_by_mount(
        &self,
        id: LeaseId,
        path: &ObjectPath,
        cursor: Option<&str>,
    ) -> crate::Result<Listing> {
        let operation = format!("list {path}");
        let call = Call::new(&operation, Method::GET, encode_path("/v1/list", path))
            .query("limit", MAX_PAGE)
            .query("mount", id)
            .optional("cursor", cursor)
            .flag("replicas", true);
        let answer = self.fetch(call).await?;
        let page = parse_json(&operation, &answer.body)?;
        let field = |name| answer.headers.get(name).and_then(|value| value.to_str().ok());
        Ok(Listing {
            page,
            position: field(fields::POSITION).and_then(|text| text.parse().ok()),
            permission: field(fields::PERMISSION).and_then(|text| text.parse().ok()),
        })
    }

    /// Shows one entry to a mount, with its copies if it is an object; nothing if there is none.
    ///
    /// # Errors
    /// As the server answers, but for `not_found`; `precondition_failed` if the session is over.
    pub async fn entry_by_mount(&self, id: LeaseId, path: &ObjectPath) -> crate::Result<Option<Entry>> {
        let operation = format!("look at {path}");
        let call = Call::new(&operation, Method::GET, encode_path("/v1/list", path))
            .query("limit", 1)
            .query("mount", id)
            .flag("replicas", true);
        // The list of an object is that object; of others the entry is asked for.
        match self.json::<Page<Entry>>(call).await {
            Ok(page) => match page.items.into_iter().next() {
                Some(entry) if entry.path == *path => Ok(Some(entry)),
                _ => self.find(path).await,
            },
            Err(error) if error.code() == ErrorCode::IsLink => self.find(path).await,
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
