//! Finding entries by what is known of them: pages, streams, and numbers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use percale_api::attributes::{
    AwaySite, Facet, FacetValue, FoundPage, Mismatch, PlannedSpace, SearchPlan, SearchSummary,
};
use percale_api::fields;
use percale_catalog::{Found, MAX_LIST, Page, SearchOptions, SearchedHome, Sort, SummaryOptions};
use percale_core::access::Caller;
use percale_core::query::{Condition, Field, Test};
use percale_core::{AttributeName, AttributeValue, Timestamp};
use percale_discovery::{QueryError, cql2};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::entries::describe;
use super::extract::{Json, Query};
use super::paging::{limit, linked};
use crate::{ApiError, AppState, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(search)).routes(routes!(summarize)).routes(routes!(explain))
}

/// What a filter is written in.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum FilterLanguage {
    /// The text of OGC CQL2, in which filters in the address are written.
    #[default]
    Cql2Text,
    /// Its JSON.
    Cql2Json,
    /// The language of queries.
    Percale,
}

/// What to search for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// The query, such as `instrument=MODIS size:>1GB`. Its language is described in `docs/search.md`.
    #[serde(default)]
    q: String,
    /// A filter that must hold, too, in the language that `filter-lang` names.
    #[serde(default)]
    filter: String,
    /// What the filter is written in: CQL2, as text or as JSON, or the language of `q`.
    #[serde(default, rename = "filter-lang")]
    #[param(inline)]
    filter_lang: FilterLanguage,
    /// Most entries in the answer; 1000 if absent, at most 10 000 in a page. There may be fewer although there are more.
    #[param(minimum = 1)]
    limit: Option<u32>,
    /// Where to go on: `next` of the answer before.
    cursor: Option<String>,
    /// A field that they are sorted by, with `-` before it from the largest on: an attribute, `name`, `size`, `created`, `modified` or
    /// `replicas`. There is one page then, of those that come first.
    sort: Option<String>,
    /// Attributes that are told of each, with commas between; at most 32.
    attributes: Option<String>,
}

/// Most attributes that are told.
const MAX_TOLD: usize = 32;

/// Finds entries by what is known of them, in all spaces that this site has or follows and the caller may read.
///
/// With `Accept: application/jsonl` or `text/csv` it answers with all of them, or as many as `limit` says, one in a line; if it cannot go on, the
/// connection ends before the answer does. A cell of a table that has several values has `; ` between them. What a page says as `away` and as
/// `mismatches` stands in the headers `Percale-Away` and `Percale-Mismatches` then, as JSON, if there is any.
#[utoipa::path(
    get, path = "/v1/search", tag = "attributes", params(SearchQuery),
    responses((status = 200, description = "the entries", content(
        (FoundPage = "application/json"), (percale_api::attributes::Found = "application/jsonl"), (String = "text/csv"),
    )))
)]
async fn search(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Query(query): Query<SearchQuery>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response> {
    let mut options = SearchOptions::new(condition(&query.q, &query.filter, query.filter_lang)?);
    options.after = query.cursor;
    options.sort = query.sort.as_deref().map(order).transpose()?;
    options.attributes = query.attributes.as_deref().map(names).transpose()?.unwrap_or_default();
    if let Some(form) = Form::of(&headers) {
        return streamed(app, caller, options, query.limit, form).await;
    }
    options.limit = limit(query.limit)?;
    let mut must_be_there = if options.after.is_none() { existing(&options.condition) } else { Vec::new() };
    must_be_there.truncate(MAX_UNKNOWN);
    let found = app.catalog.search(&caller, options).await?;
    let away = away(&app, &found.homes);
    let entries = found.page.items.into_iter().map(told);
    let next = found.page.next;
    let mismatches = found.mismatches.into_iter().map(not_compared).collect();
    let mut page =
        FoundPage { items: entries.collect(), next: next.clone(), away, mismatches, unknown: Vec::new() };
    if page.items.is_empty() && next.is_none() {
        page.unknown = app.catalog.attributes_nobody_has(&caller, must_be_there).await?;
    }
    Ok(linked(&uri, next.as_deref(), &page))
}

/// Most attributes that are looked up to say that nothing has them.
const MAX_UNKNOWN: usize = 5;

/// Returns attributes without which nothing is found, of those that a query asks for without a value.
fn existing(condition: &Condition) -> Vec<AttributeName> {
    match condition {
        Condition::All(parts) => parts.iter().flat_map(existing).collect(),
        Condition::Is(Field::Attribute(name), Test::Exists) => vec![name.clone()],
        _ => Vec::new(),
    }
}

fn not_compared(one: percale_catalog::Mismatch) -> Mismatch {
    Mismatch { name: one.name, are_text: one.are_text, count: one.count as u64, is_most: one.is_most }
}

fn told(Found { path, entry, attributes }: Found) -> percale_api::attributes::Found {
    let mut values: BTreeMap<AttributeName, Vec<AttributeValue>> = BTreeMap::new();
    for one in attributes {
        values.entry(one.name).or_default().extend(one.values);
    }
    percale_api::attributes::Found { entry: describe(path, entry), attributes: values }
}

/// Forms of an answer that has all that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    JsonLines,
    Csv,
}

