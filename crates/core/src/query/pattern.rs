//! Regular expressions that texts are searched by.
//!
//! SQLite has none of its own and is lent those of the `regex` crate; PostgreSQL has others. So that a query means the same on both, an
//! expression is parsed here and written again in what the two have in common: character escapes, classes, groups, repetitions
//! and the two anchors (<https://www.postgresql.org/docs/current/functions-matching.html#POSIX-SYNTAX-DETAILS>,
//! <https://docs.rs/regex/latest/regex/#syntax>). None of it needs backtracking, so that no expression takes longer than in proportion to
//! the text.

use std::fmt::{self, Write as _};

use regex::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};

/// Longest expression, in bytes.
const MAX_WRITTEN: usize = 1000;
/// How deep groups may be nested.
const MAX_DEPTH: u32 = 50;
/// Longest expression in the portable form, in bytes: a class such as `\w` is 700 ranges, 15 kB.
const MAX_PORTABLE: usize = 256 << 10;
/// Most memory that a compiled expression takes.
const MAX_COMPILED: usize = 1 << 20;
/// Most repetitions that PostgreSQL counts: DUPMAX in its `regex/regex.h`.
const MAX_REPEATED: u32 = 255;

/// A regular expression, looked for anywhere in a text and in any case: it is matched with texts that are in small letters, or of which A to Z
/// are.
#[derive(Clone)]
pub struct TextPattern {
    written: String,
    portable: String,
    pieces: Vec<String>,
    regex: Regex,
}

impl fmt::Debug for TextPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.written)
    }
}

impl PartialEq for TextPattern {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

/// Says why an expression is none that texts can be searched by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(String);

type Outcome<T> = Result<T, PatternError>;

fn wrong<T>(message: impl Into<String>) -> Outcome<T> {
    Err(PatternError(message.into()))
}

impl TextPattern {
    /// Reads an expression in the syntax of the `regex` crate, which is that of RE2 but for word boundaries and lines.
    ///
    /// # Errors
    /// Says what is wrong, what is not supported, or which bound it goes over.
    pub fn parse(written: &str) -> Outcome<Self> {
        if written.len() > MAX_WRITTEN {
            return wrong(format!(
                "a regular expression has at most {MAX_WRITTEN} bytes, not {}",
                written.len()
            ));
        }
        let parsed = ParserBuilder::new().case_insensitive(true).nest_limit(MAX_DEPTH).build().parse(written);
        let hir = parsed
            .or_else(|error| wrong(format!("the regular expression cannot be read: {}", reason(&error))))?;
        let mut portable = String::new();
        write(&mut portable, &hir)?;
        if portable.len() > MAX_PORTABLE {
            return wrong("the regular expression has too many classes of characters");
        }
        let regex = compile(&portable)?;
        let mut pieces = vec![String::new()];
        gather(&hir, &mut pieces);
        pieces.retain(|piece| !piece.is_empty());
        Ok(Self { written: written.to_owned(), portable, pieces, regex })
    }

    /// Returns it as it was written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns it such that it means the same to PostgreSQL and to [`compile`].
    pub fn portable(&self) -> &str {
        &self.portable
    }

    /// Returns what every text has that it matches, in this order.
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// Tells whether it is found in a text that is in small letters.
    pub fn is_in(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// Compiles an expression in the portable form.
///
/// # Errors
/// If it takes too much memory.
pub fn compile(portable: &str) -> Outcome<Regex> {
    let built = RegexBuilder::new(portable).size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).build();
    built.or_else(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            wrong("the regular expression repeats too much, or has too many classes of characters")
        }
        other => wrong(format!("the regular expression cannot be read: {other}")),
    })
}

/// What is wrong, without the picture of the expression that comes with it.
fn reason(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        other => other.to_string(),
    }
}

