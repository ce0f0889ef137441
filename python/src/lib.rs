//! The native part of the Python package `clearway`.
//!
//! The names that people use are in the Python files beside it, which add defaults, dataclasses and documentation. What is
//! here waits for a device, touches memory or calls the runtime.
//!
//! | module | what it does |
//! |---|---|
//! | `engine` | a model on a device that writes many texts at once |
//! | `params` | a row of sampling data from a Python object |
//! | `stream` | texts as they are written, for threads and for event loops |
//! | `wake` | wakes event loops without making the engine wait for the interpreter |
//! | `device` | devices by name |
//! | `array`, `dlpack` | tensors in the memory of a device, and host arrays over them |
//! | `record`, `graph` | op calls to a compiled graph, its runs and its report |
//! | `kernel` | kernels that Python brings |
//! | `error` | errors of the runtime as Python exceptions with their facts |

mod array;
mod device;
mod dlpack;
mod engine;
mod error;
mod graph;
mod kernel;
mod params;
mod record;
mod stream;
mod wake;

use pyo3::prelude::pymodule;

/// The native part of the package.
#[pymodule]
mod _clearway {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::device::devices;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::graph::Graph;
    #[pymodule_export]
    use super::record::{Device, Recorder, Tensor};
    #[pymodule_export]
    use super::stream::{Event, Stream};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
