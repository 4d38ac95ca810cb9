//! Where something is: `PATH` on this computer, `percale:/space/path` in the fabric.
//!
//! A colon counts only before the first slash, so `./a:b` is a local file.

use std::fmt;
use std::path::PathBuf;

use percale_core::{ErrorCode, ObjectPath};

use crate::failure::{Failure, Result};

/// What stands before the colon of a fabric path.
const SCHEME: &str = "percale";

/// A place that a command was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// On this computer.
    Local(LocalPath),
    /// In the fabric.
    Fabric(FabricPath),
    /// `-`: standard input or output.
    Standard,
}

/// A path on this computer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPath {
    /// The path.
    pub path: PathBuf,
    /// Whether it ends with a slash, so means what is in the directory.
    pub means_contents: bool,
}

/// A path of the namespace, perhaps with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricPath {
    /// The path; wildcards are ordinary characters in it.
    pub path: ObjectPath,
    /// Whether it ends with a slash, so means what is in the collection.
    pub means_contents: bool,
    /// `host[:port]` of `percale://host/…`.
    pub host: Option<String>,
}

impl Address {
    /// Reads what a person wrote.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        let before_slash = text.split('/').next().unwrap_or_default();
        match before_slash.split_once(':') {
            None => {
                let means_contents =
                    text.ends_with('/') || matches!(text, "." | "..") || text.ends_with("/.");
                Ok(Self::Local(LocalPath { path: text.into(), means_contents }))
            }
            Some((SCHEME, _)) => FabricPath::parse(text).map(Self::Fabric),
            Some(("doi" | "hdl", _)) => Err(Failure::new(
                ErrorCode::Unsupported,
                format!("'{text}' is a persistent identifier, and this release does not resolve them"),
            )),
            Some((name, _)) => {
                let typo = strsim_close(name, SCHEME);
                let failure = Failure::new(
                    ErrorCode::Unsupported,
                    format!("'{text}' names the storage of site '{name}', which only `percale import` reads"),
                );
                Err(failure.with_hint(if typo {
                    format!("Did you mean 'percale{}'?", &text[name.len()..])
                } else {
                    format!("Use 'percale:/space/path' for the fabric, or './{text}' for a local file of that name.")
                }))
            }
        }
    }

    /// Reads what must be a path of the fabric.
    pub fn parse_fabric(text: &str) -> Result<FabricPath> {
        match Self::parse(text)? {
            Self::Fabric(path) => Ok(path),
            Self::Standard | Self::Local(_) => {
                let failure =
                    Failure::usage(format!("'{text}' is a local path, but a path of the fabric is needed"));
                Err(failure
                    .with_hint(format!("Did you mean 'percale:/{}'?", text.trim_start_matches(['/', '.']))))
            }
        }
    }
}

/// A path of a site's storage: `SITE:/path`, or `SITE:s3://bucket/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawPath {
    /// The site's name.
    pub site: String,
    /// The path, as the site's hosts name it.
    pub path: String,
}

impl RawPath {
    /// Reads what a person wrote.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |hint: &str| {
            Err(Failure::usage(format!("'{text}' is not a path of a site's storage")).with_hint(hint))
        };
        match text.split_once(':') {
            Some((SCHEME, _)) => {
                wrong("The files come from a storage, 'SITE:/path', and go to 'percale:/space/path'.")
            }
            Some((site, path))
                if !site.is_empty()
                    && !site.contains('/')
                    && (path.starts_with('/') && !path.starts_with("//") || path.starts_with("s3://")) =>
            {
                Ok(Self { site: site.to_owned(), path: path.to_owned() })
            }
            _ => wrong(
                "Write 'SITE:/path', with the path as the site's hosts name it, or 'SITE:s3://bucket/path'; `percale site list` names the sites.",
            ),
        }
    }
}

impl FabricPath {
    fn parse(text: &str) -> Result<Self> {
        let rest = text.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix(':')).unwrap_or(text);
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                if host.is_empty() {
                    return Err(Failure::usage(format!("'{text}' has no host; write 'percale:/space/path'")));
                }
                (Some(host.to_owned()), if path.is_empty() { "/" } else { path })
            }
            None => (None, if rest.is_empty() { "/" } else { rest }),
        };
        if path.starts_with('@') {
            return Err(Failure::new(ErrorCode::Unsupported, "this release has no saved searches"));
        }
        let parsed = ObjectPath::parse(path).map_err(|error| {
            let failure = Failure::new(error.code(), format!("cannot use '{text}': {error}"));
            match path.starts_with('/') {
                true => failure,
                false => {
                    failure.with_hint(format!("Paths of the fabric begin with a slash: 'percale:/{path}'."))
                }
            }
        })?;
        Ok(Self { path: parsed, means_contents: path.len() > 1 && path.ends_with('/'), host })
    }

    /// Tells whether it has wildcards: `*`, `?`, `[…]`, `{…}`.
    pub fn has_wildcards(&self) -> bool {
        has_wildcards(self.path.as_str())
    }
}

