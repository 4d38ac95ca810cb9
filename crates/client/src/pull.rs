//! Asking for bytes as frames.

use std::sync::Arc;

use percale_api::uploads::{Pull, PullItem, PulledItem};
use percale_api::{Problem, media};
use percale_core::ErrorCode;
use percale_mover::{Decoder, Frame};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};

use crate::client::{Call, Client};
use crate::error::{Error, ErrorKind, Retry};

/// The answer to one pull, frame by frame.
#[derive(Debug)]
pub struct FrameStream {
    client: Client,
    operation: Arc<str>,
    response: Response,
    decoder: Decoder,
    ended: bool,
}

impl FrameStream {
    /// Asks once; whoever reads the frames knows what to ask for again. `operation` completes "cannot …".
    ///
    /// # Errors
    /// As the site answers.
    pub async fn open(client: &Client, operation: &str, items: Vec<PullItem>) -> crate::Result<Self> {
        let call = Call::new(operation, Method::POST, "/v1/frames/pull")
            .json(&Pull { items })
            .header(ACCEPT.as_str(), &format!("{}, {}", media::FRAMES, media::PROBLEM));
        let response = client.open_once(call).await?;
        Ok(Self {
            client: client.clone(),
            operation: operation.into(),
            response,
            decoder: Decoder::new(),
            ended: false,
        })
    }

    /// Returns the next frame, or nothing behind the last one. A stream that was cut is an error, and so is one that the
    /// server ended with ERROR.
    ///
    /// # Errors
    /// As above.
    pub async fn next(&mut self) -> crate::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(|error| self.broken(error))? {
                match frame {
                    Frame::Error { problem } => return Err(parse_problem(&self.operation, &problem)),
                    Frame::End { .. } => self.ended = true,
                    frame => return Ok(Some(frame)),
                }
                continue;
            }
            match self.client.piece(&self.operation, &mut self.response).await {
                Ok(Some(piece)) => self.decoder.feed(piece),
                Ok(None) => {
                    return match self.decoder.finish() {
                        Ok(()) => Ok(None),
                        Err(error) => Err(self.broken(error)),
                    };
                }
                // Whatever the transport says of its end, END was there.
                Err(_) if self.ended => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn broken(&self, error: percale_mover::FrameError) -> Error {
        let (kind, retry) = match error {
            percale_mover::FrameError::Cut => (ErrorKind::Connection, Retry::Temporary),
            _ => (ErrorKind::Protocol, Retry::Permanent),
        };
        let code = if retry == Retry::Temporary { ErrorCode::SiteUnavailable } else { ErrorCode::Internal };
        Error::new(kind, code, &*self.operation, error.to_string()).with_source(error).with_retry(retry)
    }
}

/// Reads the problem of a FAIL or ERROR frame.
pub fn parse_problem(operation: &str, json: &[u8]) -> Error {
    match serde_json::from_slice::<Problem>(json) {
        Ok(problem) => Error::problem(operation, problem),
        Err(error) => {
            let detail = format!("the site sent a problem that is not understood: {error}");
            Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail).with_source(error)
        }
    }
}

/// Reads the description of an item.
///
/// # Errors
/// It is not one.
pub fn parse_item(operation: &str, json: &[u8]) -> crate::Result<PulledItem> {
    serde_json::from_slice(json).map_err(|error| {
        let detail = format!("the site sent an item that is not understood: {error}");
        Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail).with_source(error)
    })
}
