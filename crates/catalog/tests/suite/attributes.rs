//! What is said of entries, and searching by it.

use percale_catalog::*;
use percale_core::access::{Caller, Permission};
use percale_core::attribute::{
    Float, MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTE_TEXT, MAX_ATTRIBUTE_VALUES, MAX_ATTRIBUTES,
};
use percale_core::digest::{Algorithm, Digest};
use percale_core::query::{Builtin, Comparison, Condition, Field, Literal, Test};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{AttributeName, AttributeValue, ByteCount, ErrorCode, Timestamp};

use crate::site::{Site, kind, path, subject, user};

fn name(name: &str) -> AttributeName {
    name.parse().unwrap()
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

async fn say(site: &Site, at: &str, set: &[(&str, &[AttributeValue])]) -> Result<()> {
    let set = set.iter().map(|(of, values)| (name(of), values.to_vec())).collect();
    site.catalog.change_attributes(&site.admin, &path(at), AttributeChange { set }).await.map(drop)
}

async fn said(site: &Site, at: &str) -> Vec<(String, Vec<AttributeValue>)> {
    let (attributes, _) = site.catalog.attributes(&site.admin, &path(at)).await.unwrap();
    attributes.into_iter().map(|attribute| (attribute.name.to_string(), attribute.values)).collect()
}

/// A literal with all the readings that a word has.
fn literal(word: &str) -> Literal {
    let span = word.parse::<Timestamp>().ok();
    let span = span.map(|at| (at, Timestamp::from_micros(at.as_micros() + 1)));
    Literal { text: word.into(), number: word.parse().ok(), span, bool: word.parse().ok() }
}

fn is(of: &str, test: Test) -> Condition {
    Condition::Is(Field::Attribute(name(of)), test)
}

fn equal(of: &str, word: &str) -> Condition {
    is(of, Test::Compare(Comparison::Equal, literal(word)))
}

fn compare(of: &str, comparison: Comparison, word: &str) -> Condition {
    is(of, Test::Compare(comparison, literal(word)))
}

fn builtin(of: Builtin, test: Test) -> Condition {
    Condition::Is(Field::Builtin(of), test)
}

fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

async fn search_as(site: &Site, caller: &Caller, condition: Condition, limit: usize) -> Result<Vec<String>> {
    let mut options = SearchOptions::new(condition);
    options.limit = limit;
    let mut found = Vec::new();
    loop {
        let page = site.catalog.search(caller, options.clone()).await?.page;
        assert!(page.items.len() <= limit);
        found.extend(page.items.iter().map(|item| item.path.to_string()));
        options.after = page.next;
        if options.after.is_none() {
            found.sort();
            return Ok(found);
        }
    }
}

async fn search(site: &Site, condition: Condition) -> Vec<String> {
    search_as(site, &site.admin, condition, 100).await.unwrap()
}

async fn attributes_are_set_changed_and_removed(site: Site) {
    site.put("/lab/x", 1).await;
    site.mkdir("/lab/d").await;
    let values = [
        AttributeValue::Integer(i64::MAX),
        AttributeValue::Float(Float(-0.5)),
        AttributeValue::Float(Float(f64::NAN)),
        AttributeValue::Float(Float(f64::NEG_INFINITY)),
        text("Größe 'x' \"y\" \\ %"),
        text(""),
        AttributeValue::Bool(false),
        AttributeValue::Time(Timestamp::from_micros(-1)),
    ];
    say(&site, "/lab/x", &[("all", &values), ("b", &[text("c")])]).await.unwrap();
    say(&site, "/lab/d", &[("tag", &[text("t")])]).await.unwrap();
    assert_eq!(
        said(&site, "/lab/x").await,
        [("all".to_owned(), values.to_vec()), ("b".into(), vec![text("c")])]
    );
    assert_eq!(said(&site, "/lab/d").await, [("tag".to_owned(), vec![text("t")])]);
    // What is so already makes no record.
    let before = site.catalog.position(site.space.id).await.unwrap();
    say(&site, "/lab/x", &[("all", &values), ("none", &[])]).await.unwrap();
    assert_eq!(site.catalog.position(site.space.id).await.unwrap(), before);
    say(&site, "/lab/x", &[("all", &[]), ("b", &[text("C")])]).await.unwrap();
    assert_eq!(said(&site, "/lab/x").await, [("b".to_owned(), vec![text("C")])]);
    // They go with the entry, stay when it is overwritten and go along with it when it is renamed.
    site.put("/lab/x", 2).await;
    site.rename("/lab/x", "/lab/d/y", false).await.unwrap();
    assert_eq!(said(&site, "/lab/d/y").await.len(), 1);
    site.remove("/lab/d", true).await.unwrap();
    site.put("/lab/x", 3).await;
    assert_eq!(said(&site, "/lab/x").await, []);
    assert_eq!(kind(site.catalog.attributes(&site.admin, &path("/lab/d")).await), ErrorKind::NotFound);
    assert_eq!(kind(say(&site, "/lab/none", &[("a", &[text("b")])]).await), ErrorKind::NotFound);
    assert_eq!(kind(say(&site, "/lab/x/y", &[("a", &[text("b")])]).await), ErrorKind::NotACollection);
    site.assert_sound().await;
}

async fn attributes_are_bounded(site: Site) {
    site.put("/lab/x", 1).await;
    let long = text(&"x".repeat(MAX_ATTRIBUTE_TEXT + 1));
    assert_eq!(kind(say(&site, "/lab/x", &[("a", &[long])]).await), ErrorKind::InvalidRequest);
    assert_eq!(kind(say(&site, "/lab/x", &[("a", &[text("\0")])]).await), ErrorKind::InvalidRequest);
    let many = vec![AttributeValue::Bool(true); MAX_ATTRIBUTE_VALUES + 1];
    assert_eq!(kind(say(&site, "/lab/x", &[("a", &many)]).await), ErrorKind::InvalidRequest);
    let set = |count: usize| AttributeChange {
        set: (0..count).map(|n| (name(&format!("a{n}")), vec![AttributeValue::Bool(true)])).collect(),
    };
    let x = path("/lab/x");
    let most = set(MAX_ATTRIBUTES);
    site.catalog.change_attributes(&site.admin, &x, most.clone()).await.unwrap();
    site.catalog.change_attributes(&site.admin, &x, most).await.unwrap();
    let one_more = say(&site, "/lab/x", &[("more", &[text("b")])]).await;
    assert_eq!(kind(one_more), ErrorKind::InvalidRequest);
    say(&site, "/lab/x", &[("more", &[text("b")]), ("a0", &[])]).await.unwrap();
    // All together, also those of an earlier change.
    site.put("/lab/y", 1).await;
    let half = vec![text(&"x".repeat(MAX_ATTRIBUTE_TEXT)); MAX_ATTRIBUTE_BYTES / MAX_ATTRIBUTE_TEXT / 2];
    say(&site, "/lab/y", &[("a", &half)]).await.unwrap();
    let whole = say(&site, "/lab/y", &[("b", &half)]).await.unwrap_err();
    assert!(whole.to_string().contains("bytes of attributes"), "{whole}");
    say(&site, "/lab/y", &[("a", &[]), ("b", &half)]).await.unwrap();
}

async fn only_who_may_write_says_anything(site: Site) {
    site.put("/lab/x", 1).await;
    let change = || AttributeChange { set: vec![(name("a"), vec![text("b")])] };
    let bob = user("bob");
    let refused =
        async || site.catalog.change_attributes(&bob, &path("/lab/x"), change()).await.unwrap_err().code();
    assert_eq!(refused().await, ErrorCode::NotFound);
    site.catalog.set_grant(&site.admin, &path("/lab"), subject("bob"), Permission::Read).await.unwrap();
    assert_eq!(refused().await, ErrorCode::Forbidden);
    assert!(site.catalog.attributes(&bob, &path("/lab/x")).await.is_ok());
    site.catalog.set_grant(&site.admin, &path("/lab"), subject("bob"), Permission::Write).await.unwrap();
    site.catalog.change_attributes(&bob, &path("/lab/x"), change()).await.unwrap();
    assert_eq!(said(&site, "/lab/x").await.len(), 1);
}

async fn tests_of_attributes_hold_by_type(site: Site) {
    for (at, set) in [
        ("int", AttributeValue::Integer(500)),
        ("float", AttributeValue::Float(Float(500.5))),
        ("negative", AttributeValue::Float(Float(-3.0))),
        ("nan", AttributeValue::Float(Float(f64::NAN))),
        ("infinite", AttributeValue::Float(Float(f64::INFINITY))),
        ("word", text("500")),
        ("words", text("sea surface Temperature in K")),
        ("percent", text("50%_\\")),
        ("time", AttributeValue::Time("2024-06-01T00:00:00Z".parse().unwrap())),
        ("yes", AttributeValue::Bool(true)),
    ] {
        site.put(&format!("/lab/{at}"), 1).await;
        say(&site, &format!("/lab/{at}"), &[("v", &[set])]).await.unwrap();
    }
    site.put("/lab/none", 1).await;
    site.put("/lab/both", 1).await;
    say(&site, "/lab/both", &[("v", &[AttributeValue::Integer(1), AttributeValue::Integer(900)])])
        .await
        .unwrap();
    let number = |word: &str| Some(literal(word));
    let cases: Vec<(Condition, &[&str])> = vec![
        (equal("v", "500"), &["int", "word"]),
        (is("v", Test::Compare(Comparison::Equal, Literal::text("500"))), &["word"]),
        (compare("v", Comparison::More, "500"), &["both", "float", "infinite"]),
        (compare("v", Comparison::AtLeast, "500"), &["both", "float", "infinite", "int"]),
        (compare("v", Comparison::Less, "0"), &["negative"]),
        (compare("v", Comparison::AtMost, "500"), &["both", "int", "negative"]),
        (is("v", Test::Between(number("1"), number("500.5"))), &["both", "float", "int"]),
        (is("v", Test::Between(number("501"), None)), &["both", "infinite"]),
        (equal("v", "SEA SURFACE temperature IN k"), &["words"]),
        (is("v", Test::Has(literal("Surface"))), &["words"]),
        (is("v", Test::Has(literal("k"))), &["words"]),
        (is("v", Test::Has(literal("surf"))), &[]),
        (is("v", Test::Has(literal("500"))), &["int", "word"]),
        (is("v", Test::Matches("*surface*".into())), &["words"]),
        (is("v", Test::Matches("SEA*".into())), &["words"]),
        (is("v", Test::Matches("5??".into())), &["word"]),
        (is("v", Test::Matches("50%_\\".into())), &["percent"]),
        (is("v", Test::Matches("50_".into())), &[]),
        (is("v", Test::Compare(Comparison::More, Literal::text("s"))), &["words"]),
        (compare("v", Comparison::AtLeast, "2024-06-01T00:00:00Z"), &["time"]),
        (compare("v", Comparison::More, "2024-06-01T00:00:00Z"), &[]),
        (compare("v", Comparison::Less, "2024-06-01T00:00:00.000001Z"), &["time"]),
        (equal("v", "true"), &["yes"]),
        (not(is("v", Test::Exists)), &["none"]),
        (
            Condition::All(vec![
                not(equal("v", "500")),
                is("v", Test::Exists),
                not(Condition::Text("e".into())),
            ]),
            &["both", "float", "nan"],
        ),
        (Condition::Any(vec![equal("v", "true"), equal("v", "-3")]), &["negative", "yes"]),
        (Condition::Any(Vec::new()), &[]),
        (Condition::Text("Surface temp".into()), &["words"]),
        (Condition::Text("WORD".into()), &["word", "words"]),
        (Condition::Text("50%_".into()), &["percent"]),
    ];
    for (condition, expected) in cases {
        let mut expected: Vec<String> = expected.iter().map(|at| format!("/lab/{at}")).collect();
        expected.sort();
        assert_eq!(search(&site, condition.clone()).await, expected, "{condition:?}");
    }
}

async fn what_is_known_of_every_entry_is_searched_by(site: Site) {
    site.put("/lab/run/a.NC", 1).await;
    site.put("/lab/run/b.nc", 5000).await;
    let intent =
        site.prepare(site.wanted("/lab/other/b.txt", percale_catalog::Condition::Any)).await.unwrap();
    let digest = Digest::new(Algorithm::Sha256, [0xab; 32]).unwrap();
    let sha256 = digest.to_string();
    let commit =
        Commit { digests: vec![digest], ..Commit::new(intent.id, ByteCount(7), Some(RootHash([7; 32]))) };
    site.catalog.commit(vec![commit]).await.remove(0).unwrap();
    let entry = site.stat("/lab/run/b.nc").await.unwrap();
    let content = entry.content.unwrap();
    let hash = content.root.unwrap().to_string();
    let has = |word: &str| Test::Has(literal(word));
    let modified = Literal {
        span: Some((entry.modified, Timestamp::from_micros(entry.modified.as_micros() + 1))),
        ..Literal::text("")
    };
    let cases: Vec<(Condition, &[&str])> = vec![
        (builtin(Builtin::Name, has("A.nc")), &["/lab/run/a.NC"]),
        (builtin(Builtin::Name, Test::Matches("B.*".into())), &["/lab/other/b.txt", "/lab/run/b.nc"]),
        (builtin(Builtin::Ext, has("nc")), &["/lab/run/a.NC", "/lab/run/b.nc"]),
        (builtin(Builtin::Type, has("collection")), &["/lab/other", "/lab/run"]),
        (
            builtin(Builtin::Size, Test::Compare(Comparison::More, literal("6.5"))),
            &["/lab/other/b.txt", "/lab/run/b.nc"],
        ),
        (
            builtin(Builtin::Size, Test::Between(Some(literal("1")), Some(literal("7")))),
            &["/lab/other/b.txt", "/lab/run/a.NC"],
        ),
        (
            not(builtin(Builtin::Size, Test::Compare(Comparison::More, literal("6")))),
            &["/lab/other", "/lab/run", "/lab/run/a.NC"],
        ),
        (builtin(Builtin::Path, has("/lab/run")), &["/lab/run", "/lab/run/a.NC", "/lab/run/b.nc"]),
        (builtin(Builtin::Path, Test::Matches("/lab/*/b.*".into())), &["/lab/other/b.txt", "/lab/run/b.nc"]),
        (
            Condition::All(vec![
                not(builtin(Builtin::Path, Test::Matches("/lab/run/**".into()))),
                builtin(Builtin::Type, has("object")),
            ]),
            &["/lab/other/b.txt"],
        ),
        (builtin(Builtin::Hash, has(&hash)), &["/lab/run/b.nc"]),
        (builtin(Builtin::Hash, Test::Matches(format!("blake3:{}*", &hash[..7]))), &["/lab/run/b.nc"]),
        (builtin(Builtin::Hash, has(&format!("sha256:{hash}"))), &[]),
        (builtin(Builtin::Hash, has(&sha256)), &["/lab/other/b.txt"]),
        (builtin(Builtin::Hash, Test::Matches(format!("SHA256:{}*", "AB".repeat(8)))), &["/lab/other/b.txt"]),
        (builtin(Builtin::Site, has("ALPS")), &["/lab/other/b.txt", "/lab/run/a.NC", "/lab/run/b.nc"]),
        (builtin(Builtin::Site, has("baltic")), &[]),
        (
            builtin(Builtin::Store, Test::Matches("dis?".into())),
            &["/lab/other/b.txt", "/lab/run/a.NC", "/lab/run/b.nc"],
        ),
        (builtin(Builtin::Replicas, Test::Compare(Comparison::Less, literal("1"))), &[]),
        (builtin(Builtin::Replicas, has("1")), &["/lab/other/b.txt", "/lab/run/a.NC", "/lab/run/b.nc"]),
        (builtin(Builtin::State, has(ReplicaState::Stale.as_str())), &[]),
        (builtin(Builtin::Space, has("other")), &[]),
        (
            builtin(Builtin::Modified, Test::Compare(Comparison::More, modified.clone())),
            &["/lab/other", "/lab/other/b.txt"],
        ),
        (builtin(Builtin::Created, Test::Compare(Comparison::Less, literal("2001-01-01T00:00:00Z"))), &[]),
    ];
    for (condition, expected) in cases {
        assert_eq!(search(&site, condition.clone()).await, expected, "{condition:?}");
    }
    let wrong = [
        builtin(Builtin::Size, has("big")),
        builtin(Builtin::Modified, has("5")),
        builtin(Builtin::Type, has("link")),
        builtin(Builtin::Hash, has("xyz")),
        builtin(Builtin::Hash, has("abcd1234")),
        builtin(Builtin::Hash, has("sha256:abcd1234")),
        builtin(Builtin::Hash, has("whirlpool:abcd1234")),
        builtin(Builtin::Hash, Test::Matches("md5:abc*".into())),
        builtin(Builtin::State, Test::Exists),
        builtin(Builtin::Path, has("no/slash")),
        Condition::Any(vec![builtin(Builtin::Path, has("/lab")), equal("a", "b")]),
    ];
    for condition in wrong {
        let shown = format!("{condition:?}");
        let refused = search_as(&site, &site.admin, condition, 10).await;
        assert_eq!(kind(refused), ErrorKind::InvalidRequest, "{shown}");
    }
}

async fn an_attribute_that_nothing_has_is_named_with_others(site: Site) {
    site.put("/lab/x", 1).await;
    say(&site, "/lab/x", &[("instrument", &[text("MODIS")]), ("level", &[text("1")])]).await.unwrap();
    let error = search_as(&site, &site.admin, equal("Instument", "MODIS"), 10).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidRequest);
    assert!(error.to_string().ends_with("there is 'instrument'"), "{error}");
    assert_eq!(search(&site, is("zzz", Test::Exists)).await, Vec::<String>::new());
    assert_eq!(search(&site, not(equal("zzz", "1"))).await, ["/lab/x"]);
    let error = search_as(&site, &site.admin, equal("zzz", "1"), 10).await.unwrap_err();
    assert!(error.to_string().ends_with("has an attribute 'zzz'"), "{error}");
}

