//! The note from which a later run of the same command goes on with an upload.
//!
//! A JSON file named after what is uploaded where. It may be lost or wrong at any time: then the upload begins anew.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use percale_api::uploads::Condition;
use percale_core::ObjectPath;
use percale_core::ids::LeaseId;
use percale_core::tree::RootHash;
use serde::{Deserialize, Serialize};

use crate::local::Fingerprint;

const VERSION: u32 = 1;
const MAX_BYTES: u64 = 64 << 10;

/// What is noted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Noted {
    v: u32,
    /// For people who look into the file.
    url: String,
    path: ObjectPath,
    pub upload: LeaseId,
    pub fingerprint: Fingerprint,
    pub condition: Condition,
}

/// The file of one upload, locked for as long as it is open.
#[derive(Debug)]
pub(crate) struct StateFile(Option<Open>);

#[derive(Debug)]
struct Open {
    file: File,
    location: PathBuf,
    url: String,
    path: ObjectPath,
}

impl StateFile {
    /// An upload that cannot be taken up by a later run.
    pub fn none() -> Self {
        Self(None)
    }

    /// Opens the note of an upload. If it cannot be had (no such folder, another process uploads the same file), the
    /// upload goes on without.
    pub fn open(folder: &Path, url: &str, path: &ObjectPath, local: &Path) -> Self {
        let open = || -> std::io::Result<Open> {
            let local = fs::canonicalize(local)?;
            let name = RootHash::of(format!("{url}\0{path}\0{}", local.display()).as_bytes()).to_string();
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let location = folder.join(format!("{}.json", &name[..32]));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&location)?;
            file.try_lock()?;
            Ok(Open { file, location, url: url.to_owned(), path: path.clone() })
        };
        match open() {
            Ok(open) => Self(Some(open)),
            Err(error) => {
                tracing::debug!(%error, folder = %folder.display(), "uploads without a note for a later resume");
                Self(None)
            }
        }
    }

    /// Reads what an earlier run noted.
    pub fn noted(&mut self) -> Option<Noted> {
        let open = self.0.as_mut()?;
        let mut text = Vec::new();
        open.file.rewind().ok()?;
        (&open.file).take(MAX_BYTES).read_to_end(&mut text).ok()?;
        let noted: Noted = serde_json::from_slice(&text).ok()?;
        (noted.v == VERSION && noted.url == open.url && noted.path == open.path).then_some(noted)
    }

    /// Notes an upload that was opened.
    pub fn note(&mut self, upload: LeaseId, fingerprint: Fingerprint, condition: Condition) {
        let Some(open) = self.0.as_mut() else { return };
        let noted = Noted {
            v: VERSION,
            url: open.url.clone(),
            path: open.path.clone(),
            upload,
            fingerprint,
            condition,
        };
        let write = || -> std::io::Result<()> {
            open.file.rewind()?;
            open.file.set_len(0)?;
            open.file.write_all(&serde_json::to_vec(&noted)?)?;
            open.file.sync_data()
        };
        let mut write = write;
        if let Err(error) = write() {
            tracing::debug!(%error, "the note for a later resume cannot be written");
        }
    }

    /// Removes the note, since there is nothing to take up any more.
    pub fn remove(&mut self) {
        if let Some(open) = self.0.take() {
            let _ = fs::remove_file(&open.location);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_again_and_damage_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let local = folder.path().join("a.nc");
        fs::write(&local, "x").unwrap();
        let fingerprint = Fingerprint::of(&fs::metadata(&local).unwrap());
        let path: ObjectPath = "/s/a.nc".parse().unwrap();
        let states = folder.path().join("states");
        let open = |url: &str| StateFile::open(&states, url, &path, &local);

        let id = LeaseId::new();
        let mut first = open("https://a/");
        assert!(first.noted().is_none());
        first.note(id, fingerprint, Condition::New);
        assert!(open("https://a/").0.is_none(), "the other one has it");
        drop(first);

        let mut again = open("https://a/");
        let noted = again.noted().unwrap();
        assert_eq!((noted.upload, noted.fingerprint, noted.condition), (id, fingerprint, Condition::New));
        assert!(open("https://b/").noted().is_none(), "another site");
        let location = again.0.as_ref().unwrap().location.clone();
        fs::write(&location, "{\"v\":1").unwrap();
        assert!(again.noted().is_none());
        again.remove();
        assert!(!location.exists());
    }
}
