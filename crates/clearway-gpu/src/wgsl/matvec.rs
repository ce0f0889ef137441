//! Products of few rows: one pass over the weights, as fast as memory gives them.

use clearway_graph::{CapturedOpKind as Kind, DType, Layout, Slot};

use super::chunks::{chunk_type, load_chunk};
use super::planes::CHUNK;
use super::template::{fill, piece};
use super::{Job, Kernel, Source, Target, View, epilogue};

/// Rows of activations at most; more are the business of kernels that keep tiles of both sides.
pub(super) const MAX_COLS: usize = 8;
/// Bytes of workgroup memory for rounded activations.
const ACTIVATION_BYTES: u32 = 24 << 10;
/// Bytes a chunk of activations takes there: 32 quants, a scale and two sums.
const CHUNK_BYTES: u32 = 48;
/// Invocations that are resident on a processor, where registers allow it.
const RESIDENT: u32 = 2048;
/// Invocations that keep a processor busy with loads.
const BUSY: u32 = 1024;
/// Workgroups for each processor of a product that is counted, at most.
const MOST_COUNTED: u32 = 16;
/// Teams of a workgroup that rounds its results, of which each has two.
const LEAST_TEAMS: u32 = CHUNK as u32 / 2;

/// Operands of a product that does something with heads.
const HEADS: [Slot; 3] = [Slot::HeadNormWeight, Slot::Factors, Slot::Cache];

/// What the text needs to know of a product.
struct Shape {
    inner: u32,
    outer: u32,
    cols: u32,
    /// Token and expert pairs, for experts.
    pairs: u32,
    /// Index of the weights among the operands, and of the second ones of a gated product.
    weights: usize,
    gate: Option<usize>,
}

/// How lanes share the rows of weights: teams take `rows` of them at the same time, a workgroup `span`.
struct Tiling {
    workgroup: u32,
    team: u32,
    rows: u32,
    span: u32,
}

/// Whether a fused product has a kernel here for operands that lie as models bind them. `find` gives
/// the layout of the operand in a slot.
pub(super) fn has_fused<'a>(target: &Target, find: impl Fn(Slot) -> Option<&'a Layout>) -> bool {
    let (Some(x), Some(w)) = (find(Slot::Input), find(Slot::Weight)) else { return false };
    let alike = find(Slot::UpWeight).is_none_or(|u| u.dtype() == w.dtype() && u.is_dense());
    let readable = super::planes::supports(w)
        || (matches!(w.dtype(), DType::F32 | DType::F16 | DType::BF16)
            && w.is_dense()
            && w.cols().is_multiple_of(8));
    // Where the result goes to heads: weights in one piece, since rows that belong together must not be tiling
    // apart, and a lane for each row of activations.
    let heads = HEADS.into_iter().any(|slot| find(slot).is_some());
    let whole = w.span_bytes() <= target.max_binding / 2 && w.cols() >= CHUNK * MAX_COLS;
    // Pairs of elements are turned together, those beyond them stay in pairs, too.
    let result = find(Slot::Cache).or(find(Slot::Result));
    let even = result.is_some_and(|result| result.cols().is_multiple_of(2));
    let whole = whole && (find(Slot::Factors).is_none() || even);
    // Parts of a head that is normed meet in scratch.
    let whole = whole && owns_heads(target, x.rows(), find(Slot::HeadNormWeight));
    // The norm of a row that nobody has as a whole exists only rounded.
    let fits = x.rows() <= MAX_COLS
        && target.subgroup >= MAX_COLS as u32
        && find(Slot::NextNormWeight).is_none();
    fits && alike && readable && (!heads || whole)
}