/// Entries of the first piece of a stream, so that it is there soon.
const FIRST: usize = 100;
/// How many times larger each piece is than the one before.
const GROWTH: usize = 5;
/// Pieces that wait for a client that reads slowly, but for one that is sent and one that is looked up.
const AHEAD: usize = 2;

impl Form {
    /// Returns the form that the client accepts, the first that it names; nothing if that is a page.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut types = accepted
            .flat_map(|value| value.split(','))
            .map(|range| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        let known = types.find_map(|media| match media.as_str() {
            "application/jsonl" | "application/x-ndjson" => Some(Some(Self::JsonLines)),
            "text/csv" => Some(Some(Self::Csv)),
            "application/json" | "*/*" => Some(None),
            _ => None,
        });
        known.flatten()
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::JsonLines => "application/jsonl",
            // RFC 4180.
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    fn encode(self, found: Vec<Found>, names: &[AttributeName], is_first: bool) -> io::Result<Bytes> {
        let mut lines = Vec::with_capacity(found.len() * 200);
        match self {
            Self::JsonLines => {
                for one in found {
                    serde_json::to_writer(&mut lines, &told(one))?;
                    lines.push(b'\n');
                }
            }
            Self::Csv => {
                let mut table = csv::Writer::from_writer(&mut lines);
                if is_first {
                    let known = ["path", "type", "size", "modified", "root"];
                    table.write_record(known.into_iter().chain(names.iter().map(AttributeName::as_str)))?;
                }
                for Found { path, entry, attributes } in found {
                    let content = entry.content.as_ref();
                    let modified = content.and_then(|content| content.mtime).unwrap_or(entry.modified);
                    let size = content.map(|content| content.size.0.to_string()).unwrap_or_default();
                    let root = content.and_then(|content| content.root).map(|root| root.to_string());
                    let modified = modified.to_string();
                    let root = root.as_deref().unwrap_or_default();
                    for known in [path.as_str(), entry.kind.as_str(), &size, &modified, root] {
                        table.write_field(known)?;
                    }
                    for name in names {
                        let values =
                            attributes.iter().filter(|one| one.name == *name).flat_map(|one| &one.values);
                        let values: Vec<String> = values.map(AttributeValue::to_string).collect();
                        table.write_field(values.join("; "))?;
                    }
                    table.write_record(None::<&[u8]>)?;
                }
                drop(table);
            }
        }
        Ok(lines.into())
    }
}

/// Answers with all that is found, in constant memory.
async fn streamed(
    app: AppState,
    caller: Caller,
    mut options: SearchOptions,
    most: Option<u32>,
    form: Form,
) -> Result<Response> {
    if most == Some(0) {
        return Err(ApiError::invalid("limit is 0, it must be at least 1"));
    }
    let left = most.map_or(usize::MAX, |most| most as usize);
    if options.sort.is_some() && most.is_some() && left > MAX_LIST {
        let detail =
            format!("limit is {left}, of what is sorted there are at most {MAX_LIST}, the first ones");
        return Err(ApiError::invalid(detail));
    }
    options.limit = if options.sort.is_some() { left.clamp(1, MAX_LIST) } else { left.clamp(1, FIRST) };
    // What is wrong with the query is said before anything is answered.
    let percale_catalog::FoundPage { page: first, homes, mismatches } =
        app.catalog.search(&caller, options.clone()).await?;
    // Nobody expects anything but entries in the lines, and the first page knows all of it.
    let mut notices = HeaderMap::new();
    let away = away(&app, &homes);
    if !away.is_empty() {
        notices.insert(HeaderName::from_static(fields::AWAY), in_header(away)?);
    }
    if !mismatches.is_empty() {
        let mismatches = mismatches.into_iter().map(not_compared).collect();
        notices.insert(HeaderName::from_static(fields::MISMATCHES), in_header(mismatches)?);
    }
    let (pieces, received) = mpsc::channel::<Result<Bytes>>(AHEAD);
    tokio::spawn(async move {
        let mut rest = Rest { left, form, names: Arc::from(options.attributes.clone()), is_first: true };
        let mut page = first;
        loop {
            options.after = page.next.take();
            let piece = rest.take(page);
            let is_last = options.after.is_none() || rest.left == 0;
            options.limit = (options.limit * GROWTH).min(rest.left).min(MAX_LIST);
            // The next page is looked up while this one is written and sent.
            let sent = async {
                let piece = piece.await;
                let is_whole = piece.is_ok();
                // Whoever does not read any more wants nothing more either.
                pieces.send(piece).await.is_ok() && is_whole
            };
            let next = async {
                if is_last {
                    return None;
                }
                // It is never closed.
                let _turn = app.pieces.acquire().await;
                Some(app.catalog.search(&caller, options.clone()).await)
            };
            page = match tokio::join!(sent, next) {
                (true, Some(Ok(found))) => found.page,
                (true, Some(Err(error))) => {
                    let _ = pieces.send(Err(error.into())).await;
                    return;
                }
                (false, _) | (_, None) => return,
            };
        }
    });
    let body = stream::unfold(received, |mut received| async move {
        received.recv().await.map(|piece| (piece, received))
    });
    let media_type = HeaderValue::from_static(form.media_type());
    notices.insert(header::CONTENT_TYPE, media_type);
    Ok((notices, Body::from_stream(body)).into_response())
}

/// Longest value of a header; clients refuse many much longer ones.
const MAX_HEADER: usize = 4096;

/// Writes a list as JSON such that a header can have it: the first of it, as far as there is room.
fn in_header<T: Serialize>(mut list: Vec<T>) -> Result<HeaderValue> {
    let cannot = |error: &dyn Display| ApiError::internal(format!("a header cannot be written: {error}"));
    loop {
        let json = serde_json::to_string(&list).map_err(|error| cannot(&error))?;
        let mut ascii = String::with_capacity(json.len());
        for unit in json.encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte @ b' '..=b'~') => ascii.push(char::from(byte)),
                _ => ascii.push_str(&format!("\\u{unit:04x}")),
            }
        }
        if ascii.len() <= MAX_HEADER || list.pop().is_none() {
            return HeaderValue::try_from(ascii).map_err(|error| cannot(&error));
        }
    }
}

