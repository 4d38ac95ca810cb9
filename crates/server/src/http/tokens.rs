//! Tokens of the built-in issuer: issued, listed, revoked.
//!
//! A token never gives more than the one it was asked with: neither scopes, nor groups, nor (but for administrators) time.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use percale_api::access::{IssuedToken, NewToken, Token};
use percale_api::{Page, fields};
use percale_catalog::TokenRecord;
use percale_core::access::{Caller, Identity, Scope, Subject};
use percale_core::ids::TokenId;
use percale_core::{ErrorCode, Timestamp};
use percale_trust::IssueRequest;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session};
use super::extract::{Json, Param};
use super::paging::page;
use crate::{ApiError, AppState, Result};

/// How long a token lives unless said otherwise.
const DEFAULT_LIFE: Duration = Duration::from_secs(8 * 3600);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_tokens, issue_token)).routes(routes!(revoke_token))
}

/// Lists the caller's tokens that have not ended; for an administrator those of everybody.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", responses((status = 200, description = "the tokens, without their text", body = Page<Token>)))]
async fn list_tokens(State(app): State<AppState>, session: Session, uri: Uri) -> Result<Response> {
    let caller = session.require_user("listing tokens")?;
    let tokens = app.catalog.tokens(caller).await?;
    Ok(page(&uri, tokens.into_iter().map(token).collect(), None))
}

fn token(record: TokenRecord) -> Token {
    Token {
        id: record.id,
        subject: Subject::User(record.subject),
        scopes: record.scopes,
        label: record.label,
        issued: record.issued,
        expires: record.expires,
        revoked: record.revoked,
    }
}

/// Issues a token.
///
/// Its text is in the answer and nowhere else. `Idempotency-Key` is refused, since the answer would have to be kept.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = NewToken, responses((status = 201, description = "the token with its text", body = IssuedToken)))]
async fn issue_token(
    State(app): State<AppState>,
    session: Session,
    headers: HeaderMap,
    Json(new): Json<NewToken>,
) -> Result<Response> {
    if headers.contains_key(fields::IDEMPOTENCY_KEY) {
        return Err(ApiError::invalid("cannot issue a token under an Idempotency-Key: its text is not kept"));
    }
    if new.label.as_ref().is_some_and(|label| label.len() > 200 || label.chars().any(char::is_control)) {
        return Err(ApiError::invalid(
            "cannot issue a token: label has more than 200 bytes or control characters",
        ));
    }
    let label = new.label.clone();
    let request = allowed(&session, new, Timestamp::now())?;
    let (subject, scopes) = (request.subject.clone(), request.scopes.clone());
    let issued = app.authenticator.issue(request)?;
    let record = TokenRecord {
        id: issued.id,
        subject,
        scopes,
        label,
        issued: issued.issued,
        expires: issued.expires,
        revoked: None,
    };
    // Recorded first: a token that nobody can list or revoke must not be about.
    app.catalog.record_token(record.clone()).await?;
    let body = IssuedToken { token: token(record), secret: issued.secret.expose().clone() };
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response())
}

/// Decides what the caller may have.
fn allowed(session: &Session, new: NewToken, now: Timestamp) -> Result<IssueRequest> {
    let caller = session.require_user("issuing a token")?;
    let own = caller.user.clone().unwrap_or_else(|| Identity::local(""));
    let forbid =
        |why: String| Err(ApiError::new(ErrorCode::Forbidden, format!("cannot issue a token: {why}")));
    let subject = match new.subject {
        None => own.clone(),
        Some(Subject::User(user)) => user,
        Some(other) => {
            return Err(ApiError::invalid(format!("cannot issue a token for {other}: expected user:NAME")));
        }
    };
    let is_admin = caller.is_admin();
    if subject != own && !is_admin {
        return forbid(format!("only an administrator may issue one for {subject}"));
    }
    let mut groups = Vec::new();
    for group in new.groups {
        match group {
            Subject::Group(group) if is_admin || caller.groups.contains(&group) => groups.push(group),
            Subject::Group(group) => {
                return forbid(format!("only an administrator may vouch for group:{group}"));
            }
            other => return Err(ApiError::invalid(format!("cannot vouch for {other}: expected group:NAME"))),
        }
    }
    if groups.is_empty() && subject == own {
        groups.clone_from(&caller.groups);
    }
    let scopes = if new.scopes.is_empty() && !is_admin { caller.scopes.clone() } else { new.scopes };
    if let Some(wider) = scopes.iter().find(|scope| !is_within(scope, caller)) {
        return forbid(format!("the scope '{wider}' is wider than those of your own token"));
    }
    let left = session.token.map_or(Duration::ZERO, |token| token.expires.since(now));
    let ttl = match new.expires_in_seconds {
        Some(seconds) => Duration::from_secs(seconds),
        None if is_admin => DEFAULT_LIFE,
        None => DEFAULT_LIFE.min(left).max(Duration::from_secs(1)),
    };
    if ttl.is_zero() || ttl > percale_trust::token::MAX_LIFE {
        let most = percale_trust::token::MAX_LIFE.as_secs();
        return Err(ApiError::invalid(format!(
            "expires_in_seconds is {}, it must be from 1 to {most}",
            ttl.as_secs()
        )));
    }
    if !is_admin && ttl > left.max(Duration::from_secs(1)) {
        return forbid(format!("it would outlive your own token, which ends in {} s", left.as_secs()));
    }
    Ok(IssueRequest { subject, groups, scopes, ttl, now })
}

