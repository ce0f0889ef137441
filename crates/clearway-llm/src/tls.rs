//! What TLS without C needs of the processor, for those who fetch and those who serve.

/// What the processor lacks for TLS, if anything: Graviola, which does the arithmetic, ends the process on one that lacks
/// one of these.
#[cfg(target_arch = "x86_64")]
pub fn missing_feature() -> Option<&'static str> {
    let complete = is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("avx2");
    (!complete).then_some("a processor with AES, PCLMULQDQ, BMI, ADX and AVX2")
}

#[cfg(target_arch = "aarch64")]
/// What the processor lacks for TLS, if anything.
pub fn missing_feature() -> Option<&'static str> {
    use std::arch::is_aarch64_feature_detected;
    let complete = is_aarch64_feature_detected!("neon")
        && is_aarch64_feature_detected!("aes")
        && is_aarch64_feature_detected!("pmull")
        && is_aarch64_feature_detected!("sha2");
    (!complete).then_some("a processor with AES, PMULL and SHA2")
}
