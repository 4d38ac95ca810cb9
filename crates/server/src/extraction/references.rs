//! Where the chunks of the arrays of an object lie, for whoever may read it.

use std::sync::Arc;

use percale_catalog::OpenVersion;
use percale_core::ErrorCode;
use percale_discovery::frame::{Asked, Outcome, What};
use percale_discovery::references::{Reference, References};

use super::ranges::bytes_of;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};

/// Reads where the chunks of the arrays of a version lie, also where its bytes are at another site.
///
/// # Errors
/// - `Unsupported` if this server runs nothing that reads headers, or if there are no references to what the version is.
/// - What keeps its bytes from being read.
pub async fn references(app: &AppState, version: &OpenVersion, reach: &Reach) -> Result<References> {
    let unsupported =
        |detail: String| Err(ApiError::new(ErrorCode::Unsupported, detail).with_path(&version.path));
    let Some(pool) = &app.extraction.pool else {
        return unsupported("this server reads no files: extraction.workers is 0".into());
    };
    let closed = |_| ApiError::internal("files are not read any more");
    let _room = app.extraction.for_references.acquire().await.map_err(closed)?;
    let source = Arc::new(app.reader.source(version.clone(), reach).await?);
    let read = bytes_of(app, source, None);
    let name = version.path.name().unwrap_or_default().to_owned();
    let size = version.size.0;
    let outcome = pool.read(&Asked { name, size, what: What::References }, &read).await?;
    let what = match &outcome {
        Outcome::References(_) => "found",
        Outcome::NoFormat | Outcome::Found(_) => "no_format",
        Outcome::Unreadable(_) => "unreadable",
    };
    metrics::counter!("percale_references_read_total", "outcome" => what).increment(1);
    match outcome {
        Outcome::References(references) => {
            // The bounds are not the process' to keep.
            let is_within = |reference: &Reference| match reference {
                Reference::Range(offset, len) => offset.checked_add(*len).is_some_and(|end| end <= size),
                Reference::Text(_) => true,
            };
            match references.refs.values().all(is_within) {
                true => Ok(references),
                false => {
                    Err(ApiError::internal("what reads files refers to bytes that the file does not have"))
                }
            }
        }
        Outcome::Unreadable(why) => unsupported(format!("its arrays cannot be referred to: {why}")),
        Outcome::NoFormat | Outcome::Found(_) => {
            unsupported("only to arrays of HDF5 and NetCDF there are references".into())
        }
    }
}
