//! `-m MODEL` and the device it runs on.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::builder::FalseyValueParser as Falsey;
use clearway::{DType, Device};
use clearway_llm::Model;
use clearway_llm::engine::{
    Adapters, ContextReason, Devices, Engine, EngineError, EngineOptions, GpuLayers,
};
use clearway_llm::fetch::{Cache, ModelName};
use clearway_llm::gguf::Gguf;

use crate::device::DeviceArgs;
use crate::interrupt;
use crate::lora::LoraArgs;
use crate::memory::size;
use crate::out::note;
use crate::progress::{Bar, FetchBar};
use crate::shape::{OFF, Switches};

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
    /// Tokens the model can look at; without it the model's own context where memory has room, at most 32768.
    #[arg(short = 'c', long = "ctx-size", value_name = "CTX")]
    pub ctx_size: Option<usize>,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How the model is run.
#[derive(clap::Args)]
pub struct EngineArgs {
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    pub layers: LayerArgs,
    #[command(flatten)]
    switches: Switches,
    /// Give a token the same bits however many are computed with it, so that neither drafts (--spec) nor other sequences
    /// change a text; slower on a GPU.
    #[arg(long, env = "CLEARWAY_DETERMINISTIC", value_parser = Falsey::new())]
    deterministic: bool,
    /// Record, compile and encode every step anew, with the host between two tokens.
    #[arg(long, env = "CLEARWAY_NO_REPLAY", help_heading = OFF, value_parser = Falsey::new())]
    no_replay: bool,
}

/// What of a model lies on the device.
#[derive(Clone, Copy, clap::Args)]
pub struct LayerArgs {
    /// Layers that run on the device, counted from the last: auto for as many as fit, or a number. The others run on the CPU.
    #[arg(long, value_name = "N", env = "CLEARWAY_GPU_LAYERS", default_value_t = GpuLayers::Auto)]
    pub gpu_layers: GpuLayers,
}

/// What the KV cache is made of.
#[derive(clap::Args)]
pub struct CacheArgs {
    /// Element type of the KV cache.
    #[arg(long, value_name = "TYPE", env = "CLEARWAY_CACHE_TYPE", default_value = "f16")]
    cache_type: CacheType,
}

/// What `--cache-type` takes.
#[derive(Clone, Copy, clap::ValueEnum)]
enum CacheType {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8,
}

impl NameArgs {
    /// Maps the file, which is fetched if it is not there.
    pub fn open(&self) -> Result<Gguf> {
        open(&self.model)
    }
}

impl ModelArgs {
    /// Puts the model on its device, or a part of it.
    pub fn engine(&self, gguf: &Gguf) -> Result<(Engine, Arc<dyn Device>)> {
        let adapters = self.lora.for_all()?;
        let options = self.engine.options(self.ctx_size);
        let devices = self.engine.layers.devices(gguf, &adapters, &self.device, &options)?;
        let device = devices.last().clone();
        Ok((load(gguf, &adapters, devices, options)?, device))
    }

    /// Puts the model on its device, or a part of it, with its vocabulary.
    pub fn model(&self, gguf: &Gguf) -> Result<(Model, Arc<dyn Device>)> {
        let adapters = self.lora.for_all()?;
        let options = self.engine.options(self.ctx_size);
        let devices = self.engine.layers.devices(gguf, &adapters, &self.device, &options)?;
        let device = devices.last().clone();
        Ok((load_model(gguf, &adapters, devices, options)?, device))
    }
}

impl LayerArgs {
    /// Opens the device, and the CPU beside it where it has no room for all layers.
    pub fn devices(
        self,
        gguf: &Gguf,
        adapters: &Adapters,
        device: &DeviceArgs,
        options: &EngineOptions,
    ) -> Result<Devices> {
        let card = device.open()?;
        let name = card.info().name.clone();
        let devices = self.choose(gguf, adapters, device, card, options)?;
        if let (Devices::One(only), GpuLayers::Auto) = (&devices, self.gpu_layers)
            && only.info().name != name
        {
            note!("layers: {name} has no room for one layer and the head, so all run on the CPU");
        }
        Ok(devices)
    }

