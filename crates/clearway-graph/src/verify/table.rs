//! A table by buffer or dispatch number.
//!
//! Numbers count up from 0 in nearly every list, so they index vectors: a list of 100,000 dispatches
//! is then walked through memory in order, where a hash table would touch it at random. Numbers far
//! beyond the list's length go to a hash table, so that a wild one cannot ask for gigabytes.
//!
//! The vectors hold only where an entry is. Most numbers have none: nobody writes weights, and fused
//! dispatches keep most values to themselves.

use rustc_hash::FxHashMap;

use crate::ids::NodeId;

/// Numbers per dispatch of a list that are not yet far.
const ROOM_PER_DISPATCH: usize = 4;

/// Entries by number.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// In the order in which they were made.
    entries: Vec<T>,
    values: Vec<u32>,
    others: Vec<u32>,
    far: FxHashMap<usize, u32>,
    /// Numbers from here on are far.
    limit: usize,
}

/// Stands for no entry.
const NONE: u32 = u32::MAX;

impl<T> Table<T> {
    /// A table for a list of this many dispatches.
    pub(super) fn for_list(dispatches: usize) -> Self {
        let limit = ROOM_PER_DISPATCH * dispatches + 1024;
        let (values, others, far) = Default::default();
        Self { entries: Vec::with_capacity(dispatches), values, others, far, limit }
    }

    pub(super) fn get(&self, key: usize) -> Option<&T> {
        let index = match self.place(key) {
            Place::Value(number) => self.values.get(number),
            Place::Other(number) => self.others.get(number),
            Place::Far => self.far.get(&key),
        };
        self.entries.get(*index? as usize)
    }

    /// The entry, made by `new` if there is none.
    pub(super) fn entry(&mut self, key: usize, new: impl FnOnce() -> T) -> &mut T {
        let expected = self.limit / ROOM_PER_DISPATCH;
        let index = match self.place(key) {
            Place::Value(number) => slot(&mut self.values, number, expected),
            Place::Other(number) => slot(&mut self.others, number, expected),
            Place::Far => self.far.entry(key).or_insert(NONE),
        };
        if *index == NONE {
            *index = self.entries.len() as u32;
            self.entries.push(new());
        }
        &mut self.entries[*index as usize]
    }

    /// Forgets an entry. Its memory stays with the table.
    pub(super) fn forget(&mut self, key: usize) {
        let index = match self.place(key) {
            Place::Value(number) => self.values.get_mut(number),
            Place::Other(number) => self.others.get_mut(number),
            Place::Far => self.far.get_mut(&key),
        };
        if let Some(index) = index {
            *index = NONE;
        }
    }

    /// Forgets every entry.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.values.clear();
        self.others.clear();
        self.far.clear();
    }

    fn place(&self, key: usize) -> Place {
        match NodeId::from_buf_id(key) {
            Some(value) if value.index() < self.limit => Place::Value(value.index()),
            None if key < self.limit => Place::Other(key),
            _ => Place::Far,
        }
    }
}

/// Where an entry is kept.
enum Place {
    Value(usize),
    Other(usize),
    Far,
}

/// The entry at an index, in a table that will have about `expected` entries if it has any.
fn slot(entries: &mut Vec<u32>, index: usize, expected: usize) -> &mut u32 {
    if index >= entries.len() {
        if entries.capacity() == 0 {
            entries.reserve(expected);
        }
        entries.resize(index + 1, NONE);
    }
    &mut entries[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_buffers_and_far_numbers_do_not_meet() {
        let keys = [
            0,
            1,
            5_000_000_000,
            NodeId(0).buf_id(),
            NodeId(1).buf_id(),
            NodeId(u32::MAX).buf_id(),
        ];
        let mut table = Table::for_list(4);
        for (index, key) in keys.into_iter().enumerate() {
            assert_eq!(table.get(key), None);
            *table.entry(key, || 0) += index;
        }
        for (index, key) in keys.into_iter().enumerate() {
            assert_eq!(table.get(key), Some(&index));
        }
        for key in [1, NodeId(1).buf_id(), NodeId(u32::MAX).buf_id()] {
            table.forget(key);
            assert_eq!(table.get(key), None);
            assert_eq!(*table.entry(key, || 7), 7);
        }
        assert_eq!(table.get(0), Some(&0));
        table.clear();
        assert!(keys.into_iter().all(|key| table.get(key).is_none()));
    }
}
