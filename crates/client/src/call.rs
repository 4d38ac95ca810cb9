//! One request, before it is sent, and its answer.

use std::time::Duration;

use bytes::Bytes;
use percale_api::fields;
use percale_core::ObjectPath;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use serde::Serialize;

/// What a repeated request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It may be sent again, whatever became of the first one.
    Safe,
    /// The same, thanks to an idempotency key that the call gets.
    Keyed,
    /// Only sent again if the first one did not reach the server.
    Never,
}

/// One request, before it is sent.
pub(crate) struct Call {
    pub operation: String,
    pub method: Method,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub headers: HeaderMap,
    pub json: Option<Bytes>,
    pub repeat: Repeat,
}

/// An answer with its whole body.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call {
    /// `operation` completes "cannot …"; `path` is already percent-encoded.
    pub fn new(operation: impl Into<String>, method: Method, path: impl Into<String>) -> Self {
        let repeat =
            if method == Method::POST || method == Method::PATCH { Repeat::Never } else { Repeat::Safe };
        Self {
            operation: operation.into(),
            method,
            path: path.into(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            json: None,
            repeat,
        }
    }

    pub fn query(mut self, name: &'static str, value: impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    pub fn flag(self, name: &'static str, on: bool) -> Self {
        if on { self.query(name, "true") } else { self }
    }

    pub fn optional(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        // Values are made by us (ids, dates); one that is not a header value is left out by never being made.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// A value that is not shown where requests are.
    pub fn secret_header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            self.headers.insert(name, value);
        }
        self
    }

    /// Has the server wait for what the call needs, so long at most.
    pub fn wait(self, wait: Duration) -> Self {
        self.header(fields::PREFER, &format!("wait={}", wait.as_secs()))
    }

    pub fn json(mut self, body: &impl Serialize) -> Self {
        self.json =
            Some(serde_json::to_vec(body).expect("wire types have string keys and cannot fail").into());
        self
    }

    pub fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }
}

/// Percent-encodes a path of the namespace by component, behind a prefix: `/v1/data/climate/a%20b.nc`.
pub fn encode_path(prefix: &str, path: &ObjectPath) -> String {
    let mut encoded = String::with_capacity(prefix.len() + path.as_str().len() + 8);
    encoded.push_str(prefix);
    for name in path.components() {
        encoded.push('/');
        encode_component(&mut encoded, name);
    }
    if path.is_root() {
        encoded.push('/');
    }
    encoded
}

/// Leaves only the unreserved characters of RFC 3986 as they are.
pub(crate) fn encode_component(encoded: &mut String, name: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(HEX[usize::from(byte >> 4)]));
            encoded.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded_by_component() {
        let path: ObjectPath = "/climate/a b/50%/ä#?.nc".parse().unwrap();
        assert_eq!(encode_path("/v1/data", &path), "/v1/data/climate/a%20b/50%25/%C3%A4%23%3F.nc");
        assert_eq!(encode_path("/v1/list", &ObjectPath::root()), "/v1/list/");
    }
}
