//! An implementation of every op, found by kernel name.
//!
//! Kernels are safe code. Loops over floats are compiled once for each set of vector instructions, and
//! products with block weights are written in them (see [`simd`](super::simd)). Every output element is
//! computed in an order that depends on the shapes alone, so neither the cut into pieces nor the
//! number of workers changes a bit. A fused kernel calls the row functions of its parts and keeps
//! f32 in between: where the parts would have stored f32, the bits are the same.
//!
//! Ids and positions are data, known only when a kernel runs; the host checks them before it uploads
//! them. A kernel still never reads or writes outside its operands and never fails: `gather` gives
//! zeros for an id that is not in the table, `matmul_experts` for an expert that does not exist,
//! the cache writers skip a row that is not in the cache, and attention sees only rows that exist.
//!
//! | module | ops |
//! |---|---|
//! | `elementwise` | add, mul, scale, activations, gates, soft cap |
//! | `norm` | rms and layer norms with what is fused around them, softmax |
//! | `matmul`, `experts` | products with weights of any type |
//! | `attention`, `rope` | attention over a cache, rotary embedding |
//! | `select` | arg max, top-k, router |
//! | `shape` | copies, joins, gathers, fills, cache writes |
//! | `rows`, `reduce`, `math`, `cut` | what they share |

mod attention;
mod cut;
mod elementwise;
mod experts;
mod math;
mod matmul;
mod norm;
mod reduce;
mod rope;
mod rows;
mod select;
mod shape;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use clearway_graph::TensorView;
use rustc_hash::FxHashMap;

use super::piece::{CpuKernel, Grid, Piece};
use super::simd::{Lanes, Vectorised, vectorise};

/// The kernel of a built-in op.
pub(super) fn builtin(name: &str) -> Option<&'static CpuKernel> {
    static BY_NAME: LazyLock<ByName> = LazyLock::new(|| by_name(KERNELS));
    BY_NAME.get(name)
}

/// The kernel of a built-in op on a device that keeps activations float.
pub(super) fn builtin_float(name: &str) -> Option<&'static CpuKernel> {
    static BY_NAME: LazyLock<ByName> = LazyLock::new(|| by_name(FLOAT_KERNELS));
    BY_NAME.get(name).or_else(|| builtin(name))
}

type ByName = FxHashMap<&'static str, CpuKernel>;

fn by_name(kernels: &[(&'static str, GridFn, RunFn)]) -> ByName {
    kernels.iter().map(|&(name, grid, run)| (name, CpuKernel::new(grid, run))).collect()
}

type GridFn = fn(&[TensorView], &[u32]) -> Grid;
type RunFn = fn(&mut Piece<'_>);

/// A kernel of plain loops, compiled for every set of instructions.
macro_rules! vectorised {
    ($kernel:path) => {{
        struct Work<'p, 'a>(&'p mut Piece<'a>);
        impl Vectorised for Work<'_, '_> {
            type Output = ();

            #[inline(always)]
            fn run<L: Lanes>(self, _: L) {
                $kernel(self.0);
            }
        }
        |piece: &mut Piece<'_>| vectorise(Work(piece))
    }};
}

/// Name, cut and body of each kernel, in the order of the op list.
const KERNELS: &[(&str, GridFn, RunFn)] = &[
    ("gather", shape::gather_grid, shape::gather),
    ("rms_norm", norm::grid, vectorised!(norm::rms_norm)),
    ("layer_norm", norm::grid, vectorised!(norm::layer_norm)),
    ("add", elementwise::light_grid, vectorised!(elementwise::add)),
    ("mul", elementwise::light_grid, vectorised!(elementwise::mul)),
    ("scale", elementwise::light_grid, vectorised!(elementwise::scale)),
    ("silu", elementwise::heavy_grid, vectorised!(elementwise::silu)),
    ("gelu", elementwise::heavy_grid, vectorised!(elementwise::gelu)),
    ("silu_mul", elementwise::heavy_grid, vectorised!(elementwise::silu_mul)),
    ("gelu_mul", elementwise::heavy_grid, vectorised!(elementwise::gelu_mul)),
    ("soft_cap", elementwise::heavy_grid, vectorised!(elementwise::soft_cap)),
    ("matmul", matmul::grid, matmul::matmul),
    ("matmul_experts", experts::matmul_grid, experts::matmul_experts),
    ("expert_order", experts::order_grid, experts::expert_order),
    ("router_top_k", select::router_grid, select::router_top_k),
    ("expert_sum", experts::sum_grid, vectorised!(experts::expert_sum)),
    ("rope", rope::grid, vectorised!(rope::rope)),
    ("softmax", norm::grid, vectorised!(norm::softmax)),
    ("attention", attention::grid, attention::attention),
    ("kv_write", shape::kv_write_grid, shape::kv_write),
    ("copy", shape::copy_grid, shape::copy),
    ("concat", shape::concat_grid, shape::concat),
    ("arg_max", select::arg_max_grid, select::arg_max),
    ("top_k", select::top_k_grid, select::top_k),
    ("fill", shape::fill_grid, shape::fill),
    ("rms_norm_mul", norm::grid, vectorised!(norm::rms_norm_mul)),
    ("add_rms_norm", norm::grid, vectorised!(norm::add_rms_norm)),
    ("add_rms_norm_mul", norm::grid, vectorised!(norm::add_rms_norm_mul)),
    ("matmul_add", matmul::grid, matmul::matmul_add),
    ("rope_kv_write", rope::kv_write_grid, vectorised!(rope::rope_kv_write)),
];

/// Products that multiply block weights with floats, instead of those above.
const FLOAT_KERNELS: &[(&str, GridFn, RunFn)] = &[
    ("matmul", matmul::float_grid, matmul::float_matmul),
    ("matmul_experts", experts::float_matmul_grid, experts::float_matmul_experts),
    ("matmul_add", matmul::float_grid, matmul::float_matmul_add),
];
