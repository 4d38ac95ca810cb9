//! What this server does with the site's key: issues and checks tokens, and shows it to other sites. It changes while the
//! server runs, by this server or another one of the site ([`percale_federation::keys`]).

use std::path::Path;
use std::time::Duration;

use percale_catalog::TokenRecord;
use percale_core::Timestamp;
use percale_core::access::{Identity, Scope};
use percale_core::ids::SiteId;
use percale_federation::keys::{Adopt, KeyRotation};
use percale_trust::admin_token::{ADMIN_USER, ensure_admin_token};
use percale_trust::{SiteKey, SitePublicKey, TokenIssuer, TokenVerifier};

use crate::start::blocking;
use crate::{ApiError, AppState, Result};

/// How often a key that another server announced, or that is over, is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long other servers of the site take to hear of a change: they read the roster every 5 s.
const SETTLE: Duration = Duration::from_secs(6);

/// Returns what issues tokens with a key and checks those of this one, of the one that comes next, and of those before.
pub(crate) fn tokens(
    key: &SiteKey,
    announced: Option<SitePublicKey>,
    retired: &[([u8; 32], Timestamp)],
    site: SiteId,
) -> (TokenIssuer, TokenVerifier) {
    let next = announced.filter(|announced| *announced != key.public());
    let next = next.map(|next| (next, Timestamp::from_micros(i64::MAX)));
    let before = retired.iter().map(|(key, until)| (SitePublicKey(*key), *until));
    let verifier = TokenVerifier::new(key.public(), site);
    let verifier = next.into_iter().chain(before).fold(verifier, |all, (key, until)| all.also(key, until));
    (TokenIssuer::new(key, site), verifier)
}

/// Sees to it that there is a good token for the administrator. Returns what is to be recorded of it if it is new.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn admin_token(
    state_dir: &Path,
    issuer: &TokenIssuer,
    verifier: &TokenVerifier,
) -> Result<Option<TokenRecord>> {
    let admin = ensure_admin_token(state_dir, issuer, verifier, Timestamp::now())?;
    Ok(admin.issued.map(|issued| TokenRecord {
        id: issued.id,
        subject: Identity::local(ADMIN_USER),
        scopes: vec![Scope::Admin],
        label: Some("token of the administrator".to_owned()),
        issued: issued.issued,
        expires: issued.expires,
        revoked: None,
    }))
}

/// Changes the site's key ([`percale_federation::Fabric::rotate_key`]). It must run to its end.
pub(crate) async fn rotate(app: AppState, from: SitePublicKey, is_compromised: bool) -> Result<KeyRotation> {
    let has_others = !app.config.catalog_url()?.starts_with("sqlite");
    let settle = if has_others { SETTLE } else { Duration::ZERO };
    let changed = app.fabric.rotate_key(from, is_compromised, settle).await;
    // Also after an error: it may have come behind the announcement.
    take_up(&app).await?;
    Ok(changed?)
}

/// Follows changes of the key until the server ends.
pub(crate) async fn keep(app: AppState) {
    let mut changed = app.fabric.watch();
    let keys = || (app.fabric.roster().get(app.site.id).map(|row| row.key), app.fabric.key().key.public());
    let mut known = keys();
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            _ = changed.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let done = async {
            app.fabric.adopt_announced(Adopt::IfLeft).await?;
            let now = keys();
            if known != now {
                take_up(&app).await?;
                known = now;
            }
            app.fabric.discard_old_key().await?;
            Ok::<_, ApiError>(())
        };
        if let Err(error) = done.await {
            tracing::error!(%error, "cannot put the site's new key into use; will try again");
        }
    }
}

/// Uses the keys as they are now.
async fn take_up(app: &AppState) -> Result<()> {
    let _one_at_a_time = app.taking_key_up.lock().await;
    let (key, site) = (app.fabric.key(), app.site.id);
    if let Some(tls) = &app.tls {
        tls.show_to_sites(&key.certificate);
    }
    let announced = app.fabric.roster().get(site).map(|row| SitePublicKey(row.key));
    let retired = app.catalog.retired_keys().await?;
    let (issuer, verifier) = tokens(&key.key, announced, &retired, site);
    app.authenticator.use_keys(issuer, verifier);
    if announced != Some(key.key.public()) {
        return Ok(());
    }
    // The administrator's token may be void now.
    let directory = app.config.site.state_dir.clone();
    let record = blocking(move || {
        let (issuer, verifier) = tokens(&key.key, None, &retired, site);
        admin_token(&directory, &issuer, &verifier)
    })
    .await?;
    if let Some(record) = record {
        app.catalog.record_token(record).await?;
    }
    Ok(())
}
