//! A small file of each format, made byte by byte or by the writer of the format.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::io::Write as _;
use std::sync::Arc;

use flate2::write::GzEncoder;
use parquet::data_type::{ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// HDF5 as h5py writes it, in its latest form: two attributes, the datasets `a` and `b` of three numbers in K, and the group `g`.
pub const HDF5: &[u8] = include_bytes!("small.h5");
/// A group of Zarr 3 with an array.
pub const ZARR_3: &[u8] = br#"{"zarr_format":3,"node_type":"group","attributes":{"title":"t","list":[1,2.5],"deep":{"a":true}},
        "consolidated_metadata":{"metadata":{"tas":{"node_type":"array","shape":[12,180],"data_type":"float32",
        "dimension_names":["time","lat"],"attributes":{"units":"K"}}}}}"#;
/// One of Zarr 2.
pub const ZARR_2: &[u8] = br#"{"metadata":{".zattrs":{"title":"t"},"tas/.zarray":{"shape":[3],"dtype":"<f4"},"tas/.zattrs":{"units":"K","_ARRAY_DIMENSIONS":["x"]}}}"#;
/// A table with a quoted name of a column.
pub const CSV: &[u8] = "\u{feff}time,\"near, surface\",caf\u{e9}\n2018-03-01,2,x\n".as_bytes();
/// A document of YAML.
pub const YAML: &[u8] =
    b"RepetitionTime: 2.5\nscanner: {maker: Siemens, channels: [32, 64]}\nnote: yes it is\n";
/// An item of STAC.
pub const ITEM: &[u8] = br#"{
        "type": "Feature", "bbox": [170, -10.5, -175, 0],
        "properties": {"datetime": "2024-06-01T10:00:00Z", "eo:cloud_cover": 12.5, "bands": ["red", "nir"], "raw": true},
        "links": [], "format": "other"
    }"#;

/// Returns one of each, with its name.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = vec![
        ("x.h5", HDF5.to_vec()),
        ("x.nc", netcdf3()),
        ("x.fits", fits()),
        ("x.tif", geotiff()),
        (
            "x.tif",
            georeferenced(&[[1024, 2]], &[0.25, 0.25, 0.0], &[0.0, 0.0, 0.0, -10.0, 60.0, 0.0], &[], &[]),
        ),
        (
            "x.tif",
            georeferenced(
                &[[1024, 1], [3072, 32633], [3076, 9001]],
                &[30.0, 30.0, 0.0],
                &[0.0, 0.0, 0.0, 399_960.0, 5_000_040.0, 0.0],
                &[],
                &[],
            ),
        ),
        ("x.png", png()),
        ("x.jpg", jpeg()),
        ("x.webp", webp()),
        ("x.heic", heif()),
        ("x.nii", nifti()),
        ("x.nii.gz", packed(&nifti())),
        ("x.parquet", parquet()),
        ("x.grib", small_grib()),
        ("zarr.json", ZARR_3.to_vec()),
        (".zmetadata", ZARR_2.to_vec()),
        (".zarray", br#"{"shape":[3],"dtype":"<f4"}"#.to_vec()),
        (".zattrs", br#"{"units":"K"}"#.to_vec()),
        ("x.csv", CSV.to_vec()),
        ("x.tsv", b"time\ttas\n1\t2\n".to_vec()),
        ("x.yaml", YAML.to_vec()),
        ("x.json", ITEM.to_vec()),
    ];
    all.extend([true, false].map(|is_little| ("x.nii", nifti_2(is_little))));
    all
}

/// NetCDF-3 with a title, a dimension and a variable.
pub fn netcdf3() -> Vec<u8> {
    let mut bytes = b"CDF\x01".to_vec();
    let mut words = |words: &[u32]| bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    let text = |text: &[u8; 4]| u32::from_be_bytes(*text);
    // No records; one dimension x of 3; one attribute, a text.
    words(&[
        0,
        10,
        1,
        1,
        text(b"x\0\0\0"),
        3,
        12,
        1,
        5,
        text(b"titl"),
        text(b"e\0\0\0"),
        2,
        4,
        text(b"test"),
    ]);
    // One variable over x, floats in K, of 12 bytes behind this.
    words(&[
        11,
        1,
        3,
        text(b"tas\0"),
        1,
        0,
        12,
        1,
        5,
        text(b"unit"),
        text(b"s\0\0\0"),
        2,
        1,
        text(b"K\0\0\0"),
    ]);
    words(&[5, 12, 124]);
    words(&[1.0f32, 2.0, 3.0].map(f32::to_bits));
    bytes
}

