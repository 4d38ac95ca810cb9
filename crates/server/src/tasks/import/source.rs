//! From a path as the site's hosts name it to a store and what of it is imported.

use std::path::{Component, Path, PathBuf};

use percale_catalog::{Catalog, Store, StoreLayout};
use percale_core::{ErrorCode, ObjectPath};
use percale_store::StoreKey;

use crate::{ApiError, Result};

/// What the places of buckets begin with.
const BUCKETS: &str = "s3://";

/// Where files are imported from, and where they go to.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The store.
    pub store: Store,
    /// The directory's key; nothing means the store's root.
    pub prefix: Option<StoreKey>,
    /// The directory, as the site's hosts name it, without a slash at its end.
    shown: String,
    /// The collection that gets what is in it.
    to: ObjectPath,
    /// The keys of what belongs to other stores of the site, which lie in this one, with a slash at their end.
    pub others: Vec<String>,
}

impl Source {
    /// Finds the native store of this site that a directory is in, or what begins with a part of a bucket's keys.
    ///
    /// # Errors
    /// `InvalidRequest` for what is no absolute path and no `s3://BUCKET/…`, or is in two buckets of one name; `NotFound` if no native store of
    /// this site has it; `Unsupported` if a managed one has.
    pub async fn find(catalog: &Catalog, source: &str, to: &ObjectPath) -> Result<Self> {
        let path = Path::new(source);
        let parts = source.strip_prefix(BUCKETS).map_or(path, Path::new);
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        let is_bucket = source.starts_with(BUCKETS);
        if path.is_absolute() == is_bucket || !parts.components().all(is_plain) {
            let shown: String = source.chars().take(200).collect();
            return Err(ApiError::invalid(format!(
                "cannot import '{shown}': it is neither an absolute path nor s3://BUCKET/…, without '..'"
            )));
        }
        let rows: Vec<Store> = catalog.stores().await?.into_iter().filter(|row| row.site.is_none()).collect();
        let holds = rows.iter().filter_map(|row| {
            let place = place(row)?;
            let rest = path.strip_prefix(&place).ok()?.to_str()?.to_owned();
            Some((Path::new(&place).components().count(), row, rest))
        });
        let mut holds: Vec<(usize, &Store, String)> = holds.collect();
        // Roots may lie in each other; the innermost has the file.
        holds.sort_by_key(|(depth, ..)| std::cmp::Reverse(*depth));
        if let Some((_, one, _)) = holds.first()
            && let Some((_, other, _)) = holds.iter().find(|(_, other, _)| endpoint(other) != endpoint(one))
        {
            let detail = format!(
                "cannot import '{source}': the stores {} and {} have buckets of that name at different storages",
                one.name, other.name
            );
            return Err(ApiError::invalid(detail));
        }
        let Some((_, store, rest)) = holds.into_iter().next() else {
            let detail = format!("cannot import '{source}': no native store of this site has it in its root");
            return Err(ApiError::new(ErrorCode::NotFound, detail));
        };
        if store.layout != StoreLayout::Native {
            let detail = format!(
                "cannot import '{source}': store {} is managed, and only holds what was put there through a site",
                store.name
            );
            return Err(ApiError::new(ErrorCode::Unsupported, detail));
        }
        let prefix = match rest.is_empty() {
            true => None,
            false => Some(StoreKey::parse(&rest).map_err(|error| {
                ApiError::new(ErrorCode::InvalidPath, format!("cannot import '{source}': {error}"))
            })?),
        };
        if prefix.as_ref().is_some_and(StoreKey::is_reserved) {
            let detail = format!("cannot import '{source}': what is in it is the store's own");
            return Err(ApiError::new(ErrorCode::Unsupported, detail));
        }
        let shown = source.trim_end_matches('/').to_owned();
        let others = others(store, &rows);
        Ok(Self { store: store.clone(), prefix, shown, to: to.clone(), others })
    }

    /// Returns the root of the store, if it is a directory.
    pub fn root(&self) -> Option<PathBuf> {
        (!self.shown.starts_with(BUCKETS)).then(|| place(&self.store).map(PathBuf::from)).flatten()
    }

    /// Returns the path of a key below the directory.
    pub fn below<'k>(&self, key: &'k str) -> &'k str {
        match &self.prefix {
            Some(prefix) => key.strip_prefix(prefix.as_str()).unwrap_or_default().trim_start_matches('/'),
            None => key,
        }
    }

    /// Tells whether a directory is below the one that is imported, and is no other store's.
    pub fn has_within(&self, dir: &StoreKey) -> bool {
        let is_below = self.prefix.as_ref().is_none_or(|prefix| dir != prefix && dir.is_within(prefix));
        is_below && !self.others.iter().any(|other| format!("{dir}/").starts_with(other))
    }

    /// Returns a key, or a path that cannot have one, as the site's hosts name it.
    pub fn shown(&self, key: &str) -> String {
        match self.below(key) {
            "" => self.shown.clone(),
            below => format!("{}/{below}", self.shown),
        }
    }

    /// Returns the keys between which those below the directory lie.
    pub fn range(&self) -> (String, String) {
        match &self.prefix {
            // The byte behind the slash.
            Some(prefix) => (format!("{prefix}/"), format!("{prefix}0")),
            // No character comes behind it.
            None => (String::new(), "\u{10ffff}".to_owned()),
        }
    }

    /// Returns the collection that gets what is in a directory of the store.
    pub fn collection(&self, key: Option<&StoreKey>) -> Result<ObjectPath> {
        let mut path = self.to.clone();
        for name in self.below(key.map_or("", StoreKey::as_str)).split('/').filter(|name| !name.is_empty()) {
            path = path.join(name)?;
        }
        Ok(path)
    }

    /// Returns the collection that gets everything.
    pub fn to(&self) -> &ObjectPath {
        &self.to
    }
}

/// Returns which storage a bucket is at.
fn endpoint(row: &Store) -> Option<&str> {
    row.config.get("endpoint").and_then(|endpoint| endpoint.as_str())
}

/// Returns where a store keeps its files, as the site's hosts name it.
fn place(row: &Store) -> Option<String> {
    let setting = |name: &str| row.config.get(name).and_then(|value| value.as_str());
    match row.connector.as_str() {
        "posix" => setting("root").map(str::to_owned),
        "s3" => {
            let bucket = setting("bucket")?;
            Some(match setting("prefix") {
                Some(prefix) => format!("{BUCKETS}{bucket}/{prefix}"),
                None => format!("{BUCKETS}{bucket}"),
            })
        }
        _ => None,
    }
}

/// Returns the keys below which a store has what is another's, with a slash at their end.
fn others(store: &Store, all: &[Store]) -> Vec<String> {
    let Some(root) = place(store) else { return Vec::new() };
    let within = all.iter().filter(|other| other.id != store.id && endpoint(other) == endpoint(store));
    let keys = within.filter_map(|other| {
        let place = place(other)?;
        Some(Path::new(&place).strip_prefix(&root).ok()?.to_str()?.to_owned())
    });
    keys.filter(|key| !key.is_empty()).map(|key| format!("{key}/")).collect()
}
