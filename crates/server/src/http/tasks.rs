//! Managed tasks: submitted, watched, cancelled, tried again.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use percale_api::tasks::{NewTask, Progress, Task, TaskItem, TaskSpec};
use percale_api::{Page, Problem};
use percale_catalog::TaskFilter;
use percale_core::access::{Caller, Permission, Subject};
use percale_core::ids::TaskId;
use percale_core::state::TaskState;
use percale_core::{ErrorCode, ObjectPath, Timestamp};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, require_user};
use super::extract::{Json, Param, Query};
use super::paging::{Paging, limit, page};
use super::{header_value, idempotency};
use crate::authorize::authorize;
use crate::tasks::Stored;
use crate::{ApiError, AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list_tasks, submit_task))
        .routes(routes!(get_task))
        .routes(routes!(list_items))
        .routes(routes!(cancel_task))
        .routes(routes!(retry_task))
}

/// What a client sees of a task.
fn describe(task: percale_catalog::Task) -> Result<Task> {
    let stored =
        Stored::read(&task.spec).map_err(|error| error.context(format!("cannot show task {}", task.id)))?;
    let progress = &task.progress;
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
        },
        attempt: task.attempt,
        problem: task.fault.map(|fault| Problem::new(fault.code, fault.detail)),
        created: task.created,
        changed: task.changed,
        deadline: task.deadline,
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
    /// Only those of this kind: `verify`, `delete`, `copy`.
    kind: Option<String>,
}

/// Lists the caller's tasks, the newest first; for an administrator those of everybody.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(TaskQuery), responses((status = 200, description = "the tasks", body = Page<Task>)))]
async fn list_tasks(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Query(query): Query<TaskQuery>,
    uri: Uri,
) -> Result<Response> {
    require_user(&caller, "listing tasks")?;
    let filter = TaskFilter { states: query.state.into_iter().collect(), kind: query.kind };
    let tasks = app.catalog.tasks(&caller, filter, query.cursor, limit(query.limit)?).await?;
    let items: Result<Vec<_>> = tasks.items.into_iter().map(describe).collect();
    Ok(page(&uri, items?, tasks.next))
}

/// Submits a task. The same `Idempotency-Key` gives the first task again.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", request_body = NewTask, responses((status = 201, description = "the task", body = Task)))]
async fn submit_task(
    State(app): State<AppState>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Json(new): Json<NewTask>,
) -> Result<Response> {
    let key = idempotency::key(&headers)?;
    let task = submit_new(&app, &caller, new, key).await?;
    let location = header_value(&format!("/v1/tasks/{}", task.id));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(task)).into_response())
}

/// Submits a task that another request turned into.
pub(super) async fn submit(app: &AppState, caller: &Caller, spec: TaskSpec) -> Result<Task> {
    submit_new(app, caller, NewTask { spec, label: None, deadline: None }, None).await
}

async fn submit_new(app: &AppState, caller: &Caller, new: NewTask, key: Option<String>) -> Result<Task> {
    require_user(caller, "submitting a task")?;
    if new.label.as_ref().is_some_and(|label| label.len() > 1000) {
        return Err(ApiError::invalid("cannot submit a task: label has more than 1000 bytes"));
    }
    if let Some(deadline) = new.deadline.filter(|deadline| *deadline <= Timestamp::now()) {
        return Err(ApiError::invalid(format!("cannot submit a task: its deadline {deadline} is over")));
    }
    check(app, caller, &new.spec).await?;
    let stored = Stored::new(new.spec, new.label);
    let task = percale_catalog::NewTask {
        kind: stored.kind().to_owned(),
        spec: stored.write()?,
        deadline: new.deadline,
        idempotency_key: key,
    };
    let (kind, spec) = (task.kind.clone(), task.spec.clone());
    let task = app.catalog.submit_task(caller, task).await?;
    if task.kind != kind || task.spec != spec {
        let detail = format!("this idempotency key was used for another task, {}", task.id);
        return Err(ApiError::new(ErrorCode::IdempotencyMismatch, detail));
    }
    app.tasks.wake();
    describe(task)
}

