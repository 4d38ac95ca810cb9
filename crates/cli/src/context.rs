//! What every command has at hand.

use std::io::{BufRead, Write};
use std::sync::Arc;

use percale_client::{Client, ClientOptions, Progress};
use percale_core::{ErrorCode, Rate};
use tokio_util::sync::CancellationToken;

use crate::address::FabricPath;
use crate::config::{ConfigFile, Effective, Flags};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::progress::Bar;

/// What every command has at hand.
#[derive(Debug, Clone)]
pub struct Context {
    /// How to speak.
    pub output: Output,
    /// What the flags say about site and token.
    pub flags: Flags,
    /// Whether every question is answered with yes.
    pub yes: bool,
    /// Streams of a bulk transfer, if said.
    pub jobs: Option<usize>,
    /// How fast a bulk transfer may be, if said.
    pub limit: Option<Rate>,
    /// Is cancelled by Ctrl-C.
    pub cancel: CancellationToken,
}

impl Context {
    /// Finds out which site and which token.
    pub fn effective(&self) -> Result<Effective> {
        ConfigFile::load()?.effective(&self.flags)
    }

    /// Makes a client for the site.
    pub fn client(&self) -> Result<Client> {
        let effective = self.effective()?;
        let mut options = ClientOptions::new(&effective.url.value);
        options.token = effective.token.value.read()?;
        options.ca_file = effective.ca_file.value;
        if let Some(jobs) = self.jobs {
            options.streams = Some(jobs);
        }
        options.limit = self.limit;
        Client::new(options).map_err(|error| {
            Failure::from(error)
                .with_hint("`percale config show --origin` tells where URL, token and CA file come from.")
        })
    }

    /// Makes a client for the site that these paths are at: `percale://host/…` names one, which must then be the one
    /// that is configured, since its token goes to no other.
    pub fn client_for<'a>(&self, paths: impl IntoIterator<Item = &'a FabricPath>) -> Result<Client> {
        let client = self.client()?;
        let url = client.url();
        let host = url.host_str().unwrap_or_default();
        let with_port = url.port().map_or(host.to_owned(), |port| format!("{host}:{port}"));
        for path in paths {
            if let Some(wanted) = &path.host
                && wanted != host
                && *wanted != with_port
            {
                let message = format!("{path} is at {wanted}, but the site in use is {with_port}");
                let hint =
                    format!("Add `--url https://{wanted}`, or use the profile of that site with --profile.");
                return Err(Failure::new(ErrorCode::Unsupported, message).with_hint(hint));
            }
        }
        Ok(client)
    }

    /// Asks before something that cannot be undone. Without a terminal the answer must be given by `-y`.
    pub fn confirm(&self, question: &str) -> Result {
        if self.yes {
            return Ok(());
        }
        if !self.output.is_interactive() || !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            let message = format!("{question} There is nobody to ask");
            return Err(Failure::usage(message)
                .with_hint("Add -y (--yes) if that is what you want, or look first with -n."));
        }
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "{question} [y/N] ");
        let _ = stderr.flush();
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" if read.is_ok() => Ok(()),
            _ => {
                Err(Failure::new(ErrorCode::Interrupted, "nothing was done")
                    .with_hint("Answer y to go ahead."))
            }
        }
    }

    /// Shows a transfer's progress until the answer is finished.
    pub fn bar(&self, progress: &Arc<Progress>, verb: &'static str) -> Bar {
        Bar::start(self.output, progress.clone(), verb)
    }

    /// Waits for something that Ctrl-C may end at any time.
    pub async fn interruptible<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            result = work => Ok(result),
            () = self.cancel.cancelled() => Err(Failure::new(ErrorCode::Interrupted, "interrupted")),
        }
    }
}
