//! Arbitrary bytes as a GGUF file, and as the parts of a split one.

#![no_main]

// The tests run the same step, so that whatever is found here can be kept there.
#[path = "../../crates/clearway-llm/tests/gguf/fuzz_one.rs"]
mod fuzz_one;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz_one::fuzz_one(data);
});
