//! What objects and collections are about: looked at, set and removed.

use percale_core::access::{Caller, Permission};
use percale_core::attribute::{
    AttributeName, AttributeValue, MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTE_VALUES, MAX_ATTRIBUTES,
};
use percale_core::ids::EntryId;
use percale_core::{ObjectPath, Position};

use crate::access::enter;
use crate::batch::{Batch, Mark, PathLock, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, Result};
use crate::model::{Attribute, AttributeChange, AttributeSource};
use crate::record::{AttributesItem, Items, SetAttribute, kind};
use crate::rows::attribute::{self, AttributeRow};
use crate::rows::publish::actor;

/// Attributes.
impl Catalog {
    /// Returns what is said of an object or collection, by name, and the journal up to which it is so. Needs `read`.
    ///
    /// # Errors
    /// As [`Catalog::stat`].
    pub async fn attributes(&self, caller: &Caller, path: &ObjectPath) -> Result<(Vec<Attribute>, Position)> {
        self.ask(Look { caller: caller.clone(), path: path.clone() }).await
    }

    /// Sets and removes what people say of an object or collection. Needs `write`. What is so already is not changed.
    ///
    /// # Errors
    /// `NotFound`; `InvalidRequest` for more values, or more attributes of one entry, than there may be, and for a text that is too
    /// long.
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
        let walk = batch.enter(caller, Permission::Write, path, PathLock::CHANGE).await?;
        let target = walk.existing(path)?;
        let (sp, entry, source) = (target.sp, target.id, AttributeSource::Person);
        let mut there = gather(attribute::of_entries(batch.tx, vec![(sp, entry)]).await?);
        there.retain(|one| one.source == source);
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
        let item = AttributesItem { entry: EntryId(entry), source, version: None, set };
        write(batch.tx, sp, &item).await?;
        batch.record(sp, &actor(caller), kind::ATTRIBUTES_CHANGED, &Items { items: vec![item] })
    }

    fn finish(self, mark: Mark, written: &Written) -> Position {
        written.position(mark)
    }
}

/// Puts attributes in place of what the entry had under their names.
pub(crate) async fn write<T: Tx>(tx: &T, sp: i64, item: &AttributesItem) -> Result<()> {
    let AttributesItem { entry: EntryId(entry), source, set, .. } = item;
    let names: Vec<AttributeName> = set.iter().map(|one| one.name.clone()).collect();
    attribute::remove(tx, (sp, *entry), *source, &names).await?;
    let mut rows = Vec::new();
    for SetAttribute { name, values } in set {
        for (ord, value) in (0..).zip(values) {
            let (name, value) = (name.clone(), value.clone());
            rows.push(AttributeRow { sp, entry: *entry, name, source: *source, ord, value });
        }
    }
    attribute::insert(tx, &rows).await
}
