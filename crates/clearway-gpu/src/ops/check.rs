//! Shapes, element types and constants of each op, checked when it is called.
//!
//! Activations of one op share a type (f32 or f16). Weights may have any type where the op says so.
//! Rows are contiguous everywhere but in `copy` and `fill`; outer strides are free. Between two products f32
//! activations may be rounded, where the first is gated; what norms, gates and attention give to products may be
//! f16 in the bytes of f32. A cache is f32, f16 or [`DType::C8`].

use clearway_graph::{
    BindingRole, CapturedOpKind as Kind, DType, Epilogue, Map, MapInputs, OpSpec, Operand,
    ParamKind, Product, Slot, TensorView,
};

use crate::error::{GpuError, Result};

/// An op call under scrutiny.
pub(super) struct Call<'a> {
    pub(super) spec: &'static OpSpec,
    pub(super) views: &'a [TensorView],
    pub(super) params: &'a [u32],
}

const ACTIVATIONS: &[DType] = &[DType::F32, DType::F16];
const CACHES: &[DType] = &[DType::F32, DType::F16, DType::C8];

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
        // The number of operands was checked before.
        self.spec.operand(self.views.len(), i).unwrap_or(&self.spec.operands[i])
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
        if found != DType::U32 && found != DType::C8 && !found.is_form() {
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

    /// Whether activations have a form; those lie densely.
    fn has_form(&self, i: usize, form: DType) -> Result<bool> {
        let layout = &self.view(i).layout;
        let has = layout.dtype() == form;
        self.shape(i, !has || layout.is_dense(), || "dense rows are needed".into())?;
        Ok(has)
    }

    /// Activations of one type, with contiguous rows; the result `y` of f32 may be f16 for products.
    fn activations_and(&self, operands: &[usize], y: usize) -> Result<()> {
        if !self.has_form(y, DType::A16)? {
            let all: Vec<usize> = operands.iter().copied().chain([y]).collect();
            return self.activations(&all);
        }
        for &i in operands {
            self.want_dtype(i, &[DType::F32])?;
            self.contiguous_rows(i)?;
        }
        Ok(())
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

/// Checks shapes, types and constants of a call that has the right number of operands.
pub(super) fn check(c: &Call<'_>) -> Result<()> {
    match c.spec.kind {
        Kind::Gather => gather(c),
        Kind::RmsNorm => rms_norm(c),
        Kind::LayerNorm => layer_norm(c),
        Kind::RmsNormMul => rms_norm_mul(c),
        Kind::Map(map) => element_wise(c, map),
        Kind::MatMulExperts => matmul_experts(c),
        Kind::ExpertOrder => expert_order(c),
        Kind::RouterTopK => router(c, 1),
        Kind::RouterGroups => router_groups(c),
        Kind::ExpertSum => expert_sum(c, 2),
        Kind::ExpertSumAdd => expert_sum_add(c),
        Kind::Rope => rope(c),
        Kind::Softmax => softmax(c),
        Kind::Attention => attention(c, c.views.len()),
        Kind::AttentionSinks => attention_sinks(c),
        Kind::KvWrite => kv_write(c),
        Kind::Copy => copy(c),
        Kind::Concat => concat(c),
        Kind::ArgMax => arg_max(c),
        Kind::TopK => top_k(c),
        Kind::Fill => fill(c),
        Kind::RmsNormMulAdd => rms_norm_mul_add(c),
        Kind::AddRmsNorm => add_rms_norm(c),
        Kind::AddRmsNormMul => add_rms_norm_mul(c),
        Kind::RopeKvWrite => rope_kv_write(c),
        Kind::Product(product) => matmul(c, product),
        Kind::Custom | Kind::Pinned => Ok(()),
    }
}

fn gather(c: &Call<'_>) -> Result<()> {
    c.want_rank(0, 2)?;
    // Rows of a cache, too.
    if c.view(0).layout.dtype() != DType::C8 {
        c.want_weight(0)?;
    }
    c.contiguous_rows(0)?;
    c.want_rank(1, 1)?;
    c.ids(1, &[c.dims(1)[0]])?;
    c.activations(&[2])?;
    c.want_dims(2, &[c.dims(1)[0], c.dims(0)[1]])?;
    c.float_param(0, |_| true, "a finite number is needed")
}

fn rms_norm(c: &Call<'_>) -> Result<()> {
    c.activations_and(&[0], 1)?;
    c.same_dims(1, 0)?;
    c.epsilon(0)
}

/// An element-wise op: operands by its inputs, constants by their specs.
fn element_wise(c: &Call<'_>, map: Map) -> Result<()> {
    match map.inputs() {
        MapInputs::One => {
            c.activations(&[0, 1])?;
            c.same_dims(1, 0)?;
        }
        MapInputs::Two => {
            c.activations(&[0, 2])?;
            with_row(c)?;
        }
        MapInputs::Gated => {
            c.activations_and(&[0, 1], 2)?;
            c.same_dims(1, 0)?;
            c.same_dims(2, 0)?;
        }
    }
    (0..c.params.len()).try_for_each(|i| match c.spec.params[i].positive {
        true => c.float_param(i, |value| value > 0.0, "a number above 0 is needed"),
        false => c.float_param(i, |_| true, "a finite number is needed"),
    })
}

fn layer_norm(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 3])?;
    c.same_dims(3, 0)?;
    for weight in [1, 2] {
        c.want_dtype(weight, ACTIVATIONS)?;
        c.want_dims(weight, &[c.view(0).layout.cols() as u32])?;
        c.contiguous_rows(weight)?;
    }
    c.epsilon(0)
}

