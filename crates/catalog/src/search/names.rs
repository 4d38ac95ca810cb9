//! Which attributes there are: a name that nothing has is mostly misspelt.

use futures::future::try_join_all;
use percale_core::access::Caller;
use percale_core::attribute::AttributeName;
use percale_core::query::{Condition, Field, Test};

use super::{Visible, visible};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::{Error, Result};
use crate::rows::attribute;

/// Names among which one is looked for that is like one that nothing has.
const MOST_NAMES: usize = 5000;

impl Catalog {
    /// Returns which of these attributes nothing has that the caller may read: none, if there are spaces of which that is only a part.
    pub async fn attributes_nobody_has(
        &self,
        caller: &Caller,
        names: Vec<AttributeName>,
    ) -> Result<Vec<AttributeName>> {
        if names.is_empty() {
            return Ok(names);
        }
        self.ask(NotKnown { caller: caller.clone(), names }).await
    }
}

/// Fails if nothing that the caller may read has an attribute that the condition names, and says which names are like it.
pub(super) async fn check_names<T: Tx>(tx: &T, spaces: &[Visible], condition: &Condition) -> Result<()> {
    let mut wanted = Vec::new();
    names_in(condition, &mut wanted);
    are_known(tx, spaces, wanted).await
}

/// Fails likewise for attributes whose values are asked for.
pub(super) async fn check_fields<T: Tx>(tx: &T, spaces: &[Visible], fields: &[Field]) -> Result<()> {
    let names = fields.iter().filter_map(|field| match field {
        Field::Attribute(name) => Some(name),
        Field::Builtin(_) => None,
    });
    are_known(tx, spaces, names.collect()).await
}

/// Fails likewise for attributes by their names.
pub(super) async fn are_known<T: Tx>(tx: &T, spaces: &[Visible], wanted: Vec<&AttributeName>) -> Result<()> {
    let Some(name) = not_known(tx, spaces, wanted).await?.into_iter().next() else { return Ok(()) };
    let mut known = Vec::new();
    for space in spaces {
        known.extend(attribute::names(tx, space.row.sp, MOST_NAMES).await?);
    }
    Err(Error::invalid(unknown(name, known)))
}

/// Returns those that nothing has. Of spaces that can only be read in part nothing is said: a name may be one of those that cannot.
async fn not_known<'n, T: Tx>(
    tx: &T,
    spaces: &[Visible],
    wanted: Vec<&'n AttributeName>,
) -> Result<Vec<&'n AttributeName>> {
    if spaces.iter().any(|space| !space.is_whole) {
        return Ok(Vec::new());
    }
    let is_known = async |name: &AttributeName| {
        for space in spaces {
            if attribute::is_known(tx, space.row.sp, name).await? {
                return Ok::<_, Error>(true);
            }
        }
        Ok(false)
    };
    let are_known = try_join_all(wanted.iter().map(|name| is_known(name))).await?;
    Ok(wanted.into_iter().zip(are_known).filter(|(_, is_known)| !is_known).map(|(name, _)| name).collect())
}

struct NotKnown {
    caller: Caller,
    names: Vec<AttributeName>,
}

impl Query for NotKnown {
    type Out = Vec<AttributeName>;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let spaces = visible(tx, &self.caller).await?;
        Ok(not_known(tx, &spaces, self.names.iter().collect()).await?.into_iter().cloned().collect())
    }
}

/// Gathers the attributes without which nothing would be found, so that there would be no answer to a name that is misspelt.
fn names_in<'c>(condition: &'c Condition, names: &mut Vec<&'c AttributeName>) {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().for_each(|part| names_in(part, names)),
        Condition::Is(Field::Attribute(name), test) if *test != Test::Exists => names.push(name),
        Condition::Not(_) | Condition::Is(..) | Condition::Text(_) => {}
    }
}

/// How alike names must be to be named, from 0 to 1.
const ALIKE: f64 = 0.7;

fn unknown(name: &AttributeName, mut known: Vec<String>) -> String {
    known.sort_unstable();
    known.dedup();
    let like = |other: &str| strsim::jaro_winkler(&name.as_str().to_lowercase(), &other.to_lowercase());
    let mut alike: Vec<(f64, String)> = known.into_iter().map(|other| (like(&other), other)).collect();
    alike.retain(|(like, _)| *like >= ALIKE);
    alike.sort_by(|one, other| other.0.total_cmp(&one.0));
    let names: Vec<String> = alike.into_iter().take(3).map(|(_, name)| format!("'{name}'")).collect();
    match names.is_empty() {
        true => format!("nothing that you may read has an attribute '{name}'"),
        false => {
            format!("nothing that you may read has an attribute '{name}'; there is {}", names.join(", "))
        }
    }
}
