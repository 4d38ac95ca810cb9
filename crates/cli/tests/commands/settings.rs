//! Profiles, tokens, where values come from; help, completions and the raw call.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::lab::{Lab, Ran, ran};

/// Runs a line without the environment that names the site.
fn bare(lab: &Lab, line: &str) -> Ran {
    let mut command = lab.command(line.split_whitespace());
    ran(command.env_remove("PERCALE_URL").env_remove("PERCALE_TOKEN_FILE").env_remove("PERCALE_CA_FILE"))
}

#[test]
fn a_login_is_kept_in_a_profile_and_forgotten_again() {
    let lab = Lab::new();
    let line = format!(
        "login {} --token-file {} --ca-file {}",
        lab.site.url(),
        lab.site.admin_token_file().display(),
        lab.site.ca_file().display()
    );
    assert!(bare(&lab, &line).ok().out.contains("logged in"));
    let token = lab.site.directory().join("config/percale/tokens/default");
    assert_eq!(fs::metadata(&token).unwrap().mode() & 0o777, 0o600);
    assert!(bare(&lab, "whoami").ok().out.contains("user:admin"));
    assert_eq!(bare(&lab, "-q ls").ok().out, "percale:/lab\n");

    let shown = bare(&lab, "config show --origin").ok().out;
    assert!(shown.contains("profile default") && !shown.contains(&lab.site.admin_token()), "{shown}");
    let shown = bare(&lab, "config show --origin --url https://other.example --json").ok().json_lines();
    assert_eq!((shown[1]["origin"].as_str(), shown[2]["value"].as_str()), (Some("flag --url"), None));

    // The token is refused when others can read it.
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(bare(&lab, "whoami").code(2).err.contains("0644"));
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    bare(&lab, "logout").ok();
    assert!(bare(&lab, "whoami").ok().out.contains("not logged in"));
    bare(&lab, "ls percale:/lab").code(4);

    bare(&lab, "config set-profile work --url https://work.example --set-default").ok();
    assert!(bare(&lab, "config profiles").ok().out.contains("https://work.example"));
    assert!(bare(&lab, "config show").ok().out.contains("https://work.example"));
    bare(&lab, "--profile nothing ls").code(2);
    bare(&lab, "config remove-profile work").ok();
    bare(&lab, "config set-profile bad --url nonsense").code(2);
}

#[test]
fn tokens_are_taken_from_the_environment_and_wrong_ones_refused() {
    let lab = Lab::new();
    let with = |token: &str| {
        let mut command = lab.command(["whoami"]);
        ran(command.env_remove("PERCALE_TOKEN_FILE").env("PERCALE_TOKEN", token))
    };
    with(&lab.site.admin_token()).ok();
    let mut altered = lab.site.admin_token();
    let last = if altered.ends_with('A') { 'B' } else { 'A' };
    altered.pop();
    altered.push(last);
    let refused = with(&altered).code(4);
    assert!(!refused.err.contains(&altered), "a token is never shown");
    with("two words").code(2);
    assert!(bare(&lab, "whoami --url http://data.example.org").code(5).out.is_empty());
}

#[test]
fn flags_come_from_the_environment_too() {
    let lab = Lab::new();
    let mut command = lab.command(["space", "list"]);
    let json = ran(command.env("PERCALE_JSON", "1")).ok().json_lines();
    assert_eq!(json[0]["name"], "lab");
}

#[test]
fn raw_calls_events_doctor_and_versions_work() {
    let lab = Lab::new();
    assert_eq!(lab.run(["api", "GET", "/v1/site"]).ok().json()["name"], "test");
    lab.run(["api", "GET", "/v1/entries/lab/none"]).code(3);
    lab.run(["api", "POST", "/v1/spaces", "--data", "{\"name\": \"raw\"}"]).ok();
    lab.run(["api", "GET", "v1/site"]).code(2);
    let version = lab.line("version --site --json").ok().json();
    assert_eq!(version["server"]["catalog"], "sqlite");
    let doctor = lab.line("doctor --json").ok().json_lines();
    for what in ["connection", "clock", "site", "token", "store", "mount"] {
        let look = doctor.iter().find(|look| look["what"] == what).unwrap();
        assert_ne!(look["result"], "wrong", "{look}");
    }
    let mut command = lab.command(["doctor"]);
    assert_eq!(ran(command.env("PERCALE_URL", "https://127.0.0.1:1")).code, 1);

    let mut events = lab.start(["events", "lab", "--json"]);
    let out = std::io::BufReader::new(events.stdout.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        use std::io::BufRead;
        if let Some(Ok(line)) = out.lines().next() {
            sender.send(line).unwrap();
        }
    });
    let mut made = 0;
    let line = percale_testkit::wait::until("an event", std::time::Duration::from_secs(30), || {
        made += 1;
        lab.run(["mkdir", &format!("percale:/lab/e{made}")]).ok();
        lines.try_recv().ok()
    });
    events.kill().unwrap();
    events.wait().unwrap();
    reader.join().unwrap();
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["kind"], "entries.created");
}

