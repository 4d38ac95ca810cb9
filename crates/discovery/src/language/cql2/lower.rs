//! The JSON of CQL2 as a condition.

use percale_core::Timestamp;
use percale_core::query::{Comparison, Condition, Field, Literal, Test, TextPattern};
use serde_json::{Map, Value};

use crate::language::{MAX_DEPTH, Subject, coverage, field, like, one_or, value};
use crate::standard::{END, START};

/// What is wrong, in words.
type Lowered<T> = Result<T, String>;

/// What there is of the operators.
const OPERATORS: &str = "and, or, not, =, <>, <, <=, >, >=, like, between, in, isNull, casei, s_intersects, t_after, t_before, t_during, \
                         t_intersects, a_contains, a_overlaps, has, regex, glob, text and read";

/// Reads what is true or not, which stands in so many others.
pub(super) fn condition(json: &Value, now: Timestamp, depth: usize) -> Lowered<Condition> {
    if depth > MAX_DEPTH {
        return Err(format!("it is nested more than {MAX_DEPTH} deep"));
    }
    match json {
        Value::Bool(true) => Ok(Condition::All(Vec::new())),
        Value::Bool(false) => Ok(negated(Condition::All(Vec::new()))),
        Value::Object(parts) if parts.contains_key("property") => {
            let truth = Literal { bool: Some(true), ..Literal::text("true") };
            Ok(subject(json)?.is(Test::Compare(Comparison::Equal, truth)))
        }
        Value::Object(parts) => match operation(parts)? {
            Some((op, args)) => operator(&op, args, now, depth),
            None => Err(format!("a test is expected, not {}", shown(json))),
        },
        _ => Err(format!("a test is expected, not {}", shown(json))),
    }
}

/// Returns an operator, in small letters, and what stands behind it. Nothing for an object that is no operation.
fn operation(parts: &Map<String, Value>) -> Lowered<Option<(String, &[Value])>> {
    match (parts.get("op"), parts.get("args")) {
        (None, _) => Ok(None),
        (Some(Value::String(op)), Some(Value::Array(args))) => Ok(Some((op.to_ascii_lowercase(), args))),
        (Some(op), _) => Err(format!("{} is no operator with a list of args", shown(op))),
    }
}

fn operator(op: &str, args: &[Value], now: Timestamp, depth: usize) -> Lowered<Condition> {
    let literal = |json: &Value| literal(json, now);
    let wrong = |expected: &str| Err(format!("'{op}' has {expected}, not {}", shown(&Value::from(args))));
    let each = || args.iter().map(|arg| condition(arg, now, depth + 1)).collect::<Lowered<Vec<_>>>();
    match (op, args) {
        ("and", [_, ..]) => Ok(one_or(each()?, Condition::All)),
        ("or", [_, ..]) => Ok(one_or(each()?, Condition::Any)),
        ("not", [inner]) => Ok(negated(condition(inner, now, depth + 1)?)),
        ("=" | "<>" | "<" | "<=" | ">" | ">=", [left, right]) => compare(op, left, right, now),
        ("like", [of, pattern]) if let Value::String(pattern) = in_any_case(pattern) => {
            let of = subject(of)?;
            Ok(of.is(like(&without_zero(pattern)?, of.is_path())?))
        }
        ("between", [of, low, high]) => {
            Ok(subject(of)?.is(Test::Between(Some(literal(low)?), Some(literal(high)?))))
        }
        ("in" | "a_overlaps", [of, Value::Array(values)]) if !values.is_empty() => {
            Ok(one_or(equal_to_each(of, values, now)?, Condition::Any))
        }
        ("a_contains", [of, Value::Array(values)]) if !values.is_empty() => {
            Ok(one_or(equal_to_each(of, values, now)?, Condition::All))
        }
        ("in" | "a_contains" | "a_overlaps", _) => wrong("a property and a list of values"),
        ("isnull", [of]) => Ok(negated(subject(of)?.is(Test::Exists))),
        ("s_intersects", [of, shape] | [shape, of]) if is_property(of) && !is_property(shape) => {
            intersects(shape)
        }
        ("t_after" | "t_before" | "t_during" | "t_intersects", [of, when]) => temporal(op, of, when),
        ("has", [of, word]) => Ok(subject(of)?.is(Test::Has(literal(word)?))),
        ("regex", [of, Value::String(expression)]) => {
            let pattern = TextPattern::parse(expression).map_err(|error| error.to_string())?;
            Ok(subject(of)?.is(Test::Regex(pattern)))
        }
        ("glob", [of, Value::String(pattern)]) => Ok(subject(of)?.is(Test::Matches(without_zero(pattern)?))),
        ("text", [Value::String(words)]) if !words.trim().is_empty() => {
            Ok(Condition::Text(without_zero(words)?))
        }
        ("and" | "or", _) => wrong("tests"),
        ("not", _) => wrong("one test"),
        ("=" | "<>" | "<" | "<=" | ">" | ">=" | "has", _) => wrong("a property and a value"),
        ("like" | "regex" | "glob", _) => wrong("a property and a text"),
        ("between", _) => wrong("a property and two values"),
        ("isnull", _) => wrong("a property"),
        ("s_intersects", _) => wrong("a property and a box"),
        ("t_after" | "t_before" | "t_during" | "t_intersects", _) => wrong("a property and a time"),
        ("text", _) => wrong("words"),
        ("casei" | "read", _) => Err(format!("'{op}' makes a value, and no test")),
        _ => Err(format!("the operator '{op}' is not supported; there are {OPERATORS}")),
    }
}

