//! A partial packing, built upwards, and what follows from it.
//!
//! Every section has a *floor*: no open (not yet placed) block can start below it there. Every open
//! block has a *low*: the lowest offset still possible for it, at least the floors of its sections.
//! The rules, applied until nothing changes:
//!
//! * placing a block lifts its sections' floors to its top and the lows of what it conflicts with;
//! * a floor rises to the smallest low of the open blocks in its section: the bytes in between
//!   are waste, since nothing can start there;
//! * floor plus the bytes still to come in a section must fit the capacity (section bound);
//! * a block that was tried at its low and refused there is *barred*. If everything below it within
//!   its sections were contained in them, block and contents could swap places and it would sit at
//!   the refused offset. So something that crosses its borders lies below it, and its low rises to
//!   the lowest top such a block can have. (Symmetric blocks are the special case of equal
//!   sections.) The bar is lifted when a crossing block is placed.
//!
//! All of it is implied by the floors and the set of open blocks, so a refusal is a fact about that
//! pair alone, and the search may remember it.

use super::part::Part;

/// Higher than any offset plus size, with room to add a size.
const NEVER: u64 = u64::MAX / 2;

/// The conflicts of a part as bit sets of blocks.
pub(super) struct Model {
    /// Words per set.
    words: usize,
    /// Per section, the blocks live in it.
    live: Vec<u64>,
    /// Per block, the blocks that share a section with it.
    conflict: Vec<u64>,
    /// Per block, those of them that reach outside its sections.
    crossing: Vec<u64>,
}

impl Model {
    pub fn new(part: &Part) -> Self {
        let words = part.len().div_ceil(64);
        let mut live = vec![0; part.sections() * words];
        let mut conflict = vec![0; part.len() * words];
        let mut crossing = vec![0; part.len() * words];
        for a in 0..part.len() {
            let range = part.range(a);
            for section in range.clone() {
                live[section * words + a / 64] |= 1 << (a % 64);
            }
            for b in 0..part.len() {
                let other = part.range(b);
                if a != b && range.start < other.end && other.start < range.end {
                    conflict[a * words + b / 64] |= 1 << (b % 64);
                    if other.start < range.start || range.end < other.end {
                        crossing[a * words + b / 64] |= 1 << (b % 64);
                    }
                }
            }
        }
        Self { words, live, conflict, crossing }
    }

    fn crosses(&self, block: usize, other: usize) -> bool {
        self.crossing[block * self.words + other / 64] >> (other % 64) & 1 == 1
    }
}

/// A range of sections that no open block leaves, with the words that hold its open blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from: u32,
    pub to: u32,
}

/// The partial packing.
pub(super) struct State<'a> {
    pub part: &'a Part,
    model: &'a Model,
    pub capacity: u64,
    /// Offsets of the placed blocks.
    pub offsets: Vec<u64>,
    floor: Vec<u64>,
    /// Per section, how many open blocks have their low at the floor.
    support: Vec<u32>,
    /// Per section, the bytes of the open blocks.
    rest: Vec<u64>,
    /// Per section, the open blocks that it shares with the section before.
    bridge: Vec<u32>,
    low: Vec<u64>,
    open: Vec<u64>,
    barred: Vec<u64>,
    /// Per barred block, a crossing block that was low enough when last looked at.
    witness: Vec<u32>,
}

impl<'a> State<'a> {
    pub fn new(part: &'a Part, model: &'a Model) -> Self {
        let (blocks, sections) = (part.len(), part.sections());
        Self {
            part,
            model,
            capacity: 0,
            offsets: vec![0; blocks],
            floor: vec![0; sections],
            support: vec![0; sections],
            rest: vec![0; sections],
            bridge: vec![0; sections + 1],
            low: vec![0; blocks],
            open: vec![0; model.words],
            barred: vec![0; model.words],
            witness: vec![0; blocks],
        }
    }

