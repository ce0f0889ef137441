//! An independent check of a packing: plain, and shared with nothing that places.

use std::collections::BTreeMap;

use super::Item;

/// What is wrong with a packing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackFault {
    /// Not one offset per item.
    #[error("{offsets} offsets for {items} values")]
    Count {
        /// Items given.
        items: usize,
        /// Offsets given.
        offsets: usize,
    },
    /// The lifetime is empty or runs backwards.
    #[error("value {id} is never live")]
    NeverLive {
        /// The item.
        id: u32,
    },
    /// Offset plus size does not fit 64 bits.
    #[error("value {id} ends beyond 64 bits")]
    Overflow {
        /// The item.
        id: u32,
    },
    /// The item ends above the capacity.
    #[error("value {id} ends at {end}, above the capacity of {capacity}")]
    AboveCapacity {
        /// The item.
        id: u32,
        /// Its offset plus its size.
        end: u64,
        /// The capacity.
        capacity: u64,
    },
    /// Two items share a byte while both are live.
    #[error("values {first} and {second} share byte {byte} at time {time}")]
    Overlap {
        /// One item.
        first: u32,
        /// The other.
        second: u32,
        /// The lowest byte they share.
        byte: u64,
        /// An instant at which both are live.
        time: u64,
    },
}

/// Checks that no two items share a byte while both are live and that all end within the capacity.
/// Returns the height: the largest offset plus size.
///
/// A sweep over time keeps the live byte ranges in order. As long as they are disjoint, a new one
/// can only meet its two neighbours.
///
/// # Errors
///
/// The first fault found.
pub fn check(items: &[Item], offsets: &[u64], capacity: Option<u64>) -> Result<u64, PackFault> {
    if items.len() != offsets.len() {
        return Err(PackFault::Count { items: items.len(), offsets: offsets.len() });
    }
    let mut height = 0;
    let mut events = Vec::with_capacity(2 * items.len());
    for (index, (item, offset)) in items.iter().zip(offsets).enumerate() {
        let id = item.id;
        if item.lower >= item.upper {
            return Err(PackFault::NeverLive { id });
        }
        let end = offset.checked_add(item.size).ok_or(PackFault::Overflow { id })?;
        if let Some(capacity) = capacity.filter(|&capacity| end > capacity) {
            return Err(PackFault::AboveCapacity { id, end, capacity });
        }
        height = height.max(end);
        if item.size > 0 {
            // At one instant, ends sort before starts: lifetimes are half-open.
            events.push((item.lower, true, index));
            events.push((item.upper, false, index));
        }
    }
    events.sort_unstable();

    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for (time, starts, index) in events {
        let offset = offsets[index];
        if !starts {
            live.remove(&offset);
            continue;
        }
        let below = live.range(..offset).next_back().map(|(_, &other)| other);
        let above = live.range(offset..).next().map(|(_, &other)| other);
        for other in below.into_iter().chain(above) {
            let byte = offset.max(offsets[other]);
            let reaches = |index: usize| byte < offsets[index] + items[index].size;
            if reaches(index) && reaches(other) {
                let (first, second) = (items[other].id, items[index].id);
                return Err(PackFault::Overlap { first, second, byte, time });
            }
        }
        live.insert(offset, index);
    }
    Ok(height)
}