/// A norm with its weight.
fn rms_norm_mul(c: &Call<'_>) -> Result<()> {
    c.activations_and(&[0], 2)?;
    with_row(c)?;
    c.epsilon(0)
}

/// A norm with its weight, and a residual.
fn rms_norm_mul_add(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 3])?;
    c.same_dims(3, 0)?;
    for operand in [1, 2] {
        c.want_dtype(operand, ACTIVATIONS)?;
        c.contiguous_rows(operand)?;
        c.same_or_row(operand, 0)?;
    }
    c.epsilon(0)
}

/// Two operands, the second of the first's shape or one row of it. The first and the result are checked before.
fn with_row(c: &Call<'_>) -> Result<()> {
    c.want_dtype(1, ACTIVATIONS)?;
    c.contiguous_rows(1)?;
    c.same_or_row(1, 0)?;
    c.same_dims(2, 0)
}

/// A product with what is fused to it, part by part.
fn matmul(c: &Call<'_>, product: Product) -> Result<()> {
    if product.is_of_experts() {
        return experts_product(c, product);
    }
    let at = |slot| product.operand(slot, c.views.len());
    // Every product has these.
    let w = at(Slot::Weight).unwrap_or(1);
    let Epilogue { add, head_norm: _, rope, cache: to_cache, norm } = product.epilogue();
    let result = at(Slot::Result);
    product_activations(c, product, result)?;
    if let (Some(y), false) = (result, product.epilogue().heads()) {
        c.want_rank(y, 2)?;
    }
    let (rows, outer) = factors_of_product(c, w)?;
    if let Some(g) = at(Slot::NormWeight) {
        row_of_weights(c, g, c.view(0).layout.cols())?;
        c.epsilon(0)?;
    }
    let mut head = outer;
    match (result, at(Slot::Cache)) {
        (_, Some(to)) => {
            cache(c, to)?;
            head = heads(c, to, outer)?;
        }
        (Some(y), None) if product.epilogue().heads() => {
            head = heads(c, y, outer)?;
            c.want_dims(y, &[rows, c.dims(y)[1], head])?;
        }
        (Some(y), None) => c.want_dims(y, &[rows, outer])?,
        (None, None) => {}
    }
    if let Some(u) = at(Slot::UpWeight) {
        c.want_weight(u)?;
        c.contiguous_rows(u)?;
        c.same_dims(u, w)?;
    }
    if let (Some(up), Some(y)) = (at(Slot::Up), result) {
        c.activations(&[y, up])?;
        c.same_dims(up, y)?;
    }
    if let (Some(addend), true) = (at(Slot::Addend), add) {
        c.want_dtype(addend, ACTIVATIONS)?;
        c.contiguous_rows(addend)?;
        let layout = &c.view(addend).layout;
        let row = layout.rows() == 1 && layout.cols() == outer as usize;
        c.shape(addend, row || c.dims(addend) == [rows, outer], || {
            format!("[{rows}, {outer}] or one row of {outer} is needed")
        })?;
    }
    if let Some(h) = at(Slot::HeadNormWeight) {
        row_of_weights(c, h, head as usize)?;
        c.epsilon(product.head_norm_param())?;
    }
    if let (Some(positions), true) = (at(Slot::Positions), rope) {
        rotation(c, (rows, head), positions, product.rope_params())?;
    }
    if let (Some(to), true) = (at(Slot::CacheRows), to_cache) {
        c.ids(to, &[rows])?;
    }
    if let (Some(next), true) = (at(Slot::NextNormWeight), norm) {
        row_of_weights(c, next, outer as usize)?;
        c.epsilon(0)?;
    }
    if let (Some(sum), Some(y)) = (at(Slot::Sum), result) {
        c.activations(&[sum])?;
        c.same_dims(sum, y)?;
    }
    Ok(())
}

