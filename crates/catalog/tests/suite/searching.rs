//! Searching by what is known of entries and what is said of them.

use std::time::Duration;

use percale_catalog::*;
use percale_core::access::{Caller, Permission};
use percale_core::attribute::{Float, MAX_ATTRIBUTE_TEXT};
use percale_core::digest::{Algorithm, Digest};
use percale_core::query::{Builtin, Comparison, Condition, Field, Literal, Test, TextPattern};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{AttributeValue, ByteCount, Timestamp};

use crate::attributes::{name, say, text};
use crate::counting::summary;
use crate::site::{HOUR, Site, kind, path, subject, user};

/// A literal with all the readings that a word has.
pub fn literal(word: &str) -> Literal {
    let span = word.parse::<Timestamp>().ok();
    let span = span.map(|at| (at, Timestamp::from_micros(at.as_micros() + 1)));
    Literal { text: word.into(), number: word.parse().ok(), span, bool: word.parse().ok() }
}

pub fn is(of: &str, test: Test) -> Condition {
    Condition::Is(Field::Attribute(name(of)), test)
}

pub fn equal(of: &str, word: &str) -> Condition {
    is(of, Test::Compare(Comparison::Equal, literal(word)))
}

pub fn compare(of: &str, comparison: Comparison, word: &str) -> Condition {
    is(of, Test::Compare(comparison, literal(word)))
}

pub fn builtin(of: Builtin, test: Test) -> Condition {
    Condition::Is(Field::Builtin(of), test)
}

pub fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

pub async fn search_as(
    site: &Site,
    caller: &Caller,
    condition: Condition,
    limit: usize,
) -> Result<Vec<String>> {
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

fn regex(written: &str) -> Test {
    Test::Regex(TextPattern::parse(written).unwrap())
}

pub async fn search(site: &Site, condition: Condition) -> Vec<String> {
    search_as(site, &site.admin, condition, 100).await.unwrap()
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
        (is("v", regex("^Sea.*(temp|salin)")), &["words"]),
        (is("v", regex(r"^\d{2,}(%_\\|$)")), &["percent", "word"]),
        (is("v", regex(r"\w+ \w+e")), &["words"]),
        (is("v", regex("(^|x)*(|zz)Surface (?:)")), &["words"]),
        // All but the letters of a class, in any case, and as much as an expression may be.
        (is("v", regex(r"^[^A-R](?:[a-z ]{200}){0,3}.*[^A-JL-Z]$")), &["percent", "word", "words"]),
        (is("v", regex("t.*S")), &[]),
        (
            Condition::Any(vec![is("v", regex("^5")), is("v", regex("[^A-J0-9]$"))]),
            &["percent", "word", "words"],
        ),
        (
            Condition::All(vec![not(is("v", regex("."))), is("v", Test::Exists)]),
            &["both", "float", "infinite", "int", "nan", "negative", "time", "yes"],
        ),
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
        assert_eq!(search_rare(&site, condition.clone()).await, expected, "{condition:?}");
        assert_eq!(summary(&site, &site.admin, condition, &[]).await.0, expected.len() as u64);
    }
}

/// Searches as where little was found among the first entries.
async fn search_rare(site: &Site, condition: Condition) -> Vec<String> {
    let mut options = SearchOptions::new(condition);
    options.after = Some(format!("{}/1/?", site.space.id));
    let page = site.catalog.search(&site.admin, options).await.unwrap().page;
    assert_eq!(page.next, None);
    let mut found: Vec<String> = page.items.iter().map(|item| item.path.to_string()).collect();
    found.sort();
    found
}

