//! Counting what a search finds, and the values that it has of some fields.
//!
//! Counting goes over the ids of the entries in parts, each a question of its own. The parts are taken in an order that has them spread
//! over everything, so that those that there was time for stand for the others, too. What is asked of all that is in a space needs no such
//! look, where the database keeps the numbers ([`tally`]).

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use percale_core::access::Caller;
use percale_core::ids::SpaceId;
use percale_core::query::{Builtin, Condition, Field};

use super::builtin::EXT;
use super::parts::{Part, Plan};
use super::sql::{BY_ENTRY, Builder, Members, both, split};
use super::{FEW, Searched, Visible, all_holders, visible};
use crate::catalog::Catalog;
use crate::engine::{Query, Sql, Tx, Value};
use crate::error::{Error, Result};
use crate::model::{EntryKind, Facet, MAX_FACETS, Summary, SummaryOptions};
use crate::rows::attribute::{decode_value, kind};
use crate::rows::{attribute, entry, tally};

/// Different values of one facet that are counted; those that come later are counted together.
const MAX_VALUES: usize = 100_000;

/// A value, as it is stored: the number of its type, and its text.
type Key = (i64, String);

/// Counting what searches find.
impl Catalog {
    /// Counts what a condition holds for, and for each facet how many of the entries have which values.
    ///
    /// # Errors
    /// As [`Catalog::search`], and `InvalidRequest` for a facet that is neither an attribute nor one of `type`, `ext`, `space`, `site`, `store`
    /// and `state`.
    pub async fn summarize(&self, caller: &Caller, options: SummaryOptions) -> Result<Summary> {
        let until = Instant::now() + options.patience;
        let SummaryOptions { condition, facets, values, .. } = options;
        if facets.len() > MAX_FACETS {
            return Err(Error::invalid(format!("at most {MAX_FACETS} facets are counted at once")));
        }
        facets.iter().try_for_each(may_be_counted)?;
        let plan =
            Plan { caller: caller.clone(), condition: condition.clone(), fields: facets.clone(), most: FEW };
        let (mut parts, homes) = self.ask(plan).await?;
        let tallies =
            Tallies { caller: caller.clone(), condition: condition.clone(), facets: facets.clone() };
        let (mut counted, known) = self.ask(tallies).await?;
        parts.retain(|part| !known.contains(&part.space));
        let count = |part: Part| {
            let (caller, condition, facets) = (caller.clone(), condition.clone(), facets.clone());
            self.ask(Count { caller, condition, facets, part })
        };
        // Few entries that a filter leads to are counted as they are; the windows stand for each other.
        let (few, windows): (Vec<Part>, Vec<Part>) =
            parts.into_iter().partition(|part| part.driver.is_some());
        for part in few {
            counted.add(count(part).await?);
        }
        let all: u64 = windows.iter().map(Part::ids).sum();
        let mut looked_at = 0;
        let mut sample = Counted::none(&facets);
        for at in 0..windows.len() {
            if looked_at > 0 && Instant::now() >= until {
                break;
            }
            let Some(part) = windows.get(spread(at, windows.len())) else { continue };
            looked_at += part.ids();
            sample.add(count(part.clone()).await?);
        }
        let is_estimate = looked_at < all;
        if is_estimate {
            sample.scale(all as f64 / looked_at as f64);
        }
        counted.add(sample);
        let shown = facets.into_iter().zip(counted.facets);
        let facets = shown.map(|(field, counts)| counts.facet(field, values)).collect();
        Ok(Summary { count: counted.count, is_estimate, facets, homes })
    }
}

/// Takes `n` numbers below `n`, each once, so that those that come first are spread over all of them.
fn spread(at: usize, n: usize) -> usize {
    // Steps of the golden section, made coprime to `n` so that none comes twice.
    let mut step = (n as f64 * 0.618_033_988_75) as usize | 1;
    while gcd(step, n) != 1 {
        step += 2;
    }
    at * step % n
}

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 { one } else { gcd(other, one % other) }
}

fn may_be_counted(facet: &Field) -> Result<()> {
    use Builtin::{Ext, Site, Space, State, Store, Type};
    match facet {
        Field::Attribute(_) | Field::Builtin(Type | Ext | Space | Site | Store | State) => Ok(()),
        Field::Builtin(other) => Err(Error::invalid(format!(
            "the values of '{}' are not counted; those of attributes are, and of type, ext, space, site, store and state",
            other.as_str()
        ))),
    }
}

