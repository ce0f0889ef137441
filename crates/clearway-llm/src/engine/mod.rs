//! A model file that answers: weights on a device, a KV cache, steps compiled once and replayed.
//!
//! | module | what it does |
//! |---|---|
//! | `shape` | hyper-parameters of a file to a [`ModelShape`] |
//! | `open` | a model on its devices: checked, then uploaded |
//! | `apart` | tensors that hold several matrices |
//! | `latent` | hyper-parameters and tensors of latent attention |
//! | `adapter` | low-rank adapters of weights, and how a model's steps read them |
//! | `check` | hyper-parameters against the tensors of the file |
//! | `vocab` | the file's vocabulary to a tokenizer and a chat template |
//! | `convert` | tensors of types the device has no kernels for |
//! | `memory` | how much memory a model needs, and how large a context it gets |
//! | `split` | which layers lie on which of two devices |
//! | `in_blocks` | steps of many sequences |
//! | `embed` | texts to vectors |
//! | `state` | the rows of the cache as bytes |
//! | `finite` | logits that are no numbers, and where they began |
//! | `constraint` | masks that change from token to token |
//! | [`sampling`] | a row of sampling data, and the order in which it acts |
//! | `sample` | logits to a token on the host |
//! | `choose` | logits to a token on the device |
//! | `token_loop` | tokens chosen and fed back on the device |
//! | `verify` | drafts checked by steps of several rows |
//! | `traffic` | bytes one token fetches |

mod adapter;
mod apart;
mod check;
pub(crate) mod choose;
mod constraint;
mod convert;
mod embed;
mod error;
mod finite;
mod in_blocks;
mod latent;
mod memory;
mod open;
mod sample;
pub mod sampling;
mod shape;
pub(crate) mod sizes;
mod split;
mod state;
mod token_loop;
mod traffic;
mod verify;
mod vocab;

pub use adapter::{Adapter, AdapterError, Adapters, is_adapter};
pub use constraint::{Constraint, TextConstraint};
pub use convert::Conversion;
pub use embed::{Embedding, Pooling};
pub use error::EngineError;
pub use finite::{BadTensor, Origin};
pub(crate) use in_blocks::StepsInBlocks;
pub use memory::{Bytes, ContextReason, Footprint};
pub use sample::{LogProbs, Sampler};
pub use sampling::{Penalties, Sampling, TokenMask};
pub use shape::{model_shape, plain_model};
pub use split::{Devices, GpuLayers, Share};
pub(crate) use token_loop::TokenStream;
pub use traffic::TokenBytes;
pub(crate) use verify::Chosen;
pub use vocab::{chat_template, tokenizer};

use std::sync::Arc;

use clearway::{Bindings, Buffer, CompileOptions, DType, Device, Executable, GraphExecutor};
use rustc_hash::FxHashMap;

use adapter::Stack;
use sizes::Kept;
use token_loop::TokenLoop;
use verify::CheckStep;

use crate::gguf::Gguf;
use crate::model::{
    self, AdapterLayout, LOGIT_ROWS, Logits, ModelGraph, ModelShape, POSITIONS, Part, ROPE_FACTORS,
    RecordOptions, STREAM, TOKENS,
};

/// Shorthand for results of this module.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Steps of prompts that are kept compiled have so many times the rows that the device reads at once, together.
const KEPT: usize = 4;

/// Rows of every step that generates where the number of rows must not matter.
const PINNED_ROWS: usize = 8;

/// How to open a model.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Rows of the KV cache; `None` for as many as [`Footprint::new`] finds right.
    pub context: Option<usize>,
    /// Element type of the KV cache.
    pub cache_dtype: DType,
    /// Which stages run.
    pub compile: CompileOptions,
    /// Whether a compiled step is kept and run again; otherwise every step is recorded, compiled and
    /// encoded anew.
    pub replay: bool,
    /// Whether a token gets the same bits however many are computed with it: then drafts leave a text as it is even where two
    /// tokens are all but equally likely. Steps that generate always have eight rows on devices whose kernels depend on the
    /// number of rows, and the host chooses, which is slower. The CPU always does it, at no cost.
    pub deterministic: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let compile = CompileOptions::default();
        Self { context: None, cache_dtype: DType::F16, compile, replay: true, deterministic: false }
    }
}

