//! Calls the target `http` of `clearway-fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    clearway_fuzz::http::fuzz_http(data);
});
