//! Products of many rows on matrices of a whole workgroup.
//!
//! WGSL has no such matrices: a kernel here is data ([`Wide`]), its text says for people what it is, and the backend that
//! has the matrices writes the words. All tiles are whole, since loads that clamp take twice as long; a product that is
//! not whole tiles has the portable kernel alone.
//!
//! These kernels are variants of the portable one. Whoever chooses among them compares results first.

use clearway_graph::{BindingRole, DType, Product, Slot};

use super::planes::{self, CHUNK, supports};
use super::{Job, Kernel, Trust};

/// Matrices of f16 with sums in f32 that belong to a whole workgroup, of any size in certain multiples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideMatrices {
    /// Rows and columns of sums are multiples of the first two, columns of a step of the third.
    pub multiples: [u32; 3],
    /// Invocations of a workgroup.
    pub invocations: u32,
    /// Rows or columns of a matrix at most.
    pub largest: u32,
    /// Loads can decode weights in blocks.
    pub decodes: bool,
}

/// A product on such matrices: all that its words depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wide {
    /// Rows of activations and of weights that a workgroup takes, and columns of a step.
    pub tile: [u32; 3],
    /// Invocations of a workgroup.
    pub invocations: u32,
    /// The left side of products is the weights: sums are transposed.
    pub weights_left: bool,
    /// Rows of weights.
    pub outer: u32,
    /// Columns of both sides.
    pub inner: u32,
    /// Distance of rows of activations, in elements. They are f16 in the first half of the bytes of 32 floats
    /// ([`DType::A16`]).
    pub x_stride: u32,
    /// Type of the weights; block formats lie in planes.
    pub weights: DType,
    /// Where their planes start, in words.
    pub planes: [u32; 4],
    /// Binding of the result and distance of its rows.
    pub y: (u32, u32),
    /// The same of the addend. Where both are the same memory they are one binding.
    pub addend: Option<(u32, u32)>,
}

impl Wide {
    /// Bindings behind all operands: weights as f16, then as words. Only what decodes has them.
    pub fn again(&self) -> [u32; 2] {
        let first = if self.addend.is_some() { 4 } else { 3 };
        [first, first + 1]
    }

    /// Whether loads decode weights.
    pub fn decodes(&self) -> bool {
        self.weights != DType::F16
    }

    fn text(&self) -> String {
        format!(
            "// A product on matrices of a whole workgroup, version {WORDS}. Its words are not made from text.\n// {self:?}\n"
        )
    }
}

/// Stands for how words are written: another number where that gives other words, so that what was measured and compared
/// of others does not count.
const WORDS: u32 = 1;

/// Rows of weights from which on products are multiplied here.
const LEAST_OUTER: usize = 128;

/// Tiles of weights in f16: the one that is fastest where there are enough, and the one for few.
const PLAIN: [Tile; 2] = [Tile([128, 256], false), Tile([128, 128], false)];

/// Tiles of weights that are decoded.
const DECODED: [Tile; 3] = [Tile([256, 128], true), Tile([128, 128], false), Tile([64, 128], true)];

/// Columns of a step: those that are fastest where rows are dense, and those of a run of f16, which need no third dimension.
/// Which are faster is to be measured.
const STEPS: [u32; 2] = [64, 32];

/// Rows of activations and of weights, and whether weights are the left side.
#[derive(Clone, Copy)]
struct Tile([u32; 2], bool);

/// The kernels there are for a job besides the portable one, from the one that is expected to be the fastest.
pub(super) fn variants(job: &Job<'_>) -> Vec<Wide> {
    job.target.wide.and_then(|matrices| of(job, matrices)).unwrap_or_default()
}

/// Rows and variants of a job that has any.
pub(super) fn names(job: &Job<'_>) -> Option<String> {
    let all: String = variants(job).iter().map(Wide::text).collect();
    (!all.is_empty()).then(|| format!("{} rows\n{all}", job.layout(0).rows()))
}

