//! A fabric to try things in.

use std::time::Duration;

use percale_server::config::{Config, TlsMode};
use percale_server::{Running, start};
use serde_json::json;
use tempfile::TempDir;

use crate::common::{Client, config, eventually};

/// A site and its administrator.
pub struct Site {
    pub name: &'static str,
    pub running: Option<Running>,
    pub directory: TempDir,
    pub config: Config,
    pub admin: Client,
}

impl Site {
    /// Starts a site on its own, with a store.
    pub async fn start(name: &'static str) -> Self {
        Self::with(name, |_| {}).await
    }

    /// The same, with other settings.
    pub async fn with(name: &'static str, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&directory);
        config.site.name = name.into();
        config.tls.mode = TlsMode::Auto;
        change(&mut config);
        let (running, admin) = serve(config.clone()).await;
        let site = Self { name, running: Some(running), directory, config, admin };
        let store = json!({"name": "disk", "connector": "posix", "config": {"root": site.directory.path().join("disk")}});
        site.admin.post("/v1/stores", store).await.expect(201);
        site
    }

    /// Ends the server in order.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            // The port stays the same, so that the others find it again.
            self.config.http.listen = running.address();
            running.shutdown().await;
        }
    }

    /// Starts the server again.
    pub async fn resume(&mut self) {
        let (running, admin) = serve(self.config.clone()).await;
        self.running = Some(running);
        self.admin = admin;
    }

    pub async fn user(&self, name: &str) -> Client {
        let issued =
            self.admin.post("/v1/tokens", json!({"subject": format!("user:{name}")})).await.expect(201);
        self.admin.as_token(issued["secret"].as_str().unwrap())
    }

    /// Makes an invitation.
    pub async fn invite(&self) -> String {
        let made = self.admin.post("/v1/sites/invitations", json!({})).await.expect(201);
        made["invitation"].as_str().unwrap().to_owned()
    }

    /// Joins with an invitation.
    pub async fn join(&self, invitation: &str) {
        self.admin.post("/v1/sites/join", json!({"invitation": invitation})).await.expect(200);
    }

    /// Waits until this site reaches all these.
    pub async fn reaches(&self, names: &[&str]) {
        eventually(&format!("{} reaches {names:?}", self.name), || async {
            let sites = self.admin.get("/v1/sites").await.expect(200);
            let reached = |name: &&str| {
                sites["items"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|site| site["name"] == **name && site["route"] != "unreachable")
            };
            names.iter().all(reached).then_some(())
        })
        .await;
    }

    /// Waits until this site answers so for a path.
    pub async fn sees(&self, client: &Client, path: &str) -> serde_json::Value {
        eventually(&format!("{} sees {path}", self.name), || async {
            let answer = client.get(path).await;
            (answer.status.as_u16() == 200).then(|| answer.json())
        })
        .await
    }
}

async fn serve(config: Config) -> (Running, Client) {
    let running = start(config).await.unwrap();
    let token = std::fs::read_to_string(running.admin_token_path()).unwrap();
    let ca = std::fs::read(running.ca_path().unwrap()).unwrap();
    let ca = reqwest::Certificate::from_pem(&ca).unwrap();
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([ca]).build().unwrap();
    let url = running.url();
    let http = Client { http, url, token: Some(token.trim().to_owned()) };
    (running, http)
}

/// Three sites that know each other.
pub async fn three() -> [Site; 3] {
    let (alps, baltic, coast) =
        tokio::join!(Site::start("alps"), Site::start("baltic"), Site::start("coast"));
    baltic.join(&alps.invite().await).await;
    coast.join(&alps.invite().await).await;
    for site in [&alps, &baltic, &coast] {
        site.reaches(&["alps", "baltic", "coast"]).await;
    }
    [alps, baltic, coast]
}

/// How long something that must not happen is waited for.
pub const WHILE: Duration = Duration::from_millis(300);
