//! `clearway devices`

use anyhow::Result;
use clearway::place::SlabRule;
use clearway::{CompileOptions, Device, KernelRegistry};
use clearway_inspect::{TrackedRow, bytes_text, tracked_price};
use serde_json::json;

use crate::out::{self, say};
use crate::shape::{self, Step};
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
    let mut prices = Vec::new();
    for listed in &devices {
        let price = price(&*listed.device);
        let name = &listed.device.info().name;
        problems.extend(price.as_ref().err().map(|error| format!("{name}: {error:#}")));
        prices.push(price.ok().flatten());
    }
    if args.json {
        let list: Vec<_> = devices
            .iter()
            .zip(&prices)
            .map(|(listed, price)| {
                let info = listed.device.info();
                json!({
                    "name": info.name,
                    "description": info.description,
                    "memory_bytes": info.memory_bytes,
                    "reason": listed.reason,
                    "slab_rule": info.slab_rule,
                    "price": price.as_ref().map(|rows| json!({ "shape": SHAPE, "rows": rows })),
                })
            })
            .collect();
        return out::json(&json!({ "devices": list, "cache": cache, "problems": problems }));
    }
    for (index, (listed, price)) in devices.iter().zip(&prices).enumerate() {
        let info = listed.device.info();
        let memory = match info.memory_bytes {
            0 => "memory not known".to_owned(),
            bytes => memory::size(bytes),
        };
        let auto = if index == 0 { "  (auto)" } else { "" };
        say!("{:<10} {}, {memory}{auto}", info.name, info.description)?;
        say!("{:<10} {}", "", listed.reason)?;
        for line in price.iter().flat_map(price_lines) {
            say!("{:<10} {line}", "")?;
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

/// The step that prices are shown for: a token of the default model.
const SHAPE: &str = "smollm2-135m";

/// What a device that follows whole buffers does to a list, beside one arena with barriers of our own.
fn price(device: &(dyn Device + 'static)) -> Result<Option<[TrackedRow; 2]>> {
    let info = device.info();
    if info.slab_rule == SlabRule::Any {
        return Ok(None);
    }
    let step = Step { shape: shape::parse(SHAPE)?, tokens: 1, ctx_size: 4096 };
    let options = CompileOptions {
        align: info.arena_align,
        slab_rule: info.slab_rule,
        ..CompileOptions::default()
    };
    let rows = tracked_price(&step.record()?, &mut KernelRegistry::new(), device, &options)?;
    Ok(Some(rows))
}

fn price_lines([own, tracked]: &[TrackedRow; 2]) -> [String; 2] {
    let arena = |row: &TrackedRow| bytes_text(row.arena_bytes);
    [
        format!(
            "places barriers itself, between whole buffers: {} for the {} groups of a {SHAPE} token, where Vulkan has {}",
            tracked.counts.barriers, tracked.groups, own.counts.barriers
        ),
        format!(
            "values lie in {} buffers of {} in all, where Vulkan has one arena of {}",
            tracked.slabs,
            arena(tracked),
            arena(own)
        ),
    ]
}
