//! The roster and invitations.

use percale_catalog::*;
use percale_core::Timestamp;
use percale_core::ids::SiteId;

use crate::pair::key;
use crate::site::{HOUR, Site, kind};

fn peer(id: SiteId, name: &str, changed: i64) -> Peer {
    Peer {
        id,
        name: name.into(),
        key: key(id),
        old_key: None,
        key_change: None,
        is_confirmed: true,
        urls: vec!["https://bora.example.org".into()],
        is_dialable: true,
        issuers: Vec::new(),
        state: PeerState::Active,
        changed: Timestamp::from_micros(changed),
        changed_by: id,
    }
}

async fn the_greater_version_wins_and_removal_is_final(site: Site) {
    let catalog = &site.catalog;
    let (bora, coral) = (SiteId::new(), SiteId::new());
    let mut first = peer(bora, "bora", 10);
    first.old_key = Some(([8; 32], Timestamp::from_micros(99)));
    first.issuers = vec!["https://id.example.org".into()];
    let both = vec![first.clone(), peer(coral, "coral", 10)];
    assert_eq!(catalog.merge_peers(both.clone()).await.unwrap(), both);
    assert_eq!(catalog.peers().await.unwrap(), both);
    assert_eq!(catalog.merge_peers(both.clone()).await.unwrap(), [], "nothing new");
    assert_eq!(catalog.merge_peers(vec![peer(bora, "older", 9)]).await.unwrap(), []);
    let mut tie = peer(bora, "bora", 10);
    tie.changed_by = SiteId(uuid::Uuid::max());
    let merged = Peer { old_key: first.old_key, ..tie.clone() };
    assert_eq!(catalog.merge_peers(vec![tie]).await.unwrap(), [merged], "the greater site id");

    let mut removed = peer(bora, "bora", 5);
    removed.old_key = first.old_key;
    removed.state = PeerState::Removed;
    let heard = catalog.merge_peers(vec![removed.clone()]).await.unwrap();
    assert_eq!(heard, [removed.clone()], "a removal that is heard of late counts");
    assert_eq!(catalog.merge_peers(vec![peer(bora, "bora", 99)]).await.unwrap(), []);
    assert_eq!(catalog.peers().await.unwrap()[0], removed);
    let again = peer(SiteId::new(), "bora", 11);
    assert_eq!(catalog.merge_peers(vec![again.clone()]).await.unwrap(), [again], "the name is free again");
    site.assert_sound().await;
}

async fn names_are_unique(site: Site) {
    let catalog = &site.catalog;
    let taken = catalog.merge_peers(vec![peer(SiteId::new(), "alps", 1)]).await;
    assert!(matches!(kind(taken), ErrorKind::AlreadyExists { .. }), "the site's own name");
    let own = catalog.site().await.unwrap().id;
    catalog.merge_peers(vec![peer(own, "alps", 1)]).await.unwrap();
    let two = vec![peer(SiteId::new(), "bora", 1), peer(SiteId::new(), "bora", 2)];
    assert!(matches!(kind(catalog.merge_peers(two).await), ErrorKind::AlreadyExists { .. }));
    assert_eq!(catalog.peers().await.unwrap().len(), 1, "nothing of a refused merge is kept");
}

fn step(site: SiteId, from: [u8; 32], to: [u8; 32]) -> KeyStep {
    let (old_until, change) = (Some(Timestamp::from_micros(50)), Some("text".to_owned()));
    KeyStep { site, from, to, old_until, change, is_confirmed: true }
}

async fn keys_change_by_steps_from_the_one_that_is_known(site: Site) {
    let catalog = &site.catalog;
    let (bora, coral) = (SiteId::new(), SiteId::new());
    catalog.merge_peers(vec![peer(bora, "bora", 10), peer(coral, "coral", 10)]).await.unwrap();
    let row = async || catalog.peers().await.unwrap().into_iter().find(|peer| peer.id == bora).unwrap();
    let mut other = peer(bora, "bora", 20);
    other.key = [1; 32];
    assert_eq!(catalog.merge_peers(vec![other]).await.unwrap(), [], "no line of the roster changes a key");
    assert!(!catalog.change_key(step(bora, [1; 32], [2; 32]), None).await.unwrap(), "not its key");
    let taken = catalog.change_key(step(bora, key(bora), key(coral)), None).await;
    assert!(matches!(kind(taken), ErrorKind::AlreadyExists { .. }), "two sites with one key");

    assert!(catalog.change_key(step(bora, key(bora), [2; 32]), None).await.unwrap());
    let after = row().await;
    let old_key = Some((key(bora), Timestamp::from_micros(50)));
    let key_change = Some("text".to_owned());
    assert_eq!(after, Peer { key: [2; 32], old_key, key_change, ..peer(bora, "bora", 10) });
    assert!(!catalog.change_key(step(bora, key(bora), [3; 32]), None).await.unwrap(), "a step is taken once");
    // A newer line keeps what is known of the keys, and a new site gets neither of them.
    let newer = Peer { key: [2; 32], ..peer(bora, "north", 20) };
    catalog.merge_peers(vec![newer]).await.unwrap();
    assert_eq!(row().await, Peer { name: "north".into(), changed: Timestamp::from_micros(20), ..after });
    for stolen in [[2; 32], key(bora)] {
        let thief = Peer { key: stolen, ..peer(SiteId::new(), "thief", 1) };
        let refused = catalog.merge_peers(vec![thief]).await;
        assert!(matches!(kind(refused), ErrorKind::AlreadyExists { .. }));
    }
    site.assert_sound().await;
}

