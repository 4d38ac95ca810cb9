//! Parts of a tree, as the command line's filters and a site's tasks take them: the first pattern that matches decides.
//!
//! A pattern without a slash is compared with the name, at any depth; one with a slash with the path below the source.
//! A pattern that ends with a slash matches only directories. What no pattern matches is wanted, unless there is one that
//! includes: then what matches nothing is not.

use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};
use percale_api::importing::{Rule, Selection};
use percale_core::ErrorCode;

use crate::Result;
use crate::error::{Error, ErrorKind};
use crate::walk::{Candidate, Filter};

/// Most rules of a selection.
const MAX_RULES: usize = 1000;

struct Compiled {
    include: bool,
    directories_only: bool,
    whole_path: bool,
    matcher: GlobMatcher,
}

/// Makes the filter of a selection; none if everything is wanted.
///
/// # Errors
/// `invalid_request` for a pattern that cannot be, or too many.
pub fn filter(selection: &Selection) -> Result<Option<Filter>> {
    if selection.is_everything() {
        return Ok(None);
    }
    if selection.rules.len() > MAX_RULES {
        return Err(wrong(format!("there are more than {MAX_RULES} patterns")));
    }
    let rules: Vec<Compiled> = selection.rules.iter().map(compile).collect::<Result<_>>()?;
    let (min, max) = (selection.min_size, selection.max_size);
    let has_include = rules.iter().any(|rule| rule.include);
    Ok(Some(Arc::new(move |candidate: Candidate<'_>| {
        let fits = candidate.is_directory
            || (min.is_none_or(|min| candidate.size >= min.0)
                && max.is_none_or(|max| candidate.size <= max.0));
        let name = candidate.path.rsplit('/').next().unwrap_or_default();
        let decided = rules
            .iter()
            .filter(|rule| candidate.is_directory || !rule.directories_only)
            .find(|rule| rule.matcher.is_match(if rule.whole_path { candidate.path } else { name }))
            .map(|rule| rule.include);
        // A directory is entered though no include matches it: something in it may match.
        fits && decided.unwrap_or(candidate.is_directory || !has_include)
    })))
}

fn compile(Rule { include, pattern }: &Rule) -> Result<Compiled> {
    let directories_only = pattern.len() > 1 && pattern.ends_with('/');
    let text = pattern.trim_end_matches('/');
    let whole_path = text.contains('/');
    // `*` and `?` do not match a slash, `**` does.
    let glob = GlobBuilder::new(text.trim_start_matches('/')).literal_separator(true).build();
    let matcher = glob.map_err(|error| wrong(error.to_string()))?.compile_matcher();
    Ok(Compiled { include: *include, directories_only, whole_path, matcher })
}

fn wrong(detail: String) -> Error {
    Error::new(ErrorKind::Usage, ErrorCode::InvalidRequest, "use the pattern", detail)
}