    /// Back to nothing placed. `None` if the capacity is below a section's load.
    pub fn reset(&mut self, capacity: u64) -> Option<Span> {
        let part = self.part;
        self.capacity = capacity;
        self.floor.fill(0);
        self.support.fill(0);
        self.bridge.fill(0);
        self.low.fill(0);
        self.open.fill(0);
        self.barred.fill(0);
        self.rest.copy_from_slice(&part.load);
        for block in 0..part.len() {
            self.open[block / 64] |= 1 << (block % 64);
            let range = part.range(block);
            self.support[range.clone()].iter_mut().for_each(|count| *count += 1);
            self.bridge[range].iter_mut().skip(1).for_each(|count| *count += 1);
        }
        let span = Span { from: 0, to: part.sections() as u32 };
        (part.bound <= capacity).then_some(span)
    }

    /// The words of the sets that hold the open blocks of a span.
    fn words(&self, span: Span) -> std::ops::Range<usize> {
        let starts = &self.part.starts;
        let (first, end) = (starts[span.from as usize], starts[span.to as usize]);
        first as usize / 64..(end as usize).div_ceil(64)
    }

    /// Places an open block at its low. `false` if the packing cannot be completed.
    pub fn place(&mut self, block: usize, span: Span) -> bool {
        let (part, model) = (self.part, self.model);
        let size = part.size[block];
        let top = self.low[block] + size;
        self.offsets[block] = self.low[block];
        self.open[block / 64] &= !(1 << (block % 64));
        for section in part.range(block) {
            self.floor[section] = top;
            self.support[section] = 0;
            self.rest[section] -= size;
        }
        self.bridge[part.range(block)].iter_mut().skip(1).for_each(|count| *count -= 1);
        for word in self.words(span) {
            let others = model.conflict[block * model.words + word] & self.open[word];
            for other in ones(others & self.barred[word], word) {
                if model.crosses(other, block) {
                    self.barred[word] &= !(1 << (other % 64));
                }
            }
            for other in ones(others, word) {
                if self.low[other] < top && !self.lift(other, top) {
                    return false;
                }
                if self.low[other] == top {
                    // Counted here, so that `settle` need not look through the section.
                    let (a, b) = (part.range(block), part.range(other));
                    let shared = a.start.max(b.start)..a.end.min(b.end);
                    self.support[shared].iter_mut().for_each(|count| *count += 1);
                }
            }
        }
        self.settle(span)
    }

    /// Whether placing the block at its low cannot hurt: nothing else can use those bytes.
    pub fn is_free(&self, block: usize, span: Span) -> bool {
        let model = self.model;
        let top = self.low[block] + self.part.size[block];
        self.words(span).all(|word| {
            let others = model.conflict[block * model.words + word] & self.open[word];
            ones(others, word).all(|other| self.low[other] >= top)
        })
    }

    /// Rules an open block out at its low. `false` if the packing cannot be completed.
    pub fn refuse(&mut self, block: usize, span: Span) -> bool {
        self.barred[block / 64] |= 1 << (block % 64);
        let low = self.lowest_above_crossing(block, span);
        self.lift(block, low) && self.settle(span)
    }

    /// Raises a low. `false` if the block no longer fits.
    fn lift(&mut self, block: usize, low: u64) -> bool {
        let old = std::mem::replace(&mut self.low[block], low);
        let range = self.part.range(block);
        for (count, &floor) in self.support[range.clone()].iter_mut().zip(&self.floor[range]) {
            *count -= u32::from(floor == old);
        }
        low + self.part.size[block] <= self.capacity
    }

    /// The lowest top of an open block that crosses the borders of this one.
    fn lowest_above_crossing(&mut self, block: usize, span: Span) -> u64 {
        let model = self.model;
        let mut lowest = NEVER;
        for word in self.words(span) {
            let others = model.crossing[block * model.words + word] & self.open[word];
            for other in ones(others, word) {
                let top = self.low[other] + self.part.size[other];
                if top < lowest {
                    lowest = top;
                    self.witness[block] = other as u32;
                }
            }
        }
        lowest
    }

