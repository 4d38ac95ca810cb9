//! Many objects, or parts of them, out of the fabric in one stream: `/v1/frames/pull` (`docs/design/frames.md`).

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use percale_api::away::Follow;
use percale_api::plain::Taken;
use percale_api::uploads::{ItemDone, Pull, PullItem, PulledItem};
use percale_api::{Problem, fields, media};
use percale_catalog::OpenVersion;
use percale_core::ids::{SpaceId, VersionId};
use percale_core::range::RangeSet;
use percale_core::tree::{GROUP_SIZE, GroupHash, group_count, group_range, hash_group};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath, Rate};
use percale_mover::{Bucket, Encoder, Line, Share, StreamKey};
use percale_store::FileRange;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Json;
use super::redirect;
use super::ticket::Reading;
use crate::listener::PeerKey;
use crate::plain::{Carried, Met, Part};
use crate::publish::MAX_BATCH;
use crate::reading::{Piece, READS, Source, TOGETHER, in_batches};
use crate::traffic::{Sent, Traffic};
use crate::{ApiError, AppState, Result};

mod together;

/// Pieces that wait for the network.
const QUEUE: usize = 8;
/// The same of a stream that shares its work: what waits is sent by no other stream.
const SHARED_QUEUE: usize = 2;
/// What is left for a stream to be helped with it, where its bytes come from another site.
const HELP_ELSEWHERE: u64 = 8 << 20;
/// Characters of an id of streams that share.
const SHARE_LEN: RangeInclusive<usize> = 16..=64;
/// What goes at a time under a limit, at least: little enough that many streams which share a slow one each get something
/// every few seconds, and none is taken for dead.
const LEAST_PIECE: usize = 16 << 10;
/// And how much of a second's bytes, one part in so many.
const PIECES_A_SECOND: u64 = 100;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(pull))
}

/// Reads many objects, or parts of them.
///
/// The answer is a stream of frames: each item announced, its groups, its end. Items that cannot be read come as FAIL
/// with a problem, and the stream goes on. With `Percale-Redirect: follow`, items of which there is no copy here may come
/// as AWAY, with the site to read them from and a ticket for `Percale-Ticket`.
#[utoipa::path(
    post, path = "/v1/frames/pull", tag = "data", request_body = Pull,
    responses(
        (status = 200, description = "the frames", content_type = "application/vnd.percale.frames", body = Vec<u8>),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn pull(
    State(app): State<AppState>,
    reading: Reading,
    peer: Option<Extension<PeerKey>>,
    line: Option<Extension<Line>>,
    headers: HeaderMap,
    Json(wanted): Json<Pull>,
) -> Result<Response> {
    if wanted.items.len() > percale_mover::frames::MAX_ITEMS as usize {
        let detail = format!("at most {} items in one stream", percale_mover::frames::MAX_ITEMS);
        return Err(ApiError::new(ErrorCode::PayloadTooLarge, detail));
    }
    let follow = redirect::willing(&headers, &reading);
    let share = share_of(&headers)?;
    let plain = beside_tls(&app, &reading, peer.map(|Extension(peer)| peer), &headers).await?;
    reading.begin_body()?;
    let is_compared = headers.get(fields::VERIFY).is_none_or(|who| who != fields::RECEIVER);
    let queue = if share.is_some() { SHARED_QUEUE } else { QUEUE };
    let line = line.map(|Extension(line)| line);
    let asker = Asker { reading: Arc::new(reading), is_compared, share, line };
    let carried = plain.map(|plain| {
        let (key, met) = plain?;
        met.carry(queue).map(|carried| (key, carried)).ok_or(Taken::Late)
    });
    let taken = carried.as_ref().map(|carried| carried.as_ref().err().copied().unwrap_or(Taken::Yes));
    let (encoder, to, body) = match carried {
        Some(Ok((key, carried))) => (Encoder::authentic(key), To::Beside(carried), Body::empty()),
        _ => {
            let (pieces, answer) = mpsc::channel(queue);
            let answer = stream::unfold(answer, |mut pieces: mpsc::Receiver<Bytes>| async move {
                let piece = pieces.recv().await?;
                Some((Ok::<_, std::convert::Infallible>(piece), pieces))
            });
            (Encoder::new(), To::Answer(pieces), Body::from_stream(answer))
        }
    };
    // Ends when everything was sent, or when the client goes away and the receiver with it.
    tokio::spawn(async move {
        let traffic = app.traffic.clone();
        let limit = asker.reading.session.site.is_some().then(|| traffic.out.clone());
        let mut out = Sending { encoder, to, places: 0, limit, traffic };
        if send_all(&app, &asker, follow, wanted.items, &mut out).await.is_ok() {
            out.end();
        }
    });
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media::FRAMES));
    if let Some(taken) = taken {
        response.headers_mut().insert(fields::PLAIN, HeaderValue::from_static(taken.as_str()));
    }
    Ok(response)
}

