//! Content for ordinary clients: GET, HEAD and PUT of `/v1/data/{path}`, and the hash tree.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percale_api::uploads::Committed as CommittedBody;
use percale_api::{Problem, digest_fields, fields, media};
use percale_catalog::Condition;
use percale_core::access::{Caller, Permission};
use percale_core::digest::{Algorithm, Digest, Hasher};
use percale_core::ids::VersionId;
use percale_core::tree::{GROUP_SIZE, HashTree, TreeHasher};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath, Timestamp};
use percale_store::{SmallFile, StageOptions};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::extract::{Json, NamespacePath, Query, body_error, drain};
use super::paging::Flag;
use crate::publish::{NewObject, StagedContent, key_for_stage};
use crate::reading::Source;
use crate::upload::space_of;
use crate::{ApiError, AppState, Result};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_data, head_data, put_data)).routes(routes!(get_tree))
}

/// Which version is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VersionQuery {
    /// The version; the current one if absent.
    #[param(value_type = Option<u64>)]
    version: Option<VersionId>,
}

/// How to write.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PutQuery {
    /// Whether missing collections above the object are made.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    parents: Flag,
}

/// Returns the entity tag of a version: its root, or its id while nobody hashed it.
pub fn etag(version: VersionId, root: Option<percale_core::tree::RootHash>) -> String {
    match root {
        Some(root) => format!("\"{root}\""),
        None => format!("\"v{version}\""),
    }
}

/// Reads an object's content.
///
/// Every group of 1 MiB is verified before it is sent; damage ends the body early, and is never sent.
#[utoipa::path(
    get, path = "/v1/data/{*path}", tag = "data",
    params(("path" = String, Path, description = "path of the object"), VersionQuery),
    responses(
        (status = 200, description = "the content", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "the range that was asked for", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "the client has it already"),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get_data(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<VersionQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let answer = prepare_get(&app, &caller, &path, query.version, &headers).await?;
    let (source, range, response) = match answer {
        Get::Head(response) => return Ok(response),
        Get::Body { source, range, response } => (source, range, response),
    };
    let read = app.reader.read(source, range).await?;
    let body = stream::try_unfold(read, |mut read| async move {
        Ok::<_, ApiError>(read.next().await?.map(|bytes| (bytes, read)))
    });
    Ok(response.map(|()| axum::body::Body::from_stream(body)).into_response())
}

/// What GET would answer, without the content.
#[utoipa::path(
    head, path = "/v1/data/{*path}", tag = "data",
    params(("path" = String, Path, description = "path of the object"), VersionQuery),
    responses(
        (status = 200, description = "size, entity tag, digests"),
        (status = 206, description = "the range that was asked for"),
        (status = 304, description = "the client has it already"),
        (status = "default", description = "a problem; HEAD has no body"),
    )
)]
async fn head_data(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<VersionQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    Ok(match prepare_get(&app, &caller, &path, query.version, &headers).await? {
        Get::Head(response) => response,
        Get::Body { response, .. } => response.map(|()| axum::body::Body::empty()).into_response(),
    })
}

enum Get {
    Head(Response),
    Body { source: Arc<Source>, range: ByteRange, response: http::Response<()> },
}

