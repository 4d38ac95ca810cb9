//! `task receipt` and `task verify-receipt`: what a task has brought, signed by the site where it ran.

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use percale_api::receipt::Header;
use percale_client::Client;
use percale_client::receipt::{CheckError, Receipt, Unproven, read_receipt};
use percale_core::ids::TaskId;
use percale_core::{ErrorCode, Timestamp};
use percale_trust::SitePublicKey;
use serde::Serialize;

use crate::atomic_file::AtomicFile;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Lines, Output, count, size, time};

/// `percale task receipt`
#[derive(Debug, Args)]
#[command(after_help = "\
JSON lines: what the task was, a line for each copy that it brought, and the BLAKE3 of these lines, signed with the key of the site
where it ran. Tasks that bring bytes have one, once they have ended: replicate, copy, sync, and emptying a store.

Examples:
  percale task receipt 0193a1b2-0000-7000-8000-000000000001 --output receipt.jsonl
  percale task receipt 0193a1b2-0000-7000-8000-000000000001 | jq -r 'select(.n) | .path'")]
pub struct ReceiptArgs {
    /// The id
    id: TaskId,
    /// Write it to this file, in place of what is there
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// `percale task verify-receipt`
#[derive(Debug, Args)]
#[command(after_help = "\
With --site-key no site is asked. A receipt that was signed before its site changed its key can be fetched again.

Examples:
  percale task verify-receipt receipt.jsonl
  percale task verify-receipt --site-key 3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c receipt.jsonl")]
pub struct VerifyArgs {
    /// The file, or - for standard input
    file: PathBuf,
    /// The key of the site where the task ran, 64 hexadecimal digits; else the one that the site in use knows
    #[arg(long, value_name = "KEY")]
    site_key: Option<SitePublicKey>,
}

/// What a good receipt says.
#[derive(Debug, Serialize)]
struct Good {
    result: &'static str,
    key_id: String,
    signed: Timestamp,
    #[serde(flatten)]
    header: Header,
}

/// Fetches a receipt.
pub async fn fetch(args: ReceiptArgs, client: &Client, output: Output) -> Result {
    let mut receipt = client.task_receipt(args.id).await?;
    let Some(path) = args.output else {
        return print(&mut receipt).await;
    };
    let file = AtomicFile::create(&path)?;
    while let Some(bytes) = receipt.next().await? {
        file.file().write_all(&bytes).map_err(|error| file.failure(&error))?;
    }
    file.put_in_place()?;
    output.talk(format!("the receipt of task {} is in {}", args.id, path.display()));
    output.next(format!("percale task verify-receipt {}", path.display()));
    Ok(())
}

async fn print(receipt: &mut Receipt) -> Result {
    while let Some(bytes) = receipt.next().await? {
        // Standard output may be a pipe that nobody empties for a while.
        let written = tokio::task::spawn_blocking(move || -> Result {
            let mut out = Lines::open();
            out.bytes(&bytes)?;
            out.finish()
        });
        written.await.map_err(|error| {
            Failure::new(ErrorCode::Internal, format!("cannot write the output: {error}"))
        })??;
    }
    Ok(())
}

/// Checks a receipt.
pub async fn verify(args: VerifyArgs, context: &Context) -> Result {
    let shown = match args.file.as_os_str() == "-" {
        true => "the receipt".to_owned(),
        false => format!("the receipt {}", args.file.display()),
    };
    let path = args.file.clone();
    let unproven = tokio::task::spawn_blocking(move || read(&path)).await;
    let unproven = unproven.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))??;
    let header = unproven.header().clone();
    let keys = match args.site_key {
        Some(key) => vec![key],
        None => known_keys(&header, context).await?,
    };
    let (key, seal) = unproven.prove(&keys).map_err(|flaw| {
        let failure = Failure::new(ErrorCode::Integrity, format!("{shown} is not good: {flaw}"));
        failure.with_hint(format!(
            "`percale site show {}` tells the site's key; `percale task receipt {}` fetches the receipt again.",
            header.site.name, header.task
        ))
    })?;
    let good = Good { result: "good", key_id: key.key_id(), signed: seal.signed, header };
    context.output.one(
        &good,
        |good| good.header.task.to_string(),
        |good| {
            let Header { task, site, state, owner, listed, listed_bytes, ended, .. } = &good.header;
            let copies = count(*listed, "object");
            format!(
                "{shown} is good: signed by site {} (key {}) at {} UTC\ntask {task} for {owner}: {state} at {} UTC, {copies}, {}",
                site.name,
                good.key_id,
                time(good.signed),
                time(*ended),
                size(*listed_bytes)
            )
        },
    )
}

/// Reads a receipt and checks all but the signature.
fn read(path: &Path) -> Result<Unproven> {
    let is_stdin = path.as_os_str() == "-";
    let from: Box<dyn BufRead> = match is_stdin {
        true => Box::new(std::io::stdin().lock()),
        false => {
            let file = File::open(path).map_err(|error| Failure::local("read", path, &error))?;
            Box::new(BufReader::with_capacity(64 << 10, file))
        }
    };
    read_receipt(from).map_err(|error| match error {
        CheckError::Io(error) => Failure::local("read", path, &error),
        CheckError::Flaw(flaw) => {
            let shown = if is_stdin { String::new() } else { format!(" {}", path.display()) };
            let failure =
                Failure::new(ErrorCode::Integrity, format!("the receipt{shown} is not good: {flaw}"));
            failure.with_hint("`percale task receipt` fetches it again from the site where the task ran.")
        }
    })
}

/// Returns the keys that the site of a receipt is known to have.
async fn known_keys(header: &Header, context: &Context) -> Result<Vec<SitePublicKey>> {
    let sites = context.client()?.all_sites().await?;
    let site = sites.into_iter().find(|site| site.member.id == header.site.id).ok_or_else(|| {
        let text = format!("the site in use knows no site {} ({})", header.site.name, header.site.id);
        Failure::new(ErrorCode::NotFound, text)
            .with_hint("Give the key of the site where the task ran with --site-key.")
    })?;
    let member = site.member;
    let keys = std::iter::once(member.key).chain(member.old_key);
    keys.map(|key| key.parse()).collect::<Result<_, _>>().map_err(|error| {
        Failure::new(ErrorCode::Internal, format!("the key of site {}: {error}", member.name))
    })
}