/// Meets the connection beside TLS that another site offers, if it does: then the frames go there, with this key. Otherwise they
/// go into the answer, which says why.
///
/// # Errors
/// `invalid_request` for what is no offer.
async fn beside_tls(
    app: &AppState,
    reading: &Reading,
    peer: Option<PeerKey>,
    headers: &HeaderMap,
) -> Result<Option<Result<(StreamKey, Met), Taken>>> {
    // Not for a site whose request another one passed on: the secret has been there too.
    let roster = app.fabric.roster();
    let from = peer.and_then(|PeerKey(key)| roster.with_key(&key).cloned());
    let asker = reading.session.site.as_ref();
    let asker = asker.filter(|asker| from.as_ref().is_some_and(|from| from.id == asker.id));
    Ok(match app.plain.offered(headers, asker.map(|asker| &**asker))? {
        None => None,
        Some(Err(why)) => Some(Err(why)),
        Some(Ok(offer)) => {
            let met = app.plain.meet(offer.id).await;
            Some(met.map(|met| (StreamKey::new(&offer.id, &offer.secret), met)))
        }
    })
}

/// Who asks.
#[derive(Clone)]
struct Asker {
    reading: Arc<Reading>,
    /// Whether groups are compared here before they leave: not for who does it when they arrive.
    is_compared: bool,
    /// The id of the streams that share their work with this one.
    share: Option<Box<str>>,
    /// The connection.
    line: Option<Line>,
}

impl Asker {
    /// Returns what is sent of a version together with other streams; with none, where nothing is shared.
    fn share(&self, app: &AppState, source: &Source) -> Arc<Share> {
        let version = (source.version.space, source.version.version);
        self.together(Some(version)).map_or_else(Arc::default, |what| app.traffic.share_of(what))
    }

    /// Returns which streams send this together, if that was asked for.
    fn together(&self, version: Option<(SpaceId, VersionId)>) -> Option<Sent> {
        let session = &self.reading.session;
        let (user, site) = (session.caller.user.clone(), session.site.as_ref().map(|site| site.id));
        Some(Sent { id: self.share.clone()?, user, site, version })
    }

    /// Returns the connection that brings the frames, if it is the one that was asked over.
    fn line(&self, out: &Sending) -> Option<Line> {
        self.line.clone().filter(|_| matches!(out.to, To::Answer(_)))
    }
}

/// Returns the id of the streams that share their work.
///
/// # Errors
/// `invalid_request` for what cannot be one.
fn share_of(headers: &HeaderMap) -> Result<Option<Box<str>>> {
    let Some(id) = headers.get(fields::SHARE) else { return Ok(None) };
    let id = id.to_str().ok().filter(|id| SHARE_LEN.contains(&id.len()));
    let wrong = || {
        let (least, most) = (SHARE_LEN.start(), SHARE_LEN.end());
        let detail = format!("{} has {least} to {most} printable characters", fields::SHARE);
        ApiError::new(ErrorCode::InvalidRequest, detail)
    };
    id.map(|id| Some(id.into())).ok_or_else(wrong)
}

/// Where the frames go.
enum To {
    Answer(mpsc::Sender<Bytes>),
    /// A connection without encryption.
    Beside(Carried),
}

struct Sending {
    encoder: Encoder,
    to: To,
    /// Places that were named.
    places: u64,
    /// What it keeps to, if another site asks.
    limit: Option<Arc<Bucket>>,
    traffic: Arc<Traffic>,
}

