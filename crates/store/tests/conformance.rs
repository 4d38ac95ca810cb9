//! The conformance suite on the stores of this crate.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use bytes::Bytes;
use percale_store::conformance::{self, Fixture};
use percale_store::memory::Memory;
use percale_store::posix::{Layout, Posix, PosixConfig};

fn memory(store: Memory) -> Fixture {
    let other = store.clone();
    Fixture::new(store).tamper(move |key, bytes| assert!(other.tamper(key, Bytes::copy_from_slice(bytes))))
}

async fn posix(layout: Layout) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Posix::open(PosixConfig::new(dir.path(), layout).create()).await.unwrap();
    let root = dir.path().to_owned();
    let tamper = move |key: &percale_store::StoreKey, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        // In place, as a program that has the file open does.
        let file = std::fs::OpenOptions::new().write(true).open(root.join(key.as_str())).unwrap();
        file.write_all_at(bytes, 0).unwrap();
    };
    Fixture::new(store).tamper(tamper).keep(dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_like_a_file_system() {
    conformance::run("memory", || async { memory(Memory::file_system()) }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_like_a_bucket() {
    conformance::run("memory", || async { memory(Memory::bucket()) }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn posix_managed() {
    conformance::run("posix managed", || posix(Layout::Managed)).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn posix_native() {
    conformance::run("posix native", || posix(Layout::Native)).await.assert_passed();
}
