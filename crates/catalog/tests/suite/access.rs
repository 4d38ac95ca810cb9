//! Who may see and do what.

use percale_catalog::*;
use percale_core::ErrorCode;
use percale_core::access::{Caller, Identity, Permission, Subject};

use crate::site::{Site, kind, path, subject, user};

async fn nothing_is_seen_without_a_grant(site: Site) {
    site.put("/lab/secret/x", 1).await;
    let bob = user("bob");
    let catalog = &site.catalog;
    for at in [
        "/lab",
        "/lab/secret",
        "/lab/secret/x",
        "/lab/none",
        "/lab/none/x",
        "/lab/secret/x/y",
        "/none",
        "/none/x",
    ] {
        let at = path(at);
        let hidden = [
            catalog.stat(&bob, &at).await.unwrap_err(),
            catalog.open_object(&bob, &at, None).await.unwrap_err(),
            catalog.list(&bob, &at, ListOptions::default()).await.unwrap_err(),
            catalog.create_collection(&bob, &at, true).await.unwrap_err(),
            catalog.remove(&bob, &at, RemoveOptions::default()).await.unwrap_err(),
            catalog.grants(&bob, &at).await.unwrap_err(),
            catalog.open_many(&bob, std::slice::from_ref(&at)).await.pop().unwrap().unwrap_err(),
        ];
        for error in hidden {
            assert_eq!(error.code(), ErrorCode::NotFound, "{at}: {error}");
            assert_eq!(
                error.to_string(),
                format!("nothing at {at}, or you may not read it"),
                "all read alike"
            );
        }
        let anonymous = catalog.stat(&Caller::anonymous(), &at).await.unwrap_err();
        assert_eq!(anonymous.code(), ErrorCode::Unauthenticated, "{at}");
        assert_eq!(catalog.permission(&bob, &at).await.unwrap(), None);
    }
    assert!(catalog.spaces(&bob).await.unwrap().is_empty());
    let x = site.version("/lab/secret/x").await;
    let hidden = catalog.open_by_id(&bob, site.space.id, x).await.unwrap_err();
    assert_eq!(hidden.code(), ErrorCode::NotFound);
    assert!(!hidden.to_string().contains("secret"), "{hidden}");
    assert_eq!(
        catalog.journal(&bob, site.space.id, None, 10).await.unwrap_err().code(),
        ErrorCode::SpaceNotFound
    );
    let rename = catalog.rename(&bob, &path("/lab/secret"), &path("/lab/y"), RenameOptions::default()).await;
    assert_eq!(rename.unwrap_err().code(), ErrorCode::NotFound);
}

async fn grants_reach_down_and_not_up(site: Site) {
    site.put("/lab/a/b/c/x", 1).await;
    let catalog = &site.catalog;
    let alice = user("alice");
    catalog.set_grant(&site.admin, &path("/lab/a/b"), subject("alice"), Permission::Read).await.unwrap();
    assert!(catalog.stat(&alice, &path("/lab/a/b")).await.is_ok());
    assert!(catalog.stat(&alice, &path("/lab/a/b/c/x")).await.is_ok());
    assert_eq!(catalog.stat(&alice, &path("/lab/a")).await.unwrap_err().code(), ErrorCode::NotFound);
    let missing = catalog.stat(&alice, &path("/lab/a/b/none")).await;
    assert_eq!(kind(missing), ErrorKind::NotFound, "who may read learns that nothing is there");
    let denied = catalog.create_collection(&alice, &path("/lab/a/b/new"), false).await.unwrap_err();
    assert_eq!(denied.code(), ErrorCode::Forbidden);
    assert_eq!(catalog.permission(&alice, &path("/lab/a/b/c")).await.unwrap(), Some(Permission::Read));
    assert!(catalog.spaces(&alice).await.unwrap().is_empty(), "the root is not hers");

    let x = site.version("/lab/a/b/c/x").await;
    let open = catalog.open_by_id(&alice, site.space.id, x).await.unwrap();
    assert_eq!(open.path, path("/lab/a/b/c/x"));

    // A grant goes with its collection.
    site.rename("/lab/a/b", "/lab/moved", false).await.unwrap();
    assert!(catalog.stat(&alice, &path("/lab/moved/c/x")).await.is_ok());

    catalog.remove_grant(&site.admin, &path("/lab/moved"), &subject("alice")).await.unwrap();
    assert_eq!(catalog.stat(&alice, &path("/lab/moved")).await.unwrap_err().code(), ErrorCode::NotFound);
    let again = catalog.remove_grant(&site.admin, &path("/lab/moved"), &subject("alice")).await;
    assert_eq!(kind(again), ErrorKind::NotFound);
}

