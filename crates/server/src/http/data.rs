//! Content for ordinary clients: GET and HEAD of `/v1/data/{path}`, and the hash tree.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percale_api::{Problem, digest_fields, fields, media};
use percale_catalog::OpenVersion;
use percale_core::digest::{Algorithm, Digest, Hasher};
use percale_core::ids::{SpaceId, VersionId};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath};
use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Session;
use super::extract::{NamespacePath, Query};
use super::redirect;
use super::ticket::Reading;
use crate::reading::Source;
use crate::{ApiError, AppState, Result};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_data, head_data)).routes(routes!(get_tree))
}

/// Which version is wanted, and what another site put into the address when it sent the client here.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ContentQuery {
    /// The version; the current one if absent.
    #[param(value_type = Option<u64>)]
    version: Option<VersionId>,
    /// The ticket of the site that sent the client here; it is part of the address that it gave.
    #[serde(rename = "ticket")]
    #[param(value_type = Option<String>)]
    _ticket: Option<IgnoredAny>,
    /// What this site is to have seen, also part of that address.
    #[serde(rename = "position")]
    #[param(value_type = Option<String>)]
    _position: Option<IgnoredAny>,
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
    params(("path" = String, Path, description = "path of the object"), ContentQuery),
    responses(
        (status = 200, description = "the content", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "the range that was asked for", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "the client has it already"),
        (status = 307, description = "a site that has the content; only to clients that say `Percale-Redirect: follow`"),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get_data(
    State(app): State<AppState>,
    reading: Reading,
    NamespacePath(path): NamespacePath,
    Query(query): Query<ContentQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let answer = prepare_get(&app, &reading, &path, query.version, &headers).await?;
    let (source, range, response) = match answer {
        Get::Head(response) => return Ok(response),
        Get::Body { source, range, response } => (source, range, response),
    };
    reading.begin_body()?;
    let read = app.reader.read(source, range).await?;
    let body = stream::try_unfold(read, |mut read| async move {
        Ok::<_, ApiError>(read.next().await?.map(|bytes| (bytes, read)))
    });
    Ok(response.map(|()| axum::body::Body::from_stream(body)).into_response())
}

/// What GET would answer, without the content.
#[utoipa::path(
    head, path = "/v1/data/{*path}", tag = "data",
    params(("path" = String, Path, description = "path of the object"), ContentQuery),
    responses(
        (status = 200, description = "size, entity tag, digests"),
        (status = 206, description = "the range that was asked for"),
        (status = 304, description = "the client has it already"),
        (status = 307, description = "a site that has the content; only to clients that say `Percale-Redirect: follow`"),
        (status = "default", description = "a problem; HEAD has no body"),
    )
)]
async fn head_data(
    State(app): State<AppState>,
    reading: Reading,
    NamespacePath(path): NamespacePath,
    Query(query): Query<ContentQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    Ok(match prepare_get(&app, &reading, &path, query.version, &headers).await? {
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
    reading: &Reading,
    path: &ObjectPath,
    version: Option<VersionId>,
    headers: &HeaderMap,
) -> Result<Get> {
    let version = reading.wanted(path, version)?;
    let open = app
        .catalog
        .open_object(&reading.session.caller, path, version)
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
        reading.mark(response.headers_mut());
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

    let sent = range.unwrap_or(ByteRange::whole(size));
    reading.check(&open, &[sent])?;
    if let Some(response) = redirect::answer(app, reading, headers, &open).await {
        return Ok(Get::Head(response));
    }

    let (position, root, mtime) = (open.position, open.root, open.mtime.unwrap_or(open.modified));
    let version = open.version;
    let source = Arc::new(app.reader.source(open, &reading.session.reach()).await?);
    let mut response = http::Response::new(());
    let fields_out = response.headers_mut();
    insert(fields_out, header::ETAG, &tag);
    insert(fields_out, header::ACCEPT_RANGES, "bytes");
    insert(fields_out, header::CONTENT_TYPE, "application/octet-stream");
    insert(fields_out, header::LAST_MODIFIED, &mtime.to_http_date());
    insert(fields_out, HeaderName::from_static(fields::POSITION), &position.to_string());
    insert(fields_out, HeaderName::from_static(fields::VERSION), &version.to_string());
    insert(fields_out, HeaderName::from_static(fields::MTIME), &mtime.to_string());
    insert(fields_out, HeaderName::from_static(fields::REPLICA_STATE), source.state().as_str());
    if let Some(root) = root {
        insert(fields_out, HeaderName::from_static(fields::ROOT), &root.to_string());
    }
    add_digests(app, &source, headers, fields_out).await?;
    reading.mark(fields_out);
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

/// Whose tree.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TreeQuery {
    /// The version; the current one if absent.
    #[param(value_type = Option<u64>)]
    version: Option<VersionId>,
    /// The space, for a version that is meant wherever its object is by now; then the path is only shown.
    #[param(value_type = Option<String>)]
    space: Option<SpaceId>,
}

/// Returns the stored form of a version's hash tree, by which any range can be verified.
#[utoipa::path(
    get, path = "/v1/trees/{*path}", tag = "data",
    params(("path" = String, Path, description = "path of the object"), TreeQuery),
    responses(
        (status = 200, description = "the hash tree", content_type = "application/vnd.percale.hash-tree", body = Vec<u8>),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get_tree(
    State(app): State<AppState>,
    session: Session,
    NamespacePath(path): NamespacePath,
    Query(query): Query<TreeQuery>,
) -> Result<Response> {
    let open = match (query.space, query.version) {
        (Some(space), Some(version)) => app.catalog.open_by_id(&session.caller, space, version).await,
        (None, version) => app.catalog.open_object(&session.caller, &path, version).await,
        (Some(_), None) => {
            return Err(ApiError::invalid("a space is only named together with a version").with_path(path));
        }
    };
    let open = open.map_err(|error| ApiError::from(error).with_path(&path))?;
    tree_of(&app, &session, open).await
}

/// Answers with the tree of a version.
pub(super) async fn tree_of(app: &AppState, session: &Session, open: OpenVersion) -> Result<Response> {
    let (version, path) = (open.version, open.path.clone());
    let source = app.reader.source(open, &session.reach()).await?;
    let tree = source.tree.ok_or_else(|| {
        let detail = "this version was registered in place and is not hashed yet; check it first";
        ApiError::new(ErrorCode::NotFound, detail).with_path(&path)
    })?;
    let mut response = tree.encode().into_response();
    insert(response.headers_mut(), header::CONTENT_TYPE, media::TREE);
    insert(response.headers_mut(), HeaderName::from_static(fields::VERSION), &version.to_string());
    Ok(response)
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal("hashing did not end").with_source(error))
}

pub(super) fn text<'a>(headers: &'a HeaderMap, field: &HeaderName) -> Option<&'a str> {
    headers.get(field).and_then(|value| value.to_str().ok()).map(str::trim)
}

pub(super) fn insert(headers: &mut HeaderMap, field: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(field, value);
    }
}

/// Tells whether a list of entity tags names this one, or `*`. The tag by version id is always accepted. A weak tag
/// never matches, since ours are strong.
pub(super) fn lists(list: &str, tag: &str, version: VersionId) -> bool {
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
