//! Texts as they are written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearway_llm::End;
use clearway_llm::batch::text::{TextOutput, TextStream};
use clearway_llm::engine::LogProbs;
use pyo3::prelude::*;

use crate::error;
use crate::wake::{Arrived, Callback, Unpark};

/// How often a thread that waits looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// Pieces of one text that are taken before signals are looked for.
const AT_ONCE: usize = 64;

/// A token, its log probability, and the likeliest tokens with theirs.
type LogProbsRow = (u32, f32, Vec<(u32, f32)>);

/// What `for` and `async for` get: text, tokens, log probabilities, and at the end the reason.
#[pyclass(frozen, get_all, module = "clearway._clearway")]
pub struct Event {
    /// Which text.
    choice: usize,
    /// Whole characters.
    text: String,
    /// Tokens since the last event.
    token_ids: Vec<u32>,
    /// For each of them its log probability and the likeliest tokens with theirs.
    logprobs: Vec<LogProbsRow>,
    /// `stop`, `length` or `abort` at the end.
    finish_reason: Option<&'static str>,
    /// The string or the token that ended it.
    stop_string: Option<String>,
    stop_token: Option<u32>,
    /// Tokens of the prompt that the cache had.
    cached: usize,
}

impl Event {
    fn empty(choice: usize) -> Self {
        Self {
            choice,
            text: String::new(),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            finish_reason: None,
            stop_string: None,
            stop_token: None,
            cached: 0,
        }
    }

    fn add(&mut self, output: TextOutput) -> PyResult<()> {
        match output {
            TextOutput::Piece { piece, tokens, usage, .. } => {
                self.text.push_str(&piece.text);
                self.token_ids.extend(tokens);
                let row = |one: LogProbs| (one.token, one.log_prob, one.top);
                self.logprobs.extend(piece.log_probs.into_iter().map(row));
                self.cached = usage.cached;
            }
            TextOutput::End { end, usage, .. } => {
                self.cached = usage.cached;
                let reason = match end.map_err(|failure| error::failure(&failure))? {
                    End::Token(token) => {
                        self.stop_token = Some(token);
                        "stop"
                    }
                    End::StopString(string) => {
                        self.stop_string = Some(string);
                        "stop"
                    }
                    End::Budget | End::ContextFull { .. } => "length",
                    _ => "abort",
                };
                self.finish_reason = Some(reason);
            }
        }
        Ok(())
    }
}

/// The texts of one request. Whoever drops it cancels what has not ended.
#[pyclass(frozen, module = "clearway._clearway")]
pub struct Stream {
    texts: Mutex<Vec<TextStream>>,
}

impl Stream {
    pub fn new(texts: Vec<TextStream>) -> Self {
        Self { texts: Mutex::new(texts) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<TextStream>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has come of one of the texts; `Ready(None)` if all are over.
    fn poll(&self, waker: &Waker) -> Poll<Option<(usize, TextOutput)>> {
        let mut texts = self.lock();
        let mut over = true;
        for (choice, text) in texts.iter_mut().enumerate() {
            match text.poll_next(&mut Context::from_waker(waker)) {
                Poll::Ready(Some(output)) => return Poll::Ready(Some((choice, output))),
                Poll::Ready(None) => {}
                Poll::Pending => over = false,
            }
        }
        if over { Poll::Ready(None) } else { Poll::Pending }
    }

    fn wait(&self, py: Python<'_>) -> PyResult<Option<(usize, TextOutput)>> {
        wait(py, |waker| self.poll(waker))
    }

    /// Adds what has come of a text to its event; whether the text is over.
    fn absorb(
        &self,
        index: usize,
        waker: &Waker,
        arrived: &Arrived,
        event: &mut Event,
    ) -> PyResult<bool> {
        let mut texts = self.lock();
        let Some(text) = texts.get_mut(index) else { return Ok(true) };
        for _ in 0..AT_ONCE {
            match text.poll_next(&mut Context::from_waker(waker)) {
                Poll::Ready(Some(output)) => event.add(output)?,
                Poll::Ready(None) => return Ok(true),
                Poll::Pending => return Ok(false),
            }
        }
        arrived.add(index);
        Ok(false)
    }
}

/// Waits without the interpreter. Signals are seen before each look, however soon there is something: otherwise a call that
/// reads token after token would end before it sees one.
pub fn wait<T: Send>(
    py: Python<'_>,
    mut poll: impl FnMut(&Waker) -> Poll<T> + Send,
) -> PyResult<T> {
    loop {
        py.check_signals()?;
        let polled = py.detach(|| {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let polled = poll(&waker);
            if polled.is_pending() {
                std::thread::park_timeout(SIGNALS);
                return poll(&waker);
            }
            polled
        });
        if let Poll::Ready(found) = polled {
            return Ok(found);
        }
    }
}

#[pymethods]
impl Stream {
    /// What comes next; `None` when all texts have ended.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        let Some((choice, output)) = self.wait(py)? else { return Ok(None) };
        let mut event = Event::empty(choice);
        event.add(output)?;
        Ok(Some(event))
    }

    /// What has come: `(True, event or None)`, or `(False, None)`; then `callback` is called once when there is more.
    fn poll_next(&self, callback: Py<PyAny>) -> PyResult<(bool, Option<Event>)> {
        let waker = Waker::from(Arc::new(Callback::new(callback)));
        match self.poll(&waker) {
            Poll::Pending => Ok((false, None)),
            Poll::Ready(None) => Ok((true, None)),
            Poll::Ready(Some((choice, output))) => {
                let mut event = Event::empty(choice);
                event.add(output)?;
                Ok((true, Some(event)))
            }
        }
    }

    /// Waits for the end of all texts; one event for each with all of it. Texts are put together as their tokens come, while
    /// the device works.
    fn collect(&self, py: Python<'_>) -> PyResult<Vec<Event>> {
        let mut events: Vec<Event> = (0..self.lock().len()).map(Event::empty).collect();
        let arrived = Arc::new(Arrived::all(events.len()));
        let wakers: Vec<Waker> =
            (0..events.len()).map(|text| Arrived::waker(&arrived, text)).collect();
        let mut open: Vec<bool> = vec![true; events.len()];
        while open.contains(&true) {
            py.check_signals()?;
            py.detach(|| {
                let mut due = arrived.within(SIGNALS);
                if due.is_empty() {
                    // Another thread that reads the same texts may have been told instead.
                    due = (0..events.len()).collect();
                }
                due.retain(|&text| open[text]);
                for text in due {
                    let over = self.absorb(text, &wakers[text], &arrived, &mut events[text])?;
                    open[text] = !over;
                }
                Ok::<_, PyErr>(())
            })?;
        }
        Ok(events)
    }

    /// Ends the texts. What has come can still be read.
    fn cancel(&self) {
        self.lock().iter().for_each(|text| text.stream().cancel());
    }
}