fn write(portable: &mut String, hir: &Hir) -> Outcome<()> {
    match hir.kind() {
        HirKind::Empty => portable.push_str("(?:)"),
        HirKind::Literal(literal) => text(&literal.0)?.chars().for_each(|char| write_letter(portable, char)),
        HirKind::Class(Class::Unicode(class)) => write_class(portable, class),
        HirKind::Class(Class::Bytes(class)) => match class.to_unicode_class() {
            Some(class) => write_class(portable, &class),
            None => return wrong("texts have characters, and not single bytes"),
        },
        HirKind::Look(Look::Start) => portable.push('^'),
        HirKind::Look(Look::End) => portable.push('$'),
        HirKind::Look(Look::StartLF | Look::EndLF | Look::StartCRLF | Look::EndCRLF) => {
            return wrong("^ and $ are the ends of the whole text: (?m) is not supported");
        }
        HirKind::Look(_) => {
            return wrong(
                "the ends of words, \\b, are not supported; write (^| ) and ( |$), or use ':' to look for a word",
            );
        }
        HirKind::Repetition(repetition) => {
            group(portable, &repetition.sub)?;
            match (repetition.min, repetition.max) {
                (0, None) => portable.push('*'),
                (1, None) => portable.push('+'),
                (0, Some(1)) => portable.push('?'),
                (min, max) if min.max(max.unwrap_or(0)) > MAX_REPEATED => {
                    return wrong(format!(
                        "a regular expression repeats something at most {MAX_REPEATED} times"
                    ));
                }
                (min, None) => portable.push_str(&format!("{{{min},}}")),
                (min, Some(max)) => portable.push_str(&format!("{{{min},{max}}}")),
            }
        }
        HirKind::Capture(capture) => group(portable, &capture.sub)?,
        HirKind::Concat(parts) => {
            for part in parts {
                match part.kind() {
                    HirKind::Alternation(_) => group(portable, part)?,
                    _ => write(portable, part)?,
                }
            }
        }
        HirKind::Alternation(parts) => {
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    portable.push('|');
                }
                write(portable, part)?;
            }
        }
    }
    Ok(())
}

fn group(portable: &mut String, hir: &Hir) -> Outcome<()> {
    portable.push_str("(?:");
    write(portable, hir)?;
    portable.push(')');
    Ok(())
}

/// Returns a literal as text.
fn text(literal: &[u8]) -> Outcome<&str> {
    match std::str::from_utf8(literal) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) => wrong("texts have no zero byte"),
        Err(_) => wrong("texts have characters, and not single bytes"),
    }
}

/// Returns the small letters that are meant by a class that is a single letter in any case; nothing if it is another class. They are
/// more than one where a capital letter has several, such as the sigma, but for the long s beside an s.
fn letters(class: &ClassUnicode) -> Option<Vec<char>> {
    let first = class.iter().next()?.start();
    let mut cases = ClassUnicode::new([ClassUnicodeRange::new(first, first)]);
    cases.try_case_fold_simple().ok()?;
    if cases != *class {
        return None;
    }
    let all = class.iter().flat_map(|range| range.start()..=range.end());
    let small: Vec<char> = all.filter(|char| char.to_lowercase().eq([*char])).collect();
    let ascii = small.iter().copied().find(char::is_ascii);
    let letters = ascii.map_or(small, |ascii| vec![ascii]);
    (!letters.is_empty()).then_some(letters)
}

fn write_char(portable: &mut String, char: char) {
    match char {
        char if char.is_ascii_alphanumeric() => portable.push(char),
        char => write_escape(portable, char),
    }
}

/// Writes a letter, and what it is in small letters if that is more than one, as of the I with a dot.
fn write_letter(portable: &mut String, char: char) {
    if char.to_lowercase().eq([char]) {
        return write_char(portable, char);
    }
    portable.push_str("(?:");
    char.to_lowercase().for_each(|small| write_char(portable, small));
    portable.push('|');
    write_char(portable, char);
    portable.push(')');
}

fn write_escape(portable: &mut String, char: char) {
    let code = u32::from(char);
    // Writing to a text cannot fail.
    let _ =
        if code <= 0xffff { write!(portable, "\\u{code:04x}") } else { write!(portable, "\\U{code:08x}") };
}

/// Writes a class; PostgreSQL's texts have no zero character. Of a letter from A to Z the small one is enough: that is so in names, too, where
/// the databases leave the capitals of all other letters.
fn write_class(portable: &mut String, class: &ClassUnicode) {
    if let Some([letter]) = letters(class).as_deref()
        && letter.is_ascii()
    {
        return write_char(portable, *letter);
    }
    let ranges = class.iter().map(|range| (range.start().max('\u{1}'), range.end()));
    let before = portable.len();
    portable.push('[');
    for (start, end) in ranges.filter(|(start, end)| start <= end) {
        write_escape(portable, start);
        if start < end {
            portable.push('-');
            write_escape(portable, end);
        }
    }
    if portable.len() == before + 1 {
        // No character is none of all.
        portable.push_str("^\\u0001-\\U0010ffff");
    }
    portable.push(']');
}

