//! Attributes: a row for each value.

use percale_core::attribute::{AttributeName, AttributeValue, Float};

use crate::engine::{Row, Sql, Tx, row};
use crate::error::{Error, Result};
use crate::model::AttributeSource;

/// Most bytes of a text that are compared; the rest is only kept.
pub(crate) const MAX_WORD: usize = 255;

/// A row of `attribute`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttributeRow {
    pub sp: i64,
    pub entry: u64,
    pub name: AttributeName,
    pub source: AttributeSource,
    /// Its place among the values of the attribute.
    pub ord: u64,
    pub value: AttributeValue,
}

macro_rules! columns {
    () => {
        "a.sp, a.entry, a.name, a.source, a.ord, a.type, a.value"
    };
}

static OF_ENTRIES: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM attribute a WHERE a.sp = $1 AND a.entry = $2 ORDER BY a.name, a.source, a.ord"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, entry) JOIN attribute a ON a.sp = k.sp AND a.entry = k.entry \
         ORDER BY a.sp, a.entry, a.name, a.source, a.ord"
    ),
);
static NAMED: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM attribute a WHERE a.sp = $1 AND a.entry = $2 AND a.name = $3 ORDER BY a.source, a.ord"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[], $3::text[]) AS k(sp, entry, name) \
         JOIN attribute a ON a.sp = k.sp AND a.entry = k.entry AND a.name = k.name \
         ORDER BY a.sp, a.entry, a.name, a.source, a.ord"
    ),
);
static OF_SPACE: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM attribute a WHERE a.sp = $1 AND (a.entry, a.name, a.source, a.ord) > ($2, $3, $4, $5) \
     ORDER BY a.sp, a.entry, a.name, a.source, a.ord LIMIT $6"
));
/// What begins so is before the character that follows the dot.
static RULES_OF_SPACE: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM attribute a WHERE a.sp = $1 AND a.name >= 'rules.' AND a.name < 'rules/' AND a.source = 2 \
     ORDER BY a.entry, a.name, a.ord LIMIT $2"
));
static RULES_OF_ENTRIES: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM attribute a WHERE a.sp = $1 AND a.entry = $2 AND a.name >= 'rules.' AND a.name < 'rules/' AND a.source = 2 \
         ORDER BY a.name, a.ord"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, entry) JOIN attribute a ON a.sp = k.sp AND a.entry = k.entry \
         WHERE a.name >= 'rules.' AND a.name < 'rules/' AND a.source = 2 ORDER BY a.sp, a.entry, a.name, a.ord"
    ),
);
static ANY: Sql = Sql::both("SELECT entry FROM attribute WHERE sp = $1 LIMIT 1");
static IS_KNOWN: Sql = Sql::both("SELECT entry FROM attribute WHERE sp = $1 AND name = $2 LIMIT 1");
/// Of headers.
static WITH_NUMBER: Sql = Sql::both(
    "SELECT entry FROM attribute WHERE sp = $1 AND name = $2 AND number = $3 AND entry > $4 AND type = $5 AND source = 1 \
     ORDER BY entry LIMIT $6",
);
static COUNT_TEXTS: Sql = Sql::both(
    "SELECT COUNT(*) FROM (SELECT entry FROM attribute WHERE sp = $1 AND name = $2 AND word IS NOT NULL LIMIT $3) AS c",
);
static COUNT_OTHERS: Sql = Sql::both(
    "SELECT COUNT(*) FROM (SELECT entry FROM attribute WHERE sp = $1 AND name = $2 AND number IS NOT NULL LIMIT $3) AS c",
);
/// One look into the index for each name.
static NAMES: Sql = Sql::both(
    "WITH RECURSIVE n(name) AS (SELECT * FROM (SELECT name FROM attribute WHERE sp = $1 ORDER BY name LIMIT 1) AS f \
     UNION ALL SELECT (SELECT a.name FROM attribute a WHERE a.sp = $1 AND a.name > n.name ORDER BY a.name LIMIT 1) \
     FROM n WHERE n.name IS NOT NULL) SELECT name FROM n WHERE name IS NOT NULL LIMIT $2",
);
static INSERT: Sql = Sql::each(
    "INSERT INTO attribute (sp, entry, name, source, ord, type, number, word, value) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    "INSERT INTO attribute (sp, entry, name, source, ord, type, number, word, value) \
     SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], \
     $7::bigint[], $8::text[], $9::text[])",
);
static REMOVE: Sql = Sql::each(
    "DELETE FROM attribute WHERE sp = $1 AND entry = $2 AND name = $3 AND source = $4",
    "DELETE FROM attribute a USING UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::bigint[]) AS k(sp, entry, name, source) \
     WHERE a.sp = k.sp AND a.entry = k.entry AND a.name = k.name AND a.source = k.source",
);
static REMOVE_OF_ENTRIES: Sql = Sql::each(
    "DELETE FROM attribute WHERE sp = $1 AND entry = $2",
    "DELETE FROM attribute a USING UNNEST($1::bigint[], $2::bigint[]) AS k(sp, entry) \
     WHERE a.sp = k.sp AND a.entry = k.entry",
);
static REMOVE_OF_SPACE: Sql = Sql::both("DELETE FROM attribute WHERE sp = $1");

