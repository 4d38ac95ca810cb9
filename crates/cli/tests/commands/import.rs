//! Files that lie at a site, registered in place.

use std::fs;

use serde_json::json;

use crate::lab::Lab;

/// A lab whose folder `raw` is the root of a native store.
fn lab() -> (Lab, String) {
    let lab = Lab::new();
    for name in ["run/a.nc", "run/in/b.nc", "run/in/c.txt"] {
        lab.write(&format!("raw/{name}"), name.as_bytes());
    }
    let raw = lab.path("raw");
    lab.run(["store", "add", "raw", "--native", "--posix", raw.to_str().unwrap()]).ok();
    let site = lab.line("api GET /v1/site").ok().json()["name"].as_str().unwrap().to_owned();
    let from = format!("{site}:{}", raw.join("run").display());
    (lab, from)
}

#[test]
fn files_are_registered_where_they_lie() {
    let (lab, from) = lab();
    let plan = lab.run(["import", "-n", &from, "percale:/lab/run", "--include", "*.nc"]).ok();
    let named: Vec<&str> = plan.out.lines().map(|line| line.rsplit('/').next().unwrap()).collect();
    assert_eq!(named, ["a.nc", "b.nc"], "{}", plan.out);
    assert!(plan.out.lines().all(|line| line.starts_with("would register /")), "{}", plan.out);
    lab.line("stat percale:/lab/run").code(3);

    let done = lab.run(["import", &from, "percale:/lab/run", "--hash", "now"]).ok();
    assert!(done.err.contains("3 registered"), "{}", done.err);
    assert_eq!(lab.line("cat percale:/lab/run/in/b.nc").ok().out, "run/in/b.nc");
    lab.write("raw/run/a.nc", b"another");
    fs::remove_file(lab.path("raw/run/in/c.txt")).unwrap();
    let task = lab.run(["--json", "import", &from, "percale:/lab/run/", "--hash", "never"]).ok().json();
    assert_eq!(task["progress"]["counts"], json!({"changed": 1, "lost": 1, "unchanged": 1}));
    let shown = lab.run(["task", "show", task["id"].as_str().unwrap()]).ok();
    assert!(shown.out.contains("1 changed, 1 lost, 1 unchanged"), "{}", shown.out);

    let id = lab.run(["import", &from, "percale:/lab/run", "--follow=5s"]).ok().out;
    lab.run(["task", "cancel", id.trim()]).ok();
}

#[test]
fn mistakes_are_explained() {
    let (lab, from) = lab();
    lab.run(["import", "/data", "percale:/lab/run"]).code(2);
    lab.run(["import", "percale:/lab", "percale:/lab/run"]).code(2);
    lab.run(["import", &from, "percale:/"]).code(2);
    lab.run(["import", &from, "percale:/lab/run", "--include", "[a"]).code(2);
    lab.run(["import", "nobody:/data", "percale:/lab/run"]).code(3);
    let site = from.split(':').next().unwrap();
    let missing = lab.run(["import", &format!("{site}:/nowhere"), "percale:/lab/run"]).code(3);
    assert!(missing.err.contains("no native store"), "{}", missing.err);
    std::os::unix::fs::symlink("/etc/passwd", lab.path("raw/run/out")).unwrap();
    let partial = lab.run(["import", &from, "percale:/lab/run"]).code(6);
    assert!(partial.err.contains("run/out") && partial.err.contains("3 registered"), "{}", partial.err);
}
