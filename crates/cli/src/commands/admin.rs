//! `admin`: care of the server's catalogue, on its own host. The catalogue is opened as the server's configuration says;
//! a backup and a check may run while the server does.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use percale_catalog::{BackupInfo, Catalog, CatalogConfig};
use percale_core::ErrorCode;
use serde_json::json;

use super::serve::{load, server_failure};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{count, size, time};

mod files;

use files::FileFinding;

/// `percale admin`
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Write the whole catalogue to a file
    Backup(BackupArgs),
    /// Fill an empty catalogue from a backup
    Restore(RestoreArgs),
    /// Check that the catalogue's rows agree with each other, and with the files on the stores
    Fsck(FsckArgs),
}

/// Which server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The server's configuration file
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's state directory
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// `percale admin backup`
#[derive(Debug, Args)]
#[command(after_help = "\
The backup holds the catalogue as of one moment, is read back and checked. The server may run. It holds no file contents and
not the site's keys: copy the state directory's key files too.

Examples:
  percale admin backup /srv/backup/catalog.pcb
  percale admin backup --config /etc/percale/percale.toml /srv/backup/catalog.pcb
  percale admin backup --verify /srv/backup/catalog.pcb       only checks one that is there")]
pub struct BackupArgs {
    /// The file to write; must not exist
    file: PathBuf,
    /// Only read the file and check it
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// `percale admin restore`
#[derive(Debug, Args)]
#[command(after_help = "\
The catalogue must be empty and the server stopped. The term of every space grows, so that followers notice. It may be of
the other engine than the one that was backed up: this is also the way from SQLite to PostgreSQL.

Examples:
  percale admin restore --verify /srv/backup/catalog.pcb      only checks the backup
  percale admin restore /srv/backup/catalog.pcb
  percale admin restore --config /etc/percale/new.toml /srv/backup/catalog.pcb")]
pub struct RestoreArgs {
    /// The backup
    file: PathBuf,
    /// Only read the file and check it
    #[arg(long, short = 'n', visible_alias = "dry-run")]
    verify: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// `percale admin fsck`
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is changed; the server may run. Exit code 7 if something is wrong. Contents are checked by `percale check --deep`.

Examples:
  percale admin fsck
  percale admin fsck --rows                    only the catalogue, not the stores
  percale admin fsck --state-dir /srv/percale
  percale admin fsck --json | jq -r .kind")]
pub struct FsckArgs {
    /// Only the catalogue's rows; do not look at the stores
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs a command of the group.
pub async fn run(command: AdminCommand, context: &Context) -> Result {
    match command {
        AdminCommand::Backup(BackupArgs { file, verify: true, .. })
        | AdminCommand::Restore(RestoreArgs { file, verify: true, .. }) => {
            let info = context.interruptible(Catalog::verify_backup(&file)).await?.map_err(failure)?;
            tell(context, "checked", &file, &info)
        }
        AdminCommand::Backup(args) => {
            let (catalog, _) = open(&args.server).await?;
            let info = context.interruptible(catalog.backup(&args.file)).await?;
            catalog.close().await;
            tell(context, "wrote", &args.file, &info.map_err(failure)?)
        }
        AdminCommand::Restore(args) => {
            context.confirm(&format!("Fill the catalogue from {}?", args.file.display()))?;
            let (catalog, _) = open(&args.server).await?;
            // Not interruptible: half a catalogue helps nobody, and an orderly end is quick.
            let info = catalog.restore(&args.file).await;
            catalog.close().await;
            tell(context, "restored", &args.file, &info.map_err(failure)?)?;
            context.output.next("percale serve, then percale admin fsck");
            Ok(())
        }
        AdminCommand::Fsck(args) => fsck(args, context).await,
    }
}

async fn fsck(args: FsckArgs, context: &Context) -> Result {
    let (catalog, state_dir) = open(&args.server).await?;
    let look = async {
        let rows = catalog.fsck().await.map_err(failure)?;
        let mut findings: Vec<FileFinding> = rows
            .into_iter()
            .map(|finding| FileFinding {
                kind: finding.kind,
                subject: finding.subject,
                detail: finding.detail,
            })
            .collect();
        if !args.rows {
            findings.extend(files::compare(&catalog, &state_dir).await?);
        }
        Ok(findings)
    };
    let findings: Result<Vec<FileFinding>> = context.interruptible(look).await?;
    catalog.close().await;
    let findings = findings?;
    context.output.list(
        &findings,
        &["kind", "on", "what"],
        |finding| finding.subject.clone(),
        |finding| vec![finding.kind.to_owned(), finding.subject.clone(), finding.detail.clone()],
    )?;
    if findings.is_empty() {
        context.output.talk("nothing is wrong");
        return Ok(());
    }
    let message = format!("{} found", count(findings.len() as u64, "fault"));
    Err(Failure::new(ErrorCode::Integrity, message)
        .with_hint("Make a backup before anything else; `percale check --deep` looks at the contents."))
}

async fn open(args: &ServerArgs) -> Result<(Catalog, PathBuf)> {
    let flags = args.state_dir.iter().map(|path| ("site.state_dir".to_owned(), path.display().to_string()));
    let config = load(args.config.as_deref(), flags.collect())?.config;
    let url = config.catalog_url().map_err(|error| server_failure(&error))?;
    let mut catalog = CatalogConfig::new(url);
    catalog.pool_size = config.catalog.pool_size;
    catalog.retry_budget = config.catalog.retry_budget;
    catalog.search_timeout = config.catalog.search_timeout;
    Ok((Catalog::open(&catalog).await.map_err(failure)?, config.site.state_dir))
}

fn failure(error: percale_catalog::Error) -> Failure {
    Failure::new(error.code(), error.to_string())
}

fn tell(context: &Context, verb: &str, file: &std::path::Path, info: &BackupInfo) -> Result {
    if context.output.json {
        return context.output.document(&json!({"file": file, "done": verb, "backup": info}));
    }
    let bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    context.output.line(format!(
        "{verb} {} ({}, {}, taken {} UTC, blake3 {})",
        file.display(),
        size(bytes),
        count(info.rows, "row"),
        time(info.taken),
        info.blake3
    ))
}
