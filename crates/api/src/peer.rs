//! What sites say to each other under `/v1/peer/` (`docs/design/federation.md`), and what administrators see of it.

use percale_core::access::{Caller, Identity};
use percale_core::digest::Digest;
use percale_core::ids::{EntryId, SiteId, SpaceId, StoreId, TaskId, VersionId};
use percale_core::path::SpaceName;
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{AttributeName, AttributeValue, ByteCount, FileMode, ObjectPath, Position, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Problem;
use crate::spaces::{Layout, StoreState};
use crate::tasks::NewTask;

/// Whether a site takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It does.
    Active,
    /// It does, but gets no new copies.
    Drained,
    /// Not any more, for good.
    Removed,
}

/// A member of the fabric, as the roster tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// The site's id.
    #[schema(value_type = String, format = "uuid")]
    pub id: SiteId,
    /// Its name, unique among active members.
    pub name: String,
    /// Its public key, hexadecimal.
    pub key: String,
    /// Its key before the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_key: Option<String>,
    /// Until when the old key is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub old_key_until: Option<Timestamp>,
    /// The announcement of the key, signed with the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_change: Option<String>,
    /// The site that says this does not accept the key before an administrator has compared it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unconfirmed: bool,
    /// Where it can be reached.
    pub urls: Vec<String>,
    /// Whether others can dial it.
    pub is_dialable: bool,
    /// Issuers of tokens that it vouches for, besides its own.
    #[serde(default)]
    pub issuers: Vec<String>,
    /// Whether it takes part.
    pub state: MemberState,
    /// When this was last changed.
    #[schema(value_type = String, format = "date-time")]
    pub changed: Timestamp,
    /// By which site.
    #[schema(value_type = String, format = "uuid")]
    pub changed_by: SiteId,
}

/// All members that a site knows, itself included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Roster {
    /// The members.
    pub members: Vec<Member>,
}

/// A site proves an invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Join {
    /// The site that joins, as it wants to be known.
    pub member: Member,
    /// Proof that it has the invitation's secret, bound to its key: hexadecimal.
    pub proof: String,
}

/// Asks for an invitation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInvitation {
    /// For how many seconds it is good; a day if absent, at most 30 days.
    #[serde(default)]
    pub life_s: Option<u64>,
}

/// An invitation that was made. It is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    /// The line to hand over.
    pub invitation: String,
    /// When it ends.
    #[schema(value_type = String, format = "date-time")]
    pub expires: Timestamp,
}

/// Joins a fabric with an invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Accept {
    /// The line that was handed over.
    pub invitation: String,
}

/// Changes a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// Whether it takes new data.
    pub state: MemberState,
}

/// Changes the key of the site that is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRotation {
    /// The key that it has now, hexadecimal: the same request changes it once.
    pub key: String,
    /// Others know the key: it is not accepted any more, and neither are tokens and tasks that it signed.
    #[serde(default)]
    pub compromised: bool,
}

/// A key that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyRotated {
    /// The site's name.
    pub site: String,
    /// The new key, hexadecimal.
    pub key: String,
    /// Its short name, for comparing.
    pub key_id: String,
    /// Until when other sites accept the old one; nothing if they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub old_key_until: Option<Timestamp>,
    /// The sites that have heard of it.
    pub told: Vec<String>,
    /// Those that were not reached; they hear of it when they are.
    pub untold: Vec<String>,
}

/// Says which key another site has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyConfirmation {
    /// The key, 64 hexadecimal digits, or its short name of 16, if the site has told of it.
    pub key: String,
}

/// A site as its administrators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteStatus {
    /// What the roster says.
    #[serde(flatten)]
    pub member: Member,
    /// Whether it is the site that answers.
    pub is_self: bool,
    /// Whether requests get through now: `self`, `direct`, `reverse` (it dialled us), `relay`,
    /// `unreachable`, or `refused` until its key is confirmed.
    pub route: String,
    /// When it last answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub seen: Option<Timestamp>,
    /// Round trip of the last exchange, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// How far its clock is ahead of ours, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<f64>,
    /// How the last copy came from it to this server, or the next one will: `tls`, or `integrity_only` (not encrypted, every byte
    /// authenticated) where both sites have that configured. Absent for the site that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Why, where integrity only is configured here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport_reason: Option<String>,
    /// Why the last exchange failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Short name of its key, for comparing.
    pub key_id: String,
    /// What an administrator has to do about its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_trouble: Option<String>,
}

