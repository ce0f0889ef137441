//! A compiled graph: proven, lowered once, run again and again.

use std::time::{Duration, Instant};

use clearway_gpu::{Buffer, Profile, ProfileMode, Program, Ticket, WaitProfile};
use clearway_graph::pipeline::{CompileError, CompileOptions, CompileStats, Compiled, compile};
use clearway_graph::{ComputeGraph, MemoryPlan, TensorView, Value};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::executor::GraphExecutor;
use crate::transfer::{self, Element};

/// What a pass did and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassStats {
    /// What the stages did: fusions, moved, dispatches, groups, barriers.
    pub compile: CompileStats,
    /// Time for all stages.
    pub compile_time: Duration,
    /// Time to lower the list to the device's commands.
    pub encode_time: Duration,
    /// Time from handing the work over until it was done, of the last run.
    pub wait_time: Duration,
}

/// A graph that is proven and lowered. Running it encodes nothing and allocates nothing.
pub struct Executable {
    program: Box<dyn Program>,
    compiled: Compiled,
    arena: Arena,
    stats: PassStats,
}

impl Executable {
    pub(crate) fn build(
        executor: &GraphExecutor,
        recorded: &ComputeGraph,
        options: &CompileOptions,
    ) -> Result<Self> {
        let device = &**executor.device();
        let mut kernels = executor.kernels();
        let info = device.info();
        let options = CompileOptions {
            align: info.arena_align,
            max_slab_bytes: options.max_slab_bytes.min(info.max_buffer_bytes),
            slab_rule: options.slab_rule.stricter(info.slab_rule),
            ..*options
        };
        let mut arena = None;
        let started = Instant::now();
        let compiled = compile(recorded, &mut kernels, device, &options, |plan: &MemoryPlan| {
            let made = arena.insert(Arena::from_plan(device, plan)?);
            Ok::<_, Error>(made.slabs().iter().map(Buffer::id).collect())
        })?;
        let compile_time = started.elapsed();
        let arena = arena.ok_or(Error::Compile(CompileError::Graph(missing_plan())))?;
        let started = Instant::now();
        let mut encoder = device.encoder(&kernels);
        if options.counters {
            encoder.use_counters();
        }
        compiled.graph().encode_sequential(&mut *encoder)?;
        let program = encoder.into_program()?;
        let encode_time = started.elapsed();
        let stats = PassStats {
            compile: *compiled.stats(),
            compile_time,
            encode_time,
            wait_time: Duration::ZERO,
        };
        Ok(Self { program, compiled, arena, stats })
    }

    /// Runs the graph once and waits. What changes from step to step lies in buffers and inputs that
    /// the caller writes in between.
    ///
    /// # Errors
    /// What the device reports.
    pub fn run(&mut self) -> Result<()> {
        let started = Instant::now();
        self.program.run()?;
        self.stats.wait_time = started.elapsed();
        Ok(())
    }

    /// Runs the graph once and says how long its groups or dispatches took.
    ///
    /// # Errors
    /// [`clearway_gpu::GpuError::ProfileUnsupported`] where the device cannot; what it reports.
    pub fn profile(&mut self, mode: ProfileMode) -> Result<Profile> {
        Ok(self.program.profile(mode)?)
    }

    /// Groups whose workgroups wait for the group before them by a counter instead of a barrier.
    pub fn waiting_groups(&self) -> usize {
        self.program.waiting_groups()
    }

    /// Runs the graph three times and says when each dispatch ran beside others and how long its workgroups waited for counters.
    ///
    /// # Errors
    /// [`clearway_gpu::GpuError::NoWaits`] where nobody waits for counters; what the device reports.
    pub fn profile_waits(&mut self) -> Result<WaitProfile> {
        Ok(self.program.profile_waits()?)
    }

    /// Puts barriers where workgroups wait for counters, for good. The kernels stay the same: to compare both.
    ///
    /// # Errors
    /// What the device reports.
    pub fn use_barriers(&mut self) -> Result<()> {
        Ok(self.program.use_barriers()?)
    }

    /// Runs the graph `times` times, one after another, without the host in between, and waits.
    ///
    /// # Errors
    /// What the device reports.
    pub fn run_many(&mut self, times: usize) -> Result<()> {
        let started = Instant::now();
        self.program.run_many(times)?;
        self.stats.wait_time = started.elapsed();
        Ok(())
    }

    /// Hands over `times` runs, one after another and after those handed over before, and does not
    /// wait where the device works beside the host. Results are there after [`finish`](Self::finish).
    ///
    /// # Errors
    /// What the device reports.
    pub fn start(&mut self, times: usize) -> Result<Ticket> {
        Ok(self.program.start(times)?)
    }

    /// Waits for runs that were handed over, and for those before them.
    ///
    /// # Errors
    /// What the device reports.
    pub fn finish(&mut self, runs: Ticket) -> Result<()> {
        Ok(self.program.finish(runs)?)
    }

    /// Uploads an input, or what the next run finds in a kept tensor.
    ///
    /// # Errors
    /// [`Error::NotInArena`] if the tensor is neither in this graph, a wrong length or type.
    pub fn write<T: Element>(&self, input: TensorView, elems: &[T]) -> Result<()> {
        let value = input.value().ok_or(Error::ForeignTensor { buf_id: input.buf_id })?;
        transfer::check::<T>(&input, elems.len())?;
        if !self.compiled.graph().values().get(value.index()).is_some_and(Value::lasts) {
            return Err(Error::NotInArena(value));
        }
        self.arena.write(value, elems)
    }

    /// Reads an output of the last run, or a dense part of one.
    ///
    /// # Errors
    /// [`Error::NotInArena`] if the tensor is no output of this graph, a wrong type.
    pub fn read<T: Element>(&self, output: TensorView) -> Result<Vec<T>> {
        let value = output.value().ok_or(Error::ForeignTensor { buf_id: output.buf_id })?;
        let known = self.compiled.graph().values().get(value.index());
        if !known.is_some_and(|v| v.output || v.lasts()) {
            return Err(Error::NotInArena(value));
        }
        transfer::check::<T>(&output, output.layout.elems())?;
        match output.layout.is_dense() {
            true => self.arena.read_part(value, output.offset, output.layout.elems()),
            false => self.arena.read(value),
        }
    }

    /// Reads an f32 or f16 output of the last run as f32.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_f32(&self, output: TensorView) -> Result<Vec<f32>> {
        transfer::read_f32(&output, |bits| match bits {
            transfer::Float::F32 => self.read::<f32>(output),
            transfer::Float::F16 => {
                Ok(self.read::<half::f16>(output)?.into_iter().map(half::f16::to_f32).collect())
            }
        })
    }

    /// The proven list.
    pub fn graph(&self) -> &ComputeGraph {
        self.compiled.graph()
    }

    /// The list with its plan and figures.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// The memory of its values.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What was done and how long it took.
    pub fn stats(&self) -> &PassStats {
        &self.stats
    }
}

fn missing_plan() -> clearway_graph::GraphError {
    clearway_graph::GraphError::Kernel {
        kernel: "arena".into(),
        reason: "the place stage made no plan".into(),
    }
}
