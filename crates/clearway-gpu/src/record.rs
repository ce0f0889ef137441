//! Op calls, and a recorder that needs no device.

use clearway_graph::{CapturedOpKind as Kind, ComputeGraph, DType, Layout, TensorView};

use crate::error::{GpuError, Result};
use crate::ops;

/// How a rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeMode {
    /// Neighbours: (0, 1), (2, 3), ...
    Adjacent,
    /// First half with second half: (0, n/2), (1, n/2 + 1), ...
    Halves,
}

/// Constants of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeParams {
    /// Elements of each head that rotate; the rest pass through.
    pub n_dims: u32,
    /// How they pair.
    pub mode: RopeMode,
    /// Base of the frequencies.
    pub base: f32,
    /// Factor on the positions.
    pub scale: f32,
}

impl RopeParams {
    fn words(self, magnitude: f32) -> [u32; 5] {
        let mode = match self.mode {
            RopeMode::Adjacent => 0,
            RopeMode::Halves => 1,
        };
        [self.n_dims, mode, self.base.to_bits(), self.scale.to_bits(), magnitude.to_bits()]
    }
}

/// Constants of an attention op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Factor on the scores.
    pub scale: f32,
    /// Rows of the cache each token sees, counted back from itself; 0 for all.
    pub window: u32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
}

impl AttentionParams {
    fn words(self, block: u32) -> [u32; 4] {
        [self.scale.to_bits(), self.window, self.softcap.to_bits(), block]
    }
}

/// Where the rows of many sequences lie in one cache. Row `r` of sequence `s` is row
/// `blocks[s, r / block] * block + r % block` of the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockTable {
    /// The sequence of each token, `u32[T]`. A token of a sequence that the table does not have sees nothing.
    pub sequences: TensorView,
    /// Blocks of each sequence in order, `u32[S,N]`. One beyond the cache stands for its last. Kernels are chosen for tokens
    /// that are spread evenly over all `S`: a step of one sequence is fastest with a table of one row.
    pub blocks: TensorView,
    /// Rows of a block.
    pub block: u32,
}

/// What an attention op reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Queries, `[T,H,D]`.
    pub q: TensorView,
    /// Keys `[S,Hkv,D]` and values `[S,Hkv,E]`.
    pub cache: [TensorView; 2],
    /// Last row that each token sees, `u32[T]`.
    pub positions: TensorView,
    /// Where rows of many sequences lie; `None` where the cache is one sequence.
    pub table: Option<BlockTable>,
    /// One more score of each head, `[H]`, which takes its share of the softmax and has no value.
    pub sinks: Option<TensorView>,
    /// Constants.
    pub params: AttentionParams,
}

/// How a router turns logits into weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterMode {
    /// Softmax over all experts, then the best are taken.
    SoftmaxAll,
    /// The best are taken, then softmax over them.
    SoftmaxChosen,
    /// Sigmoid of each logit.
    Sigmoid,
}

/// Constants of a router op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterParams {
    /// Experts used for each row.
    pub used: usize,
    /// How logits become weights.
    pub mode: RouterMode,
    /// Whether the weights of the chosen are scaled to sum to 1.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

impl RouterParams {
    fn words(self) -> [u32; 3] {
        let mode = match self.mode {
            RouterMode::SoftmaxAll => 0,
            RouterMode::SoftmaxChosen => 1,
            RouterMode::Sigmoid => 2,
        };
        [mode, u32::from(self.renormalise), self.scale.to_bits()]
    }
}

/// How a router chooses groups of experts before it chooses experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterGroups {
    /// Groups of as many experts each.
    pub count: usize,
    /// Groups whose experts can be chosen.
    pub used: usize,
    /// Best experts of a group whose scores are its own: 1, or 2 of sigmoids.
    pub best: usize,
}

/// Op calls. A recorder and both kinds of session take the same ones.
///
/// Each call checks its operands, declares its results and says what it did; nothing is computed
/// before the pass is finished. [`push`](Self::push) is the one way in, for outputs of the caller's
/// choice and for user kernels.
pub trait Ops {
    /// Memory for a result.
    ///
    /// # Errors
    /// What the device reports where memory is taken at once.
    fn declare(&mut self, layout: Layout) -> Result<TensorView>;

    /// Adds one op with all its operands, inputs before outputs.
    ///
    /// # Errors
    /// Wrong shapes, types, numbers of operands or constants; nothing is added then.
    fn push(&mut self, kind: Kind, views: &[TensorView], params: &[u32]) -> Result<()>;

