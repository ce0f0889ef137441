//! How the server runs.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::log::LogFormat;

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// Address of the network interface.
        host: IpAddr,
        /// Port; 0 for any that is free.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => host.is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// How the server runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub address: Address,
    /// Keys that open it; none for no check.
    pub keys: Vec<String>,
    /// Origins of pages that may use it from a browser; `*` for all.
    pub origins: Vec<String>,
    /// Names that requests may address it by, besides those of this machine.
    pub hosts: Vec<String>,
    /// Certificates and their key, for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// How long a text may take.
    pub timeout: Duration,
    /// How long requests under way may take when the server is told to end.
    pub drain: Duration,
    /// How requests are logged.
    pub log: LogFormat,
    /// Largest body of a request in bytes.
    pub max_body: usize,
    /// Most connections at once.
    pub connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: Address::Tcp { host: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 8080 },
            keys: Vec::new(),
            origins: Vec::new(),
            hosts: Vec::new(),
            tls: None,
            timeout: Duration::from_secs(600),
            drain: Duration::from_secs(30),
            log: LogFormat::default(),
            max_body: 32 << 20,
            connections: 1024,
        }
    }
}
