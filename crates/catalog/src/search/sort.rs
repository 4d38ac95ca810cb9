//! Searching in an order.
//!
//! Of each part the entries that come first are kept, as many as are wanted at all, and of these those that come first of all parts.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use percale_core::AttributeName;
use percale_core::access::Caller;
use percale_core::ids::SpaceId;
use percale_core::query::{Builtin, Condition, Field};

use super::parts::{Part, Plan};
use super::sql::{BY_ENTRY, Builder, Members, both, split};
use super::texts::Texts;
use super::walk::{Walk, Walked};
use super::{FEW, MANY, MAX_TOLD, Searched, holders, visible};
use crate::catalog::Catalog;
use crate::engine::{Query, Row, Sql, Tx};
use crate::error::{Error, Result};
use crate::model::{Found, FoundPage, MAX_LIST, Page, SearchOptions, Sort};
use crate::rows::entry;

/// How long is sorted before it is given up.
const PATIENCE: Duration = Duration::from_secs(20);

impl Catalog {
    /// Finds the entries that come first in an order; there is no page behind them.
    pub(super) async fn search_sorted(
        &self,
        caller: &Caller,
        options: SearchOptions,
        sort: Sort,
    ) -> Result<FoundPage> {
        let until = Instant::now() + PATIENCE;
        let SearchOptions { condition, after, limit, attributes, .. } = options;
        if after.is_some() {
            return Err(Error::invalid("what is sorted is one page; ask for more with a higher limit"));
        }
        may_be_sorted_by(&sort.field)?;
        let limit = limit.clamp(1, MAX_LIST);
        let told = attributes.iter().cloned().map(Field::Attribute);
        let fields = std::iter::once(sort.field.clone()).chain(told).collect();
        // By an attribute the way along its index is mostly shorter than all that a filter leads to.
        let most = if matches!(sort.field, Field::Attribute(_)) { FEW } else { MANY };
        let plan = Plan { caller: caller.clone(), condition: condition.clone(), fields, most };
        let (parts, homes) = self.ask(plan).await?;
        let in_time = || match Instant::now() < until {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "there is more to sort than can be looked at within {} s; search for less, or do not sort",
                PATIENCE.as_secs()
            ))),
        };
        let mut first: Vec<Candidate> = Vec::new();
        let keep = |first: &mut Vec<Candidate>| {
            first.sort_unstable_by(|one, other| one.compare(other, sort.is_descending));
            first.truncate(limit);
        };
        for parts in parts.chunk_by(|one, other| one.space == other.space) {
            let led;
            let mut left = parts;
            // Few that a filter leads to are sorted at once.
            if let (Field::Attribute(name), [Part { space, texts, driver: None, .. }, ..]) =
                (&sort.field, parts)
            {
                let walk = Walk {
                    caller: caller.clone(),
                    condition: condition.clone(),
                    space: *space,
                    texts: texts.clone(),
                    name: name.clone(),
                    is_descending: sort.is_descending,
                    limit,
                };
                in_time()?;
                match self.ask(walk).await? {
                    Walked::Found(found) => {
                        first.extend(found);
                        left = &[];
                    }
                    Walked::TooFar(Some(driver)) => {
                        led = Part::led_by(driver, parts);
                        left = led.as_slice();
                    }
                    Walked::TooFar(None) => {}
                }
            }
            for part in left {
                in_time()?;
                let (caller, condition) = (caller.clone(), condition.clone());
                let (sort, part) = (sort.clone(), part.clone());
                first.extend(self.ask(First { caller, condition, sort, part, limit }).await?);
                keep(&mut first);
            }
            keep(&mut first);
        }
        let items = self.ask(Fetch { caller: caller.clone(), first, attributes }).await?;
        Ok(FoundPage { page: Page { items, next: None, position: None }, homes, mismatches: Vec::new() })
    }
}

fn may_be_sorted_by(field: &Field) -> Result<()> {
    use Builtin::{Created, Modified, Name, Replicas, Size};
    match field {
        Field::Attribute(_) | Field::Builtin(Name | Size | Created | Modified | Replicas) => Ok(()),
        Field::Builtin(other) => Err(Error::invalid(format!(
            "nothing is sorted by '{}'; it is by attributes and by name, size, created, modified and replicas",
            other.as_str()
        ))),
    }
}

/// An entry with what it is sorted by.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// By what numbers and times are compared.
    pub number: Option<i64>,
    /// By what texts are compared.
    pub word: Option<String>,
    space: SpaceId,
    pub id: u64,
}

impl Candidate {
    /// Reads one of a row that has the id, the number and the text.
    pub fn of(mut row: Row, space: SpaceId) -> Result<Self> {
        Ok(Self { id: row.number()?, number: row.opt_int()?, word: row.opt_text()?, space })
    }

