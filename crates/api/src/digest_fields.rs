//! Digests in HTTP fields: RFC 9530 (`Want-Repr-Digest`, `Repr-Digest`, `Content-Digest`) and the older RFC 3230
//! (`Want-Digest`, `Digest`), which grid clients use, and `Content-MD5`.
//!
//! Unknown algorithms are passed over, as both RFCs ask.

use percale_core::digest::{Algorithm, Digest};

/// Longest field value that is looked at, in bytes.
const MAX_FIELD_BYTES: usize = 4096;

/// Reads `Want-Repr-Digest` or `Want-Content-Digest` (RFC 9530, section 4): a dictionary of algorithm and weight from 0
/// to 10. Returns the algorithms that are known and wanted, the most wanted first.
pub fn parse_want_repr_digest(field: &str) -> Vec<Algorithm> {
    weighted(field, |item| {
        let (name, weight) = item.split_once('=').unwrap_or((item, "1"));
        Some((name.trim().parse().ok()?, weight.trim().parse::<f32>().ok()?))
    })
}

/// Reads `Want-Digest` (RFC 3230, section 4.3.1): `adler32, md5;q=0.9`. The most wanted first.
pub fn parse_want_digest(field: &str) -> Vec<Algorithm> {
    weighted(field, |item| {
        let mut parts = item.split(';');
        let algorithm = parts.next()?.trim().parse().ok()?;
        let quality = parts.find_map(|part| part.trim().strip_prefix("q=")?.parse::<f32>().ok());
        Some((algorithm, quality.unwrap_or(1.0)))
    })
}

fn weighted(field: &str, read: impl Fn(&str) -> Option<(Algorithm, f32)>) -> Vec<Algorithm> {
    if field.len() > MAX_FIELD_BYTES {
        return Vec::new();
    }
    let mut wanted: Vec<_> =
        field.split(',').filter_map(|item| read(item.trim())).filter(|(_, q)| *q > 0.0).collect();
    wanted.sort_by(|left, right| right.1.total_cmp(&left.1));
    let mut algorithms: Vec<Algorithm> = Vec::new();
    for (algorithm, _) in wanted {
        if !algorithms.contains(&algorithm) {
            algorithms.push(algorithm);
        }
    }
    algorithms
}

/// Writes `Repr-Digest` or `Content-Digest`: `sha-256=:base64:, …`.
pub fn repr_digest(digests: &[Digest]) -> String {
    let items: Vec<_> = digests
        .iter()
        .map(|digest| format!("{}=:{}:", rfc9530_name(digest.algorithm()), digest.to_base64()))
        .collect();
    items.join(", ")
}

/// Writes `Digest` (RFC 3230): adler32 and crc32c in hexadecimal, the others in base64.
pub fn digest(digests: &[Digest]) -> String {
    let items: Vec<_> = digests
        .iter()
        .map(|digest| match digest.algorithm() {
            Algorithm::Adler32 | Algorithm::Crc32c => format!("{}={}", digest.algorithm(), digest.to_hex()),
            algorithm => format!("{}={}", rfc3230_name(algorithm), digest.to_base64()),
        })
        .collect();
    items.join(",")
}

/// RFC 9530 registers `md5` and `adler` (as deprecated) and `crc32c`; `blake3` is not registered.
fn rfc9530_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Adler32 => "adler",
        other => other.as_str(),
    }
}

fn rfc3230_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Sha256 => "SHA-256",
        Algorithm::Sha512 => "SHA-512",
        Algorithm::Md5 => "MD5",
        other => other.as_str(),
    }
}

/// A digest in a request that names a known algorithm but has no readable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the {algorithm} digest in the field {field}")]
pub struct BadDigestField {
    /// The field's name.
    pub field: &'static str,
    /// The algorithm.
    pub algorithm: Algorithm,
}

/// Reads the digests that a request claims for its whole content: `Repr-Digest`, `Content-Digest` (the same for a
/// content that is sent whole), `Digest`, `Content-MD5`. `get` returns the value of a field, by its lower-case name.
///
/// # Errors
/// [`BadDigestField`]. A digest that is claimed but cannot be checked must not pass for checked.
pub fn claimed<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Vec<Digest>, BadDigestField> {
    let mut digests = Vec::new();
    for field in ["repr-digest", "content-digest", "digest"] {
        let value = get(field).filter(|value| value.len() <= MAX_FIELD_BYTES).unwrap_or_default();
        for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let Some((name, text)) = item.split_once('=') else { continue };
            let name = if name.trim() == "adler" { "adler32" } else { name.trim() };
            let Ok(algorithm) = name.parse::<Algorithm>() else { continue };
            let digest = Digest::from_text(algorithm, text.trim().trim_matches(':'))
                .map_err(|_| BadDigestField { field, algorithm })?;
            digests.push(digest);
        }
    }
    if let Some(value) = get("content-md5") {
        let bad = BadDigestField { field: "content-md5", algorithm: Algorithm::Md5 };
        digests.push(Digest::from_text(Algorithm::Md5, value.trim()).map_err(|_| bad)?);
    }
    digests.sort();
    digests.dedup();
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wants_are_ordered_and_unknown_ones_passed_over() {
        assert_eq!(parse_want_digest("adler32, md5;q=0.9, rot13"), [Algorithm::Adler32, Algorithm::Md5]);
        assert_eq!(parse_want_digest("md5;q=0.1,SHA-256;q=1"), [Algorithm::Sha256, Algorithm::Md5]);
        assert_eq!(
            parse_want_repr_digest("sha-256=1, sha-512=10, md5=0"),
            [Algorithm::Sha512, Algorithm::Sha256]
        );
        assert!(parse_want_digest(&"md5,".repeat(5000)).is_empty());
    }

    #[test]
    fn written_fields_are_read_back() {
        let mut hasher = percale_core::digest::Hasher::new(Algorithm::ALL);
        hasher.update(b"abc");
        let digests = hasher.finish();
        let repr = repr_digest(&digests);
        let old = digest(&digests);
        let mut sorted = digests.clone();
        sorted.sort();
        for (name, value) in [("repr-digest", &repr), ("digest", &old)] {
            assert_eq!(
                claimed(|field| (field == name).then_some(value.as_str())),
                Ok(sorted.clone()),
                "{name}"
            );
        }
    }

    #[test]
    fn an_unreadable_claim_is_not_passed_over() {
        assert!(claimed(|field| (field == "repr-digest").then_some("sha-256=:AAAA:")).is_err());
        assert_eq!(claimed(|field| (field == "repr-digest").then_some("unixsum=:AAAA:")), Ok(vec![]));
        assert!(claimed(|field| (field == "content-md5").then_some("???")).is_err());
    }
}
