//! How a dataset of HDF5 is stored: its chunks and what was done to them.

use std::collections::HashSet;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use hdf5_reader::checksum::fletcher32;
use hdf5_reader::chunk_index::{
    ChunkEntry, collect_implicit_chunk_entries, collect_v2_chunk_entries_storage, single_chunk_entry,
};
use hdf5_reader::error::{Error, Result as Hdf5Result};
use hdf5_reader::extensible_array::collect_extensible_array_chunk_entries_storage;
use hdf5_reader::fixed_array::collect_fixed_array_chunk_entries_storage;
use hdf5_reader::io::Cursor;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::filter_pipeline::FilterPipelineMessage;
use hdf5_reader::messages::layout::{ChunkIndexing, DataLayout};
use hdf5_reader::{Dataset, Hdf5File, btree_v1};
use serde_json::{Value, json};

use super::{Chunk, Place, divided, pieces};
use crate::references::{ArrayMeta, index_of, inline};

/// Bytes of the text of all chunks of an array that were never written.
const MAX_FILL: usize = 1 << 20;
/// Most bytes of one value.
const MAX_ITEM: u64 = 1 << 20;
/// Bytes of a chunk that was never written and is spelled out.
const MAX_FILL_CHUNK: u64 = 8 << 20;
/// Largest chunk: its bytes are a number of 32 bits.
const MAX_CHUNK: u64 = u32::MAX as u64;

/// How a dataset is stored.
pub(super) struct Stored {
    /// The chunks that were written.
    pub chunks: Vec<Chunk>,
    /// The values, if they stand in the header of the dataset.
    pub compact: Option<Vec<u8>>,
    /// How long a chunk is along each dimension.
    pub shape: Vec<u64>,
    /// What was done to chunks, as numcodecs calls it.
    pub filters: Vec<Value>,
    /// The value of what was never written.
    pub fill: Vec<u8>,
    /// Whether that is said by the file.
    pub has_fill: bool,
}

/// Finds out how a dataset is stored whose values have so many bytes each.
///
/// # Errors
/// Why it cannot be read by ranges of the file.
pub(super) fn stored(hdf5: &Hdf5File, dataset: &Dataset, item: u64) -> Result<Stored, String> {
    let header = hdf5.get_or_parse_header(dataset.address()).map_err(|error| error.to_string())?;
    let (mut layout, mut pipeline, mut fill) = (None, None, None);
    for message in &header.messages {
        match message {
            HdfMessage::DataLayout(message) => layout = Some(message.layout.clone()),
            HdfMessage::FilterPipeline(message) => pipeline = Some(message),
            HdfMessage::FillValue(message) => fill = message.value.clone().or(fill),
            HdfMessage::ExternalFiles(_) => return Err("its values lie in other files".into()),
            _ => {}
        }
    }
    let has_fill = fill.as_ref().is_some_and(|fill| fill.len() as u64 == item);
    if item > MAX_ITEM {
        return Err(format!("each of its values has {item} bytes"));
    }
    let zero = vec![0; usize::try_from(item).unwrap_or_default()];
    let mut stored = Stored {
        chunks: Vec::new(),
        compact: None,
        shape: Vec::new(),
        filters: Vec::new(),
        fill: fill.filter(|_| has_fill).unwrap_or(zero),
        has_fill,
    };
    let shape = dataset.shape();
    let bytes = shape.iter().try_fold(item, |bytes, len| bytes.checked_mul(*len));
    let base = hdf5.superblock().base_address;
    match layout.ok_or("the file does not say how it is stored")? {
        DataLayout::Compact { data } => {
            let bytes = bytes.ok_or("it is too large")?;
            let data = usize::try_from(bytes).ok().and_then(|bytes| data.get(..bytes));
            stored.compact = Some(data.ok_or("its storage is shorter than it is")?.to_vec());
            stored.shape = ArrayMeta::plain(shape.to_vec(), "").chunks;
        }
        DataLayout::Contiguous { address, size } => {
            let bytes = bytes.ok_or("it is too large")?;
            let is_there = !Cursor::is_undefined_offset(address, hdf5.superblock().offset_size) && bytes > 0;
            // Messages of version 2 are not read as they are written (hdf5-reader 0.12.1); the sizes in them tell.
            if is_there && size != bytes {
                return Err("its storage has another size than its values".into());
            }
            let offset = base.checked_add(address).filter(|offset| {
                offset.checked_add(bytes).is_some_and(|end| end <= base.saturating_add(hdf5.storage().len()))
            });
            let mut meta = ArrayMeta::plain(shape.to_vec(), "");
            if is_there {
                let offset = offset.ok_or("a part of it lies beyond the end of the file")?;
                meta.chunks = divided(shape, item);
                stored.chunks = pieces(&meta, offset, item);
            }
            stored.shape = meta.chunks;
        }
        DataLayout::Chunked { address, dims, chunk_indexing, .. } => {
            let dims = dims.get(..shape.len()).ok_or("its chunks have fewer dimensions than it has")?;
            let len = dims.iter().try_fold(item, |len, dim| len.checked_mul(u64::from(*dim)));
            let len = len.filter(|len| (1..=MAX_CHUNK).contains(len)).ok_or("its chunks have no size")?;
            stored.filters = pipeline.map_or(Ok(Vec::new()), |pipeline| filters(pipeline, item))?;
            stored.shape = dims.iter().copied().map(u64::from).collect();
            if !Cursor::is_undefined_offset(address, hdf5.superblock().offset_size) && !shape.contains(&0) {
                let indexing = chunk_indexing.as_ref();
                let entries = entries(hdf5, dataset, address, dims, indexing, item);
                let entries = entries.map_err(|error| format!("its chunks are not found: {error}"))?;
                let is_filtered = pipeline.is_some_and(|pipeline| !pipeline.filters.is_empty());
                if is_filtered && chunk_indexing.is_some() && !tells_wrong(&stored.filters) {
                    whole_chunks_only(shape, &stored.shape)?;
                }
                stored.chunks = chunks(entries, shape, &stored.shape, (!is_filtered).then_some(len), base)?;
            }
        }
    }
    Ok(stored)
}

