//! A space gets another home: nothing that was answered is lost where both are there, and what is lost is said where not.

use std::sync::atomic::{AtomicBool, Ordering};

use percale_catalog::*;
use percale_core::Position;
use percale_core::ids::SiteId;

use crate::pair::{HOME, OWN, Pair, channel, other, peer, snapshot};
use crate::site::{Site, kind};

/// Gives a snapshot of the pair's space from one site to another, by their names.
async fn give(pair: &Pair, from: &Site, to: &Site) -> Result<Position> {
    let (from_site, to_site) = (from.catalog.site().await.unwrap(), to.catalog.site().await.unwrap());
    let pieces = snapshot(&from.catalog, pair.space()).await;
    let pieces = channel(pieces);
    to.catalog.follow_snapshot(pair.space(), from_site.id, &from_site.name, &to_site.name, pieces).await
}

async fn digest(pair: &Pair, site: &Site) -> (Position, [u8; 32]) {
    site.assert_sound().await;
    site.catalog.space_digest(pair.space()).await.unwrap()
}

/// Publishes an object in the pair's space by a site's own means.
async fn put(site: &Site, at: &str) -> Result<Committed> {
    let intent = site.prepare(site.wanted(at, Condition::Any)).await?;
    let done = site.commit(&intent, 1).await;
    if done.is_err() {
        site.catalog.abandon(vec![intent.id]).await.unwrap();
    }
    done
}

async fn a_follower_takes_the_place_of_a_lost_home(home: Site) {
    let pair = Pair::of(home).await;
    let Pair { home, own, home_id, own_id } = &pair;
    let before = home.put("/lab/kept", 1).await.position;
    pair.catch_up(10).await;
    let lost = home.put("/lab/lost", 1).await;
    let prepared = home.prepare(home.wanted("/lab/prepared", Condition::Any)).await.unwrap();

    let promoted = own.catalog.promote(pair.space()).await.unwrap();
    assert_eq!(promoted.before, before);
    assert_eq!(promoted.position, Position { term: 2, seq: before.seq + 1, ..before });
    assert_eq!(kind(own.catalog.promote(pair.space()).await), ErrorKind::AlreadyExists { version: None });
    let records = own.catalog.journal(&own.admin, pair.space(), None, 1000).await.unwrap();
    let last = records.last().unwrap();
    let body = SpacePromotedBody { home: *own_id, from: *home_id, before };
    assert_eq!(
        (last.position, last.change().unwrap()),
        (promoted.position, RecordChange::SpacePromoted(body))
    );
    // It is a home as any other, and gives no id out that the old one may have given.
    let new = put(own, "/lab/new").await.unwrap();
    assert!(new.version.0 > lost.version.0 + (1 << 31) && new.entry.0 > lost.entry.0 + (1 << 31));
    assert_eq!(new.position, Position { seq: promoted.position.seq + 1, ..promoted.position });
    let old = pair.follow(pair.records(before, 10).await).await;
    assert_eq!(
        kind(old),
        ErrorKind::Foreign { home: *own_id },
        "what the old home says does not count any more"
    );

    // The old home returns, hears of it, gives way, and has what the new one has.
    let at = new.position;
    home.catalog.step_down(pair.space(), *own_id, at).await.unwrap();
    home.catalog.step_down(pair.space(), *own_id, at).await.unwrap();
    let foreign = ErrorKind::Foreign { home: *own_id };
    assert_eq!(kind(home.commit(&prepared, 1).await), foreign);
    assert_eq!(kind(put(home, "/lab/late").await), foreign);
    assert_eq!(kind(home.catalog.step_down(pair.space(), SiteId::new(), at).await), foreign);
    let behind = home.catalog.followed_space(pair.space()).await.unwrap().unwrap();
    assert!(behind.behind.is_some());
    assert_eq!(
        kind(home.catalog.promote(pair.space()).await),
        ErrorKind::PreconditionFailed { version: None }
    );
    home.catalog.abandon(vec![prepared.id]).await.unwrap();
    assert_eq!(give(&pair, own, home).await.unwrap(), at);
    assert_eq!(digest(&pair, own).await, digest(&pair, home).await);
    assert_eq!(kind(home.stat("/lab/lost").await), ErrorKind::NotFound);
    let garbage: Vec<String> = home.collect().await.into_iter().map(|garbage| garbage.key).collect();
    assert_eq!(garbage, ["lab/lost"], "its own copies of the rest stay");
    // It follows from there, and the other way round it goes on as well.
    put(own, "/lab/next").await.unwrap();
    let records = own.catalog.journal(&own.admin, pair.space(), Some(at), 10).await.unwrap();
    home.catalog.follow(pair.space(), *own_id, OWN, HOME, records).await.unwrap();
    assert_eq!(digest(&pair, own).await, digest(&pair, home).await);
    assert_eq!(home.catalog.promote(pair.space()).await.unwrap().position.term, 3);
    let back = put(home, "/lab/back").await.unwrap();
    assert!(back.version.0 > new.version.0);
}