/// Whether a product of few rows has a kernel here that finds its activations rounded, or gives its result so.
pub(super) fn has_rounded<'a>(target: &Target, find: impl Fn(Slot) -> Option<&'a Layout>) -> bool {
    let (Some(x), Some(w)) = (find(Slot::Input), find(Slot::Weight)) else { return false };
    // Rows that share a scale or belong together must not be tiling apart.
    let whole = w.span_bytes() <= target.max_binding / 2;
    let planes =
        super::planes::supports(w) && find(Slot::UpWeight).is_none_or(|u| u.dtype() == w.dtype());
    let even = |result: &Layout| find(Slot::Factors).is_none() || result.cols().is_multiple_of(2);
    let even = find(Slot::Cache).or(find(Slot::Result)).is_none_or(even);
    // Enough teams for a chunk of results; and a chunk for nearly every processor, since those without one
    // wait for longer than rounding takes.
    let teams = target.max_invocations >= LEAST_TEAMS * target.subgroup;
    let busy = |y: &Layout| 5 * (y.cols() / CHUNK) >= 4 * target.processors as usize;
    let writes = find(Slot::Result).filter(|y| y.dtype() == DType::A8);
    let writes = writes.map_or(find(Slot::NextNormWeight).is_none(), |y| teams && busy(y));
    // Of several rows each has a lane that turns it or finds its place in the cache.
    let heads = HEADS.into_iter().any(|slot| find(slot).is_some());
    let meets = owns_heads(target, x.rows(), find(Slot::HeadNormWeight));
    let team = (w.cols() / CHUNK).min(target.subgroup as usize);
    let lanes = x.rows() == 1 || !heads || team >= x.rows();
    let readable = matches!(x.dtype(), DType::F32 | DType::A8);
    let few = x.rows() <= MAX_COLS && x.is_dense() && readable && lanes;
    few && whole && meets && planes && even && writes && target.subgroup >= MAX_COLS as u32
}

/// Whether a workgroup can have a whole head that is normed, for all rows of activations.
fn owns_heads(target: &Target, rows: usize, weight: Option<&Layout>) -> bool {
    let most = target.max_invocations.min(1024) / 2 * MOST_ROWS;
    weight.is_none_or(|weight| {
        let head = weight.cols();
        head <= most as usize && head * rows <= (target.shared_bytes / 16) as usize
    })
}

/// Rows of weights of a team at most, where a workgroup has whole heads.
const MOST_ROWS: u32 = 4;

/// Whether a product that writes a cache has a kernel for it here: whole chunks of a cache of 8 bits are those of a workgroup, and
/// every row of activations has a lane. `rotation` has the constants of the rotation, if there is one; heads that are normed
/// are written element by element.
pub(super) fn has_cache(
    target: &Target,
    w: &Layout,
    cache: &Layout,
    rotation: Option<&[u32]>,
    normed: bool,
) -> bool {
    cache.dtype() != DType::C8
        || (!normed
            && super::planes::supports(w)
            && w.cols() >= CHUNK * MAX_COLS
            && target.max_invocations >= (CHUNK * MAX_COLS) as u32
            && rotation.is_none_or(|turn| epilogue::turns_in_chunks(cache.cols(), turn)))
}

/// How many variants a product of one row, or of quantised rows, has.
pub(super) fn choices(job: &Job<'_>) -> u8 {
    let tried = job.layout(0).rows() == 1 || job.dtype(0) == DType::A8;
    // Which weights are read is in memory, and that differs from what it is in a model.
    let tried = tried && job.slot(Slot::Ids).is_none();
    let variants = if tried && job.slot(Slot::Weight).is_some() { Variant::ALL.len() } else { 1 };
    variants as u8
}

/// How a product differs from what is expected to be the fastest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Expected,
    /// Twice as many loads of each row under way.
    Deeper,
    /// Workgroups of half the size; where those are small already, teams that are not widened.
    Smaller,
    /// One row of weights to a team where there were several, two where there was one.
    OtherRows,
}

/// How many variants there are.
#[cfg(all(test, feature = "vulkan"))]
pub(super) const VARIANTS: u8 = Variant::ALL.len() as u8;

impl Variant {
    const ALL: [Self; 4] = [Self::Expected, Self::Deeper, Self::Smaller, Self::OtherRows];

    fn of(job: &Job<'_>) -> Self {
        Self::ALL.get(usize::from(job.choice)).copied().unwrap_or(Self::Expected)
    }
}

