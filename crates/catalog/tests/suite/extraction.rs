//! What has to be read for what its bytes say, and what was found.

use std::time::Duration;

use percale_catalog::*;
use percale_core::access::Caller;
use percale_core::attribute::MAX_ATTRIBUTE_TEXT;
use percale_core::ids::EntryId;
use percale_core::path::MAX_PATH_BYTES;
use percale_core::{AttributeName, AttributeValue, ByteCount};

use crate::site::{Site, kind, path};

const EXTRACTOR: u32 = 1;

async fn next(site: &Site) -> ToExtract {
    site.catalog.to_extract(site.space.id, EXTRACTOR, 3).await.unwrap()
}

fn attribute(name: &str, value: &str) -> FoundAttribute {
    (name.parse().unwrap(), vec![AttributeValue::Text(value.into())])
}

fn header(version: &OpenVersion, set: &[(&str, &str)]) -> Header {
    let found = set.iter().map(|(name, value)| attribute(name, value));
    let (entry, version, as_of) = (version.entry, version.version, Vec::new());
    Header { entry, version, as_of, found: found.collect(), is_partial: false }
}

fn header_by(Described { object, as_of, .. }: &Described, set: &[(&str, &str)]) -> Header {
    Header { as_of: as_of.clone(), ..header(object, set) }
}

/// Reads all that is due, each object having its path as an attribute. Returns what was read, in order: ids are given in blocks, so those
/// of later objects may be smaller.
async fn settle(site: &Site) -> Vec<String> {
    let mut read = Vec::new();
    loop {
        let ToExtract { due, place, is_done, .. } = next(site).await;
        let by = |due: &Described| {
            due.by.iter().filter_map(|by| by.path.name()).map(|name| format!(" < {name}")).collect::<String>()
        };
        let at = |due: &Described| format!("{}{}", due.object.path, by(due));
        let headers = due.iter().map(|due| header_by(due, &[("at", &at(due))])).collect();
        read.extend(due.iter().map(at));
        site.catalog.extracted(site.space.id, Some(place), headers).await.unwrap();
        if is_done {
            read.sort_unstable();
            return read;
        }
    }
}

async fn said(site: &Site, at: &str) -> Vec<(String, AttributeSource, String)> {
    let (attributes, _) = site.catalog.attributes(&site.admin, &path(at)).await.unwrap();
    let shown =
        attributes.into_iter().map(|one| (one.name.to_string(), one.source, one.values[0].to_string()));
    shown.collect()
}

async fn each_version_is_read_once(site: Site) {
    for n in 0..7 {
        site.put(&format!("/lab/{n}"), n).await;
    }
    assert_eq!(settle(&site).await, ["/lab/0", "/lab/1", "/lab/2", "/lab/3", "/lab/4", "/lab/5", "/lab/6"]);
    assert_eq!(settle(&site).await, Vec::<String>::new());
    assert_eq!(
        said(&site, "/lab/3").await,
        [("at".to_owned(), AttributeSource::Header, "/lab/3".to_owned())]
    );
    // What was overwritten twice is read once, as it is now; what is gone not at all.
    site.put("/lab/2", 20).await;
    site.put("/lab/2", 21).await;
    site.put("/lab/x", 1).await;
    site.remove("/lab/x", false).await.unwrap();
    site.mkdir("/lab/d").await;
    assert_eq!(settle(&site).await, ["/lab/2"]);
    // Nothing is written where nothing is new.
    let before = site.catalog.position(site.space.id).await.unwrap();
    site.put("/lab/2", 22).await;
    assert_eq!(settle(&site).await, ["/lab/2"]);
    let after = site.catalog.position(site.space.id).await.unwrap();
    assert_eq!(after.seq, before.seq + 1);
    site.assert_sound().await;
}

