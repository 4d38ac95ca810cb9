//! What a request leaves behind: its trace id, its log line, its metrics; and the answer to a panic.
//!
//! The trace id is that of the client's `traceparent` (W3C Trace Context, section 3.2), else a new one. It is in every
//! problem, in the answer's `traceparent`, and in every log line of the request.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use percale_api::{Problem, fields};
use percale_core::ErrorCode;
use tracing::Instrument as _;

use crate::{ApiError, AppState};

/// The 16 bytes that identify a request across sites, as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 32]);

impl TraceId {
    fn new() -> Self {
        let mut text = [0; 32];
        text.copy_from_slice(uuid::Uuid::new_v4().simple().encode_lower(&mut [0; 32]).as_bytes());
        Self(text)
    }

    /// Reads `00-<trace id>-<parent id>-<flags>`; anything else, also an id of zeros, is nothing.
    fn from_traceparent(value: &HeaderValue) -> Option<Self> {
        let mut parts = value.to_str().ok()?.split('-');
        let (version, id, parent) = (parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, len: usize| {
            text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let valid = is_hex(version, 2) && version != "ff" && is_hex(id, 32) && is_hex(parent, 16);
        let zero = id.bytes().all(|b| b == b'0');
        (valid && !zero).then(|| Self(id.as_bytes().try_into().expect("32 digits were counted")))
    }

    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

#[derive(Clone)]
struct Current {
    trace: TraceId,
    app: AppState,
}

tokio::task_local! {
    static CURRENT: Current;
}

/// Adds trace id and site of the request that this task is answering. Outside of one it adds nothing.
pub fn fill(problem: &mut Problem) {
    let _ = CURRENT.try_with(|current| {
        problem.trace_id = Some(current.trace.as_str().to_owned());
        problem.site = Some(current.app.site.name.clone());
    });
}

/// Runs a request under its trace id; counts, times and logs it.
pub async fn layer(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let trace = request.headers().get(fields::TRACEPARENT).and_then(TraceId::from_traceparent);
    let trace = trace.unwrap_or_else(TraceId::new);
    // Patterns only: a path or an id as label would make a series for each.
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route: Arc<str> = matched.as_ref().map_or("unmatched", |matched| matched.as_str()).into();
    let method = method_label(request.method());
    let span = tracing::info_span!("request", trace_id = trace.as_str(), method, route = &*route);
    let in_flight = InFlight::enter();

    let current = Current { trace, app };
    let mut response = CURRENT.scope(current, next.run(request).instrument(span.clone())).await;

    drop(in_flight);
    let elapsed = begun.elapsed();
    let status = response.status();
    metrics::histogram!(
        "percale_http_request_duration_seconds",
        "route" => route.to_string(), "method" => method, "status" => status_label(status.as_u16())
    )
    .record(elapsed.as_secs_f64());
    let _entered = span.enter();
    let milliseconds = elapsed.as_secs_f64() * 1000.0;
    match response.extensions().get::<ApiError>() {
        Some(error) if status.is_server_error() => {
            tracing::error!(status = status.as_u16(), code = %error.code(), detail = error.detail(), cause = error.causes(), milliseconds, "request failed");
        }
        Some(error) => {
            tracing::debug!(status = status.as_u16(), code = %error.code(), detail = error.detail(), milliseconds, "request refused");
        }
        None => tracing::debug!(status = status.as_u16(), milliseconds, "request answered"),
    }
    let parent = uuid::Uuid::new_v4().simple().to_string();
    let traceparent = format!("00-{}-{}-00", trace.as_str(), &parent[..16]);
    if let Ok(value) = HeaderValue::from_str(&traceparent) {
        response.headers_mut().insert(fields::TRACEPARENT, value);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Counts the requests whose answer has not begun.
struct InFlight;

impl InFlight {
    fn enter() -> Self {
        metrics::gauge!("percale_http_requests_in_flight").increment(1.0);
        Self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        metrics::gauge!("percale_http_requests_in_flight").decrement(1.0);
    }
}

/// An unknown method must not become a label.
fn method_label(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "PUT" => "PUT",
        "POST" => "POST",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

fn status_label(status: u16) -> &'static str {
    const KNOWN: &[(u16, &str)] = &[
        (200, "200"),
        (201, "201"),
        (202, "202"),
        (204, "204"),
        (206, "206"),
        (304, "304"),
        (307, "307"),
        (400, "400"),
        (401, "401"),
        (403, "403"),
        (404, "404"),
        (405, "405"),
        (409, "409"),
        (412, "412"),
        (413, "413"),
        (415, "415"),
        (416, "416"),
        (421, "421"),
        (422, "422"),
        (428, "428"),
        (429, "429"),
        (500, "500"),
        (501, "501"),
        (503, "503"),
        (504, "504"),
        (507, "507"),
    ];
    KNOWN.iter().find(|(known, _)| *known == status).map_or("other", |(_, label)| label)
}

/// Answers for a handler that panicked. The words of the panic go to the log only.
pub fn answer_panic(panic: Box<dyn Any + Send + 'static>) -> http::Response<Body> {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no words");
    tracing::error!(panic = words, "a handler panicked");
    ApiError::new(ErrorCode::Internal, "the server met a case that it should have handled").into_response()
}

static METRICS: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Upper bounds of the buckets of every histogram of seconds: 0.5 ms to 60 s.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Returns the process's metrics, installed at the first call. Nothing if another recorder was installed before.
pub fn metrics() -> Option<&'static PrometheusHandle> {
    METRICS
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().set_buckets(SECONDS).ok()?.build_recorder();
            let handle = recorder.handle();
            ::metrics::set_global_recorder(recorder).ok()?;
            ::metrics::describe_histogram!(
                "percale_http_request_duration_seconds",
                "Time from a request's header to the head of its answer"
            );
            ::metrics::describe_gauge!(
                "percale_http_requests_in_flight",
                "Requests whose answer has not begun"
            );
            ::metrics::describe_gauge!("percale_build_info", "Always 1; the label has the release");
            ::metrics::gauge!("percale_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
            Some(handle)
        })
        .as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_answered_without_its_words() {
        use http_body_util::BodyExt as _;
        let response = answer_panic(Box::new("secret words".to_owned()));
        assert_eq!(response.status(), 500);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem.code, "internal");
        assert!(!problem.detail.contains("secret"));
    }

    #[test]
    fn a_traceparent_is_kept_and_junk_replaced() {
        let read = |text: &'static str| TraceId::from_traceparent(&HeaderValue::from_static(text));
        let id = read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(id.as_str(), "4bf92f3577b34da6a3ce929d0e0e4736");
        for junk in [
            "",
            "00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(junk), None, "{junk:?}");
        }
        assert_ne!(TraceId::new(), TraceId::new());
    }
}
