//! Rotary position embedding, into a tensor or straight into a KV cache.
//!
//! Angles are in double precision: at positions of some ten thousand an f32 angle is off by
//! thousandths.

use clearway_graph::TensorView;

use super::{cut, math, shape};
use crate::cpu::{Grid, Piece};

/// Angles whose sines and cosines are computed together.
const AT_ONCE: usize = 16;

/// Cut into whole tokens, whose heads share their angles.
pub(super) fn grid(views: &[TensorView], params: &[u32]) -> Grid {
    let x = &views[0].layout;
    let heads = x.shape4()[2] as usize;
    cut::rows(x.rows(), heads, 8 * x.cols()).with_scratch(scratch(x.cols(), params))
}

pub(super) fn kv_write_grid(views: &[TensorView], params: &[u32]) -> Grid {
    let x = &views[0].layout;
    shape::lanes(x).with_scratch(scratch(x.cols(), params))
}

#[inline(always)]
pub(super) fn rope(piece: &mut Piece<'_>) {
    let mut rotation = Rotation::take(piece);
    for row in piece.rows() {
        let rotated = rotation.head(piece, row);
        piece.store_row(3, row, rotated);
    }
}

/// Tokens in order, so that the last one wins where two have one position.
#[inline(always)]
pub(super) fn rope_kv_write(piece: &mut Piece<'_>) {
    let mut rotation = Rotation::take(piece);
    shape::each_cache_row(piece, 3, 4, |piece, row, cache_row| {
        let rotated = rotation.head(piece, row);
        piece.store_row(4, cache_row, rotated);
    });
}

/// Two heads, and the cosines and sines of a token.
fn scratch(head: usize, params: &[u32]) -> usize {
    2 * head + params[0] as usize
}

/// Rotates heads of operand 0 by the positions of operand 1 and the factors of operand 2.
struct Rotation<'a> {
    pairs: usize,
    adjacent: bool,
    /// Ratio of two neighbouring frequencies.
    ratio: f64,
    scale: f64,
    magnitude: f64,
    factors: &'a [f32],
    /// The token whose angles are in `cos` and `sin`.
    token: Option<usize>,
    cos: &'a mut [f32],
    sin: &'a mut [f32],
    head: &'a mut [f32],
    rotated: &'a mut [f32],
}

impl<'a> Rotation<'a> {
    fn take(piece: &mut Piece<'a>) -> Self {
        let dims = piece.int(0) as usize;
        let pairs = dims / 2;
        let (angles, heads) = piece.take_scratch().split_at_mut(dims);
        let (cos, sin) = angles.split_at_mut(pairs);
        let (head, rotated) = heads.split_at_mut(heads.len() / 2);
        Self {
            pairs,
            adjacent: piece.int(1) == 0,
            ratio: f64::from(piece.float(2)).powf(-1.0 / pairs as f64),
            scale: f64::from(piece.float(3)),
            magnitude: f64::from(piece.float(4)),
            factors: piece.src_row(2, 0),
            token: None,
            cos,
            sin,
            head,
            rotated,
        }
    }

    /// The rotated elements of one row; rows count heads of all tokens.
    #[inline(always)]
    fn head(&mut self, piece: &Piece<'_>, row: usize) -> &[f32] {
        let heads = piece.layout(0).shape4()[2] as usize;
        self.angles(piece, row / heads);
        piece.load_row(0, row, self.head);
        let (head, rotated, pairs) = (&*self.head, &mut *self.rotated, self.pairs);
        let angles = self.cos.iter().zip(&*self.sin);
        if self.adjacent {
            let pairs = head.as_chunks::<2>().0.iter().zip(rotated.as_chunks_mut::<2>().0);
            for ((&[a, b], rotated), (&cos, &sin)) in pairs.zip(angles) {
                *rotated = [a * cos - b * sin, a * sin + b * cos];
            }
        } else {
            let (low, high) = rotated.split_at_mut(pairs);
            let heads = head.iter().zip(&head[pairs..]);
            let rotated = low.iter_mut().zip(high);
            for (((low, high), (&a, &b)), (&cos, &sin)) in rotated.zip(heads).zip(angles) {
                (*low, *high) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
        self.rotated[2 * pairs..].copy_from_slice(&self.head[2 * pairs..]);
        self.rotated
    }

    #[inline(always)]
    fn angles(&mut self, piece: &Piece<'_>, token: usize) {
        if self.token == Some(token) {
            return;
        }
        self.token = Some(token);
        let position = f64::from(piece.src_row::<u32>(1, 0)[token]) * self.scale;
        let mut frequency = 1.0;
        let angles = self.cos.chunks_mut(AT_ONCE).zip(self.sin.chunks_mut(AT_ONCE));
        for ((cos, sin), factors) in angles.zip(self.factors.chunks(AT_ONCE)) {
            let mut angles = [0.0; AT_ONCE];
            for (angle, &factor) in angles.iter_mut().zip(factors) {
                *angle = position * frequency / f64::from(factor);
                frequency *= self.ratio;
            }
            let (sines, cosines) = math::sin_cos(&angles);
            for ((cos, sin), (c, s)) in cos.iter_mut().zip(sin).zip(cosines.iter().zip(&sines)) {
                (*cos, *sin) = ((self.magnitude * c) as f32, (self.magnitude * s) as f32);
            }
        }
    }
}
