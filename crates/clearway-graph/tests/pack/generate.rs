//! Made-up placement problems, the same for the same seed everywhere.

use clearway_graph::pack::Item;

/// How a rectangle is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// By straight cuts from side to side.
    Guillotine,
    /// Three cuts in ten make a pinwheel of five, which no straight cuts can.
    Pinwheel,
    /// Pinwheels, and one piece in ten then lives up to half as long: the optimum stays known, but
    /// the perfect fit that guides a placer is gone.
    Shortened,
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// Side of the rectangle that is cut, in steps of time and in units of [`UNIT`] bytes.
pub const SIDE: u64 = 1024;

/// Bytes per unit.
pub const UNIT: u64 = 1024;

/// A problem of about `count` items that fits `SIDE * UNIT` bytes: the pieces of a rectangle.
pub fn cut(count: usize, seed: u64, kind: Cut) -> Vec<Item> {
    let mut random = Random(seed);
    // x, y, width, height
    let mut pieces = vec![[0, 0, SIDE, SIDE]];
    while pieces.len() < count {
        // The largest of three at random, so that no piece stays huge.
        let area = |at: usize| pieces[at][2] * pieces[at][3];
        let mut pick = || random.below(pieces.len() as u64) as usize;
        let (a, b, c) = (pick(), pick(), pick());
        let at = [a, b, c].into_iter().max_by_key(|&at| area(at)).unwrap_or(a);
        let [x, y, width, height] = pieces[at];
        let dice = random.below(10);
        if kind != Cut::Guillotine && dice < 3 && width >= 6 && height >= 6 {
            let x1 = 1 + random.below(width / 2 - 1);
            let x2 = x1 + 1 + random.below(width - x1 - 2);
            let y1 = 1 + random.below(height / 2 - 1);
            let y2 = y1 + 1 + random.below(height - y1 - 2);
            pieces.swap_remove(at);
            pieces.push([x, y, x2, y1]);
            pieces.push([x + x2, y, width - x2, y2]);
            pieces.push([x + x1, y + y2, width - x1, height - y2]);
            pieces.push([x, y + y1, x1, height - y1]);
            pieces.push([x + x1, y + y1, x2 - x1, y2 - y1]);
        } else if dice.is_multiple_of(2) && width > 1 {
            let cut = 1 + random.below(width - 1);
            pieces.swap_remove(at);
            pieces.push([x, y, cut, height]);
            pieces.push([x + cut, y, width - cut, height]);
        } else if height > 1 {
            let cut = 1 + random.below(height - 1);
            pieces.swap_remove(at);
            pieces.push([x, y, width, cut]);
            pieces.push([x, y + cut, width, height - cut]);
        }
    }
    let items = pieces.iter().zip(0..).map(|(&[x, _, width, height], id)| {
        let (mut lower, mut upper) = (x, x + width);
        if kind == Cut::Shortened && width > 1 && random.below(10) == 0 {
            let less = random.below(width) / 2;
            if random.below(2) == 0 { lower += less } else { upper -= less }
        }
        Item { id, lower, upper, size: height * UNIT }
    });
    items.collect()
}

/// The values of a decoder: per layer the residual, norms, projections, attention and feed-forward
/// values of one recorded step, with their lifetimes over the order of the operations.
pub fn decoder(layers: u32, width: u64, hidden: u64, tokens: u64) -> Vec<Item> {
    let mut items = Vec::new();
    let mut step = 0;
    let mut add = |lower: u64, upper: u64, elements: u64| {
        let id = items.len() as u32;
        items.push(Item { id, lower, upper, size: elements * tokens * 4 });
    };
    add(0, 1, width);
    for _ in 0..layers {
        // (first step, steps alive, elements) of one layer.
        let values = [
            (0, 10, width),
            (0, 4, width),
            (1, 3, width),
            (2, 2, width / 4),
            (3, 2, width / 4),
            (4, 2, width),
            (5, 1, 2 * width),
            (6, 2, width),
            (7, 2, width),
            (8, 7, width),
            (9, 3, width),
            (10, 3, hidden),
            (11, 2, hidden),
            (12, 2, hidden),
            (13, 2, width),
            (14, 1, width),
        ];
        for (first, alive, elements) in values {
            add(step + first, step + first + alive, elements);
        }
        step += 15;
    }
    add(step, step + 2, width);
    add(step + 1, step + 3, 32 * width);
    items
}

/// Values of a very large graph: most live for a few steps, some for long, sizes over four decades.
pub fn crowd(count: u32, seed: u64) -> Vec<Item> {
    let mut random = Random(seed);
    let items = (0..count).map(|id| {
        let lower = u64::from(id / 2) + random.below(4);
        let life = match random.below(100) {
            0 => 1 + random.below(2000),
            1..10 => 1 + random.below(100),
            _ => 1 + random.below(8),
        };
        let size = (1 + random.below(63)) << (6 + random.below(9));
        Item { id, lower, upper: lower + life, size }
    });
    items.collect()
}

/// A problem of exactly `count` items whose live bytes are `load` at every instant: whatever ends
/// is replaced by as many bytes, cut differently. Small ones often have no packing of that height.
pub fn brimful(count: usize, load: u64, random: &mut Random) -> Vec<Item> {
    loop {
        let mut items: Vec<Item> = Vec::new();
        let mut live: Vec<usize> = Vec::new();
        let (mut time, mut free) = (0, load);
        while items.len() < count {
            while free > 0 {
                let size = 1 + random.below(free.min(load / 2));
                live.push(items.len());
                items.push(Item { id: items.len() as u32, lower: time, upper: u64::MAX, size });
                free -= size;
            }
            time += 1;
            for _ in 0..(1 + random.below(3)).min(live.len() as u64) {
                let ended = live.swap_remove(random.below(live.len() as u64) as usize);
                items[ended].upper = time;
                free += items[ended].size;
            }
        }
        items.iter_mut().for_each(|item| item.upper = item.upper.min(time));
        if items.len() == count {
            return items;
        }
    }
}
