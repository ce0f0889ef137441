//! `-m MODEL` and the device it runs on.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clearway_llm::engine::{Engine, EngineOptions};
use clearway_llm::gguf::Gguf;

use crate::device;

/// Which model, where, and how much of it.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Model file (GGUF).
    #[arg(short = 'm', long = "model", value_name = "MODEL", env = "CLEARWAY_MODEL")]
    pub model: PathBuf,
    /// Tokens the model can look at.
    #[arg(short = 'c', long = "ctx-size", value_name = "CTX")]
    pub ctx_size: Option<usize>,
    /// Device: auto or cpu.
    #[arg(long, value_name = "D", default_value = "auto", env = "CLEARWAY_DEVICE")]
    pub device: String,
    /// Threads of the CPU.
    #[arg(short = 't', long, value_name = "THREADS", env = "CLEARWAY_THREADS")]
    pub threads: Option<usize>,
}

impl ModelArgs {
    /// Maps the file.
    pub fn open(&self) -> Result<Gguf> {
        open(&self.model)
    }

    /// Puts the model on its device.
    pub fn engine(&self, gguf: &Gguf) -> Result<Engine> {
        let device = device::open(&self.device, self.threads)?;
        let options = EngineOptions { context: self.ctx_size, ..EngineOptions::default() };
        Ok(Engine::new(gguf, device, options)?)
    }
}

/// Maps a model file.
pub fn open(path: &PathBuf) -> Result<Gguf> {
    Gguf::open(path).with_context(|| format!("cannot open model {}", path.display()))
}
