//! A chain of products as one kernel whose workgroups stay and meet after each: for measurements only.
//!
//! It shows what a dependent phase costs without barriers between dispatches. Guards on every index and loop would be
//! measured, too, so it is compiled without them. Its text is made from numbers here, and its operands
//! are held against these numbers before it is dispatched: nobody else can make it reach outside.

use clearway_graph::{DType, Layout, TensorView};

use crate::registry::WgslKernel;

/// Loads of a lane in a phase at most: they all are in registers.
const HELD: usize = 16;

/// Looks at the counter before a workgroup gives up: hundredths of a second on a GPU, where each takes most of a
/// microsecond and a phase takes a few. Some software drivers end every loop after 65,535 turns without a word, and
/// the kernel must be the one to say so.
const LIMIT: usize = 1 << 15;

/// How the workgroups of the kernel meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// They count themselves in and wait for the others.
    Counter,
    /// So they do, with the weights of the next phase under way meanwhile.
    Ahead,
    /// They wait for the numbers themselves, which say what phase they are for; weights as before.
    Tagged,
}

/// `phases` products of a row of `n` numbers with `n` by `n` matrices of f16, each added to the row.
///
/// Its operands are the matrices one below the other, the row, the result, and a word that counts the arrivals of
/// workgroups at meetings. The highest bit of that word says that not all workgroups were resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentChain {
    /// Numbers of the row.
    pub n: usize,
    /// Products.
    pub phases: usize,
    /// Workgroups.
    pub groups: usize,
    /// Invocations of a workgroup.
    pub width: usize,
    /// Lanes that share a row of a matrix.
    pub team: usize,
    /// How workgroups meet.
    pub meeting: Meeting,
}

impl ResidentChain {
    /// The kernel; `None` where a lane would hold more than it can or a workgroup have no row.
    pub fn kernel(&self) -> Option<WgslKernel> {
        let chain = *self;
        let groups = u32::try_from(self.groups).ok()?;
        let grid = move |views: &[TensorView], _: &[u32]| match chain.fits(views) {
            true => [groups, 1, 1],
            // No workgroup at all is refused.
            false => [0; 3],
        };
        let kernel = WgslKernel::new(&self.text()?, grid);
        let kernel = kernel.quads(0).scratch(2 * 4 * self.n as u64, 2 + 2 * self.n as u32);
        // SAFETY: `text` makes every index from numbers that `fits` holds the operands against before each
        // dispatch, every loop ends after LIMIT turns or a constant number of them, and workgroup memory is
        // written before it is read.
        Some(unsafe { kernel.unchecked() })
    }

    /// Whether these are operands of the sizes the text counts with.
    fn fits(&self, views: &[TensorView]) -> bool {
        let [weights, x, y, state] = views else { return false };
        let Self { n, phases, .. } = *self;
        let is = |view: &TensorView, dtype: DType, shape: &[usize]| {
            Layout::new(dtype, shape).is_ok_and(|layout| layout == view.layout)
        };
        is(weights, DType::F16, &[phases * n, n])
            && is(x, DType::F32, &[1, n])
            && is(y, DType::F32, &[1, n])
            && is(state, DType::U32, &[1])
    }

    /// The text, with lines for several loads, rows or numbers repeated.
    fn text(&self) -> Option<String> {
        let Self { n, phases, groups, width, team, meeting } = *self;
        let whole = n > 0 && n.is_multiple_of(8) && phases > 0 && groups > 0;
        if !whole || team == 0 || width < team || !width.is_multiple_of(team) {
            return None;
        }
        let turns = n.div_ceil(width / team * groups);
        let loads = (n / 8).div_ceil(team);
        let share = n.div_ceil(width);
        let held = turns * loads;
        let tagged = meeting == Meeting::Tagged;
        // Tagged numbers say that a workgroup has read the last ones only if it has a row to leave.
        if held > HELD || turns > team || (tagged && groups > n) {
            return None;
        }
        let mut text = String::new();
        for (name, value) in [
            ("N", n),
            ("PHASES", phases),
            ("GROUPS", groups),
            ("WG", width),
            ("TEAM", team),
            ("TURNS", turns),
            ("LOADS", loads),
            ("SHARE", share),
            ("LIMIT", LIMIT),
        ] {
            text += &format!("const {name} = {value}u;\n");
        }
        let ahead = meeting != Meeting::Counter;
        text += &format!("const AHEAD = {ahead};\nconst TAGGED = {tagged};\n");
        // Comments tell of the marks, too.
        let lines = include_str!("resident.wgsl").lines();
        for line in lines.filter(|line| !line.trim_start().starts_with("//")) {
            let (mark, count) = match line {
                _ if line.contains("$h") => ("$h", held),
                _ if line.contains("$t") => ("$t", turns),
                _ if line.contains("$s") => ("$s", share),
                _ => ("", 1),
            };
            for index in 0..count {
                let row = (index / loads).to_string();
                let line = line.replace("$q", &row);
                text +=
                    &if mark.is_empty() { line } else { line.replace(mark, &index.to_string()) };
                text.push('\n');
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: ResidentChain = ResidentChain {
        n: 576,
        phases: 4,
        groups: 1,
        width: 32,
        team: 32,
        meeting: Meeting::Counter,
    };

    #[test]
    fn chains_that_hold_too_much_or_nothing_have_no_kernel() {
        assert!(CHAIN.kernel().is_none());
        let many = ResidentChain { groups: 577, ..CHAIN };
        assert!(many.kernel().is_some());
        assert!(ResidentChain { meeting: Meeting::Tagged, ..many }.kernel().is_none());
        assert!(ResidentChain { n: 0, ..many }.kernel().is_none());
        assert!(ResidentChain { width: 31, ..many }.kernel().is_none());
    }

    #[test]
    fn operands_of_other_sizes_start_no_workgroup() {
        let chain = ResidentChain { groups: 577, ..CHAIN };
        let kernel = chain.kernel().unwrap();
        let view = |dtype, shape: &[usize]| {
            let layout = Layout::new(dtype, shape).unwrap();
            TensorView { buf_id: 0, buf_len: layout.span_bytes(), offset: 0, layout }
        };
        let mut views = vec![
            view(DType::F16, &[4 * 576, 576]),
            view(DType::F32, &[1, 576]),
            view(DType::F32, &[1, 576]),
            view(DType::U32, &[1]),
        ];
        assert_eq!((kernel.groups)(&views, &[]), [577, 1, 1]);
        views[0] = view(DType::F16, &[3 * 576, 576]);
        assert_eq!((kernel.groups)(&views, &[]), [0; 3]);
        assert_eq!((kernel.groups)(&views[1..], &[]), [0; 3]);
    }
}
