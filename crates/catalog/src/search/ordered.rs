//! Entries that have one value, in the order of their ids: that is how the index has them, so that however many there are, no more of them
//! are looked at than a page needs.

use futures::future::try_join_all;
use percale_core::attribute::AttributeName;
use percale_core::query::{Comparison, Condition, Field, Literal, Test};

use super::sql::{BY_NUMBER, BY_WORD, Builder, Filters, LIST, Members, both, id_list};
use super::{Looked, Searched};
use crate::engine::{Sql, Tx};
use crate::error::Result;
use crate::rows::attribute::{fold, kind, order_of};
use crate::rows::entry::{self, FOUND};

/// Most entries that are looked at together where other filters may not hold for them, or the caller may not read them.
const TOGETHER: usize = 2000;

/// Entries of how many ids are gone through for each that is wanted, at most, rather than that it is looked up: on PostgreSQL 15 the first
/// takes 0.25 µs and the second 2 µs; in SQLite they are as fast.
const SPREAD: u64 = 6;

/// A value as the index has it.
enum Stored {
    Number(i64),
    Bool(bool),
    Word(String),
}

impl Stored {
    /// Returns the values that something may be the same as.
    fn all(value: &Literal) -> Vec<Self> {
        let number = value.number.and_then(order_of).map(Self::Number);
        let bool = value.bool.map(Self::Bool);
        number.into_iter().chain(bool).chain([Self::Word(fold(&value.text))]).collect()
    }
}

impl Filters {
    /// Returns a filter that asks for one value, if the index has what it leads to in the order of entries. A span of time is many values.
    pub fn equal(&self, at: usize) -> Option<(usize, &AttributeName, &Literal)> {
        match self.get(at)? {
            Condition::Is(Field::Attribute(name), Test::Compare(Comparison::Equal, value)) => {
                value.span.is_none().then_some((at, name, value))
            }
            _ => None,
        }
    }

    /// Returns the filter that leads if there is nothing to choose, and nothing is gathered.
    pub fn chosen(&self) -> Option<usize> {
        match self.drivers()[..] {
            [only] if self.equal(only).is_some() => Some(only),
            _ => None,
        }
    }

    /// Returns the first of the filters that ask for one value.
    pub fn ordered(&self) -> Option<usize> {
        self.drivers().into_iter().find(|at| self.equal(*at).is_some())
    }
}

impl Searched<'_> {
    /// Looks at the next entries that have a value, with ids up to `end`: at `limit` of them, or, where some may not be found, at more.
    pub(super) async fn next_equal<T: Tx>(
        &self,
        tx: &T,
        (at, name, value): (usize, &AttributeName, &Literal),
        (after, together): (u64, usize),
        limit: usize,
        end: u64,
    ) -> Result<Looked> {
        let sp = self.space.row.sp;
        let is_sure = self.filters.is_one_in(&self.space.row.space.name) && self.space.is_whole;
        let together = if is_sure { 0 } else { together.max(limit * 2).min(TOGETHER) };
        let most = together.max(limit);
        let (mut ids, mut upto): (Vec<u64>, u64) = (Vec::new(), end);
        let stored = Stored::all(value).into_iter().map(|stored| async move {
            let mut builder = self.builder();
            let sql = builder.equal(sp, after, name, &stored, most);
            tx.query(&sql, builder.params).await
        });
        for rows in try_join_all(stored).await? {
            let is_cut = rows.len() == most;
            for mut row in rows {
                ids.push(row.number()?);
            }
            // Of this value there may be more behind the last one.
            if let Some(last) = ids.last().filter(|_| is_cut) {
                upto = upto.min(*last);
            }
        }
        ids.retain(|id| *id <= upto);
        ids.sort_unstable();
        ids.dedup();
        let mut rows = Vec::new();
        if !ids.is_empty() {
            let mut builder = self.builder();
            let sql = builder.among(sp, ids, self.filters, at)?;
            rows = entry::found(tx, &sql, builder.params).await?;
        }
        Ok(Looked { rows, after: upto, together: together * 2, is_last: upto >= end })
    }
}

impl Builder<'_> {
    /// Finds the next entries that have a value.
    fn equal(&mut self, sp: i64, after: u64, name: &AttributeName, value: &Stored, limit: usize) -> Sql {
        let (sp, name) = (self.param(sp), self.param(name.as_str()));
        let (index, is_so) = match value {
            Stored::Number(number) => {
                let number = self.param(*number);
                (BY_NUMBER, format!("a.number = {number} AND a.type <= {}", kind::FLOAT))
            }
            Stored::Bool(is_so) => {
                let is_so = self.param(i64::from(*is_so));
                (BY_NUMBER, format!("a.number = {is_so} AND a.type = {}", kind::BOOL))
            }
            Stored::Word(word) => {
                let word = self.param(word.as_str());
                (BY_WORD, format!("a.word = {word}"))
            }
        };
        let (after, limit) = (self.param(after), self.param(limit));
        both(format!(
            "SELECT a.entry FROM attribute a{index} WHERE a.sp = {sp} AND a.name = {name} AND {is_so} AND a.entry > {after} \
             ORDER BY a.entry LIMIT {limit}"
        ))
    }

    /// Looks at entries by their ids, in their order, for which one of the filters is known to hold.
    fn among(&mut self, sp: i64, ids: Vec<u64>, filters: &Filters, but: usize) -> Result<Sql> {
        let members = match (ids.first(), ids.last()) {
            (Some(&first), Some(&last)) if last - first < ids.len() as u64 * SPREAD => {
                let (sp, first, last) = (self.param(sp), self.param(first), self.param(last));
                let ids = self.param(id_list(&ids));
                let [(begin, _), (end, _)] = LIST;
                format!(
                    "e.sp = {sp} AND e.id >= {first} AND e.id <= {last} \
                     AND (e.id IN (SELECT CAST(u.value AS bigint) FROM {begin}{ids}{end})) IS TRUE"
                )
            }
            _ => self.members(sp, &Members::Ids(ids))?,
        };
        let conditions = self.conditions(filters, Some(but))?;
        Ok(both(format!("{FOUND} FROM entry e WHERE {members} AND {conditions} ORDER BY e.id")))
    }
}
