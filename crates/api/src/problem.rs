//! Errors on the wire: RFC 9457 problem details.

use percale_core::{ErrorCode, ObjectPath};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What went wrong, for programs (`code`, `retryable`) and for people (`detail`, `hint`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// The page that explains the code.
    #[serde(rename = "type")]
    #[schema(example = "https://percale.dev/errors#not_found")]
    pub type_url: String,
    /// The code's title; the same for every problem of this code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was attempted, on what, and why it failed.
    pub detail: String,
    /// The stable code, from `spec/errors.yaml`.
    #[schema(example = "not_found")]
    pub code: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What to do next.
    pub hint: String,
    /// The path it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where that path leads, for `is_link`, if that is a path of the fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub leads_to: Option<ObjectPath>,
    /// The site that met it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// Finds the request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// Where the pages of `docs/errors.md` are published.
pub const TYPE_BASE: &str = "https://percale.dev/errors";

impl Problem {
    /// Makes a problem of a code; title, status, hint and whether a retry helps come from `spec/errors.yaml`.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            type_url: format!("{TYPE_BASE}#{code}"),
            title: code.title().to_owned(),
            status: code.http_status(),
            detail: detail.into(),
            code: code.as_str().to_owned(),
            retryable: code.is_retryable(),
            hint: code.remedy().to_owned(),
            path: None,
            leads_to: None,
            site: None,
            trace_id: None,
        }
    }

    /// Adds the path it is about.
    pub fn with_path(mut self, path: impl ToString) -> Self {
        self.path = Some(path.to_string());
        self
    }

    /// Returns the code, or [`ErrorCode::Internal`] for one that a newer server sent.
    pub fn error_code(&self) -> ErrorCode {
        self.code.parse().unwrap_or(ErrorCode::Internal)
    }
}
