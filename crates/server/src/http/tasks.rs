//! Managed tasks: submitted, watched, cancelled, tried again.

mod check;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use percale_api::peer::HandOver;
use percale_api::tasks::{Activity, NewTask, Progress, Task, TaskItem, TaskSpec};
use percale_api::{Page, Problem};
use percale_catalog::TaskFilter;
use percale_core::access::{Caller, Permission, Subject};
use percale_core::ids::TaskId;
use percale_core::state::TaskState;
use percale_core::{ErrorCode, Timestamp};
use percale_federation::{Acting, Member};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Session, delegated_here, require_user};
use super::extract::{Json, Param, Query, preferred_wait};
use super::paging::{Paging, limit, page};
use super::task_events::{FIRST_LOOK, LAST_LOOK};
use super::{forward, header_value, idempotency};
use crate::app::system_caller;
use crate::authorize::limited;
use crate::tasks::Stored;
use crate::{ApiError, AppState, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list_tasks, submit_task))
        .routes(routes!(get_task))
        .routes(routes!(list_items))
        .routes(routes!(cancel_task))
        .routes(routes!(retry_task))
}

/// What a client sees of a task.
pub(super) fn describe(task: percale_catalog::Task) -> Result<Task> {
    let stored =
        Stored::read(&task.spec).map_err(|error| error.context(format!("cannot show task {}", task.id)))?;
    let progress = &task.progress;
    let left = progress.bytes_total.filter(|_| task.state == TaskState::Running);
    let left = left.map(|total| total.saturating_sub(progress.bytes_done));
    let activity = progress.activity.clone().map(|activity| Activity {
        rate: activity.rate,
        average: activity.average,
        seconds_left: left.and_then(|left| left.checked_div(activity.rate)),
        streams: activity.streams,
        streams_reason: activity.streams_reason,
        transport: activity.transport,
        transport_reason: activity.transport_reason,
        bottleneck: activity.bottleneck,
        reason: activity.reason,
    });
    Ok(Task {
        id: task.id,
        spec: stored.spec,
        label: stored.label,
        state: task.state,
        owner: task.caller.user.map_or_else(|| "anyone".to_owned(), |user| Subject::User(user).to_string()),
        progress: Progress {
            items_total: progress.items_total.unwrap_or(progress.items_done + progress.items_failed),
            items_done: progress.items_done,
            items_failed: progress.items_failed,
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_total,
            counts: task.progress.counts.clone(),
        },
        activity,
        attempt: task.attempt,
        problem: task.fault.map(|fault| Problem::new(fault.code, fault.detail)),
        created: task.created,
        changed: task.changed,
        deadline: task.deadline,
        limit: stored.limit,
        verify: stored.verify,
    })
}

/// Which tasks are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TaskQuery {
    /// Most tasks in the answer; 1000 if absent.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// Where to go on: `next` of the answer before.
    cursor: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<String>)]
    state: Option<TaskState>,
    /// Only those of this kind: `verify`, `delete`, `copy`, `sync`, `replicate`, `evict`, `empty`, `import`.
    kind: Option<String>,
    /// The name of the site whose tasks are listed; this one if absent.
    site: Option<String>,
}

/// Lists the caller's tasks that run at a site, the newest first; for an administrator of that site those of everybody.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(TaskQuery), responses((status = 200, description = "the tasks", body = Page<Task>)))]
async fn list_tasks(
    State(app): State<AppState>,
    session: Session,
    Query(query): Query<TaskQuery>,
    request: Request,
) -> Result<Response> {
    let caller = session.require_user("listing tasks")?;
    let site = match &query.site {
        Some(name) if session.site.is_none() => other_site(&app, name)?,
        _ => None,
    };
    if let Some(site) = site {
        return forward::to_site(&app, &session, &site, request.into_parts().0, Bytes::new()).await;
    }
    let filter = TaskFilter { states: query.state.into_iter().collect(), kind: query.kind };
    let tasks = app.catalog.tasks(caller, filter, query.cursor, limit(query.limit)?).await?;
    let items: Result<Vec<_>> = tasks.items.into_iter().map(describe).collect();
    Ok(page(request.uri(), items?, tasks.next))
}

