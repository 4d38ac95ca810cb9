//! Entries: looked at, listed, changed, removed.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use percale_api::entries::{Attributes, Content, Entry, Kind, Replica};
use percale_api::tasks::{Task, TaskSpec};
use percale_api::{Page, fields};
use percale_catalog::{EntryKind, FileAttributes, Listed, NamePattern, RemoveOptions};
use percale_core::access::{Caller, Permission};
use percale_core::ids::{EntryId, LeaseId, StoreId, VersionId};
use percale_core::{ErrorCode, ObjectPath};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::data::etag;
use super::extract::{Json, NamespacePath, Query};
use super::paging::{Flag, limit, page};
use super::{header_value, position_header};
use crate::{ApiError, AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(get_entry, set_attributes, remove_entry))
        .routes(routes!(list))
        .routes(routes!(list_root))
        .routes(routes!(find))
}

/// What a client sees of an entry.
pub(super) fn describe(path: ObjectPath, entry: percale_catalog::Entry) -> Entry {
    let modified = entry.modified;
    Entry {
        path,
        kind: match entry.kind {
            EntryKind::Collection => Kind::Collection,
            EntryKind::Object => Kind::Object,
            EntryKind::Link => Kind::Link,
        },
        id: entry.id,
        created: entry.created,
        modified,
        content: entry.content.map(|content| Content {
            version: content.version,
            size: content.size.0,
            root: content.root,
            mtime: content.mtime.unwrap_or(modified),
            mode: content.mode,
            digests: content.digests,
        }),
        target: entry.target,
        replicas: None,
    }
}

/// Tells of copies by the names of their sites and stores. Where they lie is only for those who manage the path.
struct Replicas {
    stores: HashMap<StoreId, (String, String)>,
    permission: Option<Permission>,
    with_keys: bool,
}

impl Replicas {
    async fn new(app: &AppState, caller: &Caller, path: &ObjectPath) -> Result<Self> {
        let roster = app.fabric.roster();
        let site_of = |store: &percale_catalog::Store| match store.site {
            None => app.site.name.clone(),
            // A site that was removed is told by its id.
            Some(site) => roster.get(site).map_or_else(|| site.to_string(), |member| member.name.clone()),
        };
        let stores = app.catalog.all_stores().await?;
        let stores = stores.into_iter().map(|store| (store.id, (site_of(&store), store.name))).collect();
        let permission = app.catalog.permission(caller, path).await.on_path(path)?;
        Ok(Self { stores, permission, with_keys: permission == Some(Permission::Manage) })
    }

    fn describe(&self, replicas: Vec<percale_catalog::Replica>) -> Vec<Replica> {
        replicas
            .into_iter()
            .map(|replica| {
                let unknown = || ("?".to_owned(), replica.store.to_string());
                let (site, store) = self.stores.get(&replica.store).cloned().unwrap_or_else(unknown);
                Replica {
                    site,
                    store,
                    store_id: replica.store,
                    state: replica.state,
                    checked: replica.checked,
                    key: self.with_keys.then_some(replica.key),
                }
            })
            .collect()
    }
}

/// Returns an entry, with its copies if it is an object.
#[utoipa::path(get, path = "/v1/entries/{*path}", tag = "entries", params(("path" = String, Path, description = "path of a collection or object")), responses((status = 200, description = "the entry", body = Entry)))]
async fn get_entry(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
) -> Result<Response> {
    // The entry and its copies are read one after the other; an overwrite in between is met by reading both again.
    for _ in 0..4 {
        let entry = app.catalog.stat(&caller, &path).await.on_path(&path)?;
        let Some(content) = &entry.content else {
            let position = app.catalog.position(entry.space).await?;
            return Ok((position_header(position), Json(describe(path, entry))).into_response());
        };
        let open = app.catalog.open_object(&caller, &path, None).await.on_path(&path)?;
        if open.version != content.version {
            continue;
        }
        let (version, root) = (content.version, content.root);
        let mut body = describe(path.clone(), entry);
        body.replicas = Some(Replicas::new(&app, &caller, &path).await?.describe(open.replicas));
        let headers = [
            (header::ETAG, header_value(&etag(version, root))),
            (http::HeaderName::from_static(fields::VERSION), header_value(&version.to_string())),
        ];
        return Ok((position_header(open.position), headers, Json(body)).into_response());
    }
    Err(ApiError::new(ErrorCode::Conflict, format!("{path} is overwritten faster than it can be looked at"))
        .with_path(path))
}

