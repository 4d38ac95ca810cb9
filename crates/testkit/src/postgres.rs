//! A PostgreSQL server of the tests' own, on loopback: one for each test process, a database for each test.
//!
//! The binaries come from Debian's package (`/usr/lib/postgresql/*/bin`) or the folder in `PERCALE_POSTGRES_BIN`. Without
//! them a test fails, and says so, unless `PERCALE_SKIP_POSTGRES=1` lets it be skipped.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::wait;

/// The variable that lets tests be skipped that need PostgreSQL.
pub const SKIP_VARIABLE: &str = "PERCALE_SKIP_POSTGRES";
/// The variable that names the folder of the binaries.
pub const BIN_VARIABLE: &str = "PERCALE_POSTGRES_BIN";

/// Within this a server must start, also after a crash and beside other tests.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Durable as in production, small as a test.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = on
synchronous_commit = on
full_page_writes = on
shared_buffers = 64MB
max_connections = 100
max_wal_size = 256MB
autovacuum_naptime = 10s
log_min_messages = warning
";

/// Ends the server when the test process ends, however it ends: then the pipe that it reads from closes without a word, and
/// the folder is removed too. A word means that the server is only stopped for now. Ends itself with the server.
const SUPERVISOR: &str = r#"
folder=$1
shift
exec 3<&0
"$@" 3<&- &
server=$!
(read -r _ <&3 || touch "$folder/ended"; kill -QUIT $server) &
reader=$!
wait $server
kill $reader
[ ! -e "$folder/ended" ] || rm -rf "$folder"
"#;

/// A server. Ended when dropped, or with the process.
#[derive(Debug)]
pub struct Server {
    bin: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    supervisor: Option<Child>,
    databases: AtomicU32,
}

/// Returns the server of this process, started by the first who asks. Nothing if tests with PostgreSQL are skipped.
///
/// # Panics
/// If there is no PostgreSQL, or it does not start.
pub fn shared() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER.get_or_init(Server::start).as_ref()
}

/// Tells whether tests with PostgreSQL are skipped, and says so aloud.
pub fn is_skipped() -> bool {
    let skipped = std::env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1");
    if skipped {
        eprintln!("SKIPPED: a test needs PostgreSQL and {SKIP_VARIABLE}=1 is set; unset it to run the test");
    }
    skipped
}

