//! Attributes set from the command line, and data found by them.

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Row;
use serde_json::json;

use crate::lab::{Lab, ran};

fn lab() -> Lab {
    let lab = Lab::new();
    for name in ["run/a.nc", "run/b.nc", "run/c.txt"] {
        lab.write(&format!("data/{name}"), name.as_bytes());
    }
    lab.run(["put", "-r", lab.path("data/run").to_str().unwrap(), "percale:/lab"]).ok();
    lab
}

#[test]
fn what_was_set_is_shown_found_and_removed() {
    let lab = lab();
    lab.line("meta set percale:/lab/run/a.nc instrument=MODIS level=500 band=1 band=2 version=2.0").ok();
    lab.run(["meta", "set", "percale:/lab/run/*.nc", "--type", "text", "code=007", "note=a b=c"]).ok();
    let shown = lab.line("meta get percale:/lab/run/a.nc").ok().out;
    for line in [
        "band = 1, 2  (integer, person)",
        "code = 007  (text, person)",
        "note = a b=c  (text, person)",
        "version = 2.0  (float, person)",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let both = lab.line("--json meta get percale:/lab/run/a.nc percale:/lab/run/b.nc").ok().json_lines();
    assert_eq!(both[1]["attributes"][0]["values"], json!([{"text": "007"}]));
    let find = |words: &[&str]| {
        let found = lab.run([&["search"][..], words].concat()).ok().out;
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(find(&["instrument=modis", "level:400..600"]), ["percale:/lab/run/a.nc"]);
    assert_eq!(find(&["code=007 -instrument:*"]), ["percale:/lab/run/b.nc"]);
    assert_eq!(find(&["--", "-code:*", "type:object"]), ["percale:/lab/run/c.txt"]);
    assert_eq!(find(&["ext:nc", "--limit", "1"]).len(), 1);
    assert_eq!(find(&["--count", "ext:nc"]), ["2"]);
    assert_eq!(lab.line("--json search --count ext:nc").ok().json()["count"], 2);
    let facets = lab.line("search --facet instrument,ext --facet type path:/lab/**").ok().out;
    let rows: Vec<Vec<&str>> = facets.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert!(
        rows.contains(&vec!["instrument", "MODIS", "1"]) && rows.contains(&vec!["ext", "nc", "2"]),
        "{facets}"
    );
    let facets = lab.line("--json search --count --facet code path:/lab/run").ok().json();
    let values = json!([{"value": {"text": "007"}, "count": 2}]);
    assert_eq!(facets["facets"], json!([{"field": "code", "values": values, "others": 0}]));
    assert_eq!((&facets["count"], &facets["is_estimate"]), (&json!(4), &json!(false)));
    assert_eq!(lab.line("--json search name:a.nc").ok().json_lines()[0]["path"], "/lab/run/a.nc");
    assert_eq!(
        find(&["--sort=-name", "--limit", "2", "type:object"]),
        ["percale:/lab/run/c.txt", "percale:/lab/run/b.nc"]
    );
    assert_eq!(find(&["--sort", "level", "ext:nc"]), ["percale:/lab/run/a.nc", "percale:/lab/run/b.nc"]);
    // What one finds, another takes.
    let list = lab.write("list", lab.run(["-q", "search", "ext:nc"]).ok().out.as_bytes());
    lab.run(["meta", "set", "--file", list.to_str().unwrap(), "tag=final"]).ok();
    assert_eq!(find(&["tag:final"]).len(), 2);
    let mut remove = lab.command(["meta", "rm", "--file", "-", "tag"]);
    remove.stdin(std::fs::File::open(&list).unwrap());
    ran(&mut remove).ok();
    assert_eq!(find(&["tag IS NULL", "ext:nc", "OR", "code=x"]).len(), 2);
}

#[test]
fn one_that_cannot_be_changed_holds_up_none_of_the_others() {
    let lab = lab();
    let list = lab.write("list", b"percale:/lab/run/none.nc\npercale:/lab/run/a.nc\npercale:/lab/run/b.nc\n");
    let list = list.to_str().unwrap();
    let said = lab.run(["meta", "set", "--file", list, "tag=final"]).code(6);
    assert_eq!(said.out.lines().collect::<Vec<_>>(), ["percale:/lab/run/a.nc", "percale:/lab/run/b.nc"]);
    assert!(said.err.contains("failed: percale:/lab/run/none.nc: "), "{}", said.err);
    let said = lab.run(["--json", "meta", "rm", "--file", list, "tag"]).code(6);
    assert_eq!(said.json_lines().len(), 2);
    assert!(said.err.contains(r#""code":"not_found""#), "{}", said.err);
    assert_eq!(lab.line("search tag:*").ok().out, "");
    // None at all ends as one would.
    let gone = lab.write("gone", b"percale:/lab/run/none.nc\npercale:/lab/run/no.nc\n");
    lab.run(["meta", "set", "--file", gone.to_str().unwrap(), "tag=final"]).code(3);
}

#[test]
fn paths_of_a_file_are_no_patterns() {
    let lab = Lab::new();
    for name in ["run[2]/x*.nc", "run[2]/xy.nc", "run2/x*.nc"] {
        lab.write(&format!("data/{name}"), name.as_bytes());
    }
    for name in ["run[2]", "run2"] {
        lab.run(["put", "-r", lab.path("data").join(name).to_str().unwrap(), "percale:/lab"]).ok();
    }
    let list = lab.write("list", b"percale:/lab/run[2]/x*.nc\n");
    lab.run(["meta", "set", "--file", list.to_str().unwrap(), "tag=one"]).ok();
    assert_eq!(lab.run(["search", "tag:one"]).ok().out.trim(), "percale:/lab/run[2]/x*.nc");
}

#[test]
fn what_people_say_follows_rules_and_is_remembered() {
    let lab = lab();
    lab.line("meta set percale:/lab/run rules.required=instrument rules.type.level=integer").ok();
    let lacking = lab.line("meta set percale:/lab/run/a.nc level=500").code(2);
    assert!(lacking.err.contains("'instrument' would be missing"), "{}", lacking.err);
    let wrong = lab.line("meta set percale:/lab/run/a.nc instrument=MODIS level=high").code(2);
    assert!(wrong.err.contains("'level' is of the type integer by rules.type.level"), "{}", wrong.err);
    lab.line("meta set percale:/lab/run rules.typ.level=integer").code(2);
    lab.line("meta set percale:/lab/run/a.nc instrument=MODIS level=500").ok();
    lab.line("meta set percale:/lab/run/a.nc level=850").ok();
    lab.line("meta rm percale:/lab/run/a.nc level").ok();
    let history = lab.line("meta history percale:/lab/run/a.nc").ok().out;
    let changes: Vec<&str> = history.lines().filter(|line| line.starts_with("  ")).map(str::trim).collect();
    assert_eq!(
        changes,
        [
            "level removed  (person)",
            "level = 850  (integer, person)",
            "instrument = MODIS  (text, person)",
            "level = 500  (integer, person)",
        ]
    );
    let last = lab.line("--json meta history percale:/lab/run/a.nc --limit 1").ok().json();
    assert_eq!(last["set"], serde_json::json!({"level": []}));
    assert!(last["actor"].is_string() && last["at"].is_string());
}

#[test]
fn a_query_is_kept_for_others() {
    let lab = lab();
    lab.line("meta set percale:/lab/run/a.nc instrument=MODIS level=500").ok();
    lab.line("meta set percale:/lab/run/b.nc instrument=MODIS level=850").ok();
    lab.run(["meta", "set", "percale:/lab", "search.modis=instrument=MODIS OR instrument=VIIRS"]).ok();
    let saved = ["search", "--saved", "percale:/lab:modis"];
    assert_eq!(lab.run(saved).ok().out.lines().count(), 2);
    let more = lab.line("search --saved percale:/lab:modis level>600").ok();
    assert_eq!(more.out.trim(), "percale:/lab/run/b.nc");
    assert_eq!(lab.line("search --count --saved percale:/lab:modis").ok().out.trim(), "2");
    let none = lab.line("search --saved percale:/lab:none").code(2);
    assert!(none.err.contains("keeps no query 'search.none'"), "{}", none.err);
    lab.line("search --saved modis").code(2);
}

#[test]
fn values_of_another_type_are_passed_over_and_counted() {
    let lab = lab();
    lab.line("meta set percale:/lab/run/a.nc level=500").ok();
    lab.line("meta set percale:/lab/run/b.nc level=high").ok();
    let found = lab.line("search level>1").ok();
    assert_eq!(found.out.trim(), "percale:/lab/run/a.nc");
    assert!(found.err.contains("'level' that were not compared, since they are texts: 1"), "{}", found.err);
    let found = lab.line("search level>a").ok();
    assert_eq!(found.out.trim(), "percale:/lab/run/b.nc");
    assert!(
        found.err.contains("'level' that were not compared, since they are no texts: 1"),
        "{}",
        found.err
    );
    assert!(!lab.line("search level=500").ok().err.contains("not compared"));
}

#[test]
fn what_was_found_is_got_under_its_path() {
    let lab = lab();
    lab.line("meta set percale:/lab/run/a.nc tag=final").ok();
    lab.line("meta set percale:/lab/run/b.nc tag=final").ok();
    let list = lab.write("list", lab.line("-q search tag:final").ok().out.as_bytes());
    let (list, into) = (list.to_str().unwrap(), lab.path("got"));
    lab.run(["get", "--file", list, into.to_str().unwrap()]).ok();
    let mut names: Vec<String> = std::fs::read_dir(into.join("lab/run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a.nc", "b.nc"]);
    let whole = lab.path("whole");
    lab.run(["get", "percale:/lab/run/a.nc", whole.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read(into.join("lab/run/a.nc")).unwrap(), std::fs::read(whole).unwrap());
    // What is not there fails by itself, and the others come; a second time there is nothing to do.
    let mixed = lab.write("mixed", b"percale:/lab/run/none.nc\npercale:/lab/run\n\npercale:/lab/run/a.nc\n");
    let other = lab.path("other");
    let failed = lab.run(["get", "--file", mixed.to_str().unwrap(), other.to_str().unwrap()]);
    assert_ne!(failed.code, 0);
    assert!(failed.err.contains("none.nc") && failed.err.contains("is a collection"), "{}", failed.err);
    assert!(other.join("lab/run/a.nc").exists());
    let again = ["get", "--error-on-noop", "--file", list, into.to_str().unwrap()];
    lab.run(again).code(9);
    lab.run(["get", "--file", list, "percale:/lab"]).code(2);
    lab.run(["replicate", "--file", list, "--to", "nowhere"]).code(3);
}

#[test]
fn what_was_found_is_a_table_with_its_attributes() {
    let lab = lab();
    lab.run([
        "meta",
        "set",
        "percale:/lab/run/a.nc",
        "level=500",
        "band=1",
        "band=2",
        "mixed=1",
        "day=true",
        "size=7",
    ])
    .ok();
    lab.run([
        "meta",
        "set",
        "percale:/lab/run/b.nc",
        "level=1.5",
        "mixed=word",
        "taken=2024-06-01T12:00:00Z",
    ])
    .ok();
    lab.run(["meta", "set", "--type", "text", "percale:/lab/run/b.nc", "note=a\tb"]).ok();
    let found = lab.line("search ext:nc --attributes level,band,note --sort name").ok().out;
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines, ["percale:/lab/run/a.nc\t500\t1; 2\t", "percale:/lab/run/b.nc\t1.5\t\ta b"]);
    let found = lab.line("--json search name:a.nc --attributes band,@size").ok().json_lines();
    assert_eq!(
        found[0]["attributes"],
        json!({"band": [{"integer": 1}, {"integer": 2}], "size": [{"integer": 7}]})
    );

    let names = "level,band,mixed,taken,day,@size";
    lab.run([
        "search",
        "type:object path:/lab/run",
        "--attributes",
        names,
        "--sort",
        "name",
        "--parquet",
        "t.parquet",
    ])
    .ok();
    let file = std::fs::File::open(lab.path("t.parquet")).unwrap();
    let table = SerializedFileReader::new(file).unwrap();
    let rows: Vec<Row> = table.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let names: Vec<&String> = rows[0].get_column_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["path", "type", "size", "modified", "root", "level", "band", "mixed", "taken", "day", "@size"]
    );
    let shown: Vec<Vec<String>> =
        rows.iter().map(|row| row.get_column_iter().map(|(_, value)| value.to_string()).collect()).collect();
    assert_eq!(shown[0][0..3], ["\"/lab/run/a.nc\"", "\"object\"", "8"]);
    assert_eq!(shown[0][5..], ["500.0", "[1, 2]", "\"1\"", "null", "true", "7"]);
    assert_eq!(
        shown[1][5..],
        ["1.5", "null", "\"word\"", "2024-06-01 12:00:00.000000 +00:00", "null", "null"]
    );
    assert_eq!(shown[2][5..], ["null"; 6]);
    lab.run(["search", "name:nothing", "--parquet", "none.parquet"]).ok();
    let none = SerializedFileReader::new(std::fs::File::open(lab.path("none.parquet")).unwrap()).unwrap();
    assert_eq!(none.metadata().file_metadata().num_rows(), 0);
    // Nothing is left of what could not be written.
    lab.run(["search", "ext:nc", "--parquet", "no/such/folder.parquet"]).code(3);
    let left = std::fs::read_dir(lab.path("."))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    assert_eq!(left.filter(|name| name.contains("partial") || name.starts_with(".tmp")).count(), 0);
    lab.line("search ext:nc --attributes size").code(2);
    lab.line("search ext:nc --attributes levle").code(2);
}

#[test]
fn a_query_is_explained() {
    let lab = lab();
    lab.line("meta set percale:/lab/run/a.nc instrument=MODIS level=500").ok();
    let plan = lab.line("--json search --explain instrument=MODIS ext:nc level:500..").ok().json();
    assert_eq!(plan["query"], "@instrument=\"MODIS\" ext:\"nc\" @level:[500 TO *]");
    let first = serde_json::json!({"op": "=", "args": [{"property": "instrument"}, "MODIS"]});
    assert_eq!(plan["filter"]["args"][0], first);
    let space = &plan["spaces"][0];
    assert_eq!((&space["space"], &space["by"]), (&"lab".into(), &"@instrument=\"MODIS\"".into()));
    assert_eq!(space["looked_at"], 1);
    let all = lab.line("search --explain ext:nc").ok().out;
    assert!(all.contains("(all entries)"), "{all}");
    assert!(all.contains(r#"CQL2: {"args":[{"property":"ext"},"nc"],"op":"has"}"#), "{all}");
    assert_eq!(
        lab.line("--json search --explain path:/none ext:nc").ok().json()["spaces"],
        serde_json::json!([])
    );
    lab.line("search --explain --count ext:nc").code(2);
}

#[test]
fn mistakes_are_explained() {
    let lab = lab();
    lab.line("meta set percale:/lab/run/a.nc instrument=MODIS").ok();
    let unknown = lab.line("search instrment=MODIS").code(2);
    assert!(unknown.err.contains("there is 'instrument'"), "{}", unknown.err);
    let unread = lab.run(["search", "(ext:nc"]).code(2);
    assert!(unread.err.contains("a ')' is missing"), "{}", unread.err);
    lab.line("search").code(2);
    let uncounted = lab.line("search --facet size ext:nc").code(2);
    assert!(uncounted.err.contains("the values of 'size' are not counted"), "{}", uncounted.err);
    let most = lab.line("search ext:nc --sort name --limit 10001").code(2);
    assert!(most.err.contains("--sort prints at most 10000"), "{}", most.err);
    lab.line("search ext:nc --limit 10001").ok();
    let none = lab.line("search policy:* replicas<2").ok();
    assert!(none.out.is_empty() && none.err.contains("nothing has an attribute 'policy'"), "{}", none.err);
    assert!(!lab.line("search instrument:* ext:txt").ok().err.contains("nothing has"));
    lab.line("meta set percale:/lab/run/a.nc").code(2);
    lab.line("meta set instrument=MODIS").code(2);
    lab.line("meta set percale:/lab/run/a.nc instrument").code(2);
    lab.line("meta set percale:/lab/run/a.nc level=high --type integer").code(2);
    lab.line("meta set percale:/lab/none level=1").code(3);
    lab.line("meta set --file nowhere level=1").code(2);
    lab.line("meta get percale:/lab/none").code(3);
}
