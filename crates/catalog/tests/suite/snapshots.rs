//! Snapshots: whole and from the home of the space, or nothing comes of them.

use bytes::Bytes;
use percale_catalog::*;
use percale_core::Position;
use percale_core::ids::{SiteId, SpaceId};
use serde_json::json;

use crate::pair::{HOME, OWN, Pair, channel, sealed, snapshot};
use crate::site::{Site, kind, path};

async fn damaged_snapshots_change_nothing(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put_many(&(0..40).map(|n| format!("/lab/{}/{n}", n % 3)).collect::<Vec<_>>()).await;
    pair.catch_up(1000).await;
    pair.home.put("/lab/after", 1).await;
    let whole: Vec<u8> = snapshot(&pair.home.catalog, pair.space()).await.concat();
    let text = String::from_utf8(whole.clone()).unwrap();
    let before = pair.own.catalog.space_digest(pair.space()).await.unwrap();
    let refused = async |what: &str, pieces: Vec<Bytes>| {
        let error = pair.give(pieces).await.expect_err(what);
        assert_eq!(*error.kind(), ErrorKind::DoesNotFit, "{what}: {error}");
        assert_eq!(pair.own.catalog.space_digest(pair.space()).await.unwrap(), before, "{what}");
    };
    let bytes = |text: &str| vec![Bytes::copy_from_slice(text.as_bytes())];
    refused("nothing", Vec::new()).await;
    refused("garbage", vec![Bytes::from_static(&[0xff; 4096]), Bytes::from_static(b"\n")]).await;
    refused("another document", bytes("{\"error\":\"no such space\"}\n")).await;
    refused("an endless line", vec![Bytes::from(vec![b' '; 100_000]); 3]).await;
    refused("twice", vec![Bytes::from(whole.clone()); 2]).await;
    refused("one byte less", bytes(&text[..text.len() - 1])).await;
    refused("half of it", bytes(&text[..text.len() / 2])).await;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for missing in [0, 1, lines.len() / 2, lines.len() - 2, lines.len() - 1] {
        let cut: Vec<&str> =
            lines.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, line)| *line).collect();
        refused(&format!("without line {missing}"), bytes(&cut.concat())).await;
    }
    for at in (0..whole.len()).step_by(whole.len() / 17) {
        let mut altered = whole.clone();
        altered[at] ^= 1;
        refused(&format!("with byte {at} altered"), vec![Bytes::from(altered)]).await;
    }
    // Whole in itself, but not what was asked for, or from somebody else.
    let other = pair
        .own
        .catalog
        .follow_snapshot(SpaceId::new(), pair.home_id, HOME, OWN, channel(bytes(&text)))
        .await;
    assert_eq!(kind(other), ErrorKind::DoesNotFit);
    let other = pair
        .own
        .catalog
        .follow_snapshot(pair.space(), SiteId::new(), "coral", OWN, channel(bytes(&text)))
        .await;
    assert_eq!(kind(other), ErrorKind::DoesNotFit);
    assert_eq!(pair.own.catalog.space_digest(pair.space()).await.unwrap(), before);
    // In pieces of any size it is the same.
    pair.give(whole.chunks(7).map(Bytes::copy_from_slice).collect()).await.unwrap();
    pair.assert_same().await;
}

