//! Searching entries by what is known of them.
//!
//! Spaces are searched one after the other, in the order of their ids, and the entries of each in the order of theirs; where a page
//! ends is a space and an entry. A statement looks at no more than a window of entries, at the few that one attribute leads to, or
//! at the next of those that have one value ([`ordered`]) or in the order of values ([`walk`]), so that none runs for long; one that does is ended
//! ([`CatalogConfig::search_timeout`](crate::CatalogConfig::search_timeout)). A word inside texts leads to
//! these texts first ([`texts`]). Grants are applied to each entry as it is found, before anything of it is told.

mod builtin;
mod explain;
mod mismatch;
mod names;
mod ordered;
mod parts;
mod place;
mod sort;
mod sql;
mod summary;
mod texts;
mod walk;
mod windows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use percale_core::access::{Caller, Permission, Subject, decide};
use percale_core::attribute::AttributeName;
use percale_core::ids::{SiteId, SpaceId};
use percale_core::{ObjectPath, Timestamp};
use uuid::Uuid;

use self::names::{are_known, check_names};
use self::place::{Lead, Place, nowhere};
use self::sql::{Builder, Filters, Holders, split};
use self::texts::Texts;
use self::windows::{PLAN_EACH, PLAN_ONCE};
use crate::attribute::gather;
use crate::batch::{Batch, IdCache};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx, row};
use crate::error::Result;
use crate::model::{Found, FoundPage, MAX_LIST, Page, SearchOptions, SearchedHome};
use crate::rows::entry::{self, EntryRow};
use crate::rows::site::SpaceRow;
use crate::rows::{Lock, attribute, follow, grant, peer, site, tally};

/// Entries that are found together, while those before are made ready to be answered.
const TOGETHER: usize = 2500;
/// Entry ids that are looked at one by one for what is written anywhere, before it is looked up in which texts it is: of what is in most
/// texts there is a page sooner than that is known.
const SAMPLE: u64 = 2000;
/// Of how many of them at least one is found, if there is a page soon.
const RARE: usize = 100;
/// How many entries an attribute may lead to at most, so that these are looked at instead.
const FEW: usize = 5000;
/// And which part of the entries of a space that may be at most.
const SHARE: usize = 2;
/// How many it may be where few were found in as much time as a page has: they are gathered anew for each page.
const MANY: usize = 200_000;
/// So few that no other filter is tried, which may look at all values of an attribute.
const VERY_FEW: usize = 50;
/// Bytes of attributes after which a page ends.
const MAX_TOLD: usize = 16 << 20;
/// Entries whose attributes are looked up together, at most.
const TOLD_TOGETHER: usize = 64;
/// And at first: each may have 5 MiB, of its header and of people.
const TOLD_FIRST: usize = 4;

/// Searching.
impl Catalog {
    /// Finds the entries that a condition holds for, in all spaces that the caller may read.
    ///
    /// A page may have fewer entries than the limit although there are more: it ends after 300 ms. In an order there is only one page, of
    /// those that come first.
    ///
    /// # Errors
    /// `InvalidRequest` for a test or an order that a field does not have, for more to sort than can be looked at within 20 s, for what has the
    /// database look at something for longer than [`CatalogConfig::search_timeout`](crate::CatalogConfig::search_timeout), for an attribute that nothing has, naming others that are like it, and for a place to go on from that is none.
    pub async fn search(&self, caller: &Caller, options: SearchOptions) -> Result<FoundPage> {
        match options.sort.clone() {
            Some(sort) => self.search_sorted(caller, options, sort).await,
            None => self.ask(Search { caller: caller.clone(), options }).await,
        }
    }
}

struct Search {
    caller: Caller,
    options: SearchOptions,
}

/// A space, and what of it the caller may read.
struct Visible {
    row: SpaceRow,
    is_whole: bool,
}

