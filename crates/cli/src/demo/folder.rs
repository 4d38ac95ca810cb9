//! The folder that everything of the demo lies in.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Says that a folder is one of ours and may be removed.
const MARKER: &str = ".percale-demo";

/// The demo's folder.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Makes the folder. Of an earlier run only the generated files are kept, or everything if `keep`.
    ///
    /// # Errors
    /// There is something else at that place.
    pub fn prepare(at: &Path, keep: bool) -> anyhow::Result<Self> {
        if !is_ours(at)? {
            fs::create_dir_all(at).with_context(|| format!("cannot make {}", at.display()))?;
            fs::write(
                at.join(MARKER),
                "made by `percale demo`; `percale demo --clean` removes this folder\n",
            )
            .with_context(|| format!("cannot write to {}", at.display()))?;
        }
        // Absolute, since the lines to paste are used elsewhere too.
        let root = at.canonicalize().with_context(|| format!("cannot find {}", at.display()))?;
        let folder = Self { root };
        let kept = [folder.root.join(MARKER), folder.generated()];
        for entry in fs::read_dir(&folder.root)? {
            let path = entry?.path();
            if path == folder.work("") || (!keep && !kept.contains(&path)) {
                remove(&path)?;
            }
        }
        let work = folder.work("");
        fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
        Ok(folder)
    }

    /// Removes the folder of earlier runs. Returns whether there was one.
    ///
    /// # Errors
    /// The folder is not one of ours.
    pub fn remove(at: &Path) -> anyhow::Result<bool> {
        if !is_ours(at)? {
            return Ok(false);
        }
        remove(at)?;
        Ok(true)
    }

    /// Returns the folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the place of a site, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn site(&self, name: &str) -> anyhow::Result<Place> {
        let place = Place { root: self.root.join(name) };
        for path in [place.state(), place.store()] {
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(place)
    }

    /// Returns the file that says where the sites are.
    pub fn kept(&self) -> PathBuf {
        self.root.join("sites.json")
    }

    /// Returns where generated files are kept from run to run.
    pub fn generated(&self) -> PathBuf {
        self.root.join("sample-data")
    }

    /// Returns a place for what only this run needs.
    pub fn work(&self, name: &str) -> PathBuf {
        self.root.join("work").join(name)
    }
}

/// Where a site has everything.
#[derive(Debug, Clone)]
pub struct Place {
    root: PathBuf,
}

impl Place {
    /// Returns the server's state directory.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Returns the root of the site's store.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// Returns the server's configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("percale.toml")
    }

    /// Returns the server's log.
    pub fn log(&self) -> PathBuf {
        self.root.join("serve.log")
    }

    /// Returns the administrator's token.
    pub fn token_file(&self) -> PathBuf {
        self.state().join("admin.token")
    }

    /// Returns the certificate of the site's own authority.
    pub fn ca_file(&self) -> PathBuf {
        self.state().join("tls/ca.pem")
    }
}

/// Tells whether a folder is there and made by an earlier run.
fn is_ours(at: &Path) -> anyhow::Result<bool> {
    match fs::read_dir(at) {
        Ok(_) if at.join(MARKER).is_file() => Ok(true),
        Ok(mut entries) => match entries.next() {
            None => Ok(false),
            Some(_) => bail!("{} has other files in it; name another place with --dir", at.display()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot look into {}", at.display())),
    }
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_folders_are_emptied() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("demo");
        let folder = Folder::prepare(&at, false).unwrap();
        fs::create_dir_all(folder.generated()).unwrap();
        let catalog = folder.site("alps").unwrap().state().join("catalog.db");
        fs::write(&catalog, "x").unwrap();

        Folder::prepare(&at, true).unwrap();
        assert!(catalog.exists());
        Folder::prepare(&at, false).unwrap();
        assert!(!catalog.exists() && folder.generated().exists());
        assert!(Folder::remove(&at).unwrap());
        assert!(!at.exists() && !Folder::remove(&at).unwrap());

        fs::write(place.path().join("thesis.tex"), "x").unwrap();
        assert!(Folder::prepare(place.path(), false).is_err());
        assert!(Folder::remove(place.path()).is_err());
        assert!(place.path().join("thesis.tex").exists());
    }
}
