//! Random passes: the same op calls on any session, from a seed.
//!
//! A pass reads uploaded buffers, makes values, writes slices of real buffers that overlap other
//! slices, and keeps some results. Tensors lie densely, with gaps, transposed, repeated by stride 0, or
//! overlap themselves where they are only read. Two runs of one seed must give the same bits, whatever
//! the runtime does in between.

use clearway_gpu::{
    AttentionParams, Buffer, Device, GpuError, Ops, RopeMode, RopeParams, RouterMode, RouterParams,
    Upload, quant,
};
use clearway_graph::testkit::Rng;
use clearway_graph::{CapturedOpKind as Kind, DType, Layout, TensorView};
use half::f16;

use crate::bindings::Bindings;
use crate::error::Result;
use crate::session::{GraphSession, PassResult};

/// What a random pass may contain.
#[derive(Clone, Copy, Debug)]
pub struct PassShape {
    /// Ops at most.
    pub ops: usize,
    /// Whether values may be f16, where fusion rounds less often. Caches are f16 then.
    pub halves: bool,
    /// Whether ops that choose may occur: arg max, top k, routers. A rounding turns a choice into
    /// another one, so runs that round differently have none.
    pub choices: bool,
    /// Rows of the values: one of these.
    pub rows: &'static [usize],
    /// Columns of the values: any of these, multiples of the head.
    pub cols: &'static [usize],
    /// Columns of an attention head.
    pub head: usize,
    /// Whether slices of real buffers start at multiples of 16 bytes, as devices bind them. Others
    /// are bound from the multiple before, which an outside race checker takes for what is touched.
    pub aligned: bool,
    /// Which products have block weights.
    pub blocks: Blocks,
}

/// Block weights of a random pass. Devices may round the activations of products with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// No product has any.
    None,
    /// As files have them.
    Plain,
    /// As the device likes them best.
    Packed,
}

impl PassShape {
    /// Every kind of op and slice over f32 values.
    pub const ANY: Self = Self {
        ops: 24,
        halves: false,
        choices: true,
        rows: &[1, 2, 3, 4],
        cols: &[16, 32, 64],
        head: 8,
        aligned: false,
        blocks: Blocks::Plain,
    };

    /// Few shapes, for devices that compile a kernel for each.
    pub const FEW_KERNELS: Self = Self {
        ops: 16,
        rows: &[1, 3],
        cols: &[32, 64],
        head: 16,
        blocks: Blocks::Packed,
        ..Self::ANY
    };
}

/// A random pass: its buffers, and the calls to make.
pub struct RandomPass {
    seed: u64,
    shape: PassShape,
    buffers: Vec<Buffer>,
    initial: Vec<Vec<u8>>,
    /// Block weights that are not plain bytes, with their shapes.
    packed: Vec<(Buffer, Layout)>,
}

/// Results of a run: the outputs and all buffers, as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Outputs in order, as f32 bits or ids.
    pub outputs: Vec<Vec<u32>>,
    /// Buffers in order.
    pub buffers: Vec<Vec<u8>>,
}

const CACHE_ROWS: usize = 8;
/// Types of weights that lie as the device likes them.
const PACKED: [DType; 2] = [DType::Q8_0, DType::Q4_1];

/// Indices of the buffers of a pass.
const WEIGHTS: usize = 0;
const SCRATCH: usize = 1;
const KEYS: usize = 2;
const VALUES: usize = 3;
const POSITIONS: usize = 4;
const FACTORS: usize = 5;
const QUANTISED: usize = 6;

