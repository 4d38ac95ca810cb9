//! A site of several servers over one PostgreSQL, among sites on SQLite that dial it and sites that only dial out. A server
//! is killed in the middle of what it does, and another one added, with no word to anybody.

use std::path::Path;
use std::thread;
use std::time::Duration;

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::{postgres, wait};
use serde_json::Value;

use crate::sites::{ended, run, run_soon, task, try_run};
use crate::world::{files_below, local_file};

const FILES: u64 = 120;

/// A site of one server.
fn alone(name: &str, outgoing_only: bool) -> Site {
    let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"))
        .set("site.name", &format!("\"{name}\""))
        .set("federation.outgoing_only", &outgoing_only.to_string());
    Site::start(options)
}

/// One of the servers of alps.
fn server(database: &str, shared: &Path) -> Site {
    let mut options = SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("site.name", "\"alps\"");
    options.catalog_url = Some(database.to_owned());
    options.state_directory = Some(shared.join("state"));
    Site::start(options)
}

fn join(site: &Site, inviting: &Site) {
    let invitation = run(inviting, &["-q", "site", "invite"]);
    run(site, &["site", "join", invitation.trim()]);
}

/// Waits until a server reaches a site in this way.
fn reaches(server: &Site, site: &str, route: &str) {
    wait::until(&format!("{site} to be reached"), Duration::from_secs(60), || {
        let shown = try_run(server, &["site", "show", "--json", site]).ok()?;
        let shown: Value = serde_json::from_str(&shown).ok()?;
        (shown["route"] == route).then_some(())
    });
}

/// Waits until a site knows just these servers of alps.
fn knows(site: &Site, servers: &[&Site]) {
    let mut expected: Vec<String> = servers.iter().map(|server| server.url()).collect();
    expected.sort();
    wait::until("the servers of alps to be known", Duration::from_secs(60), || {
        let shown = try_run(site, &["site", "show", "--json", "alps"]).ok()?;
        let shown: Value = serde_json::from_str(&shown).ok()?;
        let mut urls: Vec<&str> = shown["urls"].as_array()?.iter().filter_map(Value::as_str).collect();
        urls.sort_unstable();
        (urls == expected).then_some(())
    });
}

/// Returns which process works on a task.
fn worker(database: &str, task: &str) -> Option<i32> {
    let query = "SELECT l.holder FROM task t JOIN lease l ON l.id = t.lease WHERE CAST(t.id AS TEXT) = $1";
    let holder = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (client, connection) = tokio_postgres::connect(database, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.query_opt(query, &[&task]).await.unwrap().map(|row| row.get::<_, String>(0))
    });
    holder?.rsplit_once("pid ")?.1.parse().ok()
}

fn count(site: &Site, path: &str) -> usize {
    let listed = try_run(site, &["ls", "-R", "--json", path]).unwrap_or_default();
    listed.lines().filter(|line| line.contains("\"object\"")).count()
}

