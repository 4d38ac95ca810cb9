//! What objects and collections are about, and finding them by it.

use std::collections::BTreeMap;

use percale_core::ids::VersionId;
use percale_core::{AttributeName, AttributeValue, Position, Timestamp};
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

/// A change of what is said of an object or collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttributeEvent {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Who changed it: `user:NAME`, or `system` for what was found in the bytes.
    pub actor: String,
    /// Where in the journal of its space.
    #[schema(value_type = String)]
    pub position: Position,
    /// Who says it since.
    pub source: Source,
    /// The attributes with their values since. Without any the attribute was removed.
    #[schema(value_type = std::collections::HashMap<String, Vec<Object>>)]
    pub set: BTreeMap<AttributeName, Vec<AttributeValue>>,
}

/// What a search finds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// The entry.
    #[serde(flatten)]
    pub entry: Entry,
    /// Its values of the attributes that were asked for, whoever says them; those that it has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, Vec<Object>>, example = json!({"instrument": [{"text": "MODIS"}]}))]
    pub attributes: BTreeMap<AttributeName, Vec<AttributeValue>>,
}

/// A page of what a search finds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundPage {
    /// The page's entries.
    pub items: Vec<Found>,
    /// The cursor of the next page, or absent if this is the last one. Also sent as `Link: …; rel="next"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Homes of spaces that do not answer this site now: what was changed there since is not known here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<AwaySite>,
    /// On the first page: values that were passed over, since they are of another type than what they would be compared with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
    /// On a page without entries: attributes that must be there and that nothing has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub unknown: Vec<AttributeName>,
}

/// Values of an attribute that are not compared with what a search compares with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mismatch {
    /// The attribute.
    #[schema(value_type = String, example = "level")]
    pub name: AttributeName,
    /// Whether they are texts; otherwise they are numbers, times, `true` or `false`.
    pub are_text: bool,
    /// How many there are.
    pub count: u64,
    /// Whether there may be more: no more are counted.
    #[serde(default)]
    pub is_most: bool,
}

/// A site that does not answer, or whose changes cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AwaySite {
    /// Its name.
    pub site: String,
    /// When it last answered this site; absent if it did not since this one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub seen: Option<Timestamp>,
    /// Why its changes cannot be followed, though it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a search goes about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchPlan {
    /// The query as it was understood, with everything written out.
    pub query: String,
    /// The same as a filter in `cql2-json`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub filter: serde_json::Value,
    /// The spaces that are looked into.
    pub spaces: Vec<PlannedSpace>,
}

/// How a space is searched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedSpace {
    /// Its name.
    pub space: String,
    /// The test that leads through an index to all that can be found. Absent if all entries are gone through, and if not all of the space
    /// may be read and which test it is depends on the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How many entries are looked at. Absent if not all of the space may be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
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
