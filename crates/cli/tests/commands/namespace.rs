//! Listing, looking, renaming, removing, sharing.

use crate::lab::{Lab, SPACE};

#[test]
fn a_first_session_works() {
    let lab = Lab::new();
    lab.write("a.txt", b"hello\nworld\n");
    lab.line("put a.txt percale:/lab/").ok();
    let ls = lab.line("ls -l percale:/lab").ok();
    assert!(ls.out.contains("12 B") && ls.out.contains("a.txt"), "{}", ls.out);
    assert_eq!(lab.line("ls").ok().out, "lab/\n");
    assert_eq!(lab.line("-q ls percale:/lab").ok().out, "percale:/lab/a.txt\n");

    let stat = lab.line("stat --json percale:/lab/a.txt").ok().json();
    assert_eq!(stat["content"]["size"], 12);
    assert_eq!(stat["replicas"][0]["state"], "good");
    assert_eq!(stat["content"]["root"].as_str().unwrap().len(), 64);
    let shown = lab.line("stat percale:/lab/a.txt").ok().out;
    assert!(shown.contains("blake3") && shown.contains("good"), "{shown}");
    assert!(lab.line("ls -L percale:/lab/a.txt").ok().out.contains("good test:disk"));

    assert_eq!(lab.line("cat percale:/lab/a.txt").ok().out, "hello\nworld\n");
    assert_eq!(lab.line("cat --offset 6 --count 3 percale:/lab/a.txt").ok().out, "wor");
    assert_eq!(lab.line("head -n 1 percale:/lab/a.txt").ok().out, "hello\n");
    assert_eq!(lab.line("head -c 4 percale:/lab/a.txt").ok().out, "hell");

    lab.line("mkdir percale:/lab/x/y").code(3);
    lab.line("mkdir -p percale:/lab/x/y").ok();
    lab.line("mv percale:/lab/a.txt percale:/lab/x/").ok();
    lab.line("mv percale:/lab/x/a.txt percale:/lab/x/b.txt").ok();
    assert_eq!(lab.listing(), ["/lab/x -", "/lab/x/b.txt 12", "/lab/x/y -"]);
    let tree = lab.line("tree percale:/lab").ok().out;
    assert_eq!(tree, "percale:/lab\n  x/\n    b.txt  (12 B)\n    y/\n");
    assert!(lab.line("du --bytes -d 1 percale:/lab").ok().out.contains("12"));

    lab.line("rm percale:/lab/x").code(8);
    lab.line("rm -r percale:/lab/x").code(2);
    lab.line("rm -r -y percale:/lab/x").ok();
    assert!(lab.listing().is_empty());
}

#[test]
fn dry_runs_change_nothing() {
    let lab = Lab::new();
    lab.write("d/a", b"1");
    lab.line("put -r d percale:/lab/").ok();
    let before = lab.listing();
    let shown = lab.line("rm -r -n percale:/lab/d").ok().out;
    assert_eq!(shown, "would remove percale:/lab/d/\n");
    assert_eq!(
        lab.line("mv -n percale:/lab/d percale:/lab/e").ok().out,
        "would move percale:/lab/d/ -> percale:/lab/e/\n"
    );
    assert!(lab.line("mkdir -n percale:/lab/new").ok().out.contains("would make"));
    assert!(lab.line("cp -r -n percale:/lab/d percale:/lab/copy").ok().out.contains("percale:/lab/copy"));
    assert_eq!(lab.listing(), before);
}

