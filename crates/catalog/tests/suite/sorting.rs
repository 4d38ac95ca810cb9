//! Searching in an order.

use percale_catalog::*;
use percale_core::AttributeValue;
use percale_core::access::{Caller, Permission};
use percale_core::attribute::Float;
use percale_core::query::{Builtin, Comparison, Condition, Field, Literal, Test};

use crate::attributes::{name, say, text};
use crate::searching::{builtin, compare, equal, is};
use crate::site::{Site, kind, path, subject, user};

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

/// Those that come first are met first by their values, or sorted where that takes longer; it is the same order.
async fn the_first_of_many_come_in_an_order(site: Site) {
    const MANY: i64 = 330;
    let paths: Vec<String> = (0..MANY).map(|n| format!("/lab/{}/{n:03}", n % 2)).collect();
    site.put_many(&paths).await;
    let level = |n: i64| n * 7 % 11;
    for (n, at) in (0..MANY).zip(&paths) {
        let mut levels = vec![AttributeValue::Integer(level(n))];
        // Of several values the one that comes first counts.
        levels.extend((n % 5 == 0).then_some(AttributeValue::Float(Float(3.5))));
        let letter = text(["a", "B", "c"][(n % 3) as usize]);
        say(&site, at, &[("level", &levels), ("letter", &[letter]), ("n", &[AttributeValue::Integer(n)])])
            .await
            .unwrap();
    }
    let bob = user("bob");
    site.catalog.set_grant(&site.admin, &path("/lab/1"), subject("bob"), Permission::Read).await.unwrap();
    let all = || is("n", Test::Exists);
    let below = |below: &str| compare("n", Comparison::Less, below);
    let within_one = Condition::Is(Field::Builtin(Builtin::Path), Test::Has(Literal::text("/lab/1")));
    let in_one = Condition::All(vec![within_one, all()]);
    type Holds = fn(i64) -> bool;
    let cases: [(&Caller, Condition, Holds); 5] = [
        (&site.admin, all(), |_| true),
        (&site.admin, below("320"), |n| n < 320),
        (&site.admin, below("40"), |n| n < 40),
        (&site.admin, in_one, |n| n % 2 == 1),
        (&bob, all(), |n| n % 2 == 1),
    ];
    for (caller, condition, holds) in cases {
        for (by, is_descending) in [("level", false), ("level", true), ("letter", false), ("letter", true)] {
            let key = |n: i64| match by {
                "letter" => (n % 3) as f64,
                _ if n % 5 != 0 => level(n) as f64,
                _ if is_descending => (level(n) as f64).max(3.5),
                _ => (level(n) as f64).min(3.5),
            };
            // In the other order what is of the same value comes so, too.
            let mut expected: Vec<i64> = (0..MANY).filter(|n| holds(*n)).collect();
            expected.sort_by(|one, other| key(*one).total_cmp(&key(*other)).then(one.cmp(other)));
            if is_descending {
                expected.reverse();
            }
            for limit in [1, 7, 120, 164, 1000] {
                let mut options = SearchOptions::new(condition.clone());
                options.sort = Some(Sort { field: Field::Attribute(name(by)), is_descending });
                options.limit = limit;
                let found = site.catalog.search(caller, options).await.unwrap().page.items;
                let found: Vec<i64> =
                    found.iter().map(|one| one.path.name().unwrap().parse().unwrap()).collect();
                let expected = &expected[..limit.min(expected.len())];
                assert_eq!(found, expected, "{condition:?} by {by}, {is_descending}, {limit}");
            }
        }
    }
}

/// Of those that have the same number those that were made first come first, whatever texts they have besides.
async fn texts_beside_numbers_do_not_count(site: Site) {
    site.put_many(&["0", "1", "2", "3"].map(|at| format!("/lab/{at}"))).await;
    for (at, letter) in [("0", "z"), ("1", "a"), ("2", "m")] {
        let code = [AttributeValue::Integer(7), text(letter)];
        say(&site, &format!("/lab/{at}"), &[("code", &code)]).await.unwrap();
    }
    say(&site, "/lab/3", &[("code", &[text("b")])]).await.unwrap();
    for (is_descending, expected) in [(false, ["0", "1", "2", "3"]), (true, ["2", "1", "0", "3"])] {
        for limit in [1, 2, 10] {
            let mut options = SearchOptions::new(is("code", Test::Exists));
            options.sort = Some(Sort { field: Field::Attribute(name("code")), is_descending });
            options.limit = limit;
            let found = site.catalog.search(&site.admin, options).await.unwrap().page.items;
            let found: Vec<&str> = found.iter().map(|one| one.path.name().unwrap()).collect();
            assert_eq!(found, expected[..limit.min(4)], "{is_descending}, {limit}");
        }
    }
}

/// So many that a filter leads to are sorted by themselves, where those that come first of all are others.
async fn what_a_filter_leads_to_is_sorted_by_itself(site: Site) {
    const ALL: i64 = 21_000;
    const LED: i64 = 5100;
    let paths: Vec<String> = (0..ALL).map(|n| format!("/lab/{}/{n:05}", n % 21)).collect();
    let headers = site.put_many(&paths).await.into_iter().zip(0..).map(|(object, n): (_, i64)| {
        let said = [("n", n), ("level", n * 7 % 1000)];
        let found = said.map(|(of, value)| (name(of), vec![AttributeValue::Integer(value)])).to_vec();
        Header { entry: object.entry, version: object.version, as_of: Vec::new(), found, is_partial: false }
    });
    let headers: Vec<Header> = headers.collect();
    for headers in headers.chunks(5000) {
        site.catalog.extracted(site.space.id, None, headers.to_vec()).await.unwrap();
    }
    let low = ALL - LED;
    let condition = compare("n", Comparison::AtLeast, &low.to_string());
    for (by, is_descending) in
        [(Field::Attribute(name("level")), true), (Field::Builtin(Builtin::Name), false)]
    {
        let mut expected: Vec<i64> = (low..ALL).collect();
        if is_descending {
            expected.sort_by_key(|n| std::cmp::Reverse((n * 7 % 1000, *n)));
        }
        for limit in [10, 10_000] {
            let mut options = SearchOptions::new(condition.clone());
            (options.sort, options.limit) = (Some(Sort { field: by.clone(), is_descending }), limit);
            let found = site.catalog.search(&site.admin, options).await.unwrap().page.items;
            let found: Vec<i64> = found.iter().map(|one| one.path.name().unwrap().parse().unwrap()).collect();
            assert_eq!(found, &expected[..limit.min(expected.len())], "{by:?}, {limit}");
        }
    }
}

on_both! {
    what_is_found_comes_in_an_order,
    the_first_of_many_come_in_an_order,
    texts_beside_numbers_do_not_count,
    what_a_filter_leads_to_is_sorted_by_itself,
}
