//! Tensors in the memory of a device, and how host arrays get in and out.
//!
//! Host arrays come by `__array_interface__`: the stable interface of Python 3.10 has no buffer protocol.

use std::sync::Arc;

use clearway::{Buffer, DType, Device, Layout, quant};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack;
use crate::error;

/// The element type of this name.
pub fn dtype(name: &str) -> PyResult<DType> {
    let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        PyValueError::new_err(format!("there is no dtype {name:?}; there are {}", names.join(", ")))
    })
}

/// The layout of a dense tensor.
pub fn layout(dtype_name: &str, shape: &[usize]) -> PyResult<Layout> {
    Layout::new(dtype(dtype_name)?, shape).map_err(|problem| error::gpu(&problem.into()))
}

/// The type of numpy whose elements have the same bits, where there is one.
fn typestr(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("<f4"),
        DType::F16 => Some("<f2"),
        DType::U32 => Some("<u4"),
        _ => None,
    }
}

/// A dense tensor in the memory of a device.
#[pyclass(frozen, module = "clearway._clearway")]
pub struct Array {
    pub buffer: Buffer,
    pub offset: u64,
    pub layout: Layout,
    pub device: Arc<dyn Device>,
}

impl Array {
    /// A tensor of zeros.
    pub fn zeros(device: &Arc<dyn Device>, layout: Layout) -> PyResult<Self> {
        let buffer = device.alloc(layout.span_bytes()).map_err(|problem| error::gpu(&problem))?;
        Ok(Self { buffer, offset: 0, layout, device: Arc::clone(device) })
    }

    fn bytes(&self) -> u64 {
        self.layout.span_bytes()
    }

    /// Where it lies in this process, if it does.
    pub fn start(&self) -> Option<*mut u8> {
        let start = self.buffer.memory().host_start()?;
        // A buffer is no longer than the address space.
        Some(start.as_ptr().wrapping_add(self.offset as usize))
    }

    fn dims(&self) -> Vec<usize> {
        self.layout.dims().iter().map(|&dim| dim as usize).collect()
    }

    /// Whether a host array lies over it, as views of it do.
    fn overlaps(&self, host: &HostArray) -> bool {
        let own = self.start().map_or(0, |start| start as usize);
        own < host.start + host.bytes && host.start < own + self.bytes() as usize
    }

    fn check_length(&self, found: usize, expected: u64, what: &str) -> PyResult<()> {
        if found as u64 == expected {
            return Ok(());
        }
        let layout = &self.layout;
        let message = format!("the array has {found} {what}, but {layout} has {expected}");
        Err(PyValueError::new_err(message))
    }
}