/// Sets times and permission bits of an object, whose version stays.
#[utoipa::path(patch, path = "/v1/entries/{*path}", tag = "entries", request_body = Attributes, params(("path" = String, Path, description = "path of an object")), responses((status = 200, description = "the entry", body = Entry)))]
async fn set_attributes(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Json(wanted): Json<Attributes>,
) -> Result<Response> {
    let wanted = attributes(wanted);
    let changed = app.catalog.set_attributes(&caller, &path, wanted).await.on_path(&path)?;
    Ok((position_header(changed.position), Json(describe(path, changed.entry))).into_response())
}

pub(crate) fn attributes(wanted: Attributes) -> FileAttributes {
    let Attributes { mtime, mode } = wanted;
    FileAttributes { mtime, mode }
}

/// What of a collection is listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Most entries in the answer; 1000 if absent.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// Where to go on: `next` of the answer before.
    cursor: Option<String>,
    /// Also what is below the collections in it, each right before its contents.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    recursive: Flag,
    /// Also the copies of objects.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    replicas: Flag,
    /// The session of a mount, which is also told where the copies lie; `precondition_failed` if there is none.
    #[param(value_type = Option<String>)]
    mount: Option<LeaseId>,
}

/// Lists a collection, by the bytes of the names; of an object, just that.
#[utoipa::path(get, path = "/v1/list/{*path}", tag = "entries", params(("path" = String, Path, description = "path of a collection"), ListQuery), responses((status = 200, description = "the entries", body = Page<Entry>)))]
async fn list(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<ListQuery>,
    uri: Uri,
) -> Result<Response> {
    if path.is_root() {
        return list_spaces(&app, &caller, &query, &uri).await;
    }
    let mut options = percale_catalog::ListOptions::default();
    options.after = query.cursor;
    options.limit = limit(query.limit)?;
    options.recursive = query.recursive.0;
    options.replicas = query.replicas.0;
    let listed = app.catalog.list(&caller, &path, options).await.on_path(&path)?;
    let mut replicas = match query.replicas.0 {
        true => Some(Replicas::new(&app, &caller, &path).await?),
        false => None,
    };
    if let (Some(known), Some(mount)) = (&mut replicas, query.mount) {
        crate::mounts::require(&app, &caller, mount).await?;
        known.with_keys = true;
    }
    let entries = listed.items.into_iter().map(|Listed { path, entry, replicas: copies }| {
        let mut entry = describe(path, entry);
        entry.replicas =
            replicas.as_ref().filter(|_| entry.kind == Kind::Object).map(|known| known.describe(copies));
        entry
    });
    let mut response = page(&uri, entries.collect(), listed.next);
    let headers = response.headers_mut();
    if let Some(position) = listed.position {
        headers.extend(position_header(position));
    }
    if let Some(permission) = replicas.and_then(|known| known.permission) {
        headers.insert(fields::PERMISSION, header_value(permission.as_str()));
    }
    Ok(response)
}

/// What to find.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FindQuery {
    /// A pattern that names match as a whole: `*`, `?`, `[a-z]`, `{nc,nc4}`, and a backslash before any of them to mean it.
    #[param(max_length = 1024)]
    name: String,
    /// Most entries in the answer; 1000 if absent. There may be fewer although there are more.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// Where to go on: `next` of the answer before.
    cursor: Option<String>,
}

/// Finds entries below a collection by their names, in the order of the names' bytes.
#[utoipa::path(get, path = "/v1/find/{*path}", tag = "entries", params(("path" = String, Path, description = "path of a collection"), FindQuery), responses((status = 200, description = "the entries", body = Page<Entry>)))]
async fn find(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<FindQuery>,
    uri: Uri,
) -> Result<Response> {
    let mut options = percale_catalog::FindOptions::new(NamePattern::new(&query.name)?);
    options.after = query.cursor;
    options.limit = limit(query.limit)?;
    let found = app.catalog.find(&caller, &path, options).await.on_path(&path)?;
    let entries = found.items.into_iter().map(|Listed { path, entry, .. }| describe(path, entry));
    let mut response = page(&uri, entries.collect(), found.next);
    response.headers_mut().extend(found.position.into_iter().flat_map(position_header));
    Ok(response)
}

