//! Ops on elements and whole rows: activations, sums, norms, softmax, copies.

use clearway_graph::{CapturedOpKind as Kind, DType, Map, MapInputs};

use super::{ACTIVATIONS, Fill, List, OperandSpec, Place, input, normal, output};

/// Single elements, odd tails, usual widths, every rank, and one that is larger.
const SHAPES: [&[usize]; 13] = [
    &[1, 1],
    &[64],
    &[1, 7],
    &[2, 33],
    &[3, 64],
    &[7, 65],
    &[33, 127],
    &[2, 256],
    &[3, 576],
    &[1, 2048],
    &[2, 3, 33],
    &[2, 1, 3, 7],
    &[33, 2, 300],
];

const EPS: u32 = 1e-5_f32.to_bits();

pub(super) fn add(list: &mut List) {
    unary(list);
    binary(list);
    norms(list);
    softmax(list);
    copy(list);
    copy_layouts(list);
    concat(list);
    fill(list);
}

/// A bell curve, and at every fourth shape values at which exponentials overflow.
fn activations(index: usize) -> Fill {
    if index % 4 == 3 { Fill::WIDE } else { Fill::NORMAL }
}

/// Element-wise ops with these inputs, and their constants.
fn maps(inputs: MapInputs) -> impl Iterator<Item = (Map, Vec<u32>)> {
    let with_params = |&map: &Map| {
        let usual = crate::ops::map::row(map).usual;
        (map, usual.iter().map(|value| value.to_bits()).collect())
    };
    Map::ALL.iter().filter(move |map| map.inputs() == inputs).map(with_params)
}

fn unary(list: &mut List) {
    let maps = maps(MapInputs::One).map(|(map, params)| (Kind::Map(map), params));
    for (kind, params) in [(Kind::RmsNorm, vec![EPS])].into_iter().chain(maps) {
        let params = &params[..];
        for dtype in ACTIVATIONS {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                let x = input(dtype, shape, activations(index));
                list.push_everywhere(kind, &[x, output(dtype, shape)], params);
            }
            // One row seen again and again: an outer stride of zero.
            let x = OperandSpec { strides: vec![0, 1], ..normal(dtype, &[5, 33]) };
            let y = OperandSpec { buffer: 1, ..output(dtype, &[5, 33]) };
            list.push_as_is(kind, &[x, y], params);
        }
    }
}

fn binary(list: &mut List) {
    for (map, params) in maps(MapInputs::Two) {
        let kind = Kind::Map(map);
        for dtype in ACTIVATIONS {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                // Weights keep their type when activations are rounded.
                let second = if index % 3 == 1 { DType::F32 } else { dtype };
                let row = &shape[shape.len() - 1..];
                for b in [Some(shape), (shape != row).then_some(row)].into_iter().flatten() {
                    let operands = [normal(dtype, shape), normal(second, b), output(dtype, shape)];
                    list.push_everywhere(kind, &operands, &params);
                }
            }
        }
    }
    for (map, params) in maps(MapInputs::Gated) {
        let kind = Kind::Map(map);
        for dtype in ACTIVATIONS {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                let gate = input(dtype, shape, activations(index));
                let operands = [gate, normal(dtype, shape), output(dtype, shape)];
                list.push_everywhere(kind, &operands, &params);
            }
        }
    }
}

fn norms(list: &mut List) {
    for dtype in ACTIVATIONS {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            let weights = if index % 2 == 0 { DType::F32 } else { DType::F16 };
            let row = &shape[shape.len() - 1..];
            let x = normal(dtype, shape);
            let y = output(dtype, shape);
            let w = normal(weights, row);
            // Far from zero, where the difference of two means of squares loses the variance.
            let far = Fill::Normal { mean: 30.0, deviation: 1.0 };
            let skewed = if index % 3 == 2 { input(dtype, shape, far) } else { x.clone() };
            let operands = [skewed, w.clone(), normal(weights, row), y.clone()];
            list.push_everywhere(Kind::LayerNorm, &operands, &[EPS]);

            let full = normal(dtype, shape);
            list.push_everywhere(Kind::RmsNormMul, &[x.clone(), w.clone(), y.clone()], &[EPS]);
            if shape != row {
                let operands = [x.clone(), full.clone(), y.clone()];
                list.push(Kind::RmsNormMul, &operands, &[EPS], Place::cycle(index));
            }

            let residual = if index % 5 == 4 { normal(weights, row) } else { full };
            let operands = [x.clone(), w.clone(), residual.clone(), y.clone()];
            list.push_everywhere(Kind::RmsNormMulAdd, &operands, &[EPS]);
            let sum = [x, residual];
            let place = Place::cycle(index + 1);
            let outputs = [y.clone(), y.clone()];
            list.push(Kind::AddRmsNorm, &[&sum, &outputs[..1]].concat(), &[EPS], place);
            list.push_everywhere(Kind::AddRmsNorm, &[&sum, &outputs[..]].concat(), &[EPS]);
            let inputs = [&sum[..], &[w]].concat();
            list.push(Kind::AddRmsNormMul, &[&inputs, &outputs[..1]].concat(), &[EPS], place);
            list.push_everywhere(Kind::AddRmsNormMul, &[&inputs, &outputs[..]].concat(), &[EPS]);
        }
    }
}

