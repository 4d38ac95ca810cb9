//! Changes of this site's key (`docs/design/trust.md`, "Joining, keys, removal").
//!
//! **Participants.** An administrator of this site; its servers, which share a state directory; the other members.
//! **Goals.** At no moment is there a key in use that nobody knows, or announced that nobody has. **Steps.** The new key is
//! made beside the old one, written into the own row of the roster with its announcement, told to the others, and only
//! then put into use. **Failure.** Before the announcement nothing has happened, and the next change takes the key that is
//! there. After it, this or another server puts the key into use: at a start at once, else a minute later. Members that
//! were not told learn of it when they meet the new key.

use std::fs::File;
use std::time::Duration;

use percale_catalog::{KeyStep, OldTokens};
use percale_core::{ErrorCode, Timestamp};
use percale_trust::signed::OLD_KEY_LIFE;
use percale_trust::tls::SiteCertificate;
use percale_trust::token::{DEFAULT_LEEWAY, MAX_LIFE};
use percale_trust::{KeyChange, SiteKey, SitePublicKey};
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::fabric::{Fabric, OwnKey, OwnSite, newer_than};
use crate::roster::Member;

/// Locked while a server of the site changes the key.
const LOCK_FILE: &str = "site.key.lock";
/// How long a member may take to hear of a change before the new key is used.
const TELL_WITHIN: Duration = Duration::from_secs(10);
/// After that, the server that announced a key is taken to be dead, and another puts it into use.
const ADOPT_AFTER: Duration = Duration::from_secs(60);

/// What came of a change of the key.
#[derive(Debug, Clone)]
pub struct KeyRotation {
    /// The new key.
    pub key: SitePublicKey,
    /// Until when the others accept the old one.
    pub old_until: Option<Timestamp>,
    /// The members that have heard of it.
    pub told: Vec<String>,
    /// Those that have not yet.
    pub untold: Vec<String>,
}

/// When a key that is announced but not in use is put into use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopt {
    /// At once.
    Now,
    /// When the server that announced it should have done so.
    IfLeft,
}

impl Fabric {
    /// Changes the site's key, which is `from` now. With `is_compromised` the old one is not accepted any more, by anybody;
    /// what it signed is void, and administrators of the other members confirm the new one. `settle` is how long the other
    /// servers of this site take to hear of it.
    ///
    /// The same call again, should its answer be lost, changes nothing more.
    ///
    /// # Errors
    /// `precondition_failed` if the site has another key; `conflict` while another server changes it; the files of the keys
    /// cannot be read or written.
    pub async fn rotate_key(
        &self,
        from: SitePublicKey,
        is_compromised: bool,
        settle: Duration,
    ) -> Result<KeyRotation> {
        let _one_at_a_time = self.changing_key().await;
        let _lock = lock(self.own())?;
        self.reload().await?;
        // What an earlier change left comes first.
        self.adopt_announced(Adopt::Now).await?;
        let row = self.member(self.own().id)?;
        if row.key != from.0 {
            return self.repeated(&row, &from, is_compromised);
        }
        let (key, at) = (self.key(), Timestamp::now());
        let state = self.own().state_dir.clone();
        let next = blocking(move || {
            if is_compromised {
                // Whoever read the one may have read the other.
                SiteKey::discard_next(&state)?;
            }
            SiteKey::prepare_next(&state)
        })
        .await?;
        let announce = if is_compromised { KeyChange::revoke } else { KeyChange::sign };
        let step = KeyStep {
            site: row.id,
            from: row.key,
            to: next.public().0,
            old_until: (!is_compromised).then(|| at.after(OLD_KEY_LIFE)),
            change: Some(announce(&key.key, row.id, &next, at)?),
            is_confirmed: true,
        };
        let old_until = step.old_until;
        let tokens = match is_compromised {
            true => OldTokens::Void,
            false => OldTokens::Until(at.after(MAX_LIFE + DEFAULT_LEEWAY)),
        };
        if !self.catalog().change_key(step, Some(tokens)).await? {
            return Err(Error::new(ErrorCode::Conflict, "the site's key was changed at the same time"));
        }
        tracing::warn!(key_id = next.public().key_id(), is_compromised, "the site's key changes");
        self.reload().await?;
        // A greater version, so that nobody takes what was said before for news.
        let row = self.member(self.own().id)?;
        let (changed, changed_by) = (newer_than(Some(&row)), row.id);
        self.merge(vec![Member { changed, changed_by, ..(*row).clone() }]).await?;
        let ((told, untold), ()) = tokio::join!(self.tell_all(), tokio::time::sleep(settle));
        self.adopt_announced(Adopt::Now).await?;
        Ok(KeyRotation { key: next.public(), old_until, told, untold })
    }

