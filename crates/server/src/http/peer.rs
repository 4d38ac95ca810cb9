//! What sites ask each other under `/v1/peer/` (`docs/design/federation.md`). Not part of the public description.

mod checks;
mod dial;
mod lasting;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::stream;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use percale_api::importing::{RegisterFiles, Registered};
use percale_api::peer::{
    self, Changed, Changes, CopyAnswer, CopyAnswers, CopyReport, CopyReports, Evict, EvictAnswers, HomeSpace,
    Join, JournalRecord, MAX_COPIES, Outcome, OwnCopy, PeerStore, Publish, PublishAnswer, PublishCondition,
    Published, Roster, SpaceChanges,
};
use percale_catalog::{
    ArrivalId, Condition, CopyId, EvictAnswer, NewCopy, Publication, RemotePublication, ReplicaReport,
    ReportAnswer, StoreLayout, StoreState,
};
use percale_core::access::{Caller, Identity, Issuer};
use percale_core::ids::{SpaceId, VersionId};
use percale_core::{ErrorCode, Position, Timestamp};
use percale_federation::{Member, follow, reverse, roster};
use percale_mover::tuning;
use percale_trust::SitePublicKey;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::auth::Session;
use super::extract::{Json, parse_json, read_json};
use crate::app::system_caller;
use crate::listener::PeerKey;
use crate::tasks::import::registrar;
use crate::{ApiError, AppState, Result, extraction};

/// Longest wait for something new.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Records of one space in one answer. A record may hold hundreds of objects.
const RECORDS: usize = 32;
/// Spaces with something new in one answer; the others come with the next.
const SPACES: usize = 16;
/// Positions in one question.
const MAX_POSITIONS: usize = 10_000;
/// How long a new home waits for the record of the hand-over.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/peer/join", post(join))
        .route("/v1/peer/key", get(own_key).post(show_key))
        .route("/v1/peer/roster", post(exchange_rosters))
        .route("/v1/peer/changes", post(changes))
        .route("/v1/peer/snapshot/{space}", get(snapshot))
        .route("/v1/peer/trees/{space}/{version}", get(tree))
        .route("/v1/peer/publish", post(publish))
        .route("/v1/peer/copies", post(copies))
        .route("/v1/peer/register", post(register))
        .route("/v1/peer/take-over", post(take_over))
        .route("/v1/peer/evict", post(evict))
        .route("/v1/peer/check", post(checks::check))
        .route("/v1/peer/headers", post(headers))
        .route("/v1/peer/tasks", post(super::tasks::hand_over))
        .route("/v1/peer/dial", post(dial::dial))
        .route("/v1/peer/hello", post(dial::hello))
        .route("/v1/peer/control", get(control))
        .route("/v1/peer/reverse", get(reverse_connection))
}

/// The site that asks, where no user does.
struct PeerSite(Arc<Member>);

impl FromRequestParts<AppState> for PeerSite {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self> {
        let session = Session::from_request_parts(parts, app).await?;
        session.site.map(PeerSite).ok_or_else(only_members)
    }
}

fn only_members() -> ApiError {
    let detail = "only members of the fabric ask this, over a connection of their own";
    ApiError::new(ErrorCode::SiteRefused, detail)
}

/// A stranger proves an invitation. What it shows on its connection is the key that it will be known by.
async fn join(State(app): State<AppState>, request: Request) -> Result<Json<Roster>> {
    let key = shown_key(&request)?;
    let join: Join = parse_json(&read_json(request).await?)?;
    Ok(Json(app.fabric.admit(join, &key).await?))
}

/// Returns the key that a site has proved on its connection, whether it is known here or not.
fn shown_key(request: &Request) -> Result<SitePublicKey> {
    let detail = "a site asks this over a connection on which it proves its key";
    let key = request.extensions().get::<PeerKey>();
    key.map(|key| key.0).ok_or_else(|| ApiError::new(ErrorCode::SiteRefused, detail))
}

