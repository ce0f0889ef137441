//! The random graphs memory plans are measured on.

use super::Rng;
use crate::contract::{BindingContract, BindingRole, KernelContract};
use crate::dtype::DType;
use crate::graph::ComputeGraph;
use crate::layout::{Layout, TensorView};
use crate::op::CapturedOpKind;

const OPS: usize = 300;
const WINDOW: usize = 40;

/// 300 ops on `width` chains. Each reads its chain's last op and, one time in four, one of the 40
/// ops before it; its value has 4096 * 2^k bytes, k from 0 to 7; one op in three may run in place
/// over the first operand of its size. A last op joins the chains.
pub fn random_dag(seed: u64, width: usize) -> ComputeGraph {
    let mut rng = Rng::new(seed);
    let mut graph = ComputeGraph::new();
    let mut values: Vec<TensorView> = Vec::new();
    let mut tails: Vec<Option<TensorView>> = vec![None; width];
    for _ in 0..OPS {
        let chain = rng.below(width as u64) as usize;
        let mut reads: Vec<TensorView> = tails[chain].into_iter().collect();
        if rng.chance(25) && !values.is_empty() {
            let back = rng.below(values.len().min(WINDOW) as u64) as usize;
            let other = values[values.len() - 1 - back];
            if !reads.contains(&other) {
                reads.push(other);
            }
        }
        let bytes = 4096 << rng.below(8);
        let in_place = rng.below(3) == 0;
        let value = op(&mut graph, &reads, bytes, in_place);
        values.push(value);
        tails[chain] = Some(value);
    }
    let joined: Vec<TensorView> = tails.into_iter().flatten().collect();
    let last = op(&mut graph, &joined, 4096, false);
    graph.mark_output(last.value().expect("an op makes a value")).expect("it is declared");
    graph
}

fn op(graph: &mut ComputeGraph, reads: &[TensorView], bytes: usize, in_place: bool) -> TensorView {
    let result = graph.declare_value(Layout::new(DType::F32, &[bytes / 4]).expect("a row"));
    let mut bindings = vec![BindingContract::new("x", BindingRole::Read); reads.len()];
    let over: Vec<u16> = match in_place {
        true => (0..reads.len() as u16).collect(),
        false => Vec::new(),
    };
    bindings.push(BindingContract::new("y", BindingRole::Write).over(over));
    let contract = KernelContract::new("op", bindings);
    let views: Vec<TensorView> = reads.iter().copied().chain([result]).collect();
    graph.dispatch(CapturedOpKind::Custom, &contract, &views, &[], "").expect("well formed");
    result
}