/// Submits a task. The same `Idempotency-Key` gives the first task again. A task runs where its bytes go or its space is at
/// home; that site answers for it.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", request_body = NewTask, responses((status = 201, description = "the task", body = Task)))]
async fn submit_task(
    State(app): State<AppState>,
    session: Session,
    headers: HeaderMap,
    Json(new): Json<NewTask>,
) -> Result<Response> {
    if session.site.is_some() {
        let detail = "a site hands a task over at /v1/peer/tasks, with a delegation";
        return Err(ApiError::new(ErrorCode::SiteRefused, detail));
    }
    let key = idempotency::key(&headers)?;
    let task = match place_of(&app, &new.spec).await? {
        Some(site) => to_its_site(&app, &session.caller, &site, new, key).await?,
        None => submit_new(&app, &session.caller, new, key, None).await?,
    };
    Ok(created(task))
}

fn created(task: Task) -> Response {
    let location = header_value(&format!("/v1/tasks/{}", task.id));
    (StatusCode::CREATED, [(header::LOCATION, location)], Json(task)).into_response()
}

/// Takes a task of a user of another site, which is to run here.
pub(super) async fn hand_over(
    State(app): State<AppState>,
    session: Session,
    Json(HandOver { id, task, delegation: text, idempotency_key }): Json<HandOver>,
) -> Result<Response> {
    let refuse = |detail: &str| ApiError::new(ErrorCode::SiteRefused, detail);
    let site = session.site.as_ref().ok_or_else(|| refuse("only members of the fabric hand tasks over"))?;
    let (signer, delegation) = delegated_here(&app, &text)?;
    if signer.id != site.id || delegation.task != id || delegation.caller.user != session.caller.user {
        return Err(refuse("the delegation is for another task, or of another user or site"));
    }
    if let Some(other) = place_of(&app, &task.spec).await? {
        let detail = format!("the task runs at site {}, and a task is handed over once", other.name);
        return Err(refuse(&detail));
    }
    let handed = Handed { id, text };
    let task = submit_new(&app, &delegation.caller, task, idempotency_key, Some(handed)).await?;
    Ok(created(task))
}

/// What makes a task one of another site's user.
struct Handed {
    id: TaskId,
    /// The delegation.
    text: String,
}

