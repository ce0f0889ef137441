//! Queries of one key-value head on their way through a chunk of the cache.
//!
//! Many queries lie in vectors ([`wide`]), a few meet vectors of keys ([`narrow`]). Both do the same to each
//! query in the same order, so that the bits of a result do not depend on how many queries there are.
//!
//! Each step is compiled for every set of instructions on its own ([`vectorise`]), and only those that read the cache for
//! every type of it: as one function for each type they took minutes to compile.

mod chunk;

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::narrow::{self, Block, KEYS};
use super::wide::{self, Seen, Wide, by_vectors};
use super::{Ahead, CHUNK, Cache, Sizes, Softmax, Store, add_scaled, finish, padded, seen};
use crate::cpu::Piece;
use crate::cpu::simd::float::LANES;
use crate::cpu::simd::{Lanes, Vectorised, vectorise};
use chunk::ROWS;

/// Queries that go through the cache together.
pub(super) const QUERIES: usize = 96;

/// Vectors of them.
const VECTORS: usize = QUERIES / LANES;

/// Fewest queries that lie in vectors.
const FEWEST_WIDE: usize = 12;

pub(super) struct Pass<'a> {
    /// What queries are multiplied by: scores are logarithms to the base of two, or what is capped.
    scale: f32,
    softcap: f32,
    /// Elements of a head of keys, and of values.
    head: usize,
    value: usize,
    /// Rows of the output, one for each query.
    rows: [usize; QUERIES],
    /// Rows of the cache each query sees, those that all queries of a vector see, and those that any does.
    seen: [Range<usize>; QUERIES],
    all: [Range<usize>; VECTORS],
    any: [Range<usize>; VECTORS],
    /// What queries in vectors see of this chunk, where some do not see all that others do, and their largest scores.
    hidden: [bool; VECTORS],
    /// Whether all of them see all of the chunk.
    whole: bool,
    sees: Seen<VECTORS>,
    maxima: Wide<VECTORS>,
    /// What their totals and outputs are multiplied by.
    old: Wide<VECTORS>,
    new: Wide<VECTORS>,
    /// What each query has found in this chunk, and in those before it.
    found: [Softmax; VECTORS],
    total: [Softmax; VECTORS],
    len: usize,
    /// Queries: `P` vectors of each element, or as [`narrow::interleave`] lays them, tile by tile.
    queries: &'a mut [f32],
    /// Weighted sums of value rows, of this chunk and of those before it: `P` vectors of each element, or query by query.
    outputs: &'a mut [f32],
    totals: &'a mut [f32],
    /// Scores of all queries.
    scores: &'a mut [f32],
    /// Some rows of keys, or some rows of queries before they are laid.
    keys: &'a mut [f32],
    /// Values of a chunk, or some rows of outputs.
    values: &'a mut [f32],
}

/// Does work with several queries at a time, as many as the machine has registers for.
macro_rules! by_tile {
    ($lanes:ident, $left:expr, $tile:ident => $work:expr) => {
        match $left {
            8.. if const { $lanes::TILE >= 8 } => {
                const $tile: usize = 8;
                $work
            }
            4.. if const { $lanes::TILE >= 4 } => {
                const $tile: usize = 4;
                $work
            }
            3 if const { $lanes::TILE >= 4 } => {
                const $tile: usize = 3;
                $work
            }
            2 if const { $lanes::TILE >= 4 } => {
                const $tile: usize = 2;
                $work
            }
            _ => {
                const $tile: usize = 1;
                $work
            }
        }
    };
}

impl<'a> Pass<'a> {
    /// Floats of scratch.
    pub(super) fn floats(head: usize, value: usize) -> usize {
        let (head, value) = (padded(head), padded(value));
        QUERIES * (head + 2 * value + CHUNK) + ROWS * head + CHUNK * value
    }

    pub(super) fn take(piece: &mut Piece<'a>) -> Self {
        let (head, value) = (piece.layout(0).cols(), piece.layout(2).cols());
        let (queries, rest) = piece.take_scratch().split_at_mut(QUERIES * padded(head));
        let (outputs, rest) = rest.split_at_mut(QUERIES * padded(value));
        let (totals, rest) = rest.split_at_mut(QUERIES * padded(value));
        let (scores, rest) = rest.split_at_mut(QUERIES * CHUNK);
        let (keys, values) = rest.split_at_mut(ROWS * padded(head));
        let (scale, softcap) = (piece.float(0), piece.float(2));
        Self {
            scale: if softcap > 0.0 { scale } else { scale * LOG2_E },
            softcap,
            head,
            value,
            rows: [0; QUERIES],
            seen: [const { 0..0 }; QUERIES],
            all: [const { 0..0 }; VECTORS],
            any: [const { 0..0 }; VECTORS],
            hidden: [false; VECTORS],
            whole: false,
            sees: Seen::NOTHING,
            maxima: [[f32::NEG_INFINITY; LANES]; VECTORS],
            old: [[0.0; LANES]; VECTORS],
            new: [[0.0; LANES]; VECTORS],
            found: [Softmax::NOTHING; VECTORS],
            total: [Softmax::NOTHING; VECTORS],
            len: 0,
            queries,
            outputs,
            totals,
            scores,
            keys,
            values: &mut values[..CHUNK * padded(value)],
        }
    }