/// What this site says of itself, for a member that does not know its key any more. The announcement proves itself.
async fn own_key(State(app): State<AppState>, request: Request) -> Result<Json<peer::Member>> {
    shown_key(&request)?;
    Ok(Json(app.fabric.introduction()?))
}

/// A member shows the key that it has on this connection, and how it was announced.
async fn show_key(State(app): State<AppState>, request: Request) -> Result<StatusCode> {
    let key = shown_key(&request)?;
    let said: peer::Member = parse_json(&read_json(request).await?)?;
    app.fabric.introduced(said, &key).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn exchange_rosters(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    Json(theirs): Json<Roster>,
) -> Result<Json<Roster>> {
    app.fabric.merge_from(site.id, roster::all_from_wire(theirs)?).await?;
    Ok(Json(app.fabric.roster().to_wire()))
}

/// Answers what is new behind the given positions, or waits for it.
async fn changes(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    Json(asked): Json<Changes>,
) -> Result<Json<Changed>> {
    if asked.positions.len() > MAX_POSITIONS {
        return Err(ApiError::invalid(format!("more than {MAX_POSITIONS} positions in one question")));
    }
    let deadline = Instant::now() + Duration::from_secs(u64::from(asked.wait_s)).min(MAX_WAIT);
    let mut watch = app.catalog.watch();
    let mut members = app.fabric.watch();
    loop {
        watch.borrow_and_update();
        let spaces = new_records(&app, &asked.positions).await?;
        let (homes, stores, known) = lists(&app).await?;
        let is_known = asked.known.as_ref() == Some(&known);
        if !spaces.is_empty() || !is_known || Instant::now() >= deadline {
            let (homes, stores) = if is_known { (None, None) } else { (Some(homes), Some(stores)) };
            let now_us = Timestamp::now().as_micros();
            return Ok(Json(Changed {
                spaces,
                homes,
                stores,
                known,
                now_us,
                window: Some(tuning::window()),
            }));
        }
        tokio::select! {
            _ = watch.changed() => {}
            // A site that was removed, or whose key was revoked, must not hear of what comes after.
            _ = members.changed() => app.fabric.require_confirmed(&*app.fabric.member(site.id)?)?,
            () = tokio::time::sleep_until(deadline) => {}
            () = app.stopping.cancelled() => {
                return Err(ApiError::new(ErrorCode::SiteUnavailable, "the server is stopping"));
            }
        }
    }
}

async fn new_records(app: &AppState, positions: &[Position]) -> Result<Vec<SpaceChanges>> {
    let mut spaces = Vec::new();
    for position in positions {
        let records =
            match app.catalog.journal(&system_caller(), position.space, Some(*position), RECORDS).await {
                Ok(records) if records.is_empty() => continue,
                Ok(records) => SpaceChanges {
                    space: position.space,
                    records: records.into_iter().map(to_wire).collect(),
                    is_gone: false,
                },
                Err(error) if error.code() == ErrorCode::PreconditionFailed => {
                    SpaceChanges { space: position.space, records: Vec::new(), is_gone: true }
                }
                // A space that this site does not know of any more says nothing.
                Err(error) if error.code() == ErrorCode::SpaceNotFound => continue,
                Err(error) => return Err(error.into()),
            };
        spaces.push(records);
        if spaces.len() == SPACES {
            break;
        }
    }
    Ok(spaces)
}

fn to_wire(record: percale_catalog::Record) -> JournalRecord {
    let percale_catalog::Record { position, at, actor, kind, v, body } = record;
    JournalRecord { position, at_us: at.as_micros(), actor, kind, v, body }
}

/// Returns what is at home here, the stores, and a fingerprint of both.
async fn lists(app: &AppState) -> Result<(Vec<HomeSpace>, Vec<PeerStore>, String)> {
    let mut homes = Vec::new();
    let mut print = blake3::Hasher::new();
    for space in app.catalog.spaces(&system_caller()).await? {
        if space.home.is_none() {
            // The position is not part of it: records say that it moves. The term is, since a new one needs a look.
            print.update(format!("{} {} {}\n", space.id, space.name, space.position.term).as_bytes());
            homes.push(HomeSpace { id: space.id, name: space.name, position: space.position });
        }
    }
    let mut stores = Vec::new();
    for store in app.catalog.stores().await? {
        print.update(format!("{} {} {} {}\n", store.id, store.name, store.layout, store.state).as_bytes());
        stores.push(PeerStore {
            id: store.id,
            name: store.name,
            layout: match store.layout {
                StoreLayout::Managed => percale_api::spaces::Layout::Managed,
                StoreLayout::Native => percale_api::spaces::Layout::Native,
            },
            state: match store.state {
                StoreState::Online => percale_api::spaces::StoreState::Active,
                StoreState::ReadOnly | StoreState::Offline => percale_api::spaces::StoreState::Draining,
            },
        });
    }
    Ok((homes, stores, print.finalize().to_hex().to_string()))
}

/// All rows of a space, as they were at one moment.
async fn snapshot(
    State(app): State<AppState>,
    _site: PeerSite,
    Path(space): Path<SpaceId>,
) -> Result<Response> {
    let snapshot = app.catalog.snapshot(space).await?;
    let body = stream::try_unfold(snapshot, |mut snapshot| async move {
        Ok::<_, ApiError>(snapshot.next().await?.map(|bytes| (bytes, snapshot)))
    });
    let json_lines = HeaderValue::from_static("application/jsonl");
    Ok(([(header::CONTENT_TYPE, json_lines)], Body::from_stream(body)).into_response())
}

/// The hash tree of a version of which this site has a copy, on behalf of a user.
async fn tree(
    State(app): State<AppState>,
    session: Session,
    Path((space, version)): Path<(SpaceId, u64)>,
) -> Result<Response> {
    let open = app.catalog.open_by_id(&session.caller, space, VersionId(version)).await?;
    super::data::tree_of(&app, &session, open).await
}

/// Makes versions whose bytes lie at the asking site.
async fn publish(
    State(app): State<AppState>,
    session: Session,
    Json(Publish { caller, items, abandoned }): Json<Publish>,
) -> Result<Json<PublishAnswer>> {
    let site = session.site.as_ref().ok_or_else(only_members)?;
    let caller = match session.delegation {
        // A task at the asking site, for a user for whom another one vouches.
        Some(_) => session.caller.clone(),
        None => app.authenticator.vouched_for(site, &caller)?.seen(&site.name, &app.site.name),
    };
    let abandoned = abandoned.into_iter().map(ArrivalId).collect();
    let abandoned = app.catalog.abandon_publications(site.id, abandoned).await?;
    let items = items.into_iter().map(|item| RemotePublication {
        id: ArrivalId(item.id),
        publication: Publication {
            caller: caller.clone(),
            path: item.path,
            parents: item.parents,
            condition: match item.condition {
                PublishCondition::New => Condition::New,
                PublishCondition::Match(version) => Condition::Match(version),
                PublishCondition::Existing => Condition::Existing,
                PublishCondition::Any => Condition::Any,
            },
            size: item.size,
            root: Some(item.root),
            mtime: item.mtime_us.map(Timestamp::from_micros),
            mode: item.mode,
            digests: item.digests,
        },
        store: item.store,
        key: item.key,
        generation: item.generation,
    });
    let items =
        app.catalog.publish_from(site.id, items.collect()).await.into_iter().map(|outcome| match outcome {
            Ok(committed) => Outcome::Done(published(committed)),
            Err(error) => Outcome::Failed(ApiError::from(error).to_problem()),
        });
    let abandoned = abandoned.into_iter().map(|committed| committed.map(published)).collect();
    Ok(Json(PublishAnswer { items: items.collect(), abandoned }))
}

/// Makes objects of files that lie at the asking site.
async fn register(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    Json(files): Json<RegisterFiles>,
) -> Result<Json<Registered>> {
    let caller = app.authenticator.vouched_for(&site, &files.caller)?.seen(&site.name, &app.site.name);
    let files = registrar::from_wire(caller, files);
    registrar::register(&app, Some(site.id), files).await.map(Json)
}

fn published(committed: percale_catalog::Committed) -> Published {
    let percale_catalog::Committed { path, entry, version, position, created } = committed;
    Published { path, entry, version, position, created }
}

/// Notes copies at the asking site: new ones, and the states of known ones.
async fn copies(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    Json(CopyReports { actor, items }): Json<CopyReports>,
) -> Result<Json<CopyAnswers>> {
    let actor = match actor {
        Some(user) => app.authenticator.vouched_for(&site, &Caller::user(user))?.clone(),
        None => itself(&site),
    };
    let mut answers: Vec<Option<Outcome<CopyAnswer>>> = items.iter().map(|_| None).collect();
    let (mut new, mut new_at, mut states, mut states_at) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, item) in items.into_iter().enumerate() {
        let CopyReport { arrival, space, version, store, key, state, generation, root, is_checked } = item;
        match (arrival, key, root) {
            (Some(id), Some(key), Some(root)) => {
                new.push(NewCopy { id: ArrivalId(id), space, version, store, key, generation, root });
                new_at.push(at);
            }
            (_, key, _) => {
                states.push(ReplicaReport {
                    space,
                    version,
                    store,
                    key,
                    state,
                    generation,
                    root,
                    is_checked,
                });
                states_at.push(at);
            }
        }
    }
    let mut answer = |at: usize, outcome| answers.get_mut(at).map(|answer| answer.replace(outcome));
    let failed = |error| Outcome::Failed(ApiError::from(error).to_problem());
    for (at, outcome) in new_at.into_iter().zip(app.catalog.add_copies(Some(site.id), &actor, new).await) {
        answer(
            at,
            match outcome {
                Ok(percale_catalog::CopyAnswer::Added { position }) => {
                    Outcome::Done(CopyAnswer::Noted(position))
                }
                Ok(percale_catalog::CopyAnswer::Known { key }) => Outcome::Done(CopyAnswer::Known(key)),
                Ok(percale_catalog::CopyAnswer::Gone) => Outcome::Done(CopyAnswer::Gone),
                Err(error) => failed(error),
            },
        );
    }
    for (at, outcome) in states_at.into_iter().zip(app.catalog.report_from(site.id, states).await) {
        answer(
            at,
            match outcome {
                Ok(ReportAnswer::Noted { position }) => Outcome::Done(CopyAnswer::Noted(position)),
                Ok(ReportAnswer::Refused { state, generation, position }) => {
                    Outcome::Done(CopyAnswer::Refused { state, generation, position })
                }
                Ok(ReportAnswer::Gone) => Outcome::Done(CopyAnswer::Gone),
                Err(error) => failed(error),
            },
        );
    }
    let lost = || Outcome::Failed(ApiError::internal("a report has no answer").to_problem());
    Ok(Json(CopyAnswers { items: answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect() }))
}

