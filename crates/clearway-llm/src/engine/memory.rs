//! How much memory a model needs, and how large a context it gets.

use std::fmt;

use clearway::{DType, Device};

use super::adapter::Stack;
use super::{Adapters, EngineError, Result, plain_model};
use crate::gguf::Gguf;
use crate::model::{self, ModelShape, RecordOptions};

/// Largest context that nobody asked for: more takes gigabytes that few texts need.
const MOST_UNASKED: usize = 32_768;
/// Largest cache for many texts that nobody asked for.
const MOST_POOLED: usize = 65_536;
/// Context that a model gets even where memory is short, if the file allows it.
const LEAST_UNASKED: usize = 4096;
/// The cache of a context that nobody asked for takes at most this part of the memory beside the weights.
const MEMORY_SHARE: u64 = 4;

/// What a model needs on a device, before steps are compiled.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// Shape of the model.
    pub shape: ModelShape,
    /// Rows of the cache.
    pub context: usize,
    /// Why there are so many.
    pub reason: ContextReason,
    /// Type of the cache's elements.
    pub cache_dtype: DType,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the KV cache.
    pub cache: u64,
}

/// Why a context has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextReason {
    /// It was asked for.
    Asked,
    /// The model was trained for so many tokens.
    File,
    /// The model allows more, and memory has no room for it.
    Memory,
    /// The model allows more, and more is only taken when it is asked for.
    Limit,
}

impl fmt::Display for ContextReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "as asked",
            Self::File => "all that the model allows",
            Self::Memory => "as many as fit beside the weights",
            Self::Limit => "the most that is taken unasked",
        })
    }
}

impl Footprint {
    /// What a file needs with a cache of this type on a device that has so many bytes, 0 where that is not known. Without
    /// `context`, the model gets the context it was trained for where a quarter of the memory beside the weights holds it,
    /// at most 32,768 tokens, and never less than 4,096 that it allows.
    ///
    /// # Errors
    /// A model that is not supported.
    pub fn new(
        gguf: &Gguf,
        context: Option<usize>,
        cache_dtype: DType,
        memory_bytes: u64,
    ) -> Result<Self> {
        Self::beside(gguf, 0, context, cache_dtype, memory_bytes)
    }

    /// As [`new`](Self::new), with adapters, which count as weights.
    ///
    /// # Errors
    /// A model that is not supported, an adapter of another model.
    pub fn with_adapters(
        gguf: &Gguf,
        adapters: &Adapters,
        context: Option<usize>,
        cache_dtype: DType,
        memory_bytes: u64,
    ) -> Result<Self> {
        let more = Stack::new(adapters, gguf)?.map_or(0, |stack| stack.bytes());
        Self::beside(gguf, more, context, cache_dtype, memory_bytes)
    }

    /// As [`new`](Self::new), with so many bytes of other weights.
    pub(super) fn beside(
        gguf: &Gguf,
        more: u64,
        context: Option<usize>,
        cache_dtype: DType,
        memory_bytes: u64,
    ) -> Result<Self> {
        let (gguf, shape) = &plain_model(gguf)?;
        check_cache(shape, cache_dtype)?;
        let dtype = |name: &str| gguf.find_tensor(name).map_or(DType::F32, |t| t.dtype());
        let options =
            RecordOptions { weight_dtype: &dtype, cache_dtype, ..RecordOptions::new(1, 1) };
        let (mut weights, mut row) = (more, 0_u64);
        for external in model::record(shape, &options)?.into_externals() {
            let bytes = external.view.layout.span_bytes();
            if external.name.starts_with("cache.") {
                row = row.saturating_add(bytes);
            } else if gguf.find_tensor(&external.name).is_some() {
                weights = weights.saturating_add(bytes);
            }
        }
        let room = memory_bytes.saturating_sub(weights) / MEMORY_SHARE;
        let (context, reason) = match context {
            Some(context) => (context, ContextReason::Asked),
            None => unasked(shape.context, room / row.max(1)),
        };
        let cache = row.saturating_mul(context as u64);
        let shape = shape.clone();
        Ok(Self { shape, context, reason, cache_dtype, weights, cache })
    }

