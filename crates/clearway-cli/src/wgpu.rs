//! Devices behind wgpu; a program that was built without it has none.

use std::sync::Arc;

use anyhow::Result;
use clearway::Device;

use crate::preference::Candidate;

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "wgpu"), allow(dead_code))] // nobody asks for them
pub struct Options {
    /// Time no kernels.
    pub no_tune: bool,
    /// Whether products with block weights take their inputs as floats.
    pub float_activations: bool,
    /// Bytes of memory that models are laid out by at most.
    pub memory_limit: Option<u64>,
}

#[cfg(feature = "wgpu")]
pub use with::{adapters, open};
#[cfg(not(feature = "wgpu"))]
pub use without::{adapters, open};

#[cfg(feature = "wgpu")]
mod with {
    use clearway::wgpu::{AdapterKind, Api, Tuning, WgpuDevice, WgpuDeviceInfo, WgpuOptions};

    use super::*;
    use crate::device::DeviceName;
    use crate::preference::{Kind, Via};

    /// The adapter of this number, or the best.
    pub fn open(index: Option<usize>, options: Options) -> Result<Arc<dyn Device>> {
        let Options { no_tune, float_activations, memory_limit } = options;
        let tuning = if no_tune { Tuning::Never } else { Tuning::default() };
        let options =
            WgpuOptions { tuning, float_activations, memory_limit, ..WgpuOptions::default() };
        Ok(match index {
            None => Arc::new(WgpuDevice::open(options)?),
            Some(index) => Arc::new(WgpuDevice::open_index(index, options)?),
        })
    }

    /// What wgpu finds on this machine.
    pub fn adapters() -> Vec<Candidate> {
        WgpuDevice::list().iter().enumerate().map(candidate).collect()
    }

    fn candidate((index, info): (usize, &WgpuDeviceInfo)) -> Candidate {
        Candidate {
            name: DeviceName::Wgpu(Some(index)),
            via: match info.facts.backend {
                Api::Metal | Api::Dx12 => Via::Wgpu,
                Api::Vulkan => Via::WgpuVulkan,
                Api::Gl | Api::Other => Via::WgpuOther,
            },
            kind: match info.facts.kind {
                AdapterKind::Discrete | AdapterKind::Other => Kind::Hardware,
                AdapterKind::Integrated => Kind::Integrated,
                AdapterKind::Software => Kind::Software,
            },
            usable: info.usable,
        }
    }
}

#[cfg(not(feature = "wgpu"))]
mod without {
    use super::*;

    /// There is nothing to open.
    pub fn open(_: Option<usize>, _: Options) -> Result<Arc<dyn Device>> {
        Err(anyhow::anyhow!("this program was built without wgpu; build it with `--features wgpu`"))
    }

    /// None.
    pub fn adapters() -> Vec<Candidate> {
        Vec::new()
    }
}
