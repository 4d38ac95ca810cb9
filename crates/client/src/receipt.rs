//! Receipts of tasks: fetched, and checked without asking anybody (`docs/design/tasks.md`, "Receipts").

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, Read as _};

use bytes::Bytes;
use percale_api::receipt::{End, FORM, Header, Item};
use percale_core::ids::TaskId;
use percale_core::tree::{RootHash, TreeHasher};
use percale_trust::{ReceiptSeal, Signatory, SignedError, SitePublicKey};
use reqwest::{Method, Response};
use serde::de::DeserializeOwned;

use crate::call::Call;
use crate::client::Client;

/// Longest line: a path of the longest names, each byte of it escaped.
const MAX_LINE: u64 = 1 << 20;

impl Client {
    /// Asks for the receipt of a task, which comes in pieces.
    ///
    /// # Errors
    /// As the server answers: `conflict` if the task has not ended, `unsupported` if it brings no bytes.
    pub async fn task_receipt(&self, id: TaskId) -> crate::Result<Receipt> {
        let operation = format!("fetch the receipt of task {id}");
        let response =
            self.open_once(Call::new(&operation, Method::GET, format!("/v1/tasks/{id}/receipt"))).await?;
        Ok(Receipt { client: self.clone(), operation, response })
    }
}

/// A receipt on its way.
#[derive(Debug)]
pub struct Receipt {
    client: Client,
    operation: String,
    response: Response,
}

impl Receipt {
    /// Returns the next bytes, or nothing at the end.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long: what came is no receipt then.
    pub async fn next(&mut self) -> crate::Result<Option<Bytes>> {
        self.client.piece(&self.operation, &mut self.response).await
    }
}

/// What is wrong with a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The number of the line, from 1; nothing if it is not in one line.
    pub line: Option<u64>,
    /// What.
    pub what: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Flaw {}

/// Why a receipt could not be checked, or is wrong.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It could not be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is wrong.
    #[error("{0}")]
    Flaw(#[from] Flaw),
}

/// A receipt that agrees with itself, and of which nothing shows yet who made it.
#[derive(Debug, Clone)]
pub struct Unproven {
    header: Header,
    end: End,
    lines: u64,
    digest: RootHash,
}

impl Unproven {
    /// Returns what the task was, as the receipt says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Checks that the site that the receipt names has signed it with one of these keys. Returns which, and the seal.
    ///
    /// # Errors
    /// What is wrong.
    pub fn prove(&self, keys: &[SitePublicKey]) -> Result<(SitePublicKey, ReceiptSeal), Flaw> {
        let Self { header, end, lines, digest } = self;
        let flaw = |what: String| Flaw { line: Some(lines + 1), what };
        let site = &header.site;
        let verify = |keys: &[SitePublicKey]| {
            let signatory = Signatory { site: site.id, name: &site.name, keys, issuers: &[] };
            ReceiptSeal::verify(&end.signature, &signatory)
        };
        let seal = verify(keys).map_err(|error| match error {
            SignedError::UnknownKey(key) => flaw(format!(
                "it is signed with the key {key}, which is not one that site {} is known to have here",
                site.name
            )),
            error => flaw(format!("the signature: {error}")),
        })?;
        let key = keys.iter().copied().find(|key| verify(&[*key]).is_ok());
        let key = key.ok_or_else(|| flaw("the signature: it is by no single key".to_owned()))?;
        if seal.digest != *digest || seal.lines != *lines {
            return Err(flaw("the signature is for other lines".to_owned()));
        }
        if seal.task != header.task {
            return Err(flaw(format!("the signature is for task {}", seal.task)));
        }
        Ok((key, seal))
    }
}

/// Reads a receipt, in constant memory, and checks all but who signed it. What is wrong first is told.
///
/// # Errors
/// [`CheckError`].
pub fn read_receipt(from: impl BufRead) -> Result<Unproven, CheckError> {
    let mut lines = Lines { from, number: 0, line: Vec::new(), hasher: TreeHasher::new() };
    let header: Header = lines.header()?;
    let sites: BTreeSet<&str> = header.sources.iter().map(|site| site.name.as_str()).collect();
    let (mut count, mut bytes) = (0, 0_u64);
    while count < header.listed {
        count += 1;
        let item: Item = lines.next("a copy")?;
        if item.n != count {
            return Err(lines.flaw(format!("it should be copy {count}, and is {}", item.n)));
        }
        if let Some(strange) = item.sources.iter().find(|name| !sites.contains(name.as_str())) {
            return Err(lines.flaw(format!("the first line does not name the source {strange}")));
        }
        bytes = bytes.saturating_add(item.size);
    }
    if bytes != header.listed_bytes {
        let all = header.listed_bytes;
        return Err(lines.flaw(format!("the copies have {bytes} bytes, and should have {all}")));
    }
    let (number, digest) = (lines.number, std::mem::take(&mut lines.hasher).finish().root());
    let end: End = lines.next("the signed end")?;
    // Nothing else protects how this line is written.
    let mut written = serde_json::to_vec(&end).unwrap_or_default();
    written.push(b'\n');
    if written != lines.line {
        return Err(lines.flaw("it is not written as a site writes it".to_owned()));
    }
    if end.lines != number {
        return Err(lines.flaw(format!("it should be behind {} lines, and is behind {number}", end.lines)));
    }
    if end.blake3 != digest {
        let what = format!(
            "a line before it was changed: their BLAKE3 is {digest}, and {} is what was signed",
            end.blake3
        );
        return Err(lines.flaw(what));
    }
    if lines.read()? {
        return Err(lines.flaw("nothing should be behind the signature".to_owned()));
    }
    Ok(Unproven { header, end, lines: number, digest })
}

