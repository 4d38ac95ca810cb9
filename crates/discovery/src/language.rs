//! The query language (docs/search.md), read into a [`Condition`].
//!
//! ```text
//! query    = or
//! or       = and { "OR" and }
//! and      = negated { [ "AND" ] negated }
//! negated  = { "NOT" | "-" } ( "(" query ")" | clause | text )
//! clause   = field ( "=" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
//!          | field "~" expression
//!          | field ":" ( [ op ] value | range | "*" | "(" value { [ "OR" ] value } ")" )
//!          | field [ "NOT" ] ( "LIKE" | "GLOB" ) value
//!          | field [ "NOT" ] "IN" ( "(" | "[" ) value { [ "," ] value } ( ")" | "]" )
//!          | field [ "NOT" ] "BETWEEN" value "AND" value
//!          | field "IS" [ "NOT" ] "NULL"
//!          | "bbox" ":" "(" west "," south "," east "," north ")" | "near" ":" "(" longitude "," latitude "," length ")"
//! range    = [ value ] ".." [ value ] | ( "[" | "{" ) ( value | "*" ) "TO" ( value | "*" ) ( "]" | "}" )
//! field    = builtin | "@" key | key | "`" any "`"
//! ```
//!
//! Keywords are read in any case. Of nesting and length there are bounds, so that no text of anybody costs more than reading it.

pub mod cql2;

mod coverage;
mod value;
mod write;

pub(crate) use self::value::dates;
pub use self::write::write;

use percale_core::query::{Builtin, Comparison, Condition, Field, Literal, Test, TextPattern};
use percale_core::{AttributeName, Timestamp};
use winnow::Parser;
use winnow::ascii::Caseless;
use winnow::combinator::{alt, not, opt, terminated};
use winnow::error::EmptyError;
use winnow::token::{literal, one_of, take_till, take_while};

/// Longest query, in bytes.
pub const MAX_QUERY: usize = 16 * 1024;
/// Most tests in one query.
const MAX_TESTS: usize = 100;
/// How deep parentheses may be nested.
const MAX_DEPTH: usize = 32;

/// A query that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    /// Where in the text it cannot be read further, in bytes; 0 if that is no place of its own.
    pub at: usize,
    message: String,
}

/// What cannot be read, with as many bytes of the query behind it.
struct Fault {
    behind: usize,
    message: String,
}

type Outcome<T> = Result<T, Fault>;

fn fault<T>(rest: &str, message: impl Into<String>) -> Outcome<T> {
    Err(Fault { behind: rest.len(), message: message.into() })
}

/// Reads a query. `now` is what times such as `-7d` count from. A query without any word finds everything.
///
/// # Errors
/// Says where it cannot be read, and what was expected there.
pub fn parse(query: &str, now: Timestamp) -> Result<Condition, QueryError> {
    bounded(read_whole("query", query, now, Reader::query)?, query.len())
}

/// Fails for a query that is too long, or has what no database can hold.
fn check(query: &str) -> Result<(), QueryError> {
    if query.len() > MAX_QUERY {
        let message = format!("a query has at most {MAX_QUERY} bytes, not {}", query.len());
        return Err(QueryError { at: MAX_QUERY, message });
    }
    match query.find('\0') {
        Some(at) => Err(QueryError { at, message: "a query has no zero byte".into() }),
        None => Ok(()),
    }
}

/// Joins a query and a filter that must both hold.
///
/// # Errors
/// For more tests than one query may have.
pub fn both(query: Condition, filter: Condition) -> Result<Condition, QueryError> {
    match query {
        Condition::All(parts) if parts.is_empty() => Ok(filter),
        query => bounded(Condition::All(vec![query, filter]), 0),
    }
}