async fn pages_of_any_size_have_everything_once(site: Site) {
    let paths: Vec<String> = (0..25).map(|n| format!("/lab/{n:02}")).collect();
    site.put_many(&paths).await;
    let other = NewSpace {
        name: "other".parse().unwrap(),
        owner: subject("owner"),
        scope: SpaceScope::Private,
        store: Some(site.store),
        members: Vec::new(),
    };
    site.catalog.create_space(&site.admin, other).await.unwrap();
    site.catalog.create_collection(&site.admin, &path("/other/x"), false).await.unwrap();
    for (n, at) in paths.iter().enumerate() {
        let n = AttributeValue::Integer(n as i64 % 5);
        say(&site, at, &[("n", &[n.clone(), n])]).await.unwrap();
    }
    say(&site, "/other/x", &[("n", &[AttributeValue::Integer(3)])]).await.unwrap();
    let all: Vec<String> = paths.iter().cloned().chain(["/other/x".to_owned()]).collect();
    for limit in [1, 2, 7, 25, 26, 27] {
        let found = search_as(&site, &site.admin, Condition::All(Vec::new()), limit).await.unwrap();
        assert_eq!(found, all, "everything, {limit}");
        let found = search_as(&site, &site.admin, equal("n", "3"), limit).await.unwrap();
        assert_eq!(
            found,
            ["/lab/03", "/lab/08", "/lab/13", "/lab/18", "/lab/23", "/other/x"],
            "few, {limit}"
        );
    }
    let mut options = SearchOptions::new(Condition::All(Vec::new()));
    // What somebody else made of a place to go on from.
    for place in ["nowhere", &format!("{}/1/0", site.space.id), &format!("{}/1", site.space.id), "/1/-"] {
        options.after = Some(place.into());
        let refused = site.catalog.search(&site.admin, options.clone()).await;
        assert_eq!(kind(refused), ErrorKind::InvalidRequest, "{place}");
    }
}