struct Lines<R> {
    from: R,
    number: u64,
    line: Vec<u8>,
    hasher: TreeHasher,
}

impl<R: BufRead> Lines<R> {
    fn flaw(&self, what: String) -> CheckError {
        Flaw { line: Some(self.number), what }.into()
    }

    /// Reads a line; tells whether there was one.
    fn read(&mut self) -> io::Result<bool> {
        self.line.clear();
        (&mut self.from).take(MAX_LINE).read_until(b'\n', &mut self.line)?;
        self.number += 1;
        Ok(!self.line.is_empty())
    }

    fn header(&mut self) -> Result<Header, CheckError> {
        #[derive(serde::Deserialize)]
        struct Form {
            percale_receipt: u32,
        }
        let is_there = self.read()?;
        match serde_json::from_slice::<Form>(&self.line) {
            Ok(Form { percale_receipt: FORM }) => self.parse("what the task was"),
            Ok(Form { percale_receipt: form }) => {
                Err(self.flaw(format!("it is a receipt of form {form}, which this release does not know")))
            }
            Err(_) if is_there => Err(self.flaw("it is not the first line of a receipt".to_owned())),
            Err(_) => Err(self.flaw("it is empty".to_owned())),
        }
    }

    fn next<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, CheckError> {
        match self.read()? {
            true => self.parse(what),
            false => Err(self.flaw(format!("{what} is missing: the receipt was cut"))),
        }
    }

    fn parse<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, CheckError> {
        let parsed: T = serde_json::from_slice(&self.line)
            .map_err(|error| self.flaw(format!("it is not {what}: {error}")))?;
        if self.line.last() != Some(&b'\n') {
            return Err(self.flaw("it is cut, or too long".to_owned()));
        }
        self.hasher.update(&self.line);
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receipt as a site of the first release wrote it, and its key. Never changed; a new form gets a sample of its own.
    const SAMPLE: &[u8] = include_bytes!("../samples/receipt-v1.jsonl");
    const KEY: &str = include_str!("../samples/receipt-v1.key");

    fn key() -> SitePublicKey {
        KEY.trim().parse().unwrap()
    }

    fn check(receipt: &[u8]) -> Result<ReceiptSeal, Flaw> {
        match read_receipt(receipt) {
            Ok(unproven) => unproven.prove(&[key()]).map(|(_, seal)| seal),
            Err(CheckError::Flaw(flaw)) => Err(flaw),
            Err(CheckError::Io(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_stored_receipt_is_still_good() {
        let seal = check(SAMPLE).unwrap();
        let unproven = read_receipt(SAMPLE).unwrap();
        let header = unproven.header();
        assert_eq!((seal.task, seal.site), (header.task, header.site.id));
        assert_eq!((header.listed, seal.lines), (3, 4));
        let other: SitePublicKey = "00".repeat(32).parse().unwrap();
        let flaw = unproven.prove(&[other]).unwrap_err();
        assert!(flaw.line == Some(5) && flaw.what.contains(&key().key_id()), "{flaw}");
        // A site that has changed its key since has both: the one that signed is told.
        assert_eq!(unproven.prove(&[other, key()]).unwrap(), (key(), seal));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        for at in 0..SAMPLE.len() {
            for flip in [1_u8, 0x20, 0x80] {
                let mut changed = SAMPLE.to_vec();
                changed[at] ^= flip;
                assert!(check(&changed).is_err(), "byte {at} flipped by {flip} was not noticed");
            }
        }
    }

    #[test]
    fn lines_that_are_missing_moved_or_added_are_named() {
        let lines: Vec<&[u8]> = SAMPLE.split_inclusive(|byte| *byte == b'\n').collect();
        let flaw_of = |lines: &[&[u8]]| check(&lines.concat()).unwrap_err();
        for gone in 0..lines.len() {
            let left: Vec<&[u8]> =
                lines.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, line)| *line).collect();
            assert_eq!(flaw_of(&left).line, Some(gone as u64 + 1), "{}", flaw_of(&left));
        }
        let mut moved = lines.clone();
        moved.swap(1, 2);
        let flaw = flaw_of(&moved);
        assert!(flaw.line == Some(2) && flaw.what.contains("copy 1"), "{flaw}");
        let mut longer = lines.clone();
        longer.push(b"{}\n");
        assert_eq!(flaw_of(&longer).line, Some(6));
        assert_eq!(flaw_of(&[]).what, "it is empty");
        let cut = &SAMPLE[..SAMPLE.len() - 1];
        assert!(check(cut).unwrap_err().what.contains("cut"));
    }

    #[test]
    fn another_form_is_refused_by_its_number() {
        let newer = [br#"{"percale_receipt":2}"#.as_slice(), b"\n"].concat();
        assert!(check(&newer).unwrap_err().what.contains("form 2"));
    }
}