async fn the_greater_term_and_then_the_smaller_site_wins(home: Site) {
    let pair = Pair::of(home).await;
    let space = pair.space();
    let own = pair.home.put("/lab/x", 1).await.position;
    let refused = ErrorKind::PreconditionFailed { version: None };
    let (smaller, greater) = (SiteId(uuid::Uuid::from_u128(1)), SiteId(uuid::Uuid::max()));
    let step_down = async |site: SiteId, term: u32, seq: u64| {
        pair.home.catalog.step_down(space, site, Position { space, term, seq }).await
    };
    assert_eq!(kind(step_down(greater, own.term, own.seq + 100).await), refused, "records do not count");
    assert_eq!(kind(step_down(smaller, own.term - 1, own.seq).await), refused);
    assert_eq!(kind(step_down(pair.home_id, own.term + 1, 1).await), ErrorKind::InvalidRequest);
    let of_another = Position { space: pair.own.space.id, term: 9, seq: 9 };
    let outcome = pair.home.catalog.step_down(space, greater, of_another).await;
    assert_eq!(kind(outcome), ErrorKind::InvalidRequest);
    pair.home.put("/lab/x", 2).await;
    step_down(smaller, own.term, 1).await.unwrap();
    assert_eq!(kind(put(&pair.home, "/lab/x").await), ErrorKind::Foreign { home: smaller });
    pair.home.assert_sound().await;
}