impl RandomPass {
    /// Buffers for the pass of this seed on a device.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(device: &dyn Device, seed: u64, shape: PassShape) -> Result<Self> {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let mut floats = |count: usize| -> Vec<f32> {
            (0..count).map(|_| rng.below(2001) as f32 / 1000.0 - 1.0).collect()
        };
        let weights = floats(64 * 64);
        let scratch = floats(1024);
        let mut cache = || {
            let values = floats(CACHE_ROWS * 4 * shape.head);
            if shape.halves {
                let halves: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
                device.upload(&halves)
            } else {
                device.upload(&values)
            }
        };
        let buffers = vec![
            device.upload(&weights)?,
            device.upload(&scratch)?,
            cache()?,
            cache()?,
            device.upload(&[3_u32, 1, 5, 0])?,
            device.upload(&vec![1.0_f32; shape.head / 2])?,
            device.upload(&encode(DType::Q8_0, &weights)?)?,
        ];
        let mut packed = Vec::new();
        let wanted = shape.blocks == Blocks::Packed;
        let inners = shape.cols.iter().filter(|&&inner| wanted && inner.is_multiple_of(32));
        for (&inner, &outer) in inners.flat_map(|inner| shape.cols.iter().map(move |o| (inner, o)))
        {
            for dtype in PACKED {
                let layout = Layout::new(dtype, &[outer, inner])?;
                let bytes = encode(dtype, &weights[..outer * inner])?;
                packed.push((device.upload_weights(&layout, &bytes)?, layout));
            }
        }
        let mut initial = Vec::new();
        for buffer in &buffers {
            initial.push(buffer.read_vec(0, buffer.len() as usize)?);
        }
        Ok(Self { seed, shape, buffers, initial, packed })
    }

    /// Puts all buffers back to what they held at first.
    ///
    /// # Errors
    /// What the device reports.
    pub fn reset(&self) -> Result<()> {
        for (buffer, bytes) in self.buffers.iter().zip(&self.initial) {
            buffer.write(0, bytes)?;
        }
        Ok(())
    }

    /// As [`reset`](Self::reset), with every f32 of weights, caches and scratch moved by up to `part`
    /// of itself: how far results move then says how far roundings on the way may move them.
    ///
    /// # Errors
    /// What the device reports.
    pub fn reset_nudged(&self, part: f64, seed: u64) -> Result<()> {
        self.reset()?;
        let mut rng = Rng::new(seed);
        let caches = if self.shape.halves { &[][..] } else { &[KEYS, VALUES][..] };
        for &buffer in [WEIGHTS, SCRATCH].iter().chain(caches) {
            let buffer = &self.buffers[buffer];
            let mut values: Vec<f32> = buffer.read_vec(0, buffer.len() as usize / 4)?;
            for value in &mut values {
                let unit = rng.below(2001) as f64 / 1000.0 - 1.0;
                *value = (f64::from(*value) * (1.0 + part * unit)) as f32;
            }
            buffer.write_slice(0, &values)?;
        }
        Ok(())
    }

    /// The numbers of an outcome without choices: its outputs, scratch and caches.
    pub fn numbers(&self, outcome: &Outcome) -> Vec<Vec<f32>> {
        let of_bits = |bits: &Vec<u32>| bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let mut numbers: Vec<Vec<f32>> = outcome.outputs.iter().map(of_bits).collect();
        for buffer in [SCRATCH, KEYS, VALUES] {
            let bytes = &outcome.buffers[buffer];
            numbers.push(if self.shape.halves && buffer != SCRATCH {
                let half = |two: &[u8]| f16::from_le_bytes([two[0], two[1]]).to_f32();
                bytes.chunks_exact(2).map(half).collect()
            } else {
                let float = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                bytes.chunks_exact(4).map(float).collect()
            });
        }
        numbers
    }

    /// Makes the calls of this pass and marks its outputs, which are returned.
    ///
    /// # Errors
    /// An op call that the session refuses: none should be.
    pub fn record(&self, session: &mut GraphSession<'_>) -> Result<Vec<TensorView>> {
        let mut rng = Rng::new(self.seed);
        let mut calls = Calls {
            pass: self,
            rows: *rng.pick(self.shape.rows).unwrap_or(&1),
            tensors: Vec::new(),
            outputs: Vec::new(),
            rng,
        };
        let ops = 3 + calls.rng.below(self.shape.ops.max(4) as u64 - 3) as usize;
        calls.first(session)?;
        for _ in 0..ops {
            calls.op(session)?;
        }
        calls.finish(session)
    }

    /// Reads the results of a run.
    ///
    /// # Errors
    /// What the device reports.
    pub fn outcome(
        &self,
        outputs: &[TensorView],
        read: impl Fn(TensorView) -> Result<Vec<u32>>,
    ) -> Result<Outcome> {
        let outputs = outputs.iter().map(|&view| read(view)).collect::<Result<_>>()?;
        let mut buffers = Vec::new();
        for buffer in &self.buffers {
            buffers.push(buffer.read_vec(0, buffer.len() as usize)?);
        }
        Ok(Outcome { outputs, buffers })
    }

    /// Reads the results of a finished pass.
    ///
    /// # Errors
    /// What the device reports.
    pub fn outcome_of(&self, outputs: &[TensorView], result: &PassResult) -> Result<Outcome> {
        self.outcome(outputs, |view| match view.layout.dtype() {
            DType::U32 => result.read(view),
            _ => Ok(result.read_f32(view)?.into_iter().map(f32::to_bits).collect()),
        })
    }

    /// Memory in which scratch and caches lie over each other. A pass recorded on its buffers runs there
    /// if it is [compiled](crate::GraphExecutor::compile) with these places. Only of f32 caches.
    ///
    /// # Errors
    /// What the device reports.
    pub fn aliased(&self, device: &dyn Device) -> Result<Aliased> {
        let mut rng = Rng::new(self.seed ^ 0xa11a5);
        let memory = device.upload(&self.initial[SCRATCH].repeat(2))?;
        let mut places = Bindings::new();
        for index in [SCRATCH, KEYS, VALUES] {
            let buffer = &self.buffers[index];
            // As devices bind them.
            let offset = rng.below(self.initial[SCRATCH].len() as u64 / 256 / 2) * 256;
            let whole = buffer.tensor(DType::U32, &[buffer.len() as usize / 4])?;
            places.bind_at(whole, &memory, offset);
        }
        let initial = self.initial[SCRATCH].repeat(2);
        Ok(Aliased { memory, places, initial })
    }

    fn tensor(
        &self,
        buffer: usize,
        offset: u64,
        dtype: DType,
        shape: &[usize],
    ) -> Result<TensorView> {
        Ok(self.buffers[buffer].view(offset, Layout::new(dtype, shape)?)?)
    }
}

