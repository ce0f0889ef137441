//! How kernels read a chunk of 32 weights from planes.
//!
//! In two steps, so that a kernel can have several chunks under way: what memory gives fits few
//! registers, and taking it apart waits for it.

use clearway_graph::DType;

use super::template::{fill, piece};

const TEXT: &str = include_str!("kernels/chunks.wgsl");

/// Text shared by all operands of a type: what a chunk is, and how it is put together from what memory
/// gives (`Raw`).
///
/// The quants come as 8-bit integers, four to a word; weight `i` of the first half is
/// `d.x * q + m.x`, of the second `d.y * q + m.y`. `MINIMUM` says whether `m` is ever not zero,
/// `HALVES` whether the two halves ever differ.
pub(super) fn chunk_type(dtype: DType) -> Option<String> {
    let minimum = dtype != DType::Q8_0;
    let halves = matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q6_K);
    let constants = format!("const MINIMUM = {minimum};\nconst HALVES = {halves};\n");
    let raw = piece(TEXT, dtype.name())?;
    let first = if raw.contains("struct Raw { lo") { "lo" } else { "q" };
    let word = format!("fn word_of(r: Raw) -> u32 {{ return r.{first}.x; }}\n");
    Some([piece(TEXT, "shared")?, &constants, raw, &word].concat())
}

/// Text with the functions `fetch_NAME(c)` and `load_chunk_NAME(c)` for the operand of this name;
/// [`chunk_type`] comes first.
pub(super) fn load_chunk(dtype: DType, name: &str) -> Option<String> {
    let fetch = piece(TEXT, &format!("{} operand", dtype.name()))?;
    let two =
        if fetch.contains("two_") { piece(TEXT, "two words of a chunk in a plane")? } else { "" };
    let text = [two, fetch, piece(TEXT, "any operand")?].concat();
    Some(fill(&text, &[("operand", name)]))
}

#[cfg(test)]
mod tests {
    use clearway_graph::Layout;

    use super::*;

    #[test]
    fn every_type_that_lies_in_planes_has_its_pieces() {
        let mut types = 0;
        for dtype in DType::ALL {
            let layout = Layout::new(dtype, &[1024, 1024]).unwrap();
            if super::super::planes::supports(&layout) {
                assert!(chunk_type(dtype).is_some(), "{dtype:?}");
                let text = load_chunk(dtype, "w").unwrap();
                assert!(text.contains("fn fetch_w(") && !text.contains('$'), "{text}");
                types += 1;
            }
        }
        assert_eq!(types, 10);
    }
}
