//! Generation that stays on the device: the token a step chose is the next step's input.
//!
//! One graph holds a whole step: embedding, layers, head, the choice of a token, and a small kernel that hands the token
//! and the next position to the step after it. The host hands over several steps at a time, the next ones before the last
//! ones are done, and reads their tokens from a ring.
//!
//! **What a step that must be done again restores.** A step is a function of its input token, its position, the cache rows
//! before that position and the row of sampling data. It writes the cache row of its position, which nothing before it
//! reads. Random numbers are a hash of seed and position. So token and position are all there is to restore: a step that
//! runs again with both writes the same cache row and chooses the same token.
//!
//! **Steps behind a step that chose none do nothing.** A step gives [`NO_INDEX`] where no token can be chosen. It then
//! leaves token and position as they are. Steps that were handed over behind it compute the same step again: they write the
//! same cache row, give `NO_INDEX` and leave token and position in turn. When the last of them is done, both buffers hold
//! what the host needs to run the step again, and no cache row after it was touched.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clearway::{Buffer, CompileOptions, DType, GpuError, NO_INDEX, Ticket, Upload};

use super::choose::{self, Choice, DrawnBy};
use super::sampling::{DRAW_WORDS, Sampling};
use super::{Engine, EngineError, Result, Step};
use crate::model::{Logits, POSITIONS, TOKENS};

/// Steps that are handed over together at most.
const TOGETHER: usize = 32;
/// So many times before the first of them are waited for: the device never waits for the host.
const AHEAD: usize = 2;
/// Tokens the ring holds: steps that may be under way before the host reads.
const RING: usize = AHEAD * TOGETHER;
/// How long steps that are handed over together may take: text must still flow.
const PATIENCE: Duration = Duration::from_millis(60);

/// A compiled step that feeds itself.
pub(super) struct TokenLoop {
    step: Step,
    ring: Buffer,
    /// The row of sampling data, for draws.
    row: Buffer,
    choice: Choice,
    /// Steps that are handed over together next, by how long the last ones took.
    together: usize,
}

impl TokenLoop {
    pub(super) fn step(&self) -> &Step {
        &self.step
    }
}

/// Tokens that come from a [`TokenLoop`]. What is under way when it is dropped is forgotten.
pub(crate) struct TokenStream {
    /// Runs that were handed over, and how many steps each has.
    under_way: VecDeque<(Ticket, usize)>,
    /// Tokens that the host has read and not passed on.
    ready: VecDeque<u32>,
    /// Steps that were not handed over yet.
    left: usize,
    /// Steps that are handed over next.
    next: usize,
    /// When the last run was done.
    last: Instant,
    /// The input of the step whose token is passed on next.
    input: u32,
}

impl Engine {
    /// Whether the device once did not start workgroups in order: steps were then done again, and barriers stand between all groups
    /// from then on, which is slower.
    pub fn has_stalled(&self) -> bool {
        self.stalled
    }

    /// Remembers that steps had to be done again.
    pub(crate) fn note_stall(&mut self) {
        self.stalled = true;
    }

    /// Whether generation should stay on the device.
    pub fn feeds_back(&self) -> bool {
        let on_one = self.front.is_none() && !self.pins_rows();
        self.options.replay && on_one && self.executor.device().host_is_far()
    }

