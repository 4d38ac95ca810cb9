//! Reading: stat and open.

use percale_core::access::{Caller, Permission};
use percale_core::ids::{EntryId, SpaceId, VersionId};
use percale_core::{ObjectPath, Position};

use crate::access::{enter, is_link};
use crate::batch::{Batch, IdCache, PathLock, Wants};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Entry, OpenVersion, Replica};
use crate::rows::entry::{self, EntryRow};
use crate::rows::replica::{self, VersionRow};
use crate::rows::{Lock, site};

/// Reading. Each call needs `read` on the path.
impl Catalog {
    /// Returns what is at a path.
    ///
    /// # Errors
    /// `NotFound`, `NotACollection` or `IsLink` if the path goes through an object or a link, `Denied`.
    pub async fn stat(&self, caller: &Caller, path: &ObjectPath) -> Result<Entry> {
        self.ask(Stat { caller: caller.clone(), path: path.clone() }).await
    }

    /// The same, where a link will not do.
    ///
    /// # Errors
    /// As [`Catalog::stat`], and `IsLink`.
    pub async fn stat_no_link(&self, caller: &Caller, path: &ObjectPath) -> Result<Entry> {
        let entry = self.stat(caller, path).await?;
        match &entry.target {
            Some(target) => Err(is_link(path, target, 0)),
            None => Ok(entry),
        }
    }

    /// Returns what is needed to read an object: its current version, or the given one if it is the object's.
    ///
    /// # Errors
    /// As [`Catalog::stat`], `IsCollection`, and `IsLink` for a link.
    pub async fn open_object(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        version: Option<VersionId>,
    ) -> Result<OpenVersion> {
        self.ask(OpenPath { caller: caller.clone(), path: path.clone(), version }).await
    }

    /// The same by version id, wherever the object is now.
    pub async fn open_by_id(
        &self,
        caller: &Caller,
        space: SpaceId,
        version: VersionId,
    ) -> Result<OpenVersion> {
        self.ask(OpenId { caller: caller.clone(), space, version }).await
    }

