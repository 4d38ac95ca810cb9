//! `mount`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use clap::Args;
use percale_core::ErrorCode;
use serde_json::json;

use crate::address::FabricPath;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Lines;

/// What to do where the process of a mount has died.
const NOT_CONNECTED: &str = "A mount that was killed is still there. Take it off first: fusermount3 -uz DIR, or as root umount -l DIR.";

/// `percale mount`
#[derive(Debug, Args)]
#[command(after_help = "\
Without a path, every space that you may see is a directory. With one, its contents are the directory's. The command runs
until it is stopped (Ctrl-C, SIGTERM) or the directory is unmounted; what was written is published before it ends. Programs
that have files open finish with them first, unless it is stopped a second time.

Copies on a store that this host sees are read and written by the kernel itself where it takes their files, which needs
CAP_SYS_ADMIN, else through this process; `percale doctor` tells an administrator which. Other bytes come over the
network, verified, and are kept in a cache.

Examples:
  percale mount /data
  percale mount percale:/climate /climate
  percale mount percale:/climate percale:/ocean /data
  percale mount --read-only --allow-other percale:/climate/era5 /era5")]
pub struct MountArgs {
    /// Spaces or a collection, and the directory at the end
    #[arg(required = true, value_name = "PATH... DIR")]
    places: Vec<String>,
    /// Allow no changes
    #[arg(long)]
    read_only: bool,
    /// Let other users of this host in
    #[arg(long)]
    allow_other: bool,
    /// Read and write local copies through this process, too
    #[arg(long)]
    no_passthrough: bool,
    /// Where what is not published and the cache are kept
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Most bytes that are kept of other hosts
    #[arg(long, value_name = "BYTES", default_value_t = percale_mount::CACHE_BYTES)]
    cache_bytes: u64,
}

impl From<percale_mount::Error> for Failure {
    fn from(error: percale_mount::Error) -> Self {
        use std::io::ErrorKind;
        let hint = match &error {
            percale_mount::Error::Mount { source, .. } => match source.kind() {
                ErrorKind::PermissionDenied => {
                    "Mounting needs /dev/fuse and, unless you are root, the program fusermount3. `percale doctor` says what is missing."
                }
                ErrorKind::NotConnected => NOT_CONNECTED,
                _ => "`percale doctor` says what this host lacks for a mount.",
            },
            percale_mount::Error::Local { .. } => {
                "The state of the mount is kept there; --state-dir names another directory."
            }
            percale_mount::Error::Site(error) => return Self::from(error),
            _ => return Self::usage(error.to_string()),
        };
        Self::new(ErrorCode::Internal, error.to_string()).with_hint(hint)
    }
}

/// Mounts, and serves until it is unmounted.
pub async fn run(args: MountArgs, context: &Context) -> Result {
    let MountArgs { mut places, read_only, allow_other, no_passthrough, state_dir, cache_bytes } = args;
    let dir = places.pop().map(PathBuf::from).unwrap_or_default();
    let paths: Vec<FabricPath> = places
        .iter()
        .map(|place| super::grant::fabric_path(place).map_err(Failure::usage))
        .collect::<Result<_>>()?;
    let dir = dir.canonicalize().map_err(|error| {
        let failure = Failure::usage(format!("cannot mount at {}: {error}", dir.display()));
        match error.kind() {
            std::io::ErrorKind::NotConnected => failure.with_hint(NOT_CONNECTED),
            std::io::ErrorKind::NotFound => {
                failure.with_hint("Make the directory first; a mount is laid over one that is there.")
            }
            _ => failure,
        }
    })?;
    let client = context.client_for(&paths)?;
    let state_dir = match state_dir {
        Some(dir) => dir,
        None => default_state_dir(&dir)?,
    };
    let mut options = percale_mount::Options::new(state_dir, host());
    options.paths = paths.into_iter().map(|path| path.path).collect();
    options.read_only = read_only;
    options.allow_other = allow_other;
    options.passthrough = !no_passthrough;
    options.cache_bytes = cache_bytes;
    let mounted = percale_mount::mount(client, &dir, options).await?;
    let (stores, passthrough) = (mounted.stores(), mounted.has_passthrough());
    let mut out = Lines::open();
    if context.output.json {
        out.json(&json!({"mounted": dir, "stores": stores, "passthrough": passthrough}))?;
    } else if !context.output.quiet {
        let way = match (stores, passthrough) {
            (0, _) => "no store is on this host, all bytes come over the network".to_owned(),
            (stores, true) => {
                format!(
                    "{stores} of the site's stores on this host, read and written by the kernel where it takes their files \
                     (`percale doctor` tells an administrator which)"
                )
            }
            (stores, false) => {
                format!("{stores} of the site's stores on this host, read and written through this process")
            }
        };
        out.line(format!("mounted at {}: {way}", dir.display()))?;
    }
    out.finish()?;
    tokio::select! {
        () = mounted.ended() => {}
        () = context.cancel.cancelled() => {}
    }
    Ok(mounted.unmount().await?)
}

/// Returns where a mount at a directory keeps its state, so that the next one there finds it.
fn default_state_dir(dir: &Path) -> Result<PathBuf> {
    let uploads = percale_client::put::default_state_dir();
    let base = uploads.as_deref().and_then(Path::parent).ok_or_else(|| {
        Failure::usage("there is no home directory to keep the state of the mount in")
            .with_hint("Name one with --state-dir.")
    })?;
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    Ok(base.join("mounts").join(format!("{:016x}", hasher.finish())))
}

fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