#[test]
fn exit_codes_and_json_errors_say_what_went_wrong() {
    let lab = Lab::new();
    lab.write("a", b"1");
    lab.line("put a percale:/lab/a").ok();
    for (line, exit, code) in [
        ("stat --json percale:/lab/missing", 3, "not_found"),
        ("stat --json percale:/nospace/x", 3, "space_not_found"),
        ("cat --json percale:/lab", 8, "is_collection"),
        ("ls --json /lab", 2, ""),
        ("mkdir --json percale:/lab/a/b", 8, "not_a_collection"),
        ("mkdir --json percale:/lab/../b", 2, ""),
        ("get --json lrz:/raw/a .", 2, "unsupported"),
        ("mv --json percale:/lab/a percale:/lab", 2, "invalid_request"),
        ("store show --json nothing", 3, "not_found"),
    ] {
        let ran = lab.line(line).code(exit);
        if !code.is_empty() {
            let error = ran.error();
            assert_eq!(error["code"], code, "{line}");
            assert_eq!(error["exit_code"], exit, "{line}");
            assert!(error["retryable"].is_boolean() && !error["hint"].as_str().unwrap().is_empty(), "{line}");
        }
        assert!(ran.out.is_empty(), "{line}: {}", ran.out);
    }
    let ran = lab
        .command(["ls", "--json", SPACE])
        .env("PERCALE_URL", "https://127.0.0.1:1")
        .env("PERCALE_VERBOSE", "0")
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(5), "{}", String::from_utf8_lossy(&ran.stderr));
    let help = lab.line("put --hlep");
    assert_eq!(help.code, 2);
    assert!(help.err.contains("--help"), "{}", help.err);
    assert!(lab.line("lss").code(2).err.contains("ls"));
}

#[test]
fn lists_are_lines_of_json_and_empty_ones_are_no_error() {
    let lab = Lab::new();
    assert_eq!(lab.line("ls --json percale:/lab").ok().out, "");
    assert_eq!(lab.line("task list --json").ok().out, "");
    let spaces = lab.line("space list --json").ok().json_lines();
    assert_eq!((spaces.len(), spaces[0]["name"].as_str()), (1, Some("lab")));
    let stores = lab.line("store list --json").ok().json_lines();
    assert_eq!(stores[0]["connector"], "posix");
    assert_eq!(lab.line("-q space list").ok().out, "lab\n");
    assert!(lab.line("space list").ok().out.contains("SPACE"));
}

#[test]
fn wildcards_and_find_look_in_the_fabric() {
    let lab = Lab::new();
    for name in ["d/2023/a.nc", "d/2023/b.txt", "d/2024/a.nc", "d/2024/deep/c.nc", "d/[odd].nc"] {
        lab.write(name, name.as_bytes());
    }
    lab.line("put -r d/ percale:/lab").ok();
    let ls = |pattern: &str| lab.run(["-q", "ls", "-d", pattern]).ok().out;
    assert_eq!(ls("percale:/lab/2023/*"), "percale:/lab/2023/a.nc\npercale:/lab/2023/b.txt\n");
    assert_eq!(ls("percale:/lab/*/a.nc"), "percale:/lab/2023/a.nc\npercale:/lab/2024/a.nc\n");
    assert_eq!(ls("percale:/lab/**/c.nc"), "percale:/lab/2024/deep/c.nc\n");
    assert_eq!(ls("percale:/lab/{2023,x}/?.nc"), "percale:/lab/2023/a.nc\n");
    assert_eq!(ls("percale:/lab/[odd].nc"), "percale:/lab/[odd].nc\n");
    lab.run(["ls", "percale:/lab/*.missing"]).code(3);

    let find = |options: &str| lab.run(format!("-q find percale:/lab {options}").split(' ')).ok().out;
    assert_eq!(find("--name *.txt"), "percale:/lab/2023/b.txt\n");
    assert_eq!(find("--type collection --name deep"), "percale:/lab/2024/deep\n");
    assert_eq!(find("--size +14"), "percale:/lab/2024/deep/c.nc\n");
    assert_eq!(find("--older-than 1d"), "");
    assert_eq!(find("--newer-than 1d --path 2024/**").lines().count(), 3);
    assert_eq!(find("--limit 2").lines().count(), 2);
}

