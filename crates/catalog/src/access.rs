//! Reading with the grants applied: a path is resolved and decided on in one statement.

use percale_core::access::{Caller, Permission, Subject, decide};
use percale_core::{LinkTarget, ObjectPath, Position};

use crate::batch::no_space;
use crate::engine::Tx;
use crate::error::{Error, ErrorKind, Result, missing};
use crate::rows::entry::{self, EntryRow};
use crate::rows::site::SpaceRow;

/// A path, as far as it exists, with the grants along it.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub space: SpaceRow,
    /// The entries that exist, the space's root first.
    pub chain: Vec<EntryRow>,
    /// For each grant on the way: the place in `chain`, to whom, what.
    pub grants: Vec<(usize, Subject, Permission)>,
    /// The number of names behind the last entry that exists.
    pub missing: usize,
}

impl Resolved {
    /// Returns what is at the path.
    pub fn target(&self, path: &ObjectPath) -> Result<&EntryRow> {
        match self.chain.last() {
            Some(last) if self.missing == 0 => Ok(last),
            Some(last) if !last.is_collection() => Err(through(path, last, self.missing)),
            _ => Err(Error::new(ErrorKind::NotFound, missing(path))),
        }
    }

    /// Returns the end of the space's journal.
    pub fn position(&self) -> Position {
        self.space.space.position
    }

    /// Returns the highest permission that the grants and scopes give.
    pub fn permission(&self, caller: &Caller, path: &ObjectPath) -> Option<Permission> {
        [Permission::Manage, Permission::Write, Permission::Read]
            .into_iter()
            .find(|permission| self.decide(caller, *permission, path).is_ok())
    }

    /// Decides whether the caller has a permission on the path.
    pub fn decide(&self, caller: &Caller, permission: Permission, path: &ObjectPath) -> Result<()> {
        let granted = self.grants.iter().map(|(_, subject, given)| (subject, *given));
        decide(caller, permission, path, granted).map_err(Error::from)
    }
}

/// The error for a path of which so many names are behind an entry that is no collection.
pub(crate) fn through(path: &ObjectPath, entry: &EntryRow, behind: usize) -> Error {
    match &entry.target {
        Some(target) => is_link(path, target, behind),
        None => {
            Error::new(ErrorKind::NotACollection, format!("a part of {path} before its end is an object"))
        }
    }
}

/// The error for a link that has so many names of a path behind it.
pub(crate) fn is_link(path: &ObjectPath, target: &LinkTarget, behind: usize) -> Error {
    let link = (0..behind).try_fold(path.clone(), |link, _| link.parent()).unwrap_or_else(ObjectPath::root);
    let rest = path.components().skip(link.components().count());
    let to = target.follow(&link, rest);
    let what = if behind == 0 {
        format!("{path} is a link")
    } else {
        format!("{link} on the way to {path} is a link")
    };
    let message = match &to {
        Some(to) => format!("{what}, and leads to {to}"),
        None => format!("{what} to '{target}', which is no path of the fabric"),
    };
    Error::new(ErrorKind::IsLink { to }, message)
}

/// Resolves a path without deciding. Returns nothing if the space does not exist.
pub(crate) async fn resolve<T: Tx>(tx: &T, path: &ObjectPath) -> Result<Option<Resolved>> {
    let Some(space) = path.space() else {
        return Err(Error::invalid("'/' is the list of spaces, not a collection"));
    };
    let names: Vec<String> = path.within_space().map(str::to_owned).collect();
    let wanted = names.len() + 1;
    let mut chain: Vec<EntryRow> = Vec::with_capacity(wanted);
    let mut grants = Vec::new();
    let mut found = None;
    for step in entry::resolve(tx, space.as_str(), names).await? {
        if chain.last().is_none_or(|last| last.id != step.entry.id) {
            chain.push(step.entry);
        }
        if let Some((subject, permission)) = step.grant {
            grants.push((chain.len() - 1, subject, permission));
        }
        found = Some(step.space);
    }
    Ok(found.map(|space| {
        let missing = wanted.saturating_sub(chain.len());
        Resolved { space, chain, grants, missing }
    }))
}

/// Resolves a path and decides, before anything is said about what is there.
pub(crate) async fn enter<T: Tx>(
    tx: &T,
    caller: &Caller,
    permission: Permission,
    path: &ObjectPath,
) -> Result<Resolved> {
    match resolve(tx, path).await? {
        Some(resolved) => resolved.decide(caller, permission, path).map(|()| resolved),
        None => Err(no_space(caller, permission, path)),
    }
}