/// The kernel for a product of few rows, if the weights lie so that there is one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let ids = if job.kind == Kind::MatMulExperts { Some(2) } else { job.slot(Slot::Ids) };
    let weights = if job.kind == Kind::MatMulExperts { 1 } else { job.slot(Slot::Weight)? };
    let layout = job.layout(weights);
    let shape = Shape {
        inner: layout.cols() as u32,
        outer: layout.shape4()[2],
        cols: if ids.is_some() { 1 } else { job.layout(0).rows() as u32 },
        pairs: ids.map_or(1, |ids| job.layout(ids).elems() as u32),
        weights,
        gate: job.slot(Slot::UpWeight),
    };
    let quantised = job.dtype(0) == DType::A8 || epilogue::rounds(job);
    if shape.cols as usize > MAX_COLS
        || shape.pairs > job.target.max_groups
        || job.target.subgroup < 8
    {
        return None;
    }
    if let Some(cache) = job.slot(Slot::Cache) {
        let rotation = job.kind.product().filter(|product| product.epilogue().rope);
        let rotation = rotation.map(|product| &job.params[product.rope_params()..]);
        let normed = job.slot(Slot::HeadNormWeight).is_some();
        if !has_cache(job.target, layout, job.layout(cache), rotation, normed) {
            return None;
        }
    }
    let w = &job.operands[weights];
    for index in [Some(weights), shape.gate].into_iter().flatten() {
        let operand = &job.operands[index];
        let alike = operand.layout.dtype() == layout.dtype() && operand.packing == w.packing;
        if !operand.is_aligned() || !operand.layout.is_dense() || !alike {
            return None;
        }
    }
    match job.dtype(0) {
        _ if quantised && (ids.is_some() || !w.in_planes()) => None,
        DType::A8 => rounded(job, &shape),
        DType::A16 => None,
        _ if w.in_planes() => blocks(job, &shape),
        _ => floats(job, &shape),
    }
}

/// A product of activations that came rounded.
fn rounded(job: &Job<'_>, shape: &Shape) -> Option<Kernel> {
    let aligned = |operand: usize| job.operands[operand].is_aligned();
    if !aligned(0) || (epilogue::rounds(job) && !aligned(job.result())) {
        return None;
    }
    let dtype = job.dtype(shape.weights);
    let (tiling, text) = match shape.cols {
        1 => (cut_rounded(job, shape), waiting(include_str!("kernels/matvec_rounded.wgsl"))?),
        _ => (cut_rounded_rows(job, shape), include_str!("kernels/matvec_rows.wgsl").into()),
    };
    let mut source = Source::new(job)
        .view(0, View::Quads)
        .view(shape.weights, View::Quads)
        .words_too(shape.weights);
    let gated = match shape.gate {
        Some(gate) => {
            source = source.view(gate, View::Quads).words_too(gate);
            load_chunk(dtype, "u")?
        }
        None => operand("no second weights")?.into(),
    };
    let mut source = common(source, job, shape, &tiling)?;
    source = match shape.cols {
        1 => source.constant("UNROLL", loads_of_a_row(job, shape, &tiling)),
        cols => source.constant("UNITS", (3 * cols * tiling.team).div_ceil(tiling.workgroup)),
    };
    let source = source
        .body(&chunk_type(dtype)?)
        .body(&load_chunk(dtype, "w")?)
        .body(&gated)
        // Beside the sums of products each row of activations has one of what it is to be divided by.
        .constant("SUMS", sums(shape, &tiling) + shape.cols)
        .constant("GATES", shape.gate.is_some().into())
        .body(TEAM)
        .body(ROUNDED);
    let source = epilogue::close(source, job, unit(shape, &tiling))?.body(&text);
    let groups = groups(job, shape, &tiling);
    let source = match shape.cols {
        1 => staged(source, job, 3 * shape.inner / CHUNK as u32, groups)?,
        // Several rows pass through workgroup memory in any case. For two the wait costs what the barrier does.
        2 => source.uncounted(),
        _ if is_counted(job, groups) => source.counted(),
        _ => source.uncounted(),
    };
    Some(source.build(groups))
}