async fn what_was_found_takes_the_place_of_what_was_found_before(site: Site) {
    site.put("/lab/x", 1).await;
    let person = AttributeChange { set: vec![("a".parse().unwrap(), vec![AttributeValue::Integer(7)])] };
    site.catalog.change_attributes(&site.admin, &path("/lab/x"), person).await.unwrap();
    let first = next(&site).await.due.remove(0).object;
    let note = async |headers| site.catalog.extracted(site.space.id, None, headers).await;
    note(vec![header(&first, &[("a", "1"), ("b", "2"), ("c", "3")])]).await.unwrap();
    note(vec![header(&first, &[("b", "2"), ("c", "4")])]).await.unwrap();
    let found = |name: &str, value: &str| (name.to_owned(), AttributeSource::Header, value.to_owned());
    let person = ("a".to_owned(), AttributeSource::Person, "7".to_owned());
    assert_eq!(said(&site, "/lab/x").await, [person.clone(), found("b", "2"), found("c", "4")]);
    // What comes late is about bytes that are not there any more.
    site.put("/lab/x", 2).await;
    note(vec![header(&first, &[("late", "1")])]).await.unwrap();
    assert_eq!(said(&site, "/lab/x").await.len(), 3);
    let second = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
    note(vec![header(&second, &[])]).await.unwrap();
    assert_eq!(said(&site, "/lab/x").await, [person]);
    let long = "x".repeat(MAX_ATTRIBUTE_TEXT + 1);
    assert_eq!(kind(note(vec![header(&second, &[("a", &long)])]).await), ErrorKind::InvalidRequest);
    site.assert_sound().await;
}

async fn what_was_not_read_is_found_by_that_and_keeps_what_is_known(site: Site) {
    let mark: AttributeName = "unread".parse().unwrap();
    let marked = |version: &OpenVersion, is_so: bool| {
        let found = vec![(mark.clone(), vec![AttributeValue::Bool(is_so)])];
        Header { found, is_partial: true, ..header(version, &[]) }
    };
    let with = async |after: Option<EntryId>, limit| {
        let (found, last) = site.catalog.extracted_with(site.space.id, &mark, after, limit).await.unwrap();
        let is_last = found.last().map(|found| found.object.entry) == last;
        assert_eq!(last.is_some(), found.len() == limit && is_last);
        found.into_iter().map(|found| found.object).collect::<Vec<_>>()
    };
    let all = ["a", "b", "c", "d", "e"];
    for name in all {
        site.put(&format!("/lab/{name}"), 1).await;
    }
    settle(&site).await;
    let mut versions = Vec::new();
    for name in all {
        versions
            .push(site.catalog.open_object(&site.admin, &path(&format!("/lab/{name}")), None).await.unwrap());
    }
    versions.sort_by_key(|version| version.entry);
    assert_eq!(with(None, 10).await, []);
    let headers = versions.iter().map(|version| marked(version, version.path.name() != Some("c"))).collect();
    let before = site.catalog.extracted(site.space.id, None, headers).await.unwrap();
    // Nobody else says what is unread.
    let person = AttributeChange { set: vec![(mark.clone(), vec![AttributeValue::Bool(true)])] };
    site.catalog.change_attributes(&site.admin, &path("/lab/c"), person).await.unwrap();
    let names = |found: &[OpenVersion]| found.iter().map(|one| one.path.to_string()).collect::<Vec<_>>();
    let marked_ones: Vec<_> = versions.iter().filter(|one| one.path.name() != Some("c")).cloned().collect();
    let (first, rest) = (with(None, 3).await, with(Some(marked_ones[2].entry), 3).await);
    assert_eq!((names(&first), names(&rest)), (names(&marked_ones[..3]), names(&marked_ones[3..])));
    assert_eq!(first[0].version, marked_ones[0].version);
    let found = |name: &str, value: &str| (name.to_owned(), AttributeSource::Header, value.to_owned());
    assert_eq!(said(&site, "/lab/a").await, [found("at", "/lab/a"), found("unread", "true")]);
    // The same once more is no record.
    let again = site.catalog.extracted(site.space.id, None, vec![marked(&marked_ones[0], true)]).await;
    assert_eq!(again.unwrap().seq, before.seq + 1);
    // Of what was removed or replaced, the current version; once it was read, nothing.
    site.remove("/lab/a", false).await.unwrap();
    site.put("/lab/b", 2).await;
    let found = with(None, 10).await;
    assert_eq!(found.len(), 3);
    let b = found.iter().find(|one| one.path.name() == Some("b")).unwrap();
    assert_ne!(b.version, versions.iter().find(|one| one.entry == b.entry).unwrap().version);
    settle(&site).await;
    assert!(!names(&with(None, 10).await).contains(&"/lab/b".to_owned()));
    site.assert_sound().await;
}

