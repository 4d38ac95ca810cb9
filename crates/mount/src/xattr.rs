//! Extended attributes: `user.percale.*`, which tell what is known of a file, and all others of `user.*`, which are what people say of it
//! in the fabric (docs/search.md).

use std::collections::BTreeMap;
use std::time::Duration;

use fuser::Errno;
use percale_api::attributes::{AttributeChange, Source};
use percale_core::attribute::MAX_ATTRIBUTE_TEXT;
use percale_core::{AttributeName, AttributeValue, ObjectPath};
use rustix::fs::XattrFlags;

use crate::error::errno;
use crate::names::NodeId;
use crate::state::{Shared, State};

/// What begins the names of what is known.
const PREFIX: &str = "user.percale.";
/// What begins the names of all.
const USER: &str = "user.";
/// For how long it is waited until a file is published of which something is said.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// One that is known.
    Known(Attribute),
    /// One that people say.
    Said(AttributeName),
}

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// `ENODATA` for one of this name space that there cannot be, `EOPNOTSUPP` for other name spaces: who hears that there are no access
    /// lists here, such as `ls`, does not ask for each file.
    pub fn parse(name: &str) -> Result<Self, Errno> {
        if let Some(known) = name.strip_prefix(PREFIX) {
            let known = Attribute::ALL.into_iter().find(|attribute| attribute.name() == known);
            return known.map(Self::Known).ok_or(Errno::ENODATA);
        }
        match name.strip_prefix(USER) {
            Some(name) => name.parse().map(Self::Said).map_err(|_| Errno::ENODATA),
            None if name.starts_with("trusted.") => Err(Errno::ENODATA),
            None => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// The path in the fabric.
    Path,
    /// The id of the current version.
    Version,
    /// The root of its hash tree, as `b3sum` prints it.
    Blake3,
    /// The copies: site, store and state of each, one in each line.
    Replicas,
    /// Whether all of it is published.
    State,
}

impl Attribute {
    const ALL: [Self; 5] = [Self::Path, Self::Version, Self::Blake3, Self::Replicas, Self::State];

    fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Version => "version",
            Self::Blake3 => "blake3",
            Self::Replicas => "replicas",
            Self::State => "state",
        }
    }
}

/// Returns the names of what is known of a node, each with a zero behind it. What people say is not among them: programs such as `ls` ask
/// for the names of each file, and the site would have to be asked.
pub fn names(shared: &Shared, node: NodeId) -> String {
    let is_object = shared.state().names.object(node).is_some();
    let known = Attribute::ALL.into_iter().filter(|attribute| is_object || *attribute == Attribute::Path);
    known.map(|attribute| format!("{PREFIX}{}\0", attribute.name())).collect()
}

/// Returns the value of an attribute.
///
/// # Errors
/// `ENODATA` where there is none; what the site answers.
pub async fn value(shared: &Shared, node: NodeId, name: Name) -> Result<String, Errno> {
    match name {
        Name::Known(attribute) => known(shared, node, attribute).await,
        Name::Said(name) => {
            let path = published(shared, node).await?;
            if let Some(values) = waiting(&mut shared.state(), node, |said| said.get(&name).cloned()) {
                let values = values.filter(|values| !values.is_empty()).ok_or(Errno::ENODATA)?;
                return Ok(in_lines(&values));
            }
            said(shared, &path, &name).await?.ok_or(Errno::ENODATA)
        }
    }
}

