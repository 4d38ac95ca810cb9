//! Headers of what has no copy here: a site that has one reads them where the bytes lie
//! (docs/decisions/2026-11-26-headers-are-read-where-the-bytes-lie.md).

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_api::peer::{HeaderAttribute, HeadersRead, Outcome, ReadHeaders};
use percale_catalog::{Described, Space, SpaceRules};
use percale_core::ErrorCode;
use percale_core::ids::{SiteId, SpaceId, VersionId};
use percale_discovery::header::{Found, Header as Gathered};
use percale_federation::Acting;

use super::away::Place;
use super::reading::Reading;
use super::size_of_one;
use crate::abroad::from_problem;
use crate::app::system_caller;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};

/// What another site reads for one answer ends behind so much.
const WITHIN: Duration = Duration::from_secs(5);
const BYTES: usize = 8 << 20;

/// What other sites have found of versions that have no copy here.
#[derive(Default)]
pub(super) struct Elsewhere(HashMap<VersionId, Result<Vec<Found>>>);

impl Elsewhere {
    /// Asks the sites that have copies of what has none here, of objects and of the documents that describe them.
    pub async fn read(app: &AppState, space: &Space, some: &[Described]) -> Self {
        let away = &app.extraction.away;
        let mut of_site: BTreeMap<SiteId, Vec<VersionId>> = BTreeMap::new();
        for Described { object, by, .. } in some {
            for version in [object].into_iter().chain(by) {
                // Where the catalog does not answer, the look here says so.
                if app.stores.have(version).await.unwrap_or(true) {
                    continue;
                }
                if let Some(site) = app.stores.other_site_of(version, None).await {
                    of_site.entry(site).or_default().push(version.version);
                }
            }
        }
        let asked = of_site.into_iter().map(|(site, versions)| match away.has(Place::Site(site)) {
            true => ready(all_fail(app, site, versions, &is_away())).boxed(),
            false => ask(app, space, site, versions).boxed(),
        });
        let asked: Vec<BoxFuture<'_, _>> = asked.collect();
        Self(join_all(asked).await.into_iter().flatten().collect())
    }

    /// Forgets what they have not read.
    pub fn found(mut self) -> Self {
        self.0.retain(|_, found| found.is_ok());
        self
    }

    /// Tells whether another site was asked for a version.
    pub fn has(&self, version: VersionId) -> bool {
        self.0.contains_key(&version)
    }

    /// Returns what was found of a version; nothing if no other site was asked for it.
    pub fn of(&self, version: VersionId) -> Option<Result<Gathered>> {
        let found = self.0.get(&version)?.as_ref();
        Some(found.map_err(Clone::clone).map(|found| {
            // Its bounds are not another site's to keep.
            let mut gathered = Gathered::default();
            found.iter().for_each(|Found { name, values }| gathered.add(name.as_str(), values.clone()));
            gathered
        }))
    }
}

/// Asks a site, until it has said of each version what it found.
async fn ask(
    app: &AppState,
    space: &Space,
    site: SiteId,
    mut left: Vec<VersionId>,
) -> Vec<(VersionId, Result<Vec<Found>>)> {
    let mut all = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let asked = async {
            let client = app.fabric.client_at(site, &Acting::Site, Some(space.position))?;
            client
                .peer_headers(&ReadHeaders { space: space.id, versions: left.clone() })
                .await
                .map_err(Into::into)
        };
        let items = match asked.await {
            Ok(HeadersRead { items }) if !items.is_empty() => items,
            answer => {
                let error = answer.map_or_else(no_answer, |_| is_away());
                if error.is_retryable() {
                    app.extraction.away.note(Place::Site(site));
                }
                all.extend(all_fail(app, site, std::mem::take(&mut left), &error));
                continue;
            }
        };
        let count = items.len().min(left.len());
        all.extend(left.drain(..count).zip(items).map(|(version, outcome)| match outcome {
            Outcome::Done(found) => {
                let found = found.into_iter().map(|HeaderAttribute { name, values }| Found { name, values });
                (version, Ok(found.collect()))
            }
            Outcome::Failed(problem) => (version, Err(told(app, site, from_problem(problem)))),
        }));
    }
    all
}

fn all_fail(
    app: &AppState,
    site: SiteId,
    versions: Vec<VersionId>,
    error: &ApiError,
) -> Vec<(VersionId, Result<Vec<Found>>)> {
    let error = told(app, site, error.clone());
    versions.into_iter().map(|version| (version, Err(error.clone()))).collect()
}

/// Says which site it was, and what helps.
fn told(app: &AppState, site: SiteId, error: ApiError) -> ApiError {
    let name = app.fabric.member(site).map_or_else(|_| site.to_string(), |member| member.name.clone());
    let told = match error.is_retryable() {
        true => format!("site {name} did not read it"),
        false => format!(
            "`percale meta extract` reads it from site {name} for who runs it; by itself that site did not"
        ),
    };
    error.context(told)
}

fn is_away() -> ApiError {
    ApiError::new(ErrorCode::SiteUnavailable, "the site does not answer")
}

/// Judges why a site did not read anything. One of an earlier release does not know the question.
fn no_answer(error: percale_federation::Error) -> ApiError {
    let error = ApiError::from(error);
    match error.code() {
        ErrorCode::NotFound => {
            ApiError::new(ErrorCode::Unsupported, "its release does not read headers for others")
        }
        _ => error,
    }
}

/// Reads headers of copies that this site has, for the home of their space: of the first versions, as far as that does not take long.
/// The server has readers.
pub async fn read_for_home(app: &AppState, space: SpaceId, versions: &[VersionId]) -> HeadersRead {
    let one = async |version: VersionId| {
        let opened = app.catalog.open_by_id(&system_caller(), space, version).await;
        let opened = opened.map_err(|error| match error.code() {
            // This site hears of it a moment later than the home.
            ErrorCode::NotFound => ApiError::new(ErrorCode::SiteUnavailable, "it is not known there yet"),
            _ => error.into(),
        })?;
        // What its home keeps of it, that decides.
        let rules = SpaceRules::default();
        let reading = Reading { by_itself: true, ..Reading::new(app, &rules, &Reach::Here) };
        Ok::<_, ApiError>(reading.gather(&opened).await?.finish())
    };
    let read: Vec<BoxFuture<'_, _>> = versions.iter().map(|version| one(*version).boxed()).collect();
    let mut read = stream::iter(read).buffered(app.extraction.at_once * 2);
    let (mut items, mut bytes, began) = (Vec::new(), 0, Instant::now());
    while let Some(found) = read.next().await {
        items.push(match found {
            Ok(found) => {
                bytes += found.iter().map(|one| size_of_one(&one.name, &one.values)).sum::<usize>();
                let told = |Found { name, values }| HeaderAttribute { name, values };
                Outcome::Done(found.into_iter().map(told).collect())
            }
            Err(error) => Outcome::Failed(error.to_problem()),
        });
        if bytes >= BYTES || began.elapsed() >= WITHIN {
            break;
        }
    }
    HeadersRead { items }
}
