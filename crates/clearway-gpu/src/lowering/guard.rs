//! What is asked of a user's kernel before anything of it is encoded, and what the compiler adds to it.
//!
//! The proof knows of a kernel what its contract says, and the driver trusts that it fits the device. So the
//! text is parsed when it is dispatched: its workgroup must fit, it may declare no binding of its own, and what
//! it reads and writes must be what the contract says. Invariant: a text that passed once on a device passes
//! again, so each is looked at once.

use std::sync::{Mutex, PoisonError};

use ash::vk;
use clearway_graph::{BindingRole, DType};
use naga::valid::{Capabilities, GlobalUse, ValidationFlags, Validator};
use rustc_hash::FxHashSet;

use super::instance::Adapter;
use crate::error::{GpuError, Result};
use crate::wgsl::{Kernel, Operand, Trust};

/// What a text may use beyond plain compute shaders, because the device was opened with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Features {
    cooperative: bool,
    subgroups: vk::SubgroupFeatureFlags,
}

impl Features {
    pub(super) fn of(adapter: &Adapter) -> Self {
        Self { cooperative: adapter.target.cooperative, subgroups: adapter.subgroup_operations }
    }

    /// What the validator lets through.
    fn capabilities(self, trust: Trust) -> Capabilities {
        let mut all = Capabilities::SHADER_FLOAT16
            | Capabilities::SHADER_FLOAT16_IN_FLOAT32
            | Capabilities::MEMORY_DECORATION_COHERENT
            | Capabilities::MEMORY_DECORATION_VOLATILE;
        if self.subgroups.contains(vk::SubgroupFeatureFlags::BASIC) {
            all |= Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER;
        }
        // Loads and stores of whole matrices have no bounds checks.
        if self.cooperative && trust != Trust::Checked {
            all |= Capabilities::COOPERATIVE_MATRIX;
        }
        all
    }

    /// What the written module may declare.
    fn declared(self, trust: Trust) -> naga::FastHashSet<naga::back::spv::Capability> {
        use naga::back::spv::Capability;
        use vk::SubgroupFeatureFlags as Subgroup;
        let mut all: naga::FastHashSet<Capability> = [
            Capability::Shader,
            Capability::Float16,
            Capability::StorageBuffer16BitAccess,
            Capability::UniformAndStorageBuffer16BitAccess,
            Capability::DotProduct,
            Capability::DotProductInputAll,
            Capability::DotProductInput4x8Bit,
            Capability::DotProductInput4x8BitPacked,
        ]
        .into_iter()
        .collect();
        let operations = [
            (Subgroup::BASIC, Capability::GroupNonUniform),
            (Subgroup::VOTE, Capability::GroupNonUniformVote),
            (Subgroup::ARITHMETIC, Capability::GroupNonUniformArithmetic),
            (Subgroup::BALLOT, Capability::GroupNonUniformBallot),
            (Subgroup::SHUFFLE, Capability::GroupNonUniformShuffle),
            (Subgroup::SHUFFLE_RELATIVE, Capability::GroupNonUniformShuffleRelative),
            (Subgroup::QUAD, Capability::GroupNonUniformQuad),
        ];
        let supported = operations.iter().filter(|(flag, _)| self.subgroups.contains(*flag));
        all.extend(supported.map(|&(_, capability)| capability));
        if self.cooperative && trust != Trust::Checked {
            all.extend([
                Capability::CooperativeMatrixKHR,
                Capability::VulkanMemoryModel,
                Capability::VulkanMemoryModelDeviceScope,
            ]);
        }
        all
    }
}

/// What the compiler lets through and what it adds.
pub(super) struct Guards {
    /// Every index, loop and division is guarded.
    pub(super) checks: bool,
    /// Workgroup memory starts as zeros.
    pub(super) zeros: bool,
    pub(super) capabilities: Capabilities,
    /// What the module may declare, if not everything.
    pub(super) declared: Option<naga::FastHashSet<naga::back::spv::Capability>>,
    /// Stands for all of this in names of compiled words.
    pub(super) key: String,
}

impl Guards {
    /// For kernels of ours: guarded only where that was asked for.
    pub(super) fn own(checks: bool) -> Self {
        let (capabilities, key) = (Capabilities::all(), checks.to_string());
        Self { checks, zeros: false, capabilities, declared: None, key }
    }

    /// For a kernel of this author; `checks` asks for guards in all of them.
    pub(super) fn new(trust: Trust, features: Features, checks: bool) -> Self {
        if trust == Trust::Own {
            return Self::own(checks);
        }
        let zeros = trust == Trust::Checked;
        let checks = checks || zeros;
        let Features { cooperative, subgroups } = features;
        Self {
            checks,
            zeros,
            capabilities: features.capabilities(trust),
            declared: Some(features.declared(trust)),
            key: format!("user {checks} {zeros} {cooperative} {:x}", subgroups.as_raw()),
        }
    }
}

/// Texts that passed on a device.
#[derive(Default)]
pub(super) struct Vetted(Mutex<FxHashSet<String>>);

