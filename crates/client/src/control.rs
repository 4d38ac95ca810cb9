//! The typed calls: one method of [`Client`] for each address of `docs/design/rest.md`.

mod namespace;
mod search;
mod tasks;
mod uploads;

use percale_api::Page;
use percale_api::access::{Grant, IssuedToken, NewGrant, NewToken, Token, WhoAmI};
use percale_api::site::{Readiness, Site, Version};
use percale_api::spaces::{NewHome, NewSpace, NewStore, Promoted, Space, SpaceChange, Store, StoreChange};
use percale_core::access::Subject;
use percale_core::ids::TokenId;
use percale_core::path::SpaceName;
use percale_core::{ObjectPath, Timestamp};
use reqwest::Method;
use reqwest::header::DATE;

use crate::answer::parse_json;
use crate::call::{Call, Repeat, encode_component, encode_path};
use crate::client::Client;

pub use namespace::ListOptions;
pub use search::Search;

/// The answer to a call that the caller put together.
#[derive(Debug, Clone)]
pub struct Raw {
    /// The HTTP status.
    pub status: u16,
    /// The media type of the body.
    pub content_type: String,
    /// The body.
    pub body: bytes::Bytes,
}

/// A page of whatever path a list has, followed until its end.
macro_rules! all_pages {
    ($(#[$doc:meta])* $all:ident, $page:ident, $item:ty $(, $arg:ident: $ty:ty)*) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the server answers.
        pub async fn $all(&self $(, $arg: $ty)*) -> crate::Result<Vec<$item>> {
            let mut items = Vec::new();
            let mut cursor = None;
            loop {
                let page = self.$page($($arg,)* cursor.as_deref()).await?;
                items.extend(page.items);
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => return Ok(items),
                }
            }
        }
    };
}
use all_pages;

fn get(operation: impl Into<String>, path: impl Into<String>) -> Call {
    Call::new(operation, Method::GET, path)
}

pub(crate) fn component(prefix: &str, name: &str) -> String {
    let mut path = format!("{prefix}/");
    encode_component(&mut path, name);
    path
}