async fn texts_are_found_by_what_is_in_them(site: Site) {
    let said = [
        ("sea", "Sea surface temperature of the North Atlantic"),
        ("seas", "SEAS of the south"),
        ("percent", "100% of sea\\ice_extent"),
        ("größe", "Größe der Meeresoberfläche"),
        ("quote", "the \"deep\" sea's floor"),
        ("short", "K"),
    ];
    for (at, title) in said {
        site.put(&format!("/lab/{at}"), 1).await;
        say(&site, &format!("/lab/{at}"), &[("title", &[text(title)])]).await.unwrap();
    }
    let other = add_other(&site).await;
    site.catalog.create_collection(&site.admin, &path("/other/x"), false).await.unwrap();
    say(&site, "/other/x", &[("title", &[text("Sea surface temperature of the North Atlantic")])])
        .await
        .unwrap();
    let check = async || {
        for (condition, expected) in [
            (Condition::Text("surface temp".into()), &["/lab/sea"][..]),
            (Condition::Text("oberfl".into()), &["/lab/größe"]),
            (Condition::Text("RÖSS".into()), &[]),
            (Condition::Text("röße".into()), &["/lab/größe"]),
            (Condition::Text("% of sea".into()), &["/lab/percent"]),
            (Condition::Text("ice_ext".into()), &["/lab/percent"]),
            (Condition::Text("ice%ext".into()), &[]),
            (Condition::Text("sea\\ice".into()), &["/lab/percent"]),
            (Condition::Text("\"deep\" sea's".into()), &["/lab/quote"]),
            // Also in names, and by fewer letters than the index has.
            (Condition::Text("ercen".into()), &["/lab/percent"]),
            (Condition::Text("k".into()), &["/lab/short"]),
            (is("title", Test::Has(literal("sea"))), &["/lab/sea"]),
            (is("title", Test::Has(literal("surface temperature"))), &["/lab/sea"]),
            (is("title", Test::Has(literal("K"))), &["/lab/short"]),
            (is("title", Test::Matches("*sea*floor".into())), &["/lab/quote"]),
            (is("title", Test::Matches("s*south".into())), &["/lab/seas"]),
            (is("title", Test::Matches("*o?the*".into())), &[]),
            (is("title", Test::Matches("*f?the*".into())), &["/lab/sea", "/lab/seas"]),
            (not(Condition::Text("sea".into())), &["/lab/größe", "/lab/short"]),
            (
                Condition::All(vec![
                    Condition::Text("sea".into()),
                    not(is("title", Test::Has(literal("seas")))),
                ]),
                &["/lab/percent", "/lab/quote", "/lab/sea"],
            ),
        ] {
            let within = Condition::Is(Field::Builtin(Builtin::Path), Test::Has(Literal::text("/lab")));
            let condition = Condition::All(vec![within, condition]);
            assert_eq!(search(&site, condition.clone()).await, expected, "{condition:?}");
            assert_eq!(search_rare(&site, condition.clone()).await, expected, "{condition:?}");
            let (count, _) = summary(&site, &site.admin, condition.clone(), &[]).await;
            assert_eq!(count, expected.len() as u64, "{condition:?}");
        }
        site.assert_sound().await;
    };
    check().await;
    // More texts with a word than are looked up, and a text that nothing has any more.
    let many: Vec<String> = (0..1100).map(|n| format!("/lab/many/{n:04}")).collect();
    site.put_many(&many).await;
    for (n, at) in many.iter().enumerate() {
        say(&site, at, &[("title", &[text(&format!("The zenith of year {n}"))])]).await.unwrap();
    }
    assert_eq!(summary(&site, &site.admin, is("title", Test::Has(literal("zenith"))), &[]).await.0, 1100);
    assert_eq!(summary(&site, &site.admin, Condition::Text("zenith".into()), &[]).await.0, 1100);
    assert_eq!(search(&site, is("title", Test::Has(literal("1099")))).await, ["/lab/many/1099"]);
    for words in ["7", "of year 7", "The zenith of year 7"] {
        assert_eq!(
            search(&site, is("title", Test::Has(literal(words)))).await,
            ["/lab/many/0007"],
            "{words}"
        );
    }
    for words in ["year of 7", "zenith  of", "ear 7", "7 "] {
        assert_eq!(
            search(&site, is("title", Test::Has(literal(words)))).await,
            Vec::<String>::new(),
            "{words}"
        );
    }
    say(&site, "/lab/many/1099", &[("title", &[text("None")])]).await.unwrap();
    assert_eq!(search(&site, is("title", Test::Has(literal("1099")))).await, Vec::<String>::new());
    site.remove("/lab/many", true).await.unwrap();
    assert_eq!(search(&site, Condition::Text("zenith".into())).await, Vec::<String>::new());
    site.remove("/other/x", false).await.unwrap();
    site.catalog.remove_space(&site.admin, &other.name).await.unwrap();
    check().await;
}

