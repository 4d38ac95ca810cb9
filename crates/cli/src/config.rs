//! Which site, as whom: flags, environment, profile, default, in this order.
//!
//! `~/.config/percale/config.toml` holds the profiles, one table each. Tokens lie in files of their own (mode 0600) beside
//! it; they are never taken from the command line, where other users could see them.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use percale_core::ErrorCode;
use percale_trust::Secret;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// The site of a computer on which nothing was configured: a server of its own.
pub const DEFAULT_URL: &str = "https://127.0.0.1:8787";
/// The profile when none is named.
pub const DEFAULT_PROFILE: &str = "default";
/// Longest token that is read. Real ones have 1 to 8 KiB.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// The file with the profiles.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// The profile when none is named; `default` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_profile: Option<String>,
    /// The profiles by name.
    #[serde(rename = "profile")]
    pub profiles: BTreeMap<String, Profile>,
}

/// One profile: a site and how to sign in there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// The site's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A file with the token; `tokens/NAME` beside the configuration if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// CA certificates to trust, besides the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// What the flags say.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--profile`.
    pub profile: Option<String>,
    /// `--url`.
    pub url: Option<String>,
    /// `--token-file`.
    pub token_file: Option<PathBuf>,
    /// `--ca-file`.
    pub ca_file: Option<PathBuf>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Origin {
    /// A flag.
    Flag(&'static str),
    /// A variable of the environment.
    Environment(&'static str),
    /// A profile of the file.
    Profile(String),
    /// A file that is looked for.
    File(PathBuf),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.to_string()
    }
}

/// A value and where it comes from.
#[derive(Debug, Clone)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where the token is.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// In a variable of the environment.
    Environment(Secret<String>),
    /// In a file.
    File(PathBuf),
    /// Nobody is signed in.
    None,
}

/// What holds for this run.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The profile's name.
    pub profile: Setting<String>,
    /// The site's URL.
    pub url: Setting<String>,
    /// The token.
    pub token: Setting<TokenSource>,
    /// CA certificates.
    pub ca_file: Setting<Option<PathBuf>>,
}

/// Returns the directory of the configuration: `$XDG_CONFIG_HOME/percale`.
pub fn directory() -> Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    base.map(|base| base.join("percale")).ok_or_else(|| {
        Failure::new(
            ErrorCode::InvalidConfiguration,
            "cannot find the configuration: neither HOME nor XDG_CONFIG_HOME is set",
        )
    })
}