    /// Declares one result and adds the op that computes it.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn call(
        &mut self,
        kind: Kind,
        inputs: &[TensorView],
        params: &[u32],
        dtype: DType,
        shape: &[usize],
    ) -> Result<TensorView> {
        let result = self.declare(Layout::new(dtype, shape)?)?;
        let mut views = smallvec::SmallVec::<[TensorView; 6]>::from_slice(inputs);
        views.push(result);
        self.push(kind, &views, params)?;
        Ok(result)
    }

    /// Rows of `table` picked by `ids`, times `scale`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn gather(&mut self, table: TensorView, ids: TensorView, scale: f32) -> Result<TensorView> {
        let shape = [ids.layout.elems(), table.layout.cols()];
        self.call(Kind::Gather, &[table, ids], &[scale.to_bits()], DType::F32, &shape)
    }

    /// Rows divided by their root mean square.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn rms_norm(&mut self, x: TensorView, eps: f32) -> Result<TensorView> {
        self.call(Kind::RmsNorm, &[x], &[eps.to_bits()], x.layout.dtype(), &dims(&x))
    }

    /// Rows with mean 0 and variance 1, times `w`, plus `b`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn layer_norm(
        &mut self,
        x: TensorView,
        w: TensorView,
        b: TensorView,
        eps: f32,
    ) -> Result<TensorView> {
        self.call(Kind::LayerNorm, &[x, w, b], &[eps.to_bits()], x.layout.dtype(), &dims(&x))
    }

    /// Sum; `b` has the shape of `a` or is one row, repeated.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn add(&mut self, a: TensorView, b: TensorView) -> Result<TensorView> {
        self.call(Kind::ADD, &[a, b], &[], a.layout.dtype(), &dims(&a))
    }

    /// Product; `b` has the shape of `a` or is one row, repeated.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn mul(&mut self, a: TensorView, b: TensorView) -> Result<TensorView> {
        self.call(Kind::MUL, &[a, b], &[], a.layout.dtype(), &dims(&a))
    }

    /// `x * s`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn scale(&mut self, x: TensorView, s: f32) -> Result<TensorView> {
        self.call(Kind::SCALE, &[x], &[s.to_bits()], x.layout.dtype(), &dims(&x))
    }

    /// `x * sigmoid(x)`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn silu(&mut self, x: TensorView) -> Result<TensorView> {
        self.call(Kind::SILU, &[x], &[], x.layout.dtype(), &dims(&x))
    }

    /// GELU, tanh form.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn gelu(&mut self, x: TensorView) -> Result<TensorView> {
        self.call(Kind::GELU, &[x], &[], x.layout.dtype(), &dims(&x))
    }

    /// `silu(gate) * up`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn silu_mul(&mut self, gate: TensorView, up: TensorView) -> Result<TensorView> {
        self.call(Kind::SILU_MUL, &[gate, up], &[], gate.layout.dtype(), &dims(&gate))
    }

    /// `gelu(gate) * up`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn gelu_mul(&mut self, gate: TensorView, up: TensorView) -> Result<TensorView> {
        self.call(Kind::GELU_MUL, &[gate, up], &[], gate.layout.dtype(), &dims(&gate))
    }

    /// `g * sigmoid(alpha * g) * (u + 1)`, where `g` is `gate` and at most `limit`, and `u` is `up` within `limit` of zero.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn clamped_gate(
        &mut self,
        gate: TensorView,
        up: TensorView,
        limit: f32,
        alpha: f32,
    ) -> Result<TensorView> {
        let words = [limit.to_bits(), alpha.to_bits()];
        self.call(Kind::CLAMPED_GATE, &[gate, up], &words, gate.layout.dtype(), &dims(&gate))
    }

    /// The square of `x` where it is above zero, and zero elsewhere.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn relu_squared(&mut self, x: TensorView) -> Result<TensorView> {
        self.call(Kind::RELU_SQUARED, &[x], &[], x.layout.dtype(), &dims(&x))
    }

    /// `cap * tanh(x / cap)`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn soft_cap(&mut self, x: TensorView, cap: f32) -> Result<TensorView> {
        self.call(Kind::SOFT_CAP, &[x], &[cap.to_bits()], x.layout.dtype(), &dims(&x))
    }

    /// `x[T,K] * w[N,K]` transposed: `[T,N]`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn matmul(&mut self, x: TensorView, w: TensorView) -> Result<TensorView> {
        let shape = [x.layout.rows(), w.layout.rows()];
        self.call(Kind::MATMUL, &[x, w], &[], x.layout.dtype(), &shape)
    }

    /// The product with the matrices of the experts `ids[T,k]`: `[T,k,N]`. `x` is `[T,K]`, or
    /// `[T,k,K]` with a row of its own for each expert.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn matmul_experts(
        &mut self,
        x: TensorView,
        w: TensorView,
        ids: TensorView,
    ) -> Result<TensorView> {
        let shape = [ids.layout.rows(), ids.layout.cols(), w.layout.shape4()[2] as usize];
        self.call(Kind::MatMulExperts, &[x, w, ids], &[], x.layout.dtype(), &shape)
    }

    /// As [`matmul_experts`](Self::matmul_experts), with the order of the rows by expert
    /// ([`expert_order`](Self::expert_order)): a device may then multiply the rows of each expert together.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn matmul_experts_in_order(
        &mut self,
        x: TensorView,
        w: TensorView,
        ids: TensorView,
        order: TensorView,
    ) -> Result<TensorView> {
        let shape = [ids.layout.rows(), ids.layout.cols(), w.layout.shape4()[2] as usize];
        let operands = [x, w, ids, order];
        self.call(Kind::MatMulExperts, &operands, &[], x.layout.dtype(), &shape)
    }

    /// The pairs of a row and an expert in `ids[T,k]`, by expert of `experts`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn expert_order(&mut self, ids: TensorView, experts: usize) -> Result<TensorView> {
        let shape = [ids.layout.elems() + experts + 2];
        self.call(Kind::ExpertOrder, &[ids], &[experts as u32], DType::U32, &shape)
    }

    /// The best experts of each row of `logits[T,E]` and their weights, both `[T,k]`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn router_top_k(
        &mut self,
        logits: TensorView,
        params: RouterParams,
    ) -> Result<(TensorView, TensorView)> {
        let shape = [logits.layout.rows(), params.used];
        let ids = self.declare(Layout::new(DType::U32, &shape)?)?;
        let weights = self.declare(Layout::new(DType::F32, &shape)?)?;
        self.push(Kind::RouterTopK, &[logits, ids, weights], &params.words())?;
        Ok((ids, weights))
    }

    /// As [`router_top_k`](Self::router_top_k), of the experts of each row's best groups. `bias[E]` counts where groups and
    /// experts are chosen and not in the weights; only sigmoids have one.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn router_groups(
        &mut self,
        logits: TensorView,
        bias: Option<TensorView>,
        params: RouterParams,
        groups: RouterGroups,
    ) -> Result<(TensorView, TensorView)> {
        let shape = [logits.layout.rows(), params.used];
        let ids = self.declare(Layout::new(DType::U32, &shape)?)?;
        let weights = self.declare(Layout::new(DType::F32, &shape)?)?;
        let operands: Vec<TensorView> =
            [Some(logits), bias, Some(ids), Some(weights)].into_iter().flatten().collect();
        let [mode, renorm, scale] = params.words();
        let [count, used, best] = [groups.count, groups.used, groups.best].map(|n| n as u32);
        self.push(Kind::RouterGroups, &operands, &[mode, renorm, scale, count, used, best])?;
        Ok((ids, weights))
    }

    /// `x[T,k,N]` summed over the experts by `weights[T,k]`: `[T,N]`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn expert_sum(&mut self, x: TensorView, weights: TensorView) -> Result<TensorView> {
        let shape = [weights.layout.rows(), x.layout.cols()];
        self.call(Kind::ExpertSum, &[x, weights], &[], x.layout.dtype(), &shape)
    }

    /// Rotary position embedding of `x[T,H,D]`; `factors` divide the frequencies.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn rope(
        &mut self,
        x: TensorView,
        positions: TensorView,
        factors: TensorView,
        params: RopeParams,
    ) -> Result<TensorView> {
        self.rope_scaled(x, positions, factors, params, 1.0)
    }

    /// As [`rope`](Self::rope), and the elements that rotate are multiplied by a magnitude.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn rope_scaled(
        &mut self,
        x: TensorView,
        positions: TensorView,
        factors: TensorView,
        params: RopeParams,
        magnitude: f32,
    ) -> Result<TensorView> {
        let (inputs, words) = ([x, positions, factors], params.words(magnitude));
        self.call(Kind::Rope, &inputs, &words, x.layout.dtype(), &dims(&x))
    }

    /// `softmax(x * scale + mask)` of each row.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn softmax(&mut self, x: TensorView, mask: TensorView, scale: f32) -> Result<TensorView> {
        self.call(Kind::Softmax, &[x, mask], &[scale.to_bits()], x.layout.dtype(), &dims(&x))
    }

    /// Causal grouped-query attention of `q[T,H,D]` over caches `k[S,Hkv,D]` and `v[S,Hkv,E]`: token `t`
    /// sees the rows up to `positions[t]`. The result is `[T,H,E]`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn attention(
        &mut self,
        q: TensorView,
        k: TensorView,
        v: TensorView,
        positions: TensorView,
        params: AttentionParams,
    ) -> Result<TensorView> {
        let words = params.words(0);
        let shape = attended(&q, &v);
        self.call(Kind::Attention, &[q, k, v, positions], &words, q.layout.dtype(), &shape)
    }

    /// As [`attention`](Self::attention), of tokens of many sequences whose rows lie in blocks of one cache. Token `t`
    /// sees the rows up to `positions[t]` of its own sequence.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn attention_in_blocks(
        &mut self,
        q: TensorView,
        [k, v]: [TensorView; 2],
        positions: TensorView,
        table: BlockTable,
        params: AttentionParams,
    ) -> Result<TensorView> {
        let operands = [q, k, v, positions, table.sequences, table.blocks];
        let words = params.words(table.block);
        self.call(Kind::Attention, &operands, &words, q.layout.dtype(), &attended(&q, &v))
    }

    /// As [`attention`](Self::attention), or [`attention_in_blocks`](Self::attention_in_blocks) with a table, where each
    /// head has one more score, `sinks[H]`: it takes its share of the softmax and has no value. It is neither scaled nor capped.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn attention_with_sinks(
        &mut self,
        q: TensorView,
        [k, v]: [TensorView; 2],
        positions: TensorView,
        table: Option<BlockTable>,
        sinks: TensorView,
        params: AttentionParams,
    ) -> Result<TensorView> {
        let mut operands = vec![q, k, v, positions];
        operands.extend(table.iter().flat_map(|table| [table.sequences, table.blocks]));
        operands.push(sinks);
        let words = params.words(table.map_or(0, |table| table.block));
        self.call(Kind::AttentionSinks, &operands, &words, q.layout.dtype(), &attended(&q, &v))
    }

    /// Attention into memory of the caller's choice: of rows of one result that several calls give together.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn attention_into(&mut self, of: &Attention, y: TensorView) -> Result<()> {
        let Attention { q, cache: [k, v], positions, table, sinks, params } = *of;
        let mut operands = vec![q, k, v, positions];
        operands.extend(table.iter().flat_map(|table| [table.sequences, table.blocks]));
        operands.extend(sinks);
        operands.push(y);
        let kind = if sinks.is_some() { Kind::AttentionSinks } else { Kind::Attention };
        self.push(kind, &operands, &params.words(table.map_or(0, |table| table.block)))
    }

    /// Writes `x[T,Hkv,D]` into the rows `positions` of `cache[S,Hkv,D]`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn kv_write(&mut self, x: TensorView, positions: TensorView, cache: TensorView) -> Result<()> {
        self.push(Kind::KvWrite, &[x, positions, cache], &[])
    }

    /// A dense copy in another element type or from another layout.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn copy(&mut self, x: TensorView, dtype: DType) -> Result<TensorView> {
        self.call(Kind::Copy, &[x], &[], dtype, &dims(&x))
    }

    /// Copies into memory of the caller's choice.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn copy_into(&mut self, x: TensorView, y: TensorView) -> Result<()> {
        self.push(Kind::Copy, &[x, y], &[])
    }

    /// `a` and `b` joined along the innermost dimension.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn concat(&mut self, a: TensorView, b: TensorView) -> Result<TensorView> {
        let mut shape = dims(&a);
        if let Some(cols) = shape.last_mut() {
            *cols += b.layout.cols();
        }
        self.call(Kind::Concat, &[a, b], &[], a.layout.dtype(), &shape)
    }

    /// Index of the largest element of each row, the first of equals; [`NO_INDEX`](crate::ops::NO_INDEX) where that
    /// is infinite or the row holds a NaN.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn arg_max(&mut self, x: TensorView) -> Result<TensorView> {
        self.call(Kind::ArgMax, &[x], &[], DType::U32, &[x.layout.rows()])
    }

    /// The `k` largest elements of each row in falling order, NaN before all others, and their indices.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn top_k(&mut self, x: TensorView, k: usize) -> Result<(TensorView, TensorView)> {
        let shape = [x.layout.rows(), k];
        let values = self.declare(Layout::new(x.layout.dtype(), &shape)?)?;
        let ids = self.declare(Layout::new(DType::U32, &shape)?)?;
        self.push(Kind::TopK, &[x, values, ids], &[])?;
        Ok((values, ids))
    }

    /// A tensor with every element `value`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn fill(&mut self, value: f32, dtype: DType, shape: &[usize]) -> Result<TensorView> {
        self.call(Kind::Fill, &[], &[value.to_bits()], dtype, shape)
    }
}