/// Asks a home for what is new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Where the follower stands in each space that it follows.
    pub positions: Vec<Position>,
    /// A fingerprint of what the follower knows of the home's stores and spaces; another one is answered with the lists.
    #[serde(default)]
    pub known: Option<String>,
    /// How long to wait if nothing is new, in seconds, at most 30.
    #[serde(default)]
    pub wait_s: u32,
}

/// A record of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalRecord {
    /// Its place.
    pub position: Position,
    /// When, by the home's database.
    pub at_us: i64,
    /// Who caused it.
    pub actor: String,
    /// What kind of change.
    pub kind: String,
    /// The version of the body's form.
    pub v: u32,
    /// The change.
    pub body: serde_json::Value,
}

/// What is new in one space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceChanges {
    /// The space.
    pub space: SpaceId,
    /// Records behind the follower's position, in order.
    #[serde(default)]
    pub records: Vec<JournalRecord>,
    /// Whether the position cannot be continued: the follower begins from a snapshot.
    #[serde(default)]
    pub is_gone: bool,
}

/// A space at its home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeSpace {
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: SpaceName,
    /// The end of its journal.
    pub position: Position,
}

/// A store of another site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStore {
    /// Its id.
    pub id: StoreId,
    /// Its name at its site.
    pub name: String,
    /// How it keeps files.
    pub layout: Layout,
    /// Whether it takes new data.
    pub state: StoreState,
}

/// What is new at a home.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The spaces in which something is new.
    pub spaces: Vec<SpaceChanges>,
    /// All spaces at home there, if the follower's fingerprint was another.
    #[serde(default)]
    pub homes: Option<Vec<HomeSpace>>,
    /// All stores there, if the follower's fingerprint was another.
    #[serde(default)]
    pub stores: Option<Vec<PeerStore>>,
    /// The fingerprint of both lists.
    pub known: String,
    /// The home's time when it answered, for comparing clocks.
    pub now_us: i64,
    /// How many bytes it keeps in flight on one connection at most, for choosing how many there are. Since 0.1; older servers do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// What must be at a path for a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PublishCondition {
    /// Nothing.
    New,
    /// An object with this version.
    Match(VersionId),
    /// An object.
    Existing,
    /// Nothing or an object.
    Any,
}

/// A new version whose bytes lie at the asking site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// Its id: asked again, the answer is the same.
    pub id: Uuid,
    /// Where.
    pub path: ObjectPath,
    /// Whether missing collections above are made.
    pub parents: bool,
    /// What must be there.
    pub condition: PublishCondition,
    /// Bytes.
    pub size: ByteCount,
    /// The root of its hash tree.
    pub root: RootHash,
    /// When its owner last modified it.
    pub mtime_us: Option<i64>,
    /// Its permission bits; those of the object that is there if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Further digests.
    #[serde(default)]
    pub digests: Vec<Digest>,
    /// The store that has the bytes.
    pub store: StoreId,
    /// Where they lie.
    pub key: String,
    /// What tells them from the next content.
    #[serde(default)]
    pub generation: Option<String>,
}

/// New versions of one user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Publish {
    /// On whose behalf, as the asking site sees it crossing to the home. Where the request has a delegation, that says it.
    pub caller: Caller,
    /// The publications.
    pub items: Vec<Publication>,
    /// Publications that were given up and must never become visible.
    #[serde(default)]
    pub abandoned: Vec<Uuid>,
}

/// A publication that the home committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Where the object is.
    pub path: ObjectPath,
    /// The object.
    pub entry: EntryId,
    /// Its new version.
    pub version: VersionId,
    /// The journal behind it.
    pub position: Position,
    /// Whether there was no object before.
    pub created: bool,
}

/// What became of one item: a value, or a problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "what is done is small only for some, and lists of outcomes are short-lived"
)]
pub enum Outcome<T> {
    /// It was done.
    Done(T),
    /// It was not.
    Failed(Problem),
}

/// What became of publications, in the order in which they were sent; then of the abandoned ones: those that were
/// committed before they were given up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublishAnswer {
    /// The publications.
    pub items: Vec<Outcome<Published>>,
    /// The abandoned ones; null for those that never will be.
    #[serde(default)]
    pub abandoned: Vec<Option<Published>>,
}

