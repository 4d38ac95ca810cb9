//! The S3 store against a real S3 server, versitygw, started here on loopback.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use opendal::{HttpTransporter, OperationContext, Operator};
use opendal_http_transport_reqwest::ReqwestTransport;
use percale_connectors::s3::{S3, S3Config, S3Credential};
use percale_core::ByteCount;
use percale_core::ids::Fence;
use percale_store::conformance::{self, Fixture};
use percale_store::memory::Memory;
use percale_store::posix::{Layout, Posix, PosixConfig};
use percale_store::wrappers::{StackPolicy, standard_stack};
use percale_store::{
    ErrorKind, Publish, ReadOptions, SharedStore, StageOptions, StageToken, Store, StoreExt, StoreKey,
};
use percale_testkit::s3::{ACCESS_KEY_ID, BUCKET, S3Server, SECRET_ACCESS_KEY};

/// A server, and how many stores were opened in its bucket.
struct Gateway {
    server: S3Server,
    prefixes: AtomicU32,
}

impl Gateway {
    fn start() -> Option<Self> {
        S3Server::start().map(|server| Self { server, prefixes: AtomicU32::new(0) })
    }

    fn config(&self) -> S3Config {
        let prefix = format!("p{}", self.prefixes.fetch_add(1, Ordering::Relaxed));
        S3Config::new(BUCKET).endpoint(self.server.endpoint()).prefix(StoreKey::parse(&prefix).unwrap())
    }

    async fn open(&self, config: S3Config) -> S3 {
        S3::open(config, Some(credential())).await.unwrap()
    }

    /// Another client of the same bucket.
    fn other_client(&self, config: &S3Config) -> Operator {
        let service = opendal::services::S3::default()
            .bucket(BUCKET)
            .region("us-east-1")
            .endpoint(&self.server.endpoint())
            .root(config.prefix.as_ref().unwrap().as_str())
            .access_key_id(ACCESS_KEY_ID)
            .secret_access_key(SECRET_ACCESS_KEY);
        let transport = HttpTransporter::new(ReqwestTransport::default());
        Operator::new(service).unwrap().with_context(OperationContext::new().with_http_transport(transport))
    }

    async fn fixture(&self) -> Fixture {
        let config = self.config();
        let (store, other) = (self.open(config.clone()).await, self.other_client(&config));
        Fixture::new(store).tamper(move |key, bytes| {
            let write = other.write(key.as_str(), bytes.to_vec());
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(write)).unwrap();
        })
    }
}

fn credential() -> S3Credential {
    S3Credential {
        access_key_id: ACCESS_KEY_ID.into(),
        secret_access_key: SECRET_ACCESS_KEY.into(),
        session_token: None,
    }
}

fn key(text: &str) -> StoreKey {
    StoreKey::parse(text).unwrap()
}

