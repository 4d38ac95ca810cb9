//! `search --refs`: the arrays of what was found, as one store of Zarr whose chunks lie in the files.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use percale_api::attributes::{ObjectReferences, Reference};
use percale_api::entries::Entry;
use percale_client::Client;
use percale_core::ErrorCode;
use percale_discovery::references::{
    LeftOut, MergeError, MergeOptions, Merged, Part, Reference as Found, References, merge,
};
use serde::Serialize;

use crate::address::show;
use crate::atomic_file::AtomicFile;
use crate::context::Context;
use crate::failure::{Failure, Result};

/// Files of which the references are asked for at once.
const AT_ONCE: usize = 8;

/// What was written, for programs.
#[derive(Debug, Serialize)]
struct Written {
    references: PathBuf,
    files: usize,
    variables: usize,
    joined: usize,
    concat: Option<String>,
    left_out: Vec<LeftOut>,
    notes: Vec<String>,
}

/// Writes the references of what was found.
pub(super) async fn write(
    client: &Client,
    mut found: Vec<Entry>,
    to: &Path,
    options: MergeOptions,
    context: &Context,
) -> Result {
    found.retain(|entry| entry.content.is_some());
    if found.is_empty() {
        let hint =
            "Look what the query finds without --refs; only objects have arrays, and no collection has.";
        return Err(Failure::new(ErrorCode::NotFound, "no object was found").with_hint(hint));
    }
    if !options.keep_order {
        found.sort_by(|a, b| a.path.cmp(&b.path));
    }
    let files = found.len();
    let parts = stream::iter(found).map(|entry| part(client, entry)).buffered(AT_ONCE).try_collect();
    let parts: Vec<Part> = context.interruptible(parts).await??;
    let merged = merge(parts, &options).map_err(failure)?;
    let file = AtomicFile::create(to)?;
    let mut out = BufWriter::new(file.file());
    merged.write(&mut out).and_then(|()| out.flush()).map_err(|error| file.failure(&error))?;
    drop(out);
    file.put_in_place()?;
    let Merged { concat, joined, variables, left_out, notes, .. } = merged;
    if context.output.json {
        let references = to.to_owned();
        let written = Written { references, files, variables, joined, concat, left_out, notes };
        return context.output.document(&written);
    }
    for LeftOut { variable, why } in &left_out {
        context.output.talk(format!("left out: {variable}: {why}"));
    }
    notes.iter().for_each(|note| context.output.talk(format!("note: {note}")));
    let is_joined = match concat {
        Some(dimension) => format!(", {joined} of them joined along {dimension}"),
        None => String::new(),
    };
    let said = format!("{}: files: {files}, variables: {variables}{is_joined}", to.display());
    context.output.line(if context.output.quiet { to.display().to_string() } else { said })
}

/// Asks for the references of a file.
async fn part(client: &Client, entry: Entry) -> Result<Part> {
    let name = show(&entry.path);
    let answer = client.references(&entry.path).await.map_err(|error| {
        let failure = Failure::from(&error);
        match error.code() {
            ErrorCode::Unsupported => {
                failure.with_hint("Search for HDF5 and NetCDF alone, as with 'format:netcdf*' or 'ext:nc'.")
            }
            _ => failure,
        }
    })?;
    let ObjectReferences { version, refs, values, left_out, .. } = answer;
    let reference = |(key, reference)| match reference {
        Reference::Text(text) => (key, Found::Text(text)),
        Reference::Range([offset, len]) => (key, Found::Range(offset, len)),
    };
    let references = References {
        refs: refs.into_iter().map(reference).collect(),
        values,
        left_out: left_out.into_iter().map(|one| LeftOut { variable: one.variable, why: one.why }).collect(),
    };
    // To take them apart is work, which is not the runtime's.
    let url = client.content_url(&entry.path, version);
    let part = tokio::task::spawn_blocking(move || Part::new(name, url, references));
    let part = part.await.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
    part.map_err(failure)
}

fn failure(error: MergeError) -> Failure {
    let failure = Failure::usage(error.to_string());
    match error.what_helps() {
        Some(hint) => failure.with_hint(hint),
        None => failure.with_hint("Narrow the search to files that are parts of one array."),
    }
}
