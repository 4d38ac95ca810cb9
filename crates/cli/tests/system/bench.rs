//! `bench model` between two sites.

use percale_testkit::process::{Site, SiteOptions};
use serde_json::Value;

use crate::sites::{run, run_soon};

#[test]
fn a_model_between_two_sites_is_measured_whichever_is_asked() {
    let [alps, baltic] = ["alps", "baltic"].map(|name| {
        let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"));
        Site::start(options.set("site.name", &format!("\"{name}\"")))
    });
    for site in [&alps, &baltic] {
        let store = site.directory().join("store");
        run(site, &["store", "add", "disk", "--posix", store.to_str().unwrap()]);
    }
    let invitation = run(&alps, &["-q", "site", "invite"]);
    run(&baltic, &["site", "join", invitation.trim()]);
    run(&alps, &["space", "create", "lab"]);
    run(&alps, &["grant", "add", "percale:/lab", "user:admin@site:baltic", "manage"]);
    run_soon(&baltic, &["stat", "percale:/lab"]);
    let local = tempfile::tempdir().unwrap();

    // The files are generated at the site that is asked: once that is where they are wanted, once they must go there first.
    for (asked, from, to) in
        [(&alps, "alps", "baltic"), (&alps, "baltic", "alps"), (&baltic, "alps", "baltic")]
    {
        let said = run(
            asked,
            &[
                "bench",
                "model",
                "percale:/lab",
                "--from",
                from,
                "--to",
                to,
                "--size",
                "3MB",
                "--files",
                "20",
                "--rounds",
                "1",
                "--json",
                "--local",
                local.path().to_str().unwrap(),
                "--predict",
                "1GB in 5 files",
            ],
        );
        let model: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&model["from"], &model["to"]), (&from.into(), &to.into()));
        let probes = model["probes"].as_array().unwrap();
        assert_eq!(probes.len(), 6);
        // Had nothing been copied, the task would have ended at once, and more bytes would take no longer.
        assert!(probes.iter().all(|probe| probe["seconds"].as_f64().unwrap() > 0.0), "{said}");
        assert_eq!(model["predictions"].as_array().unwrap().len(), 1);
        assert_eq!(run(asked, &["ls", "-R", "-q", "percale:/lab"]), "", "{from} to {to}");
        assert!(std::fs::read_dir(local.path()).unwrap().next().is_none(), "{from} to {to}");
    }
}
