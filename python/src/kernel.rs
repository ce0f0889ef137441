//! Kernels that Python brings: WGSL for GPUs, a function of numpy arrays for the CPU.

use std::sync::{Arc, Mutex, PoisonError};

use clearway::cpu::{CpuKernel, Grid, Piece};
use clearway::{
    BindingContract, BindingRole, CustomKernel, KernelContract, TensorView, WgslKernel,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What a function of Python raised while the device called it.
pub type Raised = Arc<Mutex<Option<PyErr>>>;

/// A kernel of this name, its contract, and what there is of it.
pub fn kernel(
    name: String,
    operands: &[(String, String)],
    wgsl: Option<(String, Py<PyAny>)>,
    cpu: Option<Py<PyAny>>,
    raised: &Raised,
) -> PyResult<CustomKernel> {
    let roles = operands.iter().map(|(_, role)| match role.as_str() {
        "read" => Ok(BindingRole::Read),
        "write" => Ok(BindingRole::Write),
        "readwrite" => Ok(BindingRole::ReadWrite),
        _ => Err(PyValueError::new_err(format!("{role:?} is no role: read, write or readwrite"))),
    });
    let roles = roles.collect::<PyResult<Vec<_>>>()?;
    let bindings = operands.iter().zip(&roles);
    let bindings = bindings.map(|((name, _), &role)| BindingContract::new(name.clone(), role));
    let mut kernel = CustomKernel::new(KernelContract::new(name, bindings.collect::<Vec<_>>()));
    if let Some((body, groups)) = wgsl {
        let raised = Arc::clone(raised);
        kernel = kernel.with_wgsl_kernel(WgslKernel::new(&body, move |views, params| {
            workgroups(&groups, views, params).unwrap_or_else(|problem| {
                keep(&raised, problem);
                // Refused by every device.
                [0; 3]
            })
        }));
    }
    if let Some(function) = cpu {
        if roles.contains(&BindingRole::ReadWrite) {
            let message =
                "a kernel for the CPU reads some operands and writes others; it has no readwrite";
            return Err(PyValueError::new_err(message));
        }
        kernel = kernel.with_cpu(on_cpu(function, roles, raised));
    }
    Ok(kernel)
}

/// Keeps the first thing that was raised.
fn keep(raised: &Raised, problem: PyErr) {
    raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
}

/// What was raised since the last time, or else the error that it led to.
pub fn first_raised(raised: &Raised, otherwise: PyErr) -> PyErr {
    raised.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(otherwise)
}

fn dims(view: &TensorView) -> Vec<u32> {
    view.layout.dims().to_vec()
}

fn workgroups(function: &Py<PyAny>, views: &[TensorView], params: &[u32]) -> PyResult<[u32; 3]> {
    let shapes: Vec<Vec<u32>> = views.iter().map(dims).collect();
    Python::attach(|py| {
        let groups = function.call1(py, (shapes, params.to_vec()))?;
        let groups: Vec<u32> = groups.extract(py)?;
        match groups[..] {
            [x] => Ok([x, 1, 1]),
            [x, y] => Ok([x, y, 1]),
            [x, y, z] => Ok([x, y, z]),
            _ => Err(PyValueError::new_err("workgroups has one to three numbers")),
        }
    })
}

/// Calls a function with the operands that are read and takes those that are written from it. It is one piece.
fn on_cpu(function: Py<PyAny>, roles: Vec<BindingRole>, raised: &Raised) -> CpuKernel {
    let raised = Arc::clone(raised);
    let written = roles.iter().position(|&role| role == BindingRole::Write);
    CpuKernel::new(
        move |views, _| {
            let rows = written.and_then(|index| views.get(index)).map_or(1, |v| v.layout.rows());
            Grid::rows(rows, rows.max(1))
        },
        move |piece| {
            if let Err(problem) = Python::attach(|py| run(py, &function, &roles, piece)) {
                keep(&raised, problem);
                // The device reports a kernel that unwinds; no hook has anything to say about it.
                std::panic::resume_unwind(Box::new("its function raised an exception"));
            }
        },
    )
}

fn run(
    py: Python<'_>,
    function: &Py<PyAny>,
    roles: &[BindingRole],
    piece: &mut Piece<'_>,
) -> PyResult<()> {
    let (mut inputs, mut outputs, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    for (operand, &role) in roles.iter().enumerate() {
        let layout = piece.layout(operand);
        let facts = (layout.dims().to_vec(), layout.dtype().name());
        match role {
            BindingRole::Read => inputs.push((PyBytes::new(py, piece.src_bytes(operand)), facts)),
            _ => {
                outputs.push(facts);
                targets.push(operand);
            }
        }
    }
    let results: Vec<Vec<u8>> = function.call1(py, (inputs, outputs))?.extract(py)?;
    for (operand, bytes) in targets.into_iter().zip(results) {
        let size = piece.layout(operand).dtype().block_bytes();
        let row_bytes = piece.layout(operand).cols() * size;
        for (row, bytes) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            match size {
                4 => put::<4>(piece.dst_row(operand, row), bytes),
                _ => put::<2>(piece.dst_row(operand, row), bytes),
            }
        }
    }
    Ok(())
}

fn put<const N: usize>(target: &mut [[u8; N]], bytes: &[u8]) {
    target.copy_from_slice(bytes.as_chunks().0);
}
