//! Lists made on threads of their own. On a GPU a new list compiles kernels, which may take seconds: whoever runs the streams must not
//! wait for that.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::lists::{ReadList, StepKey, StepList, Tables};
use crate::engine::{EngineError, StepsInBlocks};

/// Part of the device's memory that lists nobody asked for leave free: one of so many.
const LEFT_FREE: u64 = 8;
/// Lists that are made at once, at most, and cores for each of them: a driver compiles a kernel on one core.
const AT_ONCE: usize = 4;
const CORES_EACH: usize = 2;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ListKey {
    /// A decode step, with rows of prompts beside it or without.
    Step(StepKey),
    /// So many rows of prompts.
    Read(usize),
}

/// A list that is made.
pub(super) enum List {
    Step(StepKey, StepList),
    Read(usize, ReadList),
}

/// What lists are made from.
pub(super) struct Source {
    pub(super) steps: StepsInBlocks,
    pub(super) tables: Tables,
}

impl Source {
    /// Records, compiles and lowers a list.
    pub(super) fn make(&self, key: ListKey) -> Result<List, EngineError> {
        Ok(match key {
            ListKey::Step(key) => List::Step(key, StepList::new(&self.steps, &self.tables, key)?),
            ListKey::Read(rows) => {
                List::Read(rows, ReadList::new(&self.steps, &self.tables, rows)?)
            }
        })
    }

    /// Whether the device has memory for lists that may never be needed. One that does not tell is tried.
    fn has_room(&self) -> bool {
        let device = self.steps.executor().device();
        let (free, all) = (device.free_bytes(), device.info().memory_bytes);
        free == 0 || free >= all / LEFT_FREE
    }
}

/// A list, or why there is none, and how long that took.
pub(super) struct Made {
    pub(super) key: ListKey,
    pub(super) list: Result<List, EngineError>,
    pub(super) time: Duration,
}

/// The threads. Dropped, each ends with the list that it is making.
pub(super) struct Maker {
    orders: Arc<Orders>,
    made: Receiver<Made>,
    threads: Vec<JoinHandle<()>>,
}

/// What is to be made.
#[derive(Default)]
struct Orders {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    /// So many works needed these already.
    needed: FxHashMap<ListKey, Need>,
    /// How often works needed one.
    count: usize,
    /// Those that are being made, or were made and not taken in yet, and those that cannot be made.
    taken: FxHashSet<ListKey>,
    /// Nobody needed these yet.
    ahead: VecDeque<ListKey>,
    ends: bool,
}

/// How often a list was needed, and when first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Need {
    works: usize,
    since: std::cmp::Reverse<usize>,
}

impl Queue {
    fn need(&mut self, key: ListKey) {
        if self.taken.contains(&key) {
            return;
        }
        self.ahead.retain(|other| *other != key);
        self.count += 1;
        let since = std::cmp::Reverse(self.count);
        self.needed.entry(key).or_insert(Need { works: 0, since }).works += 1;
    }

    /// What most works have needed; of several, what was needed first.
    fn most_needed(&mut self) -> Option<ListKey> {
        let (&key, _) = self.needed.iter().max_by_key(|(_, need)| **need)?;
        self.needed.remove(&key);
        Some(key)
    }
}

impl Orders {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next list to make; `None` at the end.
    fn next(&self, has_room: impl Fn() -> bool) -> Option<ListKey> {
        let mut queue = self.queue();
        loop {
            if queue.ends {
                return None;
            }
            if let Some(key) = queue.most_needed() {
                queue.taken.insert(key);
                return Some(key);
            }
            if !queue.ahead.is_empty() && !has_room() {
                queue.ahead.clear();
            }
            if let Some(key) = queue.ahead.pop_front() {
                queue.taken.insert(key);
                return Some(key);
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Maker {
    /// Begins with lists that nobody needs yet, in this order.
    pub(super) fn new(source: Arc<Source>, ahead: VecDeque<ListKey>) -> std::io::Result<Self> {
        let orders = Arc::new(Orders::default());
        orders.queue().ahead = ahead;
        let (sender, made) = mpsc::channel();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut maker = Self { orders, made, threads: Vec::new() };
        for index in 0..(cores / CORES_EACH).clamp(1, AT_ONCE) {
            let (orders, source) = (Arc::clone(&maker.orders), Arc::clone(&source));
            let sender = sender.clone();
            let thread = std::thread::Builder::new().name(format!("clearway-lists-{index}"));
            match thread.spawn(move || work(&orders, &source, &sender)) {
                Ok(thread) => maker.threads.push(thread),
                // One is enough.
                Err(_) if index > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(maker)
    }

    /// Has a list made before those that nobody needs yet, and the sooner the more often it was asked for.
    pub(super) fn order(&self, key: ListKey) {
        self.orders.queue().need(key);
        self.orders.more.notify_one();
    }

    /// The next list that is made, if there is one.
    pub(super) fn take(&self) -> Option<Made> {
        let made = self.made.try_recv().ok()?;
        if made.list.is_ok() {
            // It may be given up and needed again.
            self.orders.queue().taken.remove(&made.key);
        }
        Some(made)
    }
}

impl Drop for Maker {
    /// What the thread holds on the device is freed with the runner, which may be opened again at once.
    fn drop(&mut self) {
        self.orders.queue().ends = true;
        self.orders.more.notify_all();
        for thread in self.threads.drain(..) {
            // They catch their panics.
            let _ = thread.join();
        }
    }
}

/// Makes what is ordered, until the end.
fn work(orders: &Orders, source: &Source, sender: &Sender<Made>) {
    while let Some(key) = orders.next(|| source.has_room()) {
        let since = Instant::now();
        let list = catch_unwind(AssertUnwindSafe(|| source.make(key)))
            .unwrap_or_else(|panic| Err(EngineError::Panicked { what: words(&*panic) }));
        if sender.send(Made { key, list, time: since.elapsed() }).is_err() {
            return;
        }
    }
}

/// What a panic says.
pub(in crate::batch) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_most_is_made_first_and_each_once() {
        let orders = Orders::default();
        orders.queue().ahead = [1, 2, 3].map(ListKey::Read).into();
        for rows in [8, 16, 2, 16, 4] {
            orders.queue().need(ListKey::Read(rows));
        }
        let made = || match orders.next(|| true) {
            Some(ListKey::Read(rows)) => rows,
            other => panic!("{other:?}"),
        };
        let first: Vec<usize> = (0..6).map(|_| made()).collect();
        assert_eq!(first, [16, 8, 2, 4, 1, 3]);
        // What is being made is not made a second time.
        orders.queue().need(ListKey::Read(16));
        assert!(orders.queue().needed.is_empty());
        // Once it was taken in, it may be given up and needed again.
        orders.queue().taken.remove(&ListKey::Read(16));
        orders.queue().need(ListKey::Read(16));
        assert_eq!(made(), 16);
        orders.queue().ends = true;
        assert_eq!(orders.next(|| true), None);
    }
}
