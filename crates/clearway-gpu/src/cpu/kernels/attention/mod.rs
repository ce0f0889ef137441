//! Causal grouped-query attention over a KV cache.
//!
//! Rows of the cache are taken in chunks of [`CHUNK`], from multiples of it on, wherever a token's window starts.
//! Each chunk has a softmax of its own ([`pass`]); chunks are put together in their order ([`Softmax`]). So the order
//! of a sum depends on positions alone, and a token gets the same bits alone and among others.
//!
//! Many tokens are cut into blocks of tokens, and these by key-value heads. A few are cut along the cache, so that all workers share a
//! long text: each part takes chunks through the cache and leaves a summary of each, and the piece that
//! joins them goes through the summaries. Parts are of equal size whatever the position is.

mod ahead;
mod narrow;
mod pass;
mod row;
mod wide;

use std::f32::consts::LOG2_E;
use std::ops::Range;

use clearway_graph::{DType, Layout, TensorView};
use half::{bf16, f16};

use super::{cut, math};
use crate::cpu::piece::misuse;
use crate::cpu::simd::float::{Element, LANES, sixteen};
use crate::cpu::simd::{Lanes, Vectorised, vectorise};
use crate::cpu::{Grid, Piece};
use crate::quant;
use ahead::Ahead;
use pass::{Pass, QUERIES};
use row::{Chunks, Row};

/// Rows of the cache that are summed on their own.
const CHUNK: usize = 128;

/// Queries of one key-value head up to which the cache is cut instead of the tokens.
const FEW_QUERIES: usize = 32;

/// Most parts to cut the cache into.
const MOST_PARTS: usize = 32;

/// Most floats that parts may leave behind.
const MOST_JOINT_FLOATS: usize = 16 << 20;

/// Pieces for each core that tokens of several sequences are cut into: rows of one sequence are read once for the tokens of a
/// piece, and sequences differ in length.
const PIECES_OF_A_CORE: usize = 8;

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
            let most = (QUERIES / sizes.group()).max(1);
            let tokens = match sizes.block {
                0 => most,
                // They may be of as many sequences.
                _ => {
                    let pieces = (PIECES_OF_A_CORE * *cut::CORES).div_ceil(sizes.kv_heads);
                    sizes.tokens.div_ceil(pieces).min(most)
                }
            };
            Grid::runs(rows, tokens * sizes.heads, sizes.heads, sizes.group())
        }
    };
    grid.with_scratch(Pass::floats(sizes.head, sizes.value))
}

pub(super) fn attention(piece: &mut Piece<'_>) {
    attention_with(piece, None);
}

/// The same with a score for each head that has no value; they come in front of the result.
pub(super) fn attention_sinks(piece: &mut Piece<'_>) {
    let sinks = Some(piece.operand_count() - 2);
    attention_with(piece, sinks);
}

/// `sinks` is the operand with the sinks.
fn attention_with(piece: &mut Piece<'_>, sinks: Option<usize>) {
    match piece.layout(1).dtype() {
        DType::F32 => attend::<&[f32]>(piece, sinks),
        DType::F16 => attend::<&[f16]>(piece, sinks),
        DType::BF16 => attend::<&[bf16]>(piece, sinks),
        DType::C8 => attend::<Chunks<'_>>(piece, sinks),
        _ => misuse("the cache holds no floats"),
    }
}

fn attend<'a, S: Store<'a>>(piece: &mut Piece<'a>, sinks: Option<usize>) {
    match Sizes::of(piece).parts() {
        None => attend_tokens::<S>(piece, sinks),
        Some((parts, each)) if piece.index() < parts => attend_part::<S>(piece, parts, each),
        Some((parts, each)) => vectorise(Join { piece, parts, each, sinks }),
    }
}

/// How the elements of a cache lie: the same type holds all of them and one row.
trait Store<'a>: Row {
    /// All elements of an operand.
    fn of(piece: &Piece<'a>, operand: usize) -> Self;

    /// So many elements from `first` on.
    fn part(self, first: usize, count: usize) -> Self;
}

impl<'a, T: Element> Store<'a> for &'a [T] {
    fn of(piece: &Piece<'a>, operand: usize) -> Self {
        piece.src(operand)
    }

    #[inline(always)]
    fn part(self, first: usize, count: usize) -> Self {
        &self[first..][..count]
    }
}

impl<'a> Store<'a> for Chunks<'a> {
    fn of(piece: &Piece<'a>, operand: usize) -> Self {
        let (quants, scales) = piece.src_chunks(operand);
        Self { quants, scales }
    }

    #[inline(always)]
    fn part(self, first: usize, count: usize) -> Self {
        let scales = self.scales.part(first / quant::cache::CHUNK, count / quant::cache::CHUNK);
        Self { quants: &self.quants[first..][..count], scales }
    }
}

