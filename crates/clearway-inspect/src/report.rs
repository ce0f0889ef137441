//! The report: plain data, the same behind the page, the trace, the text and the JSON.

use std::collections::BTreeMap;

use clearway_graph::pipeline::{CompileOptions, CompileStats};
use clearway_graph::place::CostModel;
use serde::Serialize;

use crate::kernels::{KernelText, KernelUse};
use crate::peers::PeerPlan;
use crate::tracked::TrackedRow;
use crate::waits::{WaitRow, Waits};

/// Version of the JSON form; it changes when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;

/// Everything the inspector knows about one list.
///
/// Written as JSON, it is one object with the keys of its fields; [`Summary`] stands at the top level, so
/// that `dispatches`, `groups`, `barriers` and the rest have the names they have in `clearway plan` and
/// `clearway bench`. Bytes and nanoseconds are numbers, byte ranges are half-open, dispatches and groups
/// are named by their place in `dispatch_list` and `group_list`, recorded dispatches by their id. A buffer
/// is `"%3"` for arena value 3 and `"@7"` for a buffer outside the arena, whose name is in `buffers`. Keys
/// are added without a new [`VERSION`]; lists that do not apply are empty, single facts `null`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// `clearway-inspect`.
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// What the list computes, for people.
    pub name: String,
    /// Name of the built-in shape or of the model.
    pub shape: Option<String>,
    /// Tokens of the step.
    pub tokens: Option<u32>,
    /// Device whose kernels and alignment were used.
    pub device: Option<String>,
    /// Seconds to compile the list.
    pub seconds: f64,
    /// The figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// Which stages ran.
    pub options: CompileOptions,
    /// The device the estimate speaks of.
    pub cost: CostModel,
    /// Names of buffers outside the arena that the lists below mention.
    pub buffers: BTreeMap<String, String>,
    /// The final list in execution order.
    pub dispatch_list: Vec<DispatchRow>,
    /// Its groups in execution order.
    pub group_list: Vec<GroupRow>,
    /// Its barriers in execution order, each with its reason.
    pub barrier_list: Vec<BarrierRow>,
    /// The values of the arena, by number; those that need no memory are left out.
    pub value_list: Vec<ValueRow>,
    /// Bytes of each slab of the arena.
    pub slab_bytes: Vec<u64>,
    /// Fusions that fired, in the order they did.
    pub fusion_list: Vec<FusionRow>,
    /// Pairs that a rule names and that stayed apart.
    pub refused_fusions: Vec<RefusedFusionRow>,
    /// What keeps dispatches from standing earlier.
    pub refused_moves: Vec<MoveRow>,
    /// What the kernels below were made for.
    pub kernel_target: Option<String>,
    /// The distinct kernels of the final list, where they were asked for.
    pub kernel_list: Vec<KernelText>,
    /// The list as it was recorded.
    pub recorded_list: Vec<RecordedRow>,
    /// The same list compiled with one switch turned.
    pub views: Vec<ViewRow>,
    /// The same list on a backend that follows whole buffers, as wgpu does.
    pub tracked: Vec<TrackedRow>,
    /// Bytes against barriers: schedules with fewer bytes and more groups.
    pub front: Vec<Front>,
    /// What a planner makes of it that counts lives in nodes.
    pub node_order: Option<PeerPlan>,
    /// What a planner makes of it that keeps a free list.
    pub free_list: Option<PeerPlan>,
    /// Times of a device.
    pub measured: Option<Measured>,
    /// Times of the same list with counters in place of barriers.
    pub waits: Option<Waits>,
    /// Why there are none, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_waits: Option<String>,
}

/// The figures of a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Dispatches recorded.
    pub recorded: u32,
    /// Dispatches in the final list.
    pub dispatches: u32,
    /// Concurrent groups.
    pub groups: u32,
    /// Barriers.
    pub barriers: u32,
    /// Dispatches on the longest chain of true dependences: no order has fewer groups.
    pub longest_chain: u32,
    /// Barriers that sharing memory added.
    pub false_barriers: u32,
    /// Fusions that fired.
    pub fusions: u32,
    /// Values that go quantised from one product to the next.
    pub quantised: u32,
    /// Dispatches that moved earlier.
    pub moved: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// No arena for these groups is smaller.
    pub arena_lower_bound: u64,
    /// Groups with a dispatch of some layer, divided by the layers; layers are read from labels such as
    /// `blk.3.attn_q`.
    pub phases_per_layer: Option<f64>,
    /// Estimated time of one run.
    pub estimated_ns: f64,
    /// Measured time of one run in the schedule as it is.
    pub measured_ns: Option<u64>,
}

