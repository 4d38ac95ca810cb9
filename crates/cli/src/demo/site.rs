//! One site of the demo: the same binary, as a process of its own with a folder of its own.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use percale_client::{Client, ClientOptions};
use percale_trust::Secret;
use tokio::process::{Child, Command};

use super::folder::Place;

/// Within this the server must serve.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Within this it must have ended when asked to.
const STOP_DEADLINE: Duration = Duration::from_secs(40);

/// How a site is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name.
    pub name: &'static str,
    /// The port that it listens on.
    pub port: u16,
    /// Where other sites reach it; none for one that only dials out.
    pub url: Option<String>,
    /// The database, if it is not the embedded one.
    pub catalog_url: Option<String>,
}

/// The server's process.
pub struct Site {
    settings: Settings,
    place: Place,
    child: Option<Child>,
    /// The process's id while it runs, else 0; for whoever asks which site has a connection.
    pid: Arc<AtomicU32>,
}

impl Site {
    /// Writes the configuration, starts the server and waits until it serves.
    ///
    /// # Errors
    /// It does not serve; the message has the end of its log.
    pub async fn start(settings: Settings, place: Place, pid: Arc<AtomicU32>) -> anyhow::Result<Self> {
        // JSON's quotes are also TOML's.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut config = format!(
            "# Written by `percale demo`.\n\
             [site]\nname = \"{}\"\nstate_dir = {}\n\n\
             [http]\nlisten = \"127.0.0.1:{}\"\n\n\
             [log]\nformat = \"json\"\n\n\
             [federation]\n",
            settings.name,
            quoted(place.state().to_str().context("the folder's name is not UTF-8")?),
            settings.port,
        );
        match &settings.url {
            Some(url) => writeln!(config, "urls = [{}]", quoted(url))?,
            None => writeln!(config, "outgoing_only = true")?,
        }
        if let Some(url) = &settings.catalog_url {
            writeln!(config, "\n[catalog]\nurl = {}", quoted(url))?;
        }
        fs::write(place.config(), config).context("cannot write the configuration")?;
        let mut site = Self { settings, place, child: None, pid };
        site.launch().await?;
        Ok(site)
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
            .open(self.place.log())
            .context("cannot open the log")?;
        let binary = std::env::current_exe().context("cannot find this program's file")?;
        let child = Command::new(binary)
            .arg("serve")
            .arg("--config")
            .arg(self.place.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the demo, which then stops the server in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the server")?;
        self.pid.store(child.id().unwrap_or_default(), Ordering::Relaxed);
        self.child = Some(child);
        while !self.is_ready().await {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("{} ended with {status}:\n{}", self.name(), self.log_tail());
            }
            if began.elapsed() > READY_DEADLINE {
                bail!("{} does not serve after {READY_DEADLINE:?}:\n{}", self.name(), self.log_tail());
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
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name()))?;
        self.pid.store(0, Ordering::Relaxed);
        // Sends SIGKILL and waits.
        child.kill().await.with_context(|| format!("cannot kill {}", self.name()))
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
            Ok(status) => bail!("{} ended with {}:\n{}", self.name(), status?, self.log_tail()),
            Err(_) => {
                child.kill().await?;
                bail!("{} did not end within {STOP_DEADLINE:?}", self.name());
            }
        }
    }

    /// Makes a client as everybody does: the URL, the token's file, the authority's file. It is not behind the emulated
    /// network, as people at a site are not.
    ///
    /// # Errors
    /// The files are not there yet.
    pub fn client(&self) -> anyhow::Result<Client> {
        let token = fs::read_to_string(self.place.token_file()).context("cannot read the token")?;
        let ca_file = self.place.ca_file();
        anyhow::ensure!(ca_file.is_file(), "there is no {}", ca_file.display());
        let mut options = ClientOptions::new(self.url());
        options.token = Some(Secret::new(token.trim().to_owned()));
        options.ca_file = Some(ca_file);
        Ok(Client::new(options)?)
    }

    /// Returns the site's name.
    pub fn name(&self) -> &'static str {
        self.settings.name
    }

    /// Returns where the site has everything.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the URL for people at the site.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.settings.port)
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
            .env("PERCALE_TOKEN_FILE", self.place.token_file())
            .env("PERCALE_CA_FILE", self.place.ca_file())
            .env_remove("PERCALE_TOKEN")
            .env_remove("PERCALE_PROFILE")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Returns the folder where bytes lie before they are published.
    pub fn stage(&self) -> PathBuf {
        self.place.store().join(".percale/stage")
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.place.log()).unwrap_or_default();
        String::from_utf8_lossy(log.get(log.len().saturating_sub(2048)..).unwrap_or_default()).into_owned()
    }
}