/// The client went away.
struct Gone;

impl Sending {
    /// Sends what the encoder has ready.
    async fn send(&mut self) -> Result<(), Gone> {
        self.traffic.note_moving();
        while let Some(mut piece) = self.encoder.next() {
            if let Some((limit, rate)) = self.limit() {
                let most = usize::try_from(rate.bytes_per_second() / PIECES_A_SECOND).unwrap_or(usize::MAX);
                let most = most.max(LEAST_PIECE);
                while piece.len() > most {
                    limit.take(most as u64).await;
                    self.to.send(piece.split_to(most)).await?;
                }
                limit.take(piece.len() as u64).await;
            }
            self.to.send(piece).await?;
        }
        Ok(())
    }

    fn limit(&self) -> Option<(&Arc<Bucket>, Rate)> {
        self.limit.as_ref().and_then(|limit| Some((limit, limit.rate()?)))
    }

    /// Says whether parts of files may go out that nobody here looks at.
    fn may_pass_files(&self) -> bool {
        matches!(self.to, To::Beside(_)) && self.limit().is_none()
    }

    /// Says that everything was sent.
    fn end(self) {
        if let To::Beside(carried) = self.to {
            carried.end();
        }
    }
}

impl To {
    async fn send(&self, piece: Bytes) -> Result<(), Gone> {
        match self {
            Self::Answer(pieces) => pieces.send(piece).await.map_err(|_| Gone),
            Self::Beside(carried) => carried.send(Part::Bytes(piece)).await.map_err(|_| Gone),
        }
    }

    async fn pass(&self, part: FileRange) -> Result<(), Gone> {
        match self {
            // What is encrypted is read first.
            Self::Answer(_) => Err(Gone),
            Self::Beside(carried) => carried.send(Part::File(part)).await.map_err(|_| Gone),
        }
    }
}

/// An item to be sent.
struct ToFetch {
    ranges: Option<Vec<ByteRange>>,
    opened: Result<OpenVersion>,
    /// Where it is read instead, if it is not sent.
    away: Option<Away>,
}

/// The number of a place, and what it is where it comes up first.
type Away = (u64, Vec<u8>);

impl ToFetch {
    fn bytes(&self) -> u64 {
        self.opened.as_ref().map_or(0, |version| version.size.0)
    }
}

/// A small object read whole, the source of a large one, or where one is read.
enum Fetched {
    Whole(Arc<Source>, Bytes),
    Ranges(Arc<Source>, Vec<ByteRange>),
    Away(OpenVersion, Away),
}

async fn send_all(
    app: &AppState,
    asker: &Asker,
    follow: Option<Follow>,
    items: Vec<PullItem>,
    out: &mut Sending,
) -> Result<(), Gone> {
    let follow = follow.as_ref();
    let are_whole = items.iter().all(|item| item.ranges.is_none());
    if let Some(what) = asker.together(None).filter(|_| are_whole) {
        return together::send(app, asker, follow, items, &app.traffic.queues_of(what).join(), out).await;
    }
    for chunk in items.chunks(MAX_BATCH) {
        let opened = open_all(app, &asker.reading, chunk).await;
        let places = find_away(app, asker, follow, &opened, out).await;
        let wanted = chunk.iter().zip(opened).zip(places);
        let wanted =
            wanted.map(|((item, opened), away)| ToFetch { ranges: item.ranges.clone(), opened, away });
        let batches = in_batches(wanted.collect(), ToFetch::bytes, || TOGETHER);
        let mut fetched = stream::iter(batches).map(|batch| fetch(app, asker, batch)).buffered(READS).boxed();
        let mut items = chunk.iter();
        while let Some(batch) = fetched.next().await {
            for (one, item) in batch.into_iter().zip(&mut items) {
                send_one(app, asker, &item.path, one, out).await?;
            }
        }
    }
    out.encoder.end();
    out.send().await
}