/// Memory in which several buffers of a pass lie over each other.
pub struct Aliased {
    memory: Buffer,
    initial: Vec<u8>,
    /// Where each of them starts in it.
    pub places: Bindings,
}

impl Aliased {
    /// Puts the memory back to what it held at first.
    ///
    /// # Errors
    /// What the device reports.
    pub fn reset(&self) -> Result<()> {
        Ok(self.memory.write(0, &self.initial)?)
    }

    /// What it holds.
    ///
    /// # Errors
    /// What the device reports.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        Ok(self.memory.read_vec(0, self.memory.len() as usize)?)
    }
}

/// The state of recording.
struct Calls<'a> {
    pass: &'a RandomPass,
    rng: Rng,
    rows: usize,
    /// f32 tensors `[rows, cols]` made so far.
    tensors: Vec<TensorView>,
    outputs: Vec<TensorView>,
}

impl Calls<'_> {
    fn first(&mut self, s: &mut GraphSession<'_>) -> Result<()> {
        for &cols in self.pass.shape.cols {
            let source = self.pass.tensor(WEIGHTS, 64, DType::F32, &[self.rows, cols])?;
            self.tensors.push(s.scale(source, 0.5)?);
        }
        Ok(())
    }

    fn op(&mut self, s: &mut GraphSession<'_>) -> Result<()> {
        let x = self.pick();
        let cols = x.layout.cols();
        let made = match self.rng.below(22) {
            0 | 1 => {
                let other = self.pick_cols(cols);
                let sum = s.add(x, other)?;
                // Often the pattern a fusion rule looks for, with or without another reader.
                if self.rng.below(2) == 0 {
                    let normed = s.rms_norm(sum, 1e-5)?;
                    self.tensors.push(sum);
                    if self.rng.below(2) == 0 { s.mul(normed, self.row(cols)?)? } else { normed }
                } else {
                    sum
                }
            }
            2 => {
                let normed = s.rms_norm(x, 1e-5)?;
                if self.rng.below(4) == 0 {
                    self.tensors.push(normed);
                }
                s.mul(normed, self.row(cols)?)?
            }
            3 | 4 => {
                let up = self.pick_cols(cols);
                let gate = if self.rng.below(2) == 0 { s.silu(x)? } else { s.gelu(x)? };
                if self.rng.below(2) == 0 { s.mul(gate, up)? } else { s.mul(up, gate)? }
            }
            5..=7 => self.product(s, x)?,
            8 => s.soft_cap(x, 2.0)?,
            9 => s.layer_norm(x, self.row(cols)?, self.row(cols)?, 1e-5)?,
            10 => self.through_scratch(s, x)?,
            11 => self.attention(s, x)?,
            12 if self.pass.shape.halves => {
                let half = s.copy(x, DType::F16)?;
                let half = if self.rng.below(2) == 0 { s.silu(half)? } else { half };
                s.copy(half, DType::F32)?
            }
            13 => {
                let mask = s.fill(0.0, DType::F32, &[self.rows, cols])?;
                s.softmax(x, mask, 0.7)?
            }
            14 if self.pass.shape.choices => {
                let ids = s.arg_max(x)?;
                self.keep(s, ids)?;
                return Ok(());
            }
            15 => {
                let (values, ids) = s.top_k(x, 3)?;
                if self.pass.shape.choices {
                    self.keep(s, ids)?;
                }
                self.keep(s, values)?;
                return Ok(());
            }
            // A router turns a rounding into another expert, so runs that round differently have none.
            16 if self.pass.shape.choices && !self.pass.shape.halves => self.experts(s, x)?,
            18 => self.in_halves(s, x)?,
            19 | 20 => self.strided_scratch(s, x)?,
            21 => self.written_apart(s, x)?,
            _ => {
                let half = cols / 2;
                let strided =
                    Layout::new(DType::F32, &[self.rows, half])?.with_strides(&[cols, 1])?;
                let (left, right) =
                    (x.reinterpret(0, strided)?, x.reinterpret(half as u64 * 4, strided)?);
                s.concat(right, left)?
            }
        };
        self.tensors.push(made);
        if self.rng.below(6) == 0 {
            self.keep(s, made)?;
        }
        Ok(())
    }

    /// A product with a weight, and often the bias or residual that a rule fuses.
    fn product(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let inner = x.layout.cols();
        let outer = *self.rng.pick(self.pass.shape.cols).unwrap_or(&inner);
        let packed: Vec<&(Buffer, Layout)> = {
            let fits = |layout: &Layout| layout.cols() == inner && layout.rows() == outer;
            self.pass.packed.iter().filter(|(_, layout)| fits(layout)).collect()
        };
        let plain = self.pass.shape.blocks == Blocks::Plain && inner.is_multiple_of(32);
        let weight = match self.rng.below(2) {
            0 if !packed.is_empty() => {
                let (buffer, layout) = packed[self.rng.below(packed.len() as u64) as usize];
                buffer.view(0, *layout)?
            }
            0 if plain => self.pass.tensor(QUANTISED, 0, DType::Q8_0, &[outer, inner])?,
            _ => self.pass.tensor(WEIGHTS, 256, DType::F32, &[outer.min(32), inner])?,
        };
        let y = s.matmul(x, weight)?;
        let cols = y.layout.cols();
        Ok(match self.rng.below(4) {
            0 => s.add(y, self.row(cols)?)?,
            1 => {
                let residual = self.pick_cols(cols);
                s.add(residual, y)?
            }
            _ => y,
        })
    }

    /// Writes a slice of a real buffer that others write and read too, then reads a slice back.
    fn through_scratch(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let shape = [self.rows, x.layout.cols()];
        let slots = (1024 - self.rows * x.layout.cols()) as u64 + 1;
        let (written, read) = (self.offset(slots), self.offset(slots));
        s.copy_into(x, self.pass.tensor(SCRATCH, written, DType::F32, &shape)?)?;
        Ok(s.scale(self.pass.tensor(SCRATCH, read, DType::F32, &shape)?, 1.0)?)
    }

    /// A value that several ops write part by part: a row, the halves with gaps between their rows, and
    /// mostly part of a row once more.
    fn in_halves(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let (rows, cols) = (self.rows, x.layout.cols());
        let half = Layout::new(DType::F32, &[rows, cols / 2])?.with_strides(&[cols, 1])?;
        let y = s.declare(Layout::new(DType::F32, &[rows, cols])?)?;
        let sides = [0, cols as u64 * 2];
        let part = Layout::new(DType::F32, &[1, cols / 2])?;
        let rng = &mut self.rng;
        let swapped = rng.below(2) as usize;
        let row_at =
            |rng: &mut Rng| sides[rng.below(2) as usize] + rng.below(rows as u64) * cols as u64 * 4;
        if rng.below(2) == 0 {
            s.push(Kind::Fill, &[y.reinterpret(row_at(rng), part)?], &[9f32.to_bits()])?;
        }
        let other = x.reinterpret(sides[rng.below(2) as usize], half)?;
        s.copy_into(other, y.reinterpret(sides[swapped], half)?)?;
        if rng.below(2) == 0 {
            s.push(Kind::Fill, &[y.reinterpret(row_at(rng), part)?], &[5f32.to_bits()])?;
        }
        let second = y.reinterpret(sides[1 - swapped], half)?;
        match rng.below(3) {
            0 => s.push(Kind::SILU, &[other, second], &[])?,
            1 => s.push(Kind::ADD, &[other, x.reinterpret(0, half)?, second], &[])?,
            _ => s.copy_into(x.reinterpret(sides[0], half)?, second)?,
        }
        if rng.below(3) == 0 {
            s.push(Kind::Fill, &[y.reinterpret(row_at(rng), part)?], &[7f32.to_bits()])?;
        }
        Ok(y)
    }

    /// As [`through_scratch`](Self::through_scratch), through tensors that do not lie densely.
    fn strided_scratch(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let (rows, cols) = (self.rows, x.layout.cols());
        let dense = Layout::new(DType::F32, &[rows, cols])?;
        let written = match self.rng.below(3) {
            0 => dense.with_strides(&[cols + 4, 1])?,
            1 => dense.with_strides(&[1, rows])?,
            _ => dense.with_strides(&[1, rows + 1])?,
        };
        let read = match self.rng.below(6) {
            0 => dense.with_strides(&[cols + 8, 1])?,
            1 => dense.with_strides(&[1, rows])?,
            2 => dense.with_strides(&[0, 1])?,
            3 => dense.with_strides(&[1, 0])?,
            4 => dense.with_strides(&[4, 1])?,
            _ => dense,
        };
        let at = |calls: &mut Self, layout: Layout| {
            // Near the start, so that most of them overlap.
            let slots = (512 - layout.span_bytes() / 4) + 1;
            let offset = calls.offset(slots);
            calls.pass.buffers[SCRATCH].view(offset, layout)
        };
        let target = at(self, written)?;
        s.copy_into(x, target)?;
        let source = at(self, read)?;
        Ok(s.copy(source, DType::F32)?)
    }

    /// A result with gaps between its rows, in the scratch buffer, and all of the bytes around it.
    fn written_apart(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let (rows, cols) = (self.rows, x.layout.cols());
        let layout = Layout::new(DType::F32, &[rows, cols])?.with_strides(&[cols + 8, 1])?;
        let offset = self.offset(256);
        let y = self.pass.buffers[SCRATCH].view(offset, layout)?;
        let other = self.pick_cols(cols);
        match self.rng.below(4) {
            0 => s.push(Kind::ADD, &[x, other, y], &[])?,
            1 => {
                // A rule fuses the two where the kernel can write such rows.
                let gate = s.silu(x)?;
                s.push(Kind::MUL, &[gate, other, y], &[])?;
            }
            2 => s.push(Kind::RmsNorm, &[x, y], &[1e-5f32.to_bits()])?,
            _ => {
                let weight = self.pass.tensor(WEIGHTS, 256, DType::F32, &[cols.min(32), cols])?;
                let product = s.matmul(x, weight)?;
                let shape = Layout::new(DType::F32, &[rows, cols.min(32)])?;
                let y = y.reinterpret(0, shape.with_strides(&[cols + 8, 1])?)?;
                let residual = self.pick_cols(cols.min(32));
                s.push(Kind::ADD, &[product, residual, y], &[])?;
            }
        }
        Ok(s.copy(y, DType::F32)?)
    }

    /// Rotates, writes the caches, attends.
    fn attention(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let head = self.pass.shape.head;
        let heads = x.layout.cols() / head;
        let fits = |kv_heads: &usize| heads.is_multiple_of(*kv_heads);
        let kv_heads = [4, 2].into_iter().find(fits).unwrap_or(1);
        let x3 = Layout::new(DType::F32, &[self.rows, heads, head])?;
        let x3 = x.reinterpret(0, x3)?;
        let kv = Layout::new(DType::F32, &[self.rows, kv_heads, head])?;
        let strided = kv.with_strides(&[x.layout.cols(), head, 1])?;
        let kv = x.reinterpret(0, strided)?;
        let positions = self.pass.tensor(POSITIONS, 0, DType::U32, &[self.rows])?;
        let factors = self.pass.tensor(FACTORS, 0, DType::F32, &[head / 2])?;
        let cache = [CACHE_ROWS, kv_heads, head];
        let dtype = if self.pass.shape.halves { DType::F16 } else { DType::F32 };
        let keys = self.pass.tensor(KEYS, 0, dtype, &cache)?;
        let values = self.pass.tensor(VALUES, 0, dtype, &cache)?;
        let mode = if self.rng.below(2) == 0 { RopeMode::Adjacent } else { RopeMode::Halves };
        let rope = RopeParams { n_dims: head as u32, mode, base: 100.0, scale: 1.0 };
        let q = s.rope(x3, positions, factors, rope)?;
        let k = s.rope(kv, positions, factors, rope)?;
        s.kv_write(k, positions, keys)?;
        s.kv_write(kv, positions, values)?;
        let params = AttentionParams { scale: 0.35, window: 0, softcap: 0.0 };
        let y = s.attention(q, keys, values, positions, params)?;
        Ok(y.reinterpret(0, Layout::new(DType::F32, &[self.rows, x.layout.cols()])?)?)
    }

    /// A router and the experts it chose.
    fn experts(&mut self, s: &mut GraphSession<'_>, x: TensorView) -> Result<TensorView> {
        let cols = x.layout.cols();
        let gate = self.pass.tensor(WEIGHTS, 0, DType::F32, &[4, cols])?;
        let weight = self.pass.tensor(WEIGHTS, 512, DType::F32, &[4, 8, cols])?;
        let logits = s.matmul(x, gate)?;
        let params =
            RouterParams { used: 2, mode: RouterMode::SoftmaxAll, renormalise: true, scale: 1.0 };
        let (ids, weights) = s.router_top_k(logits, params)?;
        let y = s.matmul_experts(x, weight, ids)?;
        let y = s.expert_sum(y, weights)?;
        Ok(s.concat(y, y)?)
    }

    fn keep(&mut self, s: &mut GraphSession<'_>, view: TensorView) -> Result<()> {
        if !self.outputs.contains(&view) {
            s.output(view)?;
            self.outputs.push(view);
        }
        Ok(())
    }

    fn finish(mut self, s: &mut GraphSession<'_>) -> Result<Vec<TensorView>> {
        if let Some(&last) = self.tensors.last() {
            self.keep(s, last)?;
        }
        Ok(self.outputs)
    }

    /// A tensor made so far; the newest are likelier.
    fn pick(&mut self) -> TensorView {
        let recent = self.tensors.len().min(6) as u64;
        let back = match self.rng.below(3) {
            0 => self.rng.below(self.tensors.len() as u64),
            _ => self.rng.below(recent),
        };
        self.tensors[self.tensors.len() - 1 - back as usize]
    }

    /// A tensor of this width; the first ones cover all widths.
    fn pick_cols(&mut self, cols: usize) -> TensorView {
        for _ in 0..4 {
            let x = self.pick();
            if x.layout.cols() == cols {
                return x;
            }
        }
        let fits = self.tensors.iter().find(|t| t.layout.cols() == cols);
        fits.copied().unwrap_or(self.tensors[0])
    }

    /// Byte offset of one of `slots` floats.
    fn offset(&mut self, slots: u64) -> u64 {
        let slot = self.rng.below(slots);
        if self.pass.shape.aligned { slot / 4 * 16 } else { slot * 4 }
    }

    /// One row of weights.
    fn row(&mut self, cols: usize) -> Result<TensorView> {
        let offset = self.offset(512);
        self.pass.tensor(WEIGHTS, offset, DType::F32, &[cols])
    }
}

