//! Lanes: where a dispatch stands within its group's column.

use rustc_hash::FxHashSet;

/// A lane for every dispatch: that of the first one it waits for, where nobody of its group has it, so
/// that a chain stays on one line; else the lowest that is free. `group` grows along the list.
pub(crate) fn assign(group: &[u32], preds: &[Vec<u32>]) -> Vec<u32> {
    let mut lanes = vec![0; group.len()];
    let mut start = 0;
    while start < group.len() {
        let end = start + group[start..].partition_point(|&g| g == group[start]);
        let mut taken = FxHashSet::default();
        let mut rest = Vec::new();
        for index in start..end {
            let kept = preds[index].iter().map(|&pred| lanes[pred as usize]);
            // A lane beyond the group's own number would leave gaps that grow from group to group.
            match kept.filter(|&lane| (lane as usize) < end - start).find(|&l| taken.insert(l)) {
                Some(lane) => lanes[index] = lane,
                None => rest.push(index),
            }
        }
        let mut free = (0..).filter(|lane| !taken.contains(lane));
        for index in rest {
            lanes[index] = free.next().unwrap_or(0);
        }
        start = end;
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_keeps_its_lane_and_no_two_of_a_group_share_one() {
        // 0 | 1 2 3 | 4(3) 5(1) | 6(5)
        let group = [0, 1, 1, 1, 2, 2, 3];
        let preds = [vec![], vec![0], vec![0], vec![0], vec![3], vec![1], vec![5]];
        assert_eq!(assign(&group, &preds), [0, 0, 1, 2, 1, 0, 0]);
    }
}
