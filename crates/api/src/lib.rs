//! The wire types of the HTTP interface (`docs/design/rest.md`), shared by server and client.
//!
//! Additive changes only within `/v1`: a reader ignores fields it does not know, a new field is optional.

pub mod access;
pub mod attributes;
pub mod away;
pub mod digest_fields;
pub mod directions;
pub mod entries;
pub mod importing;
pub mod mounts;
pub mod peer;
pub mod plain;
pub mod problem;
pub mod receipt;
pub mod site;
pub mod spaces;
pub mod tasks;
pub mod uploads;

pub use problem::Problem;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Names of the HTTP fields that are our own.
pub mod fields {
    /// Journal position: in answers, where the change stands; in requests, what the client has already seen.
    pub const POSITION: &str = "percale-position";
    /// Version id of the content that is served or was made.
    pub const VERSION: &str = "percale-version";
    /// Root of the content's BLAKE3 hash tree, hexadecimal; equals `b3sum`.
    pub const ROOT: &str = "percale-root";
    /// Modification time of the content, RFC 3339, as its owner sees it.
    pub const MTIME: &str = "percale-mtime";
    /// What the caller may do with the collection that is listed, where copies are asked for.
    pub const PERMISSION: &str = "percale-permission";
    /// State of the replica that is served: `good` or `unverified`.
    pub const REPLICA_STATE: &str = "percale-replica-state";
    /// Identifies the request in logs (W3C trace context); answered in problems as `trace_id`.
    pub const TRACEPARENT: &str = "traceparent";
    /// Makes a repeated request have one effect (draft-ietf-httpapi-idempotency-key-header).
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// `wait=SECONDS`: how long the client waits for an answer to become possible (RFC 7240).
    pub const PREFER: &str = "prefer";
    /// In requests for content: `follow` from a client that goes on to the site that has it; `follow; not=SITE,…` names
    /// those that it does not go to.
    pub const REDIRECT: &str = "percale-redirect";
    /// In requests for content: the ticket of the site that sent the client here.
    pub const TICKET: &str = "percale-ticket";
    /// In answers of a search that are lines: the homes that do not answer, as `away` of a page is in JSON.
    pub const AWAY: &str = "percale-away";
    /// In such answers: the values that were not compared, as `mismatches` of a page, the first ones of many.
    pub const MISMATCHES: &str = "percale-mismatches";
    /// Between sites: a signed statement of who asks (`docs/design/trust.md`).
    pub const STATEMENT: &str = "percale-statement";
    /// Between sites: the signed delegation of a task.
    pub const DELEGATION: &str = "percale-delegation";
    /// Between sites: the name of the site that a request is for, if it is to be passed on.
    pub const TO: &str = "percale-to";
    /// Between sites: the name of the site that passed a request on. One is the most.
    pub const VIA: &str = "percale-via";
    /// Between sites: in requests for frames, the [offer](super::plain) that they come without encryption; in answers, what
    /// became of it.
    pub const PLAIN: &str = "percale-plain";
    /// In requests for frames: [`RECEIVER`] from whoever compares what comes with the trees or roots of the versions before it is used, so
    /// that the site need not do it as well.
    pub const VERIFY: &str = "percale-verify";
    /// Value of [`VERIFY`].
    pub const RECEIVER: &str = "receiver";
    /// In requests for frames: an id that all requests have which ask for parts of one version, or for whole objects, at the same time.
    /// Their answers together are what was asked for; a stream that has sent its part goes on with what others have not sent yet.
    pub const SHARE: &str = "percale-share";
}

/// Media types that are our own.
pub mod media {
    /// A stream of frames (`docs/design/frames.md`).
    pub const FRAMES: &str = "application/vnd.percale.frames";
    /// The stored form of a hash tree (`percale_core::tree`).
    pub const TREE: &str = "application/vnd.percale.hash-tree";
    /// A problem (RFC 9457).
    pub const PROBLEM: &str = "application/problem+json";
}

/// Most entries of one page of any list.
pub const MAX_PAGE: u32 = 10_000;
/// Entries of a page when none is asked for.
pub const DEFAULT_PAGE: u32 = 1_000;

/// One page of a list, in a stable order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The page's items.
    pub items: Vec<T>,
    /// The cursor of the next page, or absent if this is the last one. Also sent as `Link: …; rel="next"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
