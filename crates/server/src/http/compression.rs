//! Answers in JSON, compressed for those who say that they can read that (RFC 9110, 12.5.3).
//!
//! A page of a listing says the same of each entry, and is a tenth of its size in gzip. Over a long line it comes several round trips
//! sooner: a new connection carries 14 kB in the first, and twice as much in each that follows.

use axum::body::HttpBody;
use http::{Response, header};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::Predicate;

/// What fits the first packets anyway is sent as it is.
const FROM: u64 = 4096;

/// Makes what compresses answers.
pub(super) fn layer() -> CompressionLayer<Whole> {
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(Whole)
}

/// Chooses answers in JSON that are whole. What comes bit by bit is waited for bit by bit, and bytes of objects are as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole;

impl Predicate for Whole {
    fn should_compress<B: HttpBody>(&self, response: &Response<B>) -> bool {
        let kind = response.headers().get(header::CONTENT_TYPE);
        kind.is_some_and(|kind| kind == "application/json")
            && response.body().size_hint().exact().is_some_and(|size| size >= FROM)
    }
}
