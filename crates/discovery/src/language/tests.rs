use super::*;

fn now() -> Timestamp {
    "2024-06-15T12:00:00Z".parse().unwrap()
}

fn read(query: &str) -> Condition {
    parse(query, now()).unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// Writes a condition shortly, so that tests can be read.
fn show(condition: &Condition) -> String {
    let list = |parts: &[Condition], word: &str| parts.iter().map(show).collect::<Vec<_>>().join(word);
    match condition {
        Condition::All(parts) => format!("({})", list(parts, " & ")),
        Condition::Any(parts) => format!("({})", list(parts, " | ")),
        Condition::Not(part) => format!("!{}", show(part)),
        Condition::Text(text) => format!("'{text}'"),
        Condition::Is(field, test) => {
            let field = match field {
                Field::Builtin(builtin) => builtin.as_str().to_owned(),
                Field::Attribute(name) => format!("@{name}"),
            };
            let bound =
                |value: &Option<Literal>| value.as_ref().map(|value| value.text.clone()).unwrap_or_default();
            match test {
                Test::Compare(comparison, value) => {
                    format!("{field}{}{}", comparison.sign(), value.text)
                }
                Test::Between(low, high) => format!("{field}:{}..{}", bound(low), bound(high)),
                Test::Has(value) => format!("{field}:{}", value.text),
                Test::Matches(pattern) => format!("{field}~{pattern}"),
                Test::Regex(pattern) => format!("{field}=~{}", pattern.as_str()),
                Test::Exists => format!("{field}:*"),
            }
        }
    }
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let queries = [
        "",
        "instrument=MODIS",
        "a=1 b!='1' c>2024-06 d<=true OR (e:x* -f:* NOT g LIKE '%a b_')",
        "level:500..850 level:..3 level:[* TO 7] size:>10MB `odd name:x`:1..",
        r#""a ""b"" c" word title:"two words" v:"a..b" n IN (1, 'two', three)"#,
        r#"title~"^sea (ice|""surface"")" NOT name~^b$ b:~c.d e ~ 'f'"#,
        "bbox:(170,-10,-170,10) near:(11.6,48.1,50km) time:2019-06..2019-08 time>2019",
        r"a:50%* b LIKE '50\%_\_' c LIKE 'a*\\b?' d:x_y?",
        "x:{1 TO 2} y:[1 TO 2} z:{* TO 2] path LIKE '/a[1]/%' path:/a/*/b?.nc NOT path LIKE 'b%'",
        "path GLOB '/a b/{x,y}/2020..2021*' NOT path glob /a/* name NOT GLOB '*.nc' a GLOB \"it's ?\"",
        "path:/climate/** name:*.nc ext:nc (a:1 (b:2 OR c:3)) -(d:4 e:5)",
        "@time:* @-x:1 hash:sha256:9f86d0* location like '%Pacific%' a IS NULL b IS NOT NULL",
    ];
    for query in queries {
        let condition = read(query);
        let written = write(&condition);
        assert_eq!(read(&written), condition, "{query}: {written}");
    }
    assert_eq!(write(&read("instrument=MODIS level:500..")), "@instrument=\"MODIS\" @level:[500 TO *]");
}

#[test]
fn each_example_of_the_documentation_is_read() {
    let examples = [
        ("instrument=MODIS", "@instrument=MODIS"),
        ("instrument = MODIS AND date > 2017-03-01", "(@instrument=MODIS & @date>2017-03-01)"),
        (r#"location like "%Pacific%""#, "@location~*Pacific*"),
        ("ext:nc size:>1GB modified:>-7d", "(ext:nc & size>1GB & modified>-7d)"),
        ("@units=K var.temperature:*", "(@units=K & @var.temperature:*)"),
        (
            "var.tas.units:(K OR degC) dim.time:>=365",
            "((@var.tas.units:K | @var.tas.units:degC) & @dim.time>=365)",
        ),
        ("@cloud_cover:0..10 -tag:draft", "(@cloud_cover:0..10 & !@tag:draft)"),
        ("publication_date:[2017 TO 2018]", "@publication_date:2017..2018"),
        (
            "bbox:(-10,35,30,60) time:2019-06..2019-08",
            "((@coverage.south<=60 & @coverage.north>=35 & ((@coverage.west<=30 & @coverage.east>=-10) | @coverage.east>=350)) & \
             (@coverage.end>=2019-06 & @coverage.start<=2019-08))",
        ),
        ("path:/climate/** NOT site:lrz", "(path~/climate/** & !site:lrz)"),
        ("replicas<2 policy:*", "(replicas<2 & @policy:*)"),
        ("hash:sha256:9f86d0*", "hash~sha256:9f86d0*"),
        (
            "day_night IN (day, night) AND level BETWEEN 500 AND 850",
            "((@day_night=day | @day_night=night) & @level:500..850)",
        ),
        ("state:stale", "state:stale"),
        (
            r#""sea surface temperature" format:zarr @model_id:CMIP6*"#,
            "('sea surface temperature' & @format:zarr & @model_id~CMIP6*)",
        ),
    ];
    for (query, meant) in examples {
        assert_eq!(show(&read(query)), meant, "{query}");
    }
}

#[test]
fn operators_bind_as_people_expect() {
    let meanings = [
        ("a b OR c", "(('a' & 'b') | 'c')"),
        ("a AND (b OR c)", "('a' & ('b' | 'c'))"),
        ("not a", "!'a'"),
        ("NOT NOT a", "'a'"),
        ("x!=1", "!@x=1"),
        ("x <> 1", "!@x=1"),
        ("x is null", "!@x:*"),
        ("x IS NOT NULL", "@x:*"),
        ("x NOT IN [1 2]", "!(@x=1 | @x=2)"),
        ("x not like 'a_%'", "!@x~a?*"),
        ("x NOT BETWEEN 1 AND 2", "!@x:1..2"),
        ("`my key`='it''s'", "@my key=it's"),
        ("@name=x", "@name=x"),
        ("NAME:x.nc", "name:x.nc"),
        ("x:..5 y:5..", "(@x:..5 & @y:5..)"),
        ("x:[* TO 5]", "@x:..5"),
        ("x:{1 TO 5}", "(@x>1 & @x<5)"),
        ("x:[1 TO 5}", "(@x>=1 & @x<5)"),
        ("-x:{ 1 TO 5 ]", "!(@x>1 & @x<=5)"),
        ("x:{* TO 5} y:{1 TO *} z:{* TO *}", "(@x<5 & @y>1 & @z:..)"),
        ("size:{1kB TO 2kB}", "(size>1kB & size<2kB)"),
        ("time:{2018 TO 2020}", "(@coverage.end>2018 & @coverage.start<2020)"),
        ("path LIKE '/a/%'", r"path=~(?s)^\/a\/.*$"),
        ("path LIKE '/a[1]{b}_%'", r"path=~(?s)^\/a\[1\]\{b\}..*$"),
        ("@path LIKE '/a/%'", "@path~/a/*"),
        ("time=2019", "(@coverage.end>=2019 & @coverage.start<=2019)"),
        ("time>2019", "@coverage.end>2019"),
        ("time<=2019", "@coverage.start<=2019"),
        ("time:2019..", "(@coverage.end>=2019)"),
        ("@time>2019", "@time>2019"),
        ("BBOX:(-180,-90,180,90)", "(@coverage.south<=90 & @coverage.north>=-90)"),
        (
            "bbox:(170, -10, -170, 10)",
            "(@coverage.south<=10 & @coverage.north>=-10 & ((@coverage.west<=190 & @coverage.east>=170) \
             | @coverage.east>=530 | @coverage.west<=-170))",
        ),
        (r#"title ~ "^a (b|c)$" x:~d"#, "(@title=~^a (b|c)$ & @x=~d)"),
        ("-name~^b", "!name=~^b"),
        ("notes", "'notes'"),
        ("order by", "('order' & 'by')"),
        ("inland", "'inland'"),
        ("x:\"a b\"", "@x:a b"),
        ("", "()"),
        ("  ", "()"),
        ("data in Berlin", "('data' & 'in' & 'Berlin')"),
        ("what is between models", "('what' & 'is' & 'between' & 'models')"),
    ];
    for (query, meant) in meanings {
        assert_eq!(show(&read(query)), meant, "{query}");
    }
}

#[test]
fn values_are_read_in_each_way() {
    let Condition::Is(_, Test::Compare(_, value)) = read("x=2018") else { panic!("no comparison") };
    assert_eq!((value.number, value.span.is_some(), value.text.as_str()), (Some(2018.0), true, "2018"));
    let Condition::Is(_, Test::Compare(_, value)) = read("x='2018'") else { panic!("no comparison") };
    assert!(value.is_text_alone());
}

#[test]
fn what_cannot_be_read_is_said_with_its_place() {
    let wrong = [
        ("x=", 2, "a value is expected"),
        ("(a", 2, "')' is missing"),
        ("a)", 1, "nothing that is open"),
        ("'a", 0, "quote is missing"),
        ("x:[1 TO", 7, "a value"),
        ("x:[1, 2]", 4, "TO"),
        ("x:{1 TO 2)", 9, "']' or '}' is missing"),
        ("x:{1 TO", 7, "a value"),
        ("x IN (5", 7, "a value"),
        ("@x", 2, "an operator"),
        ("@", 0, "name of an attribute"),
        ("a OR", 4, "expected"),
        ("OR a", 0, "before this word"),
        ("And a", 0, "before this word"),
        ("a\0b", 1, "no zero byte"),
        ("`a=1", 0, "back quote"),
        ("x:()", 3, "a value"),
        ("''", 0, "no word"),
        ("a bbox:(1,2,3)", 2, "bbox:(west"),
        ("bbox:(1,2,3,x)", 0, "bbox:(west"),
        ("bbox:(1,20,3,10)", 0, "bbox:(west"),
        ("bbox:(1,2,3,4", 0, "bbox:(west"),
        ("near:(1,2,3)", 0, "near:(longitude"),
        ("near:(1,2,-3km)", 0, "near:(longitude"),
    ];
    for (query, at, message) in wrong {
        let error = parse(query, now()).unwrap_err();
        assert!(error.to_string().contains(message) && error.at == at, "{query}: {} {error}", error.at);
    }
}

#[test]
fn queries_are_bounded() {
    let deep = format!("{}a{}", "(".repeat(5000), ")".repeat(5000));
    assert!(parse(&deep, now()).unwrap_err().to_string().contains("nested"));
    assert!(parse(&"a ".repeat(MAX_TESTS + 1), now()).is_err());
    assert!(parse(&format!("x IN ({})", "1 ".repeat(5000)), now()).is_err());
    assert!(parse(&"a".repeat(1 << 20), now()).unwrap_err().to_string().contains("at most"));
    assert!(parse(&format!("{}a", "-".repeat(10_000)), now()).is_ok());
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_it(query in "\\PC{0,60}") {
        let _ = parse(&query, now());
    }

    #[test]
    fn every_pattern_of_a_path_is_read_as_it_was_written(pattern in "([/a-c*?.,;:=<>~ @`\"'()\\[\\]{}\\\\-]|\\.\\.|\\PC){0,20}") {
        let is = Condition::Is(Field::Builtin(Builtin::Path), Test::Matches(pattern));
        let condition = Condition::Any(vec![Condition::Not(Box::new(is.clone())), is]);
        proptest::prop_assert_eq!(read(&write(&condition)), condition.clone());
        let filter = cql2::write(&condition).to_string();
        proptest::prop_assert_eq!(cql2::parse_json(&filter, now()), Ok(condition));
    }

    #[test]
    fn nothing_like_a_query_breaks_it(query in "([a-z@`:=<>(){}\\[\\]\"'*?.,0-9 -]|AND |OR |NOT |TO |IN |LIKE |\\.\\.){0,40}") {
        if let Err(error) = parse(&query, now()) {
            proptest::prop_assert!(error.at <= query.len());
        }
    }
}

/// Tells whether a condition on coverage holds.
fn covers(condition: &Condition, [west, south, east, north]: [f64; 4]) -> bool {
    match condition {
        Condition::All(parts) => parts.iter().all(|part| covers(part, [west, south, east, north])),
        Condition::Any(parts) => parts.iter().any(|part| covers(part, [west, south, east, north])),
        Condition::Is(Field::Attribute(name), Test::Compare(comparison, value)) => {
            let is = match name.as_str() {
                "coverage.west" => west,
                "coverage.south" => south,
                "coverage.east" => east,
                "coverage.north" => north,
                other => panic!("{other}"),
            };
            match comparison {
                Comparison::AtMost => is <= value.number.unwrap(),
                Comparison::AtLeast => is >= value.number.unwrap(),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn places_meet_round_the_earth() {
    let equator = |west: f64, east: f64| [west, -1.0, east, 1.0];
    for (query, covered, meets) in [
        ("bbox:(-10,0,10,0)", equator(5.0, 6.0), true),
        ("bbox:(-10,0,10,0)", equator(11.0, 12.0), false),
        ("bbox:(350,0,360,0)", equator(-5.0, -4.0), true),
        ("bbox:(170,0,-170,0)", equator(-175.0, -174.0), true),
        ("bbox:(170,0,-170,0)", equator(172.0, 173.0), true),
        ("bbox:(170,0,-170,0)", equator(0.0, 100.0), false),
        ("bbox:(-179,0,-178,0)", equator(170.0, 190.0), true),
        ("bbox:(-160,0,-150,0)", equator(170.0, 190.0), false),
        ("bbox:(-180,-90,180,90)", equator(170.0, 190.0), true),
        ("near:(179.9,0,100km)", equator(-179.9, -179.8), true),
        ("near:(179.9,0,10km)", equator(-179.5, -179.4), false),
        ("near:(0,89.9,100km)", [150.0, 89.0, 151.0, 90.0], true),
        ("near:(0,0,111000m)", [0.0, 1.5, 0.0, 1.6], false),
    ] {
        assert_eq!(covers(&read(query), covered), meets, "{query} {covered:?}");
    }
}

#[test]
fn lists_of_fields_are_read() {
    let fields = |list: &str| {
        parse_fields(list).map(|fields| {
            let shown = fields.into_iter().map(|field| show(&Condition::Is(field, Test::Exists)));
            shown.collect::<Vec<_>>().join(" ")
        })
    };
    assert_eq!(fields("ext").unwrap(), "ext:*");
    assert_eq!(fields(" ext, `a,b` ,@size,var.tas.units ").unwrap(), "ext:* @a,b:* @size:* @var.tas.units:*");
    for (wrong, at) in [("", 0), ("a,", 2), ("a b", 2), ("a,,b", 2), ("`a", 0), ("time", 0), ("a=1", 1)] {
        assert_eq!(fields(wrong).unwrap_err().at, at, "{wrong}");
    }
}

#[test]
fn lists_of_attributes_are_read() {
    let names = |list: &str| {
        parse_attributes(list).map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(names("level, @size,`a b`,level").unwrap(), ["level", "size", "a b"]);
    for (wrong, at) in [("", 0), ("@size, size", 7), ("level,", 6)] {
        assert_eq!(names(wrong).unwrap_err().at, at, "{wrong}");
    }
}
