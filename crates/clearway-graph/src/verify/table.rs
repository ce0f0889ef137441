//! A table by buffer or dispatch number.
//!
//! Numbers count up from 0 in nearly every list, so they index vectors: a list of 100,000 dispatches
//! is then walked through memory in order, where a hash table would touch it at random. Numbers far
//! beyond the list's length go to a hash table, so that a wild one cannot ask for gigabytes.

use rustc_hash::FxHashMap;

use crate::ids::NodeId;

/// Numbers per dispatch of a list that are not yet far.
const ROOM_PER_DISPATCH: usize = 4;

/// Entries by number.
#[derive(Debug)]
pub(super) struct Table<T> {
    values: Vec<Option<T>>,
    others: Vec<Option<T>>,
    far: FxHashMap<usize, T>,
    /// Numbers from here on are far.
    limit: usize,
}

/// Where an entry is kept.
enum Place {
    Value(usize),
    Other(usize),
    Far,
}

impl<T> Table<T> {
    /// A table for a list of this many dispatches.
    pub(super) fn for_list(dispatches: usize) -> Self {
        let limit = ROOM_PER_DISPATCH * dispatches + 1024;
        Self { values: Vec::new(), others: Vec::new(), far: FxHashMap::default(), limit }
    }

    pub(super) fn get(&self, key: usize) -> Option<&T> {
        match self.place(key) {
            Place::Value(index) => self.values.get(index)?.as_ref(),
            Place::Other(index) => self.others.get(index)?.as_ref(),
            Place::Far => self.far.get(&key),
        }
    }

    /// The entry, made by `new` if there is none.
    pub(super) fn entry(&mut self, key: usize, new: impl FnOnce() -> T) -> &mut T {
        let expected = self.limit / ROOM_PER_DISPATCH;
        match self.place(key) {
            Place::Value(index) => slot(&mut self.values, index, expected).get_or_insert_with(new),
            Place::Other(index) => slot(&mut self.others, index, expected).get_or_insert_with(new),
            Place::Far => self.far.entry(key).or_insert_with(new),
        }
    }

    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        match self.place(key) {
            Place::Value(index) => self.values.get_mut(index)?.take(),
            Place::Other(index) => self.others.get_mut(index)?.take(),
            Place::Far => self.far.remove(&key),
        }
    }

    pub(super) fn clear(&mut self) {
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

/// The entry at an index, in a table that will have about `expected` entries if it has any.
fn slot<T>(entries: &mut Vec<Option<T>>, index: usize, expected: usize) -> &mut Option<T> {
    if index >= entries.len() {
        if entries.capacity() == 0 {
            entries.reserve(expected);
        }
        entries.resize_with(index + 1, || None);
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
            assert_eq!(table.remove(key), Some(index));
            assert_eq!(table.get(key), None);
        }
    }
}