/// Reads a text, which is called `what`, to its end, and says of what cannot be read where that stands.
fn read_whole<'q, T>(
    what: &str,
    query: &'q str,
    now: Timestamp,
    read: impl FnOnce(&mut Reader<'q>) -> Outcome<T>,
) -> Result<T, QueryError> {
    check(query)?;
    read(&mut Reader { rest: query, now, depth: 0 }).map_err(|Fault { behind, message }| {
        let at = query.len() - behind;
        let there: String = query.get(at..).unwrap_or_default().chars().take(20).collect();
        let place = if there.is_empty() { "at its end".to_owned() } else { format!("at '{there}'") };
        QueryError { at, message: format!("the {what} cannot be read {place}: {message}") }
    })
}

/// Fails for a condition with too many tests.
fn bounded(condition: Condition, at: usize) -> Result<Condition, QueryError> {
    match condition.tests() {
        0..=MAX_TESTS => Ok(condition),
        tests => {
            let message = format!("a query has at most {MAX_TESTS} tests, not {tests}");
            Err(QueryError { at, message })
        }
    }
}

/// Reads a list of fields with commas between them.
///
/// # Errors
/// As [`parse`].
pub fn parse_fields(list: &str) -> Result<Vec<Field>, QueryError> {
    Ok(fields_at(list)?.into_iter().map(|(_, field)| field).collect())
}

/// Reads a list of fields, each with the byte at which it begins.
fn fields_at(list: &str) -> Result<Vec<(usize, Field)>, QueryError> {
    let error = |behind: usize, message: &str| {
        let at = list.len().saturating_sub(behind);
        QueryError { at, message: format!("the list of fields cannot be read: {message}") }
    };
    let mut reader = Reader { rest: list, now: Timestamp::EPOCH, depth: 0 };
    let mut fields = Vec::new();
    loop {
        reader.space();
        let before = reader.rest;
        let name = reader.field_name().map_err(|Fault { behind, message }| error(behind, &message))?;
        let (name, is_attribute) =
            name.ok_or_else(|| error(before.len(), "the name of a field is expected"))?;
        match field(before, &name, is_attribute)
            .map_err(|Fault { behind, message }| error(behind, &message))?
        {
            Subject::Field(field) => fields.push((list.len() - before.len(), field)),
            Subject::Time => {
                return Err(error(before.len(), "time is none; there are coverage.start and coverage.end"));
            }
        }
        reader.space();
        if reader.rest.is_empty() {
            return Ok(fields);
        }
        if !reader.symbol(",") {
            return Err(error(reader.rest.len(), "a comma is expected"));
        }
    }
}

/// Reads a list of attributes with commas between them, as [`parse_fields`] does. What is named twice is there once.
///
/// # Errors
/// As [`parse`]; also for what is known of every entry, which no attribute is.
pub fn parse_attributes(list: &str) -> Result<Vec<AttributeName>, QueryError> {
    let mut names = Vec::new();
    for (at, field) in fields_at(list)? {
        match field {
            Field::Attribute(name) if names.contains(&name) => {}
            Field::Attribute(name) => names.push(name),
            Field::Builtin(builtin) => {
                let name = builtin.as_str();
                let message = format!("{name} is no attribute; @{name} is the attribute of that name");
                return Err(QueryError { at, message });
            }
        }
    }
    Ok(names)
}

struct Reader<'a> {
    rest: &'a str,
    now: Timestamp,
    depth: usize,
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Characters of a name that stands without quotes.
fn is_key(char: char) -> bool {
    is_word(char) || matches!(char, '.' | '-' | '/')
}

impl<'a> Reader<'a> {
    /// Takes what a parser takes, or nothing.
    fn take<T>(&mut self, parser: impl Parser<&'a str, T, EmptyError>) -> Option<T> {
        opt(parser).parse_next(&mut self.rest).ok().flatten()
    }

    fn space(&mut self) -> bool {
        self.take(take_while(1.., char::is_whitespace)).is_some()
    }

    fn symbol(&mut self, symbol: &'static str) -> bool {
        self.take(literal(symbol)).is_some()
    }

