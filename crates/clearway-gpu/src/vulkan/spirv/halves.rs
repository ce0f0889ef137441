//! Makes the left and right sides of all matrix products f16.

use rustc_hash::FxHashMap;

use super::words::*;
use super::{Result, SpirvError};

/// Instructions of a module, without its header.
pub(super) struct Halved {
    pub(super) words: Vec<u32>,
    /// The bound of all ids.
    pub(super) bound: u32,
}

/// The module with f16 as the component of every matrix that is a left or right side.
///
/// The types in question are used by loads alone: naga keeps sides in values, not in variables. Another
/// use is an error.
pub(super) fn sides_of_halves(list: &[Instruction<'_>], mut bound: u32) -> Result<Halved> {
    let mut constants: FxHashMap<u32, u32> = FxHashMap::default();
    let mut half = None;
    for i in list {
        match i.opcode() {
            OP_CONSTANT => {
                constants.insert(i.word(2)?, i.word(3)?);
            }
            OP_TYPE_FLOAT if i.word(2)? == 16 => half = Some(i.word(1)?),
            _ => {}
        }
    }
    // Types by their operands behind the component, and what takes the place of the others.
    let (mut right, mut wrong) = (FxHashMap::default(), Vec::new());
    for i in list.iter().filter(|i| i.opcode() == OP_TYPE_COOPERATIVE_MATRIX) {
        let (id, component, shape) = (i.word(1)?, i.word(2)?, [3, 4, 5, 6].map(|at| i.word(at)));
        let [scope, rows, columns, purpose] = shape;
        let shape = [scope?, rows?, columns?, purpose?];
        let purpose = constants.get(&shape[3]).copied();
        let purpose = purpose.ok_or(SpirvError::NotAConstant { id: shape[3] })?;
        if Some(component) == half {
            right.entry(shape).or_insert(id);
        } else if purpose != USE_ACCUMULATOR {
            wrong.push((id, shape));
        }
    }
    if wrong.is_empty() {
        return Ok(Halved { words: list.iter().flat_map(|i| i.0).copied().collect(), bound });
    }
    let mut declared = Vec::new();
    let mut new_id = || {
        bound = bound.saturating_add(1);
        bound - 1
    };
    let float = half.unwrap_or_else(|| {
        let id = new_id();
        push(&mut declared, OP_TYPE_FLOAT, &[id, 16]);
        id
    });
    let mut replaced: FxHashMap<u32, u32> = FxHashMap::default();
    for (id, shape) in wrong {
        let other = *right.entry(shape).or_insert_with(|| {
            let new = new_id();
            let [scope, rows, columns, purpose] = shape;
            push(
                &mut declared,
                OP_TYPE_COOPERATIVE_MATRIX,
                &[new, float, scope, rows, columns, purpose],
            );
            new
        });
        replaced.insert(id, other);
    }
    let mut words = Vec::new();
    if half.is_none() {
        push(&mut words, OP_CAPABILITY, &[CAPABILITY_FLOAT16]);
    }
    for i in list {
        let opcode = i.opcode();
        // All types are declared in front of the first function, and used by functions alone.
        if opcode == OP_FUNCTION {
            words.append(&mut declared);
        }
        match i.0.get(1).and_then(|id| replaced.get(id)) {
            Some(_) if opcode == OP_TYPE_COOPERATIVE_MATRIX => {}
            Some(&other) if opcode == OP_COOPERATIVE_LOAD => {
                words.extend([i.0[0], other]);
                words.extend(&i.0[2..]);
            }
            Some(_) if opcode == OP_UNDEF || opcode == OP_PHI || opcode == OP_LOAD => {
                return Err(SpirvError::Unsupported { opcode });
            }
            _ => words.extend(i.0),
        }
    }
    Ok(Halved { words, bound })
}