fn token(name: &str) -> StageToken {
    StageToken::new(Fence(1), name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_conforms() {
    let Some(gateway) = Gateway::start() else { return };
    conformance::run("s3", || gateway.fixture()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapped_store_conforms() {
    let Some(gateway) = Gateway::start() else { return };
    let wrap = |store: SharedStore| {
        let policy = StackPolicy::new("s3", &store);
        standard_stack(store, &policy)
    };
    conformance::run("wrapped s3", || async { gateway.fixture().await.wrap(wrap) }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_go_in_parts_and_only_if_absent() {
    let Some(gateway) = Gateway::start() else { return };
    let store = gateway.open(gateway.config()).await;
    assert!(store.capabilities().write.publish_if_absent, "the server honours If-None-Match");
    let mut files = Vec::new();
    for name in ["one", "two"] {
        let size = ByteCount::mib(20);
        let stage = store.stage(StageOptions::new(token(name)).key(key("large")).size(size)).await.unwrap();
        for part in 0..20u64 {
            stage.write_at(part << 20, Bytes::from(vec![part as u8; 1 << 20])).await.unwrap();
        }
        let staged = stage.finish().await.unwrap();
        files.push(Publish::if_absent(token(name), key("large"), staged.identity));
    }
    let published = store.publish_one(files[0].clone()).await.unwrap();
    assert_eq!(published.meta.size, ByteCount::mib(20));
    assert_eq!(store.publish_one(files[1].clone()).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(store.stat(&key("large")).await.unwrap().identity, files[0].identity);
    let read = store.read_all(&key("large"), ReadOptions::default(), ByteCount::mib(20)).await.unwrap();
    assert!(
        read.chunks(1 << 20).enumerate().all(|(part, bytes)| bytes.iter().all(|byte| *byte == part as u8))
    );
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        about => about.map_or(0, |about| about.len()),
    });
    bytes.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_upload_leaves_no_parts_behind() {
    let Some(gateway) = Gateway::start() else { return };
    let store = gateway.open(gateway.config()).await;
    let parts = || {
        // Where versitygw keeps the parts of uploads.
        let uploads = gateway.server.folder().join(BUCKET).join(".sgwtmp/multipart");
        std::fs::read_dir(uploads).map_or(0, |entries| entries.count())
    };
    let stage = store.stage(StageOptions::new(token("one")).key(key("large"))).await.unwrap();
    for part in 0..40u64 {
        stage.write_at(part << 20, Bytes::from(vec![1; 1 << 20])).await.unwrap();
    }
    assert!(parts() > 0, "no part was sent");
    // A part that is still under way may come when its upload was dropped; then it stays until a lifecycle rule removes it.
    let mut bytes = 0;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = bytes_below(gateway.server.folder());
        if std::mem::replace(&mut bytes, now) == now && now > 0 {
            break;
        }
    }
    assert!(bytes > 0, "no part has arrived");
    assert_eq!(store.discard_fence(Fence(1)).await.unwrap(), 1);
    assert_eq!(parts(), 0);
    let late = stage.write_at(40 << 20, Bytes::from_static(b"x")).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(stage.finish().await.unwrap_err().kind(), ErrorKind::Incomplete);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_buckets_and_servers_are_told_apart() {
    let Some(gateway) = Gateway::start() else { return };
    let wrong = S3Credential { secret_access_key: "wrong".into(), ..credential() };
    let error = S3::open(gateway.config(), Some(wrong)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let mut config = gateway.config();
    config.bucket = "none".into();
    let error = S3::open(config, Some(credential())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let closed = S3Config::new(BUCKET).endpoint("http://127.0.0.1:1");
    let error = S3::open(closed, Some(credential())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_is_unavailable_and_nothing_half_written_is_seen() {
    let Some(mut gateway) = Gateway::start() else { return };
    let store: Arc<S3> = gateway.open(gateway.config()).await.into();
    store.put_small(token("a"), key("a"), Bytes::from_static(b"a")).await.unwrap();
    let stage = store.stage(StageOptions::new(token("b")).key(key("b"))).await.unwrap();
    stage.write_at(0, Bytes::from(vec![1; 1 << 20])).await.unwrap();
    let staged = stage.finish().await.unwrap();
    gateway.server.stop();
    let publish = Publish::if_absent(token("b"), key("b"), staged.identity);
    let error = store.publish_one(publish).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(store.stat(&key("a")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let bucket = gateway.server.folder().join(BUCKET).join("p0");
    assert!(bucket.join("a").exists() && !bucket.join("b").exists());
}

/// A row of the table in `docs/stores.md`.
fn row(name: &str, can: &percale_store::Capabilities) -> String {
    let claims = [
        can.read.ranges,
        can.read.medium,
        can.write.positioned,
        can.write.resumable,
        can.write.publish_if_absent,
        can.write.replace,
        can.write.late_key,
        can.write.clone,
        can.collections,
        can.list,
        can.rename,
        can.generations,
        can.identities,
        can.durable,
        can.usage,
    ];
    let cells: Vec<_> = claims.iter().map(|claim| if *claim { "yes" } else { "no" }).collect();
    format!("| {name} | {} |", cells.join(" | "))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_in_the_docs_is_what_the_stores_claim() {
    let Some(gateway) = Gateway::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let posix = async |layout| Posix::open(PosixConfig::new(dir.path(), layout).create()).await.unwrap();
    let rows = [
        row("posix managed", posix(Layout::Managed).await.capabilities()),
        row("posix native", posix(Layout::Native).await.capabilities()),
        row("s3", gateway.open(gateway.config()).await.capabilities()),
        row("memory", Memory::file_system().capabilities()),
    ];
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores.md")).unwrap();
    for row in rows {
        assert!(page.contains(&row), "docs/stores.md lacks the line\n{row}");
    }
}