impl Query for Search {
    type Out = FoundPage;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<FoundPage> {
        let Self { caller, options } = self;
        let until = Instant::now() + options.patience;
        let limit = options.limit.clamp(1, MAX_LIST);
        let place = match &options.after {
            Some(place) => place.parse()?,
            None => Place { space: SpaceId(Uuid::nil()), after: 1, lead: Lead::Open(FEW) },
        };
        let spaces = visible(tx, caller).await?;
        let homes = homes(&spaces);
        let mut mismatches = Vec::new();
        if options.after.is_none() {
            ((), (), mismatches) = futures::try_join!(
                check_names(tx, &spaces, &options.condition),
                are_known(tx, &spaces, options.attributes.iter().collect()),
                mismatch::mismatches(tx, &spaces, &options.condition),
            )?;
        }
        let filters = split(&options.condition)?;
        if let Lead::By(driver) = place.lead
            && !filters.drivers().contains(&driver)
        {
            return Err(nowhere());
        }
        let holders = holders(tx, &filters).await?;
        let (mut found, mut room_to_tell) = (Vec::new(), MAX_TOLD);
        let spaces = spaces
            .iter()
            .filter(|space| space.row.space.id >= place.space && filters.may_hold_in(&space.row.space.name));
        for (at, space) in spaces.enumerate() {
            let (id, begun) = (space.row.space.id, Instant::now());
            if at > 0 && begun >= until {
                let next = Place { space: id, after: 1, lead: Lead::Open(FEW) };
                let page = Page { items: found, next: Some(next.to_string()), position: None };
                return Ok(FoundPage { page, homes, mismatches });
            }
            let (after, lead) = match id == place.space {
                true => (place.after, place.lead),
                false => (1, Lead::Open(FEW)),
            };
            let is_rare = matches!(lead, Lead::Open(MANY) | Lead::None { is_final: true });
            let texts = match lead {
                Lead::None { is_final: false } => Texts::default(),
                _ => Texts::find(tx, space.row.sp, &filters, is_rare).await?,
            };
            let all_texts;
            let mut searched = Searched::new(caller, space, &filters, (&holders, &texts), after);
            let driver = match lead {
                Lead::By(driver) => Some(driver),
                Lead::None { .. } => None,
                Lead::Open(most) => match filters.chosen() {
                    Some(only) => Some(only),
                    None => match searched.driver(tx, most).await? {
                        Some((driver, _)) => Some(driver),
                        None => filters.ordered(),
                    },
                },
            };
            let room = limit - found.len();
            let may_be_rare = driver.is_none() && !is_rare && filters.look_anywhere();
            if may_be_rare && room > 0 && searched.finds_few(tx, room).await? {
                all_texts = Texts::find(tx, space.row.sp, &filters, true).await?;
                searched.texts = &all_texts;
            }
            // What was looked up is looked up anew for the next page: at least as long is made use of it.
            let until = until.max(Instant::now() + begun.elapsed());
            let is_all = searched.run(tx, driver, room, until).await?;
            if searched.goes_through {
                tx.query(&PLAN_ONCE, row![]).await?;
            }
            let is_told = searched.tell(tx, &options.attributes, &mut room_to_tell).await?;
            let (is_done, is_full) = (is_all && is_told, searched.found.len() >= room || !is_told);
            let after = searched.after;
            found.append(&mut searched.found);
            if !is_done {
                let lead = match (driver, lead) {
                    (Some(driver), _) => Lead::By(driver),
                    // There was little among what was looked at.
                    (None, Lead::Open(FEW) | Lead::None { is_final: false }) if !is_full => Lead::Open(MANY),
                    (None, Lead::Open(FEW) | Lead::None { is_final: false }) => {
                        Lead::None { is_final: false }
                    }
                    (None, _) => Lead::None { is_final: true },
                };
                let next = Place { space: id, after, lead };
                let page = Page { items: found, next: Some(next.to_string()), position: None };
                return Ok(FoundPage { page, homes, mismatches });
            }
        }
        Ok(FoundPage { page: Page { items: found, next: None, position: None }, homes, mismatches })
    }
}

/// Returns the spaces of which the caller may read anything, by their ids.
async fn visible<T: Tx>(tx: &T, caller: &Caller) -> Result<Vec<Visible>> {
    let mut granted: HashMap<i64, Vec<(u64, Subject, Permission)>> = HashMap::new();
    if !caller.is_admin() {
        for grant in grant::all(tx).await? {
            if caller.is(&grant.subject) {
                granted.entry(grant.sp).or_default().push((grant.entry, grant.subject, grant.permission));
            }
        }
    }
    let mut spaces: Vec<Visible> = Vec::new();
    for row in site::spaces(tx).await? {
        let path = ObjectPath::of_space(&row.space.name);
        let grants = granted.get(&row.sp).map(Vec::as_slice).unwrap_or_default();
        let on_root =
            grants.iter().filter(|(entry, ..)| *entry == 1).map(|(_, subject, given)| (subject, *given));
        let is_whole = decide(caller, Permission::Read, &path, on_root).is_ok();
        if is_whole || !grants.is_empty() {
            spaces.push(Visible { row, is_whole });
        }
    }
    spaces.sort_by_key(|space| space.row.space.id);
    Ok(spaces)
}

