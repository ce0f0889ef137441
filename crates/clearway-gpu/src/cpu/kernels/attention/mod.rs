//! Causal grouped-query attention over a KV cache.
//!
//! Rows of the cache are taken in chunks of [`CHUNK`] and these in blocks of [`KEYS`], both from multiples
//! of their size on, wherever a token's window starts. Inside a chunk the softmax is kept up as blocks
//! come ([`pass`]); chunks are put together in their order ([`Summary`]). So the order of a sum depends
//! on positions alone, and a token gets the same bits alone and among others.
//!
//! Many tokens are cut into blocks of tokens. A few are cut along the cache, so that all workers share a
//! long text: each part takes chunks through the cache and leaves a summary of each, and the piece that
//! joins them goes through the summaries. Parts are of equal size whatever the position is.

mod block;
mod pass;

use std::ops::Range;

use clearway_graph::{DType, Layout, TensorView};
use half::{bf16, f16};

use super::math;
use crate::cpu::piece::misuse;
use crate::cpu::simd::float::Element;
use crate::cpu::simd::{Lanes, Vectorised, vectorise};
use crate::cpu::{Grid, Piece};
use block::KEYS;
use pass::{Pass, QUERIES};

/// Rows of the cache that are summed on their own.
const CHUNK: usize = 4 * KEYS;

/// Queries of one key-value head up to which the cache is cut instead of the tokens.
const FEW_QUERIES: usize = 32;

/// Most parts to cut the cache into.
const MOST_PARTS: usize = 32;

/// Most floats that parts may leave behind.
const MOST_JOINT_FLOATS: usize = 16 << 20;

/// Most pieces to cut tokens into, and fewest queries of a head in each of them.
const MOST_PIECES: usize = 64;
const QUERIES_OF_PIECE: usize = 48;

/// Constant of the op: rows of a block.
const BLOCK: usize = 3;
/// Operands of a cache in blocks: the sequence of each token, and the blocks of each sequence.
const SEQUENCES: usize = 4;
const BLOCKS: usize = 5;

/// Sizes of a dispatch.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    /// Elements of a head of keys, and of values.
    head: usize,
    value: usize,
    /// Rows of the cache, or of the longest sequence where the cache lies in blocks.
    cache_rows: usize,
    /// Rows of a block of the cache; 0 where the cache is one sequence.
    block: usize,
}

impl Sizes {
    /// Sizes from the layouts of the operands.
    fn new<'a>(layout: impl Fn(usize) -> &'a Layout, block: u32) -> Self {
        let [_, tokens, heads, head] = layout(0).shape4().map(|size| size as usize);
        let [_, rows, kv_heads, _] = layout(1).shape4().map(|size| size as usize);
        let block = block as usize;
        let cache_rows = if block == 0 { rows } else { layout(BLOCKS).cols() * block };
        let value = layout(2).cols();
        Self { tokens, heads, kv_heads, head, value, cache_rows, block }
    }

    fn of(piece: &Piece<'_>) -> Self {
        Self::new(|operand| piece.layout(operand), piece.int(BLOCK))
    }

    /// Query heads of a key-value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Floats of a query's summary.
    fn summary(&self) -> usize {
        2 + self.value
    }

    /// Floats of the summaries of a chunk for all queries of a key-value head.
    fn unit(&self) -> usize {
        self.tokens * self.group() * self.summary()
    }

    /// Parts the cache is cut into, and most units of each; `None` if tokens are cut.
    fn parts(&self) -> Option<(usize, usize)> {
        let units = self.kv_heads * self.cache_rows.div_ceil(CHUNK);
        let parts = units.clamp(1, MOST_PARTS);
        let each = units.div_ceil(parts);
        let floats = (parts * each).saturating_mul(self.unit());
        let few = self.tokens * self.group() <= FEW_QUERIES && floats <= MOST_JOINT_FLOATS;
        // Tokens of several sequences do not share the cache.
        let shared = self.block == 0 || self.tokens == 1;
        (few && shared).then_some((parts, each))
    }
}

pub(super) fn grid(views: &[TensorView], params: &[u32]) -> Grid {
    let sizes = Sizes::new(|operand| &views[operand].layout, params[BLOCK]);
    let rows = sizes.tokens * sizes.heads;
    let grid = match sizes.parts() {
        Some((parts, each)) => Grid::joint(rows, parts, each * sizes.unit()),
        None => {
            let few = match sizes.block {
                0 => QUERIES_OF_PIECE.div_ceil(sizes.group()),
                _ => 1,
            };
            let tokens = sizes.tokens.div_ceil(MOST_PIECES).max(few);
            Grid::rows(rows, tokens * sizes.heads)
        }
    };
    grid.with_scratch(Pass::floats(sizes.head, sizes.value))
}

pub(super) fn attention(piece: &mut Piece<'_>) {
    vectorise(Attention { piece, sinks: None });
}