async fn paths_say_in_which_spaces_to_look(site: Site) {
    for name in ["lab2", "la"] {
        let space = NewSpace {
            name: name.parse().unwrap(),
            owner: subject("owner"),
            scope: SpaceScope::Private,
            store: Some(site.store),
            members: Vec::new(),
        };
        site.catalog.create_space(&site.admin, space).await.unwrap();
        site.mkdir(&format!("/{name}/x")).await;
    }
    site.mkdir("/lab/x").await;
    site.mkdir("/lab/x/y").await;
    let by = |test: Test| builtin(Builtin::Path, test);
    let has = |text: &str| by(Test::Has(Literal::text(text)));
    let matches = |text: &str| by(Test::Matches(text.into()));
    for (condition, wanted) in [
        (has("/lab"), &["/lab/x", "/lab/x/y"][..]),
        (has("/lab/x/y"), &["/lab/x/y"]),
        (has("/"), &["/la/x", "/lab/x", "/lab/x/y", "/lab2/x"]),
        (by(Test::Compare(Comparison::Equal, Literal::text("/lab/x"))), &["/lab/x"]),
        (matches("/lab*/x"), &["/lab/x", "/lab2/x"]),
        (matches("/lab/*"), &["/lab/x"]),
        (matches("/la?/x"), &["/lab/x"]),
        (matches("/{la,lab}/x"), &["/la/x", "/lab/x"]),
        (matches("**/y"), &["/lab/x/y"]),
        (not(matches("/lab/**")), &["/la/x", "/lab2/x"]),
        (matches("/lab/**"), &["/lab/x", "/lab/x/y"]),
        (matches("/**"), &["/la/x", "/lab/x", "/lab/x/y", "/lab2/x"]),
        (Condition::All(vec![has("/lab"), has("/la")]), &[]),
    ] {
        assert_eq!(search(&site, condition.clone()).await, wanted, "{condition:?}");
        let counted = summary(&site, &site.admin, condition.clone(), &[]).await;
        assert_eq!(counted.0, wanted.len() as u64, "{condition:?}");
    }
}