/// What a batch writes with, got ready together.
pub(crate) static WRITES: [&Sql; 1] = [&REMOVE_OF_ENTRIES];

fn number_of(source: AttributeSource) -> i64 {
    match source {
        AttributeSource::Header => 1,
        AttributeSource::Person => 2,
    }
}

/// The numbers of the types of values.
pub(crate) mod kind {
    pub const INTEGER: i64 = 1;
    pub const FLOAT: i64 = 2;
    pub const TEXT: i64 = 3;
    pub const TIME: i64 = 4;
    pub const BOOL: i64 = 5;
}

/// Returns an integer by which numbers have the same order as by themselves; nothing for what is no number.
///
/// The bits of an IEEE 754 number, read as an integer, are in its order if it is not negative, and in the reverse order if it is.
pub(crate) fn order_of(number: f64) -> Option<i64> {
    if number.is_nan() {
        return None;
    }
    // Of the two zeros, one.
    let bits = (number + 0.0).to_bits() as i64;
    Some(if bits < 0 { bits ^ i64::MAX } else { bits })
}

/// Returns text as it is compared: in lower case, and cut.
pub(crate) fn fold(text: &str) -> String {
    let mut word = text.to_lowercase();
    word.truncate(word.floor_char_boundary(MAX_WORD));
    word
}

/// What a value is compared by.
fn compared(value: &AttributeValue) -> (i64, Option<i64>, Option<String>) {
    match value {
        AttributeValue::Integer(number) => (kind::INTEGER, order_of(*number as f64), None),
        AttributeValue::Float(Float(number)) => (kind::FLOAT, order_of(*number), None),
        AttributeValue::Text(text) => (kind::TEXT, None, Some(fold(text))),
        AttributeValue::Time(time) => (kind::TIME, Some(time.as_micros()), None),
        AttributeValue::Bool(is_so) => (kind::BOOL, Some(i64::from(*is_so)), None),
    }
}

/// Returns the number of the type of a value.
pub(crate) fn kind_of(value: &AttributeValue) -> i64 {
    compared(value).0
}

pub(crate) fn decode_value(kind: i64, text: String) -> Option<AttributeValue> {
    Some(match kind {
        kind::INTEGER => AttributeValue::Integer(text.parse().ok()?),
        kind::FLOAT => AttributeValue::Float(text.parse().ok()?),
        kind::TEXT => AttributeValue::Text(text),
        kind::TIME => AttributeValue::Time(text.parse().ok()?),
        kind::BOOL => AttributeValue::Bool(text.parse().ok()?),
        _ => return None,
    })
}

fn decode_all(rows: Vec<Row>) -> Result<Vec<AttributeRow>> {
    let decode = |mut row: Row| {
        let (sp, entry) = (row.int()?, row.number()?);
        let corrupt = || Error::corrupt(format!("cannot read an attribute of entry {entry}"));
        let name = row.text()?.parse().map_err(|error| corrupt().with_source(error))?;
        let source = match row.int()? {
            1 => AttributeSource::Header,
            2 => AttributeSource::Person,
            _ => return Err(corrupt()),
        };
        let ord = row.number()?;
        let value = decode_value(row.int()?, row.text()?).ok_or_else(corrupt)?;
        Ok(AttributeRow { sp, entry, name, source, ord, value })
    };
    rows.into_iter().map(decode).collect()
}

/// Returns what is said of entries: by name, source and place.
pub(crate) async fn of_entries<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<Vec<AttributeRow>> {
    decode_all(tx.many(&OF_ENTRIES, keys.into_iter().map(|(sp, id)| row![sp, id]).collect()).await?)
}

/// Returns what is said of entries under some names: of each by name, source and place.
pub(crate) async fn named<T: Tx>(
    tx: &T,
    keys: &[(i64, u64)],
    names: &[AttributeName],
) -> Result<Vec<AttributeRow>> {
    let keys = keys.iter().flat_map(|(sp, id)| names.iter().map(|name| row![*sp, *id, name.as_str()]));
    decode_all(tx.many(&NAMED, keys.collect()).await?)
}

/// Returns rows of a space behind another one, in the order of their key.
pub(crate) async fn of_space<T: Tx>(
    tx: &T,
    sp: i64,
    after: Option<&AttributeRow>,
    limit: usize,
) -> Result<Vec<AttributeRow>> {
    let params = match after {
        None => row![sp, 0_u64, "", 0_u64, 0_u64, limit],
        Some(row) => row![sp, row.entry, row.name.as_str(), number_of(row.source), row.ord, limit],
    };
    decode_all(tx.query(&OF_SPACE, params).await?)
}

