use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::language::{parse, write as in_words};

fn now() -> Timestamp {
    "2024-06-15T12:00:00Z".parse().unwrap()
}

fn text(filter: &str) -> Condition {
    parse_text(filter, now()).unwrap_or_else(|error| panic!("{filter}: {error}"))
}

fn json(filter: &serde_json::Value) -> Condition {
    parse_json(&filter.to_string(), now()).unwrap_or_else(|error| panic!("{filter}: {error}"))
}

fn query(query: &str) -> Condition {
    parse(query, now()).unwrap_or_else(|error| panic!("{query}: {error}"))
}

#[test]
fn filters_mean_what_queries_mean() {
    for (filter, words) in [
        ("", ""),
        ("instrument = 'MODIS'", "instrument=\"MODIS\""),
        ("CASEI(instrument) = casei('MODIS')", "instrument=\"MODIS\""),
        (
            "eo:cloud_cover < 10 AND platform LIKE 'sentinel-%'",
            "`eo:cloud_cover`<10 platform LIKE 'sentinel-%'",
        ),
        ("(a=1 OR b=2)AND NOT c = 3", "(a=1 OR b=2) NOT c=3"),
        ("NOT NOT (a = 1)", "a=1"),
        ("level BETWEEN 500 AND 850 OR level>=-2.5e1", "level BETWEEN 500 AND 850 OR level>=-25"),
        ("level NOT BETWEEN 500 AND 850", "NOT level BETWEEN 500 AND 850"),
        ("day_night in ('day','night')", "day_night IN ('day', 'night')"),
        ("day_night NOT IN ('day')", "NOT day_night IN ('day')"),
        ("tag IS NULL AND owner is not null", "tag IS NULL owner IS NOT NULL"),
        ("\"odd name\" <> 'it''s'", "`odd name`!='it''s'"),
        ("10 < size", "size>10"),
        ("\"@size\" > 10", "@size>10"),
        ("is_day", "is_day=true"),
        ("is_day = FALSE", "is_day=false"),
        ("modified > DATE('2024-06-01')", "modified>2024-06-01"),
        ("taken = TIMESTAMP('2024-06-01T10:30:00Z')", "taken=2024-06-01T10:30:00Z"),
        ("T_AFTER(taken, DATE('2024-06-01'))", "taken>2024-06-01"),
        ("T_BEFORE(taken, INTERVAL('2024-06-01', '2024-07-01'))", "taken<2024-06-01"),
        ("T_DURING(taken, INTERVAL('2024-06-01', '2024-07-01'))", "taken>2024-06-01 taken<2024-07-01"),
        ("T_INTERSECTS(time, INTERVAL('2019-06-01', '2019-08-31'))", "time:2019-06-01..2019-08-31"),
        ("T_INTERSECTS(time, INTERVAL('2019-06-01', '..'))", "time:2019-06-01.."),
        ("T_DURING(time, INTERVAL('..', '2019-08-31'))", "coverage.end<2019-08-31"),
        ("S_INTERSECTS(geometry, BBOX(-10, 35, 30, 60))", "bbox:(-10,35,30,60)"),
        ("S_INTERSECTS(geometry, BBOX(-10, 35, 0, 30, 60, 100))", "bbox:(-10,35,30,60)"),
        ("S_INTERSECTS(geometry, POINT(11.6 48.1))", "bbox:(11.6,48.1,11.6,48.1)"),
        ("S_INTERSECTS(geometry, POLYGON((-10 35, 30 35, 30 60, -10 60, -10 35)))", "bbox:(-10,35,30,60)"),
        ("A_CONTAINS(tag, ('a', 'b'))", "tag='a' tag='b'"),
        ("A_OVERLAPS(tag, ('a', 'b'))", "tag IN ('a', 'b')"),
        ("name LIKE '%.nc'", "name LIKE '%.nc'"),
        ("CASEI(title) LIKE CASEI('Sea%')", "title LIKE 'Sea%'"),
        (r"title LIKE '100\% (a*)\_'", r#"title~"(?s)^100\% \(a\*\)\_$""#),
        ("has(title, 'sea') AND text('surface')", "title:'sea' 'surface'"),
        ("regex(title, '^sea (ice|surface)')", "title~'^sea (ice|surface)'"),
        ("read('2017') = date", "date=2017"),
        ("true", ""),
    ] {
        assert_eq!(in_words(&text(filter)), in_words(&query(words)), "{filter}");
    }
}

#[test]
fn a_text_that_is_a_time_is_one_too() {
    // Asked so, catalogs of STAC compare times.
    let condition = json(&json!({"op": ">=", "args": [{"property": "datetime"}, "2021-01-01T00:00:00Z"]}));
    let Condition::Is(_, percale_core::query::Test::Compare(_, value)) = condition else {
        panic!("{condition:?}")
    };
    assert_eq!(value.span.unwrap().0, "2021-01-01T00:00:00Z".parse().unwrap());
    // Of a year alone nobody knows.
    let condition = json(&json!({"op": "=", "args": [{"property": "model"}, "2021"]}));
    assert_eq!(condition, query("model='2021'"));
}

#[test]
fn every_query_can_be_written_as_a_filter() {
    let queries = [
        "",
        "instrument=MODIS AND date > 2017-03-01",
        "location like \"%Pacific%\"",
        "ext:nc size:>1GB modified:>-7d",
        "@units=K var.temperature:*",
        "var.tas.units:(K OR degC) dim.time:>=365",
        "@cloud_cover:0..10 -tag:draft",
        "publication_date:[2017 TO 2018]",
        "bbox:(-10,35,30,60) time:2019-06..2019-08",
        "bbox:(170,-10,-170,10) near:(11.6,48.1,50km)",
        "path:/climate/** NOT site:lrz",
        "path:/climate/*/x?.nc path LIKE '/a/%' NOT path LIKE '%[x]{y}*'",
        "level:{500 TO 850] size:[* TO 1kB}",
        "replicas<2 policy:*",
        "hash:sha-256:9f86d0*",
        "day_night IN (day, night) AND level BETWEEN 500 AND 850",
        "owner=me state:stale @owner=me @time:* a=true b!='true' c='2024-06-01' d=2024-06-01",
        "\"sea surface temperature\" format:zarr @model_id:CMIP6*",
        "title~\"^sea (ice|surface)\" level:..3 level:3.. x:[* TO *] `100 %`:50%_? c LIKE '5\\%_\\*'",
    ];
    for words in queries {
        let condition = query(words);
        let filter = write(&condition);
        let again = json(&filter);
        // A condition of one part is that part.
        assert_eq!(write(&again), filter, "{words}");
        assert_eq!(in_words(&again), in_words(&json(&write(&again))), "{words}");
    }
    let filter = write(&query("instrument=MODIS level:500..850 tag:draft date=2017"));
    let expected = json!({"op": "and", "args": [
        {"op": "=", "args": [{"property": "instrument"}, "MODIS"]},
        {"op": "between", "args": [{"property": "level"}, 500, 850]},
        {"op": "has", "args": [{"property": "tag"}, "draft"]},
        {"op": "=", "args": [{"property": "date"}, {"op": "read", "args": ["2017"]}]},
    ]});
    assert_eq!(filter, expected);
}

#[test]
fn patterns_of_paths_stay_what_they_are() {
    assert_eq!(text("glob(path, '/a/*/x.nc')"), query("path:/a/*/x.nc"));
    assert_eq!(text("path LIKE '/a/%'"), query("path LIKE '/a/%'"));
    assert_eq!(json(&write(&query("path:/a/**"))), query("path:/a/**"));
    for pattern in ["/a?b/*", "/a b/*", "/a,b*", "/a[1])*", "/d/2020..2021/*", "/a", "*", ""] {
        let condition = text(&format!("glob(path, '{pattern}')"));
        assert_eq!(query(&in_words(&condition)), condition);
        assert_eq!(json(&write(&condition)), condition);
    }
    assert_eq!(in_words(&text("glob(path, '/a?b/*')")), "path:/a?b/*");
    assert_eq!(in_words(&text("glob(path, '/a b/*')")), "path GLOB \"/a b/*\"");
}

#[test]
fn what_cannot_be_understood_is_named() {
    for (filter, part) in [
        ("a = ", "at its end: a property, a value"),
        ("a = 1 b = 2", "at 'b = 2': AND, OR or the end"),
        ("a = 'x", "a quote is missing"),
        ("(a = 1", "a ')' is missing"),
        ("a = 1x", "no number"),
        ("a BETWEEN 1 OR 2", "AND and the other bound"),
        ("a NOT 1", "LIKE, BETWEEN or IN"),
        ("a IS 1", "NULL is expected"),
        ("S_INTERSECTS(BBOX(1,2,3,4), BBOX(1,2,3,4))", "a property and a box"),
        ("S_INTERSECTS(a, b)", "a property and a box"),
        ("casei(a)", "a value, and no test"),
        ("a LIKE 1", "'like' has a property and a text"),
        ("AND a = 1", "before this word"),
        ("a = b", "compared with a value, not with {\"property\":\"b\"}"),
        ("1 = 2", "a property is expected, not 2"),
        ("a + 1 = 2", "AND, OR or the end"),
        ("'x'", "a test is expected, not \"x\""),
        ("accenti(a) = 'x'", "a property is expected"),
        ("S_WITHIN(geometry, BBOX(1,2,3,4))", "'s_within' is not supported; there are and, or"),
        ("S_INTERSECTS(geometry, POLYGON((0 0, 1 1, 2 0, 0 0)))", "a box in degrees"),
        ("S_INTERSECTS(geometry, BBOX(0, 100, 1, 101))", "a box in degrees"),
        ("T_AFTER(taken, '..')", "nothing is before or after"),
        ("taken = DATE('soon')", "no date and no time"),
        ("regex(title, '(')", "regular expression"),
        ("text(' ')", "'text' has words"),
        ("a IN ()", "a list of values"),
    ] {
        let error = parse_text(filter, now()).expect_err(filter).to_string();
        assert!(error.contains(part), "{filter}: {error}");
    }
    for (filter, part) in [
        ("{", "no JSON"),
        ("[]", "a test is expected"),
        (r#"{"op": "and"}"#, "no operator with a list"),
        (r#"{"op": "=", "args": [{"property": "a"}]}"#, "a property and a value"),
        (r#"{"op": "=", "args": [{"property": "a"}, "\u0000"]}"#, "zero byte"),
        (r#"{"op": "=", "args": [{"property": "a"}, null]}"#, "a value is expected, not null"),
    ] {
        let error = parse_json(filter, now()).expect_err(filter).to_string();
        assert!(error.contains(part), "{filter}: {error}");
    }
}

#[test]
fn filters_are_bounded() {
    let long = format!("a = '{}'", "x".repeat(17_000));
    assert!(parse_text(&long, now()).unwrap_err().to_string().contains("at most 16384 bytes"));
    let many = vec!["a=1"; 60].join(" OR ");
    let both = crate::language::both(query(&many), text(&many)).unwrap_err();
    assert!(both.to_string().contains("at most 100 tests, not 120"), "{both}");
    assert_eq!(crate::language::both(query(""), text(&many)).unwrap(), text(&many));
    let many = vec!["a=1"; 101].join(" OR ");
    assert!(parse_text(&many, now()).unwrap_err().to_string().contains("at most 100 tests"));
    for deep in [format!("{}a=1", "(".repeat(5000)), format!("{}1", "f(".repeat(5000)), "NOT ".repeat(4000)] {
        assert!(parse_text(&deep, now()).is_err());
    }
    let deep = format!("{}true{}", r#"{"op":"not","args":["#.repeat(60), "]}".repeat(60));
    assert!(parse_json(&deep, now()).unwrap_err().to_string().contains("nested"));
    let deep = format!("{}{}", "[".repeat(8000), "]".repeat(8000));
    assert!(parse_json(&deep, now()).is_err());
}

proptest! {
    #[test]
    fn no_text_makes_it_fall(filter in "\\PC{0,60}", other in "[a-c0-9 ()=<>,'\"%_\\\\.NOTADRLIKEBW]{0,60}") {
        for filter in [filter, other] {
            let _ = parse_json(&filter, now());
            if let Ok(condition) = parse_text(&filter, now()) {
                let written = write(&condition);
                prop_assert_eq!(write(&json(&written)), written);
            }
        }
    }
}