/// Activations and result of a product have one type; activations may come in a form, the result may be
/// quantised for the next product, and the other is f32 then.
fn product_activations(c: &Call<'_>, product: Product, result: Option<usize>) -> Result<()> {
    let plain = product.may_read_quantised();
    let read = plain && (c.has_form(0, DType::A8)? || c.has_form(0, DType::A16)?);
    let written = match result {
        Some(y) if product.may_quantise() => c.has_form(y, DType::A8)?,
        _ => false,
    };
    let operands = [Some((0, read)), result.map(|y| (y, written))].into_iter().flatten();
    if !read && !written {
        let floats: Vec<usize> = operands.map(|(i, _)| i).collect();
        return c.activations(&floats);
    }
    for (i, _) in operands.filter(|(_, quantised)| !quantised) {
        c.want_dtype(i, &[DType::F32])?;
        c.contiguous_rows(i)?;
    }
    Ok(())
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

fn row_of_weights(c: &Call<'_>, i: usize, cols: usize) -> Result<()> {
    c.want_dtype(i, ACTIVATIONS)?;
    c.contiguous_rows(i)?;
    let layout = &c.view(i).layout;
    let row = layout.rows() == 1 && layout.cols() == cols;
    c.shape(i, row, || format!("one row of {cols} is needed"))
}

fn matmul_experts(c: &Call<'_>) -> Result<()> {
    let y = c.views.len() - 1;
    match c.has_form(0, DType::A16)? {
        true => c.want_dtype(y, &[DType::F32]).and_then(|()| c.contiguous_rows(y))?,
        false => c.activations(&[0, y])?,
    }
    chosen_weights(c, 1, 2)?;
    if y == 4 {
        c.ids(3, &[order_len(c.dims(1)[0], c.dims(2))])?;
    }
    c.want_dims(y, &[c.dims(2)[0], c.dims(2)[1], c.dims(1)[1]])
}

/// A product of experts with what is fused to it.
fn experts_product(c: &Call<'_>, product: Product) -> Result<()> {
    // Every product of experts has these.
    let at = |slot| product.operand(slot, c.views.len());
    let (w, ids) = (at(Slot::Weight).unwrap_or(1), at(Slot::Ids).unwrap_or(2));
    let y = c.views.len() - 1;
    c.activations(&[0, y])?;
    chosen_weights(c, w, ids)?;
    if let Some(g) = at(Slot::NormWeight) {
        row_of_weights(c, g, c.view(0).layout.cols())?;
        c.epsilon(0)?;
    }
    if let Some(u) = at(Slot::UpWeight) {
        c.want_weight(u)?;
        c.contiguous_rows(u)?;
        c.same_dims(u, w)?;
    }
    c.want_dims(y, &[c.dims(ids)[0], c.dims(ids)[1], c.dims(w)[1]])?;
    if let Some(up) = at(Slot::Up) {
        c.activations(&[y, up])?;
        c.same_dims(up, y)?;
    }
    Ok(())
}

/// Operand 0, the weights `w` of all experts, and the ids of those that were chosen.
fn chosen_weights(c: &Call<'_>, w: usize, ids: usize) -> Result<()> {
    c.want_rank(w, 3)?;
    c.want_weight(w)?;
    c.contiguous_rows(w)?;
    c.want_rank(ids, 2)?;
    let (rows, used) = (c.dims(ids)[0], c.dims(ids)[1]);
    c.ids(ids, &[rows, used])?;
    let inner = c.dims(w)[2];
    let (shared, own) = ([rows, inner], [rows, used, inner]);
    let ok = c.dims(0) == shared || c.dims(0) == own;
    c.shape(0, ok, || format!("{shared:?} or {own:?} is needed"))
}

/// Words of an order of pairs by expert.
fn order_len(experts: u32, ids: &[u32]) -> u32 {
    let pairs = ids.iter().fold(1, |pairs: u32, &extent| pairs.saturating_mul(extent));
    pairs.saturating_add(experts).saturating_add(2)
}

fn expert_order(c: &Call<'_>) -> Result<()> {
    c.want_rank(0, 2)?;
    c.ids(0, &[c.dims(0)[0], c.dims(0)[1]])?;
    c.int_param(0, |experts| experts > 0, "a number above 0 is needed")?;
    c.ids(1, &[order_len(c.params[0], c.dims(0))])
}

/// A router whose results begin with operand `ids`.
fn router(c: &Call<'_>, ids: usize) -> Result<()> {
    let weights = ids + 1;
    c.activations(&[0])?;
    c.want_rank(0, 2)?;
    c.want_rank(ids, 2)?;
    let (rows, experts) = (c.dims(0)[0], c.dims(0)[1]);
    let used = c.dims(ids)[1];
    c.ids(ids, &[rows, used])?;
    c.shape(ids, used <= experts, || format!("at most {experts} experts can be used"))?;
    c.want_dtype(weights, &[DType::F32])?;
    c.contiguous_rows(weights)?;
    c.want_dims(weights, &[rows, used])?;
    c.int_param(0, |mode| mode <= 2, "0, 1 or 2 is needed")?;
    c.int_param(1, |renorm| renorm <= 1, "0 or 1 is needed")?;
    c.float_param(2, |_| true, "a finite number is needed")
}

/// Most experts that are chosen by groups: kernels hold their scores together.
const MOST_GROUPED: u32 = 1024;

fn router_groups(c: &Call<'_>) -> Result<()> {
    let ids = c.views.len() - 2;
    router(c, ids)?;
    let (experts, used) = (c.dims(0)[1], c.dims(ids)[1]);
    c.shape(0, experts <= MOST_GROUPED, || format!("at most {MOST_GROUPED} experts are needed"))?;
    if ids == 2 {
        c.want_dtype(1, &[DType::F32])?;
        c.want_dims(1, &[experts])?;
        c.contiguous_rows(1)?;
    }
    let plain = |mode: u32| mode == 2 || (mode == 0 && ids == 1);
    c.int_param(0, plain, "2, or 0 without a bias, is needed")?;
    let whole = |groups: u32| groups > 0 && experts.is_multiple_of(groups);
    c.int_param(3, whole, "a number that divides the experts is needed")?;
    let (groups, size) = (c.params[3], experts / c.params[3]);
    let enough =
        |chosen: u32| chosen <= groups && u64::from(chosen) * u64::from(size) >= used.into();
    c.int_param(4, enough, "as many groups as hold the experts used are needed")?;
    let most = if c.params[0] == 0 { 1 } else { size.min(2) };
    c.int_param(5, |best| (1..=most).contains(&best), "1, or 2 of sigmoids, is needed")
}

fn expert_sum_add(c: &Call<'_>) -> Result<()> {
    expert_sum(c, 3)?;
    c.want_dtype(2, ACTIVATIONS)?;
    c.contiguous_rows(2)?;
    c.same_or_row(2, 3)
}

/// The sum of operand 0 by operand 1 to operand `y`.
fn expert_sum(c: &Call<'_>, y: usize) -> Result<()> {
    c.activations(&[0, y])?;
    c.want_rank(0, 3)?;
    let (rows, used, cols) = (c.dims(0)[0], c.dims(0)[1], c.dims(0)[2]);
    c.want_dtype(1, &[DType::F32])?;
    c.contiguous_rows(1)?;
    c.want_dims(1, &[rows, used])?;
    c.want_dims(y, &[rows, cols])
}

fn rope(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 3])?;
    c.same_dims(3, 0)?;
    c.want_rank(0, 3)?;
    rotation(c, (c.dims(0)[0], c.dims(0)[2]), 1, 0)
}

