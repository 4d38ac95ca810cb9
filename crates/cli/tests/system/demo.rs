//! The demo, as people run it.

use std::process::Command;

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
    let (status, out, err) = run(&["--check", "--json", "--keep", "--data", data.to_str().unwrap()]);
    assert!(status.success(), "{out}{err}");
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.last().unwrap();
    assert_eq!(summary["failed"], 0);
    assert_eq!(summary["passed"], 10);
    assert!(lines[1]["figures"]["put_mb_per_s"].as_f64().unwrap() > 0.0);
    assert!(state.join("store").is_dir(), "--keep keeps");

    // Over what the first run left, with another space; then removed.
    let (status, out, err) = run(&["--check", "--data", data.to_str().unwrap()]);
    assert!(status.success(), "{out}{err}");
    assert!(out.contains("10 checks passed"), "{out}");
    assert!(!state.exists());
    let (status, ..) = run(&["--clean"]);
    assert!(status.success());

    // A folder of somebody's is left alone.
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("thesis.tex"), "x").unwrap();
    let (status, ..) = run(&["--check"]);
    assert!(!status.success() && state.join("thesis.tex").exists());
}
