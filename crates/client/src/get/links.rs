//! Symbolic links of a tree that is got.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use percale_api::entries::Entry;
use percale_core::{ErrorCode, ObjectPath};

use super::GetOptions;
use crate::error::{Error, ErrorKind};
use crate::local::part_path;
use crate::report::{Item, Outcome};
use crate::upload::blocking;

/// Makes the link that an entry is. One that leads out of the tree is passed over: what others wrote into the namespace
/// must not lead programs to files of this computer.
pub(super) async fn make(entry: &Entry, root: &ObjectPath, local: &Path, options: &GetOptions) -> Item {
    let (from, to) = (entry.path.to_string(), local.display().to_string());
    let inside = entry.target.as_ref().filter(|target| target.stays_within(&entry.path, root));
    let outcome = match inside {
        None => Outcome::PassedOver("a symbolic link that leads out of what is copied"),
        Some(target) => {
            let (target, local, options) =
                (PathBuf::from(target.as_str()), local.to_owned(), options.clone());
            let operation = format!("make the link {}", local.display());
            let made =
                blocking(&operation.clone(), move || put_there(&operation, &target, &local, &options)).await;
            made.unwrap_or_else(Outcome::Failed)
        }
    };
    Item { from, to, bytes: 0, outcome }
}

fn put_there(operation: &str, target: &Path, local: &Path, options: &GetOptions) -> crate::Result<Outcome> {
    let failed = |error| Error::local("make the link", local, error);
    let replaces = match std::fs::symlink_metadata(local) {
        Ok(there)
            if there.is_symlink() && std::fs::read_link(local).is_ok_and(|leads_to| leads_to == target) =>
        {
            return Ok(Outcome::Same);
        }
        Ok(there) if there.is_dir() || !options.overwrite => {
            let detail = format!("{} is there already", local.display());
            return Err(Error::new(ErrorKind::Local, ErrorCode::AlreadyExists, operation, detail));
        }
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(failed(error)),
    };
    if options.dry_run {
        return Ok(Outcome::Planned { replaces });
    }
    if replaces {
        let beside = part_path(local)?;
        let _ = std::fs::remove_file(&beside);
        symlink(target, &beside).and_then(|()| std::fs::rename(&beside, local)).map_err(failed)?;
    } else {
        symlink(target, local).map_err(failed)?;
    }
    Ok(Outcome::Done { version: None, root: None, replaced: replaces })
}