/// What is still to be answered.
struct Rest {
    left: usize,
    form: Form,
    names: Arc<[AttributeName]>,
    is_first: bool,
}

impl Rest {
    /// Makes a piece of the answer of a page.
    fn take(&mut self, page: Page<Found>) -> impl Future<Output = Result<Bytes>> + use<> {
        self.left = self.left.saturating_sub(page.items.len());
        let (form, names, is_first) = (self.form, self.names.clone(), std::mem::take(&mut self.is_first));
        async move {
            let encoded = match page.items.len() <= FIRST {
                true => form.encode(page.items, &names, is_first),
                // Ten milliseconds for a long one, which others need not wait for.
                false => tokio::task::spawn_blocking(move || form.encode(page.items, &names, is_first))
                    .await
                    .unwrap_or_else(|error| Err(io::Error::other(error))),
            };
            encoded.map_err(|error| ApiError::internal(format!("what was found cannot be written: {error}")))
        }
    }
}

/// What to count.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SummaryQuery {
    /// The query, as in a search.
    #[serde(default)]
    q: String,
    /// A filter that must hold, too, in the language that `filter-lang` names.
    #[serde(default)]
    filter: String,
    /// What the filter is written in: CQL2, as text or as JSON, or the language of `q`.
    #[serde(default, rename = "filter-lang")]
    #[param(inline)]
    filter_lang: FilterLanguage,
    /// Fields of which the values are counted, with commas between: attributes, and `type`, `ext`, `space`, `site`, `store` and `state`.
    facets: Option<String>,
    /// Most values of each; 20 if absent.
    #[param(minimum = 1, maximum = 1000)]
    values: Option<usize>,
    /// Seconds to count before the rest is estimated; 1 if absent.
    #[param(minimum = 1, maximum = 60)]
    within: Option<u64>,
}

/// Most values of a facet.
const MAX_VALUES: usize = 1000;
/// Most seconds of counting.
const MAX_COUNTING: u64 = 60;

