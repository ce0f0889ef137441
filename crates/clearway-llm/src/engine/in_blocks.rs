//! Steps of many sequences, whose rows lie in blocks of the cache.

use clearway::{Buffer, DType, GraphExecutor};
use rustc_hash::FxHashMap;

use super::adapter::Stack;
use super::{Engine, EngineOptions, Result, missing};
use crate::model::{
    self, AdapterLayout, CacheLayout, DecodeRows, Logits, ModelGraph, ModelShape, RecordOptions,
};

/// What such steps are recorded and compiled from. It shares the engine's weights and cache, and another thread may use it while the
/// engine works.
pub(crate) struct StepsInBlocks {
    executor: GraphExecutor,
    shape: ModelShape,
    options: EngineOptions,
    weight_dtypes: FxHashMap<String, DType>,
    adapters: Option<AdapterLayout>,
    /// Whether texts choose adapters.
    chooses: bool,
    buffers: FxHashMap<String, Buffer>,
}

impl Engine {
    /// What steps of many sequences are made from.
    pub(crate) fn steps_in_blocks(&self) -> Result<StepsInBlocks> {
        self.check_writes()?;
        Ok(StepsInBlocks {
            executor: GraphExecutor::on(self.executor.device().clone()),
            shape: self.shape.clone(),
            options: self.options,
            weight_dtypes: self.weight_dtypes.clone(),
            adapters: self.adapters.as_ref().map(Stack::layout).cloned(),
            chooses: !self.choices.is_empty(),
            buffers: self.buffers.clone(),
        })
    }
}

impl StepsInBlocks {
    /// A step of so many tokens over a cache of so many rows.
    pub(crate) fn record(
        &self,
        tokens: usize,
        logits: Logits,
        cache_rows: usize,
        (cache, decode): (CacheLayout, Option<DecodeRows>),
    ) -> Result<ModelGraph> {
        let dtypes = &self.weight_dtypes;
        let weight_dtype = |name: &str| dtypes.get(name).copied().unwrap_or(DType::F32);
        let options = RecordOptions {
            cache_dtype: self.options.cache_dtype,
            cache,
            decode,
            logits,
            weight_dtype: &weight_dtype,
            adapters: self.adapters.as_ref(),
            ..RecordOptions::new(tokens, cache_rows)
        };
        Ok(model::record(&self.shape, &options)?)
    }

    /// Where a weight or a part of the cache lies.
    pub(crate) fn buffer(&self, name: &str) -> Result<&Buffer> {
        self.buffers.get(name).ok_or_else(|| missing(name))
    }

    /// What compiles steps.
    pub(crate) fn executor(&self) -> &GraphExecutor {
        &self.executor
    }

    /// How the engine was opened.
    pub(crate) fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The model's shape.
    pub(crate) fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Whether texts choose adapters.
    pub(crate) fn chooses_adapters(&self) -> bool {
        self.chooses
    }
}
