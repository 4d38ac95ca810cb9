//! A bucket of a storage that speaks S3.
//!
//! **How a file is staged.** In memory and as parts of a multipart upload, which nobody sees, in order, by the process that
//! began it. It is not resumable: what a dead process staged is gone, and its parts stay with the storage until a
//! lifecycle rule (`AbortIncompleteMultipartUpload`) removes them. Set one on the bucket.
//!
//! **How it is published.** By completing the upload with `If-None-Match: *`, which the storage does atomically. Whether it
//! honours that is tried out when the store is opened. If it does not, files can only be published by replacing.
//!
//! **Identity.** A random text in the object's user metadata (`x-amz-meta-percale-identity`), so that an answer that was
//! lost can be told from another writer's file.
//!
//! **Limits.** Keys have at most 1024 bytes, those of the prefix included, and no component begins or ends with white
//! space. S3 has no code of its own for a full bucket, so that appears as `Unavailable`.

mod config;
mod error;
mod list;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use opendal::layers::RetryLayer;
use opendal::services::S3 as Service;
use opendal::{HttpTransporter, Metadata, OperationContext, Operator};
use opendal_http_transport_reqwest::ReqwestTransport;
use percale_core::digest::{Algorithm, Digest};
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange, Timestamp};
use percale_store::error::refuse_stage;
use percale_store::{
    Capabilities, Delete, Error, ErrorKind, FileIdentity, FileRange, Generation, Kind, ListOptions,
    ListStream, Meta, Operation, Publish, Published, ReadOptions, ReadStream, Result, SmallFile, Stage,
    StageOptions, StageToken, Staged, Store, StoreExt as _, StoreKey, Usage,
};

pub use self::config::{S3Config, S3Credential};
use self::error::{from_opendal, unsupported};
use self::stage::StageArea;

/// The largest object: 10 000 parts of 5 GiB, cut to what AWS allows
/// (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>).
const MAX_OBJECT: ByteCount = ByteCount::gib(5 * 1024);

/// Longest key, in bytes (the same page).
const MAX_KEY_BYTES: usize = 1024;

/// Why a key is refused, wherever it is named.
const WHITE_SPACE: &str = "begins or ends with white space";

/// The name of the user metadata that holds a file's identity.
const IDENTITY: &str = "percale-identity";

/// Attempts of one request, besides the first. They are made here and not only by the retry wrapper, since the parts that
/// are under way are seen only here; what fails after them is marked exhausted.
const RETRIES: usize = 3;

/// The wait before the first of them, doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How long a connection may take to come about: three attempts of TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the storage may be silent in the middle of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A store in a bucket.
#[derive(Debug, Clone)]
pub struct S3 {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    capabilities: Capabilities,
    config: S3Config,
    operator: Operator,
    area: StageArea,
}

impl S3 {
    /// Opens a bucket, and tries out whether it publishes only if absent. Without a credential, requests are not signed.
    ///
    /// # Errors
    /// `InvalidInput`, if the configuration is wrong or there is no such bucket; `Denied` if the credential is; else as any operation.
    pub async fn open(config: S3Config, credential: Option<S3Credential>) -> Result<Self> {
        // One provider for the whole process; an earlier one stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        config.validate()?;
        let mut service = Service::default()
            .bucket(&config.bucket)
            .region(&config.region)
            .disable_config_load()
            .disable_ec2_metadata();
        if let Some(endpoint) = &config.endpoint {
            service = service.endpoint(endpoint);
        }
        if let Some(prefix) = &config.prefix {
            service = service.root(prefix.as_str());
        }
        if config.virtual_host_style {
            service = service.enable_virtual_host_style();
        }
        service = match &credential {
            Some(credential) => {
                let service = service
                    .access_key_id(&credential.access_key_id)
                    .secret_access_key(&credential.secret_access_key);
                match &credential.session_token {
                    Some(token) => service.session_token(token),
                    None => service,
                }
            }
            None => service.skip_signature(),
        };
        let wrong = |error: opendal::Error| {
            Error::new(ErrorKind::InvalidInput, Operation::Open).on(&config.bucket).caused_by(error)
        };
        let operator = Operator::new(service)
            .map_err(wrong)?
            .with_context(OperationContext::new().with_http_transport(transport(&config)?))
            .layer(
                RetryLayer::new()
                    .with_max_times(RETRIES)
                    .with_min_delay(FIRST_WAIT)
                    .with_max_delay(LONGEST_WAIT)
                    .with_jitter(),
            );
        let honours = probe(&operator).await.map_err(|error| opening(error).on(&config.bucket))?;
        let capabilities = capabilities(&config, honours);
        Ok(Self { inner: Arc::new(Inner { capabilities, config, operator, area: StageArea::default() }) })
    }
}

/// Says, to whoever adds a store, also why it does not answer: the end of the chain of causes.
fn opening(error: opendal::Error) -> Error {
    let chain = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    let cause = chain.last().map(ToString::to_string);
    let error = from_opendal(Operation::Open, error);
    match cause.filter(|_| error.kind() == ErrorKind::Unavailable) {
        Some(cause) => error.detail(cause),
        None => error,
    }
}

