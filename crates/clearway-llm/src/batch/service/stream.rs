//! Tokens on their way from the engine's thread to whoever asked for them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::Link;
use crate::batch::request::{EndReason, Failure, RequestId, TokenUsage};
use crate::batch::runner::Chosen;

/// What comes out of a stream.
#[derive(Clone, Debug)]
pub enum Output {
    /// Tokens of one of the texts.
    Tokens {
        /// Which text.
        choice: usize,
        /// The tokens.
        tokens: Vec<Chosen>,
        /// What the text took so far, these tokens included.
        usage: TokenUsage,
    },
    /// One of the texts ended.
    End {
        /// Which text.
        choice: usize,
        /// Why.
        reason: EndReason,
        /// What it took.
        usage: TokenUsage,
    },
}

/// The texts of a request as they are written. It ends when the last of them has ended; dropping it before cancels them.
///
/// It is an iterator that waits. [`poll_next`](Self::poll_next) is for asynchronous code and needs no runtime of its own.
pub struct Stream {
    id: RequestId,
    channel: Arc<Channel>,
    link: Link,
    /// Texts that have not ended.
    open: Vec<usize>,
}

/// Where the engine's thread puts outputs of one request.
pub(super) struct Outlet {
    channel: Arc<Channel>,
}

#[derive(Default)]
struct Channel {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inner {
    outputs: VecDeque<Output>,
    /// Nobody puts anything in any more.
    closed: bool,
    waker: Option<Waker>,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        let waker = {
            let mut inner = self.lock();
            change(&mut inner);
            inner.waker.take()
        };
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Outlet {
    pub(super) fn put(&self, output: Output) {
        self.channel.change(|inner| inner.outputs.push_back(output));
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.channel.change(|inner| inner.closed = true);
    }
}

/// Both ends for a request of `n` texts.
pub(super) fn pair(id: RequestId, n: usize, link: Link) -> (Outlet, Stream) {
    let channel = Arc::new(Channel::default());
    let outlet = Outlet { channel: Arc::clone(&channel) };
    (outlet, Stream { id, channel, link, open: (0..n).collect() })
}

impl Stream {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The request was never accepted: there is nothing to cancel.
    pub(super) fn forget(mut self) {
        self.open.clear();
    }

    /// Whether all texts have ended.
    pub fn is_over(&self) -> bool {
        self.open.is_empty()
    }

    /// Ends all texts. What was on its way still comes, and then the ends.
    pub fn cancel(&self) {
        self.link.cancel(self.id, None);
    }

    /// Ends one text.
    pub fn cancel_choice(&self, choice: usize) {
        self.link.cancel(self.id, Some(choice));
    }

    /// What has come, without waiting. `None` if nothing has, or if all is over.
    pub fn try_next(&mut self) -> Option<Output> {
        if self.open.is_empty() {
            return None;
        }
        let mut inner = self.channel.lock();
        let output = inner.outputs.pop_front();
        let closed = inner.closed;
        drop(inner);
        self.passed(output, closed)
    }

    /// What comes next, at most after `timeout`. `None` if nothing came, or if all is over.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Output> {
        self.wait(Some(timeout))
    }

    /// What comes next, for asynchronous code: the waker is woken when something came.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Output>> {
        if self.open.is_empty() {
            return Poll::Ready(None);
        }
        let mut inner = self.channel.lock();
        let (output, closed) = (inner.outputs.pop_front(), inner.closed);
        if output.is_none() && !closed {
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(inner);
        Poll::Ready(self.passed(output, closed))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Option<Output> {
        if self.open.is_empty() {
            return None;
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut inner = self.channel.lock();
        while inner.outputs.is_empty() && !inner.closed {
            let arrived = &self.channel.arrived;
            inner = match until {
                None => arrived.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = arrived.wait_timeout(inner, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let (output, closed) = (inner.outputs.pop_front(), inner.closed);
        drop(inner);
        self.passed(output, closed)
    }

    /// Books what came. A text that is open when nothing can come any more has failed.
    fn passed(&mut self, output: Option<Output>, closed: bool) -> Option<Output> {
        let output = match output {
            None if closed => {
                let choice = *self.open.first()?;
                let reason = EndReason::Failed(Failure::Gone);
                Output::End { choice, reason, usage: TokenUsage::default() }
            }
            output => output?,
        };
        if let Output::End { choice, .. } = output {
            self.open.retain(|&open| open != choice);
        }
        Some(output)
    }
}

impl Iterator for Stream {
    type Item = Output;

    fn next(&mut self) -> Option<Output> {
        self.wait(None)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.open.is_empty() {
            self.cancel();
        }
    }
}