/// Sets what people say of a file, or removes it. Text that looks like a number or the like is one, if it is read again as it was written.
///
/// # Errors
/// `EPERM` for what is known; `E2BIG` and `EINVAL` for what no attribute can be; `EEXIST` and `ENODATA` as the flags want; what the site
/// answers.
pub async fn set(
    shared: &Shared,
    node: NodeId,
    name: Name,
    value: Option<Vec<u8>>,
    flags: XattrFlags,
) -> Result<(), Errno> {
    let Name::Said(name) = name else { return Err(Errno::EPERM) };
    if shared.is_read_only {
        return Err(Errno::EROFS);
    }
    let values = match value {
        None => Vec::new(),
        Some(bytes) if bytes.len() > MAX_ATTRIBUTE_TEXT => return Err(Errno::E2BIG),
        Some(bytes) => {
            let text = String::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            let guessed = AttributeValue::guess(&text);
            let is_same = guessed.to_string() == text;
            vec![if is_same { guessed } else { AttributeValue::Text(text) }]
        }
    };
    let path = published(shared, node).await?;
    let kept = waiting(&mut shared.state(), node, |said| {
        may_set(said.get(&name).is_some_and(|values| !values.is_empty()), values.is_empty(), flags)?;
        said.insert(name.clone(), values.clone());
        Ok(())
    });
    if let Some(kept) = kept {
        return kept;
    }
    if values.is_empty() || flags.intersects(XattrFlags::CREATE | XattrFlags::REPLACE) {
        may_set(said(shared, &path, &name).await?.is_some(), values.is_empty(), flags)?;
    }
    let change = AttributeChange { set: [(name, values)].into() };
    let changed = shared.session.client.change_attributes(&path, &change).await;
    changed.map(drop).map_err(|error| errno(error.code()))
}

/// Decides whether an attribute that is there, or not, may be set so, or removed.
fn may_set(is_there: bool, is_removal: bool, flags: XattrFlags) -> Result<(), Errno> {
    match is_there {
        true if flags.contains(XattrFlags::CREATE) => Err(Errno::EEXIST),
        false if is_removal || flags.contains(XattrFlags::REPLACE) => Err(Errno::ENODATA),
        _ => Ok(()),
    }
}

/// Looks at what was said of a file that is not in the catalog yet, such as one that a program still writes; nothing of others.
fn waiting<T>(
    state: &mut State,
    node: NodeId,
    look: impl FnOnce(&mut BTreeMap<AttributeName, Vec<AttributeValue>>) -> T,
) -> Option<T> {
    state.names.get(node).filter(|node| node.is_linked && node.entry.is_none())?;
    let object = state.names.object_mut(node)?;
    Some(look(&mut object.said.get_or_insert_default().set))
}

fn in_lines(values: &[AttributeValue]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns the path of a node, once what was done to it here is known to the site.
async fn published(shared: &Shared, node: NodeId) -> Result<ObjectPath, Errno> {
    shared.end_mappings();
    // Where the site does not answer, the question itself says so.
    let _ = tokio::time::timeout(PUBLISH_WAIT, shared.changes.until_done(None)).await;
    let state = shared.state();
    shared.path(&state, node).ok_or(Errno::ENOENT)
}

/// Returns what people say, several values each in a line.
async fn said(shared: &Shared, path: &ObjectPath, name: &AttributeName) -> Result<Option<String>, Errno> {
    let attributes = shared.session.client.attributes(path).await.map_err(|error| errno(error.code()))?;
    let said = attributes.into_iter().find(|one| one.name == *name && one.source == Source::Person);
    Ok(said.map(|one| in_lines(&one.values)))
}

async fn known(shared: &Shared, node: NodeId, attribute: Attribute) -> Result<String, Errno> {
    let path = {
        let state = shared.state();
        let path = shared.path(&state, node).ok_or(Errno::ENOENT)?;
        let object = state.names.object(node);
        let content = object.and_then(|object| object.content.as_ref());
        match (attribute, object) {
            (Attribute::Path, _) => return Ok(path.to_string()),
            (_, None) => return Err(Errno::ENODATA),
            (Attribute::State, Some(object)) => {
                let state = match &object.work {
                    Some(work) if work.writers > 0 => "writing",
                    Some(work) if work.publishing.is_some() => "publishing",
                    Some(_) => "refused",
                    None => "published",
                };
                return Ok(state.to_owned());
            }
            (Attribute::Version, _) => {
                return content.map(|content| content.version.to_string()).ok_or(Errno::ENODATA);
            }
            (Attribute::Blake3, _) => {
                let root = content.and_then(|content| content.root);
                return root.map(|root| root.to_string()).ok_or(Errno::ENODATA);
            }
            (Attribute::Replicas, _) => path,
        }
    };
    let entry = shared.session.client.stat(&path).await.map_err(|error| errno(error.code()))?;
    let replicas = entry.replicas.unwrap_or_default();
    let lines =
        replicas.iter().map(|replica| format!("{} {} {}\n", replica.site, replica.store, replica.state));
    Ok(lines.collect())
}
