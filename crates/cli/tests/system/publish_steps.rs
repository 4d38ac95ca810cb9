//! The server ends exactly at each step of the publish order (`docs/design/publishing.md`), for each way to write.

use std::path::Path;
use std::time::Duration;

use percale_client::{Client, Report};
use percale_core::ErrorCode;
use percale_core::tree::RootHash;

use crate::world::{World, is_whole, local_file, noting, path};

/// The steps, and whether the version is there after recovery.
const STEPS: [(&str, bool); 6] = [
    ("publish.after_stage", false),
    ("publish.after_prepare", false),
    ("publish.after_flush", false),
    ("publish.after_rename", false),
    ("publish.after_dir_flush", false),
    ("publish.after_commit", true),
];

/// The ways to write.
#[derive(Debug, Clone, Copy)]
enum Way {
    Small,
    Batch,
    Large,
    Overwrite,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_put_survives_a_crash_at_each_step() {
    walk(Way::Small).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_survives_a_crash_at_each_step() {
    walk(Way::Batch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumable_upload_survives_a_crash_at_each_step() {
    walk(Way::Large).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_survives_a_crash_at_each_step() {
    walk(Way::Overwrite).await;
}

async fn walk(way: Way) {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: failpoints are only in builds with debug assertions");
        return;
    }
    // What a client gives up is to end soon.
    let mut world = World::new(World::options().set("uploads.lease", "\"3s\"")).await;
    let work = tempfile::tempdir().unwrap();
    let bystander = local_file(&work.path().join("bystander"), 1, 100_000);
    put(&world.client(), &work.path().join("bystander"), "bystander", false).await.unwrap();

    for (number, (step, is_there)) in (0..).zip(STEPS) {
        let name = format!("{way:?}-{number}").to_lowercase();
        let (old, new) = (work.path().join("old"), work.path().join("new"));
        let _ = std::fs::remove_dir_all(&new);
        let old_root = local_file(&old, 10 + number, 50_000);
        let new_roots: Vec<(String, RootHash)> = match way {
            Way::Batch => (0..8)
                .map(|part| {
                    let file = new.join(format!("part-{part}"));
                    (format!("{name}/part-{part}"), local_file(&file, 100 + part, 30_000 * part))
                })
                .collect(),
            Way::Large => vec![(name.clone(), local_file(&new.join("file"), 20 + number, 20 << 20))],
            _ => vec![(name.clone(), local_file(&new.join("file"), 20 + number, 60_000))],
        };
        let overwrite = matches!(way, Way::Overwrite);
        if overwrite {
            put(&world.client(), &old, &name, false).await.unwrap();
        }

        world = restarted(world, vec![("PERCALE_FAILPOINT".into(), step.into())]).await;
        let client = world.impatient_client();
        let outcome = put_way(&client, way, &new, &name).await;
        assert!(!outcome, "{step}: the put was acknowledged although the server ended");
        world = tokio::task::spawn_blocking(move || {
            let status = world.site.wait_for_end();
            assert!(!status.success(), "{step} was not come to, or did not end the server: {status}");
            world.site.set_environment(Vec::new());
            world.site.restart();
            world
        })
        .await
        .unwrap();

        // Recovery: all of the version or nothing of it.
        for (name, root) in &new_roots {
            let found = world.client().find(&path(name)).await.unwrap();
            let found = found.and_then(|entry| entry.content).and_then(|content| content.root);
            let expected = match (is_there, overwrite) {
                (true, _) => Some(*root),
                (false, true) => Some(old_root),
                (false, false) => None,
            };
            assert_eq!(found, expected, "{step}: {name}");
            if let Some(expected) = expected {
                assert_eq!(world.read(&path(name)).await, expected, "{step}: {name}");
            }
        }
        assert_eq!(world.read(&path("bystander")).await, bystander);
        world.wait_until_tidy().await;
        world.check_everything();

        // And the same put again.
        assert!(put_way(&world.client(), way, &new, &name).await, "{step}: the second put failed");
        for (name, root) in &new_roots {
            assert_eq!(world.read(&path(name)).await, *root, "{step}: {name}");
        }
    }
    world.wait_until_tidy().await;
    world.check_everything();
}

async fn restarted(mut world: World, environment: Vec<(String, String)>) -> World {
    tokio::task::spawn_blocking(move || {
        assert!(world.site.stop().success());
        world.site.set_environment(environment);
        world.site.restart();
        world
    })
    .await
    .unwrap()
}

async fn put_way(client: &Client, way: Way, new: &Path, name: &str) -> bool {
    let outcome = match way {
        Way::Batch => {
            let (options, _) = noting();
            client.put_tree(new, &path(name), &options).await
        }
        way => put(client, &new.join("file"), name, matches!(way, Way::Overwrite)).await,
    };
    match outcome {
        Ok(report) => is_whole(&report),
        Err(error) => {
            let expected = matches!(error.code(), ErrorCode::SiteUnavailable | ErrorCode::Timeout);
            assert!(expected, "another error than the broken connection: {error}");
            false
        }
    }
}

async fn put(client: &Client, local: &Path, name: &str, overwrite: bool) -> percale_client::Result<Report> {
    let (mut options, _) = noting();
    options.overwrite = overwrite;
    tokio::time::timeout(Duration::from_secs(60), client.put_file(local, &path(name), &options))
        .await
        .expect("the put ends")
}