async fn nobody_finds_what_is_not_theirs(site: Site) {
    for at in ["/lab/a/x", "/lab/b/x"] {
        site.put(at, 1).await;
        say(&site, at, &[("secret", &[text(at)])]).await.unwrap();
    }
    let bob = user("bob");
    let everything = || Condition::All(Vec::new());
    assert_eq!(search_as(&site, &bob, everything(), 10).await.unwrap(), Vec::<String>::new());
    // Not even what is called so at all.
    let error = search_as(&site, &bob, equal("secrets", "x"), 10).await.unwrap_err();
    assert!(!error.to_string().contains("'secret'"), "{error}");
    site.catalog.set_grant(&site.admin, &path("/lab/b"), subject("bob"), Permission::Read).await.unwrap();
    assert_eq!(search_as(&site, &bob, everything(), 1).await.unwrap(), ["/lab/b", "/lab/b/x"]);
    assert_eq!(search_as(&site, &bob, is("secret", Test::Exists), 1).await.unwrap(), ["/lab/b/x"]);
    assert_eq!(search_as(&site, &bob, equal("secret", "/lab/a/x"), 1).await.unwrap(), Vec::<String>::new());
    site.catalog.remove_grant(&site.admin, &path("/lab/b"), &subject("bob")).await.unwrap();
    assert_eq!(search_as(&site, &bob, everything(), 10).await.unwrap(), Vec::<String>::new());
}

