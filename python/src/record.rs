//! Devices for graphs, and op calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clearway::{
    AttentionParams, Bindings, CapturedOpKind, CompileOptions, GraphExecutor, KernelRegistry,
    Layout, Ops, RopeMode, RopeParams, RouterMode, RouterParams, TensorView,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::{Array, dtype, layout};
use crate::error;
use crate::graph::Graph;
use crate::kernel::{self, Raised};

/// A device that graphs run on, with the kernels that Python brought.
#[pyclass(frozen, module = "clearway._clearway")]
pub struct Device {
    pub executor: GraphExecutor,
    pub kernels: Mutex<KernelRegistry>,
    pub raised: Raised,
}

#[pymethods]
impl Device {
    /// Opens a device by its name.
    #[new]
    fn new(py: Python<'_>, name: &str, threads: Option<usize>) -> PyResult<Self> {
        let device = py.detach(|| crate::device::open(name, threads))?;
        Ok(Self {
            executor: GraphExecutor::on(device),
            kernels: Mutex::default(),
            raised: Raised::default(),
        })
    }

    /// Name the command line uses.
    #[getter]
    fn name(&self) -> String {
        self.executor.device().info().name.clone()
    }

    /// One line for people.
    #[getter]
    fn description(&self) -> String {
        self.executor.device().info().description.clone()
    }

    /// A tensor of zeros.
    fn zeros(&self, py: Python<'_>, dtype: &str, shape: Vec<usize>) -> PyResult<Array> {
        let layout = layout(dtype, &shape)?;
        py.detach(|| Array::zeros(self.executor.device(), layout))
    }

    /// Adds a kernel: operands with their roles, WGSL with a function for its workgroups, a function for the CPU.
    fn kernel(
        &self,
        name: String,
        operands: Vec<(String, String)>,
        wgsl: Option<(String, Py<PyAny>)>,
        cpu: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let kernel = kernel::kernel(name, &operands, wgsl, cpu, &self.raised)?;
        self.executor.register(kernel.clone()).map_err(|problem| error::runtime(&problem))?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.register(kernel).map_err(|problem| error::gpu(&problem))
    }
}

/// A tensor of a recording.
#[pyclass(frozen, from_py_object, module = "clearway._clearway")]
#[derive(Clone)]
pub struct Tensor {
    pub view: TensorView,
    recorder: u64,
}

#[pymethods]
impl Tensor {
    /// Extents, the innermost last.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view.layout.dims())
    }

    /// Name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.view.layout.dtype().name()
    }
}

/// Records op calls.
#[pyclass(frozen, module = "clearway._clearway")]
pub struct Recorder {
    id: u64,
    device: Py<Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    recorder: clearway::Recorder,
    bindings: Bindings,
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tensor(&self, view: TensorView) -> Tensor {
        Tensor { view, recorder: self.id }
    }

    /// The views of tensors, if all are of this recording.
    fn views(&self, tensors: &[Tensor]) -> PyResult<Vec<TensorView>> {
        match tensors.iter().all(|tensor| tensor.recorder == self.id) {
            true => Ok(tensors.iter().map(|tensor| tensor.view).collect()),
            false => {
                Err(error::exception("GraphError", "a tensor belongs to another recording", &[]))
            }
        }
    }
}

