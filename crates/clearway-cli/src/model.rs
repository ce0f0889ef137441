//! `-m MODEL` and the device it runs on.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clearway::Device;
use clearway_llm::engine::{Engine, EngineOptions};
use clearway_llm::fetch::{Cache, ModelName};
use clearway_llm::gguf::Gguf;

use crate::device::DeviceArgs;
use crate::progress::{Bar, FetchBar};
use crate::{interrupt, memory};

/// Which model.
#[derive(clap::Args)]
pub struct NameArgs {
    /// Model: a GGUF file, smollm2:135m, or hf:USER/REPO[:FILE].
    #[arg(short = 'm', long = "model", value_name = "MODEL", env = "CLEARWAY_MODEL",
          default_value_t = ModelName::default())]
    pub model: ModelName,
}

/// Which model, where, and how much of it.
#[derive(clap::Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub name: NameArgs,
    /// Tokens the model can look at; the model's own context, at most 4096, without it.
    #[arg(short = 'c', long = "ctx-size", value_name = "CTX")]
    pub ctx_size: Option<usize>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl NameArgs {
    /// Maps the file, which is fetched if it is not there.
    pub fn open(&self) -> Result<Gguf> {
        open(&self.model)
    }
}

impl ModelArgs {
    /// Puts the model on its device.
    pub fn engine(&self, gguf: &Gguf) -> Result<(Engine, Arc<dyn Device>)> {
        let options = EngineOptions { context: self.ctx_size, ..EngineOptions::default() };
        let device = self.device.open()?;
        Ok((load(gguf, device.clone(), options)?, device))
    }
}

/// Puts a model on a device, if it fits.
pub fn load(gguf: &Gguf, device: Arc<dyn Device>, options: EngineOptions) -> Result<Engine> {
    memory::Needed::by(gguf, options.context)?.check(&*device)?;
    let total = gguf.tensor_bytes();
    let bar = Bar::new("loading");
    let mut progress = |done| bar.at(done, Some(total));
    let engine = Engine::with_progress(gguf, device, options, &mut progress)?;
    drop(bar);
    for conversion in engine.conversions() {
        eprintln!("{conversion}");
    }
    Ok(engine)
}

/// Maps the file of a model, which is fetched if it is not there.
pub fn open(name: &ModelName) -> Result<Gguf> {
    let path = fetch(name)?;
    Gguf::open(&path).with_context(|| format!("cannot open model {name}"))
}

/// The file of a model, which is fetched if it is not there.
pub fn fetch(name: &ModelName) -> Result<PathBuf> {
    let cache = match name {
        // A file of the user's own needs no cache.
        ModelName::File(_) => Cache::at(""),
        _ => Cache::of_user()?,
    };
    interrupt::catch();
    Ok(cache.fetch(name, &mut FetchBar::default())?)
}
