//! `header`: what the file of an object says of itself, without its bytes.

use std::collections::BTreeMap;

use clap::Args;
use percale_api::attributes::{Attribute, Source};
use percale_core::AttributeValue;
use percale_core::ErrorCode;
use serde::Serialize;

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
    dimensions: BTreeMap<String, AttributeValue>,
    variables: BTreeMap<String, Variable>,
    attributes: BTreeMap<String, Vec<AttributeValue>>,
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
        for one in &found {
            // `var.` and the path are the type; what the file calls so itself stands behind it.
            if let (Some(name), Some(AttributeValue::Text(kind))) =
                (one.name.as_str().strip_prefix("var."), one.values.first())
                && found.iter().any(|shape| shape.name.as_str() == format!("var.{name}.shape"))
            {
                header
                    .variables
                    .insert(name.to_owned(), Variable { kind: kind.clone(), ..Variable::default() });
            }
        }
        for Attribute { name, values, .. } in found {
            let name = name.as_str();
            match (name, values.as_slice()) {
                ("format", [AttributeValue::Text(format), ..]) => header.format.clone_from(format),
                _ => header.take(name, values),
            }
        }
        header
    }

    fn take(&mut self, name: &str, mut values: Vec<AttributeValue>) {
        if let Some(dimension) = name.strip_prefix("dim.") {
            self.dimensions.extend(values.pop().map(|size| (dimension.to_owned(), size)));
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
        for (name, size) in &self.dimensions {
            lines.push(format!("  dimension {name} = {size}"));
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