#[test]
fn a_space_has_no_more_than_its_quota() {
    let lab = Lab::new();
    lab.line("space create small --quota 1MB").ok();
    let (one, large) = (lab.write("one", &[1; 600_000]), lab.write("large", &vec![2; 20 << 20]));
    let put = |file: &std::path::Path, to: &str| lab.run(["put", file.to_str().unwrap(), to]);
    put(&one, "percale:/small/one").ok();
    for (file, says) in [(&one, "600.0 kB"), (&large, "21.0 MB")] {
        let refused = put(file, "percale:/small/other").code(11);
        let expected = format!("which has {says}: the space 'small' may have 1.00 MB and has 600.0 kB");
        assert!(refused.err.contains(&expected), "{}", refused.err);
    }
    lab.line("cp percale:/small/one percale:/small/copy").code(6);
    assert_eq!(lab.line("ls percale:/small").ok().out.lines().count(), 1);
    let shown = lab.line("space show --json small").ok().json();
    assert_eq!((&shown["quota"], &shown["used"]), (&1_000_000.into(), &600_000.into()));
    assert!(lab.line("space show small").ok().out.contains("used      600.0 kB of 1.00 MB"));

    lab.line("space create like --template small").ok();
    assert_eq!(lab.line("space show --json like").ok().json()["quota"], 1_000_000);
    lab.line("space set small --quota none").ok();
    put(&large, "percale:/small/other").ok();
    let shown = lab.line("space show --json small").ok().json();
    assert_eq!((shown.get("quota"), &shown["used"]), (None, &(600_000 + (20 << 20)).into()));
    lab.line("space set small --quota much").code(2);
    lab.line("space set small --quota 16EiB").code(2);
}

#[test]
fn a_space_is_made_with_members_and_like_another() {
    let lab = Lab::new();
    let grants = |space: &str| {
        let lines = lab.line(&format!("grant list --json percale:/{space}")).ok().json_lines();
        let mut grants: Vec<String> = lines
            .iter()
            .map(|grant| {
                format!("{} {}", grant["subject"].as_str().unwrap(), grant["permission"].as_str().unwrap())
            })
            .collect();
        grants.sort();
        grants
    };
    lab.line(
        "space create wp3 --owner user:ann --scope public --member group:wp3=write --member user:bob=read",
    )
    .ok();
    assert_eq!(grants("wp3"), ["anyone read", "group:wp3 write", "user:ann manage", "user:bob read"]);
    // Its owner is not the other's; what is said counts more than the template.
    lab.line("space create wp4 --template wp3 --owner user:cem --scope members --member user:bob=manage")
        .ok();
    assert_eq!(grants("wp4"), ["group:wp3 write", "user:bob manage", "user:cem manage"]);
    lab.line("space create wp5 --template wp3").ok();
    assert!(grants("wp5").contains(&"anyone read".to_owned()), "as public as its template");
    // When headers are read, and the rules of the root, but nothing else that is said of it.
    lab.line("space create strict --extraction sync").ok();
    lab.line("meta set percale:/strict rules.names=level rules.type.level=integer level=3").ok();
    lab.line("space create strict2 --template strict").ok();
    let headers =
        |space: &str| lab.line(&format!("space show --json {space}")).ok().json()["extraction"].clone();
    assert_eq!((headers("strict2"), headers("wp5")), ("sync".into(), "async".into()));
    let said = lab.line("meta get percale:/strict2").ok().out;
    assert!(said.contains("rules.type.level") && !said.contains("level = 3"), "{said}");
    let file = lab.write("file", b"of a level");
    lab.run(["put", file.to_str().unwrap(), "percale:/strict2/x"]).ok();
    lab.line("meta set percale:/strict2/x level=high").code(2);
    lab.line("meta set percale:/strict2/x level=7").ok();
    lab.line("space create strict3 --template strict --extraction off").ok();
    assert_eq!(headers("strict3"), "off");
    // What is said counts more than the template, also than a rule of it.
    lab.line("meta set percale:/strict rules.extraction=sync").ok();
    lab.line("space create strict4 --template strict --extraction off").ok();
    lab.line("space create strict5 --template strict").ok();
    let said = |space: &str| lab.line(&format!("meta get percale:/{space}")).ok().out;
    assert!(!said("strict4").contains("rules.extraction") && said("strict4").contains("rules.names"));
    assert!(said("strict5").contains("rules.extraction"));
    lab.line("space create wp6 --template nothing").code(3);
    lab.line("space create wp6 --member user:bob").code(2);
    lab.line("space create wp6 --member user:bob=all").code(2);
    assert!(!lab.line("-q space list").ok().out.contains("wp6"));
}