async fn a_key_that_is_not_confirmed_stays_so_until_somebody_does(site: Site) {
    let catalog = &site.catalog;
    let bora = SiteId::new();
    catalog.merge_peers(vec![peer(bora, "bora", 10)]).await.unwrap();
    let revoked = KeyStep { old_until: None, is_confirmed: false, ..step(bora, key(bora), [2; 32]) };
    assert!(catalog.change_key(revoked, None).await.unwrap());
    assert!(catalog.change_key(step(bora, [2; 32], [3; 32]), None).await.unwrap());
    let row = catalog.peers().await.unwrap().remove(0);
    assert_eq!((row.key, row.is_confirmed), ([3; 32], false), "a further step confirms nothing");
    let confirmed = catalog.confirm_key(bora, [3; 32]).await.unwrap();
    assert_eq!(confirmed, Peer { is_confirmed: true, ..row });
    // Another key than the one that was heard of: nothing else that was heard counts.
    let other = catalog.confirm_key(bora, [4; 32]).await.unwrap();
    assert_eq!((other.key, other.old_key, other.key_change), ([4; 32], None, None));
    let said = Peer { key: [4; 32], urls: Vec::new(), ..peer(bora, "bora", 5) };
    assert_eq!(catalog.merge_peers(vec![said.clone()]).await.unwrap(), [said]);
    assert_eq!(kind(catalog.confirm_key(SiteId::new(), [5; 32]).await), ErrorKind::NotFound);
    let gone = Peer { state: PeerState::Removed, ..peer(bora, "bora", 1) };
    assert_eq!(catalog.merge_peers(vec![gone]).await.unwrap().len(), 1, "by whoever knows it by another key");
    assert_eq!(kind(catalog.confirm_key(bora, [5; 32]).await), ErrorKind::NotFound);
    assert!(!catalog.change_key(step(bora, [4; 32], [5; 32]), None).await.unwrap());
}

async fn tokens_outlive_their_key_unless_it_is_known_to_others(site: Site) {
    let catalog = &site.catalog;
    let own = catalog.site().await.unwrap().id;
    catalog.merge_peers(vec![peer(own, "alps", 1)]).await.unwrap();
    let now = catalog.now().await.unwrap();
    let until = now.after(HOUR);
    let change =
        async |from, to, tokens| catalog.change_key(step(own, from, to), Some(tokens)).await.unwrap();
    assert!(change(key(own), [2; 32], OldTokens::Until(until)).await);
    assert!(!change(key(own), [9; 32], OldTokens::Void).await, "a step that is not taken changes nothing");
    assert!(change([2; 32], [3; 32], OldTokens::Until(now)).await);
    assert_eq!(catalog.retired_keys().await.unwrap(), [(key(own), until)]);
    assert_eq!(catalog.prune(HOUR).await.unwrap(), 1, "the one whose tokens are over");
    assert!(change([3; 32], [4; 32], OldTokens::Void).await);
    assert_eq!(catalog.retired_keys().await.unwrap(), []);
}

async fn an_invitation_is_good_once(site: Site) {
    let catalog = &site.catalog;
    let now = catalog.now().await.unwrap();
    let (bora, coral) = (SiteId::new(), SiteId::new());
    catalog.add_invitation([1; 32], &site.admin, now.after(HOUR)).await.unwrap();
    catalog.add_invitation([2; 32], &site.admin, now).await.unwrap();
    assert_eq!(catalog.invitation_hashes().await.unwrap(), [[1; 32]]);
    assert_eq!(kind(catalog.use_invitation([3; 32], bora).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(catalog.use_invitation([2; 32], bora).await), ErrorKind::InvalidRequest, "it has ended");
    catalog.use_invitation([1; 32], bora).await.unwrap();
    catalog.use_invitation([1; 32], bora).await.unwrap();
    assert_eq!(kind(catalog.use_invitation([1; 32], coral).await), ErrorKind::InvalidRequest);
    assert_eq!(catalog.prune(HOUR).await.unwrap(), 1, "the one that ended");
}

on_both!(
    the_greater_version_wins_and_removal_is_final,
    names_are_unique,
    keys_change_by_steps_from_the_one_that_is_known,
    a_key_that_is_not_confirmed_stays_so_until_somebody_does,
    tokens_outlive_their_key_unless_it_is_known_to_others,
    an_invitation_is_good_once,
);