fn softmax(list: &mut List) {
    let shapes: [&[usize]; 12] = [
        &[1, 1],
        &[7],
        &[1, 33],
        &[3, 65],
        &[7, 127],
        &[33, 33],
        &[2, 3, 7],
        &[4, 7, 64],
        &[2, 2, 3, 33],
        &[1, 576],
        &[1, 2048],
        &[9, 33, 300],
    ];
    for dtype in ACTIVATIONS {
        for (index, &shape) in shapes.iter().enumerate() {
            let rows = if shape.len() == 1 { 1 } else { shape[shape.len() - 2] };
            let mask_shape = [rows, shape[shape.len() - 1]];
            let mask_type = if index % 2 == 0 { DType::F32 } else { DType::F16 };
            for (fill, mask, scale) in [
                (Fill::NORMAL, Fill::Causal, 0.125_f32),
                (Fill::NORMAL, Fill::Mask, 1.0),
                (Fill::WIDE, Fill::Causal, 4.0),
            ] {
                let mask = input(mask_type, &mask_shape, mask);
                let operands = [input(dtype, shape, fill), mask, output(dtype, shape)];
                let scale = [scale.to_bits()];
                list.push_strided_and(Kind::Softmax, &operands, &scale, index);
            }
        }
    }
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Every type to every float type, dense or by rows.
fn copy(list: &mut List) {
    for from in DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32) {
        let block = from.block_elems();
        let widths = if block == 1 { [1, 33, 576] } else { [block, 3 * block, 2 * block] };
        for (turn, to) in FLOATS.into_iter().enumerate() {
            for (index, cols) in widths.into_iter().enumerate() {
                let shape = [[1, 1, cols], [2, 7, cols], [3, 1, cols]][index];
                let operands = [normal(from, &shape), output(to, &shape)];
                list.push_strided_and(Kind::Copy, &operands, &[], turn + index);
            }
        }
    }
}

/// Transposed, permuted and thinned-out layouts on either side.
fn copy_layouts(list: &mut List) {
    let layouts: [(&[usize], &[usize]); 8] = [
        (&[33, 7], &[1, 33]),
        (&[64, 65], &[1, 64]),
        (&[7, 33], &[80, 2]),
        (&[33], &[3]),
        (&[3, 5, 7], &[7, 21, 1]),
        (&[5, 9, 2], &[1, 5, 45]),
        (&[2, 3, 4, 5], &[60, 1, 15, 3]),
        (&[129, 255], &[1, 129]),
    ];
    for from in FLOATS {
        for to in FLOATS {
            for (index, &(shape, strides)) in layouts.iter().enumerate() {
                let dense = [normal(from, shape), output(to, shape)];
                for side in [0, 1] {
                    let mut operands = dense.clone();
                    operands[1].buffer = 1;
                    operands[side].strides = strides.to_vec();
                    operands[side].offset = 4 * index as u64;
                    list.push_as_is(Kind::Copy, &operands, &[]);
                }
            }
            // A row for all rows.
            let x = OperandSpec { strides: vec![0, 1], ..normal(from, &[5, 33]) };
            let y = OperandSpec { buffer: 1, ..output(to, &[5, 33]) };
            list.push_as_is(Kind::Copy, &[x, y], &[]);
        }
    }
}

fn concat(list: &mut List) {
    let shapes: [(&[usize], usize, usize); 8] = [
        (&[], 1, 1),
        (&[], 33, 7),
        (&[1], 64, 64),
        (&[3], 7, 65),
        (&[7], 127, 1),
        (&[2, 3], 33, 64),
        (&[2, 1, 3], 5, 9),
        (&[33, 2], 256, 320),
    ];
    for dtype in ACTIVATIONS {
        for (outer, a, b) in shapes {
            let shape = |cols: usize| [outer, &[cols]].concat();
            let operands =
                [normal(dtype, &shape(a)), normal(dtype, &shape(b)), output(dtype, &shape(a + b))];
            list.push_everywhere(Kind::Concat, &operands, &[]);
        }
    }
}

fn fill(list: &mut List) {
    for dtype in ACTIVATIONS {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            let value = [0.0_f32, -1.5, 1024.0, f32::NEG_INFINITY][index % 4];
            list.push_everywhere(Kind::Fill, &[output(dtype, shape)], &[value.to_bits()]);
        }
        let thin = OperandSpec { strides: vec![70, 2], ..output(dtype, &[7, 33]) };
        list.push_as_is(Kind::Fill, &[thin], &[1.0_f32.to_bits()]);
        let transposed = OperandSpec { strides: vec![1, 7], ..output(dtype, &[7, 33]) };
        list.push_as_is(Kind::Fill, &[transposed], &[1.0_f32.to_bits()]);
    }
}
