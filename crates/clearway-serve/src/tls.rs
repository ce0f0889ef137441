//! TLS without C: rustls over Graviola.

use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod real {
    use super::{Arc, Path, io};
    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::server::TlsStream;

    /// Certificates and a key that connections are opened with.
    #[derive(Clone)]
    pub struct Tls {
        acceptor: TlsAcceptor,
    }

    impl Tls {
        /// Reads certificates and their key, both PEM.
        ///
        /// # Errors
        /// Files that cannot be read or do not fit each other.
        pub fn open(certificates: &Path, key: &Path) -> io::Result<Self> {
            if let Some(missing) = clearway_llm::tls::missing_feature() {
                return Err(io::Error::other(format!("TLS needs {missing}")));
            }
            let about = |path: &Path, error: &dyn std::fmt::Display| {
                io::Error::other(format!("{}: {error}", path.display()))
            };
            let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificates)
                .and_then(Iterator::collect)
                .map_err(|error| about(certificates, &error))?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| about(key, &error))?;
            let config =
                ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
                    .with_safe_default_protocol_versions()
                    .and_then(|builder| {
                        builder.with_no_client_auth().with_single_cert(chain, secret)
                    })
                    .map_err(|error| about(certificates, &error))?;
            Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
        }

        /// Opens a connection.
        ///
        /// # Errors
        /// What the client did wrong.
        pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
            &self,
            stream: S,
        ) -> io::Result<TlsStream<S>> {
            self.acceptor.accept(stream).await
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod real {
    use super::{Path, io};

    /// There is none on this processor.
    #[derive(Clone)]
    pub struct Tls;

    impl Tls {
        /// Always fails.
        ///
        /// # Errors
        /// There is no provider without C for this processor.
        pub fn open(_: &Path, _: &Path) -> io::Result<Self> {
            Err(io::Error::other("TLS needs an x86-64 or AArch64 processor; put a proxy in front"))
        }

        /// Never called.
        ///
        /// # Errors
        /// Always.
        pub async fn accept<S>(&self, _: S) -> io::Result<S> {
            Err(io::Error::other("no TLS"))
        }
    }
}

pub use real::Tls;
