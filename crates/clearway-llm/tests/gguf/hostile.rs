//! Damaged and malicious files: always an error, always the right one, never a panic.

use clearway_llm::gguf::{Gguf, GgufError};

use crate::{fuzz_one::fuzz_one, small_file};

/// A file built byte by byte.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(tensors: u64, keys: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(tensors).u64(keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn str(self, s: &str) -> Self {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }

    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let entry = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(entry, |raw, &dim| raw.u64(dim)).u32(ty).u64(offset)
    }

    /// Pads to the data section and adds `data` bytes.
    fn data(mut self, data: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 0);
        self
    }

    fn error(self) -> GgufError {
        Gguf::from_bytes(self.0).unwrap_err()
    }
}

const F32: u32 = 0;
const ARRAY: u32 = 9;
const STRING: u32 = 8;

#[test]
fn the_builder_builds_valid_files() {
    let raw = Raw::header(1, 1).str("k").u32(4).u32(7).tensor("t", &[2], F32, 32).data(40);
    let m = Gguf::from_bytes(raw.0).unwrap();
    assert_eq!((m.metadata().u32("k").unwrap(), m.tensor("t").unwrap().bytes().len()), (7, 8));
    assert_eq!(Gguf::from_bytes(Raw::header(0, 0).0).unwrap().tensors().len(), 0);
}

#[test]
fn every_truncation_is_noticed() {
    let file = small_file();
    let end = {
        let m = Gguf::from_bytes(file.as_slice()).unwrap();
        m.tensors().map(|t| t.file_offset() + t.bytes().len()).max().unwrap()
    };
    assert!(end < file.len(), "the last tensor should be padded");
    for len in 0..file.len() {
        assert_eq!(fuzz_one(&file[..len]), len >= end, "cut at {len}");
    }
    let error = Gguf::from_bytes(&file[..100]).unwrap_err();
    assert!(
        matches!(error, GgufError::Truncated { len: 100, .. } | GgufError::Count { .. }),
        "{error}"
    );
    let error = Gguf::from_bytes(&file[..end - 1]).unwrap_err();
    assert!(matches!(&error, GgufError::TensorRange { tensor, .. } if tensor == "c"), "{error}");
}

#[test]
fn every_changed_byte_is_survived() {
    let file = small_file();
    let mut changed = file.clone();
    let (mut tried, mut accepted) = (0, 0);
    for i in 0..file.len() {
        // Each bit alone, and the small numbers that types and counts are made of.
        let bits = (0..8).map(|bit| file[i] ^ (1 << bit));
        for value in bits.chain(0..16).chain([0x7f, 0x80, 0xff]) {
            changed[i] = value;
            tried += 1;
            accepted += usize::from(fuzz_one(&changed));
        }
        changed[i] = file[i];
    }
    // Data and numbers may change; magic, types and lengths may not.
    assert!(accepted > tried / 10 && accepted < tried * 9 / 10, "{accepted} of {tried}");
}

#[test]
fn random_damage_is_survived() {
    // Enough for a regression; the fuzz target looks for what is new.
    const ROUNDS: usize = 60_000;
    let seed =
        std::env::var("CLEARWAY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            now.as_nanos() as u64
        });
    println!("CLEARWAY_SEED={seed}");
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    };
    let small = small_file();
    let split: Vec<u8> = [
        include_bytes!("../data/python-00001-of-00003.gguf").as_slice(),
        include_bytes!("../data/python-00002-of-00003.gguf"),
        include_bytes!("../data/python-00003-of-00003.gguf"),
    ]
    .concat();
    let numbers = [
        0,
        1,
        2,
        7,
        8,
        31,
        32,
        255,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        1 << 61,
        1 << 63,
        u64::MAX - 31,
    ];
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let mut file = if round % 4 == 0 { split.clone() } else { small.clone() };
        for _ in 0..=random(4) {
            let at = random(file.len().max(1)).min(file.len());
            match random(6) {
                0 if at < file.len() => file[at] ^= 1 << random(8),
                1 if at + 8 <= file.len() => {
                    let number = numbers[random(numbers.len())].wrapping_sub(random(3) as u64);
                    file[at..at + 8].copy_from_slice(&number.to_le_bytes());
                }
                2 => drop(file.drain(at..(at + random(40)).min(file.len()))),
                3 => {
                    let from = random(file.len() + 1);
                    let piece = file[from..(from + random(40)).min(file.len())].to_vec();
                    file.splice(at..at, piece);
                }
                4 => file.truncate(at),
                _ => file.resize(file.len() + random(100), random(256) as u8),
            }
        }
        accepted += usize::from(fuzz_one(&file));
    }
    assert!(
        accepted > ROUNDS / 100,
        "only {accepted} accepted: the rest of the reader was not tried"
    );
}

