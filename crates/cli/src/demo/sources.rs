//! The files that are ingested: one's own, real ones from Debian packages, or look-alikes made here.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::disk::blocking;

/// Scientific files inside Debian packages, by others; `scripts/bootstrap demo` installs them where it may.
const PACKAGES: [(&str, &str); 4] = [
    ("ferret-datasets", "/usr/share/ferret-vis/data"),
    ("libncarg-data", "/usr/share/ncarg"),
    ("gmt-gshhg-full", "/usr/share/gmt-gshhg"),
    ("python-tables-data", "/usr/share/python-tables"),
];

/// A directory that is put whole.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the collection that it becomes.
    pub name: String,
    /// Where it lies.
    pub root: PathBuf,
    /// Every file of it.
    pub files: Vec<PathBuf>,
    /// Bytes in all.
    pub bytes: u64,
    /// What it is, in words.
    pub origin: Origin,
    /// Files of each format.
    pub formats: BTreeMap<&'static str, usize>,
}

/// Where files come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Of the person who runs the demo.
    Own,
    /// From a Debian package.
    Package,
    /// Made here, from a seed.
    Generated,
}

/// Chooses what is ingested.
///
/// # Errors
/// `own` has no file, or a directory cannot be read.
pub async fn choose(own: Option<PathBuf>, generated: PathBuf) -> anyhow::Result<Vec<Source>> {
    blocking(move || {
        if let Some(root) = own {
            let root = root.canonicalize().with_context(|| format!("cannot find {}", root.display()))?;
            let name = root.file_name().and_then(|name| name.to_str()).unwrap_or("data").to_owned();
            let source = look(name, &root, Origin::Own)?;
            if source.files.is_empty() {
                bail!("there is no file below {}", root.display());
            }
            return Ok(vec![source]);
        }
        let mut sources = Vec::new();
        for (name, root) in PACKAGES {
            if Path::new(root).is_dir() {
                sources.push(look(name.to_owned(), Path::new(root), Origin::Package)?);
            }
        }
        sources.retain(|source| !source.files.is_empty());
        if sources.is_empty() {
            sources.push(generate(&generated)?);
        }
        Ok(sources)
    })
    .await
}

fn generate(at: &Path) -> anyhow::Result<Source> {
    let done = at.join(".complete");
    if !done.is_file() {
        fs::create_dir_all(at)?;
        let options = percale_samples::climate::Options::default();
        percale_samples::climate::write_tree(&at.join("climate"), &options)
            .with_context(|| format!("cannot make sample data in {}", at.display()))?;
        File::create(done)?;
    }
    look("sample-data".to_owned(), &at.join("climate"), Origin::Generated)
}

/// Finds the files. Symbolic links are passed over, as the put passes over them.
fn look(name: String, root: &Path, origin: Origin) -> anyhow::Result<Source> {
    let mut source =
        Source { name, root: root.to_owned(), files: Vec::new(), bytes: 0, origin, formats: BTreeMap::new() };
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                source.bytes += entry.metadata()?.len();
                *source.formats.entry(format_of(&entry.path())).or_default() += 1;
                source.files.push(entry.path());
            }
        }
    }
    source.files.sort();
    Ok(source)
}

/// Knows a file by its first bytes.
fn format_of(path: &Path) -> &'static str {
    let mut first = [0; 8];
    let len = File::open(path).and_then(|mut file| file.read(&mut first)).unwrap_or(0);
    match &first[..len] {
        [b'C', b'D', b'F', 1 | 2 | 5, ..] => "NetCDF-3",
        [0x89, b'H', b'D', b'F', ..] => "HDF5/NetCDF-4",
        [0x0e, 0x03, 0x13, 0x01, ..] => "HDF4",
        [b'G', b'R', b'I', b'B', ..] => "GRIB",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ones_own_files_are_found_and_known_by_their_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("a.nc"), b"CDF\x01rest").unwrap();
        fs::write(folder.path().join("sub/b.h5"), b"\x89HDF\r\n\x1a\n").unwrap();
        fs::write(folder.path().join("sub/empty"), b"").unwrap();
        std::os::unix::fs::symlink("a.nc", folder.path().join("link")).unwrap();
        let sources = choose(Some(folder.path().to_owned()), folder.path().join("none")).await.unwrap();
        assert_eq!((sources[0].files.len(), sources[0].bytes), (3, 16));
        assert_eq!(sources[0].formats, BTreeMap::from([("NetCDF-3", 1), ("HDF5/NetCDF-4", 1), ("other", 1)]));
        let empty = tempfile::tempdir().unwrap();
        assert!(choose(Some(empty.path().to_owned()), empty.path().join("none")).await.is_err());
    }

    #[tokio::test]
    async fn look_alikes_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("sample-data");
        let first = blocking({
            let at = at.clone();
            move || generate(&at)
        })
        .await
        .unwrap();
        assert_eq!((first.origin, first.files.len()), (Origin::Generated, 120));
        assert_eq!(first.formats, BTreeMap::from([("NetCDF-3", 120)]));
        let made = fs::metadata(&first.files[0]).unwrap().modified().unwrap();
        generate(&at).unwrap();
        assert_eq!(fs::metadata(&first.files[0]).unwrap().modified().unwrap(), made);
    }
}
