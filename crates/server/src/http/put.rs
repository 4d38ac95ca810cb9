//! Content from ordinary clients: PUT of `/v1/data/{path}`.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderName, StatusCode, header};
use percale_api::uploads::Committed as CommittedBody;
use percale_api::{Problem, digest_fields, fields};
use percale_catalog::Condition;
use percale_core::access::{Caller, Permission};
use percale_core::digest::{Algorithm, Digest, Hasher};
use percale_core::tree::{GROUP_SIZE, HashTree, TreeHasher};
use percale_core::{ByteCount, ErrorCode, ObjectPath, Timestamp};
use percale_store::{SmallFile, StageOptions};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::data::{blocking, etag, insert, lists, text};
use super::extract::{Json, NamespacePath, Query, body_error, drain};
use super::paging::Flag;
use crate::publish::{NewObject, StagedContent, key_for_stage};
use crate::upload::space_of;
use crate::{ApiError, AppState, Result};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(put_data))
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
        delegation: None,
        path: path.clone(),
        parents: query.parents.0,
        condition,
        mtime,
        mode: None,
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
                .stat_no_link(caller, path)
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