/// An HTTP client of this store's own, so that it lives no longer than its runtime.
fn transport(config: &S3Config) -> Result<HttpTransporter> {
    let client =
        reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build();
    let client = client
        .map_err(|error| Error::new(ErrorKind::Other, Operation::Open).on(&config.bucket).caused_by(error))?;
    Ok(HttpTransporter::new(ReqwestTransport::new(client)))
}

/// Whether the storage refuses the second of two writes that are both conditional on nothing being there.
async fn probe(operator: &Operator) -> opendal::Result<bool> {
    let path = format!("{}/probe-{}", percale_store::RESERVED, uuid::Uuid::new_v4().simple());
    let write = || operator.write_with(&path, "probe").if_not_exists(true);
    write().await?;
    let second = write().await;
    operator.delete(&path).await?;
    match second {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == opendal::ErrorKind::ConditionNotMatch => Ok(true),
        // Such as 501 from a storage that knows no conditions.
        Err(error) if error.kind() == opendal::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    }
}

fn capabilities(config: &S3Config, honours_conditions: bool) -> Capabilities {
    let mut can = Capabilities::minimal();
    can.read.ranges = true;
    can.write.publish_if_absent = honours_conditions;
    can.write.replace = !honours_conditions;
    can.write.max_size = Some(MAX_OBJECT);
    can.list = true;
    can.generations = true;
    can.identities = true;
    can.durable = true;
    can.block_size = config.part_size;
    can.concurrency = config.concurrency.get();
    can
}

impl Inner {
    /// The object's name in the bucket, below the prefix.
    fn path<'a>(&self, operation: Operation, key: &'a StoreKey) -> Result<&'a str> {
        refuse_stage(operation, key)?;
        let wrong = |detail: &str| Err(Error::new(ErrorKind::InvalidKey, operation).on(key).detail(detail));
        let prefix = self.config.prefix.as_ref().map_or(0, |prefix| prefix.as_str().len() + 1);
        if prefix + key.as_str().len() > MAX_KEY_BYTES {
            return wrong("longer than the 1024 bytes of an S3 key");
        }
        if key.as_str().trim() != key.as_str() {
            return wrong(WHITE_SPACE);
        }
        Ok(key.as_str())
    }

    async fn stat(&self, operation: Operation, key: &StoreKey) -> Result<Meta> {
        let path = self.path(operation, key)?;
        let found = self.operator.stat(path).await.map_err(|error| from_opendal(operation, error).on(key))?;
        Ok(meta(&found))
    }

    /// Runs one piece of work for each item, so many at once, and keeps their order.
    async fn each<I, T, F>(&self, items: Vec<I>, work: impl Fn(I) -> F) -> Vec<Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let at_once = self.config.concurrency.get() as usize;
        stream::iter(items.into_iter().map(work)).buffered(at_once).collect().await
    }

    async fn delete_one(&self, item: Delete) -> Result<bool> {
        let path = self.path(Operation::Delete, &item.key)?;
        let there = match self.stat(Operation::Delete, &item.key).await {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        item.check(&there)?;
        let failed = |error| from_opendal(Operation::Delete, error).on(&item.key);
        self.operator.delete(path).await.map_err(failed)?;
        Ok(true)
    }
}

fn meta(found: &Metadata) -> Meta {
    let kind = if found.is_dir() { Kind::Collection } else { Kind::File };
    let mut meta = Meta::new(kind, ByteCount(if kind == Kind::File { found.content_length() } else { 0 }));
    meta.modified = found.last_modified().map(|time| Timestamp::from(std::time::SystemTime::from(time)));
    meta.generation = found.etag().map(Generation::new);
    meta.identity = found.user_metadata().and_then(|data| data.get(IDENTITY).map(FileIdentity::new));
    meta
}

#[async_trait]
impl Store for S3 {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    async fn stat(&self, key: &StoreKey) -> Result<Meta> {
        self.inner.stat(Operation::Stat, key).await
    }

    async fn list(&self, options: ListOptions) -> Result<Box<dyn ListStream>> {
        if let Some(prefix) = &options.prefix {
            self.inner.path(Operation::List, prefix)?;
        }
        Ok(Box::new(list::Lister::open(&self.inner.operator, options).await?))
    }

