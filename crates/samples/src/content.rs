//! Bytes that follow from a seed and an offset, so that a test knows what every part of a file must be without keeping
//! it. They do not compress, and no two groups are the same.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{Random, SampleFile};

/// Fills `buffer` with what a content of this seed has at `offset`.
pub fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    reader.set_position(offset);
    reader.fill(buffer);
}

/// Returns a whole content.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, 0, &mut bytes);
    bytes
}

/// Writes a content to a file.
///
/// # Errors
/// Those of the file system.
pub fn write_file(path: &Path, seed: u64, len: u64) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < len {
        let now = usize::try_from((len - offset).min(buffer.len() as u64)).unwrap_or(buffer.len());
        fill(seed, offset, &mut buffer[..now]);
        file.write_all(&buffer[..now])?;
        offset += now as u64;
    }
    Ok(())
}

/// What a tree of binary files is to be like.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TreeOptions {
    /// Seed of names, sizes and bytes. Default 1.
    pub seed: u64,
    /// Number of files. Default 100.
    pub files: usize,
    /// Files in one directory at most. Default 1000.
    pub per_directory: usize,
    /// Smallest size in bytes. Default 0.
    pub min_size: u64,
    /// Largest size in bytes. Default 64 KiB. Sizes between the two are spread evenly over the orders of magnitude, as
    /// those of real trees are.
    pub max_size: u64,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self { seed: 1, files: 100, per_directory: 1000, min_size: 0, max_size: 64 << 10 }
    }
}

/// Makes a tree of binary files below `directory`.
///
/// # Errors
/// Those of the file system.
pub fn write_tree(directory: &Path, options: &TreeOptions) -> io::Result<Vec<SampleFile>> {
    let random = Random::new(options.seed);
    let per_directory = options.per_directory.max(1);
    let mut files = Vec::with_capacity(options.files);
    for number in 0..options.files {
        let run = PathBuf::from(format!("run{:03}", number / per_directory));
        if number % per_directory == 0 {
            fs::create_dir_all(directory.join(&run))?;
        }
        let mut series = random.fork(number as u64);
        let size = size_between(&mut series, options.min_size, options.max_size);
        let path = run.join(format!("part-{number:06}.dat"));
        write_file(&directory.join(&path), series.next(), size)?;
        files.push(SampleFile { path, size });
    }
    Ok(files)
}

fn size_between(random: &mut Random, min: u64, max: u64) -> u64 {
    if max <= min {
        return min;
    }
    let (low, high) = ((min as f64 + 1.0).ln(), (max as f64 + 1.0).ln());
    let size = (low + random.unit() * (high - low)).exp() - 1.0;
    (size.round() as u64).clamp(min, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_the_same_as_in_the_whole() {
        let whole = bytes(7, 10_000);
        for (offset, len) in [(0, 10), (63, 130), (9_000, 1_000), (5, 0)] {
            let mut part = vec![0; len];
            fill(7, offset as u64, &mut part);
            assert_eq!(part, whole[offset..offset + len]);
        }
        assert_ne!(bytes(8, 100), whole[..100]);
    }

    #[test]
    fn a_tree_is_the_same_twice() {
        let options = TreeOptions {
            files: 30,
            per_directory: 10,
            min_size: 1,
            max_size: 100_000,
            ..Default::default()
        };
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = write_tree(one.path(), &options).unwrap();
        assert_eq!(write_tree(two.path(), &options).unwrap(), files);
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 3);
        let mut sizes = Vec::new();
        for file in &files {
            let content = fs::read(one.path().join(&file.path)).unwrap();
            assert_eq!(content.len() as u64, file.size);
            assert_eq!(content, fs::read(two.path().join(&file.path)).unwrap());
            assert!((1..=100_000).contains(&file.size));
            sizes.push(file.size);
        }
        sizes.sort_unstable();
        assert!(sizes[0] < 100 && sizes[29] > 10_000, "sizes differ by orders of magnitude: {sizes:?}");
    }
}
