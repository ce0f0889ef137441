//! Makes SPIR-V that declares the Vulkan memory model mean what its author wrote.
//!
//! Naga declares that model in every module with a cooperative matrix, but writes the accesses and
//! barriers of the GLSL450 model. Under the Vulkan model an access without `NonPrivatePointer` is
//! private to its invocation, and a barrier without `MakeAvailable` and `MakeVisible` hands nothing
//! over. [`repair`] adds both:
//!
//! | where | what is added |
//! |---|---|
//! | loads and stores through `Workgroup` and `StorageBuffer` pointers | `NonPrivatePointer` |
//! | the same of a variable that was decorated `Coherent` | `MakePointerAvailable` or `MakePointerVisible`, scope `Device` |
//! | barriers and atomics that release or acquire | `MakeAvailable`, `MakeVisible` |
//! | the module | the capabilities for the model and for scope `Device`, where they are missing |
//!
//! Two more things that naga cannot say:
//!
//! - A matrix that is loaded from memory of u32 or f32 has that component, whatever its type in the text
//!   says. Left and right sides are f16 in all of our kernels, so that type is written: 16 bytes of f16 can
//!   then be copied as `vec4<u32>` ([`halves`]).
//! - A subgroup barrier orders the memory of the class `Subgroup`, which Vulkan does not have. It orders
//!   workgroup memory instead.
//!
//! Modules with counters get their fences in a pass of their own ([`fences`]), and those that are measured their readings of
//! the clock ([`clock`]).
//!
//! Invariant: modules with another memory model come back bit for bit. Words that are no SPIR-V, or
//! that use memory in a way this pass does not know, are an error.

pub(super) mod clock;
pub(super) mod fences;
mod halves;
mod words;

use rustc_hash::FxHashMap;

use words::*;

/// Why words cannot be repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SpirvError {
    #[error("these words do not begin like a SPIR-V module")]
    NotSpirv,
    #[error("the instruction at word {at} is longer than the module or has no length")]
    Length { at: usize },
    #[error("an instruction with opcode {opcode} has too few or too many operands")]
    Operands { opcode: u32 },
    #[error("the module declares no memory model")]
    NoModel,
    #[error("%{id} is used as a pointer, but nothing declares it as one")]
    NotAPointer { id: u32 },
    #[error("%{id} is used as a memory scope or memory semantics, but is no integer constant")]
    NotAConstant { id: u32 },
    #[error("opcode {opcode} is not supported together with the Vulkan memory model")]
    Unsupported { opcode: u32 },
    #[error("the memory semantics {semantics:#x} are not allowed in the Vulkan memory model")]
    Semantics { semantics: u32 },
}

type Result<T, E = SpirvError> = std::result::Result<T, E>;

/// The module with the accesses and barriers that its memory model asks for.
pub(super) fn repair(words: Vec<u32>) -> Result<Vec<u32>> {
    let list = instructions(&words)?;
    let model = list.iter().find(|i| i.opcode() == OP_MEMORY_MODEL).ok_or(SpirvError::NoModel)?;
    if model.word(2)? != MODEL_VULKAN {
        return Ok(words);
    }
    let halved = halves::sides_of_halves(&list, words[BOUND])?;
    let (list, bound) = (instructions_from(&halved.words, 0)?, halved.bound);
    let facts = Facts::collect(&list)?;
    let mut header = [0; HEADER];
    header.copy_from_slice(&words[..HEADER]);
    let next = bound;
    let mut repair = Repair { facts, next, added: Vec::new(), device_scope: false };
    let (mut head, mut body): (Vec<u32>, Vec<u32>) = Default::default();
    let first = list.iter().position(|i| i.opcode() == OP_FUNCTION).unwrap_or(list.len());
    for instruction in &list[..first] {
        // Capabilities are written apart.
        if instruction.opcode() != OP_CAPABILITY && instruction.forbidden().is_none() {
            head.extend(instruction.0);
        }
    }
    for instruction in &list[first..] {
        repair.instruction(instruction, &mut body)?;
    }
    header[BOUND] = repair.next;
    let mut out = header.to_vec();
    repair.capabilities(&list, &mut out)?;
    let declared = |i: &Instruction<'_>| i.opcode() == OP_EXTENSION && i.0[1..] == text(EXTENSION);
    if header[1] < VERSION_1_5 && !list.iter().any(declared) {
        let text = text(EXTENSION);
        push(&mut out, OP_EXTENSION, &text);
    }
    out.extend(head);
    out.extend(repair.added);
    out.extend(body);
    Ok(out)
}