/// Tokens of an evaluation that get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows<'a> {
    /// The last: what generation needs.
    Last,
    /// Every one.
    All,
    /// Those with these indices, in this order.
    List(&'a [usize]),
}

/// A model on a device or two, in the middle of a text.
pub struct Engine {
    executor: GraphExecutor,
    /// What of the model the device has. A back comes with its front; a front is only ever part of another engine.
    part: Part,
    /// What has the first layers, where another device has them. Its steps give the residual stream that ours begin with. The
    /// text it is in the middle of is ours.
    front: Option<Box<Self>>,
    shape: ModelShape,
    options: EngineOptions,
    context: usize,
    reason: ContextReason,
    /// The file, to look into where a step goes wrong. It shares the pages that the caller has mapped.
    file: Gguf,
    weight_dtypes: FxHashMap<String, DType>,
    conversions: Vec<Conversion>,
    /// What adapters change.
    adapters: Option<Stack>,
    /// Names that texts can choose adapters by.
    choices: Vec<String>,
    buffers: FxHashMap<String, Buffer>,
    /// Compiled steps by their number of tokens and what they compute logits for.
    steps: Kept<(usize, Logits), Step>,
    looped: Option<TokenLoop>,
    /// Compiled steps that check drafts, by their number of rows.
    checks: FxHashMap<usize, CheckStep>,
    /// Whether the device once did not start workgroups in order, so that steps were done again.
    stalled: bool,
    embedder: embed::Embedder,
    position: usize,
}

struct Step {
    graph: Executable,
    recorded: ModelGraph,
    /// Tokens, or the residual stream where another device has the first layers.
    input: Buffer,
    positions: Buffer,
    /// Which tokens get logits, or the last row that each token sees, where the step asks.
    rows: Option<Buffer>,
}

impl Step {
    /// How many tokens it reads.
    fn size(&self) -> usize {
        (self.positions.len() / 4) as usize
    }

    /// Writes tokens and their positions from `first` on, where the model is on one device.
    fn write(&self, tokens: &[u32], first: u32) -> Result<()> {
        let (tokens, positions) = padded(tokens, first, self.size());
        self.input.write_slice(0, &tokens)?;
        Ok(self.positions.write_slice(0, &positions)?)
    }
}

/// Tokens and their positions from `first` on for a step of `size`. What is missing is the first token again, at its own
/// place: it writes the same bits to the same row of the cache, and the last token stays the last.
fn padded(tokens: &[u32], first: u32, size: usize) -> (Vec<u32>, Vec<u32>) {
    let missing = size.saturating_sub(tokens.len());
    let repeated = std::iter::repeat_n(first, missing);
    let positions = repeated.chain(first..).take(size).collect();
    let repeated = std::iter::repeat_n(tokens[0], missing);
    (repeated.chain(tokens.iter().copied()).collect(), positions)
}

impl Engine {
    /// Uploads the weights of a file and makes an empty cache.
    ///
    /// # Errors
    /// A model that is not supported, a tensor of the wrong shape, too little memory.
    pub fn new(gguf: &Gguf, device: Arc<dyn Device>, options: EngineOptions) -> Result<Self> {
        Self::with_progress(gguf, device, options, &mut |_| ())
    }

