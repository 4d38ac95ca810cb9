//! Answers to what takes long: their pieces come as the work goes on.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};
use tokio::sync::mpsc;

use crate::AppState;

/// Pieces that wait for the network.
const QUEUE: usize = 16;
/// An empty line is sent that often while none comes: a connection on which nothing moves is given up.
const ALIVE: Duration = Duration::from_secs(5);

/// Answers with what a work sends. It is dropped when nobody hears of it any more, or the server stops.
pub(super) fn answer<W: Future<Output = ()> + Send + 'static>(
    app: &AppState,
    media: &'static str,
    work: impl FnOnce(mpsc::Sender<Bytes>) -> W,
) -> Response {
    let (sender, pieces) = mpsc::channel(QUEUE);
    let (work, stopping) = (work(sender.clone()), app.stopping.clone());
    app.background.spawn(async move {
        tokio::select! {
            () = work => {}
            () = sender.closed() => {}
            () = stopping.cancelled() => {}
        }
    });
    let body = stream::unfold(pieces, |mut pieces| async move {
        let piece = match tokio::time::timeout(ALIVE, pieces.recv()).await {
            Ok(piece) => piece?,
            Err(_) => Bytes::from_static(b"\n"),
        };
        Some((Ok::<_, Infallible>(piece), pieces))
    });
    let mut response = Body::from_stream(body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