/// Returns the other sites that are homes of spaces.
fn homes(spaces: &[Visible]) -> Vec<SearchedHome> {
    let mut homes: BTreeMap<SiteId, Option<String>> = BTreeMap::new();
    for space in spaces.iter().map(|space| &space.row.space) {
        if let Some(home) = space.home {
            let behind = homes.entry(home).or_default();
            *behind = behind.take().or_else(|| space.behind.clone());
        }
    }
    homes.into_iter().map(|(site, behind)| SearchedHome { site, behind }).collect()
}

/// Returns which stores of which sites there are, if a filter is about them.
async fn holders<T: Tx>(tx: &T, filters: &Filters) -> Result<Holders> {
    if filters.name_holders() { all_holders(tx).await } else { Ok(Holders(Vec::new())) }
}

async fn all_holders<T: Tx>(tx: &T) -> Result<Holders> {
    let here = site::site(tx).await?.map(|site| site.name).unwrap_or_default();
    let peers: HashMap<_, _> = peer::peers(tx).await?.into_iter().map(|peer| (peer.id, peer.name)).collect();
    let mut holders = Vec::new();
    for row in site::stores(tx).await? {
        let site = match row.store.site {
            None => here.clone(),
            Some(id) => peers.get(&id).cloned().unwrap_or_default(),
        };
        holders.push((row.st, site, row.store.name));
    }
    Ok(Holders(holders))
}

/// What was looked at together.
struct Looked {
    rows: Vec<EntryRow>,
    /// Up to which entry.
    after: u64,
    /// How many to look at together next, if that is not as many as are to be found.
    together: usize,
    /// Whether there is nothing behind it.
    is_last: bool,
}

/// The search of a space.
struct Searched<'s> {
    caller: &'s Caller,
    space: &'s Visible,
    filters: &'s Filters,
    holders: &'s Holders,
    texts: &'s Texts,
    /// Behind which entry it began.
    begin: u64,
    /// Up to which entry it was searched.
    after: u64,
    /// Whether all attributes of a window are gone through.
    goes_through: bool,
    found: Vec<Found>,
}

impl<'s> Searched<'s> {
    fn new(
        caller: &'s Caller,
        space: &'s Visible,
        filters: &'s Filters,
        (holders, texts): (&'s Holders, &'s Texts),
        after: u64,
    ) -> Self {
        Self {
            caller,
            space,
            filters,
            holders,
            texts,
            begin: after,
            after,
            goes_through: false,
            found: Vec::new(),
        }
    }

