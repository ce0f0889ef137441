//! Wakes those who wait for tokens.
//!
//! The engine's thread must never wait for the interpreter: it would stop all texts for one that holds it. So callbacks of
//! event loops are called by a thread of their own.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::task::Wake;
use std::thread::Thread;

use pyo3::prelude::*;

/// Wakes a thread that is parked.
pub struct Unpark(pub Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
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