#[test]
fn other_files_are_named() {
    assert_eq!(
        Raw(b"version https://git-lfs".to_vec()).error().to_string(),
        r#"not a GGUF file (it begins with "vers" instead of "GGUF")"#
    );
    assert!(matches!(Raw::default().error(), GgufError::Truncated { len: 0, .. }));
    assert!(matches!(
        Raw::default().bytes(b"GGUF\0\0\0\x03").u64(0).u64(0).error(),
        GgufError::BigEndian
    ));
    for version in [0, 1, 4, 0x0001_0001, u32::MAX] {
        let error = Raw::default().bytes(b"GGUF").u32(version).u64(0).u64(0).error();
        assert!(matches!(error, GgufError::Version { version: v } if v == version), "{error}");
    }
}

#[test]
fn impossible_counts_and_lengths() {
    for count in [1, 1 << 20, 1 << 40, 1 << 60, u64::MAX / 12, u64::MAX] {
        assert!(matches!(Raw::header(0, count).error(), GgufError::Count { .. }), "{count} keys");
        assert!(
            matches!(Raw::header(count, 0).error(), GgufError::Count { .. }),
            "{count} tensors"
        );
        for ty in 0..=12_u32 {
            let error = Raw::header(0, 1).str("k").u32(ARRAY).u32(ty).u64(count).error();
            assert!(
                matches!(error, GgufError::Count { what: "array length", .. }),
                "{count} of type {ty}: {error}"
            );
        }
        let string = Raw::header(0, 1).str("k").u32(STRING).u64(count);
        assert!(matches!(string.error(), GgufError::Truncated { .. }), "string of {count} bytes");
    }
    // By one item too many: a hundred bytes hold seven keys, three tensors, and so on.
    let hundred = [0; 100];
    let counted =
        |raw: Raw| matches!(raw.bytes(&hundred).error(), GgufError::Count { remaining: 100, .. });
    assert!(counted(Raw::header(0, 8)));
    assert!(counted(Raw::header(4, 0)));
    for (ty, bytes) in [1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8].into_iter().enumerate() {
        let array = Raw::header(0, 1).str("k").u32(ARRAY).u32(ty as u32);
        assert!(counted(array.clone().u64(100 / bytes + 1)), "type {ty}");
        assert!(Gguf::from_bytes(array.u64(100 / bytes).bytes(&hundred).0).is_ok(), "type {ty}");
    }
    let long_key = Raw::header(0, 1).u64(65_536).bytes(&[b'k'; 70_000]);
    assert!(matches!(long_key.error(), GgufError::TooLong { len: 65_536, .. }));
    let long_name = Raw::header(1, 0).tensor(&"n".repeat(256), &[1], F32, 0).data(4);
    assert!(matches!(long_name.error(), GgufError::TooLong { len: 256, .. }));
}

