//! What finished work means for sequences, and what failures mean.

use std::sync::Arc;
use std::time::Duration;

use super::sequence::State;
use super::{Decided, EndReason, Event, Row, Scheduler, Seat, SequenceId, Started, What, word};
use crate::batch::pool::Pool;
use crate::batch::request::{Failure, Since};
use crate::batch::runner::{Chosen, SlotTokens};
use crate::engine::EngineError;

impl Scheduler {
    /// The oldest work under way is finished: the tokens of its slots. What happened since the last call.
    pub fn finished(&mut self, results: Vec<SlotTokens>, now: Duration) -> Vec<Event> {
        let Some(started) = self.under_way.pop_front() else { return self.take_events() };
        self.finished = started.number;
        self.measure(&started, now);
        let mut results = results.into_iter();
        for &row in &started.rows {
            let result = results.next().filter(|result| result.slot == row.slot);
            self.row_done(row, result, now);
        }
        self.settle();
        self.take_events()
    }

    /// The work that was planned last could not be started. Sequences it concerns fail; everything else goes on.
    pub fn start_failed(&mut self, error: EngineError, now: Duration) -> Vec<Event> {
        let Some(started) = self.under_way.pop_back() else { return self.take_events() };
        self.started -= 1;
        for leaving in &mut self.leaving {
            leaving.work = leaving.work.min(self.started);
        }
        let last = self.started;
        for block in started.published {
            self.pool.withdraw(block);
        }
        self.closes.extend(started.closed);
        let error = Failure::Device(Arc::new(error));
        for id in started.touched {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.last_work = sequence.last_work.min(last);
                // Its table may be out of date; the slot is closed whatever the device knows of it.
                sequence.tabled = sequence.tabled.max(1);
            }
            self.end(id, EndReason::Failed(error.clone()), now);
        }
        self.settle();
        self.take_events()
    }

    /// The device failed in work under way: nothing is under way any more, and slots and blocks are lost. Sequences in that
    /// work fail. Others that had a slot wait and are read again.
    pub fn lost(&mut self, error: EngineError, now: Duration) -> Vec<Event> {
        let error = Failure::Device(Arc::new(error));
        let works = std::mem::take(&mut self.under_way);
        self.finished = self.started;
        for id in works.into_iter().flat_map(|started| started.touched) {
            self.end(id, EndReason::Failed(error.clone()), now);
        }
        let others: Vec<SequenceId> = self.running.iter().map(|&(_, id)| id).collect();
        for id in others {
            self.preempt(id, None, now);
        }
        self.settle();
        // Nobody holds a block now, and what they hold is worth nothing.
        let counts = self.pool.counts();
        self.pool = Pool::new(self.limits.blocks, self.limits.block);
        self.pool.carry(counts);
        self.seats.fill(Seat::Free);
        self.closes.clear();
        self.claims.clear();
        self.take_events()
    }

    /// Nothing can be done any more: every sequence fails, those that wait included. Nothing is under way.
    pub fn fail_all(&mut self, failure: &Failure, now: Duration) -> Vec<Event> {
        let all: Vec<SequenceId> = self.sequences.keys().copied().collect();
        for id in all {
            self.end(id, EndReason::Failed(failure.clone()), now);
        }
        self.settle();
        self.take_events()
    }

    fn measure(&mut self, started: &Started, now: Duration) {
        let time = now.saturating_sub(started.at.max(self.last_finish));
        self.last_finish = now;
        let rows = started.rows.len();
        match (started.steps, started.read) {
            (0, 0) => {}
            (0, read) => self.times.chunk_took(read, time),
            (steps, 0) => self.times.step_took(rows, time / steps as u32),
            // A chunk is read beside one step.
            (_, read) => self.times.beside_took(read, time),
        }
    }

    /// Tokens of a sequence. One that lost its slot meanwhile keeps them: they are what it would choose again.
    fn row_done(&mut self, row: Row, result: Option<SlotTokens>, now: Duration) {
        let Some(sequence) = self.sequences.get_mut(&row.id) else { return };
        let Some(result) = result.filter(|result| result.tokens.len() <= row.due) else {
            let failure = Failure::Protocol { expected: row.due, found: 0 };
            self.end(row.id, EndReason::Failed(failure), now);
            return;
        };
        let found = result.tokens.len();
        let mut tokens: Vec<Chosen> = result.tokens;
        let stop = tokens.iter().position(|chosen| sequence.stop_tokens.contains(&chosen.token));
        let stop_token = stop.map(|at| tokens[at].token);
        tokens.truncate(stop.unwrap_or(found));
        sequence.text.extend(tokens.iter().map(|chosen| chosen.token));
        self.counts.generated += tokens.len() as u64;
        // The last token is chosen and not in the cache, and so is one that stopped the text.
        let position = sequence.text.len() - 1;
        let reason = match stop_token {
            Some(token) => Some(EndReason::Token(token)),
            None if result.failed => {
                let position = sequence.text.len();
                Some(EndReason::Failed(Failure::NoToken { position }))
            }
            None if found < row.due => {
                Some(EndReason::Failed(Failure::Protocol { expected: row.due, found }))
            }
            None if position >= sequence.end && sequence.ends_with_context => {
                Some(EndReason::Context)
            }
            None if position >= sequence.end => Some(EndReason::Budget),
            None => None,
        };
        if !matches!(sequence.state, State::Waiting) {
            let _ = sequence.publish(position, &mut self.pool);
        }
        if !tokens.is_empty() {
            let since = match (sequence.last_token, sequence.admitted) {
                (Some(last), _) => Since::Last(now.saturating_sub(last)),
                (None, admitted) => Since::First {
                    submitted: now.saturating_sub(sequence.submitted),
                    admitted: now.saturating_sub(admitted.unwrap_or(sequence.submitted)),
                },
            };
            sequence.last_token = Some(now);
            let (request, choice) = (sequence.request, sequence.choice);
            let what = What::Tokens { tokens, since, usage: sequence.usage() };
            self.events.push(Event { request, choice, what });
        }
        if let Some(reason) = reason {
            self.end(row.id, reason, now);
        }
    }

    /// Ends a sequence.
    pub(super) fn end(&mut self, id: SequenceId, reason: EndReason, now: Duration) {
        self.leave(id);
        let Some(sequence) = self.sequences.remove(&id) else { return };
        let (request, choice, usage) = (sequence.request, sequence.choice, sequence.usage());
        if let Some(ids) = self.requests.get_mut(&request) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.requests.remove(&request);
            }
        }
        let (reason_word, generated) = (word(&reason), usage.generated);
        self.decide(now, Decided::Ended { sequence: id, reason: reason_word, generated });
        self.events.push(Event { request, choice, what: What::Ended { reason, usage } });
    }
}