/// Finds out at once what would fail for certain. The task's steps are decided upon again, one by one.
async fn check(app: &AppState, caller: &Caller, spec: &TaskSpec) -> Result<()> {
    let needs = async |path: &ObjectPath, permission| {
        authorize(&app.catalog, caller, path, permission).await?;
        app.catalog.stat(caller, path).await.on_path(path).map(|_| ())
    };
    match spec {
        // A check reads every byte from the storage and changes the state of copies.
        TaskSpec::Verify { path } => needs(path, Permission::Read).await,
        TaskSpec::Delete { path } if path.is_space() => Err(ApiError::new(
            ErrorCode::Unsupported,
            format!("cannot remove the root of a space; DELETE /v1/spaces{path} removes an empty one"),
        )
        .with_path(path)),
        TaskSpec::Delete { path } => needs(path, Permission::Write).await,
        TaskSpec::Copy { from, to } => {
            needs(from, Permission::Read).await?;
            authorize(&app.catalog, caller, to, Permission::Write).await?;
            if to.is_within(from) {
                let detail = format!("cannot copy {from} into itself at {to}");
                return Err(ApiError::invalid(detail).with_path(to));
            }
            match app.catalog.stat(caller, to).await {
                Ok(_) => Err(ApiError::new(
                    ErrorCode::AlreadyExists,
                    format!("cannot copy {from} to {to}: it exists"),
                )
                .with_path(to)),
                Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
                Err(error) => Err(ApiError::from(error).with_path(to)),
            }
        }
        _ => Err(ApiError::new(ErrorCode::Unsupported, "this release does not know this kind of task")),
    }
}

/// Returns a task.
#[utoipa::path(get, path = "/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses((status = 200, description = "the task", body = Task)))]
async fn get_task(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<TaskId>,
) -> Result<Json<Task>> {
    Ok(Json(describe(app.catalog.task(&caller, id).await?)?))
}

/// Lists the items of a task that did not succeed; the first 10 000 are kept.
#[utoipa::path(get, path = "/v1/tasks/{id}/items", tag = "tasks", params(("id" = String, Path, description = "the task's id"), Paging), responses((status = 200, description = "the items", body = Page<TaskItem>)))]
async fn list_items(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<TaskId>,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Response> {
    let first: u64 = match paging.cursor.as_deref() {
        Some(cursor) => cursor.parse().map_err(|_| ApiError::invalid("cursor is not one of this list"))?,
        None => 0,
    };
    let items = app.catalog.task_items(&caller, id, paging.cursor, limit(paging.limit)?).await?;
    let described = items.items.into_iter().zip(first + 1..).map(|(item, number)| TaskItem {
        number,
        path: item.path,
        code: item.code.map_or_else(|| item.outcome.clone(), |code| code.to_string()),
        detail: item.detail,
    });
    Ok(page(&uri, described.collect(), items.next))
}

/// Cancels a task that has not ended. What it did stays.
#[utoipa::path(post, path = "/v1/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses((status = 200, description = "the task", body = Task)))]
async fn cancel_task(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<TaskId>,
) -> Result<Json<Task>> {
    require_user(&caller, "cancelling a task")?;
    let task = app.catalog.cancel_task(&caller, id).await?;
    app.tasks.stop(id);
    Ok(Json(describe(task)?))
}

/// Tries a task again that was not wholly successful.
#[utoipa::path(post, path = "/v1/tasks/{id}/retry", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses((status = 200, description = "the task", body = Task)))]
async fn retry_task(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<TaskId>,
) -> Result<Json<Task>> {
    require_user(&caller, "trying a task again")?;
    let task = app.catalog.retry_task(&caller, id).await?;
    app.tasks.wake();
    Ok(Json(describe(task)?))
}
