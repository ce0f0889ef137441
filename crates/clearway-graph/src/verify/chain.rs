//! The longest chain of a list: no order of it has fewer groups.

use smallvec::SmallVec;

use super::intervals::{Intervals, Payload};
use super::table::Table;
use crate::node::Dispatch;
use crate::range::MemRangeRole;

/// How many dispatches of a list each must wait for the one before, by the bytes they share.
pub(super) struct Chain {
    buffers: Table<Intervals<Links>>,
    longest: u32,
    /// Links before the last dispatch with unknown access, itself included.
    floor: u32,
}

impl Chain {
    /// The chain of a list of this many dispatches, before the first.
    pub(super) fn for_list(dispatches: usize) -> Self {
        Self { buffers: Table::for_list(dispatches), longest: 0, floor: 0 }
    }

    /// Length of the longest chain so far.
    pub(super) const fn longest(&self) -> u32 {
        self.longest
    }

    /// Adds the next dispatch of the list.
    pub(super) fn add(&mut self, dispatch: &Dispatch) {
        let Self { buffers, longest, floor } = self;
        if !dispatch.is_annotated() {
            *longest += 1;
            *floor = *longest;
            buffers.clear();
            return;
        }
        let mut before = *floor;
        for range in dispatch.ranges() {
            let Some(intervals) = buffers.get(range.buf_id) else { continue };
            intervals.visit(range.p0, range.p1, |_, _, links| {
                let links = links.unwrap_or_default();
                before = before.max(match range.role {
                    MemRangeRole::Src => links.written,
                    MemRangeRole::Dst => links.written.max(links.read),
                });
            });
        }
        let link = before + 1;
        *longest = link.max(*longest);
        for range in dispatch.ranges().filter(|r| r.role == MemRangeRole::Src) {
            note_read(buffers.entry(range.buf_id, Intervals::default), range.p0, range.p1, link);
        }
        for range in dispatch.ranges().filter(|r| r.role == MemRangeRole::Dst) {
            let links = Links { written: link, read: 0 };
            buffers.entry(range.buf_id, Intervals::default).assign(range.p0, range.p1, links);
        }
    }
}

/// Links of the longest chains that end in a write or a read of these bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Links {
    written: u32,
    read: u32,
}

impl Payload for Links {
    fn advance(self, _: u64) -> Self {
        self
    }
}

fn note_read(intervals: &mut Intervals<Links>, p0: u64, p1: u64, link: u32) {
    let mut pieces: SmallVec<[(u64, u64, Links); 4]> = SmallVec::new();
    intervals.visit(p0, p1, |from, to, links| {
        let links = links.unwrap_or_default();
        let links = Links { read: links.read.max(link), ..links };
        match pieces.last_mut() {
            // Equal neighbours become one, or a buffer read in many ways would fall to pieces.
            Some((_, end, held)) if *held == links => *end = to,
            _ => pieces.push((from, to, links)),
        }
    });
    for (from, to, links) in pieces {
        intervals.assign(from, to, links);
    }
}