async fn what_was_read_at_once_is_not_read_again(site: Site) {
    settle(&site).await;
    site.put("/lab/x", 1).await;
    site.put("/lab/y", 1).await;
    let open = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
    site.catalog.extracted(site.space.id, None, vec![header(&open, &[("a", "1")])]).await.unwrap();
    assert_eq!(settle(&site).await, ["/lab/y"]);
}

/// Publishes an object with what its bytes say.
async fn put_with(site: &Site, at: &str, set: &[(&str, &str)]) -> Result<Committed> {
    let intent = site.prepare(site.wanted(at, Condition::Any)).await?;
    commit_with(site, &intent, set).await
}

async fn commit_with(site: &Site, intent: &Intent, set: &[(&str, &str)]) -> Result<Committed> {
    let found = Some(set.iter().map(|(name, value)| attribute(name, value)).collect());
    let commit = Commit { found, ..Commit::new(intent.id, ByteCount(1), None) };
    site.catalog.commit(vec![commit]).await.pop().unwrap()
}

async fn what_was_read_ahead_is_there_with_the_version(site: Site) {
    assert_eq!(settle(&site).await, Vec::<String>::new());
    let committed = put_with(&site, "/lab/a", &[("title", "first"), ("units", "K")]).await.unwrap();
    let header = |name: &str, value: &str| (name.to_owned(), AttributeSource::Header, value.to_owned());
    assert_eq!(said(&site, "/lab/a").await, [header("title", "first"), header("units", "K")]);
    // The answer is behind both of its records.
    assert_eq!(committed.position, site.catalog.position(site.space.id).await.unwrap());
    let records = site.catalog.journal(&site.admin, site.space.id, None, 100).await.unwrap();
    let kinds: Vec<&str> = records.iter().rev().take(2).map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["attributes.changed", "objects.published"]);
    assert_eq!(settle(&site).await, Vec::<String>::new());

    // The next version says something else, and one that nobody looked at is read.
    put_with(&site, "/lab/a", &[("title", "second")]).await.unwrap();
    assert_eq!(said(&site, "/lab/a").await, [header("title", "second")]);
    site.put("/lab/b", 1).await;
    assert_eq!(settle(&site).await, ["/lab/b"]);

    // Of two writers that replace the same version one comes late, and nothing of it is kept.
    let late = site.prepare(site.wanted("/lab/a", Condition::Any)).await.unwrap();
    put_with(&site, "/lab/a", &[("title", "third")]).await.unwrap();
    let refused = commit_with(&site, &late, &[("title", "late")]).await;
    assert!(matches!(kind(refused), ErrorKind::Conflict { .. }));
    assert_eq!(said(&site, "/lab/a").await, [header("title", "third")]);
    let long = "x".repeat(MAX_ATTRIBUTE_TEXT + 1);
    assert_eq!(kind(put_with(&site, "/lab/c", &[("title", &long)]).await), ErrorKind::InvalidRequest);
    site.assert_sound().await;
}

async fn all_is_read_again_by_another_extractor_and_where_the_journal_is_gone(site: Site) {
    for n in 0..4 {
        site.put(&format!("/lab/{n}"), n).await;
    }
    settle(&site).await;
    let again = site.catalog.to_extract(site.space.id, EXTRACTOR + 1, 3).await.unwrap();
    let end = site.catalog.position(site.space.id).await.unwrap();
    assert_eq!((again.due.len(), again.place.left(end)), (3, None));
    // Records that nobody has read are pruned.
    site.put("/lab/4", 1).await;
    site.put("/lab/5", 1).await;
    assert!(site.catalog.prune_journal(Duration::ZERO, 1).await.unwrap() > 0);
    assert_eq!(settle(&site).await.len(), 6);
    assert_eq!(settle(&site).await.len(), 0);
}

async fn a_space_says_when_its_objects_are_read(site: Site) {
    assert_eq!(site.space.extraction, ExtractionMode::Async);
    let change = SpaceChange { extraction: Some(ExtractionMode::Sync), ..SpaceChange::default() };
    let name = site.space.name.clone();
    let space = site.catalog.update_space(&site.admin, &name, change).await.unwrap();
    assert_eq!(space.extraction, ExtractionMode::Sync);
    assert_eq!(site.catalog.space(&site.admin, &name).await.unwrap().extraction, ExtractionMode::Sync);
    let (records, end) =
        (site.catalog.journal(&site.admin, space.id, None, 100).await.unwrap(), space.position);
    let last = records.last().unwrap();
    assert_eq!((last.position, last.body["extraction"].as_str()), (end, Some("sync")));
    let nobody = Caller::anonymous();
    let refused = site.catalog.update_space(&nobody, &name, SpaceChange::default()).await;
    assert!(matches!(kind(refused), ErrorKind::Denied(_)));
}

