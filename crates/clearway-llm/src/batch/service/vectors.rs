//! Vectors of texts on their way from the engine's thread to whoever asked for them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::batch::request::Failure;
use crate::engine::Embedding;

/// The vectors of the texts of a request, in their order. A future, and something to wait for; dropping it cancels the
/// request.
pub struct Vectors {
    cell: Arc<Cell>,
}

type Answer = Result<Vec<Vec<f32>>, Failure>;

#[derive(Default)]
struct Cell {
    inner: Mutex<(Option<Answer>, Option<Waker>)>,
    arrived: Condvar,
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, (Option<Answer>, Option<Waker>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Texts that become vectors.
pub(super) struct Job {
    /// Texts that are left; the first is under way.
    pub(super) texts: VecDeque<Embedding>,
    /// Vectors of those in front of them.
    pub(super) done: Vec<Vec<f32>>,
    cell: Arc<Cell>,
}

impl Job {
    pub(super) fn new(texts: Vec<Vec<u32>>) -> (Self, Vectors) {
        let cell = Arc::new(Cell::default());
        let texts = texts.into_iter().map(Embedding::new).collect();
        (Self { texts, done: Vec::new(), cell: Arc::clone(&cell) }, Vectors { cell })
    }

    /// Whether somebody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.cell) > 1
    }

    pub(super) fn answer(self, answer: Answer) {
        self.put(answer);
    }

    fn put(&self, answer: Answer) {
        let waker = {
            let mut inner = self.cell.lock();
            inner.0.get_or_insert(answer);
            inner.1.take()
        };
        self.cell.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Job {
    /// A job that was not answered has lost its thread.
    fn drop(&mut self) {
        self.put(Err(Failure::Gone));
    }
}

impl Vectors {
    /// Waits for the vectors.
    ///
    /// # Errors
    /// The device failed, or the service is gone.
    pub fn wait(self) -> Result<Vec<Vec<f32>>, Failure> {
        let mut inner = self.cell.lock();
        loop {
            match inner.0.take() {
                Some(answer) => return answer,
                None => {
                    inner = self.cell.arrived.wait(inner).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Future for Vectors {
    type Output = Result<Vec<Vec<f32>>, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.cell.lock();
        match inner.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                inner.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