    /// Weights and cache.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache)
    }

    /// Tokens of a cache that so many texts share, where nobody says: what they need together, as far as a quarter of the
    /// memory beside the weights holds it, and at most 65,536. 0 bytes of memory stand for a number that is not known.
    pub fn pool(&self, texts: usize, memory_bytes: u64) -> usize {
        let row = (self.cache / self.context.max(1) as u64).max(1);
        let fits = match memory_bytes {
            0 => MOST_POOLED,
            memory => {
                let room = memory.saturating_sub(self.weights) / MEMORY_SHARE;
                usize::try_from(room / row).unwrap_or(MOST_POOLED)
            }
        };
        texts.saturating_mul(self.context).min(fits).min(MOST_POOLED).max(self.context)
    }

    /// An error if the device cannot hold it. A device that does not tell its memory is tried.
    ///
    /// # Errors
    /// [`EngineError::TooLarge`].
    pub fn check(&self, device: &dyn Device) -> Result<()> {
        let info = device.info();
        if info.memory_bytes == 0 || self.total() <= info.memory_bytes {
            return Ok(());
        }
        Err(EngineError::TooLarge {
            device: info.name.clone(),
            weights: self.weights,
            cache: self.cache,
            context: self.context,
            cache_dtype: self.cache_dtype,
            memory: info.memory_bytes,
        })
    }
}

/// Refuses a model whose heads a cache of this type cannot hold.
fn check_cache(shape: &ModelShape, cache_dtype: DType) -> Result<()> {
    let (head, chunk) = (shape.cache_head(), cache_dtype.block_elems());
    let refused = |why: String| Err(EngineError::CacheType { cache_dtype, why });
    match cache_dtype {
        DType::F16 | DType::F32 => Ok(()),
        // Its rows are written in two parts, and values are a part of keys.
        DType::Q8_0 if shape.latent.is_some() => {
            refused("keys and values of latent attention share their rows".into())
        }
        DType::Q8_0 if head.is_multiple_of(chunk) => Ok(()),
        DType::Q8_0 => refused(format!("heads of {head} elements are no multiples of {chunk}")),
        _ => refused("f16, f32 and q8_0 are supported".into()),
    }
}

/// The context where nobody asks for one, by what the file allows and how many rows memory has room for.
fn unasked(file: usize, room: u64) -> (usize, ContextReason) {
    let room = usize::try_from(room).unwrap_or(usize::MAX).max(LEAST_UNASKED);
    let file = file.max(1);
    if file <= room.min(MOST_UNASKED) {
        return (file, ContextReason::File);
    }
    match room < MOST_UNASKED {
        // Whole thousands, as people count contexts.
        true => (room / 1024 * 1024, ContextReason::Memory),
        false => (MOST_UNASKED, ContextReason::Limit),
    }
}

/// A number of bytes as people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEP: f64 = 1024.0;
        let mut amount = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
            if amount < STEP {
                break;
            }
            (amount, unit) = (amount / STEP, larger);
        }
        let text =
            if unit == "B" { format!("{} B", self.0) } else { format!("{amount:.1} {unit}") };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_suits_them() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(u64::MAX).to_string(), "16384.0 PiB");
        assert_eq!(format!("{:>8}", Bytes(7)), "     7 B");
    }

    #[test]
    fn texts_share_what_they_need_as_far_as_memory_holds_it() {
        let shape = model::builtin_shape("smollm2-135m").unwrap();
        let footprint = Footprint {
            shape,
            context: 1000,
            reason: ContextReason::Asked,
            cache_dtype: DType::F16,
            weights: 5000,
            cache: 2000,
        };
        assert_eq!(footprint.pool(4, 0), 4000, "memory is not known");
        assert_eq!(footprint.pool(4, 1 << 30), 4000);
        assert_eq!(footprint.pool(4, 5000 + 4 * 2 * 3000), 3000, "a quarter of what is left");
        assert_eq!(footprint.pool(1000, 1 << 30), 65_536);
        assert_eq!(footprint.pool(4, 0), footprint.pool(4, u64::MAX));
        assert_eq!(footprint.pool(4, 5001), 1000, "one text always fits");
    }

    #[test]
    fn a_context_is_the_models_own_where_memory_has_room() {
        use ContextReason::{File, Limit, Memory};
        for (file, room, chosen) in [
            (2048, 0, (2048, File)),
            (8192, 100_000, (8192, File)),
            (8192, 8192, (8192, File)),
            (8192, 8191, (7168, Memory)),
            (8192, 0, (4096, Memory)),
            (131_072, 9_999_999, (32_768, Limit)),
            (131_072, 20_000, (19_456, Memory)),
            (0, 10, (1, File)),
            (usize::MAX, u64::MAX, (32_768, Limit)),
        ] {
            assert_eq!(unasked(file, room), chosen, "{file} tokens, room for {room}");
        }
    }
}
