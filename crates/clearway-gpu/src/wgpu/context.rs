//! One opened device: its queue, its clock of finished work, its errors, and what everything on it shares.
//!
//! wgpu reports most errors through callbacks and panics where nobody listens. Here somebody always does: calls that make
//! something run inside error scopes of their thread, everything else leaves its error in `Faults`, which each
//! call that can fail looks at. No callback does more than store what it was told.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use clearway_graph::place::SlabRule;
use naga::valid::Capabilities;
use wgpu::{ErrorFilter, PollError, PollType, SubmissionIndex};

use super::WgpuOptions;
use super::instance::{Adapter, now};
use super::memory::WgpuMemory;
use super::pipeline::Pipelines;
use super::program::WgpuProgram;
use super::transfer::Staging;
use crate::device::{DeviceInfo, limited};
use crate::error::{GpuError, Result};
use crate::lowering::cache::DiskCache;
use crate::lowering::guard::Vetted;
use crate::lowering::lowered::Lowered;
use crate::lowering::tune::{Timing, Tuner};
use crate::lowering::{Backend, RangeOf, Workgroups};
use crate::wgsl::{Target, Trust};

/// How long the host waits for the device at all, unless the options say otherwise.
const PATIENCE: Duration = Duration::from_secs(600);

/// Bytes up to which every value of an arena has a buffer of its own. A buffer that is written once in a run asks for no barrier
/// but those between its writer and its readers.
const SPREAD_BYTES: u64 = 64 << 20;

/// An opened device.
pub(super) struct Context {
    pub(super) info: DeviceInfo,
    pub(super) adapter: Adapter,
    pub(super) options: WgpuOptions,
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    faults: Arc<Faults>,
    /// Submissions that may not be done, by what the clock shows then.
    submitted: Mutex<Submitted>,
    /// What the clock shows.
    done: Arc<AtomicU64>,
    pub(super) counters: Counters,
    pub(super) staging: Staging,
    pub(super) pipelines: Pipelines,
    vetted: Vetted,
    pub(super) tuner: Tuner,
    /// Buffers alive, by identity.
    pub(super) buffers: crate::lowering::Buffers<WgpuMemory>,
}

#[derive(Default)]
struct Submitted {
    clock: u64,
    indices: VecDeque<(u64, SubmissionIndex)>,
}

/// What the host did so far.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) encodings: AtomicU64,
    pub(super) allocations: AtomicU64,
    pub(super) bind_groups: AtomicU64,
    /// Nanoseconds.
    pub(super) encoding: AtomicU64,
    pub(super) submission: AtomicU64,
}

/// What callbacks were told.
#[derive(Default)]
struct Faults {
    lost: AtomicBool,
    reported: Mutex<Option<Fault>>,
}

/// An error of wgpu, without its source.
enum Fault {
    Memory,
    Other(String),
}

impl From<wgpu::Error> for Fault {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { .. } => Self::Memory,
            other => Self::Other(other.to_string()),
        }
    }
}

impl Faults {
    fn report(&self, fault: Fault) {
        // The first one is the cause of the others.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
    }
}

