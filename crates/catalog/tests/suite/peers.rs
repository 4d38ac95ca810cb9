//! The roster and invitations.

use percale_catalog::*;
use percale_core::Timestamp;
use percale_core::ids::SiteId;

use crate::site::{HOUR, Site, kind};

fn peer(id: SiteId, name: &str, changed: i64) -> Peer {
    Peer {
        id,
        name: name.into(),
        key: [7; 32],
        old_key: None,
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
    assert_eq!(catalog.merge_peers(vec![tie.clone()]).await.unwrap(), [tie], "the greater site id");

    let mut removed = peer(bora, "bora", 5);
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

on_both!(the_greater_version_wins_and_removal_is_final, names_are_unique, an_invitation_is_good_once,);