/// Chunks of each row of weights that a lane has under way, for one row of rounded activations.
fn loads_of_a_row(job: &Job<'_>, shape: &Shape, tiling: &Tiling) -> u32 {
    let steps = (shape.inner / CHUNK as u32).div_ceil(tiling.team);
    // The largest workgroups leave few registers to each invocation.
    let loads = if tiling.workgroup > 512 { 5 } else { 8 };
    // What is under way during a wait stays in registers, which leaves room for fewer workgroups.
    let loads = match job.target.counters {
        // Registers that no other workgroup could use.
        true if is_single_wave(job, shape, tiling) => 4,
        true => 2,
        false => loads,
    };
    let loads = if Variant::of(job) == Variant::Deeper { 2 * loads } else { loads };
    let depth = (loads / sums(shape, tiling)).max(1);
    let even = (1..=depth).rev().find(|&u| steps.is_multiple_of(u) && 2 * u > depth);
    even.unwrap_or(depth).min(steps)
}

/// Whether each processor has at most one workgroup of a product, with none of another beside it: heads come in groups of three.
fn is_single_wave(job: &Job<'_>, shape: &Shape, tiling: &Tiling) -> bool {
    let workgroups: u32 = groups(job, shape, tiling).iter().product();
    let heads = job.slot(Slot::Factors).or(job.slot(Slot::Cache)).is_some();
    !heads && workgroups * tiling.workgroup <= BUSY * job.target.processors
}

fn blocks(job: &Job<'_>, shape: &Shape) -> Option<Kernel> {
    let chunks = shape.inner / CHUNK as u32;
    let dtype = job.dtype(shape.weights);
    let tiling = cut_blocks(job, shape);
    // More chunks under way cost registers, and with them workgroups that would hide the same latency.
    let alone = tiling.rows * shape.cols == 1 && shape.gate.is_none();
    let depth = if alone { 2 } else { 1 } * if Variant::of(job) == Variant::Deeper { 2 } else { 1 };
    let unroll = depth.min(chunks.div_ceil(tiling.team));
    if epilogue::rounds(job) && !job.operands[job.result()].is_aligned() {
        return None;
    }
    let quads = in_quads(job, 0);
    let memory = ACTIVATION_BYTES.min(job.target.shared_bytes / 2);
    let tile = chunks.min(memory / (CHUNK_BYTES * shape.cols)).max(1);
    let mut source = Source::new(job).view(shape.weights, View::Quads).words_too(shape.weights);
    if let Some(gate) = shape.gate {
        source = source.view(gate, View::Quads).words_too(gate);
    }
    if quads {
        source = source.view(0, View::Quads);
    }
    let gated = match shape.gate {
        Some(_) => load_chunk(dtype, "u")?,
        None => operand("no second weights")?.into(),
    };
    let source = common(source, job, shape, &tiling)?
        .constant("TILE", tile)
        .constant("UNROLL", unroll)
        .constant("SHARE", (shape.cols * tile * 8).div_ceil(tiling.workgroup))
        .constant("SUBGROUP", job.target.subgroup)
        .body(&chunk_type(dtype)?)
        .body(&load_chunk(dtype, "w")?)
        .body(&gated)
        .body(operand(if quads { "rows in quads" } else { "rows by elements" })?);
    let source = source.constant("SUMS", sums(shape, &tiling)).body(TEAM).body(ROUNDED);
    let source = epilogue::close(source, job, unit(shape, &tiling))?;
    let source = if quads { source.body(operand("quads from memory")?) } else { source };
    let source = source.body(&waiting(include_str!("kernels/matvec_blocks.wgsl"))?);
    let groups = groups(job, shape, &tiling);
    let source = if is_counted(job, groups) { source.counted() } else { source.uncounted() };
    Some(source.build(groups))
}

