//! Wrappers: each keeps what the store inside promises, and adds what it says.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percale_core::ByteCount;
use percale_core::ids::Fence;
use percale_store::conformance::{self, Fixture};
use percale_store::memory::Memory;
use percale_store::posix::{Layout, Posix, PosixConfig};
use percale_store::wrappers::{
    Chaos, ChaosPolicy, ChaosSwitch, Limit, LimitPolicy, Observe, Retry, RetryPolicy, StackPolicy, Timeout,
    TimeoutPolicy, standard_stack,
};
use percale_store::{
    ErrorKind, ListOptions, Publish, ReadOptions, RetryClass, SharedStore, SmallFile, StageOptions,
    StageToken, Store, StoreExt, StoreKey,
};
use tokio::time::Instant;

fn key(text: &str) -> StoreKey {
    StoreKey::parse(text).unwrap()
}

fn token(name: &str) -> StageToken {
    StageToken::new(Fence(1), name).unwrap()
}

fn wrapped(store: SharedStore) -> SharedStore {
    let policy = StackPolicy::new("test", &store);
    standard_stack(store, &policy)
}

fn memory(store: Memory) -> Fixture {
    let other = store.clone();
    Fixture::new(store)
        .tamper(move |key, bytes| assert!(other.tamper(key, Bytes::copy_from_slice(bytes))))
        .wrap(wrapped)
}

