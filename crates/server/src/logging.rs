//! The process's log, on standard error.

use std::io::IsTerminal as _;

use percale_core::ErrorCode;
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
use crate::{ApiError, Result};

/// Starts logging for the process. `RUST_LOG` goes over the configured level.
///
/// # Errors
/// [`ErrorCode::InvalidConfiguration`]: the level is none, or the process logs already.
pub fn init(config: &LogConfig) -> Result<()> {
    let wrong = |error: String| {
        ApiError::new(ErrorCode::InvalidConfiguration, format!("cannot start the log: {error}"))
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => EnvFilter::try_new(directives),
        // A migration is worth a line of ours; the library would write several for each start.
        _ => EnvFilter::try_new(format!("{},refinery_core=warn", config.level)),
    }
    .map_err(|error| wrong(error.to_string()))?;
    let json = match config.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if json {
        builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    } else {
        builder.try_init()
    };
    started.map_err(|error| wrong(error.to_string()))
}
