//! Parquet: what its footer says of columns, rows and the file.

use bytes::Bytes;
use parquet::basic::ConvertedType;
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::reader::{ChunkReader, Length};

use super::Unreadable;
use crate::header::Header;
use crate::source::{File, Reader};

impl Length for File {
    fn len(&self) -> u64 {
        self.size()
    }
}

impl ChunkReader for File {
    type T = Reader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Reader> {
        Ok(self.reader_at(start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        Ok(self.range(start, length)?.into())
    }
}

/// Reads the footer of a file.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    let parquet = ParquetMetaDataReader::new().parse_and_finish(file)?;
    let mut header = Header::of_format("parquet");
    let of_file = parquet.file_metadata();
    header.dimension("row", of_file.num_rows().max(0).unsigned_abs());
    header.number("row_groups", parquet.num_row_groups() as u64);
    if let Some(by) = of_file.created_by() {
        header.text("created_by", by);
    }
    for column in of_file.schema_descr().columns() {
        let name = format!("var.{}", column.path().parts().join("."));
        let kind = match column.logical_type_ref() {
            Some(logical) => format!("{logical:?}"),
            // How older writers say it.
            None if column.converted_type() != ConvertedType::NONE => {
                format!("{:?}", column.converted_type())
            }
            None => format!("{:?}", column.physical_type()),
        };
        header.text(&name, kind.to_lowercase());
    }
    for pair in of_file.key_value_metadata().into_iter().flatten() {
        // The schema once more, in a form that only programs read.
        if pair.key != "ARROW:schema" {
            header.text(&pair.key, pair.value.clone().unwrap_or_default());
        }
    }
    Ok(header)
}
