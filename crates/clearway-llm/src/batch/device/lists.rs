//! The lists that a runner replays: decode steps, with rows of prompts beside them or without, rows of prompts alone, copies of blocks.

use clearway::{
    Bindings, Buffer, CompileOptions, DType, Executable, Layout, Ops, Recorder, TensorView, Upload,
};

use super::slots::{Advance, RING, WORDS};
use crate::engine::choose::{self, Choice, DrawnBy};
use crate::engine::{Engine, EngineError, StepsInBlocks};
use crate::model::{
    ADAPTERS, BLOCKS, CACHE_ROWS, CacheLayout, DECODE_BLOCKS, DecodeRows, Logits, ModelGraph,
    POSITIONS, SEQUENCES, TOKENS, in_cache,
};

type Result<T> = std::result::Result<T, EngineError>;

/// Sequences whose prompts are read by one list: the fewest and the most, and rows of the list for each of them between.
const TOGETHER: std::ops::RangeInclusive<usize> = 4..=32;
const ROWS_OF_EACH: usize = 8;

/// What all lists of a runner share.
#[derive(Clone)]
pub(super) struct Tables {
    /// Rows of a block.
    pub(super) block: usize,
    /// Blocks of the pool.
    pub(super) pool: usize,
    /// Blocks of a sequence at most.
    pub(super) entries: usize,
    /// The device has the same kernels whatever the number of rows.
    pub(super) one_kernel: bool,
    /// Words of each slot, `u32[S * WORDS]`.
    pub(super) slots: Buffer,
    /// Blocks of each slot, `u32[S, entries]`.
    pub(super) blocks: Buffer,
    /// Chosen tokens, then position and state of each slot.
    pub(super) ring: Buffer,
}

impl Tables {
    pub(super) fn new(engine: &Engine, slots: usize, block: usize, entries: usize) -> Result<Self> {
        let device = engine.executor().device();
        Ok(Self {
            block,
            pool: engine.context() / block,
            entries,
            one_kernel: device.rows_are_independent(),
            slots: device.upload(&vec![0_u32; slots * WORDS])?,
            blocks: device.upload(&vec![0_u32; slots * entries])?,
            ring: device.alloc_host_visible(4 * (slots * (RING + 2)) as u64)?,
        })
    }

    fn rows(&self) -> usize {
        self.pool * self.block
    }

    /// Sequences whose prompts are read by a list of so many rows. Kernels of attention are chosen for rows that are spread evenly
    /// over so many, and those for runs of rows must stay the choice; where there is one kernel only, a table may be any size.
    pub(super) fn together(&self, rows: usize) -> usize {
        match self.one_kernel {
            true => *TOGETHER.end(),
            false => (rows / ROWS_OF_EACH).clamp(*TOGETHER.start(), *TOGETHER.end()),
        }
    }

    /// The fewest rows of a list that has room for so many sequences.
    pub(super) fn rows_for(&self, sequences: usize) -> usize {
        match self.one_kernel || sequences <= *TOGETHER.start() {
            true => 0,
            false => sequences * ROWS_OF_EACH,
        }
    }

    fn slot_count(&self) -> usize {
        (self.slots.len() / 4) as usize / WORDS
    }
}

/// What a step reads, one word for each row.
pub(super) struct Inputs {
    tokens: Buffer,
    positions: Buffer,
    sequences: Buffer,
    cache_rows: Buffer,
    /// Where sequences choose adapters.
    adapters: Option<Buffer>,
}

/// One row of a step.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) token: u32,
    pub(super) position: u32,
    pub(super) sequence: u32,
    pub(super) cache_row: u32,
    /// The adapter of its text.
    pub(super) adapter: Option<u32>,
}

impl Row {
    /// A row that is written nowhere and sees nothing.
    pub(super) const NONE: Self =
        Self { token: 0, position: 0, sequence: u32::MAX, cache_row: u32::MAX, adapter: None };
}

impl Inputs {
    fn new(steps: &StepsInBlocks, rows: usize) -> Result<Self> {
        let alloc = || steps.executor().device().alloc(4 * rows as u64);
        Ok(Self {
            tokens: alloc()?,
            positions: alloc()?,
            sequences: alloc()?,
            cache_rows: alloc()?,
            adapters: steps.chooses_adapters().then(alloc).transpose()?,
        })
    }