    /// Compiles what [`generate`](Self::generate) runs for such a row, so that the first tokens need not wait for it. Does
    /// nothing where only the host can choose tokens as the row says, or where two devices have the model. A step that is compiled serves other rows, too:
    /// temperature, seed and cuts are data.
    ///
    /// # Errors
    /// What the device reports.
    pub fn prepare(&mut self, sampling: &Sampling) -> Result<()> {
        match Choice::of(sampling).filter(|_| self.front.is_none()) {
            Some(wanted) if !self.looped.as_ref().is_some_and(|l| l.choice.serves(wanted)) => {
                // Two would need twice the memory.
                self.looped = None;
                self.looped = Some(self.compile_loop(wanted)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reads `token` into the cache and generates `count` tokens after it, all on the device. `seen` gets
    /// each of them as soon as the host has it and says whether to go on. What the device generates
    /// beyond a stop is forgotten; work that comes later waits for it: about a tenth of a second, or
    /// two steps that are slower. Stop tokens, stop strings and budget of the row are not looked at: `seen` and `count`
    /// say when to stop.
    ///
    /// # Errors
    /// Before anything is computed: [`EngineError::NotOnDevice`], [`EngineError::TokenOutOfRange`],
    /// [`EngineError::ContextFull`] where the context has no room for all `count`. In between, with every token
    /// before it passed to `seen`: [`EngineError::NotFinite`]; what the device reports.
    pub fn generate(
        &mut self,
        token: u32,
        count: usize,
        sampling: &Sampling,
        seen: &mut dyn FnMut(u32) -> bool,
    ) -> Result<()> {
        let mut stream = self.begin(token, count, sampling)?;
        while let Some(token) = self.next_token(&mut stream)? {
            if !seen(token) {
                break;
            }
        }
        Ok(())
    }

    /// Starts to generate as [`generate`](Self::generate) does.
    pub(crate) fn begin(
        &mut self,
        token: u32,
        count: usize,
        sampling: &Sampling,
    ) -> Result<TokenStream> {
        sampling.check()?;
        if Choice::of(sampling).is_none() {
            return Err(EngineError::NotOnDevice);
        }
        let vocab = self.shape.vocab;
        if token as usize >= vocab {
            return Err(EngineError::TokenOutOfRange { token, vocab });
        }
        let wanted = self.position.saturating_add(count);
        if wanted > self.context {
            return Err(EngineError::ContextFull { wanted, context: self.context });
        }
        self.prepare(sampling)?;
        let Some(looped) = &self.looped else { return Err(EngineError::NotOnDevice) };
        looped.step.input.write_slice(0, &[token])?;
        looped.step.positions.write_slice(0, &[self.position as u32])?;
        looped.row.write_slice(0, &sampling.draw().to_words())?;
        Ok(TokenStream {
            under_way: VecDeque::with_capacity(AHEAD),
            ready: VecDeque::with_capacity(TOGETHER),
            left: count,
            // The first tokens come sooner: they show that something happens.
            next: looped.together.div_ceil(4),
            last: Instant::now(),
            input: token,
        })
    }

    /// The next token of a stream that began last; `None` after the last.
    pub(crate) fn next_token(&mut self, stream: &mut TokenStream) -> Result<Option<u32>> {
        if stream.ready.is_empty() {
            self.refill(stream)?;
        }
        match stream.ready.pop_front() {
            None => Ok(None),
            Some(NO_INDEX) => {
                let runs = std::mem::take(&mut stream.under_way);
                stream.left = 0;
                stream.ready.clear();
                if let Some(looped) = &mut self.looped {
                    for (runs, _) in runs {
                        looped.step.graph.finish(runs)?;
                    }
                }
                Err(self.not_finite(&[stream.input]))
            }
            Some(token) => {
                self.position += 1;
                stream.input = token;
                Ok(Some(token))
            }
        }
    }

    /// Keeps the device busy, waits for the first runs and reads their tokens.
    fn refill(&mut self, stream: &mut TokenStream) -> Result<()> {
        let Some(looped) = &mut self.looped else { return Ok(()) };
        while stream.left > 0 && stream.under_way.len() < AHEAD {
            let steps = stream.left.min(stream.next);
            stream.under_way.push_back((looped.step.graph.start(steps)?, steps));
            stream.left -= steps;
            stream.next = looped.together;
        }
        let Some((runs, steps)) = stream.under_way.pop_front() else { return Ok(()) };
        match looped.step.graph.finish(runs) {
            Err(clearway::Error::Gpu(GpuError::Stalled { .. })) => {
                return self.again(stream, steps);
            }
            other => other?,
        }
        looped.together = fitting(stream.last.elapsed() / steps as u32);
        stream.last = Instant::now();
        let ring: Vec<u32> = looped.ring.peek_vec(0, RING)?;
        let slots = self.position..self.position + steps;
        stream.ready.extend(slots.map(|position| ring[position % RING]));
        Ok(())
    }

    /// Does steps again that failed because the device did not start workgroups in order, and those behind them. The graph has
    /// waited for all of them and runs with barriers from now on. The cache rows they wrote are written again.
    fn again(&mut self, stream: &mut TokenStream, steps: usize) -> Result<()> {
        let Some(looped) = &mut self.looped else { return Ok(()) };
        let behind = stream.under_way.drain(..).map(|(_, steps)| steps);
        stream.left += steps + behind.sum::<usize>();
        looped.step.input.write_slice(0, &[stream.input])?;
        looped.step.positions.write_slice(0, &[self.position as u32])?;
        self.note_stall();
        self.refill(stream)
    }

    fn compile_loop(&mut self, choice: Choice) -> Result<TokenLoop> {
        choose::register(&self.executor)?;
        let mut recorded = self.record(1, Logits::Last)?;
        let device = self.executor.device().clone();
        let (input, positions) = (self.input(&recorded)?, device.alloc(4)?);
        let ring = device.alloc_host_visible(4 * RING as u64)?;
        let row = device.alloc(4 * DRAW_WORDS as u64)?;
        let mut bound = self.bind(&recorded, &input, &positions, None)?;
        let tensors = (recorded.external(TOKENS), recorded.external(POSITIONS));
        let (Some(token_view), Some(position_view)) = tensors else {
            return Err(EngineError::NotOnDevice);
        };
        let recorder = &mut recorded.recorder;
        let ring_view = recorder.external("ring", DType::U32, &[RING])?;
        let row_view = recorder.external("sampling", DType::U32, &[1, DRAW_WORDS])?;
        let zero_view = recorder.external("sampling_rows", DType::U32, &[1])?;
        bound.bind(ring_view, &ring);
        bound.bind(row_view, &row);
        bound.bind(zero_view, &device.upload(&[0_u32])?);

        let graph = recorder.graph_mut();
        let by = DrawnBy { table: row_view, rows: zero_view, positions: position_view };
        let id = choose::record(graph, choice, recorded.logits, by)?;
        choose::record_advance(graph, [id, token_view, position_view, ring_view])?;
        // A step is done again from its token and its position, which the host has.
        let options = CompileOptions { counters: true, ..self.options.compile };
        let graph = self.executor.compile(recorded.graph(), &bound, &options)?;
        let step = Step { graph, recorded, input, positions, rows: None };
        Ok(TokenLoop { step, ring, row, choice, together: 1 })
    }
}

/// How many steps that take so long are handed over together: devices like multiples of 8.
fn fitting(step: Duration) -> usize {
    let steps = (PATIENCE.as_secs_f64() / step.as_secs_f64().max(1e-9)) as usize;
    let steps = steps.clamp(1, TOGETHER);
    if steps < 8 { steps } else { steps / 8 * 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_handed_over_as_long_as_text_still_flows() {
        let of = |micros: u64| fitting(Duration::from_micros(micros));
        let steps = [0, 700, 2_200, 7_000, 10_000, 100_000].map(of);
        assert_eq!(steps, [TOGETHER, TOGETHER, 24, 8, 6, 1]);
    }
}
