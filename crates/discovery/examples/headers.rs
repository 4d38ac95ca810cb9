//! Prints what the headers of files say: `headers FILE…`, a line of JSON for each; files may also be named by lines of standard input
//! (`-`).

use std::fs::File;
use std::io::{self, BufRead, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use percale_discovery::formats;
use percale_discovery::source::{self, Source};
use serde_json::json;

struct OnDisk(File, u64);

impl Source for OnDisk {
    fn size(&self) -> u64 {
        self.1
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

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
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let file = source::File::new(Arc::new(OnDisk(file, size)));
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    Ok(match formats::read(&file, &name) {
        Ok(Some(header)) => json!({ "path": path, "found": header.finish() }),
        Ok(None) => json!({ "path": path }),
        Err(error) => json!({ "path": path, "error": error.to_string() }),
    })
}
