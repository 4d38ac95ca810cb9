//! Patterns of names.

use super::glob::Glob;
use crate::error::{Error, Result};

/// The most bytes of a pattern: those of the longest name, each escaped, and some more.
const MOST_BYTES: usize = 1024;

/// A pattern of names: `*`, `?`, `[a-z]`, `{nc,nc4}`, and a backslash before any of them to mean it.
#[derive(Debug, Clone)]
pub struct NamePattern {
    matcher: Glob,
    /// The same for the database, which looks more coarsely.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Char(char),
    One,
    Any,
}

impl NamePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// `InvalidRequest` if it is none, or is longer than 1024 bytes.
    pub fn new(pattern: &str) -> Result<Self> {
        if pattern.len() > MOST_BYTES {
            return Err(Error::invalid(format!("a pattern of names has at most {MOST_BYTES} bytes")));
        }
        let matcher =
            Glob::new("names", pattern, |glob| glob.literal_separator(true).backslash_escape(true))?;
        Ok(Self { matcher, parts: parts(pattern) })
    }

    /// Tells whether a name matches.
    pub fn is_match(&self, name: &str) -> bool {
        self.matcher.is_match(name)
    }

    /// Returns what each name that matches begins with.
    pub fn prefix(&self) -> String {
        let literal = |part: &Part| match part {
            Part::Char(char) => Some(*char),
            _ => None,
        };
        self.parts.iter().map_while(literal).collect()
    }

    /// Returns patterns for `GLOB` of SQLite and `LIKE` of PostgreSQL that match at least what this one does.
    pub fn of_engines(&self) -> (String, String) {
        let (mut glob, mut like) = (String::new(), String::new());
        for part in &self.parts {
            match part {
                Part::Any => {
                    glob.push('*');
                    like.push('%');
                }
                Part::One => {
                    glob.push('?');
                    like.push('_');
                }
                Part::Char(char) => {
                    match char {
                        '*' | '?' | '[' => glob.extend(['[', *char, ']']),
                        _ => glob.push(*char),
                    }
                    if matches!(char, '%' | '_' | '\\') {
                        like.push('\\');
                    }
                    like.push(*char);
                }
            }
        }
        (glob, like)
    }
}

fn parts(pattern: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        parts.push(match char {
            '*' => Part::Any,
            '?' => Part::One,
            '[' => {
                // A bracket right at its beginning is one of its characters.
                if matches!(chars.peek(), Some('!' | '^')) {
                    chars.next();
                }
                chars.next();
                chars.by_ref().find(|char| *char == ']');
                Part::One
            }
            // What it holds may be nested and of any length.
            '{' => {
                parts.push(Part::Any);
                return parts;
            }
            '\\' => chars.next().map_or(Part::Any, Part::Char),
            char => Part::Char(char),
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pattern: &str) -> (String, String, String) {
        let pattern = NamePattern::new(pattern).unwrap();
        let (glob, like) = pattern.of_engines();
        (pattern.prefix(), glob, like)
    }

    #[test]
    fn engines_are_asked_for_at_least_what_matches() {
        let text =
            |prefix: &str, glob: &str, like: &str| (prefix.to_owned(), glob.to_owned(), like.to_owned());
        assert_eq!(of("run_1%.nc"), text("run_1%.nc", "run_1%.nc", r"run\_1\%.nc"));
        assert_eq!(of("a*b?[c-e]f"), text("a", "a*b??f", "a%b__f"));
        assert_eq!(of("a[]x]b"), text("a", "a?b", "a_b"));
        assert_eq!(of("x{a,b}y"), text("x", "x*", "x%"));
        assert_eq!(of(r"\*\?\["), text("*?[", "[*][?][[]", "*?["));
        assert!(NamePattern::new("a[b").is_err());
    }

    #[test]
    fn a_name_matches_as_a_whole() {
        let pattern = NamePattern::new("*.{nc,nc4}").unwrap();
        assert!(pattern.is_match("a.nc") && pattern.is_match("b.nc4") && !pattern.is_match("a.ncx"));
    }
}