fn negated(condition: Condition) -> Condition {
    match condition {
        Condition::Not(inner) => *inner,
        other => Condition::Not(Box::new(other)),
    }
}

fn compare(op: &str, left: &Value, right: &Value, now: Timestamp) -> Lowered<Condition> {
    let is_turned = !is_property(left);
    let (of, with) = if is_turned { (right, left) } else { (left, right) };
    if is_property(with) {
        return Err(format!("a property is compared with a value, not with {}", shown(with)));
    }
    let comparison = match (op, is_turned) {
        ("<", false) | (">", true) => Comparison::Less,
        ("<=", false) | (">=", true) => Comparison::AtMost,
        (">", false) | ("<", true) => Comparison::More,
        (">=", false) | ("<=", true) => Comparison::AtLeast,
        _ => Comparison::Equal,
    };
    let is = subject(of)?.is(Test::Compare(comparison, literal(with, now)?));
    Ok(if op == "<>" { negated(is) } else { is })
}

fn equal_to_each(of: &Value, values: &[Value], now: Timestamp) -> Lowered<Vec<Condition>> {
    let of = subject(of)?;
    values.iter().map(|value| Ok(of.is(Test::Compare(Comparison::Equal, literal(value, now)?)))).collect()
}

/// Takes away what says that letters are compared in any case: they always are.
fn in_any_case(json: &Value) -> &Value {
    match json {
        Value::Object(parts) => match operation(parts) {
            Ok(Some((op, [inner]))) if op == "casei" => inner,
            _ => json,
        },
        _ => json,
    }
}

fn is_property(json: &Value) -> bool {
    in_any_case(json).get("property").is_some()
}

/// Reads what a test is about. `@name` is an attribute, also if something else has that name.
fn subject(json: &Value) -> Lowered<Subject> {
    let Some(Value::String(name)) = in_any_case(json).get("property") else {
        return Err(format!("a property is expected, not {}", shown(json)));
    };
    let (name, is_attribute) = name.strip_prefix('@').map_or((name.as_str(), false), |name| (name, true));
    field("", name, is_attribute).map_err(|fault| fault.message)
}

/// Databases cannot hold it.
fn without_zero(text: &str) -> Lowered<String> {
    if text.contains('\0') { Err("a text has no zero byte".into()) } else { Ok(text.to_owned()) }
}

/// Reads a value. A text that is a date or a time is one, too, since many filters are written so.
fn literal(json: &Value, now: Timestamp) -> Lowered<Literal> {
    match json {
        Value::String(text) => Ok(Literal { span: day_or_time(text), ..Literal::text(without_zero(text)?) }),
        Value::Number(number) => {
            // Whole numbers to their last digit; 1e2 is 100.
            let text = match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => float.to_string(),
                None => number.to_string(),
            };
            Ok(Literal { number: number.as_f64(), ..Literal::text(text) })
        }
        Value::Bool(bool) => Ok(Literal { bool: Some(*bool), ..Literal::text(bool.to_string()) }),
        Value::Object(parts) => match operation(parts)? {
            Some((op, [Value::String(text)])) if op == "casei" => Ok(Literal::text(without_zero(text)?)),
            Some((op, [Value::String(text)])) if op == "read" => Ok(value::read(&without_zero(text)?, now)),
            _ => instant(json)?.ok_or_else(|| format!("a value is expected, not {}", shown(json))),
        },
        _ => Err(format!("a value is expected, not {}", shown(json))),
    }
}

/// Reads a whole date, or one with a time: of these alone nobody means a number.
fn day_or_time(text: &str) -> Option<(Timestamp, Timestamp)> {
    value::span(text).filter(|_| text.len() >= "2024-06-01".len())
}