#[test]
fn a_site_of_several_servers_goes_on_when_one_is_killed_and_one_is_added() {
    let Some(postgres) = postgres::Server::start() else { return };
    let database = postgres.database();
    let shared = tempfile::tempdir().unwrap();
    let first = server(&database, shared.path());
    let (second, [baltic, coast, delta]) = thread::scope(|scope| {
        let others = [("baltic", false), ("coast", true), ("delta", true)]
            .map(|(name, outgoing)| scope.spawn(move || alone(name, outgoing)));
        let second = server(&database, shared.path());
        (second, others.map(|site| site.join().unwrap()))
    });
    let mut servers = [first, second];
    run(&servers[0], &["store", "add", "disk", "--posix", shared.path().join("store").to_str().unwrap()]);
    for site in [&baltic, &coast, &delta] {
        let store = site.directory().join("store");
        run(site, &["store", "add", "disk", "--posix", store.to_str().unwrap()]);
        join(site, &servers[0]);
    }
    for site in [&baltic, &coast] {
        knows(site, &[&servers[0], &servers[1]]);
    }
    // Those that only dial out hold a session with each of them.
    for server in &servers {
        reaches(server, "baltic", "direct");
        reaches(server, "coast", "reverse");
        reaches(server, "delta", "reverse");
    }
    reaches(&delta, "coast", "relay");

    for (home, name, space) in
        [(&servers[0], "alps", "lab"), (&baltic, "baltic", "sea"), (&coast, "coast", "deep")]
    {
        run(home, &["space", "create", space]);
        for site in ["alps", "baltic", "coast", "delta"].iter().filter(|site| **site != name) {
            let subject = format!("user:admin@site:{site}");
            run(home, &["grant", "add", &format!("percale:/{space}"), &subject, "manage"]);
        }
    }
    let work = tempfile::tempdir().unwrap();
    for file in 0..FILES {
        let size = if file % 4 == 0 { 3_000_000 + file } else { 20_000 + file };
        local_file(&work.path().join(format!("tree/{:02}/{file:05}", file % 7)), file, size);
    }
    let tree = work.path().join("tree");
    let one = work.path().join("tree/00/00000");
    run_soon(&baltic, &["put", "-r", tree.to_str().unwrap(), "percale:/sea/"]);

    // Whichever server is asked: a change at a site that only dials out, also for one that it relays for.
    for (number, server) in servers.iter().enumerate() {
        run_soon(server, &["mkdir", &format!("percale:/deep/by-server-{number}")]);
        run(server, &["put", one.to_str().unwrap(), &format!("percale:/deep/by-server-{number}/")]);
        run_soon(server, &["stat", "percale:/sea/tree"]);
    }
    for round in 0..4 {
        run_soon(&delta, &["mkdir", &format!("percale:/deep/by-delta-{round}")]);
    }

    // The server that works on a task dies in the middle of it, and with it what it follows and serves.
    let id = run_soon(&servers[0], &["-q", "replicate", "percale:/sea/tree", "--to", "alps", "--detach"]);
    let id = id.trim();
    let pid = wait::until("a server to work on the task", Duration::from_secs(60), || worker(&database, id));
    let dead = servers.iter().position(|server| server.pid().as_raw_nonzero().get() == pid).unwrap();
    wait::until("copies to arrive", Duration::from_secs(60), || {
        (files_below(&shared.path().join("store")).len() > 10).then_some(())
    });
    servers[dead].kill();
    let (state, items, _) = task(&servers[1 - dead], id).unwrap();
    assert!(state == "running" && items < FILES, "the task was in its middle: {state} {items}");
    servers.swap(0, dead);
    let [_dead, alive] = &servers;

    // Nobody has to wait for the task's new worker: others find the server that is left, and it reaches all of them.
    run(&baltic, &["mkdir", "percale:/lab/by-baltic"]);
    run(&coast, &["put", one.to_str().unwrap(), "percale:/lab/by-coast"]);
    run(&delta, &["mkdir", "percale:/deep/by-delta-after"]);
    run(alive, &["mkdir", "percale:/deep/by-alps-after"]);
    run(alive, &["cat", "percale:/deep/by-server-0/00000"]);
    let third = server(&database, shared.path());
    reaches(&third, "coast", "reverse");
    run(&third, &["mkdir", "percale:/deep/by-third"]);
    run(&baltic, &["put", one.to_str().unwrap(), "percale:/sea/after"]);
    for server in [alive, &third] {
        run_soon(server, &["stat", "percale:/sea/after"]);
    }
    assert_eq!(ended(&third, id), "succeeded", "{}", run(&third, &["task", "show", id]));
    knows(&baltic, &[alive, &third]);
    knows(&coast, &[alive, &third]);

    // And to where nobody can dial.
    run_soon(&coast, &["replicate", "percale:/sea/tree", "--to", "coast", "--from", "alps"]);
    for server in [alive, &third, &baltic, &coast, &delta] {
        assert_eq!(count(server, "percale:/sea"), FILES as usize + 1);
        assert_eq!(count(server, "percale:/lab"), 1);
        assert_eq!(count(server, "percale:/deep"), 2);
    }
    run(&third, &["check", "--deep", "percale:/sea"]);
    run(&third, &["admin", "fsck", "--config", third.config_file().to_str().unwrap()]);
}
