//! Steps between two barriers, and who works on which of their pieces.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps that need no barrier between them.
pub(super) struct Group {
    pub(super) steps: Range<usize>,
    pub(super) pieces: usize,
    /// One for each worker.
    shares: Vec<Share>,
}

/// Pieces that a worker claims first. They follow each other, since neighbours read memory that lies together, and what one
/// asks for ahead of time the next one needs. A worker that has none left takes from the others.
#[repr(align(64))]
struct Share {
    pieces: Range<usize>,
    /// Next piece to claim.
    next: AtomicUsize,
}

impl Group {
    pub(super) fn new(steps: Range<usize>, pieces: usize, workers: usize) -> Self {
        let share = |worker| {
            let pieces = pieces * worker / workers..pieces * (worker + 1) / workers;
            Share { next: AtomicUsize::new(pieces.start), pieces }
        };
        Self { steps, pieces, shares: (0..workers).map(share).collect() }
    }

    /// Gives all pieces out again.
    pub(super) fn restart(&self) {
        for share in &self.shares {
            share.next.store(share.pieces.start, Ordering::Relaxed);
        }
    }

    /// A piece that nobody else has; `None` if there are none left.
    pub(super) fn claim(&self, worker: usize) -> Option<usize> {
        let (before, own) = self.shares.split_at(worker);
        own.iter().chain(before).find_map(|share| {
            // A share that is used up is only looked at: writing would take its line from the others.
            if share.next.load(Ordering::Relaxed) >= share.pieces.end {
                return None;
            }
            let piece = share.next.fetch_add(1, Ordering::Relaxed);
            (piece < share.pieces.end).then_some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_takes_its_own_pieces_in_order_and_then_those_of_others() {
        let group = Group::new(0..1, 8, 3);
        assert_eq!([group.claim(1), group.claim(1), group.claim(2)], [Some(2), Some(3), Some(5)]);
        // What is left of its own, of the worker behind it, and of the one before it.
        let rest: Vec<usize> = std::iter::from_fn(|| group.claim(1)).collect();
        assert_eq!(rest, [4, 6, 7, 0, 1]);
        assert_eq!([0, 1, 2].map(|worker| group.claim(worker)), [None; 3]);
        group.restart();
        assert_eq!([0, 1, 2].map(|worker| group.claim(worker)), [Some(0), Some(2), Some(5)]);
    }

    #[test]
    fn each_piece_is_given_out_once() {
        for (pieces, workers) in [(0, 2), (1, 4), (7, 3), (1000, 4)] {
            let group = Group::new(0..1, pieces, workers);
            let mut all: Vec<usize> = std::thread::scope(|scope| {
                let claim = |worker| {
                    let group = &group;
                    scope.spawn(move || -> Vec<usize> {
                        std::iter::from_fn(|| group.claim(worker)).collect()
                    })
                };
                let threads: Vec<_> = (0..workers).map(claim).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            all.sort_unstable();
            assert_eq!(all, Vec::from_iter(0..pieces), "{pieces} pieces, {workers} workers");
        }
    }
}
