//! What the compiler lets through for a device and an author, and what it adds to a text.

use ash::vk;
use naga::valid::Capabilities;

use super::instance::Adapter;
use crate::wgsl::Trust;

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
    pub(super) fn capabilities(self, trust: Trust) -> Capabilities {
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

#[cfg(test)]
mod tests {
    use rustc_hash::FxHashSet;

    use super::super::pipeline::to_spirv;
    use super::*;

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
