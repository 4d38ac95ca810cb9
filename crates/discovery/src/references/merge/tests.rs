use serde_json::json;

use super::*;
use crate::references::{Reference, References, inline};

/// A file with a time of so many days from one on, and an array of two values a day in chunks.
fn references(first: u64, days: u64, chunk: u64) -> References {
    let text = |value: Value| Reference::Text(value.to_string());
    let times: Vec<u8> = (first..first + days).flat_map(|day| (day as f64).to_le_bytes()).collect();
    let mut references = References::default();
    let mut add = |key: &str, reference: Reference| drop(references.refs.insert(key.into(), reference));
    add(".zgroup", text(json!({ "zarr_format": 2 })));
    add(".zattrs", text(json!({ "title": "a" })));
    add(
        "time/.zarray",
        text(json!({ "zarr_format": 2, "shape": [days], "chunks": [512], "dtype": "<f8", "compressor": null,
            "filters": null, "fill_value": null, "order": "C" })),
    );
    add("time/.zattrs", text(json!({ "_ARRAY_DIMENSIONS": ["time"], "units": "days since 2000-01-01" })));
    add("time/0", Reference::Range(100, 4096));
    add(
        "tas/.zarray",
        text(
            json!({ "zarr_format": 2, "shape": [2, days], "chunks": [1, chunk], "dtype": ">f4", "compressor": null,
            "filters": [{ "id": "zlib", "level": 1 }], "fill_value": "NaN", "order": "C" }),
        ),
    );
    add("tas/.zattrs", text(json!({ "_ARRAY_DIMENSIONS": ["x", "time"], "units": "K" })));
    for x in 0..2 {
        for n in 0..days.div_ceil(chunk) {
            add(&format!("tas/{x}.{n}"), Reference::Range(10_000 * (x + 1) + n, 7));
        }
    }
    references.values.insert("time".into(), inline(&times));
    references
}

fn part(name: &str, references: References) -> Part {
    Part::new(name, format!("https://site/{name}"), references).unwrap()
}

fn change(references: &mut References, key: &str, name: &str, value: Value) {
    let Some(Reference::Text(text)) = references.refs.get_mut(key) else { panic!("{key}") };
    let mut json: Value = serde_json::from_str(text).unwrap();
    json[name] = value;
    *text = json.to_string();
}

