//! Parts of the run, each with a budget and with what it needs of the machine.

use super::needs::Need;
use crate::python;
use crate::run::Suite;

/// Minutes for everything, on two cores.
pub const TOTAL_BUDGET: u32 = 45;

/// A part of the run with a budget of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Build,
    Core,
    Ops,
    Wgpu,
    Golden,
    Race,
    Browser,
    Serve,
    Python,
}

impl Part {
    pub const ALL: [Self; 9] = [
        Self::Build,
        Self::Core,
        Self::Ops,
        Self::Wgpu,
        Self::Golden,
        Self::Race,
        Self::Browser,
        Self::Serve,
        Self::Python,
    ];

    /// The part of this name on the command line.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.facts().0 == name)
    }

    /// Name on the command line, name in the table, minutes.
    pub const fn facts(self) -> (&'static str, &'static str, u32) {
        match self {
            Self::Build => ("build", "build and lint", 10),
            Self::Core => ("core", "core", 6),
            Self::Ops => ("ops", "op suite", 8),
            Self::Wgpu => ("wgpu", "wgpu", 6),
            Self::Golden => ("golden", "golden", 4),
            Self::Race => ("race", "race checker", 3),
            Self::Browser => ("browser", "browser", 2),
            Self::Serve => ("serve", "server", 3),
            Self::Python => ("python", "Python package", 3),
        }
    }

    /// The part a test binary belongs to: by its name where that says so, else by its crate.
    pub fn of(suite: &Suite) -> Self {
        match suite.target.as_str() {
            target if target.starts_with("wgpu") => Self::Wgpu,
            target if target.starts_with("golden") => Self::Golden,
            target if target.starts_with("syncval") => Self::Race,
            target if target.starts_with("browser") => Self::Browser,
            target if target.starts_with("serve") => Self::Serve,
            _ if suite.package == "clearway_gpu" => Self::Ops,
            _ if suite.package == python::PACKAGE => Self::Python,
            _ => Self::Core,
        }
    }

    /// What `cargo test` is told in order to run this part alone.
    pub const fn selection(self) -> &'static [&'static str] {
        match self {
            Self::Build | Self::Core => &["--workspace", "--exclude", "clearway-gpu"],
            Self::Ops => &["--package", "clearway-gpu"],
            Self::Wgpu => &["--workspace", "--test", "wgpu*"],
            Self::Golden => &["--workspace", "--test", "golden*"],
            Self::Race => &["--workspace", "--test", "syncval*"],
            Self::Browser => &["--workspace", "--test", "browser*"],
            Self::Serve => &["--workspace", "--test", "serve*"],
            // The smallest that builds the command line, which texts are compared with.
            Self::Python => &["--workspace", "--test", "plan"],
        }
    }

    /// What the part cannot do without.
    pub const fn needs(self) -> &'static [Need] {
        match self {
            Self::Build => &[],
            // wgpu runs over the same driver.
            Self::Core | Self::Ops | Self::Wgpu => &[Need::Vulkan],
            Self::Golden => &[Need::Vulkan, Need::Golden],
            Self::Race => &[Need::Race],
            Self::Browser => &[Need::Browser, Need::Golden],
            Self::Serve => &[Need::Golden, Need::Clients],
            Self::Python => &[Need::Vulkan, Need::Golden, Need::Python],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_belongs_to_a_part_by_its_name_or_else_by_its_crate() {
        let part = |package: &str, target: &str| {
            let (package, target) = (package.to_owned(), target.to_owned());
            Part::of(&Suite { package, target, ..Suite::default() })
        };
        assert_eq!(part("clearway_graph", "properties"), Part::Core);
        assert_eq!(part("clearway_gpu", "op_suite"), Part::Ops);
        assert_eq!(part("clearway_gpu", "syncval"), Part::Race);
        assert_eq!(part("clearway_gpu", "wgpu_ops"), Part::Wgpu);
        assert_eq!(part("clearway_llm", "golden_logits"), Part::Golden);
        assert_eq!(part("clearway_llm", "browser"), Part::Browser);
        assert_eq!(part("clearway_serve", "serve"), Part::Serve);
        assert_eq!(part("clearway_serve", "unittests"), Part::Core);
        assert_eq!(part(python::PACKAGE, "pytest"), Part::Python);
    }

    #[test]
    fn every_part_has_a_name_and_the_budgets_fit_the_total() {
        for part in Part::ALL {
            assert_eq!(Part::by_name(part.facts().0), Some(part));
        }
        assert_eq!(Part::by_name("everything"), None);
        assert!(Part::ALL.iter().map(|part| part.facts().2).sum::<u32>() <= TOTAL_BUDGET);
    }

    #[test]
    fn all_parts_together_need_everything() {
        for need in Need::ALL {
            assert!(Part::ALL.iter().any(|part| part.needs().contains(&need)), "{need:?}");
        }
    }
}
