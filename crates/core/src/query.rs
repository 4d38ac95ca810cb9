//! What is searched for, as the query language says it and a catalog answers it.
//!
//! A condition is a tree of tests. A test is about a [`Field`]: something that the catalog knows of each entry, or an attribute. A
//! test on an attribute holds if it holds for any of its values, and never holds where there is none of the type that it compares
//! with.

pub mod pattern;

pub use self::pattern::TextPattern;

use crate::Timestamp;
use crate::attribute::AttributeName;

/// What must be true of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// All of these; without any it is always true.
    All(Vec<Condition>),
    /// At least one of these.
    Any(Vec<Condition>),
    /// Not this.
    Not(Box<Condition>),
    /// A test of a field.
    Is(Field, Test),
    /// Words that stand together in the name or in a text of an attribute, in any case.
    Text(String),
}

impl Condition {
    /// Returns how many tests it has.
    pub fn tests(&self) -> usize {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::tests).sum(),
            Self::Not(part) => part.tests(),
            Self::Is(..) | Self::Text(_) => 1,
        }
    }
}

/// What a test is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// What the catalog knows of each entry.
    Builtin(Builtin),
    /// An attribute.
    Attribute(AttributeName),
}

macro_rules! builtins {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A field that every entry has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Builtin {
            $($(#[$doc])* $variant,)*
        }

        impl Builtin {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name that queries have for it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns what has a name, in any case.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str().eq_ignore_ascii_case(name))
            }
        }
    };
}

builtins! {
    /// The last name of the path.
    Name = "name",
    /// The whole path.
    Path = "path",
    /// What stands behind the last dot of the name.
    Ext = "ext",
    /// `object` or `collection`.
    Type = "type",
    /// The bytes of the current version.
    Size = "size",
    /// When it was made.
    Created = "created",
    /// When its owner modified it.
    Modified = "modified",
    /// A site that has a copy.
    Site = "site",
    /// A store that has a copy.
    Store = "store",
    /// How many good copies there are.
    Replicas = "replicas",
    /// The state of a copy.
    State = "state",
    /// The hash of the current version: BLAKE3, or `algorithm:hex` of another that is known.
    Hash = "hash",
    /// The name of its space.
    Space = "space",
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The same; of text, in any case.
    Equal,
    /// Less, earlier, or before it in the alphabet.
    Less,
    /// Less or the same.
    AtMost,
    /// More.
    More,
    /// More or the same.
    AtLeast,
}

impl Comparison {
    /// Returns its sign, in queries as in SQL.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::AtLeast => ">=",
        }
    }
}

/// What is compared with: what was written, in each way in which it can be read. A value is compared by the reading of its own type.
#[derive(Debug, Clone, PartialEq)]
pub struct Literal {
    /// As text, compared in any case. It is ordered as text only if it can be read as nothing else.
    pub text: String,
    /// As a number.
    pub number: Option<f64>,
    /// As a span of time, from the first to before the second: `2024-06` is the whole month.
    pub span: Option<(Timestamp, Timestamp)>,
    /// As yes or no.
    pub bool: Option<bool>,
}

impl Literal {
    /// Makes what can be read as text alone.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None, span: None, bool: None }
    }

    /// Tells whether it can be read as nothing but text.
    pub const fn is_text_alone(&self) -> bool {
        self.number.is_none() && self.span.is_none() && self.bool.is_none()
    }
}

/// Writes a pattern with `*` and `?` as one of LIKE, in which a backslash stands before each `%`, `_` and `\` that is meant itself.
pub fn like_of_glob(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len());
    for char in pattern.chars() {
        match char {
            '*' => like.push('%'),
            '?' => like.push('_'),
            '%' | '_' | '\\' => like.extend(['\\', char]),
            char => like.push(char),
        }
    }
    like
}

/// What must be true of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// It compares so.
    Compare(Comparison, Literal),
    /// It is between two, or the same as one of them. Either may be missing.
    Between(Option<Literal>, Option<Literal>),
    /// A number or time that is the same, or a text that has these words in it, next to each other and in any case.
    Has(Literal),
    /// Its text matches a pattern as a whole, in any case: `*` and `?`.
    Matches(String),
    /// A regular expression is found in its text, in any case.
    Regex(TextPattern),
    /// It is there.
    Exists,
}
