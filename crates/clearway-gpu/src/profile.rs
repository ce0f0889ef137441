//! Times of a program's parts, as the device measured them.

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileMode {
    /// Each group, in the schedule as it runs otherwise: a time stamp where a barrier stands anyway.
    Groups,
    /// Each dispatch, with a barrier after every one. Times of dispatches that share a group are
    /// comparable then, but their sum is not the time of the group.
    Serialised,
}

impl ProfileMode {
    /// Lower-case name, as used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Serialised => "serialised",
        }
    }
}

/// Whose clock the spans were read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileClock {
    /// Time stamps the device wrote.
    Gpu,
    /// The host's monotonic clock.
    Cpu,
}

impl ProfileClock {
    /// Lower-case name, as used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }
}

/// When one part ran. Zero is the start of the first part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileSpan {
    /// Start, in nanoseconds.
    pub start_ns: u64,
    /// End, in nanoseconds; the barrier that follows is part of it.
    pub end_ns: u64,
}

impl ProfileSpan {
    /// How long it took.
    pub const fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// One timed run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What the spans are.
    pub mode: ProfileMode,
    /// Where they come from.
    pub clock: ProfileClock,
    /// In list order: one for each group that holds a dispatch, or one for each dispatch.
    pub spans: Vec<ProfileSpan>,
    /// Host time to hand the work over.
    pub submit_ns: u64,
    /// Host time from then until the work was done.
    pub wait_ns: u64,
    /// What a barrier alone costs on this device, where it can be measured.
    pub barrier_ns: Option<u64>,
}

impl Profile {
    /// From the start of the first part to the end of the last.
    pub fn total_ns(&self) -> u64 {
        let end = self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        end.saturating_sub(self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0))
    }
}

/// One run of a list whose workgroups wait for counters, by a clock that its kernels read.
///
/// Time stamps between dispatches would keep them apart on some devices. So the workgroups of a run like this note themselves
/// when they start, how long they wait and when they are done, which costs each of them a few atomic operations.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitProfile {
    /// Of each dispatch that runs, in list order.
    pub dispatches: Vec<DispatchWait>,
    /// From the start of the list to its end, by the device's time stamps.
    pub total_ns: u64,
    /// The smallest step of the clock that was seen: no time is more exact than that.
    pub clock_step_ns: f64,
}

/// When a dispatch ran beside others. Zero is the start of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchWait {
    /// From the start of its first workgroup to the end of its last. Where it is not counted: from the barrier in front of
    /// it to the barrier behind it.
    pub span: ProfileSpan,
    /// What its workgroups did with counters; `None` where its kernel has none.
    pub counted: Option<Counted>,
}

/// What the workgroups of a dispatch did with counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Workgroups.
    pub workgroups: u32,
    /// When the last of them started.
    pub last_start_ns: u64,
    /// The dispatch it waited for: of the group before it the one that was done last, by its place in
    /// [`WaitProfile::dispatches`]. `None` where a barrier stands in front of it.
    pub waits_for: Option<usize>,
    /// Workgroups that found the counter not full yet.
    pub waited: u32,
    /// When the first of those went on.
    pub released_ns: u64,
    /// How long they waited, all together.
    pub wait_ns: u64,
    /// How long one of them waited at most.
    pub longest_wait_ns: u64,
    /// How often they looked again, all together.
    pub polls: u64,
    /// How often one of them looked again at most.
    pub most_polls: u32,
}
