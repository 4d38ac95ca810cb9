//! Prints what the headers of files say: `headers FILE…`, a line of JSON for each; files may also be named by lines of standard input
//! (`-`).

mod disk;

use std::io::{self, BufRead, Write as _};
use std::path::Path;

use percale_discovery::formats;
use serde_json::json;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for path in std::env::args().skip(1) {
        let paths =
            if path == "-" { io::stdin().lock().lines().collect::<Result<_, _>>()? } else { vec![path] };
        for path in paths {
            writeln!(out, "{}", line(&path)?)?;
        }
    }
    Ok(())
}

fn line(path: &str) -> io::Result<serde_json::Value> {
    let file = disk::open(path)?;
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    Ok(match formats::read(&file, &name) {
        Ok(Some(header)) => json!({ "path": path, "found": header.finish() }),
        Ok(None) => json!({ "path": path }),
        Err(error) => json!({ "path": path, "error": error.to_string() }),
    })
}
