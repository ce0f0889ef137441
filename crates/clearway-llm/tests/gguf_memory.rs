//! Hostile files must not make the reader allocate more than a small multiple of their length, and never much more
//! than the largest tables that are accepted.
//!
//! A program of its own, because the measure is the whole process. Files are mapped and sparse, so
//! the test itself adds little to it.

// Helper functions of tests may fail like tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use clearway_graph::testkit::skip;
use clearway_llm::gguf::Gguf;

const MEGABYTE: u64 = 1 << 20;

/// Largest amount of memory that was ever touched.
const TOUCHED: &str = "VmHWM:";
/// Largest size of the address space, which counts memory that was never touched too.
const RESERVED: &str = "VmPeak:";

fn peak(measure: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(measure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Growth of a measure while a file that begins as given, and has zeros up to `len`, is opened.
fn growth(measure: &str, beginning: &[u8], len: u64, accepted: bool) -> u64 {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("memory-{}.gguf", std::process::id()));
    std::fs::write(&path, beginning).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
    let before = peak(measure);
    let result = Gguf::open(&path);
    let grown = peak(measure) - before;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(result.is_ok(), accepted, "{:?}", result.err());
    grown
}

fn header(tensors: u64, keys: u64) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(tensors.to_le_bytes());
    file.extend(keys.to_le_bytes());
    file
}

fn key(file: &mut Vec<u8>, key: &str, ty: u32) {
    file.extend((key.len() as u64).to_le_bytes());
    file.extend(key.as_bytes());
    file.extend(ty.to_le_bytes());
}

#[test]
fn memory_stays_in_proportion_to_the_file() {
    if !cfg!(target_os = "linux") {
        return skip("linux", "memory is measured by /proc/self/status, which only Linux has");
    }
    // As many real keys as are accepted, as short as they can be: the densest tables there are.
    let dense = |keys: u64| {
        let mut dense = header(0, keys);
        for count in 0..keys {
            key(&mut dense, &format!("{count:x}"), 0);
            dense.push(1);
        }
        dense
    };
    let accepted = dense(1 << 16);
    let len = accepted.len() as u64;
    let grown = growth(TOUCHED, &accepted, len, true);
    assert!(grown < 12 * len, "{grown} bytes for a file of {len}");
    assert!(grown > 2 * len, "{grown} bytes: the measure does not measure");
    let refused = dense(300_000);
    let grown = growth(TOUCHED, &refused, refused.len() as u64, false);
    // Pages of the file count too; the tables of all keys would take 25 MB.
    assert!(grown < 6 * MEGABYTE, "{grown} bytes for a table that is too long");

    // From here on all files are equally long, so that only what comes on top raises the peak.
    let len = 256 * MEGABYTE;
    assert!(growth(RESERVED, &header(0, 0), len, true) > len / 2, "the measure does not measure");

    // Counts as large as the file can hold by their smallest items, but the first item is wrong.
    for mut counts in [header(0, (len - 24) / 13), header((len - 24) / 32, 0)] {
        counts.extend([0xff; 64]);
        assert!(growth(RESERVED, &counts, len, false) < MEGABYTE);
    }

    // Arrays cost nothing, whatever they hold: they stay in the file. (Zeros are numbers, empty
    // strings, and empty arrays of numbers.)
    for (ty, item_bytes) in [(0_u32, 1), (8, 8), (9, 12)] {
        let mut array = header(0, 1);
        key(&mut array, "k", 9);
        array.extend(ty.to_le_bytes());
        let count = (len - array.len() as u64 - 8) / item_bytes;
        array.extend(count.to_le_bytes());
        assert!(growth(RESERVED, &array, len, true) < MEGABYTE, "array of type {ty}");
    }
}
