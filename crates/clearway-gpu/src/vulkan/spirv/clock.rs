//! The device's clock in kernels that are measured.
//!
//! WGSL has no clock. In such a module the sum of a constant that nothing else has over a subgroup stands for it: it
//! becomes a reading of the clock of the scope `Device`, in two words.

use rustc_hash::FxHashSet;

use super::words::*;
use super::{Result, SpirvError};

/// The words of `NOTE_CLOCK` in `counted_measured.wgsl`.
const MARK: [u32; 2] = [0x636c_6f63, 0x6b3a_2d29];

/// The module with readings of the clock.
pub(in super::super) fn clocks(words: &[u32]) -> Result<Vec<u32>> {
    let list = instructions(words)?;
    let mut bound = words[BOUND];
    let mut integer = None;
    let mut marks: [FxHashSet<u32>; 3] = Default::default();
    for i in &list {
        match i.opcode() {
            OP_TYPE_INT if i.word(2)? == 32 && i.word(3)? == 0 => integer = Some(i.word(1)?),
            OP_CONSTANT => {
                for (part, &mark) in marks.iter_mut().zip(&MARK) {
                    if i.0.get(3) == Some(&mark) {
                        part.insert(i.word(2)?);
                    }
                }
            }
            OP_CONSTANT_COMPOSITE
                if i.0.len() == 5
                    && marks[0].contains(&i.word(3)?)
                    && marks[1].contains(&i.word(4)?) =>
            {
                marks[2].insert(i.word(2)?);
            }
            _ => {}
        }
    }
    let integer = integer.ok_or(SpirvError::Operands { opcode: OP_READ_CLOCK })?;
    let scope = bound;
    bound += 1;
    let first = list.iter().position(|i| i.opcode() == OP_FUNCTION).unwrap_or(list.len());
    let behind = list.iter().take_while(|i| i.opcode() == OP_CAPABILITY).count();
    let mut out = words[..HEADER].to_vec();
    out.extend(list[..behind].iter().flat_map(|i| i.0));
    push(&mut out, OP_CAPABILITY, &[CAPABILITY_CLOCK]);
    push(&mut out, OP_EXTENSION, &text(EXTENSION_CLOCK));
    out.extend(list[behind..first].iter().flat_map(|i| i.0));
    push(&mut out, OP_CONSTANT, &[integer, scope, SCOPE_DEVICE]);
    for i in &list[first..] {
        if i.opcode() == OP_SUBGROUP_ADD && marks[2].contains(&i.word(5)?) {
            push(&mut out, OP_READ_CLOCK, &[i.word(1)?, i.word(2)?, scope]);
        } else {
            out.extend(i.0);
        }
    }
    out[BOUND] = bound;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::super::guards::Guards;
    use super::super::super::pipeline::to_spirv;
    use super::*;
    use crate::wgsl::{COUNTED_ENTRY, MEASURED_ENTRY};

    #[test]
    fn kernels_that_are_measured_read_the_clock_and_others_do_not() {
        let compile = |entry: &str| {
            let text = [include_str!("../order.wgsl"), entry].concat();
            to_spirv(&text, &Guards::own(false)).unwrap()
        };
        let count = |words: &[u32], wanted: &[u32]| {
            let list = instructions(words).unwrap();
            list.iter()
                .filter(|i| i.opcode() == wanted[0] && i.0[1..].starts_with(&wanted[1..]))
                .count()
        };
        let plain = compile(COUNTED_ENTRY);
        assert_eq!(count(&plain, &[OP_READ_CLOCK]), 0);
        assert_eq!(count(&plain, &[OP_CAPABILITY, CAPABILITY_CLOCK]), 0);
        let measured = compile(MEASURED_ENTRY);
        assert_eq!(count(&measured, &[OP_READ_CLOCK]), 1, "in `note_now`, and nowhere else");
        assert_eq!(count(&measured, &[OP_SUBGROUP_ADD]), 0, "nothing is left that stands for it");
        assert_eq!(count(&measured, &[OP_CAPABILITY, CAPABILITY_CLOCK]), 1);
        let extension = [vec![OP_EXTENSION], text(EXTENSION_CLOCK)].concat();
        assert_eq!(count(&measured, &extension), 1);
    }
}
