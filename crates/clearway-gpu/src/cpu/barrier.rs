//! Where workers meet between two groups.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of the spin loop before a worker parks. A turn is one `pause`, 10 to 45 ns by machine: some tens
/// of microseconds in all, longer than the pieces of a balanced group differ, and short enough not to
/// keep a core from a partner that lost its own.
const SPINS: u32 = 1_000;

/// A barrier that spins, since a decode step crosses hundreds of them, and parks when a partner takes
/// long.
#[derive(Debug)]
pub struct SpinBarrier {
    total: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
    parked: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl SpinBarrier {
    /// A barrier for `total` threads.
    pub fn new(total: usize) -> Self {
        Self {
            total: total.max(1) as u32,
            arrived: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits until all threads have arrived. What any of them did before is visible to all after.
    pub fn wait(&self) {
        // No thread can pass this barrier twice before all have left it once, so the generation
        // read here is the one this thread waits to end.
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.total {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            // Pairs with the increment in `park`: either this load sees it and wakes the thread, or
            // the thread sees the new generation and does not sleep.
            if self.parked.load(Ordering::SeqCst) > 0 {
                drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
                self.wake.notify_all();
            }
            return;
        }
        for _ in 0..SPINS {
            if self.generation.load(Ordering::Acquire) != generation {
                return;
            }
            std::hint::spin_loop();
        }
        self.park(generation);
    }

    #[cold]
    fn park(&self, generation: u32) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.generation.load(Ordering::SeqCst) == generation {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_passes_before_all_have_arrived() {
        const ROUNDS: u32 = 2_000;
        let barrier = SpinBarrier::new(3);
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (barrier, count) = (&barrier, &count);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // Now and then one worker is late enough for the others to park.
                        if worker == 0 && round % 500 == 499 {
                            std::thread::sleep(std::time::Duration::from_millis(2));
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                        barrier.wait();
                        assert_eq!(count.load(Ordering::Relaxed), 3 * (round + 1));
                        barrier.wait();
                    }
                });
            }
        });
    }
}