async fn posix(layout: Layout) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Posix::open(PosixConfig::new(dir.path(), layout).create()).await.unwrap();
    let root = dir.path().to_owned();
    let tamper = move |key: &StoreKey, bytes: &[u8]| std::fs::write(root.join(key.as_str()), bytes).unwrap();
    Fixture::new(store).tamper(tamper).keep(dir).wrap(wrapped)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_standard_stack_conforms_on_memory() {
    conformance::run("wrapped memory", || async { memory(Memory::file_system()) }).await.assert_passed();
    conformance::run("wrapped bucket", || async { memory(Memory::bucket()) }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_standard_stack_conforms_on_posix() {
    conformance::run("wrapped posix managed", || posix(Layout::Managed)).await.assert_passed();
    conformance::run("wrapped posix native", || posix(Layout::Native)).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn stalls_and_short_reads_break_no_promise() {
    let chaos = ChaosPolicy { seed: 1, short_reads: 0.5, ..ChaosPolicy::default() };
    let make = || async { Fixture::shared(Arc::new(Chaos::new(Arc::new(Memory::file_system()), chaos).0)) };
    conformance::run("short reads", make).await.assert_passed();
}

/// A store in memory that misbehaves, behind a patient retry.
fn unreliable(policy: ChaosPolicy) -> (Memory, SharedStore, ChaosSwitch) {
    let memory = Memory::file_system();
    let (chaos, switch) = Chaos::new(Arc::new(memory.clone()), policy);
    let retry = RetryPolicy { attempts: 40, ..RetryPolicy::default() };
    (memory, Arc::new(Retry::new(Arc::new(chaos), retry)), switch)
}

#[tokio::test(start_paused = true)]
async fn reads_and_listings_survive_an_unreliable_storage() {
    for seed in 0..20 {
        let faults =
            ChaosPolicy { seed, errors: 0.3, lost_answers: 0.2, short_reads: 0.3, ..ChaosPolicy::default() };
        let (memory, store, _) = unreliable(faults);
        let mut content = vec![0; 5_000_000];
        fastrand::Rng::with_seed(seed).fill(&mut content);
        memory.put_small(token("x"), key("large"), content.clone().into()).await.unwrap();
        let options = ReadOptions::default().piece_size(ByteCount::kib(64));
        let got = store.read_all(&key("large"), options, ByteCount::mib(8)).await.unwrap();
        assert!(got == content, "seed {seed}: other bytes");

        for index in 0..100 {
            let to = key(&format!("many/{index}"));
            memory.put_small(token("x"), to, Bytes::new()).await.unwrap();
        }
        let listed = store.list_all(ListOptions::of(key("many")).page_size(7), 1000).await.unwrap();
        let mut keys: Vec<_> = listed.entries.iter().map(|entry| &entry.key).collect();
        keys.dedup();
        assert_eq!(keys.len(), 100, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_published_through_lost_answers_is_there_once_and_whole() {
    for seed in 0..20 {
        let (memory, store, _) =
            unreliable(ChaosPolicy { seed, errors: 0.2, lost_answers: 0.3, ..ChaosPolicy::default() });
        let small = |index: usize| SmallFile {
            token: token(&format!("n{index}")),
            key: None,
            bytes: Bytes::from(format!("content {index}")),
        };
        let staged = store.stage_small((0..30).map(small).collect()).await.unwrap();
        let publish = staged.into_iter().enumerate().map(|(index, staged)| {
            let staged = staged.unwrap();
            Publish::if_absent(staged.token, key(&format!("a/{index}")), staged.identity)
        });
        for result in store.publish(publish.collect()).await.unwrap() {
            result.unwrap();
        }
        let stage = store.stage(StageOptions::new(token("large"))).await.unwrap();
        for part in 0..20u64 {
            stage.write_at(part * 1000, Bytes::from(vec![part as u8; 1000])).await.unwrap();
        }
        let large = Publish::if_absent(token("large"), key("large"), stage.identity().cloned());
        store.publish_one(large).await.unwrap();

        let read = memory.read_all(&key("large"), ReadOptions::default(), ByteCount::mib(1)).await.unwrap();
        assert!(
            read.chunks(1000).enumerate().all(|(part, bytes)| bytes == vec![part as u8; 1000]),
            "seed {seed}"
        );
        assert_eq!(memory.list_all(ListOptions::of(key("a")), 100).await.unwrap().entries.len(), 30);
        assert!(memory.staged(None).await.unwrap().is_empty(), "seed {seed}: something is still staged");
    }
}

#[tokio::test(start_paused = true)]
async fn only_temporary_errors_are_repeated_and_the_last_is_exhausted() {
    let (memory, switch) =
        Chaos::new(Arc::new(Memory::file_system()), ChaosPolicy { errors: 1.0, ..ChaosPolicy::default() });
    let store = Retry::new(Arc::new(memory), RetryPolicy::default());
    let began = Instant::now();
    let error = store.mkdir(&key("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.retry_class()), (ErrorKind::Unavailable, RetryClass::Exhausted));
    assert_eq!(switch.writes(), 4, "attempts");
    assert!(began.elapsed() >= Duration::from_millis(175) && began.elapsed() <= Duration::from_millis(350));

    // Another loop around it gives up at once.
    let outer = Retry::new(Arc::new(store), RetryPolicy::default());
    outer.mkdir(&key("a")).await.unwrap_err();
    assert_eq!(switch.writes(), 8);

    let full = ChaosPolicy { full_at_write: Some(1), ..ChaosPolicy::default() };
    let (full, switch) = Chaos::new(Arc::new(Memory::file_system()), full);
    let error = Retry::new(Arc::new(full), RetryPolicy::default()).mkdir(&key("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.retry_class()), (ErrorKind::NoSpace, RetryClass::Permanent));
    assert_eq!(switch.writes(), 1, "a full disk was asked again");
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_hangs_is_given_up() {
    let hangs = ChaosPolicy { stalls: 1.0, stall: Duration::from_secs(1 << 20), ..ChaosPolicy::default() };
    let (chaos, _) = Chaos::new(Arc::new(Memory::file_system()), hangs);
    let store = Timeout::new(Arc::new(chaos), TimeoutPolicy::default());
    let began = Instant::now();
    let error = store.stat(&key("a")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut && error.is_temporary());
    assert_eq!(began.elapsed(), TimeoutPolicy::default().operation);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_limit_is_done_at_once() {
    let slow = ChaosPolicy { stalls: 1.0, stall: Duration::from_secs(1), ..ChaosPolicy::default() };
    let (chaos, _) = Chaos::new(Arc::new(Memory::file_system()), slow);
    let policy = LimitPolicy { concurrency: NonZeroU32::new(3).unwrap(), bytes_per_second: None };
    let store: SharedStore = Arc::new(Limit::new(Arc::new(chaos), policy));
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..9 {
        let store = store.clone();
        tasks.spawn(async move { store.stat(&key("none")).await.unwrap_err() });
    }
    tasks.join_all().await;
    assert_eq!(began.elapsed().as_secs(), 3, "nine operations of a second, three at once");
}

#[tokio::test(start_paused = true)]
async fn bytes_are_let_through_at_the_rate() {
    let mut policy = LimitPolicy::new(8);
    policy.bytes_per_second = Some(ByteCount::mib(1));
    let store = Limit::new(Arc::new(Memory::file_system()), policy);
    let began = Instant::now();
    store.put_small(token("x"), key("file"), vec![0; 4 << 20].into()).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 4);
    store.read_all(&key("file"), ReadOptions::default(), ByteCount::mib(4)).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 8);
}

#[tokio::test]
async fn wrong_bytes_are_really_wrong() {
    let memory = Memory::file_system();
    memory.put_small(token("x"), key("file"), vec![0; 100_000].into()).await.unwrap();
    let policy = ChaosPolicy { wrong_bytes: 1.0, ..ChaosPolicy::default() };
    let (store, switch) = Chaos::new(Arc::new(memory), policy);
    let read = store.read_all(&key("file"), ReadOptions::default(), ByteCount::mib(1)).await.unwrap();
    assert_eq!(read.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1, "one bit in one piece");
    switch.heal();
    let read = store.read_all(&key("file"), ReadOptions::default(), ByteCount::mib(1)).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn wrong_writes_are_wrong_on_the_storage() {
    let memory = Memory::file_system();
    let policy = ChaosPolicy { wrong_writes: 2, ..ChaosPolicy::default() };
    let (store, _) = Chaos::new(Arc::new(memory.clone()), policy);
    let stage = store.stage(StageOptions::new(token("one"))).await.unwrap();
    for part in 0..2 {
        stage.write_at(part * 100, vec![0; 100].into()).await.unwrap();
    }
    drop(stage);
    for (name, wrong) in [("two", 0), ("three", 0)] {
        store.put_small(token(name), key(name), vec![0; 100].into()).await.unwrap();
        let read = memory.read_all(&key(name), ReadOptions::default(), ByteCount::mib(1)).await.unwrap();
        assert_eq!(read.iter().map(|byte| byte.count_ones()).sum::<u32>(), wrong, "{name}");
    }
    let staged = store.publish_one(Publish::if_absent(token("one"), key("one"), None)).await.unwrap();
    assert_eq!(staged.meta.size, ByteCount(200));
    let read = memory.read_all(&key("one"), ReadOptions::default(), ByteCount::mib(1)).await.unwrap();
    assert_eq!(read.iter().map(|byte| byte.count_ones()).sum::<u32>(), 2, "one bit in each piece");
}

/// Stages, marks and publishes one file: every kind of write point.
async fn put(store: &dyn Store) -> percale_store::Result<()> {
    let stage = store.stage(StageOptions::new(token("one"))).await?;
    for part in 0..3 {
        stage.write_at(part * 10, Bytes::from_static(b"0123456789")).await?;
    }
    stage.sync_progress().await?;
    stage.write_marker(Bytes::from_static(b"marker")).await?;
    let staged = stage.finish().await?;
    store.publish_one(Publish::if_absent(token("one"), key("a/file"), staged.identity)).await?;
    Ok(())
}

#[tokio::test]
async fn a_disk_full_at_any_write_leaves_nothing_visible_and_can_be_cleaned() {
    let (counting, switch) = Chaos::new(Arc::new(Memory::file_system()), ChaosPolicy::default());
    put(&counting).await.unwrap();
    let points = switch.writes();
    assert!(points >= 7, "{points} write points");
    for point in 1..=points {
        let memory = Memory::file_system();
        let policy = ChaosPolicy { full_at_write: Some(point), ..ChaosPolicy::default() };
        let (store, switch) = Chaos::new(Arc::new(memory.clone()), policy);
        let error = put(&*wrapped(Arc::new(store.clone()))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "point {point}");
        assert_eq!(
            memory.stat(&key("a/file")).await.unwrap_err().kind(),
            ErrorKind::NotFound,
            "point {point}"
        );
        memory.discard_fence(Fence(1)).await.unwrap();
        switch.heal();
        put(&store).await.unwrap();
    }
}

#[test]
fn operations_are_counted_and_timed_by_result() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let store = Observe::new(Arc::new(Memory::file_system()), "disk1");
            store.put_small(token("x"), key("file"), Bytes::from_static(b"12345")).await.unwrap();
            store.stat(&key("none")).await.unwrap_err();
            let taken = store.put_small(token("x"), key("file"), Bytes::from_static(b"12345")).await;
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::AlreadyExists);
            drop(store.stat(&key("file")));
        });
    });
    let text = recorder.handle().render();
    for line in [
        r#"percale_store_operation_duration_seconds_count{store="disk1",operation="publish",result="ok"} 1"#,
        r#"percale_store_operation_duration_seconds_count{store="disk1",operation="publish",result="already exists"} 1"#,
        r#"percale_store_operation_duration_seconds_count{store="disk1",operation="stat",result="not found"} 1"#,
        r#"percale_store_bytes_total{store="disk1",direction="write"} 10"#,
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}