/// Tells whether a text has wildcards.
pub fn has_wildcards(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

impl fmt::Display for FabricPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.means_contents { "/" } else { "" };
        match &self.host {
            Some(host) => write!(f, "{SCHEME}://{host}{}{slash}", self.path),
            None => write!(f, "{SCHEME}:{}{slash}", self.path),
        }
    }
}

/// Writes a path of the fabric as the command line takes it.
pub fn show(path: &ObjectPath) -> String {
    format!("{SCHEME}:{path}")
}

/// Tells whether one or two letters are wrong.
fn strsim_close(left: &str, right: &str) -> bool {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, l) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, r) in right.bytes().enumerate() {
            let above = row[column + 1];
            let cost =
                if l.eq_ignore_ascii_case(&r) { diagonal } else { 1 + diagonal.min(above).min(row[column]) };
            diagonal = above;
            row[column + 1] = cost;
        }
    }
    row.last().is_some_and(|distance| *distance <= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(text: &str) -> FabricPath {
        match Address::parse(text) {
            Ok(Address::Fabric(path)) => path,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_colon_counts_only_before_the_first_slash() {
        for local in ["a", "./a:b", "/data/x:y", "../percale:/a", "dir/percale:/x"] {
            assert!(matches!(Address::parse(local), Ok(Address::Local(_))), "{local}");
        }
        assert_eq!(Address::parse("-").unwrap(), Address::Standard);
        assert_eq!(fabric("percale:/climate/a:b.nc").path.as_str(), "/climate/a:b.nc");
    }

    #[test]
    fn trailing_slashes_are_kept_apart() {
        assert!(!fabric("percale:/climate").means_contents);
        assert!(fabric("percale:/climate/").means_contents);
        assert!(!fabric("percale:/").means_contents && fabric("percale:").path.is_root());
        for (text, contents) in [("a", false), ("a/", true), (".", true), ("a/.", true), ("..", true)] {
            let Ok(Address::Local(local)) = Address::parse(text) else { panic!("{text}") };
            assert_eq!(local.means_contents, contents, "{text}");
        }
    }

    #[test]
    fn hosts_are_read_and_shown() {
        let path = fabric("percale://data.example.org:8787/climate/a");
        assert_eq!(path.host.as_deref(), Some("data.example.org:8787"));
        assert_eq!(path.to_string(), "percale://data.example.org:8787/climate/a");
        assert!(fabric("percale://host").path.is_root());
        assert!(Address::parse("percale:///climate").is_err());
    }

    #[test]
    fn paths_of_storages_are_read() {
        let raw = RawPath::parse("alps:/data/a:b").unwrap();
        assert_eq!((raw.site.as_str(), raw.path.as_str()), ("alps", "/data/a:b"));
        assert_eq!(RawPath::parse("alps:s3://archive/2018").unwrap().path, "s3://archive/2018");
        for wrong in [
            "/data",
            "alps:data",
            "alps:s3:/data",
            "s3://archive/2018",
            ":/data",
            "percale:/climate",
            "a/b:/data",
            "alps",
        ] {
            assert_eq!(RawPath::parse(wrong).unwrap_err().code(), ErrorCode::InvalidRequest, "{wrong}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        let hint = |text: &str| Address::parse(text).unwrap_err().hint().to_owned();
        assert!(hint("percale:climate").contains("percale:/climate"));
        assert!(hint("pecale:/climate").contains("Did you mean 'percale:/climate'?"));
        assert!(hint("lrz:/scratch").contains("./lrz:/scratch"));
        let failure = Address::parse_fabric("/climate").unwrap_err();
        assert!(failure.hint().contains("'percale:/climate'"), "{}", failure.hint());
        assert_eq!(failure.code(), ErrorCode::InvalidRequest);
        for (text, code) in [
            ("doi:10.1/x", ErrorCode::Unsupported),
            ("percale:/a/../b", ErrorCode::InvalidPath),
            ("percale:/UPPER", ErrorCode::InvalidPath),
        ] {
            assert_eq!(Address::parse(text).unwrap_err().code(), code, "{text}");
        }
    }
}
