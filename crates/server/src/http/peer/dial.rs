//! Dialling a member that wants to know whether it can be dialled.

use axum::extract::State;
use percale_api::directions::{Dial, DialAnswer};
use percale_core::ErrorCode;
use percale_federation::directions::check_nonce;
use tokio::sync::Semaphore;

use super::PeerSite;
use crate::http::extract::Json;
use crate::{ApiError, AppState, Result};

/// Members for which this server dials at once: whoever asks cannot keep it busy.
static AT_ONCE: Semaphore = Semaphore::const_new(4);

/// Dials the site that asks, at the URLs that are registered for it. Nothing in the question says where to.
pub(super) async fn dial(
    State(app): State<AppState>,
    PeerSite(site): PeerSite,
    Json(Dial { nonce }): Json<Dial>,
) -> Result<Json<DialAnswer>> {
    check_nonce(&nonce)?;
    let Ok(_one) = AT_ONCE.try_acquire() else {
        return Err(ApiError::new(ErrorCode::RateLimited, "this site dials others already; ask again"));
    };
    Ok(Json(DialAnswer { dialled: app.fabric.dial(&site, &nonce).await }))
}

/// Says a nonce again, to a member that has dialled this site.
pub(super) async fn hello(PeerSite(_): PeerSite, Json(dial): Json<Dial>) -> Result<Json<Dial>> {
    check_nonce(&dial.nonce)?;
    Ok(Json(dial))
}
