//! The body of a request that a thread makes piece by piece.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use percale_mover::Encoder;
use tokio::sync::mpsc;

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

struct Body(Arc<Mutex<mpsc::Receiver<Bytes>>>);

impl Stream for Body {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.poll_recv(context).map(|piece| piece.map(Ok))
    }
}

/// Makes a body.
pub(crate) fn body() -> (Pieces, Closer, reqwest::Body) {
    let (sender, receiver) = mpsc::channel(QUEUED_PIECES);
    let receiver = Arc::new(Mutex::new(receiver));
    let body = reqwest::Body::wrap_stream(Body(receiver.clone()));
    (Pieces(sender), Closer(receiver), body)
}
