//! What the scheduler decided, as data.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use super::SequenceId;
use crate::batch::runner::Slot;

/// A decision and when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When, by the scheduler's clock.
    pub at: Duration,
    /// The work that was planned, or the next one.
    pub work: u64,
    /// What was decided.
    pub what: Decided,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// A sequence got a slot.
    Admitted {
        /// Which.
        sequence: SequenceId,
        /// Its slot.
        slot: Slot,
        /// Tokens of its text that the cache had.
        cached: usize,
        /// It shares the blocks of this sequence of its request.
        forked: Option<SequenceId>,
    },
    /// A sequence waits while another reads the same tokens.
    Deferred {
        /// Which.
        sequence: SequenceId,
        /// Who reads.
        to: SequenceId,
    },
    /// Tokens of a prompt are read.
    Read {
        /// Whose.
        sequence: SequenceId,
        /// From this position on.
        position: usize,
        /// How many.
        tokens: usize,
        /// They are the last of the prompt.
        last: bool,
    },
    /// Sequences decode.
    Decode {
        /// How many sequences.
        rows: usize,
        /// How many steps.
        steps: usize,
        /// Tokens of prompts that are read in the same step: weights are read once for both.
        beside: usize,
        /// How long that takes by the measurements, in microseconds.
        expected_us: u64,
    },
    /// Rows of prompts and a step that were planned as one are two lists: the list of both was not made yet.
    Apart {
        /// How many sequences decode.
        rows: usize,
        /// Tokens of prompts.
        beside: usize,
    },
    /// A sequence does not decode in this work: there is no block for it.
    Stalled {
        /// Which.
        sequence: SequenceId,
    },
    /// A sequence lost its blocks and its slot, and waits.
    Preempted {
        /// Which.
        sequence: SequenceId,
        /// Who needs the memory; `None` where its contents were lost.
        by: Option<SequenceId>,
        /// Blocks it held.
        blocks: usize,
    },
    /// A sequence ended.
    Ended {
        /// Which.
        sequence: SequenceId,
        /// Why, in a word.
        reason: &'static str,
        /// Tokens it generated.
        generated: usize,
    },
}

impl Decision {
    /// One JSON object.
    pub fn to_json(&self) -> String {
        let mut out = format!("{{\"at_us\":{},\"work\":{}", self.at.as_micros(), self.work);
        let mut field = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string cannot fail.
            let _ = write!(out, ",\"{name}\":{value}");
        };
        match &self.what {
            Decided::Admitted { sequence, slot, cached, forked } => {
                field("what", &"\"admitted\"");
                field("sequence", sequence);
                field("slot", slot);
                field("cached", cached);
                if let Some(forked) = forked {
                    field("forked", forked);
                }
            }
            Decided::Deferred { sequence, to } => {
                field("what", &"\"deferred\"");
                field("sequence", sequence);
                field("to", to);
            }
            Decided::Read { sequence, position, tokens, last } => {
                field("what", &"\"read\"");
                field("sequence", sequence);
                field("position", position);
                field("tokens", tokens);
                field("last", last);
            }
            Decided::Decode { rows, steps, beside, expected_us } => {
                field("what", &"\"decode\"");
                field("rows", rows);
                field("steps", steps);
                field("beside", beside);
                field("expected_us", expected_us);
            }
            Decided::Apart { rows, beside } => {
                field("what", &"\"apart\"");
                field("rows", rows);
                field("beside", beside);
            }
            Decided::Stalled { sequence } => {
                field("what", &"\"stalled\"");
                field("sequence", sequence);
            }
            Decided::Preempted { sequence, by, blocks } => {
                field("what", &"\"preempted\"");
                field("sequence", sequence);
                if let Some(by) = by {
                    field("by", by);
                }
                field("blocks", blocks);
            }
            Decided::Ended { sequence, reason, generated } => {
                field("what", &"\"ended\"");
                field("sequence", sequence);
                field("reason", &format_args!("\"{reason}\""));
                field("generated", generated);
            }
        }
        out.push('}');
        out
    }
}

/// The last decisions.
#[derive(Debug)]
pub(super) struct Log {
    most: usize,
    ring: VecDeque<Decision>,
}

impl Log {
    pub(super) fn new(most: usize) -> Self {
        Self { most, ring: VecDeque::new() }
    }

    pub(super) fn push(&mut self, at: Duration, work: u64, what: Decided) {
        if self.most == 0 {
            return;
        }
        if self.ring.len() == self.most {
            self.ring.pop_front();
        }
        self.ring.push_back(Decision { at, work, what });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Decision> {
        self.ring.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_json_and_the_oldest_go() {
        let mut log = Log::new(2);
        for sequence in 0..3 {
            log.push(Duration::from_micros(5), 1, Decided::Stalled { sequence });
        }
        let by = Some(7);
        log.push(Duration::ZERO, 2, Decided::Preempted { sequence: 3, by, blocks: 4 });
        let lines: Vec<String> = log.iter().map(Decision::to_json).collect();
        assert_eq!(
            lines,
            [
                r#"{"at_us":5,"work":1,"what":"stalled","sequence":2}"#,
                r#"{"at_us":0,"work":2,"what":"preempted","sequence":3,"by":7,"blocks":4}"#
            ]
        );
    }
}