/// Reads a date or a time. Nothing for `..`, which is none.
fn instant(json: &Value) -> Lowered<Option<Literal>> {
    let text = match json {
        Value::String(text) if text == ".." => return Ok(None),
        Value::String(text) => text,
        _ => match json.get("date").or_else(|| json.get("timestamp")) {
            Some(Value::String(text)) => text,
            _ => return Err(format!("a date, a time or a value is expected, not {}", shown(json))),
        },
    };
    match day_or_time(text) {
        Some(span) => Ok(Some(Literal { span: Some(span), ..Literal::text(text) })),
        None => Err(format!("'{}' is no date and no time", text.escape_debug())),
    }
}

/// What covers, or is, a time.
fn temporal(op: &str, of: &Value, when: &Value) -> Lowered<Condition> {
    let of = subject(of)?;
    let (low, high) = match when.get("interval") {
        Some(Value::Array(bounds)) => match bounds.as_slice() {
            [low, high] => (instant(low)?, instant(high)?),
            _ => return Err(format!("an interval has two ends, not {}", shown(when))),
        },
        _ => {
            let at = instant(when)?;
            (at.clone(), at)
        }
    };
    let is = |end: &str, comparison, bound| -> Lowered<Condition> {
        let field = match &of {
            Subject::Field(field) => field.clone(),
            Subject::Time => Field::Attribute(end.parse().map_err(|_| "there is no such time".to_owned())?),
        };
        Ok(Condition::Is(field, Test::Compare(comparison, bound)))
    };
    match (op, low, high) {
        ("t_after", _, Some(high)) => is(START, Comparison::More, high),
        ("t_before", Some(low), _) => is(END, Comparison::Less, low),
        ("t_after" | "t_before", ..) => Err(format!("nothing is before or after '..', as '{op}' asks for")),
        (_, None, None) => Ok(of.is(Test::Exists)),
        ("t_during", low, high) => {
            let after = low.map(|low| is(START, Comparison::More, low));
            let before = high.map(|high| is(END, Comparison::Less, high));
            let both = after.into_iter().chain(before).collect::<Lowered<Vec<_>>>()?;
            Ok(one_or(both, Condition::All))
        }
        (_, low, high) => Ok(of.is(Test::Between(low, high))),
    }
}

/// What covers some of a box, or a point.
fn intersects(shape: &Value) -> Lowered<Condition> {
    let wrong = || {
        let expected = "a box in degrees, such as BBOX(-10,35,30,60), a point, or a polygon that is such a box, is expected";
        format!("{expected}, not {}", shown(shape))
    };
    let corners = match shape.get("bbox") {
        Some(corners) => match numbers(corners).ok_or_else(wrong)?.as_slice() {
            [west, south, east, north] | [west, south, _, east, north, _] => [*west, *south, *east, *north],
            _ => return Err(wrong()),
        },
        None => shape_corners(shape).ok_or_else(wrong)?,
    };
    coverage::within(corners).ok_or_else(wrong)
}

fn numbers(json: &Value) -> Option<Vec<f64>> {
    json.as_array()?.iter().map(Value::as_f64).collect()
}

/// Returns the box that a point or a rectangle of GeoJSON is.
fn shape_corners(shape: &Value) -> Option<[f64; 4]> {
    let place = |json: &Value| match numbers(json)?.as_slice() {
        [longitude, latitude, ..] => Some((*longitude, *latitude)),
        _ => None,
    };
    let coordinates = shape.get("coordinates")?;
    match shape.get("type")?.as_str()? {
        "Point" => place(coordinates).map(|(longitude, latitude)| [longitude, latitude, longitude, latitude]),
        "Polygon" => {
            let [ring] = coordinates.as_array()?.as_slice() else { return None };
            let ring: Vec<_> = ring.as_array()?.iter().map(place).collect::<Option<_>>()?;
            let [a, b, c, d, end] = ring.as_slice() else { return None };
            let is_box =
                |first: &(f64, f64), second: &(f64, f64), third: &(f64, f64), fourth: &(f64, f64)| {
                    first.1 == second.1 && second.0 == third.0 && third.1 == fourth.1 && fourth.0 == first.0
                };
            if a != end || !(is_box(a, b, c, d) || is_box(b, c, d, a)) {
                return None;
            }
            Some([a.0.min(c.0), a.1.min(c.1), a.0.max(c.0), a.1.max(c.1)])
        }
        _ => None,
    }
}

/// Shows what was written, shortly.
fn shown(json: &Value) -> String {
    let mut shown: String = json.to_string().chars().take(80).collect();
    if shown.chars().count() == 80 {
        shown.push('…');
    }
    shown
}
