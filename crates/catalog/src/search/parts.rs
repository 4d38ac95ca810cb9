//! The parts in which all that a search may find is gone through: each a question of its own, so that none takes long.

use std::sync::Arc;

use percale_core::access::Caller;
use percale_core::ids::SpaceId;
use percale_core::query::{Condition, Field};

use super::names::{check_fields, check_names};
use super::sql::{Members, split};
use super::texts::Texts;
use super::windows::WINDOW;
use super::{FEW, Searched, holders, homes, visible};
use crate::engine::{Query, Tx};
use crate::error::Result;
use crate::model::{MAX_LIST, SearchedHome};
use crate::rows::{entry, follow};

/// What is gone through together: the entries of a space with ids in a window, or those that a filter leads to.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub space: SpaceId,
    /// Behind which id the window begins.
    pub after: u64,
    /// The last id of it.
    pub end: u64,
    /// The filter.
    pub driver: Option<usize>,
    /// The texts of the space that tests lead to.
    pub texts: Arc<Texts>,
}

impl Part {
    /// Returns all parts of a space as one, in which a filter leads.
    pub fn led_by(driver: usize, parts: &[Self]) -> Option<Self> {
        let (first, last) = (parts.first()?, parts.last()?);
        Some(Self { driver: Some(driver), end: last.end, ..first.clone() })
    }

    /// Returns how many ids it has.
    pub fn ids(&self) -> u64 {
        self.end - self.after
    }
}

impl<'s> Searched<'s> {
    /// Tells whether the database can look at the entries by itself: nobody need look at their paths and grants.
    pub(super) fn is_left_to_database(&self) -> bool {
        self.space.is_whole && self.filters.hold_for_all_in(&self.space.row.space.name)
    }

    /// Returns the next of a part that the caller may read, or nothing behind its end: all of it at once where that is left to the database,
    /// and otherwise those that were looked at one by one.
    pub(super) async fn members<T: Tx>(&mut self, tx: &T, part: &Part) -> Result<Option<Members<'s>>> {
        if self.is_left_to_database() {
            let after = std::mem::replace(&mut self.after, part.end);
            return Ok((after < part.end).then_some(match part.driver {
                Some(driver) => Members::Led(after, driver, self.filters),
                None => Members::Window(after, part.end, self.filters),
            }));
        }
        while self.after < part.end {
            self.step(tx, part.driver, MAX_LIST, part.end).await?;
            let found = std::mem::take(&mut self.found);
            if !found.is_empty() {
                return Ok(Some(Members::Ids(found.iter().map(|listed| listed.entry.id.0).collect())));
            }
        }
        Ok(None)
    }
}

/// Finds the parts, and the other sites that are homes of their spaces.
pub(super) struct Plan {
    pub caller: Caller,
    pub condition: Condition,
    /// Attributes that must be known, too.
    pub fields: Vec<Field>,
    /// To how many entries a filter may lead, where these are left to the database; else it is [`FEW`].
    pub most: usize,
}

impl Query for Plan {
    type Out = (Vec<Part>, Vec<SearchedHome>);
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let Self { caller, condition, fields, most } = self;
        let spaces = visible(tx, caller).await?;
        check_names(tx, &spaces, condition).await?;
        check_fields(tx, &spaces, fields).await?;
        let filters = split(condition)?;
        let holders = holders(tx, &filters).await?;
        let mut parts = Vec::new();
        for space in spaces.iter().filter(|space| filters.may_hold_in(&space.row.space.name)) {
            let id = space.row.space.id;
            let end = follow::next_id(tx, space.row.sp).await?;
            let texts = Arc::new(Texts::find(tx, space.row.sp, &filters, true).await?);
            let searched = Searched::new(caller, space, &filters, (&holders, &texts), 1);
            let most = if searched.is_left_to_database() { *most } else { FEW };
            let led = searched.driver(tx, most).await?.map(|(driver, _)| driver);
            let part = |after, end| Part { space: id, after, end, driver: led, texts: texts.clone() };
            match led {
                Some(_) => parts.push(part(1, end)),
                None => {
                    let windows = entry::windows(tx, space.row.sp, WINDOW).await?;
                    let befores = windows.into_iter().filter(|first| *first < end).map(|first| first - 1);
                    parts.extend(befores.map(|after| part(after, end.min(after + WINDOW))));
                }
            }
        }
        Ok((parts, homes(&spaces)))
    }
}