impl Summary {
    pub(crate) fn of(stats: &CompileStats) -> Self {
        Self {
            recorded: stats.recorded,
            dispatches: stats.dispatches,
            groups: stats.groups,
            barriers: stats.barriers,
            longest_chain: stats.longest_chain,
            false_barriers: stats.false_barriers,
            fusions: stats.fusions,
            quantised: stats.quantised,
            moved: stats.moved,
            arena_bytes: stats.arena_bytes,
            arena_lower_bound: stats.arena_lower_bound,
            ..Self::default()
        }
    }
}

/// A dispatch of the final list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DispatchRow {
    /// Its id, which it keeps through all stages.
    pub id: u32,
    /// What it computes.
    pub op: String,
    /// The kernel, where it is not named as the op.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Name for people; may be empty.
    pub label: String,
    /// Type and shape of what it writes.
    pub shape: String,
    /// Bytes it reads: what is known only on the device at its largest, tables and experts by what a step
    /// can pick.
    pub read_bytes: u64,
    /// Bytes it writes.
    pub write_bytes: u64,
    /// Its group.
    pub group: u32,
    /// Its lane: no two dispatches of a group share one.
    pub lane: u32,
    /// Dispatches it waits for.
    pub after: Vec<u32>,
    /// Recorded dispatches it stands for, if more than itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<u32>,
    /// Whether it has nothing to do where it was placed: it joins what lies side by side already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub moot: bool,
    /// Estimated time alone.
    pub estimated_ns: f64,
    /// Measured time alone, in the serialised mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serialised_ns: Option<u64>,
    /// When it ran and how long it waited with counters in place of barriers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitRow>,
    /// Its kernels in `kernel_list`, with workgroups and bindings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelUse>,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_kernel: Option<String>,
}

/// A group: dispatches that run at the same time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupRow {
    /// Its first dispatch; the others follow it.
    pub first: u32,
    /// How many there are.
    pub dispatches: u32,
    /// Bytes they read and write.
    pub bytes: u64,
    /// Bytes of the arena in use.
    pub live_bytes: u64,
    /// Estimated time, the barrier included.
    pub estimated_ns: f64,
    /// Measured time, the barrier included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_ns: Option<u64>,
    /// Its bytes in its time, as a share of the device's bandwidth; above 1 where they lie in caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_share: Option<f64>,
    /// Share of its time that the barrier costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barrier_share: Option<f64>,
}

/// A barrier and its reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BarrierRow {
    /// Groups that stand before it.
    pub after_group: u32,
    /// `hazard`, `replay` (the end of the list against its own beginning), `unannotated`, `memory` (the
    /// price of a byte budget) or `requested`.
    pub reason: &'static str,
    /// `RAW`, `WAR` or `WAW`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hazard: Option<&'static str>,
    /// The dispatch that comes first, or the one whose memory is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<u32>,
    /// The dispatch that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub later: Option<u32>,
    /// What they share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buf: Option<String>,
    /// First shared byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p0: Option<u64>,
    /// One past the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p1: Option<u64>,
}

/// A value of the arena.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueRow {
    /// Its number.
    pub id: u32,
    /// Label of the dispatch that makes it; may be empty.
    pub name: String,
    /// Bytes it needs.
    pub bytes: u64,
    /// Slab it lies in.
    pub slab: u32,
    /// First byte in the slab.
    pub offset: u64,
    /// First group of its life.
    pub first: u32,
    /// Last group of its life.
    pub last: u32,
    /// Uploaded by the host.
    pub input: bool,
    /// Read by the host.
    pub output: bool,
    /// Dispatches that write it.
    pub writers: Vec<u32>,
    /// Dispatches that read it.
    pub readers: Vec<u32>,
    /// Values that lie in its bytes next. One whose life starts in the last group of this one is made in
    /// place.
    pub reused_by: Vec<u32>,
}

