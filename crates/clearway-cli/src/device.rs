//! Which device a command runs on.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::builder::FalseyValueParser as Falsey;
use clearway::Device;
use clearway::cpu::{CpuDevice, CpuOptions};
use clearway::listing::{TargetDevice, WgslTarget};

use crate::out::note;
use crate::preference::{Candidate, Kind, Via, order};
use crate::shape::OFF;
use crate::vulkan::{self, Counters};
use crate::wgpu;

/// What `--device` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The fastest there is.
    Auto,
    /// The processor.
    Cpu,
    /// A device with a Vulkan driver: the best, or the one of this number.
    Vulkan(Option<usize>),
    /// An adapter of wgpu: the best, or the one of this number.
    Wgpu(Option<usize>),
}

/// `--device` and what goes with it.
#[derive(Clone, clap::Args)]
pub struct DeviceArgs {
    /// Device: auto, cpu, vulkan, vulkan:N, wgpu or wgpu:N.
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto, env = "CLEARWAY_DEVICE")]
    pub device: DeviceName,
    /// Threads of the CPU; all cores without it.
    #[arg(short = 't', long, value_name = "THREADS", env = "CLEARWAY_THREADS",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Take at most so much of the device's memory: bytes, or a number with K, M, G or T.
    #[arg(long, value_name = "BYTES", env = "CLEARWAY_DEVICE_MEMORY", value_parser = crate::memory::parse)]
    pub device_memory: Option<u64>,
    /// Take the kernels that are expected to be fast, without timing any.
    #[arg(long, env = "CLEARWAY_NO_TUNE", help_heading = OFF, value_parser = Falsey::new())]
    no_tune: bool,
    /// Let idle groups of a GPU read no weights ahead.
    #[arg(long, env = "CLEARWAY_NO_READ_AHEAD", help_heading = OFF, value_parser = Falsey::new())]
    no_read_ahead: bool,
    /// Take no kernels on cooperative matrices of a GPU: prompts are read several times slower.
    #[arg(long, env = "CLEARWAY_NO_MATRICES", help_heading = OFF, value_parser = Falsey::new())]
    no_matrices: bool,
    /// Put barriers between all groups of a step on a GPU, where workgroups could wait for counters.
    #[arg(long, env = "CLEARWAY_NO_COUNTERS", help_heading = OFF, value_parser = Falsey::new())]
    no_counters: bool,
    /// Round no activations to 8 bits for products with block weights: slower, to find out whether
    /// rounding is to blame.
    #[arg(long, env = "CLEARWAY_FLOAT_ACTIVATIONS", help_heading = OFF, value_parser = Falsey::new())]
    float_activations: bool,
    /// Ask the driver what it made of each kernel.
    #[arg(skip)]
    pub statistics: bool,
}

impl DeviceArgs {
    /// A device as it comes.
    pub fn new(device: DeviceName, threads: Option<u32>) -> Self {
        Self {
            device,
            threads,
            device_memory: None,
            no_tune: false,
            no_read_ahead: false,
            no_matrices: false,
            no_counters: false,
            float_activations: false,
            statistics: false,
        }
    }

    /// Opens the device. Where the choice was ours, one line on stderr says what it was.
    pub fn open(&self) -> Result<Arc<dyn Device>> {
        let device = self.open_quietly()?;
        if self.device == DeviceName::Auto {
            note!("device: {}", describe(&*device));
        }
        Ok(device)
    }

    /// Opens the device.
    pub fn open_quietly(&self) -> Result<Arc<dyn Device>> {
        self.open_counting(if self.no_counters { Counters::Never } else { Counters::Tested })
    }

    /// Opens the device with counters as they are wanted here, whatever its arguments say of them.
    pub fn open_counting(&self, counters: Counters) -> Result<Arc<dyn Device>> {
        let options = vulkan::Options {
            no_tune: self.no_tune,
            no_read_ahead: self.no_read_ahead,
            no_matrices: self.no_matrices,
            counters,
            float_activations: self.float_activations,
            statistics: self.statistics,
            memory_limit: self.device_memory,
        };
        self.device.open_with(self.threads(), options)
    }

    /// The same with the CPU for the device. The limit of another device's memory is not its own.
    pub fn on_cpu(&self) -> Self {
        let device_memory = self.device_memory.filter(|_| self.device == DeviceName::Cpu);
        Self { device: DeviceName::Cpu, device_memory, ..self.clone() }
    }

    /// The CPU, for what the device has no room for.
    pub fn cpu(&self) -> Arc<dyn Device> {
        let float_activations = self.float_activations;
        let (threads, memory_limit) = (self.threads(), None);
        let options = CpuOptions { threads, float_activations, memory_limit };
        Arc::new(CpuDevice::with_options(options))
    }

