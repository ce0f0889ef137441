//! The text of a kernel: bindings and accessors in front, a `.wgsl` body behind.

use std::fmt::Write;

use clearway_graph::{BindingRole, DType, Slot};

use super::template::{fill, unroll};
use super::{COUNTERS, Job, Kernel, Operand, Packing, SYNC_WORDS, Scratch, Trust, planes};

/// How a kernel sees the memory of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// One element at a time, through `get_x` and `put_x`; block formats byte by byte, through
    /// `byte_x`.
    Elements,
    /// Four 32-bit words at a time, as `array<vec4<u32>>`. The binding starts where the view starts,
    /// at a multiple of 16 bytes.
    Quads,
    /// Two 32-bit words at a time, as `array<vec2<u32>>`. The binding starts where the view starts, at a multiple of 8
    /// bytes.
    Pairs,
    /// 32-bit words, as `array<u32>`. The binding starts where the view starts.
    Words,
}

/// Constants of an op that are written into the text at most; more are a table to be looked up.
const MAX_BAKED: usize = 8;

/// Bindings that counters take: the counters themselves and the fault word.
const COUNTER_BINDINGS: usize = 2;

/// Entry points: of kernels that are counted, and of others.
pub(crate) const COUNTED_ENTRY: &str = include_str!("kernels/counted.wgsl");
/// In place of the first where workgroups note how long they wait.
#[cfg(feature = "vulkan")]
pub(crate) const MEASURED_ENTRY: &str = include_str!("kernels/counted_measured.wgsl");
const ALONE: &str = include_str!("kernels/alone.wgsl");

/// Writes to a cache of 8 bits, a chunk or four elements of one at a time.
const PUT_CHUNK: &str = include_str!("kernels/put_chunk.wgsl");

/// Collects the text of one kernel.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    job: &'a Job<'a>,
    views: Vec<View>,
    /// Operands that are bound once more, as words.
    again: Vec<usize>,
    scratch: Option<Scratch>,
    /// What scratch is an array of.
    scratch_of: &'static str,
    trust: Trust,
    /// Waits for the group before it and is counted itself.
    counted: bool,
    /// Operands that a counted kernel reads before it waits, beside the weights of a product.
    early: Vec<usize>,
    args: Vec<u32>,
    baked: bool,
    /// Operands of any number of rows, where records are written into the text.
    open: Vec<usize>,
    even_rows: bool,
    enables: String,
    constants: String,
    /// The constants that are numbers: what loops of the body may be written out to.
    bounds: Vec<(String, usize)>,
    body: String,
}

impl<'a> Source<'a> {
    /// A kernel for this job that sees every operand by elements.
    pub fn new(job: &'a Job<'a>) -> Self {
        Self {
            job,
            views: vec![View::Elements; job.operands.len()],
            again: Vec::new(),
            scratch: None,
            scratch_of: "f32",
            trust: Trust::Own,
            counted: false,
            early: Vec::new(),
            args: job.params.to_vec(),
            baked: false,
            open: Vec::new(),
            even_rows: false,
            enables: String::new(),
            constants: String::new(),
            bounds: Vec::new(),
            body: String::new(),
        }
    }

    /// What the kernel is for.
    pub(super) fn job(&self) -> &'a Job<'a> {
        self.job
    }

    /// Changes how one operand is seen.
    #[must_use]
    pub fn view(mut self, operand: usize, view: View) -> Self {
        self.views[operand] = view;
        self
    }

    /// Binds an operand that is only read once more as words: `s_x` beside `b_x`.
    #[must_use]
    pub fn words_too(mut self, operand: usize) -> Self {
        self.again.push(operand);
        self
    }

    /// Memory for what workgroups leave for one another: floats `b_scratch`, whatever is in them, and
    /// counters `b_tickets`, which are zero before the first workgroup and must be zero after the last.
    #[must_use]
    pub fn scratch(mut self, bytes: u64, tickets: u32) -> Self {
        self.scratch = Some(Scratch { bytes, tickets });
        self
    }

