//! The text of CQL2 as its JSON.

use percale_core::query::Comparison;
use serde_json::{Map, Value, json};
use winnow::token::take_while;

use crate::language::{MAX_DEPTH, Outcome, Reader, fault, is_word};

/// Characters of a name that stands without quotes.
fn is_name(char: char) -> bool {
    is_word(char) || matches!(char, '.' | ':')
}

fn operation(op: &str, args: Vec<Value>) -> Value {
    json!({"op": op, "args": args})
}

fn object(name: &str, value: impl Into<Value>) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value.into())]))
}

fn negated(is_negated: bool, test: Value) -> Value {
    if is_negated { operation("not", vec![test]) } else { test }
}

impl Reader<'_> {
    /// Reads a filter to its end.
    pub(super) fn cql2(&mut self) -> Outcome<Value> {
        self.space();
        if self.rest.is_empty() {
            return Ok(Value::Bool(true));
        }
        let test = self.cql2_or()?;
        self.space();
        match self.rest {
            "" => Ok(test),
            rest => fault(rest, "AND, OR or the end is expected"),
        }
    }

    fn cql2_or(&mut self) -> Outcome<Value> {
        self.chain("OR", "or", |reader| reader.chain("AND", "and", Self::cql2_not))
    }

    /// Reads tests with a keyword between them.
    fn chain(
        &mut self,
        word: &'static str,
        op: &str,
        one: impl Fn(&mut Self) -> Outcome<Value>,
    ) -> Outcome<Value> {
        let first = one(self)?;
        let mut parts = vec![first];
        // It may stand directly behind a parenthesis.
        while self.spaced_keyword(word) || self.keyword(word) {
            parts.push(one(self)?);
        }
        Ok(match parts.pop() {
            Some(only) if parts.is_empty() => only,
            last => {
                parts.extend(last);
                operation(op, parts)
            }
        })
    }

    fn cql2_not(&mut self) -> Outcome<Value> {
        self.space();
        let mut is_negated = false;
        while self.keyword("NOT") {
            self.space();
            is_negated = !is_negated;
        }
        Ok(negated(is_negated, self.cql2_test()?))
    }

    fn cql2_test(&mut self) -> Outcome<Value> {
        if self.symbol("(") {
            let inner = self.deeper(Self::cql2_or)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let left = self.operand()?;
        let behind = self.rest;
        self.space();
        if let Some((comparison, is_negated)) = self.operator() {
            self.space();
            let sign = if is_negated { "<>" } else { Comparison::sign(comparison) };
            return Ok(operation(sign, vec![left, self.operand()?]));
        }
        self.rest = behind;
        let is_negated = self.spaced_keyword("NOT");
        if self.spaced_keyword("LIKE") {
            self.space();
            return Ok(negated(is_negated, operation("like", vec![left, self.operand()?])));
        }
        if self.spaced_keyword("BETWEEN") {
            self.space();
            let low = self.operand()?;
            if !self.spaced_keyword("AND") {
                return fault(self.rest, "AND and the other bound are expected");
            }
            self.space();
            return Ok(negated(is_negated, operation("between", vec![left, low, self.operand()?])));
        }
        if self.spaced_keyword("IN") {
            self.space();
            let values = self.list_of_operands()?;
            return Ok(negated(is_negated, operation("in", vec![left, values])));
        }
        if is_negated {
            return fault(self.rest, "LIKE, BETWEEN or IN is expected behind NOT");
        }
        if self.spaced_keyword("IS") {
            let is_negated = self.spaced_keyword("NOT");
            return match self.spaced_keyword("NULL") {
                true => Ok(negated(is_negated, operation("isNull", vec![left]))),
                false => fault(self.rest, "NULL is expected behind IS"),
            };
        }
        Ok(left)
    }

    /// Reads what stands in parentheses, which are not nested deeper than may be.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return fault(self.rest, format!("parentheses are nested more than {MAX_DEPTH} deep"));
        }
        self.space();
        let inner = read(self)?;
        self.space();
        self.depth -= 1;
        Ok(inner)
    }

    fn expect(&mut self, symbol: &'static str) -> Outcome<()> {
        match self.symbol(symbol) {
            true => Ok(()),
            false => fault(self.rest, format!("a '{symbol}' is missing")),
        }
    }

    /// Reads a list in parentheses, which may be empty.
    fn in_parentheses(&mut self, mut one: impl FnMut(&mut Self) -> Outcome<Value>) -> Outcome<Vec<Value>> {
        self.expect("(")?;
        let list = self.deeper(|reader| {
            let mut list = Vec::new();
            while !reader.rest.starts_with(')') {
                if !list.is_empty() {
                    reader.expect(",")?;
                    reader.space();
                }
                list.push(one(reader)?);
                reader.space();
            }
            Ok(list)
        })?;
        self.expect(")")?;
        Ok(list)
    }

    fn list_of_operands(&mut self) -> Outcome<Value> {
        Ok(Value::Array(self.in_parentheses(Self::operand)?))
    }

    /// Reads a value, a property or a function.
    fn operand(&mut self) -> Outcome<Value> {
        let start = self.rest;
        if start.starts_with('"') {
            return Ok(object("property", self.quoted()?.unwrap_or_default()));
        }
        if let Some(text) = self.quoted()? {
            return Ok(Value::String(text));
        }
        if start.starts_with(|char: char| char.is_ascii_digit() || matches!(char, '+' | '-' | '.')) {
            return self.number();
        }
        let name = self.take(take_while(1.., is_name)).unwrap_or_default();
        let behind = self.rest;
        self.space();
        if !self.rest.starts_with('(') {
            self.rest = behind;
            return match name.to_ascii_lowercase().as_str() {
                "" => fault(start, "a property, a value or a '(' is expected"),
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                "and" | "or" | "not" | "like" | "between" | "in" | "is" | "null" => {
                    fault(start, "a property, a value or a '(' is expected before this word")
                }
                _ => Ok(object("property", name)),
            };
        }
        match name.to_ascii_lowercase().as_str() {
            "" => fault(start, "a property or a value is expected"),
            of @ ("date" | "timestamp") => match self.in_parentheses(Self::operand)?.as_slice() {
                [Value::String(text)] => Ok(object(of, text.as_str())),
                _ => fault(start, "one text is expected, such as DATE('2024-06-01')"),
            },
            of @ ("interval" | "bbox") => Ok(object(of, self.in_parentheses(Self::operand)?)),
            "point" => {
                let mut places = self.in_parentheses(Self::place_of_shape)?;
                Ok(json!({"type": "Point", "coordinates": places.pop()}))
            }
            "polygon" => {
                let rings = self.in_parentheses(|reader| {
                    Ok(Value::Array(reader.in_parentheses(Self::place_of_shape)?))
                })?;
                Ok(json!({"type": "Polygon", "coordinates": rings}))
            }
            function => Ok(operation(function, self.in_parentheses(Self::argument)?)),
        }
    }

    fn argument(&mut self) -> Outcome<Value> {
        if self.rest.starts_with('(') { self.list_of_operands() } else { self.operand() }
    }

    fn number(&mut self) -> Outcome<Value> {
        let start = self.rest;
        let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '+' | '-' | '.');
        let word = self.take(take_while(1.., is_part)).unwrap_or_default();
        // JSON has no plus before a number.
        let whole = word.parse::<i64>().ok().map(Value::from);
        match whole.or_else(|| word.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from))
        {
            Some(number) => Ok(number),
            None => fault(start, "this is no number"),
        }
    }

    /// Reads the coordinates of a place, with spaces between them.
    fn place_of_shape(&mut self) -> Outcome<Value> {
        let mut coordinates = Vec::new();
        while !self.rest.starts_with([',', ')']) && coordinates.len() < 4 {
            coordinates.push(self.number()?);
            self.space();
        }
        Ok(Value::Array(coordinates))
    }
}
