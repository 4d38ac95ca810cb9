//! Paths that a file lists, such as what a search printed.

use std::io::{self, BufRead, BufReader};
use std::path::Path;

use percale_client::Client;

use crate::address::FabricPath;
use crate::commands::grant::fabric_path;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::wildcards::expand;

/// Reads the paths in a file, or in standard input for `-`: one in each line, as it is, without wildcards.
pub fn listed(file: &Path) -> Result<Vec<FabricPath>> {
    let read = |input: &mut dyn BufRead| input.lines().collect::<io::Result<Vec<String>>>();
    let lines = match file.as_os_str() == "-" {
        true => read(&mut io::stdin().lock()),
        false => std::fs::File::open(file).and_then(|file| read(&mut BufReader::new(file))),
    };
    let unread = |error| Failure::usage(format!("cannot read {}: {error}", file.display()));
    let lines = lines.map_err(unread)?;
    let named = lines.iter().filter(|line| !line.trim().is_empty());
    named.map(|line| fabric_path(line).map_err(Failure::usage)).collect()
}

/// Returns the client of the site that is asked, and all that is named: by arguments, which may have wildcards, and by a list.
pub async fn resolve(
    named: Vec<FabricPath>,
    listed: Vec<FabricPath>,
    context: &Context,
) -> Result<(Client, Vec<FabricPath>)> {
    let client = context.client_for(named.iter().chain(&listed))?;
    let mut paths = context.interruptible(expand(&client, named)).await??;
    paths.extend(listed);
    Ok((client, paths))
}