    /// Applies the rules until nothing changes. `false` if the packing cannot be completed.
    fn settle(&mut self, span: Span) -> bool {
        loop {
            for section in span.from as usize..span.to as usize {
                if self.support[section] == 0
                    && self.rest[section] != 0
                    && !self.lift_floor(section, span)
                {
                    return false;
                }
            }
            match self.lift_barred(span) {
                Some(true) => {}
                Some(false) => return true,
                None => return false,
            }
        }
    }

    /// Raises a floor that no low stands on any more. `false` if the rest then does not fit.
    fn lift_floor(&mut self, section: usize, span: Span) -> bool {
        let live = &self.model.live[section * self.model.words..][..self.model.words];
        let (mut floor, mut support) = (NEVER, 0);
        for word in self.words(span) {
            for block in ones(live[word] & self.open[word], word) {
                let low = self.low[block];
                if low < floor {
                    (floor, support) = (low, 1);
                } else {
                    support += u32::from(low == floor);
                }
            }
        }
        self.floor[section] = floor;
        self.support[section] = support;
        floor + self.rest[section] <= self.capacity
    }

    /// Raises the lows of barred blocks. `Some(true)` if any rose, `None` if one no longer fits.
    fn lift_barred(&mut self, span: Span) -> Option<bool> {
        let mut rose = false;
        for word in self.words(span) {
            for block in ones(self.barred[word] & self.open[word], word) {
                // Placing the witness lifts the bar, so it is still open here.
                let witness = self.witness[block] as usize;
                if self.low[witness] + self.part.size[witness] <= self.low[block] {
                    continue;
                }
                let low = self.lowest_above_crossing(block, span);
                if low > self.low[block] {
                    if !self.lift(block, low) {
                        return None;
                    }
                    rose = true;
                }
            }
        }
        Some(rose)
    }

    /// The open block to try next: of the section with the fewest choices (weighted by how low and
    /// how tight it is), the one of the lowest rank.
    ///
    /// Only sections in valleys count, ranges of equal floor with higher ones on both sides: what
    /// starts at the floor of a valley lies inside it, so nothing can come to lie below.
    pub fn choose(&self, span: Span, rank: &[u32], low: f32, tight: f32) -> Option<usize> {
        let (from, to) = (span.from as usize, span.to as usize);
        let scale = 1.0 / self.capacity as f32;
        let mut best = (f32::INFINITY, from);
        let mut at = from;
        while at < to {
            let floor = self.floor[at];
            let length = self.floor[at..to].iter().take_while(|&&other| other == floor).count();
            let end = at + length;
            if (at == from || self.floor[at - 1] > floor) && (end == to || self.floor[end] > floor)
            {
                let height = floor as f32 * scale * low;
                for section in at..end {
                    let spare = (self.capacity - floor - self.rest[section]) as f32;
                    let key = self.support[section] as f32 + height + spare * scale * tight;
                    if key < best.0 {
                        best = (key, section);
                    }
                }
            }
            at = end;
        }
        let section = best.1;
        let live = &self.model.live[section * self.model.words..][..self.model.words];
        self.words(span)
            .flat_map(|word| ones(live[word] & self.open[word], word))
            .filter(|&block| self.low[block] == self.floor[section])
            .min_by_key(|&block| rank[block])
    }

    /// Cuts a span where no open block crosses and pushes the pieces with open blocks, the one with
    /// the fewest last.
    pub fn cut(&self, span: Span, pieces: &mut Vec<Span>) {
        let begin = pieces.len();
        let mut from = span.from;
        for to in span.from + 1..=span.to {
            if to == span.to || self.bridge[to as usize] == 0 {
                // All sections of a piece are connected by open blocks, or it is one empty section.
                if self.rest[from as usize] != 0 {
                    pieces.push(Span { from, to });
                }
                from = to;
            }
        }
        if pieces.len() > begin + 1 {
            pieces[begin..].sort_by_key(|&piece| std::cmp::Reverse(self.open_count(piece)));
        }
    }

    fn open_count(&self, span: Span) -> u32 {
        self.open_words(span).map(|(_, word)| word.count_ones()).sum()
    }

