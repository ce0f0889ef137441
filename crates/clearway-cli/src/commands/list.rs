//! `clearway list`

use anyhow::Result;
use clearway_llm::fetch::Cache;
use serde_json::json;

use crate::memory;
use crate::out::{self, note, say};

/// Arguments of `clearway list`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  clearway list\n  clearway list --json")]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Lists the models of the cache.
pub fn run(args: &Args) -> Result<()> {
    let cache = Cache::of_user()?;
    let models = cache.models()?;
    if args.json {
        let list: Vec<_> = models
            .iter()
            .map(|model| json!({ "name": model.name, "path": model.path, "bytes": model.bytes }))
            .collect();
        return out::json(&json!({ "folder": cache.folder(), "models": list }));
    }
    if models.is_empty() {
        note!(
            "no models in {}; `clearway pull smollm2:135m` fetches one",
            cache.folder().display()
        );
    }
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    for model in &models {
        let (name, size) = (&model.name, memory::size(model.bytes));
        say!("{name:<width$}  {size:>10}  {}", model.path.display())?;
    }
    Ok(())
}
