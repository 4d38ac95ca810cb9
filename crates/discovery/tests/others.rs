//! What the readers of headers find, beside what h5py and netCDF4 see in files that others made; and what they do with files that are
//! broken on purpose.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use percale_core::attribute::MAX_HEADER_ATTRIBUTES;
use percale_discovery::formats;
use percale_discovery::source::File;
use percale_testkit::tools::python;

/// Where Debian packages put the samples (scripts/bootstrap installs them).
const SAMPLES: [&str; 4] =
    ["/usr/share/ferret-vis/data", "/usr/share/ncarg", "/usr/share/gmt-gshhg", "/usr/share/python-tables"];

/// Returns the folders with samples, or says that there are none.
fn folders() -> Option<Vec<&'static str>> {
    let found: Vec<&str> = SAMPLES.into_iter().filter(|folder| Path::new(folder).is_dir()).collect();
    let has_python = Command::new(python()).args(["-c", "import eccodes, h5py, netCDF4"]).output();
    if found.is_empty() || !has_python.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: without sample files, eccodes, h5py and netCDF4 (scripts/bootstrap test installs them)"
        );
        return None;
    }
    Some(found)
}

#[test]
fn every_attribute_that_others_see_is_found_with_its_type() {
    let Some(folders) = folders() else { return };
    let own = std::env::current_exe().unwrap();
    let headers = own.parent().unwrap().parent().unwrap().join("examples/headers");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare.py");
    let output = Command::new(python()).arg(script).arg(headers).args(&folders).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    if folders.len() == SAMPLES.len() {
        let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert!(last["attributes"].as_u64().unwrap() > 8000, "{last}");
    }
}

/// Makes a file of each kind that is broken in some way, and a whole one.
const HOSTILE: &str = r#"
import h5py, netCDF4, numpy, sys
def hdf5(name):
    return h5py.File(f"{sys.argv[1]}/{name}", "w", libver=sys.argv[2])
with hdf5("whole.h5") as file:
    file.attrs["title"] = "whole"
    file.create_dataset("a/b/c", data=numpy.arange(10)).attrs["units"] = "K"
with hdf5("cycle.h5") as file:
    group = file.create_group("a/b")
    group["up"] = file["a"]
    group["soft"] = h5py.SoftLink("/a/b/soft")
    group["gone"] = h5py.SoftLink("/nowhere")
    group["outside"] = h5py.ExternalLink("/etc/passwd", "/")
    file.attrs["title"] = "cycle"
with hdf5("deep.h5") as file:
    group = file
    for n in range(500):
        group = group.create_group("g")
    file.attrs["title"] = "deep"
with hdf5("many.h5") as file:
    group = file.create_group("many")
    scalar = h5py.h5s.create(h5py.h5s.SCALAR)
    for n in range(int(sys.argv[3])):
        # As `group.attrs[…] = n`, which looks at all that are there once more for each.
        h5py.h5a.create(group.id, f"a{n}".encode(), h5py.h5t.NATIVE_INT64, scalar).write(numpy.array(n))
    file.attrs["title"] = "many"
with hdf5("strange.h5") as file:
    file.attrs["title"] = "strange"
    file.attrs["nan"] = [numpy.nan, numpy.inf, -numpy.inf]
    file.attrs["latin"] = numpy.bytes_(b"caf\xe9")
    file.attrs["empty"] = h5py.Empty("f")
    file.attrs["bool"] = True
    file.attrs["half"] = numpy.float16(0.5)
    file.attrs["large"] = numpy.uint64(2**64 - 1)
    file.attrs["long"] = "x" * 60_000
    file.attrs["row"] = numpy.arange(5000)
with netCDF4.Dataset(f"{sys.argv[1]}/three.nc", "w", format="NETCDF3_CLASSIC") as file:
    file.title = "three"
    file.createDimension("x", 3)
    file.createVariable("v", "f4", ("x",)).units = "K"
for name, form in [("axes4.nc", "NETCDF4"), ("axes3.nc", "NETCDF3_CLASSIC")]:
    with netCDF4.Dataset(f"{sys.argv[1]}/{name}", "w", format=form) as file:
        file.title = name.split(".")[0]
        for axis, units, values in [("lat", "degrees_north", [50, 45, 40]), ("lon", "degrees_east", [350, 355]),
                                    ("time", "days since 2000-01-01", [0, 31])]:
            file.createDimension(axis, len(values))
            variable = file.createVariable(axis, "f8", (axis,))
            variable.units = units
            variable[:] = values
        # The way of a ship, which goes up and down again.
        file.createDimension("obs", 3)
        track = file.createVariable("track", "f8", ("obs",))
        track.units = "degrees_north"
        track[:] = [60, 80, 61]
