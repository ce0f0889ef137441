//! Kernels for devices that have less: without subgroups, and with bindings that may be written.
//!
//! A kernel that is right for subgroups of any size is right for subgroups of one invocation. Then a reduction over
//! a subgroup is its argument, and the number of a subgroup is that of the invocation. Kernels that need more
//! lanes ask [`Target::subgroup`](super::Target::subgroup) first and are not taken.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Functions of a subgroup that give their argument back where there is one invocation only.
const REDUCTIONS: [&str; 5] =
    ["subgroupAdd", "subgroupMax", "subgroupMin", "subgroupAny", "subgroupAll"];

/// A binding of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Its number.
    pub(crate) slot: u32,
    /// What it is.
    pub(crate) kind: BindingKind,
}

/// What a binding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingKind {
    /// Memory that is only read.
    Read,
    /// Memory that may be written.
    ReadWrite,
    /// A block of constants.
    Uniform,
}

const MARK: &str = "@group(0) @binding(";
const READ: &str = "var<storage, read>";
const READ_WRITE: &str = "var<storage, read_write>";

/// The bindings that a text declares, in its order. Every declaration stands on a line of its own.
pub(crate) fn bindings(source: &str) -> Vec<Binding> {
    let binding = |line: &str| {
        let (slot, rest) = line.trim_start().strip_prefix(MARK)?.split_once(')')?;
        let kind = if rest.contains(READ_WRITE) {
            BindingKind::ReadWrite
        } else if rest.contains(READ) {
            BindingKind::Read
        } else {
            BindingKind::Uniform
        };
        Some(Binding { slot: slot.parse().ok()?, kind })
    };
    source.lines().filter_map(binding).collect()
}

/// The text with these bindings declared as memory that may be written. What the kernel does is the same: a
/// device that follows whole buffers asks for it where another binding of the same buffer is written.
pub(crate) fn writable(source: &str, slots: &[u32]) -> String {
    let mut text = source.to_owned();
    for slot in slots {
        let from = format!("{MARK}{slot}) {READ} ");
        text = text.replace(&from, &format!("{MARK}{slot}) {READ_WRITE} "));
    }
    text
}

/// The text of a kernel that works for subgroups of any size, for a device without them. A use that is not replaced
/// stays, and the compiler then refuses the text.
pub(crate) fn without_subgroups(source: &str) -> Cow<'_, str> {
    if !source.contains("subgroup") {
        return Cow::Borrowed(source);
    }
    let mut text = source.to_owned();
    for name in REDUCTIONS {
        text = text.replace(&format!("{name}("), "(");
    }
    // Nothing comes before the only invocation.
    text = text.replace("subgroupExclusiveAdd(", "(0u * ");
    Cow::Owned(without_builtins(&text).unwrap_or(text))
}

/// Replaces the builtins of `main` that speak of subgroups by what they are for one invocation.
fn without_builtins(text: &str) -> Option<String> {
    let stage = text.find("@compute")?;
    let size = text[stage..].split_once("@workgroup_size(")?.1;
    let size = size[..size.find(')')?].trim();
    let open = stage + text[stage..].find("fn main(")? + "fn main(".len();
    let close = open + text[open..].find(") {")?;
    let mut index = None;
    let (mut kept, mut replaced) = (Vec::new(), Vec::new());
    for parameter in text[open..close].split_inclusive(',') {
        let Some((builtin, name)) = split(parameter) else {
            kept.push(parameter.to_owned());
            continue;
        };
        match builtin {
            "subgroup_invocation_id" => replaced.push((name, "0u".to_owned())),
            "subgroup_size" => replaced.push((name, "1u".to_owned())),
            "num_subgroups" => replaced.push((name, size.to_owned())),
            "subgroup_id" => replaced.push((name, String::new())),
            _ => {
                if builtin == "local_invocation_index" {
                    index = Some(name.to_owned());
                }
                kept.push(parameter.to_owned());
            }
        }
    }
    let index = index.unwrap_or_else(|| {
        kept.push("@builtin(local_invocation_index) own_index: u32,".to_owned());
        "own_index".to_owned()
    });
    let mut lets = String::new();
    for (name, value) in replaced {
        let value = if value.is_empty() { &index } else { &value };
        let _ = write!(lets, "\n    let {name}: u32 = u32({value});");
    }
    let body = close + ") {".len();
    Some(format!("{}{}) {{{lets}{}", &text[..open], kept.concat(), &text[body..]))
}

/// Builtin and name of a parameter.
fn split(parameter: &str) -> Option<(&str, &str)> {
    let (_, rest) = parameter.split_once("@builtin(")?;
    let (builtin, rest) = rest.split_once(')')?;
    Some((builtin.trim(), rest.split_once(':')?.0.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "@group(0) @binding(0) var<storage, read> b_x: array<f32>;
@group(0) @binding(1) @coherent var<storage, read_write> b_y: array<f32>;
@group(0) @binding(12) var<uniform> P: Params;
const WIDTH = 64u;
@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) i: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    if (lane == 0u) { b_y[subgroup] = subgroupAdd(b_x[i]); }
}
";

    #[test]
    fn bindings_are_read_from_the_text() {
        let found: Vec<_> = bindings(TEXT).into_iter().map(|b| (b.slot, b.kind)).collect();
        let expected =
            [(0, BindingKind::Read), (1, BindingKind::ReadWrite), (12, BindingKind::Uniform)];
        assert_eq!(found, expected);
        let written = writable(TEXT, &[0]);
        assert_eq!(bindings(&written)[0].kind, BindingKind::ReadWrite);
        assert_eq!(written.len(), TEXT.len() + "_write".len());
    }

    #[test]
    fn an_invocation_is_a_subgroup_of_its_own() {
        let text = without_subgroups(TEXT);
        assert!(!text.contains("@builtin(subgroup") && !text.contains("subgroupAdd"), "{text}");
        assert!(text.contains("let subgroup: u32 = u32(i);"), "{text}");
        assert!(text.contains("let subgroups: u32 = u32(WIDTH);"), "{text}");
        assert!(text.contains("b_y[subgroup] = (b_x[i]);"), "{text}");
        assert_eq!(without_subgroups("fn main() {}"), "fn main() {}");
    }

    #[test]
    fn what_has_no_meaning_for_one_invocation_stays() {
        let text = TEXT.replace("subgroupAdd(b_x[i])", "subgroupShuffleXor(b_x[i], 1u)");
        assert!(without_subgroups(&text).contains("subgroupShuffleXor"));
    }
}
