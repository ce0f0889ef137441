//! Words that are written for products, run by the interpreter over real packed weights and held against the reference
//! in f64.

use clearway_graph::{BindingRole, CapturedOpKind, DType, Layout};
use half::f16;

use super::super::spirv::writer::CONSTANT;
use super::interpreter::run;
use super::words;
use crate::ops::reference::{RefTensor, reference};
use crate::quant;
use crate::wgsl::listing::WgslTarget;
use crate::wgsl::{self, Job, Kernel, Operand, Packing, Target, Wide, WideMatrices, planes};

const TYPES: [DType; 12] = [
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// What a card says that has such matrices.
const MATRICES: WideMatrices =
    WideMatrices { multiples: [32, 32, 16], invocations: 256, largest: 1024, decodes: true };

/// Where the addend of a product lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addend {
    None,
    Apart,
    InPlace,
}

/// A product of random numbers.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    outer: usize,
    inner: usize,
    weights: DType,
    addend: Addend,
}

struct Random(u64);

impl Random {
    fn many(&mut self, count: usize) -> Vec<f32> {
        let next = |_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }
}

fn target(processors: u32, wide: Option<WideMatrices>) -> Target {
    Target { cooperative: true, processors, wide, ..WgslTarget::default().target }
}

impl Case {
    fn operands(&self) -> Vec<Operand> {
        let operand = |name, dtype, shape: [usize; 2], written: bool| Operand {
            name,
            layout: Layout::new(dtype, &shape).unwrap(),
            role: if written { BindingRole::Write } else { BindingRole::Read },
            shift: 0,
            packing: Packing::Plain,
            rows: None,
            same_as: None,
        };
        let Self { rows, outer, inner, .. } = *self;
        let mut w = operand("w", self.weights, [outer, inner], false);
        if self.weights.is_quantised() {
            w.packing = Packing::Planes;
        }
        let mut all = vec![operand("x", DType::A16, [rows, inner], false), w];
        if self.addend != Addend::None {
            all.push(operand("c", DType::F32, [rows, outer], false));
        }
        let mut y = operand("y", DType::F32, [rows, outer], true);
        y.same_as = (self.addend == Addend::InPlace).then_some(2);
        all.push(y);
        all
    }

    fn kind(&self) -> CapturedOpKind {
        match self.addend {
            Addend::None => CapturedOpKind::MATMUL,
            _ => clearway_graph::testkit::kind("matmul_add"),
        }
    }

    /// Kernels on matrices of a workgroup.
    fn wide(&self, target: &Target) -> Vec<Wide> {
        let all = kernels(self.kind(), self.operands(), target);
        all.into_iter().filter_map(|kernel| kernel.wide).collect()
    }