impl ConfigFile {
    /// Reads the file; one that is not there has no profiles.
    pub fn load() -> Result<Self> {
        let path = directory()?.join("config.toml");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::local("read the configuration", &path, &error)),
        };
        toml::from_str(&text).map_err(|error| {
            let message =
                format!("cannot use the configuration {}: {}", path.display(), error.to_string().trim_end());
            Failure::new(ErrorCode::InvalidConfiguration, message)
        })
    }

    /// Writes the file.
    pub fn save(&self) -> Result {
        let path = directory()?.join("config.toml");
        let text = toml::to_string(self).map_err(|error| {
            Failure::new(ErrorCode::InvalidConfiguration, format!("cannot write the configuration: {error}"))
        })?;
        write_private(&path, text.as_bytes())
    }

    /// Finds out what holds for this run.
    pub fn effective(&self, flags: &Flags) -> Result<Effective> {
        let variable = |name: &'static str| {
            env::var(name)
                .ok()
                .filter(|value| !value.is_empty())
                .map(|value| (value, Origin::Environment(name)))
        };
        let (profile, profile_origin) = flags
            .profile
            .clone()
            .map(|name| (name, Origin::Flag("--profile")))
            .or_else(|| variable("PERCALE_PROFILE"))
            .or_else(|| {
                Some((self.default_profile.clone()?, Origin::File(directory().ok()?.join("config.toml"))))
            })
            .unwrap_or((DEFAULT_PROFILE.to_owned(), Origin::Default));
        let known = self.profiles.get(&profile);
        if known.is_none() && profile_origin != Origin::Default {
            let names: Vec<_> = self.profiles.keys().map(String::as_str).collect();
            let hint = match names.as_slice() {
                [] => "There is no profile yet: `percale login URL --profile NAME` makes one.".to_owned(),
                names => format!("Known are: {}.", names.join(", ")),
            };
            let message = format!("there is no profile '{profile}' (from {profile_origin})");
            return Err(Failure::new(ErrorCode::InvalidConfiguration, message).with_hint(hint));
        }
        let of_profile = || Origin::Profile(profile.clone());
        let (url, url_origin) = flags
            .url
            .clone()
            .map(|url| (url, Origin::Flag("--url")))
            .or_else(|| variable("PERCALE_URL"))
            .or_else(|| Some((known?.url.clone()?, of_profile())))
            .unwrap_or((DEFAULT_URL.to_owned(), Origin::Default));
        let path_variable = |name| variable(name).map(|(value, origin)| (PathBuf::from(value), origin));
        let ca_file = flags
            .ca_file
            .clone()
            .map(|path| (path, Origin::Flag("--ca-file")))
            .or_else(|| path_variable("PERCALE_CA_FILE"))
            .or_else(|| Some((known?.ca_file.clone()?, of_profile())));
        let (ca_file, ca_origin) =
            ca_file.map_or((None, Origin::Default), |(path, origin)| (Some(path), origin));

        let own_token = token_path(&profile).ok().filter(|path| path.exists());
        let is_other_site = !matches!(url_origin, Origin::Profile(_))
            && known.and_then(|profile| profile.url.as_deref()).is_none_or(|known| !same_url(known, &url));
        let (token, token_origin) = if let Some(path) = &flags.token_file {
            (TokenSource::File(path.clone()), Origin::Flag("--token-file"))
        } else if let Some((token, origin)) = variable("PERCALE_TOKEN") {
            (TokenSource::Environment(Secret::new(token)), origin)
        } else if let Some((path, origin)) = path_variable("PERCALE_TOKEN_FILE") {
            (TokenSource::File(path), origin)
        } else if is_other_site {
            // A profile's token is for its site, and is not shown to another.
            (TokenSource::None, Origin::Default)
        } else if let Some(path) = known.and_then(|profile| profile.token_file.clone()) {
            (TokenSource::File(path), of_profile())
        } else if let Some(path) = own_token {
            (TokenSource::File(path.clone()), Origin::File(path))
        } else {
            (TokenSource::None, Origin::Default)
        };
        Ok(Effective {
            profile: Setting { value: profile, origin: profile_origin },
            url: Setting { value: url, origin: url_origin },
            token: Setting { value: token, origin: token_origin },
            ca_file: Setting { value: ca_file, origin: ca_origin },
        })
    }
}

fn same_url(left: &str, right: &str) -> bool {
    left.trim_end_matches('/').eq_ignore_ascii_case(right.trim_end_matches('/'))
}

impl TokenSource {
    /// Reads the token.
    pub fn read(&self) -> Result<Option<Secret<String>>> {
        match self {
            Self::None => Ok(None),
            Self::Environment(token) => check_token(token.expose(), "PERCALE_TOKEN").map(Some),
            Self::File(path) => read_token(path).map(Some),
        }
    }
}

/// Returns where the token of a profile is kept.
pub fn token_path(profile: &str) -> Result<PathBuf> {
    check_profile_name(profile)?;
    Ok(directory()?.join("tokens").join(profile))
}

/// Checks that a profile's name can be a file's name.
pub fn check_profile_name(name: &str) -> Result {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=63).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Failure::usage(format!("'{name}' cannot name a profile: 1 to 63 of letters, digits, '.', '_', '-'")))
}

