//! Conditions as SQL. Whatever a person wrote is a parameter; the text is made of what stands here alone.

use std::borrow::Cow;

use percale_core::ObjectPath;
use percale_core::path::SpaceName;
use percale_core::query::{Builtin, Comparison, Condition, Field, Literal, Test, TextPattern, like_of_glob};

use super::micros;
use super::texts::Texts;
use crate::engine::{Sql, Value, to_json};
use crate::error::{Error, Result};
use crate::model::glob::Glob;
use crate::rows::attribute::{fold, kind, order_of};
use crate::rows::entry::FOUND;

/// The stores, with the names of their sites and their own.
pub(super) struct Holders(pub Vec<(i64, String, String)>);

/// What must be true, as filters that each must hold.
pub(super) struct Filters {
    conditions: Vec<Condition>,
    paths: Vec<PathFilter>,
}

struct PathFilter {
    is_negated: bool,
    paths: Paths,
}

enum Paths {
    Within(ObjectPath),
    Equal(String),
    Matching(Glob),
    Having(TextPattern),
}

impl Paths {
    /// Tells whether all that is below a path is one of them.
    fn have_all_below(&self, root: &ObjectPath) -> bool {
        match self {
            Self::Within(top) => root.is_within(top),
            Self::Equal(_) | Self::Having(_) => false,
            Self::Matching(pattern) => {
                let top = pattern.text().strip_suffix("/**");
                top.is_some_and(|top| top.is_empty() || top == root.as_str())
            }
        }
    }

    /// Returns what all of them begin with.
    fn beginning(&self) -> &str {
        match self {
            Self::Within(top) => top.as_str(),
            Self::Equal(text) => text,
            Self::Having(_) => "",
            Self::Matching(pattern) => {
                let pattern = pattern.text();
                let end = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
                pattern.get(..end).unwrap_or_default()
            }
        }
    }
}

impl Filters {
    /// Tells whether everything in a space is found.
    pub fn find_all_in(&self, space: &SpaceName) -> bool {
        self.conditions.is_empty() && self.hold_for_all_in(space)
    }

    /// Returns the filters by which few entries can be found through an index, those first that are surely looked up there.
    pub fn drivers(&self) -> Vec<usize> {
        let cost = |condition: &Condition| match condition {
            Condition::Is(Field::Attribute(_), Test::Compare(Comparison::Equal, _)) => Some(0),
            Condition::Is(Field::Attribute(_), Test::Compare(..) | Test::Between(..)) => Some(1),
            // Words inside a text, which are looked for in all texts.
            Condition::Is(Field::Attribute(_), Test::Matches(_) | Test::Regex(_) | Test::Has(_)) => Some(2),
            _ => None,
        };
        let mut drivers: Vec<(usize, usize)> =
            self.conditions.iter().enumerate().filter_map(|(at, one)| Some((cost(one)?, at))).collect();
        drivers.sort_unstable();
        drivers.into_iter().map(|(_, at)| at).collect()
    }

    /// Goes through the conditions that are no conditions of others.
    pub fn each<'f>(&'f self, take: &mut impl FnMut(&'f Condition)) {
        fn within<'f>(condition: &'f Condition, take: &mut impl FnMut(&'f Condition)) {
            match condition {
                Condition::All(parts) | Condition::Any(parts) => {
                    parts.iter().for_each(|part| within(part, take));
                }
                Condition::Not(part) => within(part, take),
                other => take(other),
            }
        }
        self.conditions.iter().for_each(|condition| within(condition, take));
    }

    /// Returns a filter.
    pub fn get(&self, at: usize) -> Option<&Condition> {
        self.conditions.get(at)
    }

    /// Tells whether any of them is about the sites and stores that have copies.
    pub fn name_holders(&self) -> bool {
        let mut names = false;
        self.each(&mut |condition| {
            names |= matches!(condition, Condition::Is(Field::Builtin(Builtin::Site | Builtin::Store), _));
        });
        names
    }