async fn prepare_get(
    app: &AppState,
    caller: &Caller,
    path: &ObjectPath,
    version: Option<VersionId>,
    headers: &HeaderMap,
) -> Result<Get> {
    let open = app
        .catalog
        .open_object(caller, path, version)
        .await
        .map_err(|error| ApiError::from(error).with_path(path))?;
    let tag = etag(open.version, open.root);
    let matches = |field: &HeaderName| text(headers, field).map(|list| lists(list, &tag, open.version));
    if matches(&header::IF_MATCH) == Some(false) {
        let detail = format!("the current entity tag is {tag}");
        return Err(ApiError::new(ErrorCode::PreconditionFailed, detail).with_path(path));
    }
    if matches(&header::IF_NONE_MATCH) == Some(true) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        insert(response.headers_mut(), header::ETAG, &tag);
        return Ok(Get::Head(response));
    }

    let size = open.size;
    let is_same = text(headers, &header::IF_RANGE).is_none_or(|wanted| wanted == tag);
    let range = match text(headers, &header::RANGE).filter(|_| is_same).map(|range| parse_range(range, size))
    {
        Some(Wanted::Unsatisfiable) => {
            let detail = format!("the content has {} bytes", size.0);
            let content_range = HeaderValue::from_str(&format!("bytes */{}", size.0))
                .unwrap_or(HeaderValue::from_static("bytes */*"));
            return Err(ApiError::new(ErrorCode::InvalidRange, detail)
                .with_path(path)
                .with_header(header::CONTENT_RANGE, content_range));
        }
        Some(Wanted::Range(range)) => Some(range),
        Some(Wanted::Whole) | None => None,
    };

    let (position, root, mtime) = (open.position, open.root, open.mtime.unwrap_or(open.modified));
    let version = open.version;
    let source = Arc::new(app.reader.source(open).await?);
    let mut response = http::Response::new(());
    let fields_out = response.headers_mut();
    insert(fields_out, header::ETAG, &tag);
    insert(fields_out, header::ACCEPT_RANGES, "bytes");
    insert(fields_out, header::CONTENT_TYPE, "application/octet-stream");
    insert(fields_out, header::LAST_MODIFIED, &mtime.to_http_date());
    insert(fields_out, HeaderName::from_static(fields::POSITION), &position.to_string());
    insert(fields_out, HeaderName::from_static(fields::VERSION), &version.to_string());
    insert(fields_out, HeaderName::from_static(fields::MTIME), &mtime.to_string());
    insert(fields_out, HeaderName::from_static(fields::REPLICA_STATE), source.replica.state.as_str());
    if let Some(root) = root {
        insert(fields_out, HeaderName::from_static(fields::ROOT), &root.to_string());
    }
    add_digests(app, &source, headers, fields_out).await?;
    let sent = range.unwrap_or(ByteRange::whole(size));
    insert(fields_out, header::CONTENT_LENGTH, &sent.len().to_string());
    if range.is_some() {
        // A satisfiable range has at least one byte.
        let content_range = format!("bytes {}-{}/{}", sent.start(), sent.end() - 1, size.0);
        insert(fields_out, header::CONTENT_RANGE, &content_range);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(Get::Body { source, range: sent, response })
}

/// Adds the digests that the client wants: those that are known, else computed from the copy.
async fn add_digests(
    app: &AppState,
    source: &Arc<Source>,
    wanted: &HeaderMap,
    out: &mut HeaderMap,
) -> Result<()> {
    let want_repr = HeaderName::from_static("want-repr-digest");
    let want_old = HeaderName::from_static("want-digest");
    let repr = text(wanted, &want_repr).map(digest_fields::parse_want_repr_digest).unwrap_or_default();
    let old = text(wanted, &want_old).map(digest_fields::parse_want_digest).unwrap_or_default();
    if let Some(algorithm) = repr.first() {
        let digest = digest_of(app, source, *algorithm).await?;
        insert(out, HeaderName::from_static("repr-digest"), &digest_fields::repr_digest(&[digest]));
    }
    if let Some(algorithm) = old.first() {
        let digest = digest_of(app, source, *algorithm).await?;
        insert(out, HeaderName::from_static("digest"), &digest_fields::digest(&[digest]));
    }
    Ok(())
}

async fn digest_of(app: &AppState, source: &Arc<Source>, algorithm: Algorithm) -> Result<Digest> {
    if let (Algorithm::Blake3, Some(root)) = (algorithm, source.version.root) {
        return Ok(root.to_digest());
    }
    if let Some(known) = source.version.digests.iter().find(|digest| digest.algorithm() == algorithm) {
        return Ok(known.clone());
    }
    let mut read = app.reader.read(source.clone(), ByteRange::whole(source.version.size)).await?;
    let mut hasher = Hasher::new([algorithm]);
    while let Some(bytes) = read.next().await? {
        hasher = blocking(move || {
            hasher.update(&bytes);
            hasher
        })
        .await?;
    }
    let digest = hasher.finish().pop();
    digest.ok_or_else(|| ApiError::internal(format!("no {algorithm} digest was computed")))
}