impl Client {
    /// Asks what site this is.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn site(&self) -> crate::Result<Site> {
        self.json(get("ask for the site", "/v1/site")).await
    }

    /// Asks for the server's release and the site's time, for a comparison of clocks.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn version(&self) -> crate::Result<(Version, Option<Timestamp>)> {
        let operation = "ask for the server's version";
        let answer = self.fetch(get(operation, "/version")).await?;
        let date = answer.headers.get(DATE).and_then(|value| Timestamp::from_http_date(value.to_str().ok()?));
        Ok((parse_json(operation, &answer.body)?, date))
    }

    /// Asks whether the server can serve; its checks come with it, also if it cannot.
    ///
    /// # Errors
    /// The server does not answer, or not with checks.
    pub async fn readiness(&self) -> crate::Result<Readiness> {
        let operation = "ask whether the site is ready";
        let raw = self.raw(Method::GET.as_str(), "/readyz?verbose", None).await?;
        parse_json(operation, &raw.body)
    }

    /// Asks who the server takes the caller for.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn whoami(&self) -> crate::Result<WhoAmI> {
        self.json(get("ask who is signed in", "/v1/whoami")).await
    }

    /// Makes a token. Its text is not kept by the server, so a call whose answer was lost is not repeated by itself.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn create_token(&self, token: &NewToken) -> crate::Result<IssuedToken> {
        let call = Call::new("create a token", Method::POST, "/v1/tokens").json(token);
        self.json(call.repeat(Repeat::Never)).await
    }

    /// Lists a page of tokens.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_tokens(&self, cursor: Option<&str>) -> crate::Result<Page<Token>> {
        self.json(get("list tokens", "/v1/tokens").optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists all tokens.
        all_tokens, list_tokens, Token
    );

    /// Revokes a token.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn revoke_token(&self, id: TokenId) -> crate::Result<()> {
        let call = Call::new(format!("revoke token {id}"), Method::DELETE, format!("/v1/tokens/{id}"));
        self.fetch(call).await.map(drop)
    }

    /// Adds a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn add_store(&self, store: &NewStore) -> crate::Result<Store> {
        let call = Call::new(format!("add store {}", store.name), Method::POST, "/v1/stores").json(store);
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Lists a page of stores.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_stores(&self, cursor: Option<&str>) -> crate::Result<Page<Store>> {
        self.json(get("list stores", "/v1/stores").optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists all stores.
        all_stores, list_stores, Store
    );

    /// Shows a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn store(&self, name: &str) -> crate::Result<Store> {
        self.json(get(format!("show store {name}"), component("/v1/stores", name))).await
    }

    /// Changes a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_store(&self, name: &str, change: &StoreChange) -> crate::Result<Store> {
        let call = Call::new(format!("change store {name}"), Method::PATCH, component("/v1/stores", name));
        self.json(call.json(change).repeat(Repeat::Safe)).await
    }

    /// Removes a store.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn remove_store(&self, name: &str) -> crate::Result<()> {
        let call = Call::new(format!("remove store {name}"), Method::DELETE, component("/v1/stores", name));
        self.fetch(call).await.map(drop)
    }

    /// Makes a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn create_space(&self, space: &NewSpace) -> crate::Result<Space> {
        let call = Call::new(format!("create space {}", space.name), Method::POST, "/v1/spaces").json(space);
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Lists a page of spaces.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn list_spaces(&self, cursor: Option<&str>) -> crate::Result<Page<Space>> {
        self.json(get("list spaces", "/v1/spaces").optional("cursor", cursor)).await
    }

    all_pages!(
        /// Lists all spaces.
        all_spaces, list_spaces, Space
    );

    /// Shows a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn space(&self, name: &SpaceName) -> crate::Result<Space> {
        self.json(get(format!("show space {name}"), format!("/v1/spaces/{name}"))).await
    }

    /// Changes a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_space(&self, name: &SpaceName, change: &SpaceChange) -> crate::Result<Space> {
        let call = Call::new(format!("change space {name}"), Method::PATCH, format!("/v1/spaces/{name}"));
        self.json(call.json(change).repeat(Repeat::Safe)).await
    }

    /// Makes the site the home of a space whose home is lost.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn promote_space(&self, name: &SpaceName) -> crate::Result<Promoted> {
        self.json(Call::new(
            format!("promote space {name}"),
            Method::POST,
            format!("/v1/spaces/{name}/promote"),
        ))
        .await
    }

    /// Makes another site the home of a space.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn move_space(&self, name: &SpaceName, site: &str) -> crate::Result<Promoted> {
        let call = Call::new(format!("move space {name}"), Method::POST, format!("/v1/spaces/{name}/home"));
        self.json(call.json(&NewHome { site: site.to_owned() })).await
    }

    /// Removes a space.
    ///
    /// # Errors
    /// As the server answers; `not_empty` if it still has entries.
    pub async fn remove_space(&self, name: &SpaceName) -> crate::Result<()> {
        let call = Call::new(format!("remove space {name}"), Method::DELETE, format!("/v1/spaces/{name}"));
        self.fetch(call).await.map(drop)
    }

    /// Lists the grants that hold on a path, also those given above it.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn grants(&self, path: &ObjectPath) -> crate::Result<Vec<Grant>> {
        let page: Page<Grant> =
            self.json(get(format!("list the grants on {path}"), encode_path("/v1/grants", path))).await?;
        Ok(page.items)
    }

    /// Gives or changes a grant.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn grant(&self, path: &ObjectPath, grant: &NewGrant) -> crate::Result<()> {
        let operation = format!("grant {} on {path} to {}", grant.permission, grant.subject);
        let call = Call::new(operation, Method::PUT, encode_path("/v1/grants", path)).json(grant);
        self.fetch(call).await.map(drop)
    }

    /// Takes a grant away.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn revoke_grant(&self, path: &ObjectPath, subject: &Subject) -> crate::Result<()> {
        let operation = format!("remove the grant on {path} to {subject}");
        let call = Call::new(operation, Method::DELETE, encode_path("/v1/grants", path));
        self.fetch(call.query("subject", subject)).await.map(drop)
    }

    /// Makes any call and returns whatever the server answers, also a problem. Not repeated.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn raw(&self, method: &str, path: &str, json: Option<&[u8]>) -> crate::Result<Raw> {
        self.raw_call(method, path, json).await
    }
}
