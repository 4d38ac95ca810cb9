//! FITS: the cards of the primary header and of the extensions.

use fitsrs::card::{Card, Value};
use percale_core::AttributeValue;
use percale_core::attribute::Float;

use super::Unreadable;
use crate::header::{Header, unsigned};
use crate::source::File;

/// Headers and data stand in blocks of so many bytes (FITS standard 4.0, section 3.1).
const BLOCK: u64 = 2880;
/// Bytes of a card.
const CARD: usize = 80;
/// Most extensions that are looked at.
const MAX_EXTENSIONS: usize = 1000;
/// Most blocks of one header.
const MAX_BLOCKS: u64 = 2000;

/// Reads the headers of a file.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    let mut header = Header::of_format("fits");
    let mut at = 0;
    for number in 0.. {
        if at >= file.size() {
            break;
        }
        if number > MAX_EXTENSIONS {
            header.leave_out(1);
            break;
        }
        match Unit::read(file, at) {
            Ok(unit) => {
                unit.tell(number, &mut header);
                at = unit.end;
            }
            Err(error) if number == 0 => return Err(error),
            Err(error) => {
                header.fail(&format!("extension {number}: {error}"));
                break;
            }
        }
    }
    Ok(header)
}

/// A header and the data behind it.
struct Unit {
    cards: Vec<(String, Value)>,
    remarks: Vec<(&'static str, String)>,
    /// Where the next one begins.
    end: u64,
}

impl Unit {
    fn read(file: &File, begin: u64) -> Result<Self, Unreadable> {
        let mut unit = Self { cards: Vec::new(), remarks: Vec::new(), end: begin };
        let mut last: Option<Card> = None;
        for block in 0..MAX_BLOCKS {
            let bytes = file.range(begin + block * BLOCK, BLOCK as usize)?;
            for card in bytes.chunks_exact(CARD) {
                let card: &[u8; CARD] = card.try_into().map_err(|_| Unreadable::new("a card is cut"))?;
                let card = Card::try_from(card).map_err(|error| Unreadable::new(error.to_string()))?;
                if let Card::Continuation { .. } = card {
                    // One behind what does not go on is a remark (FITS standard 4.0, section 4.2.1.2).
                    if let Some(long) = last.as_mut().filter(|last| last.continued()) {
                        long.append(&card);
                    }
                    continue;
                }
                unit.keep(last.take());
                if card == Card::End {
                    unit.end = begin + (block + 1) * BLOCK + unit.data().div_ceil(BLOCK) * BLOCK;
                    return Ok(unit);
                }
                last = Some(card);
            }
        }
        Err(Unreadable::new("its header does not end"))
    }

    fn keep(&mut self, card: Option<Card>) {
        match card {
            Some(Card::Value { name, value } | Card::Hierarch { name, value }) => {
                self.cards.push((name, value))
            }
            Some(Card::Comment(text)) => self.remarks.push(("COMMENT", text)),
            Some(Card::History(text)) => self.remarks.push(("HISTORY", text)),
            _ => {}
        }
    }

    /// Returns the first value of that name that is what is wanted.
    fn find<'u, T>(&'u self, wanted: &str, read: impl Fn(&'u Value) -> Option<T>) -> Option<T> {
        self.cards.iter().filter(|(name, _)| name.trim() == wanted).find_map(|(_, value)| read(value))
    }

    fn number(&self, wanted: &str) -> Option<i64> {
        self.find(wanted, |value| match value {
            Value::Integer { value, .. } => Some(*value),
            _ => None,
        })
    }

    fn text(&self, wanted: &str) -> Option<&str> {
        self.find(wanted, |value| match value {
            Value::String { value, .. } => Some(value.trim()).filter(|text| !text.is_empty()),
            _ => None,
        })
    }

    fn is(&self, wanted: &str) -> bool {
        self.find(wanted, |value| matches!(value, Value::Logical { value: true, .. }).then_some(())).is_some()
    }

    /// The lengths of the axes, as many as there may be, by the name that is before their numbers.
    fn axes(&self, name: &str) -> Vec<u64> {
        let count = self.number(name).unwrap_or_default().clamp(0, 999);
        (1..=count)
            .map(|n| self.number(&format!("{name}{n}")).unwrap_or_default().max(0).unsigned_abs())
            .collect()
    }

