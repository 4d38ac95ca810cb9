//! How a search would go about it.

use percale_core::access::Caller;
use percale_core::query::Condition;

use super::sql::split;
use super::texts::Texts;
use super::{FEW, Searched, check_names, holders, visible};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::Result;
use crate::model::PlannedSpace;
use crate::rows::follow;

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

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let Self { caller, condition } = self;
        let spaces = visible(tx, caller).await?;
        check_names(tx, &spaces, condition).await?;
        let filters = split(condition)?;
        let holders = holders(tx, &filters).await?;
        let mut planned = Vec::new();
        for space in spaces.iter().filter(|space| filters.may_hold_in(&space.row.space.name)) {
            let texts = Texts::find(tx, space.row.sp, &filters, false).await?;
            let searched = Searched::new(caller, space, &filters, (&holders, &texts), 1);
            let led = match searched.driver(tx, FEW).await? {
                Some(led) => Some(led),
                None => match filters.ordered() {
                    Some(at) => Some((at, searched.count(tx, at, MOST).await?)),
                    None => None,
                },
            };
            // Ids are given one after the other, from that of the root on.
            let all = follow::next_id(tx, space.row.sp).await?.saturating_sub(1);
            planned.push(PlannedSpace {
                space: space.row.space.name.clone(),
                led_by: led.and_then(|(at, _)| filters.get(at).cloned()),
                looked_at: led.map_or(all, |(_, count)| count as u64),
            });
        }
        planned.sort_by(|one, other| one.space.cmp(&other.space));
        Ok(planned)
    }
}