fn rope_kv_write(c: &Call<'_>) -> Result<()> {
    c.activations(&[0])?;
    c.want_rank(0, 3)?;
    rotation(c, (c.dims(0)[0], c.dims(0)[2]), 1, 0)?;
    cache_write(c, 3, 4)
}

/// What every rotary op has, for `rows` of heads of this size: positions, factors behind them, and
/// five constants from `first` on.
fn rotation(c: &Call<'_>, (rows, head): (u32, u32), positions: usize, first: usize) -> Result<()> {
    let factors = positions + 1;
    c.ids(positions, &[rows])?;
    let fits = |n: u32| n >= 2 && n.is_multiple_of(2) && n <= head;
    c.int_param(first, fits, "an even number up to the head size is needed")?;
    c.int_param(first + 1, |mode| mode <= 1, "0 or 1 is needed")?;
    c.float_param(first + 2, |base| base > 0.0, "a number above 0 is needed")?;
    c.float_param(first + 3, |_| true, "a finite number is needed")?;
    c.float_param(first + 4, |_| true, "a finite number is needed")?;
    c.want_dtype(factors, &[DType::F32])?;
    c.contiguous_rows(factors)?;
    c.want_dims(factors, &[c.params[first] / 2])
}

fn softmax(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 2])?;
    c.same_dims(2, 0)?;
    c.want_dtype(1, ACTIVATIONS)?;
    c.contiguous_rows(1)?;
    let shape = c.view(0).layout.shape4();
    c.want_dims(1, &[shape[2], shape[3]])?;
    c.float_param(0, |_| true, "a finite number is needed")
}