/// Counts, and shows each facet as `value count, …`.
async fn summary(site: &Site, caller: &Caller, condition: Condition, facets: &[Field]) -> (u64, Vec<String>) {
    let mut options = SummaryOptions::new(condition);
    options.facets = facets.to_vec();
    options.values = 3;
    let summary = site.catalog.summarize(caller, options).await.unwrap();
    assert!(!summary.is_estimate);
    let show = |facet: Facet| {
        let values: Vec<String> =
            facet.values.iter().map(|(value, count)| format!("{value} {count}")).collect();
        let others = if facet.others > 0 { format!(", others {}", facet.others) } else { String::new() };
        format!("{}{others}", values.join(", "))
    };
    (summary.count, summary.facets.into_iter().map(show).collect())
}

async fn what_is_found_is_counted_by_its_values(site: Site) {
    for n in 0..10 {
        let at = format!("/lab/{n}.{}", if n < 3 { "nc" } else { "h5" });
        site.put(&at, n).await;
        let values = [AttributeValue::Integer(n as i64 % 2), AttributeValue::Integer(7)];
        say(&site, &at, &[("n", &values), ("own", &[text(&format!("{n}"))])]).await.unwrap();
    }
    site.mkdir("/lab/d").await;
    say(&site, "/lab/d", &[("n", &[text("7")]), ("n2", &[text("x")])]).await.unwrap();
    let attribute = |of: &str| Field::Attribute(name(of));
    let all = || Condition::All(Vec::new());
    let facets = [
        attribute("n"),
        attribute("own"),
        Field::Builtin(Builtin::Type),
        Field::Builtin(Builtin::Ext),
        Field::Builtin(Builtin::Space),
        Field::Builtin(Builtin::Site),
        Field::Builtin(Builtin::State),
    ];
    let (count, of_all) = summary(&site, &site.admin, all(), &facets).await;
    let here = site.catalog.site().await.unwrap().name;
    let wanted = [
        // The text is another value than the number.
        "7 10, 0 5, 1 5, others 1".to_owned(),
        "0 1, 1 1, 2 1, others 7".into(),
        "object 10, collection 1".into(),
        "h5 7, nc 3,  1".into(),
        "lab 11".into(),
        format!("{here} 10"),
        "good 10".into(),
    ];
    assert_eq!((count, of_all), (11, wanted.to_vec()));
    // By what an attribute leads to, with a path, and with what can only be looked at one by one.
    let few = equal("own", "4");
    assert_eq!(summary(&site, &site.admin, few, &facets[..1]).await, (1, vec!["0 1, 7 1".into()]));
    let within = Condition::All(vec![
        builtin(Builtin::Path, Test::Matches("/lab/*.nc".into())),
        builtin(Builtin::Type, Test::Has(Literal::text("object"))),
    ]);
    assert_eq!(
        summary(&site, &site.admin, within, &facets[..4]).await,
        (3, vec!["7 3, 0 2, 1 1".into(), "0 1, 1 1, 2 1".into(), "object 3".into(), "nc 3".into()])
    );
    // Nobody learns of what is not theirs, not even by numbers.
    let bob = user("bob");
    assert_eq!(summary(&site, &bob, all(), &facets[2..3]).await, (0, vec![String::new()]));
    site.catalog.set_grant(&site.admin, &path("/lab/4.h5"), subject("bob"), Permission::Read).await.unwrap();
    let seen = summary(&site, &bob, all(), &facets[..4]).await;
    assert_eq!(seen, (1, vec!["0 1, 7 1".into(), "4 1".into(), "object 1".into(), "h5 1".into()]));
    assert_eq!(summary(&site, &bob, equal("own", "5"), &facets[..1]).await, (0, vec![String::new()]));
    // What cannot be counted.
    for wrong in [Field::Builtin(Builtin::Size), attribute("nn")] {
        let mut options = SummaryOptions::new(all());
        options.facets = vec![wrong];
        assert_eq!(kind(site.catalog.summarize(&site.admin, options).await), ErrorKind::InvalidRequest);
    }
    let mut options = SummaryOptions::new(all());
    options.facets = vec![attribute("n"); MAX_FACETS + 1];
    assert_eq!(kind(site.catalog.summarize(&site.admin, options).await), ErrorKind::InvalidRequest);
}

