//! What a list computes, as symbols: a slow executor that knows what each fused op stands for. It
//! reads and writes elements; bytes between them stay as they are.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::slice::from_ref;

use rustc_hash::FxHasher;

use crate::node::CapturedOpKind as Kind;
use crate::testkit::elements;
use crate::{Access, BufferRange, ComputeGraph, Dispatch, NodeId};

/// Contents of some bytes: a symbol each.
type Contents = Vec<u64>;

/// What the host can see after a list has run: every byte of real buffers and of outputs that was
/// written. A dispatch of unknown access does nothing.
pub(super) fn visible(graph: &ComputeGraph) -> BTreeMap<(usize, u64), u64> {
    let mut memory = Memory::default();
    for dispatch in graph.dispatches() {
        memory.run(dispatch);
    }
    let seen = |buf_id| match NodeId::from_buf_id(buf_id) {
        Some(value) => graph.values()[value.index()].output,
        None => true,
    };
    memory.bytes.into_iter().filter(|((buf_id, _), _)| seen(*buf_id)).collect()
}

#[derive(Default)]
struct Memory {
    bytes: HashMap<(usize, u64), u64>,
}

impl Memory {
    fn run(&mut self, dispatch: &Dispatch) {
        let (writes, reads): (Vec<&Access>, Vec<&Access>) =
            dispatch.accesses().iter().partition(|access| access.range.is_write());
        let reads = reads.into_iter().filter(|access| !access.keeps);
        let byte = |at| *self.bytes.get(&at).unwrap_or(&symbol(at));
        let inputs: Vec<Contents> =
            reads.map(|read| touched(dispatch, read).into_iter().map(byte).collect()).collect();
        let written: Vec<_> = writes.into_iter().map(|write| touched(dispatch, write)).collect();
        let lens: Vec<usize> = written.iter().map(Vec::len).collect();
        let outputs = compute(dispatch.kind, &dispatch.params, &inputs, &lens);
        for (bytes, contents) in written.into_iter().zip(outputs) {
            self.bytes.extend(bytes.into_iter().zip(contents));
        }
    }
}

/// The bytes of elements that an access touches.
fn touched(dispatch: &Dispatch, access: &Access) -> Vec<(usize, u64)> {
    let BufferRange { buf_id, p0, p1, .. } = access.range;
    let runs = match dispatch.bindings.get(usize::from(access.binding)) {
        Some(view) => elements(view, p0, p1),
        None => vec![(p0, p1)],
    };
    runs.into_iter().flat_map(|(p0, p1)| p0..p1).map(|byte| (buf_id, byte)).collect()
}

