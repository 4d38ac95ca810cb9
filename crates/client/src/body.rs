//! The body of a request that a thread makes piece by piece.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use percale_mover::{Bucket, Encoder};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

/// Pieces that wait to be sent, each at most 1 MiB.
const QUEUED_PIECES: usize = 6;

/// Where the pieces are handed in.
#[derive(Debug)]
pub(crate) struct Pieces(mpsc::Sender<Bytes>);

impl Pieces {
    /// Hands in what an encoder has ready. Returns whether anybody still wants it. Blocks.
    pub fn send(&self, encoder: &mut Encoder) -> bool {
        while let Some(piece) = encoder.next() {
            if self.0.blocking_send(piece).is_err() {
                return false;
            }
        }
        true
    }
}

/// Ends the body early: a server that answered before it read everything wants no more, but the connection may go on
/// holding the body.
#[derive(Debug)]
pub(crate) struct Closer(Arc<Mutex<mpsc::Receiver<Bytes>>>);

impl Closer {
    pub fn close(&self) {
        let mut receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.close();
        while receiver.try_recv().is_ok() {}
    }
}

/// When the last piece was taken for sending, so that a body that stands still is told from a slow one.
#[derive(Debug, Clone)]
pub(crate) struct LastSent(Arc<Mutex<Instant>>);

impl LastSent {
    pub fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Body {
    pieces: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    sent: LastSent,
    /// Free again once everything was taken for sending, so that another body is sent while this one's answer is on its way.
    slot: Option<OwnedSemaphorePermit>,
}

impl Stream for Body {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).poll_recv(context);
        if piece.is_ready() {
            *self.sent.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        if matches!(piece, Poll::Ready(None)) {
            self.slot = None;
        }
        piece.map(|piece| piece.map(Ok))
    }
}

/// A body that is passed on as it comes.
pub struct Passed {
    pub(crate) body: reqwest::Body,
    pub(crate) sent: Option<LastSent>,
}

impl Passed {
    /// Takes a body that is there already.
    pub fn whole(bytes: Bytes) -> Self {
        Self { body: bytes.into(), sent: None }
    }

    /// Takes one that still arrives. As long as it does, the answer is waited for.
    pub fn stream<S, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        let sent = LastSent(Arc::new(Mutex::new(Instant::now())));
        let moved = sent.clone();
        let stream = stream.inspect(move |_| {
            *moved.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        });
        Self { body: reqwest::Body::wrap_stream(stream), sent: Some(sent) }
    }
}

/// A body and its ends.
pub(crate) struct Parts {
    pub pieces: Pieces,
    pub closer: Closer,
    pub sent: LastSent,
    pub body: reqwest::Body,
}

/// Makes a body, which keeps to a limit, and to a slot until it was sent.
pub(crate) fn body(limit: Option<&Arc<Bucket>>, slot: Option<OwnedSemaphorePermit>) -> Parts {
    let (sender, receiver) = mpsc::channel(QUEUED_PIECES);
    let receiver = Arc::new(Mutex::new(receiver));
    let sent = LastSent(Arc::new(Mutex::new(Instant::now())));
    let body = Body { pieces: receiver.clone(), sent: sent.clone(), slot };
    let body = match limit.cloned() {
        None => reqwest::Body::wrap_stream(body),
        Some(limit) => reqwest::Body::wrap_stream(body.then(move |piece| {
            let limit = limit.clone();
            async move {
                if let Ok(piece) = &piece {
                    limit.take(piece.len() as u64).await;
                }
                piece
            }
        })),
    };
    Parts { pieces: Pieces(sender), closer: Closer(receiver), sent, body }
}
