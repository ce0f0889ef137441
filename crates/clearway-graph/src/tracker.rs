//! The ranges of the open concurrent group, indexed.
//!
//! Per buffer and role the tracker keeps disjoint segments in a B-tree, each owned by the last
//! dispatch that touched it. Adding a range replaces what it covers, so a segment is removed at
//! most once and both questions and additions cost the logarithm of the segments held, however the
//! ranges overlap.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::ids::DispatchId;
use crate::node::{Dispatch, Hazard, HazardKind};
use crate::range::{BufferRange, MemRangeRole};

/// The ranges of the open concurrent group. It says whether the next dispatch may join, and if
/// not, which hazard forbids it.
#[derive(Clone, Debug, Default)]
pub struct ConflictTracker {
    buffers: FxHashMap<usize, BufferIndex>,
}

/// Segments of one buffer by role.
#[derive(Clone, Debug, Default)]
struct BufferIndex {
    reads: Segments,
    writes: Segments,
}

impl ConflictTracker {
    /// A tracker with no ranges: a group that any dispatch may join.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a dispatch with these ranges may join the group.
    ///
    /// # Errors
    /// The hazard that forbids it, with `later` set to `id`.
    pub fn check<'a>(
        &self,
        id: DispatchId,
        ranges: impl IntoIterator<Item = &'a BufferRange>,
    ) -> Result<(), Hazard> {
        ranges.into_iter().try_for_each(|range| match self.conflict(id, range) {
            Some(hazard) => Err(hazard),
            None => Ok(()),
        })
    }

    /// Adds the ranges of dispatch `id` to the group. Whether it may join is for
    /// [`check`](Self::check) to say.
    pub fn add<'a>(&mut self, id: DispatchId, ranges: impl IntoIterator<Item = &'a BufferRange>) {
        for range in ranges {
            if range.is_empty() {
                continue;
            }
            let index = self.buffers.entry(range.buf_id).or_default();
            match range.role {
                MemRangeRole::Src => index.reads.insert(range.p0, range.p1, id),
                MemRangeRole::Dst => index.writes.insert(range.p0, range.p1, id),
            }
        }
    }

    /// Lets a dispatch join if it may; the group is unchanged otherwise.
    ///
    /// # Errors
    /// The hazard that forbids it.
    pub fn admit(&mut self, dispatch: &Dispatch) -> Result<(), Hazard> {
        self.check(dispatch.id, dispatch.ranges())?;
        self.add(dispatch.id, dispatch.ranges());
        Ok(())
    }

    /// Closes the group: after a barrier nothing is in flight.
    pub fn reset(&mut self) {
        // Clearing a hash table costs its capacity: one wide group must not tax every later one.
        if self.buffers.capacity() > 64 + 8 * self.buffers.len() {
            self.buffers = FxHashMap::default();
        } else {
            self.buffers.clear();
        }
    }

    /// Whether no range is held.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    fn conflict(&self, id: DispatchId, range: &BufferRange) -> Option<Hazard> {
        if range.is_empty() {
            return None;
        }
        let index = self.buffers.get(&range.buf_id)?;
        let hazard = |kind, (earlier, p0, p1)| Hazard {
            kind,
            earlier,
            later: id,
            buf_id: range.buf_id,
            p0,
            p1,
        };
        let write = index.writes.first_overlap(range.p0, range.p1);
        match range.role {
            MemRangeRole::Src => write.map(|hit| hazard(HazardKind::ReadAfterWrite, hit)),
            MemRangeRole::Dst => {
                write.map(|hit| hazard(HazardKind::WriteAfterWrite, hit)).or_else(|| {
                    let read = index.reads.first_overlap(range.p0, range.p1);
                    read.map(|hit| hazard(HazardKind::WriteAfterRead, hit))
                })
            }
        }
    }
}

/// Disjoint half-open segments keyed by their start.
#[derive(Clone, Debug, Default)]
struct Segments {
    by_start: BTreeMap<u64, (u64, DispatchId)>,
}

impl Segments {
    /// The lowest segment that shares a byte with `p0..p1`, cut to it.
    fn first_overlap(&self, p0: u64, p1: u64) -> Option<(DispatchId, u64, u64)> {
        let before = self.by_start.range(..=p0).next_back();
        let covering = before.filter(|(_, (end, _))| *end > p0);
        let (&start, &(end, id)) = covering.or_else(|| self.by_start.range(p0..p1).next())?;
        Some((id, start.max(p0), end.min(p1)))
    }

    /// Gives `p0..p1` to `id`; what lay there is cut or removed.
    fn insert(&mut self, p0: u64, p1: u64, id: DispatchId) {
        if let Some((&start, &(end, owner))) = self.by_start.range(..p0).next_back()
            && end > p0
        {
            self.by_start.insert(start, (p0, owner));
            if end > p1 {
                self.by_start.insert(p1, (end, owner));
            }
        }
        while let Some((&start, &(end, owner))) = self.by_start.range(p0..p1).next() {
            self.by_start.remove(&start);
            if end > p1 {
                self.by_start.insert(p1, (end, owner));
            }
        }
        self.by_start.insert(p0, (p1, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(p0: u64, p1: u64, role: MemRangeRole) -> BufferRange {
        BufferRange { buf_id: 0, p0, p1, role }
    }

    #[test]
    fn the_hazard_names_kind_node_and_bytes() {
        let mut tracker = ConflictTracker::new();
        tracker.add(DispatchId(7), &[range(0, 64, MemRangeRole::Dst)]);
        tracker.add(DispatchId(8), &[range(128, 256, MemRangeRole::Src)]);
        let hazard = |r| tracker.check(DispatchId(9), [&r]).unwrap_err();
        let raw = hazard(range(32, 96, MemRangeRole::Src));
        assert_eq!(raw.to_string(), "RAW #7 -> #9 on @0 32..64");
        let waw = hazard(range(60, 200, MemRangeRole::Dst));
        assert_eq!(waw.to_string(), "WAW #7 -> #9 on @0 60..64");
        let war = hazard(range(64, 200, MemRangeRole::Dst));
        assert_eq!(war.to_string(), "WAR #8 -> #9 on @0 128..200");
    }

    #[test]
    fn touching_and_empty_ranges_may_join() {
        let mut tracker = ConflictTracker::new();
        tracker.add(DispatchId(0), &[range(64, 128, MemRangeRole::Dst)]);
        for (p0, p1) in [(0, 64), (128, 192), (100, 100)] {
            let r = range(p0, p1, MemRangeRole::Dst);
            assert!(tracker.check(DispatchId(1), [&r]).is_ok(), "{p0}..{p1}");
        }
    }

    #[test]
    fn a_reset_tracker_admits_everything() {
        let mut tracker = ConflictTracker::new();
        let write = range(0, 64, MemRangeRole::Dst);
        tracker.add(DispatchId(0), [&write]);
        assert!(tracker.check(DispatchId(1), [&write]).is_err());
        tracker.reset();
        assert!(tracker.is_empty());
        assert!(tracker.check(DispatchId(1), [&write]).is_ok());
    }

    #[test]
    fn inserting_cuts_and_replaces_older_segments() {
        let mut segments = Segments::default();
        segments.insert(0, 100, DispatchId(0));
        segments.insert(40, 60, DispatchId(1));
        segments.insert(50, 120, DispatchId(2));
        let held: Vec<_> = segments.by_start.iter().map(|(s, (e, id))| (*s, *e, id.0)).collect();
        assert_eq!(held, [(0, 40, 0), (40, 50, 1), (50, 120, 2)]);
    }
}
