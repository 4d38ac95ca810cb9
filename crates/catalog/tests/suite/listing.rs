//! Listing.

use std::time::{Duration, Instant};

use percale_catalog::*;

use percale_core::access::{Caller, Identity, Permission};

use crate::site::{Site, kind, path, subject};

async fn all(site: &Site, at: &str, recursive: bool, limit: usize) -> Vec<String> {
    let mut options = ListOptions::default();
    (options.recursive, options.limit) = (recursive, limit);
    let mut found = Vec::new();
    loop {
        let page = site.catalog.list(&site.admin, &path(at), options.clone()).await.unwrap();
        assert!(page.items.len() <= limit);
        found.extend(page.items.iter().map(|item| item.path.to_string()));
        options.after = page.next;
        if options.after.is_none() {
            return found;
        }
    }
}

async fn names_are_in_the_order_of_their_bytes(site: Site) {
    let names = [
        "Z",
        "a",
        "a-b",
        "a.b",
        "aa",
        "b",
        "ä",
        "日本",
        "10",
        "9",
        "with space",
        "%",
        "_",
        "'quote'",
        "\u{10348}",
    ];
    for name in names {
        site.put(&format!("/lab/d/{name}"), 1).await;
    }
    let mut sorted = names.map(|name| format!("/lab/d/{name}"));
    sorted.sort();
    for limit in [1, 2, 3, 100] {
        assert_eq!(all(&site, "/lab/d", false, limit).await, sorted, "pages of {limit}");
    }
    assert_eq!(all(&site, "/lab/d/a", false, 10).await, ["/lab/d/a"], "of an object, just that");
    let missing = site.catalog.list(&site.admin, &path("/lab/none"), ListOptions::default()).await;
    assert_eq!(kind(missing), ErrorKind::NotFound);
}

async fn a_tree_is_listed_depth_first_in_pages_of_any_size(site: Site) {
    let paths: Vec<String> = (0..60)
        .map(|n| format!("/lab/t/{}/{}/{n:02}", ["a", "a-b", "b"][n % 3], ["x", "y"][n % 2]))
        .chain(["/lab/t/a-".into(), "/lab/t/z".into()])
        .collect();
    site.put_many(&paths).await;
    site.mkdir("/lab/t/empty").await;
    let whole = all(&site, "/lab/t", true, 10_000).await;
    assert_eq!(whole.len(), 60 + 2 + 3 + 6 + 1);
    let components: Vec<Vec<&str>> = whole.iter().map(|line| line.split('/').collect()).collect();
    assert!(components.is_sorted(), "{whole:?}");
    for limit in [1, 2, 7, 25, 71, 72, 73] {
        assert_eq!(all(&site, "/lab/t", true, limit).await, whole, "pages of {limit}");
    }
}

async fn a_listing_goes_on_where_things_were_removed(site: Site) {
    site.put_many(&["/lab/t/a/1", "/lab/t/a/2", "/lab/t/b/1", "/lab/t/c"].map(String::from)).await;
    let mut options = ListOptions::default();
    (options.recursive, options.limit) = (true, 2);
    let first = site.catalog.list(&site.admin, &path("/lab/t"), options.clone()).await.unwrap();
    assert_eq!(first.next.as_deref(), Some("a/1"));
    site.remove("/lab/t/a", true).await.unwrap();
    (options.after, options.limit) = (first.next, 10);
    let rest = site.catalog.list(&site.admin, &path("/lab/t"), options).await.unwrap();
    let rest: Vec<_> = rest.items.iter().map(|item| item.path.as_str()).collect();
    assert_eq!(rest, ["/lab/t/b", "/lab/t/b/1", "/lab/t/c"]);
}

