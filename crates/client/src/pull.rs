//! Asking for bytes as frames.

use std::sync::Arc;
use std::time::Duration;

use percale_api::uploads::{Pull, PullItem, PulledItem};
use percale_api::{Problem, fields, media};
use percale_core::ErrorCode;
use percale_mover::{Decoder, Frame};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};

use crate::client::{Call, Client};
use crate::elsewhere::{Place, Places};
use crate::error::{Error, ErrorKind, Retry};

/// How long the end of a stream is waited for.
const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// The answer to one pull, frame by frame.
#[derive(Debug)]
pub struct FrameStream {
    client: Client,
    operation: Arc<str>,
    response: Response,
    decoder: Decoder,
    ended: bool,
    /// A frame that was read ahead.
    ahead: Option<Frame>,
}

impl FrameStream {
    /// Asks once; whoever reads the frames knows what to ask for again. `operation` completes "cannot …".
    ///
    /// # Errors
    /// As the site answers.
    pub async fn open(client: &Client, operation: &str, items: Vec<PullItem>) -> crate::Result<Self> {
        Self::open_where(client, operation, items, false).await
    }

    /// The same; with `follow`, items may come as AWAY if the client goes where it is sent.
    ///
    /// # Errors
    /// As [`FrameStream::open`].
    pub(crate) async fn open_where(
        client: &Client,
        operation: &str,
        items: Vec<PullItem>,
        follow: bool,
    ) -> crate::Result<Self> {
        let mut call = Call::new(operation, Method::POST, "/v1/frames/pull")
            .json(&Pull { items })
            .header(ACCEPT.as_str(), &format!("{}, {}", media::FRAMES, media::PROBLEM));
        if let Some(elsewhere) = client.elsewhere().filter(|_| follow) {
            call = call.header(fields::REDIRECT, &elsewhere.follow().to_string());
        }
        let response = client.open_once(call).await?;
        Ok(Self {
            client: client.clone(),
            operation: operation.into(),
            response,
            decoder: Decoder::new(),
            ended: false,
            ahead: None,
        })
    }

    /// Reads ahead in a stream of one item, to find out whether that is elsewhere: then this stream is at its end, and
    /// the place is returned, or nothing in its stead if it cannot be used.
    ///
    /// # Errors
    /// As [`FrameStream::next`].
    pub(crate) async fn sent_on(&mut self) -> crate::Result<Option<Option<Place>>> {
        loop {
            match self.next().await? {
                Some(Frame::Item { .. }) => {}
                Some(Frame::Away { place, info, .. }) => {
                    let operation = self.operation.clone();
                    let Some(elsewhere) = self.client.elsewhere().cloned() else { return Ok(Some(None)) };
                    let mut places = Places::default();
                    let number = places.take(&elsewhere, &operation, place, &info)?;
                    while self.next().await?.is_some() {}
                    return Ok(Some(places.get(number).cloned()));
                }
                frame => {
                    self.ahead = frame;
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the next frame, or nothing behind the last one. A stream that was cut is an error, and so is one that the
    /// server ended with ERROR.
    ///
    /// # Errors
    /// As above.
    pub async fn next(&mut self) -> crate::Result<Option<Frame>> {
        if let Some(frame) = self.ahead.take() {
            return Ok(Some(frame));
        }
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

    /// Reads what is left of a stream of which nothing more is wanted, if it is the end: the connection is then good for
    /// the next request.
    pub(crate) async fn finish(mut self) {
        let rest = async {
            while let Ok(Some(frame)) = self.next().await {
                if matches!(frame, Frame::Data(_)) {
                    break;
                }
            }
        };
        drop(tokio::time::timeout(FINISH_WITHIN, rest).await);
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
