//! How much memory a model needs, and how much was used.

use anyhow::{Result, bail};
use clearway::{DType, Device};
use clearway_llm::engine;
use clearway_llm::gguf::Gguf;
use clearway_llm::model::{self, ModelShape, RecordOptions};

/// Rows of the cache where nobody says otherwise, as the engine has it.
const DEFAULT_CONTEXT: usize = 4096;

/// What a model needs on a device, before steps are compiled.
pub struct Needed {
    /// Shape of the model.
    pub shape: ModelShape,
    /// Rows of the cache.
    pub context: usize,
    /// Type of the cache's elements.
    pub cache_dtype: DType,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the KV cache.
    pub cache: u64,
}

impl Needed {
    /// What a file needs with a context of so many tokens, in a cache of this type.
    pub fn by(gguf: &Gguf, context: Option<usize>, cache_dtype: DType) -> Result<Self> {
        let shape = engine::model_shape(gguf)?;
        let context = context.unwrap_or_else(|| shape.context.min(DEFAULT_CONTEXT)).max(1);
        let dtype = |name: &str| gguf.find_tensor(name).map_or(DType::F32, |t| t.dtype());
        let options =
            RecordOptions { weight_dtype: &dtype, cache_dtype, ..RecordOptions::new(1, 1) };
        let (mut weights, mut row) = (0_u64, 0_u64);
        for external in model::record(&shape, &options)?.externals {
            let bytes = external.view.layout.span_bytes();
            if external.name.starts_with("cache.") {
                row = row.saturating_add(bytes);
            } else if gguf.find_tensor(&external.name).is_some() {
                weights = weights.saturating_add(bytes);
            }
        }
        let cache = row.saturating_mul(context as u64);
        Ok(Self { shape, context, cache_dtype, weights, cache })
    }

    /// Weights and cache.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache)
    }

    /// An error if the device cannot hold it. A device that does not tell its memory is tried.
    pub fn check(&self, device: &dyn Device) -> Result<()> {
        let info = device.info();
        if info.memory_bytes == 0 || self.total() <= info.memory_bytes {
            return Ok(());
        }
        let advice = match self.weights < info.memory_bytes {
            true => "a smaller context (-c) may fit",
            false => "a smaller model, or one with fewer bits per weight, may fit",
        };
        bail!(
            "the model is too large for `{}`: it needs {} for weights and {} for a context of {} \
             tokens in {}, but the device has {}; {advice}",
            info.name,
            size(self.weights),
            size(self.cache),
            self.context,
            self.cache_dtype,
            size(info.memory_bytes),
        )
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    const STEP: f64 = 1024.0;
    let mut amount = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if amount < STEP {
            break;
        }
        (amount, unit) = (amount / STEP, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{amount:.1} {unit}") }
}

/// Most memory this process had at once, where the system says.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_suits_them() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(u64::MAX), "16384.0 PiB");
    }
}
