//! Who may do what: deny unless granted.
//!
//! A grant gives a subject a permission on a collection (or the root of a space) and on everything below it. There are
//! no denials and no exceptions below a grant. A token may carry scopes, which only ever take away. [`decide`] is the
//! one function that says yes or no; every door and every query goes through it.

mod crossing;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ObjectPath;
pub use crossing::{MAX_SITE_NAME_BYTES, is_site_name};

/// Longest subject or issuer, in bytes (OpenID Connect Core, section 2, allows 255 for `sub`).
pub const MAX_SUBJECT_BYTES: usize = 255;

/// What a grant allows. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// List, stat and read.
    Read,
    /// Create, overwrite, rename and delete.
    Write,
    /// Change grants and settings.
    Manage,
}

impl Permission {
    /// Returns the word used on the wire and the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Manage => "manage",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is not a permission, subject or scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Not a permission.
    #[error("'{0}' is not a permission: expected read, write or manage")]
    Permission(String),
    /// Not a subject.
    #[error(
        "'{0}' is not a subject: expected user:NAME, user:NAME@ISSUER, group:NAME, group:NAME@ISSUER or anyone"
    )]
    Subject(String),
    /// Not a scope.
    #[error("'{0}' is not a scope: expected read:/PATH, write:/PATH, manage:/PATH or admin")]
    Scope(String),
}

fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

impl FromStr for Permission {
    type Err = AccessError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            "manage" => Ok(Self::Manage),
            _ => Err(AccessError::Permission(excerpt(text))),
        }
    }
}

/// Who vouches for a user or group: the URL of an OpenID Connect issuer, [`Issuer::LOCAL`], the site's own, or
/// [`Issuer::site`], another site's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Issuer(pub String);

impl Issuer {
    /// The token issuer built into every site. Other sites call that of the site `alps` `site:alps`.
    pub const LOCAL: &str = "local";

    /// Returns the built-in issuer.
    pub fn local() -> Self {
        Self(Self::LOCAL.into())
    }
}

/// A user or group under its issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// Who vouches for it.
    pub issuer: Issuer,
    /// The name that the issuer gives it.
    pub name: String,
}

impl Identity {
    /// Makes an identity of the built-in issuer.
    pub fn local(name: impl Into<String>) -> Self {
        Self { issuer: Issuer::local(), name: name.into() }
    }
}

/// `NAME` for the built-in issuer, else `NAME@ISSUER`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.issuer.0.as_str() {
            Issuer::LOCAL if !self.name.contains('@') => f.write_str(&self.name),
            issuer => write!(f, "{}@{issuer}", self.name),
        }
    }
}

impl FromStr for Identity {
    type Err = AccessError;

    /// Takes what follows the last `@` for the issuer if it is `local`, an `https` or `http` URL, or begins with `site:`,
    /// so that an e-mail address may be a name.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let split =
            text.rsplit_once('@').and_then(|(name, issuer)| Some((name, issuer, Issuer::check(issuer)?)));
        let (name, issuer) = match split {
            Some((name, issuer, true)) => (name, issuer),
            Some((_, _, false)) => return Err(AccessError::Subject(excerpt(text))),
            None => (text, Issuer::LOCAL),
        };
        let fits =
            |part: &str| (1..=MAX_SUBJECT_BYTES).contains(&part.len()) && !part.chars().any(char::is_control);
        if fits(name) && fits(issuer) {
            Ok(Self { issuer: Issuer(issuer.into()), name: name.into() })
        } else {
            Err(AccessError::Subject(excerpt(text)))
        }
    }
}

/// Whom a grant is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subject {
    /// One user.
    User(Identity),
    /// The members of a group.
    Group(Identity),
    /// Everybody, signed in or not.
    Anyone,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(identity) => write!(f, "user:{identity}"),
            Self::Group(identity) => write!(f, "group:{identity}"),
            Self::Anyone => f.write_str("anyone"),
        }
    }
}

