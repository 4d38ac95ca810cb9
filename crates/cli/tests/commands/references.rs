//! Files that a search finds, opened as one array through the site.

use std::process::Command;

use percale_testkit::tools::python;

use crate::lab::{Lab, Ran, finished};

/// Makes files whose order by name is not that of time: of NetCDF-4 packed, of NetCDF-3 with records, and some that fit nothing.
const MAKE: &str = r#"
import netCDF4, numpy, os
def make(path, begin, form, units="days since 2000-01-01"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.title = "parts"
        for name, length in [("time", None), ("lat", 30), ("lon", 40)]:
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar = units, "standard"
        time[:] = numpy.arange(begin, begin + 6)
        for name, length in [("lat", 30), ("lon", 40)]:
            file.createVariable(name, "f8", (name,))[:] = numpy.arange(length)
        options = dict(zlib=True, shuffle=True, chunksizes=(2, 30, 40)) if form == "NETCDF4" else {}
        tas = file.createVariable("tas", "f4", ("time", "lat", "lon"), fill_value=-1.0, **options)
        tas.units = "K"
        values = numpy.arange(begin * 1200, (begin + 6) * 1200, dtype="f4").reshape(6, 30, 40)
        values[0, 0, 0] = -1
        tas[:] = values
for form, folder in [("NETCDF4", "four"), ("NETCDF3_CLASSIC", "three")]:
    for name, begin in [("z first.nc", 0), ("b 50%+ä.nc", 6), ("a.nc", 12), ("deep/c.nc", 18)]:
        make(f"data/{folder}/{name}", begin, form)
make("data/units/a.nc", 0, "NETCDF4")
make("data/units/b.nc", 6, "NETCDF4", units="days since 2001-01-01")
"#;

/// Opens references with the token of the site, and the files themselves; both must be the same.
const OPEN: &str = r#"
import os, sys, xarray
token = open(os.environ["PERCALE_TOKEN_FILE"]).read().strip()
data = xarray.open_dataset("reference://", engine="zarr", backend_kwargs={"storage_options": {
    "fo": sys.argv[1],
    "remote_protocol": "https",
    "remote_options": {"asynchronous": True, "headers": {"Authorization": f"Bearer {token}"}},
}})
files = [xarray.open_dataset(path) for path in sys.argv[2:]]
wanted = files[0] if len(files) == 1 else xarray.concat(files, "time", data_vars="minimal", coords="minimal", compat="override")
xarray.testing.assert_identical(data.load(), wanted.load())
print("the same", data.sizes["time"])
"#;

/// Runs a script; nothing if there is not what it needs.
fn run_python(lab: &Lab, script: &str, arguments: &[&str]) -> Option<Ran> {
    let imports = "import aiohttp, fsspec, netCDF4, xarray, zarr";
    let has = Command::new(python()).args(["-c", imports]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: without aiohttp, fsspec, netCDF4, xarray and zarr (scripts/bootstrap test installs them)"
        );
        return None;
    }
    let mut command = Command::new(python());
    command.args(["-c", script]).args(arguments).current_dir(lab.path(""));
    command.env("SSL_CERT_FILE", lab.site.ca_file()).env("PERCALE_TOKEN_FILE", lab.site.admin_token_file());
    Some(finished(command.output().unwrap()))
}

fn made() -> Option<Lab> {
    let lab = Lab::new();
    // What is asked for is read then; nothing must have been read before.
    lab.line("space set lab --extraction off").ok();
    lab.write("data/note.txt", b"no arrays");
    run_python(&lab, MAKE, &[])?.ok();
    lab.run(["put", "-r", lab.path("data").to_str().unwrap(), "percale:/lab"]).ok();
    Some(lab)
}

