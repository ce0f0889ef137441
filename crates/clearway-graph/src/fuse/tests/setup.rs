//! A producer and a consumer that a rule fuses, taken apart so that a test can spoil one thing.

use crate::fuse::{RULES, Rule, TestCatalog};
use crate::op::{CapturedOpKind as Kind, Gate, Product, Slot};
use crate::{ComputeGraph, DType, DispatchId, KernelContract, Layout, Params, TensorView};

/// Rows of the tensors.
pub(super) const ROWS: usize = 4;
/// Columns of the tensors.
pub(super) const COLS: usize = 8;
/// Bytes of a full tensor.
pub(super) const BYTES: u64 = (ROWS * COLS * 4) as u64;

/// Every rule that any pair in real buffers can be an example of: those that quantise ask for more
/// (`quantise/tests/ahead.rs`).
pub(super) fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().filter(|rule| !rule.quantises)
}

/// A dispatch to be recorded.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) views: Vec<TensorView>,
    pub(super) params: Vec<u32>,
    pub(super) unknown: bool,
}

impl Step {
    pub(super) fn new(kind: Kind, views: &[TensorView]) -> Self {
        let params = kind.spec().map_or(&[][..], |spec| spec.params).iter();
        let params = params.map(|param| match param.name {
            "eps" => 1e-5f32.to_bits(),
            "n_dims" => 4,
            "scale" | "magnitude" => 1f32.to_bits(),
            "base" => 10_000f32.to_bits(),
            _ => 1,
        });
        let params = params.collect();
        Self { kind, views: views.to_vec(), params, unknown: false }
    }

    pub(super) fn record(&self, graph: &mut ComputeGraph, label: &str) -> DispatchId {
        let contract = match self.unknown {
            true => KernelContract::unknown(self.kind.name()),
            false => TestCatalog::contract(self.kind, self.views.len()).unwrap(),
        };
        graph.dispatch(self.kind, &contract, &self.views, &self.params, label).unwrap()
    }
}

/// A pair, with whatever stands between and after it. The intermediate is a value, everything else
/// lies in real buffers of its own.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) graph: ComputeGraph,
    pub(super) producer: Step,
    pub(super) between: Vec<Step>,
    pub(super) consumer: Step,
    pub(super) after: Vec<Step>,
    pub(super) operand: usize,
    /// The intermediate, as the producer writes it.
    pub(super) value: TensorView,
    pub(super) catalog: TestCatalog,
    buffers: usize,
}

impl Setup {
    pub(super) const PRODUCER: DispatchId = DispatchId(0);

    /// The pair of a rule, joined by the first operand it names.
    pub(super) fn of(rule: &Rule) -> Self {
        Self::new(rule, rule.operands[0])
    }

    /// The pair of a rule, joined by this operand of the consumer.
    pub(super) fn new(rule: &Rule, operand: usize) -> Self {
        let mut graph = ComputeGraph::new();
        let value = graph.declare_value(full(rule.producer));
        let mut setup = Self {
            graph,
            producer: Step::new(rule.producer, &[]),
            between: Vec::new(),
            consumer: Step::new(rule.consumer, &[]),
            after: Vec::new(),
            operand,
            value,
            catalog: TestCatalog::new(),
            buffers: 0,
        };
        for layout in inputs_of_producer(rule.producer) {
            let view = setup.buffer(layout);
            setup.producer.views.push(view);
        }
        setup.producer.views.push(value);
        for layout in inputs_of_consumer(rule) {
            let view = setup.buffer(layout);
            setup.consumer.views.push(view);
        }
        let read = if rule.reshaped { heads() } else { value.layout };
        setup.consumer.views[operand] = value.reinterpret(0, read).unwrap();
        setup.align(rule);
        // Ops differ in whether they have constants; here both have some.
        setup.producer.params.push(11);
        setup.consumer.params.push(22);
        let result = match rule.consumer {
            _ if rule.reshaped && rule.consumer == Kind::RmsNormMul => heads(),
            Kind::KvWrite | Kind::RopeKvWrite => layout(&[32, 2, COLS / 2]),
            Kind::Rope => heads(),
            _ => layout(&[ROWS, COLS]),
        };
        let result = setup.buffer(result);
        setup.consumer.views.push(result);
        setup
    }

    /// Lets the consumer read what the producer reads, where the rule asks for that.
    pub(super) fn align(&mut self, rule: &Rule) {
        for same in &rule.same {
            self.consumer.views[same.consumer] = self.producer.views[same.producer];
        }
    }