    pub(super) fn write(&self, rows: &[Row]) -> Result<()> {
        let column = |of: fn(&Row) -> u32| -> Vec<u32> { rows.iter().map(of).collect() };
        self.tokens.write_slice(0, &column(|row| row.token))?;
        self.positions.write_slice(0, &column(|row| row.position))?;
        self.sequences.write_slice(0, &column(|row| row.sequence))?;
        self.cache_rows.write_slice(0, &column(|row| row.cache_row))?;
        if let Some(adapters) = &self.adapters {
            // The first row of a table of choices stands for none.
            let choice = |row: &Row| row.adapter.map_or(0, |adapter| adapter.saturating_add(1));
            adapters.write_slice(0, &column(choice))?;
        }
        Ok(())
    }
}

/// Which steps a list does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StepKey {
    /// Rows of prompts, which come first and only fill the cache.
    pub(super) read: usize,
    /// Rows that decode.
    pub(super) decode: usize,
    /// How their tokens are chosen.
    pub(super) choice: Choice,
}

impl StepKey {
    /// Rows of both kinds.
    pub(super) fn rows(self) -> usize {
        self.read + self.decode
    }
}

/// A decode step of so many rows, with rows of prompts beside them or without: all weights are read once for both.
pub(super) struct StepList {
    pub(super) graph: Executable,
    pub(super) inputs: Inputs,
    /// The slot of each row that decodes.
    pub(super) rows: Buffer,
    /// Blocks of the sequences whose prompts are read, where some are.
    pub(super) blocks: Option<Buffer>,
    logits: TensorView,
}

impl StepList {
    pub(super) fn new(steps: &StepsInBlocks, tables: &Tables, key: StepKey) -> Result<Self> {
        choose::register(steps.executor())?;
        let slots = tables.slot_count();
        super::slots::register(steps.executor(), slots, tables.block)?;
        let StepKey { read, decode: rows, choice } = key;
        let device = steps.executor().device();
        let (block, entries) = (tables.block, tables.entries);
        let (sequences, logits, decode, blocks) = match read {
            0 => (slots, Logits::All, None, None),
            read => {
                let readers = tables.together(read);
                let decode = DecodeRows { rows, sequences: slots };
                let blocks = device.alloc(4 * (readers * entries) as u64)?;
                (readers, Logits::Tail(rows), Some(decode), Some(blocks))
            }
        };
        let layout = CacheLayout::Blocks { block, sequences, entries };
        let mut recorded = steps.record(read + rows, logits, tables.rows(), (layout, decode))?;
        let inputs = Inputs::new(steps, read + rows)?;
        let of_rows = device.alloc(4 * rows as u64)?;
        let of_readers = blocks.as_ref().unwrap_or(&tables.blocks);
        let mut bound = bind(steps, &recorded, &inputs, [of_readers, &tables.blocks])?;
        let recorder = &mut recorded.recorder;
        let mut external = |name: &str, buffer: &Buffer, elems: usize| -> Result<TensorView> {
            let view = recorder.external(name, DType::U32, &[elems])?;
            bound.bind(view, buffer);
            Ok(view)
        };
        let slot_table = external("slots", &tables.slots, slots * WORDS)?;
        let rows_view = external("slot_rows", &of_rows, rows)?;
        let ring = external("ring", &tables.ring, slots * (RING + 2))?;
        // The rows that decode.
        let own = Layout::new(DType::U32, &[rows])?;
        let found = |name: &str| -> Result<TensorView> {
            Ok(find(&recorded, name)?.reinterpret(4 * read as u64, own)?)
        };
        let (tokens, positions) = (found(TOKENS)?, found(POSITIONS)?);
        let (sequences, cache_rows) = (found(SEQUENCES)?, found(CACHE_ROWS)?);
        let slot_blocks = find(&recorded, if read > 0 { DECODE_BLOCKS } else { BLOCKS })?;

        let graph = recorded.recorder.graph_mut();
        let table = slot_table.reinterpret(0, Layout::new(DType::U32, &[slots, WORDS])?)?;
        let by = DrawnBy { table, rows: rows_view, positions };
        let ids = choose::record(graph, choice, recorded.logits, by)?;
        let advance = Advance {
            ids,
            rows: rows_view,
            slots: slot_table,
            blocks: slot_blocks,
            tokens,
            positions,
            sequences,
            cache_rows,
            ring,
        };
        advance.record(graph, tables.block)?;
        // A step is done again from the host's copies of its slots, which know nothing of prompts.
        let counters = read == 0;
        let options = CompileOptions { counters, ..steps.options().compile };
        let graph = steps.executor().compile(graph, &bound, &options)?;
        Ok(Self { graph, inputs, rows: of_rows, blocks, logits: recorded.logits })
    }

    /// The logits of one row of the last step.
    pub(super) fn logits(&self, row: usize) -> Result<Vec<f32>> {
        let cols = self.logits.layout.cols();
        let layout = Layout::new(DType::F32, &[1, cols])?;
        let view = self.logits.reinterpret(row as u64 * layout.span_bytes(), layout)?;
        Ok(self.graph.read_f32(view)?)
    }
}

