//! Sorting by the values of an attribute as the index has them: those that come first are met first, however many there are. Where the other
//! filters hold for few of them, or few entries have a value at all, everything is looked at instead.

use std::collections::HashSet;
use std::sync::Arc;

use percale_core::AttributeName;
use percale_core::access::Caller;
use percale_core::ids::SpaceId;
use percale_core::query::Condition;

use super::sort::Candidate;
use super::sql::{BY_NUMBER, BY_WORD, Builder, Filters, Members, both, split};
use super::texts::Texts;
use super::{Searched, holders, visible};
use crate::engine::{Query, Row, Sql, Tx, Value};
use crate::error::Result;
use crate::model::MAX_LIST;
use crate::rows::entry::{self, FOUND};

/// Values that are met together at first at least, twice as many each time, and at most.
const TOGETHER: std::ops::RangeInclusive<usize> = 100..=MAX_LIST;
/// Values that are met before everything is looked at: half a second's.
const MOST: usize = 100_000;

/// Finds what comes first of a space; nothing if that is not found soon.
pub(super) struct Walk {
    pub caller: Caller,
    pub condition: Condition,
    pub space: SpaceId,
    pub texts: Arc<Texts>,
    pub name: AttributeName,
    pub is_descending: bool,
    pub limit: usize,
}

/// By what the values of an attribute are compared, and in which order they are met.
#[derive(Clone, Copy)]
struct Order {
    column: &'static str,
    index: &'static str,
    is_descending: bool,
}

/// A value by which entries are sorted.
#[derive(Debug, Clone)]
enum Key {
    Number(i64),
    Word(String),
}

impl Key {
    fn of(row: &mut Row, order: Order) -> Result<Self> {
        match order.column {
            "number" => row.int().map(Self::Number),
            _ => row.text().map(Self::Word),
        }
    }

    fn param(&self) -> Value {
        match self {
            Self::Number(number) => (*number).into(),
            Self::Word(word) => word.as_str().into(),
        }
    }

    fn of_candidate(self) -> (Option<i64>, Option<String>) {
        match self {
            Self::Number(number) => (Some(number), None),
            Self::Word(word) => (None, Some(word)),
        }
    }
}

impl Query for Walk {
    type Out = Option<Vec<Candidate>>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let spaces = visible(tx, &self.caller).await?;
        // It may have gone, or may not be read any more.
        let Some(space) = spaces.iter().find(|space| space.row.space.id == self.space) else {
            return Ok(Some(Vec::new()));
        };
        let filters = split(&self.condition)?;
        let holders = holders(tx, &filters).await?;
        let searched = Searched::new(&self.caller, space, &filters, (&holders, &self.texts), 1);
        let by = |column, index| Order { column, index, is_descending: self.is_descending };
        // Numbers come before texts.
        let (mut order, mut last) = (by("number", BY_NUMBER), None);
        let mut together = self.limit.max(*TOGETHER.start());
        let (mut seen, mut found, mut looked_at) = (HashSet::new(), Vec::new(), 0);
        while looked_at < MOST {
            let mut met = self.met(tx, &searched, order, last.as_ref(), together).await?;
            if looked_at == 0 && met.is_empty() {
                order = by("word", BY_WORD);
                met = self.met(tx, &searched, order, None, together).await?;
            }
            let are_all = met.len() < together;
            looked_at += met.len();
            together = (together * 2).min(*TOGETHER.end());
            last = met.last().cloned();
            met.retain(|(_, entry)| seen.insert(*entry));
            if !met.is_empty() {
                let mut builder = searched.builder();
                let ids = Members::Ids(met.iter().map(|(_, entry)| *entry).collect());
                let sql = builder.those(space.row.sp, &ids, &filters)?;
                let rows = entry::found(tx, &sql, builder.params).await?;
                let readable = searched.readable(tx, rows).await?;
                let readable: HashSet<u64> = readable.into_iter().map(|one| one.entry.id.0).collect();
                for (key, id) in met.into_iter().filter(|(_, entry)| readable.contains(entry)) {
                    let (number, word) = key.of_candidate();
                    found.push(Candidate { number, word, space: self.space, id });
                }
            }
            if found.len() >= self.limit {
                found.truncate(self.limit);
                return Ok(Some(found));
            }
            if are_all {
                break;
            }
        }
        Ok(None)
    }
}

impl Walk {
    /// Meets the next values, with the entries that have them.
    async fn met<T: Tx>(
        &self,
        tx: &T,
        searched: &Searched<'_>,
        order: Order,
        last: Option<&(Key, u64)>,
        limit: usize,
    ) -> Result<Vec<(Key, u64)>> {
        let mut builder = searched.builder();
        let sql = builder.in_order(searched.space.row.sp, &self.name, order, last, limit);
        let rows = tx.query(&sql, builder.params).await?;
        rows.into_iter().map(|mut row| Ok((Key::of(&mut row, order)?, row.number()?))).collect()
    }
}

impl Builder<'_> {
    /// Goes along an index, behind the last value that was met.
    fn in_order(
        &mut self,
        sp: i64,
        name: &AttributeName,
        order: Order,
        last: Option<&(Key, u64)>,
        limit: usize,
    ) -> Sql {
        let Order { column, index, is_descending } = order;
        let (way, sign) = if is_descending { ("DESC", '<') } else { ("ASC", '>') };
        let (sp, name) = (self.param(sp), self.param(name.as_str()));
        let behind = match last {
            Some((key, entry)) => {
                let (key, entry) = (self.param(key.param()), self.param(*entry));
                format!("(a.{column}, a.entry) {sign} ({key}, {entry})")
            }
            None => format!("a.{column} IS NOT NULL"),
        };
        let limit = self.param(limit);
        both(format!(
            "SELECT a.{column}, a.entry FROM attribute a{index} WHERE a.sp = {sp} AND a.name = {name} AND {behind} \
             ORDER BY a.{column} {way}, a.entry {way} LIMIT {limit}"
        ))
    }

    /// Looks at those of some entries that the filters hold for.
    fn those(&mut self, sp: i64, members: &Members<'_>, filters: &Filters) -> Result<Sql> {
        let members = self.members(sp, members)?;
        let conditions = self.conditions(filters, None)?;
        Ok(both(format!("{FOUND} FROM entry e WHERE {members} AND {conditions}")))
    }
}
