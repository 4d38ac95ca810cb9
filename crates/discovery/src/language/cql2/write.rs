//! A condition as the JSON of CQL2.

use percale_core::query::{Builtin, Condition, Field, Literal, Test, like_of_glob};
use serde_json::{Value, json};

use crate::language::value;

/// Writes a condition as `cql2-json`, which is read as the same.
pub fn write(condition: &Condition) -> Value {
    match condition {
        Condition::All(parts) => many("and", parts, true),
        Condition::Any(parts) => many("or", parts, false),
        Condition::Not(part) => negated(&write(part)),
        Condition::Text(text) => json!({"op": "text", "args": [text]}),
        Condition::Is(field @ Field::Builtin(Builtin::Path), Test::Matches(pattern)) => {
            json!({"op": "glob", "args": [property(field), pattern]})
        }
        Condition::Is(field, test) => clause(&property(field), test),
    }
}

fn many(op: &str, parts: &[Condition], none: bool) -> Value {
    match parts {
        [] => none.into(),
        [only] => write(only),
        parts => json!({"op": op, "args": parts.iter().map(write).collect::<Vec<_>>()}),
    }
}

fn negated(test: &Value) -> Value {
    json!({"op": "not", "args": [test]})
}

fn property(field: &Field) -> Value {
    let name = match field {
        Field::Builtin(builtin) => builtin.as_str().to_owned(),
        Field::Attribute(name) => {
            let name = name.as_str();
            let means_another = Builtin::named(name).is_some() || name.eq_ignore_ascii_case("time");
            let is_marked = means_another || name.starts_with('@');
            if is_marked { format!("@{name}") } else { name.to_owned() }
        }
    };
    json!({"property": name})
}

fn clause(of: &Value, test: &Test) -> Value {
    let operation = |op: &str, value: &Literal| json!({"op": op, "args": [of, literal(value)]});
    match test {
        Test::Compare(comparison, value) => operation(comparison.sign(), value),
        Test::Between(Some(low), Some(high)) => {
            json!({"op": "between", "args": [of, literal(low), literal(high)]})
        }
        Test::Between(Some(low), None) => operation(">=", low),
        Test::Between(None, Some(high)) => operation("<=", high),
        Test::Has(value) => operation("has", value),
        Test::Matches(pattern) => json!({"op": "like", "args": [of, like_of_glob(pattern)]}),
        Test::Regex(pattern) => json!({"op": "regex", "args": [of, pattern.as_str()]}),
        Test::Between(None, None) | Test::Exists => negated(&json!({"op": "isNull", "args": [of]})),
    }
}

/// Writes a value as what it can be read as, if that is one thing.
fn literal(value: &Literal) -> Value {
    let Literal { text, number, span, bool } = value;
    let plain = match (number, span, bool) {
        // As text it would be a time, too.
        (None, None, None) if value::span(text).is_some() => return json!({"op": "casei", "args": [text]}),
        (None, None, None) => return text.as_str().into(),
        (Some(_), None, None) => serde_json::from_str::<serde_json::Number>(text).ok().map(Value::Number),
        (None, None, Some(bool)) => Some(Value::Bool(*bool)),
        _ => None,
    };
    match plain.map(|plain| (plain.to_string(), plain)) {
        Some((written, plain)) if written == *text => plain,
        _ => json!({"op": "read", "args": [text]}),
    }
}
