//! The table of families and formats in README.md is the one that the code gives.
//!
//! `CLEARWAY_UPDATE_README=1 cargo test -p clearway-llm --test readme` writes it.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::fmt::Write;
use std::path::Path;

use clearway_llm::gguf::tensor_types;
use clearway_llm::model::FAMILIES;

const START: &str = "<!-- families: made by crates/clearway-llm/tests/readme.rs -->\n";
const END: &str = "<!-- end of families -->\n";

fn table() -> String {
    let mut text = String::from("| `general.architecture` | models |\n|---|---|\n");
    for family in FAMILIES {
        writeln!(text, "| `{}` | {} |", family.name, family.models).unwrap();
    }
    let types: Vec<String> = tensor_types().map(|(name, _)| format!("`{name}`")).collect();
    writeln!(text, "| tensors of any of them | {} |", types.join(", ")).unwrap();
    text
}

#[test]
fn families_and_formats_of_the_readme_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(START).expect("the table has a start");
    let (found, after) = rest.split_once(END).expect("the table has an end");
    let expected = table();
    if std::env::var_os("CLEARWAY_UPDATE_README").is_some() && found != expected {
        std::fs::write(&path, format!("{before}{START}{expected}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, expected, "CLEARWAY_UPDATE_README=1 writes it anew");
}