/// Lists the spaces that the caller may know of, as collections.
#[utoipa::path(get, path = "/v1/list/", tag = "entries", params(ListQuery), responses((status = 200, description = "the spaces", body = Page<Entry>)))]
async fn list_root(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Query(query): Query<ListQuery>,
    uri: Uri,
) -> Result<Response> {
    list_spaces(&app, &caller, &query, &uri).await
}

async fn list_spaces(app: &AppState, caller: &Caller, query: &ListQuery, uri: &Uri) -> Result<Response> {
    let limit = limit(query.limit)?;
    if query.recursive.0 {
        return Err(ApiError::new(
            ErrorCode::Unsupported,
            "cannot list all spaces recursively; list one of them",
        )
        .with_path("/"));
    }
    let after = query.cursor.as_deref().unwrap_or_default();
    let mut spaces = app.catalog.spaces(caller).await?;
    spaces.retain(|space| space.name.as_str() > after);
    let next = spaces.get(limit).and_then(|_| spaces.get(limit - 1)).map(|space| space.name.to_string());
    let entries = spaces.into_iter().take(limit).map(|space| Entry {
        path: ObjectPath::of_space(&space.name),
        kind: Kind::Collection,
        id: EntryId::ROOT,
        created: space.created,
        modified: space.created,
        content: None,
        target: None,
        replicas: None,
    });
    Ok(page(uri, entries.collect(), next))
}

/// How to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// Also what is inside a collection.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    recursive: Flag,
    /// Only the entry with this id: if another is there, it is not found. The request may then be repeated.
    entry: Option<u64>,
}

/// Removes an entry. `If-Match` is honoured for objects.
///
/// With `recursive`, a collection of more than 10 000 entries is removed by a task: 202 and its address.
#[utoipa::path(
    delete, path = "/v1/entries/{*path}", tag = "entries",
    params(("path" = String, Path, description = "path of a collection or object"), RemoveQuery),
    responses(
        (status = 204, description = "it is gone"),
        (status = 202, description = "a task removes it", body = Task),
    )
)]
async fn remove_entry(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<RemoveQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let if_version = matched(&app, &caller, &path, &headers).await?;
    let recursive = query.recursive.0;
    let entry = query.entry.map(EntryId);
    let options = RemoveOptions::default().recursive(recursive).if_version(if_version).entry(entry);
    match app.catalog.remove(&caller, &path, options).await {
        Ok(removed) => Ok((StatusCode::NO_CONTENT, position_header(removed.position)).into_response()),
        Err(error) if recursive && error.code() == ErrorCode::Unsupported => {
            let task = super::tasks::submit(&app, &caller, TaskSpec::Delete { path: path.clone() }).await?;
            let location = header_value(&format!("/v1/tasks/{}", task.id));
            Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(task)).into_response())
        }
        Err(error) => Err(ApiError::from(error).with_path(path)),
    }
}

/// Resolves `If-Match` to the version that must be current.
async fn matched(
    app: &AppState,
    caller: &Caller,
    path: &ObjectPath,
    headers: &HeaderMap,
) -> Result<Option<VersionId>> {
    let Some(field) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let wanted = field.to_str().unwrap_or_default().trim();
    let entry = app.catalog.stat(caller, path).await.on_path(path)?;
    let Some(content) = entry.content else {
        return match wanted {
            "*" => Ok(None),
            _ => Err(ApiError::new(
                ErrorCode::IsCollection,
                format!("{path} is no object and has no entity tag"),
            )
            .with_path(path)),
        };
    };
    let by_root = etag(content.version, content.root);
    let by_version = etag(content.version, None);
    let holds =
        wanted == "*" || wanted.split(',').map(str::trim).any(|tag| tag == by_root || tag == by_version);
    if !holds {
        let detail = format!("cannot remove {path}: its current entity tag is {by_root}");
        return Err(ApiError::new(ErrorCode::PreconditionFailed, detail).with_path(path));
    }
    Ok(Some(content.version))
}