/// Counts what the database keeps the numbers of, and tells of which spaces that is all.
struct Tallies {
    caller: Caller,
    condition: Condition,
    facets: Vec<Field>,
}

impl Query for Tallies {
    type Out = (Counted, HashSet<SpaceId>);
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let Self { caller, condition, facets } = self;
        let (mut counted, mut known) = (Counted::none(facets), HashSet::new());
        let (filters, spaces) = (split(condition)?, visible(tx, caller).await?);
        let is_all = |space: &&Visible| space.is_whole && filters.find_all_in(&space.row.space.name);
        for space in spaces.iter().filter(is_all) {
            if let Some(of_space) = tallied(tx, space, facets).await? {
                counted.add(of_space);
                known.insert(space.row.space.id);
            }
        }
        Ok((counted, known))
    }
}

/// Counts all that is in a space; nothing if not all that is asked for is kept.
async fn tallied<T: Tx>(tx: &T, space: &Visible, facets: &[Field]) -> Result<Option<Counted>> {
    let mut counted = Counted::none(facets);
    let entries = tally::entries(tx, space.row.sp).await?;
    counted.count = entries.iter().map(|(_, count)| count).sum();
    for (facet, counts) in facets.iter().zip(&mut counted.facets) {
        match facet {
            Field::Attribute(name) => {
                let Some(values) = tally::values(tx, space.row.sp, name, MAX_VALUES).await? else {
                    return Ok(None);
                };
                let mut of_root = HashSet::new();
                for row in attribute::named(tx, &[(space.row.sp, 1)], std::slice::from_ref(name)).await? {
                    of_root.insert((attribute::kind_of(&row.value), row.value.to_string()));
                }
                for (key, count) in values {
                    // The root is none of the entries that are found, and its values are counted with theirs.
                    let count = count.saturating_sub(u64::from(of_root.contains(&key)));
                    if count > 0 {
                        counts.add(key, count);
                    }
                }
            }
            Field::Builtin(Builtin::Type) => {
                for (kind, count) in &entries {
                    let known = EntryKind::ALL.iter().find(|known| entry::number_of(**known) == *kind);
                    let word = known.map_or("?", |known| known.as_str());
                    counts.add((kind::TEXT, word.to_owned()), *count);
                }
            }
            Field::Builtin(Builtin::Space) if counted.count > 0 => {
                counts.add((kind::TEXT, space.row.space.name.to_string()), counted.count);
            }
            Field::Builtin(Builtin::Space) => {}
            Field::Builtin(_) => return Ok(None),
        }
    }
    Ok(Some(counted))
}

/// Counts a part.
struct Count {
    caller: Caller,
    condition: Condition,
    facets: Vec<Field>,
    part: Part,
}

impl Query for Count {
    type Out = Counted;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Counted> {
        let Self { caller, condition, facets, part } = self;
        let mut counted = Counted::none(facets);
        let spaces = visible(tx, caller).await?;
        // It may have gone, or may not be read any more.
        let Some(space) = spaces.iter().find(|space| space.row.space.id == part.space) else {
            return Ok(counted);
        };
        let filters = split(condition)?;
        // Of facets, too.
        let holders = all_holders(tx).await?;
        let mut searched = Searched::new(caller, space, &filters, (&holders, &part.texts), part.after);
        while let Some(members) = searched.members(tx, part).await? {
            let mut builder = searched.builder();
            let sql = builder.total(space.row.sp, &members)?;
            if let Some(row) = tx.query(&sql, builder.params).await?.first_mut() {
                counted.count += row.number()?;
            }
            for (facet, counts) in facets.iter().zip(&mut counted.facets) {
                let mut builder = searched.builder();
                counts.take(tx, builder.facet(space.row.sp, facet, &members)?, builder.params).await?;
            }
        }
        Ok(counted)
    }
}

/// What was counted so far.
struct Counted {
    count: u64,
    facets: Vec<Counts>,
}

impl Counted {
    fn none(facets: &[Field]) -> Self {
        Self { count: 0, facets: facets.iter().map(|_| Counts::default()).collect() }
    }

    /// Makes what stands for a part of all stand for all.
    fn scale(&mut self, factor: f64) {
        let numbers = self
            .facets
            .iter_mut()
            .flat_map(|counts| counts.counts.values_mut().chain(std::iter::once(&mut counts.others)));
        for number in numbers.chain(std::iter::once(&mut self.count)) {
            *number = (*number as f64 * factor).round() as u64;
        }
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        for (counts, other) in self.facets.iter_mut().zip(other.facets) {
            counts.others += other.others;
            other.counts.into_iter().for_each(|(key, count)| counts.add(key, count));
        }
    }
}