/// Takes away what schema 8 and those behind it brought.
const BACK_TO_7: [&str; 2] = [
    "DROP TRIGGER attribute_word_added; DROP TRIGGER attribute_word_removed; DROP TABLE word_piece; DROP TABLE word; \
     DROP TRIGGER entry_bytes_added; DROP TRIGGER entry_bytes_removed; DROP TRIGGER entry_bytes_changed; DROP TABLE used; \
     ALTER TABLE space DROP COLUMN quota; ALTER TABLE entry DROP COLUMN target; ALTER TABLE garbage DROP COLUMN generation; \
     DELETE FROM refinery_schema_history WHERE version >= 8",
    "DROP TRIGGER attribute_word_added ON attribute; DROP FUNCTION attribute_words; DROP FUNCTION words_like; DROP FUNCTION words_with; \
     DROP FUNCTION words_are_common; DROP TABLE word; \
     DROP TRIGGER entry_bytes_added ON entry; DROP TRIGGER entry_bytes_removed ON entry; DROP TRIGGER entry_bytes_changed ON entry; \
     DROP FUNCTION entry_bytes; DROP TABLE used; \
     ALTER TABLE space DROP COLUMN quota; ALTER TABLE entry DROP COLUMN target; ALTER TABLE garbage DROP COLUMN generation; \
     DELETE FROM refinery_schema_history WHERE version >= 8",
];