impl Context {
    pub(super) fn open(mut adapter: Adapter, options: WgpuOptions) -> Result<Arc<Self>> {
        let name = format!("wgpu:{}", adapter.index);
        if let Some(missing) = adapter.missing {
            return Err(GpuError::Unsupported { device: adapter.facts.name, missing });
        }
        let description = wgpu::DeviceDescriptor {
            label: Some("clearway"),
            required_features: adapter.features,
            required_limits: adapter.limits.clone(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..wgpu::DeviceDescriptor::default()
        };
        let failed = |reason: String| super::instance::no_adapter(&reason);
        let opened =
            catch_unwind(AssertUnwindSafe(|| now(adapter.raw.request_device(&description))))
                .map_err(|_| failed(format!("{} cannot be opened", adapter.facts.name)))?;
        let (device, queue) =
            opened.ok_or_else(|| failed("the driver does not answer".into()))?.map_err(
                |error| failed(format!("{} cannot be opened ({error})", adapter.facts.name)),
            )?;
        let faults = Arc::new(Faults::default());
        let heard = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| heard.report(error.into())));
        let heard = faults.clone();
        device.set_device_lost_callback(move |_, _| heard.lost.store(true, Ordering::Release));
        let told = super::told_by_vulkan(&adapter.facts);
        if let (Some((processors, _)), None) = (told, options.processors) {
            adapter.target.processors = processors.max(1);
        }
        let align = u64::from(adapter.limits.min_storage_buffer_offset_alignment);
        let memory_bytes = super::memory_bytes(&adapter, told.map(|(_, bytes)| bytes));
        let info = DeviceInfo {
            name,
            description: adapter.describe(),
            arena_align: align.max(64),
            max_buffer_bytes: adapter.limits.max_buffer_size.min(adapter.target.max_binding),
            memory_bytes: limited(memory_bytes, options.memory_limit),
            slab_rule: SlabRule::GroupsApart { spread_bytes: SPREAD_BYTES },
        };
        let timing = Timing {
            software: adapter.is_software(),
            clock: adapter.features.contains(wgpu::Features::TIMESTAMP_QUERY),
        };
        let disk = DiskCache::open(options.disk_cache);
        let tuner = Tuner::new(options.tuning, timing, disk, &adapter.cache_key());
        Ok(Arc::new(Self {
            info,
            adapter,
            options,
            device,
            queue,
            faults,
            submitted: Mutex::default(),
            done: Arc::default(),
            counters: Counters::default(),
            staging: Staging::default(),
            pipelines: Pipelines::default(),
            vetted: Vetted::default(),
            tuner,
            buffers: Mutex::default(),
        }))
    }

    /// Runs a call that makes something and gives what it reports as an error. `wanted` is what an allocation asks for.
    pub(super) fn scoped<T>(
        &self,
        call: &'static str,
        wanted: u64,
        make: impl FnOnce() -> T,
    ) -> Result<T> {
        let scopes = [ErrorFilter::Validation, ErrorFilter::OutOfMemory, ErrorFilter::Internal]
            .map(|filter| self.device.push_error_scope(filter));
        let made = make();
        let mut fault = None;
        for scope in scopes.into_iter().rev() {
            let found = now(scope.pop()).flatten().map(Fault::from);
            fault = found.or(fault);
        }
        match fault {
            Some(fault) => Err(self.error(call, fault, wanted)),
            None if self.is_lost() => Err(self.lost(call)),
            None => Ok(made),
        }
    }

    /// What was reported outside of scopes since the last look.
    pub(super) fn check(&self, call: &'static str) -> Result<()> {
        if self.is_lost() {
            return Err(self.lost(call));
        }
        let mut reported = self.faults.reported.lock().unwrap_or_else(PoisonError::into_inner);
        match reported.take() {
            Some(fault) => Err(self.error(call, fault, 0)),
            None => Ok(()),
        }
    }

    fn error(&self, call: &'static str, fault: Fault, wanted: u64) -> GpuError {
        let device = self.info.name.clone();
        match fault {
            _ if self.is_lost() => self.lost(call),
            Fault::Memory => GpuError::OutOfMemory { device, wanted, available: 0 },
            Fault::Other(reason) => GpuError::Driver { device, call, reason },
        }
    }

    fn is_lost(&self) -> bool {
        self.faults.lost.load(Ordering::Acquire)
    }

    fn lost(&self, call: &'static str) -> GpuError {
        GpuError::DeviceLost { device: self.info.name.clone(), call }
    }

    /// Hands command buffers to the device; returns what the clock will show when they are done.
    pub(super) fn submit(
        &self,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
    ) -> Result<u64> {
        let mut submitted = self.submitted();
        let started = Instant::now();
        let index = self.queue.submit(commands);
        let ns = started.elapsed().as_nanos() as u64;
        self.counters.submission.fetch_add(ns, Ordering::Relaxed);
        self.check("Queue::submit")?;
        submitted.clock += 1;
        let value = submitted.clock;
        submitted.indices.push_back((value, index));
        let done = self.done.clone();
        self.queue.on_submitted_work_done(move || {
            done.fetch_max(value, Ordering::AcqRel);
        });
        Ok(value)
    }

    /// What the clock showed when the last work was handed over.
    pub(super) fn handed_over(&self) -> u64 {
        self.submitted().clock
    }

    /// Waits until the clock shows `value`.
    pub(super) fn wait(&self, value: u64) -> Result<()> {
        if value == 0 || self.done.load(Ordering::Acquire) >= value {
            return self.check("Device::poll");
        }
        let index = {
            let submitted = self.submitted();
            let found = submitted.indices.iter().find(|(clock, _)| *clock >= value);
            found.map(|(_, index)| index.clone())
        };
        let patience = self.options.patience.unwrap_or(PATIENCE);
        self.poll(PollType::Wait { submission_index: index, timeout: Some(patience) })?;
        self.done.fetch_max(value, Ordering::AcqRel);
        let mut submitted = self.submitted();
        while submitted.indices.front().is_some_and(|(clock, _)| *clock <= value) {
            submitted.indices.pop_front();
        }
        Ok(())
    }

    /// Lets wgpu call back until what work that is done leaves behind is there.
    pub(super) fn until(&self, there: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        let patience = self.options.patience.unwrap_or(PATIENCE);
        while !there() {
            self.poll(PollType::Poll)?;
            if start.elapsed() > patience {
                return Err(self.timeout(patience));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn timeout(&self, patience: Duration) -> GpuError {
        let seconds = patience.as_secs_f64().ceil() as u64;
        GpuError::Timeout { device: self.info.name.clone(), seconds }
    }

    /// What the clock shows.
    pub(super) fn done(&self) -> Result<u64> {
        self.poll(PollType::Poll)?;
        Ok(self.done.load(Ordering::Acquire))
    }

    /// Lets wgpu call back. It panics where the device is lost while it waits, which is an error here.
    pub(super) fn poll(&self, how: PollType) -> Result<()> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        match polled {
            Ok(Ok(_)) => self.check("Device::poll"),
            Ok(Err(PollError::Timeout)) => {
                Err(self.timeout(self.options.patience.unwrap_or(PATIENCE)))
            }
            Ok(Err(error)) => Err(GpuError::Driver {
                device: self.info.name.clone(),
                call: "Device::poll",
                reason: error.to_string(),
            }),
            Err(_) => {
                self.faults.lost.store(true, Ordering::Release);
                Err(self.lost("Device::poll"))
            }
        }
    }

    fn submitted(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Context {
    type Memory = WgpuMemory;
    type Program = WgpuProgram;

    fn name(&self) -> &str {
        &self.info.name
    }

    fn target(&self) -> &Target {
        &self.adapter.target
    }

    fn align(&self) -> u64 {
        u64::from(self.adapter.limits.min_storage_buffer_offset_alignment).max(16)
    }

    fn workgroups(&self) -> Workgroups {
        let limits = &self.adapter.limits;
        Workgroups {
            count: [limits.max_compute_workgroups_per_dimension; 3],
            size: [
                limits.max_compute_workgroup_size_x,
                limits.max_compute_workgroup_size_y,
                limits.max_compute_workgroup_size_z,
            ],
            invocations: limits.max_compute_invocations_per_workgroup,
            shared_bytes: limits.max_compute_workgroup_storage_size,
        }
    }

    fn capabilities(&self, _trust: Trust) -> Capabilities {
        let features = self.adapter.features;
        let mut all = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        all.set(Capabilities::SHADER_FLOAT16, features.contains(wgpu::Features::SHADER_F16));
        all.set(Capabilities::SUBGROUP, features.contains(wgpu::Features::SUBGROUP));
        let coherent = features.contains(wgpu::Features::MEMORY_DECORATION_COHERENT);
        all.set(Capabilities::MEMORY_DECORATION_COHERENT, coherent);
        all
    }

    fn vetted(&self) -> &Vetted {
        &self.vetted
    }

    fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    fn memory(&self, buf_id: usize) -> Result<Arc<WgpuMemory>> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers
            .get(&buf_id)
            .and_then(Weak::upgrade)
            .ok_or_else(|| GpuError::ForeignBuffer { buf_id, device: self.info.name.clone() })
    }

    fn alloc_piece(self: &Arc<Self>, bytes: u64) -> Result<WgpuMemory> {
        WgpuMemory::new(self, bytes)
    }

    fn program(
        self: &Arc<Self>,
        lowered: Lowered<RangeOf<Self>>,
        memory: Vec<Arc<WgpuMemory>>,
    ) -> Result<WgpuProgram> {
        WgpuProgram::new(self, lowered, memory)
    }
}