#[pymethods]
impl Recorder {
    #[new]
    fn new(device: Py<Device>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), device, state: Mutex::default() }
    }

    /// A tensor that lies in an array.
    fn bind(&self, name: &str, array: &Array) -> PyResult<Tensor> {
        let shape: Vec<usize> = array.layout.dims().iter().map(|&dim| dim as usize).collect();
        let mut state = self.lock();
        let view = state.recorder.external(name, array.layout.dtype(), &shape);
        let view = view.map_err(|problem| error::gpu(&problem))?;
        state.bindings.bind_at(view, &array.buffer, array.offset);
        Ok(self.tensor(view))
    }

    /// Memory for a result.
    fn declare(&self, dtype: &str, shape: Vec<usize>) -> PyResult<Tensor> {
        let view = self.lock().recorder.declare(layout(dtype, &shape)?);
        Ok(self.tensor(view.map_err(|problem| error::gpu(&problem))?))
    }

    /// The same elements in another shape.
    fn reshape(&self, tensor: Tensor, shape: Vec<usize>) -> PyResult<Tensor> {
        let view = self.views(std::slice::from_ref(&tensor))?;
        let [view] = view[..] else { return Ok(tensor) };
        let shaped = Layout::new(view.layout.dtype(), &shape)
            .map_err(|problem| error::gpu(&problem.into()))?;
        if shaped.elems() != view.layout.elems() || !view.layout.is_dense() {
            let message = format!("{} cannot be seen as {shaped}", view.layout);
            return Err(error::exception("GraphError", &message, &[]));
        }
        let view = view.reinterpret(0, shaped).map_err(|problem| error::gpu(&problem.into()))?;
        Ok(self.tensor(view))
    }

    /// Names the ops that follow.
    fn label(&self, label: &str) {
        self.lock().recorder.set_label(label);
    }

    /// Calls an op by its name.
    fn op(
        &self,
        name: &str,
        tensors: Vec<Tensor>,
        floats: Vec<f32>,
        ints: Vec<usize>,
    ) -> PyResult<Vec<Tensor>> {
        let views = self.views(&tensors)?;
        let found = call(&mut self.lock().recorder, name, &views, &floats, &ints);
        let found = found.map_err(|problem| error::gpu(&problem))?;
        let wrong = || {
            let given = (views.len(), floats.len(), ints.len());
            PyValueError::new_err(format!(
                "there is no op {name:?} of {given:?} operands and constants"
            ))
        };
        Ok(found.ok_or_else(wrong)?.into_iter().map(|view| self.tensor(view)).collect())
    }

    /// A tensor of another type, or with every element the same.
    fn copy(&self, tensor: Tensor, dtype_name: &str) -> PyResult<Tensor> {
        let views = self.views(std::slice::from_ref(&tensor))?;
        let [view] = views[..] else { return Ok(tensor) };
        let copied = self.lock().recorder.copy(view, dtype(dtype_name)?);
        Ok(self.tensor(copied.map_err(|problem| error::gpu(&problem))?))
    }

    fn fill(&self, value: f32, dtype_name: &str, shape: Vec<usize>) -> PyResult<Tensor> {
        let filled = self.lock().recorder.fill(value, dtype(dtype_name)?, &shape);
        Ok(self.tensor(filled.map_err(|problem| error::gpu(&problem))?))
    }

    /// Calls a kernel that Python brought.
    fn call_kernel(&self, name: &str, tensors: Vec<Tensor>, params: Vec<u32>) -> PyResult<()> {
        let views = self.views(&tensors)?;
        let kernels =
            self.device.get().kernels.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let kernel = kernels.custom(name).map_err(|problem| error::gpu(&problem))?;
        let mut state = self.lock();
        let graph = state.recorder.graph_mut();
        let called =
            graph.dispatch(CapturedOpKind::Custom, &kernel.contract, &views, &params, name);
        called.map(drop).map_err(|problem| error::gpu(&problem.into()))
    }

    /// Fuses, orders, places, proves and lowers what was recorded.
    fn compile(
        &self,
        py: Python<'_>,
        outputs: Vec<Tensor>,
        switches: [bool; 5],
    ) -> PyResult<Graph> {
        let [fuse, quantise, reorder, elide, reuse] = switches;
        let views = self.views(&outputs)?;
        let device = self.device.get();
        let default = CompileOptions::default();
        let options = CompileOptions {
            fuse,
            quantise,
            reorder: default.reorder.filter(|_| reorder),
            elide,
            reuse,
            ..default
        };
        let (graph, names, bindings) = {
            let mut state = self.lock();
            for &view in &views {
                state.recorder.mark_output(view).map_err(|problem| error::gpu(&problem))?;
            }
            let externals = state.recorder.externals().iter();
            let names = externals.map(|one| (one.view.buf_id, one.name.clone())).collect();
            (state.recorder.graph().clone(), names, state.bindings.clone())
        };
        let compiled = py.detach(|| device.executor.compile(&graph, &bindings, &options));
        let executable = compiled
            .map_err(|problem| kernel::first_raised(&device.raised, error::runtime(&problem)))?;
        Ok(Graph::new(self.device.clone_ref(py), executable, graph, names, options))
    }
}

