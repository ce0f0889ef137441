//! Shapes, element types and constants of each op, checked when it is called.
//!
//! Activations of one op share a type (f32 or f16). Weights may have any type where the op says so.
//! Rows are contiguous everywhere but in `copy` and `fill`; outer strides are free. Between two products f32
//! activations may be rounded, where the first is gated.

use clearway_graph::{BindingRole, DType, TensorView};

use super::table::{OpSpec, Operand, ParamKind};
use crate::error::{GpuError, Result};

/// An op call under scrutiny.
pub(super) struct Call<'a> {
    pub(super) spec: &'static OpSpec,
    pub(super) views: &'a [TensorView],
    pub(super) params: &'a [u32],
}

const ACTIVATIONS: &[DType] = &[DType::F32, DType::F16];

impl Call<'_> {
    fn view(&self, i: usize) -> &TensorView {
        &self.views[i]
    }

    fn dims(&self, i: usize) -> &[u32] {
        self.view(i).layout.dims()
    }

    fn name(&self, i: usize) -> &'static str {
        self.operand(i).name
    }

    pub(super) fn role(&self, i: usize) -> BindingRole {
        self.operand(i).role
    }

    /// Where the optional operand was left out, the ones behind it move up.
    fn operand(&self, i: usize) -> &'static Operand {
        let operands = self.spec.operands;
        let skipped = operands.len() - self.views.len();
        let optional = operands.iter().position(|o| o.optional).unwrap_or(operands.len());
        &operands[if i >= optional { i + skipped } else { i }]
    }

    fn shape(&self, i: usize, ok: bool, expected: impl FnOnce() -> String) -> Result<()> {
        if ok {
            return Ok(());
        }
        let found = self.view(i).layout.to_string();
        let (op, binding) = (self.spec.name, self.name(i));
        Err(GpuError::Shape { op, binding, found, expected: expected() })
    }

    fn want_dims(&self, i: usize, dims: &[u32]) -> Result<()> {
        self.shape(i, self.dims(i) == dims, || format!("{dims:?} is needed"))
    }

    fn want_rank(&self, i: usize, rank: usize) -> Result<()> {
        let ok = self.view(i).layout.rank() == rank;
        self.shape(i, ok, || format!("{rank} dimensions are needed"))
    }

    fn same_dims(&self, i: usize, of: usize) -> Result<()> {
        let ok = self.dims(i) == self.dims(of);
        self.shape(i, ok, || {
            format!("the shape {:?} of `{}` is needed", self.dims(of), self.name(of))
        })
    }

    /// The same shape, or one row that is repeated.
    fn same_or_row(&self, i: usize, of: usize) -> Result<()> {
        let layout = &self.view(i).layout;
        let cols = self.view(of).layout.cols();
        let row = layout.cols() == cols && layout.rows() == 1;
        self.shape(i, row || self.dims(i) == self.dims(of), || {
            format!("{:?} or one row of {cols} is needed", self.dims(of))
        })
    }

    fn want_dtype(&self, i: usize, allowed: &[DType]) -> Result<()> {
        let found = self.view(i).layout.dtype();
        if allowed.contains(&found) {
            return Ok(());
        }
        let names: Vec<_> = allowed.iter().map(|d| d.name()).collect();
        let expected = format!("{} is needed", names.join(" or "));
        Err(GpuError::DType { op: self.spec.name, binding: self.name(i), found, expected })
    }

    /// Any type that holds weights.
    fn want_weight(&self, i: usize) -> Result<()> {
        let found = self.view(i).layout.dtype();
        if !matches!(found, DType::U32 | DType::A8) {
            return Ok(());
        }
        let expected = "a float or block type is needed".into();
        Err(GpuError::DType { op: self.spec.name, binding: self.name(i), found, expected })
    }

    /// Activations of one type, with contiguous rows.
    fn activations(&self, operands: &[usize]) -> Result<()> {
        let first = self.view(operands[0]).layout.dtype();
        self.want_dtype(operands[0], ACTIVATIONS)?;
        for &i in operands {
            self.want_dtype(i, &[first])?;
            self.contiguous_rows(i)?;
        }
        Ok(())
    }

    /// Whether activations are rounded; those lie densely.
    fn is_rounded(&self, i: usize) -> Result<bool> {
        let layout = &self.view(i).layout;
        let rounded = layout.dtype() == DType::A8;
        self.shape(i, !rounded || layout.is_dense(), || "dense rows are needed".into())?;
        Ok(rounded)
    }

    fn contiguous_rows(&self, i: usize) -> Result<()> {
        let layout = &self.view(i).layout;
        let ok = layout.cols() == 1 || layout.strides4()[3] == 1;
        self.shape(i, ok, || "contiguous rows are needed".into())
    }

    /// Elements of what is written lie apart.
    pub(super) fn apart(&self, i: usize) -> Result<()> {
        let ok = self.view(i).layout.is_injective();
        self.shape(i, ok, || "elements that lie apart are needed".into())
    }

    fn ids(&self, i: usize, dims: &[u32]) -> Result<()> {
        self.want_dtype(i, &[DType::U32])?;
        self.contiguous_rows(i)?;
        self.want_dims(i, dims)
    }

    fn float_param(&self, i: usize, ok: impl Fn(f32) -> bool, expected: &str) -> Result<()> {
        debug_assert_eq!(self.spec.params[i].kind, ParamKind::F32);
        let found = f32::from_bits(self.params[i]);
        self.param(i, found.is_finite() && ok(found), found, expected)
    }

    fn int_param(&self, i: usize, ok: impl Fn(u32) -> bool, expected: &str) -> Result<()> {
        debug_assert_eq!(self.spec.params[i].kind, ParamKind::U32);
        self.param(i, ok(self.params[i]), self.params[i], expected)
    }

    fn param(&self, i: usize, ok: bool, found: impl ToString, expected: &str) -> Result<()> {
        if ok {
            return Ok(());
        }
        let (op, param) = (self.spec.name, self.spec.params[i].name);
        Err(GpuError::Param { op, param, found: found.to_string(), expected: expected.into() })
    }

    fn epsilon(&self, i: usize) -> Result<()> {
        self.float_param(i, |eps| eps >= 0.0, "a number from 0 up is needed")
    }
}

