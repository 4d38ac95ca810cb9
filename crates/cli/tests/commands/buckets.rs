//! A store in a bucket, behind every command.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use percale_testkit::s3::{ACCESS_KEY_ID, BUCKET, S3Server, SECRET_ACCESS_KEY};
use percale_testkit::wait;
use serde_json::json;

use crate::lab::{Lab, finished, tree};

/// A lab whose space `far` is in a bucket, below a prefix that looks like a number.
fn lab() -> Option<(Lab, S3Server)> {
    let (lab, server) = (Lab::new(), S3Server::start()?);
    let secret = json!({"access_key_id": ACCESS_KEY_ID, "secret_access_key": SECRET_ACCESS_KEY});
    let keys = lab.write("keys.json", secret.to_string().as_bytes());
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let (bucket, endpoint) = (format!("bucket={BUCKET}"), format!("endpoint={}", server.endpoint()));
    let add = ["store", "add", "cloud", "--connector", "s3", "--set", &bucket, "--set", &endpoint];
    lab.run(add.into_iter().chain(["--set", "prefix=\"2024\"", "--secret-file", keys.to_str().unwrap()]))
        .ok();
    lab.line("space create far --store cloud").ok();
    Some((lab, server))
}

/// Adds the whole bucket as a native store, and returns the name of the site.
fn add_archive(lab: &Lab, server: &S3Server) -> String {
    let keys = lab.path("keys.json");
    let (bucket, endpoint) = (format!("bucket={BUCKET}"), format!("endpoint={}", server.endpoint()));
    let add =
        ["store", "add", "archive", "--native", "--connector", "s3", "--set", &bucket, "--set", &endpoint];
    lab.run(add.into_iter().chain(["--secret-file", keys.to_str().unwrap()])).ok();
    lab.line("api GET /v1/site").ok().json()["name"].as_str().unwrap().to_owned()
}

/// Returns the files of objects in the bucket.
fn files(server: &S3Server) -> Vec<PathBuf> {
    let root = server.folder().join(BUCKET).join("2024/.percale/objects");
    let all = tree(&root).into_iter().filter(|(_, content)| content.is_some());
    all.map(|(path, _)| root.join(path)).collect()
}

#[test]
fn a_tree_is_put_into_a_bucket_and_got_from_it() {
    let Some((lab, server)) = lab() else { return };
    for number in 0..300 {
        lab.write(&format!("data/small/{number:03}"), format!("content {number}").as_bytes());
    }
    lab.write("data/empty", b"");
    let large: Vec<u8> = (0..40_000_017_u32).map(|at| (at % 251) as u8).collect();
    lab.write("data/large", &large);
    lab.line("put -r data/ percale:/far/data").ok();
    assert_eq!(files(&server).len(), 302);
    let copies = lab.line("stat percale:/far/data/large").ok().out;
    assert!(copies.contains("cloud"), "{copies}");
    lab.line("get -r percale:/far/data/ back").ok();
    assert!(tree(&lab.path("back")) == tree(&lab.path("data")));
    lab.line("check --deep percale:/far/data").ok();
    // Its headers are read from there.
    lab.write("station.json", br#"{"station": "Davos", "height": 1594}"#);
    lab.line("put station.json percale:/far/station.json").ok();
    wait::until("the header is found", Duration::from_secs(20), || {
        let found = lab.run(["search", "station:Davos height>1500"]);
        found.out.contains("/far/station.json").then_some(())
    });
    // In place of what is there, renamed, and copied within the store.
    lab.write("data/small/007", b"another content");
    lab.line("put --overwrite data/small/007 percale:/far/data/small/007").ok();
    assert_eq!(lab.line("cat percale:/far/data/small/007").ok().out, "another content");
    lab.line("mv percale:/far/data percale:/far/moved").ok();
    lab.line("cp -r percale:/far/moved percale:/far/copy").ok();
    lab.line("get percale:/far/copy/large large").ok();
    assert!(fs::read(lab.path("large")).unwrap() == large);

    // What is damaged there is noticed, and not served.
    let damaged = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes == b"content 11");
    for file in files(&server).into_iter().filter(damaged) {
        fs::write(file, "Content 11").unwrap();
    }
    assert_eq!(lab.line("cat percale:/far/copy/small/011").code(7).out, "");
}

#[test]
fn an_upload_goes_on_after_its_bucket_was_away() {
    let Some((lab, mut server)) = lab() else { return };
    let large: Vec<u8> = (0..40_000_000_u32).map(|at| (at % 251) as u8).collect();
    lab.write("large", &large);
    let put = lab.start(["put", "--limit", "10MB/s", "large", "percale:/far/large"]);
    let parts = server.folder().join(BUCKET).join(".sgwtmp/multipart");
    wait::until("a part has arrived", Duration::from_secs(20), || {
        fs::read_dir(&parts).ok()?.next().map(drop)
    });
    server.stop();
    // Longer than the store repeats a request by itself.
    std::thread::sleep(Duration::from_secs(6));
    server.resume();
    let put = finished(put.wait_with_output().unwrap()).ok();
    assert!(put.err.contains("store cloud"), "it was not noticed: {}", put.err);
    lab.line("get percale:/far/large back").ok();
    assert!(fs::read(lab.path("back")).unwrap() == large);
}