    /// As [`scratch`](Self::scratch), four floats at a time.
    #[must_use]
    pub(super) fn scratch_in_quads(mut self, bytes: u64, tickets: u32) -> Self {
        self.scratch_of = "vec4<f32>";
        self.scratch(bytes, tickets)
    }

    /// As [`scratch`](Self::scratch), words of 32 bits.
    #[must_use]
    pub(super) fn scratch_in_words(mut self, bytes: u64, tickets: u32) -> Self {
        self.scratch_of = "u32";
        self.scratch(bytes, tickets)
    }

    /// Says whose text it is. In a checked one `get_x` gives zero and `put_x` does nothing outside the view.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Adds the entry point of a body whose work is `work(lid, group)`, in workgroups of `WG`. Where the list has counters,
    /// `wait_for_inputs` waits for the group before, and the workgroup is counted when it is done. The body reads nothing
    /// but weights before that call.
    #[must_use]
    pub(super) fn counted(mut self) -> Self {
        self.counted = self.job.target.counters;
        let entry = if self.counted { COUNTED_ENTRY } else { ALONE };
        self.body(entry)
    }

    /// Says that a counted kernel reads this operand before it waits. Where the list writes it, the barrier stays.
    #[must_use]
    pub(super) fn early(mut self, operand: usize) -> Self {
        self.early.push(operand);
        self
    }

    /// As [`counted`](Self::counted) where the list has no counters.
    #[must_use]
    pub(super) fn uncounted(self) -> Self {
        self.body(ALONE)
    }

    /// Writes the records of the operands into the text, and the constants of the op if they are few. Behind
    /// a barrier the uniform block is a load from far away that everything else waits for; in exchange every
    /// shape is a kernel of its own.
    #[must_use]
    pub fn baked(mut self) -> Self {
        self.baked = true;
        self
    }

    /// As [`baked`](Self::baked), but the number of rows of these operands, which lie equally far apart, stays in the
    /// uniform block `U`: one text serves them all.
    #[must_use]
    pub fn baked_but_rows(mut self, operands: impl IntoIterator<Item = usize>) -> Self {
        self.open = operands.into_iter().collect();
        self.even_rows().baked()
    }

    /// Finds rows that lie equally far apart without a division. A text that looks for rows often gains by it,
    /// and every other one would only be compiled twice.
    #[must_use]
    pub fn even_rows(mut self) -> Self {
        self.even_rows = true;
        self
    }

    /// Whether constants should be written into the text.
    pub(super) fn is_baked(&self) -> bool {
        self.baked
    }

    /// A language extension the body needs, besides `f16`.
    #[must_use]
    pub fn enable(mut self, extension: &str) -> Self {
        let _ = writeln!(self.enables, "enable {extension};");
        self
    }

    /// Numbers behind the constants of the op, for `arg` and `argf`.
    #[must_use]
    pub fn args(mut self, words: &[u32]) -> Self {
        self.args.extend(words);
        self
    }

    /// A constant of the text, written into it. Loops of the body may be written out to it (`template`).
    #[must_use]
    pub fn constant(mut self, name: &str, value: u32) -> Self {
        let _ = writeln!(self.constants, "const {name} = {value}u;");
        self.bounds.push((name.to_owned(), value as usize));
        self
    }

    /// Another name for a type or a function body chosen here, such as `alias E = f16;`.
    #[must_use]
    pub fn line(mut self, text: &str) -> Self {
        self.constants.push_str(text);
        self.constants.push('\n');
        self
    }

    /// Adds a piece of the body.
    #[must_use]
    pub fn body(mut self, text: &str) -> Self {
        self.body.push_str(text);
        self
    }

