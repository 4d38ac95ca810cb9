//! Sorting by the values of an attribute as the index has them: those that come first are met first, however many there are. Where the other
//! filters hold for few of them, or few entries have a value at all, what a filter leads to is looked at instead, or everything.

use std::collections::HashSet;
use std::sync::Arc;

use percale_core::AttributeName;
use percale_core::access::Caller;
use percale_core::ids::SpaceId;
use percale_core::query::Condition;

use super::sort::Candidate;
use super::sql::{BY_NUMBER, BY_WORD, Builder, Filters, Members, both, split};
use super::texts::Texts;
use super::{FEW, MANY, Searched, holders, visible};
use crate::engine::{Query, Sql, Tx};
use crate::error::Result;
use crate::model::MAX_LIST;
use crate::rows::entry::{self, FOUND};

/// Values that are met together at first at least, twice as many each time, and at most.
const TOGETHER: std::ops::RangeInclusive<usize> = 100..=MAX_LIST;
/// Values that are met before everything is looked at: two seconds' on PostgreSQL with two slow cores.
const MOST: usize = 100_000;

/// Finds what comes first of a space.
pub(super) struct Walk {
    pub caller: Caller,
    pub condition: Condition,
    pub space: SpaceId,
    pub texts: Arc<Texts>,
    pub name: AttributeName,
    pub is_descending: bool,
    pub limit: usize,
}

/// How that went.
pub(super) enum Walked {
    /// What comes first.
    Found(Vec<Candidate>),
    /// It is not among the values that come first. A filter may lead to what is sorted instead.
    TooFar(Option<usize>),
}

/// By what the values of an attribute are compared, and how the index has them.
#[derive(Clone, Copy)]
enum By {
    Number,
    Word,
}

impl Query for Walk {
    type Out = Walked;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let spaces = visible(tx, &self.caller).await?;
        // It may have gone, or may not be read any more.
        let Some(space) = spaces.iter().find(|space| space.row.space.id == self.space) else {
            return Ok(Walked::Found(Vec::new()));
        };
        let filters = split(&self.condition)?;
        let holders = holders(tx, &filters).await?;
        let searched = Searched::new(&self.caller, space, &filters, (&holders, &self.texts), 1);
        // Numbers come before texts.
        let (mut by, mut last) = (By::Number, None);
        let mut together = self.limit.max(*TOGETHER.start());
        let (mut seen, mut found, mut looked_at) = (HashSet::new(), Vec::new(), 0);
        while looked_at < MOST {
            let mut met = self.met(tx, &searched, by, last.as_ref(), together).await?;
            if looked_at == 0 && met.is_empty() {
                by = By::Word;
                met = self.met(tx, &searched, by, None, together).await?;
            }
            let are_all = met.len() < together;
            looked_at += met.len();
            together = (together * 2).min(*TOGETHER.end());
            last = met.last().cloned();
            met.retain(|one| seen.insert(one.id));
            let mut builder = searched.builder();
            let sql = builder.those(space.row.sp, met.iter().map(|one| one.id).collect(), &filters)?;
            let rows = entry::found(tx, &sql, builder.params).await?;
            let readable = searched.readable(tx, rows).await?;
            let readable: HashSet<u64> = readable.into_iter().map(|one| one.entry.id.0).collect();
            found.extend(met.into_iter().filter(|one| readable.contains(&one.id)));
            if found.len() >= self.limit {
                found.truncate(self.limit);
                return Ok(Walked::Found(found));
            }
            if are_all {
                break;
            }
        }
        let most = if searched.is_left_to_database() { MANY } else { FEW };
        Ok(Walked::TooFar(searched.driver(tx, most).await?.map(|(driver, _)| driver)))
    }
}

impl Walk {
    /// Meets the next values, with the entries that have them.
    async fn met<T: Tx>(
        &self,
        tx: &T,
        searched: &Searched<'_>,
        by: By,
        last: Option<&Candidate>,
        limit: usize,
    ) -> Result<Vec<Candidate>> {
        let mut builder = searched.builder();
        let sql = builder.in_order(searched.space.row.sp, self, by, last, limit);
        let rows = tx.query(&sql, builder.params).await?;
        rows.into_iter().map(|row| Candidate::of(row, self.space)).collect()
    }
}

impl Builder<'_> {
    /// Goes along an index, behind the last value that was met.
    fn in_order(&mut self, sp: i64, walk: &Walk, by: By, last: Option<&Candidate>, limit: usize) -> Sql {
        let (way, sign) = if walk.is_descending { ("DESC", '<') } else { ("ASC", '>') };
        let (column, columns, index) = match by {
            By::Number => ("number", "a.number, CAST(NULL AS text)", BY_NUMBER),
            By::Word => ("word", "CAST(NULL AS bigint), a.word", BY_WORD),
        };
        let (sp, name) = (self.param(sp), self.param(walk.name.as_str()));
        let behind = match last {
            Some(last) => {
                let value = match by {
                    By::Number => self.param(last.number),
                    By::Word => self.param(last.word.clone()),
                };
                format!("(a.{column}, a.entry) {sign} ({value}, {})", self.param(last.id))
            }
            None => format!("a.{column} IS NOT NULL"),
        };
        let limit = self.param(limit);
        both(format!(
            "SELECT a.entry, {columns} FROM attribute a{index} WHERE a.sp = {sp} AND a.name = {name} AND {behind} \
             ORDER BY a.{column} {way}, a.entry {way} LIMIT {limit}"
        ))
    }

    /// Looks at those of some entries that the filters hold for.
    fn those(&mut self, sp: i64, ids: Vec<u64>, filters: &Filters) -> Result<Sql> {
        let members = self.members(sp, &Members::Ids(ids))?;
        let conditions = self.conditions(filters, None)?;
        Ok(both(format!("{FOUND} FROM entry e WHERE {members} AND {conditions}")))
    }
}
