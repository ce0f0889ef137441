//! What a list computes, as symbols: a slow executor that knows what each fused op stands for. It
//! reads and writes elements; bytes between them stay as they are.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::slice::from_ref;

use rustc_hash::FxHasher;

use crate::op::{Activation, CapturedOpKind as Kind, PlainInput, PlainShape, Product, Slot};
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
    match (kind, inputs) {
        (Kind::RmsNormMul, [x, w]) => {
            let normed = one(Kind::RmsNorm, params, from_ref(x), last);
            vec![one(Kind::MUL, &[], &[normed, w.clone()], last)]
        }
        (Kind::ExpertSumAdd, [x, weights, c]) => {
            let sum = one(Kind::ExpertSum, &[], &[x.clone(), weights.clone()], last);
            vec![one(Kind::ADD, &[], &[sum, c.clone()], last)]
        }
        (Kind::RmsNormMulAdd, [x, w, c]) => {
            let normed = one(Kind::RmsNormMul, params, &[x.clone(), w.clone()], last);
            vec![one(Kind::ADD, &[], &[normed, c.clone()], last)]
        }
        (Kind::SILU_MUL | Kind::GELU_MUL, [gate, up]) => {
            let activation = Activation::ALL.into_iter().find(|a| a.mul() == Some(kind)).unwrap();
            let gate = one(activation.op(), &[], from_ref(gate), last);
            vec![one(Kind::MUL, &[], &[gate, up.clone()], last)]
        }
        (Kind::Product(product), _) if product != Product::PLAIN => {
            let compute = |kind, params: &[u32], inputs: &[&Contents], len| {
                let inputs: Vec<Contents> = inputs.iter().map(|&input| input.clone()).collect();
                one(kind, params, &inputs, len)
            };
            compute_product(product, params, inputs, lens, compute)
        }
        (Kind::RopeKvWrite, [x, positions, factors, rows, cache]) => {
            let operands = [x.clone(), positions.clone(), factors.clone()];
            let turned = one(Kind::Rope, params, &operands, x.len());
            vec![one(Kind::KvWrite, &[], &[turned, rows.clone(), cache.clone()], last)]
        }
        (Kind::AddRmsNorm | Kind::AddRmsNormMul, [a, b, rest @ ..]) => {
            let sum = one(Kind::ADD, &[], &[a.clone(), b.clone()], last);
            let normed = match rest {
                [] => one(Kind::RmsNorm, params, from_ref(&sum), last),
                [w, ..] => one(Kind::RmsNormMul, params, &[sum.clone(), w.clone()], last),
            };
            let kept = (lens.len() > 1).then_some(sum);
            kept.into_iter().chain([normed]).collect()
        }
        _ => {
            let mut operands = inputs.to_vec();
            if matches!(kind, Kind::ADD | Kind::MUL) {
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

/// The outputs of a product with what is fused to it, by the ops it stands for.
fn compute_product(
    product: Product,
    params: &[u32],
    inputs: &[Contents],
    lens: &[usize],
    one: impl Fn(Kind, &[u32], &[&Contents], usize) -> Contents,
) -> Vec<Contents> {
    // Inputs are what is read: neither the result nor the sum.
    let read = |slot| {
        let mut slots = product.slots().iter().filter(|s| !matches!(s, Slot::Result | Slot::Sum));
        &inputs[slots.position(|&s| s == slot).unwrap()]
    };
    let last = lens.last().copied().unwrap_or(0);
    let rows = read(Slot::Input).len();
    let mut len = last;
    if product.epilogue().cache {
        let tokens = read(Slot::CacheRows).len() / size_of::<u32>();
        len = read(Slot::Weight).len() * tokens / rows * tokens * size_of::<f32>();
    }
    let mut given: Vec<Contents> = Vec::new();
    let mut results = Vec::new();
    for op in product.plain_ops() {
        let mut inputs: Vec<&Contents> = Vec::new();
        for input in &op.inputs {
            inputs.push(match *input {
                PlainInput::Slot(slot) => read(slot),
                PlainInput::Op(earlier) => &given[earlier],
            });
        }
        let len = match op.shape {
            PlainShape::Input => rows,
            PlainShape::Product | PlainShape::Heads => len,
            PlainShape::Cache => {
                inputs.push(read(Slot::Cache));
                last
            }
        };
        let contents = one(op.kind, &params[op.params.clone()], &inputs, len);
        if op.result.is_some_and(|slot| slot != Slot::Sum || lens.len() > 1) {
            results.push(contents.clone());
        }
        given.push(contents);
    }
    results
}

fn symbol(of: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    of.hash(&mut hasher);
    hasher.finish()
}