pub(super) fn gather(c: &Call<'_>) -> Result<()> {
    c.want_rank(0, 2)?;
    c.want_weight(0)?;
    c.contiguous_rows(0)?;
    c.want_rank(1, 1)?;
    c.ids(1, &[c.dims(1)[0]])?;
    c.activations(&[2])?;
    c.want_dims(2, &[c.dims(1)[0], c.dims(0)[1]])?;
    c.float_param(0, |_| true, "a finite number is needed")
}

pub(super) fn unary(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1])?;
    c.same_dims(1, 0)?;
    for i in 0..c.params.len() {
        match c.spec.params[i].name {
            "eps" => c.epsilon(i)?,
            _ => c.float_param(i, |_| true, "a finite number is needed")?,
        }
    }
    Ok(())
}

pub(super) fn layer_norm(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 3])?;
    c.same_dims(3, 0)?;
    for weight in [1, 2] {
        c.want_dtype(weight, ACTIVATIONS)?;
        c.want_dims(weight, &[c.view(0).layout.cols() as u32])?;
        c.contiguous_rows(weight)?;
    }
    c.epsilon(0)
}

/// Two operands, the second the first's shape or one row of it; also the fused norm and weight.
pub(super) fn binary(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 2])?;
    c.want_dtype(1, ACTIVATIONS)?;
    c.contiguous_rows(1)?;
    c.same_or_row(1, 0)?;
    c.same_dims(2, 0)?;
    if c.params.is_empty() { Ok(()) } else { c.epsilon(0) }
}

pub(super) fn gated(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1, 2])?;
    c.same_dims(1, 0)?;
    c.same_dims(2, 0)
}

