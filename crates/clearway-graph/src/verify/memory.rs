//! Memory of a symbolic run: every byte holds a token that says where it comes from.

use super::fault::Content;
use super::intervals::{Intervals, Payload};
use super::structure::Recorded;
use super::table::Table;

/// Where a run of bytes comes from. Dispatches are positions in the recorded list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Undefined,
    Initial { buf_id: usize },
    Written { position: u32, access: u16 },
    Unknown { position: u32, buf_id: usize },
}

/// `len` bytes from byte `at` of their source on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) len: u64,
    pub(super) source: Source,
    pub(super) at: u64,
}

impl Run {
    fn advance(self, bytes: u64) -> Self {
        Self { len: self.len - bytes, at: self.at + bytes, ..self }
    }

    /// The first byte, as told in a fault.
    pub(super) fn content(&self, recorded: &Recorded<'_>) -> Content {
        let id = |position: u32| recorded.dispatches[position as usize].id;
        let byte = self.at;
        match self.source {
            Source::Undefined => Content::Undefined,
            Source::Initial { buf_id } => Content::Initial { buf_id, byte },
            Source::Written { position, access } => {
                Content::Written { dispatch: id(position), access, byte }
            }
            Source::Unknown { position, buf_id } => {
                Content::Unknown { dispatch: id(position), buf_id, byte }
            }
        }
    }
}

/// What a byte of a buffer holds before anybody writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// A buffer outside the arena, which a dispatch with unknown access may change.
    Real,
    /// Bytes of their own: an input, or whatever lies in a slab.
    Own,
    /// A temporary value.
    Undefined,
}

/// Contents of all buffers.
pub(super) struct Memory<G> {
    ground: G,
    buffers: Table<Intervals<Token>>,
    /// Real buffers written since `unknown`.
    touched: Vec<usize>,
    /// The last dispatch with unknown access: it may have changed every real buffer.
    unknown: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    source: Source,
    at: u64,
}

impl Payload for Token {
    fn advance(self, bytes: u64) -> Self {
        Self { at: self.at + bytes, ..self }
    }
}

impl<G: Fn(usize) -> Ground> Memory<G> {
    /// Memory of a list of this many dispatches.
    pub(super) fn new(dispatches: usize, ground: G) -> Self {
        let buffers = Table::for_list(dispatches);
        Self { ground, buffers, touched: Vec::new(), unknown: None }
    }

    /// Adds the runs of `p0..p1` to `runs`, starting a new run.
    pub(super) fn read(&self, buf_id: usize, p0: u64, p1: u64, runs: &mut Vec<Run>) {
        let first = runs.len();
        let ground = self.ground_source(buf_id);
        let mut push = |from: u64, to: u64, token: Option<Token>| {
            let Token { source, at } = token.unwrap_or(Token { source: ground, at: from });
            let at = if source == Source::Undefined { 0 } else { at };
            let len = to - from;
            match runs[first..].last_mut() {
                Some(run) if run.source == source && continues(run, at) => run.len += len,
                _ => runs.push(Run { len, source, at }),
            }
        };
        match self.buffers.get(buf_id) {
            Some(intervals) => intervals.visit(p0, p1, push),
            None if p0 < p1 => push(p0, p1, None),
            None => {}
        }
    }

    /// Puts bytes `at..` of `source` into `p0..p1`.
    pub(super) fn write(&mut self, buf_id: usize, p0: u64, p1: u64, source: Source, at: u64) {
        if p0 >= p1 {
            return;
        }
        let intervals = self.buffers.entry(buf_id, || {
            if (self.ground)(buf_id) == Ground::Real {
                self.touched.push(buf_id);
            }
            Intervals::default()
        });
        intervals.assign(p0, p1, Token { source, at });
    }

    /// Takes out what the real buffers hold where they were written since the last unknown
    /// dispatch, by buffer.
    pub(super) fn take_touched(&mut self) -> Vec<Touched> {
        self.touched.sort_unstable();
        let mut all = Vec::with_capacity(self.touched.len());
        for buf_id in std::mem::take(&mut self.touched) {
            let end = self.buffers.get(buf_id).map_or(0, Intervals::end);
            let mut runs = Vec::new();
            self.read(buf_id, 0, end, &mut runs);
            self.buffers.forget(buf_id);
            all.push(Touched { buf_id, runs });
        }
        all
    }

    /// What an untouched stretch of a real buffer holds.
    pub(super) fn untouched(&self, buf_id: usize, p0: u64, p1: u64) -> Run {
        Run { len: p1 - p0, source: self.ground_source(buf_id), at: p0 }
    }

    /// A dispatch with unknown access may have changed every real buffer, all of whose touched
    /// bytes were taken out before.
    pub(super) fn change_all(&mut self, position: u32) {
        self.unknown = Some(position);
    }

    fn ground_source(&self, buf_id: usize) -> Source {
        match ((self.ground)(buf_id), self.unknown) {
            (Ground::Undefined, _) => Source::Undefined,
            (Ground::Real, Some(position)) => Source::Unknown { position, buf_id },
            (Ground::Own | Ground::Real, _) => Source::Initial { buf_id },
        }
    }
}

/// Contents of a real buffer from its first byte to the last one touched.
pub(super) struct Touched {
    pub(super) buf_id: usize,
    pub(super) runs: Vec<Run>,
}

/// The first bytes of two equally long contents that differ: offset, both, and how many bytes.
/// What is undefined in `expected` matches anything.
pub(super) fn difference(expected: &[Run], found: &[Run]) -> Option<(u64, Run, Run)> {
    let (mut expected, mut found) = (expected.iter().copied(), found.iter().copied());
    let (mut e, mut f) = (expected.next()?, found.next()?);
    let mut offset = 0;
    loop {
        let len = e.len.min(f.len);
        let same = e.source == f.source && (e.source == Source::Undefined || e.at == f.at);
        if len > 0 && !same && e.source != Source::Undefined {
            return Some((offset, Run { len, ..e }, Run { len, ..f }));
        }
        offset += len;
        e = if e.len > len { e.advance(len) } else { expected.next()? };
        f = if f.len > len { f.advance(len) } else { found.next()? };
    }
}

fn continues(run: &Run, at: u64) -> bool {
    run.source == Source::Undefined || run.at + run.len == at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(len: u64, buf_id: usize, at: u64) -> Run {
        Run { len, source: Source::Initial { buf_id }, at }
    }

    #[test]
    fn the_same_source_at_another_byte_is_a_difference() {
        let expected = [run(8, 0, 0), run(8, 1, 0)];
        assert_eq!(difference(&expected, &[run(8, 0, 0), run(4, 1, 0), run(4, 1, 4)]), None);
        let found = [run(8, 0, 0), run(4, 1, 0), run(4, 1, 5)];
        assert_eq!(difference(&expected, &found), Some((12, run(4, 1, 4), run(4, 1, 5))));
    }

    #[test]
    fn reading_joins_what_was_written_in_one_piece() {
        let mut memory = Memory::new(8, |_| Ground::Real);
        let source = Source::Written { position: 3, access: 1 };
        memory.write(0, 8, 32, source, 0);
        memory.write(0, 12, 16, Source::Written { position: 4, access: 0 }, 0);
        memory.write(0, 12, 16, source, 4);
        let mut runs = Vec::new();
        memory.read(0, 0, 40, &mut runs);
        assert_eq!(runs, [run(8, 0, 0), Run { len: 24, source, at: 0 }, run(8, 0, 32)]);
    }
}
