//! Queries of one key-value head on their way through a chunk of the cache.
//!
//! Many queries lie in vectors ([`wide`]), a few meet vectors of keys ([`narrow`]). Both do the same to each
//! query in the same order, so that the bits of a result do not depend on how many queries there are.
//!
//! Each step is compiled for every set of instructions on its own ([`vectorise`]), and only those that read the cache for
//! every type of it: as one function for each type they took minutes to compile.

use std::ops::Range;

use super::narrow::{self, Block, KEYS};
use super::row::Row;
use super::wide::{self, Seen, Wide, by_vectors};
use super::{
    Ahead, CHUNK, Cache, Sizes, Softmax, Store, add_scaled, finish, padded, seen, sum_scaled,
};
use crate::cpu::Piece;
use crate::cpu::simd::float::LANES;
use crate::cpu::simd::{Lanes, Vectorised, vectorise};

/// Queries that go through the cache together.
pub(super) const QUERIES: usize = 96;

/// Vectors of them.
const VECTORS: usize = QUERIES / LANES;

/// Fewest queries that lie in vectors.
const FEWEST_WIDE: usize = 12;

/// Most vectors of queries whose scores are there at a time.
const WIDEST: usize = 3;

pub(super) struct Pass<'a> {
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
    /// What each query has found in this chunk, and in those before it.
    found: [Softmax; VECTORS],
    total: [Softmax; VECTORS],
    len: usize,
    /// Queries: `P` vectors of each element, or as [`narrow::interleave`] lays them, tile by tile.
    queries: &'a mut [f32],
    /// Weighted sums of value rows, of this chunk and of those before it: `P` vectors of each element, or query by query.
    outputs: &'a mut [f32],
    totals: &'a mut [f32],
    /// Scores of some vectors of queries, or of a few queries.
    scores: &'a mut [f32],
    /// Keys and values of a chunk, or of a block of it.
    keys: &'a mut [f32],
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
        QUERIES * (head + 2 * value) + WIDEST * LANES * CHUNK + CHUNK * (head + value)
    }

    pub(super) fn take(piece: &mut Piece<'a>) -> Self {
        let (head, value) = (piece.layout(0).cols(), piece.layout(2).cols());
        let (queries, rest) = piece.take_scratch().split_at_mut(QUERIES * padded(head));
        let (outputs, rest) = rest.split_at_mut(QUERIES * padded(value));
        let (totals, rest) = rest.split_at_mut(QUERIES * padded(value));
        let (scores, rest) = rest.split_at_mut(WIDEST * LANES * CHUNK);
        let (keys, values) = rest.split_at_mut(CHUNK * padded(head));
        Self {
            scale: piece.float(0),
            softcap: piece.float(2),
            head,
            value,
            rows: [0; QUERIES],
            seen: [const { 0..0 }; QUERIES],
            all: [const { 0..0 }; VECTORS],
            any: [const { 0..0 }; VECTORS],
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
                let rows = load_rows(piece, &self.rows[query..][..T], self.head, self.keys);
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
                    load_rows(piece, rows, self.head, self.keys);
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

    /// Takes all queries through a chunk.
    pub(super) fn chunk<'c, S: Store<'c>>(
        &mut self,
        keys: Cache<'c, S>,
        values: Cache<'c, S>,
        kv_head: usize,
        chunk: usize,
        ahead: Ahead,
    ) {
        let chunk = chunk * CHUNK..(chunk + 1) * CHUNK;
        let parts = self.seen[..self.len].iter().map(|seen| common(seen, &chunk));
        let parts = parts.filter(|part| !part.is_empty());
        let start = parts.clone().map(|part| part.start).min().unwrap_or(chunk.start);
        let end = parts.map(|part| part.end).max().unwrap_or(chunk.start);
        if self.is_wide() {
            let (own, first) = (kv_head..kv_head + 1, start - chunk.start);
            let [mut keys_lines, mut values_lines, mut next] = [[S::EMPTY; CHUNK]; 3];
            keys.rows(start..end, own.clone(), &mut keys_lines);
            values.rows(start..end, own, &mut values_lines);
            keys.rows(ahead.rows.clone(), ahead.heads, &mut next);
            let (keys, values) = (&keys_lines[..end - start], &values_lines[..end - start]);
            vectorise(Load { rows: keys, ahead: values, first, chunk: self.keys });
            let ahead = &next[..ahead.rows.len()];
            vectorise(Load { rows: values, ahead, first, chunk: self.values });
            vectorise(ChunkWide { pass: self, first: chunk.start });
        } else {
            let (caches, rows, first) = ([keys, values], start..end, chunk.start);
            vectorise(ChunkNarrow { pass: self, caches, kv_head, rows, first, ahead });
        }
    }

    #[inline(always)]
    fn chunk_wide<L: Lanes>(&mut self, l: L, first: usize) {
        let (head, value) = (padded(self.head), padded(self.value));
        let chunk = first..first + CHUNK;
        let mut at = 0;
        while at < self.vectors() {
            at += by_vectors!(L, self.vectors() - at, (P, T) => {
                let queries = &*wide::<P>(&mut self.queries[at * LANES * head..], head);
                let outputs = wide::<P>(&mut self.outputs[at * LANES * value..], value);
                let scores = wide::<P>(self.scores, CHUNK);
                let vectors = at..at + P;
                let all = self.all[vectors.clone()].iter();
                let whole = all.into_iter().all(|all| common(all, &chunk) == chunk);
                let mut rows = 0..CHUNK;
                let mut hidden = None;
                if !whole {
                    let any = self.any[vectors.clone()].iter().map(|any| common(any, &chunk));
                    let any = any.filter(|any| !any.is_empty());
                    rows = any.clone().map(|any| any.start - first).min().unwrap_or(0)
                        ..any.map(|any| any.end - first).max().unwrap_or(0);
                    hidden = Some(Seen::new(&self.seen[..self.len], at, &chunk));
                }
                let mut maxima = [[f32::NEG_INFINITY; LANES]; P];
                for row in (rows.start / T * T..rows.end).step_by(T) {
                    let (keys, scale) = (&*self.keys, self.scale);
                    wide::scores::<L, P, T>(l, queries, keys, row, scale, &mut maxima, scores);
                }
                if hidden.is_some() || self.softcap > 0.0 {
                    maxima = wide::mask(l, rows.clone(), hidden.as_ref(), self.softcap, scores);
                }
                let (base, nothing) = wide::base(&maxima);
                let sums = wide::weigh(l, rows.clone(), &base, scores);
                if nothing {
                    // Rows without any weight are not touched, whatever their values are.
                    let seen = || Seen::new(&self.seen[..self.len], at, &chunk);
                    hidden.get_or_insert_with(seen).hide(&maxima);
                }
                let found = self.found[vectors].iter_mut().zip(maxima.iter().zip(&sums));
                for (found, (max, sum)) in found {
                    *found = Softmax::of(max, sum);
                }
                let panels = self.values.as_chunks::<LANES>().0.as_chunks::<CHUNK>().0;
                for (panel, out) in panels.iter().zip(outputs.chunks_exact_mut(LANES)) {
                    let rows = rows.clone();
                    match &hidden {
                        None => wide::sum_values::<L, P, T>(l, rows, None, scores, panel, out),
                        some => wide::sum_values::<L, P, T>(l, rows, some.as_ref(), scores, panel, out),
                    }
                }
                P
            });
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
        self.found[0] = narrow::weigh(l, self.scale, self.softcap, parts, scores);
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
    pub(super) fn add(&mut self) {
        vectorise(Add { pass: self });
    }

    #[inline(always)]
    fn add_with<L: Lanes>(&mut self, l: L) {
        let value = padded(self.value);
        if !self.is_wide() {
            let (old, new) = self.total[0].add(l, &self.found[0]);
            let (old, new) = (l.store(old), l.store(new));
            let rows = self.totals.chunks_exact_mut(value).zip(self.outputs.chunks_exact(value));
            for ((total, output), (old, new)) in rows.take(self.len).zip(old.into_iter().zip(new)) {
                add_scaled(l, total, old, output, new);
            }
            return;
        }
        let mut at = 0;
        while at < self.vectors() {
            at += by_vectors!(L, self.vectors() - at, (P, _T) => {
                let mut factors = [(l.float(0.0), l.float(0.0)); P];
                let pairs = self.total[at..].iter_mut().zip(&self.found[at..]);
                for (factors, (total, found)) in factors.iter_mut().zip(pairs) {
                    *factors = total.add(l, found);
                }
                let totals = wide::<P>(&mut self.totals[at * LANES * value..], value);
                let outputs = wide::<P>(&mut self.outputs[at * LANES * value..], value);
                for (totals, outputs) in totals.iter_mut().zip(outputs) {
                    for ((total, output), (old, new)) in totals.iter_mut().zip(outputs).zip(factors) {
                        *total = l.store(sum_scaled(l, total, old, output, new));
                    }
                }
                P
            });
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

struct Load<'p, S> {
    rows: &'p [S],
    /// Rows that come next.
    ahead: &'p [S],
    first: usize,
    chunk: &'p mut [f32],
}

impl<S: Row> Vectorised for Load<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        wide::load(l, self.rows, self.ahead, self.first, self.chunk);
    }
}

struct ChunkWide<'p, 'a> {
    pass: &'p mut Pass<'a>,
    first: usize,
}

impl Vectorised for ChunkWide<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.pass.chunk_wide(l, self.first);
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
        self.pass.add_with(l);
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

/// Loads rows of queries, with zeros behind each.
#[inline(always)]
fn load_rows<'b>(piece: &Piece<'_>, rows: &[usize], head: usize, out: &'b mut [f32]) -> &'b [f32] {
    let out = &mut out[..rows.len() * padded(head)];
    for (row, elems) in rows.iter().zip(out.chunks_exact_mut(padded(head))) {
        let (elems, rest) = elems.split_at_mut(head);
        piece.load_row(0, *row, elems);
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

fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}