    /// Runs the words of a product and compares all it has written, and tells how far the worst element is off in parts of
    /// what it may be off.
    fn error(&self, product: &Wide, words: &[u32]) -> f64 {
        let Self { rows, outer, inner, .. } = *self;
        let mut random = Random((rows * 31 + outer) as u64 ^ (inner as u64) << 20);
        let x: Vec<f32> =
            random.many(rows * inner).into_iter().map(|x| f16::from_f32(x).to_f32()).collect();
        let (w_bytes, w) = self.packed(&mut random);
        let c = random.many(if self.addend == Addend::None { 0 } else { rows * outer });
        let x_stride = product.x_stride as usize;
        let stride = product.y.1 as usize;
        let mut buffers = vec![Vec::new(); 6];
        buffers[0] = activations(&x, inner, x_stride);
        buffers[1] = w_bytes;
        let nan = vec![f32::NAN; rows * stride];
        if let Some((binding, c_stride)) = product.addend {
            buffers[binding as usize] = spread(&c, outer, c_stride as usize);
        }
        if product.addend.is_none_or(|(binding, _)| binding != product.y.0) {
            buffers[product.y.0 as usize] = bytemuck::cast_slice(&nan).to_vec();
        }
        if product.decodes() {
            for binding in product.again() {
                buffers[binding as usize] = buffers[1].clone();
            }
        }
        let before = buffers.clone();
        let [tile_m, tile_n, _] = product.tile.map(|size| size as usize);
        run(words, &mut buffers, [(rows / tile_m) as u32, (outer / tile_n) as u32, 1]);

        let exact = |dtype, shape: &[usize], values: &[f32]| {
            RefTensor::new(dtype, shape, values.iter().map(|&v| v.into()).collect())
        };
        let mut operands =
            vec![exact(DType::F32, &[rows, inner], &x), exact(self.weights, &[outer, inner], &w)];
        if self.addend != Addend::None {
            operands.push(exact(DType::F32, &[rows, outer], &c));
        }
        operands.push(RefTensor::output(DType::F32, &[rows, outer]));
        let wanted = reference(self.kind(), &operands, &[]).unwrap().remove(0).data;
        let y: Vec<f32> = bytemuck::pod_collect_to_vec(&buffers[product.y.0 as usize]);
        let mut worst = 0.0_f64;
        for (at, &wanted) in wanted.iter().enumerate() {
            let (row, column) = (at / outer, at % outer);
            let found = f64::from(y[row * stride + column]);
            let products = x[row * inner..][..inner].iter().zip(&w[column * inner..][..inner]);
            let size: f64 = products.map(|(x, w)| f64::from(x * w).abs()).sum();
            // A weight is rounded to f16 once, and sums are f32.
            let allowed = size * (2.0_f64.powi(-11) + inner as f64 * 2.0_f64.powi(-24)) + 1e-6;
            assert!(found.is_finite(), "{self:?}: element {at} of {product:?} is {found}");
            worst = worst.max((found - wanted).abs() / allowed);
        }
        // Between rows, and in all that is only read, nothing has changed.
        for (binding, before) in before.into_iter().enumerate() {
            let mut after = buffers[binding].clone();
            if binding == product.y.0 as usize {
                for row in 0..rows {
                    let at = 4 * row * stride..4 * (row * stride + outer);
                    after[at.clone()].copy_from_slice(&before[at]);
                }
            }
            assert!(before == after, "binding {binding} has changed: {product:?}");
        }
        worst
    }

    /// Weights as they lie on a device, and their values.
    fn packed(&self, random: &mut Random) -> (Vec<u8>, Vec<f32>) {
        let values = random.many(self.outer * self.inner);
        let layout = Layout::new(self.weights, &[self.outer, self.inner]).unwrap();
        let mut bytes = vec![0; layout.span_bytes() as usize];
        quant::encode(self.weights, &values, &mut bytes).unwrap();
        let mut exact = vec![0.0; values.len()];
        quant::decode(self.weights, &bytes, &mut exact).unwrap();
        (planes::pack(self.weights, &bytes).unwrap_or(bytes), exact)
    }

    /// Checks the words of a product.
    #[track_caller]
    fn check(&self, product: &Wide) {
        let error = self.error(product, &words(product));
        assert!(error <= 1.0, "{self:?}: {error} of what {product:?} may be off");
    }
}

/// All kernels of a job.
fn kernels(kind: CapturedOpKind, operands: Vec<Operand>, target: &Target) -> Vec<Kernel> {
    let mut job = Job { kind, operands, params: &[], target, choice: 0 };
    let choices = wgsl::choices(&job);
    let lower = |choice| {
        job.choice = choice;
        wgsl::lower(&job).unwrap()
    };
    (0..choices).map(lower).collect()
}

