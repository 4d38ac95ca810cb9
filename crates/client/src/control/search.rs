//! The calls of discovery: attributes, and searches for them.

use percale_api::attributes::{
    Attribute, AttributeChange, AttributeEvent, FoundPage, ObjectReferences, SearchPlan, SearchSummary,
};
use percale_api::entries::Entry;
use percale_api::{MAX_PAGE, Page};
use percale_core::ObjectPath;
use reqwest::Method;

use super::get;
use crate::call::{Call, Repeat, encode_path};
use crate::client::Client;

/// What to search for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Search<'a> {
    /// The query.
    pub query: &'a str,
    /// Most entries in the page.
    pub limit: Option<u32>,
    /// Where to go on: `next` of the page before.
    pub cursor: Option<&'a str>,
    /// A field to sort by, with `-` before it from the largest on; there is one page then.
    pub sort: Option<&'a str>,
    /// Attributes that are told of each, a list with commas between.
    pub attributes: Option<&'a str>,
}

impl Client {
    /// Finds a page of what is below a collection and has a name that matches a pattern: `*`, `?`, `[a-z]`, `{nc,nc4}`.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn find_by_name(
        &self,
        path: &ObjectPath,
        name: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> crate::Result<Page<Entry>> {
        let call = get(format!("find entries in {path}"), encode_path("/v1/find", path))
            .optional("name", Some(name))
            .optional("limit", limit.map(|limit| limit.min(MAX_PAGE)))
            .optional("cursor", cursor);
        self.json(call).await
    }

    /// Finds a page of what a query holds for (docs/search.md), in all spaces that the site has or follows.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn search(&self, search: &Search<'_>) -> crate::Result<FoundPage> {
        let Search { query, limit, cursor, sort, attributes } = search;
        let call = get("search", "/v1/search")
            .optional("q", Some(query))
            .optional("limit", limit.map(|limit| limit.min(MAX_PAGE)))
            .optional("cursor", *cursor)
            .optional("sort", *sort)
            .optional("attributes", *attributes);
        self.json(call).await
    }

    /// Counts what a query holds for, and which values of some fields, a list with commas between, there are. What takes longer than so
    /// many seconds is estimated.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn summarize(
        &self,
        query: &str,
        facets: Option<&str>,
        values: Option<u32>,
        within: u32,
    ) -> crate::Result<SearchSummary> {
        let call = get("count what is found", "/v1/search/summary")
            .optional("q", Some(query))
            .optional("facets", facets)
            .optional("values", values)
            .query("within", within);
        self.json(call).await
    }

    /// Asks how a query is understood, and how a search for it goes about it.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn explain(&self, query: &str) -> crate::Result<SearchPlan> {
        self.json(get("explain a search", "/v1/search/plan").query("q", query)).await
    }

    /// Returns what is said of an object or collection.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn attributes(&self, path: &ObjectPath) -> crate::Result<Vec<Attribute>> {
        let call = get(format!("look at the attributes of {path}"), encode_path("/v1/attributes", path));
        let page: Page<Attribute> = self.json(call).await?;
        Ok(page.items)
    }

    /// Returns a page of the changes of what is said of an object or collection, the last one first.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn attribute_history(
        &self,
        path: &ObjectPath,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> crate::Result<Page<AttributeEvent>> {
        let call = get(format!("look at what was said of {path}"), encode_path("/v1/history", path));
        self.json(call.optional("limit", limit).optional("cursor", cursor)).await
    }

    /// Sets and removes what people say of an object or collection. Returns what is said of it then.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_attributes(
        &self,
        path: &ObjectPath,
        change: &AttributeChange,
    ) -> crate::Result<Vec<Attribute>> {
        let operation = format!("change the attributes of {path}");
        let call = Call::new(operation, Method::PATCH, encode_path("/v1/attributes", path));
        let page: Page<Attribute> = self.json(call.json(change).repeat(Repeat::Safe)).await?;
        Ok(page.items)
    }

    /// Returns where the chunks of the arrays of an object lie.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn references(&self, path: &ObjectPath) -> crate::Result<ObjectReferences> {
        let operation = format!("look where the arrays of {path} lie");
        self.json(get(operation, encode_path("/v1/references", path))).await
    }
}
