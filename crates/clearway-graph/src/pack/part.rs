//! The time axis reduced to what matters, and cut where nothing is live across.
//!
//! Two values conflict exactly when they meet in a *section*: a maximal set of values live at one
//! instant. Every other instant holds a subset of a neighbouring section, so its load is no larger
//! and its conflicts are no others. Times become section numbers, at most one per value.

/// An item to place, with its rounded size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Position in the caller's slice.
    pub index: u32,
    /// Start of the lifetime.
    pub lower: u64,
    /// End of the lifetime.
    pub upper: u64,
    /// Rounded size, never 0.
    pub size: u64,
}

/// The lowest packing known of a part.
#[derive(Clone, Debug, Default)]
pub(super) struct Best {
    /// Offset per block of the part.
    pub offsets: Vec<u64>,
    /// Its height, `u64::MAX` before the first packing.
    pub height: u64,
    /// What found it.
    pub strategy: String,
}

/// Blocks that are connected in time, sorted by their first section, and what is known of them.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Position of each block in the caller's slice.
    pub index: Vec<u32>,
    /// Bytes of each block.
    pub size: Vec<u64>,
    /// Duration of each block on the caller's time axis.
    pub life: Vec<u64>,
    /// First section of each block; non-decreasing.
    pub first: Vec<u32>,
    /// One past the last section of each block.
    pub last: Vec<u32>,
    /// Bytes live in each section.
    pub load: Vec<u64>,
    /// For each section, and one past the last, the first block that does not start before it.
    pub starts: Vec<u32>,
    /// Pairs of blocks that conflict: the work a greedy order costs.
    pub pairs: u64,
    /// The largest load.
    pub bound: u64,
    /// The best lower bound proved; starts as `bound`.
    pub proven: u64,
    /// The lowest packing known.
    pub best: Best,
}

impl Part {
    /// Blocks of the part.
    pub fn len(&self) -> usize {
        self.size.len()
    }

    /// Sections of the part.
    pub fn sections(&self) -> usize {
        self.load.len()
    }

    /// Section range of a block.
    pub fn range(&self, block: usize) -> std::ops::Range<usize> {
        self.first[block] as usize..self.last[block] as usize
    }

    /// The largest load that a block is part of.
    pub fn peak(&self, block: usize) -> u64 {
        self.load[self.range(block)].iter().copied().max().unwrap_or(0)
    }

    /// Keeps a packing if it is the lowest so far.
    pub fn offer(&mut self, offsets: Vec<u64>, strategy: impl FnOnce() -> String) {
        let height = self.height_of(&offsets);
        if height < self.best.height {
            self.best = Best { offsets, height, strategy: strategy() };
        }
    }

    /// Height of a packing of this part.
    pub fn height_of(&self, offsets: &[u64]) -> u64 {
        let ends = offsets.iter().zip(&self.size).map(|(offset, size)| offset + size);
        ends.max().unwrap_or(0)
    }

    /// One part from blocks sorted by first section, whose sections start at 0.
    fn new(blocks: &[(Block, u32, u32)], sections: usize) -> Self {
        // Differences wrap; the sums they stand for do not, since all sizes together fit 64 bits.
        let mut load = vec![0u64; sections + 1];
        let mut starts = vec![0u32; sections + 1];
        let mut ends = vec![0u64; sections + 1];
        for &(block, first, last) in blocks {
            let (from, to) = (first as usize, last as usize);
            load[from] = load[from].wrapping_add(block.size);
            load[to] = load[to].wrapping_sub(block.size);
            starts[first as usize] += 1;
            ends[last as usize] += 1;
        }
        let (mut live, mut begun, mut bytes, mut pairs) = (0u64, 0u32, 0u64, 0u64);
        let mut loads = Vec::with_capacity(sections);
        for section in 0..=sections {
            let fresh = std::mem::replace(&mut starts[section], begun);
            begun += fresh;
            let fresh = u64::from(fresh);
            live -= ends[section];
            pairs += fresh * live + fresh * fresh.saturating_sub(1) / 2;
            live += fresh;
            bytes = bytes.wrapping_add(load[section]);
            loads.push(bytes);
        }
        loads.truncate(sections);
        let bound = loads.iter().copied().max().unwrap_or(0);
        Self {
            index: blocks.iter().map(|b| b.0.index).collect(),
            size: blocks.iter().map(|b| b.0.size).collect(),
            life: blocks.iter().map(|b| b.0.upper - b.0.lower).collect(),
            first: blocks.iter().map(|b| b.1).collect(),
            last: blocks.iter().map(|b| b.2).collect(),
            load: loads,
            starts,
            pairs,
            bound,
            proven: bound,
            best: Best { height: u64::MAX, ..Best::default() },
        }
    }
}

/// Cuts the blocks into parts that share no instant, in order of time.
pub(super) fn split(blocks: &[Block]) -> Vec<Part> {
    let instants = section_instants(blocks);
    let section_of = |time: u64| instants.partition_point(|&instant| instant < time) as u32;
    let mut placed: Vec<(Block, u32, u32)> = blocks
        .iter()
        .map(|&block| (block, section_of(block.lower), section_of(block.upper)))
        .collect();
    placed.sort_unstable_by_key(|&(block, first, last)| (first, last, block.size, block.index));

    let mut parts = Vec::new();
    let (mut begin, mut reach) = (0, 0);
    for at in 0..=placed.len() {
        let next = placed.get(at).map(|&(_, first, last)| (first, last));
        if next.is_none_or(|(first, _)| first >= reach) && at > begin {
            let origin = placed[begin].1;
            for entry in &mut placed[begin..at] {
                entry.1 -= origin;
                entry.2 -= origin;
            }
            parts.push(Part::new(&placed[begin..at], (reach - origin) as usize));
            begin = at;
        }
        if let Some((_, last)) = next {
            reach = reach.max(last);
        }
    }
    parts
}

/// One instant of every maximal section, in order: the last start before each end that follows one.
fn section_instants(blocks: &[Block]) -> Vec<u64> {
    let mut lowers: Vec<u64> = blocks.iter().map(|block| block.lower).collect();
    let mut uppers: Vec<u64> = blocks.iter().map(|block| block.upper).collect();
    lowers.sort_unstable();
    uppers.sort_unstable();
    let mut instants = Vec::new();
    let mut ends = uppers.into_iter().peekable();
    let mut open = None;
    for lower in lowers {
        // Lifetimes are half-open: what ends at `lower` is gone before the start.
        while ends.next_if(|&end| end <= lower).is_some() {
            instants.extend(open.take());
        }
        open = Some(lower);
    }
    instants.extend(open);
    instants
}
