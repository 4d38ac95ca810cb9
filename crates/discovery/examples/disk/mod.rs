//! Files of this computer, for programs that read them by hand.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use percale_discovery::source::{File, Source};

struct OnDisk(fs::File, u64);

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

/// Opens a file.
pub fn open(path: &str) -> io::Result<File> {
    let file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    Ok(File::new(Arc::new(OnDisk(file, size))))
}