fn is_within(scope: &Scope, caller: &Caller) -> bool {
    if caller.is_admin() {
        return true;
    }
    match scope {
        Scope::Admin => false,
        Scope::Path(permission, path) => {
            caller.scopes.is_empty()
                || caller.scopes.iter().any(|own| match own {
                    Scope::Path(most, root) => permission <= most && path.is_within(root),
                    Scope::Admin => false,
                })
        }
    }
}

/// Revokes a token: one's own, or any for an administrator. At this server it is refused at once, at others within 5 s.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", params(("id" = String, Path, description = "the token's id")), responses((status = 204, description = "it is revoked")))]
async fn revoke_token(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<TokenId>,
) -> Result<StatusCode> {
    super::auth::require_user(&caller, "revoking a token")?;
    app.catalog.revoke_token(&caller, id).await?;
    app.authenticator.revoke(id);
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::auth::CheckedToken;

    fn session(scopes: &[&str], groups: &[&str]) -> Session {
        let caller = Caller {
            user: Some(Identity::local("alice")),
            groups: groups.iter().map(|group| Identity::local(*group)).collect(),
            scopes: scopes.iter().map(|scope| scope.parse().unwrap()).collect(),
        };
        let expires = Timestamp::EPOCH.after(Duration::from_secs(3600));
        Session {
            caller,
            token: Some(CheckedToken { id: TokenId::new(), expires }),
            site: None,
            delegation: None,
        }
    }

    fn ask(session: &Session, json: serde_json::Value) -> Result<IssueRequest> {
        allowed(session, serde_json::from_value(json).unwrap(), Timestamp::EPOCH)
    }

    #[test]
    fn nothing_is_given_beyond_the_callers_own() {
        let restricted = session(&["write:/s/a"], &["wp3"]);
        let inherited = ask(&restricted, serde_json::json!({})).unwrap();
        assert_eq!(inherited.scopes, restricted.caller.scopes, "no scopes must not mean all");
        assert_eq!(inherited.groups, restricted.caller.groups);
        assert_eq!(inherited.ttl.as_secs(), 3600, "it ends no later than the caller's");
        assert!(ask(&restricted, serde_json::json!({"scopes": ["read:/s/a/b"]})).is_ok());
        for wider in ["read:/s", "manage:/s/a", "write:/s/ab", "admin"] {
            let error = ask(&restricted, serde_json::json!({"scopes": [wider]})).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Forbidden, "{wider}");
        }
        for wider in [
            serde_json::json!({"subject": "user:bob"}),
            serde_json::json!({"groups": ["group:admins"]}),
            serde_json::json!({"expires_in_seconds": 3601}),
        ] {
            assert_eq!(ask(&restricted, wider.clone()).unwrap_err().code(), ErrorCode::Forbidden, "{wider}");
        }
        assert_eq!(
            ask(&session(&[], &[]), serde_json::json!({"scopes": ["admin"]})).unwrap_err().code(),
            ErrorCode::Forbidden
        );
    }

    #[test]
    fn an_administrator_gives_what_is_asked_for_within_bounds() {
        let admin = session(&["admin"], &[]);
        let given = ask(
            &admin,
            serde_json::json!({"subject": "user:bob", "groups": ["group:wp3"], "expires_in_seconds": 86400}),
        )
        .unwrap();
        assert_eq!(given.subject, Identity::local("bob"));
        assert!(given.scopes.is_empty(), "a user's token is not an administrator's");
        for out_of_bounds in [0_u64, 366 * 24 * 3600 + 1, u64::MAX] {
            let error = ask(&admin, serde_json::json!({"expires_in_seconds": out_of_bounds})).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidRequest);
        }
        for wrong in ["group:x", "anyone"] {
            assert_eq!(
                ask(&admin, serde_json::json!({"subject": wrong})).unwrap_err().code(),
                ErrorCode::InvalidRequest
            );
        }
    }
}
