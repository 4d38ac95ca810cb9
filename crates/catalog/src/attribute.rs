//! What objects and collections are about: looked at, set and removed.

use percale_core::access::{Caller, Permission};
use percale_core::attribute::{
    AttributeName, AttributeValue, MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTE_VALUES, MAX_ATTRIBUTES,
};
use percale_core::ids::{EntryId, SpaceId};
use percale_core::{ObjectPath, Position};

use crate::access::{enter, is_link};
use crate::batch::{Batch, IdCache, Mark, PathLock, Walk, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Attribute, AttributeChange, AttributeSource, RULES, Rules, SpaceRules};
use crate::record::{AttributesItem, Items, SetAttribute, kind};
use crate::rows::attribute::{self, AttributeRow};
use crate::rows::publish::actor;
use crate::rows::site;

/// Most values of rules in a space that are looked at.
const MAX_RULES: usize = 100_000;

/// Attributes.
impl Catalog {
    /// Returns what is said of an object or collection, by name, and the journal up to which it is so. Needs `read`.
    ///
    /// # Errors
    /// As [`Catalog::stat`].
    pub async fn attributes(&self, caller: &Caller, path: &ObjectPath) -> Result<(Vec<Attribute>, Position)> {
        self.ask(Look { caller: caller.clone(), path: path.clone() }).await
    }

    /// Sets and removes what people say of an object or collection. Needs `write`, and `manage` for the [rules](Rules) of a collection.
    /// What is so already is not changed.
    ///
    /// # Errors
    /// `NotFound`; `InvalidRequest` for more values, or more attributes of one entry, than there may be, for a text that is too
    /// long, for what the rules of the collections above do not allow, and for a rule that there is not.
    pub async fn change_attributes(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        change: AttributeChange,
    ) -> Result<Position> {
        for (name, values) in &change.set {
            check_values(name, values).map_err(Error::invalid)?;
        }
        self.change(Set { caller: caller.clone(), path: path.clone(), change }).await
    }
}

/// Rules. This call is the server's own.
impl Catalog {
    /// Returns the rules in a space.
    ///
    /// # Errors
    /// `SpaceNotFound`.
    pub async fn rules(&self, space: SpaceId) -> Result<SpaceRules> {
        self.ask(RulesOf(space)).await
    }
}

/// Fails if an attribute has more values than it may have, or one that is too large.
pub(crate) fn check_values(
    name: &AttributeName,
    values: &[AttributeValue],
) -> std::result::Result<(), String> {
    if values.len() > MAX_ATTRIBUTE_VALUES {
        return Err(format!(
            "'{name}' has {} values; an attribute has at most {MAX_ATTRIBUTE_VALUES}",
            values.len()
        ));
    }
    values.iter().try_for_each(|value| value.check().map_err(|wrong| format!("'{name}': {wrong}")))
}

/// Fails if attributes are more, or have more bytes, than one source may say of an entry.
fn require_room<'a>(
    attributes: impl Iterator<Item = (&'a AttributeName, &'a Vec<AttributeValue>)>,
) -> std::result::Result<(), String> {
    let (mut count, mut bytes) = (0, 0);
    for (name, values) in attributes {
        count += 1;
        bytes += name.as_str().len() + values.iter().map(AttributeValue::size).sum::<usize>();
    }
    if count > MAX_ATTRIBUTES {
        return Err(format!("{count} attributes; there are at most {MAX_ATTRIBUTES}"));
    }
    if bytes > MAX_ATTRIBUTE_BYTES {
        return Err(format!("{bytes} bytes of attributes; there are at most {MAX_ATTRIBUTE_BYTES}"));
    }
    Ok(())
}

struct Look {
    caller: Caller,
    path: ObjectPath,
}

impl Query for Look {
    type Out = (Vec<Attribute>, Position);

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let resolved = enter(tx, &self.caller, Permission::Read, &self.path).await?;
        let target = resolved.target(&self.path)?;
        let rows = attribute::of_entries(tx, vec![(target.sp, target.id)]).await?;
        Ok((gather(rows), resolved.position()))
    }
}

/// Puts the values of each attribute together; they come one after the other.
pub(crate) fn gather(rows: Vec<AttributeRow>) -> Vec<Attribute> {
    let mut attributes: Vec<Attribute> = Vec::new();
    for AttributeRow { name, source, value, .. } in rows {
        match attributes.last_mut() {
            Some(last) if last.name == name && last.source == source => last.values.push(value),
            _ => attributes.push(Attribute { name, source, values: vec![value] }),
        }
    }
    attributes
}

struct RulesOf(SpaceId);

impl Query for RulesOf {
    type Out = SpaceRules;

    async fn run<T: Tx>(&self, tx: &T) -> Result<SpaceRules> {
        let missing = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {}", self.0));
        let sp = site::space_by_id(tx, self.0).await?.ok_or_else(missing)?.sp;
        let rows = attribute::rules_of_space(tx, sp, MAX_RULES).await?;
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let mut placed = Vec::new();
        for of_entry in rows.chunk_by(|one, other| one.entry == other.entry) {
            let Some(AttributeRow { entry, .. }) = of_entry.first() else { continue };
            placed.push((batch.path_of(sp, *entry).await?, stored_rules(of_entry.to_vec())));
        }
        placed.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(SpaceRules { placed })
    }
}

