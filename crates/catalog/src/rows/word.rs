//! The texts that the attributes of a space have, each once, found by what is written in them. The database gathers them by itself.

use percale_core::attribute::AttributeName;

use crate::engine::{Row, Sql, Tx, Value, row};
use crate::error::Result;

/// Characters of a piece by which texts are found.
const PIECE: usize = 3;
/// Pieces of a pattern that are looked for; what they have in common is compared as a whole.
const PIECES: usize = 16;

/// Texts of an attribute that are looked at one by one.
const FEW: usize = 500;
/// Texts with all pieces that are compared with a pattern.
const CANDIDATES: usize = 20_000;

/// A text and the name of the attribute that has it.
pub(crate) type NamedWord = (String, String);

/// A pattern of PostgreSQL's needs no pieces: it makes them by itself. One row with an empty name says that too many texts have them.
static LIKE: Sql = Sql::each(
    "WITH p AS MATERIALIZED (SELECT rowid AS id FROM word_piece WHERE word_piece MATCH $1 LIMIT $2) \
     SELECT w.name, w.word FROM p CROSS JOIN word w WHERE w.id = p.id \
     AND w.sp = $3 AND ($4 = '' OR w.name = $4) AND w.word LIKE $5 ESCAPE '\\' \
     UNION ALL SELECT '', '' FROM (SELECT COUNT(*) AS n FROM p) WHERE n = $2 LIMIT $6",
    "SELECT name, word FROM words_like($3, $4, $5, $6) WHERE CAST($1 AS text) <> '' AND CAST($2 AS bigint) > 0",
);
/// SQLite has no index of words; nothing asks it.
static WITH: Sql = Sql::each("SELECT '', ''", "SELECT name, word FROM words_with($1, $2, $3, $4)");
static COUNT: Sql =
    Sql::both("SELECT COUNT(*) FROM (SELECT 1 FROM word WHERE sp = $1 AND name = $2 LIMIT $3) AS c");
static LIKE_AMONG_FEW: Sql = Sql::both(
    "SELECT name, word FROM word WHERE sp = $1 AND name = $2 AND word LIKE $3 ESCAPE '\\' LIMIT $4",
);
static REMOVE_OF_SPACE: Sql = Sql::both("DELETE FROM word WHERE sp = $1");

/// Returns the texts of a space that a pattern of LIKE matches, of one attribute or of all; nothing if these are more than `most`, or if what
/// the pattern has between its wildcards is too short, or in too many texts, to find them by.
pub(crate) async fn like<T: Tx>(
    tx: &T,
    sp: i64,
    name: Option<&AttributeName>,
    (pattern, between): (&str, &[&str]),
    most: usize,
) -> Result<Option<Vec<NamedWord>>> {
    let rows = match (name, pieces(between)) {
        (Some(name), _) if has_few(tx, sp, name).await? => {
            tx.query(&LIKE_AMONG_FEW, row![sp, name.as_str(), pattern, most + 1]).await?
        }
        (name, Some(pieces)) => {
            let name = name.map(AttributeName::as_str).unwrap_or_default();
            tx.query(&LIKE, row![pieces, CANDIDATES, sp, name, pattern, most + 1]).await?
        }
        (_, None) => return Ok(None),
    };
    at_most(most, rows)
}

/// Returns the texts of an attribute in a space that may have some words in a row, and all that do; nothing if these are more than `most`, or
/// cannot be told so soon. `pattern` is one of LIKE for the words.
pub(crate) async fn with<T: Tx>(
    tx: &T,
    sp: i64,
    name: &AttributeName,
    (pattern, words): (&str, &str),
    most: usize,
) -> Result<Option<Vec<NamedWord>>> {
    if !T::INDEXES_WORDS || words.trim().is_empty() {
        return like(tx, sp, Some(name), (pattern, &[words]), most).await;
    }
    let rows = match has_few(tx, sp, name).await? {
        true => tx.query(&LIKE_AMONG_FEW, row![sp, name.as_str(), pattern, most + 1]).await?,
        false => {
            let parts = Value::Texts(words.split(' ').map(str::to_owned).collect());
            tx.query(&WITH, row![sp, name.as_str(), parts, most + 1]).await?
        }
    };
    at_most(most, rows)
}

fn at_most(most: usize, rows: Vec<Row>) -> Result<Option<Vec<NamedWord>>> {
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        found.push((row.text()?, row.text()?));
    }
    let are_too_many = found.len() > most || found.iter().any(|(name, _)| name.is_empty());
    Ok((!are_too_many).then_some(found))
}

/// Tells whether an attribute has so few texts that all of them can be looked at.
async fn has_few<T: Tx>(tx: &T, sp: i64, name: &AttributeName) -> Result<bool> {
    let mut rows = tx.query(&COUNT, row![sp, name.as_str(), FEW + 1]).await?;
    rows.first_mut().map_or(Ok(true), |row| Ok(row.number()? <= FEW as u64))
}

/// Forgets a space, whose attributes are gone.
pub(crate) async fn remove_of_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.execute(&REMOVE_OF_SPACE, row![sp]).await.map(drop)
}

/// Returns a query of FTS5 for the pieces of some texts (<https://sqlite.org/fts5.html#the_trigram_tokenizer>); nothing if there is none that
/// PostgreSQL finds anything by, which has letters and digits alone.
fn pieces(texts: &[&str]) -> Option<String> {
    let has_piece = |text: &&str| {
        text.split(|char: char| !char.is_alphanumeric()).any(|word| word.chars().count() >= PIECE)
    };
    texts.iter().find(|text| has_piece(text))?;
    let mut pieces = Vec::new();
    for text in texts {
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.windows(PIECE).take(PIECES - pieces.len()) {
            let piece: String = piece.iter().collect();
            pieces.push(format!("\"{}\"", piece.replace('"', "\"\"")));
        }
    }
    Some(pieces.join(" AND "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_three_characters() {
        assert_eq!(pieces(&["größe"]).unwrap(), r#""grö" AND "röß" AND "öße""#);
        assert_eq!(pieces(&["a\"bcd", "x"]).unwrap(), r#""a""b" AND """bc" AND "bcd""#);
        for short in [&["ab"][..], &["a b c"], &[], &["50%_"], &["ab", "cd"]] {
            assert_eq!(pieces(short), None, "{short:?}");
        }
        assert_eq!(pieces(&[&"x".repeat(100), "yyy"]).unwrap().matches("AND").count(), PIECES - 1);
    }
}
