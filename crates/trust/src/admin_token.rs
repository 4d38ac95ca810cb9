//! The administrator's first token. A new site has no user yet; whoever can read its state directory is its
//! administrator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use percale_core::Timestamp;
use percale_core::access::{Identity, Scope};

use crate::{Error, IssueRequest, IssuedToken, TokenIssuer, TokenVerifier, private_file};

/// Name of the token's file in the state directory.
pub const ADMIN_TOKEN_FILE: &str = "admin.token";
/// The user that it is for.
pub const ADMIN_USER: &str = "admin";

/// How long it lives; [`ensure_admin_token`] renews it when less than a third is left.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);

/// The administrator's token of a site.
#[derive(Debug, Clone)]
pub struct AdminToken {
    /// Its file.
    pub path: PathBuf,
    /// The token, if it was made just now; else the one that was there is still good.
    pub issued: Option<IssuedToken>,
}

/// Sees to it that `<state>/admin.token` (mode 0600) holds a valid token with the scope `admin`. Called at each start.
///
/// A token that is there and valid for a while is kept, so that what was configured with it goes on working.
///
/// # Errors
/// [`Error`]: the file cannot be read or written, or may be read by others.
pub fn ensure_admin_token(
    state: &Path,
    issuer: &TokenIssuer,
    verifier: &TokenVerifier,
    now: Timestamp,
) -> Result<AdminToken, Error> {
    let path = state.join(ADMIN_TOKEN_FILE);
    let exists = path.try_exists().map_err(|error| Error::io("cannot read the admin token", &path, error))?;
    if exists {
        let text = private_file::read_private("the admin token", &path)?;
        let text = std::str::from_utf8(&text).unwrap_or_default().trim();
        if let Ok(token) = verifier.verify(text, now.after(LIFE / 3))
            && token.caller.is_admin()
        {
            return Ok(AdminToken { path, issued: None });
        }
    }
    let issued = issuer.issue(IssueRequest {
        subject: Identity::local(ADMIN_USER),
        groups: Vec::new(),
        scopes: vec![Scope::Admin],
        ttl: LIFE,
        now,
    })?;
    let text = crate::Secret::new(format!("{}\n", issued.secret.expose()));
    private_file::replace("the admin token", &path, text.expose().as_bytes(), 0o600)?;
    Ok(AdminToken { path, issued: Some(issued) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use percale_core::ids::SiteId;

    use super::*;
    use crate::SiteKey;

    #[test]
    fn the_token_is_kept_until_it_nears_its_end() {
        let state = tempfile::tempdir().unwrap();
        let key = SiteKey::load_or_create(state.path()).unwrap();
        let site = SiteId::new();
        let (issuer, verifier) = (TokenIssuer::new(&key, site), TokenVerifier::new(key.public(), site));
        let now = Timestamp::now();
        let ensure = |now| ensure_admin_token(state.path(), &issuer, &verifier, now).unwrap();

        let first = ensure(now);
        assert!(first.issued.is_some());
        assert_eq!(first.path.metadata().unwrap().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&first.path).unwrap();
        assert!(verifier.verify(text.trim(), now).unwrap().caller.is_admin());
        assert!(ensure(now.after(LIFE / 2)).issued.is_none());
        assert!(ensure(now.after(LIFE / 4 * 3)).issued.is_some());

        std::fs::write(&first.path, "not a token").unwrap();
        assert!(ensure(now).issued.is_some());
    }
}