    /// The open blocks of a span, as words with their positions.
    fn open_words(&self, span: Span) -> impl Iterator<Item = (usize, u64)> {
        let starts = &self.part.starts;
        let (first, end) = (starts[span.from as usize] as usize, starts[span.to as usize] as usize);
        (first / 64..end.div_ceil(64)).map(move |word| {
            let below = first.saturating_sub(word * 64);
            let above = (word * 64 + 64).saturating_sub(end);
            (word, self.open[word] & (u64::MAX << below) & (u64::MAX >> above))
        })
    }

    /// Two independent hashes of the floors and the open blocks of a span.
    pub fn hash(&self, span: Span) -> (u64, u64) {
        let seed = u64::from(span.from) << 32 | u64::from(span.to);
        let mut hash = (mix(seed), mix(!seed));
        let mut add = |key: u64, place: u64| {
            let x = (key ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_mul(0xd6e8_feb8_6659_fd93);
            let y = x ^ (x >> 32);
            hash.0 = hash.0.wrapping_add(y.wrapping_mul(0xff51_afd7_ed55_8ccd));
            hash.1 = hash.1.wrapping_add(y.wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ (y >> 29));
        };
        for section in span.from..span.to {
            add(self.floor[section as usize], u64::from(section) + 1);
        }
        for (word, bits) in self.open_words(span) {
            add(bits, !(word as u64));
        }
        (mix(hash.0), mix(hash.1))
    }

    /// Appends everything a span's state consists of.
    pub fn save(&self, span: Span, to: &mut Saved) {
        let part = self.part;
        let sections = span.from as usize..span.to as usize;
        let blocks = part.starts[sections.start] as usize..part.starts[sections.end] as usize;
        let words = self.words(span);
        to.wide.extend_from_slice(&self.floor[sections.clone()]);
        to.wide.extend_from_slice(&self.rest[sections.clone()]);
        to.wide.extend_from_slice(&self.low[blocks]);
        to.wide.extend_from_slice(&self.open[words.clone()]);
        to.wide.extend_from_slice(&self.barred[words]);
        to.narrow.extend_from_slice(&self.support[sections.clone()]);
        to.narrow.extend_from_slice(&self.bridge[sections]);
    }

    /// Takes back what `save` appended at `mark`. Words at the ends of the span may hold blocks of
    /// its neighbours, whose state has not changed in between: only one span is worked on at a time.
    pub fn restore(&mut self, span: Span, from: &Saved, mark: Mark) {
        let part = self.part;
        let sections = span.from as usize..span.to as usize;
        let blocks = part.starts[sections.start] as usize..part.starts[sections.end] as usize;
        let words = self.words(span);
        let mut wide = &from.wide[mark.wide..];
        let mut read = |to: &mut [u64]| {
            let (values, rest) = wide.split_at(to.len());
            to.copy_from_slice(values);
            wide = rest;
        };
        read(&mut self.floor[sections.clone()]);
        read(&mut self.rest[sections.clone()]);
        read(&mut self.low[blocks]);
        read(&mut self.open[words.clone()]);
        read(&mut self.barred[words]);
        let (support, bridge) = from.narrow[mark.narrow..].split_at(sections.len());
        self.support[sections.clone()].copy_from_slice(support);
        self.bridge[sections.clone()].copy_from_slice(&bridge[..sections.len()]);
    }
}

/// A stack of saved span states.
#[derive(Default)]
pub(super) struct Saved {
    wide: Vec<u64>,
    narrow: Vec<u32>,
}

/// A height of that stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    wide: usize,
    narrow: usize,
}

impl Saved {
    pub fn mark(&self) -> Mark {
        Mark { wide: self.wide.len(), narrow: self.narrow.len() }
    }

    pub fn truncate(&mut self, mark: Mark) {
        self.wide.truncate(mark.wide);
        self.narrow.truncate(mark.narrow);
    }
}

/// The positions of the ones of a word, as block numbers.
fn ones(mut bits: u64, word: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            word * 64 + bit
        })
    })
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}