    fn is_wide(&self) -> bool {
        self.len >= FEWEST_WIDE
    }

    fn vectors(&self) -> usize {
        self.len.div_ceil(LANES)
    }

    /// Starts with some heads of some tokens, at most [`QUERIES`] together.
    pub(super) fn start(
        &mut self,
        piece: &Piece<'_>,
        tokens: Range<usize>,
        heads: Range<usize>,
        sizes: Sizes,
        sinks: Option<usize>,
    ) {
        self.len = 0;
        self.total.fill(Softmax::NOTHING);
        for token in tokens {
            let seen = seen(piece, token, sizes.cache_rows);
            for head in heads.clone() {
                self.rows[self.len] = token * sizes.heads + head;
                self.seen[self.len] = seen.clone();
                self.total[self.len / LANES].start(piece, sinks, head, self.len % LANES);
                self.len += 1;
            }
        }
        vectorise(Lay { pass: self, piece });
        let rows = if self.is_wide() { self.vectors() * LANES } else { self.len };
        self.totals[..rows * padded(self.value)].fill(0.0);
    }

    #[inline(always)]
    fn lay_narrow<L: Lanes>(&mut self, piece: &Piece<'_>) {
        let padded = padded(self.head);
        let mut query = 0;
        while query < self.len {
            query += by_tile!(L, self.len - query, T => {
                let rows = &self.rows[query..][..T];
                let rows = load_rows(piece, rows, self.head, self.scale, self.keys);
                narrow::interleave::<T>(rows, &mut self.queries[query * padded..]);
                T
            });
        }
    }

    #[inline(always)]
    fn lay_wide<L: Lanes>(&mut self, l: L, piece: &Piece<'_>) {
        let head = padded(self.head);
        let mut at = 0;
        while at < self.vectors() {
            at += by_vectors!(L, self.vectors() - at, (P, _T) => {
                let wide = wide::<P>(&mut self.queries[at * LANES * head..], head);
                for vector in 0..P {
                    let queries = (at + vector) * LANES..self.len.min((at + vector + 1) * LANES);
                    // There are no keys yet: queries lie there row by row first.
                    self.keys[..LANES * head].fill(0.0);
                    let rows = &self.rows[queries.clone()];
                    load_rows(piece, rows, self.head, self.scale, self.keys);
                    wide::transpose::<L, P>(l, &self.keys[..LANES * head], vector, wide);
                    let ranges = self.seen[queries].iter();
                    let some = ranges.clone().filter(|seen| !seen.is_empty());
                    self.any[at + vector] = some.clone().map(|seen| seen.start).min().unwrap_or(0)
                        ..some.map(|seen| seen.end).max().unwrap_or(0);
                    self.all[at + vector] = ranges.clone().map(|seen| seen.start).max().unwrap_or(0)
                        ..ranges.map(|seen| seen.end).min().unwrap_or(0);
                }
                P
            });
        }
    }

    /// Takes all queries through a chunk, and adds what it gave to what those before it gave if that is to be done.
    pub(super) fn chunk<'c, S: Store<'c>>(
        &mut self,
        keys: Cache<'c, S>,
        values: Cache<'c, S>,
        kv_head: usize,
        chunk: usize,
        ahead: Ahead,
        add: bool,
    ) {
        let chunk = chunk * CHUNK..(chunk + 1) * CHUNK;
        let first = chunk.start;
        if self.is_wide() {
            let rows = within(&self.any[..self.vectors()], &chunk);
            self.chunk_wide([&keys, &values], kv_head, rows, first, &ahead, add);
            return;
        }
        let (caches, rows) = ([keys, values], within(&self.seen[..self.len], &chunk));
        vectorise(ChunkNarrow { pass: self, caches, kv_head, rows, first, ahead });
        if add {
            vectorise(Add { pass: self });
        }
    }

