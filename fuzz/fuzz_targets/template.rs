//! Arbitrary bytes as a chat template.

#![no_main]

// The tests run the same step, so that whatever is found here can be kept there.
#[path = "../../crates/clearway-llm/tests/data/tokenizer/fuzz_template.rs"]
mod fuzz_template;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz_template::fuzz_template(data);
});