fn floats(job: &Job<'_>, shape: &Shape) -> Option<Kernel> {
    if epilogue::cache_span(job).is_some() {
        return None;
    }
    let (load, values) = match job.dtype(shape.weights) {
        DType::F32 => (operand("f32 operand")?, operand("f32")?),
        DType::F16 => (operand("16 bits operand")?, operand("f16")?),
        DType::BF16 => (operand("16 bits operand")?, operand("bf16")?),
        _ => return None,
    };
    if !shape.inner.is_multiple_of(8) {
        return None;
    }
    let steps = shape.inner / 8;
    let tiling = tiling(job, shape, steps);
    let whole = steps / tiling.team;
    let depth = if Variant::of(job) == Variant::Deeper { 8 } else { 4 };
    let depth = if job.target.counters { depth / 2 } else { depth };
    let unroll = [8, 4, 2]
        .into_iter()
        .find(|u| *u <= depth && whole.is_multiple_of(*u) && whole > 0)
        .unwrap_or(1);
    let quads = in_quads(job, 0);
    let mut source = Source::new(job).view(shape.weights, View::Quads);
    if quads {
        source = source.view(0, View::Quads);
    }
    let gated = match shape.gate {
        Some(gate) => {
            source = source.view(gate, View::Quads);
            fill(load, &[("operand", "u")])
        }
        None => operand("no second float weights")?.into(),
    };
    let source = common(source, job, shape, &tiling)?
        .constant("UNROLL", unroll)
        .body(values)
        .body(&fill(load, &[("operand", "w")]))
        .body(&gated)
        .body(operand(if quads { "rows in quads" } else { "rows by elements" })?);
    let squares = if job.slot(Slot::NormWeight).is_some() { shape.cols } else { 0 };
    let source = source.constant("SUMS", sums(shape, &tiling) + squares).body(TEAM);
    let source = epilogue::close(source, job, unit(shape, &tiling))?;
    let source = source.body(&waiting(include_str!("kernels/matvec_floats.wgsl"))?);
    let groups = groups(job, shape, &tiling);
    let source = match quads {
        true => staged(source, job, shape.cols * shape.inner / 4, groups)?,
        false => source.uncounted(),
    };
    Some(source.build(groups))
}

/// Adds how a kernel reads its activations, `quads` of 16 bytes, and its entry point. One that is counted has them in workgroup
/// memory; where they do not fit, it is not counted.
fn staged<'a>(
    source: Source<'a>,
    job: &Job<'_>,
    quads: u32,
    groups: [u32; 3],
) -> Option<Source<'a>> {
    let fits = 16 * quads <= job.target.shared_bytes / 4 * 3 && job.layout(0).is_dense();
    Some(match fits && is_counted(job, groups) {
        true => source
            .constant("X_QUADS", quads)
            .body(operand("quads from workgroup memory")?)
            .counted(),
        false => source.body(operand("quads from memory")?).uncounted(),
    })
}

/// Whether a product waits for the dispatches before it and is counted. One of experts looks at what they wrote before it knows
/// its weights. One of very many workgroups pays for counting each of them, and has one barrier to save.
fn is_counted(job: &Job<'_>, groups: [u32; 3]) -> bool {
    let few = groups.iter().product::<u32>() <= MOST_COUNTED * job.target.processors;
    let fixed = job.kind.product().is_some_and(|product| !product.is_of_experts());
    job.target.counters && fixed && few
}

/// Numbers a team sums up.
fn sums(shape: &Shape, tiling: &Tiling) -> u32 {
    tiling.rows * shape.cols * if shape.gate.is_some() { 2 } else { 1 }
}

/// A text with its wait for the dispatches before it, which looks at the first weights `w` and `u`.
fn waiting(text: &str) -> Option<String> {
    Some(fill(text, &[("wait", operand("wait")?)]))
}

/// A piece of the text that reads operands.
fn operand(name: &str) -> Option<&'static str> {
    piece(include_str!("kernels/matvec_operands.wgsl"), name)
}

const TEAM: &str = include_str!("kernels/team.wgsl");
const ROUNDED: &str = include_str!("kernels/rounded.wgsl");

/// Whether an operand can be read four floats at a time: every row starts at a multiple of four.
pub(super) fn in_quads(job: &Job<'_>, operand: usize) -> bool {
    let layout = job.layout(operand);
    let (shape, strides) = (layout.shape4(), layout.strides4());
    layout.dtype() == DType::F32
        && job.operands[operand].is_aligned()
        && (0..3).all(|d| shape[d] == 1 || strides[d].is_multiple_of(4))
}