/// The outputs of an op, in the order it writes them. A fused op computes what its members would,
/// on an intermediate as long as its result, or for the rotary one as its first input, or where a
/// product goes into a cache as its weight makes it.
fn compute(kind: Kind, params: &[u32], inputs: &[Contents], lens: &[usize]) -> Vec<Contents> {
    let last = lens.last().copied().unwrap_or(0);
    let one = |kind, params: &[u32], inputs: &[Contents], len: usize| {
        compute(kind, params, inputs, &[len]).remove(0)
    };
    if let (Some(product), [x, g, rest @ ..]) = (behind_norm(kind), inputs) {
        let normed = one(Kind::RmsNormMul, params, &[x.clone(), g.clone()], x.len());
        return vec![one(product, &[], &[&[normed], rest].concat(), last)];
    }
    match (kind, inputs) {
        (Kind::RmsNormMul, [x, w]) => {
            let normed = one(Kind::RmsNorm, params, from_ref(x), last);
            vec![one(Kind::Mul, &[], &[normed, w.clone()], last)]
        }
        (Kind::SiluMul | Kind::GeluMul, [gate, up]) => {
            let act = if kind == Kind::SiluMul { Kind::Silu } else { Kind::Gelu };
            let gate = one(act, &[], from_ref(gate), last);
            vec![one(Kind::Mul, &[], &[gate, up.clone()], last)]
        }
        (Kind::MatMulAdd, [x, w, c]) => {
            let product = one(Kind::MatMul, &[], &[x.clone(), w.clone()], last);
            vec![one(Kind::Add, &[], &[product, c.clone()], last)]
        }
        (Kind::MatMulSiluMul | Kind::MatMulGeluMul, [x, w, up]) => {
            let gate = one(Kind::MatMul, &[], &[x.clone(), w.clone()], last);
            let mul = if kind == Kind::MatMulSiluMul { Kind::SiluMul } else { Kind::GeluMul };
            vec![one(mul, &[], &[gate, up.clone()], last)]
        }
        (Kind::MatMulSiluGated | Kind::MatMulGeluGated, [x, w, u]) => {
            let up = one(Kind::MatMul, &[], &[x.clone(), u.clone()], last);
            let silu = kind == Kind::MatMulSiluGated;
            let rest = if silu { Kind::MatMulSiluMul } else { Kind::MatMulGeluMul };
            vec![one(rest, &[], &[x.clone(), w.clone(), up], last)]
        }
        (Kind::RopeKvWrite, [x, positions, factors, rows, cache]) => {
            let operands = [x.clone(), positions.clone(), factors.clone()];
            let turned = one(Kind::Rope, params, &operands, x.len());
            vec![one(Kind::KvWrite, &[], &[turned, rows.clone(), cache.clone()], last)]
        }
        (Kind::MatMulRope, [x, w, positions, factors]) => {
            let product = one(Kind::MatMul, &[], &[x.clone(), w.clone()], last);
            let operands = [product, positions.clone(), factors.clone()];
            vec![one(Kind::Rope, params, &operands, last)]
        }
        (Kind::MatMulRopeKv | Kind::MatMulKv, [x, w, positions, rest @ ..]) => {
            let tokens = positions.len() / size_of::<u32>();
            let elems = w.len() * tokens / x.len() * tokens;
            let len = elems * size_of::<f32>();
            let product = one(Kind::MatMul, &[], &[x.clone(), w.clone()], len);
            let write = if kind == Kind::MatMulKv { Kind::KvWrite } else { Kind::RopeKvWrite };
            let operands = [&[product, positions.clone()], rest].concat();
            vec![one(write, params, &operands, last)]
        }
        (Kind::NormMatMulRope, [x, g, w, positions, factors]) => {
            let operands = [x.clone(), g.clone(), w.clone()];
            let product = one(Kind::NormMatMul, &params[..1], &operands, last);
            let operands = [product, positions.clone(), factors.clone()];
            vec![one(Kind::Rope, &params[1..], &operands, last)]
        }
        (Kind::NormMatMulRopeKv | Kind::NormMatMulKv, [x, g, w, positions, rest @ ..]) => {
            let tokens = positions.len() / size_of::<u32>();
            let elems = w.len() * tokens / x.len() * tokens;
            let operands = [x.clone(), g.clone(), w.clone()];
            let len = elems * size_of::<f32>();
            let product = one(Kind::NormMatMul, &params[..1], &operands, len);
            let write = if kind == Kind::NormMatMulKv { Kind::KvWrite } else { Kind::RopeKvWrite };
            let operands = [&[product, positions.clone()], rest].concat();
            vec![one(write, &params[1..], &operands, last)]
        }
        (Kind::AddRmsNorm | Kind::AddRmsNormMul, [a, b, rest @ ..]) => {
            let sum = one(Kind::Add, &[], &[a.clone(), b.clone()], last);
            let normed = match rest {
                [] => one(Kind::RmsNorm, params, from_ref(&sum), last),
                [w, ..] => one(Kind::RmsNormMul, params, &[sum.clone(), w.clone()], last),
            };
            let kept = (lens.len() > 1).then_some(sum);
            kept.into_iter().chain([normed]).collect()
        }
        _ => {
            let mut operands = inputs.to_vec();
            if matches!(kind, Kind::Add | Kind::Mul) {
                operands.sort(); // the order of operands does not matter
            }
            let output = |(index, &len): (usize, &usize)| {
                let result = symbol((kind, params, &operands, index));
                (0..len).map(|byte| symbol((result, byte))).collect()
            };
            lens.iter().enumerate().map(output).collect()
        }
    }
}

/// The product of an op that starts with a norm.
fn behind_norm(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::NormMatMul => Some(Kind::MatMul),
        Kind::NormMatMulAdd => Some(Kind::MatMulAdd),
        Kind::NormMatMulSiluGated => Some(Kind::MatMulSiluGated),
        Kind::NormMatMulGeluGated => Some(Kind::MatMulGeluGated),
        _ => None,
    }
}

fn symbol(of: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    of.hash(&mut hasher);
    hasher.finish()
}
