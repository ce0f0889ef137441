//! How many dispatches an order moved earlier.

/// Counts dispatches that moved earlier, given their recorded positions in the new order.
///
/// Taking one dispatch out and putting it in elsewhere shifts all those between by one; they did
/// not move. The largest set that did not move is the longest increasing run of recorded positions
/// (not necessarily adjacent); of the others, those that stand before a dispatch of that set which
/// they used to follow moved earlier.
pub(super) fn count_moved_earlier(order: &[usize]) -> u32 {
    let stayed = longest_increasing(order);
    // Smallest recorded position of a stayed dispatch at or after each new position.
    let mut next_stayed = usize::MAX;
    let mut moved = 0;
    for (&recorded, &stayed) in order.iter().zip(&stayed).rev() {
        if stayed {
            next_stayed = recorded;
        } else if next_stayed < recorded {
            moved += 1;
        }
    }
    moved
}

/// Marks the members of a longest strictly increasing subsequence.
fn longest_increasing(order: &[usize]) -> Vec<bool> {
    let mut tails: Vec<usize> = Vec::new();
    let mut before = vec![usize::MAX; order.len()];
    for (index, &value) in order.iter().enumerate() {
        let len = tails.partition_point(|&tail| order[tail] < value);
        if len > 0 {
            before[index] = tails[len - 1];
        }
        if len == tails.len() {
            tails.push(index);
        } else {
            tails[len] = index;
        }
    }
    let mut member = vec![false; order.len()];
    let mut at = tails.last().copied().unwrap_or(usize::MAX);
    while at != usize::MAX {
        member[at] = true;
        at = before[at];
    }
    member
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulled_dispatch_counts_once_and_shifted_ones_do_not() {
        assert_eq!(count_moved_earlier(&[0, 4, 1, 2, 3]), 1);
    }

    #[test]
    fn a_dispatch_pushed_back_moves_nobody_earlier() {
        assert_eq!(count_moved_earlier(&[0, 2, 3, 4, 1]), 0);
    }

    #[test]
    fn the_recorded_order_moves_nobody() {
        assert_eq!(count_moved_earlier(&[0, 1, 2, 3]), 0);
        assert_eq!(count_moved_earlier(&[]), 0);
    }
}