/// The same with a score for each head that has no value; they come in front of the result.
pub(super) fn attention_sinks(piece: &mut Piece<'_>) {
    let sinks = Some(piece.operand_count() - 2);
    vectorise(Attention { piece, sinks });
}

struct Attention<'p, 'a> {
    piece: &'p mut Piece<'a>,
    /// Operand with the sinks.
    sinks: Option<usize>,
}

impl Vectorised for Attention<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { piece, sinks } = self;
        match piece.layout(1).dtype() {
            DType::F32 => attend::<L, f32>(l, piece, sinks),
            DType::F16 => attend::<L, f16>(l, piece, sinks),
            DType::BF16 => attend::<L, bf16>(l, piece, sinks),
            _ => misuse("the cache holds no plain floats"),
        }
    }
}

#[inline(always)]
fn attend<L: Lanes, T: Element>(l: L, piece: &mut Piece<'_>, sinks: Option<usize>) {
    match Sizes::of(piece).parts() {
        None => attend_tokens::<L, T>(l, piece, sinks),
        Some((parts, each)) if piece.index() < parts => attend_part::<L, T>(l, piece, parts, each),
        Some((parts, each)) => join(piece, parts, each, sinks),
    }
}

/// Keys or values of the cache.
#[derive(Clone, Copy)]
struct Cache<'a, T> {
    elems: &'a [T],
    row: usize,
    head: usize,
    cols: usize,
    /// Blocks of the sequence, the rows of each and the last that there is; none where the cache is one sequence.
    blocks: &'a [u32],
    block: usize,
    last: usize,
}

impl<'a, T: Element> Cache<'a, T> {
    fn new(piece: &Piece<'a>, operand: usize) -> Self {
        let (layout, elems) = (piece.layout(operand), piece.src(operand));
        let [_, row, head, _] = layout.strides4().map(|stride| stride as usize);
        if piece.declared(operand).start != 0 {
            misuse("the whole cache is declared");
        }
        let (block, cols) = (piece.int(BLOCK) as usize, layout.cols());
        let last = (layout.shape4()[1] as usize).checked_div(block).map_or(0, |count| count - 1);
        Self { elems, row, head, cols, blocks: &[], block, last }
    }

    /// The cache of one sequence.
    fn of(self, piece: &Piece<'a>, sequence: usize) -> Self {
        let known = self.block > 0 && sequence < piece.layout(BLOCKS).rows();
        Self { blocks: if known { piece.src_row(BLOCKS, sequence) } else { &[] }, ..self }
    }

    /// One head of a row: the only place that knows where rows lie.
    #[inline(always)]
    fn row(&self, row: usize, kv_head: usize) -> &'a [T] {
        let row = match self.block {
            0 => row,
            block => (self.blocks[row / block] as usize).min(self.last) * block + row % block,
        };
        &self.elems[row * self.row + kv_head * self.head..][..self.cols]
    }
}

/// The sequence of a token; 0 where the cache is one sequence.
fn sequence(piece: &Piece<'_>, token: usize) -> usize {
    match piece.int(BLOCK) {
        0 => 0,
        _ => piece.src_row::<u32>(SEQUENCES, 0)[token] as usize,
    }
}

/// Rows of its sequence that a token sees.
fn seen(piece: &Piece<'_>, token: usize, cache_rows: usize) -> Range<usize> {
    let window = piece.int(1) as usize;
    let cache_rows = match piece.int(BLOCK) as usize {
        0 => cache_rows,
        _ if sequence(piece, token) >= piece.layout(BLOCKS).rows() => 0,
        block => piece.layout(BLOCKS).cols() * block,
    };
    let end = (piece.src_row::<u32>(3, 0)[token] as usize).saturating_add(1);
    let start = if window == 0 { 0 } else { end.saturating_sub(window) };
    start..end.min(cache_rows).max(start)
}

/// Chunks of the cache that any of the tokens sees.
fn chunks(piece: &Piece<'_>, tokens: Range<usize>, cache_rows: usize) -> Range<usize> {
    let all = tokens.map(|token| seen(piece, token, cache_rows)).filter(|seen| !seen.is_empty());
    let start = all.clone().map(|seen| seen.start).min().unwrap_or(0);
    let end = all.map(|seen| seen.end).max().unwrap_or(0);
    start / CHUNK..end.div_ceil(CHUNK)
}

/// Softmax over a part of the cache: the largest score, the sum of `exp(score - max)`, and beside it the
/// weighted sum of values.
#[derive(Clone, Copy)]
struct Summary {
    max: f32,
    sum: f32,
}

impl Summary {
    const NOTHING: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// What a head starts with: its sink, where there are any, whose value is nothing.
    fn start(piece: &Piece<'_>, sinks: Option<usize>, head: usize) -> Self {
        let sink = sinks.map(|operand| piece.src_row::<f32>(operand, 0)[head]);
        sink.map_or(Self::NOTHING, |score| Self { max: score, sum: 1.0 })
    }