    /// Where the model lies, if this is the device.
    pub fn choose(
        self,
        gguf: &Gguf,
        adapters: &Adapters,
        device: &DeviceArgs,
        card: Arc<dyn Device>,
        options: &EngineOptions,
    ) -> Result<Devices> {
        match (card.info().name.as_str(), self.gpu_layers) {
            ("cpu", GpuLayers::Auto | GpuLayers::Count(0)) => Ok(Devices::One(card)),
            ("cpu", GpuLayers::Count(layers)) => bail!(
                "--gpu-layers {layers} needs a device beside the CPU; `clearway devices` shows what there is"
            ),
            (_, wanted) => {
                let cpu = || device.cpu();
                let chosen = Devices::choose(gguf, adapters, options, wanted, card, cpu);
                chosen.map_err(|error| match error {
                    EngineError::LayersTooLarge { .. } => {
                        anyhow::Error::new(error).context("--gpu-layers is too large")
                    }
                    error => error.into(),
                })
            }
        }
    }

    /// The device, where all of a model must lie on it, as `what` needs it: the CPU if it shall have all layers.
    pub fn only_device(self, what: &str, device: &DeviceArgs) -> Result<DeviceArgs> {
        match self.gpu_layers {
            GpuLayers::Auto => Ok(device.clone()),
            GpuLayers::Count(0) => Ok(device.on_cpu()),
            GpuLayers::Count(layers) => bail!(
                "{what} needs all layers on one device, so --gpu-layers {layers} is not possible: without it the device has \
                 all, and --gpu-layers 0 gives all to the CPU"
            ),
        }
    }
}

/// Says what to do where a model is too large and `what` cannot divide it.
pub fn undivided<T>(what: &str, loaded: Result<T>) -> Result<T> {
    loaded.map_err(|error| match error.downcast_ref() {
        Some(EngineError::TooLarge { device, .. }) if device != "cpu" => error.context(format!(
            "{what} needs all layers on one device; --gpu-layers 0 takes the CPU, and `clearway chat` divides the model \
             between both"
        )),
        _ => error,
    })
}

impl EngineArgs {
    /// The engine's options for a cache of so many rows.
    pub fn options(&self, context: Option<usize>) -> EngineOptions {
        EngineOptions {
            context,
            cache_dtype: self.cache.dtype(),
            compile: self.switches.options(),
            replay: !self.no_replay,
            deterministic: self.deterministic,
        }
    }
}

impl CacheArgs {
    /// The type of the cache's elements.
    pub fn dtype(&self) -> DType {
        match self.cache_type {
            CacheType::F16 => DType::F16,
            CacheType::F32 => DType::F32,
            CacheType::Q8 => DType::Q8_0,
        }
    }
}

/// Puts a model and its adapters on its devices, if they fit.
pub fn load(
    gguf: &Gguf,
    adapters: &Adapters,
    devices: Devices,
    options: EngineOptions,
) -> Result<Engine> {
    let engine = loading(gguf, |progress| {
        Engine::with_adapters(gguf, adapters, devices, options, progress)
    })?;
    say_about(&engine)?;
    Ok(engine)
}

/// As [`load`], with its vocabulary.
pub fn load_model(
    gguf: &Gguf,
    adapters: &Adapters,
    devices: Devices,
    options: EngineOptions,
) -> Result<Model> {
    let model =
        loading(gguf, |progress| Model::with_adapters(gguf, adapters, devices, options, progress))?;
    say_about(model.engine())?;
    Ok(model)
}

/// Shows how much of a file is loaded.
pub fn loading<T>(
    gguf: &Gguf,
    load: impl FnOnce(&mut dyn FnMut(u64)) -> clearway_llm::engine::Result<T>,
) -> Result<T> {
    let total = gguf.tensor_bytes();
    let bar = Bar::new("loading");
    load(&mut |done| bar.at(done, Some(total))).map_err(|error| match error {
        error @ EngineError::IsAdapter { .. } => {
            anyhow::Error::new(error).context("-m takes a model; --lora takes the adapter")
        }
        error => error.into(),
    })
}

/// Says what is not as the file has it.
fn say_about(engine: &Engine) -> Result<()> {
    for conversion in engine.conversions() {
        note!("{conversion}");
    }
    if let [host, card] = &engine.shares()?[..] {
        let (first, last) = (host.layers.len(), card.layers.len());
        note!(
            "layers: {last} of {} and the head on {} ({}), {first} and the embedding on {} ({})",
            first + last,
            card.device,
            size(card.total()),
            host.device,
            size(host.total())
        );
    }
    let reason = engine.context_reason();
    if matches!(reason, ContextReason::Memory | ContextReason::Limit) {
        let (context, most) = (engine.context(), engine.shape().context);
        note!("context: {context} of {most} tokens, {reason}; -c changes it");
    }
    Ok(())
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
    // A fetch sees the wish to stop by itself and removes what it has.
    Ok(interrupt::caught(|| cache.fetch(name, &mut FetchBar::default()))?)
}
