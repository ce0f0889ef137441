//! Wakes those who wait for tokens.
//!
//! The engine's thread must never wait for the interpreter: it would stop all texts for one that holds it. So callbacks of
//! event loops are called by a thread of their own.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pyo3::prelude::*;

/// Wakes a thread that is parked.
pub struct Unpark(pub Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Texts that something came of, for a thread that reads many: it looks at these alone.
pub struct Arrived {
    texts: Mutex<Vec<usize>>,
    some: Condvar,
}

impl Arrived {
    /// All of so many texts are to be looked at.
    pub fn all(count: usize) -> Self {
        Self { texts: Mutex::new((0..count).collect()), some: Condvar::new() }
    }

    /// What tells that something came of a text.
    pub fn waker(this: &Arc<Self>, text: usize) -> Waker {
        Arc::new(One { arrived: Arc::clone(this), text }).into()
    }

    /// Something came of a text.
    pub fn add(&self, text: usize) {
        let mut texts = self.lock();
        texts.push(text);
        // Whoever waits is woken by the first.
        if texts.len() == 1 {
            self.some.notify_one();
        }
    }

    /// Takes those that something came of, after at most so long; each of them once.
    pub fn within(&self, time: Duration) -> Vec<usize> {
        let texts = self.lock();
        let waited = self.some.wait_timeout_while(texts, time, |texts| texts.is_empty());
        let mut texts = waited.unwrap_or_else(PoisonError::into_inner).0;
        std::mem::take(&mut *texts)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One text of [`Arrived`].
struct One {
    arrived: Arc<Arrived>,
    text: usize,
}

impl Wake for One {
    fn wake(self: Arc<Self>) {
        self.arrived.add(self.text);
    }
}

/// Calls a Python function, from another thread and at most once.
pub struct Callback(Arc<Py<PyAny>>);

impl Callback {
    pub fn new(function: Py<PyAny>) -> Self {
        Self(Arc::new(function))
    }
}

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        static CALLS: OnceLock<Option<Sender<Arc<Py<PyAny>>>>> = OnceLock::new();
        let calls = CALLS.get_or_init(|| {
            let (sender, calls) = mpsc::channel::<Arc<Py<PyAny>>>();
            let work = move || calls.into_iter().for_each(|function| call(&function));
            let thread = std::thread::Builder::new().name("clearway-wake".into());
            thread.spawn(work).ok().map(|_| sender)
        });
        match calls {
            // The thread ends with the process alone.
            Some(calls) => drop(calls.send(self.0.clone())),
            None => call(&self.0),
        }
    }
}

fn call(function: &Py<PyAny>) {
    // An interpreter that ends has no loop to wake.
    Python::try_attach(|py| {
        // A loop that was closed meanwhile has nobody to tell.
        let _ = function.call0(py);
    });
}