#[test]
fn files_that_were_found_are_one_array() {
    let Some(lab) = made() else { return };
    let order = ["z first.nc", "b 50%+ä.nc", "a.nc", "deep/c.nc"];
    for folder in ["four", "three"] {
        let query = format!("path:/lab/data/{folder} ext:nc");
        let said = lab.run(["search", &query, "--refs", "all.json"]).ok();
        assert!(said.out.contains("files: 4") && said.out.contains("joined along time"), "{}", said.out);
        let files: Vec<String> = order.iter().map(|name| format!("data/{folder}/{name}")).collect();
        let arguments: Vec<&str> = ["all.json"].into_iter().chain(files.iter().map(String::as_str)).collect();
        let opened = run_python(&lab, OPEN, &arguments).unwrap().ok();
        assert_eq!(opened.out.trim(), "the same 24");
    }
    // One file needs nothing to be joined along.
    let one =
        lab.run(["--json", "search", "name:a.nc path:/lab/data/four", "--refs", "one.json"]).ok().json();
    assert_eq!((&one["files"], &one["joined"], &one["concat"]), (&1.into(), &0.into(), &().into()));
    assert_eq!(one["left_out"].as_array().unwrap().len(), 0);
    let opened = run_python(&lab, OPEN, &["one.json", "data/four/a.nc"]).unwrap().ok();
    assert_eq!(opened.out.trim(), "the same 6");
    // In the order that was asked for, which is none of time.
    let query = ["search", "path:/lab/data/four ext:nc", "--sort", "name", "--refs", "named.json"];
    let said = lab.run(query).ok();
    assert!(said.err.contains("ends with time"), "{}", said.err);
    let opened = run_python(
        &lab,
        OPEN,
        &[
            "named.json",
            "data/four/a.nc",
            "data/four/b 50%+ä.nc",
            "data/four/deep/c.nc",
            "data/four/z first.nc",
        ],
    );
    opened.unwrap().ok();
    // The version is that of the bytes that were looked at.
    let before = lab.line("api GET /v1/references/lab/data/four/a.nc").ok().json();
    lab.run([
        "put",
        "--overwrite",
        lab.path("data/units/a.nc").to_str().unwrap(),
        "percale:/lab/data/four/a.nc",
    ])
    .ok();
    let after = lab.line("api GET /v1/references/lab/data/four/a.nc").ok().json();
    assert_ne!(before["version"], after["version"]);
    let written = std::fs::read_to_string(lab.path("one.json")).unwrap();
    assert!(
        written.contains(&format!("/v1/data/lab/data/four/a.nc?version={}", before["version"])),
        "{written}"
    );
    let opened = run_python(&lab, OPEN, &["one.json", "data/four/a.nc"]).unwrap();
    assert!(opened.code != 0 || opened.out.trim() == "the same 6", "{} {}", opened.out, opened.err);
}

#[test]
fn what_cannot_be_one_array_is_explained() {
    let Some(lab) = made() else { return };
    let refused = |words: &[&str], code: i32, said: &[&str]| {
        let ran = lab.run([&["search"][..], words, &["--refs", "no.json"]].concat()).code(code);
        for said in said {
            assert!(ran.err.contains(said), "{said}: {}", ran.err);
        }
        assert!(!lab.path("no.json").exists() && !lab.has_partial_files(), "{words:?}");
    };
    refused(&["path:/lab/data/units"], 2, &["2000-01-01", "2001-01-01", "percale:/lab/data/units/b.nc"]);
    refused(
        &["path:/lab/data/four ext:nc", "--concat", "level"],
        2,
        &["no dimension level", "lat, lon, time"],
    );
    refused(&["path:/lab/data/*/a.nc"], 2, &["both begin with time 12"]);
    refused(&["name:note.txt"], 2, &["HDF5 and NetCDF", "ext:nc"]);
    refused(&["name:nothing.nc"], 3, &["no object was found"]);
    refused(&["name:four type:collection"], 3, &["no object was found"]);
    lab.line("search ext:nc --concat time").code(2);
    lab.line("search --count ext:nc --refs no.json").code(2);
    lab.run(["search", "path:/lab/data/four name:z*", "--refs", "nowhere/no.json"]).code(3);
    let missing = lab.line("--json api GET /v1/references/lab/data/none.nc");
    assert_ne!(missing.code, 0, "{}", missing.out);
    let collection = lab.line("api GET /v1/references/lab/data");
    assert_ne!(collection.code, 0, "{}", collection.out);
}