/// Keys or values of the cache.
#[derive(Clone, Copy)]
struct Cache<'a, S> {
    elems: S,
    row: usize,
    head: usize,
    cols: usize,
    /// Blocks of the sequence, the rows of each and the last that there is; none where the cache is one sequence.
    blocks: &'a [u32],
    block: usize,
    last: usize,
}

impl<'a, S: Store<'a>> Cache<'a, S> {
    fn new(piece: &Piece<'a>, operand: usize) -> Self {
        let (layout, elems) = (piece.layout(operand), S::of(piece, operand));
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

    /// Some heads of each of some rows, as many as `out` has places for: the only place that knows where rows lie.
    #[inline(always)]
    fn rows(&self, rows: Range<usize>, heads: Range<usize>, out: &mut [S]) {
        let first = heads.start * self.head;
        let width = (heads.len() - 1) * self.head + self.cols;
        let mut out = out.iter_mut();
        let mut row = rows.start;
        while row < rows.end {
            // Rows of a block lie one behind the other.
            let (place, end) = match self.block {
                0 => (row, rows.end),
                block => {
                    let (index, inside) = (row / block, row % block);
                    let place = (self.blocks[index] as usize).min(self.last) * block + inside;
                    (place, rows.end.min((index + 1) * block))
                }
            };
            let mut start = place * self.row + first;
            for out in out.by_ref().take(end - row) {
                *out = self.elems.part(start, width);
                start += self.row;
            }
            row = end;
        }
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

/// Elements of a head with zeros behind them, so that there are whole vectors.
const fn padded(head: usize) -> usize {
    head.next_multiple_of(LANES)
}

/// Softmax of sixteen queries over a part of the cache: the largest score, and the sum of `2^(score - max)`. Beside
/// it is a weighted sum of values for each query.
#[derive(Clone, Copy)]
struct Softmax {
    max: [f32; LANES],
    sum: [f32; LANES],
}

impl Softmax {
    const NOTHING: Self = Self { max: [f32::NEG_INFINITY; LANES], sum: [0.0; LANES] };

    /// From sums, and maxima that need not know of scores that are NaN.
    #[inline(always)]
    fn of(max: &[f32; LANES], sum: &[f32; LANES]) -> Self {
        let mut softmax = Self { max: *max, sum: *sum };
        for (max, sum) in softmax.max.iter_mut().zip(sum) {
            *max = if sum.is_nan() { *sum } else { *max };
        }
        softmax
    }

    /// What a head starts with: its sink, where there are any, whose value is nothing.
    fn start(&mut self, piece: &Piece<'_>, sinks: Option<usize>, head: usize, lane: usize) {
        if let Some(operand) = sinks {
            self.max[lane] = piece.src_row::<f32>(operand, 0)[head] * LOG2_E;
            self.sum[lane] = 1.0;
        }
    }

    /// Adds what the next chunk gave. The values of both are to be multiplied by what it returns.
    #[inline(always)]
    fn add<L: Lanes>(&mut self, l: L, next: &Self) -> (L::Floats, L::Floats) {
        let (old, new) = (l.floats(&self.max), l.floats(&next.max));
        let max = l.max(old, new);
        // Where nothing was seen yet, any other number does: all sums are zero.
        let base = l.choose(l.add(max, l.float(f32::MAX)), max, l.float(0.0));
        let less = l.mul(base, l.float(-1.0));
        let old = math::exp2_lanes(l, l.add(old, less));
        let new = math::exp2_lanes(l, l.add(new, less));
        self.max = l.store(max);
        self.sum = l.store(sum_scaled(l, &self.sum, old, &next.sum, new));
        (old, new)
    }
}

/// `a * old + b * new`.
#[inline(always)]
fn sum_scaled<L: Lanes>(
    l: L,
    a: &[f32; LANES],
    old: L::Floats,
    b: &[f32; LANES],
    new: L::Floats,
) -> L::Floats {
    l.mul_add(l.floats(a), old, l.mul(l.floats(b), new))
}

/// Adds the values of a query in the next chunk to those of chunks before it, whose row has whole vectors.
#[inline(always)]
fn add_scaled<L: Lanes>(l: L, total: &mut [f32], old: f32, next: &[f32], new: f32) {
    let (old, new) = (l.float(old), l.float(new));
    for (at, total) in total.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let next = l.store(sixteen(l, next, at * LANES));
        *total = l.store(sum_scaled(l, total, old, &next, new));
    }
}

/// The weighted mean from a weighted sum of values. A query that sees nothing gives zeros.
#[inline(always)]
fn finish(sum: f32, values: &mut [f32]) {
    if sum != 0.0 {
        values.iter_mut().for_each(|value| *value /= sum);
    }
}

/// A block of tokens, with the heads of one key-value head, through all of the cache they see.
fn attend_tokens<'a, S: Store<'a>>(piece: &mut Piece<'a>, sinks: Option<usize>) {
    let sizes = Sizes::of(piece);
    let mut pass = Pass::take(piece);
    let (keys, values) = (Cache::<S>::new(piece, 1), Cache::<S>::new(piece, 2));
    let (first, end) = (piece.rows().start / sizes.heads, piece.rows().end / sizes.heads);
    let tokens_of_pass = (QUERIES / sizes.group()).max(1);
    let heads = piece.run();
    let kv_head = heads.start / sizes.group();
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
            pass.start(piece, tokens.clone(), heads, sizes, sinks);
            let chunks = chunks(piece, tokens.clone(), sizes.cache_rows);
            for chunk in chunks.clone() {
                let mut ahead = match chunk + 1 < chunks.end {
                    true => Ahead::head(sizes, chunk + 1, kv_head),
                    false => Ahead::NOTHING,
                };
                ahead.starts = chunk == chunks.start;
                pass.chunk(keys, values, kv_head, chunk, ahead, true);
            }
            pass.store(piece);
        }
    }
}

