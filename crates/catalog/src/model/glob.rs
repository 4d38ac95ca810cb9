//! Patterns as globset reads them: `*`, `?`, `[a-z]`, `{nc,nc4}`.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::error::{Error, Result};

/// How deep braces may be in braces. What makes a program of them calls itself for each, and a regular expression has its own limit.
const MOST_DEEP: usize = 32;

/// A pattern that somebody wrote.
#[derive(Debug, Clone)]
pub struct Glob {
    // A set of one: unlike a single matcher it says when there is no room for it, and does not panic.
    matcher: GlobSet,
    text: String,
}

impl Glob {
    /// Reads a pattern, which is for `what`.
    ///
    /// # Errors
    /// `InvalidRequest` if it is none, or is too large to be looked for.
    pub fn new(
        what: &str,
        pattern: &str,
        options: impl for<'b, 'p> FnOnce(&'b mut GlobBuilder<'p>) -> &'b mut GlobBuilder<'p>,
    ) -> Result<Self> {
        let wrong = |why: &dyn std::fmt::Display| {
            let shown: String = pattern.chars().take(80).collect();
            Error::invalid(format!("'{shown}' is no pattern of {what}: {why}"))
        };
        if depth(pattern) > MOST_DEEP {
            return Err(wrong(&format!("there are more than {MOST_DEEP} braces in each other")));
        }
        let mut builder = GlobBuilder::new(pattern);
        let glob = options(&mut builder).build().map_err(|error| wrong(error.kind()))?;
        let matcher = GlobSetBuilder::new().add(glob).build().map_err(|error| wrong(error.kind()))?;
        Ok(Self { matcher, text: pattern.to_owned() })
    }

    /// Tells whether a text matches.
    pub fn is_match(&self, text: &str) -> bool {
        self.matcher.is_match(text)
    }

    /// Returns the pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Returns how deep braces are in braces, at most.
fn depth(pattern: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for char in pattern.chars() {
        match char {
            '{' => now += 1,
            '}' => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_looked_for_is_refused() {
        let read = |pattern: &str| Glob::new("paths", pattern, |glob| glob.literal_separator(true));
        let nested = |depth: usize| format!("/{}a{}", "{".repeat(depth), "}".repeat(depth));
        assert!(read(&nested(MOST_DEEP)).unwrap().is_match("/a"));
        for wrong in [nested(MOST_DEEP + 1), nested(8000), "/a{b".into(), "[z-a]".into()] {
            let error = read(&wrong).unwrap_err().to_string();
            assert!(error.contains("is no pattern of paths: "), "{error}");
        }
        assert!(read("/a/{b,c}/*.nc").unwrap().is_match("/a/c/x.nc"));
    }
}