fn cards(cards: &[&str]) -> Vec<u8> {
    let mut bytes: Vec<u8> = cards.iter().flat_map(|card| format!("{card:80}").into_bytes()).collect();
    bytes.resize(bytes.len().div_ceil(2880) * 2880, b' ');
    bytes
}

/// FITS with an image, another one behind it, a table, an image and a table in packed tiles, and an image with axes of one kind.
pub fn fits() -> Vec<u8> {
    let mut bytes = cards(&[
        "SIMPLE  =                    T / conforms",
        "BITPIX  =                  -32",
        "NAXIS   =                    2",
        "NAXIS1  =                   10",
        "NAXIS2  =                   20",
        "CTYPE1  = 'RA---TAN'",
        "CTYPE2  = 'FREQ    '",
        "OBJECT  = 'M 31    '           / a galaxy",
        "EXPTIME =                 12.5",
        "DATE-OBS= '2018-03-01T10:20:30'",
        "LONG    = 'a text that goes &'",
        "CONTINUE  'on&'",
        "CONTINUE  ' and on'",
        "CONTINUE  'behind its end&'",
        "CONTINUE  'and once more'",
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
    let table = |name: &str, more: &[&str]| {
        let all = [
            "XTENSION= 'BINTABLE'",
            "BITPIX  =                    8",
            "NAXIS   =                    2",
            "NAXIS1  =                    8",
            "NAXIS2  =                    7",
            "PCOUNT  =                    0",
            "GCOUNT  =                    1",
            "TFIELDS =                    1",
            "TFORM1  = '1PB     '",
            name,
        ];
        let mut bytes = cards(&[&all[..], more, &["END"]].concat());
        bytes.resize(bytes.len() + 2880, 0);
        bytes
    };
    bytes.extend(table("EXTNAME = 'EVENTS  '", &[]));
    bytes.extend(table(
        "EXTNAME = 'PACKED  '",
        &[
            "ZIMAGE  =                    T",
            "ZBITPIX =                  -64",
            "ZNAXIS  =                    2",
            "ZNAXIS1 =                   30",
            "ZNAXIS2 =                   40",
        ],
    ));
    bytes.extend(table(
        "EXTNAME = 'TILES   '",
        &[
            "ZTABLE  =                    T",
            "ZNAXIS1 =                   24",
            "ZNAXIS2 =                 5000",
        ],
    ));
    bytes.extend(cards(&[
        "XTENSION= 'IMAGE   '",
        "BITPIX  =                   16",
        "NAXIS   =                    3",
        "NAXIS1  =                    5",
        "NAXIS2  =                    4",
        "NAXIS3  =                    3",
        "PCOUNT  =                    0",
        "GCOUNT  =                    1",
        "EXTNAME = 'TWICE   '",
        "CTYPE1  = 'LINEAR  '",
        "CTYPE2  = 'LINEAR  '",
        "CTYPE3  = 'FREQ    '",
        "END",
    ]));
    bytes.resize(bytes.len() + 2880, 0);
    bytes
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

/// TIFF with a field of geography.
pub fn geotiff() -> Vec<u8> {
    let at = 8 + 2 + 12 * 12 + 4;
    let keys: Vec<u8> = [1u16, 1, 0, 1, 3072, 0, 1, 32633].into_iter().flat_map(u16::to_le_bytes).collect();
    let behind = [b"a field\0".as_slice(), &keys].concat();
    tiff(
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
    )
}

/// TIFF of 640 x 480 pixels with keys of geography, a scale, a place that is tied, a matrix, and the numbers among which the halves of an
/// ellipsoid are (keys 2057 and 2058), as far as there are any.
pub fn georeferenced(
    keys: &[[u16; 2]],
    scale: &[f64],
    tie: &[f64],
    matrix: &[f64],
    doubles: &[f64],
) -> Vec<u8> {
    let mut tags = vec![(256, 3, 1, 640), (257, 3, 1, 480), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)];
    tags.extend([(273, 4, 1, 8), (277, 3, 1, 1), (278, 3, 1, 480), (279, 4, 1, 16)]);
    let numbers = [(33550, scale), (33922, tie), (34264, matrix), (34736, doubles)];
    let numbers: Vec<_> = numbers.into_iter().filter(|(_, numbers)| !numbers.is_empty()).collect();
    let mut at = 8 + 2 + 12 * (tags.len() + numbers.len() + 1) as u32 + 4;
    let mut behind = Vec::new();
    for (tag, numbers) in numbers {
        tags.push((tag, 12, numbers.len() as u32, at));
        behind.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        at += 8 * numbers.len() as u32;
    }
    tags.push((34735, 3, 4 + 4 * keys.len() as u32, at));
    tags.sort_unstable();
    let head = [1, 1, 0, keys.len() as u16];
    let within = |key: u16| if [2057, 2058].contains(&key) { 34736 } else { 0 };
    let keys = keys.iter().flat_map(|[key, code]| [*key, within(*key), 1, *code]);
    behind.extend(head.into_iter().chain(keys).flat_map(u16::to_le_bytes));
    tiff(&tags, &behind)
}

/// A picture of PNG.
pub fn png() -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0".to_vec();
    png.extend([0; 4]);
    png.extend(b"\0\0\0\0IEND\xae\x42\x60\x82");
    png
}

/// One of JPEG, with EXIF.
pub fn jpeg() -> Vec<u8> {
    let at = 8 + 2 + 2 * 12 + 4;
    let exif = tiff(&[(271, 2, 6, at), (306, 2, 20, at + 6)], b"Maker\x002018:03:01 10:20:30\0");
    let mut jpeg = b"\xff\xd8\xff\xe1".to_vec();
    jpeg.extend((exif.len() as u16 + 8).to_be_bytes());
    jpeg.extend(b"Exif\0\0");
    jpeg.extend(&exif);
    jpeg.extend(b"\xff\xc0\0\x0b\x08\x01\xe0\x02\x80\x01\x01\x11\0\xff\xd9");
    jpeg
}

/// One of WebP, of which there is only how large it is.
pub fn webp() -> Vec<u8> {
    let mut webp = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
    webp.extend([0x7f, 2, 0, 0xdf, 1, 0]);
    webp
}

/// One of HEIF, of which there is only how large it is.
pub fn heif() -> Vec<u8> {
    let bx = |kind: &[u8; 4], content: &[u8]| {
        let len = u32::try_from(content.len() + 8).unwrap();
        [&len.to_be_bytes(), &kind[..], content].concat()
    };
    let size = [0u32, 640, 480].into_iter().flat_map(u32::to_be_bytes).collect::<Vec<_>>();
    let properties = bx(b"iprp", &bx(b"ipco", &bx(b"ispe", &size)));
    let meta = bx(b"meta", &[&[0; 4][..], &properties].concat());
    [bx(b"ftyp", b"heic\0\0\0\0mif1heic"), meta].concat()
}

/// NIfTI-1.
pub fn nifti() -> Vec<u8> {
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
    bytes
}

/// The same, packed.
pub fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// NIfTI-2, in either order of bytes.
pub fn nifti_2(is_little: bool) -> Vec<u8> {
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
    bytes
}

/// Parquet with a group of rows.
pub fn parquet() -> Vec<u8> {
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
    writer.into_inner().unwrap()
}

/// A message of GRIB 1 without a grid, whose section of data says that it is so long.
pub fn grib(len: u32, data: u32) -> Vec<u8> {
    let mut bytes = b"GRIB".to_vec();
    bytes.extend(&len.to_be_bytes()[1..]);
    bytes.push(1);
    // Length, table 2, centre, process, grid, no sections, parameter 11 (temperature) at 850 hPa on 2024-06-01 12:00, 6 hours later.
    bytes.extend([0, 0, 28, 2, 7, 0, 255, 0, 11, 100, 850_u16.to_be_bytes()[0], 850_u16.to_be_bytes()[1]]);
    bytes.extend([24, 6, 1, 12, 0, 1, 6, 0, 0, 0, 0, 0, 21, 0, 0, 0]);
    bytes.extend(&data.to_be_bytes()[1..]);
    bytes
}

/// A whole one of these.
pub fn small_grib() -> Vec<u8> {
    let mut small = grib(54, 14);
    small.resize(50, 0);
    small.extend(b"7777");
    small
}
