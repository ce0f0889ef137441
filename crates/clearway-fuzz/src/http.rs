//! One step of fuzzing the bodies of requests, shared by libFuzzer and the loop.

/// Reads the first byte as the number of an endpoint and the others as the body of a request. Says whether it is accepted.
pub fn fuzz_http(data: &[u8]) -> bool {
    clearway_serve::fuzz_body(data)
}
