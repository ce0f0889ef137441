//! A second look at SPIR-V, apart from the code that writes it: do accesses and barriers say what the
//! Vulkan memory model asks for? Numbers are those of the SPIR-V specification.

use std::collections::HashMap;

const HEADER: usize = 5;
const MEMORY_MODEL: u32 = 14;
const CAPABILITY: u32 = 17;
const TYPE_POINTER: u32 = 32;
const CONSTANT: u32 = 43;
const VARIABLE: u32 = 59;
const LOAD: u32 = 61;
const STORE: u32 = 62;
const DECORATE: u32 = 71;
const CONTROL_BARRIER: u32 = 224;
const MEMORY_BARRIER: u32 = 225;
const MATRIX_LOAD: u32 = 4457;
const MATRIX_STORE: u32 = 4458;
/// Instructions whose result may be a pointer: variables, chains, parameters, copies, choices.
const POINTERS: [u32; 7] = [VARIABLE, 65, 66, 55, 83, 169, 245];

const VULKAN: u32 = 3;
const VULKAN_CAPABILITY: u32 = 5345;
const DEVICE_CAPABILITY: u32 = 5346;
const COHERENT: u32 = 23;
const WORKGROUP: u32 = 4;
const STORAGE_BUFFER: u32 = 12;
const NON_PRIVATE: u32 = 0x20;
const ACQUIRE_RELEASE: u32 = 0x8;
const AVAILABLE_VISIBLE: u32 = 0x6000;
const DEVICE_SCOPE: u32 = 1;

/// Where each instruction starts, and its opcode.
fn places(words: &[u32]) -> Vec<(usize, u32)> {
    let mut all = Vec::new();
    let mut at = HEADER;
    while at < words.len() {
        all.push((at, words[at] & 0xffff));
        at += (words[at] >> 16) as usize;
    }
    all
}

/// Where an access has its pointer and its memory operands, from the start of the instruction.
fn access(opcode: u32) -> Option<(usize, usize)> {
    match opcode {
        LOAD => Some((3, 4)),
        STORE => Some((1, 3)),
        MATRIX_LOAD => Some((3, 6)),
        MATRIX_STORE => Some((1, 5)),
        _ => None,
    }
}

/// What a module lacks; `None` if its memory model asks for nothing.
pub fn faults(words: &[u32]) -> Option<Vec<String>> {
    let all = places(words);
    let declares = |wanted: u32, value: u32, at: usize| {
        all.iter().any(|&(start, opcode)| opcode == wanted && words[start + at] == value)
    };
    if !declares(MEMORY_MODEL, VULKAN, 2) {
        return None;
    }
    let mut faults = Vec::new();
    if !declares(CAPABILITY, VULKAN_CAPABILITY, 1) {
        faults.push("the capability is missing".to_owned());
    }
    if declares(DECORATE, COHERENT, 2) {
        faults.push("a variable is decorated as coherent".to_owned());
    }
    let (mut classes, mut shared, mut constants) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut device = false;
    for &(at, opcode) in &all {
        let word = |index: usize| words[at + index];
        if opcode == TYPE_POINTER {
            classes.insert(word(1), word(2));
        } else if opcode == CONSTANT {
            constants.insert(word(2), word(3));
        } else if POINTERS.contains(&opcode)
            && let Some(class) = classes.get(&word(1))
        {
            shared.insert(word(2), matches!(*class, WORKGROUP | STORAGE_BUFFER));
        }
        if let Some((pointer, mask)) = access(opcode) {
            let has_mask = mask < (words[at] >> 16) as usize;
            let not_private = has_mask && word(mask) & NON_PRIVATE != 0;
            match shared.get(&word(pointer)) {
                None => faults.push(format!("opcode {opcode} at word {at}: unknown pointer")),
                Some(true) if !not_private => {
                    faults.push(format!("opcode {opcode} at word {at}: private"));
                }
                Some(_) => {}
            }
        }
        let barrier = match opcode {
            CONTROL_BARRIER => Some((word(2), word(3))),
            MEMORY_BARRIER => Some((word(1), word(2))),
            _ => None,
        };
        if let Some((scope, semantics)) = barrier {
            device |= constants[&scope] == DEVICE_SCOPE;
            let semantics = constants[&semantics];
            if semantics & ACQUIRE_RELEASE == 0
                || semantics & AVAILABLE_VISIBLE != AVAILABLE_VISIBLE
            {
                faults.push(format!("barrier at word {at}: semantics {semantics:#x}"));
            }
        }
    }
    if device && !declares(CAPABILITY, DEVICE_CAPABILITY, 1) {
        faults.push("the capability for scope `Device` is missing".to_owned());
    }
    Some(faults)
}

/// The module with one access made private or one barrier handing nothing over, for each there is.
pub fn weakened(words: &[u32]) -> Vec<(String, Vec<u32>)> {
    let mut all = Vec::new();
    let barriers = places(words).into_iter().filter(|(_, opcode)| *opcode == CONTROL_BARRIER);
    let semantics: Vec<u32> = barriers.map(|(at, _)| words[at + 3]).collect();
    for (at, opcode) in places(words) {
        let place = match access(opcode) {
            Some((_, mask)) if mask < (words[at] >> 16) as usize => Some((mask, NON_PRIVATE)),
            None if opcode == CONSTANT && semantics.contains(&words[at + 2]) => {
                Some((3, AVAILABLE_VISIBLE))
            }
            _ => None,
        };
        let Some((index, bits)) = place else { continue };
        if words[at + index] & bits == bits {
            let mut weak = words.to_vec();
            weak[at + index] &= !bits;
            all.push((format!("opcode {opcode} at word {at}"), weak));
        }
    }
    all
}

/// Modules that every validator must report.
pub fn broken(words: &[u32]) -> Vec<(&'static str, Vec<u32>)> {
    let mut no_capability = words.to_vec();
    let all = places(words);
    let capability =
        |&&(at, opcode): &&(usize, u32)| opcode == CAPABILITY && words[at + 1] == VULKAN_CAPABILITY;
    let (at, _) = *all.iter().find(capability).unwrap();
    no_capability.drain(at..at + 2);
    let mut no_stride = words.to_vec();
    let (at, _) = *all.iter().find(|(_, opcode)| *opcode == MATRIX_LOAD).unwrap();
    // The pointer is no pointer.
    no_stride[at + 3] = no_stride[at + 5];
    let truncated = words[..words.len() - 2].to_vec();
    vec![("no_capability", no_capability), ("no_pointer", no_stride), ("truncated", truncated)]
}