"#;

/// What a file of [`HOSTILE`] says, by name.
fn read(bytes: Vec<u8>) -> Result<Vec<(String, Vec<percale_core::AttributeValue>)>, String> {
    let file = File::new(Arc::new(bytes));
    let header = formats::read(&file, "x").map_err(|error| error.to_string())?;
    let found = header.map(|header| header.finish()).unwrap_or_default();
    Ok(found.into_iter().map(|one| (one.name.to_string(), one.values)).collect())
}

fn hostile(folder: &Path, form: &str, many: usize) -> bool {
    let Some(_) = folders() else { return false };
    let made = Command::new(python())
        .args(["-c", HOSTILE])
        .arg(folder)
        .args([form, &many.to_string()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    true
}

#[test]
fn files_that_are_made_to_break_readers_are_read_as_far_as_they_can_be() {
    // More in one object than are kept of a file. The library looks at all that are there before it adds one.
    let many = MAX_HEADER_ATTRIBUTES + 500;
    for form in ["earliest", "latest"] {
        let folder = tempfile::tempdir().unwrap();
        if !hostile(folder.path(), form, many) {
            return;
        }
        for name in
            ["whole.h5", "cycle.h5", "deep.h5", "many.h5", "strange.h5", "three.nc", "axes3.nc", "axes4.nc"]
        {
            let began = Instant::now();
            let found = read(std::fs::read(folder.path().join(name)).unwrap());
            let found = found.unwrap_or_else(|error| panic!("{form} {name}: {error}"));
            let of = |wanted: &str| found.iter().find(|(name, _)| name == wanted).map(|(_, values)| values);
            let title = name.split('.').next().unwrap();
            assert_eq!(of("title").unwrap()[0].to_string(), title, "{form} {name}");
            assert!(began.elapsed() < Duration::from_secs(30), "{form} {name}: {:?}", began.elapsed());
            let shown = |wanted: &str| {
                of(wanted)
                    .map(|values| values.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" "))
            };
            match name {
                "whole.h5" => {
                    assert_eq!(shown("var.a.b.c.units").as_deref(), Some("K"));
                    assert_eq!(shown("var.a.b.c").as_deref(), Some("int64"));
                    assert_eq!(shown("var.a.b.c.shape").as_deref(), Some("10"));
                }
                "strange.h5" => {
                    assert_eq!(shown("nan").as_deref(), Some("NaN Infinity -Infinity"));
                    assert_eq!(shown("latin").as_deref(), Some("café"));
                    assert_eq!(shown("empty").as_deref(), Some(""));
                    assert_eq!(shown("bool").as_deref(), Some("true"));
                    assert_eq!(shown("half").as_deref(), Some("0.5"));
                    assert_eq!(of("long").unwrap()[0].size(), 8192);
                    assert_eq!(of("row").unwrap().len(), 256);
                    assert_eq!(shown("extraction.left_out").as_deref(), Some("4744"));
                }
                // Of the newer form, more than ten thousand attributes of one object cannot be read.
                "many.h5" if form == "latest" => assert!(of("extraction.error").is_some(), "{form} {name}"),
                "axes3.nc" | "axes4.nc" => {
                    let places =
                        ["west", "east", "south", "north"].map(|side| shown(&format!("coverage.{side}")));
                    assert_eq!(places.map(Option::unwrap), ["-10.0", "-5.0", "40.0", "50.0"], "{name}");
                    assert_eq!(shown("coverage.end").as_deref(), Some("2000-02-01T00:00:00Z"), "{name}");
                }
                "many.h5" | "deep.h5" => assert!(of("extraction.left_out").is_some(), "{form} {name}"),
                _ => {}
            }
        }
    }
}

#[test]
fn bytes_that_were_changed_and_cut_break_nothing() {
    let folder = tempfile::tempdir().unwrap();
    if !hostile(folder.path(), "earliest", 1) {
        return;
    }
    let mut random = 7u64;
    // The same each time: what fails can be looked at.
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below.max(1)
    };
    for name in ["whole.h5", "cycle.h5", "strange.h5", "three.nc"] {
        let whole = std::fs::read(folder.path().join(name)).unwrap();
        for round in 0..100 {
            let mut bytes = whole.clone();
            if round % 3 == 0 {
                bytes.truncate(next(whole.len()));
            }
            for _ in 0..1 + next(8) {
                let at = next(bytes.len().min(4096));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = if next(2) == 0 { 0xff } else { next(256) as u8 };
                }
            }
            let began = Instant::now();
            // An error is an answer; a panic, an abort and a wait are not.
            let _ = read(bytes);
            assert!(began.elapsed() < Duration::from_secs(20), "{name} {round}: {:?}", began.elapsed());
        }
    }
}

