//! Lists made on a thread of their own. On a GPU a new list compiles kernels, which may take seconds: whoever runs the streams must not
//! wait for that.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::lists::{ReadList, StepKey, StepList, Tables};
use crate::engine::{EngineError, StepsInBlocks};

/// Part of the device's memory that lists nobody asked for leave free: one of so many.
const LEFT_FREE: u64 = 8;

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

/// A list, or why there is none.
pub(super) type Made = (ListKey, Result<List, EngineError>);

/// The thread. Dropped, it ends with the list that it is making.
pub(super) struct Maker {
    orders: Arc<Orders>,
    made: Receiver<Made>,
    thread: Option<JoinHandle<()>>,
}

/// What is to be made.
#[derive(Default)]
struct Orders {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Works needed these already.
    needed: VecDeque<ListKey>,
    /// Nobody needed these yet.
    ahead: VecDeque<ListKey>,
    ends: bool,
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
            if let Some(key) = queue.needed.pop_front() {
                return Some(key);
            }
            if !queue.ahead.is_empty() && !has_room() {
                queue.ahead.clear();
            }
            if let Some(key) = queue.ahead.pop_front() {
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
        let of_thread = Arc::clone(&orders);
        let work = move || {
            while let Some(key) = of_thread.next(|| source.has_room()) {
                let list = catch_unwind(AssertUnwindSafe(|| source.make(key)))
                    .unwrap_or_else(|panic| Err(EngineError::Panicked { what: words(&*panic) }));
                if sender.send((key, list)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("clearway-lists".into()).spawn(work)?;
        Ok(Self { orders, made, thread: Some(thread) })
    }

    /// Has a list made before those that nobody needs yet.
    pub(super) fn order(&self, key: ListKey) {
        let mut queue = self.orders.queue();
        queue.ahead.retain(|other| *other != key);
        queue.needed.push_back(key);
        self.orders.more.notify_one();
    }

    /// The next list that is made, if there is one.
    pub(super) fn take(&self) -> Option<Made> {
        self.made.try_recv().ok()
    }
}

impl Drop for Maker {
    /// What the thread holds on the device is freed with the runner, which may be opened again at once.
    fn drop(&mut self) {
        self.orders.queue().ends = true;
        self.orders.more.notify_one();
        if let Some(thread) = self.thread.take() {
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

/// What a panic says.
pub(in crate::batch) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".into())
}
