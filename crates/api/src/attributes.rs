//! What objects and collections are about.

use std::collections::BTreeMap;

use percale_core::{AttributeName, AttributeValue};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who says an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// It was found in the bytes of the object.
    Header,
    /// A person set it.
    Person,
}

/// An attribute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attribute {
    /// Its name.
    #[schema(value_type = String, example = "instrument")]
    pub name: AttributeName,
    /// Who says it.
    pub source: Source,
    /// Its values. Each is an object with one field, named by the type: `integer`, `float`, `text`, `time` or `bool`. What is no finite
    /// number is the text `NaN`, `Infinity` or `-Infinity`.
    #[schema(value_type = Vec<Object>, example = json!([{"text": "MODIS"}]))]
    pub values: Vec<AttributeValue>,
}

/// Changes what people say of an object or collection. What is not named stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttributeChange {
    /// Attributes with their new values, in place of those they had. Without any value the attribute is removed.
    #[schema(value_type = std::collections::HashMap<String, Vec<Object>>, example = json!({"instrument": [{"text": "MODIS"}], "draft": []}))]
    pub set: BTreeMap<AttributeName, Vec<AttributeValue>>,
}