/// Finds out which items the client is to read elsewhere, and where.
async fn find_away(
    app: &AppState,
    asker: &Asker,
    follow: Option<&Follow>,
    opened: &[Result<OpenVersion>],
    out: &mut Sending,
) -> Vec<Option<Away>> {
    let Some(follow) = follow else { return vec![None; opened.len()] };
    let (places, numbers) = redirect::places(app, &asker.reading, follow, opened).await;
    let mut named = vec![None; places.len()];
    let mut away = |place: usize| match named[place] {
        Some(number) => (number, Vec::new()),
        None => {
            out.places += 1;
            (*named[place].insert(out.places - 1), json(&places[place]))
        }
    };
    let of = |(place, opened): (Option<usize>, &Result<_>)| place.filter(|_| opened.is_ok()).map(&mut away);
    numbers.into_iter().zip(opened).map(of).collect()
}

/// Sends an object, or says where it is read, or why it is not sent.
async fn send_one(
    app: &AppState,
    asker: &Asker,
    path: &ObjectPath,
    one: Result<Fetched>,
    out: &mut Sending,
) -> Result<(), Gone> {
    match one {
        Ok(Fetched::Whole(source, bytes)) => {
            let item = announce(out, &source.version);
            let piece = Piece { offset: 0, bytes };
            out.encoder.data(item, 0, hash_of(&source, &piece), piece.bytes);
            done(out, item, &source.version, true);
        }
        Ok(Fetched::Ranges(source, ranges)) => {
            let item = announce(out, &source.version);
            let is_whole = ranges.iter().map(|range| range.len()).sum::<u64>() == source.version.size.0;
            match send_ranges(app, asker, &source, ranges, item, out).await? {
                Ok(()) => done(out, item, &source.version, is_whole),
                Err(error) => fail(out, item, &error),
            }
        }
        Ok(Fetched::Away(version, (number, info))) => {
            let item = announce(out, &version);
            out.encoder.away(item, number, &info);
        }
        Err(error) => {
            let info = serde_json::json!({"path": path, "version": 0});
            let item = out.encoder.item(ByteCount::ZERO, info.to_string().as_bytes());
            fail(out, item, &error);
        }
    }
    out.send().await
}

async fn open_all(app: &AppState, reading: &Reading, items: &[PullItem]) -> Vec<Result<OpenVersion>> {
    let caller = &reading.session.caller;
    let paths: Vec<_> = items.iter().map(|item| item.path.clone()).collect();
    // All in few statements. What was moved or replaced meanwhile is looked for one by one.
    let current = app.catalog.open_many(caller, &paths).await;
    let mut opened = Vec::with_capacity(items.len());
    for (item, current) in items.iter().zip(current) {
        if let Err(error) = reading.wanted(&item.path, item.version) {
            opened.push(Err(error));
            continue;
        }
        let found = match (by_id(item), item.version, current) {
            (Some(id), _, Ok(current)) if (current.space, current.version) == id => Ok(current),
            (Some((space, version)), ..) => app.catalog.open_by_id(caller, space, version).await,
            (None, Some(wanted), Ok(current)) if current.version != wanted => {
                app.catalog.open_object(caller, &item.path, Some(wanted)).await
            }
            (None, _, current) => current,
        };
        opened.push(found.map_err(|error| ApiError::from(error).with_path(&item.path)));
    }
    opened
}

/// Returns what names a version wherever its object is.
fn by_id(item: &PullItem) -> Option<(SpaceId, VersionId)> {
    item.space.zip(item.version)
}

/// Finds out from where items are read, and reads small ones. Each has its own outcome, in their order.
async fn fetch(app: &AppState, asker: &Asker, items: Vec<ToFetch>) -> Vec<Result<Fetched>> {
    let mut fetched = Vec::with_capacity(items.len());
    let (mut small, mut places) = (Vec::new(), Vec::new());
    for item in items {
        let found = find(app, asker, item).await;
        if let Ok(Fetched::Ranges(source, ranges)) = &found
            && let size = source.version.size
            && group_count(size) == 1
            // Nothing of one that is smaller than was thought.
            && (size == ByteCount::ZERO || !ranges.is_empty())
        {
            small.push(source.clone());
            places.push(fetched.len());
        }
        fetched.push(found);
    }
    let read = app.reader.read_small(&small, asker.is_compared).await;
    for ((place, source), bytes) in places.into_iter().zip(small).zip(read) {
        fetched[place] = bytes.map(|bytes| Fetched::Whole(source, bytes));
    }
    fetched
}

