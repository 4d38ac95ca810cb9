//! `bench model`: what it measures, prints and leaves.

use std::time::Duration;

use percale_testkit::wait;
use serde_json::Value;

use crate::lab::{Lab, SPACE};

/// A short series.
const SHORT: [&str; 6] = ["--size", "1MB", "--files", "20", "--rounds", "2"];

/// The words of a command with these options; without more, the last one is the number of rounds.
fn bench(lab: &Lab, more: &[&str]) -> Vec<String> {
    let local = lab.path("local");
    std::fs::create_dir_all(&local).unwrap();
    let fixed = ["bench", "model", SPACE, "--local", local.to_str().unwrap()];
    fixed.iter().chain(&SHORT).chain(more).map(|word| (*word).to_owned()).collect()
}

fn is_tidy(lab: &Lab) -> bool {
    lab.listing().is_empty() && std::fs::read_dir(lab.path("local")).unwrap().next().is_none()
}

#[test]
fn a_model_is_measured_both_ways_and_leaves_nothing() {
    let lab = Lab::new();
    let sites = lab.line("site list --json").ok().json_lines();
    let name = sites[0]["name"].as_str().unwrap();
    // Without --from the files are here and go to the site; with it they come from there.
    for (more, from, to) in
        [(vec![], Value::Null, Value::from(name)), (vec!["--from", name], name.into(), Value::Null)]
    {
        let predict = ["--json", "--predict", "4TB in 3M files", "--predict", "1MB in 20 files"];
        let model = lab.run(bench(&lab, &[&predict, more.as_slice()].concat())).ok().json();
        assert_eq!((&model["from"], &model["to"]), (&from, &to));
        let probes = model["probes"].as_array().unwrap();
        assert_eq!(probes.len(), 12, "six shapes in each of two rounds");
        for probe in probes {
            assert!(probe["seconds"].as_f64().unwrap() > 0.0, "{probe}");
        }
        let shapes: std::collections::BTreeSet<(u64, u64)> = probes
            .iter()
            .map(|probe| (probe["files"].as_u64().unwrap(), probe["bytes"].as_u64().unwrap()))
            .collect();
        let expected = [(1, 1024), (1, 500_000), (1, 1_000_000), (10, 10_240), (20, 20_480), (20, 1_000_000)];
        assert_eq!(shapes, expected.into());
        for cost in ["start_s", "per_file_s"] {
            let number = |name: &str| model[cost][name].as_f64().unwrap();
            assert!(0.0 <= number("low") && number("low") <= number("value"), "{model}");
            assert!(number("value") <= number("high"), "{model}");
        }
        let predictions = model["predictions"].as_array().unwrap();
        assert_eq!(predictions.len(), 2);
        assert_eq!(
            (&predictions[0]["files"], &predictions[0]["bytes"]),
            (&3_000_000.into(), &4_000_000_000_000_u64.into())
        );
        let seconds = |at: usize| predictions[at]["seconds"]["value"].as_f64().unwrap();
        assert!(seconds(1) > 0.0 && seconds(0) >= seconds(1), "{model}");
        assert!(is_tidy(&lab), "{:?}", lab.listing());
    }
}

#[test]
fn a_person_reads_costs_and_predictions() {
    let lab = Lab::new();
    let ran = lab.run(bench(&lab, &["--predict", "5GB in 20k files"])).ok();
    for expected in
        ["FROM THIS COMPUTER TO", "S0", "t0", "95 % INTERVAL", "12 transfers", "5.00 GB in 20000 files: "]
    {
        assert!(ran.out.contains(expected), "{expected}: {}", ran.out);
    }
    assert!(ran.err.contains("round 2 of 2"), "{}", ran.err);
    assert!(is_tidy(&lab));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    let lab = Lab::new();
    for (line, word) in [
        ("bench model percale:/", "is in no space"),
        ("bench model percale:/lab --size 1kB", "is too little for 1000 files"),
        ("bench model percale:/lab --files 1", "1 is not in"),
        ("bench model percale:/lab --predict everything", "is no amount of files"),
        ("bench model percale:/lab --to nowhere", "not nowhere"),
        ("bench model percale:/lab --from here --to here", "both here"),
        ("bench model ./local", "is a local path"),
    ] {
        let ran = lab.line(line).code(2);
        assert!(ran.err.contains(word), "{line}: {}", ran.err);
    }
    let ran = lab.line("bench model percale:/nothing");
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert_eq!(lab.listing(), Vec::<String>::new());
}

#[test]
fn a_series_that_is_interrupted_is_removed() {
    let lab = Lab::new();
    // More rounds than anybody waits for.
    let mut words = bench(&lab, &[]);
    *words.last_mut().unwrap() = "1000".to_owned();
    let child = lab.start(words);
    wait::until("probes at the site", Duration::from_secs(60), || (!lab.listing().is_empty()).then_some(()));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = crate::lab::finished(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert!(is_tidy(&lab), "{:?} {}", lab.listing(), ran.err);
}
