//! Prints the references of files as one store: `references [--concat DIMENSION] FILE…`. With `--each`, those of each file, in a line.

mod disk;

use std::io::{self, Write as _};

use percale_discovery::formats;
use percale_discovery::references::{MergeOptions, Part, References, merge};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    let mut options = MergeOptions::default();
    let (mut parts, mut is_each) = (Vec::new(), false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--each" => is_each = true,
            "--concat" => options.concat = words.next(),
            path => {
                let references = read(path)?;
                if is_each {
                    writeln!(out, "{}", serde_json::to_string(&references)?)?;
                    continue;
                }
                parts.push(Part::new(path, format!("file://{path}"), references)?);
            }
        }
    }
    if !is_each {
        let merged = merge(parts, &options)?;
        for one in &merged.left_out {
            eprintln!("{}: {}", one.variable, one.why);
        }
        merged.notes.iter().for_each(|note| eprintln!("{note}"));
        merged.write(&mut out)?;
    }
    Ok(())
}

fn read(path: &str) -> Result<References, Box<dyn std::error::Error>> {
    Ok(formats::references::read(&disk::open(path)?)?
        .ok_or("it has no format of which there are references")?)
}