#[test]
fn grants_and_tokens_decide_what_others_may() {
    let lab = Lab::new();
    lab.write("a", b"1");
    lab.line("put a percale:/lab/a").ok();
    let token = lab.path("bob.token");
    lab.run([
        "token",
        "create",
        "--subject",
        "user:bob",
        "--expires",
        "1h",
        "--out",
        token.to_str().unwrap(),
    ])
    .ok();
    let bob = |line: &str| {
        let mut command = lab.command(line.split_whitespace());
        crate::lab::ran(command.env("PERCALE_TOKEN_FILE", &token))
    };
    assert!(bob("whoami").ok().out.contains("user:bob"));
    bob("cat percale:/lab/a").code(3);
    lab.line("grant add percale:/lab user:bob read").ok();
    assert_eq!(bob("cat percale:/lab/a").ok().out, "1");
    bob("rm percale:/lab/a").code(4);
    assert!(lab.line("grant list percale:/lab").ok().out.contains("user:bob"));
    lab.line("grant remove percale:/lab user:bob").ok();
    bob("cat percale:/lab/a").code(3);

    let tokens = lab.line("token list --json").ok().json_lines();
    let id = tokens.iter().find(|token| token["subject"] == "user:bob").unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    lab.run(["token", "revoke", &id]).ok();
    bob("whoami").code(4);
}

#[test]
fn check_finds_a_flipped_byte() {
    let lab = Lab::new();
    lab.write("d/good", b"good");
    lab.write("d/bad", b"abcdefgh");
    lab.line("put -r d percale:/lab/").ok();
    lab.line("check percale:/lab").ok();
    lab.line("check --deep percale:/lab").ok();
    lab.line("check d percale:/lab/d").ok();
    let file = lab.site.directory().join("store/lab/d/bad");
    std::fs::write(&file, b"abcdeXgh").unwrap();
    let deep = lab.line("check --deep --json percale:/lab").code(7);
    let lines = deep.json_lines();
    assert!(
        lines.iter().any(|line| line["path"].as_str().is_some_and(|path| path.contains("/lab/d/bad"))),
        "{lines:?}"
    );
    assert_eq!(lines.last().unwrap()["summary"]["bad"], 1);
    lab.line("cat percale:/lab/d/bad").code(7);
    lab.line("check percale:/lab").code(7);
    assert_eq!(lab.line("cat percale:/lab/d/good").ok().out, "good");

    lab.write("d/good", b"GOOD");
    lab.write("d/more", b"1");
    let compared = lab.line("check --json d percale:/lab/d").code(7).json_lines();
    let status = |path: &str| compared.iter().find(|line| line["path"] == path).unwrap()["status"].clone();
    assert_eq!(
        (status("good"), status("more"), status("bad")),
        ("differs".into(), "only_local".into(), "same".into())
    );
}

#[test]
fn copies_within_the_fabric_are_tasks() {
    let lab = Lab::new();
    lab.write("d/a", b"1");
    lab.write("d/b/c", b"22");
    lab.line("put -r d percale:/lab/").ok();
    lab.line("cp percale:/lab/d percale:/lab/e").code(8);
    lab.line("cp -r percale:/lab/d/ percale:/lab/e").ok();
    assert_eq!(lab.line("cat percale:/lab/e/b/c").ok().out, "22");
    let id = lab.line("cp --detach percale:/lab/d/a percale:/lab/a2").ok().out;
    lab.run(["task", "wait", "--timeout", "1m", id.trim()]).ok();
    assert_eq!(lab.line("cat percale:/lab/a2").ok().out, "1");
    let shown = lab.run(["task", "show", "--json", id.trim()]).ok().json();
    assert_eq!(shown["state"], "succeeded");
    assert_eq!(lab.line("task list --json").ok().json_lines().len(), 2);
}