type Found = Result<Option<Vec<TensorView>>, clearway::GpuError>;

/// One op; `None` where no op has this name and so many operands and constants.
fn call(r: &mut clearway::Recorder, name: &str, t: &[TensorView], f: &[f32], i: &[usize]) -> Found {
    let one = |view: TensorView| vec![view];
    Ok(Some(match (name, t, f, i) {
        ("gather", &[table, ids], &[scale], []) => one(r.gather(table, ids, scale)?),
        ("rms_norm", &[x], &[eps], []) => one(r.rms_norm(x, eps)?),
        ("layer_norm", &[x, w, b], &[eps], []) => one(r.layer_norm(x, w, b, eps)?),
        ("add", &[a, b], [], []) => one(r.add(a, b)?),
        ("mul", &[a, b], [], []) => one(r.mul(a, b)?),
        ("scale", &[x], &[s], []) => one(r.scale(x, s)?),
        ("silu", &[x], [], []) => one(r.silu(x)?),
        ("gelu", &[x], [], []) => one(r.gelu(x)?),
        ("silu_mul", &[gate, up], [], []) => one(r.silu_mul(gate, up)?),
        ("gelu_mul", &[gate, up], [], []) => one(r.gelu_mul(gate, up)?),
        ("relu_squared", &[x], [], []) => one(r.relu_squared(x)?),
        ("soft_cap", &[x], &[cap], []) => one(r.soft_cap(x, cap)?),
        ("matmul", &[x, w], [], []) => one(r.matmul(x, w)?),
        ("matmul_experts", &[x, w, ids], [], []) => one(r.matmul_experts(x, w, ids)?),
        ("expert_sum", &[x, weights], [], []) => one(r.expert_sum(x, weights)?),
        ("softmax", &[x, mask], &[scale], []) => one(r.softmax(x, mask, scale)?),
        ("concat", &[a, b], [], []) => one(r.concat(a, b)?),
        ("arg_max", &[x], [], []) => one(r.arg_max(x)?),
        ("top_k", &[x], [], &[k]) => {
            let (values, ids) = r.top_k(x, k)?;
            vec![values, ids]
        }
        ("router_top_k", &[logits], &[scale], &[used, mode, renormalise]) => {
            let mode = match mode {
                0 => RouterMode::SoftmaxAll,
                1 => RouterMode::SoftmaxChosen,
                _ => RouterMode::Sigmoid,
            };
            let params = RouterParams { used, mode, renormalise: renormalise != 0, scale };
            let (ids, weights) = r.router_top_k(logits, params)?;
            vec![ids, weights]
        }
        ("rope", &[x, positions, factors], &[base, scale], &[n_dims, halves]) => {
            let mode = if halves == 0 { RopeMode::Adjacent } else { RopeMode::Halves };
            let params = RopeParams { n_dims: n_dims as u32, mode, base, scale };
            one(r.rope(x, positions, factors, params)?)
        }
        ("attention", &[q, k, v, positions], &[scale, softcap], &[window]) => {
            let params = AttentionParams { scale, window: window as u32, softcap };
            one(r.attention(q, k, v, positions, params)?)
        }
        ("kv_write", &[x, positions, cache], [], []) => {
            r.kv_write(x, positions, cache)?;
            Vec::new()
        }
        ("copy_into", &[x, y], [], []) => {
            r.copy_into(x, y)?;
            Vec::new()
        }
        _ => return Ok(None),
    }))
}
