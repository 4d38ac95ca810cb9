//! How a search would go about it.

use percale_core::access::Caller;
use percale_core::query::Condition;

use super::names::check_names;
use super::sql::{Filters, Holders, split};
use super::texts::Texts;
use super::{FEW, Searched, Visible, holders, visible};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::Result;
use crate::model::PlannedSpace;
use crate::rows::tally;

/// Most entries that are counted.
const MOST: usize = 1_000_000;

/// Explaining.
impl Catalog {
    /// Returns how each space that the caller may read would be searched; those in which nothing can be found are left out.
    ///
    /// # Errors
    /// As [`Catalog::search`].
    pub async fn explain(&self, caller: &Caller, condition: Condition) -> Result<Vec<PlannedSpace>> {
        self.ask(Explain { caller: caller.clone(), condition }).await
    }
}

struct Explain {
    caller: Caller,
    condition: Condition,
}

impl Query for Explain {
    type Out = Vec<PlannedSpace>;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let Self { caller, condition } = self;
        let spaces = visible(tx, caller).await?;
        check_names(tx, &spaces, condition).await?;
        let filters = split(condition)?;
        let holders = holders(tx, &filters).await?;
        let mut planned = Vec::new();
        for space in spaces.iter().filter(|space| filters.may_hold_in(&space.row.space.name)) {
            let (led, looked_at) = match space.is_whole {
                true => self.counted(tx, space, &filters, &holders).await?,
                // By nothing that depends on what the caller may not read.
                false => (filters.chosen(), None),
            };
            planned.push(PlannedSpace {
                space: space.row.space.name.clone(),
                led_by: led.and_then(|at| filters.get(at).cloned()),
                looked_at,
            });
        }
        planned.sort_by(|one, other| one.space.cmp(&other.space));
        Ok(planned)
    }
}

impl Explain {
    /// Returns the filter that leads to the fewest entries of a space, and to how many.
    async fn counted<T: Tx>(
        &self,
        tx: &T,
        space: &Visible,
        filters: &Filters,
        holders: &Holders,
    ) -> Result<(Option<usize>, Option<u64>)> {
        let texts = Texts::find(tx, space.row.sp, filters, false).await?;
        let searched = Searched::new(&self.caller, space, filters, (holders, &texts), 1);
        let led = match searched.driver(tx, FEW).await? {
            Some(led) => Some(led),
            None => match filters.ordered() {
                Some(at) => Some((at, searched.count(tx, at, MOST).await?)),
                None => None,
            },
        };
        Ok(match led {
            Some((at, count)) => (Some(at), Some(count as u64)),
            None => (None, Some(tally::all(tx, space.row.sp).await?)),
        })
    }
}
