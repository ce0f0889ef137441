//! Devices by name.

use std::sync::Arc;

use clearway::cpu::{CpuDevice, CpuOptions};
use clearway::{Device, best_device};
use pyo3::prelude::*;

use crate::error::{self, exception};

/// Opens `auto`, `cpu`, `vulkan`, `vulkan:N`, `wgpu` or `wgpu:N`.
pub fn open(name: &str, threads: Option<usize>) -> PyResult<Arc<dyn Device>> {
    let cpu = || Arc::new(CpuDevice::with_options(CpuOptions { threads, ..CpuOptions::default() }));
    let (kind, index) = match name.split_once(':') {
        None => (name, None),
        Some((kind, index)) => (kind, Some(index.parse::<usize>().map_err(|_| unknown(name))?)),
    };
    match (kind, index) {
        // Only the CPU has threads to choose.
        ("auto", None) if threads.is_none() => Ok(best_device()),
        ("auto", None) => {
            let best = best_device();
            Ok(if best.info().name == "cpu" { cpu() } else { best })
        }
        ("cpu", None) => Ok(cpu()),
        ("vulkan", index) => vulkan(index),
        ("wgpu", index) => wgpu(index),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> PyErr {
    let message = format!(
        "there is no device {name:?}; devices are auto, cpu, vulkan, vulkan:N, wgpu and wgpu:N"
    );
    exception("DeviceError", &message, &[])
}

#[cfg(feature = "vulkan")]
fn vulkan(index: Option<usize>) -> PyResult<Arc<dyn Device>> {
    use clearway::vulkan::{VulkanDevice, VulkanOptions};
    let device = match index {
        None => VulkanDevice::open(VulkanOptions::default()),
        Some(index) => VulkanDevice::open_index(index, VulkanOptions::default()),
    };
    Ok(Arc::new(device.map_err(|error| error::gpu(&error))?))
}

#[cfg(not(feature = "vulkan"))]
fn vulkan(_: Option<usize>) -> PyResult<Arc<dyn Device>> {
    Err(exception("DeviceError", "this package was built without the feature `vulkan`", &[]))
}

#[cfg(feature = "wgpu")]
fn wgpu(index: Option<usize>) -> PyResult<Arc<dyn Device>> {
    use clearway::wgpu::{WgpuDevice, WgpuOptions};
    let device = match index {
        None => WgpuDevice::open(WgpuOptions::default()),
        Some(index) => WgpuDevice::open_index(index, WgpuOptions::default()),
    };
    Ok(Arc::new(device.map_err(|error| error::gpu(&error))?))
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(_: Option<usize>) -> PyResult<Arc<dyn Device>> {
    let message =
        "this package was built without wgpu; build it with `maturin build --features wgpu`";
    Err(exception("DeviceError", message, &[]))
}

/// Devices of this machine: name, description, bytes of memory.
#[pyfunction]
pub fn devices(py: Python<'_>) -> Vec<(String, String, u64)> {
    py.detach(|| {
        let mut found = Vec::new();
        #[cfg(feature = "vulkan")]
        if let Ok(list) = clearway::vulkan::VulkanDevice::list() {
            let usable = list.into_iter().filter(|device| device.usable);
            found.extend(
                usable.map(|device| (device.name, device.description, device.memory_bytes)),
            );
        }
        let cpu = CpuDevice::with_threads(1);
        let info = cpu.info();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        found.push(("cpu".into(), format!("{threads} threads"), info.memory_bytes));
        found
    })
}