/// What the module says about its ids.
#[derive(Default)]
struct Facts {
    /// Storage class and pointee of pointer types.
    pointer_types: FxHashMap<u32, (u32, u32)>,
    pointers: FxHashMap<u32, Pointer>,
    /// Integer types of 32 bits.
    integers: Vec<u32>,
    /// Type and value of constants of these types, and the way back.
    constants: FxHashMap<u32, (u32, u32)>,
    by_value: FxHashMap<(u32, u32), u32>,
}

#[derive(Clone, Copy)]
struct Pointer {
    pointee: u32,
    /// Memory operands that accesses through it must have.
    needed: u32,
}

impl Facts {
    fn collect(list: &[Instruction<'_>]) -> Result<Self> {
        let mut facts = Self::default();
        let mut variables: FxHashMap<u32, u32> = FxHashMap::default();
        // A decorated member does not tell which variables have it, so all of them count as decorated.
        let (mut members, mut any) = (0, 0);
        for i in list {
            if let Some(asked) = i.forbidden() {
                any |= asked;
                if i.opcode() == OP_MEMBER_DECORATE {
                    members |= asked;
                } else {
                    *variables.entry(i.word(1)?).or_default() |= asked;
                }
            }
            match i.opcode() {
                OP_TYPE_INT if i.word(2)? == 32 => facts.integers.push(i.word(1)?),
                OP_TYPE_POINTER => {
                    facts.pointer_types.insert(i.word(1)?, (i.word(2)?, i.word(3)?));
                }
                OP_CONSTANT if facts.integers.contains(&i.word(1)?) => {
                    let (kind, id, value) = (i.word(1)?, i.word(2)?, i.word(3)?);
                    facts.constants.insert(id, (kind, value));
                    facts.by_value.entry((kind, value)).or_insert(id);
                }
                // Decorations stand before all variables.
                OP_VARIABLE => {
                    let own = variables.get(&i.word(2)?).copied().unwrap_or(0);
                    facts.pointer(i, own | members)?;
                }
                OP_ACCESS_CHAIN | OP_IN_BOUNDS_ACCESS_CHAIN => {
                    let base = facts.find(i.word(3)?)?;
                    facts.pointer(i, base.needed)?;
                }
                // Where such a pointer comes from is not followed: it gets what any variable asks for.
                OP_UNDEF
                | OP_CONSTANT_NULL
                | OP_FUNCTION_PARAMETER
                | OP_FUNCTION_CALL
                | OP_COPY_OBJECT
                | OP_SELECT
                | OP_PHI => facts.pointer(i, any)?,
                _ => {}
            }
        }
        Ok(facts)
    }

    /// Notes the result of an instruction if it is a pointer.
    fn pointer(&mut self, i: &Instruction<'_>, asked: u32) -> Result<()> {
        let (kind, id) = (i.word(1)?, i.word(2)?);
        if let Some(&(class, pointee)) = self.pointer_types.get(&kind) {
            let shared = matches!(class, CLASS_WORKGROUP | CLASS_STORAGE_BUFFER);
            let needed = if shared { operand::NON_PRIVATE | asked } else { 0 };
            self.pointers.insert(id, Pointer { pointee, needed });
        }
        Ok(())
    }

    fn find(&self, id: u32) -> Result<Pointer> {
        self.pointers.get(&id).copied().ok_or(SpirvError::NotAPointer { id })
    }

    /// Value of a constant that is a scope or semantics.
    fn value(&self, id: u32) -> Result<u32> {
        self.constants.get(&id).map(|&(_, value)| value).ok_or(SpirvError::NotAConstant { id })
    }
}

/// What the functions of a module become.
struct Repair {
    facts: Facts,
    /// The next id that is free.
    next: u32,
    /// Types and constants that are declared in front of the first function.
    added: Vec<u32>,
    /// Whether anything has scope `Device`.
    device_scope: bool,
}

impl Repair {
    /// Adds an instruction of a function to `out`, changed where it accesses or orders memory.
    fn instruction(&mut self, i: &Instruction<'_>, out: &mut Vec<u32>) -> Result<()> {
        let opcode = i.opcode();
        match opcode {
            OP_LOAD => self.access(i, 3, 4, !operand::AVAILABLE, out),
            OP_STORE => self.access(i, 1, 3, !operand::VISIBLE, out),
            // Behind the stride, which rows and columns in memory need anyway.
            OP_COOPERATIVE_LOAD => self.access(i, 3, 6, !operand::AVAILABLE, out),
            OP_COOPERATIVE_STORE => self.access(i, 1, 5, !operand::VISIBLE, out),
            OP_COPY_MEMORY => self.copy(i, out),
            OP_CONTROL_BARRIER => self.order(i, 2, &[3], out),
            OP_MEMORY_BARRIER => self.order(i, 1, &[2], out),
            OP_ATOMIC_STORE => self.order(i, 2, &[3], out),
            OP_ATOMIC_COMPARE_EXCHANGE | OP_ATOMIC_COMPARE_EXCHANGE_WEAK => {
                self.order(i, 4, &[5, 6], out)
            }
            OP_ATOMIC_LOAD..=OP_ATOMIC_XOR
            | OP_ATOMIC_F_MIN
            | OP_ATOMIC_F_MAX
            | OP_ATOMIC_F_ADD => self.order(i, 4, &[5], out),
            OP_IMAGE_TEXEL_POINTER
            | OP_COPY_MEMORY_SIZED
            | OP_IMAGE_READ
            | OP_IMAGE_WRITE
            | OP_COOPERATIVE_LOAD_NV
            | OP_COOPERATIVE_STORE_NV => Err(SpirvError::Unsupported { opcode }),
            _ => {
                out.extend(i.0);
                Ok(())
            }
        }
    }

