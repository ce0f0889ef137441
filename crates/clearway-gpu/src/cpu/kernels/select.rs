//! The largest elements of rows.
//!
//! Order: NaN first, then larger before smaller, of equals the lower index first.

use clearway_graph::TensorView;

use super::norm::softmax_row;
use super::rows::{f32_row, f32_row_memory};
use super::{cut, math, reduce};
use crate::cpu::{Grid, Piece};
use crate::ops::NO_INDEX;

/// The output has one row, an id for each row of the input.
pub(super) fn arg_max_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let x = &views[0].layout;
    let wanted = cut::pieces(x.elems().saturating_mul(4)).min(x.rows());
    Grid::tiles(1, 1, x.rows(), x.rows().div_ceil(wanted)).with_scratch(f32_row_memory(x))
}

/// [`NO_INDEX`] for a row whose first element in the order is not finite.
pub(super) fn arg_max(piece: &mut Piece<'_>) {
    let memory = piece.take_scratch();
    let rows = piece.cols();
    for row in rows.clone() {
        let x = f32_row(piece, 0, row, memory);
        let top = reduce::max_or_nan(x);
        let index = if top.is_finite() { first_of(x, top) } else { None };
        piece.dst_row::<u32>(1, 0)[row - rows.start] = index.map_or(NO_INDEX, |i| i as u32);
    }
}

/// Index of the first element that equals `value`. Whole blocks are looked through without a branch.
fn first_of(x: &[f32], value: f32) -> Option<usize> {
    const BLOCK: usize = 256;
    let found = |block: &[f32]| block.iter().fold(false, |found, &x| found | (x == value));
    let start = x.chunks(BLOCK).position(found)? * BLOCK;
    Some(start + x[start..].iter().position(|&x| x == value)?)
}

pub(super) fn top_k_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let (x, chosen) = (&views[0].layout, views[1].layout.cols());
    cut::rows(x.rows(), 1, 8 * x.cols()).with_scratch(f32_row_memory(x) + 2 * chosen)
}

pub(super) fn top_k(piece: &mut Piece<'_>) {
    let (mut best, memory) = Best::take(piece, 1);
    for row in piece.rows() {
        best.choose(f32_row(piece, 0, row, memory));
        piece.store_row(1, row, best.values);
        piece.dst_row(2, row).copy_from_slice(best.ids);
    }
}

pub(super) fn router_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let (x, chosen) = (&views[0].layout, views[1].layout.cols());
    cut::rows(x.rows(), 1, 8 * x.cols()).with_scratch(x.cols() + 2 * chosen)
}

/// Experts are chosen by their logits, of which all three kinds of weight are rising functions;
/// weights that round to the same number keep the order of the logits. Weights that are all 0 are
/// not scaled to sum to 1.
pub(super) fn router_top_k(piece: &mut Piece<'_>) {
    let (mode, renormalise, scale) = (piece.int(0), piece.int(1) == 1, piece.float(2));
    let (mut best, logits) = Best::take(piece, 1);
    for row in piece.rows() {
        piece.load_row(0, row, logits);
        best.choose(logits);
        piece.dst_row(1, row).copy_from_slice(best.ids);
        let weights = &mut *best.values;
        match mode {
            0 => {
                softmax_row(logits);
                for (weight, &id) in weights.iter_mut().zip(&*best.ids) {
                    *weight = logits[id as usize];
                }
            }
            1 => softmax_row(weights),
            _ => weights.iter_mut().for_each(|w| *w = math::sigmoid(*w)),
        }
        scale_weights(weights, renormalise, scale);
        piece.store_row(2, row, weights);
    }
}

/// Weights that are all 0 are not scaled to sum to 1.
fn scale_weights(weights: &mut [f32], renormalise: bool, scale: f32) {
    let sum = if renormalise { reduce::sum(weights) } else { 1.0 };
    if sum != 0.0 {
        weights.iter_mut().for_each(|w| *w = *w / sum * scale);
    }
}

pub(super) fn router_groups_grid(views: &[TensorView], params: &[u32]) -> Grid {
    let (x, chosen) = (&views[0].layout, views[views.len() - 2].layout.cols());
    let scratch = 3 * x.cols() + params[GROUPS] as usize + 2 * chosen;
    cut::rows(x.rows(), 1, 16 * x.cols()).with_scratch(scratch)
}

/// Constants of a router with groups: how many there are, how many are used, and how many experts make their score.
const GROUPS: usize = 3;
const GROUPS_USED: usize = 4;
const BEST: usize = 5;

