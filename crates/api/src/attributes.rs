//! What objects and collections are about, and finding them by it.

use std::collections::BTreeMap;

use percale_core::ids::VersionId;
use percale_core::{AttributeName, AttributeValue, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::entries::Entry;

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

/// A page of what a search finds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundPage {
    /// The page's entries.
    pub items: Vec<Entry>,
    /// The cursor of the next page, or absent if this is the last one. Also sent as `Link: …; rel="next"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Homes of spaces that do not answer this site now: what was changed there since is not known here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<AwaySite>,
}

/// A site that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AwaySite {
    /// Its name.
    pub site: String,
    /// When it last answered this site; absent if it did not since this one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub seen: Option<Timestamp>,
}

/// How many entries a search finds, and which values they have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SearchSummary {
    /// How many entries.
    pub count: u64,
    /// Whether there was no time to look at all: then the numbers are estimates.
    #[serde(default)]
    pub is_estimate: bool,
    /// The values of the fields that were asked for.
    #[serde(default)]
    pub facets: Vec<Facet>,
    /// Homes of spaces that do not answer this site now, as in [`FoundPage`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<AwaySite>,
}

/// How many of the entries have which values of a field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Facet {
    /// The field, as queries name it.
    #[schema(example = "instrument")]
    pub field: String,
    /// The values that most entries have. One that has several counts for each.
    pub values: Vec<FacetValue>,
    /// How often there is another value.
    pub others: u64,
}

/// A value, and how many entries have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FacetValue {
    /// The value, as in [`Attribute`].
    #[schema(value_type = Object, example = json!({"text": "MODIS"}))]
    pub value: AttributeValue,
    /// How many.
    pub count: u64,
}

/// Where the chunks of the arrays of an object lie, as the keys of a store of Zarr 2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ObjectReferences {
    /// The version whose bytes these are.
    #[schema(value_type = u64)]
    pub version: VersionId,
    /// Its bytes.
    pub size: u64,
    /// What stands at the keys of the store.
    pub refs: BTreeMap<String, Reference>,
    /// The values of small arrays by their paths: `base64:` and the bytes, in the type of the array and row by row.
    #[serde(default)]
    pub values: BTreeMap<String, String>,
    /// Arrays, and attributes of arrays and groups, that the store has not.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
}

/// What stands at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Reference {
    /// The thing itself: metadata as JSON, or `base64:` and the bytes.
    Text(String),
    /// A range of the content: where it begins, and its bytes.
    Range([u64; 2]),
}

/// What could not be said by references.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftOut {
    /// The path of the array, or of the group.
    pub variable: String,
    /// Why.
    pub why: String,
}
