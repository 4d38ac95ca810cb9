//! The typed calls: one method of [`Client`] for each address of `docs/design/rest.md`.

use std::time::Duration;

use percale_api::access::{Grant, IssuedToken, NewGrant, NewToken, Token, WhoAmI};
use percale_api::attributes::{
    Attribute, AttributeChange, AttributeEvent, FoundPage, ObjectReferences, SearchPlan, SearchSummary,
};
use percale_api::entries::{Entry, Move, NewLink};
use percale_api::site::{Readiness, Site, Version};
use percale_api::spaces::{NewHome, NewSpace, NewStore, Promoted, Space, SpaceChange, Store, StoreChange};
use percale_api::tasks::{NewTask, Task, TaskItem};
use percale_api::uploads::{CommitUpload, Committed, NewUpload, SentGroups, Upload};
use percale_api::{MAX_PAGE, Page, media};
use percale_core::access::Subject;
use percale_core::ids::{LeaseId, SpaceId, TaskId, TokenId, VersionId};
use percale_core::link::MAX_FOLLOWED;
use percale_core::path::SpaceName;
use percale_core::state::TaskState;
use percale_core::tree::HashTree;
use percale_core::{ErrorCode, LinkTarget, ObjectPath, Timestamp};
use reqwest::Method;
use reqwest::header::{ACCEPT, DATE};

use crate::answer::parse_json;
use crate::client::{Call, Client, Repeat, encode_component, encode_path};
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

/// The answer to a call that the caller put together.
#[derive(Debug, Clone)]
pub struct Raw {
    /// The HTTP status.
    pub status: u16,
    /// The media type of the body.
    pub content_type: String,
    /// The body.
    pub body: bytes::Bytes,
}

/// A page of whatever path a list has, followed until its end.
macro_rules! all_pages {
    ($(#[$doc:meta])* $all:ident, $page:ident, $item:ty $(, $arg:ident: $ty:ty)*) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the server answers.
        pub async fn $all(&self $(, $arg: $ty)*) -> crate::Result<Vec<$item>> {
            let mut items = Vec::new();
            let mut cursor = None;
            loop {
                let page = self.$page($($arg,)* cursor.as_deref()).await?;
                items.extend(page.items);
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => return Ok(items),
                }
            }
        }
    };
}

/// What to search for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Search<'a> {
    /// The query.
    pub query: &'a str,
    /// Most entries in the page.
    pub limit: Option<u32>,
    /// Where to go on: `next` of the page before.
    pub cursor: Option<&'a str>,
    /// A field to sort by, with `-` before it from the largest on; there is one page then.
    pub sort: Option<&'a str>,
    /// Attributes that are told of each, a list with commas between.
    pub attributes: Option<&'a str>,
}

fn show_task(id: TaskId) -> Call {
    get(format!("show task {id}"), format!("/v1/tasks/{id}"))
}

fn get(operation: impl Into<String>, path: impl Into<String>) -> Call {
    Call::new(operation, Method::GET, path)
}

pub(crate) fn component(prefix: &str, name: &str) -> String {
    let mut path = format!("{prefix}/");
    encode_component(&mut path, name);
    path
}

