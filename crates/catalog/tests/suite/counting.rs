//! What is found, counted by its values.

use percale_catalog::*;
use percale_core::AttributeValue;
use percale_core::access::{Caller, Permission};
use percale_core::attribute::Float;
use percale_core::query::{Builtin, Comparison, Condition, Field, Literal, Test};

use crate::attributes::{name, say, text};
use crate::searching::{builtin, compare, equal, is, literal, not};
use crate::site::{Site, kind, path, subject, user};

/// Counts, and shows each facet as `value count, …`.
pub async fn summary(
    site: &Site,
    caller: &Caller,
    condition: Condition,
    facets: &[Field],
) -> (u64, Vec<String>) {
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

/// What is said of the root of a space is no value of an entry that is found.
async fn the_root_of_a_space_is_not_counted(site: Site) {
    site.put("/lab/x", 1).await;
    let of_entry = [text("MODIS")];
    say(&site, "/lab/x", &[("instrument", &of_entry), ("level", &[AttributeValue::Integer(1)])])
        .await
        .unwrap();
    let of_root = ["MODIS", "MODIS", "VIIRS"].map(text);
    say(&site, "/lab", &[("instrument", &of_root), ("level", &[text("1")])]).await.unwrap();
    let facets = [Field::Attribute(name("instrument")), Field::Attribute(name("level"))];
    let all = summary(&site, &site.admin, Condition::All(Vec::new()), &facets).await;
    assert_eq!(all, (1, vec!["MODIS 1".into(), "1 1".into()]));
    let below = builtin(Builtin::Type, Test::Has(Literal::text("object")));
    assert_eq!(summary(&site, &site.admin, below, &facets).await, all);
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

on_both! {
    what_is_found_is_counted_by_its_values,
    what_is_kept_counted_is_what_is_there,
    the_root_of_a_space_is_not_counted,
    values_of_another_type_are_counted_for_who_may_read_them_all,
}