    /// The kernel with this many workgroups.
    pub fn build(self, groups: [u32; 3]) -> Kernel {
        let mut text = String::new();
        let halves = self.job.target.halves;
        let is_half = |o: &Operand| matches!(o.layout.dtype(), DType::F16 | DType::A16);
        if (halves && self.job.operands.iter().any(is_half))
            || self.enables.contains("wgpu_cooperative_matrix")
        {
            text.push_str("enable f16;\n");
        }
        text.push_str(&self.enables);
        self.parameters(&mut text);
        for (index, operand) in self.job.operands.iter().enumerate() {
            self.binding(&mut text, index, operand);
        }
        for (index, &operand) in self.again.iter().enumerate() {
            let (slot, name) = (self.job.operands.len() + index, self.job.operands[operand].name);
            let _ = writeln!(
                text,
                "@group(0) @binding({slot}) var<storage, read> s_{name}: array<u32>;"
            );
        }
        if self.scratch.is_some() {
            let slot = self.job.operands.len() + self.again.len();
            // Between workgroups of one dispatch plain loads may be stale.
            let _ = writeln!(
                text,
                "@group(0) @binding({slot}) @coherent var<storage, read_write> b_scratch: array<{}>;
@group(0) @binding({}) var<storage, read_write> b_tickets: array<atomic<u32>>;",
                self.scratch_of,
                slot + 1
            );
        }
        if self.counted {
            let slot = self.storage() - COUNTER_BINDINGS;
            let _ = writeln!(
                text,
                "@group(0) @binding({slot}) var<storage, read_write> {COUNTERS}: array<atomic<u32>>;
@group(0) @binding({}) var<storage, read_write> b_fault: array<atomic<u32>>;",
                slot + 1
            );
        }
        text.push_str(&self.constants);
        // A user's text stays as it is.
        if self.trust == Trust::Own {
            let bounds: Vec<_> =
                self.bounds.iter().map(|(name, value)| (&**name, *value)).collect();
            text.push_str(&unroll(&self.body, &bounds));
        } else {
            text.push_str(&self.body);
        }
        let words = self.words();
        let counted = self.counted.then(|| self.fixed());
        let (again, scratch, trust) = (self.again, self.scratch, self.trust);
        Kernel { source: text, groups, words, again, scratch, trust, counted }
    }

    /// Storage bindings.
    pub(super) fn storage(&self) -> usize {
        let scratch = if self.scratch.is_some() { 2 } else { 0 };
        let counters = if self.counted { COUNTER_BINDINGS } else { 0 };
        self.job.operands.len() + self.again.len() + scratch + counters
    }

    /// Operands that a counted kernel may read before it waits, and through the cache of a processor.
    fn fixed(&self) -> Vec<usize> {
        use Slot::{Factors, HeadNormWeight, NextNormWeight, NormWeight, UpWeight, Weight};
        let slots = [Weight, UpWeight, NormWeight, HeadNormWeight, NextNormWeight, Factors];
        let weights = slots.into_iter().filter_map(|slot| self.job.slot(slot));
        weights.chain(self.early.iter().copied()).collect()
    }

    /// One record for each operand and the constants of the op: in the uniform block, or in the text.
    fn parameters(&self, text: &mut String) {
        let quads = self.args.len().div_ceil(4).max(1);
        let few = self.args.len() <= MAX_BAKED;
        text.push_str("struct Operand { shape: vec4<u32>, stride: vec4<u32>, place: vec4<u32> }\n");
        text.push_str("struct Params {\n");
        for operand in &self.job.operands {
            let _ = writeln!(text, "    {}: Operand,", operand.name);
        }
        let _ = writeln!(text, "    args: array<vec4<u32>, {quads}>,");
        text.push_str(if self.counted { "    sync: vec4<u32>,\n}\n" } else { "}\n" });
        let block = if self.baked { "U" } else { "P" };
        if !self.baked || !few || !self.open.is_empty() || self.counted {
            let binding = self.storage();
            let _ = writeln!(text, "@group(0) @binding({binding}) var<uniform> {block}: Params;");
        }
        if self.baked {
            self.records(text);
        }
        if self.counted {
            let _ = writeln!(text, "fn sync_words() -> vec4<u32> {{ return {block}.sync; }}");
        }
        if self.baked && few {
            text.push_str("fn arg(k: u32) -> u32 {\n    switch k {\n");
            for (index, word) in self.args.iter().enumerate() {
                let _ = writeln!(text, "        case {index}u: {{ return {word}u; }}");
            }
            text.push_str("        default: { return 0u; }\n    }\n}\n");
        } else {
            let _ =
                writeln!(text, "fn arg(k: u32) -> u32 {{ return {block}.args[k / 4u][k % 4u]; }}");
        }
        text.push_str("fn argf(k: u32) -> f32 { return bitcast<f32>(arg(k)); }\n");
    }