/// A fusion that fired.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FusionRow {
    /// Name of the rule.
    pub rule: String,
    /// Id of the dispatch that takes their place.
    pub result: u32,
    /// Recorded dispatches it stands for.
    pub members: Vec<u32>,
    /// Whether the intermediate is still written.
    pub kept: bool,
}

/// Two dispatches that a rule names and that stayed apart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedFusionRow {
    /// Name of the rule.
    pub rule: String,
    /// Id of the dispatch that writes the intermediate.
    pub producer: u32,
    /// Id of the dispatch that reads it.
    pub consumer: u32,
    /// The intermediate.
    pub buf: String,
    /// Name of the reason.
    pub reason: String,
    /// The reason with its facts.
    pub text: String,
}

/// What keeps a dispatch from standing earlier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoveRow {
    /// The dispatch.
    pub dispatch: u32,
    /// `hazard`, `crosses_unannotated`, `crosses_pinned` or `immovable`.
    pub reason: &'static str,
    /// `RAW`, `WAR` or `WAW`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hazard: Option<&'static str>,
    /// The dispatch it would pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<u32>,
    /// What they share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buf: Option<String>,
    /// First shared byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p0: Option<u64>,
    /// One past the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p1: Option<u64>,
}

/// A dispatch as it was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordedRow {
    /// Its id.
    pub id: u32,
    /// What it computes.
    pub op: String,
    /// Name for people.
    pub label: String,
    /// Type and shape of what it writes.
    pub shape: String,
    /// Bytes it reads.
    pub read_bytes: u64,
    /// Bytes it writes.
    pub write_bytes: u64,
}

/// The same list compiled with one switch turned.
#[derive(Clone, Debug, Serialize)]
pub struct ViewRow {
    /// `reordered`, `in_order`, `without_reuse` or `without_fusion`.
    pub key: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// Where the dispatches of `order` are: `dispatch_list` or `recorded_list`.
    pub list: &'static str,
    /// Dispatches in execution order.
    pub order: Vec<u32>,
    /// The group of each of them.
    pub group: Vec<u32>,
    /// The lane of each of them.
    pub lane: Vec<u32>,
    /// Its barriers; `earlier` and `later` are places in the list of `list`.
    pub barrier_list: Vec<BarrierRow>,
    /// Where its values lie.
    pub placed: Vec<Placed>,
    /// Bytes of each slab.
    pub slab_bytes: Vec<u64>,
    /// Estimated time of each group.
    pub group_ns: Vec<f64>,
}

/// Place and life of a value, as an array: its number, slab, first byte, bytes, first and last group, and
/// the dispatch that writes it first (its place in the list of `list`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Placed(pub u32, pub u32, pub u64, pub u64, pub u32, pub u32, pub Option<u32>);

/// A schedule and the memory it needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Front {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Concurrent groups.
    pub groups: u32,
    /// Barriers.
    pub barriers: u32,
    /// Estimated time.
    pub estimated_ns: f64,
}

/// Times of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The device, in words.
    pub device: String,
    /// `gpu` or `cpu`: whose clock the times are from.
    pub clock: &'static str,
    /// Timed runs; the one of median time is shown.
    pub runs: u32,
    /// Start of each group, from the start of the first.
    pub group_start_ns: Vec<u64>,
    /// From the start of the first group to the end of the last.
    pub total_ns: u64,
    /// Host time to hand the work over.
    pub submit_ns: u64,
    /// Host time from then until the work was done.
    pub wait_ns: u64,
    /// What a barrier alone costs, where the device could tell.
    pub barrier_ns: Option<u64>,
    /// Bandwidth that shares are of: that of a large copy, or of the whole run where that is higher.
    pub bytes_per_ns: f64,
    /// Start of each dispatch in the serialised mode: a barrier after every dispatch.
    pub serialised_start_ns: Vec<u64>,
    /// Time of one run in the serialised mode.
    pub serialised_ns: u64,
    /// The ten groups that lose the most time.
    pub top_lost: Vec<LostTime>,
}

/// A group and the time it takes beyond what its bytes need.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LostTime {
    /// The group.
    pub group: u32,
    /// Its time.
    pub measured_ns: u64,
    /// Its time less that of its bytes at `bytes_per_ns`.
    pub lost_ns: u64,
}
