//! An arena over time as a picture: groups to the right, bytes upwards, one box for each value.

use std::fmt::Write;

use clearway_graph::place::{Lifetime, MemoryPlan, Slot, lifetimes};
use clearway_graph::{CapturedOpKind as Kind, ComputeGraph, Gate, NodeId};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 44.0;

/// Colours by what made a value, with their names in the legend.
const FAMILIES: [(&str, &str); 6] = [
    ("#4e79a7", "product"),
    ("#f28e2b", "norm"),
    ("#59a14f", "attention"),
    ("#e15759", "element-wise"),
    ("#b07aa1", "experts"),
    ("#9c9c9c", "input or other"),
];

/// The plan of a list that has its barriers and no addresses yet, as SVG. Slabs are stacked.
pub fn svg(graph: &ComputeGraph, plan: &MemoryPlan, title: &str) -> String {
    let lives = lifetimes(graph);
    let family = families(graph);
    let groups = lives.iter().map(|life| life.last + 1).max().unwrap_or(1);
    let total = plan.total_bytes().max(1);
    let scale = Scale { x: (WIDTH - LEFT - 16.0) / f64::from(groups), y: span() / total as f64 };
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}</text>\n",
        escape(title)
    );
    let slab_starts: Vec<u64> = plan
        .slab_bytes()
        .iter()
        .scan(0, |start, bytes| Some(std::mem::replace(start, *start + bytes)))
        .collect();
    for (index, (colour, _)) in FAMILIES.iter().enumerate() {
        let mut path = String::new();
        for life in lives.iter().filter(|life| family[life.value.index()] == index) {
            if let Some(slot) = plan.slot(life.value) {
                scale.rectangle(&mut path, life, slot, &slab_starts);
            }
        }
        if !path.is_empty() {
            let _ = writeln!(
                out,
                "<path fill=\"{colour}\" stroke=\"#fff\" stroke-width=\".4\" d=\"{path}\"/>"
            );
        }
    }
    frame(&mut out, plan, groups, &scale);
    out.push_str("</svg>\n");
    out
}

struct Scale {
    x: f64,
    y: f64,
}

impl Scale {
    fn rectangle(&self, path: &mut String, life: &Lifetime, slot: Slot, slab_starts: &[u64]) {
        let start = slab_starts.get(slot.slab).copied().unwrap_or(0) + slot.offset;
        let (x, wide) = (LEFT + f64::from(life.first) * self.x, life.last + 1 - life.first);
        let high = slot.bytes as f64 * self.y;
        let y = floor() - start as f64 * self.y - high;
        let wide = f64::from(wide) * self.x;
        let _ = write!(path, "M{x:.1} {y:.1}h{wide:.1}v{high:.1}h-{wide:.1}z");
    }
}

fn span() -> f64 {
    HEIGHT - TOP - BOTTOM
}

fn floor() -> f64 {
    HEIGHT - BOTTOM
}

/// Axes, the line of the lower bound, and the legend.
fn frame(out: &mut String, plan: &MemoryPlan, groups: u32, scale: &Scale) {
    let (total, bound) = (plan.total_bytes(), plan.lower_bound());
    let right = LEFT + f64::from(groups) * scale.x;
    let line = floor() - bound as f64 * scale.y;
    let _ = write!(
        out,
        "<path fill=\"none\" stroke=\"#333\" d=\"M{LEFT} {TOP}V{0:.1}H{right:.1}\"/>\n\
         <path fill=\"none\" stroke=\"#c00\" stroke-dasharray=\"6 3\" d=\"M{LEFT} {line:.1}H{right:.1}\"/>\n\
         <text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\" fill=\"#c00\">{3} most bytes live at once</text>\n\
         <text x=\"{4:.1}\" y=\"{5:.1}\" text-anchor=\"end\">{6}</text>\n\
         <text x=\"{4:.1}\" y=\"{0:.1}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{LEFT}\" y=\"{7:.1}\">group 0</text>\n\
         <text x=\"{right:.1}\" y=\"{7:.1}\" text-anchor=\"end\">{groups} groups</text>\n",
        floor(),
        right - 4.0,
        line - 4.0,
        size(bound),
        LEFT - 6.0,
        TOP + 10.0,
        size(total),
        floor() + 16.0,
    );
    for (index, (colour, name)) in FAMILIES.iter().enumerate() {
        let (x, y) = (LEFT + 140.0 * index as f64, HEIGHT - 10.0);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{0}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{1}\" y=\"{y}\">{name}</text>",
            y - 10.0,
            x + 16.0
        );
    }
}

/// For each value, the index of its family.
fn families(graph: &ComputeGraph) -> Vec<usize> {
    let mut family = vec![FAMILIES.len() - 1; graph.values().len()];
    for dispatch in graph.dispatches() {
        let kind = match dispatch.kind {
            Kind::Product(product) if product.epilogue().heads() => 2,
            Kind::Product(product) if product.is_of_experts() => 4,
            Kind::Product(product) if product.gate() != Gate::None => 3,
            Kind::Product(_) => 0,
            Kind::RmsNorm
            | Kind::LayerNorm
            | Kind::RmsNormMul
            | Kind::AddRmsNorm
            | Kind::RmsNormMulAdd
            | Kind::AddRmsNormMul => 1,
            Kind::Attention
            | Kind::AttentionSinks
            | Kind::Rope
            | Kind::RopeKvWrite
            | Kind::Softmax => 2,
            Kind::MatMulExperts
            | Kind::ExpertOrder
            | Kind::RouterTopK
            | Kind::RouterGroups
            | Kind::ExpertSum
            | Kind::ExpertSumAdd => 4,
            Kind::Gather | Kind::Custom | Kind::Pinned => 5,
            Kind::Map(_)
            | Kind::KvWrite
            | Kind::Copy
            | Kind::Concat
            | Kind::ArgMax
            | Kind::TopK
            | Kind::Fill => 3,
        };
        for written in dispatch.writes() {
            let value = NodeId::from_buf_id(written.buf_id);
            if let Some(entry) = value.and_then(|value| family.get_mut(value.index())) {
                *entry = kind;
            }
        }
    }
    family
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use clearway_graph::place::plan;
    use clearway_graph::testkit::decoder_like;

    use super::*;

    #[test]
    fn the_picture_has_a_box_for_every_value_and_escapes_its_title() {
        let mut list = decoder_like(60);
        list.reorder();
        list.place_barriers();
        let plan = plan(&list, 256).unwrap();
        let picture = svg(&list, &plan, "a < b & c");
        let boxes = lifetimes(&list).len();
        assert_eq!(picture.matches('M').count() - 2, boxes + picture.matches("MiB").count());
        assert!(picture.contains("a &lt; b &amp; c"));
    }
}
