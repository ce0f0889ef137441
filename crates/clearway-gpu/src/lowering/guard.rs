//! What is asked of a user's kernel before anything of it is encoded.
//!
//! The proof knows of a kernel what its contract says, and the driver trusts that it fits the device. So the
//! text is parsed when it is dispatched: its workgroup must fit, it may declare no binding of its own, and what
//! it reads and writes must be what the contract says. Invariant: a text that passed once on a device passes
//! again, so each is looked at once.

use std::sync::{Mutex, PoisonError};

use clearway_graph::{BindingRole, DType};
use naga::valid::{Capabilities, GlobalUse, ValidationFlags, Validator};
use rustc_hash::FxHashSet;

use super::{Backend, Workgroups};
use crate::error::{GpuError, Result};
use crate::wgsl::{Kernel, Operand};

/// Texts that passed on a device.
#[derive(Default)]
pub(crate) struct Vetted(Mutex<FxHashSet<String>>);

impl Vetted {
    /// Checks a user's kernel against the device and against its contract, as far as the text tells.
    pub(crate) fn check<B: Backend>(
        &self,
        backend: &B,
        name: &str,
        kernel: &Kernel,
        operands: &[Operand],
    ) -> Result<()> {
        let roles: Vec<_> = operands.iter().map(|o| (o.role, o.same_as)).collect();
        let key = format!("{:?} {roles:?}\n{}", kernel.trust, kernel.source);
        let passed = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if passed().contains(&key) {
            return Ok(());
        }
        let text = Text { name, device: backend.name(), kernel, operands };
        text.check(&backend.workgroups(), backend.capabilities(kernel.trust))?;
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
    fn check(&self, limits: &Workgroups, capabilities: Capabilities) -> Result<()> {
        let source = &self.kernel.source;
        let module = naga::front::wgsl::parse_str(source)
            .map_err(|error| self.bad(error.emit_to_string(source)))?;
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
        self.check_size(module.entry_points[entry].workgroup_size, limits)?;
        let uses = info.get_entry_point(entry);
        self.check_shared(&module, uses, limits)?;
        let bound = || {
            let all = module.global_variables.iter();
            all.filter_map(|(handle, variable)| Some((handle, variable, variable.binding?)))
        };
        bound().try_for_each(|(_, variable, at)| self.check_declared(variable, at))?;
        bound().try_for_each(|(handle, variable, at)| self.check_use(variable, at, uses[handle]))
    }

    fn check_size(&self, size: [u32; 3], limits: &Workgroups) -> Result<()> {
        const AXES: [&str; 3] = ["invocations in x", "invocations in y", "invocations in z"];
        for ((what, found), limit) in AXES.into_iter().zip(size).zip(limits.size) {
            self.at_most(what, u64::from(found), limit)?;
        }
        let all = size.iter().fold(1, |all: u64, &extent| all.saturating_mul(u64::from(extent)));
        self.at_most("invocations", all, limits.invocations)
    }

    fn check_shared(
        &self,
        module: &naga::Module,
        uses: &naga::valid::FunctionInfo,
        limits: &Workgroups,
    ) -> Result<()> {
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).map_err(|error| self.bad(error.to_string()))?;
        let shared = module.global_variables.iter().filter(|(handle, variable)| {
            variable.space == naga::AddressSpace::WorkGroup && !uses[*handle].is_empty()
        });
        let bytes = shared.map(|(_, variable)| u64::from(layouter[variable.ty].to_stride()));
        let (found, limit) = (bytes.sum::<u64>(), limits.shared_bytes);
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
pub(crate) fn mentions(text: &str, identifier: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(identifier).any(|(at, _)| {
        !text[..at].ends_with(in_word) && !text[at + identifier.len()..].starts_with(in_word)
    })
}

#[cfg(test)]
mod tests {
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
}
