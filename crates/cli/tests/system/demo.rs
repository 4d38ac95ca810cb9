//! The demo, as people run it.

use std::process::Command;

/// Lines of the demo.
const CHECKS: u32 = 18;

#[test]
fn every_line_of_the_demo_passes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut options = percale_testkit::data::climate::Options::default();
    options.files = 24;
    options.bytes = 16 << 20;
    percale_testkit::data::climate::write_tree(&data, &options).unwrap();
    let state = folder.path().join("demo");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_percale"))
            .arg("demo")
            .args(arguments)
            .arg("--dir")
            .arg(&state)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status, text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let slow = ["--rate", "200", "--delay", "5"];
    let arguments = ["--check", "--json", "--keep", "--data", data.to_str().unwrap()];
    let (status, out, err) = run(&[&arguments[..], &slow].concat());
    assert!(status.success(), "{out}{err}");
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.last().unwrap();
    assert_eq!(summary["failed"], 0);
    assert_eq!(summary["passed"], CHECKS);
    let figure = |name: &str, figure: &str| {
        let line = lines.iter().find(|line| line["name"] == name);
        line.and_then(|line| line["figures"][figure].as_f64())
            .unwrap_or_else(|| panic!("no {figure} of {name}"))
    };
    assert!(figure("ingest", "put_mb_per_s") > 0.0);
    assert_eq!(figure("replicate", "copies"), 24.0);
    // A rate above that of the link would mean that the bytes took another way.
    let link = figure("read afar", "link_mb_per_s");
    assert_eq!(link, 25.0);
    assert!(figure("read afar", "mb_per_s") <= link);
    assert!(figure("replicate", "mb_per_s") <= link);
    for site in ["alps", "baltic", "coast"] {
        assert!(state.join(site).join("store").is_dir(), "--keep keeps");
    }

    // Over what the first run left: the same sites find each other again, and another space is made.
    let (status, out, err) = run(&["--check", "--keep", "--data", data.to_str().unwrap()]);
    assert!(status.success(), "{out}{err}");
    assert!(out.contains(&format!("{CHECKS} checks passed")) && out.contains("percale:/demo-2"), "{out}");
    let (status, _, err) = run(&["--check", "--keep", "--catalog", "postgres"]);
    assert!(!status.success() && err.contains("--catalog"), "another engine has none of it: {err}");
    let (status, ..) = run(&["--clean"]);
    assert!(status.success() && !state.exists());

    // A folder of somebody's is left alone.
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("thesis.tex"), "x").unwrap();
    let (status, ..) = run(&["--check"]);
    assert!(!status.success() && state.join("thesis.tex").exists());
}
