//! The exact search: is there a packing of at most this height?
//!
//! Depth first over "this block lies at its lowest offset / it does not". The block is chosen in a
//! section with few choices, so that dead ends show early, and after each placement the time axis
//! falls apart where no open block crosses: each piece is then searched alone, and a piece that
//! fails refutes the placement whatever the others do. Refuted pieces are remembered by their
//! floors and open blocks, since a refusal follows from these alone (see `state`).
//!
//! The loop keeps its own stack: depth is the number of blocks, which no thread's stack has to fit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::part::Part;
use super::state::{Mark, Model, Saved, Span, State};
use super::strategy::Strategy;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A packing was found; the offsets are in the state.
    Packed,
    /// There is none.
    Infeasible,
    /// The node budget ran out.
    Exhausted,
    /// Another run of the round has won with fewer nodes.
    Beaten,
    /// The deadline passed.
    Late,
}

/// What may end a run from outside.
pub(super) struct Stop<'a> {
    /// The fewest nodes after which a run of this round came to a result.
    pub fewest: &'a AtomicU64,
    /// The wall clock, for the command only.
    pub deadline: Option<Instant>,
}

/// Nodes between looks at `Stop`; a power of two.
const POLL: u64 = 64;

/// A placement being tried in a span.
struct Frame {
    span: Span,
    hash: (u64, u64),
    /// The span's state before the placement.
    mark: Mark,
    block: u32,
    /// Nothing else can use the bytes: if the placement fails, so does the span.
    free: bool,
    /// Length of `pieces` without the pieces this placement left.
    pieces: usize,
}

/// A searcher of one part, reused from run to run.
pub(super) struct Search<'a> {
    state: State<'a>,
    memo: Memo,
    frames: Vec<Frame>,
    /// Pieces still to be packed; those of the last frame are at the end.
    pieces: Vec<Span>,
    saved: Saved,
    nodes: u64,
}

impl<'a> Search<'a> {
    pub fn new(part: &'a Part, model: &'a Model) -> Self {
        Self {
            state: State::new(part, model),
            memo: Memo::new(part.len()),
            frames: Vec::new(),
            pieces: Vec::new(),
            saved: Saved::default(),
            nodes: 0,
        }
    }

    /// The packing, after a run that ended with one.
    pub fn offsets(&self) -> &[u64] {
        &self.state.offsets
    }

    /// Forgets refuted pieces, so that later runs do not depend on how far this thread got.
    pub fn forget(&mut self) {
        self.memo.clear();
    }

    /// Looks for a packing within `capacity`; also returns the nodes used, at most `budget`.
    pub fn run(
        &mut self,
        capacity: u64,
        strategy: &Strategy,
        budget: u64,
        stop: &Stop<'_>,
    ) -> (Outcome, u64) {
        self.frames.clear();
        self.pieces.clear();
        self.saved.truncate(Mark::default());
        self.nodes = 0;
        let outcome = match self.state.reset(capacity) {
            None => Outcome::Infeasible,
            Some(span) => {
                self.state.cut(span, &mut self.pieces);
                self.descend(strategy, budget, stop)
            }
        };
        if matches!(outcome, Outcome::Packed | Outcome::Infeasible) {
            stop.fewest.fetch_min(self.nodes, Ordering::Relaxed);
        }
        (outcome, self.nodes)
    }