/// Makes this site the home of a space that its home hands over.
async fn take_over(
    State(app): State<AppState>,
    _site: PeerSite,
    Json(position): Json<Position>,
) -> Result<Json<Position>> {
    // The record that says so comes by the journal.
    if follow::caught_up(&app.fabric, position, TAKE_OVER_WITHIN).await?.is_some() {
        let detail = "this site's follower did not reach the position of the hand-over in time";
        return Err(ApiError::new(ErrorCode::SiteUnavailable, detail));
    }
    let promoted = match app.catalog.take_over(position.space, position).await {
        Ok(promoted) => promoted,
        // The answer to an earlier request was lost.
        Err(error) if error.code() == ErrorCode::AlreadyExists => {
            return Ok(Json(app.catalog.position(position.space).await?));
        }
        Err(error) => return Err(error.into()),
    };
    tracing::info!(space = %position.space, position = %promoted.position, "this site is the home of a space now");
    Ok(Json(promoted.position))
}

/// Lets copies at the asking site go, unless one is the last good one. The site decides whether its user may ask for it: it
/// has the bytes in any case.
async fn evict(
    State(app): State<AppState>,
    session: Session,
    Json(Evict { items }): Json<Evict>,
) -> Result<Json<EvictAnswers>> {
    let refused =
        || ApiError::new(ErrorCode::SiteRefused, "only members of the fabric have copies to let go");
    let site = session.site.as_ref().ok_or_else(refused)?;
    require_room(items.len())?;
    let actor = match session.caller.user {
        Some(_) => session.caller.clone(),
        None => itself(site),
    };
    let ids = items.into_iter().map(|OwnCopy { space, version, store }| CopyId { space, version, store });
    let answers = app.catalog.remove_copies(Some(site.id), &actor, ids.collect()).await;
    let outcome = |answer| match answer {
        Ok(EvictAnswer::Removed { position }) => Outcome::Done(Some(position)),
        Ok(EvictAnswer::Gone) => Outcome::Done(None),
        Err(error) => Outcome::Failed(ApiError::from(error).to_problem()),
    };
    Ok(Json(EvictAnswers { items: answers.into_iter().map(outcome).collect() }))
}

