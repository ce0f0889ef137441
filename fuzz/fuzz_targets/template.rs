#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/clearway-llm/tests/data/tokenizer/fuzz_template.rs"]
mod fuzz_template;

fuzz_target!(|data: &[u8]| {
    fuzz_template::fuzz_template(data);
});
