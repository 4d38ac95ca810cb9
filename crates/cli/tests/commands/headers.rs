//! What stands in the headers of files: read as a space says, found by search, whatever happens meanwhile.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use percale_samples::netcdf3::{Dataset, Dimension, Type, Value, Variable};
use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::wait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::lab::Lab;

/// A file with a title, a dimension and a variable.
fn netcdf(title: &str) -> Vec<u8> {
    let text = |text: &str| Value::Text(text.into());
    let dataset = Dataset {
        dimensions: vec![Dimension { name: "x".into(), len: 3, is_record: false }],
        attributes: vec![
            ("title".into(), text(title)),
            ("level".into(), Value::Ints(vec![500])),
            ("scale".into(), Value::Floats(vec![0.1])),
            ("time_coverage_start".into(), text("2018-03-01")),
        ],
        variables: vec![Variable {
            name: "tas".into(),
            dimensions: vec![0],
            kind: Type::Float,
            attributes: vec![("units".into(), text("K"))],
        }],
    };
    let mut bytes = Vec::new();
    dataset.write(&mut bytes, |_, _, out| out.extend([1.0, 2.0, 3.0])).unwrap();
    bytes
}

fn put(lab: &Lab, name: &str, bytes: &[u8]) {
    let file = lab.write("file", bytes);
    lab.run(["put", "--overwrite", file.to_str().unwrap(), &format!("percale:/lab/{name}")]).ok();
}

fn found(lab: &Lab, query: &str) -> Vec<String> {
    let found = lab.run(["search", query]);
    // Until the first attribute of a name is there, none is known.
    if found.code == 2 { Vec::new() } else { found.ok().out.lines().map(str::to_owned).collect() }
}

fn soon(lab: &Lab, query: &str, wanted: &[&str]) {
    let wanted: Vec<String> = wanted.iter().map(|name| format!("percale:/lab/{name}")).collect();
    wait::until(query, Duration::from_secs(60), || (found(lab, query) == wanted).then_some(()));
}

