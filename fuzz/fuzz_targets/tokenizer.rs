//! Arbitrary bytes as a vocabulary and a text.

#![no_main]

// The tests run the same step, so that whatever is found here can be kept there.
#[path = "../../crates/clearway-llm/tests/data/tokenizer/fuzz_tokenizer.rs"]
mod fuzz_tokenizer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz_tokenizer::fuzz_tokenizer(data);
});