/// Chunks at the edge may lie in the file without their filters, which the reader does not tell. That is noticed later if one of the
/// filters has a sum or a form of its own.
fn tells_wrong(filters: &[Value]) -> bool {
    filters.iter().any(|filter| filter["id"] != "shuffle")
}

fn whole_chunks_only(shape: &[u64], chunks: &[u64]) -> Result<(), String> {
    match shape.iter().zip(chunks).all(|(len, chunk)| len % (*chunk).max(1) == 0) {
        true => Ok(()),
        false => Err("the chunks at its edge may not be shuffled as the others are".into()),
    }
}

/// Reads the index of chunks, of whichever kind.
fn entries(
    hdf5: &Hdf5File,
    dataset: &Dataset,
    address: u64,
    dims: &[u32],
    indexing: Option<&ChunkIndexing>,
    item: u64,
) -> Hdf5Result<Vec<ChunkEntry>> {
    let (storage, shape) = (hdf5.storage(), dataset.shape());
    let (offsets, lengths) = (hdf5.superblock().offset_size, hdf5.superblock().length_size);
    let rank = shape.len() as u32;
    match indexing {
        None => {
            let leaves = btree_v1::collect_btree_v1_leaves_storage(
                storage,
                address,
                offsets,
                lengths,
                Some(rank),
                dims,
                None,
            )?;
            let entry = |(key, address)| match key {
                btree_v1::BTreeV1Key::RawData { chunk_size, filter_mask, mut offsets } => {
                    offsets.truncate(shape.len());
                    Ok(ChunkEntry { address, size: u64::from(chunk_size), filter_mask, offsets })
                }
                btree_v1::BTreeV1Key::Group { .. } => Err(Error::InvalidData("it is that of a group".into())),
            };
            leaves.into_iter().map(entry).collect()
        }
        Some(ChunkIndexing::SingleChunk { filtered_size, filters }) => {
            Ok(vec![single_chunk_entry(address, *filtered_size, *filters, shape.len())])
        }
        Some(ChunkIndexing::BTreeV2) => {
            collect_v2_chunk_entries_storage(storage, address, offsets, lengths, rank, dims, None)
        }
        Some(ChunkIndexing::Implicit) => {
            collect_implicit_chunk_entries(address, shape, dims, item as usize, None, storage.len())
        }
        Some(ChunkIndexing::FixedArray { .. }) => {
            collect_fixed_array_chunk_entries_storage(storage, address, offsets, lengths, shape, dims, None)
        }
        Some(ChunkIndexing::ExtensibleArray { .. }) => collect_extensible_array_chunk_entries_storage(
            storage,
            address,
            offsets,
            lengths,
            shape,
            dataset.max_dims(),
            dims,
            None,
        ),
    }
}

/// Makes chunks of the entries of an index. `len` is how many bytes all have, if none was packed.
fn chunks(
    entries: Vec<ChunkEntry>,
    shape: &[u64],
    chunk: &[u64],
    len: Option<u64>,
    base: u64,
) -> Result<Vec<Chunk>, String> {
    let mut chunks = Vec::with_capacity(entries.len());
    let mut seen = HashSet::with_capacity(entries.len());
    for entry in entries {
        if entry.offsets.len() != shape.len()
            || entry.offsets.iter().zip(chunk).any(|(at, chunk)| at % (*chunk).max(1) != 0)
        {
            return Err("its index has a chunk that is none".into());
        }
        // What was cut off stays in the index.
        if entry.offsets.iter().zip(shape).any(|(at, len)| at >= len) {
            continue;
        }
        if entry.filter_mask != 0 {
            return Err("a chunk of it was not packed as the others were".into());
        }
        let size = match len {
            Some(len) if entry.size == 0 || entry.size == len => len,
            None if entry.size > 0 => entry.size,
            _ => return Err("a chunk of it has another size than it should have".into()),
        };
        let index: Vec<u64> =
            entry.offsets.iter().zip(chunk).map(|(at, chunk)| at / (*chunk).max(1)).collect();
        if !seen.insert(index.clone()) {
            return Err("its index has a chunk twice".into());
        }
        let offset = base.checked_add(entry.address).ok_or("a part of it lies beyond the end of the file")?;
        chunks.push(Chunk { index, place: Place::Range { offset, len: size } });
    }
    Ok(chunks)
}