/// Attention with one more score for each head, which comes in front of the result.
fn attention_sinks(c: &Call<'_>) -> Result<()> {
    let sinks = c.views.len() - 2;
    attention(c, c.views.len() - 1)?;
    c.want_dtype(sinks, &[DType::F32])?;
    c.want_dims(sinks, &[c.dims(0)[1]])?;
    c.contiguous_rows(sinks)
}

/// `operands` are those of plain attention, the result among them, which is the last of all.
fn attention(c: &Call<'_>, operands: usize) -> Result<()> {
    let y = c.views.len() - 1;
    c.activations_and(&[0], y)?;
    let keys = c.view(1).layout.dtype();
    for (i, allowed) in [(1, CACHES), (2, &[keys])] {
        c.want_dtype(i, allowed)?;
        c.contiguous_rows(i)?;
    }
    for i in [0, 1, 2] {
        c.want_rank(i, 3)?;
    }
    let (rows, heads, head) = (c.dims(0)[0], c.dims(0)[1], c.dims(0)[2]);
    let (cache_rows, kv_heads, value) = (c.dims(1)[0], c.dims(1)[1], c.dims(2)[2]);
    let ok = c.dims(1)[2] == head && heads.is_multiple_of(kv_heads);
    c.shape(1, ok, || format!("rows of heads of {head}, as many as divide {heads}, are needed"))?;
    c.want_dims(2, &[cache_rows, kv_heads, value])?;
    c.want_dims(y, &[rows, heads, value])?;
    c.ids(3, &[rows])?;
    c.float_param(0, |_| true, "a finite number is needed")?;
    c.float_param(2, |cap| cap >= 0.0, "a number from 0 up is needed")?;
    if operands == 5 {
        return c.int_param(3, |block| block == 0, "0 is needed without a table of blocks");
    }
    c.ids(4, &[rows])?;
    c.want_rank(5, 2)?;
    c.ids(5, &[c.dims(5)[0], c.dims(5)[1]])?;
    let fits = |block: u32| block > 0 && c.dims(1)[0].is_multiple_of(block);
    c.int_param(3, fits, "a number that divides the rows of the cache is needed")?;
    let all = c.dims(5)[1].checked_mul(c.params[3]);
    c.shape(5, all.is_some(), || "fewer than 2^32 rows of a sequence are needed".into())
}

fn kv_write(c: &Call<'_>) -> Result<()> {
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
    c.want_dtype(i, CACHES)?;
    c.contiguous_rows(i)?;
    c.want_rank(i, 3)
}

fn copy(c: &Call<'_>) -> Result<()> {
    c.want_weight(0)?;
    c.want_dtype(1, &[DType::F32, DType::F16, DType::BF16])?;
    c.same_dims(1, 0)
}

fn concat(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1, 2])?;
    let (a, b) = (c.dims(0), c.dims(1));
    let fits = a.len() == b.len() && a[..a.len() - 1] == b[..b.len() - 1];
    c.shape(1, fits, || format!("the outer extents of {a:?} are needed"))?;
    let mut joined = a.to_vec();
    joined[a.len() - 1] = a[a.len() - 1].saturating_add(b[b.len() - 1]);
    c.want_dims(2, &joined)
}

fn arg_max(c: &Call<'_>) -> Result<()> {
    c.activations(&[0])?;
    c.want_rank(0, 2)?;
    c.ids(1, &[c.dims(0)[0]])
}

fn top_k(c: &Call<'_>) -> Result<()> {
    c.activations(&[0, 1])?;
    c.want_rank(0, 2)?;
    c.want_rank(1, 2)?;
    let (rows, cols, k) = (c.dims(0)[0], c.dims(0)[1], c.dims(1)[1]);
    c.want_dims(1, &[rows, k])?;
    c.shape(1, k <= cols, || format!("at most {cols} elements can be kept"))?;
    c.ids(2, &[rows, k])
}

fn fill(c: &Call<'_>) -> Result<()> {
    c.want_dtype(0, ACTIVATIONS)
}

fn add_rms_norm(c: &Call<'_>) -> Result<()> {
    let y = c.views.len() - 1;
    added_norm(c, y, 2)
}

fn add_rms_norm_mul(c: &Call<'_>) -> Result<()> {
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
    for output in outputs..y {
        c.activations(&[0, output])?;
        c.same_dims(output, 0)?;
    }
    c.activations_and(&[0], y)?;
    c.same_dims(y, 0)?;
    c.epsilon(0)
}
