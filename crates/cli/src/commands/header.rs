//! `header`: what the file of an object says of itself, without its bytes.

use std::collections::BTreeMap;

use clap::Args;
use percale_api::attributes::{Attribute, Source};
use percale_core::AttributeValue;
use percale_core::ErrorCode;
use serde::{Serialize, Serializer};

use super::grant::fabric_path;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Lines;
use crate::wildcards::expand;

/// `percale header`
#[derive(Debug, Args)]
#[command(after_help = "\
It shows what was read of the header, which the site keeps; the bytes of the object stay where they are.

Examples:
  percale header percale:/climate/a.nc
  percale header 'percale:/climate/*.nc' --json")]
pub struct HeaderArgs {
    /// Of what
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
}

/// What a header says, put in order.
#[derive(Debug, Default, Serialize)]
struct Header {
    path: String,
    format: String,
    dimensions: BTreeMap<String, Lengths>,
    variables: BTreeMap<String, Variable>,
    attributes: BTreeMap<String, Vec<AttributeValue>>,
}

/// How long a dimension is; arrays that have it may disagree. One length is shown as itself, several as a list.
#[derive(Debug)]
struct Lengths(Vec<AttributeValue>);

impl Serialize for Lengths {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [only] => only.serialize(to),
            all => all.serialize(to),
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct Variable {
    #[serde(rename = "type")]
    kind: String,
    shape: Vec<AttributeValue>,
    attributes: BTreeMap<String, Vec<AttributeValue>>,
}

impl Header {
    fn of(path: String, found: Vec<Attribute>) -> Self {
        let mut header = Self { path, ..Self::default() };
        let found: Vec<Attribute> = found.into_iter().filter(|one| one.source == Source::Header).collect();
        let format = found.iter().find(|one| one.name.as_str() == "format").map(|one| one.values.as_slice());
        if let Some([AttributeValue::Text(format), ..]) = format {
            header.format.clone_from(format);
        }
        // A column has a type and nothing else, whatever dots are in its name; two of one name are one, with both types.
        let is_table = ["csv", "tsv", "parquet"].contains(&header.format.as_str());
        for one in &found {
            // `var.` and the path are the type; what the file calls so itself stands behind it.
            if let (Some(name), Some(AttributeValue::Text(kind))) =
                (one.name.as_str().strip_prefix("var."), one.values.first())
                && (is_table || found.iter().any(|shape| shape.name.as_str() == format!("var.{name}.shape")))
            {
                let kind = if is_table { joined(&one.values) } else { kind.clone() };
                header.variables.insert(name.to_owned(), Variable { kind, ..Variable::default() });
            }
        }
        for Attribute { name, values, .. } in found {
            let name = name.as_str();
            match (name, values.as_slice()) {
                ("format", [AttributeValue::Text(_), ..]) => {}
                _ => header.take(name, values),
            }
        }
        header
    }