    /// As [`new`](Self::new); `progress` is told how many bytes of the file's tensors are uploaded.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_progress(
        gguf: &Gguf,
        device: Arc<dyn Device>,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        Self::with_adapters(gguf, &Adapters::None, device, options, progress)
    }

    /// The model's shape.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The model file.
    pub fn file(&self) -> &Gguf {
        &self.file
    }

    /// Rows of the cache: tokens the model can look at.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Why the cache has so many rows.
    pub fn context_reason(&self) -> ContextReason {
        self.reason
    }

    /// Tokens in the cache.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Which tensors were converted to other types, since the device has no kernels for theirs.
    pub fn conversions(&self) -> &[Conversion] {
        &self.conversions
    }

    /// Names of the adapters that texts can choose, where many are written at once. A text chooses by the index.
    pub fn adapters(&self) -> &[String] {
        &self.choices
    }

    /// Bytes that differ between adapters which act on all texts.
    pub(crate) fn adapter_identity(&self) -> &[u8] {
        self.adapters.as_ref().map_or(&[], Stack::identity)
    }

    /// Statistics of the step that reads one token, once it is compiled; of the one that feeds itself
    /// where there is one. Of two devices it is the one with the head.
    pub fn decode_stats(&self) -> Option<&clearway::PassStats> {
        let step = self
            .looped
            .as_ref()
            .map(TokenLoop::step)
            .or_else(|| self.steps.get(&(1, Logits::Last)));
        step.map(|step| step.graph.stats())
    }

    /// Forgets the text.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Forgets the text after its first `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize) {
        self.position = self.position.min(tokens);
    }

    /// Reads tokens into the cache; returns the logits after the last.
    ///
    /// # Errors
    /// [`EngineError::Empty`], [`EngineError::ContextFull`], [`EngineError::TokenOutOfRange`] before
    /// anything is computed; [`EngineError::NotFinite`]; what the device reports.
    pub fn eval(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let logits = self.eval_unless(tokens, &mut || false)?;
        Ok(logits.unwrap_or_default())
    }

    /// As [`eval`](Self::eval); `stop` is asked before each batch that the device reads at once. `None` where it said so:
    /// then [`position`](Self::position) says how many tokens were read.
    ///
    /// # Errors
    /// As [`eval`](Self::eval).
    pub fn eval_unless(
        &mut self,
        tokens: &[u32],
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<f32>>> {
        self.check(tokens)?;
        let mut logits = Vec::new();
        for batch in self.batches(tokens) {
            if stop() {
                return Ok(None);
            }
            logits = self.step(batch, &[batch.len() - 1])?;
        }
        Ok(Some(logits))
    }

    /// Tokens that the device reads at once, at most.
    pub fn batch_tokens(&self) -> usize {
        let most = self.executor.device().batch_tokens();
        self.front.as_ref().map_or(most, |front| most.min(front.batch_tokens()))
    }

    /// The parts in which the device reads tokens.
    fn batches<'t>(&self, tokens: &'t [u32]) -> std::slice::Chunks<'t, u32> {
        tokens.chunks(self.batch_tokens())
    }

    /// Reads tokens into the cache as [`eval`](Self::eval) does; returns the logits after chosen ones, in the order in which
    /// they are named. Logits of others are not computed.
    ///
    /// # Errors
    /// [`EngineError::RowOutOfRange`] before anything is computed; as [`eval`](Self::eval).
    pub fn eval_rows(&mut self, tokens: &[u32], rows: Rows<'_>) -> Result<Vec<Vec<f32>>> {
        self.check(tokens)?;
        let every: Vec<usize>;
        let wanted = match rows {
            Rows::Last => return Ok(vec![self.eval(tokens)?]),
            Rows::All => {
                every = (0..tokens.len()).collect();
                &every
            }
            Rows::List(rows) => rows,
        };
        if let Some(&row) = wanted.iter().find(|&&row| row >= tokens.len()) {
            return Err(EngineError::RowOutOfRange { row, tokens: tokens.len() });
        }
        let mut found = vec![Vec::new(); wanted.len()];
        let mut first = 0;
        for batch in self.batches(tokens) {
            let here = first..first + batch.len();
            let places: Vec<usize> =
                (0..wanted.len()).filter(|&place| here.contains(&wanted[place])).collect();
            let rows: Vec<usize> = places.iter().map(|&place| wanted[place] - first).collect();
            let logits = self.step(batch, &rows)?;
            for (place, row) in places.into_iter().zip(logits.chunks_exact(self.shape.vocab)) {
                found[place] = row.to_vec();
            }
            first = here.end;
        }
        Ok(found)
    }

    /// Whether tokens can be read at all.
    fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        self.check_writes()?;
        let free = self.context - self.position;
        if tokens.len() > free {
            let (wanted, context) = (self.position + tokens.len(), self.context);
            return Err(EngineError::ContextFull { wanted, context });
        }
        self.check_vocabulary(tokens)
    }

    /// An error if the model is an encoder.
    pub(crate) fn check_writes(&self) -> Result<()> {
        match self.shape.causal {
            true => Ok(()),
            false => Err(EngineError::NoLogits { name: self.shape.name.clone() }),
        }
    }

    /// Stretches rotary frequencies as texts of at most so many tokens need it, where the cache holds many texts.
    pub(crate) fn stretch_for(&self, context: usize) -> Result<()> {
        let factors = self.shape.rope_factors(context, |name| self.file.floats(name));
        Ok(self.buffer(ROPE_FACTORS)?.write_slice(0, &factors)?)
    }

    fn check_vocabulary(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.shape.vocab;
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(EngineError::TokenOutOfRange { token, vocab }),
            None => Ok(()),
        }
    }

    /// Reads a batch; returns the logits after chosen tokens of it, one row after another.
    fn step(&mut self, tokens: &[u32], rows: &[usize]) -> Result<Vec<f32>> {
        let logits = self.run_step(tokens, rows)?;
        if !finite::is_sound(&logits) {
            return Err(self.not_finite(tokens));
        }
        self.position += tokens.len();
        Ok(logits)
    }

    /// As [`step`](Self::step), whatever the logits are; the position stays where it is.
    fn run_step(&mut self, tokens: &[u32], rows: &[usize]) -> Result<Vec<f32>> {
        let (size, kind) = self.size_of_step(tokens.len(), rows);
        let vocab = self.shape.vocab;
        let (padded, positions) = padded(tokens, self.position as u32, size);
        let missing = size - tokens.len();
        let mut ids: Vec<u32> = rows.iter().map(|&row| (missing + row) as u32).collect();
        if let Logits::Rows(count) = kind {
            // Rows that nobody asks for are the last again.
            ids.resize(count, size as u32 - 1);
        }
        let mut logits = self.replay(&padded, &positions, kind, &ids)?;
        if kind == Logits::All {
            let all = std::mem::take(&mut logits);
            for row in rows.iter().map(|row| (missing + row) * vocab) {
                logits.extend_from_slice(&all[row..row + vocab]);
            }
        }
        logits.truncate(rows.len().max(1) * vocab);
        Ok(logits)
    }

    /// How many tokens the step has that reads so many, and what it computes logits for.
    fn size_of_step(&self, tokens: usize, rows: &[usize]) -> (usize, Logits) {
        let size = sizes::fitting(tokens).min(self.batch_tokens());
        if size <= PINNED_ROWS && self.pins_rows() {
            return (PINNED_ROWS, Logits::All);
        }
        let kind = match rows {
            // Somebody has to be last, if nobody asks for logits.
            [] => Logits::Last,
            &[row] if row + 1 == tokens => Logits::Last,
            rows => match sizes::fitting(rows.len()) {
                count if count < size => Logits::Rows(count),
                _ => Logits::All,
            },
        };
        (size, kind)
    }

    /// Whether steps that generate have the same number of rows, as their kernels depend on it.
    fn pins_rows(&self) -> bool {
        self.options.deterministic && !self.executor.device().rows_are_independent()
    }

    /// Rows of all steps of prompts that are kept, together.
    fn kept_rows(&self) -> usize {
        KEPT * self.executor.device().batch_tokens()
    }

    /// Compiles a step of so many tokens, on each device that has a part of the model.
    fn prepare_step(&mut self, size: usize, kind: Logits) -> Result<()> {
        if let Some(front) = &mut self.front {
            front.prepare_step(size, Logits::All)?;
        }
        self.compiled(size, kind).map(drop)
    }

    /// A step of so many tokens.
    fn compiled(&mut self, size: usize, kind: Logits) -> Result<&mut Step> {
        let key = (size, kind);
        let step = match self.steps.take(&key) {
            Some(step) => step,
            None => {
                self.steps.give_up_for(size);
                self.compile(size, kind)?
            }
        };
        Ok(self.steps.put(key, size, step))
    }

    /// Runs the step of as many tokens as are given, which is compiled where it is not there yet. Returns the logits of the
    /// tokens it computes them for, or the residual stream of all tokens where that is what this part of the model ends with.
    fn replay(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        kind: Logits,
        rows: &[u32],
    ) -> Result<Vec<f32>> {
        if !self.options.replay {
            self.steps.clear();
        }
        let stream = match &mut self.front {
            None => None,
            Some(front) => Some(front.replay(tokens, positions, Logits::All, &[])?),
        };
        let step = self.compiled(tokens.len(), kind)?;
        match stream {
            None => step.input.write_slice(0, tokens)?,
            Some(stream) => step.input.write_slice(0, &stream)?,
        }
        step.positions.write_slice(0, positions)?;
        if let (Logits::Rows(_), Some(buffer)) = (kind, &step.rows) {
            buffer.write_slice(0, rows)?;
        }
        step.graph.run()?;
        Ok(step.graph.read_f32(step.recorded.logits)?)
    }

    fn record(&self, tokens: usize, logits: Logits) -> Result<ModelGraph> {
        self.record_rows(tokens, logits, self.context)
    }

    /// A step over a cache of so many rows. Where texts choose adapters, its text has none.
    fn record_rows(&self, tokens: usize, logits: Logits, rows: usize) -> Result<ModelGraph> {
        let adapters = self.adapters.as_ref().map(Stack::layout);
        let adapters = adapters.filter(|layout| layout.choices.is_none());
        self.record_with(tokens, logits, rows, adapters)
    }

    fn record_with(
        &self,
        tokens: usize,
        logits: Logits,
        rows: usize,
        adapters: Option<&AdapterLayout>,
    ) -> Result<ModelGraph> {
        let dtypes = &self.weight_dtypes;
        let weight_dtype = |name: &str| dtypes.get(name).copied().unwrap_or(DType::F32);
        let options = RecordOptions {
            cache_dtype: self.options.cache_dtype,
            logits,
            part: self.part,
            order_experts: self.executor.device().multiplies_halves(),
            weight_dtype: &weight_dtype,
            adapters,
            ..RecordOptions::new(tokens, rows)
        };
        Ok(model::record(&self.shape, &options)?)
    }

    fn compile(&self, tokens: usize, logits: Logits) -> Result<Step> {
        self.compile_with(tokens, logits, &self.options.compile)
    }

    fn compile_with(
        &self,
        tokens: usize,
        logits: Logits,
        options: &CompileOptions,
    ) -> Result<Step> {
        let recorded = self.record(tokens, logits)?;
        let device = self.executor.device();
        let input = self.input(&recorded)?;
        let positions = device.alloc(tokens as u64 * 4)?;
        let rows = match logits {
            Logits::Rows(count) => Some(device.alloc(count as u64 * 4)?),
            Logits::Last | Logits::All | Logits::Tail(_) | Logits::None | Logits::Normed => None,
        };
        let bound = self.bind(&recorded, &input, &positions, rows.as_ref())?;
        let graph = self.executor.compile(recorded.graph(), &bound, options)?;
        Ok(Step { graph, recorded, input, positions, rows })
    }

    /// Memory for what a step begins with.
    fn input(&self, recorded: &ModelGraph) -> Result<Buffer> {
        let name = match self.part {
            Part::Whole | Part::Front { .. } => TOKENS,
            Part::Back { .. } => STREAM,
        };
        let view = recorded.external(name).ok_or_else(|| missing(name))?;
        Ok(self.executor.device().alloc(view.layout.span_bytes())?)
    }

    /// Where the tensors lie that a step only names.
    fn bind(
        &self,
        recorded: &ModelGraph,
        input: &Buffer,
        positions: &Buffer,
        rows: Option<&Buffer>,
    ) -> Result<Bindings> {
        let mut bound = Bindings::new();
        for external in recorded.externals() {
            let buffer = match &*external.name {
                TOKENS | STREAM => input,
                POSITIONS => positions,
                LOGIT_ROWS => rows.ok_or_else(|| missing(LOGIT_ROWS))?,
                name => self.buffers.get(name).ok_or_else(|| missing(name))?,
            };
            bound.bind(external.view, buffer);
        }
        Ok(bound)
    }

    /// Where a weight or a part of the cache lies.
    pub(crate) fn buffer(&self, name: &str) -> Result<&Buffer> {
        self.buffers.get(name).ok_or_else(|| missing(name))
    }

    /// What compiles and runs steps.
    pub(crate) fn executor(&self) -> &GraphExecutor {
        &self.executor
    }

    /// How the engine was opened.
    pub(crate) fn options(&self) -> &EngineOptions {
        &self.options
    }
}

fn missing(name: &str) -> EngineError {
    EngineError::TensorShape {
        name: name.to_owned(),
        found: "nothing".into(),
        expected: "a tensor of the model".into(),
    }
}