fn written(merged: &Merged) -> Value {
    let mut bytes = Vec::new();
    merged.write(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn refused(parts: Vec<Part>) -> String {
    merge(parts, &MergeOptions::default()).unwrap_err().to_string()
}

#[test]
fn files_follow_each_other_in_the_order_of_time() {
    let parts = vec![part("b", references(4, 3, 2)), part("a", references(0, 4, 2))];
    let merged = merge(parts, &MergeOptions::default()).unwrap();
    assert_eq!((merged.joined, merged.concat.as_deref()), (2, Some("time")));
    let refs = &written(&merged)["refs"];
    assert_eq!(refs["tas/0.0"], json!(["https://site/a", 10_000, 7]));
    assert_eq!(refs["tas/1.1"], json!(["https://site/a", 20_001, 7]));
    assert_eq!(refs["tas/0.2"], json!(["https://site/b", 10_000, 7]));
    assert_eq!(refs["tas/1.3"], json!(["https://site/b", 20_001, 7]));
    let meta: Value = serde_json::from_str(refs["tas/.zarray"].as_str().unwrap()).unwrap();
    assert_eq!(meta["shape"], json!([2, 7]));
    let all: Vec<u8> = (0..7).flat_map(|day| f64::from(day).to_le_bytes()).collect();
    assert_eq!(refs["time/0"], inline(&all));
    let whole: Value = serde_json::from_str(refs[".zmetadata"].as_str().unwrap()).unwrap();
    assert_eq!(whole["metadata"]["tas/.zarray"], meta);
}

#[test]
fn the_order_that_was_given_can_be_kept() {
    let parts = vec![part("b", references(4, 4, 2)), part("a", references(0, 4, 2))];
    let options = MergeOptions { keep_order: true, ..MergeOptions::default() };
    let merged = merge(parts, &options).unwrap();
    assert_eq!(written(&merged)["refs"]["tas/0.0"][0], "https://site/b");
    assert!(
        merged.notes[0].contains("b ends with time 7, and a behind it begins with 0"),
        "{:?}",
        merged.notes
    );
}

#[test]
fn one_file_stays_as_it_is() {
    let merged = merge(vec![part("a", references(0, 5, 2))], &MergeOptions::default()).unwrap();
    assert_eq!((merged.joined, merged.concat.as_deref(), merged.variables), (0, None, 2));
    assert_eq!(written(&merged)["refs"]["tas/1.2"], json!(["https://site/a", 20_002, 7]));
}

#[test]
fn what_cannot_be_one_is_refused_with_the_names_of_two_files() {
    let within = vec![part("a", references(0, 3, 2)), part("b", references(3, 2, 2))];
    let said = refused(within);
    assert_eq!(said, "tas has 3 steps of time in a, in chunks of 2: b cannot follow within a chunk");
    let chunks = refused(vec![part("a", references(0, 4, 2)), part("b", references(4, 4, 4))]);
    assert_eq!(chunks, "tas has chunks of [1, 2] in a and of [1, 4] in b: they cannot be one array");
    for (key, name, value, wanted) in [
        (
            "time/.zattrs",
            "units",
            json!("days since 2001-01-01"),
            "time has units 'days since 2000-01-01' in a and 'days since 2001-01-01' in b",
        ),
        (
            "tas/.zattrs",
            "scale_factor",
            json!(0.5),
            "tas has scale_factor no such attribute in a and 0.5 in b",
        ),
        (
            "tas/.zattrs",
            "_ARRAY_DIMENSIONS",
            json!(["y", "time"]),
            "tas has the dimensions x, time in a and y, time in b",
        ),
        ("tas/.zarray", "dtype", json!("<f4"), "tas has the type >f4 in a and <f4 in b"),
        ("tas/.zarray", "shape", json!([3, 4]), "tas has the shape [2, 4] in a and [3, 4] in b"),
        ("tas/.zarray", "fill_value", json!(0.5), "tas has _FillValue \"NaN\" in a and 0.5 in b"),
        (
            "tas/.zarray",
            "filters",
            json!(null),
            "tas has chunks packed with [{\"id\":\"zlib\",\"level\":1}] in a and with nothing in b",
        ),
    ] {
        let mut other = references(4, 4, 2);
        change(&mut other, key, name, value);
        let said = refused(vec![part("a", references(0, 4, 2)), part("b", other)]);
        assert!(said.starts_with(wanted), "{said}");
    }
    let mut without = references(4, 4, 2);
    without.refs.retain(|key, _| !key.starts_with("tas"));
    let said = refused(vec![part("a", references(0, 4, 2)), part("b", without)]);
    assert_eq!(said, "a has tas, and b has not");
    let again = refused(vec![part("a", references(0, 4, 2)), part("b", references(0, 4, 2))]);
    assert_eq!(again, "a and b both begin with time 0");
    let options = MergeOptions { concat: Some("y".into()), ..MergeOptions::default() };
    let error = merge(vec![part("a", references(0, 4, 2))], &options).unwrap_err();
    assert_eq!(error.what_helps(), Some("It has these: time, x."));
}

#[test]
fn what_was_left_out_of_one_file_is_left_out_of_all() {
    let mut other = references(4, 4, 2);
    other.refs.retain(|key, _| !key.starts_with("tas"));
    other.left_out.push(LeftOut { variable: "tas".into(), why: "it is packed with lzf".into() });
    let merged =
        merge(vec![part("a", references(0, 4, 2)), part("b", other)], &MergeOptions::default()).unwrap();
    let wanted = LeftOut { variable: "tas".into(), why: "in b: it is packed with lzf".into() };
    assert_eq!(merged.left_out, [wanted]);
    assert_eq!(merged.joined, 1);
    // What is missing of an array that is there is said, too, once.
    let lacking = |first: u64| {
        let mut references = references(first, 4, 2);
        let why = "attribute valid_max: JSON has no number inf".into();
        references.left_out.push(LeftOut { variable: "tas".into(), why });
        references
    };
    let parts = vec![part("a", lacking(0)), part("b", lacking(4))];
    let merged = merge(parts, &MergeOptions::default()).unwrap();
    assert_eq!(merged.joined, 2);
    let said: Vec<&str> = merged.left_out.iter().map(|one| one.why.as_str()).collect();
    assert_eq!(said, ["in a: attribute valid_max: JSON has no number inf"]);
}

#[test]
fn references_that_are_none_are_refused() {
    for (key, reference) in [
        ("tas/9.9", Reference::Range(0, 1)),
        ("tas/x", Reference::Range(0, 1)),
        ("nowhere/0", Reference::Range(0, 1)),
        ("tas/.zarray", Reference::Text("{}".into())),
        ("time/.zattrs", Reference::Text("[]".into())),
    ] {
        let mut wrong = references(0, 4, 2);
        wrong.refs.insert(key.into(), reference);
        let error = Part::new("a", "https://site/a", wrong).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    let mut huge = references(0, 4, 2);
    change(&mut huge, "tas/.zarray", "shape", json!([u64::MAX, u64::MAX]));
    Part::new("a", "https://site/a", huge).unwrap_err();
}