    /// An access through the pointer at word `pointer`, with memory operands from word `at` on.
    fn access(
        &mut self,
        i: &Instruction<'_>,
        pointer: usize,
        at: usize,
        allowed: u32,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let opcode = i.opcode();
        let needed = self.facts.find(i.word(pointer)?)?.needed & allowed;
        let fixed = i.0.get(1..at).ok_or(SpirvError::Operands { opcode })?;
        let (mut operands, rest) = Operands::read(opcode, &i.0[at..])?;
        if !rest.is_empty() {
            return Err(SpirvError::Operands { opcode });
        }
        self.add(&mut operands, needed)?;
        let mut words = fixed.to_vec();
        operands.write(&mut words);
        push(out, opcode, &words);
        Ok(())
    }

    /// A copy in memory becomes a load and a store, since one list of memory operands cannot serve
    /// both sides where only one of them is shared.
    fn copy(&mut self, i: &Instruction<'_>, out: &mut Vec<u32>) -> Result<()> {
        let (opcode, to, from) = (i.opcode(), i.word(1)?, i.word(2)?);
        let (target, source) = (self.facts.find(to)?, self.facts.find(from)?);
        let (mut store, rest) = Operands::read(opcode, &i.0[3..])?;
        let (mut load, rest) = match rest {
            [] => (store, rest),
            _ => Operands::read(opcode, rest)?,
        };
        if !rest.is_empty() {
            return Err(SpirvError::Operands { opcode });
        }
        store.remove(operand::VISIBLE);
        load.remove(operand::AVAILABLE);
        self.add(&mut store, target.needed & !operand::VISIBLE)?;
        self.add(&mut load, source.needed & !operand::AVAILABLE)?;
        // A list for both sides may say `NonPrivatePointer`, which memory of one invocation must not have.
        for (operands, pointer) in [(&mut store, target), (&mut load, source)] {
            if pointer.needed == 0 {
                operands.remove(operand::NON_PRIVATE);
            }
        }
        let value = self.new_id();
        let mut words = vec![source.pointee, value, from];
        load.write(&mut words);
        push(out, OP_LOAD, &words);
        words = vec![to, value];
        store.write(&mut words);
        push(out, OP_STORE, &words);
        Ok(())
    }

