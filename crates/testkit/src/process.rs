//! A site as users have it: the real binary, serving on a port of its own from a directory of its own, killed and
//! started at will.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::wait;

/// Within this a site must serve, on a machine that is busy with other tests.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// Within this a site must end when it is told to.
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// Below the range that Linux gives to outgoing connections, so that a port is still free when a site comes back to it.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What a site is to be like.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SiteOptions {
    /// The binary: `env!("CARGO_BIN_EXE_percale")`.
    pub binary: PathBuf,
    /// Where it keeps its state; a folder of its own if absent.
    pub directory: Option<PathBuf>,
    /// Where its state lies, for servers that share it; in its directory if absent.
    pub state_directory: Option<PathBuf>,
    /// The catalog's URL; SQLite in the state directory if absent.
    pub catalog_url: Option<String>,
    /// Further lines for the configuration, such as `("uploads.lease", "\"2s\"")`; values as in TOML.
    pub settings: Vec<(String, String)>,
    /// Variables of its environment, such as `PERCALE_FAILPOINT`.
    pub environment: Vec<(String, String)>,
}

impl SiteOptions {
    /// Begins with the defaults.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            directory: None,
            state_directory: None,
            catalog_url: None,
            settings: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets a line of the configuration; the value as in TOML.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.retain(|(set, _)| set != key);
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }
}

/// A site that runs, or was killed and may be started again. Ended when dropped.
#[derive(Debug)]
pub struct Site {
    options: SiteOptions,
    directory: PathBuf,
    child: Option<Child>,
    port: Port,
    /// Kept for its end.
    _folder: Option<tempfile::TempDir>,
}

impl Site {
    /// Starts a site and waits until it serves.
    ///
    /// # Panics
    /// If it does not serve in time. The end of its log is shown then, as with every panic.
    pub fn start(options: SiteOptions) -> Self {
        let folder = match &options.directory {
            Some(_) => None,
            None => Some(
                tempfile::Builder::new().prefix("percale-site-").tempdir().expect("cannot make a folder"),
            ),
        };
        let directory = match (&options.directory, &folder) {
            (Some(directory), _) => directory.clone(),
            (None, Some(folder)) => folder.path().to_owned(),
            (None, None) => unreachable!("one of the two was made above"),
        };
        let mut site = Self { options, directory, child: None, port: Port::reserve(), _folder: folder };
        fs::create_dir_all(site.state_directory()).expect("cannot make the state directory");
        fs::write(site.config_file(), site.config()).expect("cannot write the configuration");
        site.restart();
        site
    }

    /// Starts the site again after it was killed or stopped, and waits until it serves.
    ///
    /// # Panics
    /// As [`start`](Self::start), and if it runs.
    pub fn restart(&mut self) {
        self.spawn();
        self.wait_until_ready();
    }

