//! `--include` and `--exclude`: the first pattern that matches decides (as rclone and globus do; aws lets the last one).
//! What a pattern matches is said in [`percale_client::selection`].

use clap::{ArgMatches, Args, FromArgMatches};
use globset::{GlobBuilder, GlobMatcher};
use percale_api::importing::{Rule, Selection};
use percale_client::put::Filter;
use percale_core::ByteCount;

use crate::failure::{Failure, Result};

/// The options of a command that takes filters.
#[derive(Debug, Clone, Default)]
pub struct FilterArgs {
    /// In the order in which they were given.
    rules: Vec<(bool, String)>,
    min_size: Option<ByteCount>,
    max_size: Option<ByteCount>,
}

/// What clap reads; the order between the two options is found by their places.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters (first match wins)")]
struct RawArgs {
    /// Take what matches PATTERN; `*.nc`, `/2024/**`
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Leave out what matches PATTERN; a slash at its end means directories
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Leave out files smaller than SIZE
    #[arg(long, value_name = "SIZE")]
    min_size: Option<ByteCount>,
    /// Leave out files larger than SIZE
    #[arg(long, value_name = "SIZE")]
    max_size: Option<ByteCount>,
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let raw = RawArgs::from_arg_matches(matches)?;
        let places = |id: &str| matches.indices_of(id).map(Iterator::collect::<Vec<_>>).unwrap_or_default();
        let mut rules: Vec<(usize, bool, String)> = Vec::new();
        rules.extend(places("include").into_iter().zip(raw.include).map(|(at, text)| (at, true, text)));
        rules.extend(places("exclude").into_iter().zip(raw.exclude).map(|(at, text)| (at, false, text)));
        rules.sort_by_key(|(at, ..)| *at);
        let rules = rules.into_iter().map(|(_, include, text)| (include, text)).collect();
        Ok(Self { rules, min_size: raw.min_size, max_size: raw.max_size })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for FilterArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        RawArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        RawArgs::augment_args_for_update(command)
    }
}

impl FilterArgs {
    /// Makes the filter; none if nothing was asked for.
    pub fn build(&self) -> Result<Option<Filter>> {
        percale_client::selection::filter(&self.selection())
            .map_err(|error| Failure::usage(format!("cannot use the pattern: {}", error.detail())))
    }

    /// What a site is asked for.
    pub fn selection(&self) -> Selection {
        let rule = |(include, pattern): &(bool, String)| Rule { include: *include, pattern: pattern.clone() };
        Selection {
            rules: self.rules.iter().map(rule).collect(),
            min_size: self.min_size,
            max_size: self.max_size,
        }
    }
}

/// Reads a pattern. `*` and `?` do not match a slash, `**` does.
pub fn glob(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| Failure::usage(format!("cannot use the pattern: {error}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        filters: FilterArgs,
    }

    fn wants(options: &[&str]) -> impl Fn(&str) -> bool + use<> {
        let words = std::iter::once("x").chain(options.iter().copied());
        let filter = Command::try_parse_from(words).unwrap().filters.build().unwrap();
        move |path: &str| {
            let is_directory = path.ends_with('/');
            let path = path.trim_end_matches('/');
            filter
                .as_ref()
                .is_none_or(|filter| filter(percale_client::put::Candidate::new(path, is_directory, 100)))
        }
    }

    #[test]
    fn the_first_match_wins() {
        let filter = wants(&["--include", "keep.tmp", "--exclude", "*.tmp"]);
        assert!(filter("a/keep.tmp") && !filter("a/b.tmp") && !filter("a/b.nc"));
        let filter = wants(&["--exclude", "*.tmp", "--include", "keep.tmp"]);
        assert!(!filter("a/keep.tmp"));
    }

    #[test]
    fn an_include_leaves_out_the_rest_but_enters_directories() {
        let filter = wants(&["--include", "*.nc"]);
        assert!(filter("a.nc") && filter("deep/er/a.nc") && filter("deep/") && !filter("a.txt"));
        let filter = wants(&["--exclude", "*.txt"]);
        assert!(filter("a.nc") && !filter("a.txt"));
    }

    #[test]
    fn paths_and_directories_can_be_named() {
        let filter = wants(&["--exclude", "/raw/*.bin", "--exclude", "scratch/"]);
        assert!(!filter("raw/a.bin") && filter("x/raw/a.bin") && filter("raw/deep/a.bin"));
        assert!(!filter("x/scratch/") && filter("scratch"));
        let filter = wants(&["--exclude", "2024/**"]);
        assert!(!filter("2024/a/b") && filter("2023/a"));
    }

    #[test]
    fn sizes_count_for_files_only() {
        let filter = wants(&["--min-size", "1kB"]);
        assert!(!filter("a") && filter("a/"));
        assert!(wants(&["--max-size", "100"])("a"));
        assert!(wants(&[])("anything"));
    }

    #[test]
    fn a_broken_pattern_is_named() {
        let words = ["x", "--include", "a[b"];
        let failure = Command::try_parse_from(words).unwrap().filters.build().err().unwrap();
        assert!(failure.to_string().contains("a[b"), "{failure}");
    }
}
