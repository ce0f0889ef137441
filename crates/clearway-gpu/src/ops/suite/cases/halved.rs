//! Values that are f16 for the products that read them: who writes them, and products of them.

use clearway_graph::testkit::kind;
use clearway_graph::{CapturedOpKind as Kind, DType, Map};

use super::fused::EPS;
use super::positional::sinks;
use super::products::inner;
use super::{Fill, List, Place, input, normal, output};
use crate::ops::map::row;

/// Places where dense operands stay dense.
const PLACES: [Place; 3] = [Place::Dense, Place::Shifted, Place::Arena];

/// Rows, blocks of 32 or of 256 to a row, outer extent: whole tiles, and borders on all sides.
const SIZES: [(usize, [usize; 2], usize); 4] =
    [(9, [1, 1], 64), (33, [9, 2], 130), (67, [18, 3], 72), (129, [4, 1], 200)];

pub(super) fn add(list: &mut List) {
    written(list);
    attended(list);
    read(list);
    experts(list);
}

/// Norms and gates, with rows of any length.
fn written(list: &mut List) {
    for (index, (t, k)) in [(9, 32), (12, 576), (33, 96), (17, 4128)].into_iter().enumerate() {
        let [x, y] = [normal(DType::F32, &[t, k]), output(DType::A16, &[t, k])];
        let (sum, w) = (output(DType::F32, &[t, k]), normal(DType::F32, &[k]));
        let place = PLACES[index % PLACES.len()];
        let pair = [&x, &y].map(Clone::clone);
        list.push(Kind::RmsNorm, &pair, &[EPS], place);
        let weighed = [&x, &w, &y].map(Clone::clone);
        list.push(Kind::RmsNormMul, &weighed, &[EPS], place);
        for gate in [Map::SiluMul, Map::GeluMul, Map::ClampedGate] {
            let params: Vec<u32> = row(gate).usual.iter().map(|param| param.to_bits()).collect();
            list.push(Kind::Map(gate), &[&x, &x, &y].map(Clone::clone), &params, place);
        }
        list.push(Kind::AddRmsNorm, &[&x, &x, &sum, &y].map(Clone::clone), &[EPS], place);
        list.push(Kind::AddRmsNorm, &[&x, &x, &y].map(Clone::clone), &[EPS], place);
        list.push(Kind::AddRmsNormMul, &[&x, &x, &w, &sum, &y].map(Clone::clone), &[EPS], place);
        list.push(Kind::AddRmsNormMul, &[&x, &x, &w, &y].map(Clone::clone), &[EPS], place);
    }
}

/// Attention with heads of whole runs: few tokens and many, windows, soft caps, both types of caches.
fn attended(list: &mut List) {
    let sizes = [(9, 4, 2, 64, 40), (33, 6, 2, 128, 70), (17, 2, 1, 96, 64), (20, 8, 8, 32, 50)];
    for (index, (t, heads, kv_heads, head, rows)) in sizes.into_iter().enumerate() {
        for cache in [DType::F16, DType::F32] {
            let operands = [
                normal(DType::F32, &[t, heads, head]),
                normal(cache, &[rows, kv_heads, head]),
                normal(cache, &[rows, kv_heads, head]),
                input(DType::U32, &[t], Fill::Positions { start: (rows - t) as u32 }),
                output(DType::A16, &[t, heads, head]),
            ];
            let window = if index % 2 == 1 { 24 } else { 0 };
            let cap = if index == 2 { 30.0_f32 } else { 0.0 };
            let params = [(head as f32).powf(-0.5).to_bits(), window, cap.to_bits(), 0];
            list.push(Kind::Attention, &operands, &params, PLACES[index % PLACES.len()]);
            let [q, k, v, positions, y] = operands;
            let operands = [q, k, v, positions, sinks(heads), y];
            list.push(Kind::AttentionSinks, &operands, &params, PLACES[index % PLACES.len()]);
        }
    }
}

fn read(list: &mut List) {
    let types = DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32 && dtype != DType::F32);
    for (number, weight) in types.enumerate() {
        for (index, &(t, blocks, n)) in SIZES.iter().enumerate() {
            let k = if weight.is_quantised() { inner(weight, blocks) } else { 32 * blocks[0] };
            let (x, w) = (normal(DType::A16, &[t, k]), normal(weight, &[n, k]));
            let y = output(DType::F32, &[t, n]);
            let place = PLACES[(number + index) % PLACES.len()];
            list.push(Kind::MATMUL, &[&x, &w, &y].map(Clone::clone), &[], place);
            let c =
                if index % 2 == 0 { normal(DType::F32, &[t, n]) } else { normal(DType::F32, &[n]) };
            list.push(kind("matmul_add"), &[x, w, c, y], &[], place);
        }
    }
}

/// Experts whose rows are in order.
fn experts(list: &mut List) {
    let types = DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32 && dtype != DType::F32);
    for (number, weight) in types.enumerate() {
        for (index, shared) in [true, false].into_iter().enumerate() {
            let (t, used, experts, n) = [(33, 4, 6, 130), (70, 2, 3, 64)][(number + index) % 2];
            let k = if weight.is_quantised() { inner(weight, [3, 1]) } else { 96 };
            let x = if shared { vec![t, k] } else { vec![t, used, k] };
            let count = experts as u32;
            let order = &[experts + 2 + t * used];
            let operands = [
                normal(DType::A16, &x),
                normal(weight, &[experts, n, k]),
                input(DType::U32, &[t, used], Fill::Experts { experts: count }),
                input(DType::U32, order, Fill::OrderOfExperts { experts: count }),
                output(DType::F32, &[t, used, n]),
            ];
            list.push(Kind::MatMulExperts, &operands, &[], PLACES[(number + index) % PLACES.len()]);
        }
    }
}