fn common<'a>(
    source: Source<'a>,
    job: &Job<'_>,
    shape: &Shape,
    tiling: &Tiling,
) -> Option<Source<'a>> {
    let baked = shape.cols == 1 || job.dtype(0) == DType::A8 || epilogue::rounds(job);
    let source = if baked { source.baked() } else { source };
    let source = source
        .constant("K", shape.inner)
        .constant("COLS", shape.cols)
        .constant("WG", tiling.workgroup)
        .constant("TEAM", tiling.team)
        .constant("ROWS", tiling.rows)
        .constant("SPAN", tiling.span)
        .constant("LANES", tiling.team.min(job.target.subgroup))
        .constant("WIDTH", job.target.max_groups);
    let norm = job.slot(Slot::NormWeight);
    let (source, weight) = match norm {
        Some(g) if in_quads(job, g) => (source.view(g, View::Quads), "norm weight in quads"),
        Some(_) => (source, "norm weight by elements"),
        None => (source, "no norm"),
    };
    let source = source
        .line(&format!("const NORM = {};\nconst GATED = {};", norm.is_some(), shape.gate.is_some()))
        .body(operand(weight)?);
    Some(match job.kind.product() {
        Some(product) if !product.is_of_experts() => epilogue::plain(source, job),
        _ => epilogue::experts(source, job),
    })
}

/// As [`tiling`], where every workgroup rounds all activations for itself first: an invocation for each
/// four of them, so that this takes one turn.
fn cut_blocks(job: &Job<'_>, shape: &Shape) -> Tiling {
    if let Some(head) = epilogue::normed_head(job) {
        return cut_heads(job, shape, head, shape.inner / CHUNK as u32);
    }
    let (target, variant) = (job.target, Variant::of(job));
    let team = (shape.inner / CHUNK as u32).next_power_of_two().min(target.subgroup);
    let most = (target.max_invocations / target.subgroup * target.subgroup).min(1024);
    let least = 128.min(most).max(target.subgroup);
    let workgroup = (shape.inner / 4).next_power_of_two().clamp(least, most);
    let workgroup =
        if variant == Variant::Smaller { (workgroup / 2).max(least) } else { workgroup };
    let teams = workgroup / team;
    if let Some(span) = epilogue::cache_span(job) {
        return cut_for_cache(job, span, team);
    }
    if epilogue::in_pairs(job) {
        return Tiling { workgroup, team, rows: 2, span: 2 * teams };
    }
    if epilogue::rounds(job) {
        return cut_for_chunks(job, shape, workgroup, team);
    }
    // The largest workgroups leave few registers to each invocation, and types of four planes need more.
    let light = !matches!(job.dtype(shape.weights), DType::Q3_K | DType::Q6_K);
    let slots = target.processors * (RESIDENT / workgroup).max(1);
    let needed = (shape.outer * shape.pairs).div_ceil(teams);
    let two = light && needed > slots && shape.pairs == 1;
    if two == (variant == Variant::OtherRows) {
        Tiling { workgroup, team, rows: 1, span: teams }
    } else if two && needed <= 2 * slots {
        // All workgroups at once: each processor then rounds the activations once.
        let span = shape.outer.div_ceil(slots).clamp(teams, 2 * teams);
        Tiling { workgroup, team, rows: 2, span }
    } else {
        Tiling { workgroup, team, rows: 2, span: 2 * teams }
    }
}

/// As [`cut_blocks`], where a workgroup rounds its results: whole chunks of them. Two rows to a team, unless that
/// leaves processors without a workgroup.
fn cut_for_chunks(job: &Job<'_>, shape: &Shape, workgroup: u32, team: u32) -> Tiling {
    let least = LEAST_TEAMS * team;
    let few = shape.outer.div_ceil(2 * workgroup.max(least) / team) < job.target.processors;
    let most = job.target.max_invocations;
    let one_row = few != (Variant::of(job) == Variant::OtherRows) && 2 * least <= most;
    let rows = if one_row { 1 } else { 2 };
    let workgroup = workgroup.max(2 * least / rows);
    let span = workgroup / team * rows / CHUNK as u32 * CHUNK as u32;
    Tiling { workgroup, team, rows, span }
}