    fn descend(&mut self, strategy: &Strategy, budget: u64, stop: &Stop<'_>) -> Outcome {
        let mut feasible = true;
        loop {
            // Either the next open piece becomes a frame, or the last frame's placement has failed
            // and the block is refused there; both leave a frame that needs its next placement.
            let ready = if feasible { self.enter() } else { self.refuse() };
            match ready {
                Step::Place => {}
                Step::Piece(solved) => {
                    feasible = solved;
                    continue;
                }
                Step::Done(outcome) => return outcome,
            }
            if self.nodes >= budget {
                return Outcome::Exhausted;
            }
            if self.nodes.is_multiple_of(POLL) {
                if self.nodes > stop.fewest.load(Ordering::Relaxed) {
                    return Outcome::Beaten;
                }
                if stop.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Outcome::Late;
                }
            }
            self.nodes += 1;
            match self.place(strategy) {
                Some(placed) => feasible = placed,
                None => return Outcome::Exhausted,
            }
        }
    }

    /// Takes up the next piece, or closes the last frame if all its pieces are packed.
    fn enter(&mut self) -> Step {
        let own = self.frames.last().map_or(0, |frame| frame.pieces);
        if self.pieces.len() == own {
            // A packed span keeps its state: it may still be undone with the frame above.
            return match self.frames.pop() {
                None => Step::Done(Outcome::Packed),
                Some(frame) => {
                    self.saved.truncate(frame.mark);
                    Step::Piece(true)
                }
            };
        }
        let Some(span) = self.pieces.pop() else {
            return Step::Done(Outcome::Packed);
        };
        let hash = self.state.hash(span);
        if self.memo.refuted(hash, self.state.capacity) {
            return Step::Piece(false);
        }
        let mark = self.saved.mark();
        self.state.save(span, &mut self.saved);
        self.frames.push(Frame {
            span,
            hash,
            mark,
            block: 0,
            free: false,
            pieces: self.pieces.len(),
        });
        Step::Place
    }

    /// Undoes the failed placement of the last frame and rules it out.
    fn refuse(&mut self) -> Step {
        let Some(frame) = self.frames.last() else {
            return Step::Done(Outcome::Infeasible);
        };
        self.pieces.truncate(frame.pieces);
        self.state.restore(frame.span, &self.saved, frame.mark);
        self.saved.truncate(frame.mark);
        if frame.free || !self.state.refuse(frame.block as usize, frame.span) {
            self.memo.insert(frame.hash, self.state.capacity);
            self.frames.pop();
            return Step::Piece(false);
        }
        self.state.save(frame.span, &mut self.saved);
        Step::Place
    }

    /// Places the next block of the last frame. `None` only if there is no block to choose, which
    /// the rules of the state exclude.
    fn place(&mut self, strategy: &Strategy) -> Option<bool> {
        let frame = self.frames.last_mut()?;
        let chosen = self.state.choose(frame.span, &strategy.rank, strategy.low, strategy.tight);
        debug_assert!(chosen.is_some(), "an open span has a valley with a block that fits it");
        let block = chosen?;
        frame.block = block as u32;
        frame.free = self.state.is_free(block, frame.span);
        let placed = self.state.place(block, frame.span);
        if placed {
            self.state.cut(frame.span, &mut self.pieces);
        }
        Some(placed)
    }
}

/// What to do next.
enum Step {
    /// The last frame needs a placement.
    Place,
    /// A piece of the last frame was packed or refuted.
    Piece(bool),
    /// The run is over.
    Done(Outcome),
}

/// Pieces known to have no packing, in a table that overwrites on collision.
struct Memo {
    /// Tag and the largest capacity refuted.
    table: Vec<(u64, u64)>,
}

impl Memo {
    fn new(blocks: usize) -> Self {
        let entries = (blocks * 1024).next_power_of_two().clamp(1 << 12, 1 << 18);
        Self { table: vec![(0, 0); entries] }
    }

    fn clear(&mut self) {
        self.table.fill((0, 0));
    }

    fn slot(&self, hash: (u64, u64)) -> usize {
        hash.0 as usize & (self.table.len() - 1)
    }

    fn refuted(&self, hash: (u64, u64), capacity: u64) -> bool {
        let (tag, refuted) = self.table[self.slot(hash)];
        tag == hash.1 && capacity <= refuted
    }

    fn insert(&mut self, hash: (u64, u64), capacity: u64) {
        let slot = self.slot(hash);
        self.table[slot] = (hash.1, capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::Memo;

    #[test]
    fn a_refusal_holds_up_to_its_capacity() {
        let mut memo = Memo::new(4);
        let (hash, same_slot) = ((5, 77), (5, 78));
        assert!(!memo.refuted(hash, 100));
        memo.insert(hash, 100);
        assert!(memo.refuted(hash, 100) && memo.refuted(hash, 99));
        assert!(!memo.refuted(hash, 101));
        assert!(!memo.refuted(same_slot, 100));
        memo.clear();
        assert!(!memo.refuted(hash, 100));
    }
}
