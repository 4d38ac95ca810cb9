//! The bytes of objects, as readers of headers ask for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use percale_core::ByteRange;
use percale_core::tree::{GROUP_SIZE, group_range};

use crate::reading::{Reader, Source};
use crate::{AppState, Result};

/// Returns what reads ranges of a version. What lies in one group is read and verified with its group, and the next range may lie there, too.
/// Its first group may be there already.
pub(super) fn bytes_of(
    app: &AppState,
    source: Arc<Source>,
    first: Option<Bytes>,
) -> impl Fn(ByteRange) -> BoxFuture<'static, Result<Bytes>> + Send + Sync + use<> {
    let (size, mut held) = (source.version.size, Held::default());
    first.into_iter().for_each(|bytes| held.keep(0, bytes));
    let (reader, held) = (app.reader.clone(), Arc::new(Mutex::new(held)));
    move |range: ByteRange| -> BoxFuture<'static, Result<Bytes>> {
        let (reader, source, held) = (reader.clone(), source.clone(), held.clone());
        let bytes = async move {
            let group = group_range(size, range.start() / GROUP_SIZE);
            let is_in_one = range.end() <= group.end() && !range.is_empty();
            if !is_in_one {
                return read_range(&reader, source, range).await;
            }
            let lock = || held.lock().unwrap_or_else(PoisonError::into_inner);
            let known = lock().group(group.start());
            let bytes = match known {
                Some(bytes) => bytes,
                None => {
                    let bytes = read_range(&reader, source, group).await?;
                    lock().keep(group.start(), bytes.clone());
                    bytes
                }
            };
            let (from, to) = (range.start() - group.start(), range.end() - group.start());
            Ok(bytes.slice(bytes.len().min(from as usize)..bytes.len().min(to as usize)))
        };
        bytes.boxed()
    }
}

async fn read_range(reader: &Arc<Reader>, source: Arc<Source>, range: ByteRange) -> Result<Bytes> {
    let mut read = reader.read(source, range).await?;
    let mut bytes = BytesMut::new();
    while let Some(piece) = read.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

/// The groups of a file that were read last: that of its beginning, and those that its header leads to.
#[derive(Default)]
struct Held(VecDeque<(u64, Bytes)>);

impl Held {
    /// Most groups that are held.
    const MOST: usize = 3;

    fn group(&self, start: u64) -> Option<Bytes> {
        self.0.iter().find(|(of, _)| *of == start).map(|(_, bytes)| bytes.clone())
    }

    fn keep(&mut self, start: u64, bytes: Bytes) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((start, bytes));
    }
}
