//! Verified bytes of one object as a stream.

use std::sync::Arc;

use bytes::Bytes;
use percale_api::entries::{Content, Entry};
use percale_api::uploads::PullItem;
use percale_core::ids::SpaceId;
use percale_core::tree::{GROUP_SIZE, HashTree, group_count};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath};
use percale_mover::{DataFrame, Frame};

use crate::client::Client;
use crate::elsewhere::{Opened, Place, Way};
use crate::error::{Error, ErrorKind};
use crate::pull::{Checks, FrameStream, parse_problem};

/// The bytes of a range of one version, in order. Every group is verified before any of its bytes is handed out. A
/// connection that breaks is made anew, for the same version.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    operation: Arc<str>,
    path: ObjectPath,
    content: Content,
    /// Whose version is meant, where the path may be another one meanwhile.
    space: Option<SpaceId>,
    tree: Option<HashTree>,
    /// What is still to be handed out.
    rest: ByteRange,
    stream: Option<FrameStream>,
    way: Way,
    /// Where the stream comes from, if not from the site that was asked.
    place: Option<Place>,
}

impl Client {
    /// Opens an object for reading; `range` is cut at its end.
    ///
    /// # Errors
    /// As the server answers; `is_collection`, `invalid_range`.
    pub async fn read(&self, path: &ObjectPath, range: Option<ByteRange>) -> crate::Result<Reader> {
        let entry = self.resolve(path).await?;
        self.read_entry(&entry, range).await
    }

    /// Opens the version that an entry names.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read_entry(&self, entry: &Entry, range: Option<ByteRange>) -> crate::Result<Reader> {
        let operation = format!("read {}", entry.path);
        let Some(content) = entry.content.clone() else {
            let detail = format!("{} is a collection", entry.path);
            return Err(Error::new(ErrorKind::Usage, ErrorCode::IsCollection, operation, detail));
        };
        let size = ByteCount(content.size);
        let whole = ByteRange::whole(size);
        let range = range.unwrap_or(whole);
        if range.start() > size.0 {
            let detail = format!("the object has {} bytes, and {} is behind its end", size.0, range.start());
            return Err(Error::new(ErrorKind::Usage, ErrorCode::InvalidRange, operation, detail));
        }
        let rest =
            ByteRange::new(range.start(), range.end().min(size.0)).unwrap_or(ByteRange::at(range.start(), 0));
        let tree = match content.root {
            Some(root) if group_count(size) == 1 => HashTree::of_single_group(size, root).ok(),
            Some(_) if !rest.is_empty() => Some(self.verified_tree(&entry.path, &content).await?),
            _ => None,
        };
        Ok(Reader {
            client: self.clone(),
            operation: operation.into(),
            path: entry.path.clone(),
            content,
            space: None,
            tree,
            rest,
            stream: None,
            way: Way::new(self),
            place: None,
        })
    }

    /// Opens a range of a version, wherever its object is now. Groups are only compared with the hashes that come with them:
    /// whoever asks has the tree, and verifies. A range on the borders of groups gives whole groups.
    pub fn read_version(
        &self,
        space: SpaceId,
        path: &ObjectPath,
        content: &Content,
        range: ByteRange,
    ) -> Reader {
        Reader {
            client: self.clone(),
            operation: format!("read {path}").into(),
            path: path.clone(),
            content: content.clone(),
            space: Some(space),
            tree: None,
            rest: range,
            stream: None,
            way: Way::new(self),
            place: None,
        }
    }

    /// Fetches the tree of a content and compares it with what the catalog says.
    ///
    /// # Errors
    /// As the server answers; `integrity` if it is another tree.
    pub async fn verified_tree(&self, path: &ObjectPath, content: &Content) -> crate::Result<HashTree> {
        self.verified_tree_in(None, path, content).await
    }

    /// The same; with a space, wherever the object of the version is by now.
    ///
    /// # Errors
    /// As [`Client::verified_tree`].
    pub async fn verified_tree_in(
        &self,
        space: Option<SpaceId>,
        path: &ObjectPath,
        content: &Content,
    ) -> crate::Result<HashTree> {
        let tree = self.tree(space, path, Some(content.version)).await?;
        if Some(tree.root()) == content.root && tree.size().0 == content.size {
            return Ok(tree);
        }
        let operation = format!("read the hash tree of {path}");
        let detail = "the stored tree is not the one of this version";
        Err(Error::new(ErrorKind::Integrity, ErrorCode::Integrity, operation, detail))
    }
}