/// Softmaxes choose by logits, of which they are rising functions.
pub(super) fn router_groups(piece: &mut Piece<'_>) {
    let (softmax, renormalise, scale) = (piece.int(0) == 0, piece.int(1) == 1, piece.float(2));
    let [groups, used, best_of] = [GROUPS, GROUPS_USED, BEST].map(|i| piece.int(i) as usize);
    let ids = piece.operand_count() - 2;
    let (mut best, rest) = Best::take(piece, ids);
    let experts = piece.layout(0).cols();
    let (shares, rest) = rest.split_at_mut(experts);
    let (scores, rest) = rest.split_at_mut(experts);
    let (open, of_groups) = rest.split_at_mut(experts);
    let size = experts / groups;
    for row in piece.rows() {
        piece.load_row(0, row, shares);
        if softmax {
            scores.copy_from_slice(shares);
            softmax_row(shares);
        } else {
            shares.iter_mut().for_each(|share| *share = math::sigmoid(*share));
            scores.copy_from_slice(shares);
            if ids == 2 {
                let bias = piece.src_row::<f32>(1, 0);
                scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
            }
        }
        for (group, score) in scores.chunks_exact(size).zip(of_groups.iter_mut()) {
            *score = sum_of_best(group, best_of);
        }
        let of_groups = &of_groups[..groups];
        let is_open = |group: usize| {
            let own = (of_groups[group], group as u32);
            let before = |&other: &usize| is_before((of_groups[other], other as u32), own);
            (0..groups).filter(before).count() < used
        };
        // The experts of open groups side by side, in their order.
        let mut slots = open.chunks_exact_mut(size);
        for group in (0..groups).filter(|&group| is_open(group)) {
            if let Some(slot) = slots.next() {
                slot.copy_from_slice(&scores[group * size..(group + 1) * size]);
            }
        }
        best.choose(&open[..used * size]);
        for (id, weight) in best.ids.iter_mut().zip(&mut *best.values) {
            let slot = *id as usize / size;
            let group = (0..groups).filter(|&group| is_open(group)).nth(slot).unwrap_or(0);
            *id = (group * size + *id as usize % size) as u32;
            *weight = shares[*id as usize];
        }
        piece.dst_row(ids, row).copy_from_slice(best.ids);
        scale_weights(best.values, renormalise, scale);
        piece.store_row(ids + 1, row, best.values);
    }
}

/// The largest element, or the sum of the two largest.
fn sum_of_best(group: &[f32], best: usize) -> f32 {
    let (mut first, mut second) = ((f32::NEG_INFINITY, u32::MAX), (f32::NEG_INFINITY, u32::MAX));
    for (index, &score) in group.iter().enumerate() {
        let entry = (score, index as u32);
        if is_before(entry, first) {
            (first, second) = (entry, first);
        } else if is_before(entry, second) {
            second = entry;
        }
    }
    if best == 2 { first.0 + second.0 } else { first.0 }
}

/// The best elements of a row. While a row is read it is a heap with the worst of them in front.
struct Best<'a> {
    values: &'a mut [f32],
    ids: &'a mut [u32],
}

impl<'a> Best<'a> {
    /// Memory for as many as `output` has columns, and the rest of the scratch.
    fn take(piece: &mut Piece<'a>, output: usize) -> (Self, &'a mut [f32]) {
        let chosen = piece.layout(output).cols();
        let (best, rest) = piece.take_scratch().split_at_mut(2 * chosen);
        let (values, ids) = best.split_at_mut(chosen);
        (Self { values, ids: bytemuck::cast_slice_mut(ids) }, rest)
    }

    /// Chooses as many elements as fit and sorts them.
    fn choose(&mut self, row: &[f32]) {
        let (first, rest) = row.split_at(self.values.len());
        self.values.copy_from_slice(first);
        for (index, id) in self.ids.iter_mut().enumerate() {
            *id = index as u32;
        }
        for root in (0..first.len() / 2).rev() {
            self.sift(root, first.len());
        }
        for (index, &value) in rest.iter().enumerate() {
            let id = (first.len() + index) as u32;
            if is_before((value, id), self.entry(0)) {
                (self.values[0], self.ids[0]) = (value, id);
                self.sift(0, first.len());
            }
        }
        for end in (1..first.len()).rev() {
            self.swap(0, end);
            self.sift(0, end);
        }
    }

    fn entry(&self, index: usize) -> (f32, u32) {
        (self.values[index], self.ids[index])
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.values.swap(a, b);
        self.ids.swap(a, b);
    }

    /// Moves an entry down the heap of the first `len` entries until none below it is worse.
    fn sift(&mut self, mut root: usize, len: usize) {
        loop {
            let mut worst = root;
            for child in [2 * root + 1, 2 * root + 2] {
                if child < len && is_before(self.entry(worst), self.entry(child)) {
                    worst = child;
                }
            }
            if worst == root {
                return;
            }
            self.swap(root, worst);
            root = worst;
        }
    }
}

/// Whether `a` comes before `b` in the order of the module.
fn is_before(a: (f32, u32), b: (f32, u32)) -> bool {
    if a.0 > b.0 || (a.0.is_nan() && !b.0.is_nan()) {
        return true;
    }
    let tie = a.0 == b.0 || (a.0.is_nan() && b.0.is_nan());
    tie && a.1 < b.1
}
