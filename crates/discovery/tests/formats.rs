//! What is found in files of each format, made here byte by byte or by the writer of the format.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::io::Write as _;
use std::sync::Arc;

use flate2::write::GzEncoder;
use parquet::data_type::{ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
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

/// Each beginning of a file is an answer, too.
fn cut(name: &str, bytes: &[u8]) {
    for len in 0..bytes.len().min(4096) {
        let file = File::new(Arc::new(bytes[..len].to_vec()));
        let _ = formats::read(&file, name).map(|header| header.map(|header| header.finish()));
    }
}

fn cards(cards: &[&str]) -> Vec<u8> {
    let mut bytes: Vec<u8> = cards.iter().flat_map(|card| format!("{card:80}").into_bytes()).collect();
    bytes.resize(bytes.len().div_ceil(2880) * 2880, b' ');
    bytes
}

#[test]
fn fits() {
    let mut bytes = cards(&[
        "SIMPLE  =                    T / conforms",
        "BITPIX  =                  -32",
        "NAXIS   =                    2",
        "NAXIS1  =                   10",
        "NAXIS2  =                   20",
        "OBJECT  = 'M 31    '           / a galaxy",
        "EXPTIME =                 12.5",
        "DATE-OBS= '2018-03-01T10:20:30'",
        "LONG    = 'a text that goes &'",
        "CONTINUE  'on'",
        "HISTORY was made",
        "END",
    ]);
    bytes.resize(bytes.len() + 2880, 0);
    bytes.extend(cards(&[
        "XTENSION= 'IMAGE   '",
        "BITPIX  =                   16",
        "NAXIS   =                    1",
        "NAXIS1  =                    5",
        "PCOUNT  =                    0",
        "GCOUNT  =                    1",
        "EXTNAME = 'MASK    '",
        "END",
    ]));
    bytes.resize(bytes.len() + 2880, 0);
    let found = read("x.fits", &bytes);
    has(
        &found,
        &[
            "format=fits (text)",
            "OBJECT=M 31 (text)",
            "EXPTIME=12.5 (float)",
            "SIMPLE=true (bool)",
            "DATE-OBS=2018-03-01T10:20:30, 2018-03-01T10:20:30Z (time)",
            "LONG=a text that goes on (text)",
            "HISTORY=was made (text)",
            "var.primary=float32 (text)",
            "var.primary.shape=20, 10 (integer)",
            "MASK.BITPIX=16 (integer)",
            "var.MASK.shape=5 (integer)",
        ],
    );
    cut("x.fits", &bytes);
}

/// Tags: number, type, count, and the four bytes of the value or its place.
fn tiff(tags: &[(u16, u16, u32, u32)], behind: &[u8]) -> Vec<u8> {
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend((tags.len() as u16).to_le_bytes());
    for (tag, kind, count, value) in tags {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend([0; 4]);
    bytes.extend(behind);
    bytes
}

#[test]
fn geotiff() {
    let at = 8 + 2 + 12 * 12 + 4;
    let keys: Vec<u8> = [1u16, 1, 0, 1, 3072, 0, 1, 32633].into_iter().flat_map(u16::to_le_bytes).collect();
    let behind = [b"a field\0".as_slice(), &keys].concat();
    let bytes = tiff(
        &[
            (256, 3, 1, 640),
            (257, 3, 1, 480),
            (258, 3, 1, 8),
            (259, 3, 1, 1),
            (262, 3, 1, 1),
            (270, 2, 8, at),
            (273, 4, 1, 8),
            (277, 3, 1, 1),
            (278, 3, 1, 480),
            (279, 4, 1, 16),
            (34735, 3, 8, at + 8),
            (65000, 4, 1, 7),
        ],
        &behind,
    );
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

#[test]
fn pictures() {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0".to_vec();
    png.extend([0; 4]);
    png.extend(b"\0\0\0\0IEND\xae\x42\x60\x82");
    has(&read("x.png", &png), &["format=png (text)", "width=640 (integer)", "height=480 (integer)"]);
    cut("x.png", &png);
    let at = 8 + 2 + 2 * 12 + 4;
    let exif = tiff(&[(271, 2, 6, at), (306, 2, 20, at + 6)], b"Maker\x002018:03:01 10:20:30\0");
    let mut jpeg = b"\xff\xd8\xff\xe1".to_vec();
    jpeg.extend((exif.len() as u16 + 8).to_be_bytes());
    jpeg.extend(b"Exif\0\0");
    jpeg.extend(&exif);
    jpeg.extend(b"\xff\xc0\0\x0b\x08\x01\xe0\x02\x80\x01\x01\x11\0\xff\xd9");
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
    let mut bytes = vec![0; 352];
    bytes[..4].copy_from_slice(&348i32.to_le_bytes());
    for (n, size) in [3i16, 64, 32, 16].into_iter().enumerate() {
        bytes[40 + n * 2..][..2].copy_from_slice(&size.to_le_bytes());
    }
    bytes[70..72].copy_from_slice(&16i16.to_le_bytes());
    bytes[72..74].copy_from_slice(&32i16.to_le_bytes());
    for (n, size) in [1.0f32, 2.0, 2.0, 3.5].into_iter().enumerate() {
        bytes[76 + n * 4..][..4].copy_from_slice(&size.to_le_bytes());
    }
    bytes[123] = 2 | 8;
    bytes[148..152].copy_from_slice(b"scan");
    bytes[344..348].copy_from_slice(b"n+1\0");
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&bytes).unwrap();
    for (name, bytes) in [("x.nii", bytes), ("x.nii.gz", packed.finish().unwrap())] {
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
    let schema =
        "message schema { REQUIRED INT64 run; OPTIONAL group at { REQUIRED BYTE_ARRAY name (UTF8); } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let told = vec![KeyValue::new("campaign".into(), "spring".to_owned())];
    let properties = WriterProperties::builder().set_key_value_metadata(Some(told)).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[1, 2, 3], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&["a".into(), "b".into()], Some(&[1, 0, 1]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let bytes = writer.into_inner().unwrap();
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
    let group = br#"{"zarr_format":3,"node_type":"group","attributes":{"title":"t","list":[1,2.5],"deep":{"a":true}},
        "consolidated_metadata":{"metadata":{"tas":{"node_type":"array","shape":[12,180],"data_type":"float32",
        "dimension_names":["time","lat"],"attributes":{"units":"K"}}}}}"#;
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
        ],
    );
    let two = br#"{"metadata":{".zattrs":{"title":"t"},"tas/.zarray":{"shape":[3],"dtype":"<f4"},"tas/.zattrs":{"units":"K"}}}"#;
    has(&read(".zmetadata", two), &["title=t (text)", "var.tas=<f4 (text)", "var.tas.units=K (text)"]);
    has(&read(".zarray", br#"{"shape":[3],"dtype":"<f4"}"#), &["dtype=<f4 (text)", "shape=3 (integer)"]);
    has(&read(".zattrs", br#"{"units":"K"}"#), &["units=K (text)"]);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let file = File::new(Arc::new(deep.into_bytes()));
    assert!(formats::read(&file, "zarr.json").is_err());
    cut("zarr.json", group);
}

#[test]
fn tables() {
    has(
        &read("x.csv", "\u{feff}time,\"near, surface\",caf\u{e9}\n1,2,3\n".as_bytes()),
        &["format=csv (text)", "columns=3 (integer)"],
    );
    has(&read("x.TSV", b"time\ttas\n1\t2\n"), &["column=time, tas (text)", "format=tsv (text)"]);
    assert!(read("x.txt", b"time,tas\n").is_empty());
    cut("x.csv", b"time,\"tas\n");
}

#[test]
fn nifti_2() {
    for is_little in [true, false] {
        let mut bytes = vec![0; 540];
        let mut set = |at: usize, value: &[u8]| {
            let mut value = value.to_vec();
            if !is_little {
                value.reverse();
            }
            bytes[at..at + value.len()].copy_from_slice(&value);
        };
        set(0, &540_i32.to_le_bytes());
        set(12, &16_i16.to_le_bytes());
        for (n, size) in [3_i64, 64, 70_000, 30].into_iter().enumerate() {
            set(16 + 8 * n, &size.to_le_bytes());
            set(104 + 8 * n, &(size as f64 / 10.0).to_le_bytes());
        }
        set(176, &2.5_f64.to_le_bytes());
        set(344, &1_i32.to_le_bytes());
        // Millimetres and seconds.
        set(500, &10_i32.to_le_bytes());
        bytes[4..12].copy_from_slice(b"n+2\0\r\n\x1a\n");
        bytes[240..250].copy_from_slice(b"FSL5.0 run");
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
    let item = br#"{
        "type": "Feature", "bbox": [170, -10.5, -175, 0],
        "properties": {"datetime": "2024-06-01T10:00:00Z", "eo:cloud_cover": 12.5, "bands": ["red", "nir"], "raw": true},
        "links": [], "format": "other"
    }"#;
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
    let found = read(
        "task.YML",
        b"RepetitionTime: 2.5\nscanner: {maker: Siemens, channels: [32, 64]}\nnote: yes it is\n",
    );
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

/// A message of GRIB 1 without a grid, whose section of data says that it is so long.
fn grib(len: u32, data: u32) -> Vec<u8> {
    let mut bytes = b"GRIB".to_vec();
    bytes.extend(&len.to_be_bytes()[1..]);
    bytes.push(1);
    // Length, table 2, centre, process, grid, no sections, parameter 11 (temperature) at 850 hPa on 2024-06-01 12:00, 6 hours later.
    bytes.extend([0, 0, 28, 2, 7, 0, 255, 0, 11, 100, 850_u16.to_be_bytes()[0], 850_u16.to_be_bytes()[1]]);
    bytes.extend([24, 6, 1, 12, 0, 1, 6, 0, 0, 0, 0, 0, 21, 0, 0, 0]);
    bytes.extend(&data.to_be_bytes()[1..]);
    bytes
}

#[test]
fn grib_of_the_first_edition() {
    let mut small = grib(54, 14);
    small.resize(50, 0);
    small.extend(b"7777");
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
    let mut large = grib(0x80_0000 | 10, 20);
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
