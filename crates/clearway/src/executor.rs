//! The executor: opens passes on a device.

use std::sync::{Arc, PoisonError, RwLock};

use clearway_gpu::cpu::CpuDevice;
use clearway_gpu::{Buffer, CustomKernel, Device, KernelRegistry};
use clearway_graph::ComputeGraph;
use clearway_graph::place::Address;
use rustc_hash::FxHashMap;

use crate::CompileOptions;
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

    /// An executor on the CPU with every core.
    pub fn cpu() -> Self {
        Self::new(CpuDevice::new())
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

    /// Compiles a graph that was recorded without a device. `buffers` says where the tensors lie that
    /// it only names.
    ///
    /// # Errors
    /// A tensor that does not fit its buffer, and as [`GraphSession::compile`].
    pub fn compile(
        &self,
        graph: &ComputeGraph,
        buffers: &FxHashMap<usize, (Buffer, u64)>,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let mut graph = graph.clone();
        let address = |(&buf_id, (buffer, offset)): (&usize, &(Buffer, u64))| {
            let to = Address { buf_id: buffer.id(), offset: *offset, buf_len: buffer.len() };
            (buf_id, to)
        };
        graph.bind_buffers(&buffers.iter().map(address).collect())?;
        Executable::build(self, &graph, options)
    }

    /// The kernels as they are now.
    pub(crate) fn kernels(&self) -> KernelRegistry {
        self.kernels.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