/// Counts what a search finds, and how many of the entries have which values. What takes too long is estimated, and said to be.
#[utoipa::path(get, path = "/v1/search/summary", tag = "attributes", params(SummaryQuery), responses((status = 200, description = "the numbers", body = SearchSummary)))]
async fn summarize(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Query(query): Query<SummaryQuery>,
) -> Result<Json<SearchSummary>> {
    let mut options = SummaryOptions::new(condition(&query.q, &query.filter, query.filter_lang)?);
    options.facets = query.facets.as_deref().map(fields_of).transpose()?.unwrap_or_default();
    let bounded = |name: &str, value: u64, most: u64| match value {
        value if (1..=most).contains(&value) => Ok(value),
        value => Err(ApiError::invalid(format!("{name} is {value}, it must be from 1 to {most}"))),
    };
    if let Some(values) = query.values {
        options.values = bounded("values", values as u64, MAX_VALUES as u64)? as usize;
    }
    if let Some(within) = query.within {
        options.patience = Duration::from_secs(bounded("within", within, MAX_COUNTING)?);
    }
    let summary = app.catalog.summarize(&caller, options).await?;
    let facets = summary.facets.into_iter().map(|facet| Facet {
        field: match facet.field {
            Field::Builtin(builtin) => builtin.as_str().to_owned(),
            Field::Attribute(name) => name.into(),
        },
        values: facet.values.into_iter().map(|(value, count)| FacetValue { value, count }).collect(),
        others: facet.others,
    });
    Ok(Json(SearchSummary {
        count: summary.count,
        is_estimate: summary.is_estimate,
        facets: facets.collect(),
        away: away(&app, &summary.homes),
    }))
}

/// What to explain.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PlanQuery {
    /// The query, as in a search.
    #[serde(default)]
    q: String,
    /// A filter that must hold, too, in the language that `filter-lang` names.
    #[serde(default)]
    filter: String,
    /// What the filter is written in: CQL2, as text or as JSON, or the language of `q`.
    #[serde(default, rename = "filter-lang")]
    #[param(inline)]
    filter_lang: FilterLanguage,
}

/// Says how a query was understood, and how a search for it goes about it.
#[utoipa::path(get, path = "/v1/search/plan", tag = "attributes", params(PlanQuery), responses((status = 200, description = "the plan", body = SearchPlan)))]
async fn explain(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Query(query): Query<PlanQuery>,
) -> Result<Json<SearchPlan>> {
    let condition = condition(&query.q, &query.filter, query.filter_lang)?;
    let query = percale_discovery::write(&condition);
    let filter = cql2::write(&condition);
    let planned = app.catalog.explain(&caller, condition).await?.into_iter().map(|planned| PlannedSpace {
        space: planned.space.to_string(),
        by: planned.led_by.as_ref().map(percale_discovery::write),
        looked_at: planned.looked_at,
    });
    Ok(Json(SearchPlan { query, filter, spaces: planned.collect() }))
}

/// Reads the query and the filter, which must both hold.
fn condition(query: &str, filter: &str, language: FilterLanguage) -> Result<Condition> {
    let now = Timestamp::now();
    let condition = percale_discovery::parse(query, now).map_err(unreadable)?;
    if filter.trim().is_empty() {
        return Ok(condition);
    }
    let filter = match language {
        FilterLanguage::Cql2Text => cql2::parse_text(filter, now),
        FilterLanguage::Cql2Json => cql2::parse_json(filter, now),
        FilterLanguage::Percale => percale_discovery::parse(filter, now),
    };
    filter.and_then(|filter| percale_discovery::both(condition, filter)).map_err(unreadable)
}

fn fields_of(list: &str) -> Result<Vec<Field>> {
    percale_discovery::parse_fields(list).map_err(unreadable)
}

fn unreadable(error: QueryError) -> ApiError {
    ApiError::invalid(error.to_string()).with_source(error)
}

fn names(list: &str) -> Result<Vec<AttributeName>> {
    let names = percale_discovery::parse_attributes(list).map_err(unreadable)?;
    match names.len() {
        0..=MAX_TOLD => Ok(names),
        more => {
            Err(ApiError::invalid(format!("{more} attributes are asked for; there are at most {MAX_TOLD}")))
        }
    }
}

fn order(text: &str) -> Result<Sort> {
    let field = text.strip_prefix('-').unwrap_or(text);
    match <[Field; 1]>::try_from(fields_of(field)?) {
        Ok([field]) => Ok(Sort { field, is_descending: text.starts_with('-') }),
        Err(_) => Err(ApiError::invalid("what is found is sorted by one field")),
    }
}

/// Returns which of these sites do not answer now.
fn away(app: &AppState, homes: &[SearchedHome]) -> Vec<AwaySite> {
    let away = |home: &SearchedHome| {
        let contact = app.fabric.contact(home.site);
        let is_away = contact.fault.is_some() || contact.seen.is_none();
        let why = home.behind.clone().or(contact.trouble).filter(|_| !is_away);
        let member = app.fabric.member(home.site);
        let site = member.map_or_else(|_| home.site.to_string(), |member| member.name.clone());
        (is_away || why.is_some()).then_some(AwaySite { site, seen: contact.seen, why })
    };
    homes.iter().filter_map(away).collect()
}
