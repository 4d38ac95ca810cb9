//! JSON in gzip: answers for those who say that they can read that (RFC 9110, 12.5.3), and requests that name many objects.
//!
//! A page of a listing says the same of each entry, and is a tenth of its size in gzip. Over a long line it comes several round trips
//! sooner: a new connection carries 14 kB in the first, and twice as much in each that follows.

use axum::body::HttpBody;
use http::{HeaderValue, Response, header};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::Predicate;
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;

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

/// Makes what reads requests whose JSON is compressed, and says with every answer that they may be
/// ([RFC 7694](https://www.rfc-editor.org/rfc/rfc7694)): names of objects are as much alike there. How much is read of what comes out is
/// bounded as ever.
pub(super) fn of_requests() -> (SetResponseHeaderLayer<HeaderValue>, RequestDecompressionLayer) {
    let says = SetResponseHeaderLayer::overriding(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    // What is compressed in another way is not JSON, and whoever reads it says so.
    (says, RequestDecompressionLayer::new().pass_through_unaccepted(true))
}