    #[inline(always)]
    fn chunk_narrow<'c, L: Lanes, S: Store<'c>>(
        &mut self,
        l: L,
        [keys, values]: [Cache<'c, S>; 2],
        kv_head: usize,
        rows: Range<usize>,
        first: usize,
        ahead: Ahead,
    ) {
        let value = padded(self.value);
        let scores = self.scores.as_chunks_mut::<CHUNK>().0;
        let blocks = (rows.start / KEYS * KEYS..rows.end).step_by(KEYS);
        if ahead.starts {
            for cache in [keys, values] {
                for block in blocks.clone() {
                    narrow::fetch(l, &lines(cache, kv_head, &rows, block), 0, 1);
                }
            }
        }
        for block in blocks.clone() {
            let lines = lines(keys, kv_head, &rows, block);
            let (next, count) = lines_ahead(keys, &ahead, (block - first) / KEYS);
            let panels = padded(self.head) / LANES;
            for (part, lines) in lines.as_chunks::<LANES>().0.iter().enumerate() {
                for panel in 0..panels {
                    let turns = panels * (KEYS / LANES);
                    narrow::fetch(l, &next[..count], part * panels + panel, turns);
                    let at = panel * LANES;
                    let square = if at + LANES <= self.head {
                        narrow::square::<L, S, true>(l, lines, at)
                    } else {
                        narrow::square::<L, S, false>(l, lines, at)
                    };
                    let key = block - first + part * LANES;
                    let mut query = 0;
                    while query < self.len {
                        let queries = &self.queries[query * panels * LANES..];
                        let scores = &mut scores[query..];
                        query += by_tile!(L, self.len - query, T => {
                            narrow::add_scores::<L, T>(l, queries, &square, at, key, scores);
                            T
                        });
                    }
                }
            }
        }
        let mut parts = [(0, 0); LANES];
        for (part, seen) in parts.iter_mut().zip(&self.seen[..self.len]) {
            let seen = common(seen, &(first..first + CHUNK));
            if !seen.is_empty() {
                *part = (seen.start - first, seen.end - first);
            }
        }
        let parts = &mut parts[..self.len];
        self.found[0] = narrow::weigh(l, self.softcap, parts, scores);
        self.outputs[..self.len * value].fill(0.0);
        for block in blocks {
            let at = block - first;
            let lines = lines(values, kv_head, &rows, block);
            let (next, count) = lines_ahead(values, &ahead, at / KEYS);
            let mut block = Block { index: at / KEYS, rows: &lines, ahead: &next[..count] };
            let mut query = 0;
            while query < self.len {
                // Queries that see the same rows go together; others must not meet rows they do not see.
                let part = parts[query];
                let same = parts[query..].iter().take_while(|other| **other == part);
                let (weights, outputs) = (&scores[query..], &mut self.outputs[query * value..]);
                let part = (part.0.clamp(at, at + KEYS) - at, part.1.clamp(at, at + KEYS) - at);
                query += by_tile!(L, same.count(), T => {
                    narrow::add_values::<L, S, T>(l, weights, block, part, self.value, outputs);
                    T
                });
                block.ahead = &[];
            }
        }
    }

    /// Adds what the chunk gave to what those before it gave.
    #[inline(always)]
    fn add_narrow<L: Lanes>(&mut self, l: L) {
        let value = padded(self.value);
        let (old, new) = self.total[0].add(l, &self.found[0]);
        let (old, new) = (l.store(old), l.store(new));
        let rows = self.totals.chunks_exact_mut(value).zip(self.outputs.chunks_exact(value));
        for ((total, output), (old, new)) in rows.take(self.len).zip(old.into_iter().zip(new)) {
            add_scaled(l, total, old, output, new);
        }
    }

    /// Stores what all chunks gave.
    pub(super) fn store(&mut self, piece: &mut Piece<'_>) {
        let padded = padded(self.value);
        for vector in 0..self.vectors() {
            vectorise(LayRows { pass: self, vector, outputs: false });
            let queries = self.rows[vector * LANES..self.len].iter().zip(self.total[vector].sum);
            for ((row, sum), values) in queries.zip(self.values.chunks_exact_mut(padded)) {
                let values = &mut values[..self.value];
                finish(sum, values);
                piece.store_row(piece.operand_count() - 1, *row, values);
            }
        }
    }

    /// Leaves what the chunk gave for the piece that joins the parts.
    pub(super) fn summarise(&mut self, summaries: &mut [f32]) {
        let (size, padded) = (2 + self.value, padded(self.value));
        for vector in 0..self.vectors() {
            vectorise(LayRows { pass: self, vector, outputs: true });
            let Softmax { max, sum } = self.found[vector];
            let summaries =
                summaries[vector * LANES * size..self.len * size].chunks_exact_mut(size);
            let rows = self.values.chunks_exact(padded).zip(max.into_iter().zip(sum));
            for (out, (values, (max, sum))) in summaries.zip(rows) {
                (out[0], out[1]) = (max, sum);
                out[2..].copy_from_slice(&values[..self.value]);
            }
        }
    }

    /// Lays the outputs or totals of a vector of queries row by row where values are.
    #[inline(always)]
    fn lay_rows<L: Lanes>(&mut self, l: L, vector: usize, outputs: bool) {
        let (value, vectors, is_wide) = (padded(self.value), self.vectors(), self.is_wide());
        let from = if outputs { &mut *self.outputs } else { &mut *self.totals };
        if !is_wide {
            let rows = self.len * value;
            self.values[..rows].copy_from_slice(&from[..rows]);
            return;
        }
        let mut at = 0;
        while at < vectors {
            at += by_vectors!(L, vectors - at, (P, _T) => {
                if (at..at + P).contains(&vector) {
                    let from = wide::<P>(&mut from[at * LANES * value..], value);
                    wide::untranspose(l, from, vector - at, self.values);
                }
                P
            });
        }
    }
}

struct Lay<'p, 'a, 'b, 'c> {
    pass: &'p mut Pass<'a>,
    piece: &'b Piece<'c>,
}

impl Vectorised for Lay<'_, '_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        if self.pass.is_wide() {
            self.pass.lay_wide(l, self.piece);
        } else {
            self.pass.lay_narrow::<L>(self.piece);
        }
    }
}

