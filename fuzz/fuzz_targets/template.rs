//! Calls the target `template` of `clearway-fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    clearway_fuzz::template::fuzz_template(data);
});
