//! Values that a search passes over since they are of another type than what they would be compared with.

use percale_core::attribute::AttributeName;
use percale_core::query::{Comparison, Condition, Field, Literal, Test};

use super::Visible;
use crate::engine::Tx;
use crate::error::Result;
use crate::model::Mismatch;
use crate::rows::attribute;

/// Most values of an attribute that are counted.
const MOST: usize = 1000;

/// Counts the values that are not compared, of all attributes of which an order is asked for, in spaces that the caller may read as a whole.
/// Of the others nothing is said: such values may be ones that cannot be read.
pub(super) async fn mismatches<T: Tx>(
    tx: &T,
    spaces: &[Visible],
    condition: &Condition,
) -> Result<Vec<Mismatch>> {
    let mut compared = Vec::new();
    ordered(condition, &mut compared);
    let mut found = Vec::new();
    for (name, is_text) in compared {
        let mut count = 0;
        for space in spaces.iter().filter(|space| space.is_whole) {
            count += attribute::count_of_kind(tx, space.row.sp, name, !is_text, MOST - count).await?;
        }
        if count > 0 {
            found.push(Mismatch { name: name.clone(), are_text: !is_text, count, is_most: count == MOST });
        }
    }
    Ok(found)
}

/// Gathers the attributes of which an order is asked for, and whether it is that of texts.
fn ordered<'c>(condition: &'c Condition, found: &mut Vec<(&'c AttributeName, bool)>) {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().for_each(|part| ordered(part, found)),
        Condition::Not(part) => ordered(part, found),
        Condition::Is(Field::Attribute(name), test) => {
            let is_text = match test {
                Test::Compare(Comparison::Equal, _)
                | Test::Has(_)
                | Test::Matches(_)
                | Test::Regex(_)
                | Test::Exists => return,
                Test::Compare(_, value) => value.is_text_alone(),
                Test::Between(low, high) => [low, high].into_iter().flatten().all(Literal::is_text_alone),
            };
            if !found.contains(&(name, is_text)) {
                found.push((name, is_text));
            }
        }
        Condition::Is(Field::Builtin(_), _) | Condition::Text(_) => {}
    }
}