#[test]
fn a_receipt_is_fetched_and_checked() {
    let lab = Lab::new();
    lab.write("d/a", b"1");
    lab.write("d/b", b"22");
    lab.line("put -r d percale:/lab/").ok();
    lab.line("cp -r percale:/lab/d percale:/lab/e").ok();
    let id = lab.line("-q task list --limit 1").ok().out.trim().to_owned();
    let printed = lab.line(&format!("task receipt {id}")).ok();
    let lines = printed.json_lines();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        (lines[0]["task"].as_str(), lines[0]["listed"].as_u64(), lines[0]["listed_bytes"].as_u64()),
        (Some(id.as_str()), Some(2), Some(3))
    );
    assert_eq!(lines[1]["path"], "/lab/e/a");
    let key = lab.line("site show test --json").ok().json()["key"].as_str().unwrap().to_owned();

    lab.line(&format!("task receipt {id} -o receipt.jsonl")).ok();
    assert!(!lab.has_partial_files());
    let good = lab.line("task verify-receipt receipt.jsonl").ok();
    assert!(good.out.contains("is good") && good.out.contains(&id), "{}", good.out);
    let shown = lab.line("task verify-receipt --json receipt.jsonl").ok().json();
    assert_eq!((&shown["result"], &shown["site"]["name"]), (&"good".into(), &"test".into()), "{shown}");
    // Without a site that answers.
    let alone = "--url https://127.0.0.1:9";
    lab.line(&format!("{alone} task verify-receipt --site-key {key} receipt.jsonl")).ok();
    let other = format!("task verify-receipt --json --site-key {} receipt.jsonl", "ab".repeat(32));
    let error = lab.line(&other).code(7).error();
    assert!(error["message"].as_str().unwrap().contains("line 4"), "{error}");

    let text = std::fs::read_to_string(lab.path("receipt.jsonl")).unwrap();
    lab.write("changed.jsonl", text.replace("/lab/e/b", "/lab/e/c").as_bytes());
    let error =
        lab.line(&format!("task verify-receipt --json --site-key {key} changed.jsonl")).code(7).error();
    assert!(error["message"].as_str().unwrap().contains("BLAKE3"), "{error}");
    lab.write("cut.jsonl", text.lines().next().unwrap().as_bytes());
    lab.line(&format!("task verify-receipt --site-key {key} cut.jsonl")).code(7);
    lab.line("task verify-receipt missing.jsonl").code(3);
    lab.line("check --deep percale:/lab/d").ok();
    let id = lab.line("-q task list --limit 1").ok().out.trim().to_owned();
    assert!(lab.line(&format!("task receipt {id}")).code(2).err.contains("brings no bytes"));
}

#[test]
fn tasks_and_commands_have_limits_and_deadlines() {
    let lab = Lab::new();
    lab.write("a", &[7; 3 << 20]);
    // Three MiB at this speed take two seconds; that they are whole is what counts here.
    lab.line("put --limit 16Mbit/s a percale:/lab/a").ok();
    lab.line("get --limit 2MB/s percale:/lab/a b").ok();
    assert_eq!(std::fs::read(lab.path("b")).unwrap(), vec![7; 3 << 20]);
    let wrong = lab.line("put --limit 200 a percale:/lab/b").code(2);
    assert!(wrong.err.contains("200Mbit/s"), "{}", wrong.err);
    let wrong = lab.line("cp --deadline later percale:/lab/a percale:/lab/c").code(2);
    assert!(wrong.err.contains("2026-12-01T00:00Z"), "{}", wrong.err);
    let over = lab.line("cp --deadline 2020-01-01T00:00Z percale:/lab/a percale:/lab/c").code(2);
    assert!(over.err.contains("deadline"), "{}", over.err);

    let id = lab.line("cp --detach --deadline 2h --limit 25MB/s percale:/lab/a percale:/lab/c").ok().out;
    lab.run(["task", "wait", "--timeout", "1m", id.trim()]).ok();
    let shown = lab.run(["task", "show", "--json", id.trim()]).ok().json();
    assert_eq!(
        (&shown["limit"], &shown["progress"]["bytes_total"]),
        (&"200Mbit/s".into(), &(3 << 20).into())
    );
    assert!(shown["deadline"].is_string() && shown["activity"]["average"].is_u64(), "{shown}");
    let shown = lab.run(["task", "show", id.trim()]).ok().out;
    for line in
        ["bytes     3.1", " of 3.1", "rate      ", "/s on average", "limit     200Mbit/s", "deadline  "]
    {
        assert!(shown.contains(line), "no '{line}' in:\n{shown}");
    }
}
