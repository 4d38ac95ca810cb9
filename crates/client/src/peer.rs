//! Calls between sites (`docs/design/federation.md`).

use bytes::{Bytes, BytesMut};
use percale_api::directions::{Dial, DialAnswer};
use percale_api::importing::{RegisterFiles, Registered};
use percale_api::media;
use percale_api::peer::{
    Changed, Changes, CheckCopies, CheckLine, CopyAnswers, CopyReports, Evict, EvictAnswers, HandOver,
    HeadersRead, Join, Member, Publish, PublishAnswer, ReadHeaders, Roster,
};
use percale_api::tasks::Task;
use percale_core::ids::{SpaceId, VersionId};
use percale_core::tree::HashTree;
use percale_core::{ErrorCode, Position};
use reqwest::header::{ACCEPT, CONNECTION, UPGRADE};
use reqwest::{Method, Response, StatusCode};

use crate::call::{Call, Repeat};
use crate::client::Client;
use crate::error::{Error, ErrorKind};

/// A connection that has left HTTP, both ways.
pub type Upgraded = reqwest::Upgraded;

/// The rows of a space, as they arrive.
#[derive(Debug)]
pub struct SnapshotStream {
    client: Client,
    response: Response,
}

impl SnapshotStream {
    /// Returns the next bytes, or nothing at the end.
    ///
    /// # Errors
    /// The connection broke or stood still.
    pub async fn next(&mut self) -> crate::Result<Option<Bytes>> {
        self.client.piece("read a snapshot", &mut self.response).await
    }
}

const CHECK: &str = "check copies at another site";
/// Longest line of a check: a problem with a long path in it.
const MAX_LINE_BYTES: usize = 64 << 10;

/// What a site finds of its copies, as it finds it.
#[derive(Debug)]
pub struct CheckStream {
    client: Client,
    response: Response,
    buffer: BytesMut,
    lines: usize,
}

impl CheckStream {
    /// Returns the next line, or nothing behind the last one. A stream that was cut is an error.
    ///
    /// # Errors
    /// As above; the connection broke or stood still.
    pub async fn next(&mut self) -> crate::Result<Option<CheckLine>> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let line = serde_json::from_slice(&line).map_err(|error| {
                    let detail = format!("a line of the answer is not understood: {error}");
                    Error::new(ErrorKind::Protocol, ErrorCode::Internal, CHECK, detail).with_source(error)
                })?;
                return match line {
                    CheckLine::End { lines } if lines == self.lines => Ok(None),
                    CheckLine::End { .. } => Err(cut("lines of the answer are missing")),
                    line => {
                        self.lines += 1;
                        Ok(Some(line))
                    }
                };
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                let detail = "a line of the answer is too long";
                return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, CHECK, detail));
            }
            match self.client.piece(CHECK, &mut self.response).await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => return Err(cut("the answer ended before all was looked at")),
            }
        }
    }
}

fn cut(detail: &str) -> Error {
    Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, CHECK, detail)
}

