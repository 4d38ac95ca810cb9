//! The calls of tasks.

use std::time::Duration;

use percale_api::Page;
use percale_api::tasks::{NewTask, Task, TaskItem};
use percale_core::ids::TaskId;
use percale_core::state::TaskState;
use reqwest::Method;

use super::{all_pages, get};
use crate::call::{Call, Repeat};
use crate::client::Client;

fn show_task(id: TaskId) -> Call {
    get(format!("show task {id}"), format!("/v1/tasks/{id}"))
}

impl Client {
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
}
