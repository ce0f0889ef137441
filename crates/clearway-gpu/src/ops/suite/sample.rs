//! A part of the list that still has every class of cases.

use std::collections::BTreeMap;

use clearway_graph::{CapturedOpKind as Kind, DType};

use super::OpCase;
use crate::random::Rng;

/// What decides which kernel a case gets, but for lengths and places: the op, the types of its operands, and whether its rows
/// are one, few or many.
type Class = (Kind, Vec<DType>, u8);

/// Rows up to which products have kernels for few.
const FEW_ROWS: usize = 8;

fn class(case: &OpCase) -> Class {
    let rows = match case.operands.first().map_or(1, super::OperandSpec::rows) {
        0..=1 => 0,
        2..=FEW_ROWS => 1,
        _ => 2,
    };
    (case.kind, case.operands.iter().map(|operand| operand.dtype).collect(), rows)
}

/// One case of every `step`th class, in the order of the list. Which classes and which of their cases follows from `seed`,
/// so that runs with new seeds meet all of them in time.
pub fn sample(cases: &[OpCase], seed: u64, step: usize) -> Vec<OpCase> {
    let mut classes: BTreeMap<Class, Vec<usize>> = BTreeMap::new();
    for (index, case) in cases.iter().enumerate() {
        classes.entry(class(case)).or_default().push(index);
    }
    let mut rng = Rng(seed);
    let first = rng.below(step);
    let some = classes.into_values().skip(first).step_by(step.max(1));
    let mut chosen: Vec<usize> = some.map(|of_class| of_class[rng.below(of_class.len())]).collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|index| cases[index].clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ops::suite::{DEFAULT_SEED, cases};

    #[test]
    fn a_sample_has_every_class_once_and_another_seed_has_other_cases() {
        let all = cases(DEFAULT_SEED);
        let classes: BTreeSet<Class> = all.iter().map(class).collect();
        let whole = sample(&all, 1, 1);
        assert_eq!(whole.iter().map(class).collect::<BTreeSet<_>>(), classes);
        assert_eq!(whole.len(), classes.len());
        assert!(whole.len() * 2 < all.len(), "{} of {}", whole.len(), all.len());
        assert_ne!(whole, sample(&all, 2, 1));
        println!("{} classes of {} cases", classes.len(), all.len());
        // All parts of a few seeds together are everything.
        let parts: BTreeSet<Class> =
            (0..40).flat_map(|seed| sample(&all, seed, 3)).map(|case| class(&case)).collect();
        assert_eq!(parts, classes);
    }
}