impl Reader {
    /// Returns what is read.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Returns the next bytes, or nothing at the end.
    ///
    /// # Errors
    /// As the server answers; `integrity` if bytes do not have their hash; `version_changed` if the object is
    /// replaced meanwhile and its old bytes are gone.
    pub async fn next(&mut self) -> crate::Result<Option<Bytes>> {
        let mut attempts = self.client.attempts();
        while !self.rest.is_empty() {
            match self.try_next().await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => {
                    self.stream = None;
                    if !self.way.failed(self.place.take().as_ref(), &error) {
                        attempts.pause_after(error).await?;
                    }
                }
            }
        }
        Ok(None)
    }

    async fn try_next(&mut self) -> crate::Result<Bytes> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let item = PullItem {
                    path: self.path.clone(),
                    version: Some(self.content.version),
                    space: self.space,
                    ranges: Some(vec![self.rest.align_out(GROUP_SIZE, ByteCount(self.content.size))]),
                };
                let Opened { frames, place } =
                    self.way.open(&self.operation, item, None, Checks::There).await?;
                self.place = place;
                frames
            }
        };
        loop {
            match stream.next().await? {
                Some(Frame::Data(data)) => {
                    let bytes = self.check(data).await?;
                    match self.rest.is_empty() {
                        true => stream.finish().await,
                        false => self.stream = Some(stream),
                    }
                    return Ok(bytes);
                }
                Some(Frame::Fail { problem, .. }) => return Err(parse_problem(&self.operation, &problem)),
                Some(_) => {}
                None => {
                    let detail = "the answer ended before all bytes were there";
                    return Err(Error::new(
                        ErrorKind::Connection,
                        ErrorCode::SiteUnavailable,
                        &*self.operation,
                        detail,
                    ));
                }
            }
        }
    }

    /// Verifies a group and returns what is wanted of it.
    async fn check(&mut self, data: DataFrame) -> crate::Result<Bytes> {
        let wrong =
            |detail: &str| Error::new(ErrorKind::Protocol, ErrorCode::Internal, &*self.operation, detail);
        if data.item != 0 {
            return Err(wrong("the site sent an item that was not asked for"));
        }
        verify(&self.operation, self.tree.as_ref(), self.content.size, &data)?;
        let group = ByteRange::at(data.offset, data.bytes.len() as u64);
        let wanted = group.intersect(self.rest).filter(|wanted| wanted.start() == self.rest.start());
        let Some(wanted) = wanted else {
            return Err(wrong("the site sent groups out of order, or that were not asked for"));
        };
        let from = usize::try_from(wanted.start() - group.start()).unwrap_or(usize::MAX);
        let to = usize::try_from(wanted.end() - group.start()).unwrap_or(usize::MAX);
        self.rest = ByteRange::new(wanted.end(), self.rest.end()).unwrap_or(ByteRange::at(wanted.end(), 0));
        Ok(data.bytes.slice(from..to))
    }
}

/// Checks a group: against the tree where the version was hashed, else only against what the sender says.
pub(crate) fn verify(
    operation: &str,
    tree: Option<&HashTree>,
    size: u64,
    data: &DataFrame,
) -> crate::Result<()> {
    if data.size.0 != size {
        let detail = format!("the object has {} bytes now, and had {size}", data.size.0);
        return Err(Error::new(ErrorKind::Problem, ErrorCode::VersionChanged, operation, detail));
    }
    let result = match tree {
        Some(tree) => tree.verify_hash(data.group(), data.found).map_err(|error| error.to_string()),
        None => data.verify().map_err(|error| error.to_string()),
    };
    result.map_err(|detail| Error::new(ErrorKind::Integrity, ErrorCode::Integrity, operation, detail))
}
