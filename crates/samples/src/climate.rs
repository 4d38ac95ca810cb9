//! A tree of NetCDF files like the output of a climate model: one directory for each variable, one file for each year,
//! monthly means on a regular grid, with the attributes of the CF conventions.

use std::f64::consts::PI;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::netcdf3::{Dataset, Dimension, Type, Value, Variable};
use crate::{Random, SampleFile};

const MONTHS: u32 = 12;

/// What a variable is like: its mean at the equator, its fall towards the poles, its swing over the year, its noise.
struct Quantity {
    name: &'static str,
    long_name: &'static str,
    units: &'static str,
    equator: f64,
    fall: f64,
    swing: f64,
    noise: f64,
}

const QUANTITIES: [Quantity; 6] = [
    quantity("tas", "near-surface air temperature", "K", [300.0, 45.0, 15.0, 2.0]),
    quantity("pr", "precipitation", "kg m-2 s-1", [6e-5, 4e-5, 2e-5, 1e-5]),
    quantity("psl", "sea level pressure", "Pa", [101_000.0, 1_200.0, 600.0, 300.0]),
    quantity("tos", "sea surface temperature", "K", [301.0, 30.0, 6.0, 0.5]),
    quantity("hurs", "near-surface relative humidity", "%", [80.0, 10.0, 8.0, 5.0]),
    quantity("rsds", "surface downwelling shortwave radiation", "W m-2", [260.0, 180.0, 90.0, 15.0]),
];

const fn quantity(
    name: &'static str,
    long_name: &'static str,
    units: &'static str,
    [equator, fall, swing, noise]: [f64; 4],
) -> Quantity {
    Quantity { name, long_name, units, equator, fall, swing, noise }
}

/// What a tree is to be like.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Seed of the weather. Default 1.
    pub seed: u64,
    /// Number of files. Default 120.
    pub files: usize,
    /// Bytes in all, about. Default 128 MiB. Sizes differ, since every third file is on a coarser grid.
    pub bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, files: 120, bytes: 128 << 20 }
    }
}

/// Makes the tree below `directory`.
///
/// # Errors
/// Those of the file system.
pub fn write_tree(directory: &Path, options: &Options) -> io::Result<Vec<SampleFile>> {
    let random = Random::new(options.seed);
    let mut files = Vec::with_capacity(options.files);
    // Two fine files and a coarse one of a quarter make up three shares.
    let fine = options.bytes as f64 / options.files.max(1) as f64 / 0.75;
    for number in 0..options.files {
        let quantity = &QUANTITIES[number % QUANTITIES.len()];
        let year = 1950 + u32::try_from(number / QUANTITIES.len()).unwrap_or(0);
        let size = if number % 3 == 2 { fine / 4.0 } else { fine };
        let folder = PathBuf::from("cmip").join(quantity.name);
        fs::create_dir_all(directory.join(&folder))?;
        let path = folder.join(format!("{}_Amon_sample_{year}01-{year}12.nc", quantity.name));
        let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(directory.join(&path))?);
        write_file(&mut out, quantity, year, size, random.fork(number as u64))?;
        out.flush()?;
        files.push(SampleFile { size: fs::metadata(directory.join(&path))?.len(), path });
    }
    Ok(files)
}