fn require_room(copies: usize) -> Result<()> {
    match copies <= MAX_COPIES {
        true => Ok(()),
        false => {
            let detail = format!("more than {MAX_COPIES} copies in one request");
            Err(ApiError::new(ErrorCode::PayloadTooLarge, detail))
        }
    }
}

/// Reads headers of copies that this site has, for the home of their space.
async fn headers(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    Json(peer::ReadHeaders { space, versions }): Json<peer::ReadHeaders>,
) -> Result<Response> {
    require_room(versions.len())?;
    extraction::require_readers(&app)?;
    let known = app.catalog.followed_space(space).await?;
    if known.is_none_or(|known| known.home != Some(site.id)) {
        let detail = "only the home of a space has headers read by other sites";
        return Err(ApiError::new(ErrorCode::SiteRefused, detail));
    }
    let read_by = app.clone();
    let work = |sender: Sender<Bytes>| async move {
        let read = extraction::read_for_home(&read_by, space, &versions).await;
        // Who asked may have gone.
        let _ = sender.send(serde_json::to_vec(&read).unwrap_or_default().into()).await;
    };
    Ok(lasting::answer(&app, "application/json", work))
}

/// Returns the caller that a site itself is.
fn itself(site: &Member) -> Caller {
    Caller::user(Identity { issuer: Issuer::site(&site.name), name: "system".into() })
}

