//! A PostgreSQL server for the sites' catalogs, of the binaries that are installed. Its data lies in the demo's folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};

use super::fabric::NAMES;
use super::folder::Folder;

/// Within this it must serve.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// There is no PostgreSQL to start.
#[derive(Debug)]
pub struct NotInstalled;

impl std::error::Error for NotInstalled {}

impl std::fmt::Display for NotInstalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("--catalog postgres needs the programs initdb and postgres, and there are none")
    }
}

/// A server, killed when dropped.
pub struct Postgres {
    port: u16,
    child: Child,
}

impl Postgres {
    /// Starts a server on a port, with a database for each site.
    ///
    /// # Errors
    /// [`NotInstalled`]; the server does not start, and then the message has its log.
    pub async fn start(folder: &Folder, port: u16) -> anyhow::Result<Self> {
        let bin = binaries().ok_or(NotInstalled)?;
        let place = folder.root().join("postgres");
        let (data, log) = (place.join("data"), place.join("log"));
        let is_new = !data.join("PG_VERSION").exists();
        fs::create_dir_all(&place)?;
        if is_root() {
            run(Command::new("chown").arg("postgres:").arg(&place)).await?;
        }
        if is_new {
            let initdb = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D"];
            run(unprivileged(&bin.join("initdb")).args(initdb).arg(&data)).await?;
        }
        let output = fs::File::create(&log).context("cannot make PostgreSQL's log")?;
        let mut child = unprivileged(&bin.join("postgres"))
            .arg("-D")
            .arg(&data)
            .args([
                "-p",
                &port.to_string(),
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
            ])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is for the demo, which stops the sites first.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start PostgreSQL")?;
        let began = Instant::now();
        let at = ["-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string()].map(str::to_owned);
        while run(Command::new(bin.join("pg_isready")).arg("-q").args(&at)).await.is_err() {
            if child.try_wait()?.is_some() || began.elapsed() > READY_DEADLINE {
                bail!("PostgreSQL does not start:\n{}", fs::read_to_string(&log).unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if is_new {
            for name in NAMES {
                run(Command::new(bin.join("createdb")).args(&at).arg(name)).await?;
            }
        }
        Ok(Self { port, child })
    }

    /// Returns the URL of a site's database.
    pub fn url(&self, site: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{site}", self.port)
    }

    /// Ends the server in order.
    ///
    /// # Errors
    /// It cannot be told to.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            // The "fast" shutdown.
            rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        }
        self.child.wait().await.context("cannot wait for PostgreSQL")?;
        Ok(())
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that does not run as root, since PostgreSQL refuses that.
fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program);
    command
}

/// Returns the folder of the programs: the newest below Debian's, or the one in PATH.
fn binaries() -> Option<PathBuf> {
    let has_all = |bin: &PathBuf| bin.join("initdb").exists() && bin.join("postgres").exists();
    let version = |bin: &PathBuf| {
        let name = bin.parent()?.file_name()?.to_str()?;
        name.parse::<u32>().ok()
    };
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|entry| entry.path().join("bin")).filter(has_all).max_by_key(version);
    let path = std::env::var_os("PATH").unwrap_or_default();
    newest.or_else(|| std::env::split_paths(&path).find(has_all))
}

async fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().await;
    let output = output.with_context(|| format!("cannot run {:?}", command.as_std().get_program()))?;
    ensure!(
        output.status.success(),
        "{:?} ended with {}: {}",
        command.as_std(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