async fn a_snapshot_that_contradicts_itself_changes_nothing(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put("/lab/run/x", 1).await;
    pair.catch_up(1000).await;
    let before = pair.own.catalog.space_digest(pair.space()).await.unwrap();
    let text = snapshot(&pair.home.catalog, pair.space()).await.concat();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<String> =
        text.lines().map(str::to_owned).filter(|line| !line.contains("\"end\"")).collect();
    let run = pair.home.stat("/lab/run").await.unwrap().id;
    let x = pair.home.stat("/lab/run/x").await.unwrap().id;
    let version = pair.home.version("/lab/run/x").await;
    let taken = pair.own.put("/own/y", 1).await;
    let key =
        pair.own.catalog.open_object(&pair.own.admin, &taken.path, None).await.unwrap().replicas.remove(0);
    let swap = |from: &str, to: &str| -> Vec<String> {
        assert!(text.contains(from), "{from}");
        lines.iter().map(|line| line.replacen(from, to, 1)).collect()
    };
    let without = |what: &str| lines.iter().filter(|line| !line.contains(what)).cloned().collect::<Vec<_>>();
    let home_id = pair.home_id.to_string();
    let with_attribute = |entry: u64| {
        let mut lines = swap("\"form\":1", "\"form\":2");
        let value =
            json!({"entry": entry, "name": "a", "source": "person", "ord": 0, "value": {"text": "b"}});
        lines.push(json!({ "attribute": value }).to_string());
        lines
    };
    for (what, lines) in [
        ("no root", without("{\"collection\":{\"id\":1,")),
        ("no collection of an object", without(&format!("{{\"collection\":{{\"id\":{run},"))),
        ("a circle", swap(&format!("\"id\":{run},\"parent\":1"), &format!("\"id\":{run},\"parent\":{run}"))),
        (
            "an object in an object",
            swap(&format!("\"id\":{run},\"parent\":1"), &format!("\"id\":{run},\"parent\":{x}")),
        ),
        (
            "a root somewhere",
            swap("\"id\":1,\"parent\":0,\"name\":\"\"", "\"id\":1,\"parent\":7,\"name\":\"root\""),
        ),
        ("a copy of nothing", swap(&format!("\"entry\":{x},\"key\""), &format!("\"entry\":{run},\"key\""))),
        ("a grant on nothing", swap("{\"grant\":{\"entry\":1,", "{\"grant\":{\"entry\":777,")),
        ("an attribute of nothing", with_attribute(777)),
        ("another home", swap(&format!("\"home\":\"{home_id}\""), &format!("\"home\":\"{}\"", pair.own_id))),
        ("no home", swap(&format!("\"home\":\"{home_id}\""), "\"home\":null")),
        (
            "a key of another space",
            swap(
                &format!("\"version\":{version},\"store\":\"{}\",", pair.home.store),
                &format!("\"version\":{version},\"store\":\"{}\",", pair.own.store),
            )
            .iter()
            .map(|line| line.replace("\"key\":\"lab/run/x\"", &format!("\"key\":\"{}\"", key.key)))
            .collect(),
        ),
    ] {
        let refused = pair.give(sealed(&lines)).await.expect_err(what);
        assert_eq!(*refused.kind(), ErrorKind::DoesNotFit, "{what}: {refused}");
        assert_eq!(pair.own.catalog.space_digest(pair.space()).await.unwrap(), before, "{what}");
        pair.own.assert_sound().await;
    }
    let two = swap("\"name\":\"x\"", "\"name\":\"run\"");
    let two: Vec<String> = two
        .iter()
        .map(|line| {
            line.replace(&format!("\"id\":{x},\"parent\":{run}"), &format!("\"id\":{x},\"parent\":1"))
        })
        .collect();
    assert_eq!(kind(pair.give(sealed(&two)).await), ErrorKind::DoesNotFit, "two entries of one name");
    let newer = pair.give(sealed(&swap("\"form\":1", "\"form\":4"))).await;
    assert_eq!(kind(newer), ErrorKind::Unsupported);
    pair.give(sealed(&with_attribute(x.0))).await.unwrap();
    assert_eq!(pair.own.catalog.attributes(&pair.own.admin, &path("/lab/run/x")).await.unwrap().0.len(), 1);
    pair.give(sealed(&lines)).await.unwrap();
    pair.assert_same().await;
}

