//! Lowering a list to a backend's commands.

use crate::barriers::{BarrierWalk, replay_barrier};
use crate::graph::ComputeGraph;
use crate::node::{BarrierReason, CapturedNode, Dispatch};

/// Where dispatches and barriers are written to. Each backend implements it.
pub trait CommandEncoder {
    /// What can go wrong while encoding.
    type Error;

    /// Writes a dispatch.
    ///
    /// # Errors
    /// What the backend reports, such as a kernel it does not have.
    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), Self::Error>;

    /// Writes a barrier: everything before it finishes before anything after it starts.
    ///
    /// # Errors
    /// What the backend reports.
    fn barrier(&mut self, reason: &BarrierReason) -> Result<(), Self::Error>;

    /// Hands what was written to the device, which may start at once.
    ///
    /// # Errors
    /// What the backend reports.
    fn commit(&mut self) -> Result<(), Self::Error>;

    /// Whether the backend finishes one committed encoder before it starts the next. If not, the
    /// open group survives the end of an encoder.
    fn orders_commits(&self) -> bool {
        false
    }
}

/// Least number of dispatches in the first of two encoders.
pub const DUAL_FIRST_MIN: usize = 64;

impl ComputeGraph {
    /// Writes dispatches and barriers exactly as they stand; returns how many barriers. A dispatch
    /// that has nothing to do where it was placed ([`Dispatch::is_moot`]) is left out.
    ///
    /// # Errors
    /// The encoder's first error.
    pub fn encode_sequential<E: CommandEncoder + ?Sized>(
        &self,
        enc: &mut E,
    ) -> Result<u32, E::Error> {
        let mut barriers = 0;
        for node in self.nodes() {
            match node {
                CapturedNode::Dispatch(dispatch) if dispatch.is_moot() => {}
                CapturedNode::Dispatch(dispatch) => enc.dispatch(dispatch)?,
                CapturedNode::Barrier(reason) => {
                    enc.barrier(reason)?;
                    barriers += 1;
                }
            }
        }
        Ok(barriers)
    }

    /// For hand-built graphs: ignores barrier nodes and places barriers from the ranges as it
    /// goes; returns how many.
    ///
    /// # Errors
    /// The encoder's first error.
    pub fn encode_with_barriers<E: CommandEncoder + ?Sized>(
        &self,
        enc: &mut E,
    ) -> Result<u32, E::Error> {
        let mut walk = BarrierWalk::default();
        let mut part = Part::default();
        for dispatch in self.dispatches() {
            part.encode(&mut walk, dispatch, enc)?;
        }
        self.encode_replay_barrier(&walk, part, enc)
    }

    /// As [`encode_with_barriers`](Self::encode_with_barriers) into two encoders: the first tenth
    /// (at least 64 dispatches) into `enc0`, which is committed at once so that the device starts
    /// while `enc1` is still being written. The caller commits `enc1`. Returns the barriers in
    /// each.
    ///
    /// # Errors
    /// The encoders' first error.
    pub fn encode_dual_buffer<E: CommandEncoder + ?Sized>(
        &self,
        enc0: &mut E,
        enc1: &mut E,
    ) -> Result<(u32, u32), E::Error> {
        let count = self.dispatch_count() as usize;
        let split = DUAL_FIRST_MIN.max(count.div_ceil(10));
        let mut walk = BarrierWalk::default();
        let mut first = Part::default();
        for dispatch in self.dispatches().take(split) {
            first.encode(&mut walk, dispatch, enc0)?;
        }
        enc0.commit()?;
        let mut second = Part { barriers: 0, ..first };
        if enc0.orders_commits() {
            walk.reset();
            second.first_group.get_or_insert(split);
        }
        for dispatch in self.dispatches().skip(split) {
            second.encode(&mut walk, dispatch, enc1)?;
        }
        let in_second = self.encode_replay_barrier(&walk, second, enc1)?;
        Ok((first.barriers, in_second))
    }

    fn encode_replay_barrier<E: CommandEncoder + ?Sized>(
        &self,
        walk: &BarrierWalk,
        part: Part,
        enc: &mut E,
    ) -> Result<u32, E::Error> {
        if !self.is_replayed() {
            return Ok(part.barriers);
        }
        let first_group = part.first_group.unwrap_or(usize::MAX);
        let first_group = self.dispatches().take(first_group).map(|d| &**d);
        match replay_barrier(walk, first_group) {
            Some(reason) => {
                enc.barrier(&reason)?;
                Ok(part.barriers + 1)
            }
            None => Ok(part.barriers),
        }
    }
}

/// What was written so far.
#[derive(Clone, Copy, Default)]
struct Part {
    barriers: u32,
    dispatches: usize,
    /// Dispatches before the first barrier of the list.
    first_group: Option<usize>,
}

impl Part {
    fn encode<E: CommandEncoder + ?Sized>(
        &mut self,
        walk: &mut BarrierWalk,
        dispatch: &Dispatch,
        enc: &mut E,
    ) -> Result<(), E::Error> {
        if let Some(reason) = walk.before(dispatch) {
            self.first_group.get_or_insert(self.dispatches);
            self.barriers += 1;
            enc.barrier(&reason)?;
        }
        self.dispatches += 1;
        if dispatch.is_moot() { Ok(()) } else { enc.dispatch(dispatch) }
    }
}

/// An encoder that writes down what it was told: for tests and for looking at a list.
#[derive(Clone, Debug, Default)]
pub struct RecordingEncoder {
    /// What was written, in order.
    pub commands: Vec<RecordedCommand>,
    /// What [`CommandEncoder::orders_commits`] answers.
    pub orders_commits: bool,
}

/// One command of a [`RecordingEncoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedCommand {
    /// A dispatch.
    Dispatch(crate::DispatchId),
    /// A barrier and its reason.
    Barrier(BarrierReason),
    /// The encoder was committed here.
    Commit,
}

impl CommandEncoder for RecordingEncoder {
    type Error = std::convert::Infallible;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), Self::Error> {
        self.commands.push(RecordedCommand::Dispatch(dispatch.id));
        Ok(())
    }

    fn barrier(&mut self, reason: &BarrierReason) -> Result<(), Self::Error> {
        self.commands.push(RecordedCommand::Barrier(*reason));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Self::Error> {
        self.commands.push(RecordedCommand::Commit);
        Ok(())
    }

    fn orders_commits(&self) -> bool {
        self.orders_commits
    }
}

#[cfg(test)]
mod tests;
