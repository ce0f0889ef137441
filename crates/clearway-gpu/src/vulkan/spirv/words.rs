//! The words of SPIR-V, as far as the pass over them knows them: numbers, instructions, memory operands.
//!
//! Names and numbers are those of the SPIR-V specification.

use super::{Result, SpirvError};

pub(super) const MAGIC: u32 = 0x0723_0203;
pub(super) const HEADER: usize = 5;
/// Place of the bound of all ids in the header.
pub(super) const BOUND: usize = 3;
pub(super) const VERSION_1_5: u32 = 0x0001_0500;

pub(super) const OP_UNDEF: u32 = 1;
pub(super) const OP_EXTENSION: u32 = 10;
pub(super) const OP_MEMORY_MODEL: u32 = 14;
pub(super) const OP_CAPABILITY: u32 = 17;
pub(super) const OP_TYPE_INT: u32 = 21;
pub(super) const OP_TYPE_FLOAT: u32 = 22;
pub(super) const OP_TYPE_POINTER: u32 = 32;
pub(super) const OP_CONSTANT: u32 = 43;
pub(super) const OP_CONSTANT_COMPOSITE: u32 = 44;
pub(super) const OP_CONSTANT_NULL: u32 = 46;
pub(super) const OP_FUNCTION: u32 = 54;
pub(super) const OP_FUNCTION_PARAMETER: u32 = 55;
pub(super) const OP_FUNCTION_CALL: u32 = 57;
pub(super) const OP_VARIABLE: u32 = 59;
pub(super) const OP_IMAGE_TEXEL_POINTER: u32 = 60;
pub(super) const OP_LOAD: u32 = 61;
pub(super) const OP_STORE: u32 = 62;
pub(super) const OP_COPY_MEMORY: u32 = 63;
pub(super) const OP_COPY_MEMORY_SIZED: u32 = 64;
pub(super) const OP_ACCESS_CHAIN: u32 = 65;
pub(super) const OP_IN_BOUNDS_ACCESS_CHAIN: u32 = 66;
pub(super) const OP_DECORATE: u32 = 71;
pub(super) const OP_MEMBER_DECORATE: u32 = 72;
pub(super) const OP_COPY_OBJECT: u32 = 83;
pub(super) const OP_IMAGE_READ: u32 = 98;
pub(super) const OP_IMAGE_WRITE: u32 = 99;
pub(super) const OP_SELECT: u32 = 169;
pub(super) const OP_CONTROL_BARRIER: u32 = 224;
pub(super) const OP_MEMORY_BARRIER: u32 = 225;
pub(super) const OP_ATOMIC_LOAD: u32 = 227;
pub(super) const OP_ATOMIC_STORE: u32 = 228;
pub(super) const OP_ATOMIC_COMPARE_EXCHANGE: u32 = 230;
pub(super) const OP_ATOMIC_COMPARE_EXCHANGE_WEAK: u32 = 231;
pub(super) const OP_ATOMIC_XOR: u32 = 242;
pub(super) const OP_PHI: u32 = 245;
pub(super) const OP_SUBGROUP_ADD: u32 = 349;
pub(super) const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;
pub(super) const OP_COOPERATIVE_LOAD: u32 = 4457;
pub(super) const OP_COOPERATIVE_STORE: u32 = 4458;
pub(super) const OP_READ_CLOCK: u32 = 5056;
pub(super) const OP_COOPERATIVE_LOAD_NV: u32 = 5359;
pub(super) const OP_COOPERATIVE_STORE_NV: u32 = 5360;
pub(super) const OP_ATOMIC_F_MIN: u32 = 5614;
pub(super) const OP_ATOMIC_F_MAX: u32 = 5615;
pub(super) const OP_ATOMIC_F_ADD: u32 = 6035;

pub(super) const USE_ACCUMULATOR: u32 = 2;
pub(super) const CAPABILITY_FLOAT16: u32 = 9;
pub(super) const MODEL_VULKAN: u32 = 3;
pub(super) const CAPABILITY_MODEL: u32 = 5345;
pub(super) const CAPABILITY_DEVICE_SCOPE: u32 = 5346;
pub(super) const CAPABILITY_CLOCK: u32 = 5055;
pub(super) const EXTENSION_CLOCK: &str = "SPV_KHR_shader_clock";
pub(super) const EXTENSION: &str = "SPV_KHR_vulkan_memory_model";
pub(super) const DECORATION_VOLATILE: u32 = 21;
pub(super) const DECORATION_COHERENT: u32 = 23;
pub(super) const CLASS_WORKGROUP: u32 = 4;
pub(super) const CLASS_STORAGE_BUFFER: u32 = 12;
pub(super) const SCOPE_DEVICE: u32 = 1;
pub(super) const SCOPE_SUBGROUP: u32 = 3;

/// Memory operands: bits of their mask.
pub(super) mod operand {
    pub(in super::super) const VOLATILE: u32 = 0x1;
    pub(in super::super) const ALIGNED: u32 = 0x2;
    pub(in super::super) const AVAILABLE: u32 = 0x8;
    pub(in super::super) const VISIBLE: u32 = 0x10;
    pub(in super::super) const NON_PRIVATE: u32 = 0x20;
    const ALIAS_SCOPE: u32 = 0x1_0000;
    const NO_ALIAS: u32 = 0x2_0000;
    /// Those with a word of their own, in the order of these words.
    pub(in super::super) const WITH_WORD: [u32; 5] =
        [ALIGNED, AVAILABLE, VISIBLE, ALIAS_SCOPE, NO_ALIAS];
    /// All that are known: the other two are volatile and non-temporal.
    pub(in super::super) const KNOWN: u32 = 0x3f | ALIAS_SCOPE | NO_ALIAS;
}