#[pymethods]
impl Array {
    /// Extents, the innermost last.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.dims())
    }

    /// Name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.layout.dtype().name()
    }

    /// Bytes it takes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes()
    }

    /// Name of the device.
    #[getter]
    fn device(&self) -> String {
        self.device.info().name.clone()
    }

    /// Whether it lies in the memory of this process.
    #[getter]
    fn on_host(&self) -> bool {
        self.start().is_some()
    }

    /// For `numpy.asarray`, which makes a view without a copy of it. Only where the memory is the host's and numpy has the type.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let none = || PyAttributeError::new_err("no view without a copy: read the array instead");
        let typestr = typestr(self.layout.dtype()).ok_or_else(none)?;
        let start = self.start().ok_or_else(none)?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (start as usize, false))?;
        Ok(interface)
    }

    /// A capsule of DLPack over the same memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Only streams of GPUs say anything, and versions before 1.0 are enough for a CPU.
        let _ = (stream, max_version);
        if copy == Some(true) {
            return Err(PyBufferError::new_err("a view has no copy; use numpy() and copy that"));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err("arrays are exported to the CPU alone"));
        }
        dlpack::export(slf)
    }

    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        match self.start() {
            Some(_) => Ok(dlpack::CPU),
            None => Err(PyBufferError::new_err(format!(
                "the array lies on {}, which DLPack cannot reach; use numpy()",
                self.device.info().name
            ))),
        }
    }

    /// Copies the bytes of a contiguous host array.
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let host = HostArray::of(source, false)?;
        self.check_length(host.bytes, self.bytes(), "bytes")?;
        let written = py.detach(|| match self.overlaps(&host) {
            // The source may be a view of this very array.
            true => {
                let copy: Box<[u8]> = host.slice().into();
                self.buffer.write(self.offset, &copy)
            }
            false => self.buffer.write(self.offset, host.slice()),
        });
        written.map_err(|problem| error::gpu(&problem))
    }

    /// Copies its bytes to a contiguous host array.
    fn read(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut host = HostArray::of(target, true)?;
        self.check_length(host.bytes, self.bytes(), "bytes")?;
        let read = py.detach(|| match self.overlaps(&host) {
            true => {
                let bytes = self.buffer.read_vec(self.offset, host.bytes)?;
                host.slice_mut().copy_from_slice(&bytes);
                Ok(())
            }
            false => self.buffer.read(self.offset, host.slice_mut()),
        });
        read.map_err(|problem| error::gpu(&problem))
    }

    /// Encodes floats of a contiguous host array into the type of this one.
    fn write_floats(&self, py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let host = HostArray::of(source, false)?;
        self.check_length(host.bytes / 4, self.layout.elems() as u64, "elements")?;
        py.detach(|| {
            let floats = floats(host.slice());
            let mut bytes = vec![0; self.bytes() as usize];
            quant::encode(self.layout.dtype(), &floats, &mut bytes)
                .map_err(|problem| PyValueError::new_err(problem.to_string()))?;
            self.buffer.write(self.offset, &bytes).map_err(|problem| error::gpu(&problem))
        })
    }

    /// Decodes it to floats of a contiguous host array.
    fn read_floats(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut host = HostArray::of(target, true)?;
        self.check_length(host.bytes / 4, self.layout.elems() as u64, "elements")?;
        py.detach(|| {
            let bytes: Vec<u8> = self
                .buffer
                .read_vec(self.offset, self.bytes() as usize)
                .map_err(|problem| error::gpu(&problem))?;
            let mut floats = vec![0.0; self.layout.elems()];
            quant::decode(self.layout.dtype(), &bytes, &mut floats)
                .map_err(|problem| PyValueError::new_err(problem.to_string()))?;
            let (words, _) = host.slice_mut().as_chunks_mut();
            words.iter_mut().zip(floats).for_each(|(word, float)| *word = float.to_ne_bytes());
            Ok(())
        })
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_ne_bytes(word)).collect()
}

/// The bytes of a contiguous host array. The object that owns them is kept by the caller.
struct HostArray {
    start: usize,
    bytes: usize,
}

impl HostArray {
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let interface = object.getattr("__array_interface__").map_err(|_| {
            PyTypeError::new_err(format!("{} is no array of host memory", object.get_type()))
        })?;
        let interface = interface.cast_into::<PyDict>()?;
        let entry = |name: &str| {
            let missing = || PyTypeError::new_err(format!("the array has no {name}"));
            interface.get_item(name)?.ok_or_else(missing)
        };
        if interface.get_item("strides")?.is_some_and(|strides| !strides.is_none()) {
            return Err(PyValueError::new_err("the array is not contiguous"));
        }
        let (start, read_only): (usize, bool) = entry("data")?.extract()?;
        if writable && read_only {
            return Err(PyValueError::new_err("the array is read-only"));
        }
        let kind: String = entry("typestr")?.extract()?;
        let size: usize = kind.get(2..).and_then(|size| size.parse().ok()).unwrap_or(0);
        let shape: Vec<usize> = entry("shape")?.extract()?;
        let bytes = shape.iter().try_fold(size, |bytes, &dim| bytes.checked_mul(dim));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| PyValueError::new_err("the array is too large"))?;
        if start == 0 && bytes > 0 {
            return Err(PyValueError::new_err("the array has no memory"));
        }
        // An empty slice still needs an address.
        Ok(Self { start: if bytes == 0 { align_of::<u64>() } else { start }, bytes })
    }

    fn slice(&self) -> &[u8] {
        // SAFETY: the object said that `bytes` bytes from `start` on are its own, and the caller holds it for as long as this
        // lives. That no other thread writes them meanwhile is the promise of whoever hands an array over, as with numpy.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.bytes) }
    }

    fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: `of` was asked for memory that may be written, and the object said that `bytes` bytes from `start` on are such. The
        // caller holds the object for as long as this lives, and whoever handed it over keeps other threads away from it.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.bytes) }
    }
}
