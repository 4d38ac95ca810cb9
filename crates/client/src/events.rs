//! Following a space's journal as server-sent events.

use std::time::Duration;

use bytes::BytesMut;
use percale_api::tasks::Event;
use percale_core::ErrorCode;
use percale_core::path::SpaceName;
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};

use crate::call::Call;
use crate::client::Client;
use crate::error::{Error, ErrorKind};

/// Largest event: a packed record of a batch of thousands.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// The events of a space, each once and in order. A connection that breaks is made anew behind the last one.
#[derive(Debug)]
pub struct Events {
    client: Client,
    space: SpaceName,
    last: Option<String>,
    response: Option<Response>,
    buffer: BytesMut,
}

impl Client {
    /// Follows a space from behind a position, or from now on.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn events(&self, space: &SpaceName, since: Option<String>) -> crate::Result<Events> {
        let mut events = Events {
            client: self.clone(),
            space: space.clone(),
            last: since,
            response: None,
            buffer: BytesMut::new(),
        };
        events.response = Some(events.open().await?);
        Ok(events)
    }
}

impl Events {
    async fn open(&self) -> crate::Result<Response> {
        let mut call = Call::new(format!("follow space {}", self.space), Method::GET, "/v1/events")
            .query("space", &self.space)
            .header(ACCEPT.as_str(), "text/event-stream, application/problem+json");
        if let Some(last) = &self.last {
            call = call.header("last-event-id", last);
        }
        self.client.open_once(call).await
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// As the server answers; the connection stays away for longer than calls are repeated.
    pub async fn next(&mut self) -> crate::Result<Option<Event>> {
        let mut attempts = self.client.attempts();
        loop {
            while let Some(block) = self.take_block() {
                if let Some(event) = self.parse(&block)? {
                    self.last = Some(event.position.clone());
                    return Ok(Some(event));
                }
            }
            let response = match self.response.take() {
                Some(response) => Ok(response),
                None => self.open().await,
            };
            let error = match response {
                Ok(mut response) => match self.client.piece(&self.operation(), &mut response).await {
                    Ok(Some(piece)) => {
                        attempts.progressed();
                        self.response = Some(response);
                        if self.buffer.len() + piece.len() > MAX_EVENT_BYTES {
                            return Err(self.junk("an event is too long"));
                        }
                        self.buffer.extend_from_slice(&piece);
                        continue;
                    }
                    Ok(None) => self.junk("the site ended the stream"),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            self.buffer.clear();
            attempts.pause_after(error.with_retry_after(Some(Duration::from_millis(200)))).await?;
        }
    }

    fn operation(&self) -> String {
        format!("follow space {}", self.space)
    }

    fn junk(&self, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, self.operation(), detail)
    }

    /// Takes what stands before an empty line.
    fn take_block(&mut self) -> Option<BytesMut> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        Some(self.buffer.split_to(end + 2))
    }

    /// Reads one event; comments that keep the connection alive are none.
    fn parse(&self, block: &[u8]) -> crate::Result<Option<Event>> {
        let text = String::from_utf8_lossy(block);
        let data: Vec<&str> =
            text.lines().filter_map(|line| Some(line.strip_prefix("data:")?.trim_start())).collect();
        if data.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&data.join("\n")).map(Some).map_err(|error| {
            let detail = format!("an event is not understood: {error}");
            Error::new(ErrorKind::Protocol, ErrorCode::Internal, self.operation(), detail).with_source(error)
        })
    }
}
