//! Which device a command runs on.

use std::sync::Arc;

use anyhow::{Result, bail};
use clearway::Device;
use clearway::cpu::CpuDevice;

/// The device of `--device`.
pub fn open(name: &str, threads: Option<usize>) -> Result<Arc<dyn Device>> {
    match name {
        "auto" | "cpu" => Ok(Arc::new(match threads {
            Some(threads) => CpuDevice::with_threads(threads),
            None => CpuDevice::new(),
        })),
        other => bail!("unknown device `{other}`; `clearway devices` lists what there is"),
    }
}

/// Every device of this machine, the one `auto` means first.
pub fn all() -> Vec<Arc<dyn Device>> {
    vec![Arc::new(CpuDevice::new())]
}