async fn a_grant_ends_with_its_entry(site: Site) {
    site.mkdir("/lab/a").await;
    site.catalog.set_grant(&site.admin, &path("/lab/a"), subject("alice"), Permission::Manage).await.unwrap();
    site.remove("/lab/a", false).await.unwrap();
    site.mkdir("/lab/a").await;
    let stat = site.catalog.stat(&user("alice"), &path("/lab/a")).await;
    assert_eq!(stat.unwrap_err().code(), ErrorCode::NotFound);
    assert!(site.catalog.fsck().await.unwrap().is_empty());
}

async fn groups_anyone_and_scopes(site: Site) {
    site.put("/lab/a/x", 1).await;
    let catalog = &site.catalog;
    let group = Subject::Group(Identity::local("wp3"));
    catalog.set_grant(&site.admin, &path("/lab/a"), group, Permission::Write).await.unwrap();
    let mut carol = user("carol");
    assert!(catalog.stat(&carol, &path("/lab/a/x")).await.is_err());
    carol.groups.push(Identity::local("wp3"));
    assert!(catalog.stat(&carol, &path("/lab/a/x")).await.is_ok());
    carol.scopes = vec!["read:/lab/a".parse().unwrap()];
    assert!(catalog.stat(&carol, &path("/lab/a/x")).await.is_ok());
    let denied = catalog.remove(&carol, &path("/lab/a/x"), RemoveOptions::default()).await.unwrap_err();
    assert_eq!(denied.code(), ErrorCode::Forbidden, "the token may only read");
    assert_eq!(catalog.permission(&carol, &path("/lab/a/x")).await.unwrap(), Some(Permission::Read));
    catalog.set_grant(&site.admin, &path("/lab/a"), Subject::Anyone, Permission::Read).await.unwrap();
    assert!(catalog.stat(&Caller::anonymous(), &path("/lab/a/x")).await.is_ok());
    let anonymous = catalog.remove(&Caller::anonymous(), &path("/lab/a/x"), RemoveOptions::default()).await;
    assert_eq!(anonymous.unwrap_err().code(), ErrorCode::Forbidden);
}

async fn who_may_manage_grants(site: Site) {
    site.put("/lab/a/b/x", 1).await;
    let catalog = &site.catalog;
    let owner = user("owner");
    catalog.set_grant(&owner, &path("/lab/a"), subject("alice"), Permission::Write).await.unwrap();
    let denied = catalog.set_grant(&user("alice"), &path("/lab/a"), subject("bob"), Permission::Read).await;
    assert_eq!(denied.unwrap_err().code(), ErrorCode::Forbidden);
    catalog.set_grant(&owner, &path("/lab/a/b/x"), subject("bob"), Permission::Read).await.unwrap();
    let grants = catalog.grants(&owner, &path("/lab/a/b/x")).await.unwrap();
    let lines: Vec<_> = grants
        .iter()
        .map(|grant| format!("{} {} {} {}", grant.path, grant.subject, grant.permission, grant.inherited))
        .collect();
    assert_eq!(
        lines,
        ["/lab user:owner manage true", "/lab/a user:alice write true", "/lab/a/b/x user:bob read false"]
    );
    // In place of what was there.
    catalog.set_grant(&owner, &path("/lab/a"), subject("alice"), Permission::Read).await.unwrap();
    assert_eq!(catalog.grants(&owner, &path("/lab/a")).await.unwrap().len(), 2);
    let missing = catalog.set_grant(&owner, &path("/lab/none"), subject("bob"), Permission::Read).await;
    assert_eq!(kind(missing), ErrorKind::NotFound);
}

async fn an_identity_of_another_issuer_is_another(site: Site) {
    site.put("/lab/x", 1).await;
    let elsewhere: Identity = "owner@https://id.example.org".parse().unwrap();
    let stranger = Caller::user(elsewhere.clone());
    assert!(site.catalog.stat(&stranger, &path("/lab/x")).await.is_err());
    let grant = Subject::User(elsewhere);
    site.catalog.set_grant(&site.admin, &path("/lab/x"), grant, Permission::Read).await.unwrap();
    assert!(site.catalog.stat(&stranger, &path("/lab/x")).await.is_ok());
}

on_both!(
    nothing_is_seen_without_a_grant,
    grants_reach_down_and_not_up,
    a_grant_ends_with_its_entry,
    groups_anyone_and_scopes,
    who_may_manage_grants,
    an_identity_of_another_issuer_is_another,
);
