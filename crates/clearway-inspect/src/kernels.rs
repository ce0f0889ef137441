//! The WGSL of a list: one text for each distinct kernel, and what each dispatch binds and how many workgroups
//! it has.

use std::collections::BTreeMap;
use std::fmt::Write;

use clearway::listing::{self, ListedBinding, ListedBound, ListedKernel, WgslTarget};
use clearway::{BindingRole, ComputeGraph, Dispatch, KernelRegistry, TensorView};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::compare::FIRST_SLAB;
use crate::report::Report;

/// Name of the file that [`Kernels::files`] gives besides the texts.
pub const INDEX: &str = "index.txt";

/// The kernels of a list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kernels {
    /// What they were made for.
    pub target: String,
    /// The distinct texts, in the order they are first used.
    pub texts: Vec<KernelText>,
    /// The dispatches of the list, in its order.
    pub dispatches: Vec<DispatchKernels>,
}

/// The text of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelText {
    /// Name of its file.
    pub file: String,
    /// Complete WGSL.
    pub source: String,
}

/// The kernels of one dispatch.
#[derive(Clone, Debug)]
pub struct DispatchKernels {
    /// Id of the dispatch.
    pub id: u32,
    /// Op and label, for people.
    pub title: String,
    /// Its kernels; several where weights are larger than a binding.
    pub uses: Vec<KernelUse>,
    /// Why it has none.
    pub reason: Option<String>,
}

/// A kernel as a dispatch uses it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelUse {
    /// Place of the text in the list of texts.
    pub kernel: u32,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
    /// What is bound, one line each.
    pub bindings: Vec<String>,
    /// Which part of the weights and which of several variants it is, where there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The kernels of a compiled list. `buffers` names buffers outside the arena.
///
/// A dispatch without a kernel for the target, such as one that was planned for another device, has a reason
/// instead.
pub fn kernels(
    graph: &ComputeGraph,
    registry: &KernelRegistry,
    target: &WgslTarget,
    buffers: &BTreeMap<usize, String>,
) -> Kernels {
    let mut all =
        Kernels { target: target.name.clone(), texts: Vec::new(), dispatches: Vec::new() };
    let mut known: FxHashMap<String, u32> = FxHashMap::default();
    for dispatch in graph.dispatches() {
        let title = format!("{} {}", dispatch.kind.name(), dispatch.label);
        let mut row = DispatchKernels {
            id: dispatch.id.0,
            title: title.trim_end().to_owned(),
            uses: Vec::new(),
            reason: None,
        };
        match listing::kernels(dispatch, registry, target) {
            Err(error) => row.reason = Some(error.to_string()),
            Ok(found) if found.is_empty() => {
                row.reason = Some("it has nothing to do where it was placed".into());
            }
            Ok(found) => {
                for listed in found {
                    let kernel = all.text(dispatch, &listed, &mut known);
                    row.uses.push(KernelUse {
                        kernel,
                        groups: listed.kernel.groups,
                        bindings: listed.bindings.iter().map(|b| line(b, buffers)).collect(),
                        note: note(&listed),
                    });
                }
            }
        }
        all.dispatches.push(row);
    }
    all
}

impl Kernels {
    /// Files by name: the texts with the dispatches that use them on top, and [`INDEX`] with all dispatches.
    pub fn files(&self) -> Vec<(String, String)> {
        let mut heads = vec![String::new(); self.texts.len()];
        let mut index = format!(
            "{} dispatches, {} kernels for {}\n",
            self.dispatches.len(),
            self.texts.len(),
            one_line(&self.target)
        );
        for dispatch in &self.dispatches {
            let title = format!("#{} {}", dispatch.id, one_line(&dispatch.title));
            let _ = writeln!(index, "\n{title}");
            if let Some(reason) = &dispatch.reason {
                let _ = writeln!(index, "  no kernel: {}", one_line(reason));
            }
            for used in &dispatch.uses {
                let mut lines = vec![used.workgroups()];
                lines.extend(used.bindings.iter().map(|binding| one_line(binding)));
                let number = used.kernel as usize;
                let _ = writeln!(index, "  file {}", self.texts[number].file);
                let head = &mut heads[number];
                let _ = writeln!(head, "// {title}");
                for text in lines {
                    let _ = writeln!(index, "  {text}");
                    let _ = writeln!(head, "//   {text}");
                }
            }
        }
        let texts = self.texts.iter().zip(heads);
        let texts = texts.map(|(text, head)| (text.file.clone(), format!("{head}{}", text.source)));
        std::iter::once((INDEX.to_owned(), index)).chain(texts).collect()
    }

