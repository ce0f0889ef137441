//! `clearway devices`

use anyhow::Result;
use serde_json::json;

use super::print_json;
use crate::device;

/// Arguments of `clearway devices`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  clearway devices\n  clearway devices --json")]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Lists the devices; `auto` means the first.
pub fn run(args: &Args) -> Result<()> {
    let devices = device::all();
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
        return print_json(&json!({ "devices": list }));
    }
    for (index, device) in devices.iter().enumerate() {
        let info = device.info();
        let gib = info.memory_bytes as f64 / f64::from(1 << 30);
        let auto = if index == 0 { "  (auto)" } else { "" };
        println!("{:<10} {}, {gib:.1} GiB{auto}", info.name, info.description);
    }
    Ok(())
}
