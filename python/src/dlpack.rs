//! Arrays of the CPU as DLPack capsules (the structure of versions before 1.0).

use std::ffi::{CStr, c_void};

use clearway::DType;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::array::Array;

/// Kind and number of the CPU.
pub const CPU: (i32, i32) = (1, 0);

const NAME: &CStr = c"dltensor";

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_kind: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// Null for a dense tensor.
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor with what it points to.
#[repr(C)]
struct Owned {
    /// First, so that a pointer to it is a pointer to all.
    managed: Managed,
    shape: Vec<i64>,
    /// Keeps the memory.
    array: Option<Py<Array>>,
}

/// A capsule over the memory of an array.
pub fn export<'py>(array: &Bound<'py, Array>) -> PyResult<Bound<'py, PyAny>> {
    let own = array.get();
    let (code, bits) = match own.layout.dtype() {
        DType::U32 => (1, 32),
        DType::F32 => (2, 32),
        DType::F16 => (2, 16),
        DType::BF16 => (4, 16),
        other => {
            let message = format!("DLPack has no type for {other}; use numpy()");
            return Err(PyBufferError::new_err(message));
        }
    };
    let start = own.start().ok_or_else(|| {
        let name = &own.device.info().name;
        PyBufferError::new_err(format!("the array lies on {name}, which DLPack cannot reach"))
    })?;
    let shape: Vec<i64> = own.layout.dims().iter().map(|&dim| i64::from(dim)).collect();
    let mut owned = Box::new(Owned {
        managed: Managed {
            tensor: Tensor {
                data: start.cast(),
                device_kind: CPU.0,
                device_number: CPU.1,
                dimensions: shape.len() as i32,
                code,
                bits,
                lanes: 1,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape,
        array: Some(array.clone().unbind()),
    });
    owned.managed.tensor.shape = owned.shape.as_mut_ptr();
    let managed: *mut Managed = Box::into_raw(owned).cast();
    // SAFETY: the name is static, and the interpreter is attached, as `array` proves.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(discard)) };
    if capsule.is_null() {
        // SAFETY: nobody else has seen the pointer.
        unsafe { delete(managed) };
        return Err(PyErr::fetch(array.py()));
    }
    // SAFETY: a new reference that is not null.
    Ok(unsafe { Bound::from_owned_ptr(array.py(), capsule) })
}

/// Frees a tensor; called by whoever took it, from any thread.
///
/// # Safety
/// `managed` comes from [`export`] and is not used again.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `export` made it of a box of `Owned`, whose first field this is, and by the contract it is freed once.
    let mut owned = unsafe { Box::from_raw(managed.cast::<Owned>()) };
    let array = owned.array.take();
    // An interpreter that ends frees nothing any more.
    Python::try_attach(|_| drop(array));
}

/// Frees the tensor of a capsule that nobody took.
unsafe extern "C" fn discard(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with the capsule it destroys. Whoever took the tensor has renamed it.
    let unused = unsafe { ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 1;
    if !unused {
        return;
    }
    // SAFETY: the capsule has this name, so it holds the pointer that `export` put in.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
    // SAFETY: nobody took the tensor, and the capsule is gone after this.
    unsafe { delete(managed.cast()) };
}