/// As many teams as make whole chunks of a cache, in whole subgroups, with two rows each: those of a pair where heads are turned.
fn cut_for_cache(job: &Job<'_>, span: u32, mut team: u32) -> Tiling {
    let target = job.target;
    let (rows, most) = (2, target.max_invocations / target.subgroup * target.subgroup);
    while span / rows * team > most {
        team /= 2;
    }
    while span / rows * team < target.subgroup {
        team *= 2;
    }
    Tiling { workgroup: span / rows * team, team, rows, span }
}

/// Small workgroups: nothing is shared that more of them would have to do again, unless they round what they give.
/// More lanes to a row where rows are few.
fn cut_rounded(job: &Job<'_>, shape: &Shape) -> Tiling {
    if let Some(head) = epilogue::normed_head(job) {
        return cut_heads(job, shape, head, shape.inner / CHUNK as u32);
    }
    let (target, variant) = (job.target, Variant::of(job));
    let chunks = shape.inner / CHUNK as u32;
    let most = (target.max_invocations / target.subgroup).max(1) * target.subgroup;
    let mut team = chunks.next_power_of_two().min(target.subgroup);
    if epilogue::rounds(job) {
        // One row to a team where that makes a chunk.
        let two = variant == Variant::OtherRows || CHUNK as u32 * team > most;
        let rows = if two { 2 } else { 1 };
        let workgroup = CHUNK as u32 / rows * team;
        return Tiling { workgroup, team, rows, span: CHUNK as u32 };
    }
    if let Some(span) = epilogue::cache_span(job) {
        return cut_for_cache(job, span, team);
    }
    let rows = if epilogue::in_pairs(job) || variant == Variant::OtherRows { 2 } else { 1 };
    while team >= target.subgroup
        && team * 2 <= chunks.min(most / 2)
        && shape.outer / rows * team * 2 <= target.processors * BUSY
        && shape.gate.is_none()
    {
        team *= 2;
    }
    let teams = if variant == Variant::Smaller { 2 } else { 4 };
    let workgroup = (teams * team).clamp(target.subgroup, most) / team * team;
    Tiling { workgroup, team, rows, span: workgroup / team * rows }
}

/// As [`cut_rounded`], for several rows of activations. Small teams where there are enough of them: those of a subgroup load
/// the same activations, and sums of a row cross few lanes. Wide ones keep more loads under way where rows are few.
fn cut_rounded_rows(job: &Job<'_>, shape: &Shape) -> Tiling {
    if let Some(head) = epilogue::normed_head(job) {
        return cut_heads(job, shape, head, shape.inner / CHUNK as u32);
    }
    let (target, variant) = (job.target, Variant::of(job));
    let most = (target.max_invocations / target.subgroup).max(1) * target.subgroup;
    // Second weights count like rows.
    let rows = if shape.gate.is_some() && !epilogue::in_pairs(job) { 1 } else { 2 };
    let busy = |team: &u32| shape.outer / rows * team >= target.processors * BUSY / 2;
    let team = match variant {
        Variant::Expected => [8, 16].into_iter().find(busy).unwrap_or(32),
        Variant::Deeper => 32,
        Variant::Smaller => 8,
        Variant::OtherRows => 16,
    };
    let widest = (shape.inner / CHUNK as u32).next_power_of_two().min(target.subgroup);
    // A lane for each row of activations, and two slices of them with a chunk of results in workgroup memory.
    let mut team = team.max(shape.cols.next_power_of_two()).min(widest);
    let span = epilogue::cache_span(job);
    let kept = 4 * span.unwrap_or(CHUNK as u32);
    let bytes = |team: u32| shape.cols * (2 * CHUNK_BYTES * team + kept) + 256;
    while team > 1 && bytes(team) > target.shared_bytes {
        team /= 2;
    }
    if epilogue::rounds(job) {
        // As many teams as make a chunk, in whole subgroups.
        let mut rows = rows;
        while CHUNK as u32 / rows * team > most {
            rows *= 2;
        }
        while CHUNK as u32 / rows * team < target.subgroup {
            team *= 2;
        }
        return Tiling { workgroup: CHUNK as u32 / rows * team, team, rows, span: CHUNK as u32 };
    }
    if let Some(span) = span {
        return cut_for_cache(job, span, team);
    }
    let workgroup = (8 * team).max(128).min(most).max(target.subgroup) / team * team;
    Tiling { workgroup, team, rows, span: workgroup / team * rows }
}