    /// Starts the process without waiting.
    ///
    /// # Panics
    /// If it runs already, or cannot be started.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the site runs already");
        let log =
            File::options().create(true).append(true).open(self.log_file()).expect("cannot open the log");
        let child = Command::new(&self.options.binary)
            .arg("serve")
            .arg("--config")
            .arg(self.config_file())
            .envs(self.options.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("cannot share the log"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.options.binary.display()));
        self.child = Some(child);
    }

    /// Waits until the site serves.
    ///
    /// # Panics
    /// If it ends or the deadline passes.
    pub fn wait_until_ready(&mut self) {
        wait::until("the site to serve", READY_DEADLINE, || {
            if let Some(status) = self.try_wait() {
                panic!("the site ended with {status} instead of serving");
            }
            self.is_ready().then_some(())
        });
    }

    /// Tells whether `/readyz` says yes.
    pub fn is_ready(&self) -> bool {
        self.http_get("/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// Ends the process at once, as a crash does (SIGKILL), and waits until it is gone.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the site runs");
        child.kill().expect("cannot kill the site");
        child.wait().expect("cannot wait for the site's end");
    }

    /// Asks the process to end (SIGTERM), and waits until it has.
    ///
    /// # Panics
    /// If it does not run or does not end in time.
    pub fn stop(&mut self) -> ExitStatus {
        let pid = self.pid();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("cannot signal the site");
        self.wait_for_end()
    }

    /// Waits until the process has ended by itself, such as at a failpoint.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        wait::until("the site to end", STOP_DEADLINE, || self.try_wait())
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("cannot look at the site's process")?;
        self.child = None;
        Some(status)
    }

    /// Returns the process.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(self.child.as_ref().expect("the site runs"))
    }

    /// Tells whether the process was started and not ended through this.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Sets variables of the environment for the next start.
    pub fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.options.environment = environment;
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.number)
    }

    /// Returns the directory that everything of the site lies in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the state directory.
    pub fn state_directory(&self) -> PathBuf {
        self.options.state_directory.clone().unwrap_or_else(|| self.directory.join("state"))
    }

    /// Returns the configuration's file.
    pub fn config_file(&self) -> PathBuf {
        self.directory.join("percale.toml")
    }

    /// Returns the file with the site's own CA.
    pub fn ca_file(&self) -> PathBuf {
        self.state_directory().join("tls/ca.pem")
    }

    /// Returns the file with the administrator's token.
    pub fn admin_token_file(&self) -> PathBuf {
        self.state_directory().join("admin.token")
    }

    /// Returns the administrator's token.
    ///
    /// # Panics
    /// If the site has not made one.
    pub fn admin_token(&self) -> String {
        fs::read_to_string(self.admin_token_file()).expect("cannot read the admin token").trim().to_owned()
    }

    /// Returns the log's file.
    pub fn log_file(&self) -> PathBuf {
        self.directory.join("serve.log")
    }

    /// Returns the last 4 KiB of the log, for a message.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(4096)..]).into_owned()
    }

    /// Returns a command of the binary that speaks to this site as its administrator.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.options.binary);
        command
            .args(arguments)
            .env("PERCALE_URL", self.url())
            .env("PERCALE_TOKEN_FILE", self.admin_token_file())
            .env("PERCALE_CA_FILE", self.ca_file())
            // What the user who runs the tests has set up must not matter.
            .env("XDG_CONFIG_HOME", self.directory.join("config"))
            .env_remove("PERCALE_TOKEN")
            .env_remove("PERCALE_PROFILE");
        command
    }

    /// Sends a GET without a token and returns the whole answer.
    ///
    /// # Errors
    /// The site cannot be reached.
    pub fn http_get(&self, path: &str) -> io::Result<String> {
        let tls = percale_trust::client_config(Some(&self.ca_file())).map_err(io::Error::other)?;
        let name = ServerName::try_from("127.0.0.1").map_err(io::Error::other)?;
        let address = SocketAddr::from(([127, 0, 0, 1], self.port.number));
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let connection = ClientConnection::new(Arc::new(tls), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            // A server may close without TLS's goodbye.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
        }
    }

    fn config(&self) -> String {
        let mut settings = vec![
            ("site.name".to_owned(), "\"test\"".to_owned()),
            ("site.state_dir".to_owned(), format!("{:?}", self.state_directory().display().to_string())),
            ("http.listen".to_owned(), format!("\"127.0.0.1:{}\"", self.port.number)),
            ("log.format".to_owned(), "\"json\"".to_owned()),
        ];
        if let Some(url) = &self.options.catalog_url {
            settings.push(("catalog.url".to_owned(), format!("{url:?}")));
        }
        // What a test sets takes the place of what is usual; a key may stand there once.
        settings.retain(|(key, _)| self.options.settings.iter().all(|(set, _)| set != key));
        settings.extend(self.options.settings.iter().cloned());
        // Dotted keys need no order of sections.
        settings.into_iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the end of the site's log:\n{}", self.log_tail());
        }
    }
}

/// A port that no other test takes, as long as this is held.
#[derive(Debug)]
struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    fn reserve() -> Self {
        let folder = std::env::temp_dir().join("percale-test-ports");
        fs::create_dir_all(&folder).expect("cannot make the folder of ports");
        let width = PORTS.end - PORTS.start;
        // Begins somewhere else in each process, so that they seldom meet.
        let first = u16::try_from(std::process::id().wrapping_mul(7919) % u32::from(width)).unwrap_or(0);
        for step in 0..width {
            let number = PORTS.start + (first + step) % width;
            let lock = File::create(folder.join(number.to_string())).expect("cannot make a port's lock");
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no port is free from {} to {}", PORTS.start, PORTS.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_not_given_out_twice() {
        let ports: Vec<_> = (0..8).map(|_| Port::reserve()).collect();
        for (index, port) in ports.iter().enumerate() {
            assert!(ports[index + 1..].iter().all(|other| other.number != port.number));
            assert!(PORTS.contains(&port.number));
        }
    }

    #[test]
    #[should_panic(expected = "instead of serving")]
    fn a_binary_that_does_not_serve_is_noticed() {
        Site::start(SiteOptions::new("/bin/false"));
    }
}