async fn snapshots_of_other_homes_and_older_terms_are_refused(home: Site) {
    let pair = Pair::of(home).await;
    let text = String::from_utf8(snapshot(&pair.home.catalog, pair.space()).await.concat()).unwrap();
    let (space, seq) = (pair.space(), pair.stands().await.seq);
    let as_of = |term: u32, home: SiteId| -> Vec<Bytes> {
        let lines = text.lines().filter(|line| !line.contains("\"end\""));
        let to = format!("\"position\":\"{space}.{term}.{seq}\"");
        let lines = lines.map(|line| {
            line.replace(&format!("\"position\":\"{space}.1.{seq}\""), &to)
                .replace(&format!("\"home\":\"{}\"", pair.home_id), &format!("\"home\":\"{home}\""))
        });
        sealed(&lines.collect::<Vec<_>>())
    };
    let take = async |term: u32, home: SiteId| {
        pair.own.catalog.follow_snapshot(space, home, "coral", OWN, channel(as_of(term, home))).await
    };
    let (smaller, greater) = (SiteId(uuid::Uuid::from_u128(1)), SiteId(uuid::Uuid::max()));
    assert_eq!(
        kind(take(1, greater).await),
        ErrorKind::Foreign { home: pair.home_id },
        "the smaller id wins"
    );
    assert_eq!(
        take(3, pair.home_id).await.unwrap(),
        Position { space, term: 3, seq },
        "the home was restored"
    );
    assert_eq!(kind(take(2, pair.home_id).await), ErrorKind::PreconditionFailed { version: None });
    assert_eq!(
        kind(take(2, smaller).await),
        ErrorKind::Foreign { home: pair.home_id },
        "the greater term wins"
    );
    take(3, smaller).await.unwrap();
    take(4, greater).await.unwrap();
    let followed = pair.own.catalog.followed_space(space).await.unwrap().unwrap();
    assert_eq!(followed.home, Some(greater));
    assert_eq!(pair.own.catalog.followed(pair.home_id).await.unwrap(), []);
    // A space that is at home here is not given away by a snapshot.
    let refused =
        pair.home.catalog.follow_snapshot(space, greater, "coral", HOME, channel(as_of(9, greater))).await;
    assert_eq!(kind(refused), ErrorKind::Foreign { home: pair.home_id });
    pair.own.assert_sound().await;
}

async fn large_snapshots_come_in_pieces_as_of_one_moment(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put_many(&(0..4000).map(|n| format!("/lab/{}/{n}", n % 50)).collect::<Vec<_>>()).await;
    let position = pair.home.catalog.position(pair.space()).await.unwrap();
    let mut snapshot = pair.home.catalog.snapshot(pair.space()).await.unwrap();
    let mut pieces = vec![snapshot.next().await.unwrap().unwrap()];
    // What happens meanwhile is behind it.
    pair.home.remove("/lab/7", true).await.unwrap();
    pair.home.put("/lab/later", 1).await;
    while let Some(piece) = snapshot.next().await.unwrap() {
        pieces.push(piece);
    }
    assert!(snapshot.next().await.unwrap().is_none());
    assert!(pieces.len() > 4, "{} pieces", pieces.len());
    let large = |piece: &Bytes| (256 * 1024..600 * 1024).contains(&piece.len()) && piece.ends_with(b"\n");
    assert!(pieces[..pieces.len() - 1].iter().all(large));
    // One that is given up holds nothing up.
    for _ in 0..5 {
        drop(pair.home.catalog.snapshot(pair.space()).await.unwrap().next().await.unwrap());
    }
    assert_eq!(pair.give(pieces).await.unwrap(), position);
    pair.catch_up(10).await;
    pair.assert_same().await;
}

async fn two_snapshots_at_a_time_leave_room_for_others(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put_many(&(0..8000).map(|n| format!("/lab/{n}")).collect::<Vec<_>>()).await;
    let (catalog, space) = (pair.home.catalog.clone(), pair.space());
    let begin = async || {
        let mut snapshot = catalog.snapshot(space).await.unwrap();
        snapshot.next().await.unwrap().unwrap();
        snapshot
    };
    // Begun, and more than waits for the reader is left.
    let (first, _second) = (begin().await, begin().await);
    let third = begin();
    tokio::pin!(third);
    for n in 0..10 {
        let others = async { pair.home.put(&format!("/lab/{n}"), n).await };
        tokio::select! {
            biased;
            _ = &mut third => panic!("three are written at once"),
            _ = others => {}
        }
    }
    drop(first);
    third.await;
}

on_both!(
    damaged_snapshots_change_nothing,
    a_snapshot_that_contradicts_itself_changes_nothing,
    snapshots_of_other_homes_and_older_terms_are_refused,
    large_snapshots_come_in_pieces_as_of_one_moment,
    two_snapshots_at_a_time_leave_room_for_others,
);