fn write_file(
    out: &mut impl Write,
    quantity: &Quantity,
    year: u32,
    size: f64,
    mut random: Random,
) -> io::Result<()> {
    // Cells of 4 bytes for each month, twice as many along a parallel as along a meridian.
    let lat = ((size / f64::from(MONTHS) / 8.0).sqrt().round() as u32).max(2);
    let lon = 2 * lat;
    let text = |name: &str, value: &str| (name.to_owned(), Value::Text(value.to_owned()));
    let axis = |name: &str, dimension, attributes| Variable {
        name: name.into(),
        dimensions: vec![dimension],
        kind: Type::Double,
        attributes,
    };
    let dimension = |name: &str, len, is_record| Dimension { name: name.to_owned(), len, is_record };
    let dataset = Dataset {
        dimensions: vec![
            dimension("time", MONTHS, true),
            dimension("lat", lat, false),
            dimension("lon", lon, false),
        ],
        attributes: vec![
            text("Conventions", "CF-1.8"),
            text("title", &format!("made-up monthly means of {}, {year}", quantity.long_name)),
            text("institution", "generated on this machine, not measured"),
            text("source", "percale sample data"),
            text("frequency", "mon"),
            text("variable_id", quantity.name),
            ("realization_index".into(), Value::Ints(vec![1])),
        ],
        variables: vec![
            axis("time", 0, vec![text("units", "days since 1950-01-01"), text("calendar", "360_day")]),
            axis("lat", 1, vec![text("units", "degrees_north"), text("standard_name", "latitude")]),
            axis("lon", 2, vec![text("units", "degrees_east"), text("standard_name", "longitude")]),
            Variable {
                name: quantity.name.into(),
                dimensions: vec![0, 1, 2],
                kind: Type::Float,
                attributes: vec![
                    text("long_name", quantity.long_name),
                    text("units", quantity.units),
                    ("_FillValue".into(), Value::Floats(vec![1e20])),
                    text("cell_methods", "time: mean"),
                ],
            },
        ],
    };
    let latitude = |row: u32| -90.0 + (f64::from(row) + 0.5) * 180.0 / f64::from(lat);
    dataset.write(out, |variable, record, values| match variable {
        0 => values.push(f64::from((year - 1950) * 360 + record * 30) + 15.0),
        1 => values.extend((0..lat).map(latitude)),
        2 => values.extend((0..lon).map(|column| (f64::from(column) + 0.5) * 360.0 / f64::from(lon))),
        _ => {
            let season = (2.0 * PI * (f64::from(record) - 0.5) / f64::from(MONTHS)).cos();
            for row in 0..lat {
                let angle = latitude(row).to_radians();
                let mean = quantity.equator
                    - quantity.fall * angle.sin().powi(2)
                    - quantity.swing * season * angle.sin();
                values.extend((0..lon).map(|_| mean + quantity.noise * (random.unit() - 0.5)));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn options() -> Options {
        Options { files: 9, bytes: 3 << 20, ..Options::default() }
    }

    #[test]
    fn a_tree_has_the_size_that_was_asked_for_and_is_the_same_twice() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = write_tree(one.path(), &options()).unwrap();
        assert_eq!(write_tree(two.path(), &options()).unwrap(), files);
        let total: u64 = files.iter().map(|file| file.size).sum();
        assert!((2_900_000..3_400_000).contains(&total), "{total}");
        for file in &files {
            let read = |root: &tempfile::TempDir| fs::read(root.path().join(&file.path)).unwrap();
            assert!(read(&one).starts_with(b"CDF\x02"));
            assert_eq!(read(&one), read(&two), "{}", file.path.display());
        }
    }

    /// Skipped, and says so, where the package netcdf-bin is not installed.
    #[test]
    fn ncdump_reads_them() {
        if Command::new("ncdump").output().is_err() {
            eprintln!("SKIPPED: ncdump is not installed (Debian: apt-get install netcdf-bin)");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let files = write_tree(folder.path(), &options()).unwrap();
        let dump = |arguments: &[&str]| {
            let output = Command::new("ncdump")
                .args(arguments)
                .arg(folder.path().join(&files[0].path))
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(dump(&["-k"]).trim(), "64-bit offset");
        let header = dump(&["-h"]);
        for line in [
            "time = UNLIMITED ; // (12 currently)",
            "float tas(time, lat, lon) ;",
            ":Conventions = \"CF-1.8\"",
        ] {
            assert!(header.contains(line), "{line} is not in {header}");
        }
        let times = dump(&["-v", "time"]);
        assert!(
            times.contains("time = 15, 45, 75, 105, 135, 165, 195, 225, 255, 285, 315, 345 ;"),
            "{times}"
        );
    }
}