    /// The answer to a change that was made before.
    fn repeated(&self, row: &Member, from: &SitePublicKey, is_compromised: bool) -> Result<KeyRotation> {
        let key = SitePublicKey(row.key);
        let change = row.key_change.as_deref().and_then(|text| KeyChange::verify(text, row.id, from).ok());
        match change {
            Some(change) if change.new == key && change.is_revocation == is_compromised => Ok(KeyRotation {
                key,
                old_until: row.old_key.map(|(_, until)| until),
                told: Vec::new(),
                untold: self.others().iter().map(|other| other.name.clone()).collect(),
            }),
            _ => Err(Error::new(
                ErrorCode::PreconditionFailed,
                format!("the site has the key {} and not {}", key.key_id(), from.key_id()),
            )),
        }
    }

    /// Tells the others of the roster. Returns who has heard it and who has not.
    async fn tell_all(&self) -> (Vec<String>, Vec<String>) {
        let mut telling = JoinSet::new();
        for member in self.others() {
            let fabric = self.clone();
            telling.spawn(async move {
                let told = tokio::time::timeout(TELL_WITHIN, fabric.exchange(member.id)).await;
                (member.name.clone(), matches!(told, Ok(Ok(()))))
            });
        }
        let (mut told, mut untold) = (Vec::new(), Vec::new());
        while let Some(Ok((name, has_heard))) = telling.join_next().await {
            if has_heard { told.push(name) } else { untold.push(name) }
        }
        told.sort();
        untold.sort();
        (told, untold)
    }

    /// Puts the key into use that the own row of the roster announces, if another is in use. Returns whether it did.
    ///
    /// # Errors
    /// The files cannot be read or written, or none of them holds that key.
    pub async fn adopt_announced(&self, when: Adopt) -> Result<bool> {
        let own = self.own();
        let Some(row) = self.roster().get(own.id).cloned() else { return Ok(false) };
        let announced = SitePublicKey(row.key);
        if self.key().key.public() == announced {
            return Ok(false);
        }
        let change = row.key_change.as_deref();
        let change = change.and_then(|text| KeyChange::verify(text, own.id, &self.key().key.public()).ok());
        let is_left = change.is_none_or(|change| change.at.after(ADOPT_AFTER) < Timestamp::now());
        let (state, may_adopt) = (own.state_dir.clone(), when == Adopt::Now || is_left);
        let is_revocation = row.old_key.is_none();
        let key = blocking(move || {
            let key = SiteKey::load_or_create(&state)?;
            if key.public() == announced || !may_adopt {
                return Ok(key);
            }
            SiteKey::adopt_next(&state, &announced)?;
            if is_revocation {
                SiteKey::discard_old(&state)?;
            }
            SiteKey::load_or_create(&state)
        })
        .await?;
        if key.public() != announced {
            return Ok(false);
        }
        let certificate = SiteCertificate::new(&key, own.id, Timestamp::now())?;
        self.use_key(OwnKey { key, certificate });
        tracing::info!(key_id = announced.key_id(), "the site uses its new key");
        Ok(true)
    }

    /// Removes the file of the old key once nobody accepts it any more.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub async fn discard_old_key(&self) -> Result<()> {
        let own = self.own();
        let Some(row) = self.roster().get(own.id).cloned() else { return Ok(()) };
        let is_over = row.old_key.is_none_or(|(_, until)| until <= Timestamp::now());
        if is_over && self.key().key.public().0 == row.key {
            let state = own.state_dir.clone();
            blocking(move || SiteKey::discard_old(&state)).await?;
        }
        Ok(())
    }

    /// Writes a key into the own row that none announced: the files were lost, or are those of a backup.
    pub(crate) async fn announce_lost_key(&self, known: [u8; 32]) -> Result<()> {
        let key = self.key().key.public();
        let known_id = SitePublicKey(known).key_id();
        tracing::warn!(
            known = known_id,
            key_id = key.key_id(),
            "the state directory has another site key than the catalog; other sites refuse it until their administrators confirm it"
        );
        let (site, to) = (self.own().id, key.0);
        let step = KeyStep { site, from: known, to, old_until: None, change: None, is_confirmed: true };
        self.catalog().change_key(step, None).await?;
        self.reload().await
    }
}

/// Returns the site's key as a server has to use it when it starts: one that was announced, but not put into use before
/// the last server died, is put into use first.
///
/// # Errors
/// The files cannot be read or written.
pub fn key_at_start(
    state: &std::path::Path,
    announced: Option<SitePublicKey>,
) -> Result<SiteKey, percale_trust::Error> {
    let key = SiteKey::load_or_create(state)?;
    let Some(announced) = announced.filter(|announced| *announced != key.public()) else { return Ok(key) };
    match SiteKey::load_next(state)? {
        Some(next) if next.public() == announced => SiteKey::adopt_next(state, &announced)?,
        _ => {}
    }
    SiteKey::load_or_create(state)
}

