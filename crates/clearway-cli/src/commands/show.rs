//! `clearway show`

mod placement;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use clearway::{CompileOptions, Device};
use clearway_llm::engine::Footprint;
use clearway_llm::fetch::ModelName;
use clearway_llm::gguf::Gguf;
use serde_json::json;

use crate::device::{DeviceArgs, DeviceName};
use crate::memory::size;
use crate::model::{CacheArgs, LayerArgs};
use crate::out::{self, say};
use crate::shape::Step;
use crate::{device, model};
use placement::Placement;

/// Arguments of `clearway show`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway show
  clearway show model.gguf -c 8192
  clearway show model.gguf --device vulkan --device-memory 8G
  clearway show hf:user/repo:Q4_K_M --json")]
pub struct Args {
    /// Model: a GGUF file, smollm2:135m, or hf:USER/REPO[:FILE].
    #[arg(value_name = "MODEL", env = "CLEARWAY_MODEL", default_value_t = ModelName::default())]
    model: ModelName,
    /// Tokens of context to count memory for; without it what `run` would choose.
    #[arg(short = 'c', long = "ctx-size", value_name = "CTX")]
    ctx_size: Option<usize>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    layers: LayerArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Number and bytes of the tensors of each type.
type Types = BTreeMap<String, (usize, u64)>;

/// Shows what a model file holds and what it needs.
pub fn run(args: &Args) -> Result<()> {
    let gguf = model::open(&args.model)?;
    let mut types = Types::new();
    for tensor in gguf.tensors() {
        let entry = types.entry(tensor.dtype().to_string()).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes().len() as u64;
    }
    let (devices, _) = device::all();
    let mut devices: Vec<_> = devices.into_iter().map(|listed| listed.device).collect();
    let chosen = match (args.device.device, args.device.device_memory, devices.first()) {
        (DeviceName::Auto, None, Some(first)) => first.clone(),
        _ => args.device.open_quietly()?,
    };
    // Its memory may be limited.
    for device in &mut devices {
        if device.info().name == chosen.info().name {
            *device = chosen.clone();
        }
    }
    let memory = chosen.info().memory_bytes;
    let placement = Placement::new(args, &gguf, chosen);
    let needs = Footprint::new(&gguf, args.ctx_size, args.cache.dtype(), memory);
    let needs = needs.map_err(anyhow::Error::from).and_then(|needed| {
        let arena = arena(&needed)?;
        Ok((needed, arena, placement))
    });
    match args.json {
        true => print_object(&gguf, &types, &needs, &devices),
        false => print(args, &gguf, &types, &needs, &devices),
    }
}

/// Bytes of the arena of a decode step. That of a prefill step grows with the tokens it reads; a
/// cache beyond the model's own context, which may be too large to record, adds nothing.
fn arena(needed: &Footprint) -> Result<u64> {
    let rows = needed.context.min(needed.shape.context).max(1);
    let ctx_size = u32::try_from(rows).unwrap_or(u32::MAX);
    let step = Step { shape: needed.shape.clone(), tokens: 1, ctx_size };
    let compiled = step.compile(&step.record()?, &CompileOptions::default())?;
    Ok(compiled.stats().arena_bytes)
}

type Needs = Result<(Footprint, u64, Result<Placement>)>;

fn print(
    args: &Args,
    gguf: &Gguf,
    types: &Types,
    needs: &Needs,
    devices: &[Arc<dyn Device>],
) -> Result<()> {
    let parts = if gguf.parts() > 1 { format!(", {} files", gguf.parts()) } else { String::new() };
    let bytes = size(gguf.file_bytes());
    say!("{} (GGUF {}, {bytes}{parts})", args.model, gguf.version())?;
    out::heading("metadata")?;
    for (key, value) in gguf.metadata().iter() {
        say!("  {key} = {value}")?;
    }
    out::heading("tensors")?;
    for (dtype, (count, bytes)) in types {
        say!("  {dtype:<8} {count:>5} tensors {:>10}", size(*bytes))?;
    }
    out::heading("memory")?;
    let (needed, arena, placement) = match needs {
        Ok(needs) => needs,
        Err(error) => return say!("  cannot be run: {error:#}"),
    };
    say!("  {:<8} {:>10}", "weights", size(needed.weights))?;
    say!(
        "  {:<8} {:>10} for {} tokens in {}",
        "cache",
        size(needed.cache),
        needed.context,
        needed.cache_dtype
    )?;
    let (context, most, reason) = (needed.context, needed.shape.context, needed.reason);
    say!("  {:<8} {context:>10} of {most} tokens, {reason}", "context")?;
    say!("  {:<8} {:>10} for a decode step", "arena", size(*arena))?;
    for device in devices {
        let info = device.info();
        let fits = if needed.check(&**device).is_ok() { "fits" } else { "does not fit" };
        let (wanted, has) = (size(needed.total() + arena), size(info.memory_bytes));
        say!("  {:<8} {wanted:>10} of {has}: {fits}", info.name)?;
    }
    out::heading("placement")?;
    match placement {
        Ok(placement) => placement.print(),
        Err(error) => say!("  {error:#}"),
    }
}

fn print_object(
    gguf: &Gguf,
    types: &Types,
    needs: &Needs,
    devices: &[Arc<dyn Device>],
) -> Result<()> {
    let metadata: serde_json::Map<_, _> = gguf
        .metadata()
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string().into()))
        .collect();
    let types: serde_json::Map<_, _> = types
        .iter()
        .map(|(dtype, (count, bytes))| (dtype.clone(), json!({ "tensors": count, "bytes": bytes })))
        .collect();
    let memory = match needs {
        Err(error) => json!({ "error": format!("{error:#}") }),
        Ok((needed, arena, placement)) => {
            let fits = devices.iter().map(|device| {
                let fits = needed.check(&**device).is_ok();
                let info = device.info();
                json!({ "name": info.name, "memory_bytes": info.memory_bytes, "fits": fits })
            });
            json!({
                "weight_bytes": needed.weights,
                "cache_bytes": needed.cache,
                "cache_type": needed.cache_dtype.to_string(),
                "arena_bytes": arena,
                "context": needed.context,
                "context_reason": needed.reason.to_string(),
                "model_context": needed.shape.context,
                "devices": fits.collect::<Vec<_>>(),
                "placement": match placement {
                    Ok(placement) => placement.object(),
                    Err(error) => json!({ "error": format!("{error:#}") }),
                },
            })
        }
    };
    out::json(&json!({
        "version": gguf.version(),
        "file_bytes": gguf.file_bytes(),
        "metadata": metadata,
        "tensors": types,
        "memory": memory,
    }))
}
