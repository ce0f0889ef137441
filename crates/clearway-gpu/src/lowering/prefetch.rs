//! Weights of groups ahead, pulled into the device's cache by groups that leave its memory idle.
//!
//! A group of attention or of a small product waits for latency, not for bytes. Workgroups behind it read
//! what later groups will read, so that those find it closer. This changes no contents and needs no barrier:
//! only ranges that nothing in the list writes are read ahead.

use crate::wgsl::{Kernel, Trust};

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Names the buffer.
    pub(crate) buffer: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Range {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.start < other.start + other.bytes
            && other.start < self.start + self.bytes
    }
}

/// A part of a range of weights to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    /// The group that reads the range, and which of its ranges it is.
    pub(crate) group: usize,
    pub(crate) range: usize,
    /// From the start of the range on.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// What each group reads ahead, from the weights each group reads itself and all that the list writes. At
/// most `window` bytes are read ahead and not yet used at any time, and no group reads more than `window`
/// bytes for that.
pub(crate) fn plan(groups: &[Vec<Range>], written: &[Range], window: u64) -> Vec<Vec<Pull>> {
    let kept = |range: &Range| !written.iter().any(|other| other.overlaps(range));
    let fixed = |range: &Range| if kept(range) { range.bytes } else { 0 };
    let lens: Vec<Vec<u64>> = groups.iter().map(|g| g.iter().map(fixed).collect()).collect();
    let bytes: Vec<u64> = lens.iter().map(|g| g.iter().sum()).collect();
    let mut pulled = vec![0; groups.len()];
    let mut plan = Vec::with_capacity(groups.len());
    for index in 0..groups.len() {
        let mut pulls = Vec::new();
        let mut spare = window.saturating_sub(bytes[index] - pulled[index]);
        let mut held = 0;
        for later in index + 1..groups.len() {
            held += pulled[later];
            let take = spare.min(window.saturating_sub(held)).min(bytes[later] - pulled[later]);
            if spare == 0 || held >= window {
                break;
            }
            // Evenly from all of its ranges, from the front: a gated product reads two side by side.
            for (range, len) in lens[later].iter().enumerate().filter(|(_, len)| **len > 0) {
                let share = |of: u64| u128::from(of) * u128::from(*len) / u128::from(bytes[later]);
                let part = |of: u64| share(of) as u64 / SECTOR * SECTOR;
                let (start, end) = (part(pulled[later]), part(pulled[later] + take));
                if start < end {
                    pulls.push(Pull { group: later, range, start, end });
                }
            }
            pulled[later] += take;
            held += take;
            spare -= take;
        }
        plan.push(pulls);
    }
    plan
}

/// The kernel that reads a part of a range.
pub(crate) fn kernel(pull: &Pull) -> Kernel {
    reader(pull.start, pull.end)
}

/// The kernel that reads the bytes from `start` to `end` of its first binding. It writes to its second binding what no sum of weights is known
/// to be, so that the loads have a purpose.
pub(crate) fn reader(start: u64, end: u64) -> Kernel {
    let (first, sectors) = (start / 4, (end - start) / SECTOR);
    Kernel {
        source: TEXT.to_owned(),
        groups: [sectors.div_ceil(u64::from(SECTORS_OF_GROUP)) as u32, 1, 1],
        words: vec![first as u32, sectors as u32, 0, 0],
        again: Vec::new(),
        scratch: None,
        trust: Trust::Own,
        counted: None,
    }
}

/// Bytes that come into the cache together.
const SECTOR: u64 = 32;
const SECTORS_OF_GROUP: u32 = 1024;
/// Bytes that one workgroup reads.
pub(crate) const GROUP_BYTES: u64 = SECTOR * SECTORS_OF_GROUP as u64;

const TEXT: &str = include_str!("prefetch.wgsl");

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn groups(bytes: &[&[u64]]) -> Vec<Vec<Range>> {
        let range = |&bytes: &u64| Range { buffer: 1, start: 0, bytes };
        bytes.iter().map(|group| group.iter().map(range).collect()).collect()
    }

    fn bytes_of(pulls: &[Pull]) -> u64 {
        pulls.iter().map(|pull| pull.end - pull.start).sum()
    }

    #[test]
    fn idle_groups_read_ahead_and_busy_ones_do_not() {
        let plan = plan(&groups(&[&[], &[4 * MIB], &[32 * MIB, 32 * MIB], &[MIB]]), &[], 16 * MIB);
        // All of the small product, the rest of the window evenly from both large matrices.
        let half = 6 * MIB;
        let expected = [
            Pull { group: 1, range: 0, start: 0, end: 4 * MIB },
            Pull { group: 2, range: 0, start: 0, end: half },
            Pull { group: 2, range: 1, start: 0, end: half },
        ];
        assert_eq!(plan[0], expected);
        // The small product finds its weights close by, so it goes on where the first one ended.
        assert_eq!(plan[1][0], Pull { group: 2, range: 0, start: half, end: half + 2 * MIB });
        assert_eq!(bytes_of(&plan[1]), 4 * MIB);
        assert_eq!(bytes_of(&plan[2]), 0);
    }

    #[test]
    fn no_more_than_the_window_is_ahead() {
        let plan = plan(&groups(&[&[MIB][..]; 40]), &[], 4 * MIB);
        let mut pulled = [0; 40];
        for (index, pulls) in plan.iter().enumerate() {
            for pull in pulls {
                assert!(pull.group > index && pull.start == pulled[pull.group]);
                pulled[pull.group] = pull.end;
            }
            assert!(pulled[index + 1..].iter().sum::<u64>() <= 4 * MIB);
        }
        assert!(pulled[1..].iter().all(|&bytes| bytes == MIB));
    }

    #[test]
    fn what_the_list_writes_is_never_read_ahead() {
        let range = |start, bytes| Range { buffer: 1, start, bytes };
        let groups = [vec![], vec![range(0, MIB), range(MIB, MIB)]];
        let other_buffer = Range { buffer: 2, ..range(0, 4 * MIB) };
        // The last byte of the second range.
        let plan = plan(&groups, &[other_buffer, range(2 * MIB - 1, 1)], 8 * MIB);
        assert_eq!(plan, [vec![Pull { group: 1, range: 0, start: 0, end: MIB }], vec![]]);
    }
}