    /// A barrier or an atomic: its scope is word `scope`, its semantics are at the other words.
    fn order(
        &mut self,
        i: &Instruction<'_>,
        scope: usize,
        semantics: &[usize],
        out: &mut Vec<u32>,
    ) -> Result<()> {
        self.see_scope(i.word(scope)?)?;
        let mut words = i.0.to_vec();
        for &at in semantics {
            words[at] = self.semantics(i.word(at)?)?;
        }
        out.extend(words);
        Ok(())
    }

    /// The id of semantics that also make available what they release and visible what they acquire.
    fn semantics(&mut self, id: u32) -> Result<u32> {
        let value = self.facts.value(id)?;
        if value & semantics::SEQUENTIAL != 0 {
            return Err(SpirvError::Semantics { semantics: value });
        }
        let mut wanted = value;
        if value & semantics::SUBGROUP != 0 {
            wanted = wanted & !semantics::SUBGROUP | semantics::WORKGROUP;
        }
        if value & semantics::MEMORY != 0 {
            let releases = value & semantics::RELEASES != 0;
            let acquires = value & semantics::ACQUIRES != 0;
            wanted |= if releases { semantics::MAKE_AVAILABLE } else { 0 };
            wanted |= if acquires { semantics::MAKE_VISIBLE } else { 0 };
        }
        Ok(if wanted == value { id } else { self.constant(wanted) })
    }

    /// Adds memory operands to an access.
    fn add(&mut self, operands: &mut Operands, needed: u32) -> Result<()> {
        operands.mask |= needed & (operand::NON_PRIVATE | operand::VOLATILE);
        for bit in [operand::AVAILABLE, operand::VISIBLE] {
            match operands.word(bit) {
                Some(scope) => self.see_scope(scope)?,
                None if needed & bit != 0 => {
                    let scope = self.constant(SCOPE_DEVICE);
                    self.device_scope = true;
                    operands.set(bit, scope);
                }
                None => {}
            }
        }
        Ok(())
    }

    fn see_scope(&mut self, id: u32) -> Result<()> {
        self.device_scope |= self.facts.value(id)? == SCOPE_DEVICE;
        Ok(())
    }

    /// The id of an integer constant. What others use stays as it is: equal scopes, semantics and
    /// indices share ids.
    fn constant(&mut self, value: u32) -> u32 {
        if self.facts.integers.is_empty() {
            let id = self.new_id();
            push(&mut self.added, OP_TYPE_INT, &[id, 32, 0]);
            self.facts.integers.push(id);
        }
        let kind = self.facts.integers[0];
        if let Some(&id) = self.facts.by_value.get(&(kind, value)) {
            return id;
        }
        let id = self.new_id();
        push(&mut self.added, OP_CONSTANT, &[kind, id, value]);
        self.facts.by_value.insert((kind, value), id);
        id
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next;
        self.next = self.next.saturating_add(1);
        id
    }

    /// Writes the module's capabilities and those it lacks.
    fn capabilities(&self, list: &[Instruction<'_>], out: &mut Vec<u32>) -> Result<()> {
        let declared = list.iter().filter(|i| i.opcode() == OP_CAPABILITY);
        let mut all = declared.map(|i| i.word(1)).collect::<Result<Vec<_>>>()?;
        let needed = [(CAPABILITY_MODEL, true), (CAPABILITY_DEVICE_SCOPE, self.device_scope)];
        for (capability, needed) in needed {
            if needed && !all.contains(&capability) {
                all.push(capability);
            }
        }
        all.iter().for_each(|&capability| push(out, OP_CAPABILITY, &[capability]));
        Ok(())
    }
}