impl Vetted {
    /// Checks a user's kernel against the device and against its contract, as far as the text tells.
    pub(super) fn check(
        &self,
        name: &str,
        device: &str,
        adapter: &Adapter,
        kernel: &Kernel,
        operands: &[Operand],
    ) -> Result<()> {
        let roles: Vec<_> = operands.iter().map(|o| (o.role, o.same_as)).collect();
        let key = format!("{:?} {roles:?}\n{}", kernel.trust, kernel.source);
        let passed = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if passed().contains(&key) {
            return Ok(());
        }
        let text = Text { name, device, kernel, operands };
        text.check(&adapter.limits, adapter.target.max_invocations, Features::of(adapter))?;
        passed().insert(key);
        Ok(())
    }
}

/// A user's kernel under inspection.
struct Text<'a> {
    name: &'a str,
    device: &'a str,
    kernel: &'a Kernel,
    operands: &'a [Operand],
}

impl Text<'_> {
    /// `most` invocations are a workgroup at most.
    fn check(
        &self,
        limits: &vk::PhysicalDeviceLimits,
        most: u32,
        features: Features,
    ) -> Result<()> {
        let source = &self.kernel.source;
        let module = naga::front::wgsl::parse_str(source)
            .map_err(|error| self.bad(error.emit_to_string(source)))?;
        let capabilities = features.capabilities(self.kernel.trust);
        let info = Validator::new(ValidationFlags::all(), capabilities)
            .validate(&module)
            .map_err(|error| self.bad(error.emit_to_string(source)))?;
        if !module.overrides.is_empty() {
            return Err(self.bad("an `override` has no value here; use a `const`".into()));
        }
        let is_main = |entry: &naga::EntryPoint| {
            entry.name == "main" && entry.stage == naga::ShaderStage::Compute
        };
        let entry = module.entry_points.iter().position(is_main);
        let entry = entry.ok_or_else(|| self.bad("there is no compute shader `main`".into()))?;
        self.check_size(module.entry_points[entry].workgroup_size, limits, most)?;
        let uses = info.get_entry_point(entry);
        self.check_shared(&module, uses, limits)?;
        let bound = || {
            let all = module.global_variables.iter();
            all.filter_map(|(handle, variable)| Some((handle, variable, variable.binding?)))
        };
        bound().try_for_each(|(_, variable, at)| self.check_declared(variable, at))?;
        bound().try_for_each(|(handle, variable, at)| self.check_use(variable, at, uses[handle]))
    }

    fn check_size(
        &self,
        size: [u32; 3],
        limits: &vk::PhysicalDeviceLimits,
        most: u32,
    ) -> Result<()> {
        const AXES: [&str; 3] = ["invocations in x", "invocations in y", "invocations in z"];
        for ((what, found), limit) in
            AXES.into_iter().zip(size).zip(limits.max_compute_work_group_size)
        {
            self.at_most(what, u64::from(found), limit)?;
        }
        let all = size.iter().fold(1, |all: u64, &extent| all.saturating_mul(u64::from(extent)));
        self.at_most("invocations", all, most)
    }

    fn check_shared(
        &self,
        module: &naga::Module,
        uses: &naga::valid::FunctionInfo,
        limits: &vk::PhysicalDeviceLimits,
    ) -> Result<()> {
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).map_err(|error| self.bad(error.to_string()))?;
        let shared = module.global_variables.iter().filter(|(handle, variable)| {
            variable.space == naga::AddressSpace::WorkGroup && !uses[*handle].is_empty()
        });
        let bytes = shared.map(|(_, variable)| u64::from(layouter[variable.ty].to_stride()));
        let (found, limit) = (bytes.sum::<u64>(), limits.max_compute_shared_memory_size);
        // None at all is fine.
        self.at_most("bytes of workgroup memory", found.max(1), limit)
    }

    fn at_most(&self, what: &'static str, found: u64, limit: u32) -> Result<()> {
        if (1..=u64::from(limit)).contains(&found) {
            return Ok(());
        }
        let (kernel, device) = (self.name.to_owned(), self.device.to_owned());
        Err(GpuError::WorkgroupTooLarge { kernel, device, what, found, limit: limit.into() })
    }

    /// A variable must be one that stands in front of the text.
    fn check_declared(
        &self,
        variable: &naga::GlobalVariable,
        binding: naga::ResourceBinding,
    ) -> Result<()> {
        let slot = binding.binding as usize;
        let roles = self.roles(slot);
        let writable = matches!(
            variable.space,
            naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE)
        );
        if writable && !roles.is_empty() && roles.iter().all(|role| *role == BindingRole::Read) {
            let reason = "can be written, but the contract says that this operand is only read";
            return self.mismatch(variable, reason);
        }
        if binding.group != 0 || self.expected(slot) != variable.name {
            let reason = "is a binding of the text's own; operands are there already, as `b_o0`, `b_o1`, ...";
            return self.mismatch(variable, reason);
        }
        Ok(())
    }

    /// A variable must be used as the contract says.
    fn check_use(
        &self,
        variable: &naga::GlobalVariable,
        binding: naga::ResourceBinding,
        used: GlobalUse,
    ) -> Result<()> {
        let slot = binding.binding as usize;
        let roles = self.roles(slot);
        // Halves of a word are written with atomics, which also read the other half.
        let halves = self.operands.get(slot).is_some_and(|o| o.layout.dtype() == DType::BF16);
        let written = used.intersects(GlobalUse::WRITE | GlobalUse::ATOMIC);
        if roles.contains(&BindingRole::Write) && !written {
            let reason = "is never written, but the contract says that all of it is";
            return self.mismatch(variable, reason);
        }
        let only_written = !roles.is_empty() && roles.iter().all(|r| *r == BindingRole::Write);
        if only_written && used.contains(GlobalUse::READ) && !halves {
            let reason = "is read, but the contract says that it is only written";
            return self.mismatch(variable, reason);
        }
        Ok(())
    }

    fn mismatch(&self, variable: &naga::GlobalVariable, reason: &'static str) -> Result<()> {
        let name = variable.name.as_deref().unwrap_or("a variable without a name");
        let (kernel, binding) = (self.name.to_owned(), name.to_owned());
        Err(GpuError::ContractMismatch { kernel, binding, reason })
    }

    /// Roles of all operands that share a binding; empty where it is no operand's.
    fn roles(&self, slot: usize) -> Vec<BindingRole> {
        let operands = self.operands.iter().enumerate();
        let here = operands.filter(|(index, operand)| operand.same_as.unwrap_or(*index) == slot);
        here.map(|(_, operand)| operand.role).collect()
    }

    /// Name of the variable that stands at a binding.
    fn expected(&self, slot: usize) -> Option<String> {
        let count = self.operands.len();
        if let Some(operand) = self.operands.get(slot) {
            return operand.same_as.is_none().then(|| format!("b_{}", operand.name));
        }
        let rest: &[&str] = match self.kernel.scratch {
            Some(_) => &["b_scratch", "b_tickets", "P"],
            None => &["P"],
        };
        rest.get(slot - count).map(|&name| name.to_owned())
    }

    fn bad(&self, message: String) -> GpuError {
        let (kernel, device) = (self.name.to_owned(), self.device.to_owned());
        GpuError::KernelCompile { kernel, device, message }
    }
}