fn stored_rules(rows: Vec<AttributeRow>) -> Rules {
    let said = gather(rows);
    Rules::stored(said.iter().map(|one| (&one.name, one.values.as_slice())))
}

/// Returns the rules that hold for what is in the last collection of a walk, whose rows these are.
async fn rules_along<T: Tx>(tx: &T, walk: &Walk) -> Result<Rules> {
    let above = walk.chain.iter().filter(|entry| entry.is_collection());
    let keys: Vec<(i64, u64)> = above.map(|entry| (entry.sp, entry.id)).collect();
    let rows = attribute::rules_of_entries(tx, keys.clone()).await?;
    let mut rules = Rules::default();
    for (_, entry) in keys {
        let own = rows.iter().filter(|row| row.entry == entry).cloned().collect();
        rules.put_over(&stored_rules(own));
    }
    Ok(rules)
}

struct Set {
    caller: Caller,
    path: ObjectPath,
    change: AttributeChange,
}

impl Change for Set {
    type Draft = Mark;
    type Out = Position;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.path, PathLock::CHANGE, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Mark> {
        let Self { caller, path, change } = self;
        let rules =
            change.set.iter().filter_map(|(name, values)| Some((name.as_str().strip_prefix(RULES)?, values)));
        let rules: Vec<(&str, &Vec<AttributeValue>)> = rules.collect();
        let needed = if rules.is_empty() { Permission::Write } else { Permission::Manage };
        let walk = batch.enter(caller, needed, path, PathLock::CHANGE).await?;
        let target = walk.existing(path)?;
        if let Some(leads_to) = &target.target {
            return Err(is_link(path, leads_to, 0));
        }
        if !rules.is_empty() && !target.is_collection() {
            return Err(Error::invalid(format!(
                "{path} is an object; names that begin with '{RULES}' are rules of collections"
            )));
        }
        for (rule, values) in rules.into_iter().filter(|(_, values)| !values.is_empty()) {
            Rules::default().add(rule, values).map_err(Error::invalid)?;
        }
        let (sp, entry, source) = (target.sp, target.id, AttributeSource::Person);
        let there = gather(attribute::of_entries(batch.tx, vec![(sp, entry)]).await?);
        let (mut there, headers): (Vec<_>, Vec<_>) = there.into_iter().partition(|one| one.source == source);
        let mut set: Vec<SetAttribute> = Vec::new();
        for (name, values) in &change.set {
            let known = there.iter().find(|one| one.name == *name).map_or(&[][..], |one| &one.values);
            if known != values.as_slice() {
                set.retain(|one| one.name != *name);
                set.push(SetAttribute { name: name.clone(), values: values.clone() });
            }
        }
        there.retain(|one| set.iter().all(|set| set.name != one.name));
        let stay = there.iter().map(|one| (&one.name, &one.values));
        let new = set.iter().map(|one| (&one.name, &one.values)).filter(|(_, values)| !values.is_empty());
        require_room(stay.chain(new))
            .map_err(|wrong| Error::invalid(format!("{path} would have {wrong}")))?;
        if set.is_empty() {
            return Ok(batch.no_record(sp));
        }
        if !target.is_collection() {
            let rules = rules_along(batch.tx, &walk).await?;
            // Of an object of which people say nothing any more, nothing is required.
            let says_any = !there.is_empty() || set.iter().any(|one| !one.values.is_empty());
            let has = |name: &AttributeName| {
                !says_any
                    || there.iter().chain(&headers).any(|one| one.name == *name)
                    || set.iter().any(|one| one.name == *name && !one.values.is_empty())
            };
            let set = set.iter().filter(|one| !one.values.is_empty());
            rules
                .check(set.map(|one| (&one.name, one.values.as_slice())), has)
                .map_err(|wrong| Error::invalid(format!("{path} is not changed: {wrong}")))?;
        }
        let item = AttributesItem { entry: EntryId(entry), source, version: None, set };
        let items = vec![item];
        write(batch.tx, sp, &items, |_, _| true).await?;
        batch.record(sp, &actor(caller), kind::ATTRIBUTES_CHANGED, &Items { items })
    }

    fn finish(self, mark: Mark, written: &Written) -> Position {
        written.position(mark)
    }
}

/// Puts attributes in place of what their entries had under their names, which is nothing where an entry has none of that name.
pub(crate) async fn write<T: Tx>(
    tx: &T,
    sp: i64,
    items: &[AttributesItem],
    may_have: impl Fn(EntryId, &AttributeName) -> bool,
) -> Result<()> {
    let (mut former, mut rows) = (Vec::new(), Vec::new());
    for AttributesItem { entry, source, set, .. } in items {
        for SetAttribute { name, values } in set {
            if may_have(*entry, name) {
                former.push((sp, entry.0, name, *source));
            }
            for (ord, value) in (0..).zip(values) {
                let (name, value) = (name.clone(), value.clone());
                rows.push(AttributeRow { sp, entry: entry.0, name, source: *source, ord, value });
            }
        }
    }
    attribute::remove(tx, &former).await?;
    attribute::insert(tx, &rows).await
}
