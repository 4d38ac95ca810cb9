//! How a store in a bucket is set up.

use std::fmt;
use std::num::NonZeroU32;

use percale_core::ByteCount;
use percale_store::{Error, ErrorKind, Operation, Result, StoreKey};
use serde::Deserialize;

/// The smallest part but the last that S3 takes (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>).
const MIN_PART: ByteCount = ByteCount::mib(5);
/// The largest (the same page).
const MAX_PART: ByteCount = ByteCount::gib(5);

/// How a store in a bucket is set up.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct S3Config {
    /// The URL of the storage, such as `https://s3.example.org` (default: AWS, by the region).
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region for which requests are signed (default `us-east-1`, which storages other than AWS accept).
    #[serde(default = "default_region")]
    pub region: String,
    /// The bucket; it must be there.
    pub bucket: String,
    /// Where in the bucket the store's keys begin (default: at the top).
    #[serde(default)]
    pub prefix: Option<StoreKey>,
    /// Puts the bucket's name into the host name, as AWS wants it for new buckets (default: into the path, as other
    /// storages want it).
    #[serde(default)]
    pub virtual_host_style: bool,
    /// Bytes in a part of a large file (default 8 MiB; 5 MiB to 5 GiB). Grows by itself for files of more than 10 000
    /// parts whose size was announced. Each file that is being staged holds up to `concurrency_per_file + 1` parts in
    /// memory.
    #[serde(default = "default_part_size")]
    pub part_size: ByteCount,
    /// Parts of one file sent at once (default 4).
    #[serde(default = "default_concurrency_per_file")]
    pub concurrency_per_file: NonZeroU32,
    /// Requests at once (default 16).
    #[serde(default = "default_concurrency")]
    pub concurrency: NonZeroU32,
}

fn default_region() -> String {
    "us-east-1".into()
}

fn default_part_size() -> ByteCount {
    ByteCount::mib(8)
}

fn default_concurrency_per_file() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(3)
}

fn default_concurrency() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(15)
}

impl S3Config {
    /// A bucket with the defaults.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            endpoint: None,
            region: default_region(),
            bucket: bucket.into(),
            prefix: None,
            virtual_host_style: false,
            part_size: default_part_size(),
            concurrency_per_file: default_concurrency_per_file(),
            concurrency: default_concurrency(),
        }
    }

    /// Sets the URL of the storage.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Sets where in the bucket the keys begin.
    #[must_use]
    pub fn prefix(mut self, prefix: StoreKey) -> Self {
        self.prefix = Some(prefix);
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        let wrong = |detail: &str| {
            Err(Error::new(ErrorKind::InvalidInput, Operation::Open).on(&self.bucket).detail(detail))
        };
        if self.bucket.is_empty() || self.bucket.contains('/') {
            return wrong("bucket is not the name of one");
        }
        if self.part_size < MIN_PART || self.part_size > MAX_PART {
            return wrong("part_size is not between 5 MiB and 5 GiB");
        }
        match self.endpoint.as_deref() {
            Some(url) if !url.starts_with("https://") && !url.starts_with("http://") => {
                wrong("endpoint is not an http or https URL")
            }
            _ => Ok(()),
        }
    }
}

/// What signs the requests. Never printed.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Credential {
    /// The name of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: String,
    /// For keys that end by themselves.
    #[serde(default)]
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Credential").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_configurations_are_refused_by_name() {
        for (config, word) in [
            (S3Config::new(""), "bucket"),
            (S3Config::new("a/b"), "bucket"),
            (S3Config::new("a").endpoint("s3.example.org"), "endpoint"),
            (S3Config { part_size: ByteCount::mib(1), ..S3Config::new("a") }, "part_size"),
        ] {
            let error = config.validate().unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(word), "{error}");
        }
        S3Config::new("bucket").endpoint("https://s3.example.org").validate().unwrap();
    }

    #[test]
    fn the_secret_is_not_printed() {
        let credential = S3Credential {
            access_key_id: "name".into(),
            secret_access_key: "hush".into(),
            session_token: Some("hush".into()),
        };
        assert!(!format!("{credential:?}").contains("hush"));
    }
}