/// The processes that read headers for a site.
fn readers(site: &Site) -> Vec<Pid> {
    let server = site.pid().as_raw_nonzero().to_string();
    let children = format!("/proc/{server}/task/{server}/children");
    let mut all = std::fs::read_to_string(children).unwrap_or_default();
    for task in std::fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten() {
        all.push(' ');
        all.push_str(&std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    }
    let mut pids: Vec<i32> = all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

#[test]
fn headers_are_read_soon_shown_and_read_again_when_they_change() {
    let lab = Lab::new();
    put(&lab, "a.nc", &netcdf("first"));
    put(&lab, "note.txt", b"no header");
    soon(&lab, "title=first", &["a.nc"]);
    for query in [
        "var.tas.units:K",
        "level>499",
        "scale=0.1",
        "dim.x=3",
        "format:netcdf3",
        "time_coverage_start:2018-03",
    ] {
        assert_eq!(found(&lab, query), ["percale:/lab/a.nc"], "{query}");
    }
    let shown = lab.line("header percale:/lab/a.nc").ok().out;
    for line in ["  dimension x = 3", "  variable tas: float32[3]", "    units = K", "  title = first"] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let header = lab.line("--json header percale:/lab/a.nc").ok().json();
    assert_eq!(header["variables"]["tas"]["shape"], json!([{"integer": 3}]));
    let said = lab.line("meta get percale:/lab/a.nc").ok().out;
    assert!(said.lines().any(|line| line == "title = first  (text, header)"), "{said}");
    lab.line("header percale:/lab/note.txt").code(3);
    put(&lab, "a.nc", &netcdf("second"));
    soon(&lab, "title=second", &["a.nc"]);
    assert_eq!(found(&lab, "title:first"), Vec::<String>::new());
    // What became something else says nothing any more.
    put(&lab, "a.nc", b"not a header");
    soon(&lab, "format:* path:/lab", &[]);
}

#[test]
fn a_space_says_when_and_anybody_who_may_write_may_ask() {
    let lab = Lab::new();
    lab.line("space set lab --extraction off").ok();
    put(&lab, "a.nc", &netcdf("first"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(found(&lab, "format:*"), Vec::<String>::new());
    lab.line("meta extract percale:/lab").ok();
    assert_eq!(found(&lab, "title=first"), ["percale:/lab/a.nc"]);
    // Each write is answered when it can be found.
    let set = lab.line("--json space set lab --extraction sync").ok().json();
    assert_eq!(set["extraction"], "sync");
    for n in 0..20 {
        put(&lab, &format!("{n}.nc"), &netcdf(&format!("file {n}")));
        assert_eq!(found(&lab, &format!("title='file {n}'")), [format!("percale:/lab/{n}.nc")]);
    }
    // Also many that come together, among them a broken one, and what takes the place of another.
    for n in 0..30 {
        lab.write(&format!("many/{n:02}.nc"), &netcdf(&format!("of many {n}")));
    }
    lab.write("many/cut.nc", &netcdf("cut")[..60]);
    lab.run(["put", "-r", lab.path("many").to_str().unwrap(), "percale:/lab"]).ok();
    assert_eq!(found(&lab, "title like 'of many %'").len(), 30);
    assert_eq!(found(&lab, "extraction.error:*"), ["percale:/lab/many/cut.nc"]);
    put(&lab, "many/00.nc", &netcdf("another"));
    assert_eq!(found(&lab, "title=another"), ["percale:/lab/many/00.nc"]);
    assert_eq!(found(&lab, "title='of many 0'"), Vec::<String>::new());
    // What was read before it was published is not read once more.
    let position = || lab.line("--json space show lab").ok().json()["position"].clone();
    let before = position();
    wait::until("all records are looked at", Duration::from_secs(30), || {
        (lab.line("--json space show lab").ok().json()["unread"] == 0).then_some(())
    });
    assert_eq!(position(), before);
    let shown = lab.line("space show lab").ok().out;
    assert!(shown.contains("headers   sync"), "{shown}");
    lab.line("space set lab").code(2);
    lab.line("space set lab --extraction sometimes").code(2);
    lab.line("meta extract percale:/lab/none").code(3);
    lab.line("meta extract percale:/").code(2);
}

#[test]
fn documents_describe_the_files_beside_them_whichever_comes_first_and_until_they_go() {
    let lab = Lab::new();
    let said = |text: &str| text.as_bytes().to_vec();
    put(&lab, "scan.raw", b"no format that anybody knows");
    put(&lab, "scan.json", &said(r#"{"RepetitionTime": 2.5, "device": {"name": "Prisma"}}"#));
    soon(&lab, "RepetitionTime=2.5", &["scan.raw", "scan.json"]);
    assert_eq!(found(&lab, "device.name:Prisma described_by:scan.json"), ["percale:/lab/scan.raw"]);
    // The file's own word comes first, then that of the document of its whole name.
    put(&lab, "a.yaml", &said("title: by the short name\nproject: CMIP\nrun: 1\n"));
    put(&lab, "a.nc.json", &said(r#"{"title": "by the long name", "project": "CORDEX"}"#));
    put(&lab, "a.nc", &netcdf("its own"));
    soon(&lab, "ext:nc title='its own' project=CORDEX run=1", &["a.nc"]);
    assert_eq!(found(&lab, "ext:nc title:by*"), Vec::<String>::new());
    let shown = lab.line("meta get percale:/lab/a.nc").ok().out;
    assert!(shown.contains("format = netcdf3  (text, header)"), "{shown}");
    assert!(shown.contains("described_by = a.nc.json, a.yaml  (text, header)"), "{shown}");
    // One that is broken says so, and costs nothing of what the file says itself.
    put(&lab, "a.nc.json", b"{");
    soon(&lab, "ext:nc extraction.error:a.nc.json* project=CMIP", &["a.nc"]);
    lab.line("mv percale:/lab/scan.json percale:/lab/other.json").ok();
    soon(&lab, "RepetitionTime=2.5", &["other.json"]);
    lab.line("mv percale:/lab/scan.raw percale:/lab/other.raw").ok();
    soon(&lab, "RepetitionTime=2.5", &["other.raw", "other.json"]);
    lab.line("rm percale:/lab/other.json").ok();
    soon(&lab, "RepetitionTime=2.5 or described_by:other.json", &[]);
    // In a space that is `sync` the answer to each write is behind all that.
    lab.line("space set lab --extraction sync").ok();
    for n in 0..5 {
        put(&lab, &format!("{n}.raw"), b"raw");
        put(&lab, &format!("{n}.json"), format!(r#"{{"number": {n}}}"#).as_bytes());
        assert_eq!(found(&lab, &format!("number={n} ext:raw")), [format!("percale:/lab/{n}.raw")]);
        put(&lab, &format!("{n}.raw"), b"other");
        assert_eq!(found(&lab, &format!("number={n} ext:raw")), [format!("percale:/lab/{n}.raw")]);
    }
    for n in 0..20 {
        lab.write(&format!("many/{n:02}.raw"), b"raw");
        lab.write(&format!("many/{n:02}.yml"), format!("of: many {n}\n").as_bytes());
    }
    lab.run(["put", "-r", lab.path("many").to_str().unwrap(), "percale:/lab"]).ok();
    assert_eq!(found(&lab, "of:many* ext:raw").len(), 20);
    lab.line("space set lab --extraction off").ok();
    put(&lab, "late.raw", b"raw");
    put(&lab, "late.json", &said(r#"{"asked": true}"#));
    lab.line("meta extract percale:/lab/late.raw").ok();
    assert_eq!(found(&lab, "asked=true"), ["percale:/lab/late.raw"]);
}

#[test]
fn an_import_reads_the_headers_of_what_is_new() {
    let lab = Lab::new();
    let root = lab.path("native");
    lab.write("native/run/a.nc", &netcdf("first"));
    lab.write("native/run/b.nc", &netcdf("second"));
    lab.run(["store", "add", "native", "--posix", root.to_str().unwrap(), "--native"]).ok();
    lab.line("space set lab --extraction off").ok();
    let site = lab.line("api GET /v1/site").ok().json()["name"].as_str().unwrap().to_owned();
    let from = format!("{site}:{}", root.join("run").display());
    lab.run(["import", &from, "percale:/lab/run", "--extract", "--hash", "never"]).ok();
    assert_eq!(found(&lab, "title=first"), ["percale:/lab/run/a.nc"]);
    lab.write("native/run/b.nc", &netcdf("changed"));
    lab.run(["import", &from, "percale:/lab/run", "--extract"]).ok();
    assert_eq!(found(&lab, "title=changed"), ["percale:/lab/run/b.nc"]);
    assert_eq!(found(&lab, "format:netcdf3").len(), 2);
}

#[test]
fn files_that_are_broken_say_so_and_harm_no_others() {
    let lab = Lab::new();
    let whole = netcdf("whole");
    put(&lab, "cut.nc", &whole[..60]);
    put(&lab, "a.nc", &whole);
    let mut wrong = whole.clone();
    wrong[8..16].fill(0xff);
    put(&lab, "wrong.nc", &wrong);
    soon(&lab, "title=whole", &["a.nc"]);
    soon(&lab, "extraction.error:* name:cut.nc", &["cut.nc"]);
    soon(&lab, "extraction.error:* name:wrong.nc", &["wrong.nc"]);
    let failed = lab.line("meta extract percale:/lab").code(6);
    assert!(failed.err.contains("cut.nc") || failed.out.contains("cut.nc"), "{} {}", failed.out, failed.err);
}

#[test]
fn what_reads_headers_may_be_killed_and_nothing_is_missed() {
    let mut lab = Lab::new();
    for n in 0..40 {
        lab.write(&format!("data/{n:02}.nc"), &netcdf(&format!("file {n}")));
    }
    let until = Instant::now() + Duration::from_secs(3);
    let putting = lab.path("data");
    lab.run(["put", "-r", putting.to_str().unwrap(), "percale:/lab"]).ok();
    let mut killed = 0;
    while Instant::now() < until {
        for pid in readers(&lab.site) {
            killed += usize::from(kill_process(pid, Signal::KILL).is_ok());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(killed > 0, "no process reads headers");
    // Some may have been taken for what ended the process; to read them again is all there is to do.
    let count = |query: &str| found(&lab, query).len();
    wait::until("all headers", Duration::from_secs(60), || {
        (count("path:/lab/data extraction.error:*") + count("path:/lab/data format:*") == 40).then_some(())
    });
    lab.line("meta extract percale:/lab/data").ok();
    assert_eq!(found(&lab, "path:/lab/data format:netcdf3").len(), 40);
    // A server that dies with work in hand goes on from where it was.
    lab.line("space set lab --extraction async").ok();
    for n in 40..60 {
        lab.write(&format!("more/{n}.nc"), &netcdf(&format!("file {n}")));
    }
    lab.run(["put", "-r", lab.path("more").to_str().unwrap(), "percale:/lab"]).ok();
    lab.site.kill();
    lab.site.restart();
    let count = |query: &str| found(&lab, query).len();
    wait::until("all headers", Duration::from_secs(60), || {
        (count("path:/lab/more format:*") == 20).then_some(())
    });
    let position = |lab: &Lab| lab.line("--json space show lab").ok().json()["position"].clone();
    let before = position(&lab);
    lab.line("meta extract percale:/lab").ok();
    assert_eq!(position(&lab), before, "nothing that is known is said again");
}

#[test]
fn what_reads_headers_may_hang_and_holds_up_no_other_writes() {
    let lab = Lab::new();
    lab.line("space set lab --extraction sync").ok();
    put(&lab, "first.nc", &netcdf("first"));
    lab.line("space create other").ok();
    lab.line("space set other --extraction off").ok();
    let file = lab.write("file", b"bytes");
    let hung = readers(&lab.site);
    assert!(!hung.is_empty(), "no process reads headers");
    for pid in &hung {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            put(&lab, "second.nc", &netcdf("second"));
            assert_eq!(found(&lab, "title=second"), ["percale:/lab/second.nc"]);
        });
        let began = Instant::now();
        for n in 0..5 {
            lab.run(["put", file.to_str().unwrap(), &format!("percale:/other/{n}")]).ok();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        written.join().unwrap();
    });
    for pid in hung {
        // Some were ended, as what does not answer is.
        let _ = kill_process(pid, Signal::CONT);
    }
}

#[test]
fn what_reads_headers_is_shut_in() {
    let mut reader = Command::new(env!("CARGO_BIN_EXE_percale"))
        .arg("read-headers")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // `H`, four bytes of length, and what is open.
    let mut hello = [0; 5 + 11];
    reader.stdout.as_mut().unwrap().read_exact(&mut hello).unwrap();
    let proc = Path::new("/proc").join(reader.id().to_string());
    let status = std::fs::read_to_string(proc.join("status")).unwrap();
    assert!(status.lines().any(|line| line == "Seccomp:\t2"), "{status}");
    assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"), "{status}");
    let limits = std::fs::read_to_string(proc.join("limits")).unwrap();
    for (what, limit) in
        [("Max open files", "0"), ("Max file size", "0"), ("Max address space", "1073741824")]
    {
        let line = limits.lines().find(|line| line.starts_with(what)).unwrap();
        assert_eq!(line[what.len()..].split_whitespace().next(), Some(limit), "{line}");
    }
    assert_eq!(&hello[5..], br#"{"open":[]}"#);
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success(), "it ends when the pipe is closed");
}

#[test]
fn a_server_may_leave_headers_to_others() {
    let site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("extraction.workers", "0"));
    let lab = Lab::of(site);
    put(&lab, "a.nc", &netcdf("first"));
    let refused = lab.line("--json meta extract percale:/lab");
    assert_eq!(refused.error()["code"], "unsupported");
    assert_eq!(found(&lab, "format:*"), Vec::<String>::new());
}

/// Reads traces whose header is 8 bytes: the number of samples, and the interval in microseconds.
const TRACES: &str = r#"
import json, struct, sys, time
with open(sys.argv[1], "rb") as file:
    header = file.read()
if header.startswith(b"sleep"):
    time.sleep(3600)
print("a word of warning\n" * 20_000, file=sys.stderr)
samples, interval = struct.unpack(">II", header[:8])
print(json.dumps({"name": "dim.sample", "value": samples}))
print(json.dumps({"name": "interval", "values": [interval / 1e6, "s"]}))
print(json.dumps({"name": "bytes", "value": len(header)}))
"#;

#[test]
fn a_site_reads_formats_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("traces.py");
    std::fs::write(&script, TRACES).unwrap();
    let program = format!(
        "[{{ files = \"*.trc\", command = [\"/usr/bin/env\", \"python3\", {script:?}], head_bytes = 1000, timeout = \"3s\" }}]"
    );
    let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("extraction.programs", &program);
    let lab = Lab::of(Site::start(options));
    lab.line("space set lab --extraction sync").ok();
    put(&lab, "a b.trc", &[&[0, 0, 1, 0, 0, 0, 7, 208][..], &[7; 5000]].concat());
    put(&lab, "a.other", &[0; 100]);
    soon(&lab, "dim.sample=256 interval:0.002 bytes=1000", &["a b.trc"]);
    // What it does with a file is a matter of that file.
    put(&lab, "short.trc", b"x");
    put(&lab, "sleep.trc", b"sleep for ever");
    soon(&lab, "name:short.trc extraction.error:*", &["short.trc"]);
    soon(&lab, "name:sleep.trc extraction.error:*", &["sleep.trc"]);
    let said = lab.line("meta get percale:/lab/short.trc").ok().out;
    assert!(said.contains("unpack requires a buffer of 8 bytes"), "{said}");
    let said = lab.line("meta get percale:/lab/sleep.trc").ok().out;
    assert!(said.contains("did not end within 3 s"), "{said}");
}

/// A site, and another one with so many readers of headers, from where `afar.nc` was put.
fn two_sites(workers: &str) -> (Lab, Site) {
    let site = |name: &str, workers: &str| {
        let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"));
        let options = options.set("site.name", &format!("\"{name}\"")).set("extraction.workers", workers);
        Site::start(options.set("extraction.again", "\"2s\""))
    };
    let (lab, baltic) = (Lab::of(site("alps", "1")), site("baltic", workers));
    let at_baltic = |words: &[&str]| {
        let done = baltic.command(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    at_baltic(&["store", "add", "far", "--posix", baltic.directory().join("store").to_str().unwrap()]);
    let invitation = lab.run(["-q", "site", "invite"]).ok().out;
    at_baltic(&["site", "join", invitation.trim()]);
    lab.run(["grant", "add", "percale:/lab", "user:admin@site:baltic", "write"]).ok();
    wait::until("the space at the other site", Duration::from_secs(60), || {
        baltic.command(&["stat", "percale:/lab"]).output().unwrap().status.success().then_some(())
    });
    let file = lab.write("afar.nc", &netcdf("afar"));
    // The home hears of the stores of a site some moments after it joined.
    wait::until("the home to know the store", Duration::from_secs(60), || {
        let put = ["put", file.to_str().unwrap(), "percale:/lab/afar.nc"];
        baltic.command(&put).output().unwrap().status.success().then_some(())
    });
    (lab, baltic)
}

#[test]
fn what_lies_at_another_site_is_read_there() {
    let (lab, baltic) = two_sites("1");
    soon(&lab, "title=afar", &["afar.nc"]);
    assert_eq!(found(&lab, "extraction.error:*"), Vec::<String>::new());
    // Also if somebody asks.
    let read_there = || {
        let metrics = baltic.http_get("/metrics").unwrap();
        let line =
            metrics.lines().find(|line| line.starts_with("percale_headers_read_total{outcome=\"found\""));
        line.and_then(|line| line.split(' ').next_back()?.parse::<u64>().ok()).expect("a count")
    };
    let before = read_there();
    lab.line("meta extract percale:/lab").ok();
    assert_eq!(read_there(), before + 1);
}

#[test]
fn what_lies_at_a_site_that_is_away_is_read_by_itself_once_it_is_back() {
    let (lab, mut baltic) = two_sites("1");
    soon(&lab, "title=afar", &["afar.nc"]);
    lab.line("space set lab --extraction off").ok();
    let file = lab.write("later.nc", &netcdf("later"));
    let put = ["put", file.to_str().unwrap(), "percale:/lab/later.nc"];
    assert!(baltic.command(&put).output().unwrap().status.success());
    baltic.kill();
    lab.line("space set lab --extraction async").ok();
    soon(&lab, "extraction.unread=true", &["later.nc"]);
    let said = lab.line("meta get percale:/lab/later.nc").ok().out;
    assert!(said.contains("site baltic did not read it") && said.contains("tried again"), "{said}");
    // What comes behind it does not wait, and what is known is still found.
    put_near(&lab);
    soon(&lab, "title=afar", &["afar.nc"]);
    baltic.spawn();
    baltic.wait_until_ready();
    soon(&lab, "title=later", &["later.nc"]);
    assert_eq!(found(&lab, "extraction.error:*"), Vec::<String>::new());
    assert_eq!(found(&lab, "extraction.unread=true"), Vec::<String>::new());
}

fn put_near(lab: &Lab) {
    put(lab, "near.nc", &netcdf("near"));
    soon(lab, "title=near", &["near.nc"]);
}

#[test]
fn what_another_site_does_not_read_is_read_for_whom_asks() {
    let (lab, _baltic) = two_sites("0");
    // It holds up nothing, and says where it is.
    put_near(&lab);
    soon(&lab, "extraction.error:*", &["afar.nc"]);
    let said = lab.line("meta get percale:/lab/afar.nc").ok().out;
    assert!(said.contains("site baltic"), "{said}");
    lab.line("meta extract percale:/lab").ok();
    assert_eq!(found(&lab, "title=afar"), ["percale:/lab/afar.nc"]);
    assert_eq!(found(&lab, "extraction.error:* type:object"), Vec::<String>::new());
}

#[test]
fn collections_say_when_headers_are_read_and_what_of_them_is_kept() {
    let lab = Lab::new();
    lab.line("space set lab --extraction off").ok();
    lab.line("mkdir -p percale:/lab/now/raw").ok();
    lab.line("meta set percale:/lab/now rules.extraction=sync rules.keep=title rules.keep=var.*").ok();
    lab.line("meta set percale:/lab/now/raw rules.extraction=off").ok();
    for name in ["a.nc", "now/a.nc", "now/raw/a.nc"] {
        put(&lab, name, &netcdf("first"));
    }
    assert_eq!(found(&lab, "title=first"), ["percale:/lab/now/a.nc"]);
    let said = lab.line("meta get percale:/lab/now/a.nc").ok().out;
    for name in ["title", "var.tas.units", "format"] {
        assert!(said.lines().any(|line| line.starts_with(&format!("{name} ="))), "{name}: {said}");
    }
    assert!(!said.contains("level") && !said.contains("dim.x"), "{said}");
    // What is asked for is read, wherever it is, and the rules of what is kept hold for it, too.
    lab.line("meta extract percale:/lab").ok();
    let mut all = found(&lab, "title=first");
    all.sort();
    assert_eq!(all, ["percale:/lab/a.nc", "percale:/lab/now/a.nc", "percale:/lab/now/raw/a.nc"]);
    assert_eq!(found(&lab, "level=500"), ["percale:/lab/a.nc"]);
    // A rule that is taken back is so at once.
    lab.line("meta rm percale:/lab/now rules.extraction").ok();
    put(&lab, "now/b.nc", &netcdf("second"));
    assert_eq!(found(&lab, "title=second"), Vec::<String>::new());
}
