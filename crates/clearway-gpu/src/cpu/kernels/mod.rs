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

use clearway_graph::{CapturedOpKind as Kind, TensorView};

use super::piece::{CpuKernel, Grid, Piece};

/// The kernel of a built-in op; `None` for products that hold a norm or a gate, which a device without them
/// does one op after the other. `float` asks for products that multiply block weights with floats.
pub(super) fn builtin(kind: Kind, float: bool) -> Option<&'static CpuKernel> {
    type Kernels = Vec<Option<CpuKernel>>;
    fn all(float: bool) -> Kernels {
        let mut kernels: Kernels = vec![None; Kind::COUNT];
        for kind in Kind::all() {
            let parts = parts(kind, float);
            kernels[kind.index()] = parts.map(|(grid, run)| CpuKernel::new(grid, run));
        }
        kernels
    }
    static ROUNDED: LazyLock<Kernels> = LazyLock::new(|| all(false));
    static FLOAT: LazyLock<Kernels> = LazyLock::new(|| all(true));
    let kernels = if float { &FLOAT } else { &ROUNDED };
    kernels.get(kind.index())?.as_ref()
}

type GridFn = fn(&[TensorView], &[u32]) -> Grid;
type RunFn = fn(&mut Piece<'_>);

/// A kernel of plain loops, compiled for every set of instructions.
macro_rules! vectorised {
    ($kernel:path) => {{
        struct Work<'p, 'a>(&'p mut Piece<'a>);
        impl $crate::cpu::simd::Vectorised for Work<'_, '_> {
            type Output = ();

            #[inline(always)]
            fn run<L: $crate::cpu::simd::Lanes>(self, _: L) {
                $kernel(self.0);
            }
        }
        |piece: &mut Piece<'_>| $crate::cpu::simd::vectorise(Work(piece))
    }};
}
use vectorised;

/// How a kernel is cut, and what it does with a piece.
fn parts(kind: Kind, float: bool) -> Option<(GridFn, RunFn)> {
    Some(match kind {
        Kind::Gather => (shape::gather_grid, shape::gather),
        Kind::RmsNorm => (norm::grid, vectorised!(norm::rms_norm)),
        Kind::LayerNorm => (norm::grid, vectorised!(norm::layer_norm)),
        Kind::Map(map) => elementwise::parts(map),
        Kind::MatMulExperts if float => (experts::float_matmul_grid, experts::float_matmul_experts),
        Kind::MatMulExperts => (experts::matmul_grid, experts::matmul_experts),
        Kind::ExpertOrder => (experts::order_grid, experts::expert_order),
        Kind::RouterTopK => (select::router_grid, select::router_top_k),
        Kind::RouterGroups => (select::router_groups_grid, select::router_groups),
        Kind::ExpertSum => (experts::sum_grid, vectorised!(experts::expert_sum)),
        Kind::ExpertSumAdd => (experts::sum_grid, vectorised!(experts::expert_sum_add)),
        Kind::Rope => (rope::grid, vectorised!(rope::rope)),
        Kind::Softmax => (norm::grid, vectorised!(norm::softmax)),
        Kind::Attention => (attention::grid, attention::attention),
        Kind::AttentionSinks => (attention::grid, attention::attention_sinks),
        Kind::KvWrite => (shape::kv_write_grid, shape::kv_write),
        Kind::Copy => (shape::copy_grid, shape::copy),
        Kind::Concat => (shape::concat_grid, shape::concat),
        Kind::ArgMax => (select::arg_max_grid, select::arg_max),
        Kind::TopK => (select::top_k_grid, select::top_k),
        Kind::Fill => (shape::fill_grid, shape::fill),
        Kind::RmsNormMul => (norm::grid, vectorised!(norm::rms_norm_mul)),
        Kind::RmsNormMulAdd => (norm::grid, vectorised!(norm::rms_norm_mul_add)),
        Kind::AddRmsNorm => (norm::grid, vectorised!(norm::add_rms_norm)),
        Kind::AddRmsNormMul => (norm::grid, vectorised!(norm::add_rms_norm_mul)),
        Kind::RopeKvWrite => (rope::kv_write_grid, vectorised!(rope::rope_kv_write)),
        Kind::Product(product) if !product.is_basic() => return None,
        Kind::Product(product) => match (product.epilogue().add, float) {
            (false, false) => (matmul::grid, matmul::matmul),
            (true, false) => (matmul::grid, matmul::matmul_add),
            (false, true) => (matmul::float_grid, matmul::float_matmul),
            (true, true) => (matmul::float_grid, matmul::float_matmul_add),
        },
        Kind::Custom | Kind::Pinned => return None,
    })
}
