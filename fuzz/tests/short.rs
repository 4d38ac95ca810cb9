//! A run that is short enough for every day.

use std::path::Path;
use std::process::Command;

/// Where Debian packages put files of others (scripts/bootstrap installs them). Without them the program breaks those that it makes itself.
const SAMPLES: [&str; 4] =
    ["/usr/share/ferret-vis/data", "/usr/share/ncarg", "/usr/share/gmt-gshhg", "/usr/share/python-tables"];

#[test]
fn files_and_queries_that_were_broken_at_random_break_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percale-fuzz"));
    command.args(["15", "1"]).args(SAMPLES.iter().filter(|folder| Path::new(folder).is_dir()));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" to break"), "{said}");
    println!("{said}");
}
