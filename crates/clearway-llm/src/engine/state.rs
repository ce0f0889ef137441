//! The rows of the KV cache as bytes, to be kept and put back.

use clearway::{Buffer, DType};

use super::{Engine, EngineError, Result};
use crate::model::Logits;

/// What of a cache belongs to one tensor, or to a plane of one: where it lies, its first byte and the bytes of one row.
struct Rows {
    buffer: Buffer,
    first: u64,
    row: u64,
}

impl Engine {
    /// Bytes that one token takes in the cache.
    pub(crate) fn cache_row_bytes(&self) -> Result<u64> {
        Ok(self.cache_tensors()?.iter().map(|rows| rows.row).sum())
    }

    /// The rows of the cache that are in use, tensor after tensor: to keep them, or to compare two engines.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read_cache(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for Rows { buffer, first, row } in self.cache_tensors()? {
            let length = row * self.position as u64;
            bytes.extend(buffer.read_vec::<u8>(first, length as usize)?);
        }
        Ok(bytes)
    }

    /// Puts rows back that [`read_cache`](Self::read_cache) gave after so many tokens.
    pub(crate) fn write_cache(&mut self, position: usize, mut bytes: &[u8]) -> Result<()> {
        if position > self.context {
            return Err(EngineError::ContextFull { wanted: position, context: self.context });
        }
        let tensors = self.cache_tensors()?;
        let row: u64 = tensors.iter().map(|rows| rows.row).sum();
        if row.checked_mul(position as u64) != Some(bytes.len() as u64) {
            return Err(EngineError::Saved {
                what: "its cache has another size than this model's",
            });
        }
        // What is there is overwritten from its first row on.
        self.position = 0;
        for Rows { buffer, first, row } in tensors {
            let (own, rest) = bytes.split_at((row * position as u64) as usize);
            buffer.write_slice(first, own)?;
            bytes = rest;
        }
        self.position = position;
        Ok(())
    }

    /// The tensors of the cache by layer, whichever devices have them.
    fn cache_tensors(&self) -> Result<Vec<Rows>> {
        let mut tensors = match &self.front {
            Some(front) => front.cache_tensors()?,
            None => Vec::new(),
        };
        let recorded = self.record(1, Logits::Last)?;
        let caches = recorded.externals().iter().filter(|e| e.name.starts_with("cache."));
        // A row of the cache is a row of each of its tensors.
        let rows = self.context.max(1) as u64;
        for external in caches {
            let (layout, buffer) = (external.view.layout, self.buffer(&external.name)?);
            // Quants of all rows, then the scales of all; other types have nothing behind their elements.
            let ends = match layout.dtype() {
                DType::C8 => vec![layout.elems() as u64, layout.span_bytes()],
                _ => vec![layout.span_bytes()],
            };
            let mut first = 0;
            for end in ends {
                let row = (end - first) / rows;
                tensors.push(Rows { buffer: buffer.clone(), first, row });
                first = end;
            }
        }
        Ok(tensors)
    }
}
