//! Split models whose parts are missing, wrong, or do not belong together.

use std::path::Path;

use clearway_graph::DType;
use clearway_llm::gguf::{Gguf, GgufError, GgufWriter};

use crate::{Folder, written};

/// A part with one tensor.
fn part(no: u16, count: u16, tensors: i32, tensor: &str) -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.set("split.no", &no).unwrap();
    w.set("split.count", &count).unwrap();
    w.set("split.tensors.count", &tensors).unwrap();
    w.tensor_bytes(tensor, DType::F32, &[1], &[7; 4]).unwrap();
    written(w)
}

fn open(folder: &Path, parts: &[(&str, Vec<u8>)], which: usize) -> Result<Gguf, GgufError> {
    for (name, bytes) in parts {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    Gguf::open(folder.join(parts[which].0))
}

#[test]
fn parts_must_be_there_and_agree() {
    const A: &str = "m-00001-of-00002.gguf";
    const B: &str = "m-00002-of-00002.gguf";
    type Case<'a> = (&'a str, Vec<(&'a str, Vec<u8>)>, &'a str);
    let cases: [Case<'_>; 9] = [
        ("missing", vec![(A, part(0, 2, 2, "a"))], "part 2 of 2 of the split model is missing: "),
        (
            "renamed",
            vec![("m.gguf", part(0, 2, 2, "a"))],
            r#"a name that ends in "-00001-of-00002.gguf""#,
        ),
        (
            "wrong name",
            vec![(B, part(0, 2, 2, "a"))],
            r#"a name that ends in "-00001-of-00002.gguf""#,
        ),
        (
            "count",
            vec![(A, part(0, 2, 2, "a")), (B, part(1, 3, 2, "b"))],
            "part 2 of the split model has split.count = 3, but 2 was expected",
        ),
        (
            "cycle",
            vec![(A, part(0, 2, 2, "a")), (B, part(0, 2, 2, "b"))],
            "part 2 of the split model has split.no = 0, but 1 was expected",
        ),
        (
            "tensors",
            vec![(A, part(0, 2, 2, "a")), (B, part(1, 2, 4, "b"))],
            "part 2 of the split model has split.tensors.count = 4, but 2 was expected",
        ),
        (
            "total",
            vec![(A, part(0, 2, 3, "a")), (B, part(1, 2, 3, "b"))],
            "the split model promises 3 tensors, but its parts hold 2",
        ),
        (
            "twice",
            vec![(A, part(0, 2, 2, "a")), (B, part(1, 2, 2, "a"))],
            r#"tensor "a" occurs twice"#,
        ),
        (
            "not split",
            vec![(A, part(0, 2, 2, "a")), (B, written(GgufWriter::new()))],
            "has split.count = 1",
        ),
    ];
    for (name, parts, message) in &cases {
        let folder = Folder::new(&format!("split-{name}"));
        let error = open(&folder.0, parts, 0).unwrap_err().to_string();
        assert!(error.contains(message), "{name}: {error}");
    }
    let folder = Folder::new("split-good");
    let good = [(A, part(0, 2, 2, "a")), (B, part(1, 2, 2, "b"))];
    for which in 0..2 {
        let m = open(&folder.0, &good, which).unwrap();
        assert_eq!(m.tensors().map(|t| t.name()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(m.metadata().u32("split.no").unwrap(), 0);
    }
    std::fs::write(folder.0.join(B), b"GGUF").unwrap();
    let error = Gguf::open(folder.0.join(A)).unwrap_err().to_string();
    assert!(error.contains(B) && error.contains("the file ends"), "{error}");
}

#[test]
fn numbers_out_of_range() {
    let single = |no: u64, count: u64| {
        let mut w = GgufWriter::new();
        w.set("split.no", &no).unwrap();
        w.set("split.count", &count).unwrap();
        Gguf::from_bytes(written(w))
    };
    assert!(single(0, 0).is_ok());
    assert!(single(0, 1).is_ok());
    assert!(matches!(single(0, 2), Err(GgufError::SplitParts { count: 2, given: 1 })));
    for (no, count) in
        [(1, 1), (5, 5), (u64::MAX, 2), (u64::MAX, u64::MAX), (0, 65_536), (70_000, 80_000)]
    {
        let error = single(no, count).unwrap_err();
        assert!(matches!(error, GgufError::SplitNumbers { .. }), "{no} of {count}: {error}");
    }
}

#[test]
fn parts_in_memory() {
    let (a, b) = (part(0, 2, 2, "a"), part(1, 2, 2, "b"));
    assert_eq!(Gguf::from_parts([a.clone(), b.clone()]).unwrap().parts(), 2);
    assert!(matches!(
        Gguf::from_parts([b.clone(), a.clone()]),
        Err(GgufError::SplitMismatch { .. })
    ));
    assert!(matches!(
        Gguf::from_parts([a.clone()]),
        Err(GgufError::SplitParts { count: 2, given: 1 })
    ));
    assert!(matches!(
        Gguf::from_parts([a.clone(), b, a]),
        Err(GgufError::SplitParts { count: 2, given: 3 })
    ));
    assert!(matches!(
        Gguf::from_parts(Vec::<Vec<u8>>::new()),
        Err(GgufError::SplitParts { given: 0, .. })
    ));
    let plain = written(GgufWriter::new());
    assert!(matches!(
        Gguf::from_parts([plain.clone(), plain]),
        Err(GgufError::SplitParts { count: 1, given: 2 })
    ));
}
