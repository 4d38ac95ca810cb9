//! Another site has this one read and hash its copies.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_api::peer::{CheckCopies, CheckLine, Checked, Outcome, VersionOf};
use percale_core::ErrorCode;
use percale_core::access::Permission;
use percale_federation::{Acting, tell};
use tokio::sync::mpsc;

use super::{lasting, require_room};
use crate::authorize::authorize;
use crate::http::auth::{Session, delegated_here};
use crate::http::extract::Json;
use crate::tasks::{AT_ONCE, Found, check_copy};
use crate::{ApiError, AppState, OnPath as _, Result};

/// How long a root that was found may take to come back from the home.
const SETTLED: Duration = Duration::from_secs(10);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Reads and hashes the copies that this site has of versions, and answers as it goes on. Each version needs `read`; with a
/// delegation, what is damaged or lost is replaced, which needs `write`.
pub(super) async fn check(
    State(app): State<AppState>,
    session: Session,
    Json(CheckCopies { items, repair }): Json<CheckCopies>,
) -> Result<Response> {
    let refuse = |detail: &str| ApiError::new(ErrorCode::SiteRefused, detail);
    let site =
        session.site.clone().ok_or_else(|| refuse("only members of the fabric ask for a check of copies"))?;
    require_room(items.len())?;
    if let Some(text) = &repair {
        let (signer, delegation) = delegated_here(&app, text)?;
        if signer.id != site.id || delegation.caller.user != session.caller.user {
            return Err(refuse("the delegation is of another user or site"));
        }
    }
    let repair = repair.map(Acting::Task);
    let work = |sender| {
        let work = Work { app: app.clone(), session, repair, sender, hashed: Mutex::default() };
        async move { work.all(items).await }
    };
    Ok(lasting::answer(&app, "application/jsonl", work))
}

struct Work {
    app: AppState,
    session: Session,
    repair: Option<Acting>,
    sender: mpsc::Sender<Bytes>,
    /// The versions that nobody had hashed before.
    hashed: Mutex<Vec<VersionOf>>,
}

impl Work {
    async fn all(&self, items: Vec<VersionOf>) {
        let mut looked_at = stream::iter(items.into_iter().enumerate())
            .map(|(item, version)| self.one(item, version).boxed())
            .buffer_unordered(AT_ONCE);
        let mut lines = 0;
        while let Some(sent) = looked_at.next().await {
            lines += sent;
        }
        self.settle().await;
        self.send(&CheckLine::End { lines }).await;
    }

    /// Looks at the copies of one version. Returns how many lines were sent.
    async fn one(&self, item: usize, VersionOf { space, version }: VersionOf) -> usize {
        let app = &self.app;
        let opened = async {
            let opened = app.catalog.open_by_id(&self.session.caller, space, version).await?;
            if self.repair.is_some() {
                authorize(&app.catalog, &self.session.caller, &opened.path, Permission::Write).await?;
            }
            Ok::<_, ApiError>(opened)
        };
        let opened = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                self.send(&CheckLine::Version { item, problem: error.to_problem() }).await;
                return 1;
            }
        };
        let mut lines = 0;
        for replica in &opened.replicas {
            if !app.stores.is_own(replica.store).await.unwrap_or(false) {
                continue;
            }
            let found = check_copy(app, &opened, replica, self.repair.as_ref()).await.on_path(&opened.path);
            let outcome = match found {
                Ok(Found { bytes, is_repaired, root }) => {
                    if opened.root.is_none() {
                        self.hashed().push(VersionOf { space, version });
                    }
                    Outcome::Done(Checked { bytes, is_repaired, root })
                }
                Err(error) => Outcome::Failed(error.to_problem()),
            };
            self.send(&CheckLine::Copy { item, store: replica.store, outcome }).await;
            lines += 1;
        }
        lines
    }

    /// Tells homes of the roots that were found, and waits until they are known here from there: whoever asked goes by them.
    async fn settle(&self) {
        let mut hashed = std::mem::take(&mut *self.hashed());
        if hashed.is_empty() {
            return;
        }
        if let Err(error) = tell::flush(&self.app.fabric).await {
            tracing::debug!(%error, "cannot tell homes what was found of copies");
            return;
        }
        let until = Instant::now() + SETTLED;
        while let Some(VersionOf { space, version }) = hashed.last()
            && Instant::now() < until
        {
            match self.app.catalog.open_by_id(&self.session.caller, *space, *version).await {
                Ok(opened) if opened.root.is_none() => tokio::time::sleep(LOOK_EVERY).await,
                // Or it is not there any more.
                _ => drop(hashed.pop()),
            }
        }
    }

    fn hashed(&self) -> MutexGuard<'_, Vec<VersionOf>> {
        self.hashed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, line: &CheckLine) {
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        // Whoever asked may have gone; then the work is dropped.
        let _ = self.sender.send(bytes.into()).await;
    }
}
