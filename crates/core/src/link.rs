//! Symbolic links.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ObjectPath;

/// Longest target of a link, in bytes (Linux `PATH_MAX` with its closing NUL).
pub const MAX_TARGET_BYTES: usize = 4095;

/// How many links are followed one after the other, as on Linux (`path_resolution(7)`).
pub const MAX_FOLLOWED: usize = 40;

/// Where a symbolic link leads, as it was written: 1 to [`MAX_TARGET_BYTES`] bytes of UTF-8 without a NUL.
///
/// A relative target is followed in the namespace, from the collection that holds the link, and may lead into another
/// space. An absolute one is a path of the computer that follows it, so of no meaning in the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkTarget(Box<str>);

/// Text that cannot be the target of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the target of a link has 1 to {MAX_TARGET_BYTES} bytes, and no NUL")]
pub struct InvalidLinkTarget;

impl LinkTarget {
    /// Makes the relative target that leads from a link at `link` to `path`.
    ///
    /// # Errors
    /// It would be too long.
    pub fn between(link: &ObjectPath, path: &ObjectPath) -> Result<Self, InvalidLinkTarget> {
        let from: Vec<&str> = link.components().collect();
        let from = from.split_last().map_or(&[][..], |(_, collection)| collection);
        let to: Vec<&str> = path.components().collect();
        let same = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        let up = std::iter::repeat_n("..", from.len() - same);
        let names: Vec<&str> = up.chain(to.into_iter().skip(same)).collect();
        match names.as_slice() {
            [] => ".".parse(),
            names => names.join("/").parse(),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path to which a link at `link` leads, with `rest` behind it; nothing if that is no path of the
    /// namespace.
    ///
    /// `..` takes the name before it away, also where that is a link.
    pub fn follow<'a>(&self, link: &ObjectPath, rest: impl Iterator<Item = &'a str>) -> Option<ObjectPath> {
        if self.0.starts_with('/') {
            return None;
        }
        let collection = link.parent()?;
        let mut names: Vec<&str> = collection.components().collect();
        for name in self.0.split('/') {
            match name {
                "" | "." => {}
                ".." => drop(names.pop()?),
                name => names.push(name),
            }
        }
        for name in rest {
            names.push(name);
        }
        ObjectPath::parse(&format!("/{}", names.join("/"))).ok()
    }

    /// Tells whether a link at `link`, which lies below `root`, leads to `root` or below it, also where a kernel follows it in a
    /// copy of that tree.
    ///
    /// For a kernel `..` behind a name leads up from where that name leads, if it is a link itself. So `..` is only taken
    /// in front, and no further than up to `root`, whose copy may have another name.
    pub fn stays_within(&self, link: &ObjectPath, root: &ObjectPath) -> bool {
        let names = || self.0.split('/').filter(|name| !matches!(*name, "" | "."));
        let up = names().take_while(|name| *name == "..").count();
        let depth = link.components().count().saturating_sub(root.components().count() + 1);
        let goes_up_again = names().skip(up).any(|name| name == "..");
        let followed = self.follow(link, std::iter::empty());
        up <= depth && !goes_up_again && followed.is_some_and(|path| path.is_within(root))
    }
}

impl FromStr for LinkTarget {
    type Err = InvalidLinkTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (1..=MAX_TARGET_BYTES).contains(&text.len()) && !text.contains('\0') {
            true => Ok(Self(text.into())),
            false => Err(InvalidLinkTarget),
        }
    }
}

impl TryFrom<String> for LinkTarget {
    type Error = InvalidLinkTarget;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<LinkTarget> for String {
    fn from(target: LinkTarget) -> Self {
        target.0.into()
    }
}

impl fmt::Display for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ObjectPath {
        text.parse().unwrap()
    }

    #[test]
    fn relative_targets_are_followed_in_the_namespace() {
        let follow = |target: &str, rest: &[&str]| {
            let target: LinkTarget = target.parse().unwrap();
            target.follow(&path("/lab/run/latest"), rest.iter().copied()).map(String::from)
        };
        assert_eq!(follow("one", &[]).as_deref(), Some("/lab/run/one"));
        assert_eq!(follow("./one//two/", &["x.h5"]).as_deref(), Some("/lab/run/one/two/x.h5"));
        assert_eq!(follow("../other", &[]).as_deref(), Some("/lab/other"));
        assert_eq!(follow("../../sky/map", &[]).as_deref(), Some("/sky/map"));
        assert_eq!(follow("../..", &[]).as_deref(), Some("/"));
        for nowhere in ["../../..", "/etc/passwd", "../../No Space", "/lab/run/one"] {
            assert_eq!(follow(nowhere, &[]), None, "{nowhere}");
        }
        assert_eq!(follow(&"x".repeat(256), &[]), None, "no entry has such a name");
    }

    #[test]
    fn a_link_stays_in_a_copy_of_its_tree() {
        let stays = |link: &str, target: &str| {
            let (link, target) = (path(&format!("/lab/run/{link}")), target.parse::<LinkTarget>().unwrap());
            target.stays_within(&link, &path("/lab/run"))
        };
        for (link, target) in [
            ("t", "a"),
            ("t", "./a//b/"),
            ("t", "."),
            ("x/y/s", "../.."),
            ("x/y/s", "../../a/b"),
            ("x/y/s", ".././../a"),
            ("x/y/s", "../z"),
        ] {
            assert!(stays(link, target), "{link} -> {target}");
        }
        for (link, target) in [
            ("t", "/lab/run/a"),
            ("t", ".."),
            // The copy of the tree may have another name.
            ("t", "../run/a"),
            ("x/y/s", "../../.."),
            ("x/y/s", "../../../run/a"),
            // Inside by its words; but `x/y/s` may be a link to the root.
            ("t", "x/y/s/../../../home/u/.ssh"),
            ("t", "x/.."),
            ("x/y/s", "../z/../a"),
        ] {
            assert!(!stays(link, target), "{link} -> {target}");
        }
    }

    #[test]
    fn a_target_leads_back_to_what_it_was_made_for() {
        for (link, to) in [
            ("/lab/a", "/lab/b"),
            ("/lab/run/a", "/lab/b/c"),
            ("/lab/run/deep/a", "/sky/b"),
            ("/lab/run/a", "/lab/run"),
            ("/lab/run/a", "/lab"),
            ("/lab/a", "/lab"),
        ] {
            let target = LinkTarget::between(&path(link), &path(to)).unwrap();
            assert_eq!(target.follow(&path(link), [].into_iter()), Some(path(to)), "{link} -> {target}");
        }
        let target = LinkTarget::between(&path("/lab/run/a"), &path("/lab/b/c")).unwrap();
        assert_eq!(target.as_str(), "../b/c");
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for wrong in ["", "a\0b", &"x".repeat(MAX_TARGET_BYTES + 1)] {
            assert_eq!(wrong.parse::<LinkTarget>(), Err(InvalidLinkTarget));
        }
        assert!("x".repeat(MAX_TARGET_BYTES).parse::<LinkTarget>().is_ok());
    }
}
