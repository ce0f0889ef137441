//! TLS without C: rustls over Graviola, which exists for the processors most machines have.

use ureq::tls::TlsConfig;

use super::FetchError;

/// TLS for the client, with the roots of Mozilla or those of `SSL_CERT_FILE`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn config() -> Result<TlsConfig, FetchError> {
    use std::sync::Arc;
    use ureq::tls::{RootCerts, TlsProvider};

    if let Some(what) = crate::tls::missing_feature() {
        return Err(FetchError::NoTls { what });
    }
    let roots = match std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty()) {
        Some(file) => certificates(file.as_ref())?,
        None => RootCerts::WebPki,
    };
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
        .root_certs(roots)
        .build())
}

/// There is no Rust-only provider for other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn config() -> Result<TlsConfig, FetchError> {
    Err(FetchError::NoTls { what: "an x86-64 or AArch64 processor" })
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn certificates(file: &std::path::Path) -> Result<ureq::tls::RootCerts, FetchError> {
    use ureq::tls::{Certificate, PemItem, parse_pem};

    let url = || format!("SSL_CERT_FILE={}", file.display());
    let failed = |message: String| FetchError::Http { url: url(), message };
    let pem = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| failed(error.to_string()))?
        {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err(failed("it holds no certificate".into())),
        false => Ok(found.into()),
    }
}
