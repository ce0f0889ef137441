//! `clearway devices`

use anyhow::Result;
use clearway::DeviceInfo;
use clearway::place::SlabRule;
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
            .map(|listed| {
                let info = listed.device.info();
                json!({
                    "name": info.name,
                    "description": info.description,
                    "memory_bytes": info.memory_bytes,
                    "reason": listed.reason,
                    "slab_rule": info.slab_rule,
                })
            })
            .collect();
        return out::json(&json!({ "devices": list, "cache": cache, "problems": problems }));
    }
    for (index, listed) in devices.iter().enumerate() {
        let info = listed.device.info();
        let memory = match info.memory_bytes {
            0 => "memory not known".to_owned(),
            bytes => memory::size(bytes),
        };
        let auto = if index == 0 { "  (auto)" } else { "" };
        say!("{:<10} {}, {memory}{auto}", info.name, info.description)?;
        say!("{:<10} {}", "", listed.reason)?;
        if let Some(price) = barriers(info) {
            say!("{:<10} {price}", "")?;
        }
    }
    if let Some(folder) = cache {
        say!("{:<10} {}", "cache", folder.display())?;
    }
    for problem in problems {
        say!("not usable: {problem}")?;
    }
    Ok(())
}

/// What a device that follows whole buffers does to a list.
fn barriers(info: &DeviceInfo) -> Option<String> {
    match info.slab_rule {
        SlabRule::Any => None,
        SlabRule::WritesApart => Some("arenas lie in several buffers".into()),
        SlabRule::GroupsApart { spread_bytes } => Some(format!(
            "places barriers itself, between whole buffers: each value has a buffer of its own in arenas up to {}; \
             `inspect --device {}` shows the price",
            memory::size(spread_bytes),
            info.name
        )),
    }
}
