//! Disjoint byte intervals of one buffer with a payload.

use std::collections::BTreeMap;

/// A payload that may be cut: what stays of it after its first bytes.
pub(super) trait Payload: Copy {
    /// The payload of the rest, `bytes` further on.
    fn advance(self, bytes: u64) -> Self;
}

/// Disjoint intervals in address order. Bytes never assigned have no payload.
///
/// Most buffers are values that are written and read whole: one interval needs no tree.
#[derive(Debug)]
pub(super) enum Intervals<T> {
    One(Option<Interval<T>>),
    Many(BTreeMap<u64, (u64, T)>),
}

/// Bytes `p0..p1` with their payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval<T> {
    pub(super) p0: u64,
    pub(super) p1: u64,
    pub(super) payload: T,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Self::One(None)
    }
}

impl<T: Payload> Intervals<T> {
    /// Gives `p0..p1` this payload.
    pub(super) fn assign(&mut self, p0: u64, p1: u64, payload: T) {
        if p0 >= p1 {
            return;
        }
        match self {
            Self::One(held) if held.is_none_or(|h| p0 <= h.p0 && h.p1 <= p1) => {
                *held = Some(Interval { p0, p1, payload });
            }
            Self::One(held) => {
                let held = held.iter().map(|h| (h.p0, (h.p1, h.payload))).collect();
                *self = Self::Many(held);
                self.assign(p0, p1, payload);
            }
            Self::Many(map) => assign_in_tree(map, p0, p1, payload),
        }
    }

    /// Calls `see` with the pieces of `p0..p1` in order, untouched ones with `None`.
    pub(super) fn visit(&self, p0: u64, p1: u64, mut see: impl FnMut(u64, u64, Option<T>)) {
        if p0 >= p1 {
            return;
        }
        let mut at = p0;
        let mut piece = |start: u64, end: u64, payload: T| {
            let (from, to) = (start.max(p0), end.min(p1));
            if from >= to {
                return;
            }
            if at < from {
                see(at, from, None);
            }
            see(from, to, Some(payload.advance(from - start)));
            at = to;
        };
        match self {
            Self::One(held) => {
                if let Some(held) = held {
                    piece(held.p0, held.p1, held.payload);
                }
            }
            Self::Many(map) => {
                let before = map.range(..p0).next_back();
                for (&start, &(end, payload)) in before.into_iter().chain(map.range(p0..p1)) {
                    piece(start, end, payload);
                }
            }
        }
        if at < p1 {
            see(at, p1, None);
        }
    }

    /// One past the last byte that was ever assigned.
    pub(super) fn end(&self) -> u64 {
        match self {
            Self::One(held) => held.as_ref().map_or(0, |h| h.p1),
            Self::Many(map) => map.last_key_value().map_or(0, |(_, &(end, _))| end),
        }
    }
}

fn assign_in_tree<T: Payload>(map: &mut BTreeMap<u64, (u64, T)>, p0: u64, p1: u64, payload: T) {
    if let Some((end, held)) = map.get_mut(&p0)
        && *end == p1
    {
        *held = payload;
        return;
    }
    if let Some((&start, (end, held))) = map.range_mut(..p0).next_back()
        && *end > p0
    {
        let (old_end, held) = (*end, *held);
        *end = p0;
        if old_end > p1 {
            map.insert(p1, (old_end, held.advance(p1 - start)));
        }
    }
    while let Some((&start, &(end, held))) = map.range(p0..p1).next() {
        map.remove(&start);
        if end > p1 {
            map.insert(p1, (end, held.advance(p1 - start)));
        }
    }
    map.insert(p0, (p1, payload));
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Payload for (char, u64) {
        fn advance(self, bytes: u64) -> Self {
            (self.0, self.1 + bytes)
        }
    }

    type Piece = (u64, u64, Option<(char, u64)>);

    fn seen(map: &Intervals<(char, u64)>, p0: u64, p1: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        map.visit(p0, p1, |a, b, payload| pieces.push((a, b, payload)));
        pieces
    }

    #[test]
    fn pieces_are_cut_and_count_their_bytes_from_their_own_start() {
        let mut map = Intervals::default();
        map.assign(10, 50, ('a', 0));
        map.assign(20, 30, ('b', 0));
        map.assign(25, 28, ('c', 7));
        map.assign(28, 28, ('d', 0));
        assert_eq!(
            seen(&map, 5, 60),
            [
                (5, 10, None),
                (10, 20, Some(('a', 0))),
                (20, 25, Some(('b', 0))),
                (25, 28, Some(('c', 7))),
                (28, 30, Some(('b', 8))),
                (30, 50, Some(('a', 20))),
                (50, 60, None),
            ]
        );
        assert_eq!(seen(&map, 26, 29), [(26, 28, Some(('c', 8))), (28, 29, Some(('b', 8)))]);
        assert_eq!(map.end(), 50);
    }

    #[test]
    fn a_covering_assignment_replaces_everything() {
        let mut map = Intervals::default();
        for start in [0, 8, 4, 16] {
            map.assign(start, start + 4, ('x', start));
        }
        map.assign(0, 20, ('y', 0));
        assert_eq!(seen(&map, 0, 20), [(0, 20, Some(('y', 0)))]);
    }
}
