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
