//! Wildcards in paths of the fabric, which no shell expands.

use percale_api::entries::{Entry, Kind};
use percale_client::{Client, ListOptions};
use percale_core::{ErrorCode, ObjectPath};

use crate::address::{FabricPath, has_wildcards, show};
use crate::failure::{Failure, Result};
use crate::filters::glob;

/// Replaces paths with wildcards by what they match, in order; others stay as they are.
pub async fn expand(client: &Client, paths: Vec<FabricPath>) -> Result<Vec<FabricPath>> {
    let mut expanded = Vec::with_capacity(paths.len());
    for path in paths {
        if !path.has_wildcards() || is_literal(client, &path).await? {
            expanded.push(path);
            continue;
        }
        let found = matches(client, &path.path).await?;
        if found.is_empty() {
            let message = format!("nothing matches {path}");
            return Err(Failure::new(ErrorCode::NotFound, message)
                .with_hint("`percale ls` on the parent shows what is there."));
        }
        expanded.extend(found.into_iter().map(|found| FabricPath { path: found, ..path.clone() }));
    }
    Ok(expanded)
}

/// Tells whether something of exactly this name is there: `a[1].nc` is a name before it is a pattern. Only looked at
/// for patterns in the last component, which is where such names are.
async fn is_literal(client: &Client, path: &FabricPath) -> Result<bool> {
    let parent = path.path.parent();
    if parent.is_some_and(|parent| has_wildcards(parent.as_str())) {
        return Ok(false);
    }
    match client.find(&path.path).await {
        Ok(entry) => Ok(entry.is_some()),
        Err(error) if error.code() == ErrorCode::SpaceNotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns what a pattern matches, component by component, so that only what can match is listed.
async fn matches(client: &Client, pattern: &ObjectPath) -> Result<Vec<ObjectPath>> {
    let components: Vec<&str> = pattern.components().collect();
    let mut found = vec![ObjectPath::root()];
    for (at, component) in components.iter().enumerate() {
        let is_last = at + 1 == components.len();
        if component.contains("**") {
            return below(client, &found, &components[at..]).await;
        }
        let mut next = Vec::new();
        for collection in &found {
            if !has_wildcards(component) {
                if let Ok(path) = collection.join(component) {
                    next.push(path);
                }
                continue;
            }
            let matcher = glob(component)?;
            let wanted = |entry: &Entry| {
                (is_last || entry.kind == Kind::Collection)
                    && entry.path.name().is_some_and(|name| matcher.is_match(name))
            };
            list(client, collection, false, |entry| {
                if wanted(&entry) {
                    next.push(entry.path);
                }
            })
            .await?;
        }
        found = next;
    }
    // A literal component behind a wildcard may name nothing.
    if components.last().is_some_and(|last| !has_wildcards(last)) {
        let mut existing = Vec::new();
        for path in found {
            if client.find(&path).await?.is_some() {
                existing.push(path);
            }
        }
        return Ok(existing);
    }
    Ok(found)
}

/// Matches the rest of a pattern that has `**` against everything below.
async fn below(client: &Client, roots: &[ObjectPath], rest: &[&str]) -> Result<Vec<ObjectPath>> {
    let matcher = glob(&rest.join("/"))?;
    let mut found = Vec::new();
    for root in roots {
        let depth = root.components().count();
        list(client, root, true, |entry| {
            let path: Vec<&str> = entry.path.components().skip(depth).collect();
            if matcher.is_match(path.join("/")) {
                found.push(entry.path);
            }
        })
        .await?;
    }
    Ok(found)
}

/// Lists a collection, page by page; one that is not there has nothing in it.
async fn list(client: &Client, path: &ObjectPath, recursive: bool, mut each: impl FnMut(Entry)) -> Result {
    if recursive && path.is_root() {
        let hint = "Name the space: 'percale:/SPACE/**'.";
        return Err(Failure::usage("'**' does not look through all spaces").with_hint(hint));
    }
    let options = ListOptions { recursive, ..ListOptions::default() };
    let mut cursor = None;
    loop {
        let page = match client.list(path, options, cursor.as_deref()).await {
            Ok(page) => page,
            Err(error)
                if matches!(
                    error.code(),
                    ErrorCode::NotFound | ErrorCode::NotACollection | ErrorCode::SpaceNotFound
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(Failure::from(error).when(format!("cannot look for {}", show(path)))),
        };
        page.items.into_iter().for_each(&mut each);
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}