    /// The number of a text, which is added where it is new.
    fn text(
        &mut self,
        dispatch: &Dispatch,
        listed: &ListedKernel,
        known: &mut FxHashMap<String, u32>,
    ) -> u32 {
        let source = &listed.kernel.source;
        if let Some(&number) = known.get(source) {
            return number;
        }
        let number = self.texts.len() as u32;
        let name: String = dispatch.kind.name().chars().map(file_char).collect();
        let file = format!("{number:03}-{name}.wgsl");
        self.texts.push(KernelText { file, source: source.clone() });
        known.insert(source.clone(), number);
        number
    }
}

impl KernelUse {
    fn workgroups(&self) -> String {
        let [x, y, z] = self.groups;
        let note = self.note.as_ref().map_or_else(String::new, |note| format!(", {note}"));
        format!("workgroups {x} x {y} x {z}{note}")
    }
}

impl Report {
    /// Adds the kernels of the list that is reported.
    pub fn attach_kernels(&mut self, kernels: &Kernels) {
        let by_id: FxHashMap<u32, &DispatchKernels> =
            kernels.dispatches.iter().map(|dispatch| (dispatch.id, dispatch)).collect();
        for row in &mut self.dispatch_list {
            if let Some(found) = by_id.get(&row.id) {
                row.kernels.clone_from(&found.uses);
                row.no_kernel.clone_from(&found.reason);
            }
        }
        self.kernel_target = Some(kernels.target.clone());
        self.kernel_list.clone_from(&kernels.texts);
    }
}

fn note(listed: &ListedKernel) -> Option<String> {
    let part = listed.part.map(|[number, count]| format!("part {} of {count}", number + 1));
    let [variant, count] = listed.variant;
    let variant = (count > 1).then(|| format!("variant {} of {count}", variant + 1));
    let notes: Vec<String> = part.into_iter().chain(variant).collect();
    (!notes.is_empty()).then(|| notes.join(", "))
}

/// A binding on one line.
fn line(binding: &ListedBinding, buffers: &BTreeMap<usize, String>) -> String {
    let role = match binding.role {
        BindingRole::Read => "read",
        BindingRole::Write => "write",
        BindingRole::ReadWrite => "read_write",
    };
    let what = match &binding.bound {
        ListedBound::Tensor { view, packing, shift } => {
            let planes = match packing {
                listing::Packing::Planes => " in planes",
                listing::Packing::Plain => "",
            };
            let shift = if *shift > 0 { format!(", shift {shift}") } else { String::new() };
            format!("{}{planes}, {}{shift}", view.layout, place(view, buffers))
        }
        ListedBound::Scratch { bytes } => format!("scratch of {bytes} bytes"),
        ListedBound::Tickets { count } => format!("{count} counters"),
        ListedBound::Uniform { words } => format!("uniform block of {words} words"),
    };
    format!("binding {} {} {role}: {what}", binding.slot, binding.name)
}

fn place(view: &TensorView, buffers: &BTreeMap<usize, String>) -> String {
    let end = view.offset + view.layout.span_bytes();
    let name = match (buffers.get(&view.buf_id), view.buf_id.checked_sub(FIRST_SLAB)) {
        (Some(name), _) => name.clone(),
        (None, Some(slab)) => format!("slab {slab}"),
        (None, None) => format!("@{}", view.buf_id),
    };
    format!("{name} bytes {}..{end}", view.offset)
}

/// Names come from files: none may end the line of a comment.
fn one_line(text: &str) -> String {
    // The line ends of WGSL, and every other control character.
    let ends = ['\u{2028}', '\u{2029}'];
    text.chars().map(|c| if c.is_control() || ends.contains(&c) { ' ' } else { c }).collect()
}

fn file_char(c: char) -> char {
    if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }
}
