//! Which device `auto` means, and why: an order over what was found, without opening anything.

use crate::device::DeviceName;

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What `--device` calls it.
    pub name: DeviceName,
    /// How it is reached.
    pub via: Via,
    /// What it is.
    pub kind: Kind,
    /// Whether it can be opened.
    pub usable: bool,
}

/// How a device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(all(feature = "vulkan", feature = "wgpu")), allow(dead_code))] // some cannot be met
pub enum Via {
    /// Our own code on the processor.
    Cpu,
    /// Our Vulkan backend, with barriers of our own.
    Vulkan,
    /// wgpu over Metal or DX12.
    Wgpu,
    /// wgpu over Vulkan.
    WgpuVulkan,
    /// wgpu over GL or something that is not known.
    WgpuOther,
}

/// What a device is. Smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(feature = "wgpu"), allow(dead_code))] // some cannot be met
pub enum Kind {
    /// A card, or anything else that is no software.
    Hardware,
    /// A part of the processor.
    Integrated,
    /// A driver that computes on the processor.
    Software,
}

/// The candidates in the order of preference, each with its reason. `auto` means the first that can be opened.
pub fn order(mut candidates: Vec<Candidate>) -> Vec<(Candidate, &'static str)> {
    // A sort keeps the order of those that are alike: drivers have one of their own.
    candidates.sort_by_key(|candidate| (!candidate.usable, place(candidate), candidate.kind));
    candidates.into_iter().map(|candidate| (candidate.clone(), reason(&candidate))).collect()
}

/// Where a candidate stands. The CPU is at 3: what is behind it is never taken without being asked for.
fn place(candidate: &Candidate) -> u8 {
    match (candidate.via, candidate.kind) {
        (Via::Cpu, _) => 3,
        (Via::WgpuOther, _) => 5,
        (_, Kind::Software) => 4,
        (Via::Vulkan, _) => 0,
        (Via::Wgpu, _) => 1,
        (Via::WgpuVulkan, _) => 2,
    }
}

fn reason(candidate: &Candidate) -> &'static str {
    match (candidate.via, candidate.kind) {
        _ if !candidate.usable => "cannot be opened",
        (Via::Cpu, _) => "always there, and faster than software drivers and GL",
        (Via::WgpuOther, _) => "GL or unknown: after the CPU",
        (_, Kind::Software) => "a software driver: no faster than the CPU itself",
        (Via::Vulkan, _) => "barriers of our own: the fastest way to a GPU",
        (Via::Wgpu, _) => "wgpu reaches it, where there is no Vulkan",
        (Via::WgpuVulkan, _) => "wgpu over Vulkan: slower than Vulkan itself",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: DeviceName, via: Via, kind: Kind) -> Candidate {
        Candidate { name, via, kind, usable: true }
    }

    fn cpu() -> Candidate {
        candidate(DeviceName::Cpu, Via::Cpu, Kind::Hardware)
    }

    fn vulkan(index: usize, kind: Kind) -> Candidate {
        candidate(DeviceName::Vulkan(Some(index)), Via::Vulkan, kind)
    }

    fn wgpu(index: usize, via: Via, kind: Kind) -> Candidate {
        candidate(DeviceName::Wgpu(Some(index)), via, kind)
    }

    fn names(candidates: &[Candidate]) -> Vec<String> {
        order(candidates.to_vec()).iter().map(|(c, _)| c.name.to_string()).collect()
    }

    #[test]
    fn a_card_with_vulkan_comes_before_the_same_card_through_wgpu() {
        let found = [
            cpu(),
            wgpu(0, Via::WgpuVulkan, Kind::Hardware),
            vulkan(0, Kind::Software),
            vulkan(1, Kind::Hardware),
            wgpu(1, Via::WgpuVulkan, Kind::Software),
        ];
        assert_eq!(names(&found), ["vulkan:1", "wgpu:0", "cpu", "vulkan:0", "wgpu:1"]);
    }

    #[test]
    fn without_vulkan_wgpu_is_taken() {
        // A Mac, and Windows with a driver that has DX12 only.
        for kind in [Kind::Hardware, Kind::Integrated] {
            let found = [cpu(), wgpu(0, Via::Wgpu, kind)];
            assert_eq!(names(&found), ["wgpu:0", "cpu"]);
        }
        let both = [
            cpu(),
            wgpu(0, Via::Wgpu, Kind::Integrated),
            wgpu(1, Via::Wgpu, Kind::Hardware),
            wgpu(2, Via::Wgpu, Kind::Software),
        ];
        assert_eq!(names(&both), ["wgpu:1", "wgpu:0", "cpu", "wgpu:2"]);
    }

    #[test]
    fn software_and_gl_never_come_before_the_cpu() {
        let kinds = [Kind::Hardware, Kind::Integrated, Kind::Software];
        let gl = kinds.map(|kind| wgpu(0, Via::WgpuOther, kind));
        let software = [Via::Wgpu, Via::WgpuVulkan].map(|via| wgpu(1, via, Kind::Software));
        let mut found: Vec<Candidate> = gl.into_iter().chain(software).collect();
        found.extend([vulkan(0, Kind::Software), cpu()]);
        assert_eq!(names(&found)[0], "cpu");
        assert_eq!(names(&[cpu()]), ["cpu"]);
    }

    #[test]
    fn what_cannot_be_opened_is_last() {
        let broken = Candidate { usable: false, ..vulkan(0, Kind::Hardware) };
        let found = [broken, wgpu(0, Via::WgpuVulkan, Kind::Hardware), cpu()];
        assert_eq!(names(&found), ["wgpu:0", "cpu", "vulkan:0"]);
        assert_eq!(order(found.to_vec())[2].1, "cannot be opened");
    }
}