    /// What runs along an axis: without the code of a projection, which stands behind dashes (FITS standard 4.0, section 8.2).
    fn along(&self, axis: usize) -> Option<&str> {
        let kind = self.text(&format!("CTYPE{axis}"))?;
        let coordinate = match kind.split_at_checked(4) {
            Some((coordinate, code)) if code.starts_with('-') => coordinate.trim_end_matches('-'),
            _ => kind,
        };
        Some(coordinate).filter(|coordinate| !coordinate.is_empty())
    }

    /// How many bytes of data there are (FITS standard 4.0, section 4.4.1.1).
    fn data(&self) -> u64 {
        let axes = self.axes("NAXIS");
        if axes.is_empty() {
            return 0;
        }
        // The first axis of random groups is 0 and does not count.
        let is_groups = axes.first() == Some(&0);
        let axes = axes.iter().skip(usize::from(is_groups));
        let elements = axes.fold(1u64, |product, axis| product.saturating_mul(*axis));
        let more = self.number("PCOUNT").unwrap_or_default().max(0).unsigned_abs();
        let groups = self.number("GCOUNT").unwrap_or(1).max(0).unsigned_abs();
        let bytes = self.number("BITPIX").unwrap_or_default().unsigned_abs() / 8;
        elements.saturating_add(more).saturating_mul(groups).saturating_mul(bytes).min(u64::MAX / 4)
    }

    fn tell(&self, number: usize, header: &mut Header) {
        let name = match self.text("EXTNAME") {
            Some(name) => name.to_owned(),
            None if number == 0 => "primary".to_owned(),
            None => format!("hdu{number}"),
        };
        let before = if number == 0 { String::new() } else { format!("{name}.") };
        for (key, value) in &self.cards {
            let value = match value {
                Value::Integer { value, .. } => AttributeValue::Integer(*value),
                Value::Float { value, .. } => AttributeValue::Float(Float(*value)),
                Value::Logical { value, .. } => AttributeValue::Bool(*value),
                Value::String { value, .. } | Value::Invalid(value) => {
                    AttributeValue::Text(value.trim_end().to_owned())
                }
                Value::Undefined => AttributeValue::Text(String::new()),
            };
            header.add(&format!("{before}{}", key.trim()), [value]);
        }
        for (key, text) in &self.remarks {
            header.add(&format!("{before}{key}"), [AttributeValue::Text(text.trim_end().to_owned())]);
        }
        // What is kept in packed tiles is a table, whose cards have a Z before the names that they would have otherwise: an image (FITS
        // standard 4.0, section 10.1) or a table (section 10.3).
        let is_image = self.is("ZIMAGE");
        if self.number("TFIELDS").is_some() && !is_image {
            // The first axis of a table is the bytes of a row.
            let rows = self.number(if self.is("ZTABLE") { "ZNAXIS2" } else { "NAXIS2" });
            if let Some(rows) = rows {
                header.dimension(&format!("{before}row"), rows.max(0).unsigned_abs());
            }
            return;
        }
        let z = if is_image { "Z" } else { "" };
        let axes = self.axes(&format!("{z}NAXIS"));
        let along: Vec<Option<&str>> = (1..=axes.len()).map(|axis| self.along(axis)).collect();
        for ((axis, size), name) in (1..).zip(&axes).zip(&along) {
            // Two of one name would be one dimension.
            let is_only = along.iter().filter(|other| *other == name).count() == 1;
            let name = name.filter(|_| is_only).map_or_else(|| format!("NAXIS{axis}"), str::to_owned);
            header.dimension(&format!("{before}{name}"), *size);
        }
        let kind = match self.number(&format!("{z}BITPIX")) {
            Some(8) => "uint8",
            Some(16) => "int16",
            Some(32) => "int32",
            Some(64) => "int64",
            Some(-32) => "float32",
            Some(-64) => "float64",
            _ => return,
        };
        // The axis that changes fastest is the first here and the last elsewhere.
        if !axes.is_empty() {
            header.text(&format!("var.{name}"), kind);
            header.add(&format!("var.{name}.shape"), axes.into_iter().rev().map(unsigned));
        }
    }
}