pub(super) fn soft_cap(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1])?;
    c.same_dims(1, 0)?;
    c.float_param(0, |cap| cap > 0.0, "a number above 0 is needed")
}

pub(super) fn matmul(c: &Call<'_>) -> Result<()> {
    product(c, 1, c.views.len() - 1, MayRound::Input)
}

pub(super) fn matmul_add(c: &Call<'_>) -> Result<()> {
    product(c, 1, 3, MayRound::Input)?;
    addend(c, 2, 3)
}

/// A product that is the gate of operand 2.
pub(super) fn matmul_gate(c: &Call<'_>) -> Result<()> {
    product(c, 1, 3, MayRound::Input)?;
    c.activations(&[3, 2])?;
    c.same_dims(2, 3)
}

/// Two products of the same rows.
pub(super) fn matmul_gated(c: &Call<'_>) -> Result<()> {
    product(c, 1, 3, MayRound::Both)?;
    like_weight(c, 2, 1)
}

pub(super) fn norm_matmul(c: &Call<'_>) -> Result<()> {
    product(c, 2, 3, MayRound::Nothing)?;
    norm_weight(c)
}

pub(super) fn norm_matmul_add(c: &Call<'_>) -> Result<()> {
    product(c, 2, 4, MayRound::Nothing)?;
    norm_weight(c)?;
    addend(c, 3, 4)
}

pub(super) fn norm_matmul_gated(c: &Call<'_>) -> Result<()> {
    product(c, 2, 4, MayRound::Result)?;
    norm_weight(c)?;
    like_weight(c, 3, 2)
}

/// A product that is added to operand 2, and the norm of that with the weight in operand 3.
pub(super) fn matmul_add_norm(c: &Call<'_>) -> Result<()> {
    let y = c.views.len() - 1;
    product(c, 1, y, MayRound::Both)?;
    addend(c, 2, y)?;
    row_of_weights(c, 3, c.view(y).layout.cols())?;
    if y == 5 {
        c.activations(&[4])?;
        c.same_dims(4, y)?;
    }
    c.epsilon(0)
}

/// The heads of a product, turned.
pub(super) fn norm_matmul_rope(c: &Call<'_>) -> Result<()> {
    norm_weight(c)?;
    turned_heads(c, 2)
}

/// The heads of a product, turned and written to a cache.
pub(super) fn norm_matmul_rope_kv(c: &Call<'_>) -> Result<()> {
    norm_weight(c)?;
    turned_heads_to_cache(c, 2)
}

/// The heads of a product, written to a cache.
pub(super) fn norm_matmul_kv(c: &Call<'_>) -> Result<()> {
    norm_weight(c)?;
    heads_to_cache(c, 2)
}

/// As [`norm_matmul_rope`] without a norm.
pub(super) fn matmul_rope(c: &Call<'_>) -> Result<()> {
    turned_heads(c, 1)
}

/// As [`norm_matmul_rope_kv`] without a norm.
pub(super) fn matmul_rope_kv(c: &Call<'_>) -> Result<()> {
    turned_heads_to_cache(c, 1)
}

/// As [`norm_matmul_kv`] without a norm.
pub(super) fn matmul_kv(c: &Call<'_>) -> Result<()> {
    heads_to_cache(c, 1)
}

/// What of a product may be rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayRound {
    Nothing,
    Input,
    Result,
    Both,
}

/// Operand 0 times the weight `w`, transposed, gives `y`.
fn product(c: &Call<'_>, w: usize, y: usize, may: MayRound) -> Result<()> {
    let input = matches!(may, MayRound::Input | MayRound::Both) && c.is_rounded(0)?;
    let result = matches!(may, MayRound::Result | MayRound::Both) && c.is_rounded(y)?;
    if !input && !result {
        c.activations(&[0, y])?;
    }
    for (rounded, i) in [(input, 0), (result, y)] {
        if (input || result) && !rounded {
            c.want_dtype(i, &[DType::F32])?;
            c.contiguous_rows(i)?;
        }
    }
    c.want_rank(y, 2)?;
    let (rows, outer) = factors_of_product(c, w)?;
    c.want_dims(y, &[rows, outer])
}