#[test]
fn broken_metadata() {
    let pair = |key: &str, ty: u32| Raw::header(0, 1).str(key).u32(ty);
    assert!(matches!(pair("k", 13).u64(0).error(), GgufError::ValueType { id: 13, at: 33 }));
    assert!(matches!(pair("k", ARRAY).u32(99).u64(0).error(), GgufError::ValueType { id: 99, .. }));
    assert!(matches!(pair("k", 7).bytes(&[2]).error(), GgufError::Bool { value: 2, at: 37 }));
    let bools = pair("k", ARRAY).u32(7).u64(3).bytes(&[0, 1, 7]);
    assert!(matches!(bools.error(), GgufError::Bool { value: 7, at: 51 }));
    let key = Raw::header(0, 1).u64(2).bytes(&[b'k', 0xff]).u32(0).bytes(&[1]);
    assert!(matches!(key.error(), GgufError::NameNotUtf8 { what: "metadata key", .. }));
    let twice = Raw::header(0, 2).str("k").u32(0).bytes(&[1]).str("k").u32(0).bytes(&[1]);
    assert_eq!(twice.error().to_string(), r#"metadata key "k" occurs twice"#);
    for depth in [7, 8, 100, 100_000] {
        let mut raw = pair("k", ARRAY);
        for _ in 0..depth {
            raw = raw.u32(ARRAY).u64(1);
        }
        let result = Gguf::from_bytes(raw.u32(0).u64(1).bytes(&[5]).0);
        match result {
            Ok(_) => assert_eq!(depth, 7),
            Err(error) => assert!(depth > 7 && matches!(error, GgufError::Depth { .. }), "{error}"),
        }
    }
    for alignment in [0_u32, 3, 33, 1 << 22, 1 << 31, u32::MAX] {
        let error = pair("general.alignment", 4).u32(alignment).error();
        assert!(matches!(error, GgufError::Alignment { .. }), "{alignment}: {error}");
    }
    assert!(matches!(
        pair("general.alignment", STRING).str("32").error(),
        GgufError::WrongType { .. }
    ));
}

#[test]
fn broken_tensors() {
    let one = |dims: &[u64], ty, offset| Raw::header(1, 0).tensor("w", dims, ty, offset).data(64);
    assert!(Gguf::from_bytes(one(&[4, 4], F32, 0).0).is_ok());
    assert!(matches!(one(&[], F32, 0).error(), GgufError::DimCount { count: 0, .. }));
    assert!(matches!(one(&[1; 5], F32, 0).error(), GgufError::DimCount { count: 5, .. }));
    assert!(matches!(one(&[4, 0], F32, 0).error(), GgufError::Dims { .. }));
    for dims in [&[u64::MAX, 2][..], &[1 << 32, 1 << 32], &[1 << 62], &[1 << 16; 4], &[u64::MAX; 4]]
    {
        let error = one(dims, F32, 0).error();
        assert!(matches!(error, GgufError::Dims { .. }), "{error}");
    }
    assert!(matches!(one(&[1 << 60], F32, 0).error(), GgufError::TensorRange { .. }));
    assert!(matches!(one(&[31, 2], 2, 0).error(), GgufError::RowBlocks { row: 31, block: 32, .. }));
    assert!(matches!(
        one(&[17], F32, 0).error(),
        GgufError::TensorRange { bytes: 68, available: 64, .. }
    ));
    assert!(matches!(
        one(&[1], F32, 8).error(),
        GgufError::Misaligned { offset: 8, alignment: 32, .. }
    ));
    for offset in [64, 1 << 32, 1 << 63, u64::MAX - 31] {
        let error = one(&[1], F32, offset).error();
        assert!(matches!(error, GgufError::TensorRange { .. }), "{offset}: {error}");
    }
    let two = |names: [&str; 2], offset| {
        Raw::header(2, 0)
            .tensor(names[0], &[9], F32, 0)
            .tensor(names[1], &[1], F32, offset)
            .data(68)
    };
    assert!(Gguf::from_bytes(two(["a", "b"], 64).0).is_ok());
    assert_eq!(two(["a", "b"], 32).error().to_string(), r#"tensors "a" and "b" overlap"#);
    assert_eq!(two(["a", "a"], 64).error().to_string(), r#"tensor "a" occurs twice"#);
    let name = Raw::header(1, 0).u64(1).bytes(&[0xc3]).u32(1).u64(1).u32(F32).u64(0).data(4);
    assert!(matches!(name.error(), GgufError::NameNotUtf8 { what: "tensor name", .. }));
}

#[test]
fn types_without_support_are_named() {
    for (id, name) in [
        (4, "number 4 (unknown)"),
        (9, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (19, "IQ1_S"),
        (26, "I32"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (40, "NVFP4"),
        (1000, "number 1000 (unknown)"),
    ] {
        let error = Raw::header(1, 0).tensor("blk.0.w", &[256], id, 0).data(2048).error();
        let start = format!("tensor \"blk.0.w\" has type {name}, which is not supported");
        assert!(error.to_string().starts_with(&start), "{error}");
    }
}

#[test]
fn files_that_are_none() {
    let folder = crate::Folder::new("files-that-are-none");
    let missing = folder.0.join("missing.gguf");
    let error = Gguf::open(&missing).unwrap_err();
    assert!(
        matches!(error, GgufError::Io { .. }) && error.to_string().contains("missing.gguf"),
        "{error}"
    );
    let error = Gguf::open(&folder.0).unwrap_err();
    assert!(error.to_string().ends_with("not a regular file"), "{error}");
    let empty = folder.0.join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    let error = Gguf::open(&empty).unwrap_err();
    assert!(error.to_string().contains("empty.gguf: the file ends inside the header"), "{error}");
}
