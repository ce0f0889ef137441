//! Devices with a Vulkan driver, where the program is built with them.

use std::sync::Arc;

use anyhow::Result;
use clearway::Device;

use crate::preference::Candidate;

/// How to open one.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "vulkan"), allow(dead_code))] // nobody asks for them
pub struct Options {
    /// Time no kernels.
    pub no_tune: bool,
    /// Let idle groups read no weights ahead.
    pub no_read_ahead: bool,
    /// Take no kernels on cooperative matrices.
    pub no_matrices: bool,
    /// Where barriers become counters.
    pub counters: Counters,
    /// Keep activations float.
    pub float_activations: bool,
    /// Keep what the driver says of each kernel.
    pub statistics: bool,
    /// Bytes of memory that are used at most.
    pub memory_limit: Option<u64>,
}

/// Where barriers between groups become counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "vulkan"), allow(dead_code))] // `bench --check-counters` is not there
pub enum Counters {
    /// On devices that pass a test of it.
    #[default]
    Tested,
    /// Nowhere.
    Never,
    /// Whatever a test says.
    Always,
    /// Nowhere, but with the kernels of `Always`.
    Idle,
    /// Whatever a test says, and one of them never fills.
    Unfilled,
    /// Whatever a test says, and nobody looks at one more than twice.
    Impatient,
}

#[cfg(feature = "vulkan")]
mod with {
    use super::*;
    use clearway::vulkan::{Counting, Tuning, VulkanDevice, VulkanDeviceInfo, VulkanOptions};

    use crate::device::DeviceName;
    use crate::preference::{Kind, Via};

    impl From<Options> for VulkanOptions {
        fn from(options: Options) -> Self {
            Self {
                tuning: if options.no_tune { Tuning::Never } else { Tuning::default() },
                read_ahead: options.no_read_ahead.then_some(0),
                matrices: !options.no_matrices,
                counting: match options.counters {
                    Counters::Tested => Counting::Tested,
                    Counters::Never => Counting::Never,
                    Counters::Always => Counting::Always,
                    Counters::Idle => Counting::Idle,
                    Counters::Unfilled => Counting::Stalling,
                    Counters::Impatient => Counting::Impatient,
                },
                float_activations: options.float_activations,
                statistics: options.statistics,
                memory_limit: options.memory_limit,
                ..Self::default()
            }
        }
    }

    /// A real card that can be opened. A software driver is no faster than the CPU itself.
    pub fn best(options: Options) -> Option<Arc<dyn Device>> {
        let gpu = VulkanDevice::open(options.into()).ok()?;
        if gpu.is_software() { None } else { Some(Arc::new(gpu)) }
    }

    /// The first device, or the one of this number.
    pub fn open(index: Option<usize>, options: Options) -> Result<Arc<dyn Device>> {
        let device = match index {
            None => VulkanDevice::open(options.into())?,
            Some(index) => VulkanDevice::open_index(index, options.into())?,
        };
        Ok(Arc::new(device))
    }

    /// What there is on this machine.
    pub fn candidates() -> Result<Vec<Candidate>> {
        let list = VulkanDevice::list()?;
        let candidate = |(index, info): (usize, &VulkanDeviceInfo)| Candidate {
            name: DeviceName::Vulkan(Some(index)),
            via: Via::Vulkan,
            kind: if info.software { Kind::Software } else { Kind::Hardware },
            usable: info.usable,
        };
        Ok(list.iter().enumerate().map(candidate).collect())
    }
}

#[cfg(not(feature = "vulkan"))]
mod with {
    use super::*;

    const MISSING: &str = "this program was built without Vulkan (cargo feature `vulkan`)";

    /// None: the program was built without Vulkan.
    pub fn best(_: Options) -> Option<Arc<dyn Device>> {
        None
    }

    /// Says that the program was built without Vulkan.
    pub fn open(_: Option<usize>, _: Options) -> Result<Arc<dyn Device>> {
        anyhow::bail!(MISSING)
    }

    /// Says that the program was built without Vulkan.
    pub fn candidates() -> Result<Vec<Candidate>> {
        anyhow::bail!(MISSING)
    }
}

pub use with::{best, candidates, open};