/// Writes fields as ecCodes does, and prints what it says of each.
const GRIB: &str = r#"
import eccodes, json, sys
fields = []
with open(sys.argv[1], "wb") as file:
    for sample, changes in [
        ("regular_ll_pl_grib2", {"level": 500, "dataDate": 20240601, "dataTime": 600, "step": 12}),
        ("regular_ll_pl_grib2", {"level": 850, "shortName": "r"}),
        ("regular_ll_sfc_grib2", {"typeOfLevel": "heightAboveGround", "level": 2}),
        ("regular_ll_sfc_grib2", {"shortName": "tp", "stepType": "accum", "stepRange": "0-6"}),
        ("regular_gg_pl_grib2", {"level": 1}),
        ("polar_stereographic_pl_grib2", {}),
        ("regular_ll_pl_grib1", {"level": 300, "dataDate": 19990131, "step": 48}),
        ("regular_ll_sfc_grib1", {}),
    ]:
        field = eccodes.codes_grib_new_from_samples(sample)
        for key, value in changes.items():
            eccodes.codes_set(field, key, value)
        eccodes.codes_write(field, file)
        get = lambda key: eccodes.codes_get(field, key)
        fields.append({
            "level_type": get("typeOfLevel"), "level": get("level"), "shape": [get("Nj"), get("Ni")],
            "valid": "%04d-%02d-%02dT%02d:%02d:00Z" % (get("validityDate") // 10000, get("validityDate") // 100 % 100,
                     get("validityDate") % 100, get("validityTime") // 100, get("validityTime") % 100),
            "reference": "%04d-%02d-%02dT%02d:%02d:00Z" % (get("dataDate") // 10000, get("dataDate") // 100 % 100,
                     get("dataDate") % 100, get("dataTime") // 100, get("dataTime") % 100),
        })
        eccodes.codes_release(field)
print(json.dumps(fields))
"#;

#[test]
fn fields_of_grib_are_as_eccodes_wrote_them() {
    let Some(_) = folders() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.grib");
    let made = Command::new(python()).args(["-c", GRIB]).arg(&path).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let fields: Vec<serde_json::Value> = serde_json::from_slice(&made.stdout).unwrap();
    let found = read(std::fs::read(&path).unwrap()).unwrap();
    let of = |wanted: &str| -> Vec<String> {
        let found = found.iter().find(|(name, _)| name == wanted);
        found.map(|(_, values)| values.iter().map(ToString::to_string).collect()).unwrap_or_default()
    };
    assert_eq!(of("messages"), [fields.len().to_string()]);
    assert_eq!(of("extraction.error"), Vec::<String>::new());
    for field in &fields {
        for (name, key) in
            [("level_type", "level_type"), ("valid_time", "valid"), ("reference_time", "reference")]
        {
            let value = field[key].as_str().unwrap();
            assert!(of(name).iter().any(|one| one == value), "{name}: {field} {:?}", of(name));
        }
        let level = field["level"].as_f64().unwrap();
        assert!(level == 0.0 || of("level").contains(&format!("{level:?}")), "{field} {:?}", of("level"));
    }
    assert_eq!(of("var.TMP.shape"), ["31", "16"]);
    assert_eq!(of("var.TMP.level"), ["500.0", "2.0", "1.0", "1000.0"]);
    assert_eq!(of("parameter_name")[..2], ["Temperature", "Relative humidity"]);
    assert_eq!(of("grid"), ["regular_ll", "regular_gg", "polar_stereographic"]);
    assert_eq!(of("coverage.south"), ["-87.863799"]);
}