    /// Tells whether any of them is about an attribute, and nothing else.
    pub fn name_attribute(&self) -> bool {
        self.conditions.iter().any(|condition| matches!(condition, Condition::Is(Field::Attribute(_), _)))
    }

    /// Tells whether any of them is about what is written anywhere.
    pub fn look_anywhere(&self) -> bool {
        let mut looks = false;
        self.each(&mut |condition| looks |= matches!(condition, Condition::Text(_)));
        looks
    }

    /// Tells whether there is no more than one.
    pub fn is_one_in(&self, space: &SpaceName) -> bool {
        self.conditions.len() <= 1 && self.hold_for_all_in(space)
    }

    /// Tells whether the filters of paths may hold for anything in a space.
    pub fn may_hold_in(&self, space: &SpaceName) -> bool {
        let root = ObjectPath::of_space(space);
        self.paths.iter().filter(|filter| !filter.is_negated).all(|filter| {
            let (begin, root) = (filter.paths.beginning(), root.as_str());
            root.starts_with(begin) || begin.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Tells whether the filters of paths hold for all that is in a space, so that nobody has to look.
    pub fn hold_for_all_in(&self, space: &SpaceName) -> bool {
        let root = ObjectPath::of_space(space);
        self.paths.iter().all(|filter| !filter.is_negated && filter.paths.have_all_below(&root))
    }

    /// Tells whether the filters of paths hold.
    pub fn hold_for(&self, path: &ObjectPath) -> bool {
        self.paths.iter().all(|filter| {
            let is_so = match &filter.paths {
                Paths::Within(top) => path.is_within(top),
                Paths::Equal(text) => path.as_str() == text,
                Paths::Matching(pattern) => pattern.is_match(path.as_str()),
                Paths::Having(pattern) => pattern.is_in(&path.as_str().to_lowercase()),
            };
            is_so != filter.is_negated
        })
    }
}

/// Splits a condition into what the database looks at and what is looked at afterwards: paths, which it does not have.
pub(super) fn split(condition: &Condition) -> Result<Filters> {
    let mut filters = Filters { conditions: Vec::new(), paths: Vec::new() };
    add(&mut filters, condition)?;
    Ok(filters)
}

fn add(filters: &mut Filters, condition: &Condition) -> Result<()> {
    let (is_negated, inner) = match condition {
        Condition::All(parts) => return parts.iter().try_for_each(|part| add(filters, part)),
        Condition::Not(inner) => (true, &**inner),
        inner => (false, inner),
    };
    match inner {
        Condition::Is(Field::Builtin(Builtin::Path), test) => {
            filters.paths.push(PathFilter { is_negated, paths: paths(test)? });
        }
        _ => filters.conditions.push(condition.clone()),
    }
    Ok(())
}

fn paths(test: &Test) -> Result<Paths> {
    let wrong = || Error::invalid("a path begins with '/', as in path:/climate/** or path:/climate/era5");
    match test {
        Test::Has(value) => {
            Ok(Paths::Within(ObjectPath::parse(&value.text).map_err(|error| wrong().with_source(error))?))
        }
        Test::Compare(Comparison::Equal, value) => Ok(Paths::Equal(value.text.clone())),
        Test::Regex(pattern) => Ok(Paths::Having(pattern.clone())),
        Test::Matches(pattern) => {
            if !pattern.starts_with(['/', '*', '?', '[', '{', '\\']) {
                return Err(wrong());
            }
            let glob =
                Glob::new("paths", pattern, |glob| glob.literal_separator(true).backslash_escape(true))?;
            Ok(Paths::Matching(glob))
        }
        _ => Err(wrong()),
    }
}

/// Entries of a space: those of a window that filters hold for, those behind an id to which one of the filters leads, or single ones.
pub(super) enum Members<'f> {
    Window(u64, u64, &'f Filters),
    Led(u64, usize, &'f Filters),
    Ids(Vec<u64>),
}

/// A statement that is being made.
pub(super) struct Builder<'b> {
    pub(super) holders: &'b Holders,
    pub(super) texts: &'b Texts,
    pub(super) space: &'b SpaceName,
    pub params: Vec<Value>,
    /// What makes `attribute a` one of an entry of the window that is looked at, if it is one.
    in_window: Option<String>,
    /// What makes an attribute one of the entry that is looked at.
    is_of: String,
    /// Whether all attributes of the window are gone through for the first that a filter names, and not looked up for each entry.
    pub(super) goes_through: bool,
}

/// A way in which a value may be what is looked for.
struct Way {
    /// The index that leads there.
    index: &'static str,
    is_so: String,
}

/// SQLite is told the index: without statistics it would rather look at all values of a space. PostgreSQL has them.
pub(super) const BY_NUMBER: &str = " INDEXED BY attribute_by_number";
pub(super) const BY_WORD: &str = " INDEXED BY attribute_by_word";
/// The primary key, for which SQLite has that name: all that is said of one entry.
pub(super) const BY_ENTRY: &str = " INDEXED BY sqlite_autoindex_attribute_1";

fn number_way(is_so: String) -> Way {
    Way { index: BY_NUMBER, is_so }
}

/// A list as a table `u`, in the words of SQLite, and in those of PostgreSQL.
pub(super) const LIST: [(&str, &str); 2] =
    [("json_each(CAST(", "unnest(CAST("), (" AS text)) AS u", " AS text[])) AS u(value)")];

/// A list of ids among which one is looked up, likewise.
const IDS: [(&str, &str); 2] = [
    ("IN (SELECT CAST(i.value AS bigint) FROM json_each(CAST(", "= ANY (CAST(CAST("),
    (" AS text)) AS i)", " AS text[]) AS bigint[]))"),
];
/// Entries that were gathered before these are looked up, likewise: PostgreSQL might go through all entries instead.
const THOSE: [(&str, &str); 2] =
    [("IN (SELECT t.entry FROM (", "= ANY (ARRAY(SELECT t.entry FROM ("), (") AS t)", ") AS t))")];
/// The parts of a pair that is JSON in such a list.
const PAIR: [(&str, &str); 2] = [
    ("json_extract(u.value, '$[0]')", "(CAST(u.value AS json) ->> 0)"),
    ("json_extract(u.value, '$[1]')", "(CAST(u.value AS json) ->> 1)"),
];

/// The operator that finds a regular expression in a text, in the words of SQLite.
const REGEX: &str = " REGEXP ";

/// Makes a statement for both engines of one in the words of SQLite.
pub(super) fn both(text: String) -> Sql {
    let hints = [BY_NUMBER, BY_WORD, BY_ENTRY].map(|hint| (hint, ""));
    let words = hints.into_iter().chain(IDS).chain(THOSE).chain(LIST).chain(PAIR).chain([(REGEX, " ~ ")]);
    let postgres = words.fold(text.clone(), |text, (here, there)| text.replace(here, there));
    Sql { sqlite: Cow::Owned(text), postgres: Cow::Owned(postgres) }
}

pub(super) const TRUE: &str = "1 = 1";
pub(super) const FALSE: &str = "1 = 0";

fn joined(parts: &[String], word: &str, none: &str) -> String {
    match parts {
        [] => none.to_owned(),
        [only] => only.clone(),
        parts => format!("({})", parts.join(word)),
    }
}

/// Tests that there is a row. SQLite would make a join of an EXISTS, and begin with whatever it takes for the smaller table; this is
/// looked up for each entry.
pub(super) fn exists(from: &str) -> String {
    format!("(SELECT 1 FROM {from} LIMIT 1) IS NOT NULL")
}

/// Returns ids as what [`LIST`] and [`IDS`] take.
pub(super) fn id_list(ids: &[u64]) -> Value {
    Value::Texts(ids.iter().map(ToString::to_string).collect())
}

/// Escapes what LIKE takes for a pattern.
pub(super) fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

/// Returns a name as `lower` makes it on both engines, which know no letters but A to Z.
pub(super) fn fold_name(name: &str) -> String {
    name.to_ascii_lowercase()
}

/// Writes a pattern with `*` and `?` for LIKE, in the small letters in which texts are kept.
pub(super) fn like(pattern: &str) -> String {
    like_of_glob(&pattern.to_lowercase())
}

impl<'b> Builder<'b> {
    pub fn new(holders: &'b Holders, texts: &'b Texts, space: &'b SpaceName) -> Self {
        let is_of = "a.sp = e.sp AND a.entry = e.id".into();
        Self { holders, texts, space, params: Vec::new(), in_window: None, is_of, goes_through: false }
    }

    /// Adds a parameter and returns its name. SQLite wants them to appear in the text in the order in which they are added.
    pub(super) fn param(&mut self, value: impl Into<Value>) -> String {
        self.params.push(value.into());
        format!("${}", self.params.len())
    }

    /// Looks at the first members.
    pub(super) fn next(&mut self, sp: i64, members: &Members<'_>, limit: usize) -> Result<Sql> {
        let members = self.members(sp, members)?;
        let limit = self.param(limit);
        Ok(both(format!("{FOUND} FROM entry e WHERE {members} ORDER BY e.id LIMIT {limit}")))
    }

    /// Tests whether `entry e` is one of them.
    pub(super) fn members(&mut self, sp: i64, members: &Members<'_>) -> Result<String> {
        let sp = self.param(sp);
        match members {
            Members::Window(after, end, filters) => {
                let (after, end) = (self.param(*after), self.param(*end));
                self.in_window = Some(format!("a.sp = {sp} AND a.entry > {after} AND a.entry <= {end}"));
                let conditions = self.conditions(filters, None)?;
                Ok(format!("e.sp = {sp} AND e.id > {after} AND e.id <= {end} AND {conditions}"))
            }
            Members::Led(after, driver, filters) => {
                let after = self.param(*after);
                let gathered = self.gathered(&sp, &after, filters, *driver)?;
                let conditions = self.conditions(filters, Some(*driver))?;
                let [(begin, _), (end, _)] = THOSE;
                Ok(format!("e.sp = {sp} AND e.id {begin}{gathered}{end} AND {conditions}"))
            }
            Members::Ids(ids) => {
                let ids = self.param(id_list(ids));
                let [(begin, _), (end, _)] = IDS;
                Ok(format!("e.sp = {sp} AND e.id {begin}{ids}{end}"))
            }
        }
    }

    /// Looks at all members.
    pub(super) fn all(&mut self, sp: i64, members: &Members<'_>) -> Result<Sql> {
        let members = self.members(sp, members)?;
        Ok(both(format!("{FOUND} FROM entry e WHERE {members}")))
    }

    /// Looks at the entries that a filter of an attribute leads to.
    pub fn by_attribute(
        &mut self,
        sp: i64,
        after: u64,
        filters: &Filters,
        driver: usize,
        limit: usize,
    ) -> Result<Sql> {
        let (sp, after) = (self.param(sp), self.param(after));
        let gathered = self.gathered(&sp, &after, filters, driver)?;
        // What else is tested of attributes is tested before the entry is looked up.
        self.is_of = format!("a.sp = {sp} AND a.entry = k.entry");
        let conditions = self.conditions(filters, Some(driver))?;
        let limit = self.param(limit);
        Ok(both(format!(
            "{FOUND} FROM ({gathered}) k CROSS JOIN entry e WHERE e.sp = {sp} AND e.id = k.entry AND {conditions} ORDER BY e.id LIMIT {limit}"
        )))
    }

    /// Gathers the ids behind one to which a filter leads, each once.
    fn gathered(&mut self, sp: &str, after: &str, filters: &Filters, driver: usize) -> Result<String> {
        let (name, values) = self.driving(filters, driver)?;
        let select = |value: &Way| {
            let Way { index, is_so } = value;
            format!(
                "SELECT a.entry FROM attribute a{index} WHERE a.sp = {sp} AND a.entry > {after} AND a.name = {name} AND {is_so}"
            )
        };
        // Each by its own index; a union has nothing twice, as what is selected from it must not.
        let mut selects: Vec<String> = values.iter().map(select).collect();
        if let [only] = &mut selects[..] {
            *only = only.replacen("SELECT", "SELECT DISTINCT", 1);
        }
        Ok(selects.join(" UNION "))
    }

    /// Counts what a filter of an attribute leads to, each way up to at least `most`.
    pub fn count(&mut self, sp: i64, filters: &Filters, driver: usize, most: usize) -> Result<Sql> {
        // The planner looks at it, so that it is no parameter, and the database keeps the statement of each.
        let most = most.next_power_of_two();
        let sp = self.param(sp);
        let (name, values) = self.driving(filters, driver)?;
        let select = |(at, value): (usize, &Way)| {
            let Way { index, is_so } = value;
            format!(
                "SELECT * FROM (SELECT a.entry FROM attribute a{index} WHERE a.sp = {sp} AND a.name = {name} AND {is_so} \
                 LIMIT {most}) AS c{at}"
            )
        };
        let selects: Vec<String> = values.iter().enumerate().map(select).collect();
        Ok(both(format!("SELECT COUNT(*) FROM ({}) AS c", selects.join(" UNION ALL "))))
    }

    /// Returns the name of a filter's attribute, and the ways in which a value may be what is looked for.
    fn driving(&mut self, filters: &Filters, driver: usize) -> Result<(String, Vec<Way>)> {
        match filters.get(driver) {
            Some(Condition::Is(Field::Attribute(name), test)) => {
                let texts = self.texts.of_test(name, test);
                let name = self.param(name.as_str());
                let mut values = self.ways(test, texts);
                if values.is_empty() {
                    values.push(Way { index: BY_WORD, is_so: FALSE.into() });
                }
                Ok((name, values))
            }
            _ => Err(Error::internal("a search is led by what is no attribute")),
        }
    }

    pub(super) fn conditions(&mut self, filters: &Filters, but: Option<usize>) -> Result<String> {
        let others = filters.conditions.iter().enumerate().filter(|(at, _)| Some(*at) != but);
        let parts: Vec<String> = others.map(|(_, one)| self.filter(one)).collect::<Result<_>>()?;
        Ok(joined(&parts, " AND ", TRUE))
    }

    fn filter(&mut self, condition: &Condition) -> Result<String> {
        let Condition::Is(Field::Attribute(name), test) = condition else { return self.condition(condition) };
        let Some(in_window) = self.in_window.clone().filter(|_| self.goes_through) else {
            return self.condition(condition);
        };
        // The others are asked for less often.
        self.goes_through = false;
        let name = self.param(name.as_str());
        let values = self.values(test);
        // PostgreSQL would make a join of it.
        Ok(format!(
            "(e.id IN (SELECT a.entry FROM attribute a{BY_ENTRY} WHERE {in_window} AND a.name = {name} AND {values})) IS TRUE"
        ))
    }

    fn condition(&mut self, condition: &Condition) -> Result<String> {
        let mut each =
            |parts: &[Condition]| parts.iter().map(|part| self.condition(part)).collect::<Result<Vec<_>>>();
        match condition {
            Condition::All(parts) => Ok(joined(&each(parts)?, " AND ", TRUE)),
            Condition::Any(parts) => Ok(joined(&each(parts)?, " OR ", FALSE)),
            // What is not known is not so either.
            Condition::Not(part) => Ok(format!("({}) IS NOT TRUE", self.condition(part)?)),
            Condition::Text(text) => {
                let within = |text: String| format!("%{}%", escaped(&text));
                let in_name =
                    format!("lower(e.name) LIKE {} ESCAPE '\\'", self.param(within(fold_name(text))));
                let in_texts = match (&self.in_window, self.texts.with(text)) {
                    (Some(_), Some([])) => return Ok(in_name),
                    (Some(in_window), Some(found)) => {
                        let in_window = in_window.clone();
                        let pairs = found.iter().map(to_json).collect::<Result<_>>()?;
                        let ([(begin, _), (end, _)], [(name, _), (word, _)]) = (LIST, PAIR);
                        let pairs = self.param(Value::Texts(pairs));
                        format!(
                            "e.id IN (SELECT a.entry FROM {begin}{pairs}{end} CROSS JOIN attribute a{BY_WORD} \
                             WHERE {in_window} AND a.name = {name} AND a.word = {word})"
                        )
                    }
                    _ => {
                        let pattern = self.param(within(text.to_lowercase()));
                        let is_of = &self.is_of;
                        exists(&format!(
                            "attribute a{BY_ENTRY} WHERE {is_of} AND a.word LIKE {pattern} ESCAPE '\\'"
                        ))
                    }
                };
                Ok(format!("({in_name} OR {in_texts})"))
            }
            Condition::Is(Field::Attribute(name), test) => {
                let name = self.param(name.as_str());
                let values = self.values(test);
                let is_of = &self.is_of;
                Ok(exists(&format!("attribute a{BY_ENTRY} WHERE {is_of} AND a.name = {name} AND {values}")))
            }
            Condition::Is(Field::Builtin(builtin), test) => self.builtin(*builtin, test),
        }
    }

    /// Tests the values of an attribute.
    fn values(&mut self, test: &Test) -> String {
        if *test == Test::Exists {
            return TRUE.to_owned();
        }
        let ways: Vec<String> = self.ways(test, None).into_iter().map(|way| way.is_so).collect();
        joined(&ways, " OR ", FALSE)
    }

    /// Returns the ways in which a value may be what is looked for, each with the index that leads to it. `texts` are those that have the word
    /// or match the pattern, where they are known.
    fn ways(&mut self, test: &Test, texts: Option<Vec<String>>) -> Vec<Way> {
        match test {
            Test::Has(_) | Test::Matches(_) | Test::Regex(_) if let Some(texts) = texts => {
                let mut ways = match test {
                    Test::Has(value) => self.compared_but_text(Comparison::Equal, value),
                    _ => Vec::new(),
                };
                if !texts.is_empty() {
                    let [(begin, _), (end, _)] = LIST;
                    let texts = self.param(Value::Texts(texts));
                    let is_so = format!("a.word IN (SELECT u.value FROM {begin}{texts}{end})");
                    ways.push(Way { index: BY_WORD, is_so });
                }
                ways
            }
            Test::Exists => vec![Way { index: BY_WORD, is_so: TRUE.to_owned() }],
            Test::Compare(comparison, value) => self.compared(*comparison, value),
            Test::Between(low, high) => self.between(low.as_ref(), high.as_ref()),
            Test::Has(value) => {
                let mut ways = self.compared(Comparison::Equal, value);
                if let Some(same) = ways.pop() {
                    let mut words = vec![same.is_so];
                    if !value.text.trim().is_empty() {
                        let word = escaped(&fold(&value.text));
                        for pattern in [format!("{word} %"), format!("% {word}"), format!("% {word} %")] {
                            let pattern = self.param(pattern);
                            words.push(format!("a.word LIKE {pattern} ESCAPE '\\'"));
                        }
                    }
                    ways.push(Way { index: BY_WORD, is_so: joined(&words, " OR ", FALSE) });
                }
                ways
            }
            Test::Matches(pattern) => {
                let begin = fold(pattern.split(['*', '?']).next().unwrap_or_default());
                let mut conditions = Vec::new();
                if !begin.is_empty() {
                    conditions.push(self.beginning(&begin));
                }
                let pattern = self.param(like(pattern));
                conditions.push(format!("a.word LIKE {pattern} ESCAPE '\\'"));
                vec![Way { index: BY_WORD, is_so: joined(&conditions, " AND ", TRUE) }]
            }
            Test::Regex(pattern) => {
                let is_so = self.regex("a.word", pattern);
                vec![Way { index: BY_WORD, is_so }]
            }
        }
    }

    /// Looks for an expression in a column.
    pub(super) fn regex(&mut self, column: &str, pattern: &TextPattern) -> String {
        format!("{column}{REGEX}{}", self.param(pattern.portable()))
    }

    /// Everything that begins so: no character is behind the last one.
    fn beginning(&mut self, begin: &str) -> String {
        let first = self.param(begin);
        let last = self.param(format!("{begin}{}", char::MAX));
        format!("a.word >= {first} AND a.word <= {last}")
    }

    /// The last way is that of text, if there is one.
    fn compared(&mut self, comparison: Comparison, value: &Literal) -> Vec<Way> {
        let mut parts = self.compared_but_text(comparison, value);
        if comparison == Comparison::Equal || value.is_text_alone() {
            let word = self.param(fold(&value.text));
            parts.push(Way { index: BY_WORD, is_so: format!("a.word {} {word}", comparison.sign()) });
        }
        parts
    }

    fn compared_but_text(&mut self, comparison: Comparison, value: &Literal) -> Vec<Way> {
        let sign = comparison.sign();
        let mut parts = Vec::new();
        if let Some(number) = value.number.and_then(order_of) {
            let number = self.param(number);
            parts.push(number_way(format!("(a.type <= {} AND a.number {sign} {number})", kind::FLOAT)));
        }
        if let Some(span) = value.span.map(micros) {
            let is_so = self.in_span("a.number", comparison, span);
            parts.push(number_way(format!("(a.type = {} AND {is_so})", kind::TIME)));
        }
        if let Some(is_so) = value.bool.filter(|_| comparison == Comparison::Equal) {
            let is_so = self.param(i64::from(is_so));
            parts.push(number_way(format!("(a.type = {} AND a.number = {is_so})", kind::BOOL)));
        }
        parts
    }

    pub(super) fn in_span(&mut self, column: &str, comparison: Comparison, (from, to): (i64, i64)) -> String {
        match comparison {
            Comparison::Equal => {
                let (from, to) = (self.param(from), self.param(to));
                format!("{column} >= {from} AND {column} < {to}")
            }
            Comparison::Less => format!("{column} < {}", self.param(from)),
            Comparison::AtMost => format!("{column} < {}", self.param(to)),
            Comparison::More => format!("{column} >= {}", self.param(to)),
            Comparison::AtLeast => format!("{column} >= {}", self.param(from)),
        }
    }

    fn between(&mut self, low: Option<&Literal>, high: Option<&Literal>) -> Vec<Way> {
        let all = |is: &dyn Fn(&Literal) -> bool| low.iter().chain(high.iter()).all(|value| is(value));
        let mut parts = Vec::new();
        if all(&|value| value.number.is_some_and(|number| !number.is_nan())) {
            let number = |value: Option<&Literal>| value.and_then(|value| order_of(value.number?));
            let range = self.range("a.number", number(low), number(high));
            parts.push(number_way(format!("(a.type <= {} AND {range})", kind::FLOAT)));
        }
        if all(&|value| value.span.is_some()) {
            let first = low.and_then(|value| value.span).map(|span| micros(span).0);
            let last = high.and_then(|value| value.span).map(|span| micros(span).1 - 1);
            let range = self.range("a.number", first, last);
            parts.push(number_way(format!("(a.type = {} AND {range})", kind::TIME)));
        }
        if all(&Literal::is_text_alone) {
            let range =
                self.range("a.word", low.map(|value| fold(&value.text)), high.map(|value| fold(&value.text)));
            parts.push(Way { index: BY_WORD, is_so: format!("(a.type = {} AND {range})", kind::TEXT) });
        }
        parts
    }

    pub(super) fn range<V: Into<Value>>(&mut self, column: &str, low: Option<V>, high: Option<V>) -> String {
        let mut parts = Vec::new();
        if let Some(low) = low {
            parts.push(format!("{column} >= {}", self.param(low)));
        }
        if let Some(high) = high {
            parts.push(format!("{column} <= {}", self.param(high)));
        }
        joined(&parts, " AND ", TRUE)
    }
}