async fn what_is_described_is_read_with_its_documents_and_again_when_these_change(site: Site) {
    settle(&site).await;
    // The whole name has the word before the one without what tells the format; documents describe no documents.
    for name in ["a.nc", "a.nc.yaml", "a.json", "a.yml", "b.nii.gz", "a.nc.csv"] {
        site.put(&format!("/lab/{name}"), 1).await;
    }
    assert_eq!(
        settle(&site).await,
        [
            "/lab/a.json",
            "/lab/a.nc < a.nc.yaml < a.json < a.yml",
            "/lab/a.nc.csv < a.nc.yaml",
            "/lab/a.nc.yaml",
            "/lab/a.yml",
            "/lab/b.nii.gz"
        ]
    );
    // One that comes later, or says something else.
    site.put("/lab/b.json", 1).await;
    assert_eq!(settle(&site).await, ["/lab/b.json", "/lab/b.nii.gz < b.json"]);
    site.put("/lab/b.json", 2).await;
    assert_eq!(settle(&site).await, ["/lab/b.json", "/lab/b.nii.gz < b.json"]);
    // One that goes or has another name, and one that took its place.
    site.rename("/lab/b.json", "/lab/c.json", false).await.unwrap();
    assert_eq!(settle(&site).await, ["/lab/b.nii.gz", "/lab/c.json"]);
    site.rename("/lab/c.json", "/lab/a.json", true).await.unwrap();
    assert_eq!(settle(&site).await, ["/lab/a.json", "/lab/a.nc < a.nc.yaml < a.json < a.yml"]);
    site.remove("/lab/a.json", false).await.unwrap();
    assert_eq!(settle(&site).await, ["/lab/a.nc < a.nc.yaml < a.yml"]);
    // What is renamed is described by others, and may be of another format.
    site.rename("/lab/a.nc", "/lab/a.tif", false).await.unwrap();
    assert_eq!(settle(&site).await, ["/lab/a.tif < a.yml"]);
    // In other collections is nothing of it.
    site.mkdir("/lab/d").await;
    site.rename("/lab/a.yml", "/lab/d/a.yml", false).await.unwrap();
    site.put("/lab/d/a.tif", 1).await;
    assert_eq!(settle(&site).await, ["/lab/a.tif", "/lab/d/a.tif < a.yml", "/lab/d/a.yml"]);
    site.remove("/lab/d", true).await.unwrap();
    assert_eq!(settle(&site).await, Vec::<String>::new());
    // A collection of that name is no document, and everything is found by looking at all objects, too.
    site.mkdir("/lab/a.json").await;
    let mut all = Vec::new();
    let mut scan = site.catalog.to_extract(site.space.id, EXTRACTOR + 1, 100).await.unwrap();
    all.extend(scan.due.drain(..).map(|due| (due.object.path.to_string(), due.by.len())));
    all.sort_unstable();
    let wanted = [("/lab/a.nc.csv", 1), ("/lab/a.nc.yaml", 0), ("/lab/a.tif", 0), ("/lab/b.nii.gz", 0)];
    assert_eq!(all, wanted.map(|(path, by)| (path.to_owned(), by)));
    site.assert_sound().await;
}

async fn one_document_describes_many(site: Site) {
    settle(&site).await;
    for n in 0..60 {
        site.put(&format!("/lab/a.{n:02}"), 1).await;
        site.put(&format!("/lab/a.{n:02}.nc"), 1).await;
    }
    for name in ["a", "a.x.gz", "a.x.y.gz", "a-b", "b"] {
        site.put(&format!("/lab/{name}"), 1).await;
    }
    settle(&site).await;
    site.put("/lab/a.json", 1).await;
    let ToExtract { due, .. } = next(&site).await;
    // Its copies are not told more than once.
    assert!(due.iter().flat_map(|due| &due.by).all(|by| by.replicas.len() == 1));
    let read = settle(&site).await;
    let names = (0..60).map(|n| format!("a.{n:02}")).chain(["a".to_owned(), "a.x.gz".to_owned()]);
    let described = names.map(|name| format!("/lab/{name} < a.json"));
    let mut wanted: Vec<_> = described.chain(["/lab/a.json".to_owned()]).collect();
    wanted.sort_unstable();
    assert_eq!(read, wanted);
    site.remove("/lab/a.json", false).await.unwrap();
    assert_eq!(settle(&site).await.len(), 62);
}

