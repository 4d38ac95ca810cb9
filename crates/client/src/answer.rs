//! Reading answers: JSON, bytes, problems.

use std::time::Duration;

use bytes::Bytes;
use percale_api::Problem;
use percale_core::ErrorCode;
use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Retry};

/// Largest problem that is read.
const MAX_PROBLEM_BYTES: usize = 256 << 10;

impl Client {
    /// Makes the error of an answer that is not a success.
    pub(crate) async fn problem(&self, operation: &str, response: Response) -> Error {
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        let body = self.read_bytes(operation, response, MAX_PROBLEM_BYTES).await.unwrap_or_default();
        if let Ok(problem) = serde_json::from_slice::<Problem>(&body) {
            return Error::problem(operation, problem).with_retry_after(retry_after);
        }
        // Something in between answered: a proxy, a load balancer, another program on this port.
        let code = match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => ErrorCode::SiteUnavailable,
            StatusCode::GATEWAY_TIMEOUT => ErrorCode::Timeout,
            StatusCode::TOO_MANY_REQUESTS => ErrorCode::RateLimited,
            StatusCode::REQUEST_TIMEOUT => ErrorCode::RequestTimeout,
            StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::PayloadTooLarge,
            StatusCode::NOT_FOUND => ErrorCode::NotFound,
            StatusCode::UNAUTHORIZED => ErrorCode::Unauthenticated,
            StatusCode::FORBIDDEN => ErrorCode::Forbidden,
            _ => ErrorCode::Internal,
        };
        let start: String =
            String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(120).collect();
        let detail =
            format!("HTTP {status}, and no description of the problem (is this a Percale site?) {start}");
        let error = Error::new(ErrorKind::Protocol, code, operation, detail.trim_end());
        let error = if code.is_retryable() { error.with_retry(Retry::Temporary) } else { error };
        error.with_retry_after(retry_after)
    }

    /// Reads a whole answer of at most so many bytes.
    pub(crate) async fn read_bytes(
        &self,
        operation: &str,
        mut response: Response,
        most: usize,
    ) -> crate::Result<Bytes> {
        let mut body = bytes::BytesMut::new();
        while let Some(piece) = self.piece(operation, &mut response).await? {
            if body.len() + piece.len() > most {
                let detail = format!("the answer has more than {most} bytes");
                return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }
}

/// Reads an answer's JSON.
pub(crate) fn parse_json<T: DeserializeOwned>(operation: &str, body: &[u8]) -> crate::Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        let detail = format!("the answer is not understood (is this a Percale site?): {error}");
        Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail).with_source(error)
    })
}
