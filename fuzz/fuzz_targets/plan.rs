//! Calls the target `plan` of `clearway-fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    clearway_fuzz::plan::fuzz_plan(data);
});
