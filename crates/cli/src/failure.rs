//! How a command fails: with a code, which decides the exit code, and with words that say what to do next.

use std::fmt;
use std::io;
use std::path::Path;

use percale_core::ErrorCode;
use serde_json::json;

/// The result of a command.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// A command that failed.
#[derive(Debug)]
pub struct Failure(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: ErrorCode,
    message: String,
    hint: Option<String>,
    trace_id: Option<String>,
    path: Option<String>,
    /// The reader of our output went away, as `head` does: no reason to complain.
    is_broken_pipe: bool,
    /// Was shown already, so only the exit code is left.
    is_told: bool,
}

impl Failure {
    /// Makes a failure. The message says what was attempted, on what, and why it failed.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            hint: None,
            trace_id: None,
            path: None,
            is_broken_pipe: false,
            is_told: false,
        }))
    }

    /// The command line itself is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// A local file could not be used.
    pub fn local(attempt: &str, path: &Path, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => ErrorCode::NotFound,
            io::ErrorKind::PermissionDenied => ErrorCode::StoreDenied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
            io::ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
            io::ErrorKind::ReadOnlyFilesystem => ErrorCode::ReadOnly,
            _ => ErrorCode::Internal,
        };
        let failure = Self::new(code, format!("cannot {attempt} {}: {error}", path.display()));
        match code {
            // The remedies of these codes speak of the fabric.
            ErrorCode::NotFound => failure.with_hint("Check the spelling of the local path."),
            ErrorCode::StoreDenied => {
                failure.with_hint("Check the permissions of the local file or directory.")
            }
            _ => failure,
        }
    }

    /// Everything was told item by item; only the exit code is left.
    pub fn told(code: ErrorCode) -> Self {
        let mut failure = Self::new(code, code.title());
        failure.0.is_told = true;
        failure
    }

    /// Says what to do next, instead of the code's general remedy.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Puts what was attempted before the message.
    pub fn when(mut self, attempt: impl fmt::Display) -> Self {
        self.0.message = format!("{attempt}: {}", self.0.message);
        self
    }

    /// Returns the code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Returns what to do next.
    pub fn hint(&self) -> &str {
        self.0.hint.as_deref().unwrap_or_else(|| self.0.code.remedy())
    }

    /// Tells whether nobody reads the output any more.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.is_broken_pipe
    }

    /// Tells whether everything was told already.
    pub fn is_told(&self) -> bool {
        self.0.is_told
    }

    /// Returns the exit code.
    pub fn exit_code(&self) -> u8 {
        if self.0.is_broken_pipe { 0 } else { self.0.code.exit_code() }
    }

    /// Returns the failure for programs.
    pub fn to_json(&self) -> serde_json::Value {
        let mut error = json!({
            "code": self.0.code.as_str(),
            "message": self.0.message,
            "retryable": self.0.code.is_retryable(),
            "hint": self.hint(),
            "exit_code": self.exit_code(),
        });
        if let Some(trace_id) = &self.0.trace_id {
            error["trace_id"] = json!(trace_id);
        }
        if let Some(path) = &self.0.path {
            error["path"] = json!(path);
        }
        json!({ "error": error })
    }

    /// Returns what finds the request in the server's log.
    pub fn trace_id(&self) -> Option<&str> {
        self.0.trace_id.as_deref()
    }
}

/// Returns the code with which a command ends that had items fail: that of all of them if nothing was done and they are alike, else "partial".
pub fn of_all(codes: &[ErrorCode], is_any_done: bool) -> Option<ErrorCode> {
    let first = *codes.first()?;
    let are_alike = codes.iter().all(|code| *code == first);
    Some(if are_alike && !is_any_done { first } else { ErrorCode::Partial })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Failure {}

impl From<percale_client::Error> for Failure {
    fn from(error: percale_client::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&percale_client::Error> for Failure {
    fn from(error: &percale_client::Error) -> Self {
        let mut failure = Self::new(error.code(), error.to_string());
        failure.0.hint = error.as_problem().map(|problem| problem.hint.clone());
        failure.0.path = error.as_problem().and_then(|problem| problem.path.clone());
        failure.0.trace_id = error.trace_id().map(str::to_owned);
        failure.0.hint = failure.0.hint.or_else(|| own_hint(error));
        failure
    }
}

/// A better hint than the code's where the client knows more.
fn own_hint(error: &percale_client::Error) -> Option<String> {
    use percale_client::ErrorKind;
    match (error.kind(), error.code()) {
        (ErrorKind::Local, ErrorCode::NotFound) => Some("Check the spelling of the local path.".into()),
        (ErrorKind::Local, ErrorCode::StoreDenied) => {
            Some("Check the permissions of the local file or directory.".into())
        }
        (ErrorKind::Connection, _) if error.detail().contains("UnknownIssuer") => Some(
            "The site's certificate is not known here. Give its CA certificate with --ca-file (a site's own lies in its \
             state directory), or log in with it once."
                .into(),
        ),
        (ErrorKind::Connection, _) => {
            Some("Check the URL and that the site is up: `percale doctor` looks at each step.".into())
        }
        (ErrorKind::Usage, ErrorCode::AlreadyExists) => {
            Some("Add --overwrite to replace it, or choose another destination.".into())
        }
        (ErrorKind::SourceChanged, _) => {
            Some("Run the command again when no program writes to the file any more.".into())
        }
        (ErrorKind::Protocol, _) => Some("Check that the URL is that of a Percale site.".into()),
        _ => None,
    }
}

impl From<io::Error> for Failure {
    /// For what is written to standard output; files have [`Failure::local`].
    fn from(error: io::Error) -> Self {
        let mut failure = Self::new(ErrorCode::Internal, format!("cannot write the output: {error}"));
        failure.0.is_broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_come_from_the_table() {
        for (code, exit) in [
            (ErrorCode::NotFound, 3),
            (ErrorCode::Unauthenticated, 4),
            (ErrorCode::SiteUnavailable, 5),
            (ErrorCode::Partial, 6),
            (ErrorCode::Integrity, 7),
            (ErrorCode::AlreadyExists, 8),
            (ErrorCode::WaitTimeout, 10),
            (ErrorCode::NoSpace, 11),
            (ErrorCode::Interrupted, 130),
        ] {
            assert_eq!(Failure::new(code, "x").exit_code(), exit, "{code}");
        }
        assert_eq!(Failure::usage("x").exit_code(), 2);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), 0);
    }

    #[test]
    fn json_errors_have_what_programs_need() {
        let json = Failure::new(ErrorCode::Timeout, "cannot list /s: too slow").to_json();
        assert_eq!(json["error"]["code"], "timeout");
        assert_eq!(json["error"]["retryable"], true);
        assert_eq!(json["error"]["exit_code"], 5);
        assert!(!json["error"]["hint"].as_str().unwrap().is_empty());
    }
}