    fn keyword(&mut self, word: &'static str) -> bool {
        self.take(terminated(literal(Caseless(word)), not(one_of(is_key)))).is_some()
    }

    /// Takes a keyword with white space before it.
    fn spaced_keyword(&mut self, word: &'static str) -> bool {
        let before = self.rest;
        let is_there = self.space() && self.keyword(word);
        if !is_there {
            self.rest = before;
        }
        is_there
    }

    fn query(&mut self) -> Outcome<Condition> {
        self.space();
        if self.rest.is_empty() {
            return Ok(Condition::All(Vec::new()));
        }
        let condition = self.or()?;
        match self.rest {
            "" => Ok(condition),
            rest => fault(rest, "nothing that is open ends here"),
        }
    }

    fn or(&mut self) -> Outcome<Condition> {
        let mut parts = vec![self.and()?];
        while self.keyword("OR") {
            self.space();
            parts.push(self.and()?);
        }
        Ok(one_or(parts, Condition::Any))
    }

    /// Reads what stands next to each other, and the white space behind it.
    fn and(&mut self) -> Outcome<Condition> {
        let mut parts = vec![self.negated()?];
        loop {
            self.space();
            let before = self.rest;
            let is_or = self.keyword("OR");
            self.rest = before;
            if is_or || self.rest.is_empty() || self.rest.starts_with(')') {
                return Ok(one_or(parts, Condition::All));
            }
            if self.keyword("AND") {
                self.space();
            }
            parts.push(self.negated()?);
        }
    }

    fn negated(&mut self) -> Outcome<Condition> {
        let mut is_negated = false;
        loop {
            if self.keyword("NOT") {
                self.space();
            } else if !self.symbol("-") {
                break;
            }
            is_negated = !is_negated;
        }
        let condition = self.atom()?;
        Ok(if is_negated { Condition::Not(Box::new(condition)) } else { condition })
    }