async fn replicas_come_along_if_asked_for(site: Site) {
    site.put_many(&(0..10).map(|n| format!("/lab/d/{n}")).collect::<Vec<_>>()).await;
    site.mkdir("/lab/d/sub").await;
    let mut options = ListOptions::default();
    let plain = site.catalog.list(&site.admin, &path("/lab/d"), options.clone()).await.unwrap();
    assert!(plain.items.iter().all(|item| item.replicas.is_empty()));
    options.replicas = true;
    let page = site.catalog.list(&site.admin, &path("/lab/d"), options).await.unwrap();
    for item in &page.items {
        let keys: Vec<_> = item.replicas.iter().map(|replica| replica.key.as_str()).collect();
        match item.entry.kind {
            EntryKind::Collection | EntryKind::Link => assert!(keys.is_empty()),
            EntryKind::Object => assert_eq!(keys, [item.path.as_str().trim_start_matches('/')]),
        }
    }
    assert_eq!(page.position, Some(site.catalog.position(site.space.id).await.unwrap()));
}

async fn names_are_found_by_patterns(site: Site) {
    let names = [
        "a.nc",
        "a.nc4",
        "ab.nc",
        "A.nc",
        "a*b",
        "a%b",
        "a_b",
        "axb",
        "a[b",
        "ä.nc",
        "日本",
        "\u{10ffff}",
        "-",
        "z\\z",
    ];
    let names = names.iter().chain(&["10%", "aä", "a.ncx"]);
    let paths: Vec<String> =
        names.flat_map(|name| [format!("/lab/x/{name}"), format!("/lab/y/{name}")]).collect();
    site.put_many(&paths).await;
    let patterns = [
        "*",
        "a*",
        "a.nc",
        "?.nc",
        "a?b",
        r"a\*b",
        r"a\[b",
        "a%b",
        "a_b",
        "[a-b]*",
        "[!a]*",
        "*.{nc,nc4}",
        "{a,z}*",
        "日*",
        "*nc",
        r"z\\z",
        "",
        "nothing",
        "\u{10ffff}*",
        "x",
        "lab",
    ];
    for text in patterns {
        let pattern = NamePattern::new(text).unwrap();
        for (at, below) in [("/lab", 2), ("/lab/x", 1)] {
            let mut wanted: Vec<String> = paths
                .iter()
                .map(String::as_str)
                .chain(["/lab/x", "/lab/y"])
                .filter(|path| {
                    path.starts_with(&format!("{at}/")) && pattern.is_match(path.rsplit('/').next().unwrap())
                })
                .map(str::to_owned)
                .collect();
            let mut options = FindOptions::new(pattern.clone());
            options.limit = below;
            let mut found = Vec::new();
            loop {
                let page = site.catalog.find(&site.admin, &path(at), options.clone()).await.unwrap();
                found.extend(page.items.iter().map(|item| item.path.to_string()));
                options.after = page.next;
                if options.after.is_none() {
                    break;
                }
            }
            let name = |path: &String| path.rsplit('/').next().unwrap().to_owned();
            assert!(found.is_sorted_by_key(name), "{text}: {found:?}");
            found.sort();
            wanted.sort();
            assert_eq!(found, wanted, "{text} in {at}");
        }
    }
    let mut options = FindOptions::new(NamePattern::new("*").unwrap());
    options.after = Some("nowhere".into());
    let error = kind(site.catalog.find(&site.admin, &path("/lab"), options).await);
    assert!(matches!(error, ErrorKind::InvalidRequest), "{error:?}");
    let stranger = Caller::user(Identity::local("stranger"));
    let options = FindOptions::new(NamePattern::new("*").unwrap());
    let refused = site.catalog.find(&stranger, &path("/lab"), options).await;
    assert!(refused.is_err(), "what may not be seen is not found");
}