struct ChunkNarrow<'p, 'a, 'c, S> {
    pass: &'p mut Pass<'a>,
    /// Keys and values.
    caches: [Cache<'c, S>; 2],
    kv_head: usize,
    rows: Range<usize>,
    first: usize,
    ahead: Ahead,
}

impl<'c, S: Store<'c>> Vectorised for ChunkNarrow<'_, '_, 'c, S> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { pass, caches, kv_head, rows, first, ahead } = self;
        pass.chunk_narrow(l, caches, kv_head, rows, first, ahead);
    }
}

struct Add<'p, 'a> {
    pass: &'p mut Pass<'a>,
}

impl Vectorised for Add<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.pass.add_narrow(l);
    }
}

struct LayRows<'p, 'a> {
    pass: &'p mut Pass<'a>,
    vector: usize,
    outputs: bool,
}

impl Vectorised for LayRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.pass.lay_rows(l, self.vector, self.outputs);
    }
}

/// Floats as `P` vectors of each of `len` elements.
#[inline(always)]
fn wide<const P: usize>(floats: &mut [f32], len: usize) -> &mut [Wide<P>] {
    &mut floats.as_chunks_mut::<LANES>().0.as_chunks_mut::<P>().0[..len]
}

/// Loads rows of queries, scaled and with zeros behind each.
#[inline(always)]
fn load_rows<'b>(
    piece: &Piece<'_>,
    rows: &[usize],
    head: usize,
    scale: f32,
    out: &'b mut [f32],
) -> &'b [f32] {
    let out = &mut out[..rows.len() * padded(head)];
    for (row, elems) in rows.iter().zip(out.chunks_exact_mut(padded(head))) {
        let (elems, rest) = elems.split_at_mut(head);
        piece.load_row(0, *row, elems);
        elems.iter_mut().for_each(|elem| *elem *= scale);
        rest.fill(0.0);
    }
    out
}

/// Rows of a block. Those that are not among `rows`, which nobody looks at, are like the first that is.
#[inline(always)]
fn lines<'c, S: Store<'c>>(
    cache: Cache<'c, S>,
    kv_head: usize,
    rows: &Range<usize>,
    block: usize,
) -> [S; KEYS] {
    let rows = common(rows, &(block..block + KEYS));
    let mut lines = [S::EMPTY; KEYS];
    cache.rows(rows.start..rows.start + 1, kv_head..kv_head + 1, &mut lines);
    lines = [lines[0]; KEYS];
    cache.rows(rows.clone(), kv_head..kv_head + 1, &mut lines[rows.start - block..]);
    lines
}

/// What is asked for in a block of a chunk, and how many rows that is.
#[inline(always)]
fn lines_ahead<'c, S: Store<'c>>(
    cache: Cache<'c, S>,
    ahead: &Ahead,
    block: usize,
) -> ([S; KEYS], usize) {
    let mut lines = [S::EMPTY; KEYS];
    let rows = ahead.part(block);
    cache.rows(rows.clone(), ahead.heads.clone(), &mut lines);
    (lines, rows.len())
}

/// What of a chunk is in any of some ranges.
#[inline(always)]
fn within(ranges: &[Range<usize>], chunk: &Range<usize>) -> Range<usize> {
    let parts = ranges.iter().map(|range| common(range, chunk)).filter(|part| !part.is_empty());
    let start = parts.clone().map(|part| part.start).min().unwrap_or(chunk.start);
    start..parts.map(|part| part.end).max().unwrap_or(start)
}

fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}