    /// Numbers come before texts, and both before what has neither; of the same value those that were made first, or last in the other order.
    fn compare(&self, other: &Self, is_descending: bool) -> Ordering {
        fn missing_last<T: Ord>(one: Option<&T>, other: Option<&T>, is_descending: bool) -> Ordering {
            match (one, other) {
                (Some(one), Some(other)) if is_descending => other.cmp(one),
                (Some(one), Some(other)) => one.cmp(other),
                (one, other) => other.is_some().cmp(&one.is_some()),
            }
        }
        missing_last(self.number.as_ref(), other.number.as_ref(), is_descending)
            .then_with(|| missing_last(self.word.as_ref(), other.word.as_ref(), is_descending))
            .then_with(|| {
                let (one, other) = ((self.space, self.id), (other.space, other.id));
                if is_descending { other.cmp(&one) } else { one.cmp(&other) }
            })
    }
}

/// Finds what comes first of a part.
struct First {
    caller: Caller,
    condition: Condition,
    sort: Sort,
    part: Part,
    limit: usize,
}

impl Query for First {
    type Out = Vec<Candidate>;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Candidate>> {
        let Self { caller, condition, sort, part, limit } = self;
        let spaces = visible(tx, caller).await?;
        // It may have gone, or may not be read any more.
        let Some(space) = spaces.iter().find(|space| space.row.space.id == part.space) else {
            return Ok(Vec::new());
        };
        let filters = split(condition)?;
        let holders = holders(tx, &filters).await?;
        let mut found = Vec::new();
        let mut searched = Searched::new(caller, space, &filters, (&holders, &part.texts), part.after);
        while let Some(members) = searched.members(tx, part).await? {
            let mut builder = searched.builder();
            let sql = builder.first(space.row.sp, sort, &members, *limit)?;
            for row in tx.query(&sql, builder.params).await? {
                found.push(Candidate::of(row, part.space)?);
            }
        }
        Ok(found)
    }
}

/// Gets the entries, in their order. One that is gone, or may not be read any more, is left out.
struct Fetch {
    caller: Caller,
    first: Vec<Candidate>,
    attributes: Vec<AttributeName>,
}

impl Query for Fetch {
    type Out = Vec<Found>;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Found>> {
        let Self { caller, first, attributes } = self;
        let filters = split(&Condition::All(Vec::new()))?;
        let holders = holders(tx, &filters).await?;
        let mut found: HashMap<(SpaceId, u64), Found> = HashMap::new();
        let mut room = MAX_TOLD;
        for space in &visible(tx, caller).await? {
            let id = space.row.space.id;
            let wanted: Vec<u64> = first.iter().filter(|one| one.space == id).map(|one| one.id).collect();
            if wanted.is_empty() {
                continue;
            }
            let mut searched = Searched::new(caller, space, &filters, (&holders, Texts::NONE), 1);
            let mut builder = searched.builder();
            let sql = builder.all(space.row.sp, &Members::Ids(wanted))?;
            let rows = entry::found(tx, &sql, builder.params).await?;
            searched.found = searched.readable(tx, rows).await?;
            if !searched.tell(tx, attributes, &mut room).await? {
                let why = format!("their attributes have more than {} MiB; ask for fewer", MAX_TOLD >> 20);
                return Err(Error::invalid(why));
            }
            found.extend(searched.found.into_iter().map(|one| ((id, one.entry.id.0), one)));
        }
        Ok(first.iter().filter_map(|one| found.remove(&(one.space, one.id))).collect())
    }
}

impl Builder<'_> {
    /// Looks at the members that come first in an order: their ids, the number and the text that they are sorted by.
    fn first(&mut self, sp: i64, sort: &Sort, members: &Members<'_>, limit: usize) -> Result<Sql> {
        let (extreme, way) = if sort.is_descending { ("MAX", "DESC") } else { ("MIN", "ASC") };
        let (no_number, no_word) = ("CAST(NULL AS bigint)".to_owned(), "CAST(NULL AS text)".to_owned());
        let (number, word) = match &sort.field {
            Field::Attribute(name) => {
                let mut of = |column: &str| {
                    let name = self.param(name.as_str());
                    format!(
                        "(SELECT {extreme}(a.{column}) FROM attribute a{BY_ENTRY} \
                         WHERE a.sp = e.sp AND a.entry = e.id AND a.name = {name})"
                    )
                };
                let (number, word) = (of("number"), of("word"));
                // A text counts only where there is no number, as along the index.
                let word = format!("CASE WHEN {number} IS NULL THEN {word} END");
                (number, word)
            }
            Field::Builtin(Builtin::Name) => (no_number, "lower(e.name)".to_owned()),
            Field::Builtin(Builtin::Size) => ("e.size".to_owned(), no_word),
            Field::Builtin(Builtin::Created) => ("e.created".to_owned(), no_word),
            Field::Builtin(Builtin::Modified) => ("COALESCE(e.mtime, e.modified)".to_owned(), no_word),
            Field::Builtin(_) => {
                let count = "(SELECT COUNT(*) FROM replica r WHERE r.sp = e.sp AND r.version = e.version \
                             AND r.state = 'good')";
                (count.to_owned(), no_word)
            }
        };
        let members = self.members(sp, members)?;
        let limit = self.param(limit);
        Ok(both(format!(
            "SELECT id, number, word FROM (SELECT e.id AS id, {number} AS number, {word} AS word FROM entry e WHERE {members}) AS k \
             ORDER BY number IS NULL, number {way}, word IS NULL, word {way}, id {way} LIMIT {limit}"
        )))
    }
}