    async fn read(&self, key: &StoreKey, options: ReadOptions) -> Result<Box<dyn ReadStream>> {
        let meta = self.inner.stat(Operation::Read, key).await?;
        if options.if_generation.is_some() && options.if_generation != meta.generation {
            return Err(Error::new(ErrorKind::Changed, Operation::Read).on(key));
        }
        let range = options.resolve(meta.size);
        let failed = |error| from_opendal(Operation::Read, error).on(key);
        let body: BoxStream<'static, std::io::Result<Bytes>> = if range.is_empty() {
            stream::empty().boxed()
        } else {
            let mut reader = self.inner.operator.reader_with(self.inner.path(Operation::Read, key)?);
            // The storage itself compares, so that a file replaced since `stat` is noticed.
            if let Some(generation) = &meta.generation {
                reader = reader.if_match(generation.as_str());
            }
            let reader = reader.await.map_err(failed)?;
            reader.into_bytes_stream(range.start()..range.end()).await.map_err(failed)?.boxed()
        };
        let at = range.start();
        let piece = options.piece_len();
        Ok(Box::new(Reader { key: key.clone(), meta, range, at, piece, body, rest: Bytes::new() }))
    }

    async fn read_small(&self, files: Vec<(StoreKey, ReadOptions)>) -> Result<Vec<Result<Bytes>>> {
        let read = async |(key, options): (StoreKey, ReadOptions)| {
            let most = ByteCount(options.piece_len() as u64);
            self.read_all(&key, options, most).await
        };
        Ok(self.inner.each(files, read).await)
    }

    async fn stage(&self, options: StageOptions) -> Result<Box<dyn Stage>> {
        Ok(Box::new(self.inner.clone().begin(options).await?))
    }

    async fn stage_small(&self, files: Vec<SmallFile>) -> Result<Vec<Result<Staged>>> {
        let stage_one = async |file: SmallFile| {
            let mut options = StageOptions::new(file.token).size(ByteCount(file.bytes.len() as u64));
            options.key = file.key;
            let stage = self.inner.clone().begin(options).await?;
            stage.write_at(0, file.bytes).await?;
            Box::new(stage).finish().await
        };
        let mut results = Vec::with_capacity(files.len());
        // One after the other: nothing is sent before they are published, unless they are large.
        for file in files {
            results.push(stage_one(file).await);
        }
        Ok(results)
    }

    async fn read_staged(
        &self,
        _tokens: Vec<StageToken>,
        _most: ByteCount,
    ) -> Result<Vec<Result<Option<(Staged, Bytes)>>>> {
        Err(unsupported(Operation::ReadStaged, "parts of an object cannot be read before it is whole"))
    }

    async fn read_back(&self, token: &StageToken) -> Result<Box<dyn ReadStream>> {
        Err(unsupported(Operation::ReadBack, "a bucket does not say where it reads from").on(token))
    }

    async fn publish(&self, files: Vec<Publish>) -> Result<Vec<Result<Published>>> {
        Ok(self.inner.each(files, |file| self.inner.publish_one(file)).await)
    }

    async fn discard(&self, token: &StageToken) -> Result<bool> {
        self.inner.discard(token).await
    }

    async fn discard_fence(&self, fence: Fence) -> Result<u64> {
        let mut removed = 0;
        for staged in self.inner.area.list(Some(fence)) {
            removed += u64::from(self.inner.discard(&staged.token).await?);
        }
        Ok(removed)
    }

    async fn staged(&self, fence: Option<Fence>) -> Result<Vec<Staged>> {
        Ok(self.inner.area.list(fence))
    }

    async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Result<bool>>> {
        Ok(self.inner.each(items, |item| self.inner.delete_one(item)).await)
    }

    async fn mkdir(&self, key: &StoreKey) -> Result<bool> {
        Err(unsupported(Operation::Mkdir, "a bucket has no collections of their own").on(key))
    }

    async fn rename(&self, from: &StoreKey, _to: &StoreKey) -> Result<()> {
        Err(unsupported(Operation::Rename, "a bucket has no atomic rename").on(from))
    }

    async fn clone_to_stage(&self, from: &StoreKey, _options: StageOptions) -> Result<Box<dyn Stage>> {
        Err(unsupported(Operation::Clone, "copies inside the bucket are not staged").on(from))
    }

    async fn checksum(&self, key: &StoreKey, _algorithm: Algorithm) -> Result<Digest> {
        // An entity tag is the md5 only of unencrypted objects of one part, and does not say whether it is.
        Err(unsupported(Operation::Checksum, "an entity tag is not a digest of the content").on(key))
    }

    async fn usage(&self) -> Result<Usage> {
        Err(unsupported(Operation::Usage, "S3 does not tell how full a bucket is"))
    }
}

struct Reader {
    key: StoreKey,
    meta: Meta,
    range: ByteRange,
    /// Where the next piece begins.
    at: u64,
    piece: usize,
    body: BoxStream<'static, std::io::Result<Bytes>>,
    rest: Bytes,
}

impl Reader {
    fn hand_out(&mut self) -> Bytes {
        let piece = self.rest.split_to(self.piece.min(self.rest.len()));
        self.at += piece.len() as u64;
        piece
    }
}

#[async_trait]
impl ReadStream for Reader {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn range(&self) -> ByteRange {
        self.range
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.rest.is_empty() {
            let next = self.body.try_next().await;
            match next.map_err(|error| error::from_io(Operation::Read, error).on(&self.key))? {
                Some(bytes) => self.rest = bytes,
                None if self.at == self.range.end() => return Ok(None),
                None => {
                    return Err(Error::new(ErrorKind::Unavailable, Operation::Read)
                        .on(&self.key)
                        .detail(format!("the answer ended at byte {} of {}", self.at, self.range.end())));
                }
            }
        }
        Ok(Some(self.hand_out()))
    }

    async fn take_file(&mut self) -> Option<FileRange> {
        None
    }
}