async fn texts_that_an_older_release_wrote_are_found(site: Site) {
    for (at, title) in [("/lab/x", "Sea surface temperature"), ("/lab/y", "Sea ice"), ("/lab/z", "Sea ice")] {
        site.put(at, 1).await;
        say(&site, at, &[("title", &[text(title)])]).await.unwrap();
    }
    site.catalog.close().await;
    site.tamper(BACK_TO_7[usize::from(site.is_postgres())]).await;
    let catalog = Catalog::open(&site.config).await.unwrap();
    assert_eq!(catalog.fsck().await.unwrap(), []);
    let site = Site { catalog, ..site };
    for (condition, found) in [
        (is("title", Test::Has(literal("ice"))), &["/lab/y", "/lab/z"][..]),
        (is("title", Test::Matches("*surface*".into())), &["/lab/x"]),
        (Condition::Text("temperat".into()), &["/lab/x"]),
    ] {
        assert_eq!(search_rare(&site, condition).await, found);
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
        (builtin(Builtin::Name, regex(r"^B\.[tn]")), &["/lab/other/b.txt", "/lab/run/b.nc"]),
        (builtin(Builtin::Path, regex("/RUN/b")), &["/lab/run/b.nc"]),
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
        builtin(Builtin::Type, has("shortcut")),
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

async fn add_other(site: &Site) -> Space {
    let other = NewSpace {
        name: "other".parse().unwrap(),
        owner: subject("owner"),
        scope: SpaceScope::Private,
        store: Some(site.store),
        members: Vec::new(),
        extraction: ExtractionMode::Async,
        quota: None,
        rules: Vec::new(),
    };
    site.catalog.create_space(&site.admin, other).await.unwrap()
}

async fn pages_of_any_size_have_everything_once(site: Site) {
    let paths: Vec<String> = (0..25).map(|n| format!("/lab/{n:02}")).collect();
    site.put_many(&paths).await;
    add_other(&site).await;
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

/// Long pages go through all attributes of a window, where the first entries have few; short ones look them up.
async fn long_pages_find_what_short_ones_do(site: Site) {
    const MANY: i64 = 1300;
    let paths: Vec<String> = (0..MANY).map(|n| format!("/lab/many/{n:04}")).collect();
    site.put_many(&paths).await;
    for (n, at) in (0..MANY).zip(&paths) {
        let level = [AttributeValue::Integer(n), AttributeValue::Float(Float(n as f64 + 0.5))];
        let title = [text("Granule of the sea")];
        match n % 3 {
            0 => say(&site, at, &[("level", &level), ("title", &title)]).await.unwrap(),
            _ => say(&site, at, &[("level", &level)]).await.unwrap(),
        }
    }
    let names: Vec<String> = (0..200).map(|n| format!("field{n}")).collect();
    let fields: Vec<(&str, &[AttributeValue])> =
        names.iter().map(|name| (name.as_str(), &[AttributeValue::Bool(true)][..])).collect();
    say(&site, "/lab/many/0700", &fields).await.unwrap();
    let from = |word: &str| compare("level", Comparison::AtLeast, word);
    let below = |word: &str| compare("level", Comparison::Less, word);
    let cases: [(Condition, &dyn Fn(i64) -> bool); 10] = [
        (equal("title", "granule of the sea"), &|n| n % 3 == 0),
        (Condition::All(vec![equal("title", "granule of the sea"), below("100")]), &|n| {
            n % 3 == 0 && n < 100
        }),
        (from("0"), &|_| true),
        (is("level", Test::Between(Some(literal("49.5")), Some(literal("1250")))), &|n| {
            (49..=1250).contains(&n)
        }),
        (is("title", Test::Exists), &|n| n % 3 == 0),
        (is("title", Test::Matches("gran*sea".into())), &|n| n % 3 == 0),
        (Condition::All(vec![from("100"), is("title", Test::Has(literal("sea")))]), &|n| {
            n >= 100 && n % 3 == 0
        }),
        (Condition::All(vec![not(from("700")), from("1")]), &|n| (1..700).contains(&n)),
        (Condition::Any(vec![below("10"), from("1290")]), &|n| !(10..1290).contains(&n)),
        (Condition::All(vec![from("0"), is("field7", Test::Exists)]), &|n| n == 700),
    ];
    for (condition, holds) in cases {
        let expected: Vec<&String> =
            (0..MANY).zip(&paths).filter(|(n, _)| holds(*n)).map(|(_, at)| at).collect();
        for limit in [100, 1000, 1299, 10_000] {
            let found = search_as(&site, &site.admin, condition.clone(), limit).await.unwrap();
            assert!(found.iter().eq(expected.iter().copied()), "{condition:?}, {limit}: {}", found.len());
        }
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
            extraction: ExtractionMode::Async,
            quota: None,
            rules: Vec::new(),
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
    // How many have a value that bob cannot read is no matter for how it would be looked for.
    let exists = is("secret", Test::Exists);
    let lab = site.space.name.clone();
    let of_lab = |led_by| vec![PlannedSpace { space: lab.clone(), led_by, looked_at: None }];
    let either = Condition::All(vec![equal("secret", "/lab/a/x"), equal("secret", "/lab/c/x")]);
    for (condition, led_by) in
        [(everything(), None), (exists, None), (either, None), (equal("secret", "/lab/a/x"), Some(()))]
    {
        let planned = site.catalog.explain(&bob, condition.clone()).await.unwrap();
        assert_eq!(planned, of_lab(led_by.map(|()| condition.clone())), "{condition:?}");
    }
    site.catalog.remove_grant(&site.admin, &path("/lab/b"), &subject("bob")).await.unwrap();
    assert_eq!(search_as(&site, &bob, everything(), 10).await.unwrap(), Vec::<String>::new());
}

/// However late it is, a page looks at something, and the next one goes on behind it.
async fn a_search_without_time_goes_on(site: Site) {
    add_other(&site).await;
    let paths: Vec<String> = (0..20).map(|n| format!("/lab/{n:02}")).collect();
    site.put_many(&paths).await;
    site.mkdir("/other/x").await;
    for at in &paths[..10] {
        say(&site, at, &[("n", &[AttributeValue::Integer(7)]), ("title", &[text("Sea ice")])]).await.unwrap();
    }
    let all: Vec<String> = paths.iter().cloned().chain(["/other/x".to_owned()]).collect();
    for (condition, expected) in [
        (Condition::All(Vec::new()), &all[..]),
        (equal("n", "7"), &all[..10]),
        (compare("n", Comparison::More, "6"), &all[..10]),
        (is("title", Test::Has(literal("ice"))), &all[..10]),
        (Condition::Text("ice".into()), &all[..10]),
        (not(equal("n", "7")), &all[10..]),
    ] {
        let mut options = SearchOptions::new(condition.clone());
        (options.patience, options.limit) = (std::time::Duration::ZERO, 3);
        let mut found = Vec::new();
        for _ in 0..20 {
            let page = site.catalog.search(&site.admin, options.clone()).await.unwrap().page;
            found.extend(page.items.iter().map(|item| item.path.to_string()));
            options.after = page.next;
            if options.after.is_none() {
                break;
            }
        }
        assert_eq!(options.after, None, "{condition:?}");
        found.sort();
        assert_eq!(found, expected, "{condition:?}");
    }
}

/// A space that got another home, or was restored, goes on with ids far behind those before.
async fn a_gap_in_the_ids_is_not_gone_through(site: Site) {
    const GAP: u64 = 1 << 32;
    let put = async |site: &Site, from: i64, to: i64| {
        for n in from..to {
            let at = format!("/lab/{n:02}.nc");
            site.put(&at, 1).await;
            say(
                site,
                &at,
                &[("n", &[AttributeValue::Integer(n)]), ("even", &[AttributeValue::Bool(n % 2 == 0)])],
            )
            .await
            .unwrap();
        }
    };
    put(&site, 0, 10).await;
    let mut site = site;
    for from in [10, 20] {
        site.catalog.close().await;
        site.tamper(&format!("UPDATE space SET next_id = next_id + {GAP}")).await;
        let catalog = Catalog::open(&site.config).await.unwrap();
        let lease = catalog.acquire_lease(LeaseKind::Server, "server 1", HOUR, serde_json::json!({ "v": 1 }));
        let lease = lease.await.unwrap();
        site = Site { catalog, lease, ..site };
        put(&site, from, from + 10).await;
    }
    assert!(site.stat("/lab/29.nc").await.unwrap().id.0 > 2 * GAP);
    let all: Vec<String> = (0..30).map(|n| format!("/lab/{n:02}.nc")).collect();
    let named = || builtin(Builtin::Name, Test::Matches("*.nc".into()));
    let within = Condition::All(vec![builtin(Builtin::Path, Test::Matches("/lab/*.nc".into())), named()]);
    let even = Condition::All(vec![named(), not(equal("even", "false"))]);
    let bob = user("bob");
    for at in ["/lab/05.nc", "/lab/25.nc"] {
        site.catalog.set_grant(&site.admin, &path(at), subject("bob"), Permission::Read).await.unwrap();
    }
    for (caller, condition, expected) in [
        (&site.admin, named(), all.clone()),
        (&site.admin, within, all.clone()),
        (&site.admin, even, all.iter().step_by(2).cloned().collect()),
        (&site.admin, Condition::Text("5.nc".into()), vec![all[5].clone(), all[15].clone(), all[25].clone()]),
        (&bob, named(), vec![all[5].clone(), all[25].clone()]),
    ] {
        let mut options = SearchOptions::new(condition.clone());
        options.patience = std::time::Duration::from_secs(60);
        for limit in [7, 1000] {
            (options.limit, options.after) = (limit, None);
            let mut found = Vec::new();
            for _ in 0..=expected.len() / limit {
                let page = site.catalog.search(caller, options.clone()).await.unwrap().page;
                found.extend(page.items.iter().map(|item| item.path.to_string()));
                options.after = page.next;
                if options.after.is_none() {
                    break;
                }
            }
            found.sort();
            assert_eq!((found, &options.after), (expected.clone(), &None), "{condition:?}, {limit}");
        }
        let facets = [Field::Builtin(Builtin::Ext)];
        let counted = summary(&site, caller, condition.clone(), &facets).await;
        assert_eq!(counted, (expected.len() as u64, vec![format!("nc {}", expected.len())]), "{condition:?}");
        for by in [Field::Builtin(Builtin::Name), Field::Attribute(name("n"))] {
            let mut options = SearchOptions::new(condition.clone());
            options.sort = Some(Sort { field: by, is_descending: true });
            let page = site.catalog.search(caller, options).await.unwrap().page;
            let found = page.items.iter().rev().map(|item| item.path.to_string());
            assert!(found.eq(expected.iter().cloned()), "{condition:?}");
        }
    }
}

/// A name is found as it is written; of its letters, A to Z are found in any case.
async fn names_of_any_letters_are_found(site: Site) {
    for at in ["/lab/Ähre.NC", "/lab/ähre.nc", "/lab/ΣΑΣ.txt", "/lab/x.İ"] {
        site.put(at, 1).await;
    }
    site.put("/lab/title", 1).await;
    say(&site, "/lab/title", &[("title", &[text("Die ÄHREN")])]).await.unwrap();
    let has = |word: &str| Test::Has(literal(word));
    let by_name = |test| builtin(Builtin::Name, test);
    let same = |word: &str| Test::Compare(Comparison::Equal, literal(word));
    for (condition, expected) in [
        (by_name(has("Ähre.nc")), &["/lab/Ähre.NC"][..]),
        (by_name(same("ÄHRE.NC")), &["/lab/Ähre.NC"]),
        (by_name(has("ähre.nc")), &["/lab/ähre.nc"]),
        (by_name(Test::Matches("Ä*".into())), &["/lab/Ähre.NC"]),
        (by_name(Test::Between(Some(literal("Ähre.nc")), Some(literal("Ähre.nc")))), &["/lab/Ähre.NC"]),
        (by_name(regex("^Ähre")), &["/lab/Ähre.NC", "/lab/ähre.nc"]),
        (by_name(regex("^ΣΑΣ")), &["/lab/ΣΑΣ.txt"]),
        (by_name(regex("x[.]İ$")), &["/lab/x.İ"]),
        (builtin(Builtin::Path, regex("lab/ΣΑΣ")), &["/lab/ΣΑΣ.txt"]),
        (builtin(Builtin::Ext, has("İ")), &["/lab/x.İ"]),
        (builtin(Builtin::Ext, Test::Matches("İ*".into())), &["/lab/x.İ"]),
        (Condition::Text("Ähre".into()), &["/lab/title", "/lab/Ähre.NC"]),
        (Condition::Text("ähren".into()), &["/lab/title"]),
        (Condition::Text("ΣΑΣ".into()), &["/lab/ΣΑΣ.txt"]),
    ] {
        assert_eq!(search(&site, condition.clone()).await, expected, "{condition:?}");
        assert_eq!(search_rare(&site, condition.clone()).await, expected, "{condition:?}");
    }
}

async fn an_ending_is_what_is_behind_the_last_dot(site: Site) {
    for at in ["data.nc.gz", "data.nc", "data.nc4", "data.", "nc", ".nc", "x.tar.gz", "a.b.NCX"] {
        site.put(&format!("/lab/{at}"), 1).await;
    }
    let matches = |pattern: &str| Test::Matches(pattern.into());
    for (test, expected) in [
        (matches("n*"), &[".nc", "a.b.NCX", "data.nc", "data.nc4"][..]),
        (matches("?c"), &[".nc", "data.nc"]),
        (matches("*z"), &["data.nc.gz", "x.tar.gz"]),
        (matches("*"), &[".nc", "a.b.NCX", "data.", "data.nc", "data.nc.gz", "data.nc4", "x.tar.gz"]),
        (matches("tar.*"), &["x.tar.gz"]),
        (Test::Has(literal("nc")), &[".nc", "data.nc"]),
        (Test::Has(literal("tar.gz")), &["x.tar.gz"]),
        (Test::Exists, &[".nc", "a.b.NCX", "data.", "data.nc", "data.nc.gz", "data.nc4", "x.tar.gz"]),
    ] {
        let expected: Vec<String> = expected.iter().map(|at| format!("/lab/{at}")).collect();
        assert_eq!(search(&site, builtin(Builtin::Ext, test.clone())).await, expected, "{test:?}");
    }
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
    for far_apart in ["/lab/00", "/lab/19"] {
        say(&site, far_apart, &[("rare", &[AttributeValue::Bool(true)])]).await.unwrap();
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
        assert_eq!(found(&equal("rare", "true")).await, of(|n| n == 0 || n == 19), "{limit}");
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
    let expected = (Some(code.clone()), Some(25));
    assert_eq!((planned[0].led_by.clone(), planned[0].looked_at), expected, "values are counted");
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

async fn a_search_that_takes_long_is_ended_and_says_so(site: Site) {
    let paths: Vec<String> = (0..5000).map(|n| format!("/lab/{n}")).collect();
    let headers = site.put_many(&paths).await.into_iter().zip(&paths).map(|(object, at)| {
        let found = vec![(name("v"), vec![text(&format!("{at} of many"))])];
        Header { entry: object.entry, version: object.version, as_of: Vec::new(), found, is_partial: false }
    });
    site.catalog.extracted(site.space.id, None, headers.collect()).await.unwrap();
    let mut config = site.config.clone();
    config.search_timeout = Duration::from_millis(1);
    let hasty = Catalog::open(&config).await.unwrap();
    // No letters lead to it, so all values are looked at.
    let options = SearchOptions::new(is("v", regex("^.+x.y.z.+$")));
    let error = hasty.search(&site.admin, options.clone()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidRequest, "{error}");
    assert!(error.to_string().contains("within 1ms"), "{error}");
    // What is no search takes as long as it takes, also on the same connections.
    assert_eq!(
        hasty.list(&site.admin, &path("/lab"), ListOptions::default()).await.unwrap().items.len(),
        1000
    );
    assert_eq!(site.catalog.search(&site.admin, options).await.unwrap().page.items.len(), 0);
    hasty.close().await;
}

on_both! {
    a_search_that_takes_long_is_ended_and_says_so,
    texts_are_found_by_what_is_in_them,
    texts_that_an_older_release_wrote_are_found,
    tests_of_attributes_hold_by_type,
    what_is_known_of_every_entry_is_searched_by,
    an_attribute_that_nothing_has_is_named_with_others,
    pages_of_any_size_have_everything_once,
    long_pages_find_what_short_ones_do,
    paths_say_in_which_spaces_to_look,
    nobody_finds_what_is_not_theirs,
    entries_of_one_value_come_in_pages_of_any_size,
    what_is_asked_for_is_told_of_each,
    a_search_without_time_goes_on,
    a_gap_in_the_ids_is_not_gone_through,
    names_of_any_letters_are_found,
    an_ending_is_what_is_behind_the_last_dot,
}