    /// A tensor in a real buffer of its own.
    pub(super) fn buffer(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        let buf_len = layout.span_bytes() + 64;
        TensorView { buf_id: self.buffers, buf_len, offset: 16, layout }
    }

    /// The consumer's operand that is not the intermediate.
    pub(super) fn other(&self) -> TensorView {
        self.consumer.views[1 - self.operand]
    }

    /// The intermediate, as the consumer reads it.
    pub(super) fn read(&self) -> TensorView {
        self.consumer.views[self.operand]
    }

    /// What the consumer writes.
    pub(super) fn result(&self) -> TensorView {
        *self.consumer.views.last().unwrap()
    }

    pub(super) fn consumer_id(&self) -> DispatchId {
        DispatchId(1 + self.between.len() as u32)
    }

    /// The id of the first dispatch after the consumer.
    pub(super) fn after_id(&self) -> DispatchId {
        DispatchId(self.consumer_id().0 + 1)
    }

    /// The recorded list.
    pub(super) fn record(&self) -> ComputeGraph {
        let mut graph = self.graph.clone();
        self.producer.record(&mut graph, "first");
        for step in &self.between {
            step.record(&mut graph, "between");
        }
        self.consumer.record(&mut graph, "second");
        for step in &self.after {
            step.record(&mut graph, "after");
        }
        graph
    }

    /// Constants of both.
    pub(super) fn params(&self) -> Params {
        self.producer.params.iter().chain(&self.consumer.params).copied().collect()
    }
}

/// A dense layout of floats.
pub(super) fn layout(shape: &[usize]) -> Layout {
    Layout::new(DType::F32, shape).unwrap()
}

fn full(kind: Kind) -> Layout {
    match kind {
        Kind::Rope => heads(),
        Kind::Product(product) if product.epilogue().heads() => heads(),
        _ => layout(&[ROWS, COLS]),
    }
}

/// A full tensor as rows of heads.
fn heads() -> Layout {
    layout(&[ROWS, 2, COLS / 2])
}

fn ids() -> Layout {
    Layout::new(DType::U32, &[ROWS]).unwrap()
}

fn inputs_of_producer(kind: Kind) -> Vec<Layout> {
    match kind {
        Kind::Product(product) => inputs_of_product(product, 16),
        Kind::MatMulExperts => vec![layout(&[ROWS, 16]), layout(&[COLS, 16]), ids()],
        Kind::ADD | Kind::AddRmsNorm => vec![full(kind), full(kind)],
        Kind::Rope => vec![full(kind), ids(), layout(&[2])],
        Kind::RmsNormMul => vec![full(kind), layout(&[COLS])],
        Kind::ExpertSum => vec![full(kind), layout(&[ROWS, 2])],
        _ => vec![full(kind)],
    }
}

fn inputs_of_consumer(rule: &Rule) -> Vec<Layout> {
    let kind = rule.consumer;
    match kind {
        Kind::RmsNorm => vec![full(kind)],
        Kind::RmsNormMul if rule.reshaped => vec![heads(), layout(&[COLS / 2])],
        Kind::RmsNormMul => vec![full(kind), layout(&[COLS])],
        Kind::KvWrite => vec![heads(), ids()],
        Kind::Rope => vec![heads(), ids(), layout(&[2])],
        Kind::RopeKvWrite => vec![heads(), ids(), layout(&[2]), ids()],
        // What joins them is the operand it is the gate of, else its activations.
        Kind::Product(product) if matches!(product.gate(), Gate::Operand(_)) => {
            inputs_of_product(product, 16)
        }
        Kind::Product(product) => inputs_of_product(product, COLS),
        Kind::Map(map) => vec![full(kind); map.inputs().count()],
        other => panic!("no rule ends with {other}"),
    }
}

/// All operands of a product but its result.
fn inputs_of_product(product: Product, inner: usize) -> Vec<Layout> {
    let inputs = product.slots().iter().filter(|&&slot| slot != Slot::Result);
    inputs
        .map(|slot| match slot {
            Slot::Input => layout(&[ROWS, inner]),
            Slot::NormWeight => layout(&[inner]),
            Slot::Weight | Slot::UpWeight => layout(&[COLS, inner]),
            Slot::Ids => ids(),
            Slot::Up | Slot::Addend => layout(&[ROWS, COLS]),
            Slot::HeadNormWeight => layout(&[COLS / 2]),
            slot => panic!("no rule starts or ends with {slot:?}"),
        })
        .collect()
}
