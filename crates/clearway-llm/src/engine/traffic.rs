//! Bytes one token must fetch from memory: what decode speed is measured against.
//!
//! Counted over the recorded step, so that fusion does not change the figure: every weight once,
//! however many kernels read it, of tables and experts the rows that are picked, and of the cache the
//! rows a token looks at. Values of the arena stay in caches and do not count.

use clearway::{CapturedOpKind as Kind, Dispatch};

use super::{Engine, Result};
use crate::model::{Logits, ModelGraph, POSITIONS, STREAM, TOKENS};

/// Bytes one token must fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// Of weights.
    pub weights: u64,
    /// Of the KV cache.
    pub cache: u64,
}

impl TokenBytes {
    /// Of both.
    pub const fn total(&self) -> u64 {
        self.weights + self.cache
    }
}

impl Engine {
    /// Bytes a token must fetch that looks at `rows` rows of the cache, itself included.
    ///
    /// # Errors
    /// What recording reports.
    pub fn token_bytes(&self, rows: usize) -> Result<TokenBytes> {
        let mut bytes = self.own_token_bytes(rows)?;
        if let Some(front) = &self.front {
            let first = front.token_bytes(rows)?;
            bytes.weights += first.weights;
            bytes.cache += first.cache;
        }
        Ok(bytes)
    }

    /// The same of the device that logits come from.
    pub(super) fn own_token_bytes(&self, rows: usize) -> Result<TokenBytes> {
        Ok(count(&self.record(1, Logits::Last)?, rows as u64, self.context as u64))
    }
}

pub(super) fn count(recorded: &ModelGraph, rows: u64, context: u64) -> TokenBytes {
    let mut most = vec![0_u64; recorded.externals().len()];
    let mut cache = 0;
    for dispatch in recorded.graph().dispatches() {
        for (binding, view) in dispatch.bindings.iter().enumerate() {
            let Some(external) = recorded.externals().get(view.buf_id) else { continue };
            let bytes = view.layout.span_bytes();
            match &*external.name {
                TOKENS | STREAM | POSITIONS => {}
                // Keys and values may be the same bytes.
                name if name.starts_with("cache.") => {
                    let known = dispatch.bindings.iter().take(binding);
                    if known.into_iter().any(|earlier| earlier.buf_id == view.buf_id) {
                        continue;
                    }
                    cache += share(bytes, rows_seen(dispatch, rows), context);
                }
                _ => {
                    let (picked, of) = rows_picked(dispatch, binding);
                    let fetched = &mut most[view.buf_id];
                    *fetched = (*fetched).max(share(bytes, picked, of));
                }
            }
        }
    }
    TokenBytes { weights: most.iter().sum(), cache }
}

/// Rows of the cache a dispatch reads; what it writes is not fetched.
fn rows_seen(dispatch: &Dispatch, rows: u64) -> u64 {
    /// Where attention has its window; 0 for none.
    const WINDOW: usize = 1;
    match (reads(dispatch.kind), dispatch.params.get(WINDOW)) {
        (Reads::Cache, Some(0) | None) => rows,
        (Reads::Cache, Some(&window)) => rows.min(u64::from(window)),
        (Reads::Whole | Reads::Rows | Reads::Experts, _) => 0,
    }
}

/// How many of a weight's rows or experts a dispatch reads, and how many there are.
fn rows_picked(dispatch: &Dispatch, binding: usize) -> (u64, u64) {
    let layout = |index: usize| dispatch.bindings.get(index).map(|view| view.layout);
    let elems = |index: usize| layout(index).map_or(1, |layout| layout.elems() as u64);
    let of = layout(binding);
    match (reads(dispatch.kind), binding) {
        (Reads::Rows, 0) => (elems(1), of.map_or(1, |table| table.rows() as u64)),
        (Reads::Experts, 1) => (elems(2), of.map_or(1, |w| u64::from(w.shape4()[1]))),
        (Reads::Whole | Reads::Rows | Reads::Experts | Reads::Cache, _) => (1, 1),
    }
}

/// What a kind reads of its operands.
enum Reads {
    /// All of them.
    Whole,
    /// Of operand 0 the rows that operand 1 names.
    Rows,
    /// Of operand 1 the experts that operand 2 names.
    Experts,
    /// Of the cache the rows that a token sees.
    Cache,
}

fn reads(kind: Kind) -> Reads {
    match kind {
        Kind::Gather => Reads::Rows,
        Kind::MatMulExperts => Reads::Experts,
        Kind::Attention | Kind::AttentionSinks => Reads::Cache,
        Kind::RmsNorm
        | Kind::LayerNorm
        | Kind::Map(_)
        | Kind::Product(_)
        | Kind::ExpertOrder
        | Kind::RouterTopK
        | Kind::RouterGroups
        | Kind::ExpertSum
        | Kind::ExpertSumAdd
        | Kind::Rope
        | Kind::Softmax
        | Kind::KvWrite
        | Kind::Copy
        | Kind::Concat
        | Kind::ArgMax
        | Kind::TopK
        | Kind::Fill
        | Kind::RmsNormMul
        | Kind::AddRmsNorm
        | Kind::RmsNormMulAdd
        | Kind::AddRmsNormMul
        | Kind::RopeKvWrite
        | Kind::Custom
        | Kind::Pinned => Reads::Whole,
    }
}

fn share(bytes: u64, picked: u64, of: u64) -> u64 {
    let of = of.max(1);
    (u128::from(bytes) * u128::from(picked.min(of)) / u128::from(of)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{self, RecordOptions};

    fn of(name: &str, rows: u64) -> TokenBytes {
        let shape = model::builtin_shape(name).unwrap();
        let recorded = model::record(&shape, &RecordOptions::new(1, 4096)).unwrap();
        count(&recorded, rows, 4096)
    }

    /// Bytes of f16 matrices; norms are f32 and small.
    fn assert_near(found: u64, parameters: usize) {
        let expected = 2 * parameters as u64;
        assert!(found >= expected && found < expected + expected / 500, "{found} {expected}");
    }

    #[test]
    fn every_weight_is_fetched_once_and_one_row_of_the_table() {
        let layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336;
        assert_near(of("llama-8b", 1).weights, 32 * layer + 128_256 * 4096 + 4096);
        // Head and table are one tensor, read whole by the head.
        let layer = 576 * (2 * 576 + 2 * 192) + 3 * 576 * 1536;
        assert_near(of("smollm2-135m", 1).weights, 30 * layer + 49_152 * 576);
    }

    #[test]
    fn of_experts_only_those_used_are_fetched() {
        let layer = 2048 * (2 * 4096 + 2 * 512 + 128) + 8 * 3 * 2048 * 768;
        assert_near(of("qwen3-30b-a3b", 1).weights, 48 * layer + 151_936 * 2048 + 2048);
    }

    #[test]
    fn the_cache_counts_by_the_rows_looked_at() {
        let row = 2 * 2 * 8 * 128 * 32;
        assert_eq!(of("llama-8b", 1).cache, row);
        assert_eq!(of("llama-8b", 4096).cache, 4096 * row);
        let mut shape = model::builtin_shape("llama-8b").unwrap();
        shape.window = Some(model::Window { rows: 512, period: 2, rope_base: None });
        let recorded = model::record(&shape, &RecordOptions::new(1, 4096)).unwrap();
        assert_eq!(count(&recorded, 256, 4096).cache, 256 * row);
        assert_eq!(count(&recorded, 4096, 4096).cache, (4096 + 512) * row / 2);
    }
}