    fn take(&mut self, name: &str, values: Vec<AttributeValue>) {
        if let Some(dimension) = name.strip_prefix("dim.") {
            self.dimensions.insert(dimension.to_owned(), Lengths(values));
            return;
        }
        let Some(below) = name.strip_prefix("var.") else {
            self.attributes.insert(name.to_owned(), values);
            return;
        };
        // The longest name of a variable that it begins with: names may have dots.
        let mut ends = below.match_indices('.').map(|(at, _)| at).chain([below.len()]);
        let of = ends.rfind(|end| self.variables.contains_key(&below[..*end]));
        let Some((of, key)) = of.map(|end| (&below[..end], below[end..].trim_start_matches('.'))) else {
            // One without a shape; its attributes come behind it.
            if let [AttributeValue::Text(kind)] = values.as_slice() {
                let scalar = Variable { kind: kind.clone(), ..Variable::default() };
                self.variables.insert(below.to_owned(), scalar);
            } else {
                self.attributes.insert(name.to_owned(), values);
            }
            return;
        };
        let Some(variable) = self.variables.get_mut(of) else { return };
        match key {
            "" => {}
            "shape" => variable.shape = values,
            key => drop(variable.attributes.insert(key.to_owned(), values)),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}  {}", self.path, self.format)];
        for (name, Lengths(lengths)) in &self.dimensions {
            lines.push(format!("  dimension {name} = {}", joined(lengths)));
        }
        for (name, variable) in &self.variables {
            lines.push(format!("  variable {name}: {}{}", variable.kind, in_brackets(&variable.shape)));
            for (key, values) in &variable.attributes {
                lines.push(format!("    {key} = {}", joined(values)));
            }
        }
        for (name, values) in &self.attributes {
            lines.push(format!("  {name} = {}", joined(values)));
        }
        lines
    }
}

fn in_brackets(shape: &[AttributeValue]) -> String {
    if shape.is_empty() { String::new() } else { format!("[{}]", joined(shape)) }
}

/// Joins values. What breaks lines is shown as the sign for it.
fn joined(values: &[AttributeValue]) -> String {
    let shown: Vec<String> = values.iter().map(|value| value.to_string().replace('\n', "\u{21b5}")).collect();
    shown.join(", ")
}

/// Shows headers.
pub async fn run(args: HeaderArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let mut out = Lines::open();
    for path in expand(&client, args.paths).await? {
        let header = Header::of(show(&path.path), client.attributes(&path.path).await?);
        if header.format.is_empty() && header.attributes.is_empty() {
            let failure = Failure::new(ErrorCode::NotFound, format!("no header of {path} was read"));
            let hint = format!(
                "Its format may not be one that is known; `percale meta extract {path}` tries again."
            );
            return Err(failure.with_hint(hint));
        }
        match context.output.json {
            true => {
                out.json(&serde_json::to_value(&header).map_err(|error| Failure::usage(error.to_string()))?)?
            }
            false => header.lines().into_iter().try_for_each(|line| out.line(line))?,
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(said: &[(&str, &[AttributeValue])]) -> Header {
        let found = said.iter().map(|(name, values)| Attribute {
            name: name.parse().unwrap(),
            source: Source::Header,
            values: values.to_vec(),
        });
        Header::of("/a".into(), found.collect())
    }

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.into())
    }

    #[test]
    fn all_lengths_of_a_dimension_are_shown() {
        let [three, four] = [3, 4].map(AttributeValue::Integer);
        let header = header(&[
            ("dim.x", &[three.clone(), four.clone()]),
            ("dim.y", std::slice::from_ref(&three)),
            ("format", &[text("zarr")]),
        ]);
        assert_eq!(header.lines(), ["/a  zarr", "  dimension x = 3, 4", "  dimension y = 3"]);
        let wanted = serde_json::json!({"x": [three, four], "y": three});
        assert_eq!(serde_json::to_value(&header).unwrap()["dimensions"], wanted);
    }

    #[test]
    fn a_column_is_a_variable_whatever_its_name() {
        let said: [(&str, &[AttributeValue]); 4] = [
            ("var.x", &[text("int64")]),
            ("var.x.1", &[text("float64")]),
            ("var.x.units", &[text("string"), text("int64")]),
            ("var.x.shape.y", &[text("bool")]),
        ];
        for format in ["csv", "tsv", "parquet"] {
            let format = [text(format)];
            let said = [&said[..], &[("format", &format)]].concat();
            let columns = ["x: int64", "x.1: float64", "x.shape.y: bool", "x.units: string, int64"];
            let wanted = columns.map(|column| format!("  variable {column}"));
            assert_eq!(header(&said).lines()[1..], wanted);
        }
        // Elsewhere a variable has attributes.
        let (shape, format) = ([AttributeValue::Integer(3)], [text("hdf5")]);
        let said = [&said[..], &[("var.x.shape", &shape), ("format", &format)]].concat();
        assert!(header(&said).lines().contains(&"    1 = float64".to_owned()), "{:?}", header(&said));
    }
}
