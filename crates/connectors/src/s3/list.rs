//! Listing a bucket.

use std::collections::VecDeque;

use async_trait::async_trait;
use futures::TryStreamExt;
use opendal::{Lister as OpendalLister, Operator};
use percale_store::{
    Entry, Error, ErrorKind, Kind, ListOptions, ListPage, ListStream, Operation, Result, Skipped, StoreKey,
};

use super::error::from_opendal;
use super::{WHITE_SPACE, meta};

/// Objects that one request of S3 lists at most.
const REQUEST: usize = 1000;

/// A listing, in the order of the keys.
///
/// Recursive, that is the order in which S3 lists. Otherwise the collections come before the files there, so all entries of
/// the collection are fetched and sorted first.
pub(super) struct Lister {
    options: ListOptions,
    source: Source,
    /// The last key of a stream.
    last: Option<StoreKey>,
}

enum Source {
    Stream(OpendalLister),
    Sorted(VecDeque<Entry>, Vec<Skipped>),
}

impl Lister {
    pub(super) async fn open(operator: &Operator, options: ListOptions) -> Result<Self> {
        let path = options.prefix.as_ref().map_or_else(String::new, |prefix| format!("{prefix}/"));
        let mut request =
            operator.lister_with(&path).recursive(options.recursive).limit(options.page_size.min(REQUEST));
        if let Some(after) = options.after.as_ref().filter(|_| options.recursive) {
            request = request.start_after(after.as_str());
        }
        let failed = |error: opendal::Error| failed(&options, error);
        let mut stream = request.await.map_err(failed)?;
        if options.recursive {
            return Ok(Self { options, source: Source::Stream(stream), last: None });
        }
        let (mut entries, mut skipped) = (Vec::new(), Vec::new());
        while let Some(entry) = stream.try_next().await.map_err(failed)? {
            entries.extend(usable(&options, entry, &mut skipped));
        }
        entries.sort_by(|a: &Entry, b| a.key.cmp(&b.key));
        Ok(Self { options, source: Source::Sorted(entries.into(), skipped), last: None })
    }
}

fn failed(options: &ListOptions, error: opendal::Error) -> Error {
    let error = from_opendal(Operation::List, error);
    match &options.prefix {
        Some(prefix) => error.on(prefix),
        None => error,
    }
}

/// The entry, if it is asked for.
fn usable(options: &ListOptions, entry: opendal::Entry, skipped: &mut Vec<Skipped>) -> Option<Entry> {
    let (path, found) = entry.into_parts();
    let meta = meta(&found);
    // Markers of empty collections that other programs make, and the collection itself.
    if path.ends_with('/') && (options.recursive || meta.kind != Kind::Collection) {
        return None;
    }
    let key = match StoreKey::parse(path.trim_end_matches('/')).map_err(|error| error.to_string()) {
        // What no other operation takes is no use to whoever lists.
        Ok(key) if key.as_str().trim() == key.as_str() => key,
        Ok(_) => {
            let reason = WHITE_SPACE.to_owned();
            skipped.push(Skipped { path, kind: ErrorKind::InvalidKey, reason });
            return None;
        }
        Err(_) if path.is_empty() || path == "/" => return None,
        Err(reason) => {
            skipped.push(Skipped { path, kind: ErrorKind::InvalidKey, reason });
            return None;
        }
    };
    let is_prefix = options.prefix.as_ref() == Some(&key);
    let is_before = options.after.as_ref().is_some_and(|after| key <= *after);
    let shows_reserved = options.reserved || options.prefix.as_ref().is_some_and(StoreKey::is_reserved);
    let is_hidden = key.is_stage() || (key.is_reserved() && !shows_reserved);
    (!is_prefix && !is_before && !is_hidden).then_some(Entry { key, meta })
}

#[async_trait]
impl ListStream for Lister {
    async fn next(&mut self) -> Result<Option<ListPage>> {
        let full = self.options.page_size.max(1);
        let mut page = ListPage::default();
        match &mut self.source {
            Source::Sorted(entries, skipped) => {
                page.entries = entries.drain(..full.min(entries.len())).collect();
                page.skipped = std::mem::take(skipped);
            }
            Source::Stream(stream) => {
                while page.entries.len() < full && page.skipped.len() < full {
                    let next = stream.try_next().await.map_err(|error| failed(&self.options, error))?;
                    let Some(entry) = next else { break };
                    let Some(entry) = usable(&self.options, entry, &mut page.skipped) else { continue };
                    // A key with a slash before it comes as if it had none.
                    if self.last.as_ref().is_some_and(|last| entry.key <= *last) {
                        let reason = "is listed in another place than its name".to_owned();
                        let path = entry.key.to_string();
                        page.skipped.push(Skipped { path, kind: ErrorKind::InvalidKey, reason });
                        continue;
                    }
                    self.last = Some(entry.key.clone());
                    page.entries.push(entry);
                }
            }
        }
        Ok((!page.entries.is_empty() || !page.skipped.is_empty()).then_some(page))
    }
}