fn lock(own: &OwnSite) -> Result<File> {
    let path = own.state_dir.join(LOCK_FILE);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(|error| {
        Error::new(ErrorCode::Internal, format!("cannot open {}", path.display())).with_source(error)
    })?;
    file.try_lock().map_err(|error| {
        let detail = "another server of the site changes its key; ask again when it has";
        Error::new(ErrorCode::Conflict, detail).with_source(error)
    })?;
    Ok(file)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, percale_trust::Error> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => Ok(outcome?),
        Err(error) => {
            Err(Error::new(ErrorCode::Internal, "the work on a key ended early").with_source(error))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

    use std::path::Path;

    use percale_catalog::{Catalog, CatalogConfig};

    use super::*;

    /// A server of the site whose catalog and state directory these are.
    async fn server(catalog: &Catalog, state: &Path) -> Fabric {
        percale_trust::install_crypto_provider();
        let id = catalog.init_site("alps").await.unwrap().id;
        let row = catalog.peers().await.unwrap().pop().map(|row| SitePublicKey(row.key));
        let key = key_at_start(state, row).unwrap();
        let certificate = SiteCertificate::new(&key, id, Timestamp::now()).unwrap();
        let (urls, state_dir) = (vec!["https://alps.example.org".into()], state.to_owned());
        let stall_timeout = Duration::from_secs(60);
        let integrity_only = Vec::new();
        let own = OwnSite { id, name: "alps".into(), urls, state_dir, stall_timeout, integrity_only };
        Fabric::open(own, OwnKey { key, certificate }, catalog.clone()).await.unwrap()
    }

    fn key(fabric: &Fabric) -> SitePublicKey {
        fabric.key().key.public()
    }

    async fn site() -> (tempfile::TempDir, Catalog) {
        let state = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", state.path().join("catalog.db").display());
        (state, Catalog::open(&CatalogConfig::new(url)).await.unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_other_servers_of_a_site_take_the_new_key_up() {
        let (state, catalog) = site().await;
        let (one, two) = (server(&catalog, state.path()).await, server(&catalog, state.path()).await);
        let before = key(&one);
        assert_eq!(key(&two), before);
        let made = one.rotate_key(before, false, Duration::ZERO).await.unwrap();
        assert_eq!((key(&one), key(&two)), (made.key, before));
        assert!(!two.adopt_announced(Adopt::IfLeft).await.unwrap(), "it has not read the roster yet");
        two.reload().await.unwrap();
        assert!(two.adopt_announced(Adopt::IfLeft).await.unwrap());
        assert_eq!(key(&two), made.key);
        // Of two that are asked at once, one changes it; the other says that it was changed.
        let (first, second) = tokio::join!(
            one.rotate_key(made.key, false, Duration::ZERO),
            two.rotate_key(made.key, false, Duration::ZERO)
        );
        let keys: Vec<_> = [first, second].into_iter().flatten().map(|made| made.key).collect();
        assert!(!keys.is_empty() && keys.iter().all(|key| *key == keys[0]));
        for fabric in [&one, &two] {
            fabric.reload().await.unwrap();
            fabric.adopt_announced(Adopt::IfLeft).await.unwrap();
            assert_eq!(key(fabric), keys[0]);
        }
        let late = one.rotate_key(before, false, Duration::ZERO).await.unwrap_err();
        assert_eq!(late.code(), ErrorCode::PreconditionFailed);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_that_a_dead_server_announced_is_used_after_a_minute_and_at_a_start_at_once() {
        let (state, catalog) = site().await;
        let server_here = server(&catalog, state.path()).await;
        let announce = async |at: Timestamp| {
            let (old, new) = (
                SiteKey::load_or_create(state.path()).unwrap(),
                SiteKey::prepare_next(state.path()).unwrap(),
            );
            let step = KeyStep {
                site: server_here.own().id,
                from: old.public().0,
                to: new.public().0,
                old_until: Some(at.after(OLD_KEY_LIFE)),
                change: Some(KeyChange::sign(&old, server_here.own().id, &new, at).unwrap()),
                is_confirmed: true,
            };
            assert!(catalog.change_key(step, None).await.unwrap());
            new.public()
        };
        let now = Timestamp::now();
        let before = key(&server_here);
        let announced = announce(now).await;
        server_here.reload().await.unwrap();
        assert!(!server_here.adopt_announced(Adopt::IfLeft).await.unwrap(), "the other may be telling it");
        assert_eq!(key(&server_here), before);
        assert_eq!(key(&server(&catalog, state.path()).await), announced, "at a start");
        assert!(server_here.adopt_announced(Adopt::IfLeft).await.unwrap(), "another server uses it");

        let long_ago = Timestamp::from_micros(now.as_micros() - 120_000_000);
        let announced = announce(long_ago).await;
        server_here.reload().await.unwrap();
        assert!(server_here.adopt_announced(Adopt::IfLeft).await.unwrap());
        assert_eq!(key(&server_here), announced);
        // The file of the old key is kept while it is accepted.
        server_here.discard_old_key().await.unwrap();
        assert!(SiteKey::load_old(state.path()).unwrap().is_some());
        server_here.rotate_key(announced, true, Duration::ZERO).await.unwrap();
        assert!(SiteKey::load_old(state.path()).unwrap().is_none(), "others know it");
    }
}