#[test]
fn every_command_has_help_with_examples_and_is_listed() {
    let lab = Lab::new();
    let known = lab.line("__commands").ok().json();
    let known = known.as_array().unwrap();
    let has = |path: &[&str]| known.iter().any(|command| command["path"] == serde_json::json!(path));
    assert!(has(&[]) && has(&["store", "add"]) && has(&["verify"]) && has(&["task", "wait"]));
    let groups = |path: &[serde_json::Value]| {
        known.iter().any(|other| {
            let other = other["path"].as_array().unwrap();
            other.len() > path.len() && other.starts_with(path)
        })
    };
    for command in known {
        let path = command["path"].as_array().unwrap();
        let words: Vec<&str> = path.iter().map(|word| word.as_str().unwrap()).chain(["--help"]).collect();
        let help = lab.run(&words).ok().out;
        if !groups(path) {
            assert!(help.contains("Examples:"), "{words:?} has no examples");
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(lab.run(["completion", shell]).ok().out.contains("percale"), "{shell}");
    }
}

#[test]
fn the_server_shows_its_configuration_and_care_works_while_it_runs() {
    let lab = Lab::new();
    let config = lab.site.config_file().display().to_string();
    let shown = lab
        .run(["serve", "--check", "--json", "--config", &config, "--listen", "127.0.0.1:1"])
        .ok()
        .json_lines();
    let listen = shown.iter().find(|setting| setting["key"] == "http.listen").unwrap();
    assert_eq!(listen["value"].as_str().unwrap().trim_matches('"'), "127.0.0.1:1");
    lab.run(["serve", "--check", "--set", "http.lisen=x"]).code(2);

    lab.write("a", b"1");
    lab.line("put a percale:/lab/a").ok();
    lab.run(["admin", "fsck", "--config", &config]).ok();
    let store = lab.site.directory().join("store/lab");
    fs::write(store.join("stranger"), "x").unwrap();
    fs::rename(store.join("a"), store.join("b")).unwrap();
    let findings = lab.run(["admin", "fsck", "--json", "--config", &config]).code(7).json_lines();
    let found: Vec<_> =
        findings.iter().map(|f| (f["kind"].as_str().unwrap(), f["subject"].as_str().unwrap())).collect();
    let wanted = [
        ("file_missing", "disk:lab/a"),
        ("file_unknown", "disk:lab/b"),
        ("file_unknown", "disk:lab/stranger"),
    ];
    assert_eq!(found, wanted);
    lab.run(["admin", "fsck", "--rows", "--config", &config]).ok();
    fs::rename(store.join("b"), store.join("a")).unwrap();
    fs::remove_file(store.join("stranger")).unwrap();
    lab.run(["admin", "fsck", "--config", &config]).ok();

    let backup = lab.path("backup.pcb").display().to_string();
    lab.run(["admin", "backup", "--config", &config, &backup]).ok();
    lab.run(["admin", "restore", "--verify", &backup]).ok();
    let mut bytes = fs::read(&backup).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&backup, bytes).unwrap();
    assert_ne!(lab.run(["admin", "restore", "--verify", &backup]).code, 0);
}

#[test]
fn a_setting_of_a_store_that_cannot_be_is_named() {
    let lab = Lab::new();
    let refused = lab.line("store add cloud --connector s3 --set bucket=2024").code(2).err;
    assert!(refused.contains("bucket: invalid type: integer `2024`, expected a string"), "{refused}");
}