    /// The same as [`Catalog::open_object`] for many paths in few statements and as of one moment, in their order.
    pub async fn open_many(&self, caller: &Caller, paths: &[ObjectPath]) -> Vec<Result<OpenVersion>> {
        match self.ask(OpenMany { caller: caller.clone(), paths: paths.to_vec() }).await {
            Ok(outcomes) => outcomes,
            Err(error) => paths.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

struct Stat {
    caller: Caller,
    path: ObjectPath,
}

impl Query for Stat {
    type Out = Entry;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Entry> {
        let resolved = enter(tx, &self.caller, Permission::Read, &self.path).await?;
        Ok(resolved.target(&self.path)?.to_entry(resolved.space.space.id))
    }
}

fn no_version(path: &ObjectPath, version: VersionId) -> Error {
    Error::new(ErrorKind::NotFound, format!("{path} has no version {version}"))
}

/// The error for an entry that is no object.
fn no_object(path: &ObjectPath, entry: &EntryRow) -> Error {
    match &entry.target {
        Some(target) => is_link(path, target, 0),
        None => Error::new(ErrorKind::IsCollection, format!("cannot read {path}: it is a collection")),
    }
}

pub(crate) fn open_current(
    path: &ObjectPath,
    entry: &EntryRow,
    position: Position,
    replicas: Vec<Replica>,
) -> Result<OpenVersion> {
    let content = entry.content.clone().ok_or_else(|| no_object(path, entry))?;
    Ok(OpenVersion {
        path: path.clone(),
        space: position.space,
        entry: EntryId(entry.id),
        version: content.version,
        is_current: true,
        size: content.size,
        root: content.root,
        digests: content.digests,
        mtime: content.mtime,
        mode: content.mode,
        modified: entry.modified,
        replicas,
        position,
    })
}

fn open_former(
    path: &ObjectPath,
    version: VersionRow,
    position: Position,
    replicas: Vec<Replica>,
) -> OpenVersion {
    OpenVersion {
        path: path.clone(),
        space: position.space,
        entry: EntryId(version.entry),
        version: version.id,
        is_current: false,
        size: version.size,
        root: version.root,
        digests: Vec::new(),
        mtime: None,
        mode: None,
        modified: version.created,
        replicas,
        position,
    }
}

async fn replicas_of<T: Tx>(tx: &T, sp: i64, version: VersionId) -> Result<Vec<Replica>> {
    let rows = replica::of_versions(tx, vec![(sp, version)]).await?;
    Ok(rows.into_iter().map(|row| row.replica).collect())
}

struct OpenPath {
    caller: Caller,
    path: ObjectPath,
    version: Option<VersionId>,
}

/// How often an object is looked up again that is overwritten again and again in the meantime.
const OPEN_ATTEMPTS: usize = 5;

impl Query for OpenPath {
    type Out = OpenVersion;
    // Two statements without a transaction around them, which on PostgreSQL would be two more round trips. If the object
    // is overwritten between them, the version has lost its copies, and the look-up begins again.
    const SNAPSHOT: bool = false;

    async fn run<T: Tx>(&self, tx: &T) -> Result<OpenVersion> {
        let Self { caller, path, version } = self;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let resolved = enter(tx, caller, Permission::Read, path).await?;
            let target = resolved.target(path)?;
            let current = target.version().ok_or_else(|| no_object(path, target))?;
            let (sp, position) = (target.sp, resolved.position());
            if version.is_none_or(|wanted| wanted == current) {
                let replicas = replicas_of(tx, sp, current).await?;
                if replicas.is_empty() && attempt < OPEN_ATTEMPTS {
                    continue;
                }
                return open_current(path, target, position, replicas);
            }
            let wanted = version.unwrap_or(current);
            let former = replica::version(tx, sp, wanted).await?;
            let former = former.filter(|former| former.entry == target.id);
            let former = former.ok_or_else(|| no_version(path, wanted))?;
            let replicas = replicas_of(tx, sp, wanted).await?;
            return Ok(open_former(path, former, position, replicas));
        }
    }
}

struct OpenId {
    caller: Caller,
    space: SpaceId,
    version: VersionId,
}

impl Query for OpenId {
    type Out = OpenVersion;

    async fn run<T: Tx>(&self, tx: &T) -> Result<OpenVersion> {
        let Self { caller, space, version } = self;
        let missing = || {
            let message = format!("there is no version {version} in space {space}, or you may not read it");
            Error::new(ErrorKind::NotFound, message)
        };
        let found = site::space_by_id(tx, *space).await?.filter(|row| !row.is_removed);
        let row = found.ok_or_else(missing)?;
        let rows = replica::of_versions(tx, vec![(row.sp, *version)]).await?;
        let former = replica::version(tx, row.sp, *version).await?;
        let entry = rows.first().map(|row| row.entry).or(former.as_ref().map(|former| former.entry));
        let entry = entry.ok_or_else(missing)?;
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        batch.learn_ancestors(row.sp, entry).await?;
        if batch.entry(row.sp, entry, Lock::None).await?.is_none() {
            return Err(missing());
        }
        let path = batch.path_of(row.sp, entry).await?;
        // Whoever may not read it must not learn its path from the error.
        let walk = match batch.enter(caller, Permission::Read, &path, PathLock::NONE).await {
            Ok(walk) => walk,
            Err(error) if matches!(error.code(), percale_core::ErrorCode::NotFound) => return Err(missing()),
            Err(error) => return Err(error),
        };
        let target = walk.target().cloned().ok_or_else(missing)?;
        let position = row.space.position;
        let replicas = rows.into_iter().map(|row| row.replica).collect();
        match former {
            Some(former) if target.version() != Some(*version) => {
                Ok(open_former(&path, former, position, replicas))
            }
            _ if target.version() == Some(*version) => open_current(&path, &target, position, replicas),
            _ => Err(missing()),
        }
    }
}

struct OpenMany {
    caller: Caller,
    paths: Vec<ObjectPath>,
}

impl Query for OpenMany {
    type Out = Vec<Result<OpenVersion>>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let Self { caller, paths } = self;
        let mut wants = Wants::default();
        for path in paths {
            wants.path(path, PathLock::NONE, caller);
        }
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        batch.load(wants).await?;
        let mut found = Vec::with_capacity(paths.len());
        for path in paths {
            let walk = batch.enter(caller, Permission::Read, path, PathLock::NONE).await;
            found.push(match walk {
                Err(error) if error.fault().is_some() => return Err(error),
                Err(error) => Err(error),
                Ok(walk) => walk.existing(path).map(|target| (target, walk.space.space.position)),
            });
        }
        let versions = found.iter().flatten().filter_map(|(entry, _)| Some((entry.sp, entry.version()?)));
        batch.load_replicas(versions.collect()).await?;
        let mut outcomes = Vec::with_capacity(paths.len());
        for (path, found) in paths.iter().zip(found) {
            outcomes.push(match found {
                Err(error) => Err(error),
                Ok((target, position)) => match target.version() {
                    None => Err(no_object(path, &target)),
                    Some(version) => {
                        let rows = batch.replicas(target.sp, version).await?;
                        let replicas = rows.into_iter().map(|row| row.replica).collect();
                        open_current(path, &target, position, replicas)
                    }
                },
            });
        }
        Ok(outcomes)
    }
}

impl<T: Tx> Batch<'_, T> {
    /// Loads an entry and the collections above it in one statement.
    async fn learn_ancestors(&mut self, sp: i64, id: u64) -> Result<()> {
        let found = entry::with_ancestors(self.tx, vec![(sp, id)]).await?;
        self.learn_all(found, Lock::None)
    }
}