async fn what_other_documents_said_comes_late(site: Site) {
    site.put("/lab/x.nc", 1).await;
    site.put("/lab/x.json", 1).await;
    let ToExtract { due, .. } = next(&site).await;
    let said = |set: &str| header_by(&due[0], &[("of", set)]);
    let note = async |header| site.catalog.extracted(site.space.id, None, vec![header]).await.unwrap();
    note(said("the first")).await;
    assert_eq!(self::said(&site, "/lab/x.nc").await[0].2, "the first");
    site.put("/lab/x.json", 2).await;
    note(said("late")).await;
    assert_eq!(self::said(&site, "/lab/x.nc").await[0].2, "the first");
    assert!(settle(&site).await.contains(&"/lab/x.nc < x.json".to_owned()));
    site.remove("/lab/x.json", false).await.unwrap();
    let before = site.catalog.position(site.space.id).await.unwrap();
    note(said("late")).await;
    assert_eq!(site.catalog.position(site.space.id).await.unwrap(), before);
    site.assert_sound().await;
}

async fn what_cannot_be_named_any_more_holds_up_nothing(site: Site) {
    let mut at = "/lab/top".to_owned();
    site.mkdir(&at).await;
    for level in 0..15 {
        at.push_str(&format!("/{level:0>250}"));
        site.mkdir(&at).await;
    }
    // With the longer name the object has as long a path as there may be, and its document a longer one.
    let longer = "x".repeat(200);
    let left = MAX_PATH_BYTES - at.len() - "/".len() - (longer.len() - "top".len());
    let name = "o".repeat(left);
    for name in [name.as_str(), &format!("{name}.json"), &format!("{name}p")] {
        site.put(&format!("{at}/{name}"), 1).await;
    }
    site.put("/lab/z", 1).await;
    site.rename("/lab/top", &format!("/lab/{longer}"), false).await.unwrap();
    let renamed = format!("{}/{name}", at.replacen("top", &longer, 1));
    assert_eq!(settle(&site).await, [renamed.as_str(), "/lab/z"]);
    assert_eq!(said(&site, &renamed).await[0].2, renamed);
    assert_eq!(settle(&site).await, Vec::<String>::new());
    site.assert_sound().await;
}

async fn what_is_described_is_not_all_read_ahead(site: Site) {
    assert_eq!(settle(&site).await, Vec::<String>::new());
    let put = async |name: &str| put_with(&site, name, &[("a", "1")]).await.unwrap().entry;
    let (x, other) = (put("/lab/x.nc").await, put("/lab/other.json").await);
    assert_eq!(settle(&site).await, Vec::<String>::new());
    let not_alone = async |entries: &[EntryId]| {
        let mut found: Vec<_> =
            site.catalog.not_alone(site.space.id, entries.to_vec()).await.unwrap().into_iter().collect();
        found.sort_unstable();
        found
    };
    assert_eq!(not_alone(&[x, other]).await, []);
    let document = put("/lab/x.json").await;
    assert_eq!(not_alone(&[x, other, document]).await, [x, document]);
    // That was read ahead, too, but not all that is said of it.
    put("/lab/x.nc").await;
    assert_eq!(settle(&site).await, ["/lab/x.nc < x.json"]);
    site.assert_sound().await;
}

on_both! {
    what_is_described_is_read_with_its_documents_and_again_when_these_change,
    one_document_describes_many,
    what_other_documents_said_comes_late,
    what_cannot_be_named_any_more_holds_up_nothing,
    what_is_described_is_not_all_read_ahead,
    each_version_is_read_once,
    what_was_found_takes_the_place_of_what_was_found_before,
    what_was_not_read_is_found_by_that_and_keeps_what_is_known,
    what_was_read_at_once_is_not_read_again,
    what_was_read_ahead_is_there_with_the_version,
    all_is_read_again_by_another_extractor_and_where_the_journal_is_gone,
    a_space_says_when_its_objects_are_read,
}