/// Activations in operand 0, and of the same type in those that are named; or rounded ones, which without
/// a norm may come, and f32.
fn activations_of_heads(c: &Call<'_>, w: usize, like: &[usize]) -> Result<()> {
    if w == 1 && c.is_rounded(0)? {
        return like.iter().try_for_each(|&i| {
            c.want_dtype(i, &[DType::F32])?;
            c.contiguous_rows(i)
        });
    }
    c.activations(&[&[0], like].concat())
}

/// The rotation's operands stand behind the weight `w`, its constants behind that of a norm.
fn turned_heads(c: &Call<'_>, w: usize) -> Result<()> {
    let y = w + 3;
    activations_of_heads(c, w, &[y])?;
    let (rows, outer) = factors_of_product(c, w)?;
    let head = heads(c, y, outer)?;
    c.want_dims(y, &[rows, c.dims(y)[1], head])?;
    rotation(c, (rows, head), w + 1, w - 1)
}

fn turned_heads_to_cache(c: &Call<'_>, w: usize) -> Result<()> {
    let to = w + 4;
    activations_of_heads(c, w, &[])?;
    let (rows, outer) = factors_of_product(c, w)?;
    cache(c, to)?;
    let head = heads(c, to, outer)?;
    rotation(c, (rows, head), w + 1, w - 1)?;
    c.ids(w + 3, &[rows])
}

fn heads_to_cache(c: &Call<'_>, w: usize) -> Result<()> {
    let to = w + 2;
    activations_of_heads(c, w, &[])?;
    let (rows, outer) = factors_of_product(c, w)?;
    c.ids(w + 1, &[rows])?;
    cache(c, to)?;
    heads(c, to, outer).map(drop)
}

/// Operand 0 and the weight `w` of a product, which has this many rows and columns.
fn factors_of_product(c: &Call<'_>, w: usize) -> Result<(u32, u32)> {
    c.want_rank(0, 2)?;
    c.want_rank(w, 2)?;
    c.want_weight(w)?;
    c.contiguous_rows(w)?;
    let (rows, inner, outer) = (c.dims(0)[0], c.dims(0)[1], c.dims(w)[0]);
    c.want_dims(w, &[outer, inner])?;
    Ok((rows, outer))
}

/// Rows of heads that a row of a product is made of; gives the size of a head.
fn heads(c: &Call<'_>, i: usize, outer: u32) -> Result<u32> {
    c.want_rank(i, 3)?;
    let (heads, head) = (c.dims(i)[1], c.dims(i)[2]);
    let ok = u64::from(heads) * u64::from(head) == u64::from(outer);
    c.shape(i, ok, || format!("heads of {outer} elements together are needed"))?;
    Ok(head)
}

/// What is added to a product: its shape or one row of it.
fn addend(c: &Call<'_>, i: usize, y: usize) -> Result<()> {
    c.want_dtype(i, ACTIVATIONS)?;
    c.contiguous_rows(i)?;
    c.same_or_row(i, y)
}

/// A second weight of the shape of the first; their types may differ.
fn like_weight(c: &Call<'_>, i: usize, first: usize) -> Result<()> {
    c.want_weight(i)?;
    c.contiguous_rows(i)?;
    c.same_dims(i, first)
}

/// The weight of a norm in front of a product, operand 1: one row, since the kernel may apply it to
/// the columns of the product's weight just as well. Its epsilon is the first constant.
fn norm_weight(c: &Call<'_>) -> Result<()> {
    row_of_weights(c, 1, c.view(0).layout.cols())?;
    c.epsilon(0)
}