/// Whether a text has this identifier.
pub(super) fn mentions(text: &str, identifier: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(identifier).any(|(at, _)| {
        !text[..at].ends_with(in_word) && !text[at + identifier.len()..].starts_with(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::super::pipeline::to_spirv;
    use super::*;

    #[test]
    fn identifiers_are_found_whole() {
        for text in ["b_o1", "x = b_o1[0];", "&b_o1", "b_o11 + b_o1"] {
            assert!(mentions(text, "b_o1"), "{text}");
        }
        for text in ["", "b_o11", "ab_o1", "b_o1x", "get_o1(b_o2)"] {
            assert!(!mentions(text, "b_o1"), "{text}");
        }
    }

    #[test]
    fn words_of_different_authors_have_different_names() {
        let features = Features { cooperative: false, subgroups: vk::SubgroupFeatureFlags::BASIC };
        let key = |trust, checks| Guards::new(trust, features, checks).key;
        let all = [
            key(Trust::Own, false),
            key(Trust::Own, true),
            key(Trust::Checked, false),
            key(Trust::Unchecked, false),
            key(Trust::Unchecked, true),
        ];
        let distinct: FxHashSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        let larger = Features { cooperative: true, ..features };
        assert_ne!(Guards::new(Trust::Checked, larger, false).key, all[2]);
    }

    #[test]
    fn checks_are_in_the_words_and_an_unsafe_call_leaves_them_out() {
        let text = "@group(0) @binding(0) var<storage, read_write> b: array<u32>;
var<workgroup> w: array<u32, 8>;
@compute @workgroup_size(1) fn main() { var i = b[0]; loop { if (w[i] == b[i]) { break; } i /= b[i]; } }";
        let features = Features { cooperative: false, subgroups: vk::SubgroupFeatureFlags::BASIC };
        // Instructions with this code.
        let count = |trust: Trust, code: u32| {
            let words = to_spirv(text, &Guards::new(trust, features, false)).unwrap();
            let (mut at, mut found) = (5, 0);
            while at < words.len() {
                found += usize::from(words[at] & 0xffff == code);
                at += (words[at] >> 16) as usize;
            }
            found
        };
        const ARRAY_LENGTH: u32 = 68;
        const CONTROL_BARRIER: u32 = 224;
        assert!(count(Trust::Checked, ARRAY_LENGTH) >= 2, "indices are bounded");
        assert_eq!(count(Trust::Unchecked, ARRAY_LENGTH), 0);
        assert_eq!(count(Trust::Checked, CONTROL_BARRIER), 1, "zeros first");
        assert_eq!(count(Trust::Unchecked, CONTROL_BARRIER), 0);
        let kernel = crate::WgslKernel::new(text, |_, _| [1, 1, 1]);
        assert_eq!(kernel.trust(), Trust::Checked);
        // SAFETY: the kernel is not dispatched.
        assert_eq!(unsafe { kernel.unchecked() }.trust(), Trust::Unchecked);
    }
}
