//! Directories that are empty once their objects were removed.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::Site;
use crate::common::eventually;

async fn is_gone(directory: &Path) {
    eventually(&format!("the end of {}", directory.display()), || async {
        (!directory.exists()).then_some(())
    })
    .await;
}

impl Site {
    /// Waits until a pass has registered a file, and so ended with what was there before.
    async fn passes(&self, at: &str) {
        self.write(at, b"news");
        eventually("the next pass", || async {
            let entry = self.admin().get(&format!("/v1/entries/s/{at}")).await;
            (entry.status.as_u16() == 200).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_removed_does_not_come_back_with_the_next_pass() {
    let site = Site::start().await;
    for file in ["run/in/a", "run/in/deep/b", "run/stays/c"] {
        site.write(file, b"content");
    }
    std::fs::create_dir_all(site.raw.join("run/in/bare/barer")).unwrap();
    site.submit(json!({"hash": "never", "follow_s": 5})).await;
    eventually("the first pass", || async {
        let entry = site.admin().get("/v1/entries/s/run/stays/c").await;
        (entry.status.as_u16() == 200).then_some(())
    })
    .await;
    let before = site.tree().await;
    assert!(before.contains(&"/s/run/in/bare/barer".to_owned()), "{before:?}");

    site.admin().delete("/v1/entries/s/run/in?recursive").await.expect(204);
    is_gone(&site.raw.join("run/in")).await;
    // Something that nobody knows keeps what it is in.
    site.admin().delete("/v1/entries/s/run/stays?recursive").await.expect(204);
    std::fs::write(site.raw.join("run/stays/.hidden"), b"somebody's").unwrap();
    site.passes("run/new").await;
    site.passes("run/newer").await;
    let tree = site.tree().await;
    assert!(!tree.iter().any(|path| path.starts_with("/s/run/in")), "{tree:?}");
    assert!(site.raw.join("run/stays/.hidden").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_stays_as_long_as_its_collection() {
    let site = Site::start().await;
    site.write("run/in/a", b"content");
    site.counts().await;
    let (above, directory) = (site.raw.join("run"), site.raw.join("run/in"));
    site.admin().delete("/v1/entries/s/run/in/a").await.expect(204);
    is_gone(&directory.join("a")).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(directory.exists(), "it went though its collection is there");
    site.admin().delete("/v1/entries/s/run/in").await.expect(204);
    is_gone(&directory).await;
    // What is imported itself is never removed, whether anything is made of it or not.
    site.admin().delete("/v1/entries/s/run").await.expect(204);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(above.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_goes_whose_path_an_object_has_by_then() {
    let site = Site::start().await;
    for file in ["run/in/deep/a", "run/in/b", "run/other/c"] {
        site.write(file, b"content");
    }
    site.counts().await;
    for collection in ["in", "other"] {
        site.admin().delete(&format!("/v1/entries/s/run/{collection}?recursive")).await.expect(204);
    }
    site.admin().write("/s/run/in", "an object").await.expect(201);
    is_gone(&site.raw.join("run/in/deep")).await;
    is_gone(&site.raw.join("run/other")).await;
    assert_eq!(crate::common::bytes(site.admin(), "/v1/data/s/run/in").await, b"an object");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_took_the_place_of_a_directory_stays() {
    let site = Site::start().await;
    for file in ["run/in/a", "run/by/b"] {
        site.write(file, b"content");
    }
    site.counts().await;
    site.admin().delete("/v1/entries/s/run/in/a").await.expect(204);
    is_gone(&site.raw.join("run/in/a")).await;
    // It waits for its collection by now. Somebody makes a file of it, and a link of another one.
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::fs::remove_dir(site.raw.join("run/in")).unwrap();
    site.write("run/in", b"somebody's");
    site.admin().delete("/v1/entries/s/run/by/b").await.expect(204);
    is_gone(&site.raw.join("run/by/b")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::fs::rename(site.raw.join("run/by"), site.raw.join("run/there")).unwrap();
    std::os::unix::fs::symlink("there", site.raw.join("run/by")).unwrap();
    for collection in ["/v1/entries/s/run/in", "/v1/entries/s/run/by"] {
        site.admin().delete(collection).await.expect(204);
    }
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(std::fs::read(site.raw.join("run/in")).unwrap(), b"somebody's");
    assert!(
        std::fs::symlink_metadata(site.raw.join("run/by")).is_ok() && site.raw.join("run/there").exists()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_store_keeps_no_empty_directories() {
    let site = Site::start().await;
    let store = site.server.directory.path().join("disk/s");
    for at in ["in/deep/a", "in/deep/b", "other/c"] {
        site.admin().write(&format!("/s/{at}"), "content").await.expect(201);
    }
    assert!(store.join("in/deep/b").exists());
    // Of what lies there besides, it knows nothing.
    std::fs::create_dir_all(store.join("in/left/over")).unwrap();
    site.admin().delete("/v1/entries/s/other/c").await.expect(204);
    is_gone(&store.join("other")).await;
    site.admin().delete("/v1/entries/s/in?recursive").await.expect(204);
    is_gone(&store).await;
    site.admin().write("/s/other/again", "content").await.expect(201);
    assert!(store.join("other/again").exists());
}
