//! Fences of kernels that wait for counters.
//!
//! WGSL has no fence of one invocation. In a module with counters a subgroup barrier stands for it: it becomes a
//! memory barrier of the scope `Device` for storage buffers. All other barriers order storage buffers, too, so that the
//! fence of one invocation covers what the others of its workgroup have written, and what they read afterwards.

use rustc_hash::FxHashMap;

use super::words::*;
use super::{Result, SpirvError};

/// The module with its fences. It has the memory model of GLSL.
pub(in super::super) fn fences(words: &[u32]) -> Result<Vec<u32>> {
    let list = instructions(words)?;
    let mut bound = words[BOUND];
    let mut integer = None;
    let mut constants: FxHashMap<u32, u32> = FxHashMap::default();
    for i in &list {
        match i.opcode() {
            OP_TYPE_INT if i.word(2)? == 32 && i.word(3)? == 0 => integer = Some(i.word(1)?),
            OP_CONSTANT if Some(i.word(1)?) == integer => {
                constants.insert(i.word(2)?, i.word(3)?);
            }
            _ => {}
        }
    }
    // Every barrier has its scopes and semantics as constants of that type.
    let integer = integer.ok_or(SpirvError::Operands { opcode: OP_CONTROL_BARRIER })?;
    let value = |id: u32| constants.get(&id).copied().ok_or(SpirvError::NotAConstant { id });
    let mut added = Vec::new();
    let mut made: FxHashMap<u32, u32> = FxHashMap::default();
    let mut constant = |value: u32| {
        *made.entry(value).or_insert_with(|| {
            let id = bound;
            bound += 1;
            push(&mut added, OP_CONSTANT, &[integer, id, value]);
            id
        })
    };
    let ordered = semantics::ACQUIRE_RELEASE | semantics::STORAGE;
    let mut body = Vec::new();
    let first = list.iter().position(|i| i.opcode() == OP_FUNCTION).unwrap_or(list.len());
    for i in &list[first..] {
        if i.opcode() != OP_CONTROL_BARRIER {
            body.extend(i.0);
            continue;
        }
        let (execution, memory) = (i.word(1)?, i.word(2)?);
        if value(execution)? == SCOPE_SUBGROUP {
            let operands = [constant(SCOPE_DEVICE), constant(ordered)];
            push(&mut body, OP_MEMORY_BARRIER, &operands);
        } else {
            let semantics = constant(value(i.word(3)?)? | ordered);
            push(&mut body, OP_CONTROL_BARRIER, &[execution, memory, semantics]);
        }
    }
    let mut out = words[..HEADER].to_vec();
    out.extend(list[..first].iter().flat_map(|i| i.0));
    out.extend(added);
    out.extend(body);
    out[BOUND] = bound;
    Ok(out)
}
