//! Resident workers.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

use super::barrier::SpinBarrier;
use super::program::Work;
use crate::error::{GpuError, Result};

/// Turns a worker looks for new work before it parks: about 100 microseconds, what a host needs
/// between two steps of a decode loop.
const SPINS: u32 = 4_000;

/// Threads that run programs. The calling thread is one of the workers.
pub(super) struct Pool {
    job: Arc<Job>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    lock: Arc<RunLock>,
}

/// Keeps the programs of a device and the transfers from and to its buffers apart: whoever touches
/// the bytes of a buffer holds it. Buffers share it, so it works as long as there is any of them, also
/// without the device.
#[derive(Default)]
pub(super) struct RunLock {
    running: Mutex<()>,
}

thread_local! {
    /// Address of the lock of the device whose program this thread runs a part of; 0 for none.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

impl RunLock {
    /// Runs `f` while no program and no other transfer of the device runs.
    ///
    /// # Errors
    /// [`GpuError::DeviceBusy`] in a kernel of the device, which would wait for itself.
    pub(super) fn exclusive<T>(&self, f: impl FnOnce() -> T) -> Result<T> {
        if INSIDE.get() == self.address() {
            return Err(GpuError::DeviceBusy { device: "cpu".into() });
        }
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(f())
    }

    /// Runs this thread's part of a program.
    fn inside(&self, f: impl FnOnce()) {
        let outer = INSIDE.replace(self.address());
        f();
        INSIDE.set(outer);
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// What the workers look at.
struct Job {
    /// Counts the programs started; a worker that sees a new number takes the work.
    epoch: AtomicU64,
    stop: AtomicBool,
    work: Mutex<Option<Arc<Work>>>,
    barrier: SpinBarrier,
    asleep: Vec<AtomicBool>,
    lock: Arc<RunLock>,
}

impl Pool {
    pub(super) fn new(threads: usize) -> Self {
        let lock = Arc::new(RunLock::default());
        let job = Arc::new(Job {
            epoch: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            work: Mutex::new(None),
            barrier: SpinBarrier::new(threads),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            lock,
        });
        let workers: Vec<_> = (1..threads)
            .filter_map(|worker| {
                let job = job.clone();
                let name = format!("clearway-{worker}");
                std::thread::Builder::new().name(name).spawn(move || job.serve(worker)).ok()
            })
            .collect();
        if workers.len() + 1 < threads {
            // The system refuses more threads. Those that started stop, and the caller works alone.
            drop(Self::assemble(job, workers));
            return Self::new(1);
        }
        Self::assemble(job, workers)
    }

    fn assemble(job: Arc<Job>, workers: Vec<JoinHandle<()>>) -> Self {
        let handles = workers.iter().map(|w| w.thread().clone()).collect();
        let lock = job.lock.clone();
        Self { job, workers, handles, lock }
    }

    /// What keeps programs and transfers apart, for the buffers of the device.
    pub(super) fn lock(&self) -> &Arc<RunLock> {
        &self.lock
    }

    /// Workers, the calling thread included.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs a program to its end on all workers.
    ///
    /// # Errors
    /// As [`RunLock::exclusive`].
    pub(super) fn run(&self, work: &Arc<Work>) -> Result<()> {
        self.run_observed(work, |_| ())
    }

    /// As [`run`](Self::run). `passed` is told each group that all workers have passed, by the calling
    /// thread, which is one of them.
    ///
    /// # Errors
    /// As [`RunLock::exclusive`].
    pub(super) fn run_observed(&self, work: &Arc<Work>, passed: impl FnMut(usize)) -> Result<()> {
        self.lock.exclusive(|| self.run_alone(work, passed))
    }

    fn run_alone(&self, work: &Arc<Work>, passed: impl FnMut(usize)) {
        work.prepare();
        if self.workers.is_empty() {
            self.lock.inside(|| work.execute(0, &self.job.barrier, passed));
            return;
        }
        *self.job.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(work.clone());
        self.job.epoch.fetch_add(1, Ordering::SeqCst);
        for (asleep, thread) in self.job.asleep.iter().zip(&self.handles) {
            // Pairs with the store in `serve`: either the flag is seen here, or the new epoch there.
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        // The last barrier of the work is passed only when every worker is through.
        self.lock.inside(|| work.execute(0, &self.job.barrier, passed));
        *self.job.work.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Job {
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            let epoch = self.next_epoch(worker, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = epoch;
            let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(work) = work {
                self.lock.inside(|| work.execute(worker, &self.barrier, |_| ()));
            }
        }
    }

    fn next_epoch(&self, worker: usize, seen: u64) -> u64 {
        for _ in 0..SPINS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        let asleep = &self.asleep[worker - 1];
        asleep.store(true, Ordering::SeqCst);
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            if epoch != seen {
                asleep.store(false, Ordering::SeqCst);
                return epoch;
            }
            std::thread::park();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.job.stop.store(true, Ordering::SeqCst);
        self.job.epoch.fetch_add(1, Ordering::SeqCst);
        let own = std::thread::current().id();
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            if worker.thread().id() != own {
                // A worker that panicked has nothing left to lose.
                let _ = worker.join();
            }
        }
    }
}
