//! `clearway show`

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clearway_llm::engine;

use crate::model;

/// Arguments of `clearway show`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  clearway show model.gguf")]
pub struct Args {
    /// Model file (GGUF).
    model: PathBuf,
}

/// Shows what a model file holds.
pub fn run(args: &Args) -> Result<()> {
    let gguf = model::open(&args.model)?;
    println!("{} (GGUF {})", args.model.display(), gguf.version());
    println!("metadata");
    for (key, value) in gguf.metadata().iter() {
        println!("  {key} = {value}");
    }
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let entry = types.entry(tensor.dtype().to_string()).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes().len() as u64;
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("tensors");
    for (dtype, (count, bytes)) in types {
        println!("  {dtype:<8} {count:>5} tensors {:>10.1} MiB", mib(bytes));
    }
    match engine::model_shape(&gguf) {
        Ok(shape) => {
            let row = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim;
            println!("memory");
            println!("  weights  {:>10.1} MiB", mib(gguf.tensor_bytes()));
            println!("  cache    {:>10.1} MiB for 4096 tokens in f16", mib(row as u64 * 4096));
        }
        Err(error) => println!("cannot be run: {error}"),
    }
    Ok(())
}
