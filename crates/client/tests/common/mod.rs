//! What the tests' own servers have in common.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::io::{BufRead, BufReader, Read};

/// Reads the head of a request, in small letters, and its body, so that nothing is left when the connection closes.
pub fn read_head(stream: impl Read) -> String {
    let mut reader = BufReader::new(stream);
    let (mut head, mut body) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let lower = line.to_ascii_lowercase();
        if let Some(len) = lower.strip_prefix("content-length:") {
            body = len.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head += &lower;
    }
    reader.read_exact(&mut vec![0; body]).unwrap();
    head
}
