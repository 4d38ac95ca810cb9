//! The calls of the namespace: what is where, and changes of it.

use percale_api::entries::{Entry, Move, NewLink};
use percale_api::{MAX_PAGE, Page, media};
use percale_core::ids::{SpaceId, VersionId};
use percale_core::link::MAX_FOLLOWED;
use percale_core::tree::HashTree;
use percale_core::{ErrorCode, LinkTarget, ObjectPath};
use reqwest::Method;
use reqwest::header::ACCEPT;

use super::get;
use crate::call::{Call, Repeat, encode_path};
use crate::client::Client;
use crate::error::{Error, ErrorKind};

/// What a listing shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListOptions {
    /// Everything below, in the order of paths, instead of one level.
    pub recursive: bool,
    /// With the replicas of each object.
    pub replicas: bool,
    /// Entries of one page; the server's default if absent.
    pub limit: Option<u32>,
}

impl Client {
    /// Shows one entry with its replicas. Links on the way to it are followed; a link itself is shown.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn stat(&self, path: &ObjectPath) -> crate::Result<Entry> {
        let mut at = path.clone();
        let mut followed = 0;
        loop {
            let answer = self.json(get(format!("stat {path}"), encode_path("/v1/entries", &at))).await;
            let to = answer.as_ref().err().and_then(Error::leads_to).filter(|_| followed < MAX_FOLLOWED);
            let Some(to) = to else { return answer };
            at = to.clone();
            followed += 1;
        }
    }

    /// Shows what a path leads to, over links to their ends.
    ///
    /// # Errors
    /// As the server answers; `is_link` for a link that leads nowhere in the fabric.
    pub async fn resolve(&self, path: &ObjectPath) -> crate::Result<Entry> {
        let mut entry = self.stat(path).await?;
        for _ in 0..MAX_FOLLOWED {
            let Some(target) = &entry.target else { return Ok(entry) };
            let Some(to) = target.follow(&entry.path, std::iter::empty()) else { break };
            entry = self.stat(&to).await?;
        }
        let target = entry.target.as_ref().map(ToString::to_string).unwrap_or_default();
        let detail =
            format!("{} is a link to '{target}', which cannot be followed in the fabric", entry.path);
        Err(Error::new(ErrorKind::Usage, ErrorCode::IsLink, format!("follow {path}"), detail))
    }

    /// Shows one entry, or nothing if there is none.
    ///
    /// # Errors
    /// As the server answers, but for `not_found`.
    pub async fn find(&self, path: &ObjectPath) -> crate::Result<Option<Entry>> {
        match self.stat(path).await {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists a page of a collection, by name.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list(
        &self,
        path: &ObjectPath,
        options: ListOptions,
        cursor: Option<&str>,
    ) -> crate::Result<Page<Entry>> {
        let call = get(format!("list {path}"), encode_path("/v1/list", path))
            .optional("limit", options.limit.map(|limit| limit.min(MAX_PAGE)))
            .optional("cursor", cursor)
            .flag("recursive", options.recursive)
            .flag("replicas", options.replicas);
        self.json(call).await
    }

    /// Returns the address of the content of a version, for programs that read ranges of it.
    pub fn content_url(&self, path: &ObjectPath, version: VersionId) -> String {
        let site = self.url().as_str().trim_end_matches('/');
        format!("{site}{}?version={version}", encode_path("/v1/data", path))
    }

    /// Makes a collection. One that is there is no error. Returns whether it is new.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn make_collection(&self, path: &ObjectPath, parents: bool) -> crate::Result<bool> {
        let operation = format!("make the collection {path}");
        let call = Call::new(operation, Method::PUT, encode_path("/v1/collections", path));
        let answer = self.fetch(call.flag("parents", parents)).await?;
        Ok(answer.status == reqwest::StatusCode::CREATED)
    }

    /// Makes a symbolic link. One that is there and leads to the same place is no error. Returns whether it is new.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn make_link(&self, path: &ObjectPath, target: &LinkTarget) -> crate::Result<bool> {
        let call = Call::new(format!("make the link {path}"), Method::PUT, encode_path("/v1/links", path));
        let answer = self.fetch(call.json(&NewLink { target: target.clone() })).await?;
        Ok(answer.status == reqwest::StatusCode::CREATED)
    }

    /// Renames an entry. It is asked for by its id, so that the request may be repeated if the answer is lost.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn rename(&self, from: &ObjectPath, to: &ObjectPath, overwrite: bool) -> crate::Result<()> {
        let entry = Some(self.stat(from).await?.id);
        let body = Move { from: from.clone(), to: to.clone(), overwrite, entry };
        let call = Call::new(format!("move {from} to {to}"), Method::POST, "/v1/move").json(&body);
        self.fetch(call.repeat(Repeat::Safe)).await.map(drop)
    }

    /// Removes an entry; a collection with entries only if `recursive`.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn remove(
        &self,
        path: &ObjectPath,
        recursive: bool,
        only_version: Option<VersionId>,
    ) -> crate::Result<()> {
        let mut call = Call::new(format!("remove {path}"), Method::DELETE, encode_path("/v1/entries", path))
            .flag("recursive", recursive);
        if let Some(version) = only_version {
            call = call.header("if-match", &format!("\"v{version}\""));
        }
        self.fetch(call).await.map(drop)
    }

    /// Fetches the stored hash tree of a version.
    ///
    /// # Errors
    /// As the server answers; `integrity` if what came is not a tree.
    pub async fn tree(
        &self,
        space: Option<SpaceId>,
        path: &ObjectPath,
        version: Option<VersionId>,
    ) -> crate::Result<HashTree> {
        let operation = format!("read the hash tree of {path}");
        let call = get(&operation, encode_path("/v1/trees", path))
            .header(ACCEPT.as_str(), media::TREE)
            .optional("version", version)
            .optional("space", space);
        self.fetch_tree(operation, call).await
    }

    pub(crate) async fn fetch_tree(&self, operation: String, call: Call) -> crate::Result<HashTree> {
        let answer = self.fetch(call).await?;
        HashTree::decode(&answer.body).map_err(|error| {
            Error::new(ErrorKind::Integrity, ErrorCode::Integrity, operation, error.to_string())
                .with_source(error)
        })
    }
}