    fn builder(&self) -> Builder<'s> {
        Builder::new(self.holders, self.texts, &self.space.row.space.name)
    }

    /// Looks at the next entries, and tells whether few of them are found.
    async fn finds_few<T: Tx>(&mut self, tx: &T, limit: usize) -> Result<bool> {
        let end = follow::next_id(tx, self.space.row.sp).await?.min(self.after.saturating_add(SAMPLE));
        let is_done = self.step(tx, None, limit, end).await?;
        Ok(is_done && self.found.len() < SAMPLE as usize / RARE)
    }

    /// Finds at most `limit` entries. Tells whether the space was searched to its end.
    async fn run<T: Tx>(
        &mut self,
        tx: &T,
        driver: Option<usize>,
        limit: usize,
        until: Instant,
    ) -> Result<bool> {
        let end = follow::next_id(tx, self.space.row.sp).await?;
        // What is gathered for the first of them is gathered for all.
        let gathers = driver.is_some_and(|at| self.filters.equal(at).is_none());
        let together = if gathers { limit } else { TOGETHER };
        self.goes_through = driver.is_none() && self.have_few_attributes(tx, limit).await?;
        if self.goes_through {
            tx.query(&PLAN_EACH, row![]).await?;
        }
        let mut ahead: Option<Looked> = None;
        loop {
            // At something it is looked however late it is, or the next page would begin where this one did.
            let is_over = self.after > self.begin && Instant::now() >= until;
            if ahead.is_none() && (self.found.len() >= limit || is_over) {
                return Ok(false);
            }
            let looked = match ahead.take() {
                Some(looked) => looked,
                None => {
                    let most = (limit - self.found.len()).min(together);
                    self.look(tx, driver, (self.after, 0), most, end).await?
                }
            };
            // The database looks at the next ones while these are made ready.
            let room = limit.saturating_sub(self.found.len() + looked.rows.len()).min(together);
            let place = (looked.after, looked.together);
            let next = async {
                match !looked.is_last && room > 0 && Instant::now() < until {
                    true => self.look(tx, driver, place, room, end).await.map(Some),
                    false => Ok(None),
                }
            };
            let (mut found, next) = futures::try_join!(self.readable(tx, looked.rows), next)?;
            self.found.append(&mut found);
            ahead = next;
            self.after = looked.after;
            if let Some(last) = self.found.get(limit.saturating_sub(1)).filter(|_| self.found.len() > limit) {
                self.after = last.entry.id.0;
                self.found.truncate(limit);
                return Ok(false);
            }
            if looked.is_last {
                return Ok(true);
            }
        }
    }

    /// Looks at a window of entries, or at those that a filter leads to, with ids up to `end`, and finds at most `limit` of them. Tells
    /// whether these were all.
    async fn step<T: Tx>(&mut self, tx: &T, driver: Option<usize>, limit: usize, end: u64) -> Result<bool> {
        let Looked { rows, after, is_last, .. } = self.look(tx, driver, (self.after, 0), limit, end).await?;
        self.after = after;
        let mut found = self.readable(tx, rows).await?;
        self.found.append(&mut found);
        Ok(is_last)
    }

    /// Looks at what comes next behind an entry, without asking whether the caller may read it. `together` is what was said when that entry
    /// was looked at, or nothing.
    async fn look<T: Tx>(
        &self,
        tx: &T,
        driver: Option<usize>,
        (after, together): (u64, usize),
        limit: usize,
        end: u64,
    ) -> Result<Looked> {
        let sp = self.space.row.sp;
        if let Some(equal) = driver.and_then(|at| self.filters.equal(at)) {
            return self.next_equal(tx, equal, (after, together), limit, end).await;
        }
        let Some(driver) = driver else { return self.next_window(tx, (after, together), limit, end).await };
        let mut builder = self.builder();
        let sql = builder.by_attribute(sp, after, self.filters, driver, limit)?;
        let rows = entry::found(tx, &sql, builder.params).await?;
        let is_full = rows.len() == limit;
        let after = rows.last().filter(|_| is_full).map_or(end, |last| last.id);
        Ok(Looked { rows, after, together: 0, is_last: !is_full })
    }

    /// Returns the filter that leads to the fewest entries, if they are no more than `most` and a part of all, and to how many.
    async fn driver<T: Tx>(&self, tx: &T, most: usize) -> Result<Option<(usize, usize)>> {
        let drivers = self.filters.drivers();
        if drivers.is_empty() {
            return Ok(None);
        }
        // All that a filter leads to is gathered before the first of it is told; where it is much of everything, those come sooner that
        // are met on the way.
        let all = tally::at_most(tx, self.space.row.sp, most * SHARE).await? as usize;
        let few = most.min((all / SHARE).max(VERY_FEW));
        let mut best: Option<(usize, usize)> = None;
        for at in drivers {
            let most = best.map_or(few, |(count, _)| count);
            let count = self.count(tx, at, most).await?;
            if count < most {
                best = Some((count, at));
            }
            if count <= VERY_FEW {
                break;
            }
        }
        Ok(best.map(|(count, at)| (at, count)))
    }

    /// Counts what a filter leads to, up to `most`.
    async fn count<T: Tx>(&self, tx: &T, at: usize, most: usize) -> Result<usize> {
        if let Some((_, name, value)) = self.filters.equal(at)
            && tally::at_least(tx, self.space.row.sp, name, &value.text).await? >= most as u64
        {
            return Ok(most);
        }
        let mut builder = self.builder();
        let sql = builder.count(self.space.row.sp, self.filters, at, most)?;
        let rows = &mut tx.query(&sql, builder.params).await?;
        rows.first_mut().map_or(Ok(0), |row| Ok((row.number()? as usize).min(most)))
    }

    /// Returns what the caller may read and the filters of paths hold for.
    async fn readable<T: Tx>(&self, tx: &T, rows: Vec<EntryRow>) -> Result<Vec<Found>> {
        let sp = self.space.row.sp;
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        // Many are in one collection, whose path is made once.
        let parents: HashSet<u64> = rows.iter().map(|row| row.parent).collect();
        let keys = parents.iter().map(|id| (sp, *id)).collect();
        let chains = entry::with_ancestors(tx, keys).await?;
        let mut above: HashMap<u64, u64> = HashMap::new();
        let mut grants: HashMap<u64, Vec<(Subject, Permission)>> = HashMap::new();
        if !self.space.is_whole {
            above.extend(chains.iter().chain(&rows).map(|row| (row.id, row.parent)));
            for grant in grant::of_entries(tx, above.keys().map(|id| (sp, *id)).collect()).await? {
                grants.entry(grant.entry).or_default().push((grant.subject, grant.permission));
            }
        }
        batch.learn_all(chains, Lock::None)?;
        let mut paths: HashMap<u64, ObjectPath> = HashMap::with_capacity(parents.len());
        for parent in parents {
            if let Ok(path) = batch.path_of(sp, parent).await {
                paths.insert(parent, path);
            }
        }
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let path = paths.get(&row.parent).map(|parent| parent.join(&row.name));
            let Some(Ok(path)) = path else { continue };
            if !self.filters.hold_for(&path)
                || !(self.space.is_whole || self.may_read(&path, row.id, &above, &grants))
            {
                continue;
            }
            let entry = row.into_entry(self.space.row.space.id);
            found.push(Found { path, entry, attributes: Vec::new() });
        }
        Ok(found)
    }

    /// Adds attributes to what was found, as long as there is room for them. Tells whether that was so for all; the others are left out, and
    /// found again from there on.
    async fn tell<T: Tx>(&mut self, tx: &T, names: &[AttributeName], room: &mut usize) -> Result<bool> {
        if names.is_empty() {
            return Ok(true);
        }
        let sp = self.space.row.sp;
        let (mut told, mut together, mut largest) = (0, TOLD_FIRST, 1);
        while told < self.found.len() {
            if *room == 0 {
                self.after = if told == 0 { self.begin } else { self.found[told - 1].entry.id.0 };
                self.found.truncate(told);
                return Ok(false);
            }
            let end = self.found.len().min(told + together);
            let some = &mut self.found[told..end];
            let keys: Vec<(i64, u64)> = some.iter().map(|one| (sp, one.entry.id.0)).collect();
            let mut rows: HashMap<u64, Vec<_>> = HashMap::with_capacity(keys.len());
            for row in attribute::named(tx, &keys, names).await? {
                rows.entry(row.entry).or_default().push(row);
            }
            for one in some {
                let rows = rows.remove(&one.entry.id.0).unwrap_or_default();
                let size = rows.iter().map(|row| row.name.as_str().len() + row.value.size()).sum();
                *room = room.saturating_sub(size);
                largest = largest.max(size);
                one.attributes = gather(rows);
                one.attributes.sort_by(|one, other| one.name.cmp(&other.name));
            }
            told = end;
            // Twice as many each time, as long as they are small.
            together = (together * 2).min(*room / largest).clamp(1, TOLD_TOGETHER);
        }
        Ok(true)
    }

    fn may_read(
        &self,
        path: &ObjectPath,
        id: u64,
        above: &HashMap<u64, u64>,
        grants: &HashMap<u64, Vec<(Subject, Permission)>>,
    ) -> bool {
        let chain = std::iter::successors(Some(id), |id| above.get(id).copied().filter(|id| *id != 0));
        let granted =
            chain.filter_map(|id| grants.get(&id)).flatten().map(|(subject, given)| (subject, *given));
        decide(self.caller, Permission::Read, path, granted).is_ok()
    }
}

/// Returns a span of time as the database has its ends.
fn micros((from, to): (Timestamp, Timestamp)) -> (i64, i64) {
    (from.as_micros(), to.as_micros())
}