/// A tensor that a recorder declared without memory: a weight, a cache, an input of each step.
#[derive(Clone, Debug)]
pub struct External {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Where op calls find it.
    pub view: TensorView,
}

/// Records op calls into a [`ComputeGraph`] without any device: graphs of models can be planned,
/// looked at and verified before a file is opened.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    graph: ComputeGraph,
    externals: Vec<External>,
    label: String,
}

impl Recorder {
    /// A recorder with an empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a tensor whose memory is bound later, when the graph is lowered.
    ///
    /// # Errors
    /// A shape that cannot exist.
    pub fn external(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<TensorView> {
        let layout = Layout::new(dtype, shape)?;
        let buf_len = layout.span_bytes();
        let view = TensorView { buf_id: self.externals.len(), buf_len, offset: 0, layout };
        self.externals.push(External { name: name.to_owned(), view });
        Ok(view)
    }

    /// Names the ops that follow, for people.
    pub fn set_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    /// Marks a result as read by the host at the end.
    ///
    /// # Errors
    /// [`GpuError::TransferMismatch`] if it is not a result of this recorder.
    pub fn mark_output(&mut self, view: TensorView) -> Result<()> {
        let value = view.value().ok_or_else(|| GpuError::TransferMismatch {
            what: "output",
            found: format!("buffer {}", view.buf_id),
            expected: "a result of this pass".into(),
        })?;
        Ok(self.graph.mark_output(value)?)
    }

    /// The tensors declared without memory, in order; the identity of each is its index.
    pub fn externals(&self) -> &[External] {
        &self.externals
    }

    /// The graph recorded so far.
    pub fn graph(&self) -> &ComputeGraph {
        &self.graph
    }

    /// The graph, to change it.
    pub fn graph_mut(&mut self) -> &mut ComputeGraph {
        &mut self.graph
    }

    /// Gives the graph and the external tensors away.
    pub fn into_parts(self) -> (ComputeGraph, Vec<External>) {
        (self.graph, self.externals)
    }
}

impl Ops for Recorder {
    fn declare(&mut self, layout: Layout) -> Result<TensorView> {
        Ok(self.graph.declare_value(layout))
    }

    fn push(&mut self, kind: Kind, views: &[TensorView], params: &[u32]) -> Result<()> {
        record(&mut self.graph, kind, views, params, &self.label)
    }
}

/// Checks an op call and records it.
///
/// # Errors
/// Wrong shapes, types, numbers of operands or constants; nothing is recorded then.
pub fn record(
    graph: &mut ComputeGraph,
    kind: Kind,
    views: &[TensorView],
    params: &[u32],
    label: &str,
) -> Result<()> {
    ops::check(kind, views, params)?;
    let contract = ops::contract(kind, views.len())
        .ok_or_else(|| GpuError::UnknownKernel { kernel: format!("{kind:?}") })?;
    graph.dispatch(kind, contract, views, params, label)?;
    Ok(())
}

/// Shape of what queries find among values.
fn attended(q: &TensorView, v: &TensorView) -> smallvec::SmallVec<[usize; 4]> {
    let mut shape = dims(q);
    if let Some(last) = shape.last_mut() {
        *last = v.layout.cols();
    }
    shape
}

fn dims(view: &TensorView) -> smallvec::SmallVec<[usize; 4]> {
    view.layout.dims().iter().map(|&d| d as usize).collect()
}