async fn what_is_kept_counted_is_what_is_there(site: Site) {
    let mut random = fastrand::Rng::with_seed(20);
    let values = [
        AttributeValue::Integer(-1),
        AttributeValue::Integer(99_999),
        text("a"),
        text("A"),
        text("a, with a comma"),
        text(&"ö".repeat(64)),
        AttributeValue::Bool(true),
    ];
    let facets =
        [Field::Attribute(name("one")), Field::Attribute(name("more")), Field::Builtin(Builtin::Type)];
    let anything = Condition::Any(vec![
        builtin(Builtin::Type, Test::Has(Literal::text("object"))),
        builtin(Builtin::Type, Test::Has(Literal::text("collection"))),
    ]);
    site.put("/lab/always", 1).await;
    say(&site, "/lab/always", &[("one", &[text("x")]), ("more", &[text("x")])]).await.unwrap();
    for round in 0..60 {
        let at = format!("/lab/{}", random.u8(..8));
        if random.u8(..6) == 0 {
            let _ = site.catalog.remove(&site.admin, &path(&at), RemoveOptions::default()).await;
        } else {
            site.put(&at, round).await;
            // The same value may come several times, and counts once.
            let some: Vec<_> =
                (0..random.usize(..4)).map(|_| values[random.usize(..values.len())].clone()).collect();
            let of = if random.bool() { "one" } else { "more" };
            say(&site, &at, &[(of, &some[..])]).await.unwrap();
        }
        let all = summary(&site, &site.admin, Condition::All(Vec::new()), &facets).await;
        let below = builtin(Builtin::Path, Test::Matches("/lab/**".into()));
        assert_eq!(all, summary(&site, &site.admin, below, &facets).await, "round {round}");
        assert_eq!(all, summary(&site, &site.admin, anything.clone(), &facets).await, "round {round}");
    }
    site.assert_sound().await;
    // They are those that are kept, as long as each value is.
    let of_all = async || summary(&site, &site.admin, Condition::All(Vec::new()), &facets[..1]).await.1;
    let before = of_all().await;
    site.tamper("UPDATE tally SET n = n + 1000 WHERE name = 'one'").await;
    assert_ne!(of_all().await, before);
    say(&site, "/lab/always", &[("one", &[AttributeValue::Float(Float(0.5))])]).await.unwrap();
    assert!(!of_all().await[0].contains("100"), "{:?}", of_all().await);
    site.tamper("UPDATE tally SET n = n - 1000 WHERE name = 'one' AND n > 500").await;
    site.assert_sound().await;
    // The migration counts what was there before it.
    let migration = match site.is_postgres() {
        true => include_str!("../../migrations/postgres/V7__tallies.sql"),
        false => include_str!("../../migrations/sqlite/V7__tallies.sql"),
    };
    let counting =
        migration.split(';').map(str::trim).filter(|text| text.starts_with("INSERT INTO tally (sp"));
    let counting: Vec<&str> = counting.collect();
    site.tamper(&format!("DELETE FROM tally; {}", counting.join(";"))).await;
    site.assert_sound().await;
}

