//! Calls the target `gguf` of `clearway-fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    clearway_fuzz::gguf::fuzz_one(data);
});
