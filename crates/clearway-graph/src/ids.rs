//! Indices as types, and the numbering of buffers.
//!
//! A `buf_id` names either a real buffer or an arena value that has no address yet. Both live in
//! one `usize` so that every hazard test compares one number: real buffers count up from zero,
//! values occupy the upper half. Two different values can therefore never conflict before they are
//! placed, which is what lets the scheduler see true dependences only.

use serde::{Serialize, Serializer};

/// An arena value: one output of a recorded op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(pub u32);

/// A recorded dispatch. The id stays with it through fusion, reordering and placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct DispatchId(pub u32);

const VALUE_BIT: usize = 1 << (usize::BITS - 1);

impl NodeId {
    /// The `buf_id` this value has until it is placed.
    pub const fn buf_id(self) -> usize {
        VALUE_BIT | self.0 as usize
    }

    /// The value behind a `buf_id`, if it is one.
    pub const fn from_buf_id(buf_id: usize) -> Option<Self> {
        let index = buf_id & !VALUE_BIT;
        match buf_id & VALUE_BIT {
            0 => None,
            // Numbers no value can have must not wrap round to one that exists.
            _ if index > u32::MAX as usize => Some(Self(u32::MAX)),
            _ => Some(Self(index as u32)),
        }
    }

    /// Index into the graph's value table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl std::fmt::Display for DispatchId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Writes a `buf_id` the way text forms show it: `%3` for a value, `@7` for a buffer.
pub(crate) fn buf_name(buf_id: usize) -> String {
    match NodeId::from_buf_id(buf_id) {
        Some(value) => value.to_string(),
        None => format!("@{buf_id}"),
    }
}

/// Writes a `buf_id` by that name: the number of a value exceeds what JSON readers keep exactly.
pub(crate) fn serialize_buf<S: Serializer>(
    buf_id: &usize,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&buf_name(*buf_id))
}
