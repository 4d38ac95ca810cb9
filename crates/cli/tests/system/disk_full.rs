//! The disk is full: under the store, and under the catalog. Needs the right to mount; skipped aloud otherwise.

use percale_client::{Outcome, Report};
use percale_core::ErrorCode;
use percale_testkit::tmpfs::SmallFileSystem;

use crate::world::{World, is_whole, local_file, noting, path};

/// The error of the first failed item.
fn failure(report: &Report) -> ErrorCode {
    match report.failures.first().map(|item| &item.outcome) {
        Some(Outcome::Failed(error)) => error.code(),
        other => panic!("it should have failed, and ended with {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_writes_and_goes_on_when_there_is_room() {
    let Some(small) = SmallFileSystem::mount(96 << 20) else { return };
    let mut options = World::options().set("uploads.lease", "\"2s\"");
    options.directory = Some(small.path().join("site"));
    let world = World::new(options).await;
    let client = world.impatient_client();
    let work = tempfile::tempdir().unwrap();
    let (options, _) = noting();
    let kept = local_file(&work.path().join("kept"), 1, 1 << 20);
    client.put_file(&work.path().join("kept"), &path("kept"), &options).await.unwrap();

    // Room for the catalog's own files, but not for any of these.
    let filler = small.fill_up(6 << 20);
    let batch = work.path().join("batch");
    for part in 0..40 {
        local_file(&batch.join(format!("part-{part:02}")), 10 + part, 300_000);
    }
    local_file(&work.path().join("large"), 3, 24 << 20);
    local_file(&work.path().join("medium"), 4, 7 << 20);
    for name in ["large", "medium"] {
        let report = client.put_file(&work.path().join(name), &path(name), &options).await.unwrap();
        assert_eq!(failure(&report), ErrorCode::NoSpace, "{name}");
        // What arrived is kept for a while, and may be the last free byte.
        world.wait_until_tidy().await;
    }
    let report = client.put_tree(&batch, &path("batch"), &options).await.unwrap();
    assert_eq!(failure(&report), ErrorCode::NoSpace);

    assert_eq!(world.read(&path("kept")).await, kept);
    world.wait_until_tidy().await;
    std::fs::remove_file(filler).unwrap();
    for name in ["large", "medium"] {
        let report = world.client().put_file(&work.path().join(name), &path(name), &options).await.unwrap();
        assert!(is_whole(&report), "{:?}", report.failures);
    }
    assert!(is_whole(&world.client().put_tree(&batch, &path("batch"), &options).await.unwrap()));
    assert_eq!(world.objects().await.len(), 43);
    world.wait_until_tidy().await;
    world.check_everything();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_catalog_loses_nothing_acknowledged() {
    let Some(small) = SmallFileSystem::mount(32 << 20) else { return };
    let mut options = World::options();
    options.directory = Some(small.path().join("site"));
    // The store lies elsewhere, so that only the catalog meets the end of the disk.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(small.path().join("site")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), small.path().join("site/disk")).unwrap();
    let mut world = World::new(options).await;
    let client = world.impatient_client();
    let work = tempfile::tempdir().unwrap();
    let (options, _) = noting();

    let _ = small.fill_up(128 << 10);
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    for number in 0..400 {
        let name = format!("object-{number:04}");
        let root = local_file(&work.path().join("file"), number, 2000);
        match client.put_file(&work.path().join("file"), &path(&name), &options).await {
            Ok(report) if is_whole(&report) => acknowledged.push((path(&name), root)),
            Ok(report) => {
                let code = failure(&report);
                assert!(matches!(code, ErrorCode::NoSpace | ErrorCode::CatalogUnavailable), "{code:?}");
                refused += 1;
            }
            Err(error) => {
                assert!(
                    matches!(error.code(), ErrorCode::NoSpace | ErrorCode::CatalogUnavailable),
                    "{error}"
                );
                refused += 1;
            }
        }
        if refused > 20 {
            break;
        }
    }
    assert!(refused > 20, "the disk was never full after {} objects", acknowledged.len());
    let entries = world.objects().await;
    assert_eq!(entries.len(), acknowledged.len(), "what was refused is not there, what was acknowledged is");

    // The server dies on the full disk, and is started again when there is room.
    world.site.kill();
    std::fs::remove_file(small.path().join(".filler")).unwrap();
    let world = tokio::task::spawn_blocking(move || {
        world.site.restart();
        world
    })
    .await
    .unwrap();
    for (path, root) in &acknowledged {
        assert_eq!(world.read(path).await, *root, "{path}");
    }
    let root = local_file(&work.path().join("file"), 7, 2000);
    let report = world.client().put_file(&work.path().join("file"), &path("after"), &options).await.unwrap();
    assert!(is_whole(&report), "{:?}", report.failures);
    assert_eq!(world.read(&path("after")).await, root);
    world.wait_until_tidy().await;
    world.check_everything();
}