    /// The records of the operands as a constant.
    fn records(&self, text: &mut String) {
        let operands = &self.job.operands;
        text.push_str("struct Records {\n");
        for operand in operands {
            let _ = writeln!(text, "    {}: Operand,", operand.name);
        }
        text.push_str("}\nconst P = Records(\n");
        let words = self.words();
        for (index, record) in words.chunks(12).take(operands.len()).enumerate() {
            let mut record = record.to_vec();
            if self.open.contains(&index) {
                // Nothing but the columns and the distance of rows is the same for all.
                record[..3].fill(1);
                record[4..6].fill(0);
                // How long a single row is, such as that of an order of experts, may depend on the rows of others.
                if operands[index].layout.rank() == 1 {
                    record[3] = 1;
                    record[6] = 0;
                }
            }
            let quad = |at: usize| {
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| record[at + i]);
                format!("vec4<u32>({a}u, {b}u, {c}u, {d}u)")
            };
            let _ = writeln!(text, "    Operand({}, {}, {}),", quad(0), quad(4), quad(8));
        }
        text.push_str(");\n");
    }

    /// What lies in the uniform block.
    fn words(&self) -> Vec<u32> {
        let operands = &self.job.operands;
        let mut words = Vec::with_capacity(12 * operands.len() + self.args.len() + 4);
        for operand in operands {
            words.extend(operand.layout.shape4());
            words.extend(operand.layout.strides4());
            let dtype = operand.layout.dtype();
            let unit = match dtype {
                DType::A16 => 2,
                _ if dtype.is_quantised() => 1,
                _ => dtype.block_bytes() as u32,
            };
            let mut place = [operand.shift / unit, 0, 0, 0];
            if dtype == DType::C8 {
                // The first scale, counted in scales.
                place[1] = (operand.shift + operand.layout.elems() as u32) / 2;
            }
            if operand.in_planes() {
                let chunks = (operand.layout.elems() / planes::CHUNK) as u64;
                let (starts, _) = planes::offsets(dtype, chunks);
                place[1..]
                    .copy_from_slice(&[1, 2, 3].map(|plane: usize| (starts[plane] / 4) as u32));
            } else if self.trust == Trust::Checked {
                // A binding has less than 2^32 bytes, so its last element has an index of 32 bits.
                place[3] = match dtype {
                    DType::C8 => operand.layout.elems() as u32 - 1,
                    _ => (operand.layout.span_bytes() / u64::from(unit) - 1) as u32,
                };
            }
            words.extend(place);
        }
        words.extend(&self.args);
        words.resize(words.len().next_multiple_of(4).max(12 * operands.len() + 4), 0);
        if self.counted {
            words.extend([0; SYNC_WORDS]);
        }
        words
    }

    fn binding(&self, text: &mut String, index: usize, operand: &Operand) {
        let name = operand.name;
        let sharers = || self.job.operands.iter().filter(|o| o.same_as == Some(index));
        let written = operand.role != BindingRole::Read || sharers().next().is_some();
        let dtype = operand.layout.dtype();
        // Two elements share a word where there is no type for one.
        let half = matches!(dtype, DType::F16 | DType::A16);
        let bits = dtype == DType::BF16 || (half && !self.job.target.halves);
        // Two scales of a cache of 8 bits share a word.
        let atomic = (bits || dtype == DType::C8) && written;
        let element = match (self.views[index], dtype) {
            (View::Quads, _) => "vec4<u32>",
            (View::Pairs, _) => "vec2<u32>",
            (View::Words, _) => "u32",
            (View::Elements, DType::F32) => "f32",
            (View::Elements, _) if atomic => "atomic<u32>",
            (View::Elements, DType::F16 | DType::A16) if !bits => "f16",
            (View::Elements, _) => "u32",
        };
        let array = match operand.same_as {
            Some(first) => format!("b_{}", self.job.operands[first].name),
            None => {
                let access = if written { "read_write" } else { "read" };
                // Without a barrier in between, plain loads of what another dispatch has written may be stale.
                let coherent =
                    if self.counted && !self.fixed().contains(&index) { "@coherent " } else { "" };
                let _ = writeln!(
                    text,
                    "@group(0) @binding({index}) {coherent}var<storage, {access}> b_{name}: array<{element}>;"
                );
                format!("b_{name}")
            }
        };
        if self.even_rows && operand.rows_are_even() {
            let _ =
                writeln!(text, "fn row_{name}(r: u32) -> u32 {{ return r * P.{name}.stride.z; }}");
        } else {
            let _ = writeln!(
                text,
                "fn row_{name}(r: u32) -> u32 {{
    let s = P.{name}.shape;
    let q = r / s.z;
    let i = vec3<u32>(q / s.y, q % s.y, r % s.z) * P.{name}.stride.xyz;
    return i.x + i.y + i.z;
}}"
            );
        }
        let _ = writeln!(
            text,
            "fn at_{name}(c: vec4<u32>) -> u32 {{
    let i = c * P.{name}.stride;
    return i.x + i.y + i.z + i.w;
}}"
        );
        if self.views[index] != View::Elements {
            return;
        }
        let place = match dtype {
            // f16 in the bytes of 32 floats.
            DType::A16 => format!("(i / 32u * 64u + i % 32u + P.{name}.place.x)"),
            _ => format!("(i + P.{name}.place.x)"),
        };
        // The binding may hold bytes of other tensors in front of the view and behind it.
        let outside = |leave: &str| match self.trust == Trust::Checked && !operand.in_planes() {
            true => format!("if (i > P.{name}.place.w) {{ {leave} }} "),
            false => String::new(),
        };
        let (zero, none, nothing) =
            (outside("return 0.0;"), outside("return 0u;"), outside("return;"));
        let word = format!("{array}[{place} / 2u]");
        let word = if atomic { format!("atomicLoad(&{word})") } else { word };
        let get = match dtype {
            DType::F32 => format!("fn get_{name}(i: u32) -> f32 {{ {zero}return {array}[{place}]; }}"),
            DType::F16 | DType::A16 if !bits => {
                format!("fn get_{name}(i: u32) -> f32 {{ {zero}return f32({array}[{place}]); }}")
            }
            DType::U32 => format!("fn get_{name}(i: u32) -> u32 {{ {none}return {array}[{place}]; }}"),
            DType::F16 | DType::A16 => format!(
                "fn get_{name}(i: u32) -> f32 {{ {zero}return unpack2x16float({word})[{place} % 2u]; }}"
            ),
            DType::BF16 => {
                format!(
                    "fn get_{name}(i: u32) -> f32 {{ {zero}return bitcast<f32>(({word} >> ({place} % 2u * 16u)) << 16u); }}"
                )
            }
            DType::C8 => {
                let load = |index: &str| match atomic {
                    true => format!("atomicLoad(&{array}[{index}])"),
                    false => format!("{array}[{index}]"),
                };
                let (quants, scales) = (load("at / 4u"), load("scale / 2u"));
                format!(
                    "fn get_{name}(i: u32) -> f32 {{
    {zero}let at = {place};
    let scale = P.{name}.place.y + i / 32u;
    let quant = extractBits(bitcast<i32>({quants}), at % 4u * 8u, 8u);
    return f32(quant) * unpack2x16float({scales})[scale % 2u];
}}"
                )
            }
            _ => format!(
                "fn byte_{name}(i: u32) -> u32 {{ {none}return ({array}[{place} / 4u] >> ({place} % 4u * 8u)) & 255u; }}
fn word_{name}(i: u32) -> u32 {{
    {none}let low = {array}[{place} / 4u];
    // The word of the last byte: the same one where all four are in it.
    let high = {array}[({place} + 3u) / 4u];
    let shift = {place} % 4u * 8u;
    return select((low >> shift) | (high << ((32u - shift) & 31u)), low, shift == 0u);
}}"
            ),
        };
        text.push_str(&get);
        text.push('\n');
        if operand.role == BindingRole::Read {
            return;
        }
        let rounded = if dtype == DType::A16 { "clamp(v, -65504.0, 65504.0)" } else { "v" };
        let put = match dtype {
            DType::F32 => {
                format!("fn put_{name}(i: u32, v: f32) {{ {nothing}{array}[{place}] = v; }}")
            }
            DType::F16 if !bits => {
                format!("fn put_{name}(i: u32, v: f32) {{ {nothing}{array}[{place}] = f16(v); }}")
            }
            // Beyond f16 is the largest number of it.
            DType::A16 if !bits => format!(
                "fn put_{name}(i: u32, v: f32) {{ {nothing}{array}[{place}] = f16(clamp(v, -65504.0, 65504.0)); }}"
            ),
            DType::F16 | DType::A16 => format!(
                "fn put_{name}(i: u32, v: f32) {{
    {nothing}let half = pack2x16float(vec2<f32>({rounded}, 0.0)) & 0xffffu;
    let at = {place} % 2u * 16u;
    atomicAnd(&{array}[{place} / 2u], ~(0xffffu << at));
    atomicOr(&{array}[{place} / 2u], half << at);
}}"
            ),
            DType::U32 => {
                format!("fn put_{name}(i: u32, v: u32) {{ {nothing}{array}[{place}] = v; }}")
            }
            // Two elements share a word and may be written by two invocations.
            DType::BF16 => format!(
                "fn put_{name}(i: u32, v: f32) {{
    {nothing}let bits = bitcast<u32>(v);
    let even = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    let half = select(even, (bits >> 16u) | 64u, (bits & 0x7fffffffu) > 0x7f800000u);
    let at = {place} % 2u * 16u;
    atomicAnd(&{array}[{place} / 2u], ~(0xffffu << at));
    atomicOr(&{array}[{place} / 2u], half << at);
}}"
            ),
            // Not for texts of users, whose writes stay inside their views.
            DType::C8 if self.trust == Trust::Own => {
                fill(PUT_CHUNK, &[("name", name), ("array", &array)])
            }
            _ => String::new(),
        };
        text.push_str(&put);
        text.push('\n');
    }
}

impl Operand {
    /// Whether the view starts where its binding starts, at a multiple of 16 bytes.
    pub fn is_aligned(&self) -> bool {
        self.shift == 0
    }

    /// Whether all rows lie equally far apart: then finding one takes no division.
    pub(super) fn rows_are_even(&self) -> bool {
        let (shape, strides) = (self.layout.shape4(), self.layout.strides4());
        let row = u64::from(strides[2]);
        let inside = u64::from(shape[2]) * row;
        (shape[1] == 1 || u64::from(strides[1]) == inside)
            && (shape[0] == 1 || u64::from(strides[0]) == inside * u64::from(shape[1]))
    }

    /// Whether block weights lie in planes.
    pub fn in_planes(&self) -> bool {
        self.packing == Packing::Planes
    }
}