fn find_binaries() -> PathBuf {
    if let Ok(folder) = std::env::var(BIN_VARIABLE) {
        return folder.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .max_by_key(|bin| {
            let version =
                bin.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
            version.and_then(|version| version.parse::<u32>().ok())
        });
    newest.unwrap_or_else(|| {
        panic!(
            "no PostgreSQL in /usr/lib/postgresql: install the package 'postgresql', name the folder of its binaries in \
             {BIN_VARIABLE}, or set {SKIP_VARIABLE}=1 to skip the tests that need it"
        )
    })
}

/// A command that does not run as root, since PostgreSQL refuses that.
fn unprivileged(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program);
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns an empty data folder to copy, made once for each user of this machine: `initdb` takes seconds where tests
/// compete for the processors, a copy a fraction of one.
fn template(bin: &Path) -> PathBuf {
    let version = bin.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("percale-postgres-template-{}-{uid}", version.unwrap_or_default());
    let folder = std::env::temp_dir().join(name);
    let (data, made) = (folder.join("data"), folder.join("made"));
    std::fs::create_dir_all(&folder).expect("cannot make a folder");
    let lock = std::fs::File::create(folder.join("lock")).expect("cannot make a lock");
    lock.lock().expect("cannot lock the template");
    if std::fs::read_to_string(&made).is_ok_and(|settings| settings == SETTINGS) {
        return data;
    }
    let _ = std::fs::remove_dir_all(&data);
    if rustix::process::geteuid().is_root() {
        run(Command::new("chown").arg("postgres:postgres").arg(&folder));
    }
    let initdb = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"];
    run(unprivileged(&bin.join("initdb")).args(initdb).arg("-D").arg(&data));
    configure(&data, SETTINGS);
    std::fs::write(&made, SETTINGS).expect("cannot note that the template is made");
    data
}

/// Adds lines to the configuration that `initdb` has made.
fn configure(data: &Path, settings: &str) {
    let file = std::fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"));
    let written = file.and_then(|mut file| file.write_all(settings.as_bytes()));
    written.expect("cannot write the configuration");
}

impl Server {
    /// Starts a server of one's own, for a test that kills it. Nothing if tests with PostgreSQL are skipped.
    ///
    /// # Panics
    /// If there is no PostgreSQL, or it does not start.
    pub fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Starts a server likewise, with further lines of its configuration: for what measures and does not test.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_with(settings: &str) -> Option<Self> {
        if is_skipped() {
            return None;
        }
        let bin = find_binaries();
        let folder =
            tempfile::Builder::new().prefix("percale-postgres-").tempdir().expect("cannot make a folder");
        if rustix::process::geteuid().is_root() {
            run(Command::new("chown").arg("postgres:postgres").arg(folder.path()));
        }
        let data = folder.path().join("data");
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(template(&bin)).arg(&data));
        configure(&data, settings);
        let mut server = Self { bin, folder, port: 0, supervisor: None, databases: AtomicU32::new(0) };
        server.start_again();
        Some(server)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the server after it was killed, on the port that it had.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_again(&mut self) {
        let start = Instant::now();
        while start.elapsed() < START_DEADLINE {
            if self.port == 0 {
                let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
                self.port = free.expect("cannot find a free port").port();
            }
            if self.try_start() {
                return;
            }
            // Somebody took the port in between, and only a server without clients may go to another; or processes of the
            // one that was killed are still ending.
            if self.databases.load(Ordering::Relaxed) == 0 {
                self.port = 0;
            }
        }
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        panic!("PostgreSQL does not start: {log}");
    }

    fn try_start(&mut self) -> bool {
        self.stop();
        let log = std::fs::File::create(self.folder.path().join("log")).expect("cannot make a log");
        let mut postgres = unprivileged(&self.bin.join("postgres"));
        postgres.arg("-D").arg(self.data()).arg("-p").arg(self.port.to_string());
        let mut supervisor = Command::new("sh");
        supervisor.args(["-c", SUPERVISOR, "sh"]).arg(self.folder.path());
        supervisor.arg(postgres.get_program()).args(postgres.get_args());
        let errors = log.try_clone().expect("cannot share a log");
        supervisor.stdin(Stdio::piped()).stdout(log).stderr(errors);
        self.supervisor = Some(supervisor.spawn().expect("cannot start a shell"));
        let is_ready = self.bin.join("pg_isready");
        wait::until("PostgreSQL to start or give up", START_DEADLINE, || {
            let ended = self.supervisor.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
            if ended {
                return Some(false);
            }
            TcpStream::connect(("127.0.0.1", self.port)).ok()?;
            let port = self.port.to_string();
            let answer = Command::new(&is_ready)
                .args(["-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &port])
                .status();
            answer.is_ok_and(|status| status.success()).then_some(true)
        })
    }

    /// Makes an empty database and returns its URL.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let (name, port) = (format!("test{number}"), self.port.to_string());
        run(Command::new(self.bin.join("createdb")).args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-p",
            &port,
            &name,
        ]));
        format!("postgres://postgres@127.0.0.1:{port}/{name}")
    }

    /// Kills the server and all its processes, as a power cut does.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self) {
        let pid_file =
            std::fs::read_to_string(self.data().join("postmaster.pid")).expect("PostgreSQL does not run");
        let pid = pid_file.lines().next().and_then(|line| line.trim().parse::<i32>().ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw).expect("postmaster.pid begins with a number");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("cannot kill PostgreSQL");
        // The others notice that the first is gone, and end.
        let port = self.port;
        wait::until("PostgreSQL to be gone", START_DEADLINE, || {
            TcpStream::connect(("127.0.0.1", port)).is_err().then_some(())
        });
        self.stop();
    }

    /// Ends the server at once. Its folder stays, for another start.
    fn stop(&mut self) {
        if let Some(mut supervisor) = self.supervisor.take() {
            if let Some(mut word) = supervisor.stdin.take() {
                // It may have ended by itself.
                let _ = word.write_all(b"stop\n");
            }
            let _ = supervisor.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_makes_databases_and_survives_a_kill() {
        let Some(mut server) = Server::start() else { return };
        let (first, second) = (server.database(), server.database());
        assert_ne!(first, second);
        server.kill();
        server.start_again();
        assert_ne!(server.database(), second);
    }
}