/// So many rows of prompts, which only fill the cache.
pub(super) struct ReadList {
    pub(super) graph: Executable,
    pub(super) inputs: Inputs,
    /// Blocks of the sequences of the list.
    pub(super) blocks: Buffer,
}

impl ReadList {
    pub(super) fn new(steps: &StepsInBlocks, tables: &Tables, rows: usize) -> Result<Self> {
        let (entries, sequences) = (tables.entries, tables.together(rows));
        let layout = CacheLayout::Blocks { block: tables.block, sequences, entries };
        let logits = Logits::None;
        let recorded = steps.record(rows, logits, tables.rows(), (layout, None))?;
        let inputs = Inputs::new(steps, rows)?;
        let blocks = steps.executor().device().alloc(4 * (sequences * entries) as u64)?;
        let bound = bind(steps, &recorded, &inputs, [&blocks, &tables.blocks])?;
        let options = &steps.options().compile;
        let graph = steps.executor().compile(recorded.graph(), &bound, options)?;
        Ok(Self { graph, inputs, blocks })
    }
}

/// Copies all rows of one block to another, in every layer.
pub(super) struct CopyList {
    graph: Executable,
    from: Buffer,
    to: Buffer,
    block: usize,
}

impl CopyList {
    pub(super) fn new(steps: &StepsInBlocks, tables: &Tables) -> Result<Self> {
        let (shape, block) = (steps.shape(), tables.block);
        let device = steps.executor().device();
        let (from, to) = (device.alloc(4 * block as u64)?, device.alloc(4 * block as u64)?);
        let mut ops = Recorder::new();
        let from_view = ops.external("from", DType::U32, &[block])?;
        let to_view = ops.external("to", DType::U32, &[block])?;
        let mut bound = Bindings::new();
        bound.bind(from_view, &from);
        bound.bind(to_view, &to);
        let (heads, head) = (shape.kv_heads, shape.cache_head());
        let parts = |layer| shape.cache_parts().iter().map(move |part| cache(layer, part));
        for name in (0..shape.layers).flat_map(parts) {
            let dtype = in_cache(steps.options().cache_dtype);
            let cache = ops.external(&name, dtype, &[tables.rows(), heads, head])?;
            let rows = Layout::new(dtype, &[tables.rows(), heads * head])?;
            let picked = ops.gather(cache.reinterpret(0, rows)?, from_view, 1.0)?;
            // What was read from 8 bits rounds to the same bits.
            let (picked, dtype) = match dtype {
                DType::F32 | DType::C8 => (picked, DType::F32),
                dtype => (ops.copy(picked, dtype)?, dtype),
            };
            let picked = picked.reinterpret(0, Layout::new(dtype, &[block, heads, head])?)?;
            ops.kv_write(picked, to_view, cache)?;
            bound.bind(cache, steps.buffer(&name)?);
        }
        let (graph, _) = ops.into_parts();
        let graph = steps.executor().compile(&graph, &bound, &steps.options().compile)?;
        Ok(Self { graph, from, to, block })
    }

    pub(super) fn run(&mut self, from: u32, to: u32) -> Result<()> {
        let rows = |first: u32| -> Vec<u32> {
            (0..self.block as u32).map(|row| first * self.block as u32 + row).collect()
        };
        self.from.write_slice(0, &rows(from))?;
        self.to.write_slice(0, &rows(to))?;
        Ok(self.graph.run()?)
    }
}

fn cache(layer: usize, part: &str) -> String {
    format!("cache.{part}.{layer}")
}

/// Where the tensors lie that a step only names.
fn bind(
    steps: &StepsInBlocks,
    recorded: &ModelGraph,
    inputs: &Inputs,
    [blocks, decode_blocks]: [&Buffer; 2],
) -> Result<Bindings> {
    let mut bound = Bindings::new();
    for external in recorded.externals() {
        let buffer = match &*external.name {
            TOKENS => &inputs.tokens,
            POSITIONS => &inputs.positions,
            SEQUENCES => &inputs.sequences,
            CACHE_ROWS => &inputs.cache_rows,
            BLOCKS => blocks,
            DECODE_BLOCKS => decode_blocks,
            ADAPTERS => inputs.adapters.as_ref().ok_or(EngineError::NotOnDevice)?,
            name => steps.buffer(name)?,
        };
        bound.bind(external.view, buffer);
    }
    Ok(bound)
}

fn find(recorded: &ModelGraph, name: &str) -> Result<TensorView> {
    recorded.external(name).ok_or(EngineError::NotOnDevice)
}