/// Says what was done to chunks as numcodecs calls it.
fn filters(pipeline: &FilterPipelineMessage, item: u64) -> Result<Vec<Value>, String> {
    let mut filters = Vec::new();
    for filter in &pipeline.filters {
        let first = filter.client_data.first().copied();
        filters.push(match filter.id {
            1 => json!({ "id": "zlib", "level": first.unwrap_or(6).min(9) }),
            2 => match u64::from(first.unwrap_or_default()) {
                0 if item > 1 => json!({ "id": "shuffle", "elementsize": item }),
                0 | 1 => continue,
                size => json!({ "id": "shuffle", "elementsize": size }),
            },
            3 => json!({ "id": "fletcher32" }),
            32015 => json!({ "id": "zstd", "level": first.unwrap_or(3).min(22) }),
            id => {
                let name = match id {
                    4 => "szip".to_owned(),
                    5 => "nbit".to_owned(),
                    6 => "scale and offset".to_owned(),
                    _ => filter.name.clone().unwrap_or_else(|| format!("filter {id}")),
                };
                return Err(format!("it is packed with {name}, for which Zarr has no codec here"));
            }
        });
    }
    Ok(filters)
}

impl Stored {
    /// Spells out the chunks that were never written, whose value is not the one that counts as missing.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub fn spell_out_missing(&mut self, shape: &[u64]) -> Result<(), String> {
        let grid: Vec<u64> =
            shape.iter().zip(&self.shape).map(|(len, chunk)| len.div_ceil((*chunk).max(1))).collect();
        let all = grid.iter().fold(1u64, |all, along| all.saturating_mul(*along));
        let missing = all.saturating_sub(self.chunks.len() as u64);
        if missing == 0 || self.compact.is_some() {
            return Ok(());
        }
        let too_many = || {
            format!(
                "{missing} of its chunks were never written, and no attribute _FillValue says what stands there"
            )
        };
        let text = self.fill_chunk().map(|bytes| inline(&bytes)).ok_or_else(too_many)?;
        if missing.saturating_mul(text.len() as u64) > MAX_FILL as u64 {
            return Err(too_many());
        }
        let there: HashSet<Vec<u64>> = self.chunks.iter().map(|chunk| chunk.index.clone()).collect();
        for number in 0..all {
            let index = index_of(number, &grid);
            if !there.contains(&index) {
                self.chunks.push(Chunk { index, place: Place::Bytes(text.clone()) });
            }
        }
        Ok(())
    }

    /// Tells whether there are chunks that were never written.
    pub fn is_whole(&self, shape: &[u64]) -> bool {
        let grid = shape.iter().zip(&self.shape).map(|(len, chunk)| len.div_ceil((*chunk).max(1)));
        let all = grid.fold(1u64, |all, along| all.saturating_mul(along));
        self.compact.is_some() || self.chunks.len() as u64 >= all
    }

    /// Makes a chunk that has nothing but the value of what was never written.
    fn fill_chunk(&mut self) -> Option<Vec<u8>> {
        let count = self.shape.iter().try_fold(1u64, |count, len| count.checked_mul(*len))?;
        let bytes = count.checked_mul(self.fill.len() as u64).filter(|bytes| *bytes <= MAX_FILL_CHUNK)?;
        if self.chunks.is_empty() && self.filters.is_empty() && bytes > 1024 {
            // Nothing is stored in any way yet.
            self.filters = vec![json!({ "id": "zlib", "level": 6 })];
        }
        let mut chunk = self.fill.repeat(usize::try_from(count).ok()?);
        for filter in &self.filters {
            match filter["id"].as_str()? {
                "shuffle" => {
                    let size = usize::try_from(filter["elementsize"].as_u64()?).ok()?;
                    let count = chunk.len() / size.max(1);
                    // Values that are longer than all of it stay as they are.
                    if count == 0 {
                        continue;
                    }
                    let mut shuffled = Vec::with_capacity(chunk.len());
                    for byte in 0..size {
                        shuffled.extend(chunk.chunks_exact(size).filter_map(|value| value.get(byte)));
                    }
                    shuffled.extend_from_slice(chunk.get(count * size..)?);
                    chunk = shuffled;
                }
                "fletcher32" => {
                    let sum = fletcher32(&chunk);
                    chunk.extend(sum.to_le_bytes());
                }
                "zlib" => {
                    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
                    encoder.write_all(&chunk).ok()?;
                    chunk = encoder.finish().ok()?;
                }
                _ => return None,
            }
        }
        Some(chunk)
    }
}