/// Memory semantics: bits of their mask.
pub(super) mod semantics {
    const ACQUIRE: u32 = 0x2;
    const RELEASE: u32 = 0x4;
    pub(in super::super) const ACQUIRE_RELEASE: u32 = 0x8;
    pub(in super::super) const SEQUENTIAL: u32 = 0x10;
    pub(in super::super) const ACQUIRES: u32 = ACQUIRE | ACQUIRE_RELEASE;
    pub(in super::super) const RELEASES: u32 = RELEASE | ACQUIRE_RELEASE;
    /// Uniform and storage buffers.
    pub(in super::super) const STORAGE: u32 = 0x40;
    pub(in super::super) const SUBGROUP: u32 = 0x80;
    pub(in super::super) const WORKGROUP: u32 = 0x100;
    /// Kinds of memory; without one of them nothing is ordered.
    pub(in super::super) const MEMORY: u32 = 0x1fc0;
    pub(in super::super) const MAKE_AVAILABLE: u32 = 0x2000;
    pub(in super::super) const MAKE_VISIBLE: u32 = 0x4000;
}

/// One instruction: opcode and length, then operands.
#[derive(Clone, Copy)]
pub(super) struct Instruction<'a>(pub(super) &'a [u32]);

impl Instruction<'_> {
    pub(super) fn opcode(&self) -> u32 {
        self.0[0] & 0xffff
    }

    pub(super) fn word(&self, index: usize) -> Result<u32> {
        self.0.get(index).copied().ok_or(SpirvError::Operands { opcode: self.opcode() })
    }

    /// A decoration that the Vulkan memory model forbids, as the memory operands that replace it.
    pub(super) fn forbidden(&self) -> Option<u32> {
        let decoration = match self.opcode() {
            OP_DECORATE => self.0.get(2),
            OP_MEMBER_DECORATE => self.0.get(3),
            _ => None,
        };
        match decoration {
            Some(&DECORATION_COHERENT) => Some(operand::AVAILABLE | operand::VISIBLE),
            Some(&DECORATION_VOLATILE) => Some(operand::VOLATILE),
            _ => None,
        }
    }
}

/// The instructions behind the header of a module.
pub(super) fn instructions(words: &[u32]) -> Result<Vec<Instruction<'_>>> {
    if words.len() < HEADER || words[0] != MAGIC {
        return Err(SpirvError::NotSpirv);
    }
    instructions_from(words, HEADER)
}

/// The instructions from word `at` on.
pub(super) fn instructions_from(words: &[u32], mut at: usize) -> Result<Vec<Instruction<'_>>> {
    let mut list = Vec::new();
    while at < words.len() {
        let len = (words[at] >> 16) as usize;
        let instruction = words[at..].get(..len).filter(|words| !words.is_empty());
        list.push(Instruction(instruction.ok_or(SpirvError::Length { at })?));
        at += len;
    }
    Ok(list)
}

/// Memory operands of one access: a mask, and words for some of its bits.
#[derive(Clone, Copy, Default)]
pub(super) struct Operands {
    pub(super) mask: u32,
    words: [u32; operand::WITH_WORD.len()],
}

impl Operands {
    /// The operands at the start of `words`, and what follows them.
    pub(super) fn read(opcode: u32, words: &[u32]) -> Result<(Self, &[u32])> {
        let Some((&mask, mut rest)) = words.split_first() else {
            return Ok((Self::default(), words));
        };
        let mut operands = Self { mask, ..Self::default() };
        if mask & !operand::KNOWN != 0 {
            return Err(SpirvError::Operands { opcode });
        }
        for (slot, bit) in operands.words.iter_mut().zip(operand::WITH_WORD) {
            if mask & bit != 0 {
                let (&word, behind) = rest.split_first().ok_or(SpirvError::Operands { opcode })?;
                (*slot, rest) = (word, behind);
            }
        }
        Ok((operands, rest))
    }

    pub(super) fn write(&self, out: &mut Vec<u32>) {
        if self.mask != 0 {
            out.push(self.mask);
        }
        let words = self.words.iter().zip(operand::WITH_WORD);
        out.extend(words.filter(|(_, bit)| self.mask & bit != 0).map(|(word, _)| word));
    }

    pub(super) fn word(&self, bit: u32) -> Option<u32> {
        let slot = operand::WITH_WORD.iter().position(|&other| other == bit)?;
        (self.mask & bit != 0).then(|| self.words[slot])
    }

    pub(super) fn set(&mut self, bit: u32, word: u32) {
        if let Some(slot) = operand::WITH_WORD.iter().position(|&other| other == bit) {
            self.words[slot] = word;
            self.mask |= bit;
        }
    }

    pub(super) fn remove(&mut self, bit: u32) {
        self.mask &= !bit;
    }
}

/// Adds an instruction.
pub(super) fn push(out: &mut Vec<u32>, opcode: u32, operands: &[u32]) {
    out.push(((operands.len() as u32 + 1) << 16) | opcode);
    out.extend(operands);
}

/// A string as operands: four bytes to a word, with a zero behind the last.
pub(super) fn text(text: &str) -> Vec<u32> {
    let bytes: Vec<u8> = text.bytes().chain([0; 4]).collect();
    let whole = bytes.chunks_exact(4).take(text.len() / 4 + 1);
    whole.map(|quad| u32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]])).collect()
}