/// Reads a token from a file that nobody else may read.
pub fn read_token(path: &Path) -> Result<Secret<String>> {
    let cannot = |error: std::io::Error| Failure::local("read the token file", path, &error);
    let file = fs::File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        let message = format!(
            "refuses the token in {}: its mode {:04o} lets other users read it",
            path.display(),
            metadata.mode() & 0o777
        );
        let hint =
            format!("Run `chmod 600 {}`, and revoke the token if others may have read it.", path.display());
        return Err(Failure::new(ErrorCode::InvalidConfiguration, message).with_hint(hint));
    }
    let mut text = String::new();
    file.take(MAX_TOKEN_BYTES + 1).read_to_string(&mut text).map_err(cannot)?;
    check_token(&text, &path.display().to_string())
}

/// Checks that a text may be a token.
pub fn check_token(text: &str, from: &str) -> Result<Secret<String>> {
    let token = text.trim();
    let is_one = !token.is_empty()
        && token.len() as u64 <= MAX_TOKEN_BYTES
        && token.chars().all(|c| c.is_ascii_graphic());
    if is_one {
        return Ok(Secret::new(token.to_owned()));
    }
    Err(Failure::new(
        ErrorCode::InvalidConfiguration,
        format!("there is no token in {from}: expected one line of text"),
    ))
}

/// Writes a file that only its owner may read, whole or not at all.
pub fn write_private(path: &Path, content: &[u8]) -> Result {
    let cannot = |error: std::io::Error| Failure::local("write", path, &error);
    let parent = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(cannot)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let staged = parent.join(format!(".{name}.{}.new", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&staged, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&staged);
        cannot(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ConfigFile {
        toml::from_str(
            "default_profile = 'work'\n[profile.work]\nurl = 'https://a'\ntoken_file = '/t/a'\n[profile.other]\nurl = 'https://b'\n",
        )
        .unwrap()
    }

    // The environment belongs to the whole process; the end-to-end tests look at it.
    #[test]
    fn flags_go_over_the_profile() {
        let effective = file().effective(&Flags::default()).unwrap();
        assert_eq!((effective.profile.value.as_str(), effective.url.value.as_str()), ("work", "https://a"));
        assert!(matches!(effective.token.value, TokenSource::File(_)));

        let flags = Flags { profile: Some("other".into()), ..Flags::default() };
        let effective = file().effective(&flags).unwrap();
        assert_eq!(effective.url.value, "https://b");
        assert_eq!(effective.url.origin.to_string(), "profile other");

        let flags = Flags { profile: Some("missing".into()), ..Flags::default() };
        let failure = file().effective(&flags).unwrap_err();
        assert!(failure.hint().contains("other, work"), "{}", failure.hint());
    }

    #[test]
    fn a_token_is_not_shown_to_another_site() {
        let flags = Flags { url: Some("https://evil".into()), ..Flags::default() };
        let effective = file().effective(&flags).unwrap();
        assert!(matches!(effective.token.value, TokenSource::None));
        let flags = Flags { url: Some("https://A/".into()), ..Flags::default() };
        assert!(matches!(file().effective(&flags).unwrap().token.value, TokenSource::File(_)));
    }

    #[test]
    fn tokens_that_others_can_read_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write_private(&path, b"abc\n").unwrap();
        assert_eq!(read_token(&path).unwrap().expose(), "abc");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_token(&path).unwrap_err().to_string().contains("0644"));
        for text in ["", "two words", "line\nline"] {
            write_private(&path, text.as_bytes()).unwrap();
            assert_eq!(read_token(&path).unwrap_err().code(), ErrorCode::InvalidConfiguration, "{text:?}");
        }
    }

    #[test]
    fn junk_in_the_file_is_named() {
        assert!(toml::from_str::<ConfigFile>("[profile.a]\nurll = 'x'").is_err());
        for name in ["", "a/b", "..", ".x", "a b"] {
            assert!(check_profile_name(name).is_err(), "{name:?}");
        }
    }
}
