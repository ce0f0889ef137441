//! Queries in vectors and a chunk of the cache: all scores, then their weights, then all sums of values.
//!
//! Keys are widened a few rows at a time, which meet all queries while they are in the nearest cache. What reads the
//! cache is a function of its own, small enough for every type of it.

use std::ops::Range;

use super::super::row::Row;
use super::super::wide::{Seen, by_vectors};
use super::super::{CHUNK, Softmax, padded};
use super::{Ahead, Cache, Pass, Store, common, wide, within};
use crate::cpu::simd::float::LANES;
use crate::cpu::simd::{Lanes, Vectorised, vectorise};

/// Rows that are widened together.
pub(super) const ROWS: usize = LANES;

impl Pass<'_> {
    pub(super) fn chunk_wide<'c, S: Store<'c>>(
        &mut self,
        [keys, values]: [&Cache<'c, S>; 2],
        kv_head: usize,
        rows: Range<usize>,
        first: usize,
        ahead: &Ahead,
        add: bool,
    ) {
        self.maxima.fill([f32::NEG_INFINITY; LANES]);
        let chunk = first..first + CHUNK;
        self.whole = self.all[..self.vectors()].iter().all(|all| common(all, &chunk) == chunk);
        for block in (rows.start / ROWS * ROWS..rows.end).step_by(ROWS) {
            let (some, at) = (common(&rows, &(block..block + ROWS)), block - first);
            let next = ahead.rows.start + at..ahead.rows.end.min(ahead.rows.start + at + ROWS);
            let (rows, heads) = ([some.clone(), next], [kv_head..kv_head + 1, ahead.heads.clone()]);
            let place = some.start - block;
            load(keys, &rows, &heads, ROWS, place, self.keys);
            load(values, &rows, &heads, CHUNK, at + place, self.values);
            vectorise(Scores { pass: self, first, block: at });
        }
        vectorise(Weigh { pass: self, first, add });
        vectorise(Sum { pass: self, first, add });
    }

    /// Rows of a chunk that any of `P` vectors of queries sees, and whether all of them see all of it.
    #[inline(always)]
    fn visible<const P: usize>(&self, at: usize, chunk: &Range<usize>) -> (Range<usize>, bool) {
        let mut all = self.all[at..at + P].iter();
        if self.whole || all.all(|all| common(all, chunk) == *chunk) {
            return (0..CHUNK, true);
        }
        let rows = within(&self.any[at..at + P], chunk);
        (rows.start - chunk.start..rows.end - chunk.start, false)
    }

    /// Scores of the keys of a block, which is row `block` of the chunk and those behind it.
    #[inline(always)]
    fn scores<L: Lanes>(&mut self, l: L, first: usize, block: usize) {
        let (head, chunk) = (padded(self.head), first..first + CHUNK);
        let mut at = 0;
        while at < self.vectors() {
            at += by_vectors!(L, self.vectors() - at, (P, T) => {
                let (rows, _) = self.visible::<P>(at, &chunk);
                let rows = common(&rows, &(block..block + ROWS));
                let queries = &*wide::<P>(&mut self.queries[at * LANES * head..], head);
                let scores = wide::<P>(&mut self.scores[at * LANES * CHUNK..], CHUNK);
                if let Some(maxima) = self.maxima[at..].first_chunk_mut::<P>() {
                    for row in (rows.start / T * T..rows.end).step_by(T) {
                        let (keys, out) = (&*self.keys, &mut scores[row..]);
                        wide::scores::<L, P, T>(l, queries, keys, row - block, maxima, out);
                    }
                }
                P
            });
        }
    }

    /// Turns the scores of the chunk into weights.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, l: L, first: usize, add: bool) {
        let chunk = first..first + CHUNK;
        let mut at = 0;
        while at < self.vectors() {
            at += by_vectors!(L, self.vectors() - at, (P, _T) => {
                let (rows, whole) = self.visible::<P>(at, &chunk);
                let scores = wide::<P>(&mut self.scores[at * LANES * CHUNK..], CHUNK);
                let seen = || Seen::<P>::new(&self.seen[..self.len], at, &chunk);
                let mut hidden = (!whole).then(seen);
                let mut maxima = [[f32::NEG_INFINITY; LANES]; P];
                maxima.copy_from_slice(&self.maxima[at..at + P]);
                if !whole || self.softcap > 0.0 {
                    maxima = wide::mask(l, rows.clone(), hidden.as_ref(), self.softcap, scores);
                }
                let (base, nothing) = wide::base(&maxima);
                let sums = wide::weigh(l, rows, &base, scores);
                if nothing {
                    // Rows without any weight are not touched, whatever their values are.
                    hidden.get_or_insert_with(seen).hide(&maxima);
                }
                let found = self.found[at..at + P].iter_mut().zip(maxima.iter().zip(&sums));
                for (found, (max, sum)) in found {
                    *found = Softmax::of(max, sum);
                }
                self.hidden[at] = hidden.is_some();
                if let Some(hidden) = &hidden {
                    self.sees.set_part(at, hidden);
                }
                P
            });
        }
        if add {
            for vector in 0..self.vectors() {
                let (old, new) = self.total[vector].add(l, &self.found[vector]);
                (self.old[vector], self.new[vector]) = (l.store(old), l.store(new));
            }
        }
    }

    /// Sums values by their weights.
    #[inline(always)]
    fn sum<L: Lanes>(&mut self, l: L, first: usize, add: bool) {
        let (value, chunk) = (padded(self.value), first..first + CHUNK);
        let panels = self.values.as_chunks::<LANES>().0.as_chunks::<CHUNK>().0;
        for (panel, values) in panels.iter().enumerate() {
            let mut at = 0;
            while at < self.len.div_ceil(LANES) {
                at += by_vectors!(L, self.len.div_ceil(LANES) - at, (P, T) => {
                    let (rows, _) = self.visible::<P>(at, &chunk);
                    let scores = &*wide::<P>(&mut self.scores[at * LANES * CHUNK..], CHUNK);
                    let out = if add { &mut *self.totals } else { &mut *self.outputs };
                    let out = wide::<P>(&mut out[at * LANES * value..], value);
                    let out = &mut out[panel * LANES..][..LANES];
                    let factors = match (self.old[at..].first_chunk(), self.new[at..].first_chunk()) {
                        (Some(old), Some(new)) if add => Some((old, new)),
                        _ => None,
                    };
                    if self.hidden[at] {
                        let seen = Some(&self.sees.part::<P>(at));
                        wide::sum_values::<L, P, T>(l, rows, seen, scores, values, factors, out);
                    } else {
                        wide::sum_values::<L, P, T>(l, rows, None, scores, values, factors, out);
                    }
                    P
                });
            }
        }
    }
}

