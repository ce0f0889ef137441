#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/clearway-llm/tests/data/tokenizer/fuzz_tokenizer.rs"]
mod fuzz_tokenizer;

fuzz_target!(|data: &[u8]| {
    fuzz_tokenizer::fuzz_tokenizer(data);
});
