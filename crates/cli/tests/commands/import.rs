//! Files that lie at a site, registered in place.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::lab::Lab;

/// A lab whose folder `raw` is the root of a native store.
fn lab() -> (Lab, String) {
    let lab = Lab::new();
    for name in ["run/a.nc", "run/in/b.nc", "run/in/c.txt"] {
        lab.write(&format!("raw/{name}"), name.as_bytes());
    }
    fs::set_permissions(lab.path("raw/run/in/b.nc"), fs::Permissions::from_mode(0o640)).unwrap();
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
    assert_eq!(lab.line("stat --json percale:/lab/run/in/b.nc").ok().json()["content"]["mode"], "0640");
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

#[test]
fn a_collection_becomes_a_directory_of_links_or_files() {
    let (lab, from) = lab();
    lab.run(["import", &from, "percale:/lab/run", "--hash", "never"]).ok();
    lab.write("mine", b"mine");
    lab.line("put mine percale:/lab/run/in/mine").ok();
    let plan = lab.line("export --links -n percale:/lab/run out").ok();
    assert_eq!(plan.out.lines().count(), 4, "{}", plan.out);
    assert!(!lab.path("out").exists());
    let done = lab.line("--json export --links percale:/lab/run out").ok().json();
    assert_eq!(done, json!({"made": 4, "same": 0, "failed": []}));
    assert_eq!(fs::read_link(lab.path("out/in/b.nc")).unwrap(), lab.path("raw/run/in/b.nc"));
    assert_eq!(fs::read(lab.path("out/in/mine")).unwrap(), b"mine");

    // Again nothing; a new version of an object of a managed store has another file; what is in the way stays.
    lab.write("mine", b"yours");
    lab.line("put --overwrite mine percale:/lab/run/in/mine").ok();
    fs::remove_file(lab.path("out/a.nc")).unwrap();
    lab.write("out/a.nc", b"own");
    fs::remove_file(lab.path("raw/run/in/c.txt")).unwrap();
    let again = lab.line("--json export --links percale:/lab/run out").code(6).json();
    assert_eq!((&again["made"], &again["same"]), (&json!(1), &json!(1)), "{again}");
    let failed = again["failed"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap());
    assert_eq!(failed.collect::<Vec<_>>(), ["/lab/run/a.nc", "/lab/run/in/c.txt"]);
    assert_eq!(fs::read(lab.path("out/in/mine")).unwrap(), b"yours");
    assert_eq!(fs::read(lab.path("out/a.nc")).unwrap(), b"own");

    lab.line("export --copy percale:/lab/run/in copy --include *.nc").ok();
    assert_eq!(fs::read(lab.path("copy/b.nc")).unwrap(), b"run/in/b.nc");
    assert!(!lab.path("copy/mine").exists() && !lab.path("copy/b.nc").is_symlink());
    lab.line("export percale:/lab/run out").code(2);
    lab.line("export --links percale:/lab/run/a.nc out").code(8);
}
