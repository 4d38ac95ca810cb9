//! Which of two sites can dial the other, as `percale doctor` says it.

use percale_testkit::link::{Link, Way};
use percale_testkit::process::{Site, SiteOptions};
use serde_json::Value;

use crate::sites::run;

/// What doctor says of the ways between sites, and whether anything is wrong with them.
fn ways(site: &Site) -> (Vec<String>, bool) {
    let output = site.command(&["doctor", "--json"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let looks = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let looks: Vec<Value> = looks.filter(|look| look["what"] == "ways").collect();
    let is_wrong = looks.iter().any(|look| look["result"] == "wrong");
    assert!(!is_wrong || !output.status.success(), "{text}");
    let words = |look: &Value| {
        format!("{} {}", look["detail"].as_str().unwrap(), look["hint"].as_str().unwrap_or_default())
    };
    (looks.iter().map(words).collect(), is_wrong)
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_which_way_is_open_and_what_to_do() {
    let site =
        |name: &str| SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("site.name", &format!("\"{name}\""));
    let link = Link::start().await;
    let alps = Site::start(site("alps"));
    assert_eq!(ways(&alps), (Vec::new(), false), "a site on its own has none");
    let coast = Site::start(site("coast").set("federation.urls", &format!("[\"{}\"]", link.url())));
    link.lead_to(coast.url().trim_start_matches("https://").parse().unwrap());
    let invitation = run(&alps, &["-q", "site", "invite"]);
    run(&coast, &["site", "join", invitation.trim()]);

    let (found, is_wrong) = ways(&coast);
    assert!(!is_wrong && found.len() == 2, "{found:?}");
    assert!(found.iter().all(|line| line.contains("open")), "{found:?}");

    // A firewall that drops packets comes between: out it works, in not.
    link.cut_after(Way::There, 0);
    let (found, is_wrong) = ways(&coast);
    assert!(is_wrong && found.len() == 3, "{found:?}");
    assert!(found[0].starts_with("coast -> alps: open"), "{found:?}");
    assert!(found[1].starts_with("alps -> coast: no connection"), "{found:?}");
    assert!(found[2].contains("federation.outgoing_only = true"), "{found:?}");

    link.mend();
    let (found, is_wrong) = ways(&coast);
    assert!(!is_wrong && found.len() == 2, "{found:?}");
}