impl FromStr for Subject {
    type Err = AccessError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("user", identity)) => Ok(Self::User(identity.parse()?)),
            Some(("group", identity)) => Ok(Self::Group(identity.parse()?)),
            None if text == "anyone" => Ok(Self::Anyone),
            _ => Err(AccessError::Subject(excerpt(text))),
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = AccessError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.to_string()
    }
}

/// A restriction that a token carries: at most this permission, at and below this path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// At most this permission at and below this path.
    Path(Permission, ObjectPath),
    /// Administration of the site: its stores, spaces, tokens and all data.
    Admin,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(permission, path) => write!(f, "{permission}:{path}"),
            Self::Admin => f.write_str("admin"),
        }
    }
}

impl FromStr for Scope {
    type Err = AccessError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || AccessError::Scope(excerpt(text));
        if text == "admin" {
            return Ok(Self::Admin);
        }
        let (permission, path) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Self::Path(permission.parse().map_err(|_| wrong())?, path.parse().map_err(|_| wrong())?))
    }
}

impl TryFrom<String> for Scope {
    type Error = AccessError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

/// Who is asking, as established from a token that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// The user, or nothing for somebody who did not sign in.
    pub user: Option<Identity>,
    /// The groups that the issuer vouches for.
    pub groups: Vec<Identity>,
    /// If not empty, at least one scope must allow what is asked, besides the grants.
    pub scopes: Vec<Scope>,
}

impl Caller {
    /// Somebody who did not sign in.
    pub fn anonymous() -> Self {
        Self { user: None, groups: Vec::new(), scopes: Vec::new() }
    }

    /// A user with all that the grants give.
    pub fn user(identity: Identity) -> Self {
        Self { user: Some(identity), groups: Vec::new(), scopes: Vec::new() }
    }

    /// An administrator of the site; also what the server itself acts as.
    pub fn admin(identity: Identity) -> Self {
        Self { user: Some(identity), groups: Vec::new(), scopes: vec![Scope::Admin] }
    }

    /// Tells whether the token carries the administrator's scope.
    pub fn is_admin(&self) -> bool {
        self.user.is_some() && self.scopes.contains(&Scope::Admin)
    }

    /// Tells whether a grant to `subject` is also one to this caller.
    pub fn is(&self, subject: &Subject) -> bool {
        match subject {
            Subject::User(identity) => self.user.as_ref() == Some(identity),
            Subject::Group(identity) => self.groups.contains(identity),
            Subject::Anyone => true,
        }
    }

    /// Returns every subject that this caller is, for looking up grants.
    pub fn subjects(&self) -> Vec<Subject> {
        let user = self.user.iter().cloned().map(Subject::User);
        let groups = self.groups.iter().cloned().map(Subject::Group);
        user.chain(groups).chain([Subject::Anyone]).collect()
    }
}

/// Why something is not allowed, in words for the person who asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// Not signed in, and the path is not open to anyone.
    #[error("{permission} on {path} needs a sign-in")]
    NotSignedIn {
        /// What was asked for.
        permission: Permission,
        /// On what.
        path: ObjectPath,
    },
    /// The token is restricted to other paths or lesser permissions.
    #[error("the token's scopes do not include {permission} on {path}")]
    Scope {
        /// What was asked for.
        permission: Permission,
        /// On what.
        path: ObjectPath,
    },
    /// No grant on the path or above it.
    #[error("no grant gives {permission} on {path}")]
    NoGrant {
        /// What was asked for.
        permission: Permission,
        /// On what.
        path: ObjectPath,
        /// Whether the caller may at least read it. If not, users are told that nothing is there.
        may_read: bool,
    },
}