impl Client {
    /// Proves an invitation; the answer is the roster with this site in it.
    ///
    /// # Errors
    /// As the site answers; `invalid_request` for an invitation that is used up, expired or altered.
    pub async fn peer_join(&self, join: &Join) -> crate::Result<Roster> {
        let call = Call::new("join the fabric", Method::POST, "/v1/peer/join").json(join);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks a site what it says of itself, and of its key.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_key(&self) -> crate::Result<Member> {
        self.json(Call::new("ask for the site's key", Method::GET, "/v1/peer/key")).await
    }

    /// Shows a site the key of this one, and how it was announced.
    ///
    /// # Errors
    /// As the site answers; `site_refused` if that does not prove the key to it.
    pub async fn peer_show_key(&self, own: &Member) -> crate::Result<()> {
        let call = Call::new("show the site's key", Method::POST, "/v1/peer/key").json(own);
        self.fetch(call.repeat(Repeat::Safe)).await.map(drop)
    }

    /// Exchanges rosters.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_roster(&self, roster: &Roster) -> crate::Result<Roster> {
        let call = Call::new("exchange rosters", Method::POST, "/v1/peer/roster").json(roster);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks for what is new at a home.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_changes(&self, changes: &Changes) -> crate::Result<Changed> {
        let call = Call::new("ask for journal records", Method::POST, "/v1/peer/changes").json(changes);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks for all rows of a space.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_snapshot(&self, space: SpaceId) -> crate::Result<SnapshotStream> {
        let call = Call::new("ask for a snapshot", Method::GET, format!("/v1/peer/snapshot/{space}"));
        let response = self.open_once(call).await?;
        Ok(SnapshotStream { client: self.clone(), response })
    }

    /// Asks the home to make versions whose bytes lie here.
    ///
    /// # Errors
    /// As the site answers; what is the matter with one item is in the answer.
    pub async fn peer_publish(&self, publish: &Publish) -> crate::Result<PublishAnswer> {
        let call = Call::new("publish at the home site", Method::POST, "/v1/peer/publish").json(publish);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Tells the home about copies that lie here.
    ///
    /// # Errors
    /// As [`Client::peer_publish`].
    pub async fn peer_copies(&self, copies: &CopyReports) -> crate::Result<CopyAnswers> {
        let call = Call::new("report copies to the home site", Method::POST, "/v1/peer/copies").json(copies);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks the home to register files that lie here.
    ///
    /// # Errors
    /// As [`Client::peer_publish`].
    pub async fn peer_register(&self, files: &RegisterFiles) -> crate::Result<Registered> {
        let call =
            Call::new("register files at the home site", Method::POST, "/v1/peer/register").json(files);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Gives a task to the site where it is to run. The same task again is answered with the first one.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_hand_over(&self, task: &HandOver) -> crate::Result<Task> {
        let call = Call::new("submit a task", Method::POST, "/v1/peer/tasks").json(task);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks the home to let copies go that lie here.
    ///
    /// # Errors
    /// As [`Client::peer_publish`].
    pub async fn peer_evict(&self, copies: &Evict) -> crate::Result<EvictAnswers> {
        let call = Call::new("let copies go at the home site", Method::POST, "/v1/peer/evict").json(copies);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks a site to dial the one that asks.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_dial(&self, dial: &Dial) -> crate::Result<DialAnswer> {
        let call = Call::new("ask a site to dial this one", Method::POST, "/v1/peer/dial").json(dial);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks a site that was dialled to say a nonce again.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_hello(&self, dial: &Dial) -> crate::Result<Dial> {
        let call = Call::new("dial a site", Method::POST, "/v1/peer/hello").json(dial);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks a site to read the headers of versions of which it has copies.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_headers(&self, headers: &ReadHeaders) -> crate::Result<HeadersRead> {
        let call =
            Call::new("have headers read by another site", Method::POST, "/v1/peer/headers").json(headers);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Asks a site to read and hash its copies. The answer comes as the work goes on.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_check(&self, copies: &CheckCopies) -> crate::Result<CheckStream> {
        let call = Call::new(CHECK, Method::POST, "/v1/peer/check").json(copies);
        let response = self.open_once(call).await?;
        Ok(CheckStream { client: self.clone(), response, buffer: BytesMut::new(), lines: 0 })
    }

    /// Fetches the hash tree of a version that the site has.
    ///
    /// # Errors
    /// As the site answers; `integrity` for what is no tree.
    pub async fn peer_tree(&self, space: SpaceId, version: VersionId) -> crate::Result<HashTree> {
        let operation = format!("read the hash tree of version {version}");
        let call = Call::new(&*operation, Method::GET, format!("/v1/peer/trees/{space}/{version}"));
        self.fetch_tree(operation.clone(), call.header(ACCEPT.as_str(), media::TREE)).await
    }

    /// Hands a space over at a position. Returns the position from which on the other site is its home.
    ///
    /// # Errors
    /// As the site answers.
    pub async fn peer_take_over(&self, position: Position) -> crate::Result<Position> {
        let call = Call::new("hand a space over", Method::POST, "/v1/peer/take-over").json(&position);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Turns a connection into one of another protocol.
    ///
    /// # Errors
    /// The site does not switch.
    pub async fn upgrade(&self, path: &str, protocol: &'static str) -> crate::Result<Upgraded> {
        let operation = format!("open a {protocol} connection");
        let call = Call::new(&operation, Method::GET, path)
            .header(CONNECTION.as_str(), "upgrade")
            .header(UPGRADE.as_str(), protocol);
        let response = self.open_any(call).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.problem(&operation, response).await);
        }
        response.upgrade().await.map_err(|error| {
            Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, operation, error.to_string())
                .with_source(error)
        })
    }
}
