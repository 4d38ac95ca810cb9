//! What programs may ask of a file beyond its attributes: `user.percale.*`.

use fuser::Errno;

use crate::error::errno;
use crate::names::NodeId;
use crate::state::Shared;

/// What begins the names of all of them.
const PREFIX: &str = "user.percale.";

/// An attribute.
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

    /// Returns the attribute of a name.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.strip_prefix(PREFIX)?;
        Self::ALL.into_iter().find(|attribute| attribute.name() == name)
    }
}

/// Returns the names of what a node has, each with a zero behind it.
pub fn names(shared: &Shared, node: NodeId) -> String {
    let is_object = shared.state().names.object(node).is_some();
    let known = Attribute::ALL.into_iter().filter(|attribute| is_object || *attribute == Attribute::Path);
    known.map(|attribute| format!("{PREFIX}{}\0", attribute.name())).collect()
}

/// Returns the value of an attribute.
///
/// # Errors
/// `ENODATA` where there is none; what the site answers.
pub async fn value(shared: &Shared, node: NodeId, attribute: Attribute) -> Result<String, Errno> {
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