/// Decides whether `caller` has `permission` on `path`. `granted` are the grants on the path and on every collection
/// above it.
///
/// # Errors
/// [`Denied`], saying what is missing.
pub fn decide<'a>(
    caller: &Caller,
    permission: Permission,
    path: &ObjectPath,
    granted: impl IntoIterator<Item = (&'a Subject, Permission)>,
) -> Result<(), Denied> {
    if caller.is_admin() {
        return Ok(());
    }
    let scope_allows = caller.scopes.is_empty()
        || caller.scopes.iter().any(|scope| match scope {
            Scope::Path(most, root) => permission <= *most && path.is_within(root),
            Scope::Admin => false,
        });
    if !scope_allows {
        return Err(Denied::Scope { permission, path: path.clone() });
    }
    let best = granted.into_iter().filter(|(subject, _)| caller.is(subject)).map(|(_, given)| given).max();
    match best {
        Some(given) if given >= permission => Ok(()),
        None if caller.user.is_none() => Err(Denied::NotSignedIn { permission, path: path.clone() }),
        best => Err(Denied::NoGrant { permission, path: path.clone(), may_read: best.is_some() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ObjectPath {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_is_allowed_without_a_grant() {
        let alice = Caller::user(Identity::local("alice"));
        assert!(matches!(
            decide(&alice, Permission::Read, &path("/s/a"), []),
            Err(Denied::NoGrant { may_read: false, .. })
        ));
        assert!(matches!(
            decide(&Caller::anonymous(), Permission::Read, &path("/s/a"), []),
            Err(Denied::NotSignedIn { .. })
        ));
    }

    #[test]
    fn grants_include_lesser_permissions_and_only_for_their_subject() {
        let alice = Subject::User(Identity::local("alice"));
        let granted = [(&alice, Permission::Write)];
        let caller = Caller::user(Identity::local("alice"));
        assert!(decide(&caller, Permission::Read, &path("/s/a"), granted).is_ok());
        assert!(decide(&caller, Permission::Write, &path("/s/a"), granted).is_ok());
        assert!(matches!(
            decide(&caller, Permission::Manage, &path("/s/a"), granted),
            Err(Denied::NoGrant { may_read: true, .. })
        ));
        let elsewhere = Identity { issuer: Issuer("https://id.example.org".into()), name: "alice".into() };
        assert!(decide(&Caller::user(elsewhere), Permission::Read, &path("/s/a"), granted).is_err());
    }

    #[test]
    fn scopes_only_take_away() {
        let anyone = Subject::Anyone;
        let mut caller = Caller::user(Identity::local("alice"));
        caller.scopes = vec!["read:/s/a".parse().unwrap()];
        assert!(decide(&caller, Permission::Read, &path("/s/a/b"), [(&anyone, Permission::Manage)]).is_ok());
        assert!(decide(&caller, Permission::Read, &path("/s/ab"), [(&anyone, Permission::Manage)]).is_err());
        assert!(decide(&caller, Permission::Write, &path("/s/a"), [(&anyone, Permission::Manage)]).is_err());
        assert!(decide(&caller, Permission::Read, &path("/s/a"), []).is_err());
        let nobody = Caller { user: None, groups: vec![], scopes: vec![Scope::Admin] };
        assert!(decide(&nobody, Permission::Read, &path("/s"), []).is_err());
    }

    #[test]
    fn texts_round_trip_and_junk_is_refused() {
        for text in ["user:alice", "user:a@b.org", "user:alice@https://id.example.org", "group:wp3", "anyone"]
        {
            assert_eq!(
                text.parse::<Subject>().unwrap().to_string().parse::<Subject>(),
                text.parse(),
                "{text}"
            );
        }
        let mail: Subject = "user:a@b.org".parse().unwrap();
        assert_eq!(mail, Subject::User(Identity::local("a@b.org")));
        for text in ["", "user:", "alice", "user:a\nb", "anyone:x", "group:@local"] {
            assert!(text.parse::<Subject>().is_err(), "{text:?} was accepted");
        }
        for text in ["read:/", "manage:/s/a", "admin"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for text in ["read", "read:relative", "own:/s", "admin:/s"] {
            assert!(text.parse::<Scope>().is_err(), "{text:?} was accepted");
        }
    }
}