fn of(job: &Job<'_>, matrices: WideMatrices) -> Option<Vec<Wide>> {
    let bound = job.operands.len();
    if !job.kind.product().is_some_and(Product::is_basic) || !(3..=4).contains(&bound) {
        return None;
    }
    let (x, w, y) = (&job.operands[0], &job.operands[1], &job.operands[bound - 1]);
    let (rows, outer, inner) = (x.layout.rows(), w.layout.rows(), w.layout.cols());
    let weights = w.layout.dtype();
    let readable = match weights {
        DType::F16 => true,
        DType::BF16 => matrices.decodes,
        _ => matrices.decodes && w.in_planes() && supports(&w.layout),
    };
    // What lies elsewhere than its binding says, or in parts, is left to the portable kernel.
    let placed = job.operands.iter().all(|o| o.is_aligned() && o.rows.is_none());
    let apart = x.same_as.is_none() && w.same_as.is_none();
    let kinds = x.layout.dtype() == DType::A16 && y.layout.dtype() == DType::F32;
    let read = x.role == BindingRole::Read && w.role == BindingRole::Read;
    if !readable || !placed || !apart || !kinds || !read || !w.layout.is_dense() {
        return None;
    }
    if outer < LEAST_OUTER || !inner.is_multiple_of(CHUNK) {
        return None;
    }
    let slot = |index: usize| job.operands[index].same_as.unwrap_or(index) as u32;
    let addend = match job.slot(Slot::Addend) {
        Some(c) => {
            let whole = job.layout(c).rows() == rows && job.dtype(c) == DType::F32;
            Some((slot(c), stride(job, c).filter(|_| whole)?))
        }
        None => None,
    };
    let chunks = (w.layout.elems() / CHUNK) as u64;
    let (starts, _) = planes::offsets(weights, chunks);
    let start = |plane: usize| u32::try_from(starts[plane] / 4).ok();
    let kernel = Wide {
        tile: [0; 3],
        invocations: matrices.invocations,
        weights_left: false,
        outer: outer as u32,
        inner: inner as u32,
        x_stride: stride(job, 0)?,
        weights,
        planes: [start(0)?, start(1)?, start(2)?, start(3)?],
        y: (slot(bound - 1), stride(job, bound - 1)?),
        addend,
    };
    let tiles = if weights == DType::F16 { &PLAIN[..] } else { &DECODED };
    let fits = |tile: [u32; 3], left: bool| {
        let [m, n, k] = matrices.multiples;
        let sides = if left { [tile[1], tile[0]] } else { [tile[0], tile[1]] };
        let multiple = |size: u32, of: u32| of > 0 && size.is_multiple_of(of);
        multiple(rows as u32, tile[0])
            && multiple(outer as u32, tile[1])
            && multiple(inner as u32, tile[2])
            && multiple(sides[0], m)
            && multiple(sides[1], n)
            && multiple(tile[2], k)
            && tile.iter().all(|&size| size <= matrices.largest)
    };
    let groups = |tile: [u32; 2]| (rows as u32 / tile[0]) * (outer as u32 / tile[1]);
    let mut all = Vec::new();
    for (index, &Tile([t, n], weights_left)) in tiles.iter().enumerate() {
        // Tiles of which most processors would get none are for no product that has smaller ones.
        let few = u64::from(groups([t, n])) * 8 < u64::from(job.target.processors) * 7;
        if few && index == 0 {
            continue;
        }
        for step in STEPS {
            let tile = [t, n, step];
            if fits(tile, weights_left) {
                all.push(Wide { tile, weights_left, ..kernel });
            }
        }
    }
    Some(all)
}

/// Distance of the rows of an operand in elements, if they are even and each starts at a multiple of 16 bytes.
fn stride(job: &Job<'_>, index: usize) -> Option<u32> {
    let operand = &job.operands[index];
    let (shape, strides) = (operand.layout.shape4(), operand.layout.strides4());
    let [.., stride, inside] = strides;
    let stride = if operand.layout.rows() == 1 { shape[3] } else { stride };
    let unit = if operand.layout.dtype() == DType::A16 { CHUNK as u32 } else { 4 };
    let even = operand.rows_are_even() && (inside == 1 || shape[3] == 1);
    (even && stride >= shape[3] && stride.is_multiple_of(unit)).then_some(stride)
}

/// The kernel of a variant behind the portable one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let wide = *variants(job).get(usize::from(job.choice).checked_sub(1)?)?;
    let rows = job.layout(0).rows() as u32;
    let groups = [rows / wide.tile[0], wide.outer / wide.tile[1], 1];
    if groups.iter().any(|&count| count > job.target.max_groups) {
        return None;
    }
    Some(Kernel {
        source: wide.text(),
        groups,
        // Every kernel has a uniform block; this one does not look at it.
        words: vec![0; 4],
        again: if wide.decodes() { vec![1, 1] } else { Vec::new() },
        scratch: None,
        trust: Trust::Own,
        counted: None,
        wide: Some(wide),
    })
}
