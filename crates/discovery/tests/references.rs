//! Arrays that are read by references, beside what h5py, netCDF4 and xarray read from the files; and what is said of files that are broken.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use percale_discovery::formats;
use percale_discovery::references::{MergeOptions, Part, Reference, References, merge};
use percale_discovery::source::File;
use percale_testkit::tools::python;

fn has_python() -> bool {
    let imports = "import fsspec, h5py, netCDF4, xarray, zarr";
    let has = Command::new(python()).args(["-c", imports]).output();
    let has = has.is_ok_and(|output| output.status.success());
    if !has {
        println!(
            "skipped: without fsspec, h5py, netCDF4, xarray and zarr (scripts/bootstrap test installs them)"
        );
    }
    has
}

#[test]
fn every_array_is_what_its_library_reads_or_is_left_out_by_name() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("examples/references");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references.py");
    let output = Command::new(python()).arg(script).arg(program).arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert!(last["arrays"].as_u64().unwrap() > 300, "{last}");
}

/// Makes a small file with each kind of index of chunks.
const KINDS: &str = r#"
import h5py, netCDF4, numpy, sys
data = numpy.arange(600.0).reshape(30, 20)
for version in ["earliest", "latest"]:
    with h5py.File(f"{sys.argv[1]}/{version}.h5", "w", libver=version) as file:
        for name, most in [("fixed", None), ("extensible", (None, 20)), ("tree", (None, None))]:
            file.create_dataset(name, data=data, chunks=(2, 10), maxshape=most, compression="gzip", shuffle=True)
            file.create_dataset(name + "_plain", data=data, chunks=(2, 10), maxshape=most)
        file.create_dataset("one", data=data)
        file.create_dataset("texts", data=["a", "b"], dtype=h5py.string_dtype())
        file["one"].attrs["_FillValue"] = 1.0
for name, form in [("four.nc", "NETCDF4"), ("three.nc", "NETCDF3_CLASSIC"), ("five.nc", "NETCDF3_64BIT_DATA")]:
    with netCDF4.Dataset(f"{sys.argv[1]}/{name}", "w", format=form) as file:
        file.createDimension("time", None)
        file.createDimension("x", 20)
        file.createVariable("time", "f8", ("time",))[:] = range(30)
        file.createVariable("x", "f4", ("x",))[:] = range(20)
        file.createVariable("tas", "i2", ("time", "x"))[:] = data
"#;

fn read(bytes: Vec<u8>) -> Option<References> {
    let size = bytes.len() as u64;
    let references = formats::references::read(&File::new(Arc::new(bytes))).ok()??;
    for (key, reference) in &references.refs {
        if let Reference::Range(offset, len) = reference {
            assert!(
                offset.checked_add(*len).is_some_and(|end| end <= size),
                "{key}: {offset} {len} of {size}"
            );
        }
    }
    Some(references)
}

#[test]
fn files_that_were_changed_and_cut_break_nothing_and_point_nowhere() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(python()).args(["-c", KINDS]).arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut random = 7u64;
    // The same each time: what fails can be looked at.
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below.max(1)
    };
    for name in ["earliest.h5", "latest.h5", "four.nc", "three.nc", "five.nc"] {
        let whole = std::fs::read(folder.path().join(name)).unwrap();
        let found = read(whole.clone()).unwrap();
        assert_eq!(found.left_out, [], "{name}");
        let mut read_at_all = 0;
        for round in 0..300 {
            let mut bytes = whole.clone();
            if round % 3 == 0 {
                bytes.truncate(next(whole.len()));
            }
            // Values break nothing; the first part is nearly all header.
            let part = if round % 2 == 0 { bytes.len() } else { bytes.len().min(8192) };
            for _ in 0..1 + next(6) {
                let at = next(part);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = if next(2) == 0 { 0xff } else { next(256) as u8 };
                }
            }
            let began = Instant::now();
            if let Some(found) = read(bytes) {
                read_at_all += 1;
                // Whatever was read can be written, or is refused.
                if let Ok(part) = Part::new("a", "https://site/a", found) {
                    let merged = merge(vec![part], &MergeOptions::default()).unwrap();
                    merged.write(&mut Vec::new()).unwrap();
                }
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{name} {round}: {:?}", began.elapsed());
        }
        assert!(read_at_all > 50, "{name}: {read_at_all}");
    }
    assert_eq!(formats::references::read(&File::new(Arc::new(b"no such format".to_vec()))).unwrap(), None);
}