/// Returns the stored form of a version's hash tree, by which any range can be verified.
#[utoipa::path(
    get, path = "/v1/trees/{*path}", tag = "data",
    params(("path" = String, Path, description = "path of the object"), VersionQuery),
    responses(
        (status = 200, description = "the hash tree", content_type = "application/vnd.percale.hash-tree", body = Vec<u8>),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get_tree(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<VersionQuery>,
) -> Result<Response> {
    let open = app
        .catalog
        .open_object(&caller, &path, query.version)
        .await
        .map_err(|error| ApiError::from(error).with_path(&path))?;
    let version = open.version;
    let source = app.reader.source(open).await?;
    let tree = source.tree.ok_or_else(|| {
        let detail = "this version was registered in place and is not hashed yet; check it first";
        ApiError::new(ErrorCode::NotFound, detail).with_path(&path)
    })?;
    let mut response = tree.encode().into_response();
    insert(response.headers_mut(), header::CONTENT_TYPE, media::TREE);
    insert(response.headers_mut(), HeaderName::from_static(fields::VERSION), &version.to_string());
    Ok(response)
}

/// Writes an object's content.
///
/// Nothing is visible until all of it arrived, was checked against the digests that the client sent (`Repr-Digest`,
/// `Content-Digest`, `Digest`, `Content-MD5`), and is on disk.
#[utoipa::path(
    put, path = "/v1/data/{*path}", tag = "data",
    params(("path" = String, Path, description = "path of the object"), PutQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "a new version of the object", body = CommittedBody),
        (status = 201, description = "a new object", body = CommittedBody),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn put_data(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<PutQuery>,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let mut body = body.into_data_stream().map_err(body_error);
    let outcome = put(&app, caller, path, query, &parts.headers, &mut body).await;
    if outcome.is_err() {
        drain(body).await;
    }
    outcome
}

async fn put<S>(
    app: &AppState,
    caller: Caller,
    path: ObjectPath,
    query: PutQuery,
    headers: &HeaderMap,
    body: &mut S,
) -> Result<Response>
where
    S: Stream<Item = Result<Bytes>> + Unpin + Send,
{
    for field in [header::CONTENT_RANGE, header::CONTENT_ENCODING] {
        if headers.contains_key(&field) {
            let detail = format!(
                "PUT takes a whole content as it is, without the field {field}; see /v1/uploads for parts"
            );
            return Err(ApiError::new(ErrorCode::InvalidRequest, detail).with_path(&path));
        }
    }
    let claimed = digest_fields::claimed(|name| headers.get(name).and_then(|value| value.to_str().ok()))
        .map_err(|error| ApiError::invalid(error.to_string()).with_path(&path))?;
    let mtime = match text(headers, &HeaderName::from_static(fields::MTIME)) {
        Some(text) => Some(text.parse::<Timestamp>().map_err(|error| ApiError::invalid(error.to_string()))?),
        None => None,
    };
    let length = text(headers, &header::CONTENT_LENGTH).and_then(|length| length.parse().ok()).map(ByteCount);
    crate::authorize::authorize(&app.catalog, &caller, &path, Permission::Write).await?;
    let asked = asked_condition(app, &caller, &path, headers).await?;
    let condition = asked.condition;

    let (content, digests) = receive(app, &path, body, length, &claimed).await?;
    let size = content.tree.size();
    let root = content.tree.root();
    let object = NewObject {
        caller,
        path: path.clone(),
        parents: query.parents.0,
        condition,
        mtime,
        digests,
        answer: None,
    };
    let committed =
        app.publisher.publish_one(object, content).await.map_err(|error| asked.explain(error, &path))?;
    Ok(committed_response(committed, size, root))
}

/// Answers with a version that was made.
pub fn committed_response(
    committed: percale_catalog::Committed,
    size: ByteCount,
    root: percale_core::tree::RootHash,
) -> Response {
    let status = if committed.created { StatusCode::CREATED } else { StatusCode::OK };
    let position = committed.position.to_string();
    let body = committed_body(committed, size, root);
    let (tag, version) = (etag(body.version, Some(root)), body.version.to_string());
    let mut response = (status, Json(body)).into_response();
    insert(response.headers_mut(), header::ETAG, &tag);
    insert(response.headers_mut(), HeaderName::from_static(fields::VERSION), &version);
    insert(response.headers_mut(), HeaderName::from_static(fields::ROOT), &root.to_string());
    insert(response.headers_mut(), HeaderName::from_static(fields::POSITION), &position);
    response
}

/// Makes the wire form of a version that was made.
pub fn committed_body(
    committed: percale_catalog::Committed,
    size: ByteCount,
    root: percale_core::tree::RootHash,
) -> CommittedBody {
    let percale_catalog::Committed { path, version, position, created, .. } = committed;
    CommittedBody { path, version, size: size.0, root, position: position.to_string(), created }
}

/// What a client's conditions mean, and how to tell it that they do not hold.
struct Asked {
    condition: Condition,
    is_explicit: bool,
}

impl Asked {
    /// Overwriting needs a condition; a client that sent none learns that, not that something exists.
    fn explain(&self, error: ApiError, path: &ObjectPath) -> ApiError {
        match (error.code(), self.is_explicit) {
            (ErrorCode::AlreadyExists, false) => {
                let detail = "an object is there already; send If-Match with its entity tag, or If-Match: *, to overwrite it";
                ApiError::new(ErrorCode::PreconditionRequired, detail).with_path(path)
            }
            (ErrorCode::AlreadyExists, true) => {
                ApiError::new(ErrorCode::PreconditionFailed, "an object is there already").with_path(path)
            }
            _ => error,
        }
    }
}

async fn asked_condition(
    app: &AppState,
    caller: &Caller,
    path: &ObjectPath,
    headers: &HeaderMap,
) -> Result<Asked> {
    let explicit = |condition| Ok(Asked { condition, is_explicit: true });
    match (text(headers, &header::IF_MATCH), text(headers, &header::IF_NONE_MATCH)) {
        (None, None) => Ok(Asked { condition: Condition::New, is_explicit: false }),
        (None, Some("*")) => explicit(Condition::New),
        (Some("*"), None) => explicit(Condition::Existing),
        (Some(list), None) => {
            let entry = app
                .catalog
                .stat(caller, path)
                .await
                .map_err(|error| ApiError::from(error).with_path(path))?;
            let content = entry
                .content
                .ok_or_else(|| ApiError::new(ErrorCode::IsCollection, format!("{path} is a collection")))?;
            let tag = etag(content.version, content.root);
            if lists(list, &tag, content.version) {
                explicit(Condition::Match(content.version))
            } else {
                let detail = format!("the current entity tag is {tag}");
                Err(ApiError::new(ErrorCode::PreconditionFailed, detail).with_path(path))
            }
        }
        _ => Err(ApiError::invalid(
            "PUT takes If-Match or If-None-Match: *, not both, and no other If-None-Match",
        )
        .with_path(path)),
    }
}

/// Stages a body as it comes, hashing it in the same pass. Nothing is left staged if it fails.
async fn receive<S>(
    app: &AppState,
    path: &ObjectPath,
    body: &mut S,
    length: Option<ByteCount>,
    claimed: &[Digest],
) -> Result<(StagedContent, Vec<Digest>)>
where
    S: Stream<Item = Result<Bytes>> + Unpin + Send,
{
    let store = app.stores.for_new_data(&space_of(path)?).await?;
    let mut hasher = Hasher::new(
        claimed.iter().map(Digest::algorithm).filter(|algorithm| *algorithm != Algorithm::Blake3),
    );
    let mut first = BytesMut::new();
    while first.len() <= GROUP_SIZE as usize {
        match body.next().await {
            Some(piece) => first.extend_from_slice(&piece?),
            None => {
                let bytes = first.freeze();
                let (tree, hasher, bytes) = blocking(move || {
                    hasher.update(&bytes);
                    (HashTree::of(&bytes), hasher, bytes)
                })
                .await?;
                let digests = verify(path, length, claimed, &tree, hasher)?;
                let token = app.lease.token()?;
                let file = SmallFile { key: key_for_stage(&store, &token)?, token, bytes };
                let staged = store.store.stage_small(vec![file]).await?.pop();
                let staged = staged.ok_or_else(|| ApiError::internal("staging a file gave no result"))??;
                return Ok((StagedContent { store, staged, tree }, digests));
            }
        }
    }

    let mut options = StageOptions::new(app.lease.token()?);
    options.key = key_for_stage(&store, &options.token)?;
    if let Some(length) = length {
        options = options.size(length);
    }
    let token = options.token.clone();
    let stage = store.store.stage(options).await?;
    let mut tree = TreeHasher::new();
    let written = async {
        let mut pending = first;
        let mut at = 0;
        loop {
            let is_last = match body.next().await {
                Some(piece) => {
                    pending.extend_from_slice(&piece?);
                    false
                }
                None => true,
            };
            if pending.len() >= GROUP_SIZE as usize || is_last {
                let bytes = pending.split().freeze();
                let len = bytes.len() as u64;
                let hashed = {
                    let bytes = bytes.clone();
                    blocking(move || {
                        tree.update(&bytes);
                        hasher.update(&bytes);
                        (tree, hasher)
                    })
                };
                let (done, hashed) = tokio::join!(stage.write_at(at, bytes), hashed);
                done?;
                (tree, hasher) = hashed?;
                at += len;
            }
            if is_last {
                return Ok::<_, ApiError>((tree.finish(), hasher));
            }
        }
    };
    let outcome = match written.await {
        Ok((tree, hasher)) => verify(path, length, claimed, &tree, hasher).map(|digests| (tree, digests)),
        Err(error) => Err(error),
    };
    let finished = match outcome {
        Ok(hashed) => stage.finish().await.map(|staged| (staged, hashed)).map_err(ApiError::from),
        Err(error) => Err(error),
    };
    match finished {
        Ok((staged, (tree, digests))) => Ok((StagedContent { store, staged, tree }, digests)),
        Err(error) => {
            if let Err(error) = store.store.discard(&token).await {
                tracing::info!(%token, %error, "staged bytes are left to the next take-over");
            }
            Err(error.with_path(path))
        }
    }
}

/// Compares what arrived with what was claimed, and returns the digests that were computed beside the tree.
fn verify(
    path: &ObjectPath,
    length: Option<ByteCount>,
    claimed: &[Digest],
    tree: &HashTree,
    hasher: Hasher,
) -> Result<Vec<Digest>> {
    if length.is_some_and(|length| length != tree.size()) {
        let detail = format!("{} bytes arrived of {}", tree.size().0, length.unwrap_or_default().0);
        return Err(ApiError::new(ErrorCode::UploadIncomplete, detail).with_path(path));
    }
    let computed = hasher.finish();
    let root = tree.root().to_digest();
    match claimed.iter().find(|digest| **digest != root && !computed.contains(digest)) {
        None => Ok(computed),
        Some(digest) => {
            let detail = format!("what arrived does not have the digest {digest}");
            Err(ApiError::new(ErrorCode::DigestMismatch, detail).with_path(path))
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal("hashing did not end").with_source(error))
}

fn text<'a>(headers: &'a HeaderMap, field: &HeaderName) -> Option<&'a str> {
    headers.get(field).and_then(|value| value.to_str().ok()).map(str::trim)
}

