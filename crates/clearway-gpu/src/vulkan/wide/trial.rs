//! The comparison that stands before every choice, with kernels that any device runs: a right one passes, a wrong one does not.

use std::sync::Arc;

use clearway_graph::testkit::{kind, skip};
use clearway_graph::{BindingRole, CapturedOpKind, DType, Layout};

use super::super::VulkanOptions;
use super::super::context::Context;
use super::super::instance::Instance;
use super::super::memory::VulkanMemory;
use super::super::weights;
use crate::lowering::agree::Trial;
use crate::lowering::lowered::Bound;
use crate::lowering::{Backend, Piece};
use crate::quant;
use crate::wgsl::{self, Job, Operand, Packing};

const ROWS: usize = 20;
const OUTER: usize = 96;
const INNER: usize = 128;

fn open() -> Option<Arc<Context>> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    let opened = Instance::load(options).and_then(|instance| {
        let adapters = instance.adapters()?;
        let usable = adapters.into_iter().find(|adapter| adapter.missing.is_none());
        usable.map(|adapter| Context::open(Arc::new(instance), adapter)).transpose()
    });
    let why = match opened {
        Ok(Some(context)) => return Some(context),
        Ok(None) => "no device can be used".to_owned(),
        Err(error) => error.to_string(),
    };
    skip("vulkan", why);
    None
}

#[test]
fn a_kernel_that_gives_something_else_is_found_out() {
    let Some(context) = open() else { return };
    let w = Layout::new(DType::Q4_0, &[OUTER, INNER]).unwrap();
    let values: Vec<f32> = (0..OUTER * INNER).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let mut bytes = vec![0; w.span_bytes() as usize];
    quant::encode(DType::Q4_0, &values, &mut bytes).unwrap();
    let weights = weights::upload(&context, &w, &bytes).unwrap();
    let empty = weights::upload(&context, &w, &vec![0; bytes.len()]).unwrap();
    let memory =
        |elems: usize| VulkanMemory::new(&context, elems as u64 * 4, Packing::Plain).unwrap();
    let (x, c, y) = (memory(ROWS * INNER), memory(ROWS * OUTER), memory(ROWS * OUTER));
    for added in [None, Some(false), Some(true)] {
        let operand = |name, shape: &[usize], role| Operand {
            name,
            layout: Layout::new(DType::F32, shape).unwrap(),
            role,
            shift: 0,
            packing: Packing::Plain,
            rows: None,
            same_as: None,
        };
        let mut operands = vec![
            operand("x", &[ROWS, INNER], BindingRole::Read),
            Operand {
                layout: w,
                packing: Packing::Planes,
                ..operand("w", &[1], BindingRole::Read)
            },
        ];
        if added.is_some() {
            operands.push(operand("c", &[ROWS, OUTER], BindingRole::Read));
        }
        let in_place = added == Some(true);
        let y_operand = operand("y", &[ROWS, OUTER], BindingRole::Write);
        operands.push(Operand { same_as: in_place.then_some(2), ..y_operand });
        let of = |weights: &VulkanMemory| {
            let mut ranges = vec![x.whole(), weights.whole()];
            ranges.extend(added.map(|_| if in_place { y.whole() } else { c.whole() }));
            ranges.push(y.whole());
            let written = [ranges.len() - 1].into_iter().collect();
            Bound {
                ranges: ranges.into_iter().collect(),
                weights: [1].into_iter().collect(),
                written,
            }
        };
        let kind = if added.is_some() { kind("matmul_add") } else { CapturedOpKind::MATMUL };
        let target = context.target();
        let job = Job { kind, operands, params: &[], target, choice: 0 };
        let portable = wgsl::lower(&job).unwrap();
        let bound = of(&weights);
        let trial = Trial::new(&context, &job, &portable, &bound).unwrap().unwrap();
        assert!(trial.agrees(&portable).unwrap(), "the same kernel gives the same");
        let changed = |from: &str, to: &str| {
            let mut kernel = portable.clone();
            assert!(kernel.source.contains(from), "{}", kernel.source);
            kernel.source = kernel.source.replace(from, to);
            trial.agrees(&kernel).unwrap()
        };
        assert!(!changed("(0x0f0f0f0fu)", "(0x0e0e0e0eu)"), "wrong nibbles");
        assert!(!changed(", 8.0)", ", 8.5)"), "a wrong zero");
        assert!(!changed("k += ", "k += 2u * "), "half of the columns");
        if added.is_some() {
            assert!(!changed("return get_c(", "return 0.9 * get_c("), "a wrong addend");
        }
        let nothing = of(&empty);
        let trial = Trial::new(&context, &job, &portable, &nothing).unwrap();
        assert!(trial.is_none(), "of zeros nothing can be told");
    }
}
