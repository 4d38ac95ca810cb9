//! The demo's server: the same binary, as a process of its own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use percale_client::{Client, ClientOptions};
use percale_trust::Secret;
use tokio::process::{Child, Command};

use super::folder::Folder;

/// Within this the server must serve.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Within this it must have ended when asked to.
const STOP_DEADLINE: Duration = Duration::from_secs(40);
const USUAL_PORT: u16 = 8787;

/// The server's process.
pub struct Site {
    folder: Folder,
    port: u16,
    child: Option<Child>,
}

impl Site {
    /// Writes the configuration, starts the server and waits until it serves. Returns how long that took.
    ///
    /// # Errors
    /// It does not serve; the message has the end of its log.
    pub async fn start(folder: &Folder, port: Option<u16>) -> anyhow::Result<(Self, Duration)> {
        let port = choose_port(port)?;
        let state = folder.state();
        let config = format!(
            "# Written by `percale demo`.\n\
             [site]\nname = \"demo\"\nstate_dir = {}\n\n\
             [http]\nlisten = \"127.0.0.1:{port}\"\n\n\
             [log]\nformat = \"json\"\n",
            // JSON's quotes are also TOML's.
            serde_json::to_string(&state)?
        );
        fs::write(folder.config(), config).context("cannot write the configuration")?;
        let mut site = Self { folder: folder.clone(), port, child: None };
        let took = site.launch().await?;
        Ok((site, took))
    }

    /// Starts the server again after it was killed. Returns how long it took until it served.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn launch(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.log())
            .context("cannot open the log")?;
        let binary = std::env::current_exe().context("cannot find this program's file")?;
        let child = Command::new(binary)
            .arg("serve")
            .arg("--config")
            .arg(self.folder.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the demo, which then stops the server in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the server")?;
        self.child = Some(child);
        while !self.is_ready().await {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("the server ended with {status}:\n{}", self.log_tail());
            }
            if began.elapsed() > READY_DEADLINE {
                bail!("the server does not serve after {READY_DEADLINE:?}:\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(began.elapsed())
    }

    async fn is_ready(&self) -> bool {
        // The authority's file is made by the first start.
        let Ok(client) = self.client() else { return false };
        client.readiness().await.is_ok_and(|readiness| readiness.ready)
    }

    /// Ends the server at once, as a crash or a power failure of the process does.
    ///
    /// # Errors
    /// It does not run.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("the server does not run")?;
        // Sends SIGKILL and waits.
        child.kill().await.context("cannot kill the server")
    }

    /// Asks the server to end, and waits.
    ///
    /// # Errors
    /// It does not end in time, or not well.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        match tokio::time::timeout(STOP_DEADLINE, child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => bail!("the server ended with {:?}:\n{}", status?, self.log_tail()),
            Err(_) => {
                child.kill().await?;
                bail!("the server did not end within {STOP_DEADLINE:?}");
            }
        }
    }

    /// Makes a client as everybody does: the URL, the token's file, the authority's file.
    ///
    /// # Errors
    /// The files are not there yet.
    pub fn client(&self) -> anyhow::Result<Client> {
        let token = fs::read_to_string(self.folder.token_file()).context("cannot read the token")?;
        let ca_file = self.folder.ca_file();
        anyhow::ensure!(ca_file.is_file(), "there is no {}", ca_file.display());
        let mut options = ClientOptions::new(self.url());
        options.token = Some(Secret::new(token.trim().to_owned()));
        options.ca_file = Some(ca_file);
        Ok(Client::new(options)?)
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Returns a command of this binary that speaks to the site as its administrator.
    ///
    /// # Errors
    /// This program's file cannot be found.
    pub fn command(&self, arguments: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(arguments)
            .env("PERCALE_URL", self.url())
            .env("PERCALE_TOKEN_FILE", self.folder.token_file())
            .env("PERCALE_CA_FILE", self.folder.ca_file())
            .env_remove("PERCALE_TOKEN")
            .env_remove("PERCALE_PROFILE")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Returns the folder where bytes lie before they are published.
    pub fn stage(&self) -> PathBuf {
        self.folder.store().join(".percale/stage")
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.folder.log()).unwrap_or_default();
        String::from_utf8_lossy(log.get(log.len().saturating_sub(2048)..).unwrap_or_default()).into_owned()
    }
}

fn choose_port(wanted: Option<u16>) -> anyhow::Result<u16> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port));
    match wanted {
        Some(port) => {
            is_free(port).with_context(|| format!("cannot listen on port {port}"))?;
            Ok(port)
        }
        None if is_free(USUAL_PORT).is_ok() => Ok(USUAL_PORT),
        None => Ok(is_free(0).context("cannot find a free port")?.local_addr()?.port()),
    }
}