async fn a_space_moves_with_all_that_was_answered(home: Site) {
    let pair = Pair::of(home).await;
    let Pair { home, own, home_id, own_id } = &pair;
    let third = other(home, "coral").await;
    third.catalog.merge_peers(vec![peer(*home_id, HOME), peer(*own_id, OWN)]).await.unwrap();
    give(&pair, home, &third).await.unwrap();
    let is_over = AtomicBool::new(false);
    let write = async |n: usize| {
        let mut done = Vec::new();
        for at in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            match put(home, &format!("/lab/{n}/{at}")).await {
                Ok(committed) => done.push(committed),
                Err(error) => assert_eq!(*error.kind(), ErrorKind::Foreign { home: *own_id }, "{error}"),
            }
        }
        done
    };
    let prepared = home.prepare(home.wanted("/lab/prepared", Condition::Any)).await.unwrap();
    let hand_over = async {
        pair.catch_up(5).await;
        let at = home.catalog.hand_over(pair.space(), *own_id).await.unwrap();
        // Nothing may come behind it, however long the writers go on.
        pair.catch_up(5).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
            assert_eq!(home.catalog.position(pair.space()).await.unwrap(), at);
        }
        is_over.store(true, Ordering::Relaxed);
        at
    };
    let (one, two, at) = tokio::join!(write(1), write(2), hand_over);
    assert_eq!(kind(home.commit(&prepared, 1).await), ErrorKind::Foreign { home: *own_id });
    home.catalog.abandon(vec![prepared.id]).await.unwrap();
    let again = home.catalog.hand_over(pair.space(), *own_id).await;
    assert_eq!(kind(again), ErrorKind::Foreign { home: *own_id });
    let last =
        home.catalog.journal(&home.admin, pair.space(), None, MAX_JOURNAL).await.unwrap().pop().unwrap();
    let moved = RecordChange::SpaceMoved(SpaceMovedBody { to: *own_id });
    assert_eq!((last.position, last.change().unwrap()), (at, moved));
    // Until it is taken over, nobody changes it, and all know whose it is.
    assert_eq!(pair.stands().await, at);
    assert_eq!(kind(put(own, "/lab/early").await), ErrorKind::Foreign { home: *own_id });
    pair.assert_same().await;
    let wrong = Position { seq: at.seq - 1, ..at };
    let refused = ErrorKind::PreconditionFailed { version: None };
    assert_eq!(kind(own.catalog.take_over(pair.space(), wrong).await), refused);
    let elsewhere = ErrorKind::Foreign { home: *home_id };
    assert_eq!(kind(third.catalog.take_over(pair.space(), at).await), elsewhere);
    let promoted = own.catalog.take_over(pair.space(), at).await.unwrap();
    assert_eq!((promoted.before, promoted.position.term), (at, 2));
    for committed in one.iter().chain(&two) {
        assert_eq!(own.stat(committed.path.as_str()).await.unwrap().id, committed.entry);
    }
    put(own, "/lab/new").await.unwrap();
    // The old home and a third site follow the new one, each from a snapshot: the term is another.
    let records = own.catalog.journal(&own.admin, pair.space(), Some(at), 10).await;
    assert_eq!(kind(records), ErrorKind::PreconditionFailed { version: None });
    for site in [home, &third] {
        give(&pair, own, site).await.unwrap();
        assert_eq!(digest(&pair, site).await, digest(&pair, own).await);
    }
    assert_eq!(home.collect().await, [], "no copy lost its name");
}

async fn a_space_that_nobody_took_over_is_taken_back(home: Site) {
    let pair = Pair::of(home).await;
    let Pair { home, own_id, .. } = &pair;
    let unknown = home.catalog.hand_over(pair.space(), SiteId::new()).await;
    assert_eq!(kind(unknown), ErrorKind::NotFound);
    let mut gone = peer(SiteId::new(), "gone");
    gone.state = PeerState::Removed;
    home.catalog.merge_peers(vec![gone.clone()]).await.unwrap();
    assert_eq!(kind(home.catalog.hand_over(pair.space(), gone.id).await), ErrorKind::NotFound);
    let before = put(home, "/lab/x").await.unwrap();
    let at = home.catalog.hand_over(pair.space(), *own_id).await.unwrap();
    let promoted = home.catalog.promote(pair.space()).await.unwrap();
    assert_eq!((promoted.before, promoted.position.term), (at, 2));
    let after = put(home, "/lab/x").await.unwrap();
    assert!(after.version > before.version);
    home.assert_sound().await;
    // The other one hears of the greater term.
    pair.take_snapshot().await.unwrap();
    pair.assert_same().await;
}

async fn followers_hear_where_a_space_went(home: Site) {
    let pair = Pair::of(home).await;
    let coral = SiteId::new();
    pair.home.catalog.merge_peers(vec![peer(coral, "coral")]).await.unwrap();
    let at = pair.home.catalog.hand_over(pair.space(), coral).await.unwrap();
    pair.catch_up(10).await;
    let space = pair.own.catalog.followed_space(pair.space()).await.unwrap().unwrap();
    assert_eq!((space.home, space.position, space.behind), (Some(coral), at, None));
    assert_eq!(pair.own.catalog.followed(coral).await.unwrap(), [at]);
    assert_eq!(pair.own.catalog.followed(pair.home_id).await.unwrap(), []);
}

on_both!(
    a_follower_takes_the_place_of_a_lost_home,
    the_greater_term_and_then_the_smaller_site_wins,
    a_space_moves_with_all_that_was_answered,
    a_space_that_nobody_took_over_is_taken_back,
    followers_hear_where_a_space_went,
);
