//! The executor: opens passes on a device.

use std::sync::{Arc, PoisonError, RwLock};

use clearway_gpu::cpu::CpuDevice;
#[cfg(feature = "vulkan")]
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{CustomKernel, Device, KernelRegistry};
use clearway_graph::ComputeGraph;

use crate::CompileOptions;
use crate::bindings::Bindings;
use crate::error::Result;
use crate::executable::Executable;
use crate::session::GraphSession;

/// Opens passes on one device. Several sessions at once, from several threads, are fine.
pub struct GraphExecutor {
    device: Arc<dyn Device>,
    kernels: RwLock<KernelRegistry>,
}

impl GraphExecutor {
    /// An executor on a device of its own.
    pub fn new(device: impl Device + 'static) -> Self {
        Self::on(Arc::new(device))
    }

    /// An executor on a device shared with others.
    pub fn on(device: Arc<dyn Device>) -> Self {
        Self { device, kernels: RwLock::default() }
    }

    /// An executor on the [best device](best_device) of this machine.
    pub fn auto() -> Self {
        Self::on(best_device())
    }

    /// An executor on the CPU with every core.
    pub fn cpu() -> Self {
        Self::new(CpuDevice::new())
    }

    /// An executor on Vulkan device `index`, counted as [`VulkanDevice::list`] and `clearway devices` show them.
    /// Unlike [`auto`](Self::auto) it also takes a software driver.
    ///
    /// # Errors
    /// No Vulkan loader, no such device, or what is missing on it.
    #[cfg(feature = "vulkan")]
    pub fn vulkan(index: usize) -> Result<Self> {
        Ok(Self::new(VulkanDevice::open_index(index, VulkanOptions::default())?))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Adds a user's kernel; sessions opened later can call it.
    ///
    /// # Errors
    /// [`clearway_gpu::GpuError::DuplicateKernel`] if the name is taken.
    pub fn register(&self, kernel: CustomKernel) -> Result<()> {
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        Ok(kernels.register(kernel)?)
    }

    /// Opens a pass that encodes each op as it is called. Nothing runs before it is finished.
    ///
    /// # Errors
    /// What the device reports.
    pub fn begin(&self) -> Result<GraphSession<'_>> {
        Ok(GraphSession::direct(self))
    }

    /// Opens a pass that captures the same op calls into a graph; device work happens at finish.
    ///
    /// # Errors
    /// What the device reports.
    pub fn begin_recorded(&self) -> Result<GraphSession<'_>> {
        Ok(GraphSession::recorded(self))
    }

    /// Compiles a graph that was recorded without a device. `bindings` says where the tensors lie that
    /// it only names.
    ///
    /// # Errors
    /// A tensor that does not fit its buffer, and as [`GraphSession::compile`].
    pub fn compile(
        &self,
        graph: &ComputeGraph,
        bindings: &Bindings,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let mut graph = graph.clone();
        graph.bind_buffers(&bindings.addresses())?;
        Executable::build(self, &graph, options)
    }

    /// The kernels as they are now.
    pub(crate) fn kernels(&self) -> KernelRegistry {
        self.kernels.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The fastest device of this machine: a GPU if there is one that can be opened, and the CPU otherwise. A software
/// driver is no faster than the CPU itself.
pub fn best_device() -> Arc<dyn Device> {
    #[cfg(feature = "vulkan")]
    if let Ok(gpu) = VulkanDevice::open(VulkanOptions::default())
        && !gpu.is_software()
    {
        return Arc::new(gpu);
    }
    #[cfg(feature = "wgpu")]
    if let Ok(gpu) =
        clearway_gpu::wgpu::WgpuDevice::open(clearway_gpu::wgpu::WgpuOptions::default())
        && gpu.facts().rank().is_some()
    {
        return Arc::new(gpu);
    }
    Arc::new(CpuDevice::new())
}