async fn control(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    request: Request,
) -> Result<Response> {
    let fabric = app.fabric.clone();
    switch(&app, request, reverse::CONTROL, move |connection| async move {
        if let Err(error) = fabric.reverse().control(site.id, connection).await {
            tracing::warn!(site = site.name, %error, "cannot hold a control session");
        }
    })
}

async fn reverse_connection(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    request: Request,
) -> Result<Response> {
    let fabric = app.fabric.clone();
    switch(&app, request, reverse::REVERSE, move |connection| async move {
        if let Err(error) = fabric.reverse().arrived(site.id, connection) {
            tracing::warn!(site = site.name, %error, "cannot take a reverse connection");
        }
    })
}

/// Turns the connection of a request into one of another protocol.
fn switch<F>(
    app: &AppState,
    mut request: Request,
    protocol: &'static str,
    work: impl FnOnce(reverse::Connection) -> F + Send + 'static,
) -> Result<Response>
where
    F: Future<Output = ()> + Send,
{
    let asked = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if asked != Some(protocol) {
        return Err(ApiError::invalid(format!("this address needs 'Upgrade: {protocol}'")));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let stopping = app.stopping.clone();
    app.background.spawn(async move {
        let work = async {
            match upgrade.await {
                Ok(connection) => work(Box::new(TokioIo::new(connection))).await,
                Err(error) => tracing::debug!(%error, protocol, "a connection ended before it was switched"),
            }
        };
        tokio::select! {
            () = work => {}
            () = stopping.cancelled() => {}
        }
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, protocol)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}