    /// Adds what the next chunk gave.
    #[inline(always)]
    fn add(&mut self, values: &mut [f32], next: Self, next_values: &[f32]) {
        if next.max == f32::NEG_INFINITY {
            return;
        }
        let max = if next.max > self.max || next.max.is_nan() { next.max } else { self.max };
        let (old, new) = (math::exp(self.max - max), math::exp(next.max - max));
        self.sum = self.sum * old + next.sum * new;
        self.max = max;
        for (value, next) in values.iter_mut().zip(next_values) {
            *value = *value * old + next * new;
        }
    }

    /// The weighted mean of the values. A query that sees nothing gives zeros.
    #[inline(always)]
    fn finish(self, values: &mut [f32]) {
        if self.sum != 0.0 {
            values.iter_mut().for_each(|value| *value /= self.sum);
        }
    }
}

/// A block of tokens, head by head through all of the cache they see.
#[inline(always)]
fn attend_tokens<L: Lanes, T: Element>(l: L, piece: &mut Piece<'_>, sinks: Option<usize>) {
    let sizes = Sizes::of(piece);
    let mut pass = Pass::take(piece);
    let (keys, values) = (Cache::<T>::new(piece, 1), Cache::<T>::new(piece, 2));
    let (first, end) = (piece.rows().start / sizes.heads, piece.rows().end / sizes.heads);
    let tokens_of_pass = (QUERIES / sizes.group()).max(1);
    for kv_head in 0..sizes.kv_heads {
        let heads = kv_head * sizes.group()..(kv_head + 1) * sizes.group();
        let mut start = first;
        while start < end {
            // Tokens of one sequence go together.
            let own = sequence(piece, start);
            let most = end.min(start + tokens_of_pass);
            let run = (start..most).take_while(|&token| sequence(piece, token) == own).count();
            let tokens = start..start + run;
            start = tokens.end;
            let (keys, values) = (keys.of(piece, own), values.of(piece, own));
            // More heads than a pass holds take several.
            for heads in heads.clone().step_by(QUERIES).map(|h| h..heads.end.min(h + QUERIES)) {
                pass.start::<L>(piece, tokens.clone(), heads, sizes, sinks);
                for chunk in chunks(piece, tokens.clone(), sizes.cache_rows) {
                    pass.chunk(l, keys, values, kv_head, chunk);
                    pass.add();
                }
                pass.store(piece);
            }
        }
    }
}

/// All tokens through a part of the cache. Chunks follow each other, and in each the heads, so that a part
/// reads a run of the cache.
#[inline(always)]
fn attend_part<L: Lanes, T: Element>(l: L, piece: &mut Piece<'_>, parts: usize, each: usize) {
    let sizes = Sizes::of(piece);
    let summaries = piece.take_joint();
    let mut pass = Pass::take(piece);
    let own = sequence(piece, 0);
    let [keys, values] = [1, 2].map(|operand| Cache::<T>::new(piece, operand).of(piece, own));
    let chunks = chunks(piece, 0..sizes.tokens, sizes.cache_rows);
    let (part, units) = (piece.index(), chunks.len() * sizes.kv_heads);
    let units = part * units / parts..(part + 1) * units / parts;
    debug_assert!(units.len() <= each);
    for (unit, summaries) in units.zip(summaries.chunks_exact_mut(sizes.unit())) {
        let (chunk, kv_head) = (chunks.start + unit / sizes.kv_heads, unit % sizes.kv_heads);
        let heads = kv_head * sizes.group()..(kv_head + 1) * sizes.group();
        // Sinks come in where parts are put together.
        pass.start::<L>(piece, 0..sizes.tokens, heads, sizes, None);
        pass.chunk(l, keys, values, kv_head, chunk);
        pass.summarise(summaries);
    }
}

/// Puts the summaries of all parts together.
#[inline(always)]
fn join(piece: &mut Piece<'_>, parts: usize, each: usize, sinks: Option<usize>) {
    let sizes = Sizes::of(piece);
    let summaries = &*piece.take_joint();
    let scratch = piece.take_scratch();
    let values = &mut scratch[..sizes.value];
    let units = chunks(piece, 0..sizes.tokens, sizes.cache_rows).len() * sizes.kv_heads;
    for row in 0..sizes.tokens * sizes.heads {
        let (token, head) = (row / sizes.heads, row % sizes.heads);
        let (kv_head, query) = (head / sizes.group(), token * sizes.group() + head % sizes.group());
        let mut total = Summary::start(piece, sinks, head);
        values.fill(0.0);
        for unit in (kv_head..units).step_by(sizes.kv_heads) {
            // The last part that starts at this unit or before it.
            let part = ((unit + 1) * parts - 1) / units;
            let slot = part * each + unit - part * units / parts;
            let found = &summaries[slot * sizes.unit()..][query * sizes.summary()..];
            if let [max, sum, next @ ..] = &found[..sizes.summary()] {
                total.add(values, Summary { max: *max, sum: *sum }, next);
            }
        }
        total.finish(values);
        piece.store_row(piece.operand_count() - 1, row, values);
    }
}