/// Finds out from where an item is read, and which groups of it.
async fn find(app: &AppState, Asker { reading, .. }: &Asker, item: ToFetch) -> Result<Fetched> {
    let version = item.opened?;
    if let Some(away) = item.away {
        return Ok(Fetched::Away(version, away));
    }
    let size = version.size;
    let whole = ByteRange::whole(size);
    let ranges: Vec<_> = match item.ranges {
        Some(ranges) => {
            // Widened to groups and joined, so that no group is sent twice.
            let wanted = ranges.into_iter().filter_map(|range| range.intersect(whole));
            let widened: RangeSet = wanted.map(|range| range.align_out(GROUP_SIZE, size)).collect();
            widened.iter().collect()
        }
        None => vec![whole],
    };
    reading.check(&version, &ranges)?;
    let source = Arc::new(app.reader.source(version, &reading.session.reach()).await?);
    Ok(Fetched::Ranges(source, ranges))
}

async fn send_ranges(
    app: &AppState,
    asker: &Asker,
    source: &Arc<Source>,
    ranges: Vec<ByteRange>,
    item: u32,
    out: &mut Sending,
) -> Result<Result<()>, Gone> {
    let share = asker.share(app, source);
    let part = share.join(ranges);
    let aboard = asker.line(out).map(|line| share.board(line));
    // What another site has is asked for by itself, which is not worth it for little.
    let least = if source.on_own_store().is_some() { 0 } else { HELP_ELSEWHERE };
    while let Some(range) = part.next(least) {
        if let Err(error) = asker.reading.check(&source.version, &[range]) {
            return Ok(Err(error));
        }
        let mut read = match app.reader.read(source.clone(), range).await {
            Ok(read) => read,
            Err(error) => return Ok(Err(error)),
        };
        if !asker.is_compared {
            read.leave_to_receiver();
        }
        if out.may_pass_files()
            && let Some(FileRange { file, .. }) = read.take_file().await
        {
            for group in range.start() / GROUP_SIZE..range.end().div_ceil(GROUP_SIZE) {
                let Some(hash) = known_hash(source, group) else { break };
                let group = group_range(source.version.size, group);
                if !part.claim(group) {
                    break;
                }
                out.encoder.lead(item, group.start(), hash, group.len() as usize);
                out.send().await?;
                out.to.pass(FileRange { file: file.clone(), range: group }).await?;
            }
            part.pass(range);
            continue;
        }
        loop {
            let piece = match read.next_piece().await {
                Ok(Some(piece)) if piece.offset < range.end() => piece,
                Ok(_) => break,
                Err(error) => return Ok(Err(error)),
            };
            let len = piece.bytes.len() as u64;
            if !part.claim(ByteRange::at(piece.offset, len)) {
                break;
            }
            out.encoder.data(item, piece.offset, hash_of(source, &piece), piece.bytes);
            out.send().await?;
            if let Some(aboard) = &aboard {
                aboard.moved(len);
            }
        }
        part.pass(range);
    }
    Ok(Ok(()))
}

fn known_hash(source: &Source, group: u64) -> Option<GroupHash> {
    source.tree.as_ref()?.groups().get(usize::try_from(group).ok()?).copied()
}

/// Returns what a group should have for a hash; what it has, if nobody has hashed the version yet.
fn hash_of(source: &Source, piece: &Piece) -> GroupHash {
    let group = piece.offset / GROUP_SIZE;
    known_hash(source, group).unwrap_or_else(|| hash_group(source.version.size, group, &piece.bytes))
}

fn announce(out: &mut Sending, version: &OpenVersion) -> u32 {
    let info = PulledItem {
        path: version.path.clone(),
        version: version.version,
        root: version.root,
        mtime: version.mtime.or(Some(version.modified)),
    };
    out.encoder.item(version.size, &json(&info))
}

fn done(out: &mut Sending, item: u32, version: &OpenVersion, is_whole: bool) {
    out.encoder.done(item, &json(&ItemDone { root: version.root.filter(|_| is_whole) }));
}

fn fail(out: &mut Sending, item: u32, error: &ApiError) {
    out.encoder.fail(item, &json(&error.to_problem()));
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec())
}
