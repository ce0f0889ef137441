//! GGUF files: what is written is read back, what other software writes is read, and nothing that
//! is wrong with a file goes unnoticed or does harm.

// Helper functions of tests may fail like tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../clearway-fuzz/src/gguf.rs"]
mod fuzz_one;
#[path = "gguf/hostile.rs"]
mod hostile;
#[path = "gguf/python.rs"]
mod python;
#[path = "gguf/roundtrip.rs"]
mod roundtrip;
#[path = "gguf/split.rs"]
mod split;
#[path = "gguf/synth.rs"]
mod synth;

use std::path::PathBuf;

use clearway_graph::DType;
use clearway_llm::gguf::{ByteStr, GgufWriter};

/// Bytes that differ from tensor to tensor; the same as in `data/make_gguf.py`.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + 7 * salt) as u8).collect()
}

/// The types that files can hold.
fn file_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32)
}

fn written(writer: GgufWriter<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    let len = writer.file_bytes();
    assert_eq!(writer.write_to(&mut file).unwrap(), len);
    assert_eq!(file.len() as u64, len);
    file
}

/// A file of about a kilobyte with every metadata type, nested arrays and three tensors.
fn small_file() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama").unwrap();
    w.set("u8", &1_u8).unwrap();
    w.set("i8", &-1_i8).unwrap();
    w.set("u16", &2_u16).unwrap();
    w.set("i16", &-2_i16).unwrap();
    w.set("u32", &3_u32).unwrap();
    w.set("i32", &-3_i32).unwrap();
    w.set("f32", &0.5_f32).unwrap();
    w.set("bool", &true).unwrap();
    w.set("u64", &4_u64).unwrap();
    w.set("i64", &-4_i64).unwrap();
    w.set("f64", &0.25_f64).unwrap();
    w.set("tokens", &[ByteStr(b"a"), ByteStr(b"\xff"), ByteStr(b"")]).unwrap();
    w.set("bools", &[true, false]).unwrap();
    w.set("nested", &[vec![[1_u8, 2]], vec![[3, 4], [5, 6]]]).unwrap();
    w.set("general.alignment", &16_u32).unwrap();
    w.tensor("a", DType::Q8_0, &[32, 2], |out| out.write_all(&pattern(68, 0))).unwrap();
    w.tensor("b", DType::F32, &[3], |out| out.write_all(&pattern(12, 1))).unwrap();
    w.tensor("c", DType::F16, &[1, 2, 1, 2], |out| out.write_all(&pattern(8, 2))).unwrap();
    written(w)
}

/// A folder of one test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
