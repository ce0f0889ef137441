//! One step of fuzzing placement problems, shared by libFuzzer, the loop and the tests.

use clearway_graph::pack::{Effort, PackOptions, check, csv, pack};

/// Most rows that are placed: the target is the reader, and placing is slow for many.
const MAX_ROWS: usize = 24;

/// Reads the bytes as a CSV file. What is accepted is written and read back the same, and a packing of it passes the
/// check. Says whether it was accepted.
pub fn fuzz_plan(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let table = match csv::parse(&text) {
        Ok(table) => table,
        Err(error) => {
            assert!(error.to_string().starts_with("line "), "{error}");
            return false;
        }
    };
    let offsets = vec![0; table.items.len()];
    let again = csv::parse(&table.write(&offsets));
    assert_eq!(again.as_ref().map(|again| &again.items), Ok(&table.items), "{again:?}");
    if table.items.len() <= MAX_ROWS {
        let effort = Effort::Exact { node_budget: 200 };
        if let Ok(packing) = pack(&table.items, &PackOptions { effort, ..PackOptions::default() }) {
            assert_eq!(check(&table.items, &packing.offsets, None), Ok(packing.height));
            assert!(packing.lower_bound <= packing.height);
        }
    }
    true
}