#[test]
fn a_file_that_a_killed_site_took_for_a_bucket_is_sent_again() {
    let Some((mut lab, server)) = lab() else { return };
    let large: Vec<u8> = (0..30_000_000_u32).map(|at| (at % 251) as u8).collect();
    lab.write("large", &large);
    let put = lab.start(["put", "--limit", "20MB/s", "large", "percale:/far/large"]);
    let parts = server.folder().join(BUCKET).join(".sgwtmp/multipart");
    wait::until("a part has arrived", Duration::from_secs(20), || {
        fs::read_dir(&parts).ok()?.next().map(drop)
    });
    lab.site.kill();
    lab.site.restart();
    finished(put.wait_with_output().unwrap()).ok();
    lab.line("get percale:/far/large back").ok();
    assert!(fs::read(lab.path("back")).unwrap() == large);
    lab.line("check --deep percale:/far").ok();
    assert_eq!(files(&server).len(), 1);
}

#[test]
fn what_is_in_a_bucket_already_is_registered_where_it_is() {
    let Some((lab, server)) = lab() else { return };
    let large: Vec<u8> = (0..6_000_007_u32).map(|at| (at % 251) as u8).collect();
    for (key, content) in [
        ("raw/2018/station.json", br#"{"station": "Davos"}"#.as_slice()),
        ("raw/2018/06/large.bin", &large),
        ("raw/2018/06/small.txt", b"small"),
        ("raw/tmp/left-out", b"left out"),
        ("raw2/other", b"other"),
    ] {
        server.put(key, content);
    }
    let site = add_archive(&lab, &server);
    let import = |more: &[&str]| {
        let from = format!("{site}:s3://{BUCKET}/raw");
        let import = ["--json", "import", &from, "percale:/lab/raw", "--exclude", "tmp/"];
        lab.run(import.iter().chain(more)).ok().json()["progress"]["counts"].clone()
    };
    assert_eq!(import(&["--hash", "now", "--extract"]), json!({"registered": 3}));
    let listed = lab.line("ls -R percale:/lab/raw").ok().out;
    assert!(listed.contains("06/small.txt") && !listed.contains("left-out"), "{listed}");
    assert_eq!(lab.line("cat percale:/lab/raw/2018/06/small.txt").ok().out, "small");
    lab.line("get percale:/lab/raw/2018/06/large.bin back").ok();
    assert!(fs::read(lab.path("back")).unwrap() == large);
    assert!(lab.line("search station:Davos").ok().out.contains("/lab/raw/2018/station.json"));
    assert_eq!(import(&[]), json!({"unchanged": 3}));

    server.put("raw/2018/06/small.txt", b"other");
    server.delete("raw/2018/station.json");
    assert_eq!(import(&["--hash", "never"]), json!({"changed": 1, "lost": 1, "unchanged": 1}));
    assert_eq!(lab.line("cat percale:/lab/raw/2018/06/small.txt").ok().out, "other");
    // What changes behind our back is not served as what it was.
    server.put("raw/2018/06/large.bin", b"shorter");
    lab.line("cat percale:/lab/raw/2018/06/large.bin").code(8);
    lab.run(["import", &format!("{site}:s3://{BUCKET}/nothing"), "percale:/lab/nothing"]).code(3);
    lab.run(["import", &format!("{site}:s3://another/raw"), "percale:/lab/raw"]).code(3);

    // What is put there through a site lies beside it.
    lab.line("space create near --store archive").ok();
    lab.line("put -r keys.json back percale:/near/").ok();
    lab.line("get percale:/near/back again").ok();
    assert!(fs::read(lab.path("again")).unwrap() == large);
}

#[test]
fn what_another_store_has_in_the_bucket_is_not_registered() {
    let Some((lab, server)) = lab() else { return };
    lab.write("one", b"one");
    lab.line("put one percale:/far/one").ok();
    // Beside it, also of names that sort on either side of what is left out.
    for key in ["a", "percale-1", "percale0/x", "z"] {
        server.put(key, key.as_bytes());
    }
    let site = add_archive(&lab, &server);
    let from = format!("{site}:s3://{BUCKET}");
    for counts in [json!({"registered": 4}), json!({"unchanged": 4})] {
        let done = lab.run(["--json", "import", &from, "percale:/lab/all"]).ok().json();
        assert_eq!(done["progress"]["counts"], counts, "{done}");
    }
    lab.line("rm -ry percale:/lab/all").ok();
    assert_eq!(lab.line("cat percale:/far/one").ok().out, "one");
    // What is in the other store belongs to that, which is managed.
    lab.run(["import", &format!("{site}:s3://{BUCKET}/2024/x"), "percale:/lab/x"]).code(2);
}