async fn what_is_found_comes_in_an_order(site: Site) {
    let values: [&[AttributeValue]; 5] = [
        &[AttributeValue::Integer(5), AttributeValue::Integer(1)],
        &[AttributeValue::Float(Float(2.5))],
        &[text("b")],
        &[text("A")],
        &[],
    ];
    for (n, values) in values.iter().enumerate() {
        site.put(&format!("/lab/{n}"), 10 - n as u64).await;
        say(&site, &format!("/lab/{n}"), &[("level", values)]).await.unwrap();
    }
    let sorted =
        async |caller: &Caller, condition: Condition, by: Field, is_descending: bool, limit: usize| {
            let mut options = SearchOptions::new(condition);
            (options.sort, options.limit) = (Some(Sort { field: by, is_descending }), limit);
            let found = site.catalog.search(caller, options).await.unwrap().page;
            assert_eq!(found.next, None);
            found.items.iter().map(|item| item.path.name().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
    let level = || Field::Attribute(name("level"));
    let all = || Condition::All(Vec::new());
    assert_eq!(sorted(&site.admin, all(), level(), false, 10).await, "0 1 3 2 4");
    assert_eq!(sorted(&site.admin, all(), level(), true, 10).await, "0 1 2 3 4");
    assert_eq!(sorted(&site.admin, all(), level(), true, 2).await, "0 1");
    let size = || Field::Builtin(Builtin::Size);
    assert_eq!(sorted(&site.admin, all(), size(), false, 3).await, "4 3 2");
    assert_eq!(sorted(&site.admin, equal("level", "2.5"), size(), false, 3).await, "1");
    assert_eq!(sorted(&site.admin, all(), Field::Builtin(Builtin::Name), true, 2).await, "4 3");
    let within = builtin(Builtin::Path, Test::Matches("/lab/[!4]".into()));
    assert_eq!(sorted(&site.admin, within, size(), false, 3).await, "3 2 1");
    let bob = user("bob");
    assert_eq!(sorted(&bob, all(), size(), false, 3).await, "");
    site.catalog.set_grant(&site.admin, &path("/lab/3"), subject("bob"), Permission::Read).await.unwrap();
    assert_eq!(sorted(&bob, all(), size(), false, 3).await, "3");
    let mut options = SearchOptions::new(all());
    options.sort = Some(Sort { field: Field::Builtin(Builtin::Path), is_descending: false });
    assert_eq!(kind(site.catalog.search(&site.admin, options.clone()).await), ErrorKind::InvalidRequest);
    options.sort = Some(Sort { field: size(), is_descending: false });
    options.after = Some("x".into());
    assert_eq!(kind(site.catalog.search(&site.admin, options).await), ErrorKind::InvalidRequest);
}

async fn entries_of_one_value_come_in_pages_of_any_size(site: Site) {
    for n in 0..20_i64 {
        site.put(&format!("/lab/{n:02}"), 1).await;
        let code: Vec<AttributeValue> = match n % 4 {
            0 => vec![AttributeValue::Integer(7)],
            1 => vec![text("7"), AttributeValue::Float(Float(7.0)), AttributeValue::Integer(7)],
            2 => vec![text("x"), text("7")],
            _ => vec![AttributeValue::Integer(8)],
        };
        say(&site, &format!("/lab/{n:02}"), &[("code", &code), ("n", &[AttributeValue::Integer(n)])])
            .await
            .unwrap();
    }
    let of =
        |is: fn(i64) -> bool| (0..20).filter(|n| is(*n)).map(|n| format!("/lab/{n:02}")).collect::<Vec<_>>();
    let bob = user("bob");
    site.catalog.set_grant(&site.admin, &path("/lab/06"), subject("bob"), Permission::Read).await.unwrap();
    let code = equal("code", "7");
    let both = Condition::All(vec![code.clone(), compare("n", Comparison::AtLeast, "10")]);
    for limit in [1, 2, 7, 100] {
        let found = async |condition: &Condition| {
            search_as(&site, &site.admin, condition.clone(), limit).await.unwrap()
        };
        assert_eq!(found(&code).await, of(|n| n % 4 != 3), "{limit}");
        assert_eq!(found(&both).await, of(|n| n % 4 != 3 && n >= 10), "{limit}");
        assert_eq!(search_as(&site, &bob, code.clone(), limit).await.unwrap(), ["/lab/06"]);
    }
    // However it was gone on: all entries, thought over anew, or by the filter.
    for lead in ["-", "!", "?", "0"] {
        let mut options = SearchOptions::new(code.clone());
        options.after = Some(format!("{}/1/{lead}", site.space.id));
        let page = site.catalog.search(&site.admin, options).await.unwrap().page;
        assert_eq!((page.items.len(), page.next), (15, None), "{lead}");
    }
    let planned = site.catalog.explain(&site.admin, both).await.unwrap();
    assert_eq!((planned[0].led_by.clone(), planned[0].looked_at), (Some(code), 25), "values are counted");
}

async fn values_of_another_type_are_counted_for_who_may_read_them_all(site: Site) {
    for (n, value) in [(0, AttributeValue::Integer(1)), (1, text("high")), (2, text("low"))] {
        site.put(&format!("/lab/{n}"), n).await;
        say(&site, &format!("/lab/{n}"), &[("level", &[value])]).await.unwrap();
    }
    let bob = user("bob");
    site.catalog.set_grant(&site.admin, &path("/lab/1"), subject("bob"), Permission::Read).await.unwrap();
    let counted = async |caller: &Caller, condition: Condition| {
        let found = site.catalog.search(caller, SearchOptions::new(condition)).await.unwrap();
        found.mismatches.into_iter().map(|one| (one.are_text, one.count, one.is_most)).collect::<Vec<_>>()
    };
    let number = compare("level", Comparison::More, "0");
    assert_eq!(counted(&site.admin, number.clone()).await, [(true, 2, false)]);
    assert_eq!(counted(&site.admin, not(number.clone())).await, [(true, 2, false)]);
    assert_eq!(counted(&bob, number).await, []);
    assert_eq!(counted(&site.admin, compare("level", Comparison::More, "a")).await, [(false, 1, false)]);
    let between = is("level", Test::Between(None, Some(literal("7"))));
    assert_eq!(counted(&site.admin, between).await, [(true, 2, false)]);
    assert_eq!(counted(&site.admin, equal("level", "1")).await, []);
}

async fn what_is_asked_for_is_told_of_each(site: Site) {
    for at in ["/lab/a", "/lab/b", "/lab/c"] {
        site.put(at, 1).await;
    }
    let band = [AttributeValue::Integer(2), AttributeValue::Integer(1)];
    say(&site, "/lab/a", &[("band", &band), ("level", &[text("high")]), ("other", &[text("x")])])
        .await
        .unwrap();
    say(&site, "/lab/c", &[("level", &[AttributeValue::Float(Float(0.5))])]).await.unwrap();
    let told = async |sort: Option<Sort>, limit: usize| {
        let mut options = SearchOptions::new(builtin(Builtin::Type, Test::Has(literal("object"))));
        (options.attributes, options.sort, options.limit) = (vec![name("level"), name("band")], sort, limit);
        let mut told = Vec::new();
        loop {
            let page = site.catalog.search(&site.admin, options.clone()).await.unwrap().page;
            for Found { path, attributes, .. } in page.items {
                let attributes = attributes.into_iter().map(|one| (one.name.to_string(), one.values));
                told.push((path.to_string(), attributes.collect::<Vec<_>>()));
            }
            options.after = page.next;
            if options.after.is_none() {
                return told;
            }
        }
    };
    let wanted = [
        (
            "/lab/a".to_owned(),
            vec![("band".to_owned(), band.to_vec()), ("level".to_owned(), vec![text("high")])],
        ),
        ("/lab/b".to_owned(), Vec::new()),
        ("/lab/c".to_owned(), vec![("level".to_owned(), vec![AttributeValue::Float(Float(0.5))])]),
    ];
    assert_eq!(told(None, 100).await, wanted);
    assert_eq!(told(None, 1).await, wanted);
    let by_name = Sort { field: Field::Builtin(Builtin::Name), is_descending: true };
    assert_eq!(told(Some(by_name), 2).await, [wanted[2].clone(), wanted[1].clone()]);
    // A page ends where there is too much to tell, and goes on behind it; each is told once.
    let long = vec![text(&"x".repeat(MAX_ATTRIBUTE_TEXT)); 100];
    for n in 0..70 {
        site.put(&format!("/lab/long/{n:02}"), 1).await;
        say(&site, &format!("/lab/long/{n:02}"), &[("band", &long)]).await.unwrap();
    }
    let all = told(None, 100).await;
    assert_eq!(all.len(), 73);
    assert_eq!(all.iter().filter(|(_, told)| told.iter().any(|(_, values)| *values == long)).count(), 70);
    let by_size = Sort { field: Field::Builtin(Builtin::Size), is_descending: false };
    let mut options = SearchOptions::new(Condition::All(Vec::new()));
    (options.attributes, options.sort) = (vec![name("band")], Some(by_size));
    assert_eq!(kind(site.catalog.search(&site.admin, options).await), ErrorKind::InvalidRequest);
    let mut options = SearchOptions::new(Condition::All(Vec::new()));
    options.attributes = vec![name("levle")];
    assert_eq!(kind(site.catalog.search(&site.admin, options).await), ErrorKind::InvalidRequest);
}

on_both! {
    what_is_asked_for_is_told_of_each,
    entries_of_one_value_come_in_pages_of_any_size,
    values_of_another_type_are_counted_for_who_may_read_them_all,
    paths_say_in_which_spaces_to_look,
    what_is_found_comes_in_an_order,
    what_is_found_is_counted_by_its_values,
    what_is_kept_counted_is_what_is_there,
    attributes_are_set_changed_and_removed,
    attributes_are_bounded,
    only_who_may_write_says_anything,
    tests_of_attributes_hold_by_type,
    what_is_known_of_every_entry_is_searched_by,
    an_attribute_that_nothing_has_is_named_with_others,
    pages_of_any_size_have_everything_once,
    nobody_finds_what_is_not_theirs,
}