fn row_of_weights(c: &Call<'_>, i: usize, cols: usize) -> Result<()> {
    c.want_dtype(i, ACTIVATIONS)?;
    c.contiguous_rows(i)?;
    let layout = &c.view(i).layout;
    let row = layout.rows() == 1 && layout.cols() == cols;
    c.shape(i, row, || format!("one row of {cols} is needed"))
}

pub(super) fn matmul_experts(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 3])?;
    c.want_rank(1, 3)?;
    c.want_weight(1)?;
    c.contiguous_rows(1)?;
    c.want_rank(2, 2)?;
    let (rows, used) = (c.dims(2)[0], c.dims(2)[1]);
    c.ids(2, &[rows, used])?;
    let (outer, inner) = (c.dims(1)[1], c.dims(1)[2]);
    let (shared, own) = ([rows, inner], [rows, used, inner]);
    let ok = c.dims(0) == shared || c.dims(0) == own;
    c.shape(0, ok, || format!("{shared:?} or {own:?} is needed"))?;
    c.want_dims(3, &[rows, used, outer])
}

pub(super) fn router(c: &Call<'_>) -> Result<()> {
    c.activations(&[0])?;
    c.want_rank(0, 2)?;
    c.want_rank(1, 2)?;
    let (rows, experts) = (c.dims(0)[0], c.dims(0)[1]);
    let used = c.dims(1)[1];
    c.ids(1, &[rows, used])?;
    c.shape(1, used <= experts, || format!("at most {experts} experts can be used"))?;
    c.want_dtype(2, &[DType::F32])?;
    c.contiguous_rows(2)?;
    c.want_dims(2, &[rows, used])?;
    c.int_param(0, |mode| mode <= 2, "0, 1 or 2 is needed")?;
    c.int_param(1, |renorm| renorm <= 1, "0 or 1 is needed")?;
    c.float_param(2, |_| true, "a finite number is needed")
}

pub(super) fn expert_sum(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 2])?;
    c.want_rank(0, 3)?;
    let (rows, used, cols) = (c.dims(0)[0], c.dims(0)[1], c.dims(0)[2]);
    c.want_dtype(1, &[DType::F32])?;
    c.contiguous_rows(1)?;
    c.want_dims(1, &[rows, used])?;
    c.want_dims(2, &[rows, cols])
}

pub(super) fn rope(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 3])?;
    c.same_dims(3, 0)?;
    c.want_rank(0, 3)?;
    rotation(c, (c.dims(0)[0], c.dims(0)[2]), 1, 0)
}

pub(super) fn rope_kv_write(c: &Call<'_>) -> Result<()> {
    c.activations(&[0])?;
    c.want_rank(0, 3)?;
    rotation(c, (c.dims(0)[0], c.dims(0)[2]), 1, 0)?;
    cache_write(c, 3, 4)
}

/// What every rotary op has, for `rows` of heads of this size: positions, factors behind them, and
/// four constants from `first` on.
fn rotation(c: &Call<'_>, (rows, head): (u32, u32), positions: usize, first: usize) -> Result<()> {
    let factors = positions + 1;
    c.ids(positions, &[rows])?;
    let fits = |n: u32| n >= 2 && n.is_multiple_of(2) && n <= head;
    c.int_param(first, fits, "an even number up to the head size is needed")?;
    c.int_param(first + 1, |mode| mode <= 1, "0 or 1 is needed")?;
    c.float_param(first + 2, |base| base > 0.0, "a number above 0 is needed")?;
    c.float_param(first + 3, |_| true, "a finite number is needed")?;
    c.want_dtype(factors, &[DType::F32])?;
    c.contiguous_rows(factors)?;
    c.want_dims(factors, &[c.params[first] / 2])
}

pub(super) fn softmax(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 2])?;
    c.same_dims(2, 0)?;
    c.want_dtype(1, ACTIVATIONS)?;
    c.contiguous_rows(1)?;
    let shape = c.view(0).layout.shape4();
    c.want_dims(1, &[shape[2], shape[3]])?;
    c.float_param(0, |_| true, "a finite number is needed")
}