/// How many entries have which values.
#[derive(Default)]
struct Counts {
    counts: HashMap<Key, u64>,
    /// Those of values that there was no room for.
    others: u64,
}

impl Counts {
    fn add(&mut self, key: Key, count: u64) {
        if self.counts.len() >= MAX_VALUES && !self.counts.contains_key(&key) {
            self.others += count;
            return;
        }
        *self.counts.entry(key).or_default() += count;
    }

    async fn take<T: Tx>(&mut self, tx: &T, sql: Sql, params: Vec<Value>) -> Result<()> {
        for mut row in tx.query(&sql, params).await? {
            let key = (row.int()?, row.text()?);
            self.add(key, row.number()?);
        }
        Ok(())
    }

    /// Returns the values that most entries have, those with as many by their text.
    fn facet(self, field: Field, most: usize) -> Facet {
        let mut counts: Vec<(Key, u64)> = self.counts.into_iter().collect();
        counts.sort_unstable_by(|(one, count), (other, more)| more.cmp(count).then_with(|| one.cmp(other)));
        let rest = counts.split_off(most.min(counts.len()));
        let others = self.others + rest.iter().map(|(_, count)| count).sum::<u64>();
        let values =
            counts.into_iter().filter_map(|((kind, text), count)| Some((decode_value(kind, text)?, count)));
        Facet { field, values: values.collect(), others }
    }
}

impl Builder<'_> {
    /// Counts members.
    fn total(&mut self, sp: i64, members: &Members<'_>) -> Result<Sql> {
        let members = self.members(sp, members)?;
        Ok(both(format!("SELECT COUNT(*) FROM entry e WHERE {members}")))
    }

    /// Counts members by the values of a field: the type of the value, its text, and how many.
    fn facet(&mut self, sp: i64, field: &Field, members: &Members<'_>) -> Result<Sql> {
        use Builtin::{Ext, Site, State, Store};
        let text = format!("CAST({} AS bigint)", kind::TEXT);
        let replicas = "entry e CROSS JOIN replica r WHERE r.sp = e.sp AND r.version = e.version AND ";
        let entries = "entry e WHERE ".to_owned();
        let (kind, value, from) = match field {
            Field::Attribute(name) => {
                let name = self.param(name.as_str());
                let from = format!(
                    "entry e CROSS JOIN attribute a{BY_ENTRY} WHERE a.sp = e.sp AND a.entry = e.id AND a.name = {name} AND "
                );
                ("a.type".to_owned(), "a.value".to_owned(), from)
            }
            Field::Builtin(Site | Store) => {
                let mut cases = "CASE r.st".to_owned();
                for (st, site, store) in &self.holders.0 {
                    let (st, name) = (*st, if *field == Field::Builtin(Site) { site } else { store });
                    let (st, name) = (self.param(st), self.param(name.as_str()));
                    cases.push_str(&format!(" WHEN {st} THEN {name}"));
                }
                cases.push_str(" ELSE '' END");
                (text, cases, replicas.to_owned())
            }
            Field::Builtin(State) => (text, "r.state".to_owned(), replicas.to_owned()),
            Field::Builtin(Ext) => (text, EXT.to_owned(), entries),
            Field::Builtin(Builtin::Space) => {
                let name = self.space.as_str();
                (text, self.param(name), entries)
            }
            Field::Builtin(_) => {
                let kind = "CASE e.kind WHEN 1 THEN 'collection' WHEN 2 THEN 'object' ELSE 'link' END";
                (text, kind.to_owned(), entries)
            }
        };
        let members = self.members(sp, members)?;
        Ok(both(format!(
            "SELECT kind, value, COUNT(DISTINCT entry) FROM (SELECT {kind} AS kind, CAST({value} AS text) AS value, e.id AS entry \
             FROM {from}{members}) AS f GROUP BY kind, value"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_taken_once_and_early_ones_are_spread() {
        for n in [1, 2, 3, 10, 21, 200, 1000] {
            let mut order: Vec<usize> = (0..n).map(|at| spread(at, n)).collect();
            if n >= 200 {
                let tenths: std::collections::HashSet<usize> =
                    order[..20].iter().map(|at| at * 10 / n).collect();
                assert_eq!(tenths.len(), 10, "{n}: {:?}", &order[..20]);
            }
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
        }
    }
}
