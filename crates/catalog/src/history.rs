//! What was said of an entry when, and by whom: out of the journal.

use std::time::{Duration, Instant};

use percale_core::ObjectPath;
use percale_core::access::{Caller, Permission};
use percale_core::ids::EntryId;

use crate::access::enter;
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::{Error, Result};
use crate::model::{AttributeEvent, MAX_LIST, Page};
use crate::record::{RecordChange, kind};
use crate::rows::journal;

/// Records that one statement looks at.
const WINDOW: u64 = 20_000;
/// How long is looked before what was found is answered.
const PATIENCE: Duration = Duration::from_millis(300);

/// What was said.
impl Catalog {
    /// Returns the changes of what is said of an object or collection, the last one first, as far back as the journal is kept. Needs `read`.
    ///
    /// A page may have fewer of them than the limit although there are more.
    ///
    /// # Errors
    /// As [`Catalog::stat`]; `InvalidRequest` for a place to go on from that is none.
    pub async fn attribute_history(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<AttributeEvent>> {
        self.ask(History { caller: caller.clone(), path: path.clone(), after, limit }).await
    }
}

struct History {
    caller: Caller,
    path: ObjectPath,
    after: Option<String>,
    limit: usize,
}

impl Query for History {
    type Out = Page<AttributeEvent>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let Self { caller, path, after, limit } = self;
        let (until, limit) = (Instant::now() + PATIENCE, (*limit).clamp(1, MAX_LIST));
        let resolved = enter(tx, caller, Permission::Read, path).await?;
        let target = resolved.target(path)?;
        let (entry, space, position) = (EntryId(target.id), resolved.space.space.id, resolved.position());
        let mut end = match after {
            None => position.seq,
            Some(after) => after.parse().map_err(|_| Error::invalid("it cannot be gone on from there"))?,
        };
        let first = journal::first(tx, target.sp).await?.unwrap_or(u64::MAX);
        // As the record is written; which entry it is of is decided when it was read.
        let like = format!("%\"entry\":{},%", entry.0);
        let mut items = Vec::new();
        while end >= first && items.len() < limit && Instant::now() < until {
            let begin = end.saturating_sub(WINDOW);
            let wanted = (kind::ATTRIBUTES_CHANGED, like.as_str());
            let records =
                journal::read_back(tx, (target.sp, space), (begin, end), wanted, limit - items.len()).await?;
            end = match records.last() {
                Some(last) if records.len() == limit - items.len() => last.position.seq.saturating_sub(1),
                _ => begin,
            };
            for record in records {
                let RecordChange::AttributesChanged(changed) = record.change()? else { continue };
                items.extend(changed.into_iter().filter(|item| item.entry == entry).map(|item| {
                    AttributeEvent {
                        at: record.at,
                        actor: record.actor.clone(),
                        position: record.position,
                        source: item.source,
                        set: item.set,
                    }
                }));
            }
        }
        let next = (end >= first && end > 0).then(|| end.to_string());
        Ok(Page { items, next, position: Some(position) })
    }
}