pub(super) fn attention(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 4])?;
    c.activations(&[1, 2])?;
    for i in [0, 1] {
        c.want_rank(i, 3)?;
    }
    c.same_dims(4, 0)?;
    c.same_dims(2, 1)?;
    let (rows, heads, head) = (c.dims(0)[0], c.dims(0)[1], c.dims(0)[2]);
    let kv_heads = c.dims(1)[1];
    let ok = c.dims(1)[2] == head && heads.is_multiple_of(kv_heads);
    c.shape(1, ok, || format!("rows of heads of {head}, as many as divide {heads}, are needed"))?;
    c.ids(3, &[rows])?;
    c.float_param(0, |_| true, "a finite number is needed")?;
    c.float_param(2, |cap| cap >= 0.0, "a number from 0 up is needed")
}

pub(super) fn kv_write(c: &Call<'_>) -> Result<()> {
    c.activations(&[0])?;
    c.want_rank(0, 3)?;
    cache_write(c, 1, 2)
}

fn cache_write(c: &Call<'_>, positions: usize, to: usize) -> Result<()> {
    let (rows, heads, head) = (c.dims(0)[0], c.dims(0)[1], c.dims(0)[2]);
    c.ids(positions, &[rows])?;
    cache(c, to)?;
    c.want_dims(to, &[c.dims(to)[0], heads, head])
}

fn cache(c: &Call<'_>, i: usize) -> Result<()> {
    c.want_dtype(i, ACTIVATIONS)?;
    c.contiguous_rows(i)?;
    c.want_rank(i, 3)
}

pub(super) fn copy(c: &Call<'_>) -> Result<()> {
    c.want_weight(0)?;
    c.want_dtype(1, &[DType::F32, DType::F16, DType::BF16])?;
    c.same_dims(1, 0)
}

pub(super) fn concat(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1, 2])?;
    let (a, b) = (c.dims(0), c.dims(1));
    let fits = a.len() == b.len() && a[..a.len() - 1] == b[..b.len() - 1];
    c.shape(1, fits, || format!("the outer extents of {a:?} are needed"))?;
    let mut joined = a.to_vec();
    joined[a.len() - 1] = a[a.len() - 1].saturating_add(b[b.len() - 1]);
    c.want_dims(2, &joined)
}

pub(super) fn arg_max(c: &Call<'_>) -> Result<()> {
    c.activations(&[0])?;
    c.want_rank(0, 2)?;
    c.ids(1, &[c.dims(0)[0]])
}

pub(super) fn top_k(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1])?;
    c.want_rank(0, 2)?;
    c.want_rank(1, 2)?;
    let (rows, cols, k) = (c.dims(0)[0], c.dims(0)[1], c.dims(1)[1]);
    c.want_dims(1, &[rows, k])?;
    c.shape(1, k <= cols, || format!("at most {cols} elements can be kept"))?;
    c.ids(2, &[rows, k])
}

pub(super) fn fill(c: &Call<'_>) -> Result<()> {
    c.want_dtype(0, ACTIVATIONS)
}

pub(super) fn add_rms_norm(c: &Call<'_>) -> Result<()> {
    let y = c.views.len() - 1;
    added_norm(c, y, 2)
}

pub(super) fn add_rms_norm_mul(c: &Call<'_>) -> Result<()> {
    let y = c.views.len() - 1;
    c.want_dtype(2, ACTIVATIONS)?;
    c.contiguous_rows(2)?;
    c.same_or_row(2, 0)?;
    added_norm(c, y, 3)
}

/// Sum and norm: operands 0 and 1 in, the sum from `outputs` on if it is kept, `y` last.
fn added_norm(c: &Call<'_>, y: usize, outputs: usize) -> Result<()> {
    c.want_dtype(1, ACTIVATIONS)?;
    c.contiguous_rows(1)?;
    c.same_or_row(1, 0)?;
    for output in outputs..=y {
        c.activations(&[0, output])?;
        c.same_dims(output, 0)?;
    }
    c.epsilon(0)
}
