//! Compiled graphs: runs, results, reports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clearway::{CompileOptions, ComputeGraph, Executable};
use clearway_inspect::{InspectOptions, Report, inspect};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::Array;
use crate::error::{self, exception};
use crate::kernel;
use crate::record::{Device, Tensor};

/// A graph that is proven and lowered.
#[pyclass(frozen, module = "clearway._clearway")]
pub struct Graph {
    device: Py<Device>,
    executable: Mutex<Executable>,
    recorded: ComputeGraph,
    /// Names of the tensors that lie in arrays.
    names: BTreeMap<usize, String>,
    options: CompileOptions,
}

impl Graph {
    pub fn new(
        device: Py<Device>,
        executable: Executable,
        recorded: ComputeGraph,
        names: BTreeMap<usize, String>,
        options: CompileOptions,
    ) -> Self {
        Self { device, executable: Mutex::new(executable), recorded, names, options }
    }

    fn lock(&self) -> MutexGuard<'_, Executable> {
        self.executable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Graph {
    /// Runs it so many times, one after another, and waits.
    fn run(&self, py: Python<'_>, times: usize) -> PyResult<()> {
        let ran = py.detach(|| self.lock().run_many(times));
        let raised = &self.device.get().raised;
        ran.map_err(|problem| kernel::first_raised(raised, error::runtime(&problem)))?;
        py.check_signals()
    }

    /// The array of an output, in the memory of the graph: the next run writes it again.
    fn output(&self, py: Python<'_>, tensor: &Tensor) -> PyResult<Array> {
        let foreign = || exception("GraphError", "the tensor is no output of this graph", &[]);
        py.detach(|| {
            let executable = self.lock();
            let value = tensor.view.value().ok_or_else(foreign)?;
            let known = executable.graph().values().get(value.index());
            let arena = executable.arena();
            let slot = arena.plan().slot(value).filter(|_| known.is_some_and(|one| one.output));
            let slot = slot.ok_or_else(foreign)?;
            let buffer = arena.slabs().get(slot.slab).ok_or_else(foreign)?.clone();
            Ok(Array {
                buffer,
                offset: slot.offset + tensor.view.offset,
                layout: tensor.view.layout,
                device: Arc::clone(self.device.get().executor.device()),
            })
        })
    }

    /// What the stages did.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| *self.lock().stats());
        let all = PyDict::new(py);
        let compile = stats.compile;
        for (name, number) in [
            ("recorded", compile.recorded),
            ("dispatches", compile.dispatches),
            ("groups", compile.groups),
            ("barriers", compile.barriers),
            ("longest_chain", compile.longest_chain),
            ("fusions", compile.fusions),
            ("moved", compile.moved),
        ] {
            all.set_item(name, number)?;
        }
        all.set_item("arena_bytes", compile.arena_bytes)?;
        all.set_item("compile_seconds", stats.compile_time.as_secs_f64())?;
        all.set_item("encode_seconds", stats.encode_time.as_secs_f64())?;
        all.set_item("run_seconds", stats.wait_time.as_secs_f64())?;
        Ok(all)
    }

    /// The list with the reason of each barrier.
    fn text(&self, py: Python<'_>) -> String {
        py.detach(|| self.lock().graph().to_text())
    }

    /// The report of the inspector: JSON, page, text. With `compare` also the list without each optimisation.
    fn report(&self, py: Python<'_>, compare: bool) -> PyResult<(String, String, String)> {
        let device = self.device.get();
        let mut kernels = device.kernels.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let info = device.executor.device().info();
        let options = InspectOptions {
            compile: CompileOptions {
                align: info.arena_align,
                max_slab_bytes: self.options.max_slab_bytes.min(info.max_buffer_bytes),
                slab_rule: self.options.slab_rule.stricter(info.slab_rule),
                ..self.options
            },
            compare,
            front: compare,
            buffers: self.names.clone(),
            ..InspectOptions::default()
        };
        let made = py.detach(|| {
            let target = &**device.executor.device();
            let mut report: Report = inspect(&self.recorded, &mut kernels, target, &options)?;
            report.device = Some(info.name.clone());
            Ok::<_, clearway_inspect::InspectError>((
                report.to_json()?,
                report.to_html()?,
                report.to_text(),
            ))
        });
        made.map_err(|problem| exception("GraphError", &problem.to_string(), &[]))
    }
}
