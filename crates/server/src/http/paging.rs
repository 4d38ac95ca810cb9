//! Pages of lists: `limit`, `cursor`, `Link`.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Uri, header};
use percale_api::{DEFAULT_PAGE, MAX_PAGE, Page};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::IntoParams;

use super::extract::Json;
use crate::{ApiError, Result};

/// Which part of a list is wanted.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// Most items in the answer; 1000 if absent.
    #[param(minimum = 1, maximum = 10_000)]
    pub limit: Option<u32>,
    /// Where to go on: `next` of the answer before.
    pub cursor: Option<String>,
}

/// Returns the most items of a page.
///
/// # Errors
/// `invalid_request` for a limit of 0 or above [`MAX_PAGE`].
pub fn limit(asked: Option<u32>) -> Result<usize> {
    let limit = asked.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}, it must be from 1 to {MAX_PAGE}")));
    }
    Ok(limit as usize)
}

/// Answers with a page, and with the address of the next one.
pub fn page<T: Serialize>(uri: &Uri, items: Vec<T>, next: Option<String>) -> Response {
    let after = next.clone();
    linked(uri, after.as_deref(), &Page { items, next })
}

/// Answers with something that is a page among other things, and with the address of the next one.
pub fn linked(uri: &Uri, next: Option<&str>, body: &impl Serialize) -> Response {
    let link = next.and_then(|next| link(uri, next));
    let mut response = Json(body).into_response();
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}

fn link(uri: &Uri, cursor: &str) -> Option<HeaderValue> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        if name != "cursor" {
            query.append_pair(&name, &value);
        }
    }
    query.append_pair("cursor", cursor);
    HeaderValue::from_str(&format!("<{}?{}>; rel=\"next\"", uri.path(), query.finish())).ok()
}

/// A yes or no of the query: `?recursive`, `?recursive=true`, `?recursive=false`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "" | "true" | "1" => Ok(Flag(true)),
            "false" | "0" => Ok(Flag(false)),
            _ => Err(serde::de::Error::custom("expected true or false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_keeps_the_query_and_encodes_the_cursor() {
        let uri: Uri = "/v1/list/s/a%20b?limit=2&cursor=old&recursive=true".parse().unwrap();
        let link = link(&uri, "é &x").unwrap();
        assert_eq!(
            link.to_str().unwrap(),
            "</v1/list/s/a%20b?limit=2&recursive=true&cursor=%C3%A9+%26x>; rel=\"next\""
        );
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(limit(None).unwrap(), 1000);
        assert_eq!(limit(Some(10_000)).unwrap(), 10_000);
        assert!(limit(Some(0)).is_err() && limit(Some(10_001)).is_err());
    }
}
