//! Calls the target `tokenizer` of `clearway-fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    clearway_fuzz::tokenizer::fuzz_tokenizer(data);
});