    fn atom(&mut self) -> Outcome<Condition> {
        let before = self.rest;
        if self.symbol("(") {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return fault(before, format!("parentheses are nested more than {MAX_DEPTH} deep"));
            }
            self.space();
            let inner = self.or()?;
            if !self.symbol(")") {
                return fault(self.rest, "a ')' is missing");
            }
            self.depth -= 1;
            return Ok(inner);
        }
        if let Some(condition) = self.place()? {
            return Ok(condition);
        }
        if let Some(condition) = self.clause()? {
            return Ok(condition);
        }
        self.rest = before;
        match self.quoted()? {
            Some(text) => words(before, text),
            None => match self.bare_text() {
                "" => fault(before, "a word, a field or a '(' is expected"),
                text if text.eq_ignore_ascii_case("and") || text.eq_ignore_ascii_case("or") => {
                    fault(before, "something must stand before this word")
                }
                text => words(before, text.to_owned()),
            },
        }
    }

    /// Reads a test of a field. Nothing if no field with an operator is there.
    fn clause(&mut self) -> Outcome<Option<Condition>> {
        let start = self.rest;
        let Some((name, is_attribute)) = self.field_name()? else { return Ok(None) };
        let at_operator = self.rest;
        if self.symbol(":") {
            let field = field(start, &name, is_attribute)?;
            return self.behind_colon(field).map(Some);
        }
        self.space();
        if let Some((comparison, is_negated)) = self.operator() {
            let field = field(start, &name, is_attribute)?;
            self.space();
            let test = Test::Compare(comparison, self.value()?);
            return Ok(Some(negate(is_negated, field.is(test))));
        }
        if self.symbol("~") {
            let field = field(start, &name, is_attribute)?;
            self.space();
            return Ok(Some(field.is(self.regex()?)));
        }
        self.rest = at_operator;
        let is_negated = self.spaced_keyword("NOT");
        let is_path = !is_attribute && Builtin::named(&name) == Some(Builtin::Path);
        let Some(tests) = self.behind_keyword(is_path)? else {
            return match is_attribute {
                true => fault(at_operator, "an operator such as ':' or '=' is expected behind a field"),
                // They are words that only look like it.
                false => Ok(None),
            };
        };
        let field = field(start, &name, is_attribute)?;
        Ok(Some(negate(is_negated ^ tests.is_negated, any(&field, tests.tests))))
    }

    /// Reads what stands behind LIKE, GLOB, BETWEEN, IN or IS. Nothing if it is not all there.
    fn behind_keyword(&mut self, is_path: bool) -> Outcome<Option<Tests>> {
        if self.spaced_keyword("LIKE") {
            self.space();
            let start = self.rest;
            let pattern = self.value()?.text;
            return match like(&pattern, is_path) {
                Ok(test) => Ok(Some(Tests::of(test))),
                Err(message) => fault(start, message),
            };
        }
        if self.spaced_keyword("GLOB") {
            self.space();
            return Ok(Some(Tests::of(Test::Matches(self.value()?.text))));
        }
        if self.spaced_keyword("BETWEEN") {
            self.space();
            let low = self.value()?;
            if !self.spaced_keyword("AND") {
                return Ok(None);
            }
            self.space();
            return Ok(Some(Tests::of(Test::Between(Some(low), Some(self.value()?)))));
        }
        if self.spaced_keyword("IN") {
            self.space();
            let close = if self.symbol("(") {
                ")"
            } else if self.symbol("[") {
                "]"
            } else {
                return Ok(None);
            };
            let tests = self.list(close, |value| Test::Compare(Comparison::Equal, value))?;
            return Ok(Some(Tests { tests, is_negated: false }));
        }
        if self.spaced_keyword("IS") {
            let is_negated = !self.spaced_keyword("NOT");
            let is_whole = self.spaced_keyword("NULL");
            return Ok(is_whole.then(|| Tests { is_negated, ..Tests::of(Test::Exists) }));
        }
        Ok(None)
    }

    /// Reads the name of a field, and whether it was written as that of an attribute.
    fn field_name(&mut self) -> Outcome<Option<(String, bool)>> {
        let start = self.rest;
        let is_marked = self.symbol("@");
        if self.symbol("`") {
            let name = self.take(take_till(0.., '`')).unwrap_or_default();
            if !self.symbol("`") {
                return fault(start, "a back quote is missing at the end of the name");
            }
            return Ok(Some((name.to_owned(), true)));
        }
        let key = self.take(take_while(1.., is_key));
        match key {
            Some(key) => Ok(Some((key.to_owned(), is_marked))),
            None if is_marked => fault(start, "the name of an attribute is expected behind '@'"),
            None => Ok(None),
        }
    }

    fn operator(&mut self) -> Option<(Comparison, bool)> {
        self.take(alt((
            "!=".value((Comparison::Equal, true)),
            "<>".value((Comparison::Equal, true)),
            "<=".value((Comparison::AtMost, false)),
            ">=".value((Comparison::AtLeast, false)),
            "<".value((Comparison::Less, false)),
            ">".value((Comparison::More, false)),
            "=".value((Comparison::Equal, false)),
        )))
    }

    fn behind_colon(&mut self, field: Subject) -> Outcome<Condition> {
        if let Some((comparison, is_negated)) = self.operator() {
            let test = Test::Compare(comparison, self.value()?);
            return Ok(negate(is_negated, field.is(test)));
        }
        if self.symbol("~") {
            return Ok(field.is(self.regex()?));
        }
        if self.symbol("(") {
            return Ok(any(&field, self.list(")", has)?));
        }
        if self.rest.starts_with(['[', '{']) {
            return self.bracketed(&field);
        }
        let start = self.rest;
        if let Some(text) = self.quoted()? {
            return Ok(field.is(Test::Has(Literal::text(text))));
        }
        let word = self.bare_value();
        let range = word.split_once("..").filter(|(low, high)| !low.is_empty() || !high.is_empty());
        let test = match range {
            _ if word.is_empty() => return fault(start, "a value is expected"),
            Some((low, high)) => {
                let bound = |word: &str| (!word.is_empty()).then(|| self.literal(word));
                Test::Between(bound(low), bound(high))
            }
            None => has(self.literal(word)),
        };
        Ok(field.is(test))
    }

    /// Reads `[low TO high]`, where a brace in place of a bracket is a bound that is not in the range.
    fn bracketed(&mut self, field: &Subject) -> Outcome<Condition> {
        let is_from_low = self.symbol("[");
        if !is_from_low {
            self.symbol("{");
        }
        self.space();
        let low = self.bound()?;
        if !self.spaced_keyword("TO") {
            return fault(self.rest, "TO and the other bound are expected");
        }
        self.space();
        let high = self.bound()?;
        self.space();
        let is_to_high = self.symbol("]");
        if !is_to_high && !self.symbol("}") {
            return fault(self.rest, "a ']' or '}' is missing");
        }
        if (is_from_low || low.is_none()) && (is_to_high || high.is_none()) {
            return Ok(field.is(Test::Between(low, high)));
        }
        let is_above = if is_from_low { Comparison::AtLeast } else { Comparison::More };
        let is_below = if is_to_high { Comparison::AtMost } else { Comparison::Less };
        let bounds = [(is_above, low), (is_below, high)].into_iter();
        let tests =
            bounds.filter_map(|(comparison, bound)| Some(field.is(Test::Compare(comparison, bound?))));
        Ok(one_or(tests.collect(), Condition::All))
    }

    fn bound(&mut self) -> Outcome<Option<Literal>> {
        let value = self.value()?;
        Ok(if value.text == "*" { None } else { Some(value) })
    }

    fn list(&mut self, close: &'static str, test: impl Fn(Literal) -> Test) -> Outcome<Vec<Test>> {
        let mut tests = Vec::new();
        loop {
            self.space();
            if !tests.is_empty() && self.symbol(close) {
                return Ok(tests);
            }
            if !tests.is_empty() {
                let _ = self.symbol(",") || self.keyword("OR");
                self.space();
            }
            if tests.len() == MAX_TESTS {
                return fault(self.rest, format!("a query has at most {MAX_TESTS} tests"));
            }
            tests.push(test(self.value()?));
        }
    }

    /// Reads a value: in quotes it is text alone.
    fn value(&mut self) -> Outcome<Literal> {
        let start = self.rest;
        if let Some(text) = self.quoted()? {
            return Ok(Literal::text(text));
        }
        match self.bare_value() {
            "" => fault(start, "a value is expected"),
            word => Ok(self.literal(word)),
        }
    }

    /// Reads a regular expression; one with spaces, parentheses, brackets or commas stands in quotes.
    fn regex(&mut self) -> Outcome<Test> {
        let start = self.rest;
        let written = match self.quoted()? {
            Some(text) => text,
            None => self.bare_value().to_owned(),
        };
        if written.is_empty() {
            return fault(start, "a regular expression is expected, such as title~\"^sea (ice|surface)\"");
        }
        let is_cut = self.rest.starts_with(['(', '[', ']', '{', '}', ',']);
        match TextPattern::parse(&written) {
            _ if is_cut => {
                fault(start, "a regular expression with parentheses, brackets or commas stands in quotes")
            }
            Ok(pattern) => Ok(Test::Regex(pattern)),
            Err(error) => fault(start, error.to_string()),
        }
    }

    fn literal(&self, word: &str) -> Literal {
        value::read(word, self.now)
    }

    fn bare_value(&mut self) -> &'a str {
        let is_end = |char: char| char.is_whitespace() || "()[]{},\"'".contains(char);
        self.take(take_till(0.., is_end)).unwrap_or_default()
    }

    fn bare_text(&mut self) -> &'a str {
        let is_end = |char: char| char.is_whitespace() || "()\"".contains(char);
        self.take(take_till(0.., is_end)).unwrap_or_default()
    }

    /// Reads text in quotes; a quote inside is written twice.
    fn quoted(&mut self) -> Outcome<Option<String>> {
        let start = self.rest;
        let Some(quote) = self.take(one_of(['"', '\''])) else { return Ok(None) };
        let mut text = String::new();
        loop {
            text.push_str(self.take(take_till(0.., quote)).unwrap_or_default());
            if self.take(quote).is_none() {
                return fault(start, "a quote is missing at the end of the text");
            }
            if self.take(quote).is_none() {
                return Ok(Some(text));
            }
            text.push(quote);
        }
    }
}