fn encode(dtype: DType, values: &[f32]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; values.len() / dtype.block_elems() * dtype.block_bytes()];
    quant::encode(dtype, values, &mut bytes).map_err(|error| GpuError::TransferMismatch {
        what: "random weights",
        found: error.to_string(),
        expected: "finite floats".into(),
    })?;
    Ok(bytes)
}

/// The best Vulkan device. Where there is none the running test says that it skips, or fails if Vulkan is
/// needed (see [`clearway_graph::testkit::skip`]).
///
/// # Errors
/// What went wrong with a device that is there.
#[cfg(feature = "vulkan")]
#[track_caller]
pub fn open_vulkan(
    options: clearway_gpu::vulkan::VulkanOptions,
) -> Result<Option<clearway_gpu::vulkan::VulkanDevice>> {
    match clearway_gpu::vulkan::VulkanDevice::open(options) {
        Ok(device) => Ok(Some(device)),
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            clearway_graph::testkit::skip("vulkan", error);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The best adapter of wgpu. The test is skipped where there is none.
///
/// # Errors
/// What went wrong with a device that is there.
#[cfg(feature = "wgpu")]
#[track_caller]
pub fn open_wgpu(
    options: clearway_gpu::wgpu::WgpuOptions,
) -> Result<Option<clearway_gpu::wgpu::WgpuDevice>> {
    match clearway_gpu::wgpu::WgpuDevice::open(options) {
        Ok(device) => Ok(Some(device)),
        Err(error @ (GpuError::NoAdapter { .. } | GpuError::Unsupported { .. })) => {
            clearway_graph::testkit::skip("vulkan", error);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
