//! One step of fuzzing what a hub answers, shared by libFuzzer and the loop.

/// Reads the bytes as a description of a repository, a redirect, a range and a name, separated by zero bytes. Says
/// whether the description names a model.
pub fn fuzz_hub(data: &[u8]) -> bool {
    clearway_llm::fetch::fuzz_hub(data)
}