/// Tests of which one must hold, or none.
struct Tests {
    tests: Vec<Test>,
    is_negated: bool,
}

impl Tests {
    fn of(test: Test) -> Self {
        Self { tests: vec![test], is_negated: false }
    }
}

fn words(rest: &str, text: String) -> Outcome<Condition> {
    match text.trim() {
        "" => fault(rest, "there is no word between the quotes"),
        _ => Ok(Condition::Text(text)),
    }
}

fn one_or(mut parts: Vec<Condition>, many: impl Fn(Vec<Condition>) -> Condition) -> Condition {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            many(parts)
        }
    }
}

fn negate(is_negated: bool, condition: Condition) -> Condition {
    if is_negated { Condition::Not(Box::new(condition)) } else { condition }
}

fn any(field: &Subject, tests: Vec<Test>) -> Condition {
    one_or(tests.into_iter().map(|test| field.is(test)).collect(), Condition::Any)
}

/// What a colon means: that the value is among the words, or a pattern.
fn has(value: Literal) -> Test {
    match value.text.as_str() {
        "*" => Test::Exists,
        text if text.contains(['*', '?']) => Test::Matches(text.to_owned()),
        _ => Test::Has(value),
    }
}

/// What a test is about.
enum Subject {
    Field(Field),
    /// The time that there is something of.
    Time,
}

