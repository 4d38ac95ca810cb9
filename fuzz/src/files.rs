//! Files that are read, and how they are broken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use percale_discovery::formats;
use percale_discovery::references::{Reference, References};
use percale_discovery::source::File;

use crate::made;

/// Largest file that is broken.
const MAX_SIZE: u64 = 256 * 1024;
/// Most files.
const MAX_FILES: usize = 2000;
/// Numbers at which readers stumble.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX.unsigned_abs(), u64::MAX];

/// A file with its name.
pub type Named = (String, Vec<u8>);

/// Returns a small file of each format, and what is of one below the folders.
pub fn all(folders: impl Iterator<Item = String>) -> Vec<Named> {
    let mut files: Vec<Named> =
        made::all().into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    folders.for_each(|folder| gather(Path::new(&folder), &mut files));
    files
}

/// Has a file read in each way. Tells whether all references are to bytes that there are.
///
/// # Panics
/// If a reader does: the process that reads headers catches that.
pub fn read((name, bytes): &Named) -> bool {
    let file = File::new(Arc::new(bytes.clone()));
    let _ = formats::read(&file, name).map(|found| found.map(|found| found.finish()));
    formats::references::read(&file).ok().flatten().is_none_or(|found| is_within(&found, file.size()))
}

fn gather(folder: &Path, files: &mut Vec<Named>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.is_dir() {
            gather(&path, files);
        } else if about.is_file() && about.len() <= MAX_SIZE && files.len() < MAX_FILES {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Ok(bytes) = std::fs::read(&path) else { continue };
            // What is of no format stays so.
            let file = File::new(Arc::new(bytes.clone()));
            if matches!(
                catch_unwind(AssertUnwindSafe(
                    || formats::read(&file, &name).is_ok_and(|found| found.is_some())
                )),
                Ok(true)
            ) {
                files.push((name, bytes));
            }
        }
    }
}

fn is_within(found: &References, size: u64) -> bool {
    found.refs.values().all(|reference| match reference {
        Reference::Range(offset, len) => offset.checked_add(*len).is_some_and(|end| end <= size),
        Reference::Text(_) => true,
    })
}

/// Breaks one of the files.
pub fn broken(files: &[Named], random: &mut Rng) -> Option<Named> {
    let (name, bytes) = random.choice(files)?;
    let mut bytes = bytes.clone();
    for _ in 0..=random.usize(0..8) {
        // Most of what is read stands at the beginning.
        let most = if random.bool() { bytes.len().min(1024) } else { bytes.len() };
        let at = random.usize(0..most.max(1));
        match random.u8(0..6) {
            0 => bytes.truncate(at),
            1 => {
                let edge = random.choice(EDGES).unwrap_or_default();
                let width = random.choice([1, 2, 4, 8]).unwrap_or(1);
                let digits = if random.bool() {
                    edge.to_le_bytes()
                } else {
                    edge.rotate_left(64 - width as u32 * 8).to_be_bytes()
                };
                for (byte, digit) in bytes.iter_mut().skip(at).zip(digits).take(width) {
                    *byte = digit;
                }
            }
            2 => {
                let (_, other) = random.choice(files)?;
                let from = random.usize(0..other.len().max(1));
                for (byte, taken) in bytes.iter_mut().skip(at).zip(other.iter().skip(from)).take(64) {
                    *byte = *taken;
                }
            }
            3 => drop(bytes.drain(
                at.min(bytes.len())..(at + random.usize(0..64)).min(bytes.len()).max(at.min(bytes.len())),
            )),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.u32(0..8);
                }
            }
        }
    }
    Some((name.clone(), bytes))
}
