//! `cat` and `head`.

use clap::Args;
use percale_client::Client;
use percale_core::{ByteCount, ByteRange};

use super::grant::fabric_path;
use crate::address::FabricPath;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Lines;
use crate::wildcards::expand;

/// `percale cat`
#[derive(Debug, Args)]
#[command(after_help = "\
Every byte is verified before it is written. If something is wrong, the output ends before the first wrong byte.

Examples:
  percale cat percale:/climate/readme.txt
  percale cat percale:/climate/era5/2024.nc > 2024.nc
  percale cat --offset 1MiB --count 512 percale:/climate/a.h5 | xxd
  percale cat 'percale:/logs/2024-*.txt' | grep -c error")]
pub struct CatArgs {
    /// The objects
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// Begin so many bytes from the start
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: ByteCount,
    /// At most so many bytes
    #[arg(long, value_name = "SIZE")]
    count: Option<ByteCount>,
}

/// `percale head`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale head percale:/climate/readme.txt
  percale head -n 3 percale:/climate/table.csv
  percale head -c 8 percale:/climate/a.h5 | xxd")]
pub struct HeadArgs {
    /// The objects
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// So many bytes
    #[arg(long, short = 'c', value_name = "SIZE", conflicts_with = "lines")]
    bytes: Option<ByteCount>,
    /// So many lines
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
    lines: u64,
}

/// Writes objects to standard output.
pub async fn cat(args: CatArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    for path in expand(&client, args.paths).await? {
        let len = args.count.map_or(u64::MAX - args.offset.0, ByteCount::get);
        copy(&client, &path, ByteRange::at(args.offset.0, len), u64::MAX).await?;
    }
    Ok(())
}

/// Writes the beginnings of objects to standard output.
pub async fn head(args: HeadArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    for path in expand(&client, args.paths).await? {
        let (range, lines) = match args.bytes {
            Some(bytes) => (ByteRange::at(0, bytes.0), u64::MAX),
            None => (ByteRange::at(0, u64::MAX), args.lines),
        };
        copy(&client, &path, range, lines).await?;
    }
    Ok(())
}

/// Writes a range of an object, at most so many lines of it.
async fn copy(client: &Client, path: &FabricPath, range: ByteRange, mut lines: u64) -> Result {
    let mut reader = client.read(&path.path, Some(range)).await?;
    while lines > 0
        && let Some(bytes) = reader.next().await?
    {
        // Standard output may be a pipe that nobody empties for a while.
        let written = tokio::task::spawn_blocking(move || -> Result<u64> {
            let mut end = bytes.len();
            if lines != u64::MAX {
                for (at, byte) in bytes.iter().enumerate() {
                    lines -= u64::from(*byte == b'\n');
                    if lines == 0 {
                        end = at + 1;
                        break;
                    }
                }
            }
            let mut out = Lines::open();
            out.bytes(&bytes[..end])?;
            out.finish()?;
            Ok(lines)
        });
        lines = written.await.unwrap_or_else(|error| {
            Err(Failure::new(percale_core::ErrorCode::Internal, format!("cannot write the output: {error}")))
        })?;
    }
    Ok(())
}