/// A copy at the asking site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// The id of a new copy's arrival; none for the state of one that is known.
    #[serde(default)]
    pub arrival: Option<Uuid>,
    /// The space.
    pub space: SpaceId,
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// Where it lies. A report about a copy whose place was taken by another is of no effect.
    #[serde(default)]
    pub key: Option<String>,
    /// Its state.
    pub state: ReplicaState,
    /// What tells its content from the next.
    #[serde(default)]
    pub generation: Option<String>,
    /// The root of its hash tree, if it was hashed.
    #[serde(default)]
    pub root: Option<RootHash>,
    /// Whether its bytes were looked at for this report.
    #[serde(default)]
    pub is_checked: bool,
}

/// Copies at the asking site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReports {
    /// Who caused them, for the journal.
    pub actor: Option<Identity>,
    /// The copies.
    pub items: Vec<CopyReport>,
}

/// What the home made of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyAnswer {
    /// It is noted, at this position.
    Noted(Position),
    /// The store has a copy of this version at another key: this one is too many.
    Known(String),
    /// The report does not follow from what the home knows, which stands.
    Refused {
        /// The state that the home knows.
        state: ReplicaState,
        /// What the home knows to tell its content from the next.
        generation: Option<String>,
        /// The journal when it was refused.
        position: Position,
    },
    /// The version, or the copy, is no longer wanted.
    Gone,
}

/// What became of reports, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopyAnswers {
    /// The answers.
    pub items: Vec<Outcome<CopyAnswer>>,
}

/// Gives a task of a user to the site where it is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The id that it is to have.
    pub id: TaskId,
    /// What it is to do.
    pub task: NewTask,
    /// The user's delegation for this task at that site, as the site that asks has signed it.
    pub delegation: String,
    /// The user's idempotency key.
    #[serde(default)]
    pub idempotency_key: Option<String>,
}

/// A copy of a version on a store of the asking site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnCopy {
    /// The space.
    pub space: SpaceId,
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
}

/// Asks the home to let copies at the asking site go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evict {
    /// The copies; at most [`MAX_COPIES`].
    pub items: Vec<OwnCopy>,
}

/// Most copies in one request to evict, check or read the headers of.
pub const MAX_COPIES: usize = 1000;

/// What became of copies that were to be let go, in their order: the journal behind the removal, or nothing for one that
/// was no copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvictAnswers {
    /// The answers.
    pub items: Vec<Outcome<Option<Position>>>,
}

/// A version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionOf {
    /// The space.
    pub space: SpaceId,
    /// The version.
    pub version: VersionId,
}

/// Asks a site to read and hash its copies of versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckCopies {
    /// The versions; at most [`MAX_COPIES`].
    pub items: Vec<VersionOf>,
    /// The user's delegation to that site, with which it replaces what is damaged or lost. Nothing is replaced without.
    #[serde(default)]
    pub repair: Option<String>,
}

/// A copy that was read and hashed: a line of the answer to [`CheckCopies`]. Empty lines only say that the work goes on; the
/// last line is [`CheckLine::End`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckLine {
    /// One copy.
    Copy {
        /// The number of its version in the request.
        item: usize,
        /// The store.
        store: StoreId,
        /// The bytes that were read, or what is wrong.
        outcome: Outcome<Checked>,
    },
    /// A version that could not be looked at.
    Version {
        /// Its number in the request.
        item: usize,
        /// Why.
        problem: Problem,
    },
    /// All were looked at.
    End {
        /// The lines before this one.
        lines: usize,
    },
}

/// What was found of a good copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether it was made anew, since what was there was damaged or lost.
    #[serde(default)]
    pub is_repaired: bool,
    /// The root of its hash tree. Since 0.1; older servers do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootHash>,
}

/// Asks a site to read the headers of versions of which it has copies. Only the home of their space asks that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadHeaders {
    /// The space.
    pub space: SpaceId,
    /// The versions; at most [`MAX_COPIES`].
    pub versions: Vec<VersionId>,
}

/// What became of the first of them, in their order: at least of one, and of as many as were read within some seconds and some MiB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadersRead {
    /// The attributes of each, or why its header was not read.
    pub items: Vec<Outcome<Vec<HeaderAttribute>>>,
}

/// An attribute out of a header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeaderAttribute {
    /// Its name.
    pub name: AttributeName,
    /// Its values.
    pub values: Vec<AttributeValue>,
}