/// Gathers what a text must have. What comes behind something that is not the same in every text begins a new piece.
fn gather(hir: &Hir, pieces: &mut Vec<String>) {
    match hir.kind() {
        HirKind::Literal(literal) => {
            if let (Some(last), Ok(text)) = (pieces.last_mut(), text(&literal.0)) {
                last.push_str(&text.to_lowercase());
            }
        }
        HirKind::Class(Class::Unicode(class)) if let Some([letter]) = letters(class).as_deref() => {
            if let Some(last) = pieces.last_mut() {
                last.push(*letter);
            }
        }
        HirKind::Capture(capture) => gather(&capture.sub, pieces),
        HirKind::Concat(parts) => parts.iter().for_each(|part| gather(part, pieces)),
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            pieces.push(String::new());
            gather(&repetition.sub, pieces);
            pieces.push(String::new());
        }
        HirKind::Repetition(_) | HirKind::Class(_) | HirKind::Alternation(_) => pieces.push(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(written: &str) -> TextPattern {
        TextPattern::parse(written).unwrap()
    }

    #[test]
    fn expressions_are_found_in_texts() {
        let found = [
            ("MODIS", "terra modis l2"),
            ("^s(ea|ky).*temp", "sea surface temperature"),
            (r"v\d+\.\d+$", "release v2.10"),
            ("[A-C]x", "bx"),
            ("[^A-C]x", "dx"),
            ("ΟΔΟΣ", "οδος"),
            ("Μm", "µm"),
            ("[[:upper:]]x", "ax"),
            ("größe|weight", "größe"),
            ("^$", ""),
            ("a{2,3}b", "xaaab"),
            (r"\w+@\w+\.org", "write to ada@example.org"),
            ("(a|)b", "b"),
            ("Ä", "ä"),
            ("İ", "i\u{307}"),
            (r"[^\x00-\x{10ffff}]|x", "x"),
            ("日.*🌊", "日本 🌊"),
        ];
        for (written, text) in found {
            assert!(pattern(written).is_in(text), "{written} in {text}");
        }
        for (written, text) in [
            ("^ea", "sea"),
            ("a.c", "ac"),
            ("a.c", "a\nc"),
            (r"\d", "one"),
            ("[a&&b]", "ab"),
            ("x{3}", "xx"),
            ("[^A-C]", "abc"),
            ("[^s]", "s"),
            (r"\W", "a"),
            ("[^A-C]", "abc"),
            ("[^s]", "s"),
            (r"\W", "a"),
        ] {
            assert!(!pattern(written).is_in(text), "{written} in {text}");
        }
    }

    #[test]
    fn the_portable_form_has_what_both_databases_know() {
        assert_eq!(
            pattern("^Sea.?(ice|_)$").portable(),
            r"^sea(?:[\u0001-\u0009\u000b-\U0010ffff])?(?:ice|\u005f)$"
        );
        assert_eq!(pattern("(ab){2,}|c").portable(), r"(?:(?:ab)){2,}|c");
        assert_eq!(pattern(r"\[b\]é$").portable(), r"\u005bb\u005d[\u00c9\u00e9]$");
    }

    #[test]
    fn what_a_text_must_have_is_known() {
        let pieces = [
            ("Sea.*temp", vec!["sea", "temp"]),
            ("(sea) surface", vec!["sea surface"]),
            ("a(b|c)d(ef)+g?h", vec!["a", "d", "ef", "h"]),
            ("x*|y", vec![]),
            ("^one$", vec!["one"]),
            ("Größe ΑΣ 5µm", vec!["größe α", " 5", "m"]),
        ];
        for (written, must) in pieces {
            assert_eq!(pattern(written).pieces(), must, "{written}");
        }
    }

    #[test]
    fn what_is_not_supported_is_said() {
        let refused = [
            ("(", "unclosed group"),
            (r"\bsea", "use ':'"),
            ("(?m)^x", "(?m)"),
            ("(?-u:\\xff)", "UTF-8"),
            ("a{256}", "255 times"),
            ("(?:a{200}){200}", "repeats too much"),
            (&"x".repeat(1001), "1000 bytes"),
            (r"a\x00", "zero byte"),
            (&r"\w".repeat(40), "classes"),
            (r"(a)\1", "backreferences"),
            ("(?=a)", "look-around"),
            (&"(".repeat(60), "cannot be read"),
        ];
        for (written, why) in refused {
            let error = TextPattern::parse(written).unwrap_err().to_string();
            assert!(error.contains(why), "{written}: {error}");
        }
    }
}