/// Returns the other site where a task runs, or nothing if that is this one: the destination of the bytes, the site of the
/// copies, or the home of what is removed.
async fn place_of(app: &AppState, spec: &TaskSpec) -> Result<Option<Arc<Member>>> {
    match spec {
        TaskSpec::Replicate { to: site, .. } | TaskSpec::Evict { from: site, .. } => other_site(app, site),
        TaskSpec::Copy { at: Some(site), .. } | TaskSpec::Sync { at: Some(site), .. } => {
            other_site(app, site)
        }
        TaskSpec::Delete { path } | TaskSpec::Extract { path } => match path.space() {
            Some(space) => forward::home_of(app, &space).await,
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

fn other_site(app: &AppState, name: &str) -> Result<Option<Arc<Member>>> {
    if name == app.site.name { Ok(None) } else { Ok(Some(app.fabric.named(name)?)) }
}

/// Gives a task to the site where it runs, with all that its user has to allow it.
async fn to_its_site(
    app: &AppState,
    caller: &Caller,
    site: &Member,
    mut task: NewTask,
    idempotency_key: Option<String>,
) -> Result<Task> {
    validate(caller, &task)?;
    let (path, allowed) = match &task.spec {
        TaskSpec::Replicate { path, .. }
        | TaskSpec::Evict { path, .. }
        | TaskSpec::Delete { path }
        | TaskSpec::Extract { path } => (path, limited(caller, path, Permission::Write)?),
        TaskSpec::Copy { from, to, .. } | TaskSpec::Sync { from, to, .. } => {
            let mut allowed = limited(caller, from, Permission::Read)?;
            allowed.scopes.extend(limited(caller, to, Permission::Write)?.scopes);
            (from, allowed)
        }
        _ => return Err(ApiError::internal("a task that runs where it is submitted was handed over")),
    };
    let id = TaskId::new();
    let (delegation, ends) = app.fabric.delegate(id, site, &allowed, task.deadline)?;
    let position = match path.space() {
        // What its user sees here is what the task begins with.
        Some(space) => app.catalog.space(&system_caller(), &space).await.ok().map(|space| space.position),
        None => None,
    };
    task.deadline = Some(task.deadline.map_or(ends, |deadline| deadline.min(ends)));
    let client = app.fabric.client_at(site.id, &Acting::User(caller.clone()), position)?;
    let task = client.peer_hand_over(&HandOver { id, task, delegation, idempotency_key }).await;
    let task = task.map_err(|error| {
        ApiError::from(percale_federation::Error::from(error)).context(format!("site {}", site.name))
    })?;
    app.tasks.note_elsewhere(task.id, site.id);
    Ok(task)
}

/// Submits a task that another request turned into.
pub(super) async fn submit(app: &AppState, caller: &Caller, spec: TaskSpec) -> Result<Task> {
    submit_new(app, caller, NewTask::new(spec), None, None).await
}

fn validate(caller: &Caller, new: &NewTask) -> Result<()> {
    require_user(caller, "submitting a task")?;
    if new.label.as_ref().is_some_and(|label| label.len() > 1000) {
        return Err(ApiError::invalid("cannot submit a task: label has more than 1000 bytes"));
    }
    if let Some(deadline) = new.deadline.filter(|deadline| *deadline <= Timestamp::now()) {
        return Err(ApiError::invalid(format!("cannot submit a task: its deadline {deadline} is over")));
    }
    Ok(())
}

async fn submit_new(
    app: &AppState,
    caller: &Caller,
    new: NewTask,
    key: Option<String>,
    handed: Option<Handed>,
) -> Result<Task> {
    validate(caller, &new)?;
    check::check_caught_up(app, caller, &new.spec).await?;
    let id = handed.as_ref().map(|handed| handed.id);
    let mut stored = Stored::new(new.spec);
    (stored.label, stored.limit, stored.verify) = (new.label, new.limit, new.verify);
    check::may_be_read_back(app, &stored).await?;
    stored.delegation = handed.map(|handed| handed.text);
    let task = percale_catalog::NewTask {
        id,
        kind: stored.kind().to_owned(),
        spec: stored.write()?,
        deadline: new.deadline,
        idempotency_key: key,
    };
    let task = app.catalog.submit_task(caller, task).await?;
    // A repetition is handed over with another delegation.
    let is_same = Stored::read(&task.spec).is_ok_and(|first| {
        (&first.spec, &first.label, first.limit, first.verify)
            == (&stored.spec, &stored.label, stored.limit, stored.verify)
    });
    if !is_same {
        let detail = format!("this idempotency key was used for another task, {}", task.id);
        return Err(ApiError::new(ErrorCode::IdempotencyMismatch, detail));
    }
    app.tasks.wake();
    describe(task)
}

/// Answers about a task by the site where it runs, if it is not here. A site that asks for a user of its own is not sent on.
pub(super) async fn elsewhere(
    app: &AppState,
    session: &Session,
    id: TaskId,
    request: Request,
    missing: percale_catalog::Error,
) -> Result<Response> {
    if missing.code() != ErrorCode::NotFound || session.site.is_some() || session.caller.user.is_none() {
        return Err(missing.into());
    }
    let mut sites = app.fabric.others();
    let known = app.tasks.elsewhere(id);
    sites.sort_by_key(|site| Some(site.id) != known);
    let (parts, _) = request.into_parts();
    let mut silent = Vec::new();
    for site in sites {
        match forward::to_site(app, session, &site, parts.clone(), Bytes::new()).await {
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {}
            Ok(answer) => {
                app.tasks.note_elsewhere(id, site.id);
                return Ok(answer);
            }
            Err(error) => {
                tracing::debug!(site = site.name, %error, "cannot ask a site about a task");
                silent.push(site.name.clone());
            }
        }
    }
    if silent.is_empty() {
        return Err(missing.into());
    }
    let silent = silent.join(", ");
    let detail = format!("the task {id} is at no site that answers; no answer from {silent}");
    Err(ApiError::new(ErrorCode::SiteUnavailable, detail))
}

fn described(task: percale_catalog::Task) -> Result<Response> {
    Ok(Json(describe(task)?).into_response())
}

/// Returns a task of this site or another one.
///
/// With `Prefer: wait=SECONDS` ([RFC 7240](https://www.rfc-editor.org/rfc/rfc7240), section 4.3) the answer comes when the task has ended, or after
/// that time, 30 s at most.
#[utoipa::path(
    get, path = "/v1/tasks/{id}", tag = "tasks",
    params(
        ("id" = String, Path, description = "the task's id"),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS`: how long its end is waited for"),
    ),
    responses((status = 200, description = "the task", body = Task)),
)]
async fn get_task(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<TaskId>,
    request: Request,
) -> Result<Response> {
    match ended(&app, &session.caller, id, preferred_wait(request.headers())).await {
        Ok(task) => described(task),
        Err(error) => elsewhere(&app, &session, id, request, error).await,
    }
}

/// Returns a task once it has ended, or as it is after this time.
async fn ended(
    app: &AppState,
    caller: &Caller,
    id: TaskId,
    wait: Duration,
) -> Result<percale_catalog::Task, percale_catalog::Error> {
    let began = Instant::now();
    loop {
        let ended = app.tasks.ended();
        tokio::pin!(ended);
        // From here on it hears of an end, so that none falls between the look and the wait.
        ended.as_mut().enable();
        let task = app.catalog.task(caller, id).await?;
        let left = wait.saturating_sub(began.elapsed());
        if task.state.is_final() || left.is_zero() {
            return Ok(task);
        }
        let look = (began.elapsed() / 10).clamp(FIRST_LOOK, LAST_LOOK).min(left);
        tokio::select! {
            () = ended => {}
            () = tokio::time::sleep(look) => {}
            () = app.stopping.cancelled() => return Ok(task),
        }
    }
}

/// Lists the items of a task that did not succeed; the first 10 000 are kept.
#[utoipa::path(get, path = "/v1/tasks/{id}/items", tag = "tasks", params(("id" = String, Path, description = "the task's id"), Paging), responses((status = 200, description = "the items", body = Page<TaskItem>)))]
async fn list_items(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<TaskId>,
    Query(paging): Query<Paging>,
    request: Request,
) -> Result<Response> {
    let first: u64 = match paging.cursor.as_deref() {
        Some(cursor) => cursor.parse().map_err(|_| ApiError::invalid("cursor is not one of this list"))?,
        None => 0,
    };
    let items = match app.catalog.task_items(&session.caller, id, paging.cursor, limit(paging.limit)?).await {
        Ok(items) => items,
        Err(error) => return elsewhere(&app, &session, id, request, error).await,
    };
    let described = items.items.into_iter().zip(first + 1..).map(|(item, number)| TaskItem {
        number,
        path: item.path,
        code: item.code.map_or_else(|| item.outcome.clone(), |code| code.to_string()),
        detail: item.detail,
    });
    Ok(page(request.uri(), described.collect(), items.next))
}

/// Cancels a task that has not ended. What it did stays.
#[utoipa::path(post, path = "/v1/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses((status = 200, description = "the task", body = Task)))]
async fn cancel_task(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<TaskId>,
    request: Request,
) -> Result<Response> {
    let caller = session.require_user("cancelling a task")?;
    match app.catalog.cancel_task(caller, id).await {
        Ok(task) => {
            app.tasks.stop(id);
            described(task)
        }
        Err(error) => elsewhere(&app, &session, id, request, error).await,
    }
}

/// Tries a task again that was not wholly successful.
#[utoipa::path(post, path = "/v1/tasks/{id}/retry", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses((status = 200, description = "the task", body = Task)))]
async fn retry_task(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<TaskId>,
    request: Request,
) -> Result<Response> {
    let caller = session.require_user("trying a task again")?;
    match app.catalog.retry_task(caller, id).await {
        Ok(task) => {
            app.tasks.wake();
            described(task)
        }
        Err(error) => elsewhere(&app, &session, id, request, error).await,
    }
}
