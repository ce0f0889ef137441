//! `--shape NAME`: a built-in shape, recorded and compiled without weights or device memory.

use anyhow::{Context, Result, anyhow};
// In the environment 0, no and nothing mean that a switch is not set; anything else sets it.
use clap::builder::FalseyValueParser as Falsey;
use clearway::pipeline::{Compiled, compile, schedule};
use clearway::{CompileError, CompileOptions, ComputeGraph, KernelRegistry};
use clearway_llm::model::{self, ModelShape, RecordOptions};

use crate::device;

/// Which step of which shape.
#[derive(clap::Args)]
pub struct Step {
    /// Built-in shape, without weights.
    #[arg(long, value_name = "NAME", value_parser = parse)]
    pub shape: ModelShape,
    /// Tokens of the step: 1 for decode, more for prefill.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub tokens: u32,
    /// Rows of the KV cache; at least the tokens.
    #[arg(short = 'c', long = "ctx-size", value_name = "ROWS", default_value_t = 4096)]
    pub ctx_size: u32,
}

/// Off switches, one for each optimisation.
#[derive(clap::Args)]
pub struct Switches {
    /// Keep every recorded op.
    #[arg(long, env = "CLEARWAY_NO_FUSE", help_heading = OFF, value_parser = Falsey::new())]
    no_fuse: bool,
    /// Keep values between products as floats.
    #[arg(long, env = "CLEARWAY_NO_QUANTISE", help_heading = OFF, value_parser = Falsey::new())]
    no_quantise: bool,
    /// Keep the recorded order.
    #[arg(long, env = "CLEARWAY_NO_REORDER", help_heading = OFF, value_parser = Falsey::new())]
    no_reorder: bool,
    /// A barrier after every dispatch.
    #[arg(long, env = "CLEARWAY_NO_ELIDE", help_heading = OFF, value_parser = Falsey::new())]
    no_elide: bool,
    /// Bytes of its own for every value.
    #[arg(long, env = "CLEARWAY_NO_REUSE", help_heading = OFF, value_parser = Falsey::new())]
    no_reuse: bool,
}

/// Heading of the off switches in help texts.
pub const OFF: &str = "Off switches";

impl Switches {
    /// The stages that are left on.
    pub fn options(&self) -> CompileOptions {
        let all = CompileOptions::default();
        CompileOptions {
            fuse: !self.no_fuse,
            quantise: !self.no_quantise,
            reorder: all.reorder.filter(|_| !self.no_reorder),
            elide: !self.no_elide,
            reuse: !self.no_reuse,
            ..all
        }
    }
}

impl Step {
    /// The step as recorded.
    pub fn record(&self) -> Result<ComputeGraph> {
        let tokens = self.tokens as usize;
        let options = RecordOptions::new(tokens, tokens.max(self.ctx_size as usize));
        let step = model::record(&self.shape, &options).context("recording failed")?;
        Ok(step.recorder.into_parts().0)
    }

    /// The list with its barriers and without addresses.
    pub fn schedule(
        &self,
        recorded: &ComputeGraph,
        options: &CompileOptions,
    ) -> Result<ComputeGraph> {
        let device = device::open("cpu", Some(1))?;
        Ok(schedule(recorded, &mut KernelRegistry::new(), &*device, options)?.graph)
    }

    /// All stages over the recorded step. Slabs get identities that no other buffer has; nothing is
    /// allocated.
    pub fn compile(&self, recorded: &ComputeGraph, options: &CompileOptions) -> Result<Compiled> {
        const FIRST_SLAB: usize = 1 << 40;
        let device = device::open("cpu", Some(1))?;
        let slabs = |plan: &clearway::MemoryPlan| {
            Ok::<_, CompileError>((FIRST_SLAB..).take(plan.slab_bytes().len()).collect())
        };
        Ok(compile(recorded, &mut KernelRegistry::new(), &*device, options, slabs)?)
    }
}

/// The built-in shape of this name.
pub fn parse(name: &str) -> Result<ModelShape> {
    model::builtin_shape(name).ok_or_else(|| {
        let names: Vec<_> = model::builtin_shapes().into_iter().map(|s| s.name).collect();
        anyhow!("no built-in shape `{name}`; there are {}", names.join(", "))
    })
}
