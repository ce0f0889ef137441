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
    let (devices, mut problems) = device::all();
    let cache = clearway::cache_folder();
    problems.extend(match &cache {
        // One that is not there yet is made when something is kept.
        Ok(folder) if !folder.exists() => None,
        Ok(folder) => clearway::make_cache_folder(folder).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    });
    let cache = cache.ok();
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
        return out::json(&json!({ "devices": list, "cache": cache, "problems": problems }));
    }
    for (index, device) in devices.iter().enumerate() {
        let info = device.info();
        let memory = memory::size(info.memory_bytes);
        let auto = if index == 0 { "  (auto)" } else { "" };
        say!("{:<10} {}, {memory}{auto}", info.name, info.description)?;
    }
    if let Some(folder) = cache {
        say!("{:<10} {}", "cache", folder.display())?;
    }
    for problem in problems {
        say!("not usable: {problem}")?;
    }
    Ok(())
}