/// Widens some rows of a cache, `tall` of which have room, from place `place` on, and asks for others.
#[inline(always)]
fn load<'c, S: Store<'c>>(
    cache: &Cache<'c, S>,
    [rows, ahead]: &[Range<usize>; 2],
    [own, heads]: &[Range<usize>; 2],
    tall: usize,
    place: usize,
    out: &mut [f32],
) {
    let [mut lines, mut next] = [[S::EMPTY; ROWS]; 2];
    cache.rows(rows.clone(), own.clone(), &mut lines);
    cache.rows(ahead.clone(), heads.clone(), &mut next);
    let (rows, ahead) = (&lines[..rows.len()], &next[..ahead.len()]);
    let out = out.as_chunks_mut::<LANES>().0;
    vectorise(Load { rows, ahead, cols: cache.cols, tall, place, out });
}

/// Widens rows: sixteen elements of `tall` of them lie together, then the next sixteen.
struct Load<'p, S> {
    rows: &'p [S],
    /// Rows to ask for meanwhile.
    ahead: &'p [S],
    /// Elements of a row.
    cols: usize,
    tall: usize,
    /// Where the first row goes.
    place: usize,
    out: &'p mut [[f32; LANES]],
}

impl<S: Row> Vectorised for Load<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { rows, ahead, cols, tall, place, out } = self;
        ahead.iter().for_each(|row| row.fetch(l));
        for (panel, out) in out.chunks_exact_mut(tall).enumerate() {
            let (at, out) = (panel * LANES, &mut out[place..]);
            if at + LANES <= cols {
                wide::load::<L, S, true>(l, rows, at, out);
            } else {
                wide::load::<L, S, false>(l, rows, at, out);
            }
        }
    }
}

struct Scores<'p, 'a> {
    pass: &'p mut Pass<'a>,
    first: usize,
    block: usize,
}

impl Vectorised for Scores<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.pass.scores(l, self.first, self.block);
    }
}

struct Weigh<'p, 'a> {
    pass: &'p mut Pass<'a>,
    first: usize,
    add: bool,
}

impl Vectorised for Weigh<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.pass.weigh(l, self.first, self.add);
    }
}

struct Sum<'p, 'a> {
    pass: &'p mut Pass<'a>,
    first: usize,
    add: bool,
}

impl Vectorised for Sum<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.pass.sum(l, self.first, self.add);
    }
}
