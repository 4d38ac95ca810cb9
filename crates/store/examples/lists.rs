//! Measures how fast a native POSIX store is listed with all that it knows of each file: `lists DIR`.

use std::path::PathBuf;
use std::time::Instant;

use percale_store::posix::{Layout, Posix, PosixConfig};
use percale_store::{ListOptions, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::args().nth(1).ok_or("usage: lists DIR")?);
    let store = Posix::open(PosixConfig::new(&root, Layout::Native)).await?;
    for _ in 0..3 {
        let start = Instant::now();
        let mut pages = store.list(ListOptions::default().recursive().page_size(4000)).await?;
        let (mut files, mut others) = (0, 0);
        while let Some(page) = pages.next().await? {
            let of_page = page.entries.iter().filter(|entry| entry.meta.generation.is_some()).count();
            files += of_page;
            others += page.entries.len() - of_page + page.skipped.len();
        }
        println!("{files} files and {others} others in {:.2} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
