//! The site, and who the caller is.

use axum::extract::State;
use percale_api::access::WhoAmI;
use percale_api::site::Site;
use percale_core::access::Subject;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Session;
use super::extract::Json;
use crate::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_site)).routes(routes!(whoami))
}

/// Returns the site. Needs no sign-in.
#[utoipa::path(get, path = "/v1/site", tag = "site", responses((status = 200, description = "the site", body = Site)))]
async fn get_site(State(app): State<AppState>) -> Json<Site> {
    let site = &app.site;
    Json(Site { id: site.id, name: site.name.clone(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// Returns who the server takes the caller for. Without a token that is nobody.
#[utoipa::path(get, path = "/v1/whoami", tag = "site", responses((status = 200, description = "the caller", body = WhoAmI)))]
async fn whoami(session: Session) -> Json<WhoAmI> {
    let caller = session.caller;
    Json(WhoAmI {
        user: caller.user.map(Subject::User),
        groups: caller.groups.into_iter().map(Subject::Group).collect(),
        scopes: caller.scopes,
        expires: session.token.map(|token| token.expires),
    })
}
