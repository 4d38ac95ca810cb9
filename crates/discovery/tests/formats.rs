//! What is found in files of each format, made here byte by byte or by the writer of the format.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod made;

use std::sync::Arc;

use percale_core::AttributeValue;
use percale_discovery::formats;
use percale_discovery::source::File;

/// Reads a file, and shows each attribute as `name=value, value (type)`.
fn read(name: &str, bytes: &[u8]) -> Vec<String> {
    let file = File::new(Arc::new(bytes.to_vec()));
    let header = formats::read(&file, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let show = |values: &[AttributeValue]| {
        let shown: Vec<String> = values.iter().map(ToString::to_string).collect();
        format!("{} ({})", shown.join(", "), values.last().map_or("", AttributeValue::type_name))
    };
    let found = header.map(|header| header.finish()).unwrap_or_default();
    found.into_iter().map(|one| format!("{}={}", one.name, show(&one.values))).collect()
}

#[track_caller]
fn has(found: &[String], wanted: &[&str]) {
    for wanted in wanted {
        assert!(found.iter().any(|found| found == wanted), "{wanted}: {found:#?}");
    }
}

/// Each beginning of a file is an answer, too: those of the first 4096 bytes, and those that end near a block of FITS.
fn cut(name: &str, bytes: &[u8]) {
    let blocks = (2880..=bytes.len()).step_by(2880).flat_map(|end| end - 81..=end + 81);
    for len in (0..4096).chain(blocks).filter(|len| *len < bytes.len()) {
        let file = File::new(Arc::new(bytes[..len].to_vec()));
        let _ = formats::read(&file, name).map(|header| header.map(|header| header.finish()));
    }
}

#[test]
fn fits() {
    let bytes = made::fits();
    let found = read("x.fits", &bytes);
    has(
        &found,
        &[
            "format=fits (text)",
            "OBJECT=M 31 (text)",
            "EXPTIME=12.5 (float)",
            "SIMPLE=true (bool)",
            "DATE-OBS=2018-03-01T10:20:30, 2018-03-01T10:20:30Z (time)",
            "LONG=a text that goes on and on (text)",
            "HISTORY=was made (text)",
            "var.primary=float32 (text)",
            "var.primary.shape=20, 10 (integer)",
            "MASK.BITPIX=16 (integer)",
            "var.MASK.shape=5 (integer)",
            "dim.RA=10 (integer)",
            "dim.FREQ=20 (integer)",
            "dim.MASK.NAXIS1=5 (integer)",
            "dim.EVENTS.row=7 (integer)",
            "var.PACKED=float64 (text)",
            "var.PACKED.shape=40, 30 (integer)",
            "dim.PACKED.NAXIS1=30 (integer)",
            "dim.TILES.row=5000 (integer)",
            "var.TWICE.shape=3, 4, 5 (integer)",
            "dim.TWICE.NAXIS1=5 (integer)",
            "dim.TWICE.NAXIS2=4 (integer)",
            "dim.TWICE.FREQ=3 (integer)",
        ],
    );
    // A table is no image.
    let of_tables = |found: &&String| ["var.EVENTS", "var.TILES"].iter().any(|name| found.starts_with(name));
    assert_eq!(found.iter().filter(of_tables).count(), 0, "{found:#?}");
    cut("x.fits", &bytes);
}

#[test]
fn geotiff() {
    let bytes = made::geotiff();
    let found = read("x.tif", &bytes);
    has(
        &found,
        &[
            "format=tiff (text)",
            "ImageWidth=640 (integer)",
            "ImageLength=480 (integer)",
            "ImageDescription=a field (text)",
            "epsg=32633 (integer)",
            "tag65000=7 (integer)",
        ],
    );
    assert!(!found.iter().any(|found| found.starts_with("StripOffsets")), "{found:?}");
    cut("x.tif", &bytes);
}

/// What is wanted was computed with PROJ 9.5.1, from 21 points of each side.
#[test]
fn images_in_a_plane_say_where_they_lie() {
    let place = |keys: &[[u16; 2]], [width, height]: [f64; 2], [x, y]: [f64; 2]| {
        let (scale, tie) = ([width, height, 0.0], [0.0, 0.0, 0.0, x, y, 0.0]);
        let found = read("x.tif", &made::georeferenced(keys, &scale, &tie, &[], &[]));
        assert!(!found.iter().any(|found| found.starts_with("extraction.error")), "{found:#?}");
        let sides = found.iter().filter_map(|found| found.strip_prefix("coverage."));
        let side = |side: &str| {
            side.trim_end_matches(" (float)").split_once('=').and_then(|(_, degrees)| degrees.parse().ok())
        };
        sides.map(|found| side(found).expect("a side in degrees")).collect::<Vec<f64>>()
    };
    let by = |system: u16| [[1024, 1], [3072, system]];
    let sentinel = ([30.0, 30.0], [399_960.0, 5_000_040.0]);
    let utm = [13.727_450_341_7, 13.973_960_915_3, 45.017_153_256_6, 45.149_207_261_0];
    let world = [40_075_016.685_578_49 / 640.0, 40_075_016.685_578_49 / 480.0];
    let polar = ([10_000.0, 10_000.0], [-3_200_000.0, 2_400_000.0]);
    for (keys, (scale, corner), wanted) in [
        (&by(32633)[..], sentinel, utm),
        (&[[1024, 1], [1025, 1], [3072, 32633], [3076, 9001]], sentinel, utm),
        (
            &[[1024, 1], [1025, 2], [3072, 32633]],
            sentinel,
            [13.727_450_341_7, 13.973_575_385_1, 45.017_423_247_2, 45.149_203_824_3],
        ),
        // Over the date line.
        (
            &by(32601),
            ([30.0, 30.0], [249_960.0, 5_000_040.0]),
            [179.821_450_407_3, 180.071_808_721_4, 44.980_156_182_5, 45.116_113_255_6],
        ),
        (
            &by(3857),
            (world, [-20_037_508.342_789_24, 20_037_508.342_789_24]),
            [-180.0, 180.0, -85.051_128_779_8, 85.051_128_779_8],
        ),
        // Round a pole.
        (&by(3413), polar, [-180.0, 180.0, 54.236_260_218_2, 90.0]),
        (&by(3031), polar, [-180.0, 180.0, -90.0, -54.336_719_286_7]),
        // In feet of the United States.
        (
            &[[1024, 1], [3072, 2263], [3076, 9003]],
            ([100.0, 100.0], [950_000.0, 250_000.0]),
            [-74.123_804_783_1, -73.892_461_521_2, 40.721_053_716_1, 40.852_867_120_5],
        ),
    ] {
        let found = place(keys, scale, corner);
        let is_near = |(found, wanted): (&f64, &f64)| (found - wanted).abs() < 1e-8;
        assert!(
            found.len() == 4 && found.iter().zip(&wanted).all(is_near),
            "{keys:?}: {found:?}, not {wanted:?}"
        );
    }
    // Another unit than that of the system, systems of one's own and of nobody, one that counts from Paris, one that is not of a plane, and
    // coordinates that are said to be of something else.
    for keys in [
        &[[1024, 1], [3072, 32633], [3076, 9003]][..],
        &[[1024, 1], [3072, 32633], [3076, 32767]],
        &by(32767),
        &by(3),
        &by(27561),
        &by(4326),
        &[[1024, 2], [3072, 32633]],
        &[[3072, 32633]],
    ] {
        assert_eq!(place(keys, sentinel.0, sentinel.1), [0.0; 0], "{keys:?}");
    }
    // Not on the Earth.
    for (scale, corner) in [
        ([1e12, 1e12], [0.0, 0.0]),
        ([f64::MAX, f64::MAX], [0.0, 0.0]),
        ([30.0, 30.0], [1e300, -1e300]),
        ([30.0, 30.0], [f64::NAN, 0.0]),
        ([f64::INFINITY, 30.0], [0.0, 0.0]),
    ] {
        assert_eq!(place(&by(32633), scale, corner), [0.0; 0], "{scale:?} {corner:?}");
    }
}

#[test]
fn images_in_degrees_say_where_they_lie() {
    let place_on = |keys: &[[u16; 2]], doubles: &[f64], scale: &[f64], tie: &[f64], matrix: &[f64]| {
        let found = read("x.tif", &made::georeferenced(keys, scale, tie, matrix, doubles));
        assert!(!found.iter().any(|found| found.starts_with("extraction.error")), "{found:#?}");
        let sides = found.iter().filter_map(|found| found.strip_prefix("coverage."));
        sides.map(|side| side.trim_end_matches(" (float)")).collect::<Vec<_>>().join(" ")
    };
    let place = |keys: &[[u16; 2]], scale: &[f64], tie: &[f64], matrix: &[f64]| {
        place_on(keys, &[], scale, tie, matrix)
    };
    let degrees = [1024, 2];
    let quarter = [0.25, 0.25, 0.0];
    let corner = [0.0, 0.0, 0.0, -10.0, 60.0, 0.0];
    let wanted = "west=-10.0 east=150.0 south=-60.0 north=60.0";
    for keys in [&[degrees][..], &[degrees, [1025, 1], [2048, 4326], [2051, 8901], [2054, 9102]]] {
        assert_eq!(place(keys, &quarter, &corner, &[]), wanted);
    }
    let middle = place(&[degrees], &quarter, &[320.0, 240.0, 0.0, 0.0, 0.0, 0.0], &[]);
    assert_eq!(middle, "west=-80.0 east=80.0 south=-60.0 north=60.0");
    let points = [degrees, [1025, 2]];
    assert_eq!(place(&points, &quarter, &corner, &[]), "west=-10.0 east=149.75 south=-59.75 north=60.0");
    let mut turned = [0.0; 16];
    (turned[1], turned[3], turned[4], turned[7]) = (0.25, 170.0, -0.25, 80.0);
    assert_eq!(place(&[degrees], &[], &[], &turned), "west=170.0 east=290.0 south=-80.0 north=80.0");
    // Round the Earth, from pole to pole: as points, and as areas round these.
    let whole = "west=-180.0 east=180.0 south=-90.0 north=90.0";
    let (wide, high) = (360.0 / 640.0, 180.0 / 479.0);
    let first = [0.0, 0.0, 0.0, -180.0, 90.0, 0.0];
    assert_eq!(place(&points, &[wide, high, 0.0], &first, &[]), whole);
    let first = [0.0, 0.0, 0.0, -180.0 - wide / 2.0, 90.0 + high / 2.0, 0.0];
    assert_eq!(place(&[degrees], &[wide, high, 0.0], &first, &[]), whole);
    // Other units, meridians and systems, and what is nowhere.
    for keys in [
        &[][..],
        &[degrees, [2054, 9105]],
        &[degrees, [2051, 8903]],
        &[degrees, [2048, 4807]],
        &[degrees, [2048, 8043]],
    ] {
        assert_eq!(place(keys, &quarter, &corner, &[]), "", "{keys:?}");
    }
    // Ellipsoids of the Earth, of Mars, and of nobody knows what.
    let halves = [0.0, 6_378_137.0, 6_356_752.3, 3_396_190.0, 3_376_200.0];
    let (own, own_ellipsoid) = ([2048, 32767], [2056, 32767]);
    for (keys, is_earth) in [
        (&[degrees, own][..], true),
        (&[degrees, own, [2056, 7030]], true),
        (&[degrees, own, own_ellipsoid, [2057, 1]], true),
        (&[degrees, own_ellipsoid, [2057, 1], [2058, 2]], true),
        (&[degrees, [2048, 4326], [2057, 3]], true),
        (&[degrees, own, own_ellipsoid, [2057, 3]], false),
        (&[degrees, [2057, 3], [2058, 4]], false),
        (&[degrees, own, [2057, 1], [2058, 4]], false),
        (&[degrees, own, [2057, 5]], false),
        (&[degrees, own, own_ellipsoid], false),
        (&[degrees, own, [2056, 40_000]], false),
        (&[degrees, [2048, 49_900], [2057, 3]], false),
    ] {
        let found = place_on(keys, &halves, &quarter, &corner, &[]);
        assert_eq!(found, if is_earth { wanted } else { "" }, "{keys:?}");
    }
    for (scale, tie) in [
        (&quarter[..], &[][..]),
        (&[], &corner),
        (&[f64::NAN, 0.25, 0.0], &corner),
        (&[0.25, f64::INFINITY, 0.0], &corner),
        (&[0.0, 0.0, 0.0], &corner),
        (&quarter, &[0.0, 0.0, 0.0, 0.0, f64::NAN, 0.0]),
        (&quarter, &[0.0, 0.0, 0.0, 500_000.0, 4e6, 0.0]),
    ] {
        assert_eq!(place(&[degrees], scale, tie, &[]), "", "{scale:?} {tie:?}");
    }
}

#[test]
fn pictures() {
    let png = made::png();
    has(&read("x.png", &png), &["format=png (text)", "width=640 (integer)", "height=480 (integer)"]);
    cut("x.png", &png);
    let jpeg = made::jpeg();
    has(
        &read("x.jpg", &jpeg),
        &[
            "format=jpeg (text)",
            "width=640 (integer)",
            "height=480 (integer)",
            "Make=Maker (text)",
            "DateTime=2018:03:01 10:20:30, 2018-03-01T10:20:30Z (time)",
        ],
    );
    cut("x.jpg", &jpeg);
}

#[test]
fn nifti() {
    for (name, bytes) in [("x.nii", made::nifti()), ("x.nii.gz", made::packed(&made::nifti()))] {
        let found = read(name, &bytes);
        has(
            &found,
            &[
                "format=nifti (text)",
                "datatype=float32 (text)",
                "dim=64, 32, 16 (integer)",
                "pixdim=2.0, 2.0, 3.5 (float)",
                "descrip=scan (text)",
            ],
        );
        cut(name, &bytes);
    }
}

#[test]
fn parquet_footers() {
    let bytes = made::parquet();
    has(
        &read("x.parquet", &bytes),
        &[
            "format=parquet (text)",
            "dim.row=3 (integer)",
            "row_groups=1 (integer)",
            "var.run=int64 (text)",
            "var.at.name=utf8 (text)",
            "campaign=spring (text)",
        ],
    );
    cut("x.parquet", &bytes);
}

#[test]
fn zarr() {
    let group = made::ZARR_3;
    has(
        &read("zarr.json", group),
        &[
            "format=zarr (text)",
            "title=t (text)",
            "list=1, 2.5 (float)",
            "deep.a=true (bool)",
            "var.tas=float32 (text)",
            "var.tas.shape=12, 180 (integer)",
            "var.tas.dimension_names=time, lat (text)",
            "var.tas.units=K (text)",
            "dim.time=12 (integer)",
            "dim.lat=180 (integer)",
        ],
    );
    has(
        &read(".zmetadata", made::ZARR_2),
        &["title=t (text)", "var.tas=<f4 (text)", "var.tas.units=K (text)", "dim.x=3 (integer)"],
    );
    has(&read(".zarray", br#"{"shape":[3],"dtype":"<f4"}"#), &["dtype=<f4 (text)", "shape=3 (integer)"]);
    has(&read(".zattrs", br#"{"units":"K"}"#), &["units=K (text)"]);
    let own = read(
        "zarr.json",
        br#"{"node_type":"array","shape":[12,3],"data_type":"int8","dimension_names":["time",null]}"#,
    );
    has(&own, &["dim.time=12 (integer)"]);
    // Names hold within a group; one whose arrays do not agree has all lengths.
    let groups = br#"{"metadata":{"a/b/t/.zarray":{"shape":[3],"dtype":"<f4"},"a/b/t/.zattrs":{"_ARRAY_DIMENSIONS":["x"]},
        "t/.zarray":{"shape":[4],"dtype":"<f4"},"t/.zattrs":{"_ARRAY_DIMENSIONS":["x"]},
        "u/.zarray":{"shape":[5,4],"dtype":"<f4"},"u/.zattrs":{"_ARRAY_DIMENSIONS":["x","x"]},
        "v/.zarray":{"shape":[6],"dtype":"<f4"},"v/.zattrs":{"_ARRAY_DIMENSIONS":["y","z"]}}}"#;
    let found = read(".zmetadata", groups);
    has(&found, &["dim.a.b.x=3 (integer)", "dim.x=4, 5 (integer)"]);
    assert!(!found.iter().any(|found| found.starts_with("dim.y")), "{found:#?}");
    // An array has no more dimensions than are told of it.
    let names = (0..300).map(|n| format!("\"d{n}\"")).collect::<Vec<_>>().join(",");
    let many = format!(
        r#"{{"node_type":"array","shape":[{}1],"data_type":"int8","dimension_names":[{names}]}}"#,
        "1,".repeat(299)
    );
    has(&read("zarr.json", many.as_bytes()), &["dim.d0=1 (integer)", "dim.d299=1 (integer)"]);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let file = File::new(Arc::new(deep.into_bytes()));
    assert!(formats::read(&file, "zarr.json").is_err());
    cut("zarr.json", group);
}

#[test]
fn tables() {
    let kinds = |found: &[String]| {
        let kinds = found.iter().filter_map(|found| found.strip_prefix("var."));
        kinds.map(|kind| kind.trim_end_matches(" (text)")).collect::<Vec<_>>().join(" ")
    };
    let found = read("x.csv", made::CSV);
    has(&found, &["format=csv (text)", "columns=3 (integer)", "column=time, near, surface, café (text)"]);
    assert_eq!(kinds(&found), "time=datetime64 near, surface=int64 café=string");
    let rows = b"run,tas,at,ok,site,none,mixed,,late,long\r\n\
        1,2,2018-03-01T10:20:30Z,True,\"a\nb\",,1,5,,99999999999999999999\r\n\r\n\
        -2,2.5e-3,2018-03-02 10:20,FALSE,7,NA,x,5,3,1\r\n3,NaN,2018-03-03\r\n";
    assert_eq!(
        kinds(&read("x.csv", rows)),
        "run=int64 tas=float64 at=datetime64 ok=bool site=string mixed=string late=int64 long=float64"
    );
    // Without names, and without rows.
    for rows in ["1,2\n3,4\n", "2018-03-01,true\n2018-03-02,false\n", "NA,0.5\n", "", "\n"] {
        let found = read("x.csv", rows.as_bytes());
        assert!(!found.iter().any(|found| found.starts_with("column=")), "{rows}: {found:#?}");
        assert_eq!(kinds(&found), "", "{rows}");
    }
    for rows in ["a,b", "a,b\n,NA\n"] {
        let found = read("x.csv", rows.as_bytes());
        has(&found, &["column=a, b (text)"]);
        assert_eq!(kinds(&found), "", "{rows}");
    }
    // Names are often numbers, but not all of them.
    let found = read("x.csv", b"country,1990,1991\nNorway,5,5.5\n");
    has(&found, &["column=country, 1990, 1991 (text)"]);
    assert_eq!(kinds(&found), "country=string 1990=int64 1991=float64");
    // A separator at the end of each row is no value; the rest of a first line that is too long is no row.
    assert_eq!(kinds(&read("x.csv", b"n,x\n1,2.5,\n3,4,\n")), "n=int64 x=float64");
    let wide = (0..60_000).map(|n| format!("g{n}")).collect::<Vec<_>>().join(",");
    let wide = read("x.csv", format!("{wide}\n{}\n", "1,".repeat(60_000)).as_bytes());
    has(&wide, &["format=csv (text)"]);
    assert_eq!(kinds(&wide), "");
    // The names of rows stand before them, and have none themselves.
    assert_eq!(kinds(&read("x.csv", b"n,x\n\"r1\",1,a\n\"r2\",2,b\n")), "");
    assert_eq!(kinds(&read("x.csv", b"n,x\n1,a\n\"r2\",2,b\n")), "n=int64 x=string");
    // A row that the end of the block cuts is not looked at, and nothing behind it; one at the end of the file is whole.
    let table = |begin: usize, behind: &str| {
        let before =
            format!("n\n{}{}", if begin.is_multiple_of(2) { "" } else { "11\n" }, "1\n".repeat(40_000));
        format!("{}12.5\n{behind}", &before[..begin])
    };
    let behind = "x\n".repeat(70_000);
    for (begin, behind, wanted) in [
        (65_530, &*behind, "n=float64"),
        (65_531, &*behind, "n=int64"),
        (65_533, &*behind, "n=int64"),
        (65_531, "", "n=float64"),
    ] {
        assert_eq!(kinds(&read("x.csv", table(begin, behind).as_bytes())), wanted, "{begin}");
    }
    // Where the first line fills a block to its end, the rows are those of the next one.
    for (fill, wanted) in [(65_532, ""), (65_533, "n=float64"), (65_534, "n=float64")] {
        let rows = format!("n,{}\n1,\n2.5,\n", "m".repeat(fill));
        assert_eq!(kinds(&read("x.csv", rows.as_bytes())), wanted, "{fill}");
    }
    has(&read("x.TSV", b"time\ttas\n1\t2\n"), &["column=time, tas (text)", "format=tsv (text)"]);
    assert!(read("x.txt", b"time,tas\n").is_empty());
    cut("x.csv", b"time,\"tas\n");
}

#[test]
fn nifti_2() {
    for is_little in [true, false] {
        let bytes = made::nifti_2(is_little);
        let found = read("x.nii", &bytes);
        has(
            &found,
            &[
                "format=nifti2 (text)",
                "dim=64, 70000, 30 (integer)",
                "pixdim=6.4, 7000.0, 3.0 (float)",
                "datatype=float32 (text)",
                "space_unit=mm (text)",
                "time_unit=sec (text)",
                "descrip=FSL5.0 run (text)",
                "scl_slope=2.5 (float)",
                "qform_code=1 (integer)",
            ],
        );
        cut("x.nii", &bytes);
    }
}

#[test]
fn documents() {
    let item = made::ITEM;
    let found = read("item.json", item);
    has(
        &found,
        &[
            "format=other, json (text)",
            "properties.eo:cloud_cover=12.5 (float)",
            "properties.bands=red, nir (text)",
            "properties.raw=true (bool)",
            "properties.datetime=2024-06-01T10:00:00Z, 2024-06-01T10:00:00Z (time)",
            "coverage.start=2024-06-01T10:00:00Z (time)",
            "coverage.west=170.0 (float)",
            "coverage.east=185.0 (float)",
        ],
    );
    let found = read("task.YML", made::YAML);
    has(
        &found,
        &[
            "format=yaml (text)",
            "RepetitionTime=2.5 (float)",
            "scanner.maker=Siemens (text)",
            "scanner.channels=32, 64 (integer)",
        ],
    );
    cut("x.json", item);
    assert_eq!(read("x.json", b"[1, 2]"), ["format=json (text)"]);
    assert_eq!(read("x.json", &b"[1, 2]".repeat(1 << 18)), ["format=json (text)"], "data");
    let wrong = |name: &str, bytes: &[u8]| {
        let file = File::new(Arc::new(bytes.to_vec()));
        formats::read(&file, name).map(drop).unwrap_err().to_string()
    };
    assert!(!wrong("x.json", b"{").is_empty());
    assert!(!wrong("x.json", "[".repeat(10_000).as_bytes()).is_empty());
    // Each line has the one before it many times over.
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let before = format!("*a{}", n - 1);
        bomb.push_str(&format!("a{n}: &a{n} [{}]\n", [before.as_str(); 9].join(", ")));
    }
    let said = wrong("x.yaml", bomb.as_bytes());
    assert!(!said.is_empty() && !said.contains('\n'), "{said}");
}

#[test]
fn grib_of_the_first_edition() {
    let small = made::small_grib();
    let found = read("x", &[&small[..], b"padding", &small[..]].concat());
    has(
        &found,
        &[
            "format=grib1 (text)",
            "messages=2 (integer)",
            "parameter=TMP (text)",
            "level=850.0 (float)",
            "level_type=isobaricInhPa (text)",
            "reference_time=2024-06-01T12:00:00Z (time)",
            "valid_time=2024-06-01T18:00:00Z (time)",
            "coverage.end=2024-06-01T18:00:00Z (time)",
            "var.TMP=float64 (text)",
        ],
    );
    cut("x", &small);
    // One that is cut off costs nothing but itself.
    let cut_off = read("x", &[&small[..], &small[..20]].concat());
    assert!(cut_off.contains(&"messages=1 (integer)".to_owned()), "{cut_off:#?}");
    assert!(cut_off.iter().any(|found| found.starts_with("extraction.error=message 2")), "{cut_off:#?}");
    // One that is longer than three bytes can say: 10 times 120 bytes, of which the last 16 are not there, and the "7777" behind it.
    let mut large = made::grib(0x80_0000 | 10, 20);
    large.resize(1200 - 20 + 4, 0);
    large.extend(&small);
    has(&read("x", &large), &["messages=2 (integer)"]);
    // Parameters of a centre's own tables are not those of the WMO.
    let mut own = small.clone();
    own[11] = 128;
    has(&read("x", &own), &["parameter=11.128 (text)", "var.11-128=float64 (text)"]);
    // A message within which the next one would begin is not gone round for ever.
    let mut endless = small.clone();
    endless[4..7].copy_from_slice(&[0, 0, 0]);
    assert!(!read("x", &endless.repeat(3)).is_empty());
}

#[test]
fn a_member_that_cannot_be_read_costs_nothing_of_what_was_read_before() {
    let found = read("x.h5", made::HDF5);
    has(
        &found,
        &["format=hdf5 (text)", "title=small (text)", "var.a=float32 (text)", "var.b.units=K (text)"],
    );
    has(&found, &["g.note=deep (text)"]);
    let mut broken = made::HDF5.to_vec();
    let mut headers = broken.windows(4).enumerate().filter(|(_, four)| four == b"OHDR").map(|(at, _)| at);
    let child = headers.next_back().unwrap();
    broken[child] = b'x';
    let found = read("x.h5", &broken);
    has(&found, &["format=hdf5 (text)", "title=small (text)", "levels=500, 850 (integer)"]);
    assert!(found.iter().any(|found| found.starts_with("extraction.error=/: ")), "{found:#?}");
}

#[test]
fn a_file_of_each_format_is_made() {
    for (name, bytes) in made::all() {
        let found = read(name, &bytes);
        assert!(found.iter().any(|found| found.starts_with("format=")), "{name}: {found:#?}");
        assert!(!found.iter().any(|found| found.starts_with("extraction.error")), "{name}: {found:#?}");
        cut(name, &bytes);
    }
    has(
        &read("x.nc", &made::netcdf3()),
        &["title=test (text)", "dim.x=3 (integer)", "var.tas.units=K (text)"],
    );
    for (name, bytes) in [("x.webp", made::webp()), ("x.heic", made::heif())] {
        has(&read(name, &bytes), &["width=640 (integer)", "height=480 (integer)"]);
    }
}