    /// Threads of the CPU that were asked for.
    pub fn threads(&self) -> Option<usize> {
        self.threads.map(|threads| threads as usize)
    }
}

/// Name and description of a device on one line.
pub fn describe(device: &dyn Device) -> String {
    let info = device.info();
    format!("{}, {}", info.name, info.description)
}

/// The device of a name.
pub fn open(name: &str, threads: Option<usize>) -> Result<Arc<dyn Device>> {
    name.parse::<DeviceName>().map_err(|error| anyhow!(error))?.open(threads)
}

/// A device of this machine that can be opened, and why it stands where it does.
pub struct Listed {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Why it is preferred, or not.
    pub reason: &'static str,
}

/// Every device of this machine that can be opened, the one `auto` means first, and why others
/// cannot be.
pub fn all() -> (Vec<Listed>, Vec<String>) {
    let (found, mut problems) = candidates();
    let mut devices = Vec::new();
    for (candidate, reason) in order(found) {
        match candidate.name.open(None) {
            Ok(device) => devices.push(Listed { device, reason }),
            Err(error) => problems.push(error.to_string()),
        }
    }
    (devices, problems)
}

/// What there is on this machine, and what could not be looked for.
fn candidates() -> (Vec<Candidate>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    match vulkan::candidates() {
        Ok(list) => found.extend(list),
        Err(error) => problems.push(error.to_string()),
    }
    found.extend(wgpu::adapters());
    found.push(Candidate {
        name: DeviceName::Cpu,
        via: Via::Cpu,
        kind: Kind::Hardware,
        usable: true,
    });
    (found, problems)
}

/// The best adapter of wgpu that `auto` may take where no Vulkan device is one.
fn best_adapter() -> Option<DeviceName> {
    let mut found = wgpu::adapters();
    found.push(Candidate {
        name: DeviceName::Cpu,
        via: Via::Cpu,
        kind: Kind::Hardware,
        usable: true,
    });
    let first = order(found).into_iter().next()?.0;
    (first.via != Via::Cpu).then_some(first.name)
}

/// A device that lists of WGSL kernels are made for: a real card, or where there is none a target that is only
/// described.
pub fn for_kernels() -> Arc<dyn Device> {
    let target = || Arc::new(TargetDevice::new(WgslTarget::default()));
    vulkan::best(vulkan::Options::default()).unwrap_or_else(|| target())
}

impl DeviceName {
    /// Opens the device.
    pub fn open(self, threads: Option<usize>) -> Result<Arc<dyn Device>> {
        self.open_with(threads, vulkan::Options::default())
    }

    fn open_with(
        self,
        threads: Option<usize>,
        options: vulkan::Options,
    ) -> Result<Arc<dyn Device>> {
        let vulkan::Options { float_activations, memory_limit, .. } = options;
        let cpu =
            || CpuDevice::with_options(CpuOptions { threads, float_activations, memory_limit });
        match self {
            Self::Auto => {
                let gpu = vulkan::best(options);
                let adapter = || best_adapter()?.open_with(threads, options).ok();
                Ok(gpu.or_else(adapter).unwrap_or_else(|| Arc::new(cpu())))
            }
            Self::Cpu => Ok(Arc::new(cpu())),
            Self::Vulkan(index) => vulkan::open(index, options),
            Self::Wgpu(index) => {
                let no_tune = options.no_tune;
                wgpu::open(index, wgpu::Options { no_tune, float_activations, memory_limit })
            }
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None if name == "auto" => Ok(Self::Auto),
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "vulkan" => Ok(Self::Vulkan(None)),
            Some(("vulkan", index)) if index.parse::<usize>().is_ok() => {
                Ok(Self::Vulkan(index.parse().ok()))
            }
            None if name == "wgpu" => Ok(Self::Wgpu(None)),
            Some(("wgpu", index)) if index.parse::<usize>().is_ok() => {
                Ok(Self::Wgpu(index.parse().ok()))
            }
            _ => Err("devices are auto, cpu, vulkan, vulkan:N, wgpu and wgpu:N".into()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Vulkan(None) => f.write_str("vulkan"),
            Self::Vulkan(Some(index)) => write!(f, "vulkan:{index}"),
            Self::Wgpu(None) => f.write_str("wgpu"),
            Self::Wgpu(Some(index)) => write!(f, "wgpu:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["auto", "cpu", "vulkan", "vulkan:0", "vulkan:12", "wgpu", "wgpu:3"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        for odd in
            ["", "gpu", "cpu:0", "vulkan:", "vulkan:x", "vulkan:-1", "Vulkan", "wgpu:", "wgpu:x"]
        {
            assert!(odd.parse::<DeviceName>().is_err(), "{odd}");
        }
    }
}