impl Client {
    /// Asks what site this is.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn site(&self) -> crate::Result<Site> {
        self.json(get("ask for the site", "/v1/site")).await
    }

    /// Asks for the server's release and the site's time, for a comparison of clocks.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn version(&self) -> crate::Result<(Version, Option<Timestamp>)> {
        let operation = "ask for the server's version";
        let answer = self.fetch(get(operation, "/version")).await?;
        let date = answer.headers.get(DATE).and_then(|value| Timestamp::from_http_date(value.to_str().ok()?));
        Ok((parse_json(operation, &answer.body)?, date))
    }

    /// Asks whether the server can serve; its checks come with it, also if it cannot.
    ///
    /// # Errors
    /// The server does not answer, or not with checks.
    pub async fn readiness(&self) -> crate::Result<Readiness> {
        let operation = "ask whether the site is ready";
        let raw = self.raw(Method::GET.as_str(), "/readyz?verbose", None).await?;
        parse_json(operation, &raw.body)
    }

    /// Asks who the server takes the caller for.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn whoami(&self) -> crate::Result<WhoAmI> {
        self.json(get("ask who is signed in", "/v1/whoami")).await
    }

    /// Makes a token. Its text is not kept by the server, so a call whose answer was lost is not repeated by itself.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn create_token(&self, token: &NewToken) -> crate::Result<IssuedToken> {
        let call = Call::new("create a token", Method::POST, "/v1/tokens").json(token);
        self.json(call.repeat(Repeat::Never)).await
    }

    /// Lists a page of tokens.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_tokens(&self, cursor: Option<&str>) -> crate::Result<Page<Token>> {
        self.json(get("list tokens", "/v1/tokens").optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists all tokens.
        all_tokens, list_tokens, Token
    );

    /// Revokes a token.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn revoke_token(&self, id: TokenId) -> crate::Result<()> {
        let call = Call::new(format!("revoke token {id}"), Method::DELETE, format!("/v1/tokens/{id}"));
        self.fetch(call).await.map(drop)
    }

    /// Adds a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn add_store(&self, store: &NewStore) -> crate::Result<Store> {
        let call = Call::new(format!("add store {}", store.name), Method::POST, "/v1/stores").json(store);
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Lists a page of stores.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_stores(&self, cursor: Option<&str>) -> crate::Result<Page<Store>> {
        self.json(get("list stores", "/v1/stores").optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists all stores.
        all_stores, list_stores, Store
    );

    /// Shows a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn store(&self, name: &str) -> crate::Result<Store> {
        self.json(get(format!("show store {name}"), component("/v1/stores", name))).await
    }

    /// Changes a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_store(&self, name: &str, change: &StoreChange) -> crate::Result<Store> {
        let call = Call::new(format!("change store {name}"), Method::PATCH, component("/v1/stores", name));
        self.json(call.json(change).repeat(Repeat::Safe)).await
    }

    /// Removes a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn remove_store(&self, name: &str) -> crate::Result<()> {
        let call = Call::new(format!("remove store {name}"), Method::DELETE, component("/v1/stores", name));
        self.fetch(call).await.map(drop)
    }

    /// Makes a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn create_space(&self, space: &NewSpace) -> crate::Result<Space> {
        let call = Call::new(format!("create space {}", space.name), Method::POST, "/v1/spaces").json(space);
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Lists a page of spaces.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_spaces(&self, cursor: Option<&str>) -> crate::Result<Page<Space>> {
        self.json(get("list spaces", "/v1/spaces").optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists all spaces.
        all_spaces, list_spaces, Space
    );

    /// Shows a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn space(&self, name: &SpaceName) -> crate::Result<Space> {
        self.json(get(format!("show space {name}"), format!("/v1/spaces/{name}"))).await
    }

    /// Changes a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_space(&self, name: &SpaceName, change: &SpaceChange) -> crate::Result<Space> {
        let call = Call::new(format!("change space {name}"), Method::PATCH, format!("/v1/spaces/{name}"));
        self.json(call.json(change).repeat(Repeat::Safe)).await
    }

    /// Makes the site the home of a space whose home is lost.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn promote_space(&self, name: &SpaceName) -> crate::Result<Promoted> {
        self.json(Call::new(
            format!("promote space {name}"),
            Method::POST,
            format!("/v1/spaces/{name}/promote"),
        ))
        .await
    }

    /// Makes another site the home of a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn move_space(&self, name: &SpaceName, site: &str) -> crate::Result<Promoted> {
        let call = Call::new(format!("move space {name}"), Method::POST, format!("/v1/spaces/{name}/home"));
        self.json(call.json(&NewHome { site: site.to_owned() })).await
    }

    /// Removes a space.
    ///
    /// # Errors
    /// As the server answers; `not_empty` if it still has entries.
    pub async fn remove_space(&self, name: &SpaceName) -> crate::Result<()> {
        let call = Call::new(format!("remove space {name}"), Method::DELETE, format!("/v1/spaces/{name}"));
        self.fetch(call).await.map(drop)
    }

    /// Lists the grants that hold on a path, also those given above it.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn grants(&self, path: &ObjectPath) -> crate::Result<Vec<Grant>> {
        let page: Page<Grant> =
            self.json(get(format!("list the grants on {path}"), encode_path("/v1/grants", path))).await?;
        Ok(page.items)
    }

    /// Gives or changes a grant.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn grant(&self, path: &ObjectPath, grant: &NewGrant) -> crate::Result<()> {
        let operation = format!("grant {} on {path} to {}", grant.permission, grant.subject);
        let call = Call::new(operation, Method::PUT, encode_path("/v1/grants", path)).json(grant);
        self.fetch(call).await.map(drop)
    }

    /// Takes a grant away.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn revoke_grant(&self, path: &ObjectPath, subject: &Subject) -> crate::Result<()> {
        let operation = format!("remove the grant on {path} to {subject}");
        let call = Call::new(operation, Method::DELETE, encode_path("/v1/grants", path));
        self.fetch(call.query("subject", subject)).await.map(drop)
    }

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

    /// Finds a page of what is below a collection and has a name that matches a pattern: `*`, `?`, `[a-z]`, `{nc,nc4}`.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn find_by_name(
        &self,
        path: &ObjectPath,
        name: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> crate::Result<Page<Entry>> {
        let call = get(format!("find entries in {path}"), encode_path("/v1/find", path))
            .optional("name", Some(name))
            .optional("limit", limit.map(|limit| limit.min(MAX_PAGE)))
            .optional("cursor", cursor);
        self.json(call).await
    }

    /// Finds a page of what a query holds for (docs/search.md), in all spaces that the site has or follows.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn search(&self, search: &Search<'_>) -> crate::Result<FoundPage> {
        let Search { query, limit, cursor, sort, attributes } = search;
        let call = get("search", "/v1/search")
            .optional("q", Some(query))
            .optional("limit", limit.map(|limit| limit.min(MAX_PAGE)))
            .optional("cursor", *cursor)
            .optional("sort", *sort)
            .optional("attributes", *attributes);
        self.json(call).await
    }

    /// Counts what a query holds for, and which values of some fields, a list with commas between, there are. What takes longer than so
    /// many seconds is estimated.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn summarize(
        &self,
        query: &str,
        facets: Option<&str>,
        values: Option<u32>,
        within: u32,
    ) -> crate::Result<SearchSummary> {
        let call = get("count what is found", "/v1/search/summary")
            .optional("q", Some(query))
            .optional("facets", facets)
            .optional("values", values)
            .query("within", within);
        self.json(call).await
    }

    /// Asks how a query is understood, and how a search for it goes about it.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn explain(&self, query: &str) -> crate::Result<SearchPlan> {
        self.json(get("explain a search", "/v1/search/plan").query("q", query)).await
    }

    /// Returns what is said of an object or collection.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn attributes(&self, path: &ObjectPath) -> crate::Result<Vec<Attribute>> {
        let call = get(format!("look at the attributes of {path}"), encode_path("/v1/attributes", path));
        let page: Page<Attribute> = self.json(call).await?;
        Ok(page.items)
    }

    /// Returns a page of the changes of what is said of an object or collection, the last one first.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn attribute_history(
        &self,
        path: &ObjectPath,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> crate::Result<Page<AttributeEvent>> {
        let call = get(format!("look at what was said of {path}"), encode_path("/v1/history", path));
        self.json(call.optional("limit", limit).optional("cursor", cursor)).await
    }

    /// Sets and removes what people say of an object or collection. Returns what is said of it then.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_attributes(
        &self,
        path: &ObjectPath,
        change: &AttributeChange,
    ) -> crate::Result<Vec<Attribute>> {
        let operation = format!("change the attributes of {path}");
        let call = Call::new(operation, Method::PATCH, encode_path("/v1/attributes", path));
        let page: Page<Attribute> = self.json(call.json(change).repeat(Repeat::Safe)).await?;
        Ok(page.items)
    }

    /// Returns where the chunks of the arrays of an object lie.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn references(&self, path: &ObjectPath) -> crate::Result<ObjectReferences> {
        let operation = format!("look where the arrays of {path} lie");
        self.json(get(operation, encode_path("/v1/references", path))).await
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

    /// Opens a resumable upload.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn open_upload(&self, upload: &NewUpload) -> crate::Result<Upload> {
        let call = Call::new(format!("upload {}", upload.path), Method::POST, "/v1/uploads").json(upload);
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Asks what an upload still misses.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn upload(&self, id: LeaseId) -> crate::Result<Upload> {
        self.json(get(format!("ask for upload {id}"), format!("/v1/uploads/{id}"))).await
    }

    /// Names groups that an upload misses although they were sent: they count if they lie there. Returns what it still misses.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn recall_groups(&self, id: LeaseId, sent: &SentGroups) -> crate::Result<Upload> {
        let path = format!("/v1/uploads/{id}/groups");
        self.json(
            Call::new(format!("ask for upload {id}"), Method::POST, path).json(sent).repeat(Repeat::Safe),
        )
        .await
    }

    /// Gives an upload up; what was sent is removed.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn abort_upload(&self, id: LeaseId) -> crate::Result<()> {
        let call = Call::new(format!("abort upload {id}"), Method::DELETE, format!("/v1/uploads/{id}"));
        self.fetch(call).await.map(drop)
    }

    /// Completes the upload of an object. What is on its way over other connections is waited for, so long at most.
    ///
    /// # Errors
    /// As the server answers; `upload_incomplete` if something is missing.
    pub async fn commit_upload(
        &self,
        id: LeaseId,
        target: &ObjectPath,
        commit: &CommitUpload,
        wait: Duration,
    ) -> crate::Result<Committed> {
        let path = format!("/v1/uploads/{id}/commit");
        let mut call = Call::new(format!("complete the upload of {target}"), Method::POST, path);
        if wait > Duration::ZERO {
            call = call.wait(wait);
        }
        self.json(call.json(commit).repeat(Repeat::Keyed)).await
    }

    /// Submits a task.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn submit(&self, task: &NewTask) -> crate::Result<Task> {
        self.json(Call::new("submit a task", Method::POST, "/v1/tasks").json(task).repeat(Repeat::Keyed))
            .await
    }

    /// Lists a page of tasks, the newest first: those that run at the site that is asked, or at the one that is named.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_tasks(
        &self,
        site: Option<&str>,
        state: Option<TaskState>,
        cursor: Option<&str>,
    ) -> crate::Result<Page<Task>> {
        let call = get("list tasks", "/v1/tasks").optional("site", site).optional("state", state);
        self.json(call.optional("cursor", cursor)).await
    }

    /// Shows a task.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn task(&self, id: TaskId) -> crate::Result<Task> {
        self.json(show_task(id)).await
    }

    /// Returns a task once it has ended, or as it is after some whole seconds, 30 at most. A site of an older release answers at once.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn task_ended(&self, id: TaskId, wait: Duration) -> crate::Result<Task> {
        self.json(show_task(id).wait(wait)).await
    }

    /// Lists a page of the items of a task that did not succeed.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_task_items(&self, id: TaskId, cursor: Option<&str>) -> crate::Result<Page<TaskItem>> {
        let path = format!("/v1/tasks/{id}/items");
        self.json(get(format!("list the items of task {id}"), path).optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists the items of a task that did not succeed.
        all_task_items, list_task_items, TaskItem, id: TaskId
    );

    /// Cancels a task.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn cancel_task(&self, id: TaskId) -> crate::Result<Task> {
        let call = Call::new(format!("cancel task {id}"), Method::POST, format!("/v1/tasks/{id}/cancel"));
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Puts a task that ended back into the queue.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn retry_task(&self, id: TaskId) -> crate::Result<Task> {
        let call = Call::new(format!("retry task {id}"), Method::POST, format!("/v1/tasks/{id}/retry"));
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Makes any call and returns whatever the server answers, also a problem. Not repeated.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn raw(&self, method: &str, path: &str, json: Option<&[u8]>) -> crate::Result<Raw> {
        self.raw_call(method, path, json).await
    }
}
