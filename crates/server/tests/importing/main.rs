//! Files of a native store, registered in place.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

#[path = "../common/mod.rs"]
mod common;

mod emptied;
mod faults;
mod following;
mod passes;

use std::path::PathBuf;

use common::{Client, Server, eventually};
use serde_json::{Value, json};

/// A server with a native store beside the managed one, and a space of alice's.
pub struct Site {
    /// The server.
    pub server: Server,
    /// The root of the native store.
    pub raw: PathBuf,
}

impl Site {
    /// Starts both.
    pub async fn start() -> Self {
        let server = Server::with_space().await;
        let raw = server.directory.path().join("raw");
        let store = json!({"name": "raw", "connector": "posix", "layout": "native", "config": {"root": raw}});
        server.admin.post("/v1/stores", store).await.expect(201);
        Self { server, raw }
    }

    /// Returns the administrator.
    pub fn admin(&self) -> &Client {
        &self.server.admin
    }

    /// Writes a file below the root of the native store.
    pub fn write(&self, at: &str, bytes: &[u8]) {
        let at = self.raw.join(at);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, bytes).unwrap();
    }

    /// Submits the import of `run` into `/s/run`, with what else is asked for.
    pub async fn submit(&self, more: Value) -> Value {
        let mut order = json!({"kind": "import", "source": self.raw.join("run"), "to": "/s/run"});
        order.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.admin().post("/v1/tasks", order).await.expect(201)
    }

    /// Imports, and returns the task when it has ended.
    pub async fn import(&self, more: Value) -> Value {
        let task = self.submit(more).await;
        ended(self.admin(), &task).await
    }

    /// Imports without hashing, and returns what became of the files.
    pub async fn counts(&self) -> Value {
        self.import(json!({"hash": "never"})).await["progress"]["counts"].clone()
    }

    /// Returns the items of a task: path, code and detail.
    pub async fn items(&self, task: &Value) -> Vec<(String, String, String)> {
        let items = self.admin().get(&format!("/v1/tasks/{}/items", task["id"].as_str().unwrap())).await;
        let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
        let items = items.expect(200)["items"].as_array().unwrap().clone();
        items.iter().map(|item| (text(item, "path"), text(item, "code"), text(item, "detail"))).collect()
    }

    /// Returns the state of the first copy of an object.
    pub async fn state(&self, path: &str) -> String {
        let entry = self.admin().get(&format!("/v1/entries{path}")).await.expect(200);
        entry["replicas"][0]["state"].as_str().unwrap().to_owned()
    }

    /// Lists everything below `/s/run`.
    pub async fn tree(&self) -> Vec<String> {
        let page = self.admin().get("/v1/list/s/run?recursive=true&limit=10000").await.expect(200);
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| item["path"].as_str().unwrap().to_owned()).collect()
    }
}

/// Waits for the end of a task.
pub async fn ended(client: &Client, task: &Value) -> Value {
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    eventually("the end of the task", || async {
        let task = client.get(&address).await.expect(200);
        let state = task["state"].as_str().unwrap().to_owned();
        ["succeeded", "partial", "failed", "cancelled"].contains(&state.as_str()).then_some(task)
    })
    .await
}