/// Returns the rules of collections of a space, by entry, name and place.
pub(crate) async fn rules_of_space<T: Tx>(tx: &T, sp: i64, limit: usize) -> Result<Vec<AttributeRow>> {
    decode_all(tx.query(&RULES_OF_SPACE, row![sp, limit]).await?)
}

/// Returns the rules of some collections, those of each by name and place.
pub(crate) async fn rules_of_entries<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<Vec<AttributeRow>> {
    decode_all(tx.many(&RULES_OF_ENTRIES, keys.into_iter().map(|(sp, id)| row![sp, id]).collect()).await?)
}

/// Tells whether anything is said of what is in a space.
pub(crate) async fn any<T: Tx>(tx: &T, sp: i64) -> Result<bool> {
    Ok(!tx.query(&ANY, row![sp]).await?.is_empty())
}

/// Tells whether anything in a space has an attribute.
pub(crate) async fn is_known<T: Tx>(tx: &T, sp: i64, name: &AttributeName) -> Result<bool> {
    Ok(!tx.query(&IS_KNOWN, row![sp, name.as_str()]).await?.is_empty())
}

/// Returns the entries behind one whose headers have an attribute that is true, in their order.
pub(crate) async fn with_true<T: Tx>(
    tx: &T,
    sp: i64,
    name: &AttributeName,
    after: u64,
    limit: usize,
) -> Result<Vec<u64>> {
    let (kind, number, _) = compared(&AttributeValue::Bool(true));
    let rows = tx.query(&WITH_NUMBER, row![sp, name.as_str(), number, after, kind, limit]).await?;
    rows.into_iter().map(|mut row| row.number()).collect()
}

/// Counts the values of an attribute that are texts, or those that are ordered as numbers, up to `most`.
pub(crate) async fn count_of_kind<T: Tx>(
    tx: &T,
    sp: i64,
    name: &AttributeName,
    are_text: bool,
    most: usize,
) -> Result<usize> {
    let sql = if are_text { &COUNT_TEXTS } else { &COUNT_OTHERS };
    let mut rows = tx.query(sql, row![sp, name.as_str(), most]).await?;
    rows.first_mut().map_or(Ok(0), |row| row.number().map(|count| count as usize))
}

/// Returns the names of the attributes in a space, by the alphabet.
pub(crate) async fn names<T: Tx>(tx: &T, sp: i64, limit: usize) -> Result<Vec<String>> {
    tx.query(&NAMES, row![sp, limit]).await?.into_iter().map(|mut row| row.text()).collect()
}

/// Writes new rows.
pub(crate) async fn insert<T: Tx>(tx: &T, rows: &[AttributeRow]) -> Result<()> {
    let params = rows.iter().map(|attribute| {
        let AttributeRow { sp, entry, name, source, ord, value } = attribute;
        let (kind, number, word) = compared(value);
        row![*sp, *entry, name.as_str(), number_of(*source), *ord, kind, number, word, value.to_string()]
    });
    tx.execute_many(&INSERT, params.collect()).await.map(drop)
}

/// Removes attributes of entries, as one source says them.
pub(crate) async fn remove<T: Tx>(
    tx: &T,
    keys: &[(i64, u64, &AttributeName, AttributeSource)],
) -> Result<()> {
    let params =
        keys.iter().map(|(sp, entry, name, source)| row![*sp, *entry, name.as_str(), number_of(*source)]);
    tx.execute_many(&REMOVE, params.collect()).await.map(drop)
}

/// Removes what is said of entries that are gone.
pub(crate) async fn remove_of_entries<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<()> {
    let params = keys.into_iter().map(|(sp, id)| row![sp, id]).collect();
    tx.execute_many(&REMOVE_OF_ENTRIES, params).await.map(drop)
}

/// Removes what is said of all that is in a space.
pub(crate) async fn remove_of_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.execute(&REMOVE_OF_SPACE, row![sp]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order() {
        let numbers = [
            f64::NEG_INFINITY,
            -1e300,
            -2.5,
            -1.0,
            -f64::MIN_POSITIVE,
            0.0,
            f64::MIN_POSITIVE,
            0.1,
            1.0,
            1e9,
            f64::MAX,
            f64::INFINITY,
        ];
        assert!(numbers.windows(2).all(|pair| order_of(pair[0]) < order_of(pair[1])));
        assert_eq!(order_of(-0.0), order_of(0.0));
        assert_eq!(order_of(f64::NAN), None);
    }

    #[test]
    fn words_are_cut_between_characters() {
        assert_eq!(fold("MODIS"), "modis");
        assert_eq!(fold(&"ä".repeat(200)).len(), 254);
    }
}