fn insert(headers: &mut HeaderMap, field: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(field, value);
    }
}

/// Tells whether a list of entity tags names this one, or `*`. The tag by version id is always accepted. A weak tag
/// never matches, since ours are strong.
fn lists(list: &str, tag: &str, version: VersionId) -> bool {
    let by_version = format!("\"v{version}\"");
    list == "*" || list.split(',').map(str::trim).any(|one| one == tag || one == by_version)
}

enum Wanted {
    Range(ByteRange),
    Unsatisfiable,
    Whole,
}

/// Reads a `Range` field (RFC 9110, 14.1.2). Several ranges, and what cannot be read, mean the whole content, as the
/// RFC allows.
fn parse_range(field: &str, size: ByteCount) -> Wanted {
    let Some(spec) = field.strip_prefix("bytes=") else { return Wanted::Whole };
    let Some((first, last)) = spec.trim().split_once('-') else { return Wanted::Whole };
    let range = match (first.trim(), last.trim()) {
        ("", suffix) => suffix.parse::<u64>().ok().map(|len| (size.0.saturating_sub(len), size.0)),
        (first, "") => first.parse().ok().map(|first| (first, size.0)),
        (first, last) => match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => Some((first, last.saturating_add(1).min(size.0))),
            _ => None,
        },
    };
    match range {
        None => Wanted::Whole,
        Some((start, end)) => match ByteRange::new(start, end) {
            Some(range) if !range.is_empty() => Wanted::Range(range),
            _ => Wanted::Unsatisfiable,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        let size = ByteCount(1000);
        let read = |field: &str| match parse_range(field, size) {
            Wanted::Range(range) => Some(Some((range.start(), range.end()))),
            Wanted::Unsatisfiable => Some(None),
            Wanted::Whole => None,
        };
        assert_eq!(read("bytes=0-0"), Some(Some((0, 1))));
        assert_eq!(read("bytes=500-"), Some(Some((500, 1000))));
        assert_eq!(read("bytes=-10"), Some(Some((990, 1000))));
        assert_eq!(read("bytes=-5000"), Some(Some((0, 1000))));
        assert_eq!(read("bytes=990-5000"), Some(Some((990, 1000))));
        assert_eq!(read("bytes=0-18446744073709551615"), Some(Some((0, 1000))));
        for unsatisfiable in ["bytes=1000-", "bytes=1000-1001", "bytes=-0"] {
            assert_eq!(read(unsatisfiable), Some(None), "{unsatisfiable}");
        }
        for whole in ["bytes=5-4", "bytes=a-b", "bytes=0-1,5-6", "items=0-1", "bytes=", "bytes=--1"] {
            assert_eq!(read(whole), None, "{whole}");
        }
    }

    #[test]
    fn tags_are_compared_strongly() {
        assert!(lists("\"a\", \"b\"", "\"b\"", VersionId(7)));
        assert!(lists("\"v7\"", "\"b\"", VersionId(7)));
        assert!(lists("*", "\"b\"", VersionId(7)));
        assert!(!lists("W/\"b\"", "\"b\"", VersionId(7)));
    }
}