/// All tokens through a part of the cache. Chunks follow each other, and in each the heads, so that a part
/// reads a run of the cache.
fn attend_part<'a, S: Store<'a>>(piece: &mut Piece<'a>, parts: usize, each: usize) {
    let sizes = Sizes::of(piece);
    let summaries = piece.take_joint();
    let mut pass = Pass::take(piece);
    let own = sequence(piece, 0);
    let [keys, values] = [1, 2].map(|operand| Cache::<S>::new(piece, operand).of(piece, own));
    let chunks = chunks(piece, 0..sizes.tokens, sizes.cache_rows);
    let (part, units) = (piece.index(), chunks.len() * sizes.kv_heads);
    let units = part * units / parts..(part + 1) * units / parts;
    debug_assert!(units.len() <= each);
    let start = units.start;
    for (unit, summaries) in units.zip(summaries.chunks_exact_mut(sizes.unit())) {
        let (chunk, kv_head) = (chunks.start + unit / sizes.kv_heads, unit % sizes.kv_heads);
        let heads = kv_head * sizes.group()..(kv_head + 1) * sizes.group();
        // Sinks come in where parts are put together.
        pass.start(piece, 0..sizes.tokens, heads, sizes, None);
        let mut ahead = Ahead::after(sizes, &chunks, chunk, kv_head);
        ahead.starts = unit == start;
        pass.chunk(keys, values, kv_head, chunk, ahead, false);
        pass.summarise(summaries);
    }
}

struct Join<'p, 'a> {
    piece: &'p mut Piece<'a>,
    parts: usize,
    each: usize,
    sinks: Option<usize>,
}

impl Vectorised for Join<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        join(l, self.piece, self.parts, self.each, self.sinks);
    }
}

/// Puts the summaries of all parts together, for up to sixteen queries of a key-value head at a time.
#[inline(always)]
fn join<L: Lanes>(l: L, piece: &mut Piece<'_>, parts: usize, each: usize, sinks: Option<usize>) {
    let sizes = Sizes::of(piece);
    let summaries = &*piece.take_joint();
    let padded = padded(sizes.value);
    let totals = &mut piece.take_scratch()[..LANES * padded];
    let units = chunks(piece, 0..sizes.tokens, sizes.cache_rows).len() * sizes.kv_heads;
    let queries = sizes.tokens * sizes.group();
    for (kv_head, first) in
        (0..sizes.kv_heads).flat_map(|head| (0..queries).step_by(LANES).map(move |q| (head, q)))
    {
        let queries = first..queries.min(first + LANES);
        let head = |query: usize| kv_head * sizes.group() + query % sizes.group();
        let mut total = Softmax::NOTHING;
        for (lane, query) in queries.clone().enumerate() {
            total.start(piece, sinks, head(query), lane);
        }
        totals.fill(0.0);
        for unit in (kv_head..units).step_by(sizes.kv_heads) {
            // The last part that starts at this unit or before it.
            let part = ((unit + 1) * parts - 1) / units;
            let slot = part * each + unit - part * units / parts;
            let found = &summaries[slot * sizes.unit()..][..sizes.unit()];
            let found = found[first * sizes.summary()..].chunks_exact(sizes.summary());
            let mut next = Softmax::NOTHING;
            for (lane, found) in found.clone().take(queries.len()).enumerate() {
                (next.max[lane], next.sum[lane]) = (found[0], found[1]);
            }
            let (old, new) = total.add(l, &next);
            let factors = l.store(old).into_iter().zip(l.store(new)).take(queries.len());
            for ((values, found), (old, new)) in
                totals.chunks_exact_mut(padded).zip(found).zip(factors)
            {
                add_scaled(l, values, old, &found[2..], new);
            }
        }
        let rows = queries.zip(total.sum).zip(totals.chunks_exact_mut(padded));
        for ((query, sum), values) in rows {
            let (row, values) = (query / sizes.group() * sizes.heads, &mut values[..sizes.value]);
            finish(sum, values);
            piece.store_row(piece.operand_count() - 1, row + head(query), values);
        }
    }
}