/// Lanes to a row as long as each has something to do; more rows to a team only where that leaves
/// enough teams to keep the device busy.
fn tiling(job: &Job<'_>, shape: &Shape, steps: u32) -> Tiling {
    if let Some(head) = epilogue::normed_head(job) {
        return cut_heads(job, shape, head, steps);
    }
    let (target, variant) = (job.target, Variant::of(job));
    let mut team = steps.next_power_of_two().min(target.subgroup);
    let outer = shape.outer * shape.pairs;
    let many = outer / 4 >= target.processors * 8 && shape.cols <= 2;
    let rows = match (many, variant) {
        _ if epilogue::in_pairs(job) => 2,
        (true, Variant::OtherRows) => 1,
        (true, _) => 4,
        (false, Variant::OtherRows) => 2,
        (false, _) => 1,
    };
    // Workgroups that keep activations for themselves are few and large.
    let workgroup = if target.counters { 512 } else { 128 };
    let workgroup = workgroup.min(target.max_invocations).max(target.subgroup);
    // More lanes to a row where rows are few: this is what brings enough loads under way.
    while variant != Variant::Smaller
        && team >= target.subgroup
        && team * 2 <= workgroup.min(steps)
        && outer / rows * team * 2 <= target.processors * BUSY
    {
        team *= 2;
    }
    Tiling { workgroup, team, rows, span: workgroup / team * rows }
}

/// Where heads are normed: a head to a workgroup, or as large a part of one as it can take. Workgroups of a head that
/// is divided meet in scratch, which takes longer than rows one after another do, up to four.
fn cut_heads(job: &Job<'_>, shape: &Shape, head: u32, steps: u32) -> Tiling {
    let (target, variant) = (job.target, Variant::of(job));
    let most = (target.max_invocations / target.subgroup * target.subgroup).min(1024);
    let most = if variant == Variant::Smaller { (most / 2).max(target.subgroup) } else { most };
    // Two slices of quantised activations lie in workgroup memory beside the sums.
    let mut team = steps.next_power_of_two().min(target.subgroup);
    while team > 1 && 2 * CHUNK_BYTES * team * shape.cols > target.shared_bytes / 4 * 3 {
        team /= 2;
    }
    // Small teams where that gives a workgroup a whole head: parts that meet in memory cost more.
    while team > 1 && most / team * MOST_ROWS < head {
        team /= 2;
    }
    let rows = head.div_ceil(most / team).next_power_of_two().min(MOST_ROWS);
    let rows = match variant {
        Variant::OtherRows if rows == 1 => 2,
        Variant::OtherRows if most / team * (rows / 2) >= head => rows / 2,
        _ => rows,
    };
    let kept = (target.shared_bytes / 16 / shape.cols).max(1);
    let reach = (most / team * rows).min(kept).min(head);
    let span = (1..=reach).rev().find(|&span| head.is_multiple_of(span)).unwrap_or(1);
    let teams = span.div_ceil(rows);
    let workgroup = (teams * team).next_multiple_of(target.subgroup).clamp(target.subgroup, most);
    Tiling { workgroup, team, rows, span }
}

fn unit(shape: &Shape, tiling: &Tiling) -> epilogue::Unit {
    let Tiling { workgroup, span, .. } = *tiling;
    epilogue::Unit { span, outer: shape.outer, cols: shape.cols, workgroup }
}

fn groups(job: &Job<'_>, shape: &Shape, tiling: &Tiling) -> [u32; 3] {
    let count = shape.outer.div_ceil(tiling.span);
    let width = job.target.max_groups;
    [count.min(width), count.div_ceil(width), shape.pairs]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_piece_that_is_asked_for() {
        for name in [
            "norm weight in quads",
            "norm weight by elements",
            "no norm",
            "rows in quads",
            "rows by elements",
            "f32",
            "f16",
            "bf16",
            "f32 operand",
            "16 bits operand",
            "no second weights",
            "no second float weights",
        ] {
            assert!(operand(name).is_some_and(|text| text.contains("fn ")), "{name}");
        }
    }
}