/// Whoever may read a part of a space learns nothing of the names beside it, neither by what a page has nor by where the next one begins.
async fn names_beside_a_collection_are_not_told(site: Site) {
    let beside: Vec<String> = (0..300).map(|n| format!("/lab/other/secret-{n:03}")).collect();
    site.put_many(&beside).await;
    let mine = ["a", "secret-000", "secret-150", "z"].map(|name| format!("/lab/mine/{name}"));
    site.put_many(&mine).await;
    let bob = Caller::user(Identity::local("bob"));
    site.catalog.set_grant(&site.admin, &path("/lab/mine"), subject("bob"), Permission::Read).await.unwrap();
    let find = async |name: &str, limit: usize| {
        let mut options = FindOptions::new(NamePattern::new(name).unwrap());
        options.limit = limit;
        let (mut found, mut places) = (Vec::new(), Vec::new());
        loop {
            let page = site.catalog.find(&bob, &path("/lab/mine"), options.clone()).await.unwrap();
            found.extend(page.items.iter().map(|item| item.path.to_string()));
            options.after = page.next;
            match &options.after {
                Some(after) => places.push(after.split_once('/').unwrap().1.to_owned()),
                None => return (found, places),
            }
        }
    };
    let all = ["a", "secret-000", "secret-150", "z"];
    assert_eq!(find("*", 1).await, (mine.to_vec(), all.map(str::to_owned).to_vec()));
    assert_eq!(find("*", 2).await, (mine.to_vec(), vec!["secret-000".to_owned(), "z".into()]));
    assert_eq!(find("*", 5).await, (mine.to_vec(), Vec::new()));
    assert_eq!(find("secret-1*", 10).await, (vec![mine[2].clone()], Vec::new()));
    assert_eq!(find("secret-2*", 1).await, (Vec::new(), Vec::new()));
}

async fn what_a_rename_left_without_a_path_is_not_found(site: Site) {
    let long = |letter: &str| letter.repeat(250);
    let deep: String = (0..15).map(|_| format!("/{}", long("d"))).collect();
    site.put(&format!("/lab/x{deep}/{}", long("y")), 1).await;
    site.put("/lab/y", 1).await;
    site.rename("/lab/x", &format!("/lab/{}", long("x")), false).await.unwrap();
    let options = FindOptions::new(NamePattern::new("y*").unwrap());
    let page = site.catalog.find(&site.admin, &path("/lab"), options).await.unwrap();
    let found: Vec<String> = page.items.iter().map(|item| item.path.to_string()).collect();
    assert_eq!(found, ["/lab/y"]);
}

/// A collection of many entries: `PERCALE_MANY_ENTRIES` (1 000 000 in the long run), 100 000 by default.
async fn a_page_at_the_end_of_a_huge_collection_is_fast(site: Site) {
    let many = percale_testkit::faults::rounds("PERCALE_MANY_ENTRIES", 100_000) as usize;
    let paths: Vec<String> = (0..many).map(|n| format!("/lab/huge/{n:07}")).collect();
    site.put_many(&paths).await;
    let mut options = ListOptions::default();
    let timed = async |options: &ListOptions| {
        let start = Instant::now();
        let page = site.catalog.list(&site.admin, &path("/lab/huge"), options.clone()).await.unwrap();
        (page, start.elapsed())
    };
    timed(&options).await;
    let (_, first) = timed(&options).await;
    options.after = Some(format!("{:07}", many - 500));
    let (page, last) = timed(&options).await;
    assert_eq!((page.items.len(), page.next), (499, None));
    assert!(last < first * 5 + Duration::from_millis(50), "the last page took {last:?}, the first {first:?}");
    let start = Instant::now();
    assert!(site.stat(&format!("/lab/huge/{:07}", many - 1)).await.is_ok());
    assert!(start.elapsed() < Duration::from_millis(200));
}

on_both!(
    names_are_found_by_patterns,
    names_are_in_the_order_of_their_bytes,
    a_tree_is_listed_depth_first_in_pages_of_any_size,
    a_listing_goes_on_where_things_were_removed,
    replicas_come_along_if_asked_for,
    names_beside_a_collection_are_not_told,
    what_a_rename_left_without_a_path_is_not_found,
    a_page_at_the_end_of_a_huge_collection_is_fast,
);