/// Runs of f16 in the first half of the bytes of 32 floats. What lies between is no number.
fn activations(x: &[f32], inner: usize, stride: usize) -> Vec<u8> {
    let mut halves = vec![f16::NAN; x.len() / inner * stride * 2];
    for (at, &x) in x.iter().enumerate() {
        let (row, column) = (at / inner, at % inner);
        halves[row * stride * 2 + column / 32 * 64 + column % 32] = f16::from_f32(x);
    }
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// Rows of f32, so far apart.
fn spread(c: &[f32], columns: usize, stride: usize) -> Vec<u8> {
    let mut floats = vec![f32::NAN; c.len() / columns * stride];
    for (row, c) in c.chunks(columns).enumerate() {
        floats[row * stride..][..columns].copy_from_slice(c);
    }
    bytemuck::cast_slice(&floats).to_vec()
}

/// A product in the smallest tiles, so that many can be run.
fn small(case: Case, tile: [u32; 3], weights_left: bool) -> Wide {
    let whole = Case { rows: 256, ..case };
    let first = whole.wide(&target(1, Some(MATRICES)))[0];
    Wide { tile, weights_left, ..first }
}

#[test]
fn weights_of_all_types_are_multiplied() {
    let mut count = 0;
    for weights in TYPES {
        for (addend, tile, left) in [
            (Addend::None, [32, 32, 64], false),
            (Addend::InPlace, [32, 64, 64], true),
            (Addend::Apart, [64, 32, 32], true),
            (Addend::Apart, [32, 64, 32], false),
        ] {
            let case = Case { rows: 64, outer: 128, inner: 256, weights, addend };
            case.check(&small(case, tile, left));
            count += 1;
        }
    }
    assert_eq!(count, 48);
}

#[test]
fn all_shapes_of_whole_tiles_are_multiplied() {
    for weights in [DType::F16, DType::Q4_0, DType::Q6_K] {
        for (rows, outer, inner) in [(32, 128, 512), (96, 384, 256), (64, 256, 768)] {
            for (addend, left) in [(Addend::None, false), (Addend::InPlace, true)] {
                let case = Case { rows, outer, inner, weights, addend };
                case.check(&small(case, [32, 32, 64], left));
            }
        }
    }
}

#[test]
fn rows_may_lie_further_apart() {
    for weights in [DType::F16, DType::Q8_0] {
        for (addend, step) in [(Addend::Apart, 32), (Addend::InPlace, 64)] {
            let case = Case { rows: 64, outer: 128, inner: 128, weights, addend };
            let dense = small(case, [32, 64, step], true);
            let c = dense.addend.map(|(binding, _)| (binding, 140));
            // What is in place has one distance.
            let y = (dense.y.0, if addend == Addend::InPlace { 140 } else { 132 });
            case.check(&Wide { x_stride: 160, y, addend: c, ..dense });
        }
    }
}

#[test]
fn a_wrong_number_in_the_words_is_found_out() {
    let wrong = |weights: DType, from: u32, to: u32| {
        let case = Case { rows: 64, outer: 128, inner: 256, weights, addend: Addend::None };
        let product = small(case, [32, 64, 64], true);
        let right = words(&product);
        let mut words = right.clone();
        let is_constant = |i: &[u32]| i[0] == 4 << 16 | CONSTANT && i[3] == from;
        let at = words.windows(4).position(is_constant).unwrap();
        words[at + 3] = to;
        case.error(&product, &words)
    };
    // Masks of nibbles and bits, zeros, and the word at which scales begin.
    assert!(wrong(DType::Q4_0, 15, 7) > 1.0);
    assert!(wrong(DType::Q4_K, 15, 14) > 1.0);
    assert!(wrong(DType::Q5_K, 16, 4) > 1.0);
    assert!(wrong(DType::Q8_0, 0x6480, 0x6481) > 1.0);
    assert!(wrong(DType::Q6_K, 0x4b00_0020, 0x4b00_0021) > 1.0);
    let (starts, _) = planes::offsets(DType::Q4_0, 128 * 256 / 32);
    let first = 2 * (starts[1] / 4) as u32;
    assert!(wrong(DType::Q4_0, first, first - 1) > 1.0);
}

#[test]
fn kernels_of_a_card_are_right_in_their_own_tiles() {
    for (weights, tiles) in [(DType::F16, 2), (DType::Q4_K, 2)] {
        let case = Case { rows: 256, outer: 256, inner: 256, weights, addend: Addend::InPlace };
        // Few processors are content with large tiles.
        let all = case.wide(&target(1, Some(MATRICES)));
        assert_eq!(all.len(), 2 * tiles, "with two steps each: {all:?}");
        all.iter().for_each(|product| case.check(product));
    }
}

#[test]
fn only_whole_tiles_of_what_a_device_has_are_taken() {
    let case =
        Case { rows: 512, outer: 4096, inner: 4096, weights: DType::Q4_K, addend: Addend::None };
    let tiles = |case: Case, target: &Target| -> Vec<[u32; 3]> {
        case.wide(target).iter().map(|product| product.tile).collect()
    };
    let card = target(132, Some(MATRICES));
    // 64 tiles of 256 by 128 are too few for 132 processors, and 128 of 128 by 128 are as many as there can be.
    assert_eq!(tiles(case, &card), [[128, 128, 64], [128, 128, 32]]);
    let large = Case { rows: 2048, ..case };
    assert_eq!(
        tiles(large, &card),
        [[256, 128, 64], [256, 128, 32], [128, 128, 64], [128, 128, 32]]
    );
    let plain = Case { weights: DType::F16, ..large };
    assert_eq!(tiles(plain, &card)[..2], [[128, 256, 64], [128, 256, 32]]);
    // Rows, outer and inner extents that are not whole tiles.
    assert_eq!(tiles(Case { rows: 2048 + 64, ..case }, &card), [[0; 3]; 0]);
    assert_eq!(tiles(Case { rows: 2048 + 128, ..case }, &card), [[128, 128, 64], [128, 128, 32]]);
    assert_eq!(tiles(Case { outer: 4096 + 32, ..large }, &card), [[0; 3]; 0]);
    let odd = Case { weights: DType::F16, inner: 4096 + 32, ..large };
    assert_eq!(tiles(odd, &card), [[128, 256, 32], [128, 128, 32]]);
    // What lies elsewhere, in f32, or in parts, and a row that is added to all others.
    let added = Case { addend: Addend::Apart, ..large };
    type Change = fn(&mut Vec<Operand>);
    let changes: [Change; 5] = [
        |all| all[0].layout = Layout::new(DType::F32, &[2048, 4096]).unwrap(),
        |all| all[0].shift = 16,
        |all| all[1].rows = Some([0, 8192]),
        |all| all[1].packing = Packing::Plain,
        |all| all[2].layout = Layout::new(DType::F32, &[4096]).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut operands = added.operands();
        assert_eq!(kernels(added.kind(), operands.clone(), &card).len(), 5);
        change(&mut operands);
        let left = kernels(added.kind(), operands, &card);
        assert!(left.iter().all(|kernel| kernel.wide.is_none()), "change {number}");
    }
    // A device that decodes nothing, one with smaller matrices, one without any, one that was not asked.
    let with = |matrices| target(132, Some(matrices));
    assert_eq!(tiles(large, &with(WideMatrices { decodes: false, ..MATRICES })), [[0; 3]; 0]);
    let small = WideMatrices { largest: 128, ..MATRICES };
    assert_eq!(tiles(large, &with(small)), [[128, 128, 64], [128, 128, 32]]);
    let coarse = WideMatrices { multiples: [64, 64, 64], ..MATRICES };
    assert_eq!(tiles(large, &with(coarse)), [[256, 128, 64], [128, 128, 64]]);
    assert_eq!(tiles(large, &target(132, None)), [[0; 3]; 0]);
}

#[test]
fn what_is_known_of_a_job_is_known_of_its_number_of_rows() {
    let card = target(132, Some(MATRICES));
    let key = |rows: usize, target: &Target| {
        let case =
            Case { rows, outer: 4096, inner: 4096, weights: DType::Q4_K, addend: Addend::None };
        let (kind, operands) = (case.kind(), case.operands());
        let job = Job { kind, operands, params: &[], target, choice: 0 };
        let expected = wgsl::lower(&job).unwrap();
        (expected.source.clone(), wgsl::tuning_key(&job, &expected))
    };
    let ((a, a_key), (b, b_key)) = (key(384, &card), key(256, &card));
    assert_eq!(a == b, key(384, &target(132, None)).0 == key(256, &target(132, None)).0);
    assert_ne!(a_key, b_key, "rows decide which tiles there are");
    let plain = target(132, None);
    assert_eq!(key(384, &plain).1, wgsl::listing::text_key(&a), "as it was before");
    assert_eq!(key(384, &plain).1 == key(256, &plain).1, a == b);
}
