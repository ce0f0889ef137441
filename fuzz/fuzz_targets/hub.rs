//! Calls the target `hub` of `clearway-fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    clearway_fuzz::hub::fuzz_hub(data);
});
