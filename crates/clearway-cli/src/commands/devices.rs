//! `clearway devices`

use anyhow::Result;
use serde_json::json;

use crate::out::{self, say};
use crate::{device, memory};

/// Arguments of `clearway devices`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway devices
  clearway devices --json

The names are what --device and CLEARWAY_DEVICE take.")]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Lists the devices; `auto` means the first.
pub fn run(args: &Args) -> Result<()> {
    let (devices, problems) = device::all();
    if args.json {
        let list: Vec<_> = devices
            .iter()
            .map(|device| {
                let info = device.info();
                json!({
                    "name": info.name,
                    "description": info.description,
                    "memory_bytes": info.memory_bytes,
                })
            })
            .collect();
        return out::json(&json!({ "devices": list, "problems": problems }));
    }
    for (index, device) in devices.iter().enumerate() {
        let info = device.info();
        let memory = memory::size(info.memory_bytes);
        let auto = if index == 0 { "  (auto)" } else { "" };
        say!("{:<10} {}, {memory}{auto}", info.name, info.description)?;
    }
    for problem in problems {
        say!("not usable: {problem}")?;
    }
    Ok(())
}