impl Subject {
    fn is_path(&self) -> bool {
        matches!(self, Self::Field(Field::Builtin(Builtin::Path)))
    }

    fn is(&self, test: Test) -> Condition {
        match self {
            Self::Field(field) => Condition::Is(field.clone(), test),
            Self::Time => coverage::during(test).unwrap_or(Condition::Any(Vec::new())),
        }
    }
}

fn field(rest: &str, name: &str, is_attribute: bool) -> Outcome<Subject> {
    if let Some(builtin) = Builtin::named(name).filter(|_| !is_attribute) {
        return Ok(Subject::Field(Field::Builtin(builtin)));
    }
    if name.eq_ignore_ascii_case("time") && !is_attribute {
        return Ok(Subject::Time);
    }
    match name.parse() {
        Ok(name) => Ok(Subject::Field(Field::Attribute(name))),
        Err(error) => fault(rest, error.to_string()),
    }
}

/// Reads a pattern of LIKE, in which `%` and `_` with a backslash before them are meant themselves: as one with `*` and `?`, or as a regular
/// expression if one of these is meant itself, and for paths, in whose patterns `*` ends at a slash.
fn like(pattern: &str, is_path: bool) -> Result<Test, String> {
    let mut chars = pattern.chars();
    let (mut glob, mut regex, mut is_glob) = (String::new(), "(?s)^".to_owned(), !is_path);
    while let Some(char) = chars.next() {
        match char {
            '%' => (glob.push('*'), regex.push_str(".*")),
            '_' => (glob.push('?'), regex.push('.')),
            char => {
                let meant = if char == '\\' { chars.next().unwrap_or(char) } else { char };
                is_glob &= !matches!(meant, '*' | '?' | '\\');
                glob.push(meant);
                if meant.is_ascii_punctuation() {
                    regex.push('\\');
                }
                ((), regex.push(meant))
            }
        };
    }
    regex.push('$');
    match is_glob {
        true => Ok(Test::Matches(glob)),
        false => TextPattern::parse(&regex).map(Test::Regex).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests;
